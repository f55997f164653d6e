//! Lists the ordering keys that have parked messages, for HTTP, the command line and the dashboard.

use lisa_core::broker::{
    Broker, BrokerError, Holder, ParkedKey, ParkedKeyCursor, ParkedKeyPage, TopicHandle,
};
use lisa_core::message::MessageId;
use lisa_core::state::State;
use lisa_core::topic::{Group, Topic};
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

/// A page of the ordering keys of a group that have parked messages.
#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
pub(crate) struct KeyList {
    pub(crate) topic: Topic,
    pub(crate) group: Group,
    /// In byte order within each shard.
    pub(crate) keys: Vec<KeyView>,
    /// The cursor of the next page; null at the end.
    pub(crate) next: Option<String>,
}

/// An ordering key that has parked messages.
#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
pub(crate) struct KeyView {
    pub(crate) key: String,
    /// The number of its parked messages.
    pub(crate) parked: u64,
    /// The due time of the first of them.
    pub(crate) oldest_due_at: String,
    /// The message that they wait for. Absent if there is none: `lisa-manager doctor` repairs that.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) holder: Option<HolderView>,
}

/// The message that the parked ones of its ordering key wait for.
#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
#[schema(as = KeyHolder)]
pub(crate) struct HolderView {
    pub(crate) id: MessageId,
    /// `backlog`, `retry` or `garbage`. Absent if it is ready or in flight.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) state: Option<State>,
    /// The time at which it was due, or is retried.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) due_at: Option<String>,
    /// The time at which it went to garbage.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) garbage_at: Option<String>,
}

impl From<Holder> for HolderView {
    fn from(Holder { id, state, time }: Holder) -> Self {
        let time = Some(time.to_string());
        let (due_at, garbage_at) = match state {
            Some(State::Garbage) => (None, time),
            _ => (time, None),
        };
        Self {
            id,
            state,
            due_at,
            garbage_at,
        }
    }
}

impl From<ParkedKey> for KeyView {
    fn from(key: ParkedKey) -> Self {
        Self {
            key: key.key,
            parked: key.parked,
            oldest_due_at: key.oldest_due.to_string(),
            holder: key.holder.map(HolderView::from),
        }
    }
}

/// Lists up to `limit` keys, at most 50.
///
/// # Errors
/// [`BrokerError`].
pub(crate) async fn list(
    broker: &Broker,
    topic: &TopicHandle,
    group: &Group,
    cursor: Option<ParkedKeyCursor>,
    limit: usize,
) -> Result<KeyList, BrokerError> {
    let ParkedKeyPage { keys, next } = broker.parked_keys(topic, group, cursor, limit).await?;
    Ok(KeyList {
        topic: topic.name().clone(),
        group: group.clone(),
        keys: keys.into_iter().map(KeyView::from).collect(),
        next: next.map(|next| next.to_string()),
    })
}
