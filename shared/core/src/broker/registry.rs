//! The registry: the topics with their settings, and the running managers.
//!
//! Settings live in Redis, so that processes cannot drift apart. A topic's `conf` on each shard holds them. The
//! registry's hash lists all topics with their epochs, so that one read shows what changed.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use futures_util::{StreamExt, stream};
use redis::Value;
use tokio::sync::watch;

use crate::broker::reply::{command, decode};
use crate::broker::reshard::shard_map::ShardMap;
use crate::broker::topic_handle::Life;
use crate::broker::{Broker, BrokerError, CONCURRENT_READS, TopicHandle};
use crate::keys::{LAYOUT, RegistryKeys, ShardKeys};
use crate::misspelling::suggestion;
use crate::redis::{ConnectionError, ConnectionErrorKind};
use crate::scripts::{Heartbeat, Operation, Register, unexpected};
use crate::time::UnixMs;
use crate::topic::{Group, Shard, Topic, TopicSettings};

/// The least time between two reads of the registry by the parts of a process that follow it.
const REFRESH_EVERY: Duration = Duration::from_secs(5);

/// The reply to a manager's heartbeat.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Alive {
    /// The version of the registry, which changes with every change of a topic.
    pub version: u64,
    /// The running managers, sorted.
    pub managers: Vec<String>,
}

/// A topic's entry in the registry.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Entry {
    pub(super) shards: u16,
    pub(super) epoch: u64,
}

impl Entry {
    fn read(text: &str) -> Option<Self> {
        let (shards, epoch) = text.split_once(' ')?;
        Some(Self {
            shards: shards.parse().ok()?,
            epoch: epoch.parse().ok()?,
        })
    }
}

impl Broker {
    /// Lists a topic at an epoch in the registry.
    pub(super) async fn register(
        &self,
        topic: &Topic,
        shards: u16,
        epoch: u64,
    ) -> Result<bool, BrokerError> {
        let call = Register {
            topic,
            shards,
            epoch,
            if_missing: false,
        };
        self.run_on_registry(&call).await
    }

    /// Returns the channel on which [`Broker::declare`] wakes managers once it has registered a change.
    pub fn registry_channel(&self) -> &str {
        self.inner.registry.wake.as_str()
    }

    /// Wakes the managers, which otherwise look at their next heartbeat.
    pub(super) async fn wake_managers(&self) {
        let wake = command("SPUBLISH", &self.inner.registry.wake).arg("");
        if let Err(error) = self.ask::<u64>(wake).await {
            tracing::debug!(%error, "cannot wake the managers");
        }
    }

    pub(super) async fn run_on_registry<O>(&self, call: &O) -> Result<O::Reply, BrokerError>
    where
        O: Operation<Scope = RegistryKeys>,
    {
        let refused = |refusal| BrokerError::reply(O::script().name(), "no refusal", &refusal);
        self.run(&self.inner.registry, call).await?.map_err(refused)
    }

    /// Returns a topic's settings and keys: from memory, or from Redis the first time.
    ///
    /// # Errors
    /// [`BrokerError::UnknownTopic`], or [`BrokerError::Undeclared`] for an expected one; other [`BrokerError`]s.
    pub async fn topic(&self, topic: &Topic) -> Result<Arc<TopicHandle>, BrokerError> {
        if let Some(handle) = self.known(topic) {
            return Ok(handle);
        }
        self.load(topic).await?.ok_or_else(|| {
            let expected = self.inner.expected.get();
            match expected.is_some_and(|topics| topics.contains(topic)) {
                true => BrokerError::Undeclared(topic.clone()),
                false => BrokerError::UnknownTopic(topic.clone()),
            }
        })
    }

    /// Names the topics that this process declares later. Earlier calls for them fail with [`BrokerError::Undeclared`]
    /// instead of [`BrokerError::UnknownTopic`]. Only the first call counts.
    pub fn expect_topics<'a>(&self, topics: impl IntoIterator<Item = &'a Topic>) {
        self.inner
            .expected
            .get_or_init(|| topics.into_iter().cloned().collect());
    }

    /// Returns a topic as Redis has it now.
    ///
    /// # Errors
    /// [`BrokerError::UnknownTopic`]; other [`BrokerError`]s.
    pub async fn newest(&self, topic: &Topic) -> Result<Arc<TopicHandle>, BrokerError> {
        let unknown = || BrokerError::UnknownTopic(topic.clone());
        self.load(topic).await?.ok_or_else(unknown)
    }

    /// Returns a topic to find a group in: from memory, or as Redis has it now if another process has just added the group. A group that
    /// does not exist costs one read.
    ///
    /// # Errors
    /// As [`Broker::topic`].
    pub async fn topic_with(
        &self,
        topic: &Topic,
        group: &Group,
    ) -> Result<Arc<TopicHandle>, BrokerError> {
        let known = self.topic(topic).await?;
        if known.groups().contains(group) {
            return Ok(known);
        }
        let Some(shard) = known.shards().next() else {
            return Ok(known);
        };
        // The whole topic costs a read for each shard.
        let Some([names]) = self.conf(known.keys(shard)?, ["groups"]).await? else {
            return Ok(known);
        };
        let names: String = decode("HMGET", names)?;
        match self.groups_in(topic, &names)?.contains(group) {
            true => self.newest(topic).await,
            false => Ok(known),
        }
    }

    /// Returns a topic's settings and keys if this process has seen them.
    pub fn known(&self, topic: &Topic) -> Option<Arc<TopicHandle>> {
        self.topics().get(topic).cloned()
    }

    /// Returns all topics that this process has seen, by name.
    pub fn known_topics(&self) -> Vec<Arc<TopicHandle>> {
        self.topics().values().cloned().collect()
    }

    /// Returns `; did you mean "orders"?` with the topic that an unknown one is probably a misspelling of, or nothing.
    pub fn suggest_topic(&self, unknown: &Topic) -> String {
        let topics = self.topics();
        suggestion(unknown.as_str(), topics.keys().map(Topic::as_str))
    }

    /// Returns a counter of the changes to [`Broker::known_topics`], which can be awaited.
    pub fn changes(&self) -> watch::Receiver<u64> {
        self.inner.changes.subscribe()
    }

    /// Reads the registry and loads what changed. Returns all registered topics, by name.
    ///
    /// A topic that this process knows but the registry does not was removed or wiped. It is not returned. A removed one is
    /// forgotten; [`Broker::redeclare_lost`] restores a wiped one. A topic whose settings are unreadable is logged once. It is returned with
    /// the settings known to this process, or left out.
    ///
    /// # Errors
    /// [`BrokerError`] if Redis could not be asked.
    pub async fn refresh(&self) -> Result<Vec<Arc<TopicHandle>>, BrokerError> {
        let (handles, unreached) = self.refresh_reached().await?;
        unreached.map_or(Ok(handles), Err)
    }

    /// Does the same as [`Broker::refresh`], but tolerates servers of a cluster that do not answer: their topics are
    /// returned with the settings known to this process. Also returns the first such failure.
    ///
    /// # Errors
    /// [`BrokerError`] if the registry could not be read.
    pub async fn refresh_reached(
        &self,
    ) -> Result<(Vec<Arc<TopicHandle>>, Option<BrokerError>), BrokerError> {
        // Read first: a topic is registered before this process knows it.
        let known = self.known_topics();
        let registered = self.registered().await?;
        for known in known {
            // It was removed, or was wiped.
            if !registered.contains_key(known.name()) {
                let _ = self.load_within_reach(known.name()).await;
            }
        }
        let current: Vec<_> = registered
            .iter()
            .map(|(topic, entry)| {
                let known = self.known(topic);
                known.filter(|known| known.epoch() == entry.epoch)
            })
            .collect();
        let stale = registered.iter().zip(&current);
        let stale = stale.filter(|(_, current)| current.is_none());
        let loads: Vec<_> = stale
            .map(|((topic, _), _)| self.load_within_reach(topic))
            .collect();
        let mut loads = stream::iter(loads).buffered(CONCURRENT_READS);
        let (mut handles, mut unreached) = (Vec::with_capacity(registered.len()), None);
        for ((topic, entry), current) in registered.iter().zip(current) {
            if let Some(known) = current {
                handles.push(known);
                continue;
            }
            let Some(loaded) = loads.next().await else {
                break;
            };
            let gone = || self.bad_settings(topic, &"missing in Redis");
            match loaded.and_then(|loaded| loaded.ok_or_else(gone)) {
                // The manager that removed it stopped before it was unregistered.
                Err(BrokerError::UnknownTopic(_)) => self.unregister(topic, entry.epoch).await?,
                Err(error) if error.is_of_one_topic() => {
                    self.cannot_read(topic.as_str(), &error);
                    handles.extend(self.known(topic));
                }
                Err(error) => {
                    handles.extend(self.known(topic));
                    unreached.get_or_insert(error);
                }
                Ok(loaded) => {
                    handles.push(loaded);
                    self.can_read(topic.as_str());
                }
            }
        }
        Ok((handles, unreached))
    }

    /// Claims the next read of the registry: returns true at most once in 5 s, to one caller, which then calls [`Broker::refresh`]. So
    /// the parts of a process that follow the registry share one reader. If that call fails or is dropped, the next claim is possible
    /// 5 s after this one.
    #[must_use]
    pub fn claim_refresh(&self) -> bool {
        let now = Instant::now();
        let mut claimed = self.inner.refresh_claimed.lock();
        let is_due = now.saturating_duration_since(*claimed) >= REFRESH_EVERY;
        if is_due {
            *claimed = now;
        }
        is_due
    }

    pub(super) async fn load_within_reach(
        &self,
        topic: &Topic,
    ) -> Result<Option<Arc<TopicHandle>>, BrokerError> {
        match self.is_within_reach(topic) {
            true => self.load(topic).await,
            false => Err(self.out_of_reach(topic)),
        }
    }

    /// Returns true if the server of a topic's first shard answers, as far as is known. Otherwise, other topics should
    /// not wait for it.
    pub(super) fn is_within_reach(&self, topic: &Topic) -> bool {
        let first = ShardKeys::new(&self.inner.namespace, topic, Shard::new(0), &[]);
        let server = self.connection().at(&first.conf);
        let registry = self.connection().at(&self.inner.registry.topics);
        server.is_up() || server.name() == registry.name()
    }

    fn out_of_reach(&self, topic: &Topic) -> BrokerError {
        let first = ShardKeys::new(&self.inner.namespace, topic, Shard::new(0), &[]);
        let server = self.connection().at(&first.conf).name();
        let detail = format!("{server} does not answer");
        ConnectionError::local(ConnectionErrorKind::Unavailable, "load a topic", detail).into()
    }

    /// Logs that a topic is unreadable, unless the same was logged before.
    pub(super) fn cannot_read(&self, topic: &str, error: &dyn std::fmt::Display) {
        let text = error.to_string();
        let mut unreadable = self.inner.unreadable.lock();
        if unreadable.get(topic) != Some(&text) {
            tracing::error!(topic, error = text, "cannot read topic");
            unreadable.insert(topic.to_owned(), text);
        }
    }

    fn can_read(&self, topic: &str) {
        if self.inner.unreadable.lock().remove(topic).is_some() {
            tracing::info!(topic, "topic can be read again");
        }
    }

    /// Renews the lease of a manager; a zero lease ends it. Returns the running managers, and the version that shows
    /// whether topics changed.
    ///
    /// # Errors
    /// [`BrokerError`].
    pub async fn heartbeat(&self, manager: &str, lease: Duration) -> Result<Alive, BrokerError> {
        let reply = self.run_on_registry(&Heartbeat { manager, lease }).await?;
        let mut managers = reply.managers;
        managers.sort_unstable();
        Ok(Alive {
            version: reply.version,
            managers,
        })
    }

    /// Lists the running managers, sorted.
    ///
    /// # Errors
    /// [`BrokerError`].
    pub async fn managers(&self) -> Result<Vec<String>, BrokerError> {
        self.managers_up_to(None).await
    }

    /// Returns true if a manager is running. Reads one name, and takes at most a fifth of the broker's call timeout.
    ///
    /// # Errors
    /// [`BrokerError`].
    pub async fn has_manager(&self) -> Result<bool, BrokerError> {
        Ok(!self.managers_up_to(Some(1)).await?.is_empty())
    }

    async fn managers_up_to(&self, most: Option<u8>) -> Result<Vec<String>, BrokerError> {
        let key = &self.inner.registry.managers;
        let server = self.inner.connection.at(key);
        // Leases expire by Redis's clock, even if a test sets another time.
        let now = server.clock().now_ms();
        let mut cmd = redis::cmd("ZRANGE");
        cmd.arg(key.as_ref()).arg(format!("({now}"));
        cmd.arg("+inf").arg("BYSCORE");
        let mut call_timeout = self.inner.call_timeout;
        if let Some(most) = most {
            cmd.arg("LIMIT").arg(0).arg(most);
            call_timeout /= 5;
        }
        let reply = server.call(&cmd, call_timeout).await?;
        let mut managers: Vec<String> = decode("ZRANGE", reply)?;
        managers.sort_unstable();
        Ok(managers)
    }

    /// Returns the entries of the registry that are readable.
    pub(super) async fn registered(&self) -> Result<BTreeMap<Topic, Entry>, BrokerError> {
        let mut topics = BTreeMap::new();
        for (name, entry) in self.fields(&self.inner.registry.topics).await? {
            if name == ":version" {
                continue;
            }
            match (name.parse::<Topic>(), Entry::read(&entry)) {
                (Ok(topic), Some(entry)) => drop(topics.insert(topic, entry)),
                _ => self.cannot_read(&name, &unexpected("a topic and its epoch", &entry)),
            }
        }
        Ok(topics)
    }

    /// Reads a topic from Redis. Returns `None` if its keys are lost.
    ///
    /// # Errors
    /// [`BrokerError::UnknownTopic`] if it was removed, which forgets it; other [`BrokerError`]s.
    pub(super) async fn load(
        &self,
        topic: &Topic,
    ) -> Result<Option<Arc<TopicHandle>>, BrokerError> {
        let map = self.read_shard_map(topic).await?;
        let shard = ShardKeys::new(&self.inner.namespace, topic, Shard::new(map.old.end), &[]);
        let fields = [
            "layout", "epoch", "settings", "groups", "removed", "version", "created",
        ];
        let Some([layout, epoch, settings, groups, removed, version, created]) =
            self.conf(&shard, fields).await?
        else {
            return Ok(None);
        };
        let removed: Option<String> = decode("HMGET", removed)?;
        if removed.as_deref() == Some("gone") {
            return Err(self.forget_topic(topic));
        }
        let layout = decode("HMGET", layout)?;
        if layout != LAYOUT {
            return Err(self.other_layout(topic, layout));
        }
        let removal = removed.and_then(|word| word.parse().ok());
        let version: Option<u64> = decode("HMGET", version)?;
        let epoch = decode("HMGET", epoch)?;
        let settings: String = decode("HMGET", settings)?;
        let groups: String = decode("HMGET", groups)?;
        let created: Option<u64> = decode("HMGET", created)?;
        let life = Life {
            // Older releases wrote no version.
            version: version.unwrap_or(1),
            created: created.map(UnixMs::new),
            removal,
        };
        let handle = self.remember(topic, epoch, &settings, &groups, life, map);
        handle.await.map(Some)
    }

    /// Reads fields of a shard's `conf`; `None` if none of them is there.
    async fn conf<const N: usize>(
        &self,
        shard: &ShardKeys,
        fields: [&str; N],
    ) -> Result<Option<[Value; N]>, BrokerError> {
        let values = command("HMGET", &shard.conf).arg(&fields);
        let values: [Value; N] = self.ask(values).await?;
        let is_there = values.iter().any(|value| *value != Value::Nil);
        Ok(is_there.then_some(values))
    }

    /// Returns true if a shard has all that a declaration writes.
    pub(super) async fn is_declared(
        &self,
        topic: &TopicHandle,
        shard: Shard,
    ) -> Result<bool, BrokerError> {
        let written = ["epoch", "shards", "groups", "settings", "class", "layout"];
        let there = self.conf(topic.keys(shard)?, written).await?;
        Ok(there.is_some_and(|there| !there.contains(&Value::Nil)))
    }

    /// Keeps a topic's settings in memory, and its groups as the `conf` of each shard has them. `groups` are those of
    /// one shard.
    pub(super) async fn remember(
        &self,
        topic: &Topic,
        epoch: u64,
        text: &str,
        groups: &str,
        life: Life,
        map: ShardMap,
    ) -> Result<Arc<TopicHandle>, BrokerError> {
        let settings: TopicSettings =
            serde_json::from_str(text).map_err(|error| self.bad_settings(topic, &error))?;
        settings
            .check()
            .map_err(|problems| self.bad_settings(topic, &problems[0]))?;
        let groups = self.groups_in(topic, groups)?;
        let mut handle =
            TopicHandle::new(&self.inner.namespace, topic, epoch, settings, &groups, map);
        handle.life = life;
        Ok(self.put(self.look_at_groups(handle).await))
    }

    /// Reads the groups of all other shards. A group that is being added or removed may be on some of them only, and
    /// would be left there if it were unknown. A shard that does not answer is assumed to be like the first; calls to it
    /// will show.
    async fn look_at_groups(&self, handle: TopicHandle) -> TopicHandle {
        let others = handle.shards().filter(|shard| shard.get() != handle.open());
        let reads = others.filter_map(|shard| {
            let keys = handle.keys(shard).ok()?;
            Some(async move { (shard, self.conf(keys, ["groups"]).await) })
        });
        let reads: Vec<_> = reads.collect();
        let mut differing = Vec::new();
        let mut reads = stream::iter(reads).buffer_unordered(CONCURRENT_READS);
        while let Some((shard, reply)) = reads.next().await {
            if let Ok(Some([names])) = reply
                && let Ok(names) = decode::<String>("HMGET", names)
                && let Ok(groups) = self.groups_in(handle.name(), &names)
                && groups != handle.groups()
            {
                differing.push((shard, groups));
            }
        }
        drop(reads);
        let namespace = &self.inner.namespace;
        differing
            .into_iter()
            .fold(handle, |handle, (shard, groups)| {
                handle.with_groups(namespace, shard, &groups)
            })
    }

    pub(super) fn groups_in(&self, topic: &Topic, names: &str) -> Result<Vec<Group>, BrokerError> {
        names
            .split_whitespace()
            .map(|name| {
                name.parse()
                    .map_err(|error| self.bad_settings(topic, &error))
            })
            .collect()
    }

    /// Forgets a topic whose key layout this version does not know.
    pub(super) fn other_layout(&self, topic: &Topic, there: u64) -> BrokerError {
        self.forget_known(topic);
        BrokerError::Layout {
            topic: topic.clone(),
            there,
        }
    }

    /// Forgets a topic that was removed.
    pub(super) fn forget_topic(&self, topic: &Topic) -> BrokerError {
        self.forget_known(topic);
        BrokerError::UnknownTopic(topic.clone())
    }

    fn forget_known(&self, topic: &Topic) {
        if self.topics_mut().remove(topic).is_some() {
            self.inner.changes.send_modify(|count| *count += 1);
            if let Some(observer) = &self.inner.observer {
                observer.topic_gone(topic.as_str());
            }
        }
    }

    /// Replaces the known handle of a topic.
    fn put(&self, handle: TopicHandle) -> Arc<TopicHandle> {
        let handle = Arc::new(handle);
        self.topics_mut()
            .insert(handle.name().clone(), handle.clone());
        self.inner.changes.send_modify(|count| *count += 1);
        handle
    }

    /// Reads the groups of one shard again: they have changed since the handle was made.
    pub(super) async fn reload_groups(
        &self,
        handle: &TopicHandle,
        shard: Shard,
    ) -> Result<(), BrokerError> {
        let unknown = || BrokerError::UnknownTopic(handle.name().clone());
        let Some([names]) = self.conf(handle.keys(shard)?, ["groups"]).await? else {
            let newest = self.load(handle.name()).await?.ok_or_else(unknown)?;
            return newest.keys(shard).and(Err(unknown()));
        };
        let names: String = decode("HMGET", names)?;
        let groups = self.groups_in(handle.name(), &names)?;
        // The topic may have been resharded since the caller got its handle.
        let newest = self.topic(handle.name()).await?;
        newest.keys(shard)?;
        self.put(newest.with_groups(&self.inner.namespace, shard, &groups));
        Ok(())
    }

    pub(super) fn bad_settings(&self, topic: &Topic, error: &dyn std::fmt::Display) -> BrokerError {
        BrokerError::Settings {
            topic: topic.clone(),
            error: error.to_string(),
        }
    }
}
