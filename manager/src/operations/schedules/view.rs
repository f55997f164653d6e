//! Schedules as responses show them.

use lisa_core::broker::StoredSchedule;
use lisa_core::fields::Describer;
use lisa_core::message::MessageId;
use lisa_core::openapi;
use lisa_core::time::UnixMs;
use lisa_core::topic::{ScheduleName, Topic};
use lisa_service::recurring::RecurringMessage;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value as Json};
use utoipa::openapi::RefOr;
use utoipa::openapi::schema::Schema;
use utoipa::{PartialSchema, ToSchema};

/// A page of schedules, by name.
#[derive(Debug, Default, Serialize, Deserialize, ToSchema)]
pub(crate) struct ScheduleList {
    pub(crate) schedules: Vec<ScheduleView>,
    /// The cursor of the next page; null at the end.
    pub(crate) next: Option<String>,
    /// The schedules whose definition cannot be read.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub(crate) damaged: Vec<DamagedSchedule>,
}

/// A schedule whose definition cannot be read, and the reason.
#[derive(Debug, Serialize, Deserialize, ToSchema)]
pub(crate) struct DamagedSchedule {
    pub(crate) schedule: ScheduleName,
    pub(crate) error: String,
}

/// A schedule and its progress.
#[derive(Debug, Serialize, Deserialize, ToSchema)]
pub(crate) struct ScheduleView {
    /// The name of the schedule.
    pub(crate) schedule: ScheduleName,
    /// The topic that it sends to.
    pub(crate) topic: Topic,
    /// The cron expression.
    pub(crate) cron: String,
    /// The time zone of `cron`.
    pub(crate) time_zone: String,
    /// True if the configuration of this manager declares it. Only an edit of that file changes or removes it.
    pub(crate) declared_in_file: bool,
    /// The time at which it was paused, if it is.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) paused_since: Option<String>,
    /// The newest of its times for which a message was sent, possibly ahead of that time.
    pub(crate) sent_until: Option<String>,
    /// The next time after now; absent if it is paused.
    pub(crate) next: Option<String>,
    /// The number of its times for which no message was sent because no manager was available, or because the topic refused it. Up to
    /// 100 are counted at once, with the next message.
    #[serde(default)]
    pub(crate) missed: u64,
    /// The newest of those.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) newest_missed: Option<String>,
    /// The error of its last send, if that failed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) error: Option<String>,
    /// The time of that error.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) error_at: Option<String>,
}

/// A schedule with its definition.
#[derive(Debug, Serialize, Deserialize, ToSchema)]
pub(crate) struct ScheduleDetails {
    #[serde(flatten)]
    pub(crate) view: ScheduleView,
    /// A number that grows with each change of the schedule, also if it is removed and created again. Absent if a file declares it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) version: Option<u64>,
    #[schema(value_type = NewSchedule)]
    pub(crate) definition: Map<String, Json>,
    /// Its next five times, whether it is paused or not.
    pub(crate) next_times: Vec<String>,
    /// Times that may surprise: days that some months do not have, and clock changes that skip or repeat a time.
    pub(crate) warnings: Vec<String>,
}

/// A schedule to create or change: a cron expression, and the message that is sent at each of its times.
pub(crate) struct NewSchedule;

impl PartialSchema for NewSchedule {
    fn schema() -> RefOr<Schema> {
        let meaning = "The definition of a schedule: a cron expression, and the message that is sent at each of its times.";
        let read = |from: &mut Describer| drop(RecurringMessage::read(from));
        Schema::Object(openapi::object_of(meaning, &[], read)).into()
    }
}

impl ToSchema for NewSchedule {}

/// A schedule that was paused or resumed.
#[derive(Debug, Serialize, Deserialize, ToSchema)]
pub(crate) struct SchedulePaused {
    pub(crate) schedule: ScheduleName,
    pub(crate) paused: bool,
    /// False if it was in that state already.
    pub(crate) changed: bool,
}

/// The message that a run of a schedule has sent.
#[derive(Debug, Serialize, Deserialize, ToSchema)]
pub(crate) struct ScheduleRun {
    pub(crate) schedule: ScheduleName,
    pub(crate) topic: Topic,
    /// The id of the message.
    pub(crate) id: MessageId,
    /// False if it was run within this second already.
    pub(crate) sent: bool,
}

/// The times of a backfill, and the messages that it has sent.
#[derive(Debug, Serialize, Deserialize, ToSchema)]
pub(crate) struct Backfilled {
    pub(crate) schedule: ScheduleName,
    pub(crate) topic: Topic,
    /// The number of times of this call, up to 1,000.
    #[serde(default)]
    pub(crate) times: u64,
    /// The number of messages that were sent; 0 with `dry_run`.
    pub(crate) sent: u64,
    /// The number of times for which there was a message already; 0 with `dry_run`, which does not look.
    pub(crate) duplicates: u64,
    /// The first time after those of this call; null at the end.
    pub(crate) next: Option<String>,
}

impl Backfilled {
    /// Adds the result of the next call.
    pub(crate) fn add(&mut self, next: Self) {
        self.times += next.times;
        self.sent += next.sent;
        self.duplicates += next.duplicates;
        self.next = next.next;
    }
}

impl ScheduleView {
    pub(super) fn new(
        stored: &StoredSchedule,
        schedule: &RecurringMessage,
        declared_in_file: bool,
        now: UnixMs,
    ) -> Self {
        let next = schedule.cron.next(&schedule.time_zone, now);
        let faults = &stored.faults;
        let missed = Some(faults.missed.newest).filter(|_| faults.missed.count > 0);
        let (error_at, error) = faults.error.clone().unzip();
        let text = |at: UnixMs| at.to_string();
        Self {
            schedule: stored.name.clone(),
            topic: schedule.topic.clone(),
            cron: schedule.cron.to_string(),
            time_zone: schedule.time_zone.to_string(),
            declared_in_file,
            paused_since: stored.paused.map(text),
            // A new schedule begins at a moment that is none of its times, and one of another rule begins again.
            sent_until: { stored.before_pause.or(stored.done) }
                .filter(|at| stored.rule == schedule.rule() && schedule.has(*at))
                .map(text),
            next: next.filter(|_| stored.paused.is_none()).map(text),
            missed: faults.missed.count,
            newest_missed: missed.map(text),
            error,
            error_at: error_at.map(text),
        }
    }

    /// Returns its state as a word: `paused` or `failing`; empty otherwise.
    pub(crate) fn state(&self) -> &'static str {
        match (&self.paused_since, &self.error) {
            (Some(_), _) => "paused",
            (None, Some(_)) => "failing",
            (None, None) => "",
        }
    }
}
