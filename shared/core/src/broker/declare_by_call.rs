//! Declares topics by call: within the quota of the caller, and at most [`MAX_TOPICS`] in all.
//!
//! A topic is written where its shards are, and listed in the registry afterwards. So a call first claims the limits of the topic in the
//! registry, and then sums up the topics and the claims before its own. Its claim counts until the topic is listed.

use std::collections::BTreeMap;
use std::panic::resume_unwind;
use std::sync::Arc;
use std::time::Duration;

use futures_util::{StreamExt, stream};
use tokio::time::{Instant, sleep};
use tracing::Instrument as _;

use crate::broker::registry::Entry;
use crate::broker::reply::command;
use crate::broker::{Broker, BrokerError, CONCURRENT_READS, Declare, TopicHandle};
use crate::message::MessageId;
use crate::scripts::{ClaimTopic, TopicClaim};
use crate::task;
use crate::topic::{Counted, Extent, MAX_TOPICS, Topic, TopicQuota, TopicQuotaUse, TopicSettings};

/// The largest number of claims at a time: each is of a call that is being answered.
const MAX_CLAIMS: usize = 1000;
/// The age from which a claim counts as that of a process that has stopped: much longer than its call can take.
const CLAIM_LASTS: Duration = Duration::from_secs(60);
/// The bytes of a tombstone in `max_bytes`, twice for that of a merged id, as in the send script.
pub(super) const TOMB_BYTES: u64 = 128;
/// The tries of a call while claims of earlier calls use up its quota, or while its topic is being changed.
const TRIES: u32 = 20;
/// The pause after a try, multiplied by the number of tries so far.
const PAUSE: Duration = Duration::from_millis(5);

/// A claim that is noted in the registry.
#[derive(Debug, PartialEq, Eq)]
struct Claim {
    id: String,
    /// The claims of a lower order were noted before this one.
    order: u64,
    at_ms: u64,
    topic: Topic,
    extent: Extent,
}

impl Claim {
    fn parse(id: String, text: &str) -> Option<Self> {
        let mut parts = text.split(' ');
        let order = parts.next()?.parse().ok()?;
        let at_ms = parts.next()?.parse().ok()?;
        let topic = parts.next()?.parse().ok()?;
        let mut limit = || match parts.next()? {
            "-" => Some(None),
            number => number.parse().ok().map(Some),
        };
        let extent = Extent {
            messages: limit()?,
            bytes: limit()?,
            // A process of an older version writes none.
            streams: limit().flatten(),
        };
        Some(Self {
            id,
            order,
            at_ms,
            topic,
            extent,
        })
    }
}

/// A claim of this call.
struct OwnClaim {
    id: MessageId,
    order: u64,
}

/// The part of each topic that is counted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Count {
    /// Its limits, which are known.
    Limits,
    /// Also what it holds, which its shards know.
    Content,
}

/// The topics that count against a quota, beside one that is being changed.
struct Others {
    counted: Vec<Counted>,
    /// True if some are only claimed so far.
    has_claims: bool,
}

/// The declaration of a topic by call.
struct ByCall {
    broker: Broker,
    topic: Topic,
    settings: TopicSettings,
    mode: Declare,
    quota: Option<Arc<TopicQuota>>,
}

impl Broker {
    /// Declares a topic for a client, as [`Broker::declare`] does. A limit that the settings lack and the quota bounds becomes an equal part
    /// of it. If this future is dropped, the declaration continues to its end.
    ///
    /// # Errors
    /// [`BrokerError::OverQuota`]; [`BrokerError::TooManyTopics`] if the topic would be new; those of [`Broker::declare`].
    pub async fn declare_by_call(
        &self,
        topic: &Topic,
        settings: &TopicSettings,
        mode: Declare,
        quota: Option<Arc<TopicQuota>>,
    ) -> Result<Arc<TopicHandle>, BrokerError> {
        if quota.is_none() && self.known(topic).is_some() {
            return self.declare(topic, settings, mode).await;
        }
        let call = ByCall {
            broker: self.clone(),
            topic: topic.clone(),
            settings: settings.clone(),
            mode,
            quota,
        };
        // A client that disconnects must not leave a claim.
        match task::detached(call.run().in_current_span()).await {
            Ok(declared) => declared,
            Err(ended) => match ended.try_into_panic() {
                Ok(panic) => resume_unwind(panic),
                // The process stops.
                Err(_) => Err(BrokerError::Changing(topic.clone())),
            },
        }
    }

    /// Returns the claims by their ids. One that cannot be read is dropped.
    async fn topic_claims(&self) -> Result<Vec<Claim>, BrokerError> {
        let mut claims = Vec::new();
        for (id, text) in self.fields(&self.inner.registry.topic_claims).await? {
            match Claim::parse(id.clone(), &text) {
                Some(claim) => claims.push(claim),
                None => self.drop_claim(&id).await?,
            }
        }
        Ok(claims)
    }

    /// Returns the time before which a claim is that of a process that has stopped.
    fn claims_count_since(&self) -> u64 {
        let registry = self.inner.connection.at(&self.inner.registry.topic_claims);
        let lasts = u64::try_from(CLAIM_LASTS.as_millis()).unwrap_or(u64::MAX);
        registry.clock().now_ms().saturating_sub(lasts)
    }

    async fn drop_claim(&self, id: &str) -> Result<(), BrokerError> {
        let drop = command("HDEL", &self.inner.registry.topic_claims).arg(id);
        self.ask::<u64>(drop).await.map(|_| ())
    }

    /// Drops the claims of processes that have stopped. A topic that one of them has declared is listed. One that cannot be read now keeps
    /// its claim, so that a server that is down delays no calls for other topics. Returns true if any were dropped.
    async fn end_old_claims(
        &self,
        claims: &[Claim],
        registered: &BTreeMap<Topic, Entry>,
    ) -> Result<bool, BrokerError> {
        let since = self.claims_count_since();
        let mut dropped_any = false;
        for claim in claims.iter().filter(|claim| claim.at_ms < since) {
            let topic = &claim.topic;
            match self.load_within_reach(topic).await {
                Ok(Some(there)) => {
                    let listed = registered.get(topic).map(|entry| entry.epoch);
                    if listed != Some(there.epoch()) {
                        let shards = there.settings().shards;
                        self.register(topic, shards, there.epoch()).await?;
                    }
                }
                Ok(None) | Err(BrokerError::UnknownTopic(_)) => {}
                Err(error) if error.is_of_one_topic() => self.cannot_read(topic.as_str(), &error),
                Err(error) => {
                    tracing::debug!(%topic, %error, "cannot look at a claimed topic");
                    continue;
                }
            }
            self.drop_claim(&claim.id).await?;
            dropped_any = true;
        }
        Ok(dropped_any)
    }
}

impl ByCall {
    async fn run(mut self) -> Result<Arc<TopicHandle>, BrokerError> {
        for attempt in 1..=TRIES {
            if let Some(declared) = self.declare_once(attempt == TRIES).await? {
                return Ok(declared);
            }
            sleep(PAUSE * attempt).await;
        }
        Err(BrokerError::Changing(self.topic))
    }

    /// Returns `None` if the call must be tried again. On the last try, claims of others count as if their topics were declared.
    async fn declare_once(
        &mut self,
        is_last: bool,
    ) -> Result<Option<Arc<TopicHandle>>, BrokerError> {
        let before = match self.broker.load(&self.topic).await {
            Err(BrokerError::UnknownTopic(_)) => None,
            before => before?,
        };
        if let Some(before) = &before
            && before.removal().is_some()
        {
            return Err(BrokerError::BeingRemoved(self.topic.clone()));
        }
        let claim = match self.quota.clone() {
            Some(quota) => match self.claim_part(&quota, before.as_deref(), is_last).await? {
                Some(claim) => claim,
                None => return Ok(None),
            },
            None if before.is_none() => match self.claim(self.settings.extent(&[])).await? {
                Some(claim) => Some(claim),
                None => return Ok(None),
            },
            None => None,
        };
        let epoch = before.as_ref().map_or(0, |before| before.epoch());
        if let (None, Some(quota)) = (&before, &self.quota)
            && let Err(over) = self.broker.inner.creations.admit(quota, Instant::now())
        {
            if let Some(claim) = claim {
                self.drop_own(&claim).await;
            }
            let topic = self.topic.clone();
            return Err(BrokerError::OverQuota { topic, over });
        }
        let (mode, is_any) = match (self.mode, &self.quota) {
            // The part that was claimed is that of a change of these settings.
            (Declare::Update, Some(_)) => (Declare::UpdateAt(epoch), true),
            (mode, _) => (mode, false),
        };
        let declared = self.broker.declare(&self.topic, &self.settings, mode).await;
        // After any other error, the topic may be declared, or still be. Then the claim counts until it is old.
        let is_decided = matches!(
            declared,
            Ok(_)
                | Err(BrokerError::Epoch { .. }
                    | BrokerError::BeingRemoved(_)
                    | BrokerError::TooManyGroups { .. }
                    | BrokerError::Resharding { .. })
        );
        if let Some(claim) = claim
            && is_decided
        {
            self.drop_own(&claim).await;
        }
        match declared {
            Err(BrokerError::Epoch { .. }) if is_any => Ok(None),
            declared => declared.map(Some),
        }
    }

    /// Claims the topic's part of a quota, if it changes. Returns `None` if the call must be tried again.
    async fn claim_part(
        &mut self,
        quota: &TopicQuota,
        before: Option<&TopicHandle>,
        is_last: bool,
    ) -> Result<Option<Option<OwnClaim>>, BrokerError> {
        if let Some(before) = before {
            // Only a resharding changes the number.
            self.settings.shards = before.settings().shards;
        }
        quota.fill(&mut self.settings);
        let there = before.map_or(0, TopicHandle::epoch);
        if let Declare::UpdateAt(seen) = self.mode
            && seen != there
        {
            let topic = self.topic.clone();
            match before {
                // The settings are in force already, so the request is a repeated one.
                Some(before) if *before.settings() == self.settings => {
                    self.mode = Declare::UpdateAt(there);
                }
                _ => return Err(BrokerError::Epoch { topic, there }),
            }
        }
        let had = before.map_or(&[][..], |before| before.groups());
        let after = self.settings.extent(had);
        let before = before.map(|before| before.settings().extent(had));
        // A limit that is lowered counts until the new one is in force on all shards.
        let larger = before.map_or(after, |before| before.or_larger(after));
        if before == Some(after) {
            return Ok(Some(None));
        }
        let grows = quota.grows(before, after);
        let topic = self.topic.clone();
        let over_quota = |over| BrokerError::OverQuota { topic, over };
        if grows {
            // Most calls that cannot succeed claim nothing, so that they disturb no others and cost little.
            let registered = self.broker.registered().await?;
            let count = Count::Limits;
            let listed = (self.broker).counted(quota, count, Some(&self.topic), &registered, &[]);
            if let Err(over) = quota.check(before, after, &listed.await?) {
                return Err(over_quota(over));
            }
        }
        let Some(claim) = self.claim(larger).await? else {
            return Ok(None);
        };
        if !grows {
            return Ok(Some(Some(claim)));
        }
        let checked = match self.others(quota, &claim).await {
            Ok(Some(others)) => match quota.check(before, after, &others.counted) {
                Ok(()) => return Ok(Some(Some(claim))),
                // A call before this one may still fail.
                Err(_) if others.has_claims && !is_last => Ok(None),
                Err(over) => Err(over_quota(over)),
            },
            Ok(None) => Ok(None),
            Err(error) => Err(error),
        };
        self.drop_own(&claim).await;
        checked
    }

    /// Drops a claim of this call.
    async fn drop_own(&self, claim: &OwnClaim) {
        if let Err(error) = self.broker.drop_claim(claim.id.as_str()).await {
            let topic = &self.topic;
            tracing::warn!(%topic, %error, "cannot drop the claim of a topic; it counts for a minute");
        }
    }

    /// Claims limits for the topic. Returns `None` if there was no room, but a retry may find some.
    async fn claim(&self, extent: Extent) -> Result<Option<OwnClaim>, BrokerError> {
        let id = MessageId::generate();
        let call = ClaimTopic {
            id: id.as_str(),
            topic: &self.topic,
            extent,
            most: MAX_TOPICS,
            most_claims: MAX_CLAIMS,
        };
        let full = match self.broker.run_on_registry(&call).await? {
            TopicClaim::Claimed { order } => return Ok(Some(OwnClaim { id, order })),
            TopicClaim::Full => true,
            TopicClaim::Busy => false,
        };
        // Some may be of processes that have stopped.
        let registered = self.broker.registered().await?;
        let claims = self.broker.topic_claims().await?;
        let dropped_any = self.broker.end_old_claims(&claims, &registered).await?;
        match full && !dropped_any {
            true => Err(BrokerError::TooManyTopics(self.topic.clone())),
            false => Ok(None),
        }
    }

    /// Returns the other topics that count against a quota: those that are listed, and those that calls have claimed before this one.
    /// Returns `None` if there were claims of processes that have stopped.
    async fn others(
        &self,
        quota: &TopicQuota,
        own: &OwnClaim,
    ) -> Result<Option<Others>, BrokerError> {
        let broker = &self.broker;
        // In this order: a claim ends after its topic is listed.
        let mut claims = broker.topic_claims().await?;
        let registered = broker.registered().await?;
        if broker.end_old_claims(&claims, &registered).await? {
            return Ok(None);
        }
        // Otherwise, two concurrent calls could each be refused because of the other.
        claims.retain(|claim| {
            claim.order < own.order && claim.topic != self.topic && quota.has(&claim.topic)
        });
        let counted = broker.counted(
            quota,
            Count::Content,
            Some(&self.topic),
            &registered,
            &claims,
        );
        Ok(Some(Others {
            counted: counted.await?,
            has_claims: !claims.is_empty(),
        }))
    }
}

impl Broker {
    /// Returns the part of a quota that is used. It changes nothing, and may be out of date once it is known.
    ///
    /// # Errors
    /// [`BrokerError`].
    pub async fn topic_quota_use(&self, quota: &TopicQuota) -> Result<TopicQuotaUse, BrokerError> {
        let mut claims = self.topic_claims().await?;
        let registered = self.registered().await?;
        let since = self.claims_count_since();
        claims.retain(|claim| claim.at_ms >= since);
        let counted = self
            .counted(quota, Count::Content, None, &registered, &claims)
            .await?;
        Ok(quota.used(&counted))
    }

    /// Returns what each topic but one counts against a quota.
    async fn counted(
        &self,
        quota: &TopicQuota,
        count: Count,
        but: Option<&Topic>,
        registered: &BTreeMap<Topic, Entry>,
        claims: &[Claim],
    ) -> Result<Vec<Counted>, BrokerError> {
        let count = match quota.bounds_content() {
            true => count,
            false => Count::Limits,
        };
        let counts = |topic: &Topic| but != Some(topic) && quota.has(topic);
        let reads = registered.iter().filter(|(topic, _)| counts(topic));
        let reads: Vec<_> = reads
            .map(|(topic, entry)| async move {
                let known = self.known(topic);
                let known = known.filter(|known| known.epoch() == entry.epoch);
                (topic, self.counted_of(count, topic, known).await)
            })
            .collect();
        let mut counted = BTreeMap::new();
        let mut reads = stream::iter(reads).buffer_unordered(CONCURRENT_READS);
        while let Some((topic, of_topic)) = reads.next().await {
            if let Some(of_topic) = of_topic? {
                counted.insert(topic, of_topic);
            }
        }
        for claim in claims.iter().filter(|claim| counts(&claim.topic)) {
            let of_topic = counted.entry(&claim.topic);
            let of_topic = of_topic.or_insert_with(|| claim.extent.into());
            *of_topic = of_topic.or_larger(claim.extent);
        }
        Ok(counted.into_values().collect())
    }

    /// Returns what a registered topic counts against a quota; `None` if it was removed. One that cannot be read counts as if it
    /// had no limit; if its content counts and its server does not answer, that is an error.
    async fn counted_of(
        &self,
        count: Count,
        topic: &Topic,
        known: Option<Arc<TopicHandle>>,
    ) -> Result<Option<Counted>, BrokerError> {
        let there = match known {
            Some(known) => Ok(Some(known)),
            None => self.load_within_reach(topic).await,
        };
        let counted = match there {
            Ok(Some(there)) => self.counted_in_use(count, &there).await,
            Ok(None) => Ok(Extent::default().into()),
            Err(error) => Err(error),
        };
        match counted {
            Ok(counted) => Ok(Some(counted)),
            Err(BrokerError::UnknownTopic(_) | BrokerError::ShardGone { .. }) => Ok(None),
            Err(error) if count == Count::Limits || error.is_of_one_topic() => {
                Ok(Some(Extent::default().into()))
            }
            Err(error) => Err(error),
        }
    }

    /// Returns what a topic may hold, or what it holds if that is more: for a time, after its limit was lowered.
    async fn counted_in_use(
        &self,
        count: Count,
        topic: &TopicHandle,
    ) -> Result<Counted, BrokerError> {
        let limits = topic.settings().extent(topic.groups());
        let has_limit = limits.messages.is_some() || limits.bytes.is_some();
        // At its first epoch, nothing was lowered.
        if count == Count::Limits || topic.epoch() == 1 || !has_limit {
            return Ok(limits.into());
        }
        let (mut messages, mut bytes) = (0, 0);
        for shard in topic.shards() {
            let keys = topic.keys(shard)?;
            let asked = vec![
                command("HLEN", &keys.payload),
                command("HGET", &keys.stats).arg("bytes"),
                command("ZCARD", &keys.tomb),
                command("HLEN", &keys.into),
            ];
            let server = self.inner.connection.at(&keys.conf);
            let counts = self.ask_all::<Option<u64>>(&server, asked).await?;
            let of = |index: usize| counts.get(index).copied().flatten().unwrap_or_default();
            messages += of(0);
            bytes += of(1) + (of(2) + of(3)) * TOMB_BYTES;
        }
        Ok(limits.counted(messages, bytes))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_tombstone_counts_as_in_the_send_script() {
        let script = include_str!("../scripts/hot/send.lua");
        assert!(script.contains(&format!("local TOMB_BYTES = {TOMB_BYTES}\n")));
    }

    #[test]
    fn a_claim_is_read_as_the_script_writes_it() {
        let claim = Claim::parse("a".into(), "7 1700000000000 shop-a 5 -").unwrap();
        let extent = Extent {
            messages: Some(5),
            ..Extent::default()
        };
        assert_eq!((claim.order, claim.at_ms), (7, 1_700_000_000_000));
        assert_eq!(claim.extent, extent);
        assert_eq!(claim.topic.as_str(), "shop-a");
        let claim = Claim::parse("a".into(), "7 1700000000000 shop-a - 6 12").unwrap();
        assert_eq!(
            (claim.extent.bytes, claim.extent.streams),
            (Some(6), Some(12))
        );
        for damaged in ["", "1", "1 x shop-a - -", "1 1 shop-a 5", "1 1 shop-a 5 x"] {
            assert_eq!(Claim::parse("a".into(), damaged), None, "{damaged}");
        }
    }
}
