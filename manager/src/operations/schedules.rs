//! Schedules (recurring messages): lists, creates, changes, removes, pauses and resumes them, and sends for their times, for HTTP, the
//! command line and the dashboard.

mod backfill;
mod failing;
mod view;

use std::collections::{BTreeMap, BTreeSet};
use std::iter::successors;

use lisa_core::broker::{
    Broker, BrokerError, FireResult, Fired, FiredOf, SchedulePut, ScheduleRemoved, StoredSchedule,
};
use lisa_core::message::MessageId;
use lisa_core::time::UnixMs;
use lisa_core::topic::{MAX_SCHEDULES, ScheduleName};
use lisa_producer::http::problem;
use lisa_producer::{Receipt, SendOutcome};
use lisa_service::config::Config;
use lisa_service::http::client::{reach, reaches, reaches_named, schedule_quota};
use lisa_service::http::{Problem, ProblemCode};
use lisa_service::recurring::{PutScheduleError, RecurringMessage};
use tokio::task::yield_now;

pub(crate) use self::backfill::{Period, add_earlier};
pub(crate) use self::failing::FailingSchedules;
pub(crate) use self::view::{
    Backfilled, DamagedSchedule, NewSchedule, ScheduleDetails, ScheduleList, SchedulePaused,
    ScheduleRun, ScheduleView,
};
use super::audit::{self, Action};
use crate::recurring::Sender;

/// The number of next times that are shown of one schedule.
const SHOWN_TIMES: usize = 5;
/// The most schedules whose next times are computed for a forecast.
const FORECAST: usize = 1000;

/// The schedules of a relay: those that were created at run time, and those that a configuration declares.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Schedules<'a> {
    pub(crate) broker: &'a Broker,
    /// The configuration of this process.
    pub(crate) config: &'a Config,
}

impl Schedules<'_> {
    /// Lists schedules by name: up to `limit` of those that begin with `prefix` and come after `after`.
    ///
    /// # Errors
    /// [`BrokerError`].
    pub(crate) async fn list(
        self,
        prefix: &str,
        after: Option<&ScheduleName>,
        limit: usize,
    ) -> Result<ScheduleList, BrokerError> {
        let reach = reach();
        let declared = self.config.schedules.keys();
        let declared = declared.filter(|name| reach.has_schedule(name));
        let declared = declared.filter(|name| name.as_str().starts_with(prefix));
        let declared = declared.filter(|name| after.is_none_or(|after| *name > after));
        let mut names: BTreeSet<ScheduleName> = declared.cloned().collect();
        for start in reach.starts_of_schedules(prefix) {
            let stored = self.broker.schedule_names(start, after, limit + 1).await?;
            names.extend(stored.into_iter().filter(|name| reach.has_schedule(name)));
        }
        let count = names.len();
        let names: Vec<_> = names.into_iter().take(limit).collect();
        let mut list = ScheduleList::default();
        let now = self.broker.now();
        // Fewer if their definitions are large.
        let read = self.broker.read_schedules(&names).await?;
        let last = read.last().filter(|_| read.len() < count);
        list.next = last.map(|last| last.name.to_string());
        for stored in read {
            // The next time of a sparse expression takes a millisecond, and there may be a thousand.
            yield_now().await;
            match self.parse(&stored) {
                Some(Ok((schedule, _))) if !reaches(&schedule.topic) => {}
                Some(Ok((schedule, declared))) => {
                    let view = ScheduleView::new(&stored, &schedule, declared, now);
                    list.schedules.push(view);
                }
                Some(Err(error)) if reaches_named(None) => list.damaged.push(DamagedSchedule {
                    schedule: stored.name,
                    error,
                }),
                // Cannot be read, or removed in the meantime.
                Some(Err(_)) | None => {}
            }
        }
        Ok(list)
    }

    async fn read(self, name: &ScheduleName) -> Result<StoredSchedule, BrokerError> {
        let read = self.broker.read_schedules(std::slice::from_ref(name));
        Ok(read.await?.pop().expect("one for each name"))
    }

    /// Returns the schedule, and whether the configuration declares it; `None` if there is none.
    fn parse(self, stored: &StoredSchedule) -> Option<Result<(RecurringMessage, bool), String>> {
        match self.config.schedules.get(&stored.name) {
            Some(declared) => Some(Ok((declared.clone(), true))),
            None => {
                let definition = stored.definition.as_deref()?;
                let read = RecurringMessage::from_definition(definition);
                Some(read.map(|schedule| (schedule, false)))
            }
        }
    }

    async fn find(
        self,
        name: &ScheduleName,
    ) -> Result<(StoredSchedule, RecurringMessage, bool), Problem> {
        let stored = self.read(name).await?;
        match self.parse(&stored) {
            Some(Ok((schedule, declared))) if reaches(&schedule.topic) => {
                Ok((stored, schedule, declared))
            }
            Some(Err(error)) if reaches_named(None) => {
                let why = format!("the definition of schedule {name} cannot be read: {error}");
                Err(Problem::new(ProblemCode::Internal, why))
            }
            _ => Err(unknown(name)),
        }
    }

    /// Returns true if the client reaches the topic of a stored schedule. One that cannot be read may have any topic, so the client must reach all.
    fn is_reached(self, stored: &StoredSchedule) -> bool {
        match self.parse(stored) {
            Some(Ok((schedule, _))) => reaches(&schedule.topic),
            _ => reaches_named(None),
        }
    }

    /// Names the topic of a stored schedule in the audit log, so that clients limited to that topic see the entry.
    fn of_topic(self, action: Action, stored: &StoredSchedule) -> Action {
        match self.parse(stored) {
            Some(Ok((schedule, _))) => action.topic(&schedule.topic),
            _ => action,
        }
    }

    /// Returns the version at which a schedule may be changed. For a client limited to some topics, this is the version that was read,
    /// because the schedule may get another team's topic in the meantime.
    fn unchanged(
        at: Option<u64>,
        name: &ScheduleName,
        read: &StoredSchedule,
    ) -> Result<Option<u64>, Problem> {
        match at {
            at if reaches_named(None) => Ok(at),
            Some(at) if at != read.version => Err(other(name, read.version)),
            _ => Ok(Some(read.version)),
        }
    }

    /// Returns a schedule with its definition.
    ///
    /// # Errors
    /// There is none, or it cannot be read; Redis.
    pub(crate) async fn show(self, name: &ScheduleName) -> Result<ScheduleDetails, Problem> {
        let (stored, schedule, declared) = self.find(name).await?;
        Ok(self.details(&stored, &schedule, declared))
    }

    fn details(
        self,
        stored: &StoredSchedule,
        schedule: &RecurringMessage,
        declared: bool,
    ) -> ScheduleDetails {
        let now = self.broker.now();
        let next = |after: &UnixMs| schedule.cron.next(&schedule.time_zone, *after);
        let times = successors(next(&now), next).take(SHOWN_TIMES);
        ScheduleDetails {
            view: ScheduleView::new(stored, schedule, declared, now),
            version: Some(stored.version).filter(|_| !declared),
            definition: schedule.fields(),
            next_times: times.map(|at| at.to_string()).collect(),
            warnings: schedule.cron.warnings(&schedule.time_zone, now),
        }
    }

    /// Creates a schedule, or replaces its definition, if it is at the version `at`: 0 if it must not exist. Returns it, and whether
    /// it is new.
    ///
    /// # Errors
    /// The configuration declares it; it is at another version; it is too large; there are too many; the quota of the client; its topic
    /// does not exist; Redis.
    pub(crate) async fn put(
        self,
        name: &ScheduleName,
        schedule: &RecurringMessage,
        at: Option<u64>,
        action: impl FnOnce(&str) -> Action,
    ) -> Result<(ScheduleDetails, bool), Problem> {
        let before = self.read(name).await?;
        let is_new = before.definition.is_none();
        let is_reached = self.parse(&before).is_none() || self.is_reached(&before);
        // A form names the schedule in its body.
        if !reach().has_schedule(name) {
            let why = format!("the token does not reach the schedule {name}");
            return Err(Problem::new(ProblemCode::Forbidden, why));
        }
        if !is_reached || !reaches(&schedule.topic) {
            let why = match is_reached {
                true => format!("the token does not reach the topic {}", schedule.topic),
                false => format!("the token does not reach the topic of schedule {name}"),
            };
            return Err(Problem::new(ProblemCode::Forbidden, why));
        }
        self.not_in_file(name)?;
        let at = Self::unchanged(at, name, &before)?;
        let action = action(if is_new {
            "create_schedule"
        } else {
            "change_schedule"
        });
        let action = action.topic(&schedule.topic);
        let action = action.details(format!("{name}, {}", schedule.rule()));
        let quota = schedule_quota();
        let put = async {
            let put = schedule.put(self.broker, name, at, quota.as_deref()).await;
            let put = put.map_err(|error| match error {
                PutScheduleError::Broker(error) => Problem::suggesting_topic(error, self.broker),
                PutScheduleError::Payload(why) => invalid("payload", &why),
            });
            match put? {
                SchedulePut::Put { version, created } => Ok((version, Some(created))),
                SchedulePut::Unchanged(version) => Ok((version, None)),
                SchedulePut::Other(version) => Err(other(name, version)),
                SchedulePut::Full => {
                    let why = format!("the limit of {MAX_SCHEDULES} schedules is reached");
                    Err(Problem::new(ProblemCode::Busy, why))
                }
                SchedulePut::OverQuota(over) => {
                    Err(Problem::new(ProblemCode::Quota, over.to_string()))
                }
            }
        };
        let put = action.run(put, |(_, put)| audit::changed(put.is_some()));
        let (version, created) = put.await?;
        // Another request may have changed or removed it since.
        let mut stored = self.read(name).await?;
        stored.version = version;
        Ok((
            self.details(&stored, schedule, false),
            created == Some(true),
        ))
    }

    /// Removes a schedule that was created at run time, if it is at the version `at`.
    ///
    /// # Errors
    /// There is none; the configuration declares it; it is at another version; Redis.
    pub(crate) async fn remove(
        self,
        name: &ScheduleName,
        at: Option<u64>,
        action: Action,
    ) -> Result<(), Problem> {
        let before = self.read(name).await?;
        if !self.is_reached(&before) {
            return Err(unknown(name));
        }
        self.not_in_file(name)?;
        let at = Self::unchanged(at, name, &before)?;
        let remove = self.broker.remove_schedule(name, at);
        let action = self.of_topic(action, &before).details(name);
        let removed = action.run(remove, |removed| {
            audit::changed(*removed == ScheduleRemoved::Removed)
        });
        match removed.await? {
            ScheduleRemoved::Removed => Ok(()),
            ScheduleRemoved::Absent => Err(unknown(name)),
            ScheduleRemoved::Other(version) => Err(other(name, version)),
        }
    }

    /// Pauses or resumes a schedule.
    ///
    /// # Errors
    /// There is none; Redis.
    pub(crate) async fn pause(
        self,
        name: &ScheduleName,
        paused: bool,
        action: Action,
    ) -> Result<SchedulePaused, Problem> {
        let before = self.read(name).await?;
        if !self.is_reached(&before) {
            return Err(unknown(name));
        }
        let is_declared = self.config.schedules.contains_key(name);
        let pause = self.broker.pause_schedule(name, paused, is_declared);
        let action = self.of_topic(action, &before).details(name);
        let changed = action.run(pause, |changed| audit::changed(*changed == Some(true)));
        Ok(SchedulePaused {
            schedule: name.clone(),
            paused,
            changed: changed.await?.ok_or_else(|| unknown(name))?,
        })
    }

    /// Sends a message of a schedule now, which clears its error. A second run within the same second sends nothing.
    ///
    /// # Errors
    /// There is none; the topic refuses the message; Redis.
    pub(crate) async fn run(
        self,
        sender: &Sender,
        name: &ScheduleName,
        action: Action,
    ) -> Result<ScheduleRun, Problem> {
        let (stored, schedule, declared) = self.find(name).await?;
        let now = self.broker.now();
        let action = action.topic(&schedule.topic).details(name);
        let send = sender.send_as(MessageId::of_run(name, now), &schedule, now);
        let receipt = action.run(send, |receipt| audit::changed(is_new(receipt)));
        let receipt = receipt.await.map_err(problem)?;
        if stored.faults.error.is_some() {
            let rule = schedule.rule();
            let of = match declared {
                true => FiredOf::Rule(&rule),
                false => FiredOf::Version(stored.version),
            };
            let ran = Fired {
                result: Some(FireResult::Ran),
                ..Fired::ask(name, of)
            };
            if let Err(error) = self.broker.note_fires(&[ran]).await {
                tracing::warn!(schedule = %name, %error, "cannot clear the error of a schedule after its run");
            }
        }
        Ok(ScheduleRun {
            schedule: name.clone(),
            topic: schedule.topic,
            sent: is_new(&receipt),
            id: receipt.id,
        })
    }

    /// Returns the schedules that may send before `until`: all that the configuration declares, and of those that were created by
    /// call the next ones, up to 1,000, without those that are paused; and whether there are more.
    ///
    /// # Errors
    /// [`BrokerError`].
    pub(crate) async fn upcoming(
        self,
        until: UnixMs,
    ) -> Result<(BTreeMap<ScheduleName, RecurringMessage>, bool), BrokerError> {
        let reach = reach();
        let mut names = self.broker.next_schedules(until, FORECAST + 1).await?;
        let mut has_more = names.len() > FORECAST;
        names.truncate(FORECAST);
        names.splice(0..0, self.config.schedules.keys().cloned());
        let mut all = BTreeMap::new();
        let read = self.broker.read_schedules(&names).await?;
        has_more |= read.len() < names.len();
        for stored in read {
            if stored.paused.is_none()
                && reach.has_schedule(&stored.name)
                && let Some(Ok((schedule, _))) = self.parse(&stored)
                && reaches(&schedule.topic)
            {
                all.insert(stored.name, schedule);
            }
        }
        Ok((all, has_more))
    }

    /// Refuses to change or remove a schedule that the managers' configuration declares.
    pub(crate) fn not_in_file(self, name: &ScheduleName) -> Result<(), Problem> {
        if !self.config.schedules.contains_key(name) {
            return Ok(());
        }
        let why = format!(
            "the managers' configuration declares schedule {name}: edit schedules.{name} there, and reload the managers"
        );
        Err(Problem::new(ProblemCode::DeclaredInFile, why))
    }
}

fn is_new(receipt: &Receipt) -> bool {
    receipt.outcome != SendOutcome::Duplicate
}

fn unknown(name: &ScheduleName) -> Problem {
    Problem::new(
        ProblemCode::NotFound,
        format!("there is no schedule {name}"),
    )
}

fn other(name: &ScheduleName, version: u64) -> Problem {
    let why = match version {
        0 => format!("schedule {name} does not exist"),
        version => {
            format!("schedule {name} already exists or has changed: it is at version {version}")
        }
    };
    Problem::new(ProblemCode::PreconditionFailed, why)
}

fn invalid(field: &str, why: &dyn std::fmt::Display) -> Problem {
    Problem::new(ProblemCode::Invalid, format!("{field}: {why}")).error(field, why.to_string())
}
