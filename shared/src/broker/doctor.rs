//! Looks through all structures of a topic while it is in use, says what is wrong, and mends it.
//!
//! Reading in pages gives suspects only, since messages move meanwhile. Each suspect is then judged by one script that
//! looks at all its places at once, and mended by one that looks again. See docs/doctor.md.

mod hints;
mod pace;
mod settings;
mod shard;
mod signs;
mod streams;
mod words;

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::str::FromStr;
use std::time::Duration;

use serde::Serialize;

use super::each_shard::unless_gone;
use super::{Broker, BrokerError, TopicHandle};
use crate::scripts::{Fault, Seen};
use crate::state::words;
use crate::topic::{InvalidName, Shard, Topic};
use pace::Pace;
use shard::ShardCheck;

pub use hints::{Hint, NO_MANAGER};
pub use signs::Signs;

/// The findings of one kind that a checkup tells in full; the others are counted.
const TOLD: u64 = 1000;

/// How a topic is examined.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Examination {
    /// Whether what is found is mended, too.
    pub repair: bool,
    /// A consumer that did nothing for so long has gone. More than the longest pause between two reads, which is two
    /// seconds or a third of the lease.
    pub consumer_idle: Duration,
    /// How many times as long as each of its calls takes it rests after the call. With 3, it takes a quarter of the time of Redis
    /// at most.
    pub rest: u32,
}

impl Examination {
    /// An examination of a topic with what its settings say of consumers: one has gone after a lease, or 30 s if that is
    /// longer.
    #[must_use]
    pub fn of(topic: &TopicHandle, repair: bool) -> Self {
        Self {
            repair,
            consumer_idle: topic.settings().lease.max(Duration::from_secs(3600)),
            rest: 3,
        }
    }
}

words!(
    /// What became of a fault.
    Outcome, "outcome", {
        /// It is there.
        Found = "found",
        /// It was there.
        Mended = "mended",
        /// It mends itself, or needs nobody to mend it.
        Said = "said",
    }
);

/// One thing that is wrong.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Finding {
    /// What.
    pub fault: Fault,
    /// On which shard.
    pub shard: Shard,
    /// In which group, if it is not about the message as a whole.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub group: String,
    /// Of which message or consumer; empty for what is about neither.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub id: String,
    /// What was seen, and done.
    pub seen: String,
    /// What became of it.
    pub outcome: Outcome,
}

/// What an examination of a topic gave.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Checkup {
    /// The topic.
    pub topic: Topic,
    /// Stored messages that were looked at.
    pub messages: u64,
    /// What is wrong; of each fault and outcome the first 1000.
    pub findings: Vec<Finding>,
    /// How many findings there are of each fault, by what became of them.
    pub counts: BTreeMap<Fault, BTreeMap<Outcome, u64>>,
    /// Groups whose messages nobody reads. No faults: a topic with hints is healthy.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub hints: Vec<Hint>,
    /// Messages of which nothing could be told, because a stream grew faster than it was read.
    pub unclear: u64,
}

impl Checkup {
    fn new(topic: &Topic) -> Self {
        Self {
            topic: topic.clone(),
            messages: 0,
            findings: Vec::new(),
            counts: BTreeMap::new(),
            hints: Vec::new(),
            unclear: 0,
        }
    }

    /// How many findings have an outcome.
    #[must_use]
    pub fn count(&self, outcome: Outcome) -> u64 {
        let counts = self.counts.values();
        counts.filter_map(|counts| counts.get(&outcome)).sum()
    }

    /// Whether nothing is left to be mended, and everything could be told.
    #[must_use]
    pub fn is_healthy(&self) -> bool {
        self.count(Outcome::Found) == 0 && self.unclear == 0
    }

    fn add(&mut self, finding: Finding) {
        let outcomes = self.counts.entry(finding.fault).or_default();
        let count = outcomes.entry(finding.outcome).or_default();
        *count += 1;
        if *count <= TOLD {
            self.findings.push(finding);
        }
    }

    fn add_seen(&mut self, shard: Shard, seen: Seen, outcome: Outcome) {
        if let Some(fault) = seen.fault {
            self.add(Finding {
                fault,
                shard,
                group: seen.group,
                id: String::from_utf8_lossy(&seen.id).into_owned(),
                seen: seen.text,
                outcome,
            });
        }
    }
}

impl Broker {
    /// Examines a topic, which may be in use, and mends what is wrong if told so.
    ///
    /// What is found was so at one instant, in which all places of the message were looked at. Takes memory for what is on
    /// the streams, about 150 bytes for each entry, and keeps Redis busy for at most 2 ms at a time and for a quarter of the
    /// time in all: it rests after each call, see [`Examination::rest`].
    ///
    /// # Errors
    /// [`BrokerError`]; what was mended until then stays mended.
    ///
    /// # Cancel safety
    /// Safe: each mend is one script, and calling again goes through all from the start.
    pub async fn examine(
        &self,
        topic: &TopicHandle,
        how: Examination,
    ) -> Result<Checkup, BrokerError> {
        let mut checkup = Checkup::new(topic.name());
        let shards = topic.settings().shards;
        let unsound = self
            .look_at_settings(topic.name(), shards, how.repair, &mut checkup)
            .await?;
        self.examine_shards(topic, how, &unsound, &mut checkup)
            .await?;
        // Counting declares settings that are gone, and an examination changes nothing.
        if !checkup.counts.contains_key(&Fault::Settings) {
            checkup.hints = self.hints(topic).await?;
        }
        Ok(checkup)
    }

    /// Examines a topic by its name, also one whose settings cannot be read or that the registry does not list, as
    /// [`Broker::examine`] does.
    ///
    /// # Errors
    /// [`BrokerError::UnknownTopic`] if nothing is known of it; other [`BrokerError`]s.
    ///
    /// # Cancel safety
    /// As [`Broker::examine`].
    pub async fn examine_by_name(
        &self,
        topic: &Topic,
        repair: bool,
    ) -> Result<Checkup, BrokerError> {
        let registered = self.registered().await?;
        let entry = registered.iter().find(|(name, _)| name == topic);
        let why = match (self.topic(topic).await, entry) {
            (Ok(handle), Some(_)) => {
                let how = Examination::of(&handle, repair);
                return self.examine(&handle, how).await;
            }
            (Ok(handle), None) => return self.examine_unlisted(&handle, repair).await,
            (Err(error @ BrokerError::Layout { .. }), _) => return Err(error),
            (Err(error), Some(_)) if error.is_of_one_topic() => error,
            (Err(error), _) => return Err(error),
        };
        let mut checkup = Checkup::new(topic);
        let shards = entry.map_or(1, |(_, entry)| entry.shards);
        let unsound = self
            .look_at_settings(topic, shards, repair, &mut checkup)
            .await?;
        if checkup.findings.is_empty() {
            return Err(why);
        }
        match self.topic(topic).await {
            Ok(handle) => {
                let how = Examination::of(&handle, repair);
                self.examine_shards(&handle, how, &unsound, &mut checkup)
                    .await?;
            }
            Err(error) if error.is_of_one_topic() => {}
            Err(error) => return Err(error),
        }
        Ok(checkup)
    }

    /// Examines a topic that is there, but not in the registry, so that no process finds it by itself.
    async fn examine_unlisted(
        &self,
        topic: &TopicHandle,
        repair: bool,
    ) -> Result<Checkup, BrokerError> {
        let mut checkup = self.examine(topic, Examination::of(topic, repair)).await?;
        let mut outcome = Outcome::Found;
        if repair {
            self.register(topic.name(), topic.settings().shards, topic.epoch())
                .await?;
            outcome = Outcome::Mended;
        }
        checkup.add(Finding {
            fault: Fault::Settings,
            shard: topic.first_shard(),
            group: String::new(),
            id: String::new(),
            seen: "the registry does not list the topic, or not as it should".to_owned(),
            outcome,
        });
        Ok(checkup)
    }

    async fn examine_shards(
        &self,
        topic: &TopicHandle,
        how: Examination,
        unsound: &BTreeSet<Shard>,
        checkup: &mut Checkup,
    ) -> Result<(), BrokerError> {
        let mut shards = self.each_shard(topic);
        let pace = Pace::new(how.rest);
        while let Some((topic, shard)) = shards.next().await? {
            if !unsound.contains(&shard) {
                let check = ShardCheck::new(self, &topic, shard, how, checkup, &pace);
                unless_gone(Box::pin(check.run()).await)?;
            }
        }
        Ok(())
    }
}
