//! Suspects: messages with which two processes died since their handler last ended. They may have killed them.
//!
//! One suspect of a subscription at a time has the turn, beside ordinary messages, which never wait for it. It is marked in
//! Redis before its payload is fetched; only a marked message is charged an attempt when the process dies. The mark goes at the
//! end of the turn, and the handler runs on. All other suspects go back into retry for a while.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use lisa_shared::broker::TopicHandle;
use lisa_shared::message::MessageId;
use lisa_shared::metrics::Metrics;
use lisa_shared::state::Attempt;
use lisa_shared::time::{UnixMs, When};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::time::{Instant, sleep};

use crate::deliver::{self, End};
use crate::feed::{Desk, Feed};
use crate::fetch;
use crate::handler::MAX_RUN;
use crate::lease::Lease;
use crate::payloads::{Fetch, Part};

/// How long the turn of a message lasts with which two processes died; twice as long for each further one.
const FIRST_TURN: Duration = Duration::from_secs(10);
/// The shortest pause of a suspect that does not get the turn.
const PAUSE: Duration = Duration::from_secs(1);
/// The shortest pause of one that expires soon: it may expire before it gets the turn.
const LEAST_PAUSE: Duration = Duration::from_millis(250);
/// The time between two suspects that come back, so that a crowd of them costs 50 reads and returns a second at most.
const SPACING: Duration = Duration::from_millis(20);
/// The pause before Redis is asked again to set or remove a mark.
const MARK_AGAIN: Duration = Duration::from_millis(200);

/// The turn of a subscription in this process, and the suspects that wait for it.
#[derive(Debug)]
pub(crate) struct Suspects {
    turn: Arc<Semaphore>,
    /// When those that this process put off come back, the soonest first.
    returns: Mutex<VecDeque<Instant>>,
}

impl Default for Suspects {
    fn default() -> Self {
        Self {
            turn: Arc::new(Semaphore::new(1)),
            returns: Mutex::default(),
        }
    }
}

impl Suspects {
    /// Returns the turn if it is free; dropping it frees it.
    fn take_turn(&self) -> Option<OwnedSemaphorePermit> {
        self.turn.clone().try_acquire_owned().ok()
    }

    /// Returns for how long a suspect goes back, and `most` if its place in the row is later.
    fn put_off(&self, now: Instant, most: Duration) -> Duration {
        let mut returns = self.returns_after(now);
        let earliest = now + PAUSE;
        let at = returns
            .back()
            .map_or(earliest, |last| (*last + SPACING).max(earliest));
        if most < at - now {
            return most;
        }
        returns.push_back(at);
        at - now
    }

    /// Returns how many have the turn, which is one at most, and how many this process put off.
    fn counts(&self) -> (usize, usize) {
        let running = 1 - self.turn.available_permits();
        (running, self.returns_after(Instant::now()).len())
    }

    fn returns_after(&self, now: Instant) -> MutexGuard<'_, VecDeque<Instant>> {
        let mut returns = self.returns.lock().unwrap_or_else(PoisonError::into_inner);
        while returns.front().is_some_and(|at| *at <= now) {
            returns.pop_front();
        }
        returns
    }

    /// Returns what an operator should know, if there are any.
    pub(crate) fn warning(&self) -> Option<String> {
        let (running, waiting) = self.counts();
        (running + waiting > 0).then(|| {
            format!(
                "{} suspected of killing their process, {waiting} of them wait for their turn",
                running + waiting
            )
        })
    }

    pub(crate) fn report(&self, metrics: &Metrics, topic: &str, group: &str) {
        let (running, waiting) = self.counts();
        metrics.suspects(topic, group, "running", running as u64);
        metrics.suspects(topic, group, "waiting", waiting as u64);
    }
}

/// Takes the suspects out of what was read, with their permits. One begins if the turn is free; the others are put off.
pub(crate) fn divert(
    desk: &Desk,
    topic: &Arc<TopicHandle>,
    reads: Vec<(MessageId, Attempt)>,
    begun: Instant,
    permits: &mut OwnedSemaphorePermit,
) -> Vec<(MessageId, Attempt)> {
    let (suspects, others): (Vec<_>, Vec<_>) = reads
        .into_iter()
        .partition(|(_, attempt)| attempt.is_suspect());
    for (id, attempt) in suspects {
        let permit = permits
            .split(1)
            .expect("a read gives at most one message for each permit");
        match desk.feed.subscription.suspects().take_turn() {
            Some(turn) => {
                let run = run(
                    desk.clone(),
                    topic.clone(),
                    id,
                    attempt,
                    begun,
                    permit,
                    turn,
                );
                desk.deliveries.spawn(run);
            }
            None => {
                desk.deliveries
                    .spawn(put_off(desk.clone(), topic.clone(), id, attempt, begun));
            }
        }
    }
    others
}

/// Gives a suspect back for a while, or at once if the process stops.
async fn put_off(
    desk: Desk,
    topic: Arc<TopicHandle>,
    id: MessageId,
    attempt: Attempt,
    begun: Instant,
) {
    let feed = &desk.feed;
    let lease = feed.leases.hold_one(attempt.entry, begun);
    if feed.draining().is_cancelled() {
        return desk.hand_back(id, lease).await;
    }
    let most = longest_pause(&attempt, feed.now(&topic)).min(topic.settings().max_delay);
    let pause = feed.subscription.suspects().put_off(Instant::now(), most);
    desk.put_off(id, lease, When::After(pause)).await;
}

/// Returns the longest pause, which leaves a message half of the time in which it is worth handling.
fn longest_pause(attempt: &Attempt, now: UnixMs) -> Duration {
    let half = attempt.expires.map(|expires| expires.since(now) / 2);
    half.map_or(Duration::MAX, |half| half.max(LEAST_PAUSE))
}

/// Sees a suspect to its end. It has the turn until then, or until the turn is over.
async fn run(
    desk: Desk,
    topic: Arc<TopicHandle>,
    id: MessageId,
    attempt: Attempt,
    begun: Instant,
    permit: OwnedSemaphorePermit,
    turn: OwnedSemaphorePermit,
) {
    let feed = &*desk.feed;
    let lease = feed.leases.hold_one(attempt.entry, begun);
    match mark(feed, &topic, &attempt, &lease).await {
        End::Well(()) => {}
        End::Stopped => return desk.hand_back(id, lease).await,
        End::LeaseLost => return deliver::count_stale(feed, &topic),
    }
    let work = async {
        let mut fetch = Fetch::new(feed, &topic);
        match fetch.next(std::slice::from_ref(&id)).await {
            Part::Records(mut records) => {
                let (desk, topic) = (desk.clone(), topic.clone());
                let record = records.pop().flatten();
                fetch::deliver_one(desk, topic, id, attempt, lease, permit, record).await;
            }
            Part::TooLarge(unfetched) => fetch::put_off(&desk, id, lease, unfetched).await,
            Part::Stopped => desk.hand_back(id, lease).await,
        }
    };
    tokio::pin!(work);
    tokio::select! {
        biased;
        () = &mut work => return,
        () = end_of_turn(feed, &topic, &attempt) => drop(turn),
    }
    work.await;
}

/// Marks a suspect, however long it takes: unmarked it must not run, as its crash would be charged to nobody.
async fn mark(feed: &Feed, topic: &TopicHandle, attempt: &Attempt, lease: &Lease) -> End<()> {
    let (process, group) = (&feed.process, feed.subscription.group());
    let entries = [attempt.entry];
    let mark = async {
        loop {
            match process
                .broker
                .renew(topic, feed.shard, group, &process.name, &entries)
                .await
            {
                Ok(held) if held.is_empty() => return End::LeaseLost,
                Ok(_) => return End::Well(()),
                Err(error) => {
                    tracing::debug!(%error, "cannot mark a suspect; retrying");
                    sleep(MARK_AGAIN).await;
                }
            }
        }
    };
    tokio::select! {
        biased;
        marked = mark => marked,
        () = lease.lost().cancelled() => End::LeaseLost,
        () = feed.draining().cancelled() => End::Stopped,
    }
}

/// Waits for the end of a turn and removes the mark. While Redis cannot be asked, the turn goes on.
async fn end_of_turn(feed: &Feed, topic: &TopicHandle, attempt: &Attempt) {
    sleep(turn_length(
        attempt.crashes,
        feed.subscription.timeout(topic),
    ))
    .await;
    let (process, group) = (&feed.process, feed.subscription.group());
    let entries = [attempt.entry];
    while let Err(error) = process
        .broker
        .unmark(topic, feed.shard, group, &process.name, &entries)
        .await
    {
        tracing::debug!(%error, "cannot end the turn of a suspect; retrying");
        sleep(MARK_AGAIN).await;
    }
}

/// Returns how long a turn lasts: longer after each crash, so that a message that kills its process late is found, too. It
/// ends with the handler at the latest, which may have more time than the time-out.
fn turn_length(crashes: u32, handler_timeout: Duration) -> Duration {
    let doublings = crashes.saturating_sub(2).min(31);
    let first = FIRST_TURN.min(handler_timeout);
    first.saturating_mul(1 << doublings).min(MAX_RUN)
}

#[cfg(test)]
mod tests {
    use super::*;
    use lisa_shared::message::EntryId;

    #[test]
    fn a_turn_doubles_with_each_crash_up_to_the_longest_run_of_a_handler() {
        let seconds = |crashes| turn_length(crashes, Duration::from_secs(300)).as_secs();
        let lengths = [2, 3, 4, 6, 7, 1000].map(seconds);
        assert_eq!(lengths, [10, 20, 40, 160, 320, MAX_RUN.as_secs()]);
        let short = Duration::from_secs(3);
        assert_eq!(
            [2, 3].map(|crashes| turn_length(crashes, short)),
            [short, short * 2]
        );
    }

    #[test]
    fn a_crowd_of_suspects_comes_back_one_after_the_other() {
        let suspects = Suspects::default();
        let now = Instant::now();
        let any = Duration::MAX;
        let pauses = [(); 3].map(|()| suspects.put_off(now, any));
        assert_eq!(pauses, [PAUSE, PAUSE + SPACING, PAUSE + 2 * SPACING]);
        // One that comes back sooner takes no place in the row.
        assert_eq!(suspects.put_off(now, LEAST_PAUSE), LEAST_PAUSE);
        assert_eq!(suspects.returns_after(now).len(), 3);
        // The queue does not grow beyond those that are away.
        let later = now + PAUSE + SPACING;
        assert_eq!(suspects.put_off(later, any), PAUSE);
        assert_eq!(suspects.returns_after(later).len(), 2);
    }

    #[test]
    fn one_suspect_at_a_time_has_the_turn() {
        let suspects = Suspects::default();
        assert_eq!(suspects.warning(), None);
        let turn = suspects.take_turn().expect("a free turn");
        assert!(suspects.take_turn().is_none());
        assert_eq!(suspects.counts(), (1, 0));
        suspects.put_off(Instant::now(), Duration::MAX);
        assert_eq!(
            suspects.warning().as_deref(),
            Some("2 suspected of killing their process, 1 of them wait for their turn")
        );
        drop(turn);
        assert!(suspects.take_turn().is_some());
    }

    #[test]
    fn a_suspect_comes_back_before_it_expires() {
        let attempt = |expires: Option<u64>| Attempt {
            entry: EntryId::new(5, 0),
            number: 1,
            due: UnixMs::new(5),
            crashes: 2,
            expires: expires.map(UnixMs::new),
        };
        let pause = |expires| longest_pause(&attempt(expires), UnixMs::new(10));
        let pauses = [None, Some(9_010), Some(110), Some(10), Some(3)].map(pause);
        let half = Duration::from_millis(4_500);
        let least = LEAST_PAUSE;
        assert_eq!(pauses, [Duration::MAX, half, least, least, least]);
    }
}
