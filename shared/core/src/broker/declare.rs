//! Declares topics: registers one, or updates its settings. The first shard decides which settings are in force, and the others follow.

use std::borrow::Cow;
use std::sync::Arc;

use crate::broker::reshard::shard_map::ShardMap;
use crate::broker::topic_handle::Life;
use crate::broker::{Broker, BrokerError, TopicHandle};
use crate::keys::ShardKeys;
use crate::scripts::{self, DeclareMode, DeclareReply, Declared};
use crate::topic::{Group, Shard, Topic, TopicSettings};

/// The maximum number of attempts: a topic may turn out to be on other shards, or on another number of them.
const MOST_TRIES: u8 = 3;

/// The treatment of settings that Redis already holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Declare {
    /// Keeps them: the process that starts first declares.
    Create,
    /// Replaces them: the manager's file is the authority.
    Update,
    /// Replaces them if the topic is at this epoch, which is 0 if it must not exist. Settings that are in force already count as
    /// replaced, so a repeated call succeeds.
    UpdateAt(u64),
}

impl Broker {
    /// Registers a topic and creates its groups, or updates its settings. Returns the topic as it is now.
    ///
    /// An existing group stays, whatever the settings say; see [`Broker::retire`]. The number of shards in the settings
    /// is for a new topic: afterwards only [`Broker::reshard`] changes it.
    ///
    /// # Errors
    /// [`BrokerError::Epoch`] with [`Declare::UpdateAt`]; other [`BrokerError`]s.
    pub async fn declare(
        &self,
        topic: &Topic,
        settings: &TopicSettings,
        mode: Declare,
    ) -> Result<Arc<TopicHandle>, BrokerError> {
        settings
            .check()
            .map_err(|problems| self.bad_settings(topic, &problems[0]))?;
        let mut settings = Cow::Borrowed(settings);
        let mut tries = 0;
        loop {
            let map = self.read_shard_map(topic).await?;
            let declared = self
                .declare_groups(topic, &settings, &settings.groups, mode, map)
                .await;
            tries += 1;
            match declared {
                Err(BrokerError::Fixed { there, .. }) if tries < MOST_TRIES => {
                    settings.to_mut().shards = there;
                }
                // Another process restores it on other shards.
                Err(BrokerError::Changing(_)) if tries < MOST_TRIES => {}
                declared => return declared,
            }
        }
    }

    pub(super) async fn declare_groups(
        &self,
        topic: &Topic,
        settings: &TopicSettings,
        groups: &[Group],
        mode: Declare,
        map: ShardMap,
    ) -> Result<Arc<TopicHandle>, BrokerError> {
        let text =
            serde_json::to_string(settings).map_err(|error| self.bad_settings(topic, &error))?;
        let (first, count) = (map.old.end, settings.shards);
        let mode_of_first = match mode {
            Declare::Create => DeclareMode::Create,
            Declare::Update => DeclareMode::Update { seen: None },
            Declare::UpdateAt(epoch) => DeclareMode::Update { seen: Some(epoch) },
        };
        let call = scripts::Declare {
            mode: mode_of_first,
            groups,
            settings,
            text: &text,
            version: None,
        };
        let decided = self.declare_shard(topic, Shard::new(first), &call).await?;
        // If this process stops now, the managers make the other shards follow.
        let is_changed = self.register(topic, count, decided.epoch).await?;
        let in_force = match decided.settings == text {
            true => settings,
            false => &serde_json::from_str(&decided.settings)
                .map_err(|error| self.bad_settings(topic, &error))?,
        };
        let there = self.groups_in(topic, &decided.groups)?;
        let lasting = there.into_iter().filter(|group| !group.is_of_instance());
        let (mode, groups) = match mode {
            Declare::Create => (DeclareMode::Create, lasting.collect()),
            _ => (DeclareMode::Update { seen: None }, groups.to_vec()),
        };
        let call = scripts::Declare {
            mode,
            groups: &groups,
            settings: in_force,
            text: &decided.settings,
            version: Some(decided.version),
        };
        for shard in (first + 1..first + count).map(Shard::new) {
            let declared = self.declare_shard(topic, shard, &call).await;
            if let Err(BrokerError::BeingRemoved(_)) = declared
                && self.remove_leftover(topic, shard, &call).await?
            {
                self.declare_shard(topic, shard, &call).await?;
            } else {
                declared?;
            }
        }
        if is_changed {
            self.wake_managers().await;
        }
        let Declared {
            epoch,
            settings,
            groups,
            version,
            created,
            ..
        } = decided;
        let life = Life {
            version,
            created,
            removal: None,
        };
        self.remember(topic, epoch, &settings, &groups, life, map)
            .await
    }

    /// Declares one shard.
    async fn declare_shard(
        &self,
        topic: &Topic,
        shard: Shard,
        call: &scripts::Declare<'_>,
    ) -> Result<Declared, BrokerError> {
        let keys = ShardKeys::new(&self.inner.namespace, topic, shard, call.groups);
        let reply = self.run(&keys, call).await?;
        let topic = topic.clone();
        match reply.map_err(|_| BrokerError::UnknownTopic(topic.clone()))? {
            DeclareReply::Declared(declared) => {
                if declared.changed {
                    tracing::info!(%topic, %shard, epoch = declared.epoch, "declared");
                }
                Ok(declared)
            }
            DeclareReply::Layout(there) => Err(self.other_layout(&topic, there)),
            DeclareReply::Epoch(there) => Err(BrokerError::Epoch { topic, there }),
            DeclareReply::Resharding(to) => Err(BrokerError::Resharding { topic, to }),
            DeclareReply::Full(groups) => Err(BrokerError::TooManyGroups { topic, groups }),
            DeclareReply::Redirected => Err(BrokerError::Changing(topic)),
            DeclareReply::Removed { is_over: true } => Err(self.forget_topic(&topic)),
            DeclareReply::Removed { is_over: false } => {
                // This process may not have noticed.
                if let Ok(Some(there)) = self.load(&topic).await {
                    self.resume_removal(&there).await?;
                }
                Err(BrokerError::BeingRemoved(topic))
            }
            DeclareReply::Shards(there) => Err(BrokerError::Fixed {
                topic,
                there,
                here: call.settings.shards,
            }),
        }
    }
}
