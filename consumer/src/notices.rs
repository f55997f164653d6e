//! The final retry of a shard: tells the handler of messages that were given up, whoever gave them up.
//!
//! Redis notes each message that goes to garbage. A consumer takes the note for a lease, keeps it while the hook runs, and
//! drops it when the hook is done; what was not dropped is taken again after the lease, by this process or another.

use std::convert::Infallible;
use std::panic::AssertUnwindSafe;
use std::sync::Arc;
use std::time::Duration;

use futures_util::FutureExt;
use lisa_shared::broker::{BrokerError, DeadLetter, Notice, TopicHandle};
use lisa_shared::message::{EntryId, MessageId, Record};
use lisa_shared::supervise::panic_text;
use lisa_shared::time::{UnixMs, format_duration};
use tokio::sync::OwnedSemaphorePermit;
use tokio::task::JoinSet;
use tokio::time::sleep;

use crate::feed::Feed;
use crate::handler::{Delivery, Outcome};
use crate::payloads::{Fetch, Part};

/// How often Redis is asked for what others gave up.
const LOOK_EVERY: Duration = Duration::from_secs(1);
/// The most notices that a call takes.
const BATCH: usize = 100;
/// The pause before Redis is told again that a hook is done.
const FINISH_AGAIN: Duration = Duration::from_millis(200);

/// Runs the hooks of a shard until the shutdown begins, and waits for those that run; ends at once if the handler wants
/// none. If the future is dropped, the hooks are, too, and run again after the lease.
pub(crate) async fn run(feed: Arc<Feed>) {
    if !feed.subscription.handler().wants_garbage() {
        return;
    }
    let mut hooks = JoinSet::new();
    let look = async {
        let mut failing = false;
        loop {
            match take(&feed, &mut hooks).await {
                Ok(more) => {
                    failing = false;
                    if more {
                        continue;
                    }
                }
                Err(error) => {
                    if !std::mem::replace(&mut failing, true) {
                        tracing::warn!(%error, subscription = %feed.subscription, shard = %feed.shard, "cannot look for what was given up: trying on");
                    }
                }
            }
            tokio::select! {
                () = sleep(LOOK_EVERY) => {}
                () = feed.buried.notified() => {}
            }
        }
    };
    tokio::select! {
        never = look => match never {},
        () = feed.draining().cancelled() => {}
    }
    while hooks.join_next().await.is_some() {}
}

/// Takes as many notices as hooks may run and starts them; says whether there may be more.
async fn take(feed: &Arc<Feed>, hooks: &mut JoinSet<()>) -> Result<bool, BrokerError> {
    while hooks.try_join_next().is_some() {}
    let permit = feed.hooks.clone().acquire_owned().await;
    let mut permits = permit.expect("never closed");
    let more = feed.hooks.available_permits().min(BATCH - 1);
    let more = u32::try_from(more).unwrap_or(0);
    if let Ok(more) = feed.hooks.clone().try_acquire_many_owned(more) {
        permits.merge(more);
    }
    let topic = feed.topic();
    let (count, lease) = (permits.num_permits(), topic.settings().lease);
    let broker = &feed.process.broker;
    let group = feed.subscription.group();
    let taken = broker.take_notices(&topic, feed.shard, group, count, lease);
    let (notices, more) = taken.await?;
    for notice in notices {
        let permit = permits.split(1).expect("a notice for each permit at most");
        hooks.spawn(tell(feed.clone(), topic.clone(), notice, permit));
    }
    Ok(more)
}

/// Sees a notice to its end: runs the hook, and forgets the notice if that went well.
async fn tell(
    feed: Arc<Feed>,
    topic: Arc<TopicHandle>,
    notice: Notice,
    _permit: OwnedSemaphorePermit,
) {
    let Notice { id, time, dead } = notice;
    let told = async {
        let mut fetch = Fetch::new(&feed, &topic);
        let record = match fetch.next(std::slice::from_ref(&id)).await {
            Part::Records(mut records) => records.pop().flatten().map(Record::decode),
            Part::TooLarge(unfetched) => {
                let error = format!(
                    "its payload of {} bytes does not come within redis.response_timeout",
                    unfetched.size
                );
                return Some(Outcome::retry(error));
            }
            Part::Stopped => return Some(Outcome::retry("the process stops")),
        };
        match (dead, record) {
            (Some(dead), Some(Ok(record))) => {
                Some(hook(&feed, &topic, id.clone(), time, dead, record).await)
            }
            _ => None,
        }
    };
    let outcome = tokio::select! {
        biased;
        outcome = told => outcome,
        never = keep(&feed, &id) => match never {},
        () = feed.stop.cancelled() => return,
    };
    let Some(outcome) = outcome else {
        tracing::warn!(%id, subscription = %feed.subscription, "a message in garbage cannot be read: its hook does not run");
        return finish(&feed, &topic, &id, time).await;
    };
    let error = match outcome {
        Outcome::Ack => {
            finish(&feed, &topic, &id, time).await;
            return feed.process.tally.noticed();
        }
        Outcome::Reject { error } => {
            tracing::warn!(%id, error, subscription = %feed.subscription, "the hook of a message in garbage gave up");
            return finish(&feed, &topic, &id, time).await;
        }
        Outcome::Retry { error, .. } => error,
        Outcome::Defer { .. } => "not now".to_owned(),
    };
    tracing::warn!(%id, error, subscription = %feed.subscription, "the hook of a message in garbage failed: again after the lease");
}

/// Runs the hook within the handler time-out. A panic and the time-out are failures.
async fn hook(
    feed: &Feed,
    topic: &TopicHandle,
    id: MessageId,
    time: UnixMs,
    dead: DeadLetter,
    record: Record,
) -> Outcome {
    let delivery = Delivery {
        topic: topic.name().clone(),
        group: feed.subscription.group().clone(),
        id,
        entry: EntryId::new(time.get(), 0),
        attempt: dead.attempts,
        max_attempts: record.max_attempts.unwrap_or(topic.settings().max_attempts),
        due_at: time,
        delivered_at: feed.now(topic).max(time),
        late: false,
        last_error: Some(dead.error).filter(|error| !error.is_empty()),
        headers: record.headers,
        payload: record.payload,
    };
    let limit = feed.subscription.timeout(topic);
    // The future lives in here, so that a panic while it is dropped is caught, too.
    let run = async {
        tokio::select! {
            biased;
            outcome = feed.subscription.handler().on_garbage(delivery, dead.reason) => outcome,
            () = sleep(limit) => Outcome::retry(format_args!("timed out after {}", format_duration(limit))),
        }
    };
    let end = AssertUnwindSafe(run).catch_unwind().await;
    end.unwrap_or_else(|panic| Outcome::retry(panic_text(&*panic)))
}

/// Keeps others from taking the notice, for as long as it is polled.
async fn keep(feed: &Feed, id: &MessageId) -> Infallible {
    loop {
        let topic = feed.topic();
        let lease = topic.settings().lease;
        sleep(lease / 3).await;
        let (broker, group) = (&feed.process.broker, feed.subscription.group());
        let kept = broker.keep_notice(&topic, feed.shard, group, id, lease);
        if let Err(error) = kept.await {
            tracing::debug!(%error, %id, "cannot keep a notice: trying on");
        }
    }
}

/// Forgets a notice; repeats the call while Redis may yet take it.
async fn finish(feed: &Feed, topic: &TopicHandle, id: &MessageId, time: UnixMs) {
    loop {
        let broker = &feed.process.broker;
        let group = feed.subscription.group();
        let finished = broker.finish_notice(topic, feed.shard, group, id, time);
        match feed.too_late.run_until_cancelled(finished).await {
            None | Some(Ok(_)) => return,
            Some(Err(error)) if error.is_retryable() => {
                tracing::debug!(%error, %id, "cannot finish a notice: trying on");
                let pause = sleep(FINISH_AGAIN);
                let _ = feed.too_late.run_until_cancelled(pause).await;
            }
            Some(Err(error)) => {
                tracing::error!(%error, %id, subscription = %feed.subscription, "cannot finish a notice: its hook runs again");
                return;
            }
        }
    }
}
