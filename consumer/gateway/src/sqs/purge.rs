//! `PurgeQueue`, which may continue after its response.
//!
//! It handles batches until nothing is left, and stops between batches at a shutdown. Repeating the call handles the rest. A
//! purge of a FIFO queue also forgets the deduplication ids of messages that have ended.

use std::sync::Arc;
use std::time::Duration;

use axum::response::Response;
use futures_util::future::join_all;
use lisa_consumer_core::Outcome;
use lisa_core::broker::{BrokerError, MAX_BATCH, Settlement, TopicHandle, Verdict, unless_gone};
use lisa_core::message::MessageId;
use lisa_core::state::{CancelOutcome, Settled, State};
use lisa_core::time::UnixMs;
use serde::Deserialize;
use serde_json::json;
use tokio::sync::oneshot;
use tokio::time::Instant;

use super::protocol::{Kind, SqsError, ok};
use super::running::{Running, Verb};
use super::{Call, Service};
use crate::pull::{PullOptions, take};
use crate::settle::settle_all;

/// Messages read per call.
const PAGE: usize = 1000;
/// Cancels at a time.
const AT_A_TIME: usize = 16;
/// Passes of a purge: messages change their state while it runs.
const PASSES: usize = 5;
/// The time after which a purge is answered although it continues. The clients' own time limits are 30 s and more.
const ANSWER_AFTER: Duration = Duration::from_secs(10);
/// The time between two purges of a queue.
const EVERY: Duration = Duration::from_secs(60);
/// The tolerance for the estimate of Redis's clock.
const SLACK: Duration = Duration::from_secs(1);
/// The lease of messages that a purge takes.
const LEASE: Duration = Duration::from_secs(30);

/// The parameters of `PurgeQueue`.
#[derive(Deserialize)]
#[serde(rename_all = "PascalCase")]
pub(super) struct Purge {
    queue_url: Option<String>,
}

/// Purges a queue. Answers once everything that was sent before the answer has ended, or after [`ANSWER_AFTER`].
pub(super) async fn purge(call: &Call<'_>, request: Purge) -> Result<Response, SqsError> {
    let queue = call.queue(request.queue_url.as_deref()).await?;
    let running = Running::begin(call, Verb::Purge, &queue.name, queue.topic.name())?;
    let broker = &call.gateway().process().broker;
    match broker.begin_purge(&queue.topic, EVERY).await {
        Ok(true) => {}
        Ok(false) => return Err(SqsError::purged(&queue.name)),
        Err(error) => return Err(call.gateway().problem(error).into()),
    }
    let (answer, may_answer) = oneshot::channel();
    let purging = Purging {
        service: call.service.clone(),
        topic: queue.topic.clone(),
        forgets_ids: queue.is_fifo(),
        extent: Extent {
            begun: broker.now(),
            answer: Some((Instant::now() + ANSWER_AFTER, answer)),
            answered: broker.now(),
        },
    };
    let ended = running.start(call, purging.run());
    let result = tokio::select! {
        biased;
        ended = ended => ended.unwrap_or_else(|_| {
            let message = "The purge ended early; call it again.";
            Err(SqsError::new(Kind::ServiceUnavailable, message))
        }),
        Ok(()) = may_answer => Ok(()),
    };
    if result.is_err()
        && let Err(error) = broker.allow_purge(&queue.topic).await
    {
        tracing::debug!(%error, "cannot remove the note of a failed purge; the queue can be purged again after a minute");
    }
    result.map(|()| ok(&json!({})))
}

fn shown(error: BrokerError) -> String {
    error.to_string()
}

/// A purge.
struct Purging {
    service: Arc<Service>,
    topic: Arc<TopicHandle>,
    /// True to forget deduplication ids.
    forgets_ids: bool,
    extent: Extent,
}

/// The messages that a purge ends. Until its client is answered, these are all that it finds; after that, only those whose ids
/// show that they were sent before it began. So nothing that is sent after the answer ends, unless the clock of its sender is
/// as late as [`ANSWER_AFTER`].
struct Extent {
    begun: UnixMs,
    /// The time at which the client is answered at the latest; `None` if it is answered.
    answer: Option<(Instant, oneshot::Sender<()>)>,
    /// The time at which it was answered, if it is.
    answered: UnixMs,
}

impl Extent {
    /// Answers the client if it has waited long enough. Called before messages are read, so that messages read before the
    /// answer may end after it.
    fn answer_in_time(&mut self, now: UnixMs) {
        if let Some((_, answer)) = self.answer.take_if(|(at, _)| *at <= Instant::now()) {
            self.answered = now;
            // The client may be gone.
            let _ = answer.send(());
        }
    }

    /// Returns true if the purge ends a message that was read since the last [`Self::answer_in_time`].
    fn includes(&self, id: &MessageId) -> bool {
        self.answer.is_some() || id.generated_at().is_some_and(|sent| sent < self.begun)
    }
}

impl Purging {
    /// Ends all messages that are not in garbage. Returns their number.
    async fn run(mut self) -> Result<u64, String> {
        let mut count = 0;
        for _ in 0..PASSES {
            let mut done = 0;
            // Messages move in about this order.
            for state in [State::Waiting, State::Retry, State::Parked, State::Backlog] {
                done += self.cancel_all(state).await.map_err(shown)?;
            }
            done += self.take_all().await?;
            done += self.end_in_flight().await.map_err(shown)?;
            count += done;
            if done == 0 {
                break;
            }
        }
        if self.forgets_ids {
            self.forget_ids().await.map_err(shown)?;
        }
        Ok(count)
    }

    /// Forgets the ids of messages that ended before the answer.
    async fn forget_ids(&mut self) -> Result<(), BrokerError> {
        let service = self.service.clone();
        let broker = &service.gateway.process().broker;
        let mut shards = broker.all_shards(&self.topic);
        while let Some((topic, shard)) = shards.next().await? {
            let mut most = u64::MAX;
            while most > 0 {
                self.extent.answer_in_time(broker.now());
                let before = match self.extent.answer {
                    Some(_) => broker.now_at(&topic, shard).plus(SLACK),
                    None => self.extent.answered,
                };
                let forgotten = broker.forget_before(&topic, shard, before).await;
                let Some(forgotten) = unless_gone(forgotten)? else {
                    break;
                };
                // Messages that end in the meantime must not keep it busy.
                most = forgotten.left.min(most - forgotten.dropped.min(most));
            }
        }
        Ok(())
    }

    /// Cancels the messages in a state.
    async fn cancel_all(&mut self, state: State) -> Result<u64, BrokerError> {
        let service = self.service.clone();
        let (broker, group) = (&service.gateway.process().broker, &service.options.group);
        let (mut cursor, mut count): (Option<String>, u64) = (None, 0);
        loop {
            self.extent.answer_in_time(broker.now());
            let page = broker
                .list(&self.topic, group, state, cursor.as_deref(), PAGE)
                .await?;
            let ids = page.items.into_iter().map(|message| message.id);
            let ids: Vec<_> = ids.filter(|id| self.extent.includes(id)).collect();
            let mut done = 0;
            for ids in ids.chunks(AT_A_TIME) {
                let cancels = ids.iter().map(|id| broker.cancel(&self.topic, id, None));
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

    /// Takes the messages that are ready, and acknowledges them. Stops at a message that the purge does not include.
    async fn take_all(&mut self) -> Result<u64, String> {
        let service = self.service.clone();
        let (gateway, group) = (&service.gateway, &service.options.group);
        let broker = &gateway.process().broker;
        let options = PullOptions {
            max: MAX_BATCH,
            max_per_key: 1,
            max_keys: None,
            wait: Duration::ZERO,
            lease: Some(LEASE),
            consumer: None,
        };
        let mut count = 0;
        loop {
            self.extent.answer_in_time(broker.now());
            let mut taken = match take(gateway, &self.topic, group, &options).await {
                Ok(Some(taken)) => taken,
                Ok(None) => return Ok(count),
                Err(problem) => return Err(problem.detail().to_owned()),
            };
            taken.handed.delivered();
            let claims = taken.pulled.iter();
            let claims = claims.flat_map(|pulled| gateway.open(&pulled.token));
            let (old, new): (Vec<_>, Vec<_>) =
                claims.partition(|claims| self.extent.includes(&claims.id));
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
                return Ok(count);
            }
        }
    }

    /// Acknowledges the messages that are in flight, with any consumer.
    async fn end_in_flight(&mut self) -> Result<u64, BrokerError> {
        let service = self.service.clone();
        let (broker, group) = (&service.gateway.process().broker, &service.options.group);
        let mut count = 0;
        let mut shards = broker.all_shards(&self.topic);
        while let Some((topic, shard)) = shards.next().await? {
            let mut after = None;
            loop {
                self.extent.answer_in_time(broker.now());
                let held = broker
                    .in_flight_after(&topic, shard, group, after, MAX_BATCH)
                    .await?;
                let Some((last, _)) = held.last() else { break };
                after = Some(*last);
                let held = held
                    .into_iter()
                    .filter_map(|(entry, id)| Some((entry, id?)));
                let acks = held.filter(|(_, id)| self.extent.includes(id));
                let acks: Vec<_> = acks
                    .map(|(entry, id)| Settlement {
                        entry,
                        id,
                        // It may be one, so its end is remembered.
                        caller_id: true,
                        max_attempts: u32::MAX,
                        verdict: Verdict::Ack,
                    })
                    .collect();
                let settled = broker.settle(&topic, shard, group, &acks).await?;
                let acked = settled.iter().filter(|settled| **settled == Settled::Acked);
                count += acked.count() as u64;
            }
        }
        Ok(count)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn after_its_answer_a_purge_ends_only_what_was_certainly_sent_before_it() {
        let (sender, mut answered) = oneshot::channel();
        let (new, own) = (MessageId::generate(), "order-7".parse().unwrap());
        let sent = new.generated_at().unwrap();
        let mut extent = Extent {
            begun: sent,
            answer: Some((Instant::now() + ANSWER_AFTER, sender)),
            answered: UnixMs::new(0),
        };
        extent.answer_in_time(sent);
        assert!(extent.includes(&new) && extent.includes(&own));
        assert!(answered.try_recv().is_err());
        extent.answer.as_mut().unwrap().0 = Instant::now();
        extent.answer_in_time(sent);
        assert_eq!((answered.try_recv(), extent.answered), (Ok(()), sent));
        assert!(!extent.includes(&new) && !extent.includes(&own));
        extent.begun = sent.plus(Duration::from_millis(1));
        assert!(extent.includes(&new) && !extent.includes(&own));
    }
}
