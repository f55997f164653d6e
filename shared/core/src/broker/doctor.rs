//! Examines all structures of a topic while it is in use, reports what is wrong, and repairs it.
//!
//! Reading in pages finds only suspects, since messages move in the meantime. One script then judges each suspect by all
//! of its states at one instant. Another script looks again and repairs it. See docs/operate/repair.md.

mod hints;
mod pace;
mod settings;
mod shard;
mod signs;
mod streams;
mod words;

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::broker::shards::unless_gone;
use crate::broker::{Broker, BrokerError, TopicHandle};
use crate::names::words;
use crate::scripts::{Fault, Seen};
use crate::topic::{Shard, Topic};
use pace::Pace;
use shard::ShardCheck;

pub use hints::{Hint, NO_MANAGER};
pub use signs::Signs;

/// The number of findings of one fault and outcome that a checkup lists. Further ones are only counted.
const MAX_LISTED: u64 = 1000;

/// The options of an examination.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Examination {
    /// True to repair what is found.
    pub repair: bool,
    /// The idle time after which a consumer counts as gone. It must exceed the longest pause between two requests of a
    /// running consumer, which reports every 10 s.
    pub consumer_idle: Duration,
    /// The pause after each call, as a multiple of the duration of the call. With 3, the examination takes at most a
    /// quarter of Redis's time.
    pub rest: u32,
}

impl Examination {
    /// Returns the defaults for a topic. A consumer counts as gone after a lease or an hour, whichever is longer.
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
    /// The outcome of a finding.
    Outcome, "outcome", {
        /// The fault is there.
        Found = "found",
        /// The fault was there, and was repaired.
        Repaired = "repaired",
        /// The fault resolves itself or needs no repair.
        Said = "said",
    }
);

/// One fault in a topic.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct Finding {
    /// The kind of fault.
    pub fault: Fault,
    /// The shard.
    pub shard: Shard,
    /// The group; empty if the fault concerns the message as a whole.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub group: String,
    /// The id of the message, or the name of the consumer; empty if the fault concerns neither.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub id: String,
    /// A description of what was seen and done.
    pub seen: String,
    /// The outcome.
    pub outcome: Outcome,
}

/// The result of examining a topic.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct Checkup {
    /// The topic.
    pub topic: Topic,
    /// The number of stored messages that were examined.
    pub messages: u64,
    /// The findings: for each fault and outcome, the first 1000.
    pub findings: Vec<Finding>,
    /// The number of findings of each fault, by outcome.
    pub counts: BTreeMap<Fault, BTreeMap<Outcome, u64>>,
    /// Hints, such as groups whose messages no consumer reads. They are not faults: a topic with hints is healthy.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub hints: Vec<Hint>,
    /// The number of messages that could not be judged because a stream grew faster than it was read.
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

    /// Returns the number of findings with an outcome.
    #[must_use]
    pub fn count(&self, outcome: Outcome) -> u64 {
        let counts = self.counts.values();
        counts.filter_map(|counts| counts.get(&outcome)).sum()
    }

    /// Returns true if nothing is left to repair and every message could be judged.
    #[must_use]
    pub fn is_healthy(&self) -> bool {
        self.count(Outcome::Found) == 0 && self.unclear == 0
    }

    fn add(&mut self, finding: Finding) {
        let outcomes = self.counts.entry(finding.fault).or_default();
        let count = outcomes.entry(finding.outcome).or_default();
        *count += 1;
        if *count <= MAX_LISTED {
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
    /// Examines a topic, which may be in use, and repairs what is wrong if [`Examination::repair`] is set.
    ///
    /// Each finding was true at one instant, at which all states of the message were read. The examination uses about
    /// 150 bytes of memory for each entry on the streams. Each of its calls keeps Redis busy for about 1 ms at most. By default it
    /// takes at most a quarter of Redis's time, since it rests after each call; see [`Examination::rest`].
    ///
    /// # Errors
    /// [`BrokerError`]; what was repaired until then stays repaired.
    ///
    /// # Cancel safety
    /// Safe: each repair is one script, and calling again starts over.
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
        // Counting messages redeclares settings that are gone, and an examination changes nothing.
        if !checkup.counts.contains_key(&Fault::Settings) {
            checkup.hints = self.hints(topic).await?;
        }
        Ok(checkup)
    }

    /// Examines a topic by name, as [`Broker::examine`] does, even if its settings are unreadable or the registry does
    /// not list it.
    ///
    /// # Errors
    /// [`BrokerError::UnknownTopic`] if Redis knows nothing of it; other [`BrokerError`]s.
    ///
    /// # Cancel safety
    /// As [`Broker::examine`].
    pub async fn examine_by_name(
        &self,
        topic: &Topic,
        repair: bool,
    ) -> Result<Checkup, BrokerError> {
        let entry = self.registered().await?.remove(topic);
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
        let shards = entry.map_or(1, |entry| entry.shards);
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

    /// Examines a topic that exists but that the registry does not list, so that no process finds it by itself.
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
            outcome = Outcome::Repaired;
        }
        checkup.add(Finding {
            fault: Fault::Settings,
            shard: topic.first_shard(),
            group: String::new(),
            id: String::new(),
            seen: "the registry does not list the topic, or its entry is unreadable".to_owned(),
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
        let mut shards = self.all_shards(topic);
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
