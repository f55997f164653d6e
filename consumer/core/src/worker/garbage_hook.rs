//! Runs the garbage hooks of a shard: passes each message that moved to garbage (dead letters) to the callback topic and
//! to the handler, no matter which process moved it.
//!
//! Redis records a pending hook for each such message. A consumer takes the hook for a lease, renews the lease while the
//! hook runs, and removes the record when the hook is done. An unfinished hook is taken again after the lease, by any
//! process.

use std::convert::Infallible;
use std::panic::AssertUnwindSafe;
use std::sync::Arc;
use std::time::Duration;

use futures_util::FutureExt;
use lisa_core::broker::{BrokerError, GarbageInfo, PendingHook, TopicHandle};
use lisa_core::message::{EntryId, MessageId, Record};
use lisa_core::time::{UnixMs, format_duration};
use lisa_service::panics::panic_text;
use tokio::sync::OwnedSemaphorePermit;
use tokio::task::JoinSet;
use tokio::time::sleep;

use crate::delivery::Delivery;
use crate::outcome::Outcome;
use crate::worker::callback::Callback;
use crate::worker::payloads::{Fetch, Part};
use crate::worker::state::ShardWorker;

/// The interval between checks for messages that other processes moved to garbage.
const LOOK_EVERY: Duration = Duration::from_secs(1);
/// The largest number of hooks that one call takes.
const BATCH: usize = 100;
/// The pause before another try to finish a hook.
const FINISH_AGAIN: Duration = Duration::from_millis(200);

/// Runs the hooks of a shard until the shutdown begins, then waits for those that run. Returns immediately if there is no
/// hook. Dropping the future drops the running hooks, which run again after the lease.
pub(crate) async fn run(worker: Arc<ShardWorker>) {
    if !worker.subscription.wants_garbage() {
        worker.hooks_enabled.cancel();
        return;
    }
    let mut hooks = JoinSet::new();
    let look = async {
        enable(&worker).await;
        let mut outage = worker.outage("take garbage hooks");
        loop {
            match take(&worker, &mut hooks).await {
                Ok(more) => {
                    outage.recovered();
                    if more {
                        continue;
                    }
                }
                Err(error) => {
                    outage.failed(&error);
                }
            }
            tokio::select! {
                () = sleep(LOOK_EVERY) => {}
                () = worker.garbage_added.notified() => {}
            }
        }
    };
    tokio::select! {
        never = look => match never {},
        () = worker.draining().cancelled() => {}
    }
    while hooks.join_next().await.is_some() {}
}

/// Enables the hooks before the first message is read, so that none goes to garbage without being recorded.
async fn enable(worker: &ShardWorker) {
    let mut outage = worker.outage("enable garbage hooks");
    loop {
        let (broker, topic) = (&worker.process.broker, worker.topic());
        let group = worker.subscription.group();
        let enabled = broker.enable_garbage_hook(&topic, worker.shard, group);
        match enabled.await {
            Ok(()) => break outage.recovered(),
            Err(error) => {
                let pause = outage.failed(&error);
                if !error.is_retryable() {
                    break;
                }
                sleep(pause).await;
            }
        }
    }
    worker.hooks_enabled.cancel();
}

/// Takes as many pending hooks as may run, and starts them. Returns whether there may be more.
async fn take(worker: &Arc<ShardWorker>, hooks: &mut JoinSet<()>) -> Result<bool, BrokerError> {
    while hooks.try_join_next().is_some() {}
    let permit = worker.permits.hooks.clone().acquire_owned().await;
    let mut permits = permit.expect("never closed");
    let more = worker.permits.hooks.available_permits().min(BATCH - 1);
    let more = u32::try_from(more).unwrap_or(0);
    if let Ok(more) = worker.permits.hooks.clone().try_acquire_many_owned(more) {
        permits.merge(more);
    }
    let topic = worker.topic();
    let (count, lease) = (permits.num_permits(), topic.settings().lease);
    let broker = &worker.process.broker;
    let group = worker.subscription.group();
    let taken = broker.take_garbage_hooks(&topic, worker.shard, group, count, lease);
    let (pending, more) = taken.await?;
    for hook in pending {
        let permit = permits.split(1).expect("at most one hook for each permit");
        hooks.spawn(run_one(worker.clone(), topic.clone(), hook, permit));
    }
    Ok(more)
}

/// Runs a pending hook, and finishes it unless it must run again.
async fn run_one(
    worker: Arc<ShardWorker>,
    topic: Arc<TopicHandle>,
    pending: PendingHook,
    _permit: OwnedSemaphorePermit,
) {
    let PendingHook { id, time, garbage } = pending;
    let handled = async {
        let mut fetch = Fetch::new(&worker, &topic);
        let record = match fetch.next(std::slice::from_ref(&id)).await {
            Part::Records(mut records) => records.pop().flatten().map(Record::decode),
            Part::TooLarge(unfetched) => {
                let error = format!(
                    "cannot fetch its payload of {} bytes within redis.response_timeout",
                    unfetched.size
                );
                return Some(Outcome::retry(error));
            }
            Part::Stopped => return Some(Outcome::retry("the process is shutting down")),
        };
        match (garbage, record) {
            (Some(garbage), Some(Ok(record))) => {
                Some(hook(&worker, &topic, id.clone(), time, garbage, record).await)
            }
            _ => None,
        }
    };
    let outcome = tokio::select! {
        biased;
        outcome = handled => outcome,
        never = keep(&worker, &id) => match never {},
        () = worker.stop.cancelled() => return,
    };
    let Some(outcome) = outcome else {
        tracing::warn!(%id, subscription = %worker.subscription, "cannot read a message in garbage; garbage hook not run");
        return finish(&worker, &topic, &id, time).await;
    };
    let error = match outcome {
        Outcome::Ack => {
            finish(&worker, &topic, &id, time).await;
            return worker.process.counters.garbage_hooks();
        }
        Outcome::Reject { error } => {
            tracing::warn!(%id, error, subscription = %worker.subscription, "garbage hook rejected its message; not retried");
            return finish(&worker, &topic, &id, time).await;
        }
        Outcome::Retry { error, .. } => error,
        Outcome::Defer { .. } => "deferred by the hook".to_owned(),
        Outcome::Pause { error } => error,
        Outcome::Later { .. } => "a garbage hook cannot be completed later".to_owned(),
    };
    tracing::warn!(%id, error, subscription = %worker.subscription, "garbage hook failed; retrying after the lease");
}

/// Sends the callback, then runs the handler's hook within the handler timeout. A panic or a timeout is a failure.
async fn hook(
    worker: &ShardWorker,
    topic: &TopicHandle,
    id: MessageId,
    time: UnixMs,
    garbage: GarbageInfo,
    record: Record,
) -> Outcome {
    let delivery = Delivery {
        topic: topic.name().clone(),
        group: worker.subscription.group().clone(),
        id,
        entry: EntryId::new(time.get(), 0),
        attempt: garbage.attempts,
        max_attempts: record.max_attempts.unwrap_or(topic.settings().max_attempts),
        due_at: time,
        delivered_at: worker.now(topic).max(time),
        late: false,
        last_error: Some(garbage.error).filter(|error| !error.is_empty()),
        headers: record.headers.into(),
        payload: record.payload,
    };
    let limit = worker.subscription.timeout(topic);
    // First, because a repeated callback is a duplicate, and a repeated hook may do its work twice.
    if let Some(to) = &worker.subscription.callbacks().garbage {
        let callback = Callback::garbage(delivery.clone(), garbage.reason);
        if let Err(error) = callback.send(worker, to, limit).await {
            return Outcome::retry(format_args!("cannot send the callback: {error}"));
        }
    }
    if !worker.subscription.handler().wants_garbage() {
        return Outcome::Ack;
    }
    // The block owns the hook's future, so that a panic while the future is dropped is caught, too.
    let run = async {
        tokio::select! {
            biased;
            outcome = worker.subscription.handler().on_garbage(delivery, garbage.reason) => outcome,
            () = sleep(limit) => Outcome::retry(format_args!("timed out after {}", format_duration(limit))),
        }
    };
    let end = AssertUnwindSafe(run).catch_unwind().await;
    end.unwrap_or_else(|panic| Outcome::retry(panic_text(&*panic)))
}

/// Renews the lease of a hook until the future is dropped, so that no other consumer takes it.
async fn keep(worker: &ShardWorker, id: &MessageId) -> Infallible {
    loop {
        let topic = worker.topic();
        let lease = topic.settings().lease;
        sleep(lease / 3).await;
        let (broker, group) = (&worker.process.broker, worker.subscription.group());
        let kept = broker.keep_garbage_hook(&topic, worker.shard, group, id, lease);
        if let Err(error) = kept.await {
            tracing::debug!(%error, %id, "cannot renew the lease of a garbage hook; retrying");
        }
    }
}

/// Removes a hook that is done. Repeats the call after a retryable error, until the worker must make no further calls.
async fn finish(worker: &ShardWorker, topic: &TopicHandle, id: &MessageId, time: UnixMs) {
    loop {
        let broker = &worker.process.broker;
        let group = worker.subscription.group();
        let finished = broker.finish_garbage_hook(topic, worker.shard, group, id, time);
        match worker.too_late.run_until_cancelled(finished).await {
            None | Some(Ok(_)) => return,
            Some(Err(error)) if error.is_retryable() => {
                tracing::debug!(%error, %id, "cannot finish a garbage hook; retrying");
                let pause = sleep(FINISH_AGAIN);
                let _ = worker.too_late.run_until_cancelled(pause).await;
            }
            Some(Err(error)) => {
                tracing::error!(%error, %id, subscription = %worker.subscription, "cannot finish a garbage hook; it runs again after the lease");
                return;
            }
        }
    }
}
