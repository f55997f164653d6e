//! Recurring messages: sends one for each time of each schedule of the configuration, some seconds ahead.
//!
//! All managers do so for the schedules that they know, without a leader. The id of a message names schedule and time, so
//! it is stored once; and Redis remembers up to when each schedule has fired, so nothing is asked for twice, and a manager
//! that starts late knows what was missed.

use std::collections::BTreeMap;
use std::convert::Infallible;
use std::time::Duration;

use futures_util::{StreamExt, stream};
use lisa_producer::{Outgoing, Producer, ProducerOptions, Receipt, SendError, SendOutcome};
use lisa_shared::broker::{Broker, BrokerError, Fired};
use lisa_shared::config::Config;
use lisa_shared::metrics::Metrics;
use lisa_shared::schedule::{Schedule, ScheduleName, Template};
use lisa_shared::shutdown::Shutdown;
use lisa_shared::supervise::{Beat, PartName};
use lisa_shared::time::{UnixMs, millis};
use lisa_shared::topic::{MergeBy, Topic};
use serde::Serialize;
use tokio::time::{Instant, sleep, sleep_until};
use utoipa::ToSchema;

use crate::share::{Held, SHOWS_AFTER, Shares, watched};

/// How far ahead of its time a message is sent: managers may be away for so long, and it is still in time.
const AHEAD: Duration = Duration::from_secs(5);
/// The same for a manager that does not hold the topic: it does what the holder should have done by then.
const AHEAD_BEHIND_HOLDER: Duration = Duration::from_millis(2500);
/// A time that is no longer ago than this was not missed.
const IN_TIME: Duration = Duration::from_secs(2);
/// After a send that failed.
const AGAIN: Duration = Duration::from_secs(1);
/// How long at most nothing is looked at: clocks may be set.
const LONGEST_PAUSE: Duration = Duration::from_secs(30);
/// Nothing is done so far ahead: Redis's clock must have been set back since.
const SET_BACK: Duration = Duration::from_secs(60);
/// Sends that wait for an answer at a time: those of one moment share calls, and what a call waits for.
const SENDS_AT_A_TIME: usize = 200;
/// How long a round may go on when the manager ends; a send may wait longer for a replica, and what it has stored stays.
const LAST_ROUND: Duration = Duration::from_secs(5);
/// How often a pause is a sign of life.
const LOOK_EVERY: Duration = Duration::from_millis(500);

/// The schedules of one manager that send to one topic: what holds up sends to it holds up no others.
#[derive(Clone, Debug)]
pub(crate) struct Recurring {
    topic: Topic,
    broker: Broker,
    producer: Producer,
    metrics: Metrics,
    shares: Shares,
    schedules: BTreeMap<ScheduleName, Series>,
}

/// A schedule, and what was done of it.
#[derive(Clone, Debug)]
struct Series {
    schedule: Schedule,
    rule: String,
    /// Up to when messages are sent; `None` until Redis was asked.
    done: Option<UnixMs>,
    /// The time for which the last send failed, and from when it may be tried again.
    failed: Option<(UnixMs, Instant)>,
}

/// What became of the message for one time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Fate {
    /// It is stored, by whomever.
    Stored,
    /// It cannot be sent as it is.
    Refused,
    /// It must be sent again.
    Unknown,
}

impl Recurring {
    /// Makes one for each topic that schedules send to.
    pub(crate) fn of_topics(
        broker: &Broker,
        metrics: &Metrics,
        shares: &Shares,
        config: &Config,
    ) -> Vec<Self> {
        let options = ProducerOptions {
            topics: config.topics.clone(),
            metrics: Some(metrics.clone()),
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
            shares: shares.clone(),
            schedules,
        };
        topics.into_iter().map(of_topic).collect()
    }

    pub(crate) fn topic(&self) -> &Topic {
        &self.topic
    }

    /// Sends until the shutdown. A panic starts it again and leaves all else alone.
    pub(crate) async fn keep_alone(self, beat: Beat, shutdown: &Shutdown) {
        let part = beat.part(PartName {
            kind: "recurring",
            topic: self.topic.clone(),
            group: None,
            shard: None,
        });
        let sending = || self.clone().keep(beat.clone(), shutdown);
        part.only().keep(shutdown.draining(), sending).await;
    }

    /// Sends until the shutdown.
    async fn keep(mut self, beat: Beat, shutdown: &Shutdown) -> Result<(), Infallible> {
        beat.within(SHOWS_AFTER);
        let link = self.broker.link().clone();
        let mut failing = false;
        while !shutdown.draining().is_cancelled() {
            let round = watched(&beat, &link, self.run_once());
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
                    failing = false;
                    pause
                }
                Err(error) => {
                    if !std::mem::replace(&mut failing, true) {
                        tracing::warn!(%error, "cannot ask up to when schedules have fired");
                    }
                    AGAIN
                }
            };
            beat.ok();
            let end = Instant::now() + pause;
            while Instant::now() < end && !shutdown.draining().is_cancelled() {
                tokio::select! {
                    () = sleep_until(end.min(Instant::now() + LOOK_EVERY)) => beat.ok(),
                    () = shutdown.draining().cancelled() => {}
                }
            }
        }
        Ok(())
    }

    /// Sends what it is time for, once for each schedule at most; gives how long there is nothing to do.
    async fn run_once(&mut self) -> Result<Duration, BrokerError> {
        let now = self.broker.now();
        for series in self.schedules.values_mut() {
            // Redis's clock was set back: what was done then is not done yet.
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
                // Not noted: who starts with a better configuration makes up for it.
                Fate::Refused => self.series(&name).done = Some(time),
                Fate::Unknown => {}
            }
        }
        let sent = sent.iter().map(|(name, time)| (name, *time));
        self.ask(sent).await?;
        Ok(Duration::ZERO)
    }

    /// Asks where schedules are that were not asked for yet; a new one begins now.
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

    /// Notes up to when schedules have fired, or only asks, and takes in what Redis has noted.
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

    /// How far ahead a schedule's messages are sent.
    fn ahead(&self, message: &Template) -> Duration {
        let share = self.shares.now();
        let holds = |held: &Held| held.is_first() && *held.topic.name() == self.topic;
        let ahead = match share.held.iter().any(holds) {
            true => AHEAD,
            false => AHEAD_BEHIND_HOLDER,
        };
        let Some(topic) = self.broker.known(&self.topic) else {
            return ahead;
        };
        let settings = topic.settings();
        if message.merge_key.is_some() || settings.merge_by == MergeBy::Payload {
            // It must not find the one before still waiting for its time.
            return Duration::ZERO;
        }
        // A message that is due later would be refused.
        ahead.min(settings.max_delay / 2)
    }

    fn series(&mut self, name: &ScheduleName) -> &mut Series {
        self.schedules.get_mut(name).expect("one of ours")
    }

    /// Sends the message for one time.
    async fn send(&self, name: &ScheduleName, time: UnixMs) -> Result<Receipt, SendError> {
        let message = describe(&self.schedules[name].schedule.message);
        let outgoing = message.id(name.message_id(time)).at(time);
        self.producer.send_message(&self.topic, outgoing).await
    }

    /// Says what became of the message for one time, which was sent in a round that began at `now`.
    fn judge(
        &mut self,
        name: &ScheduleName,
        time: UnixMs,
        now: UnixMs,
        sent: Result<Receipt, SendError>,
    ) -> Fate {
        let series = self.schedules.get_mut(name).expect("one of ours");
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
                tracing::info!(schedule = %name, "the schedule sends again");
            }
            if outcome == "late" {
                tracing::warn!(schedule = %name, %time, "no manager was there in time: sent late");
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
            tracing::error!(schedule = %name, topic = %self.topic, %time, %error, "a schedule could not send its message");
        }
        fate
    }
}

/// Whether sending the same again cannot help.
fn is_about_the_message(error: &SendError) -> bool {
    matches!(
        error,
        SendError::TooLarge { .. } | SendError::Invalid(_) | SendError::Encode(_)
    )
}

fn describe(template: &Template) -> Outgoing {
    let Template {
        payload,
        headers,
        key,
        merge_key,
        priority,
        ttl,
        max_attempts,
        retry,
    } = template;
    let mut outgoing = Outgoing::new(payload.clone())
        .headers(headers.clone())
        .priority(*priority);
    if let Some(key) = key {
        outgoing = outgoing.key(key);
    }
    if let Some(key) = merge_key {
        outgoing = outgoing.merge(key);
    }
    if let Some(ttl) = ttl {
        outgoing = outgoing.ttl(*ttl);
    }
    if let Some(max_attempts) = max_attempts {
        outgoing = outgoing.max_attempts(*max_attempts);
    }
    if let Some(policy) = retry {
        outgoing = outgoing.retry(policy.clone());
    }
    outgoing
}

/// The schedules of a configuration.
#[derive(Debug, Default, Serialize, ToSchema)]
pub(crate) struct ScheduleList {
    pub schedules: Vec<ScheduleView>,
}

/// A schedule as operators see it.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct ScheduleView {
    /// Its name.
    #[schema(value_type = String)]
    pub schedule: ScheduleName,
    /// Where it sends to.
    #[schema(value_type = String)]
    pub topic: Topic,
    /// When.
    pub cron: String,
    /// The clocks that `cron` means.
    pub time_zone: String,
    /// The newest of its times for which a message was sent, ahead of it perhaps.
    pub sent_until: Option<String>,
    /// The time after now that comes next.
    pub next: Option<String>,
}

/// Shows the schedules of a configuration.
///
/// # Errors
/// [`BrokerError`].
pub(crate) async fn view(
    broker: &Broker,
    schedules: &BTreeMap<ScheduleName, Schedule>,
) -> Result<ScheduleList, BrokerError> {
    if schedules.is_empty() {
        return Ok(ScheduleList::default());
    }
    let rules: Vec<String> = schedules.values().map(Schedule::rule).collect();
    let fires = schedules.keys().zip(&rules).map(|(schedule, rule)| Fired {
        schedule,
        until: None,
        rule,
    });
    let noted = broker.note_fires(&fires.collect::<Vec<_>>()).await?;
    let now = broker.now();
    let view = |((name, schedule), noted): ((&ScheduleName, &Schedule), Option<UnixMs>)| {
        let next = schedule.cron.next(&schedule.time_zone, now);
        ScheduleView {
            schedule: name.clone(),
            topic: schedule.topic.clone(),
            cron: schedule.cron.to_string(),
            time_zone: schedule.time_zone.to_string(),
            // What a new schedule begins with is no time of its own.
            sent_until: noted
                .filter(|at| schedule.has(*at))
                .map(|at| at.to_string()),
            next: next.map(|at| at.to_string()),
        }
    };
    let schedules = schedules.iter().zip(noted).map(view).collect();
    Ok(ScheduleList { schedules })
}
