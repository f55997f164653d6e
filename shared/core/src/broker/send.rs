//! Stores messages, in the fastest script that suits them.

use std::collections::HashSet;
use std::time::Duration;

use tokio::time::{Instant, sleep_until};

use super::execute::{Repeat, Tries};
use super::reply::command;
use super::{
    Broker, BrokerError, DEFAULT_MAX_READY, MAX_GENERAL_HOT_BATCH, MAX_MERGING_BATCH,
    MAX_REPLACING_BATCH, MAX_SEND_BATCH, TopicHandle,
};
use crate::keys::GroupView;
use crate::message::{MessageId, PreparedMessage};
use crate::redis::{ConnectionError, ConnectionErrorKind};
use crate::scripts::{Refusal, SendPlain, SendScript, Tombstones};
use crate::state::Accepted;
use crate::time::millis;
use crate::topic::Shard;

/// The time from the start of a send for which Redis need not look up its generated ids. It covers the transit to Redis.
const FRESH_FOR: Duration = Duration::from_millis(250);

impl Broker {
    /// Stores messages; due ones go straight to the stream. Returns one outcome per message, in order. All must have the
    /// same durability, which the call waits for.
    ///
    /// Redeclares a topic that was wiped, with the settings known to this process.
    ///
    /// # Errors
    /// [`BrokerError`]; nothing of the batch is stored unless [`BrokerError::maybe_applied`] returns true.
    ///
    /// # Panics
    /// If there are more than [`MAX_SEND_BATCH`] messages; in debug builds, also if an id occurs twice or the durabilities
    /// differ. Either is a bug of the caller.
    pub async fn send(
        &self,
        topic: &TopicHandle,
        shard: Shard,
        messages: &[PreparedMessage],
    ) -> Result<Vec<Accepted>, BrokerError> {
        assert!(
            messages.len() <= MAX_SEND_BATCH,
            "a send of {} messages",
            messages.len()
        );
        debug_assert!(
            messages
                .iter()
                .map(|m| &m.id)
                .collect::<std::collections::BTreeSet<_>>()
                .len()
                == messages.len(),
            "duplicate id in one send"
        );
        let Some(first) = messages.first() else {
            return Ok(Vec::new());
        };
        debug_assert!(
            messages.iter().all(|m| m.durability == first.durability),
            "different durabilities in one send"
        );
        let is_known = |message: &&PreparedMessage| !message.new_id.take();
        // Does not stop at the first one: each message must lose its mark, since it is not new in another call.
        let are_new = messages.iter().filter(is_known).count() == 0;
        let limit = topic.settings().durability_timeout;
        let waiting = self.with_durability(first.durability, limit).await?;
        let handle = self.topic(topic.name()).await?;
        let mut answers = vec![None; messages.len()];
        if !handle.is_resharding() && handle.has(shard) {
            answers = waiting.send_to(&handle, shard, messages, are_new).await?;
        }
        if answers.iter().any(Option::is_none) {
            waiting
                .send_around(topic.name(), messages, &mut answers)
                .await?;
        }
        waiting.confirm_durability(answers.into_iter().flatten().collect())
    }

    /// Sends to one shard. Returns `None` for messages that a retiring shard does not know, and for all of them if the
    /// shard is gone.
    pub(super) async fn send_to(
        &self,
        topic: &TopicHandle,
        shard: Shard,
        messages: &[PreparedMessage],
        mut are_new: bool,
    ) -> Result<Vec<Option<Accepted>>, BrokerError> {
        let is_plain = messages.iter().all(|message| message.options.is_plain());
        // Read once: a later cancellation stands, however often the call is repeated.
        let again = self.cancelled_before(topic, shard, messages).await?;
        let mut tries = Tries::new(topic);
        loop {
            let handle = self.topic(topic.name()).await?;
            if !handle.has(shard) {
                return Ok(vec![None; messages.len()]);
            }
            let wants_plain = is_plain && !handle.needs_general(shard);
            let only = handle.keys(shard)?.only_group().filter(|_| wants_plain);
            let needs_general = only.is_none();
            let sent = match only {
                Some(keys) => {
                    let dedup = handle.settings().dedup_window;
                    let are_new = std::mem::take(&mut are_new);
                    self.send_plain(keys, dedup, messages, &again, are_new)
                        .await?
                }
                None => self.send_general(&handle, shard, messages, &again).await?,
            };
            let refusal = match sent {
                Ok(accepted) => return Ok(accepted),
                Err(refusal) => refusal,
            };
            if refusal == Refusal::Class {
                handle.set_needs_general(shard, !needs_general);
            }
            match self.recover(&mut tries, &handle, shard, refusal).await {
                Err(BrokerError::ShardGone { .. }) => return Ok(vec![None; messages.len()]),
                recovered => recovered?,
            }
        }
    }

    /// Looks up the tombstones of messages that are sent even if one of the same id was cancelled.
    ///
    /// Skips messages that another message of the batch replaces: a repeat would undo the replacement.
    async fn cancelled_before(
        &self,
        topic: &TopicHandle,
        shard: Shard,
        messages: &[PreparedMessage],
    ) -> Result<Tombstones, BrokerError> {
        let asking = messages.iter().filter(|m| m.options.even_if_cancelled);
        let mut ids: Vec<&MessageId> = asking.map(|message| &message.id).collect();
        if !ids.is_empty() {
            let replaced: HashSet<_> = messages
                .iter()
                .filter_map(|m| m.options.replace.as_ref())
                .collect();
            ids.retain(|id| !replaced.contains(id));
        }
        if ids.is_empty() {
            return Ok(Tombstones::new());
        }
        let tomb = &topic.keys(shard)?.tomb;
        let asking = command("ZMSCORE", tomb).ids(ids.iter().copied());
        let scores: Vec<Option<f64>> = self.ask(asking).await.map_err(|error| match error {
            // Nothing has been sent yet.
            BrokerError::Connection(error) => BrokerError::Connection(ConnectionError {
                maybe_applied: false,
                ..error
            }),
            other => other,
        })?;
        let known = ids.into_iter().zip(scores);
        let known = known.filter_map(|(id, score)| Some((id.clone(), score? as u64)));
        Ok(known.collect())
    }

    /// Sends with the plain script, to a topic that uses no features. If all ids are new, Redis looks up none.
    async fn send_plain(
        &self,
        keys: GroupView<'_>,
        dedup: Duration,
        messages: &[PreparedMessage],
        again: &Tombstones,
        are_new: bool,
    ) -> Result<Result<Vec<Option<Accepted>>, Refusal>, BrokerError> {
        let mut call = SendPlain {
            now: self.virtual_now(),
            group: &keys.group.name,
            dedup,
            messages,
            again,
            fresh: 0,
        };
        // The connection itself repeats a call that waits for a durability.
        let sent = if are_new && self.wait.is_none() {
            let started = Instant::now();
            let call_timeout = self.inner.call_timeout;
            let fresh_for = FRESH_FOR.min(call_timeout / 4);
            let now = match self.virtual_now() {
                0 => self.inner.connection.at(&keys.shard.conf).clock().now_ms(),
                now => now,
            };
            call.fresh = now + millis(fresh_for);
            let sent = self
                .run_within(call_timeout, Repeat::Unsafe, &keys, &call)
                .await;
            match sent {
                Err(BrokerError::Connection(error))
                    if error.maybe_applied && error.kind == ConnectionErrorKind::Unavailable =>
                {
                    // Redis may still receive the first call. If that runs after its repeat, it must look up the ids, so
                    // `fresh` must be over. The second half of the pause covers an error in the estimate of Redis's clock.
                    sleep_until(started + 2 * fresh_for).await;
                    call.fresh = 0;
                    let rest = call_timeout.saturating_sub(started.elapsed());
                    if rest.is_zero() {
                        return Err(BrokerError::Connection(error));
                    }
                    let repeated = self.run_within(rest, Repeat::Safe, &keys, &call).await;
                    repeated.map_err(BrokerError::of_repeat)
                }
                sent => sent,
            }
        } else {
            self.run(&keys, &call).await
        };
        Ok(sent?.map(|accepted| accepted.into_iter().map(Some).collect()))
    }

    /// Sends with the general script, to a topic that uses features. Splits a longer batch into parts.
    async fn send_general(
        &self,
        handle: &TopicHandle,
        shard: Shard,
        messages: &[PreparedMessage],
        again: &Tombstones,
    ) -> Result<Result<Vec<Option<Accepted>>, Refusal>, BrokerError> {
        let most = messages.iter().map(|message| match &message.options {
            options if options.replace.is_some() => MAX_REPLACING_BATCH,
            options if options.merge_key.is_some() => MAX_MERGING_BATCH,
            _ => MAX_GENERAL_HOT_BATCH,
        });
        let most = most.min().unwrap_or(MAX_GENERAL_HOT_BATCH);
        let is_batch_plain = messages.iter().all(|message| message.options.is_plain());
        let mut accepted = Vec::with_capacity(messages.len());
        for messages in messages.chunks(most) {
            let call = SendScript {
                default_max_ready: handle.settings().per_shard(DEFAULT_MAX_READY),
                dedup: handle.settings().dedup_window,
                messages,
                again,
            };
            let is_first = accepted.is_empty();
            let mut sent = self.general_once(handle, shard, None, &call).await;
            let is_plain = messages.iter().all(|message| message.options.is_plain());
            let is_part = !is_first || !is_batch_plain;
            if is_part
                && is_plain
                && matches!(sent, Ok(Err(Refusal::Class)))
                && let Some(keys) = handle.keys(shard)?.only_group()
            {
                // The shard uses no features yet, or no longer does, and neither does this part. A batch that uses none
                // is resent as a whole.
                let dedup = handle.settings().dedup_window;
                sent = self.send_plain(keys, dedup, messages, again, false).await;
            }
            match sent {
                Ok(Ok(part)) => accepted.extend(part),
                Ok(Err(refusal)) if is_first => return Ok(Err(refusal)),
                Ok(Err(_)) => {
                    let error = BrokerError::Changing(handle.name().clone());
                    return Err(BrokerError::Partly(error.into()));
                }
                Err(error) if is_first => return Err(error),
                Err(error) => return Err(BrokerError::Partly(error.into())),
            }
        }
        handle.set_needs_general(shard, true);
        Ok(Ok(accepted))
    }
}
