//! The registry: which topics there are, with which settings, and which managers are alive.
//!
//! Settings live in Redis, so that processes cannot drift. A topic's `conf` on each shard holds
//! them; the registry's hash names all topics with their epochs, so that one read tells what changed.

use std::collections::BTreeMap;
use std::sync::{Arc, MutexGuard, PoisonError};
use std::time::Duration;

use redis::Value;
use tokio::sync::watch;

use super::{Broker, BrokerError};
use crate::keys::{GroupView, ShardKeys};
use crate::message::{MessageId, NewMessage, OrderingKey};
use crate::scripts::{Beat, DeclareReply, Register, Reply, unexpected};
use crate::topic::{Group, Shard, Topic, TopicSettings};

/// What a declaration does with settings that Redis holds already.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Declare {
    /// Leaves them: whoever starts first declares.
    Create,
    /// Replaces them: the manager's file is the authority.
    Update,
}

/// A registered topic: its settings at one epoch, and its keys.
#[derive(Debug)]
pub struct TopicHandle {
    name: Topic,
    epoch: u64,
    settings: TopicSettings,
    groups: Vec<Group>,
    /// Each with the keys of its groups, in the order of `groups`.
    shards: Vec<ShardKeys>,
}

impl TopicHandle {
    /// The topic.
    pub fn name(&self) -> &Topic {
        &self.name
    }

    /// Its settings.
    pub fn settings(&self) -> &TopicSettings {
        &self.settings
    }

    /// Its groups, at least one.
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
    pub fn wake_channel(&self, shard: Shard) -> &str {
        self.keys(shard).wake.as_str()
    }

    pub(super) fn keys(&self, shard: Shard) -> &ShardKeys {
        &self.shards[usize::from(shard.get())]
    }

    /// The keys of one of its groups on a shard.
    pub(super) fn group_keys(
        &self,
        shard: Shard,
        group: &Group,
    ) -> Result<GroupView<'_>, BrokerError> {
        let index = self.groups.iter().position(|known| known == group);
        let unknown = || BrokerError::UnknownGroup {
            topic: self.name.clone(),
            group: group.clone(),
        };
        let index = index.ok_or_else(unknown)?;
        Ok(self.keys(shard).group(index))
    }

    /// The first group and its keys on a shard: a plain topic has no other.
    pub(super) fn first_group(&self, shard: Shard) -> (&Group, GroupView<'_>) {
        (&self.groups[0], self.keys(shard).group(0))
    }
}

/// Who is alive, as one manager's beat was told.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Alive {
    /// Changes with every change of a topic.
    pub version: u64,
    /// The managers alive, sorted.
    pub managers: Vec<String>,
}

impl Broker {
    /// Registers a topic and makes its group, or gives it new settings; gives what holds now.
    ///
    /// # Errors
    /// [`BrokerError::Fixed`] if the number of shards or the group differs; other [`BrokerError`]s.
    pub async fn declare(
        &self,
        topic: &Topic,
        settings: &TopicSettings,
        mode: Declare,
    ) -> Result<Arc<TopicHandle>, BrokerError> {
        let text =
            serde_json::to_string(settings).map_err(|error| self.bad_settings(topic, &error))?;
        let group = &settings.groups[0];
        let (mut newest, mut held) = (0, text.clone());
        for index in 0..settings.shards {
            let groups = &settings.groups;
            let keys = ShardKeys::new(&self.inner.namespace, topic, Shard::new(index), groups);
            let call = crate::scripts::Declare {
                update: mode == Declare::Update,
                shards: settings.shards,
                group,
                settings: &text,
            };
            let fixed = |what, there: String, here: String| BrokerError::Fixed {
                topic: topic.clone(),
                what,
                there,
                here,
            };
            match self.run(&keys.group(0), &call).await? {
                DeclareReply::Declared {
                    changed,
                    epoch,
                    settings,
                } => {
                    if changed {
                        tracing::info!(%topic, shard = index, epoch, "declared");
                    }
                    if epoch > newest {
                        (newest, held) = (epoch, settings);
                    }
                }
                DeclareReply::Shards(there) => {
                    return Err(fixed(
                        "shards",
                        there.to_string(),
                        settings.shards.to_string(),
                    ));
                }
                DeclareReply::Group(there) => {
                    return Err(fixed("groups", format!("[{there}]"), format!("[{group}]")));
                }
            }
        }
        let register = Register {
            topic,
            shards: settings.shards,
            epoch: newest,
        };
        self.run(&self.inner.registry, &register).await?;
        self.remember(topic, newest, &held)
    }

    /// Gives a topic's settings and keys: from memory, or from Redis the first time.
    ///
    /// # Errors
    /// [`BrokerError::UnknownTopic`]; other [`BrokerError`]s.
    pub async fn topic(&self, topic: &Topic) -> Result<Arc<TopicHandle>, BrokerError> {
        if let Some(handle) = self.known(topic) {
            return Ok(handle);
        }
        self.load(topic)
            .await?
            .ok_or_else(|| BrokerError::UnknownTopic(topic.clone()))
    }

    /// Gives a topic's settings and keys if this process has seen them.
    pub fn known(&self, topic: &Topic) -> Option<Arc<TopicHandle>> {
        self.topics().get(topic).cloned()
    }

    /// Gives all topics that this process has seen, by name.
    pub fn known_topics(&self) -> Vec<Arc<TopicHandle>> {
        self.topics().values().cloned().collect()
    }

    /// Counts the changes of what [`Broker::known_topics`] gives, to be waited for.
    pub fn changes(&self) -> watch::Receiver<u64> {
        self.inner.changes.subscribe()
    }

    /// Reads the registry and loads what changed. Gives all registered topics, by name.
    ///
    /// A topic that this process knows but the registry does not was wiped; it is not in the answer,
    /// and [`Broker::redeclare_lost`] brings it back. One whose settings cannot be read is logged
    /// once; it is served with the settings known here, or left out.
    ///
    /// # Errors
    /// [`BrokerError`]; Redis could not be asked.
    pub async fn refresh(&self) -> Result<Vec<Arc<TopicHandle>>, BrokerError> {
        let mut handles = Vec::new();
        for (topic, epoch) in self.registered().await? {
            let known = self.known(&topic);
            let handle = match known {
                Some(known) if known.epoch == epoch => Some(known),
                known => match self.load(&topic).await {
                    Err(error) if error.is_of_one_topic() => {
                        self.cannot_read(topic.as_str(), &error);
                        known
                    }
                    loaded => {
                        let loaded = loaded?;
                        self.can_read(topic.as_str());
                        loaded
                    }
                },
            };
            handles.extend(handle);
        }
        Ok(handles)
    }

    /// Logs that a topic cannot be read, unless that was said before.
    fn cannot_read(&self, topic: &str, error: &dyn std::fmt::Display) {
        let text = error.to_string();
        let mut unreadable = self.unreadable();
        if unreadable.get(topic) != Some(&text) {
            tracing::error!(
                topic,
                error = text,
                "a topic in the registry cannot be read"
            );
            unreadable.insert(topic.to_owned(), text);
        }
    }

    fn can_read(&self, topic: &str) {
        if self.unreadable().remove(topic).is_some() {
            tracing::info!(topic, "the topic can be read again");
        }
    }

    fn unreadable(&self) -> MutexGuard<'_, BTreeMap<String, String>> {
        let unreadable = self.inner.unreadable.lock();
        unreadable.unwrap_or_else(PoisonError::into_inner)
    }

    /// Brings back a topic that is gone from Redis, with the newest settings known here.
    pub(super) async fn declare_again(&self, topic: &TopicHandle) -> Result<(), BrokerError> {
        let newest = self.known(&topic.name);
        let settings = newest.as_deref().unwrap_or(topic).settings();
        self.declare(&topic.name, settings, Declare::Create).await?;
        Ok(())
    }

    /// Declares every topic that this process knows and Redis does not, with the settings known
    /// here. Gives their names. One that cannot be declared is logged once and left out.
    ///
    /// # Errors
    /// [`BrokerError`].
    pub async fn redeclare_lost(&self) -> Result<Vec<Topic>, BrokerError> {
        let registered = self.registered().await?;
        let mut lost = Vec::new();
        for handle in self.known_topics() {
            if !registered.iter().any(|(topic, _)| *topic == handle.name) {
                match self.declare_again(&handle).await {
                    Err(error) if error.is_of_one_topic() => {
                        self.cannot_read(handle.name.as_str(), &error);
                    }
                    declared => {
                        declared?;
                        lost.push(handle.name.clone());
                    }
                }
            }
        }
        Ok(lost)
    }

    /// Renews the lease of a manager; a zero lease leaves. Tells who is alive and whether topics
    /// changed.
    ///
    /// # Errors
    /// [`BrokerError`].
    pub async fn beat(&self, manager: &str, lease: Duration) -> Result<Alive, BrokerError> {
        let reply = self
            .run(&self.inner.registry, &Beat { manager, lease })
            .await?;
        let mut managers = reply.managers;
        managers.sort_unstable();
        Ok(Alive {
            version: reply.version,
            managers,
        })
    }

    /// The names and epochs in the registry, as far as they can be read.
    async fn registered(&self) -> Result<Vec<(Topic, u64)>, BrokerError> {
        let mut cmd = redis::cmd("HGETALL");
        cmd.arg(self.inner.registry.topics.as_ref());
        let reply = self.inner.link.call(&cmd, self.inner.patience).await?;
        let wrong = |error| BrokerError::Reply {
            what: "HGETALL",
            error,
        };
        let mut reply = Reply::new(flat(reply)).map_err(wrong)?;
        let mut topics = Vec::new();
        while !reply.is_empty() {
            let (name, entry) = (reply.text().map_err(wrong)?, reply.text().map_err(wrong)?);
            if name == ":version" {
                continue;
            }
            let epoch = entry
                .split_once(' ')
                .and_then(|(_, epoch)| epoch.parse().ok());
            match (name.parse::<Topic>(), epoch) {
                (Ok(topic), Some(epoch)) => topics.push((topic, epoch)),
                _ => self.cannot_read(&name, &unexpected("a topic and its epoch", &entry)),
            }
        }
        topics.sort_unstable();
        Ok(topics)
    }

    async fn load(&self, topic: &Topic) -> Result<Option<Arc<TopicHandle>>, BrokerError> {
        let mut cmd = redis::cmd("HMGET");
        cmd.arg(ShardKeys::conf(&self.inner.namespace, topic).as_ref());
        cmd.arg("epoch").arg("settings");
        let reply = self.inner.link.call(&cmd, self.inner.patience).await?;
        if matches!(&reply, Value::Array(fields) if fields.iter().all(|field| *field == Value::Nil))
        {
            return Ok(None);
        }
        let wrong = |error| BrokerError::Reply {
            what: "HMGET",
            error,
        };
        let mut reply = Reply::new(reply).map_err(wrong)?;
        let epoch = reply.number().map_err(wrong)?;
        let settings = reply.text().map_err(wrong)?;
        self.remember(topic, epoch, &settings).map(Some)
    }

    /// Remembers a topic's settings.
    fn remember(
        &self,
        topic: &Topic,
        epoch: u64,
        text: &str,
    ) -> Result<Arc<TopicHandle>, BrokerError> {
        let settings: TopicSettings =
            serde_json::from_str(text).map_err(|error| self.bad_settings(topic, &error))?;
        settings
            .check()
            .map_err(|problems| self.bad_settings(topic, &problems[0]))?;
        let keys = |index| {
            ShardKeys::new(
                &self.inner.namespace,
                topic,
                Shard::new(index),
                &settings.groups,
            )
        };
        let handle = Arc::new(TopicHandle {
            name: topic.clone(),
            epoch,
            shards: (0..settings.shards).map(keys).collect(),
            groups: settings.groups.clone(),
            settings,
        });
        self.topics_mut().insert(topic.clone(), handle.clone());
        self.inner.changes.send_modify(|count| *count += 1);
        Ok(handle)
    }

    fn bad_settings(&self, topic: &Topic, error: &dyn std::fmt::Display) -> BrokerError {
        BrokerError::Settings {
            topic: topic.clone(),
            error: error.to_string(),
        }
    }
}

/// Makes a map reply (RESP3) the flat array that RESP2 gives.
pub(super) fn flat(value: Value) -> Value {
    match value {
        Value::Map(pairs) => Value::Array(
            pairs
                .into_iter()
                .flat_map(|(key, value)| [key, value])
                .collect(),
        ),
        other => other,
    }
}
