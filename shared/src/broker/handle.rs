//! What this process knows of a topic: its settings at one epoch, its groups, its keys.

use std::collections::BTreeSet;
use std::ops::Range;
use std::sync::atomic::{AtomicBool, Ordering};

use super::BrokerError;
use super::place::Place;
use crate::keys::{GroupView, ShardKeys};
use crate::message::{MessageId, NewMessage, OrderingKey};
use crate::topic::{Group, Namespace, Shard, Topic, TopicSettings};

/// A registered topic: its settings at one epoch, and its keys.
#[derive(Debug)]
pub struct TopicHandle {
    name: Topic,
    epoch: u64,
    settings: TopicSettings,
    groups: Vec<Group>,
    place: Place,
    /// Each with the keys of its groups, which a change reaches one shard after the other.
    shards: Vec<ShardKeys>,
    /// For each shard, whether it needed the general scripts the last time.
    full: Vec<AtomicBool>,
}

impl TopicHandle {
    pub(super) fn new(
        namespace: &Namespace,
        topic: &Topic,
        epoch: u64,
        settings: TopicSettings,
        groups: &[Group],
        place: Place,
    ) -> Self {
        let full = settings.needs_full_class() || groups.len() != 1;
        let shards = (place.old.start..place.old.end + settings.shards).map(Shard::new);
        Self {
            place,
            name: topic.clone(),
            epoch,
            groups: groups.to_vec(),
            full: shards.clone().map(|_| full.into()).collect(),
            shards: shards
                .map(|shard| ShardKeys::new(namespace, topic, shard, groups))
                .collect(),
            settings,
        }
    }

    /// The same topic, with other groups on one shard.
    pub(super) fn with_groups(
        &self,
        namespace: &Namespace,
        shard: Shard,
        groups: &[Group],
    ) -> Self {
        let mut shards = self.shards.clone();
        if let Some(keys) = self.index_of(shard).and_then(|index| shards.get_mut(index)) {
            *keys = ShardKeys::new(namespace, &self.name, shard, groups);
        }
        let names: BTreeSet<&Group> = shards
            .iter()
            .flat_map(|keys| keys.groups.iter().map(|group| &group.name))
            .collect();
        let full = self.full.iter().map(|full| full.load(Ordering::Relaxed));
        Self {
            name: self.name.clone(),
            epoch: self.epoch,
            settings: self.settings.clone(),
            place: self.place.clone(),
            groups: names.into_iter().cloned().collect(),
            full: full
                .map(|full| AtomicBool::new(full || groups.len() != 1))
                .collect(),
            shards,
        }
    }

    /// The topic.
    pub fn name(&self) -> &Topic {
        &self.name
    }

    /// Its settings.
    pub fn settings(&self) -> &TopicSettings {
        &self.settings
    }

    /// Its groups in Redis, by name: those of the settings, those that were configured once and not
    /// retired since, and those of running instances.
    pub fn groups(&self) -> &[Group] {
        &self.groups
    }

    /// Counts the changes of its settings.
    pub fn epoch(&self) -> u64 {
        self.epoch
    }

    /// Its shards, those that are being given up first.
    pub fn shards(&self) -> impl ExactSizeIterator<Item = Shard> + use<> {
        (self.old().start..self.open() + self.settings.shards).map(Shard::new)
    }

    /// The first of its shards, whose holder does what is to be done once a topic.
    pub fn first_shard(&self) -> Shard {
        Shard::new(self.old().start)
    }

    /// Whether it is being resharded: some of its shards are being given up.
    pub fn is_resharding(&self) -> bool {
        !self.old().is_empty()
    }

    /// Whether a shard is being given up: it stores nothing new and hands over what it has.
    pub fn is_leaving(&self, shard: Shard) -> bool {
        self.old().contains(&shard.get())
    }

    /// Whether a shard is one of the topic's, be it that it is being given up.
    pub fn has(&self, shard: Shard) -> bool {
        self.index_of(shard)
            .is_some_and(|index| index < self.shards.len())
    }

    /// The numbers of the shards that are being given up.
    pub(super) fn old(&self) -> Range<u16> {
        self.place.old.clone()
    }

    /// The first of the shards that are not given up.
    pub(super) fn open(&self) -> u16 {
        self.place.old.end
    }

    /// Its shards by number.
    pub(super) fn found_at(&self) -> Place {
        self.place.clone()
    }

    /// Shards that it had, and whose keys may still be there: [`Broker::vacate`](super::Broker::vacate) removes them.
    pub fn vacating(&self) -> Option<Range<u16>> {
        self.place.vacating.clone()
    }

    /// The shard that gets the counters of one that is being given up.
    pub(super) fn heir(&self, old: Shard) -> Shard {
        Shard::new(self.open() + (old.get() - self.old().start) % self.settings.shards)
    }

    /// The shard that a message lives on, as far as its id tells: with a caller's id a key of the
    /// message may have decided on another one.
    pub fn shard_of(&self, id: &MessageId) -> Shard {
        self.shard_of_route(id.route())
    }

    /// The shard that a message is sent to.
    pub fn shard_of_message(&self, message: &NewMessage) -> Shard {
        self.shard_of_route(message.route())
    }

    /// The shard of a route.
    pub(super) fn shard_of_route(&self, route: u16) -> Shard {
        Shard::new(self.open() + route % self.settings.shards)
    }

    /// The shard of a route among those that are being given up.
    pub(super) fn old_shard_of_route(&self, route: u16) -> Option<Shard> {
        let old = self.old();
        let shards = u16::try_from(old.len()).unwrap_or(0);
        Some(Shard::new(old.start + route.checked_rem(shards)?))
    }

    /// The shards that a message may live on, the likeliest first: one if its key or its id tells, else all. Those
    /// that are being given up come before the others, as messages go from them to those.
    pub fn shards_of(&self, id: &MessageId, key: Option<&OrderingKey>) -> Vec<Shard> {
        let is_known = key.is_some() || id.tells_route();
        let route = key.map_or_else(|| id.route(), |key| key.route());
        let mut shards = Vec::new();
        let ranges = [
            (self.old_shard_of_route(route), self.old()),
            (
                Some(self.shard_of_route(route)),
                self.open()..self.open() + self.settings.shards,
            ),
        ];
        for (first, range) in ranges {
            shards.extend(first);
            let others = range.map(Shard::new).filter(|shard| Some(*shard) != first);
            shards.extend(others.filter(|_| !is_known));
        }
        shards
    }

    /// The channel on which the mover of a shard is woken.
    ///
    /// # Panics
    /// The topic has no such shard: it must come from [`TopicHandle::shards`].
    pub fn wake_channel(&self, shard: Shard) -> &str {
        self.keys(shard)
            .expect("a shard of the topic")
            .wake
            .as_str()
    }

    /// The keys of a shard.
    pub(super) fn keys(&self, shard: Shard) -> Result<&ShardKeys, BrokerError> {
        let gone = || BrokerError::ShardGone {
            topic: self.name.clone(),
            shard,
        };
        let keys = self
            .index_of(shard)
            .and_then(|index| self.shards.get(index));
        keys.ok_or_else(gone)
    }

    /// Where a shard is among those that the handle knows.
    fn index_of(&self, shard: Shard) -> Option<usize> {
        shard.get().checked_sub(self.old().start).map(usize::from)
    }

    /// The keys of a group that the shard may not have yet.
    pub(super) fn keys_of_new_group(
        &self,
        namespace: &Namespace,
        shard: Shard,
        group: &Group,
    ) -> ShardKeys {
        ShardKeys::new(namespace, &self.name, shard, std::slice::from_ref(group))
    }

    /// The keys of one of its groups on a shard.
    pub(super) fn group_keys(
        &self,
        shard: Shard,
        group: &Group,
    ) -> Result<GroupView<'_>, BrokerError> {
        let keys = self.keys(shard)?;
        keys.group(group).ok_or_else(|| self.has_no(group))
    }

    /// The place of a group among those of a shard.
    pub(super) fn index(&self, keys: &ShardKeys, group: &Group) -> Result<usize, BrokerError> {
        keys.index(group).ok_or_else(|| self.has_no(group))
    }

    pub(super) fn has_no(&self, group: &Group) -> BrokerError {
        BrokerError::UnknownGroup {
            topic: self.name.clone(),
            group: group.clone(),
        }
    }

    /// Whether a shard needs the general scripts, as far as known here.
    pub(super) fn is_full(&self, shard: Shard) -> bool {
        let full = self.index_of(shard).and_then(|index| self.full.get(index));
        full.is_none_or(|full| full.load(Ordering::Relaxed))
    }

    /// Notes whether a shard needs the general scripts.
    pub(super) fn set_full(&self, shard: Shard, is_full: bool) {
        if let Some(full) = self.index_of(shard).and_then(|index| self.full.get(index)) {
            full.store(is_full, Ordering::Relaxed);
        }
    }
}
