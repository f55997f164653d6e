//! Pausing, retiring and removing groups, and how they are shown, for the HTTP interface and the command line alike.

use lisa_shared::broker::{
    Broker, BrokerError, GroupStats, Removed, Retired, Retirement, TopicHandle, TopicStats,
    unless_gone,
};
use lisa_shared::topic::{Group, Topic};
use serde::Serialize;
use utoipa::ToSchema;

/// A group of a topic with its counts.
#[derive(Debug, Serialize)]
pub(crate) struct GroupView {
    pub(crate) topic: Topic,
    /// Whether the settings name it; a group of one instance is never named there.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) configured: Option<bool>,
    #[serde(flatten)]
    pub(crate) stats: GroupStats,
}

impl GroupView {
    /// Shows each group of a topic.
    pub(crate) fn all(topic: &TopicHandle, stats: &TopicStats) -> Vec<Self> {
        let view = |stats: &GroupStats| Self {
            topic: topic.name().clone(),
            configured: (!stats.instance).then_some(!stats.unconfigured),
            stats: stats.clone(),
        };
        stats.groups.iter().map(view).collect()
    }
}

/// Says whether a topic's settings, which are those of the manager's file, name a group.
pub(crate) fn is_configured(topic: &TopicHandle, group: &Group) -> bool {
    topic.settings().groups.contains(group)
}

/// Counts the messages that a group still has.
pub(crate) fn left_of(stats: &GroupStats) -> u64 {
    counts_of(stats).iter().map(|(_, count)| count).sum()
}

/// A group's messages by state.
pub(crate) fn counts_of(stats: &GroupStats) -> [(&'static str, u64); 6] {
    [
        ("backlog", stats.backlog),
        ("parked", stats.parked),
        ("ready", stats.ready),
        ("in_flight", stats.in_flight),
        ("retry", stats.retry),
        ("garbage", stats.garbage),
    ]
}

/// A group that was paused or resumed.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct GroupPaused {
    #[schema(value_type = String)]
    topic: Topic,
    #[schema(value_type = String)]
    group: Group,
    paused: bool,
    /// Whether that was news.
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

/// A group that begins to go away, or stays after all.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct GroupRetired {
    #[schema(value_type = String)]
    topic: Topic,
    #[schema(value_type = String)]
    group: Group,
    /// `drain` or `drop`; null if it stays.
    retiring: Option<&'static str>,
    /// Whether that was news.
    pub(crate) changed: bool,
    /// Messages that it has.
    pub(crate) left: u64,
    /// Whether no other group of the topic gets messages: what becomes due waits for one.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub(crate) messages_wait: bool,
    /// What it has, and whether it is paused.
    #[serde(skip)]
    pub(crate) stats: Option<GroupStats>,
}

/// Lets a group drain, marks it to be dropped, or takes that back, and counts what it has.
///
/// # Errors
/// [`BrokerError`]; calling again is safe.
pub(crate) async fn retire(
    broker: &Broker,
    topic: &TopicHandle,
    group: &Group,
    how: Option<Retirement>,
) -> Result<GroupRetired, BrokerError> {
    let changed = broker.retire(topic, group, how).await? == Retired::Done;
    let counts = broker.stats(topic).await?.groups;
    let messages_wait = counts.iter().all(|counts| counts.retiring.is_some());
    let stats = counts.into_iter().find(|counts| counts.group == *group);
    Ok(GroupRetired {
        topic: topic.name().clone(),
        group: group.clone(),
        retiring: how.map(Retirement::as_str),
        changed,
        left: stats.as_ref().map_or(0, left_of),
        messages_wait,
        stats,
    })
}

/// How the removal of a group that is to be dropped ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Dropped {
    /// Messages dropped by this caller; managers may have dropped others.
    pub(crate) messages: u64,
    /// Whether the group is gone; else somebody kept it meanwhile.
    pub(crate) gone: bool,
}

/// Drops what a group marked for that has, in batches, and removes it. Tells how many are dropped after each batch.
///
/// # Errors
/// [`BrokerError`]; part of it is dropped then, and the same call, or a manager, goes on.
///
/// # Cancel safety
/// Each batch is whole; a manager goes on.
pub(crate) async fn drop_all(
    broker: &Broker,
    topic: &TopicHandle,
    group: &Group,
    mut tell: impl FnMut(u64),
) -> Result<Dropped, BrokerError> {
    let mut messages = 0;
    let mut shards = broker.each_shard(topic);
    while let Some((topic, shard)) = shards.next().await? {
        loop {
            match unless_gone(broker.remove_group(&topic, shard, group).await) {
                Ok(Some(Removed::More { dropped })) => messages += dropped,
                Ok(Some(Removed::Gone { dropped, .. })) => {
                    messages += dropped;
                    break;
                }
                // The shard was given up, or a manager was faster on it.
                Ok(None) | Err(BrokerError::UnknownGroup { .. }) => break,
                Ok(Some(Removed::Kept)) => {
                    return Ok(Dropped {
                        messages,
                        gone: false,
                    });
                }
                Err(error) => return Err(error),
            }
            tell(messages);
        }
    }
    Ok(Dropped {
        messages,
        gone: true,
    })
}

/// Warns of each group that Redis has, the settings do not name, and nobody retired: it may have been forgotten, and
/// its messages pile up.
pub(crate) async fn tell_unconfigured(broker: &Broker, topic: &TopicHandle) {
    let may_be_forgotten = |group: &Group| !group.is_of_instance() && !is_configured(topic, group);
    if !topic.groups().iter().any(may_be_forgotten) {
        return;
    }
    let stats = match broker.stats(topic).await {
        Ok(stats) => stats,
        Err(error) => {
            tracing::debug!(topic = %topic.name(), %error, "cannot look for groups that are not configured");
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
                messages = left_of(&counts),
                "the topic has a group that the configuration does not name, and it still gets every message: name it, \
                 or end it with `lisa-manager groups drain {name} {group}` or `lisa-manager groups drop {name} {group}`"
            );
        }
    }
}
