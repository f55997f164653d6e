//! Reshards a topic: changes its number of shards while it is in use.
//!
//! New shards are created with numbers after the old ones, and all processes learn of them. The managers then do the
//! rest ([`Broker::migrate_out`]): each old shard is closed, and its messages migrate. A process that looks for the
//! topic begins at shard 0, whose `next` points to the first of the newest shards. The `previous` of that shard points
//! to the first old one.

pub(crate) mod migrate;
pub(crate) mod routing;
pub(crate) mod shard_map;

use std::ops::Range;
use std::sync::Arc;

use crate::broker::reply::{command, utf8};
use crate::broker::{Broker, BrokerError, TopicHandle};
use crate::keys::ShardKeys;
use crate::scripts::{self, Call, CreateShard, DeclareReply, DropKeys, FinishReshard, Refusal};
use crate::topic::{Group, Shard, Topic, TopicSettings};

/// The allowance for arrivals on the old shards between the creation of the new ones and the closing of the old ones.
const ARRIVALS_MEANWHILE: u64 = 10_000_000;
/// The maximum arrival number that new shards may begin with. Arrival numbers have twelve digits.
const MOST_ARRIVALS: u64 = 900_000_000_000;
/// The fields of `conf` that are not settings, which new shards copy from the old ones.
const FLAGS: [&str; 5] = [
    "created",
    "paused",
    "retiring:",
    "instance:",
    "garbage_hook:",
];

/// The outcome of a request to reshard.
#[derive(Clone, Debug)]
pub enum Resharded {
    /// The topic already has this number of shards, and is not being resharded.
    Same,
    /// The topic is being resharded, as of now or since before.
    UnderWay(Arc<TopicHandle>),
}

/// A resharding as its first old shard records it.
struct Begun {
    shards: u16,
    /// The version of the settings.
    version: u64,
    /// True if this process recorded it.
    is_own: bool,
}

/// New shards of a topic that are being created after its old ones.
struct Opening<'a> {
    broker: &'a Broker,
    handle: &'a TopicHandle,
    /// The settings with the new number of shards.
    settings: &'a TopicSettings,
    old: Range<u16>,
    /// The version of the settings.
    version: u64,
    /// An arrival number above any on the old shards.
    arrivals: u64,
}

impl Opening<'_> {
    /// Returns the first epoch of the topic with the new shards.
    fn epoch(&self) -> u64 {
        self.handle.epoch() + 1
    }

    /// Returns the keys of the new shards.
    fn shards(&self) -> impl Iterator<Item = ShardKeys> {
        let numbers = self.old.end..self.old.end + self.settings.shards;
        let (name, groups) = (self.handle.name(), self.handle.groups());
        numbers.map(move |shard| self.broker.shard_keys(name, Shard::new(shard), groups))
    }

    async fn declare(&self) -> Result<(), BrokerError> {
        let name = self.handle.name();
        let text = serde_json::to_string(self.settings);
        let text = text.map_err(|error| self.broker.bad_settings(name, &error))?;
        let call = scripts::Declare {
            mode: scripts::DeclareMode::Create,
            groups: self.handle.groups(),
            settings: self.settings,
            text: &text,
            version: Some(self.version),
        };
        for (keys, shard) in self.shards().zip(self.old.end..) {
            let mut declared = self.broker.run(&keys, &call).await?;
            if matches!(declared, Ok(DeclareReply::Removed { is_over: false })) {
                let shard = Shard::new(shard);
                self.broker.remove_leftover(name, shard, &call).await?;
                declared = self.broker.run(&keys, &call).await?;
            }
            if !matches!(declared, Ok(DeclareReply::Declared(_))) {
                return Err(BrokerError::Changing(name.clone()));
            }
        }
        Ok(())
    }

    /// Makes the new shards the successors of the old ones, of which `previous` is the first. Without it, only copies
    /// the flags of the old ones.
    async fn open(&self, previous: Option<Shard>) -> Result<(), BrokerError> {
        let flags = self.broker.flags(self.handle, self.old.start).await?;
        let call = CreateShard {
            previous,
            epoch: self.epoch(),
            arrivals: self.arrivals,
            flags: &flags,
        };
        let unknown = |_| BrokerError::UnknownTopic(self.handle.name().clone());
        for keys in self.shards() {
            self.broker.run(&keys, &call).await?.map_err(unknown)?;
        }
        Ok(())
    }
}

impl Broker {
    /// Creates new shards for a topic, to which managers then migrate the messages of the old ones. Continues a
    /// resharding that was begun and interrupted.
    ///
    /// # Errors
    /// [`BrokerError::Resharding`] if it is being resharded to another number of shards; [`BrokerError::Settings`] for
    /// an invalid number; other [`BrokerError`]s. Calling again is safe.
    pub async fn reshard(&self, topic: &Topic, shards: u16) -> Result<Resharded, BrokerError> {
        let unknown = || BrokerError::UnknownTopic(topic.clone());
        let handle = self.load(topic).await?.ok_or_else(unknown)?;
        let now = handle.settings().shards;
        let already = |to: u16| BrokerError::Resharding {
            topic: topic.clone(),
            to,
        };
        if handle.removal().is_some() {
            return Err(BrokerError::BeingRemoved(topic.clone()));
        }
        if handle.is_resharding() {
            return match now == shards {
                true => Ok(Resharded::UnderWay(handle)),
                false => Err(already(now)),
            };
        }
        if now == shards {
            return Ok(Resharded::Same);
        }
        let with_new_number = |handle: &TopicHandle| TopicSettings {
            shards,
            ..handle.settings().clone()
        };
        let checked = with_new_number(&handle).check();
        checked.map_err(|problems| self.bad_settings(topic, &problems[0]))?;
        let old = handle.open()..handle.open() + now;
        if old.end.checked_add(shards).is_none() {
            let error = "no shard numbers left (the last is 65535): it was resharded too often";
            return Err(self.bad_settings(topic, &error));
        }
        let most = MOST_ARRIVALS - ARRIVALS_MEANWHILE;
        if self.most_arrivals(&handle).await? > most {
            let error = "no arrival numbers left: too many messages have arrived";
            return Err(self.bad_settings(topic, &error));
        }
        // The first caller decides on the number. The field is removed together with the shard. From now on, the settings of
        // the old shards stay as they are, so those read now are the ones that the new shards get.
        let begun = self.begin(&handle, old.start, shards).await?;
        if begun.shards != shards {
            return Err(already(begun.shards));
        }
        let version = begun.version;
        let handle = self.load(topic).await?.ok_or_else(unknown)?;
        if handle.open() != old.start {
            return Err(BrokerError::Changing(topic.clone()));
        }
        if (handle.settings().shards, handle.life.version) != (now, version) {
            // While this process was paused, the topic was removed, and another one was created.
            if begun.is_own {
                self.call_off(&handle, old.start).await?;
            }
            return Err(BrokerError::Changing(topic.clone()));
        }
        if handle.removal().is_some() {
            // From now on, its removal cannot begin. It began before.
            self.call_off(&handle, old.start).await?;
            return Err(BrokerError::BeingRemoved(topic.clone()));
        }
        let opening = Opening {
            broker: self,
            handle: &handle,
            settings: &with_new_number(&handle),
            old: old.clone(),
            version,
            arrivals: self.most_arrivals(&handle).await? + ARRIVALS_MEANWHILE,
        };
        opening.declare().await?;
        opening.open(Some(Shard::new(old.start))).await?;
        let redirect = scripts::Redirect {
            next: old.end,
            restores: false,
        };
        self.redirect(topic, &redirect).await?;
        if self.read_shard_map(topic).await?.old != old {
            // Other processes did and finished all of this while this process was paused.
            return Err(BrokerError::Changing(topic.clone()));
        }
        // Copies the flags once more: something may have been paused, or may have joined, in the meantime.
        opening.open(None).await?;
        self.register(topic, shards, opening.epoch()).await?;
        tracing::info!(%topic, from = now, to = shards, first = old.end, "resharding");
        let handle = self.load(topic).await?.ok_or_else(unknown)?;
        Ok(Resharded::UnderWay(handle))
    }

    /// Records the new number of shards of a topic, unless one is recorded already.
    async fn begin(&self, handle: &TopicHandle, first: u16, to: u16) -> Result<Begun, BrokerError> {
        let conf = &handle.keys(Shard::new(first))?.conf;
        let set = command("HSETNX", conf).arg("resharding").arg(to);
        let is_own = self.ask(set).await?;
        let fields = command("HMGET", conf).arg(&["resharding", "version"]);
        let (shards, version): (u16, Option<u64>) = self.ask(fields).await?;
        Ok(Begun {
            shards,
            // Older releases wrote no version.
            version: version.unwrap_or(1),
            is_own,
        })
    }

    /// Removes the new number of shards of a topic, so that its settings can be changed again.
    async fn call_off(&self, handle: &TopicHandle, first: u16) -> Result<(), BrokerError> {
        let conf = &handle.keys(Shard::new(first))?.conf;
        let remove = command("HDEL", conf).arg("resharding");
        self.ask(remove).await
    }

    /// Returns the highest arrival number of all shards.
    async fn most_arrivals(&self, handle: &TopicHandle) -> Result<u64, BrokerError> {
        let mut most = 0;
        for shard in handle.shards() {
            let stats = &handle.keys(shard)?.stats;
            let [seq]: [Option<Vec<u8>>; 1] = self.ask(command("HMGET", stats).arg("seq")).await?;
            let seq = seq.and_then(utf8).and_then(|seq| seq.parse().ok());
            most = most.max(seq.unwrap_or(0));
        }
        Ok(most)
    }

    /// Returns the fields of a shard's `conf` that are not settings.
    async fn flags(
        &self,
        handle: &TopicHandle,
        shard: u16,
    ) -> Result<Vec<(String, String)>, BrokerError> {
        let conf = &handle.keys(Shard::new(shard))?.conf;
        let fields = self.fields(conf).await?;
        let is_flag =
            |(name, _): &(String, String)| FLAGS.iter().any(|flag| name.starts_with(flag));
        Ok(fields.into_iter().filter(is_flag).collect())
    }

    /// Reads all fields of a hash as text.
    pub(super) async fn fields(
        &self,
        hash: &crate::keys::Key,
    ) -> Result<Vec<(String, String)>, BrokerError> {
        self.ask(command("HGETALL", hash)).await
    }

    fn shard_keys(&self, topic: &Topic, shard: Shard, groups: &[Group]) -> ShardKeys {
        ShardKeys::new(&self.inner.namespace, topic, shard, groups)
    }

    /// Finishes a resharding if all retiring shards are empty, their counters are merged, and the dedup window of all
    /// their ended messages is over. Returns whether it has finished.
    pub(super) async fn finish_reshard(&self, handle: &TopicHandle) -> Result<bool, BrokerError> {
        for shard in handle.old().map(Shard::new) {
            let stats = &handle.keys(handle.successor(shard))?.stats;
            let merged = command("HEXISTS", stats).arg(format!("merged_from_{shard}"));
            let tombstones = command("ZCARD", &handle.keys(shard)?.tomb);
            if !self.ask::<bool>(merged).await? || self.ask::<u64>(tombstones).await? > 0 {
                return Ok(false);
            }
        }
        let old = handle.old();
        self.mark_retired(handle.name(), old.clone(), false).await?;
        let mut epoch = 0;
        let call = FinishReshard { old: old.clone() };
        // The first of them comes last: it is the one that others read.
        let new = (old.end..old.end + handle.settings().shards).rev();
        for shard in new.map(Shard::new) {
            let finished = self.run(handle.keys(shard)?, &call).await?;
            let unknown = |_| BrokerError::UnknownTopic(handle.name().clone());
            epoch = epoch.max(finished.map_err(unknown)?);
        }
        let topic = handle.name();
        self.register(topic, handle.settings().shards, epoch)
            .await?;
        self.load(topic).await?;
        tracing::info!(%topic, shards = handle.settings().shards, "resharded");
        Ok(true)
    }

    /// Removes the keys of retired shards, once their topic has been resharded.
    ///
    /// # Errors
    /// [`BrokerError`]; calling again is safe.
    pub async fn drop_retired_keys(&self, topic: &TopicHandle) -> Result<(), BrokerError> {
        let Some(Range { start, end }) = topic.retired() else {
            return Ok(());
        };
        // Shard 0 comes last: it records what is to be done, and keeps what points to the others.
        for shard in (start..end).rev().map(Shard::new) {
            let next = (shard.get() == 0).then(|| Shard::new(topic.open()));
            let conf = &self.shard_keys(topic.name(), shard, &[]).conf;
            let names = command("HMGET", conf).arg("groups");
            let [names]: [Option<Vec<u8>>; 1] = self.ask(names).await?;
            let Some(names) = names.and_then(utf8) else {
                continue;
            };
            let groups = self.groups_in(topic.name(), &names)?;
            let keys = self.shard_keys(topic.name(), shard, &groups);
            let call = Call {
                now: self.virtual_now(),
                groups: &keys.group_names,
                group: None,
                general: &DropKeys { next },
            };
            match self.run(&keys, &call).await? {
                Ok(true) | Err(Refusal::Undeclared) => {}
                Ok(false) | Err(_) => return Err(BrokerError::Changing(topic.name().clone())),
            }
        }
        self.mark_retired(topic.name(), start..end, true).await?;
        self.load(topic.name()).await?;
        Ok(())
    }
}
