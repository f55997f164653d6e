//! Sends recurring messages: one for each time of each configured schedule (cron), some seconds ahead.
//!
//! Every manager does so for its configured schedules, without a leader. The id of a message consists of the schedule and
//! the time, so each message is stored once. Redis records up to when each schedule has fired, so managers do not repeat
//! sends, and a manager that starts late knows which times were missed.

use std::collections::BTreeMap;
use std::convert::Infallible;
use std::time::Duration;

use futures_util::{StreamExt, stream};
use lisa_core::broker::{Broker, BrokerError, Fired};
use lisa_core::message::MessageId;
use lisa_core::outage::Outage;
use lisa_core::time::{UnixMs, millis};
use lisa_core::topic::ScheduleName;
use lisa_core::topic::{MergeBy, Topic};
use lisa_producer::{NewMessage, Producer, ProducerOptions, Receipt, SendError, SendOutcome};
use lisa_service::config::Config;
use lisa_service::metrics::Metrics;
use lisa_service::recurring::{MessageTemplate, RecurringMessage};
use lisa_service::shutdown::Shutdown;
use lisa_service::spans::Spans;
use lisa_service::supervise::{Heartbeat, PartName};
use serde::{Deserialize, Serialize};
use tokio::time::{Instant, sleep, sleep_until};
use utoipa::ToSchema;

use crate::assignment::{AssignedShard, Assignments, SHOWS_AFTER, watched};

/// The time by which a message is sent ahead. It is still in time if managers are unavailable for that long.
pub(crate) const AHEAD: Duration = Duration::from_secs(5);
/// The time ahead for a manager that does not hold the topic: it sends what the holder should have sent by then.
const AHEAD_BEHIND_HOLDER: Duration = Duration::from_millis(2500);
/// The longest delay of a time that does not count as missed.
const IN_TIME: Duration = Duration::from_secs(2);
/// The pause after a failed send or call.
const AGAIN: Duration = Duration::from_secs(1);
/// The longest pause between two rounds, since clocks may be set.
const LONGEST_PAUSE: Duration = Duration::from_secs(30);
/// A schedule is never done this far ahead. If it seems so, Redis's clock was set back.
const SET_BACK: Duration = Duration::from_secs(60);
/// The number of sends that wait for an answer at a time. Concurrent sends share calls, and what a call waits for.
const SENDS_AT_A_TIME: usize = 200;
/// The time that a round may continue at shutdown. A send may wait longer for a replica; a message that it stored stays.
const LAST_ROUND: Duration = Duration::from_secs(5);
/// The interval at which a pause reports progress.
const LOOK_EVERY: Duration = Duration::from_millis(500);

/// The schedules of one manager that send to one topic. A delay of sends to this topic delays no other topic.
#[derive(Clone, Debug)]
pub(crate) struct Recurring {
    topic: Topic,
    broker: Broker,
    producer: Producer,
    metrics: Metrics,
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

impl Recurring {
    /// Creates one instance for each topic that schedules send to.
    pub(crate) fn of_topics(
        broker: &Broker,
        metrics: &Metrics,
        spans: Option<&Spans>,
        assignments: &Assignments,
        config: &Config,
    ) -> Vec<Self> {
        let options = ProducerOptions {
            topics: config.topics.clone(),
            metrics: Some(metrics.clone()),
            spans: spans.cloned(),
            ..ProducerOptions::default()
        };
        let producer = Producer::with_options(broker.clone(), options);
        let mut topics: BTreeMap<&Topic, BTreeMap<ScheduleName, Series>> = BTreeMap::new();
        for (name, schedule) in &config.schedules {
            let series = Series {
                rule: schedule.rule(),
                schedule: schedule.clone(),
                done: None,
                failed: None,
            };
            let schedules = topics.entry(&schedule.topic).or_default();
            schedules.insert(name.clone(), series);
        }
        let of_topic = |(topic, schedules): (&Topic, _)| Self {
            topic: topic.clone(),
            producer: producer.clone(),
            broker: broker.clone(),
            metrics: metrics.clone(),
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
        let connection = self.broker.connection().clone();
        let mut outage = Outage::new("read the progress of schedules");
        while !shutdown.draining().is_cancelled() {
            let round = watched(&heartbeat, &connection, self.run_once());
            let too_long = async {
                shutdown.draining().cancelled().await;
                sleep(LAST_ROUND).await;
            };
            let round = tokio::select! {
                round = round => round,
                () = too_long => return Ok(()),
            };
            let pause = match round {
                Ok(pause) => {
                    outage.recovered();
                    pause
                }
                Err(error) => {
                    outage.failed(&error);
                    AGAIN
                }
            };
            heartbeat.ok();
            let end = Instant::now() + pause;
            while Instant::now() < end && !shutdown.draining().is_cancelled() {
                tokio::select! {
                    () = sleep_until(end.min(Instant::now() + LOOK_EVERY)) => heartbeat.ok(),
                    () = shutdown.draining().cancelled() => {}
                }
            }
        }
        Ok(())
    }

    /// Sends the messages whose sending time has come, at most one for each schedule. Returns the pause until the next
    /// round.
    async fn run_once(&mut self) -> Result<Duration, BrokerError> {
        let now = self.broker.now();
        for series in self.schedules.values_mut() {
            // Redis's clock was set back: the schedule begins again.
            series.done = series.done.filter(|done| done.since(now) < SET_BACK);
        }
        self.begin(now).await?;
        let (mut pause, mut due) = (LONGEST_PAUSE, Vec::new());
        let missed_until = UnixMs::new(now.get().saturating_sub(millis(IN_TIME)));
        for (name, series) in &self.schedules {
            let next = |done| series.schedule.next(done, missed_until);
            let Some(time) = series.done.and_then(next) else {
                continue;
            };
            let rest = time
                .since(now)
                .saturating_sub(self.ahead(&series.schedule.message));
            let again = series.failed.filter(|(of, _)| *of == time);
            let again = again.map(|(_, at)| at.saturating_duration_since(Instant::now()));
            match rest.max(again.unwrap_or_default()) {
                Duration::ZERO => due.push((name.clone(), time)),
                rest => pause = pause.min(rest),
            }
        }
        if due.is_empty() {
            return Ok(pause);
        }
        self.ask(due.iter().map(|(name, _)| (name, None))).await?;
        due.retain(|(name, time)| self.schedules[name].done.is_none_or(|done| done < *time));
        let sends: Vec<_> = due
            .iter()
            .map(|(name, time)| self.send(name, *time))
            .collect();
        let results = stream::iter(sends).buffered(SENDS_AT_A_TIME);
        let results: Vec<_> = results.collect().await;
        let mut sent = Vec::new();
        for ((name, time), result) in due.into_iter().zip(results) {
            match self.judge(&name, time, now, result) {
                Fate::Stored => sent.push((name, Some(time))),
                // Not recorded in Redis: a manager that starts with a better configuration makes up for it.
                Fate::Refused => self.series(&name).done = Some(time),
                Fate::Unknown => {}
            }
        }
        let sent = sent.iter().map(|(name, time)| (name, *time));
        self.ask(sent).await?;
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
        self.ask(unknown.iter().map(|name| (name, None))).await?;
        let new = unknown
            .iter()
            .filter(|name| self.schedules[*name].done.is_none());
        let new: Vec<ScheduleName> = new.cloned().collect();
        self.ask(new.iter().map(|name| (name, Some(now)))).await
    }

    /// Records in Redis up to when schedules have fired, or only reads that, and applies the reply.
    async fn ask<'a>(
        &mut self,
        schedules: impl Iterator<Item = (&'a ScheduleName, Option<UnixMs>)>,
    ) -> Result<(), BrokerError> {
        let asked: Vec<_> = schedules.collect();
        if asked.is_empty() {
            return Ok(());
        }
        let fires = asked.iter().map(|&(schedule, until)| Fired {
            schedule,
            until,
            rule: &self.schedules[schedule].rule,
        });
        let noted = self.broker.note_fires(&fires.collect::<Vec<_>>()).await?;
        for ((name, _), noted) in asked.into_iter().zip(noted) {
            let series = self.series(name);
            series.done = series.done.max(noted);
        }
        Ok(())
    }

    /// Returns how far ahead a message is sent.
    fn ahead(&self, message: &MessageTemplate) -> Duration {
        let assignment = self.assignments.now();
        let holds =
            |assigned: &AssignedShard| assigned.is_first() && *assigned.topic.name() == self.topic;
        let ahead = match assignment.shards.iter().any(holds) {
            true => AHEAD,
            false => AHEAD_BEHIND_HOLDER,
        };
        let Some(topic) = self.broker.known(&self.topic) else {
            return ahead;
        };
        let settings = topic.settings();
        if message.options.merge_key.is_some() || settings.merge_by == MergeBy::Payload {
            // It must not merge with the previous message, which may still be waiting.
            return Duration::ZERO;
        }
        // A message that is due later would be refused.
        ahead.min(settings.max_delay / 2)
    }

    fn series(&mut self, name: &ScheduleName) -> &mut Series {
        self.schedules.get_mut(name).expect("a known schedule")
    }

    /// Sends the message for one time.
    async fn send(&self, name: &ScheduleName, time: UnixMs) -> Result<Receipt, SendError> {
        let message = describe(&self.schedules[name].schedule.message);
        let message = message.id(MessageId::of_schedule(name, time)).at(time);
        self.producer.send_message(&self.topic, message).await
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
        let outcome = match &sent {
            Ok(receipt) if receipt.outcome == SendOutcome::Duplicate => "known",
            Ok(_) if now.since(time) >= IN_TIME => "late",
            Ok(_) => "sent",
            Err(_) => "failed",
        };
        let before = series.failed.take();
        if before.is_none_or(|(of, _)| of != time) || sent.is_ok() {
            self.metrics.schedule_fired(name.as_str(), outcome);
        }
        let Err(error) = sent else {
            if before.is_some() {
                tracing::info!(schedule = %name, "schedule sends again");
            }
            if outcome == "late" {
                tracing::warn!(schedule = %name, %time, "no manager was available in time; sent late");
            }
            self.metrics.schedule_last(name.as_str(), time);
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

/// Returns whether sending the same message again cannot succeed.
fn is_about_the_message(error: &SendError) -> bool {
    matches!(
        error,
        SendError::TooLarge { .. } | SendError::Invalid(_) | SendError::Encode(_)
    )
}

fn describe(template: &MessageTemplate) -> NewMessage {
    NewMessage::new(template.payload.clone())
        .headers(template.headers.clone())
        .options(template.options.clone())
}

/// The schedules of a configuration.
#[derive(Debug, Default, Serialize, Deserialize, ToSchema)]
pub(crate) struct ScheduleList {
    pub schedules: Vec<ScheduleView>,
}

/// A schedule and its progress.
#[derive(Debug, Serialize, Deserialize, ToSchema)]
pub(crate) struct ScheduleView {
    /// The name of the schedule.
    pub schedule: ScheduleName,
    /// The topic it sends to.
    pub topic: Topic,
    /// The cron expression.
    pub cron: String,
    /// The time zone of `cron`.
    pub time_zone: String,
    /// The newest of its times for which a message was sent, possibly ahead of that time.
    pub sent_until: Option<String>,
    /// The next time after now.
    pub next: Option<String>,
}

/// Returns the schedules of a configuration and their progress.
///
/// # Errors
/// [`BrokerError`].
pub(crate) async fn view(
    broker: &Broker,
    schedules: &BTreeMap<ScheduleName, RecurringMessage>,
) -> Result<ScheduleList, BrokerError> {
    if schedules.is_empty() {
        return Ok(ScheduleList::default());
    }
    let rules: Vec<String> = schedules.values().map(RecurringMessage::rule).collect();
    let fires = schedules.keys().zip(&rules).map(|(schedule, rule)| Fired {
        schedule,
        until: None,
        rule,
    });
    let noted = broker.note_fires(&fires.collect::<Vec<_>>()).await?;
    let now = broker.now();
    let view = |((name, schedule), noted): ((&ScheduleName, &RecurringMessage), Option<UnixMs>)| {
        let next = schedule.cron.next(&schedule.time_zone, now);
        ScheduleView {
            schedule: name.clone(),
            topic: schedule.topic.clone(),
            cron: schedule.cron.to_string(),
            time_zone: schedule.time_zone.to_string(),
            // A new schedule begins at a moment that is none of its times.
            sent_until: noted
                .filter(|at| schedule.has(*at))
                .map(|at| at.to_string()),
            next: next.map(|at| at.to_string()),
        }
    };
    let schedules = schedules.iter().zip(noted).map(view).collect();
    Ok(ScheduleList { schedules })
}
