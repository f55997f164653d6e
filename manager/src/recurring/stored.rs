//! The schedules that were created at run time. Redis has their definitions, and the time at which each is to be taken.
//!
//! Every manager takes those whose time has come, a few hundred at once. For the length of a lease, no other manager takes them.
//! The manager that took one sends its message and notes when it is to be taken next. If it dies, another one takes the schedule
//! after the lease, and the id of the message makes sure that it is stored once. No manager looks at a schedule at any other time.

use std::collections::BTreeMap;
use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;

use futures_util::future::join_all;
use lisa_core::broker::{BrokerError, FireResult, Fired, FiredOf, MissedTimes, TakenFire};
use lisa_core::outage::Outage;
use lisa_core::time::{UnixMs, millis};
use lisa_core::topic::Topic;
use lisa_producer::SendError;
use lisa_service::config::Config;
use lisa_service::recurring::RecurringMessage;
use lisa_service::shutdown::Shutdown;
use lisa_service::supervise::Heartbeat;
use tokio::sync::Notify;
use tokio::task::yield_now;
use tokio::time::{Instant, timeout};

use super::{
    AHEAD, IN_TIME, Outcome, Sender, before_shutdown, is_about_the_message, is_stored, pause,
};
use crate::assignment::{SHOWS_AFTER, watched};

/// The most schedules that are taken at once. Their sends wait for an answer together.
const AT_ONCE: usize = 500;
/// The time for which no other manager takes a schedule, and the longest time of a send. Half of the time by which messages are sent
/// ahead, so that another manager is still in time.
const LEASE: Duration = Duration::from_millis(2500);
/// The longest time between two looks: another manager may have created a schedule, or died.
const LOOK_EVERY: Duration = Duration::from_millis(2500);
/// The pause after a call that failed.
const AFTER_ERROR: Duration = Duration::from_secs(1);
/// The times for which nothing is sent to a topic after a send failed: the first, and the longest. All its schedules would fail.
const FIRST_PAUSE: Duration = LEASE;
const LONGEST_PAUSE: Duration = Duration::from_mins(1);
/// The time after which a schedule is looked at again that has no time any more.
const MUCH_LATER: Duration = Duration::from_mins(1);
/// The name of all these schedules together in metrics, which have no label for each of a hundred thousand.
const AT_RUN_TIME: &str = "(run time)";

/// Sends for the schedules that were created at run time. Cheap to clone.
#[derive(Clone, Debug)]
pub(crate) struct StoredSchedules {
    pub(crate) sender: Sender,
    pub(crate) config: Arc<Config>,
    /// Notified when a schedule was created, changed or resumed through this manager.
    pub(crate) changed: Arc<Notify>,
}

/// A topic to which sends fail.
#[derive(Clone, Debug)]
struct Failing {
    /// The moment of the next try.
    until: Instant,
    pause: Duration,
}

/// The topics to which sends fail.
type AllFailing = BTreeMap<Topic, Failing>;

/// The result for a schedule that was taken.
#[derive(Debug, Default)]
struct Step {
    done: Done,
    missed: MissedTimes,
    /// When to take it next; `None` after the lease.
    take: Option<UnixMs>,
}

#[derive(Debug, Default)]
enum Done {
    /// It was not time, or nothing was tried.
    #[default]
    Nothing,
    /// Its message is stored, possibly late.
    Sent(UnixMs, Topic, Outcome),
    /// The topic refuses its message.
    Refused(UnixMs, String),
    /// This manager cannot read its definition.
    Unreadable(UnixMs, String),
    /// It must be sent again.
    Failed(UnixMs, Topic, String),
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
        let mut failing = AllFailing::new();
        while !shutdown.draining().is_cancelled() {
            let round = watched(&heartbeat, &connection, self.round(&mut failing));
            let length = match before_shutdown(shutdown, round).await {
                None => break,
                Some(Ok(length)) => {
                    outage.recovered();
                    length
                }
                Some(Err(error)) => {
                    outage.failed(&error);
                    AFTER_ERROR
                }
            };
            pause(length, self.changed.notified(), &heartbeat, shutdown).await;
        }
        Ok(())
    }

    /// Takes schedules and sends their messages. Returns the pause until the next round.
    async fn round(&self, failing: &mut AllFailing) -> Result<Duration, BrokerError> {
        let broker = &self.sender.broker;
        let begun = Instant::now();
        let mut fires = broker.take_fires(AT_ONCE, LEASE).await?;
        if fires.taken.is_empty() {
            return Ok(fires.next.map_or(LOOK_EVERY, |next| next.min(LOOK_EVERY)));
        }
        for taken in fires.taken.extract_if(.., |taken| self.is_declared(taken)) {
            // Created while this manager was running, through one with another file.
            broker
                .remove_schedule(&taken.schedule, Some(taken.version))
                .await?;
        }
        let (taken, now) = (fires.taken, fires.now);
        let steps = taken
            .iter()
            .map(|taken| self.step(taken, now, begun, failing));
        let steps: Vec<_> = steps.collect();
        let steps = join_all(steps).await;
        let fires = taken.iter().zip(&steps).map(|(taken, step)| Fired {
            result: match &step.done {
                Done::Nothing => None,
                Done::Sent(time, ..) => Some(FireResult::Sent(*time)),
                Done::Refused(time, error) => Some(FireResult::Refused(*time, error)),
                Done::Unreadable(time, error) | Done::Failed(time, _, error) => {
                    Some(FireResult::Failed(*time, error))
                }
            },
            missed: step.missed,
            take: step.take,
            ..Fired::ask(&taken.schedule, FiredOf::Version(taken.version))
        });
        let noted = broker.note_fires(&fires.collect::<Vec<_>>()).await;
        report(&taken, steps, failing);
        noted.map(|_| Duration::ZERO)
    }

    fn count(&self, outcome: Outcome) {
        let metrics = &self.sender.metrics;
        metrics.schedule_fired(AT_RUN_TIME, outcome.as_str());
    }

    fn is_declared(&self, taken: &TakenFire) -> bool {
        self.config.schedules.contains_key(&taken.schedule)
    }

    /// Sends the message of a schedule that was taken at `now`, if it is time. `begun` is not later.
    async fn step(
        &self,
        taken: &TakenFire,
        now: UnixMs,
        begun: Instant,
        failing: &AllFailing,
    ) -> Step {
        // The next time of a sparse expression takes a millisecond, and there are hundreds.
        yield_now().await;
        let later = |pause| Some(now.plus(pause));
        let schedule = match RecurringMessage::from_definition(&taken.definition) {
            Ok(schedule) => schedule,
            Err(error) => {
                // Another manager may be of a newer version, and take it after the lease.
                tracing::debug!(schedule = %taken.schedule, error, "cannot read the definition of a schedule");
                return Step {
                    done: Done::Unreadable(now, format!("unreadable definition: {error}")),
                    ..Step::default()
                };
            }
        };
        if let Some(failing) = failing.get(&schedule.topic)
            && failing.until > Instant::now()
        {
            // Another schedule of the topic has just failed.
            let pause = failing.until.saturating_duration_since(Instant::now());
            return Step {
                take: later(pause.max(LEASE)),
                ..Step::default()
            };
        }
        let missed_until = UnixMs::new(now.get().saturating_sub(millis(IN_TIME)));
        let Some(time) = schedule.next(taken.done, missed_until) else {
            return Step {
                take: later(MUCH_LATER),
                ..Step::default()
            };
        };
        // The topic may allow only a short delay.
        let topic = self.sender.broker.topic(&schedule.topic).await;
        let ahead = self.sender.ahead(&schedule, AHEAD);
        let begin = |time: UnixMs| UnixMs::new(time.get().saturating_sub(millis(ahead)));
        if begin(time) > now {
            return Step {
                take: Some(begin(time)),
                ..Step::default()
            };
        }
        let failed = |topic: &Topic, error: String| {
            self.count(Outcome::Failed);
            let pause = failing.get(topic).map_or(FIRST_PAUSE, Failing::next_pause);
            Step {
                done: Done::Failed(time, topic.clone(), error),
                take: later(pause),
                ..Step::default()
            }
        };
        if let Err(error) = topic {
            return failed(&schedule.topic, error.to_string());
        }
        if begun.elapsed() >= LEASE {
            // This process was frozen. Another manager may have sent it so long ago that it is no duplicate any more.
            return Step::default();
        }
        let send = self.sender.send(&taken.schedule, &schedule, time);
        let Ok(sent) = timeout(LEASE, send).await else {
            return failed(&schedule.topic, "no answer in time".to_owned());
        };
        let outcome = Outcome::of(&sent, time, now);
        let take = schedule
            .next(time, missed_until)
            .map(begin)
            .or(later(MUCH_LATER));
        let missed = || schedule.missed(taken.done, time);
        let error: Option<SendError> = sent.err().filter(|error| !is_stored(error));
        match error {
            None => {
                self.count(outcome);
                let missed = missed();
                Step {
                    done: Done::Sent(time, schedule.topic, outcome),
                    missed,
                    take,
                }
            }
            Some(error) if is_about_the_message(&error) => {
                self.count(outcome);
                tracing::error!(schedule = %taken.schedule, topic = %schedule.topic, %time, %error, "cannot send the message of a schedule");
                let missed = missed();
                Step {
                    done: Done::Refused(time, error.to_string()),
                    missed: MissedTimes {
                        count: missed.count + 1,
                        newest: time,
                    },
                    take,
                }
            }
            Some(error) => failed(&schedule.topic, error.to_string()),
        }
    }
}

impl Failing {
    fn next_pause(&self) -> Duration {
        LONGEST_PAUSE.min(2 * self.pause)
    }
}

/// Logs what went wrong: the first failure of a topic, its recovery, and messages that were late. Remembers the topics that fail.
fn report(taken: &[TakenFire], steps: Vec<Step>, failing: &mut AllFailing) {
    let mut late: Option<(&TakenFire, u64)> = None;
    let mut failed = AllFailing::new();
    for (taken, step) in taken.iter().zip(steps) {
        match step.done {
            Done::Sent(_, topic, outcome) => {
                if outcome == Outcome::Late {
                    late.get_or_insert((taken, 0)).1 += 1;
                }
                if failing.remove(&topic).is_some() {
                    tracing::info!(%topic, "schedules send again");
                }
            }
            Done::Failed(_, topic, error) => {
                let before = failing.get(&topic);
                if before.is_none() && !failed.contains_key(&topic) {
                    tracing::error!(schedule = %taken.schedule, %topic, error, "cannot send the message of a schedule");
                }
                let pause = before.map_or(FIRST_PAUSE, Failing::next_pause);
                let until = Instant::now() + pause;
                failed.insert(topic, Failing { until, pause });
            }
            Done::Nothing | Done::Refused(..) | Done::Unreadable(..) => {}
        }
    }
    failing.extend(failed);
    if let Some((taken, count)) = late {
        tracing::warn!(schedule = %taken.schedule, count, "no manager was available in time; sent late");
    }
}
