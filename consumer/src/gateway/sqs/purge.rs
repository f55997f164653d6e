//! `PurgeQueue` and `StartMessageMoveTask`: long operations, which go on after the answer.
//!
//! Each handles batches until nothing is left, and stops between batches at a shutdown. Repeating the call handles the rest.

use std::sync::Arc;
use std::time::Duration;

use axum::response::Response;
use futures_util::future::join_all;
use lisa_core::broker::{Broker, BrokerError, MAX_BATCH, TopicHandle};
use lisa_core::message::MessageId;
use lisa_core::state::{CancelOutcome, State};
use lisa_core::time::UnixMs;
use lisa_core::topic::Topic;
use serde::Deserialize;
use serde_json::json;

use super::protocol::{Kind, SqsError, ok};
use super::{Call, Service};
use crate::gateway::pull::{PullOptions, take};
use crate::gateway::settle::settle_all;
use crate::handler::Outcome;

/// Messages read per call.
const PAGE: usize = 1000;
/// Cancels at a time.
const AT_A_TIME: usize = 16;
/// Passes of a purge: messages change their state while it runs.
const PASSES: usize = 5;
/// The maximum lag of the estimate of Redis's clock.
const SLACK: Duration = Duration::from_millis(100);
/// The lease of messages that a purge takes.
const LEASE: Duration = Duration::from_secs(30);

/// A long operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Verb {
    Purge,
    Requeue,
}

/// The mark that an operation runs. Dropping it removes the mark.
struct Running {
    service: Arc<Service>,
    operation: (Verb, Topic),
}

impl Running {
    fn begin(service: &Arc<Service>, verb: Verb, topic: &Topic) -> Result<Self, SqsError> {
        let operation = (verb, topic.clone());
        if !service.running.lock().insert(operation.clone()) {
            return Err(match verb {
                Verb::Purge => {
                    let message = "Only one PurgeQueue operation on a queue is allowed at a time.";
                    SqsError::new(Kind::PurgeQueueInProgress, message)
                }
                Verb::Requeue => {
                    let message = "There is already a task running. Only one active task is allowed for a source queue.";
                    SqsError::unsupported(message)
                }
            });
        }
        let service = service.clone();
        Ok(Self { service, operation })
    }

    /// Runs the operation until its end, or the shutdown.
    fn start(self, topic: Arc<TopicHandle>) {
        let tasks = self.service.gateway.tasks().clone();
        tasks.spawn(async move {
            let (verb, name) = &self.operation;
            let draining = self.service.gateway.shutdown().draining();
            let run = async {
                match verb {
                    Verb::Purge => purge_all(&self.service, &topic).await,
                    Verb::Requeue => requeue_all(&self.service, &topic).await,
                }
            };
            match draining.run_until_cancelled(run).await {
                Some(Ok(count)) => tracing::info!(topic = %name, count, ?verb, "finished for an SQS client"),
                Some(Err(error)) => {
                    tracing::error!(topic = %name, %error, ?verb, "failed for an SQS client; call it again");
                }
                None => tracing::warn!(topic = %name, ?verb, "stopped by the shutdown; call it again"),
            }
        });
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        self.service.running.lock().remove(&self.operation);
    }
}

/// The parameters of `PurgeQueue`.
#[derive(Deserialize)]
#[serde(rename_all = "PascalCase")]
pub(super) struct Purge {
    queue_url: Option<String>,
}

pub(super) async fn purge(call: &Call<'_>, request: Purge) -> Result<Response, SqsError> {
    let queue = call.queue(request.queue_url.as_deref()).await?;
    let running = Running::begin(call.service, Verb::Purge, queue.topic.name())?;
    running.start(queue.topic);
    Ok(ok(&json!({})))
}

/// The parameters of `StartMessageMoveTask`.
#[derive(Deserialize)]
#[serde(rename_all = "PascalCase")]
pub(super) struct StartMove {
    source_arn: Option<String>,
    destination_arn: Option<String>,
    max_number_of_messages_per_second: Option<i64>,
}

pub(super) async fn start_move(call: &Call<'_>, request: StartMove) -> Result<Response, SqsError> {
    let source = request
        .source_arn
        .ok_or_else(|| SqsError::missing("SourceArn"))?;
    if request
        .destination_arn
        .is_some_and(|destination| destination != source)
    {
        let message = "The garbage (dead letters) of a topic can only be requeued in that topic: leave out DestinationArn.";
        return Err(SqsError::unsupported(message));
    }
    if request.max_number_of_messages_per_second.is_some() {
        let message = "MaxNumberOfMessagesPerSecond is not supported: set `rate` of the topic.";
        return Err(SqsError::unsupported(message));
    }
    let name = source.rsplit(':').next().unwrap_or_default();
    let queue = call.named(name).await.map_err(|error| match error.kind {
        Kind::QueueDoesNotExist => SqsError::new(Kind::ResourceNotFoundException, error.message),
        _ => error,
    })?;
    let running = Running::begin(call.service, Verb::Requeue, queue.topic.name())?;
    running.start(queue.topic);
    Ok(ok(&json!({ "TaskHandle": MessageId::generate() })))
}

/// Ends all messages that are not in flight and not in garbage. Returns their number.
async fn purge_all(service: &Arc<Service>, topic: &TopicHandle) -> Result<u64, BrokerError> {
    let broker = &service.gateway.process().broker;
    let newest = broker.now().plus(SLACK);
    let mut count = 0;
    for _ in 0..PASSES {
        let mut done = 0;
        for state in [State::Waiting, State::Retry, State::Parked, State::Backlog] {
            done += cancel_all(service, topic, state, newest).await?;
        }
        done += take_all(service, topic, newest).await;
        count += done;
        if done == 0 {
            break;
        }
    }
    Ok(count)
}

/// Cancels the messages in a state that were sent before a time, as far as their ids show it.
async fn cancel_all(
    service: &Arc<Service>,
    topic: &TopicHandle,
    state: State,
    newest: UnixMs,
) -> Result<u64, BrokerError> {
    let (broker, group): (&Broker, _) = (&service.gateway.process().broker, &service.options.group);
    let (mut cursor, mut count): (Option<String>, u64) = (None, 0);
    loop {
        let page = broker
            .list(topic, group, state, cursor.as_deref(), PAGE)
            .await?;
        let ids = page.items.into_iter().map(|message| message.id);
        let ids: Vec<_> = ids.filter(|id| is_before(id, newest)).collect();
        let mut done = 0;
        for ids in ids.chunks(AT_A_TIME) {
            let cancels = ids.iter().map(|id| broker.cancel(topic, id, None));
            for outcome in join_all(cancels).await {
                done += u64::from(matches!(outcome?, CancelOutcome::Cancelled { .. }));
            }
        }
        count += done;
        // Cancelled messages have left the list, so the same cursor shows the messages after them.
        if done == 0 {
            match page.next {
                Some(next) => cursor = Some(next),
                None => return Ok(count),
            }
        }
    }
}

/// Returns false if a message was certainly sent after a time.
fn is_before(id: &MessageId, newest: UnixMs) -> bool {
    id.generated_at().is_none_or(|sent| sent <= newest)
}

/// Takes the messages that are ready, and acknowledges them. Stops at a message that was sent after a time.
async fn take_all(service: &Arc<Service>, topic: &TopicHandle, newest: UnixMs) -> u64 {
    let (gateway, group) = (&service.gateway, &service.options.group);
    let options = PullOptions {
        max: MAX_BATCH,
        wait: Duration::ZERO,
        lease: Some(LEASE),
        consumer: None,
    };
    let mut count = 0;
    loop {
        let mut taken = match take(gateway, topic, group, &options).await {
            Ok(Some(taken)) => taken,
            Ok(None) => return count,
            Err(problem) => {
                tracing::warn!(topic = %topic.name(), error = problem.detail(), "cannot purge ready messages");
                return count;
            }
        };
        taken.handed.delivered();
        let claims = taken.pulled.iter();
        let claims = claims.flat_map(|pulled| gateway.open(&pulled.token));
        let (old, new): (Vec<_>, Vec<_>) = claims.partition(|claims| is_before(&claims.id, newest));
        let is_last = !new.is_empty();
        let old = old.into_iter().map(|claims| (claims, Outcome::Ack));
        let new = new
            .into_iter()
            .map(|claims| (claims, Outcome::defer(Duration::ZERO)));
        let all = old.chain(new).map(Ok).collect();
        for ended in settle_all(gateway, all).await {
            count += u64::from(ended.is_ok_and(|ended| ended.outcome == "acked"));
        }
        if is_last {
            return count;
        }
    }
}

/// Requeues everything that is in garbage now. Returns the number of messages.
async fn requeue_all(service: &Arc<Service>, topic: &TopicHandle) -> Result<u64, BrokerError> {
    let (broker, group) = (&service.gateway.process().broker, &service.options.group);
    let newest = broker.now().plus(SLACK);
    let (mut cursor, mut count): (Option<String>, u64) = (None, 0);
    loop {
        let page = broker
            .list(topic, group, State::Garbage, cursor.as_deref(), PAGE)
            .await?;
        let seen: Vec<_> = page
            .items
            .into_iter()
            .filter_map(|message| Some((message.id, message.time?)))
            .filter(|(_, since)| *since <= newest)
            .collect();
        let done = broker.requeue(topic, group, &seen).await?;
        count += done;
        // Requeued messages have left garbage, so the same cursor shows the messages after them.
        if done == 0 {
            match page.next {
                Some(next) => cursor = Some(next),
                None => return Ok(count),
            }
        }
    }
}
