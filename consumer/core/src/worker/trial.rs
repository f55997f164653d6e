//! Runs suspects on trial. A suspect is a message that two or more processes held when they died, so it may be a poison
//! message that killed them.
//!
//! One suspect of a subscription at a time is on trial. It runs concurrently with ordinary messages, which do not wait
//! for it unless they share its ordering key. It is marked in Redis before its payload is fetched: only a marked message
//! is charged an attempt when the process dies. At the end of the trial the mark is removed, and the handler keeps
//! running. All other suspects go back into retry for a while.

use std::sync::Arc;
use std::time::Duration;

use lisa_core::broker::TopicHandle;
use lisa_core::message::MessageId;
use lisa_core::state::Attempt;
use lisa_core::time::{UnixMs, When};
use tokio::sync::OwnedSemaphorePermit;
use tokio::time::{Instant, sleep};

use crate::delivery::MAX_RUN;
use crate::worker::deliver::{self, Job};
use crate::worker::lease::{End, Held, Lease};
use crate::worker::payloads::{Fetch, Part};
use crate::worker::state::{SettleQueue, ShardWorker};

/// The length of the trial of a message that two processes died with. Doubles with each further crash.
const FIRST_TRIAL: Duration = Duration::from_secs(10);
/// The shortest pause of a suspect that expires soon. It may expire before its trial.
const LEAST_PAUSE: Duration = Duration::from_millis(250);
/// The pause before another try to set or remove a mark.
const MARK_AGAIN: Duration = Duration::from_millis(200);

/// Separates the suspects, and their permits, from the messages of a read; returns the other messages. Starts the trial
/// of one suspect if the slot is free, and hands back the rest.
pub(crate) fn divert(
    queue: &SettleQueue,
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
            .expect("a read returns at most one message for each permit");
        match queue.worker.subscription.suspects().take_slot() {
            Some(slot) => {
                let run = run(
                    queue.clone(),
                    topic.clone(),
                    id,
                    attempt,
                    begun,
                    permit,
                    slot,
                );
                queue.spawn(run);
            }
            None => {
                queue.spawn(put_off(queue.clone(), topic.clone(), id, attempt, begun));
            }
        }
    }
    others
}

/// Hands a suspect back for a while, or immediately if the process is stopping.
async fn put_off(
    queue: SettleQueue,
    topic: Arc<TopicHandle>,
    id: MessageId,
    attempt: Attempt,
    begun: Instant,
) {
    let worker = &queue.worker;
    let lease = worker.leases.hold_one(attempt.entry, begun);
    if worker.draining().is_cancelled() {
        return queue.hand_back(id, lease).await;
    }
    let most = longest_pause(&attempt, worker.now(&topic)).min(topic.settings().max_delay);
    let pause = worker.subscription.suspects().put_off(Instant::now(), most);
    queue.put_off(id, lease, When::After(pause)).await;
}

/// Returns the longest pause of a suspect: half of the time until it expires, but at least [`LEAST_PAUSE`].
fn longest_pause(attempt: &Attempt, now: UnixMs) -> Duration {
    let half = attempt.expires.map(|expires| expires.since(now) / 2);
    half.map_or(Duration::MAX, |half| half.max(LEAST_PAUSE))
}

/// Runs a suspect to its end. It holds the trial slot until then, or until its trial is over.
async fn run(
    queue: SettleQueue,
    topic: Arc<TopicHandle>,
    id: MessageId,
    attempt: Attempt,
    begun: Instant,
    permit: OwnedSemaphorePermit,
    slot: OwnedSemaphorePermit,
) {
    let worker = &*queue.worker;
    let lease = worker.leases.hold_one(attempt.entry, begun);
    match mark(worker, &topic, &attempt, &lease).await {
        End::Well(()) => {}
        End::Stopped => return queue.hand_back(id, lease).await,
        End::LeaseLost => return worker.count_stale(),
    }
    let held = lease.held().clone();
    let work = async {
        let mut fetch = Fetch::new(worker, &topic);
        match fetch.next(std::slice::from_ref(&id)).await {
            Part::Records(mut records) => {
                let job = Job {
                    id,
                    attempt,
                    record: records.pop().flatten(),
                    lease,
                    permit,
                };
                deliver::run(&queue, &topic, job).await;
            }
            Part::TooLarge(unfetched) => deliver::put_off(&queue, id, lease, unfetched).await,
            Part::Stopped => queue.hand_back(id, lease).await,
        }
    };
    tokio::pin!(work);
    tokio::select! {
        biased;
        () = &mut work => return,
        () = end_of_trial(worker, &topic, &attempt, &held) => drop(slot),
    }
    work.await;
}

/// Marks a suspect, however long that takes. It must not run unmarked, because then a crash would charge no message.
async fn mark(
    worker: &ShardWorker,
    topic: &TopicHandle,
    attempt: &Attempt,
    lease: &Lease,
) -> End<()> {
    let (process, group) = (&worker.process, worker.subscription.group());
    let entries = [attempt.entry];
    let mark = async {
        loop {
            match process
                .broker
                .renew(topic, worker.shard, group, &process.name, &entries)
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
        () = worker.draining().cancelled() => End::Stopped,
    }
}

/// Waits for the end of the trial and removes the mark, unless the delivery was left to a gateway. While Redis is unavailable,
/// the trial continues.
async fn end_of_trial(worker: &ShardWorker, topic: &TopicHandle, attempt: &Attempt, held: &Held) {
    sleep(trial_length(
        attempt.crashes,
        worker.subscription.timeout(topic),
    ))
    .await;
    let (process, group) = (&worker.process, worker.subscription.group());
    let entries = [attempt.entry];
    loop {
        let alone = worker.leases.confirming.lock().await;
        if !held.is_renewed() {
            return;
        }
        let unmarked = process
            .broker
            .unmark(topic, worker.shard, group, &process.name, &entries)
            .await;
        let Err(error) = unmarked else { return };
        drop(alone);
        tracing::debug!(%error, "cannot remove the mark of a suspect; retrying");
        sleep(MARK_AGAIN).await;
    }
}

/// Returns the length of a trial. It doubles with each crash, so that a message that kills its process late is found, too.
/// The trial ends with the handler at the latest, which may have more time than the handler timeout.
fn trial_length(crashes: u32, handler_timeout: Duration) -> Duration {
    let doublings = crashes.saturating_sub(2).min(31);
    let first = FIRST_TRIAL.min(handler_timeout);
    first.saturating_mul(1 << doublings).min(MAX_RUN)
}

#[cfg(test)]
mod tests {
    use super::*;
    use lisa_core::message::EntryId;

    #[test]
    fn a_trial_doubles_with_each_crash_up_to_the_longest_run_of_a_handler() {
        let seconds = |crashes| trial_length(crashes, Duration::from_secs(300)).as_secs();
        let lengths = [2, 3, 4, 6, 7, 1000].map(seconds);
        assert_eq!(lengths, [10, 20, 40, 160, 320, MAX_RUN.as_secs()]);
        let short = Duration::from_secs(3);
        assert_eq!(
            [2, 3].map(|crashes| trial_length(crashes, short)),
            [short, short * 2]
        );
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
