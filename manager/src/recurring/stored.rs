//! The schedules that were created at run time. Redis has their definitions, and the time at which each is to be taken.
//!
//! Every manager takes those whose time has come, a few hundred at once. For the length of a lease, no other manager takes them.
//! The manager that took one sends its message and notes when it is to be taken next. If it dies, another one takes the schedule
//! after the lease, and the id of the message makes sure that it is stored once. No manager looks at a schedule at any other time, except
//! at those of its own configuration.

use std::collections::{BTreeMap, BTreeSet};
use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;

use futures_util::future::join_all;
use lisa_core::broker::{BrokerError, FireResult, Fired, FiredOf, MissedTimes, TakenFire};
use lisa_core::outage::Outage;
use lisa_core::time::{UnixMs, millis};
use lisa_core::topic::Topic;
use lisa_service::config::Config;
use lisa_service::recurring::RecurringMessage;
use lisa_service::shutdown::Shutdown;
use lisa_service::supervise::Heartbeat;
use tokio::sync::Notify;
use tokio::task::{JoinError, JoinSet, yield_now};
use tokio::time::{Instant, sleep, timeout};

use super::{
    AHEAD, IN_TIME, Outcome, Sender, before_shutdown, is_about_the_message, is_stored, pause,
    take_over,
};
use crate::assignment::{SHOWS_AFTER, watched};

/// The most schedules that are taken at once. Those of a topic send together.
const AT_ONCE: usize = 500;
/// The time for which no other manager takes a schedule, and the longest time of a send. Half of the time by which messages are sent
/// ahead, so that another manager is still in time.
const LEASE: Duration = Duration::from_millis(2500);
/// The longest time between two looks: another manager may have created a schedule, or died.
const LOOK_EVERY: Duration = Duration::from_millis(2500);
/// The interval between checks whether schedules of the configuration were also created at run time, through another manager. Most are
/// found sooner: this manager takes such a schedule when it is due, unless the other manager is always faster.
const TAKE_OVER_EVERY: Duration = Duration::from_secs(10);
/// The pause after a call that failed.
const AFTER_ERROR: Duration = Duration::from_secs(1);
/// The times for which nothing is sent to a topic after a send failed: the first, and the longest. All its schedules would fail.
const FIRST_PAUSE: Duration = LEASE;
const LONGEST_PAUSE: Duration = Duration::from_mins(1);
/// The time for which a round waits for the answers to its sends. They go on without it.
const PATIENCE: Duration = Duration::from_millis(250);
/// The most batches of a topic that wait for answers, and the time after which a schedule is taken again if there are as many.
const BATCHES: usize = 4;
const WHILE_WAITING: Duration = Duration::from_millis(500);
/// The most batches of all topics that wait for answers. Each has part of a page of 1 MiB.
const ALL_BATCHES: usize = 1000;
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

/// The state of a loop between its rounds.
#[derive(Default)]
struct State {
    /// The moment of the next check for stored schedules that the configuration declares.
    take_over_at: Option<Instant>,
    failing: AllFailing,
    /// The batches whose sends wait for an answer. They end within two leases.
    batches: JoinSet<Batch>,
    /// The number of these of each topic.
    waiting: BTreeMap<Topic, usize>,
}

/// Schedules of one topic that were taken together.
struct Batch {
    topic: Topic,
    schedules: Vec<Taken>,
    /// The time at which they were taken, on Redis's clock, and a moment before that.
    now: UnixMs,
    begun: Instant,
    /// The time for which the topic is left alone if it fails.
    pause: Duration,
    steps: Vec<Step>,
    noted: Result<(), BrokerError>,
}

/// A schedule that was taken.
struct Taken {
    fire: TakenFire,
    schedule: RecurringMessage,
}

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
    Sent(UnixMs, Outcome),
    /// The topic refuses its message.
    Refused(UnixMs, String),
    /// This manager cannot read its definition.
    Unreadable(UnixMs, String),
    /// It must be sent again.
    Failed(UnixMs, String),
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
        let mut state = State::default();
        while !shutdown.draining().is_cancelled() {
            let round = watched(&heartbeat, &connection, self.round(&mut state));
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

    /// Takes schedules and sends their messages. Returns the pause until the next round. Does not wait long for a topic that blocks.
    async fn round(&self, state: &mut State) -> Result<Duration, BrokerError> {
        while let Some(batch) = state.batches.try_join_next() {
            state.end(batch)?;
        }
        while state.batches.len() >= ALL_BATCHES
            && let Some(batch) = state.batches.join_next().await
        {
            state.end(batch)?;
        }
        let begun = Instant::now();
        if state.take_over_at.is_none_or(|at| at <= begun) {
            take_over(&self.sender.broker, &self.config).await?;
            state.take_over_at = Some(begun + TAKE_OVER_EVERY);
        }
        let fires = self.sender.broker.take_fires(AT_ONCE, LEASE).await?;
        if fires.taken.is_empty() {
            return Ok(fires.next.map_or(LOOK_EVERY, |next| next.min(LOOK_EVERY)));
        }
        let now = fires.now;
        let (mut later, mut topics) = (Vec::new(), BTreeMap::<Topic, Vec<Taken>>::new());
        for fire in fires.taken {
            if self.config.schedules.contains_key(&fire.schedule) {
                // Created while this manager was running, through one with another file.
                let (broker, version) = (&self.sender.broker, Some(fire.version));
                broker.remove_schedule(&fire.schedule, version).await?;
                continue;
            }
            let read = RecurringMessage::from_definition(&fire.definition);
            let step = match &read {
                // Another manager may be of a newer version, and take it after the lease.
                Err(error) => Some(Step {
                    done: Done::Unreadable(now, format!("unreadable definition: {error}")),
                    ..Step::default()
                }),
                Ok(schedule) => state.postpones(&schedule.topic).map(|pause| Step {
                    take: Some(now.plus(pause)),
                    ..Step::default()
                }),
            };
            match (step, read) {
                (None, Ok(schedule)) => {
                    let topic = topics.entry(schedule.topic.clone()).or_default();
                    topic.push(Taken { fire, schedule });
                }
                (step, _) => later.push((fire, step.unwrap_or_default())),
            }
        }
        let mut fresh: BTreeSet<Topic> = topics.keys().cloned().collect();
        for (topic, schedules) in topics {
            *state.waiting.entry(topic.clone()).or_default() += 1;
            let failing = state.failing.get(&topic);
            let batch = Batch {
                pause: failing.map_or(FIRST_PAUSE, Failing::next_pause),
                topic,
                schedules,
                now,
                begun,
                steps: Vec::new(),
                noted: Ok(()),
            };
            state.batches.spawn(self.clone().send(batch));
        }
        let later = later.iter().map(|(fire, step)| step.note(fire));
        self.note(later.collect()).await?;
        let patience = sleep(PATIENCE);
        tokio::pin!(patience);
        while !fresh.is_empty() {
            tokio::select! {
                Some(batch) = state.batches.join_next() => {
                    if let Ok(batch) = &batch {
                        fresh.remove(&batch.topic);
                    }
                    state.end(batch)?;
                }
                () = &mut patience => break,
            }
        }
        Ok(Duration::ZERO)
    }

    async fn note(&self, fires: Vec<Fired<'_>>) -> Result<(), BrokerError> {
        if fires.is_empty() {
            return Ok(());
        }
        self.sender.broker.note_fires(&fires).await.map(|_| ())
    }

    /// Sends the messages of schedules of one topic, and notes the results.
    async fn send(self, mut batch: Batch) -> Batch {
        let steps = batch.schedules.iter().map(|taken| self.step(taken, &batch));
        let steps: Vec<_> = steps.collect();
        let steps = join_all(steps).await;
        let fires = batch.schedules.iter().zip(&steps);
        let fires = fires.map(|(taken, step)| step.note(&taken.fire));
        batch.noted = self.note(fires.collect()).await;
        batch.steps = steps;
        batch
    }

    fn count(&self, outcome: Outcome) {
        let metrics = &self.sender.metrics;
        metrics.schedule_fired(AT_RUN_TIME, outcome.as_str());
    }

    /// Sends the message of a schedule of a batch, if it is time.
    async fn step(&self, Taken { fire, schedule }: &Taken, batch: &Batch) -> Step {
        // The next time of a sparse expression takes a millisecond, and there are hundreds.
        yield_now().await;
        let now = batch.now;
        let later = |pause| Some(now.plus(pause));
        let missed_until = UnixMs::new(now.get().saturating_sub(millis(IN_TIME)));
        let Some(time) = schedule.next(fire.done, missed_until) else {
            return Step {
                take: later(MUCH_LATER),
                ..Step::default()
            };
        };
        // The topic may allow only a short delay.
        let topic = self.sender.broker.topic(&schedule.topic).await;
        let ahead = self.sender.ahead(schedule, AHEAD);
        let begin = |time: UnixMs| UnixMs::new(time.get().saturating_sub(millis(ahead)));
        if begin(time) > now {
            return Step {
                take: Some(begin(time)),
                ..Step::default()
            };
        }
        let failed = |error: String| {
            self.count(Outcome::Failed);
            Step {
                done: Done::Failed(time, error),
                take: later(batch.pause),
                ..Step::default()
            }
        };
        if let Err(error) = topic {
            return failed(error.to_string());
        }
        if batch.begun.elapsed() >= LEASE {
            // This process was frozen. Another manager may have sent it so long ago that it is no duplicate any more.
            return Step::default();
        }
        let send = self.sender.send(&fire.schedule, schedule, time);
        let Ok(sent) = timeout(LEASE, send).await else {
            return failed("no answer in time".to_owned());
        };
        let outcome = Outcome::of(&sent, time, now);
        let error = sent.err().filter(|error| !is_stored(error));
        let is_refused = error.as_ref().is_some_and(is_about_the_message);
        if let Some(error) = error.as_ref().filter(|_| !is_refused) {
            return failed(error.to_string());
        }
        self.count(outcome);
        let mut step = Step {
            done: Done::Sent(time, outcome),
            missed: schedule.missed(fire.done, time),
            take: schedule
                .next(time, missed_until)
                .map(begin)
                .or(later(MUCH_LATER)),
        };
        if let Some(error) = error {
            tracing::error!(schedule = %fire.schedule, topic = %schedule.topic, %time, %error, "cannot send the message of a schedule");
            step.done = Done::Refused(time, error.to_string());
            step.missed.count += 1;
            step.missed.newest = time;
        }
        step
    }
}

impl Step {
    /// Returns what is to be noted.
    fn note<'a>(&'a self, fire: &'a TakenFire) -> Fired<'a> {
        Fired {
            result: match &self.done {
                Done::Nothing => None,
                Done::Sent(time, _) => Some(FireResult::Sent(*time)),
                Done::Refused(time, error) => Some(FireResult::Refused(*time, error)),
                Done::Unreadable(time, error) | Done::Failed(time, error) => {
                    Some(FireResult::Failed(*time, error))
                }
            },
            missed: self.missed,
            take: self.take,
            ..Fired::ask(&fire.schedule, FiredOf::Version(fire.version))
        }
    }
}

impl State {
    /// Returns the time for which schedules of a topic are left alone, if it fails, or blocks so many sends already.
    fn postpones(&self, topic: &Topic) -> Option<Duration> {
        let failing = self.failing.get(topic);
        let pause = failing.map(|failing| failing.until.saturating_duration_since(Instant::now()));
        if let Some(pause) = pause.filter(|pause| !pause.is_zero()) {
            return Some(pause.max(LEASE));
        }
        let waiting = self.waiting.get(topic).copied().unwrap_or_default();
        (waiting >= BATCHES).then_some(WHILE_WAITING)
    }

    /// Ends a batch. Logs what went wrong: the first failure of its topic, the recovery, and messages that were late.
    fn end(&mut self, batch: Result<Batch, JoinError>) -> Result<(), BrokerError> {
        let Batch {
            topic,
            schedules,
            steps,
            noted,
            pause,
            ..
        } = batch.expect("a batch does not panic");
        let mut late = 0;
        let (mut has_sent, mut failed) = (false, None);
        for (taken, step) in schedules.iter().zip(steps) {
            match step.done {
                Done::Sent(_, outcome) => {
                    has_sent = true;
                    late += u64::from(outcome == Outcome::Late);
                }
                Done::Failed(_, error) => failed = Some((taken, error)),
                Done::Nothing | Done::Refused(..) | Done::Unreadable(..) => {}
            }
        }
        if late > 0 {
            tracing::warn!(%topic, late, "no manager was available in time; sent late");
        }
        if let Some(waiting) = self.waiting.get_mut(&topic) {
            *waiting -= 1;
        }
        self.waiting.retain(|_, waiting| *waiting > 0);
        if let Some((taken, error)) = failed {
            let until = Instant::now() + pause;
            let before = self.failing.insert(topic.clone(), Failing { until, pause });
            if before.is_none() {
                tracing::error!(schedule = %taken.fire.schedule, %topic, error, "cannot send the message of a schedule");
            }
        } else if has_sent && self.failing.remove(&topic).is_some() {
            tracing::info!(%topic, "schedules send again");
        }
        noted
    }
}

impl Failing {
    fn next_pause(&self) -> Duration {
        LONGEST_PAUSE.min(2 * self.pause)
    }
}
