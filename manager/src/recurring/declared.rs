//! The schedules of this manager's configuration.
//!
//! Every manager sends for its own schedules, without a leader. Redis records up to when each schedule has fired, so managers do
//! not repeat sends, and a manager that starts late knows which times were missed.

use std::collections::{BTreeMap, BTreeSet};
use std::convert::Infallible;
use std::future::pending;
use std::time::Duration;

use futures_util::{StreamExt, stream};
use lisa_core::broker::{BrokerError, FireResult, Fired, FiredOf, MissedTimes};
use lisa_core::outage::Outage;
use lisa_core::time::{UnixMs, millis};
use lisa_core::topic::{ScheduleName, Topic};
use lisa_producer::{Receipt, SendError};
use lisa_service::config::Config;
use lisa_service::recurring::RecurringMessage;
use lisa_service::shutdown::Shutdown;
use lisa_service::supervise::{Heartbeat, PartName};
use tokio::time::Instant;

use super::{
    AHEAD, IN_TIME, Outcome, SENDS_AT_A_TIME, Sender, before_shutdown, is_about_the_message,
    is_stored, pause,
};
use crate::assignment::{AssignedShard, Assignments, SHOWS_AFTER, watched};

/// The time ahead for a manager that does not hold the topic: it sends what the holder should have sent by then.
const AHEAD_BEHIND_HOLDER: Duration = Duration::from_millis(2500);
/// The pause after a failed send or call.
const AGAIN: Duration = Duration::from_secs(1);
/// The interval at which a paused schedule that is due looks whether it has been resumed.
const PAUSED_FOR: Duration = Duration::from_secs(2);
/// The longest pause between two rounds, since clocks may be set.
const LONGEST_PAUSE: Duration = Duration::from_secs(30);
/// A schedule is never done this far ahead. If it seems so, Redis's clock was set back.
const SET_BACK: Duration = Duration::from_secs(60);

/// The schedules of one manager that send to one topic. A delay of sends to this topic delays no other topic.
#[derive(Clone, Debug)]
pub(crate) struct Recurring {
    topic: Topic,
    sender: Sender,
    assignments: Assignments,
    schedules: BTreeMap<ScheduleName, Series>,
}

/// A schedule and its progress.
#[derive(Clone, Debug)]
struct Series {
    schedule: RecurringMessage,
    rule: String,
    /// The time up to which messages are sent; `None` until it is read from Redis.
    done: Option<UnixMs>,
    /// The time for which the last send failed, and the earliest moment of the next try.
    failed: Option<(UnixMs, Instant)>,
    /// The moment at which it is asked again whether it is paused.
    paused_until: Option<Instant>,
}

/// The result of a send for one time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Fate {
    /// The message is stored, by this manager or another.
    Stored,
    /// The message cannot be sent as it is.
    Refused,
    /// The message must be sent again.
    Unknown,
}

/// The result of a send for a time of a schedule. Without one, only the progress is asked for.
#[derive(Clone, Copy, Debug)]
struct Note<'n> {
    schedule: &'n ScheduleName,
    result: Option<FireResult<'n>>,
}

impl<'n> Note<'n> {
    fn ask(schedule: &'n ScheduleName) -> Self {
        Self {
            schedule,
            result: None,
        }
    }
}

impl Recurring {
    /// Creates one instance for each topic that schedules send to.
    pub(crate) fn of_topics(
        sender: &Sender,
        assignments: &Assignments,
        config: &Config,
    ) -> Vec<Self> {
        let mut topics: BTreeMap<&Topic, BTreeMap<ScheduleName, Series>> = BTreeMap::new();
        for (name, schedule) in &config.schedules {
            let series = Series {
                rule: schedule.rule(),
                schedule: schedule.clone(),
                done: None,
                failed: None,
                paused_until: None,
            };
            let schedules = topics.entry(&schedule.topic).or_default();
            schedules.insert(name.clone(), series);
        }
        let of_topic = |(topic, schedules): (&Topic, _)| Self {
            topic: topic.clone(),
            sender: sender.clone(),
            assignments: assignments.clone(),
            schedules,
        };
        topics.into_iter().map(of_topic).collect()
    }

    pub(crate) fn topic(&self) -> &Topic {
        &self.topic
    }

    /// Sends until the shutdown begins. A panic restarts only this loop.
    pub(crate) async fn keep_alone(self, heartbeat: Heartbeat, shutdown: &Shutdown) {
        let part = heartbeat.part(PartName {
            kind: "recurring",
            topic: self.topic.clone(),
            group: None,
            shard: None,
        });
        let sending = || self.clone().keep(heartbeat.clone(), shutdown);
        part.only().keep(shutdown.draining(), sending).await;
    }

    /// Sends until the shutdown begins.
    async fn keep(mut self, heartbeat: Heartbeat, shutdown: &Shutdown) -> Result<(), Infallible> {
        heartbeat.within(SHOWS_AFTER);
        let connection = self.sender.broker.connection().clone();
        let mut outage = Outage::new("read the progress of schedules");
        while !shutdown.draining().is_cancelled() {
            let round = watched(&heartbeat, &connection, self.run_once());
            let length = match before_shutdown(shutdown, round).await {
                None => break,
                Some(Ok(length)) => {
                    outage.recovered();
                    length
                }
                Some(Err(error)) => {
                    outage.failed(&error);
                    AGAIN
                }
            };
            pause(length, pending(), &heartbeat, shutdown).await;
        }
        Ok(())
    }

    /// Sends the messages whose sending time has come, at most one for each schedule. Returns the pause until the next
    /// round.
    async fn run_once(&mut self) -> Result<Duration, BrokerError> {
        let now = self.sender.broker.now();
        for series in self.schedules.values_mut() {
            // Redis's clock was set back: the schedule begins again.
            series.done = series.done.filter(|done| done.since(now) < SET_BACK);
        }
        self.begin(now).await?;
        let (mut pause, mut due) = (LONGEST_PAUSE, Vec::new());
        let most = self.ahead();
        let missed_until = UnixMs::new(now.get().saturating_sub(millis(IN_TIME)));
        for (name, series) in &self.schedules {
            let next = |done| series.schedule.next(done, missed_until);
            let Some(time) = series.done.and_then(next) else {
                continue;
            };
            let rest = time
                .since(now)
                .saturating_sub(self.sender.ahead(&series.schedule, most));
            let again = series.failed.filter(|(of, _)| *of == time);
            let again = again.map(|(_, at)| at).max(series.paused_until);
            let again = again.map(|at| at.saturating_duration_since(Instant::now()));
            match rest.max(again.unwrap_or_default()) {
                Duration::ZERO => due.push((name.clone(), time)),
                rest => pause = pause.min(rest),
            }
        }
        if due.is_empty() {
            return Ok(pause);
        }
        let due_names = due.iter().map(|(name, _)| Note::ask(name));
        let paused = self.note(due_names.collect()).await?;
        for (name, _) in &due {
            self.series(name).paused_until = match paused.contains(name) {
                true => Some(Instant::now() + PAUSED_FOR),
                false => None,
            };
        }
        due.retain(|(name, time)| {
            !paused.contains(name) && self.schedules[name].done.is_none_or(|done| done < *time)
        });
        let sends: Vec<_> = due
            .iter()
            .map(|(name, time)| self.send(name, *time))
            .collect();
        let results = stream::iter(sends).buffered(SENDS_AT_A_TIME);
        let results: Vec<_> = results.collect().await;
        let mut notes = Vec::new();
        for ((name, time), result) in due.into_iter().zip(results) {
            let error = result.as_ref().err().filter(|error| !is_stored(error));
            let error = error.map(ToString::to_string);
            let is_new = self.schedules[&name]
                .failed
                .is_none_or(|(of, _)| of != time);
            let fate = self.judge(&name, time, now, result);
            if fate == Fate::Refused {
                // Not recorded in Redis: a manager that starts with a better configuration makes up for it.
                self.series(&name).done = Some(time);
            }
            if fate == Fate::Stored || is_new {
                notes.push((name, time, error));
            }
        }
        let notes = notes.iter().map(|(schedule, time, error)| Note {
            schedule,
            result: Some(match error {
                None => FireResult::Sent(*time),
                Some(error) => FireResult::Failed(*time, error),
            }),
        });
        self.note(notes.collect()).await?;
        Ok(Duration::ZERO)
    }

    /// Reads the progress of schedules that is not known yet. A new schedule begins now.
    async fn begin(&mut self, now: UnixMs) -> Result<(), BrokerError> {
        let unknown: Vec<ScheduleName> = self
            .schedules
            .iter()
            .filter(|(_, series)| series.done.is_none())
            .map(|(name, _)| name.clone())
            .collect();
        self.note(unknown.iter().map(Note::ask).collect()).await?;
        let new = unknown
            .iter()
            .filter(|name| self.schedules[*name].done.is_none());
        let begun = new.map(|schedule| Note {
            schedule,
            result: Some(FireResult::Sent(now)),
        });
        self.note(begun.collect()).await?;
        Ok(())
    }

    /// Records in Redis up to when schedules have fired, and applies the reply. Returns those that are paused.
    async fn note(&mut self, notes: Vec<Note<'_>>) -> Result<BTreeSet<ScheduleName>, BrokerError> {
        if notes.is_empty() {
            return Ok(BTreeSet::new());
        }
        let fires = notes.iter().map(|note| {
            let series = &self.schedules[note.schedule];
            let missed = match (note.result, series.done) {
                (Some(FireResult::Sent(time)), Some(done)) => series.schedule.missed(done, time),
                _ => MissedTimes::default(),
            };
            Fired {
                result: note.result,
                missed,
                ..Fired::ask(note.schedule, FiredOf::Rule(&series.rule))
            }
        });
        let fires: Vec<_> = fires.collect();
        let noted = self.sender.broker.note_fires(&fires).await?;
        let mut paused = BTreeSet::new();
        for (note, noted) in notes.into_iter().zip(noted) {
            let series = self.series(note.schedule);
            series.done = series.done.max(noted.done);
            if noted.is_paused {
                paused.insert(note.schedule.clone());
            }
        }
        Ok(paused)
    }

    /// Returns how far ahead messages are sent at most.
    fn ahead(&self) -> Duration {
        let assignment = self.assignments.now();
        let holds =
            |assigned: &AssignedShard| assigned.is_first() && *assigned.topic.name() == self.topic;
        match assignment.shards.iter().any(holds) {
            true => AHEAD,
            false => AHEAD_BEHIND_HOLDER,
        }
    }

    fn series(&mut self, name: &ScheduleName) -> &mut Series {
        self.schedules.get_mut(name).expect("a known schedule")
    }

    /// Sends the message for one time.
    async fn send(&self, name: &ScheduleName, time: UnixMs) -> Result<Receipt, SendError> {
        let schedule = &self.schedules[name].schedule;
        self.sender.send(name, schedule, time).await
    }

    /// Counts and logs the send for one time, made in a round that began at `now`. Returns its result.
    fn judge(
        &mut self,
        name: &ScheduleName,
        time: UnixMs,
        now: UnixMs,
        sent: Result<Receipt, SendError>,
    ) -> Fate {
        let series = self.schedules.get_mut(name).expect("a known schedule");
        let outcome = Outcome::of(&sent, time, now);
        let error = sent.err().filter(|error| !is_stored(error));
        let before = series.failed.take();
        if before.is_none_or(|(of, _)| of != time) || error.is_none() {
            self.sender
                .metrics
                .schedule_fired(name.as_str(), outcome.as_str());
        }
        let Some(error) = error else {
            if before.is_some() {
                tracing::info!(schedule = %name, "schedule sends again");
            }
            if outcome == Outcome::Late {
                tracing::warn!(schedule = %name, %time, "no manager was available in time; sent late");
            }
            self.sender.metrics.schedule_last(name.as_str(), time);
            return Fate::Stored;
        };
        let fate = match is_about_the_message(&error) {
            true => Fate::Refused,
            false => Fate::Unknown,
        };
        series.failed = Some((time, Instant::now() + AGAIN));
        if before.is_none() || fate == Fate::Refused {
            tracing::error!(schedule = %name, topic = %self.topic, %time, %error, "cannot send the message of a schedule");
        }
        fate
    }
}
