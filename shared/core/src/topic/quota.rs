//! The quota of a client: the most that the topics that it reaches may hold together.
//!
//! The limits that topics declare are summed up, not their messages. So a send is checked against the limit of its topic alone, and a
//! change of a topic against the quota. Their streams are summed up, too, because each costs memory in Redis and calls by the
//! managers, even when idle.

use std::collections::BTreeSet;
use std::fmt;

use serde_json::Value as Json;

use crate::fields::{Any, Field, Size, TableReader, Value, within};
use crate::topic::{Group, NamePattern, Topic, TopicSettings};

/// The number of topics of a relay at which no call creates another one. Each topic costs every process memory and reads, also at rest.
pub const MAX_TOPICS: usize = 10_000;

/// The largest number of topics that a client may declare, and of the streams, messages and bytes in them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TopicQuota {
    /// The topics that count: those that the client reaches.
    pub topics: Vec<NamePattern>,
    /// The number of these topics.
    pub max_topics: u32,
    /// The number of their streams.
    pub max_streams: u32,
    /// The sum of their `max_messages`; `None` for any.
    pub max_messages: Option<u64>,
    /// The sum of their `max_bytes`; `None` for any.
    pub max_bytes: Option<Size>,
}

/// The streams of a topic, and the messages and bytes that it may hold on all its shards; `None` without a limit.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Extent {
    /// The streams; `None` if they are unknown.
    pub streams: Option<u64>,
    /// The messages.
    pub messages: Option<u64>,
    /// The bytes.
    pub bytes: Option<u64>,
}

/// The part of a quota that a topic counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Counted {
    /// Those that it may hold.
    pub limits: Extent,
    /// The same, or those that it holds if they are more: for a time, after a limit was lowered.
    pub extent: Extent,
}

/// The part of a quota that topics use.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TopicQuotaUse {
    /// The number of topics.
    pub topics: usize,
    /// The number of their streams.
    pub streams: u64,
    /// The sum of their `max_messages`; `None` without a quota of them.
    pub messages: Option<u64>,
    /// The sum of their `max_bytes`; `None` without a quota of them.
    pub bytes: Option<u64>,
}

/// The way in which a change of a topic exceeds a quota.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum OverQuota {
    /// The client has all its topics already.
    Topics {
        /// The quota.
        max_topics: u32,
        /// The number of topics that it reaches.
        topics: usize,
    },
    /// The client creates topics too fast, and has removed some of them.
    Created {
        /// The number that it may create in a burst.
        at_once: u32,
    },
    /// The topics would exceed a quota of streams, messages or bytes.
    Sum {
        /// The name of the quota.
        quota: &'static str,
        /// The quota.
        total: u64,
        /// The number of the other topics that the client reaches.
        others: usize,
        /// Their part of the quota.
        used: u64,
        /// The number of these topics that hold more than their limits.
        above: usize,
        /// The part that the topic would have.
        wanted: u64,
    },
}

impl std::error::Error for OverQuota {}

impl fmt::Display for OverQuota {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let topics_of = |count: usize| match count {
            1 => "1 topic".to_owned(),
            count => format!("{count} topics"),
        };
        match self {
            Self::Topics { max_topics, topics } => write!(
                f,
                "the token's quota max_topics is {max_topics}, and it reaches {} already; nothing was changed",
                topics_of(*topics)
            ),
            Self::Created { at_once } => write!(
                f,
                "the token creates topics too fast: it may create {at_once} in a burst and then one a second; nothing was changed"
            ),
            Self::Sum {
                quota,
                total,
                others,
                used,
                above,
                wanted,
            } => {
                let why = match above {
                    0 => String::new(),
                    1 => ", as 1 of them still holds more than its limit".to_owned(),
                    above => format!(", as {above} of them still hold more than their limits"),
                };
                let show = |amount: u64| match *quota {
                    MAX_BYTES => Size::new(amount).to_string(),
                    _ => amount.to_string(),
                };
                write!(
                    f,
                    "the token's quota {quota} is {}, of which its other topics ({others}) have {}{why}: this one may have {}, not {}; \
                     nothing was changed",
                    show(*total),
                    show(*used),
                    show(total.saturating_sub(*used)),
                    show(*wanted)
                )
            }
        }
    }
}

const MAX_TOPICS_FIELD: &str = "max_topics";
const MAX_STREAMS: &str = "max_streams";
const MAX_MESSAGES: &str = "max_messages";
const MAX_BYTES: &str = "max_bytes";

impl TopicQuota {
    /// The number of topics of a token with limited topics that sets none: a tenth of all topics.
    pub const DEFAULT: u32 = 1000;
    /// The number of their streams, if the token sets none.
    pub const DEFAULT_STREAMS: u32 = 10_000;

    /// Reads the fields of the quota of a token that reaches these topics; `None` if it reaches all.
    pub fn read(from: &mut impl TableReader, topics: Option<&[NamePattern]>) -> Option<Self> {
        let max_topics = Field::new(
            MAX_TOPICS_FIELD,
            None,
            "The largest number of topics that the token reaches: at this number, it cannot create another one. Requires `topics`. By \
             default, 1,000 for a token with `topics`, and any number for others.",
        );
        let most = u32::try_from(MAX_TOPICS).unwrap_or(u32::MAX);
        let max_topics: Option<u32> = from.read(max_topics, within(0..=most));
        let max_streams = Field::new(
            MAX_STREAMS,
            None,
            "The largest number of streams of the topics that the token reaches: one for each group on each shard, or one for each shard \
             of a topic without groups. Requires `topics`. By default, 10,000 for a token with `topics`, and any number for others.",
        );
        let max_streams: Option<u32> = from.read(max_streams, Any);
        let max_messages = Field::new(
            MAX_MESSAGES,
            None,
            "The sum of `max_messages` of the topics that the token reaches: it cannot declare more. A topic without this limit counts as an \
             equal part, and gets it when the token creates or changes it. Requires `max_topics`. By default, any.",
        );
        let max_messages: Option<u64> = from.read(max_messages, within(1..));
        let max_bytes = Field::new(
            MAX_BYTES,
            None,
            "The same for `max_bytes` of these topics. Requires `max_topics`. By default, any.",
        );
        let max_bytes: Option<Size> = from.read(max_bytes, within(Size::new(1)..));
        let requires = |what: &str| format!("requires {what}");
        if topics.is_none() {
            for (field, given) in [(MAX_TOPICS_FIELD, max_topics), (MAX_STREAMS, max_streams)] {
                if let Some(given) = given {
                    from.problem(field, given.into(), requires("topics"));
                }
            }
        }
        if max_topics.is_none() {
            let given = [
                (MAX_MESSAGES, max_messages.map(|it| it.show())),
                (MAX_BYTES, max_bytes.map(|it| it.show())),
            ];
            for (field, given) in given {
                if let Some(given) = given {
                    from.problem(field, given, requires(MAX_TOPICS_FIELD));
                }
            }
        }
        Some(Self {
            topics: topics?.to_vec(),
            max_topics: max_topics.unwrap_or(Self::DEFAULT),
            max_streams: max_streams.unwrap_or(Self::DEFAULT_STREAMS),
            max_messages,
            max_bytes,
        })
    }

    /// Returns true if it bounds what the topics hold, and not only the numbers of topics and streams.
    #[must_use]
    pub fn bounds_content(&self) -> bool {
        self.max_messages.is_some() || self.max_bytes.is_some()
    }

    /// Returns the quota as fields from which it can be read, without the topics, and without the values that it has by default.
    #[must_use]
    pub fn fields(&self) -> [(&'static str, Option<Json>); 4] {
        // Those of messages and bytes require it.
        let is_given = self.max_topics != Self::DEFAULT || self.bounds_content();
        let max_topics = Some(self.max_topics).filter(|_| is_given);
        let max_streams = Some(self.max_streams).filter(|most| *most != Self::DEFAULT_STREAMS);
        [
            (MAX_TOPICS_FIELD, max_topics.map(Json::from)),
            (MAX_STREAMS, max_streams.map(Json::from)),
            (MAX_MESSAGES, self.max_messages.map(Json::from)),
            (MAX_BYTES, self.max_bytes.map(|it| it.show())),
        ]
    }

    /// Returns true if a topic counts.
    #[must_use]
    pub fn has(&self, topic: &Topic) -> bool {
        let mut patterns = self.topics.iter();
        patterns.any(|pattern| pattern.matches(topic.as_str()))
    }

    /// Returns the equal part of one topic in a quota.
    fn part(&self, total: u64) -> u64 {
        (total / u64::from(self.max_topics.max(1))).max(1)
    }

    /// Sets each limit that the quota bounds and that the settings lack to its equal part, rounded down so that all shards have the
    /// same number.
    pub fn fill(&self, settings: &mut TopicSettings) {
        let shards = u64::from(settings.shards.max(1));
        let part = |total: u64| match self.part(total) {
            part if part < shards => part,
            part => part - part % shards,
        };
        if let Some(total) = self.max_messages {
            settings.max_messages.get_or_insert(part(total));
        }
        if let Some(total) = self.max_bytes {
            settings
                .max_bytes
                .get_or_insert(Size::new(part(total.get())));
        }
    }

    /// Returns each quota of a sum, with the part of it that a topic has.
    fn parts(&self, extent: Extent) -> [Option<(&'static str, u64, u64)>; 3] {
        let of = |quota, total: u64, declared: Option<u64>| {
            (quota, total, declared.unwrap_or_else(|| self.part(total)))
        };
        let max_streams = u64::from(self.max_streams);
        [
            Some(of(MAX_STREAMS, max_streams, extent.streams)),
            { self.max_messages }.map(|total| of(MAX_MESSAGES, total, extent.messages)),
            { self.max_bytes }.map(|total| of(MAX_BYTES, total.get(), extent.bytes)),
        ]
    }

    /// Returns the part of the quota that these topics use.
    #[must_use]
    pub fn used(&self, topics: &[Counted]) -> TopicQuotaUse {
        TopicQuotaUse {
            topics: topics.len(),
            streams: self.sum(0, topics),
            messages: self.max_messages.map(|_| self.sum(1, topics)),
            bytes: self.max_bytes.map(|_| self.sum(2, topics)),
        }
    }

    /// Returns the sum of the parts that topics have in the quota at this index of [`Self::parts`].
    fn sum(&self, index: usize, topics: &[Counted]) -> u64 {
        let parts = { topics.iter() }.flat_map(|topic| self.parts(topic.extent)[index]);
        parts.fold(0, |sum, (.., part)| sum.saturating_add(part))
    }

    /// Returns true if a topic has more of the quota than before. `None` stands for a topic that did not exist.
    #[must_use]
    pub fn grows(&self, before: Option<Extent>, after: Extent) -> bool {
        let Some(before) = before else {
            return true;
        };
        let pairs = self.parts(before).into_iter().zip(self.parts(after));
        pairs
            .flat_map(|(before, after)| Some((before?.2, after?.2)))
            .any(|(before, after)| before < after)
    }

    /// Checks a change of a topic beside the other topics that count. A part that does not grow is accepted, even if the quota is
    /// exceeded already.
    ///
    /// # Errors
    /// The way in which it exceeds the quota.
    pub fn check(
        &self,
        before: Option<Extent>,
        after: Extent,
        others: &[Counted],
    ) -> Result<(), OverQuota> {
        let max_topics = self.max_topics;
        if before.is_none() && others.len() >= usize::try_from(max_topics).unwrap_or(usize::MAX) {
            let topics = others.len();
            return Err(OverQuota::Topics { max_topics, topics });
        }
        let had = before.map_or([None; 3], |before| self.parts(before));
        for (index, (part, had)) in self.parts(after).into_iter().zip(had).enumerate() {
            let Some((quota, total, wanted)) = part else {
                continue;
            };
            let part_of = |extent| self.parts(extent)[index].map_or(0, |(.., part)| part);
            let used = self.sum(index, others);
            let grows = had.is_none_or(|(.., had)| had < wanted);
            if grows && used.saturating_add(wanted) > total {
                let above = others.iter();
                let above = above.filter(|other| part_of(other.extent) > part_of(other.limits));
                return Err(OverQuota::Sum {
                    quota,
                    total,
                    others: others.len(),
                    used,
                    above: above.count(),
                    wanted,
                });
            }
        }
        Ok(())
    }
}

impl TopicSettings {
    /// Returns the groups that a topic with these groups has after it gets these settings: a group that the settings no longer name stays
    /// until it is dropped. Those of instances, which come and go, are left out.
    #[must_use]
    pub fn groups_after<'a>(&'a self, had: &'a [Group]) -> BTreeSet<&'a Group> {
        let had = had.iter().filter(|group| !group.is_of_instance());
        had.chain(&self.groups).collect()
    }

    /// Returns the extent that a topic with these groups has after it gets these settings. All shards together may hold more than the
    /// limit, as the [share](Self::per_shard) of each is rounded up.
    #[must_use]
    pub fn extent(&self, had: &[Group]) -> Extent {
        let shards = u64::from(self.shards.max(1));
        let of = |limit: u64| self.per_shard(limit).saturating_mul(shards);
        let groups = self.groups_after(had).len().max(1);
        Extent {
            streams: Some(shards * groups as u64),
            messages: self.max_messages.map(of),
            bytes: self.max_bytes.map(|limit| of(limit.get())),
        }
    }
}

impl Counted {
    /// Raises what the topic may hold, and what it counts, to at least these limits.
    #[must_use]
    pub fn or_larger(self, limits: Extent) -> Self {
        Self {
            limits: self.limits.or_larger(limits),
            extent: self.extent.or_larger(limits),
        }
    }
}

impl From<Extent> for Counted {
    fn from(limits: Extent) -> Self {
        limits.counted(0, 0)
    }
}

impl Extent {
    /// Raises each limit to at least what is held.
    fn at_least(self, messages: u64, bytes: u64) -> Self {
        Self {
            streams: self.streams,
            messages: self.messages.map(|limit| limit.max(messages)),
            bytes: self.bytes.map(|limit| limit.max(bytes)),
        }
    }

    /// Returns what a topic with these limits counts that holds this much.
    #[must_use]
    pub fn counted(self, messages: u64, bytes: u64) -> Counted {
        Counted {
            limits: self,
            extent: self.at_least(messages, bytes),
        }
    }

    /// Returns the larger of both numbers of each kind. No limit is the largest.
    #[must_use]
    pub fn or_larger(self, other: Self) -> Self {
        let larger = |one: Option<u64>, other: Option<u64>| Some(one?.max(other?));
        Self {
            // A process of an older version does not claim them.
            streams: self.streams.max(other.streams),
            messages: larger(self.messages, other.messages),
            bytes: larger(self.bytes, other.bytes),
        }
    }
}

#[cfg(test)]
mod tests;
