//! The quota of a client: the most that the topics that it reaches may hold together.
//!
//! The limits that topics declare are summed up, not their messages. So a send is checked against the limit of its topic alone, and a
//! change of a topic against the quota.

use std::fmt;

use serde_json::Value as Json;

use crate::fields::{Field, Size, TableReader, Value, within};
use crate::topic::{NamePattern, Topic, TopicSettings};

/// The number of topics of a relay at which no call creates another one. Each topic costs every process memory and reads, also at rest.
pub const MAX_TOPICS: usize = 10_000;

/// The most topics, and the most messages and bytes in them, that a client may declare.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TopicQuota {
    /// The topics that count: those that the client reaches.
    pub topics: Vec<NamePattern>,
    /// The number of these topics.
    pub max_topics: u32,
    /// The sum of their `max_messages`; `None` for any.
    pub max_messages: Option<u64>,
    /// The sum of their `max_bytes`; `None` for any.
    pub max_bytes: Option<Size>,
}

/// The messages and bytes that a topic may hold on all its shards; `None` without a limit.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Extent {
    /// The messages.
    pub messages: Option<u64>,
    /// The bytes.
    pub bytes: Option<u64>,
}

/// The messages and bytes that a topic counts against a quota.
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
    /// The limits of the topics would exceed a quota of messages or bytes.
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
const MAX_MESSAGES: &str = "max_messages";
const MAX_BYTES: &str = "max_bytes";

impl TopicQuota {
    /// The number of topics of a token with limited topics that sets none: a tenth of all topics.
    pub const DEFAULT: u32 = 1000;

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
        if max_topics.is_some() && topics.is_none() {
            let why = requires("topics");
            from.problem(MAX_TOPICS_FIELD, shown(max_topics), why);
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
            max_messages,
            max_bytes,
        })
    }

    /// Returns true if this is the quota of a token that sets none.
    #[must_use]
    pub fn is_default(&self) -> bool {
        self.max_topics == Self::DEFAULT && !self.has_sum()
    }

    /// Returns true if a sum is bounded, and not only the number of topics.
    #[must_use]
    pub fn has_sum(&self) -> bool {
        self.max_messages.is_some() || self.max_bytes.is_some()
    }

    /// Returns the quota as fields from which it can be read, without the topics, and without values if it is the default.
    #[must_use]
    pub fn fields(&self) -> [(&'static str, Option<Json>); 3] {
        let max_topics = Some(self.max_topics).filter(|_| !self.is_default());
        [
            (MAX_TOPICS_FIELD, max_topics.map(Json::from)),
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
    fn parts(&self, extent: Extent) -> [Option<(&'static str, u64, u64)>; 2] {
        let of = |quota, total: u64, declared: Option<u64>| {
            (quota, total, declared.unwrap_or_else(|| self.part(total)))
        };
        [
            { self.max_messages }.map(|total| of(MAX_MESSAGES, total, extent.messages)),
            { self.max_bytes }.map(|total| of(MAX_BYTES, total.get(), extent.bytes)),
        ]
    }

    /// Returns the part of the quota that these topics use.
    #[must_use]
    pub fn used(&self, topics: &[Counted]) -> TopicQuotaUse {
        TopicQuotaUse {
            topics: topics.len(),
            messages: self.max_messages.map(|_| self.sum(0, topics)),
            bytes: self.max_bytes.map(|_| self.sum(1, topics)),
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
        let had = before.map_or([None; 2], |before| self.parts(before));
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

fn shown(number: Option<u32>) -> Json {
    number.map_or(Json::Null, Json::from)
}

impl TopicSettings {
    /// Returns what all shards together may hold: the [share](Self::per_shard) of each is rounded up.
    #[must_use]
    pub fn extent(&self) -> Extent {
        let shards = u64::from(self.shards.max(1));
        let of = |limit: u64| self.per_shard(limit).saturating_mul(shards);
        Extent {
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

    /// Returns the larger limit of both, for messages and for bytes. No limit is the largest.
    #[must_use]
    pub fn or_larger(self, other: Self) -> Self {
        let larger = |one: Option<u64>, other: Option<u64>| Some(one?.max(other?));
        Self {
            messages: larger(self.messages, other.messages),
            bytes: larger(self.bytes, other.bytes),
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::fields::JsonReader;

    fn read(body: &Json, topics: Option<&str>) -> Result<Option<TopicQuota>, String> {
        let topics: Option<Vec<NamePattern>> = topics.map(|name| vec![name.parse().unwrap()]);
        let mut reader = JsonReader::new(body.as_object().unwrap());
        let quota = TopicQuota::read(&mut reader, topics.as_deref());
        match &reader.finish()[..] {
            [] => Ok(quota),
            problems => Err(problems.iter().map(|it| format!("{it}\n")).collect()),
        }
    }

    fn quota(max_topics: u32, max_messages: u64) -> TopicQuota {
        let body = json!({ "max_topics": max_topics, "max_messages": max_messages });
        read(&body, Some("shop-*")).unwrap().unwrap()
    }

    fn messages(count: u64) -> Extent {
        Extent {
            messages: Some(count),
            bytes: None,
        }
    }

    /// Checks a change beside topics that hold no more than their limits.
    fn check(
        quota: &TopicQuota,
        before: Option<Extent>,
        after: Extent,
        others: &[Extent],
    ) -> Result<(), OverQuota> {
        let others: Vec<_> = others.iter().copied().map(Counted::from).collect();
        quota.check(before, after, &others)
    }

    #[test]
    fn a_quota_is_read_as_it_is_shown_and_needs_what_it_is_about() {
        let body = json!({ "max_topics": 3, "max_messages": 1000, "max_bytes": "1MiB" });
        let quota = read(&body, Some("shop-*")).unwrap().unwrap();
        assert_eq!(quota.max_bytes, Some(Size::new(1 << 20)));
        let shown = quota.fields().map(|(name, value)| json!({ name: value }));
        let expected = [
            json!({ "max_topics": 3 }),
            json!({ "max_messages": 1000 }),
            json!({ "max_bytes": "1MiB" }),
        ];
        assert_eq!(shown, expected);
        assert!(quota.has(&"shop-a".parse().unwrap()) && !quota.has(&"bank".parse().unwrap()));
        let topics = [messages(600), Extent::default()].map(Counted::from);
        let used = TopicQuotaUse {
            topics: 2,
            messages: Some(600 + 333),
            bytes: Some(2 * ((1 << 20) / 3)),
        };
        assert_eq!(quota.used(&topics), used);
        assert_eq!(read(&json!({}), None), Ok(None));
        let default = read(&json!({}), Some("a")).unwrap().unwrap();
        assert_eq!((default.max_topics, default.has_sum()), (1000, false));
        assert!(default.fields().iter().all(|(_, value)| value.is_none()));
        // A quota of messages needs the number of their topics.
        let body = json!({ "max_topics": 1000, "max_messages": 5000 });
        let quota = read(&body, Some("a")).unwrap().unwrap();
        assert_eq!(quota.fields()[0], ("max_topics", Some(json!(1000))));
        for (body, topics, problem) in [
            (
                json!({ "max_topics": 1 }),
                None,
                "max_topics = 1: requires topics",
            ),
            (
                json!({ "max_topics": 10_001 }),
                Some("a"),
                "must be 0 to 10000",
            ),
            (
                json!({ "max_messages": 5 }),
                Some("a"),
                "max_messages = 5: requires max_topics",
            ),
            (
                json!({ "max_bytes": 5 }),
                Some("a"),
                "max_bytes = \"5B\": requires max_topics",
            ),
            (
                json!({ "max_topics": 1, "max_messages": 0 }),
                Some("a"),
                "must be at least 1",
            ),
        ] {
            let problems = read(&body, topics).unwrap_err();
            assert!(problems.contains(problem), "{body}: {problems}");
        }
    }

    #[test]
    fn a_topic_without_a_limit_gets_an_equal_part_that_its_shards_share() {
        let fill = |quota: &TopicQuota, shards| {
            let mut settings = TopicSettings {
                shards,
                ..TopicSettings::default()
            };
            quota.fill(&mut settings);
            assert_eq!(settings.max_bytes, None);
            (settings.max_messages, settings.extent().messages)
        };
        for (max_topics, total, shards, expected) in [
            (3, 1000, 1, (333, 333)),
            (3, 1000, 4, (332, 332)),
            (3, 2, 1, (1, 1)),
            (1, 3, 4, (3, 4)),
            (1, u64::MAX, 1, (u64::MAX, u64::MAX)),
        ] {
            let (limit, extent) = fill(&quota(max_topics, total), shards);
            let got = (limit.unwrap(), extent.unwrap());
            assert_eq!(got, expected, "{total} / {max_topics} on {shards}");
        }
        let mut settings = TopicSettings {
            max_messages: Some(7),
            ..TopicSettings::default()
        };
        quota(3, 1000).fill(&mut settings);
        assert_eq!(settings.max_messages, Some(7));
    }

    #[test]
    fn limits_are_added_up_and_only_what_grows_is_refused() {
        let quota = quota(3, 100);
        let (one, unlimited) = (messages(40), Extent::default());
        assert_eq!(check(&quota, None, messages(60), &[one]), Ok(()));
        let over = check(&quota, None, messages(61), &[one]).unwrap_err();
        let why = "the token's quota max_messages is 100, of which its other topics (1) have 40: this one may have 60, not 61; nothing \
                   was changed";
        assert_eq!(over.to_string(), why);
        // What is held above a limit counts, and the error says so.
        let held = [messages(10).counted(30, 0), messages(10).counted(5, 0)];
        let over = quota.check(None, messages(61), &held).unwrap_err();
        let why = "of which its other topics (2) have 40, as 1 of them still holds more than its limit: this one may have 60, not 61";
        assert!(over.to_string().contains(why), "{over}");
        let over = quota.check(None, messages(61), &[held[0]; 2]).unwrap_err();
        let why = "have 60, as 2 of them still hold more than their limits: this one may have 40";
        assert!(over.to_string().contains(why), "{over}");
        // A topic of others without a limit counts as a third: 33.
        assert_eq!(check(&quota, None, messages(27), &[one, unlimited]), Ok(()));
        assert!(check(&quota, None, messages(28), &[one, unlimited]).is_err());
        let over = check(&quota, None, messages(1), &[messages(1); 3]);
        let over = over.unwrap_err().to_string();
        let why = "the token's quota max_topics is 3, and it reaches 3 topics already; nothing was changed";
        assert_eq!(over, why);
        // The quota was larger before.
        let others = [messages(90), messages(90), messages(1), messages(1)];
        assert_eq!(
            check(&quota, Some(messages(50)), messages(50), &others),
            Ok(())
        );
        assert!(check(&quota, Some(messages(49)), messages(50), &others).is_err());
        assert!(quota.grows(None, messages(1)));
        assert!(quota.grows(Some(messages(1)), messages(2)));
        assert!(!quota.grows(Some(messages(2)), messages(2)));
        // It has an equal part already.
        assert!(!quota.grows(Some(unlimited), messages(33)));
        assert!(quota.grows(Some(unlimited), messages(34)));
        assert_eq!(messages(5).or_larger(messages(4)), messages(5));
        assert_eq!(messages(5).or_larger(unlimited), unlimited);
        assert_eq!(messages(5).at_least(7, 9), messages(7));
        assert_eq!(messages(5).at_least(4, 9), messages(5));
        assert_eq!(unlimited.at_least(7, 9), unlimited);
        let huge = check(&quota, None, messages(u64::MAX), &[messages(u64::MAX)]);
        assert!(huge.is_err());
    }

    #[test]
    fn a_token_without_topics_of_its_own_creates_none() {
        let body = json!({ "max_topics": 0 });
        let quota = read(&body, Some("a-*")).unwrap().unwrap();
        let over = check(&quota, None, Extent::default(), &[]).unwrap_err();
        let why = "the token's quota max_topics is 0, and it reaches 0 topics already; nothing was changed";
        assert_eq!(over.to_string(), why);
        let there = Some(Extent::default());
        assert_eq!(check(&quota, there, messages(5), &[]), Ok(()));
    }

    #[test]
    fn a_quota_of_bytes_is_shown_as_a_size() {
        let body = json!({ "max_topics": 2, "max_bytes": "1MiB" });
        let quota = read(&body, Some("a")).unwrap().unwrap();
        let bytes = |bytes| Extent {
            messages: None,
            bytes: Some(bytes),
        };
        let over = check(&quota, None, bytes(2 << 20), &[bytes(1 << 19)]).unwrap_err();
        let why = over.to_string();
        assert!(why.contains("max_bytes is 1MiB"), "{why}");
        assert!(why.contains("this one may have 512KiB, not 2MiB"), "{why}");
    }
}
