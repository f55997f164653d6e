//! The settings of the delivery features: their values, their bounds and their form for the scripts.
//!
//! The features themselves are in the scripts, the producer and the consumer.

use std::collections::BTreeSet;
use std::fmt;
use std::time::Duration;

use super::{MAX_GROUPS, TopicSettings};
use crate::fields::{Reader, Size, Value as _};
use crate::names::words;
use crate::time::millis;
use crate::topic::{Group, Rate};

words!(
    /// The effect of a send on a message with the same merge key that can still be merged into.
    #[derive(Default)]
    Merge, "merge", {
        /// The stored message stays as it is.
        First = "first",
        /// The last send replaces the payload, the options and the due time.
        #[default]
        Last = "last",
        /// The send is refused as a duplicate.
        Reject = "reject",
    }
);

words!(
    /// The merge key of a message that is sent without one.
    #[derive(Default)]
    MergeBy, "merge_by", {
        /// None: the message is not merged.
        #[default]
        Key = "key",
        /// The hash of the payload.
        Payload = "payload",
    }
);

words!(
    /// The effect on the other messages of an ordering key when one goes to garbage.
    #[derive(Default)]
    OnGarbage, "on_garbage", {
        /// The next one is delivered.
        #[default]
        Continue = "continue",
        /// They wait until the one in garbage is requeued or purged.
        Block = "block",
    }
);

words!(
    /// The treatment of an expired message.
    #[derive(Default)]
    OnExpired, "on_expired", {
        /// The message is kept in garbage, as expired.
        #[default]
        Garbage = "garbage",
        /// The message is dropped and counted.
        Drop = "drop",
    }
);

words!(
    /// The treatment of an attempt that starts later than the topic's `max_lateness`.
    #[derive(Default)]
    OnLate, "on_late", {
        /// The message is delivered, marked as late for its handler.
        #[default]
        Deliver = "deliver",
        /// The message is kept in garbage, as expired.
        Garbage = "garbage",
        /// The message is dropped and counted.
        Drop = "drop",
    }
);

/// Checks what depends on several settings, or on all items of one.
pub(super) fn check(settings: &TopicSettings, from: &mut impl Reader) {
    let TopicSettings {
        groups,
        burst,
        max_wait,
        ..
    } = settings;
    let different: BTreeSet<_> = groups.iter().collect();
    for (ok, message) in [
        (groups.len() <= MAX_GROUPS, "must have at most 64 names"),
        (different.len() == groups.len(), "must not repeat a name"),
        (
            !groups.iter().any(Group::is_of_instance),
            "must not have a name that begins with instance-",
        ),
    ] {
        if !ok {
            from.problem("groups", groups.show(), message.into());
        }
    }
    if burst.is_some() && settings.rate.is_none() {
        let message = "must be \"none\", because rate is not set";
        from.problem("burst", burst.show(), message.into());
    }
    if max_wait.is_some() && settings.merge != Merge::Last {
        let message = "must be \"none\", because merge is not \"last\"";
        from.problem("max_wait", max_wait.show(), message.into());
    }
}

impl TopicSettings {
    /// Returns true if a setting needs the general scripts for every message, because the plain ones do not support it.
    ///
    /// The other settings matter only to messages that use a feature. The send of such a message makes its shard general.
    pub fn needs_general(&self) -> bool {
        self.groups.len() != 1
            || self.merge_by == MergeBy::Payload
            || self.max_ready.is_some()
            || self.max_messages.is_some()
            || self.max_bytes.is_some()
            || self.ttl.is_some()
            || self.rate.is_some()
            || (self.max_lateness.is_some() && self.on_late != OnLate::Deliver)
    }

    /// Returns the share of one shard in a limit of the topic: an equal part, rounded up.
    pub fn per_shard(&self, total: u64) -> u64 {
        total.div_ceil(u64::from(self.shards.max(1)))
    }

    /// Returns the settings that the scripts read from `conf`, as fields and values in a fixed order.
    ///
    /// Durations are in whole ms. `max_ready`, `max_messages`, `max_bytes` and `burst` are the [share](Self::per_shard) of
    /// one shard. `interval` represents the rate: the ms between two deliveries of a group on one shard, with six decimals.
    /// It is not rounded to a share, which would multiply a rate of less than one for each shard. `burst` is present
    /// whenever `interval` is. A setting that is unset is absent, and so is a word that is the default.
    pub fn rules(&self) -> Vec<(&'static str, String)> {
        let ms = |duration: Duration| millis(duration).to_string();
        let share = |total: u64| self.per_shard(total).to_string();
        let interval = |rate: Rate| rate.interval() * f64::from(self.shards.max(1));
        let burst = |rate: Rate| self.burst.unwrap_or_else(|| rate.default_burst());
        [
            ("merge", unless_default(self.merge)),
            ("max_wait", self.max_wait.map(ms)),
            ("on_garbage", unless_default(self.on_garbage)),
            ("max_ready", self.max_ready.map(|n| share(n.into()))),
            ("max_messages", self.max_messages.map(share)),
            ("max_bytes", self.max_bytes.map(Size::get).map(share)),
            ("ttl", self.ttl.map(ms)),
            ("on_expired", unless_default(self.on_expired)),
            (
                "interval",
                self.rate.map(|rate| format!("{:.6}", interval(rate))),
            ),
            ("burst", self.rate.map(|rate| share(burst(rate).into()))),
            ("max_lateness", self.max_lateness.map(ms)),
            ("on_late", unless_default(self.on_late)),
            ("key_index", self.key_index.then(|| "1".to_owned())),
            ("instance_ttl", Some(ms(self.instance_ttl))),
        ]
        .into_iter()
        .filter_map(|(field, value)| Some((field, value?)))
        .collect()
    }
}

fn unless_default<T: Default + PartialEq + fmt::Display>(word: T) -> Option<String> {
    (word != T::default()).then(|| word.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::time::LONGEST_DELAY;

    fn plain() -> TopicSettings {
        TopicSettings::default()
    }

    fn with(change: impl FnOnce(&mut TopicSettings)) -> TopicSettings {
        let mut settings = plain();
        change(&mut settings);
        settings
    }

    /// Returns the keys of the mistakes that `check` finds.
    fn wrong(change: impl FnOnce(&mut TopicSettings)) -> Vec<String> {
        let problems = with(change).check().err().unwrap_or_default();
        problems.into_iter().map(|problem| problem.field).collect()
    }

    /// A change of the settings.
    type Change = fn(&mut TopicSettings);

    const SECOND: Option<Duration> = Some(Duration::from_secs(1));

    #[test]
    fn settings_stored_before_the_features_have_their_defaults() {
        let stored = r#"{"groups":["default"],"shards":1,"lease":"30s","handler_timeout":"5m",
            "max_attempts":16,"retry":{"kind":"exponential","base":"1s","factor":2.0,"max":"10m",
            "jitter":0.2},"max_delay":"365d","max_payload":262144,"dedup_window":"10m",
            "garbage":{"max_age":"14d"}}"#;
        let read: TopicSettings = serde_json::from_str(stored).unwrap();
        assert_eq!(read, plain());
        let without_lease = stored.replace(r#""lease":"30s","#, "");
        assert!(serde_json::from_str::<TopicSettings>(&without_lease).is_err());
    }

    #[test]
    fn stored_settings_are_read_back_and_those_of_later_versions_ignored() {
        let all = with(|settings| {
            settings.groups = vec!["a".parse().unwrap(), "b".parse().unwrap()];
            settings.merge = Merge::Last;
            settings.merge_by = MergeBy::Payload;
            settings.max_wait = SECOND;
            settings.on_garbage = OnGarbage::Block;
            settings.max_ready = Some(7);
            settings.max_messages = Some(1000);
            settings.max_bytes = Some(Size::new(1 << 30));
            settings.ttl = SECOND;
            settings.on_expired = OnExpired::Drop;
            settings.rate = Some("100/m".parse().unwrap());
            settings.burst = Some(3);
            settings.max_lateness = SECOND;
            settings.on_late = OnLate::Garbage;
            settings.key_index = true;
            settings.instance_ttl = Duration::from_secs(5);
        });
        let mut json = serde_json::to_value(&all).unwrap();
        assert_eq!(json["max_wait"], "1s");
        assert_eq!(json["rate"], "100/m");
        assert_eq!(json["on_late"], "garbage");
        json["of_a_later_version"] = 1.into();
        assert_eq!(serde_json::from_value::<TopicSettings>(json).unwrap(), all);
        assert_eq!(all.check(), Ok(()));
    }

    #[test]
    fn every_bound_is_checked() {
        let cases: [(&str, Change); 17] = [
            ("groups", |it| it.groups.push(it.groups[0].clone())),
            ("groups", |it| {
                it.groups = vec!["instance-7".parse().unwrap()]
            }),
            ("groups", |it| {
                it.groups = (0..65).map(|n| format!("g{n}").parse().unwrap()).collect();
            }),
            ("max_wait", |it| it.max_wait = Some(Duration::ZERO)),
            ("ttl", |it| it.ttl = Some(Duration::from_micros(999))),
            ("ttl", |it| it.ttl = Some(LONGEST_DELAY * 2)),
            ("max_lateness", |it| it.max_lateness = Some(Duration::ZERO)),
            ("max_ready", |it| it.max_ready = Some(0)),
            ("max_ready", |it| it.max_ready = Some(1_000_001)),
            ("max_messages", |it| it.max_messages = Some(0)),
            ("max_bytes", |it| it.max_bytes = Some(Size::new(0))),
            ("instance_ttl", |it| {
                it.instance_ttl = Duration::from_secs(4)
            }),
            ("instance_ttl", |it| it.instance_ttl = LONGEST_DELAY),
            ("rate", |it| {
                let per = crate::topic::RatePeriod::Hour;
                it.rate = Some(Rate { count: 0, per });
            }),
            ("burst", |it| {
                it.rate = Some("1/s".parse().unwrap());
                it.burst = Some(0);
            }),
            ("burst", |it| it.burst = Some(5)),
            ("max_wait", |it| {
                it.max_wait = SECOND;
                it.merge = Merge::First;
            }),
        ];
        for (index, (key, change)) in cases.into_iter().enumerate() {
            assert_eq!(wrong(change), [key], "case {index}");
        }
        let most = wrong(|it| {
            it.groups = (0..64).map(|n| format!("g{n}").parse().unwrap()).collect();
            it.max_ready = Some(1_000_000);
            it.max_messages = Some(1);
            it.max_bytes = Some(Size::new(1));
            it.ttl = Some(Duration::from_millis(1));
            it.instance_ttl = Duration::from_secs(7 * 24 * 3600);
        });
        assert!(most.is_empty(), "{most:?}");
        assert!(wrong(|it| it.groups.clear()).is_empty());
    }

    #[test]
    fn only_settings_that_concern_every_message_need_the_general_scripts() {
        let general: [Change; 10] = [
            |it| it.groups.clear(),
            |it| it.groups.push("other".parse().unwrap()),
            |it| it.merge_by = MergeBy::Payload,
            |it| it.max_ready = Some(1),
            |it| it.max_messages = Some(1),
            |it| it.max_bytes = Some(Size::new(1)),
            |it| it.ttl = SECOND,
            |it| it.rate = Some("1/s".parse().unwrap()),
            |it| (it.max_lateness, it.on_late) = (SECOND, OnLate::Garbage),
            |it| (it.max_lateness, it.on_late) = (SECOND, OnLate::Drop),
        ];
        for (index, change) in general.into_iter().enumerate() {
            assert!(with(change).needs_general(), "case {index}");
        }
        let harmless = with(|it| {
            (it.merge, it.max_wait) = (Merge::Last, SECOND);
            (it.on_garbage, it.on_expired) = (OnGarbage::Block, OnExpired::Drop);
            (it.max_lateness, it.on_late) = (SECOND, OnLate::Deliver);
            it.instance_ttl = Duration::from_secs(5);
            it.key_index = true;
        });
        assert!(!harmless.needs_general());
        assert!(!with(|it| it.on_late = OnLate::Drop).needs_general());
    }

    #[test]
    fn a_plain_topic_has_no_rule_but_the_life_of_instances() {
        assert_eq!(plain().rules(), [("instance_ttl", "60000".to_owned())]);
        // Only the producer uses `merge_by`; the scripts see merge keys.
        let implied = with(|it| it.merge_by = MergeBy::Payload);
        assert_eq!(implied.rules(), plain().rules());
    }

    #[test]
    fn the_rules_are_in_milliseconds_and_a_shards_share() {
        let settings = with(|it| {
            it.shards = 3;
            it.merge = Merge::Reject;
            it.max_wait = Some(Duration::from_secs(300));
            it.on_garbage = OnGarbage::Block;
            it.max_ready = Some(100);
            it.max_messages = Some(1);
            it.max_bytes = Some(Size::new(3000));
            it.ttl = Some(Duration::from_micros(1999));
            it.on_expired = OnExpired::Drop;
            it.rate = Some("7/s".parse().unwrap());
            it.burst = Some(10);
            it.max_lateness = SECOND;
            it.on_late = OnLate::Drop;
            it.key_index = true;
        });
        let rules = settings.rules();
        let rules: Vec<_> = rules.iter().map(|(f, v)| (*f, v.as_str())).collect();
        let expected = [
            ("merge", "reject"),
            ("max_wait", "300000"),
            ("on_garbage", "block"),
            ("max_ready", "34"),
            ("max_messages", "1"),
            ("max_bytes", "1000"),
            ("ttl", "1"),
            ("on_expired", "drop"),
            ("interval", "428.571429"),
            ("burst", "4"),
            ("max_lateness", "1000"),
            ("on_late", "drop"),
            ("key_index", "1"),
            ("instance_ttl", "60000"),
        ];
        assert_eq!(rules, expected);
    }

    #[test]
    fn a_rate_without_a_burst_has_the_share_of_its_default() {
        let rules = |shards| {
            with(|it| {
                it.shards = shards;
                it.rate = Some("100/s".parse().unwrap());
            })
            .rules()
        };
        let pair = |interval: &str, burst: &str| {
            [
                ("interval", interval.to_owned()),
                ("burst", burst.to_owned()),
            ]
        };
        assert_eq!(rules(1)[..2], pair("10.000000", "5"));
        assert_eq!(rules(4)[..2], pair("40.000000", "2"));
        // 8 shards together still deliver 100 a second, though their bursts add up to 8.
        assert_eq!(rules(8)[..2], pair("80.000000", "1"));
    }
}
