//! Operations of gateways, which hand out deliveries over HTTP: the lease of a pulled delivery, and the key of its token.
//!
//! The end of such a lease is in Redis, as the delivery count of the entry. So no process renews it, any gateway can extend
//! it, and it outlives the gateway that began it.

use std::time::Duration;

use crate::broker::reply::{command, or_empty};
use crate::broker::{Broker, BrokerError, MAX_BATCH, TopicHandle};
use crate::keys::RegistryKeys;
use crate::message::{EntryId, MessageId};
use crate::scripts::{AckLate, Hidden, Hide, LateAck, TakeParked, TakenParked};
use crate::time::{UnixMs, millis};
use crate::topic::{Group, Shard};

/// The consumer that holds deliveries with a lease that is shorter than the topic's, so that they can be listed without
/// those of other consumers.
pub const SHORT_LEASES: &str = "short-leases";
/// The suffix of the names of consumers that hold deliveries with a lease of their own and read nothing. A manager touches these
/// deliveries on behalf of their holder, so that must not have the name of a reader: the reader would count as present.
const HOLDS: &str = "-leases";

/// Returns the name of the process that granted a lease, or read a delivery, from that of the consumer that holds it.
pub(super) fn granted_by(holder: &str) -> &str {
    match holder {
        SHORT_LEASES => holder,
        _ => holder.strip_suffix(HOLDS).unwrap_or(holder),
    }
}

/// The result of [`Broker::lease`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Leased {
    /// The deliveries that have the lease. The others were reclaimed or settled.
    pub held: Vec<EntryId>,
    /// The end of the lease.
    pub until: UnixMs,
}

impl Broker {
    /// Sets a lease of their own for deliveries in flight, from now on, regardless of their holder. At its end they are charged
    /// an attempt.
    ///
    /// From now on, the consumer `<consumer>-leases` holds them, unless the lease is shorter than the topic's: then
    /// [`SHORT_LEASES`] does.
    ///
    /// # Errors
    /// [`BrokerError`]; some may already have the lease. Calling again is safe.
    pub async fn lease(
        &self,
        topic: &TopicHandle,
        shard: Shard,
        group: &Group,
        consumer: &str,
        entries: &[EntryId],
        lease: Duration,
    ) -> Result<Leased, BrokerError> {
        let keys = topic.group_keys(shard, group)?;
        let until = self.now_at(topic, shard).plus(lease);
        let missing = topic.settings().lease.saturating_sub(lease);
        let is_short = !missing.is_zero();
        let holder = match is_short {
            true => SHORT_LEASES.to_owned(),
            false => format!("{consumer}{HOLDS}"),
        };
        let mut held = Vec::with_capacity(entries.len());
        for chunk in entries.chunks(MAX_BATCH) {
            let entries: Vec<String> = chunk.iter().map(EntryId::to_string).collect();
            let claim = command("XCLAIM", &keys.group.ready)
                .arg(&[group.as_str(), &holder, "0"])
                .arg(entries);
            let claim = claim.arg("IDLE").arg(millis(missing));
            let claim = claim.arg("RETRYCOUNT").arg(until.get()).arg("JUSTID");
            let claimed: Vec<EntryId> = or_empty(self.ask(claim).await)?;
            held.extend(claimed);
        }
        if is_short && !held.is_empty() {
            // A hint for the manager, which does not look for expired leases while nothing is in flight.
            let wake = command("SPUBLISH", &keys.shard.wake).arg(until.get());
            let _: u64 = self.ask(wake).await?;
        }
        Ok(Leased { held, until })
    }

    /// Delivers parked messages to the consumer that has just read `items`, deliveries of the same ordering keys: up to `most`
    /// deliveries in all and `each` for a key, in its order. Those of the first key come first, so the last of `items` may find no
    /// place: they are ready again. The messages behind stay parked until all that the consumer has of their key are settled.
    ///
    /// Delivers none while other messages of the group are ready, while a limit or a pause decides what is delivered, or if a
    /// delivery is no longer held.
    ///
    /// # Errors
    /// [`BrokerError`]; the messages may have been delivered, and come again after the lease of the topic.
    #[expect(
        clippy::too_many_arguments,
        reason = "a shard and group, a consumer and its deliveries, and how many"
    )]
    pub async fn take_parked(
        &self,
        topic: &TopicHandle,
        shard: Shard,
        group: &Group,
        consumer: &str,
        items: &[(MessageId, EntryId)],
        most: usize,
        each: usize,
    ) -> Result<TakenParked, BrokerError> {
        let call = TakeParked {
            consumer,
            most,
            each,
            items,
        };
        self.general(topic, shard, Some(group), &call).await
    }

    /// Acknowledges a message whose delivery has ended without its consumer, unless the group has delivered it again since.
    ///
    /// Does nothing to a message whose id a caller chose: it can be the id of another message by now.
    ///
    /// # Errors
    /// [`BrokerError`]. Calling again is safe.
    pub async fn ack_late(
        &self,
        topic: &TopicHandle,
        shard: Shard,
        group: &Group,
        id: &MessageId,
    ) -> Result<LateAck, BrokerError> {
        self.general(topic, shard, Some(group), &AckLate { id })
            .await
    }

    /// Postpones a message whose delivery has ended without its consumer, unless the group has delivered it again since. Without a
    /// delay, it need not wait for its next attempt any longer.
    ///
    /// Does nothing to a message whose id a caller chose: it can be the id of another message by now.
    ///
    /// # Errors
    /// [`BrokerError`]. Calling again is safe.
    pub async fn hide(
        &self,
        topic: &TopicHandle,
        shard: Shard,
        group: &Group,
        id: &MessageId,
        delay: Duration,
    ) -> Result<Hidden, BrokerError> {
        self.general(topic, shard, Some(group), &Hide { id, delay })
            .await
    }

    /// Returns the key that signs the tokens of deliveries. The first call of a namespace stores `proposed`, and all others
    /// return that one.
    ///
    /// # Errors
    /// [`BrokerError`].
    pub async fn token_key(&self, proposed: &str) -> Result<String, BrokerError> {
        let key = RegistryKeys::new(&self.inner.namespace).token_key;
        let set = command("SET", &key).arg(&[proposed, "NX", "GET"]);
        let stored: Option<String> = self.ask(set).await?;
        Ok(stored.unwrap_or_else(|| proposed.to_owned()))
    }
}
