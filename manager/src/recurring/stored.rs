//! The schedules that were created by call. Redis has their definitions, and the time at which each is to be taken.
//!
//! Every manager takes those whose time has come, a few hundred at once. For the length of a lease, no other manager takes them.
//! The manager that took one sends its message and notes when it is to be taken next. If it dies, another one takes the schedule
//! after the lease, and the id of the message makes sure that it is stored once. No manager looks at a schedule at any other time.

use std::collections::BTreeMap;
use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;

use futures_util::{StreamExt, stream};
use lisa_core::broker::{BrokerError, Fired, FiredOf, MissedTimes, TakenFire, TakenFires};
use lisa_core::outage::Outage;
use lisa_core::time::{UnixMs, millis};
use lisa_core::topic::Topic;
use lisa_service::recurring::RecurringMessage;
use lisa_service::shutdown::Shutdown;
use lisa_service::supervise::Heartbeat;
use tokio::sync::Notify;
use tokio::time::{Instant, sleep_until, timeout};

use super::{AHEAD, IN_TIME, Outcome, SENDS_AT_A_TIME, Sender, is_about_the_message};
use crate::assignment::{SHOWS_AFTER, watched};

/// The most schedules that are taken at once.
const AT_ONCE: usize = 500;
/// The time for which no other manager takes a schedule, and the longest time of a send. Half of the time by which messages are sent
/// ahead, so that another manager is still in time.
const LEASE: Duration = Duration::from_millis(2500);
/// The longest time between two looks: another manager may have created a schedule, or died.
const LOOK_EVERY: Duration = Duration::from_millis(2500);
/// The same, as long as there is no schedule.
const LOOK_FOR_FIRST: Duration = Duration::from_secs(10);
/// The pause after a call that failed.
const AFTER_ERROR: Duration = Duration::from_secs(1);
/// The time for which nothing is sent to a topic after a send failed. All schedules of the topic would fail.
const AFTER_FAILURE: Duration = Duration::from_secs(1);
/// The time after which a schedule is looked at again whose definition cannot be read, or that has no time any more.
const MUCH_LATER: Duration = Duration::from_mins(1);
/// The interval at which a pause reports progress.
const PROGRESS_EVERY: Duration = Duration::from_millis(500);
/// The name of all these schedules together in metrics, which have no label for each of a hundred thousand.
const BY_CALL: &str = "(by call)";

/// Sends for the schedules that were created by call. Cheap to clone.
#[derive(Clone, Debug)]
pub(crate) struct StoredSchedules {
    pub(crate) sender: Sender,
    /// Notified when a schedule was created, changed or resumed through this manager.
    pub(crate) changed: Arc<Notify>,
}

/// A topic to which a send failed.
#[derive(Clone, Debug)]
struct Failing {
    error: String,
    until: Instant,
}

/// The next step of a schedule that was taken.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct Step {
    /// The time up to which it has fired: it has sent for it, or the topic refuses the message.
    until: Option<UnixMs>,
    missed: MissedTimes,
    /// The error of a failed send.
    error: String,
    /// When to take it next; `None` after the lease.
    take: Option<UnixMs>,
    /// The topic to which the send failed, or succeeded.
    topic: Option<(Topic, bool)>,
}

impl StoredSchedules {
    /// Sends until the shutdown begins.
    pub(crate) async fn keep(
        &self,
        heartbeat: Heartbeat,
        shutdown: &Shutdown,
    ) -> Result<(), Infallible> {
        heartbeat.within(SHOWS_AFTER);
        let connection = self.sender.broker.connection().clone();
        let mut outage = Outage::new("take schedules");
        let mut failing = BTreeMap::new();
        while !shutdown.draining().is_cancelled() {
            // A round is short: a send is waited for no longer than the lease.
            let round = watched(&heartbeat, &connection, self.round(&mut failing));
            let pause = match round.await {
                Ok(pause) => {
                    outage.recovered();
                    pause
                }
                Err(error) => {
                    outage.failed(&error);
                    AFTER_ERROR
                }
            };
            heartbeat.ok();
            let end = Instant::now() + pause;
            while Instant::now() < end && !shutdown.draining().is_cancelled() {
                tokio::select! {
                    () = sleep_until(end.min(Instant::now() + PROGRESS_EVERY)) => heartbeat.ok(),
                    () = self.changed.notified() => break,
                    () = shutdown.draining().cancelled() => {}
                }
            }
        }
        Ok(())
    }

    /// Takes schedules and sends their messages. Returns the pause until the next round.
    async fn round(&self, failing: &mut BTreeMap<Topic, Failing>) -> Result<Duration, BrokerError> {
        let broker = &self.sender.broker;
        let TakenFires { next, taken } = broker.take_fires(AT_ONCE, LEASE).await?;
        if taken.is_empty() {
            return Ok(next.map_or(LOOK_FOR_FIRST, |next| next.min(LOOK_EVERY)));
        }
        let now = broker.now();
        failing.retain(|_, failing| failing.until > Instant::now());
        let steps = taken.iter().map(|taken| self.step(taken, now, failing));
        let steps: Vec<_> = steps.collect();
        let steps: Vec<Step> = stream::iter(steps)
            .buffered(SENDS_AT_A_TIME)
            .collect()
            .await;
        let fires = taken.iter().zip(&steps).map(|(taken, step)| Fired {
            until: step.until,
            missed: step.missed,
            error: step.error.clone(),
            take: step.take,
            ..Fired::ask(&taken.schedule, FiredOf::Version(taken.version))
        });
        let noted = broker.note_fires(&fires.collect::<Vec<_>>()).await;
        for (taken, step) in taken.iter().zip(steps) {
            let Some((topic, has_failed)) = step.topic else {
                continue;
            };
            if !has_failed {
                failing.remove(&topic);
                continue;
            }
            let until = Instant::now() + AFTER_FAILURE;
            if !failing.contains_key(&topic) {
                tracing::error!(schedule = %taken.schedule, %topic, error = step.error, "cannot send the message of a schedule");
            }
            let error = step.error;
            failing.insert(topic, Failing { error, until });
        }
        noted.map(|_| Duration::ZERO)
    }

    /// Sends the message of a schedule that was taken, if it is time.
    async fn step(
        &self,
        taken: &TakenFire,
        now: UnixMs,
        failing: &BTreeMap<Topic, Failing>,
    ) -> Step {
        let later = Some(now.plus(MUCH_LATER));
        let schedule = match RecurringMessage::from_definition(&taken.definition) {
            Ok(schedule) => schedule,
            Err(error) => {
                tracing::error!(schedule = %taken.schedule, error, "cannot read the definition of a schedule");
                return Step {
                    error,
                    take: later,
                    ..Step::default()
                };
            }
        };
        let step = Step::default();
        let missed_until = UnixMs::new(now.get().saturating_sub(millis(IN_TIME)));
        let ahead = self.sender.ahead(&schedule, AHEAD);
        let begin = |time: UnixMs| UnixMs::new(time.get().saturating_sub(millis(ahead)));
        let Some(time) = schedule.next(taken.done, missed_until) else {
            return Step {
                take: later,
                ..step
            };
        };
        if begin(time) > now {
            let take = Some(begin(time));
            return Step { take, ..step };
        }
        if let Some(failing) = failing.get(&schedule.topic) {
            // It was just tried with another schedule.
            let error = failing.error.clone();
            return Step { error, ..step };
        }
        let send = self.sender.send(&taken.schedule, &schedule, time);
        let Ok(sent) = timeout(LEASE, send).await else {
            self.sender
                .metrics
                .schedule_fired(BY_CALL, Outcome::Failed.as_str());
            return Step {
                error: "no answer in time".to_owned(),
                topic: Some((schedule.topic, true)),
                ..step
            };
        };
        let outcome = Outcome::of(&sent, time, now);
        self.sender
            .metrics
            .schedule_fired(BY_CALL, outcome.as_str());
        if outcome == Outcome::Late {
            tracing::warn!(schedule = %taken.schedule, %time, "no manager was available in time; sent late");
        }
        let take = schedule.next(time, missed_until).map(begin).or(later);
        let missed = schedule.missed(taken.done, time);
        match sent {
            Ok(_) => Step {
                until: Some(time),
                missed,
                take,
                topic: Some((schedule.topic, false)),
                ..step
            },
            Err(error) if is_about_the_message(&error) => {
                tracing::error!(schedule = %taken.schedule, topic = %schedule.topic, %time, %error, "cannot send the message of a schedule");
                Step {
                    until: Some(time),
                    missed: MissedTimes {
                        count: missed.count + 1,
                        newest: time,
                    },
                    error: error.to_string(),
                    take,
                    ..step
                }
            }
            Err(error) => Step {
                error: error.to_string(),
                topic: Some((schedule.topic, true)),
                ..step
            },
        }
    }
}
