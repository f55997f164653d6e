//! Pauses, retires, removes and shows groups, for HTTP and the command line.

use std::time::Duration;

use lisa_core::broker::{
    Broker, BrokerError, Declare, GroupStats, Removed, Retired, Retirement, TopicHandle,
    TopicStats, unless_gone,
};
use lisa_core::topic::{Group, MAX_GROUPS, Topic};
use lisa_service::config::Config;
use serde::{Deserialize, Serialize};
use tokio::time::timeout;
use utoipa::ToSchema;

use super::counted;

/// The longest time for which a request drops messages itself. The managers drop the rest.
const DROP_FOR: Duration = Duration::from_secs(2);
/// The most attempts to change the settings of a topic that others change at the same time.
const MAX_TRIES: usize = 5;

/// A group of a topic with its counts.
#[derive(Debug, Serialize, Deserialize, ToSchema)]
pub(crate) struct GroupView {
    pub(crate) topic: Topic,
    /// True if the topic's settings name it; absent for the group of one instance, which they never name.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) configured: Option<bool>,
    #[serde(flatten)]
    pub(crate) stats: GroupStats,
}

impl GroupView {
    /// Returns a view of each group of a topic.
    pub(crate) fn all(stats: &TopicStats) -> Vec<Self> {
        let view = |group: &GroupStats| Self {
            topic: stats.topic.clone(),
            configured: (!group.instance).then_some(!group.unconfigured),
            stats: group.clone(),
        };
        stats.groups.iter().map(view).collect()
    }
}

/// Returns whether the topic's settings name a group.
pub(crate) fn is_configured(topic: &TopicHandle, group: &Group) -> bool {
    topic.settings().groups.contains(group)
}

/// A group that was paused or resumed.
#[derive(Debug, Serialize, Deserialize, ToSchema)]
pub(crate) struct GroupPaused {
    topic: Topic,
    group: Group,
    paused: bool,
    /// False if it was in that state already.
    pub(crate) changed: bool,
}

/// Pauses or resumes a group.
///
/// # Errors
/// [`BrokerError`]; calling again is safe.
pub(crate) async fn pause(
    broker: &Broker,
    topic: &TopicHandle,
    group: &Group,
    paused: bool,
) -> Result<GroupPaused, BrokerError> {
    Ok(GroupPaused {
        topic: topic.name().clone(),
        group: group.clone(),
        paused,
        changed: broker.pause_group(topic, group, paused).await?,
    })
}

/// A group that was retired or kept.
#[derive(Debug, Serialize, Deserialize, ToSchema)]
pub(crate) struct GroupRetired {
    topic: Topic,
    group: Group,
    /// `drain` or `drop`; null if it was kept.
    retiring: Option<Retirement>,
    /// False if it was in that state already.
    pub(crate) changed: bool,
    /// The number of messages it still has.
    pub(crate) left: u64,
    /// True if the topic's settings name it: the next manager start, or change of the topic, creates it again.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub(crate) configured: bool,
    /// True if no group of the topic gets messages: due messages wait until one does.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub(crate) messages_wait: bool,
}

impl GroupRetired {
    /// Returns the outcome for the audit log.
    pub(crate) fn outcome(&self) -> String {
        if self.changed {
            format!("done; it has {}", counted(self.left, "message"))
        } else {
            "unchanged".to_owned()
        }
    }
}

/// Drains a group, marks it to be dropped, or cancels either, and counts its messages. `config` is the managers' configuration,
/// if it is known. If it does not declare the topic, the group is removed from the settings of the topic before it retires, and added
/// to them again before it is kept.
///
/// # Errors
/// [`BrokerError`]; calling again is safe.
pub(crate) async fn retire(
    broker: &Broker,
    config: Option<&Config>,
    topic: &TopicHandle,
    group: &Group,
    how: Option<Retirement>,
) -> Result<GroupRetired, BrokerError> {
    let name = topic.name();
    let is_free = config.is_some_and(|config| !config.topics.contains_key(name));
    let settings_changed = is_free && set_configured(broker, name, group, how.is_none()).await?;
    let changed = broker.retire(topic, group, how).await? == Retired::Done || settings_changed;
    let topic = &*broker.topic(name).await?;
    let counts = broker.stats(topic).await?.groups;
    let messages_wait = counts.iter().all(|counts| counts.retiring.is_some());
    let stats = counts.iter().find(|counts| counts.group == *group);
    Ok(GroupRetired {
        topic: topic.name().clone(),
        group: group.clone(),
        retiring: how,
        changed,
        left: stats.map_or(0, GroupStats::messages),
        configured: is_configured(topic, group),
        messages_wait,
    })
}

/// Adds an existing group to the settings of a topic, or removes it from them. While the topic is resharded or removed, its settings
/// stay as they are. Returns true if they have changed.
async fn set_configured(
    broker: &Broker,
    topic: &Topic,
    group: &Group,
    configured: bool,
) -> Result<bool, BrokerError> {
    let mut tries = 0;
    loop {
        let there = broker.newest(topic).await?;
        let is_there = there.groups().contains(group) && !group.is_of_instance();
        if !is_there || is_configured(&there, group) == configured {
            return Ok(false);
        }
        let mut settings = there.settings().clone();
        // A group that they name and that was removed would be created again.
        let stays = |named: &Group| named != group && there.groups().contains(named);
        settings.groups.retain(stays);
        if configured {
            if settings.groups.len() >= MAX_GROUPS {
                return Ok(false);
            }
            settings.groups.push(group.clone());
        }
        tries += 1;
        let mode = Declare::UpdateAt(there.epoch());
        match broker.declare(topic, &settings, mode).await {
            Err(BrokerError::Epoch { .. }) if tries < MAX_TRIES => {}
            Err(BrokerError::Resharding { .. } | BrokerError::BeingRemoved(_)) => return Ok(false),
            declared => return declared.map(|_| true),
        }
    }
}

/// Begins to drop a group marked to be dropped, for up to [`DROP_FOR`]. The `clean` job of the managers continues.
pub(crate) async fn begin_drop(broker: &Broker, topic: &TopicHandle, group: &Group) {
    let dropped = timeout(DROP_FOR, drop_all(broker, topic, group, |_| {}));
    if let Ok(Err(error)) = dropped.await {
        tracing::debug!(topic = %topic.name(), %group, %error, "cannot drop the group now; the next run of the clean job will");
    }
}

/// The result of dropping a group.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Dropped {
    /// The number of messages that this call dropped; managers may have dropped others.
    pub(crate) messages: u64,
    /// True if the group is gone, false if another operator kept it in the meantime.
    pub(crate) gone: bool,
}

/// Drops the messages of a group marked to be dropped, in batches, and removes it. Calls `progress` with the number dropped
/// so far after each batch.
///
/// # Errors
/// [`BrokerError`]; part of the messages may be dropped. Repeating the call continues, and so does a manager.
///
/// # Cancel safety
/// Each batch is atomic. If the future is dropped, a manager continues.
pub(crate) async fn drop_all(
    broker: &Broker,
    topic: &TopicHandle,
    group: &Group,
    mut progress: impl FnMut(u64),
) -> Result<Dropped, BrokerError> {
    let mut messages = 0;
    let mut shards = broker.all_shards(topic);
    while let Some((topic, shard)) = shards.next().await? {
        loop {
            match unless_gone(broker.remove_group(&topic, shard, group).await) {
                Ok(Some(Removed::More { dropped })) => messages += dropped,
                Ok(Some(Removed::Gone { dropped, .. })) => {
                    messages += dropped;
                    break;
                }
                // The shard was retired, or a manager was faster on it.
                Ok(None) | Err(BrokerError::UnknownGroup { .. }) => break,
                Ok(Some(Removed::Kept)) => {
                    return Ok(Dropped {
                        messages,
                        gone: false,
                    });
                }
                Err(error) => return Err(error),
            }
            progress(messages);
        }
    }
    Ok(Dropped {
        messages,
        gone: true,
    })
}

/// Warns about each group that exists in Redis, is not named in the settings and is not retiring: it may have been
/// forgotten, and its messages pile up.
pub(crate) async fn warn_unconfigured(broker: &Broker, topic: &TopicHandle) {
    let may_be_forgotten = |group: &Group| !group.is_of_instance() && !is_configured(topic, group);
    if !topic.groups().iter().any(may_be_forgotten) {
        return;
    }
    let stats = match broker.stats(topic).await {
        Ok(stats) => stats,
        Err(error) => {
            tracing::debug!(topic = %topic.name(), %error, "cannot check for groups that are not configured");
            return;
        }
    };
    let name = topic.name();
    for counts in stats.groups {
        let group = &counts.group;
        if counts.unconfigured && counts.retiring.is_none() {
            tracing::warn!(
                topic = %name,
                %group,
                messages = counts.messages(),
                "the topic has a group that the configuration does not name and that still gets every message: name it, \
                 or remove it with `lisa-manager groups drain {name} {group}` or `lisa-manager groups drop {name} {group}`"
            );
        }
    }
}
