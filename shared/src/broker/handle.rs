//! What this process knows of a topic: its settings at one epoch, its groups, its keys.

use std::collections::BTreeSet;
use std::sync::atomic::{AtomicBool, Ordering};

use super::BrokerError;
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
    ) -> Self {
        let full = settings.needs_full_class() || groups.len() != 1;
        let shards = (0..settings.shards).map(Shard::new);
        Self {
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
        if let Some(keys) = shards.get_mut(usize::from(shard.get())) {
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

    /// Its shards.
    pub fn shards(&self) -> impl ExactSizeIterator<Item = Shard> + use<> {
        (0..self.settings.shards).map(Shard::new)
    }

    /// The shard that a message lives on, as far as its id tells: with a caller's id a key of the
    /// message may have decided on another one.
    pub fn shard_of(&self, id: &MessageId) -> Shard {
        id.shard(self.settings.shards)
    }

    /// The shard that a message is sent to.
    pub fn shard_of_message(&self, message: &NewMessage) -> Shard {
        message.shard(self.settings.shards)
    }

    /// The shard of all messages with an ordering key.
    pub fn shard_of_key(&self, key: &OrderingKey) -> Shard {
        key.shard(self.settings.shards)
    }

    /// The shards that a message may live on when only its id is known, the likeliest first: one if
    /// the id tells, else all.
    pub fn shards_of(&self, id: &MessageId) -> impl Iterator<Item = Shard> + use<> {
        let first = self.shard_of(id);
        let others = if id.tells_route() {
            0
        } else {
            self.settings.shards
        };
        let others = (0..others).map(Shard::new);
        std::iter::once(first).chain(others.filter(move |shard| *shard != first))
    }

    /// The channel on which the mover of a shard is woken.
    ///
    /// # Panics
    /// The topic has no such shard: it must come from [`TopicHandle::shards`].
    pub fn wake_channel(&self, shard: Shard) -> &str {
        self.shards[usize::from(shard.get())].wake.as_str()
    }

    /// The keys of a shard.
    pub(super) fn keys(&self, shard: Shard) -> Result<&ShardKeys, BrokerError> {
        let unknown = || BrokerError::UnknownTopic(self.name.clone());
        let keys = self.shards.get(usize::from(shard.get()));
        keys.ok_or_else(unknown)
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
        Ok(keys.group(self.index(keys, group)?))
    }

    /// The place of a group among those of a shard.
    pub(super) fn index(&self, keys: &ShardKeys, group: &Group) -> Result<usize, BrokerError> {
        keys.index(group).ok_or_else(|| BrokerError::UnknownGroup {
            topic: self.name.clone(),
            group: group.clone(),
        })
    }

    /// Whether a shard needs the general scripts, as far as known here.
    pub(super) fn is_full(&self, shard: Shard) -> bool {
        let full = self.full.get(usize::from(shard.get()));
        full.is_none_or(|full| full.load(Ordering::Relaxed))
    }

    pub(super) fn set_full(&self, shard: Shard) {
        if let Some(full) = self.full.get(usize::from(shard.get())) {
            full.store(true, Ordering::Relaxed);
        }
    }

    pub(super) fn flip_class(&self, shard: Shard) {
        if let Some(full) = self.full.get(usize::from(shard.get())) {
            full.fetch_not(Ordering::Relaxed);
        }
    }
}
