//! The features that a run mixes: the settings of its topic, and the options of its messages.

use fastrand::Rng;
use lisa_core::retry::RetryPolicy;
use lisa_core::topic::{
    GarbageSettings, Group, Merge, OnExpired, OnGarbage, OnLate, Size, TopicSettings,
};
use lisa_tests::relay::ms;

/// The groups of which a run takes the first ones.
const GROUPS: [&str; 3] = ["one", "three-3", "two"];
/// The group of the one instance that joins and lapses, in runs that change groups.
const INSTANCE: &str = "instance-1";

/// The features that the messages and the steps of a run may use.
#[derive(Clone, Debug)]
pub(super) struct Mix {
    pub(super) settings: TopicSettings,
    /// The number of ids that steps choose from: few, so that they collide often. Ids with `c` are chosen by the
    /// caller.
    pub(super) ids: u32,
    /// Ordering keys to choose from; an empty one is none.
    pub(super) keys: &'static [&'static str],
    /// Merge keys likewise.
    pub(super) merges: &'static [&'static str],
    pub(super) priorities: bool,
    pub(super) ttls: bool,
    pub(super) replaces: bool,
    /// True if groups are paused, retired and removed, and an instance joins.
    pub(super) group_verbs: bool,
    /// True if the settings change while the topic is used.
    pub(super) configures: bool,
    /// True if the topic is removed and created again.
    pub(super) removals: bool,
    /// True if the clock steps back by more than is held. This breaks the order of a key, which is promised only for a
    /// clock that does not run backward.
    pub(super) large_steps_back: bool,
}

impl Mix {
    /// Chooses a mix for a run on this many shards.
    pub(super) fn new(seed: u64, shards: u16) -> Self {
        let mut rng = Rng::with_seed(seed ^ 0x5eed);
        let mut settings = settings(shards);
        if rng.u8(0..5) == 0 {
            return Self {
                settings,
                ids: 20,
                keys: &[""],
                merges: &[""],
                priorities: false,
                ttls: false,
                replaces: false,
                group_verbs: false,
                configures: false,
                removals: rng.u8(0..3) == 0,
                large_steps_back: true,
            };
        }
        let mut one_in = |n: u8| rng.u8(0..n) == 0;
        let (keyed, merged) = (!one_in(3), one_in(2));
        let mut mix = Self {
            ids: if one_in(2) { 20 } else { 5 },
            keys: &[""],
            merges: &[""],
            priorities: one_in(3),
            ttls: one_in(3),
            replaces: one_in(3),
            group_verbs: one_in(2),
            configures: one_in(2),
            removals: false,
            large_steps_back: false,
            settings: TopicSettings::default(),
        };
        if one_in(3) {
            settings.on_garbage = OnGarbage::Block;
        }
        settings.key_index = one_in(3);
        if one_in(3) {
            settings.on_expired = OnExpired::Drop;
        }
        if one_in(4) {
            settings.ttl = Some(ms(3000));
        }
        if one_in(4) {
            settings.max_lateness = Some(ms(2000));
            settings.on_late = if one_in(2) {
                OnLate::Garbage
            } else {
                OnLate::Drop
            };
        }
        if one_in(6) {
            settings.max_messages = Some(8 * u64::from(shards));
        }
        if one_in(6) {
            settings.max_bytes = Some(Size::new(
                if one_in(2) { 140 } else { 700 } * u64::from(shards),
            ));
        }
        if one_in(4) {
            let (rate, burst) = if one_in(2) { ("3/s", 2) } else { ("7/s", 1) };
            settings.rate = rate.parse().ok();
            settings.burst = Some(burst * u32::from(shards));
        }
        if one_in(3) {
            settings.max_ready = Some([1, 2, 5][rng.usize(0..3)] * u32::from(shards));
        }
        if keyed {
            mix.keys = [
                &["a"][..],
                &["a", "b", "ab"],
                &["", "a", "b", "ab"],
                &["", "", "", "a"],
            ][rng.usize(0..4)];
        }
        if merged {
            mix.merges = [&["x"][..], &["", "x", "y"], &["", "", "", "x"]][rng.usize(0..3)];
            settings.merge = Merge::ALL[rng.usize(0..3)];
            if settings.merge == Merge::Last && rng.bool() {
                settings.max_wait = Some(ms(rng.u64(1..4000)));
            }
        }
        // Only runs in which a group may come are left without any.
        let least = usize::from(!mix.group_verbs);
        let groups = GROUPS[..rng.usize(least..=3)].iter();
        settings.groups = groups.map(|name| name.parse().expect("a group")).collect();
        mix.removals = rng.u8(0..3) == 0;
        Self { settings, ..mix }
    }

    /// The groups that steps choose from, as far as they are there then.
    pub(super) fn groups(&self) -> Vec<Group> {
        let named = self.settings.groups.iter().cloned();
        let instance = self.group_verbs.then(|| INSTANCE.parse().expect("a group"));
        named.chain(instance).collect()
    }
}

/// The settings of every run: everything happens within a virtual minute.
fn settings(shards: u16) -> TopicSettings {
    TopicSettings {
        shards,
        lease: ms(1000),
        max_attempts: 3,
        retry: RetryPolicy::Exponential {
            base: ms(100),
            factor: 3.0,
            max: ms(500),
            jitter: 0.0,
        },
        dedup_window: ms(20_000),
        garbage: GarbageSettings {
            max_age: ms(60_000),
            topic: None,
        },
        ..TopicSettings::default()
    }
}
