//! A topic as this process knows it: its settings at one epoch, its groups, and its keys.

use std::collections::BTreeSet;
use std::ops::Range;
use std::sync::atomic::{AtomicBool, Ordering};

use crate::broker::BrokerError;
use crate::broker::reshard::shard_map::ShardMap;
use crate::keys::{GroupView, ShardKeys};
use crate::message::{MessageId, OrderingKey, PreparedMessage};
use crate::scripts::Removal;
use crate::time::UnixMs;
use crate::topic::{Group, Namespace, Shard, Topic, TopicSettings};

/// The times of a topic's life as its `conf` has them.
#[derive(Clone, Copy, Debug)]
pub(super) struct Life {
    /// The time at which it was created; `None` if an older release created it.
    pub(super) created: Option<UnixMs>,
    /// The version of its settings: when they came into force, ms; 1 if an older release wrote them.
    pub(super) version: u64,
    /// The way in which it is being removed.
    pub(super) removal: Option<Removal>,
}

impl Default for Life {
    fn default() -> Self {
        Self {
            created: None,
            version: 1,
            removal: None,
        }
    }
}

/// A registered topic: its settings at one epoch, and its keys.
#[derive(Debug)]
pub struct TopicHandle {
    name: Topic,
    epoch: u64,
    settings: TopicSettings,
    groups: Vec<Group>,
    map: ShardMap,
    pub(super) life: Life,
    /// Its shards, each with the keys of its groups. A change of the groups reaches one shard after another.
    shards: Vec<ShardKeys>,
    /// For each shard, true if it needed the general scripts the last time.
    general: Vec<AtomicBool>,
}

impl TopicHandle {
    pub(super) fn new(
        namespace: &Namespace,
        topic: &Topic,
        epoch: u64,
        settings: TopicSettings,
        groups: &[Group],
        map: ShardMap,
    ) -> Self {
        let general = settings.needs_general() || groups.len() != 1;
        let shards = (map.old.start..map.old.end + settings.shards).map(Shard::new);
        Self {
            map,
            life: Life::default(),
            name: topic.clone(),
            epoch,
            groups: groups.to_vec(),
            general: shards.clone().map(|_| general.into()).collect(),
            shards: shards
                .map(|shard| ShardKeys::new(namespace, topic, shard, groups))
                .collect(),
            settings,
        }
    }

    /// Returns the same topic with other groups on one shard.
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
        let general = self
            .general
            .iter()
            .map(|general| general.load(Ordering::Relaxed));
        Self {
            name: self.name.clone(),
            epoch: self.epoch,
            settings: self.settings.clone(),
            map: self.map.clone(),
            life: self.life,
            groups: names.into_iter().cloned().collect(),
            general: general
                .map(|general| AtomicBool::new(general || groups.len() != 1))
                .collect(),
            shards,
        }
    }

    /// Returns its name.
    pub fn name(&self) -> &Topic {
        &self.name
    }

    /// Returns its settings.
    pub fn settings(&self) -> &TopicSettings {
        &self.settings
    }

    /// Returns its groups in Redis, by name: those of the settings, those that were configured once and not retired
    /// since, and those of running instances.
    pub fn groups(&self) -> &[Group] {
        &self.groups
    }

    /// Returns its epoch, which counts the changes of its settings.
    pub fn epoch(&self) -> u64 {
        self.epoch
    }

    /// Returns the time at which it was created; `None` if an older release declared it.
    pub fn created_at(&self) -> Option<UnixMs> {
        self.life.created
    }

    /// Returns the time at which its settings came into force; `None` if an older release declared it.
    pub fn changed_at(&self) -> Option<UnixMs> {
        (self.life.version > 1).then(|| UnixMs::new(self.life.version))
    }

    /// Returns the way in which it is being removed, if it is.
    pub fn removal(&self) -> Option<Removal> {
        self.life.removal
    }

    /// Returns its shards, retiring ones first.
    pub fn shards(&self) -> impl ExactSizeIterator<Item = Shard> + use<> {
        (self.old().start..self.open() + self.settings.shards).map(Shard::new)
    }

    /// Returns the first of its shards, whose manager does the work that is done once for each topic.
    pub fn first_shard(&self) -> Shard {
        Shard::new(self.old().start)
    }

    /// Returns true if it is being resharded: some of its shards are retiring.
    pub fn is_resharding(&self) -> bool {
        !self.old().is_empty()
    }

    /// Returns true if a shard is retiring: it stores nothing new, and its messages migrate.
    pub fn is_retiring(&self, shard: Shard) -> bool {
        self.old().contains(&shard.get())
    }

    /// Returns true if the shard belongs to the topic, including retiring ones.
    pub fn has(&self, shard: Shard) -> bool {
        self.index_of(shard)
            .is_some_and(|index| index < self.shards.len())
    }

    /// Returns the numbers of the retiring shards.
    pub(super) fn old(&self) -> Range<u16> {
        self.map.old.clone()
    }

    /// Returns the first of the shards that are not retiring.
    pub(super) fn open(&self) -> u16 {
        self.map.old.end
    }

    /// Returns its shard map.
    pub(super) fn shard_map(&self) -> ShardMap {
        self.map.clone()
    }

    /// Returns its retired shards, whose keys may still be there:
    /// [`Broker::drop_retired_keys`](crate::broker::Broker::drop_retired_keys) removes them.
    pub fn retired(&self) -> Option<Range<u16>> {
        self.map.retired.clone()
    }

    /// Returns the shard that gets the counters of a retiring one.
    pub(super) fn successor(&self, old: Shard) -> Shard {
        Shard::new(self.open() + (old.get() - self.old().start) % self.settings.shards)
    }

    /// Returns the shard of a message, as far as its id determines it. With a caller's id, a key of the message may have
    /// decided on another shard.
    pub fn shard_of(&self, id: &MessageId) -> Shard {
        self.shard_of_route(id.route())
    }

    /// Returns the shard that a message is sent to.
    pub fn shard_of_message(&self, message: &PreparedMessage) -> Shard {
        if self.settings.shards == 1 {
            // Saves decoding the id.
            return Shard::new(self.open());
        }
        self.shard_of_route(message.route())
    }

    /// Returns the shard of a route.
    pub(super) fn shard_of_route(&self, route: u16) -> Shard {
        Shard::new(self.open() + route % self.settings.shards)
    }

    /// Returns the retiring shard of a route.
    pub(super) fn old_shard_of_route(&self, route: u16) -> Option<Shard> {
        let old = self.old();
        let shards = u16::try_from(old.len()).unwrap_or(0);
        Some(Shard::new(old.start + route.checked_rem(shards)?))
    }

    /// Returns the shards that a message may be on, the likeliest first: the one that its key or its id determines,
    /// otherwise all. Retiring shards come before the others, since messages migrate from them.
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

    /// Returns the channel on which the mover of a shard is woken.
    ///
    /// # Panics
    /// If the topic has no such shard. Use one of [`TopicHandle::shards`].
    pub fn wake_channel(&self, shard: Shard) -> &str {
        self.keys(shard)
            .expect("a shard of the topic")
            .wake
            .as_str()
    }

    /// Returns the keys of a shard.
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

    /// Returns the index of a shard among those that the handle knows.
    fn index_of(&self, shard: Shard) -> Option<usize> {
        shard.get().checked_sub(self.old().start).map(usize::from)
    }

    /// Returns the keys of a group that the shard may not have yet.
    pub(super) fn keys_of_new_group(
        &self,
        namespace: &Namespace,
        shard: Shard,
        group: &Group,
    ) -> ShardKeys {
        ShardKeys::new(namespace, &self.name, shard, std::slice::from_ref(group))
    }

    /// Returns the keys of one of its groups on a shard.
    pub(super) fn group_keys(
        &self,
        shard: Shard,
        group: &Group,
    ) -> Result<GroupView<'_>, BrokerError> {
        let keys = self.keys(shard)?;
        keys.group(group).ok_or_else(|| self.has_no(group))
    }

    /// Returns the index of a group among those of a shard.
    pub(super) fn index(&self, keys: &ShardKeys, group: &Group) -> Result<usize, BrokerError> {
        keys.index(group).ok_or_else(|| self.has_no(group))
    }

    pub(super) fn has_no(&self, group: &Group) -> BrokerError {
        BrokerError::UnknownGroup {
            topic: self.name.clone(),
            group: group.clone(),
        }
    }

    /// Returns true if a shard needs the general scripts, as far as is known here.
    pub(super) fn needs_general(&self, shard: Shard) -> bool {
        let general = self
            .index_of(shard)
            .and_then(|index| self.general.get(index));
        general.is_none_or(|general| general.load(Ordering::Relaxed))
    }

    /// Records whether a shard needs the general scripts.
    pub(super) fn set_needs_general(&self, shard: Shard, needs_general: bool) {
        if let Some(general) = self
            .index_of(shard)
            .and_then(|index| self.general.get(index))
        {
            general.store(needs_general, Ordering::Relaxed);
        }
    }
}
