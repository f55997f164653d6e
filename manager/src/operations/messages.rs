//! Lists messages and finds single ones, for HTTP and the command line.

use lisa_core::broker::{
    Broker, BrokerError, Found, ListedMessage, Page, StoredMessage, TopicHandle,
};
use lisa_core::message::{InvalidRecord, MessageId, OrderingKey};
use lisa_core::state::Ended;
use lisa_core::topic::{Group, Topic};
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

/// The error about a range of times, or an order, for a state whose messages are not stored by time.
pub(crate) const UNTIMED: &str =
    "only waiting, retry and garbage can be listed by time; leave out from, to and newest first";

/// A page of messages.
#[derive(Debug, Serialize, Deserialize, ToSchema)]
pub(crate) struct MessagePage {
    pub(crate) topic: Topic,
    /// The group that has these messages; absent if they wait for several groups, or the topic has none.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) group: Option<Group>,
    pub(crate) messages: Vec<ListedMessage>,
    /// The cursor of the next page; null at the end.
    pub(crate) next: Option<String>,
    /// The number of messages examined, in a search of garbage.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) looked_at: Option<usize>,
}

impl MessagePage {
    pub(crate) fn new(topic: &TopicHandle, group: Option<&Group>, page: Page) -> Self {
        Self {
            group: group.cloned(),
            ..Self::of_key(topic, page)
        }
    }

    /// Returns a page of the messages of one ordering key, each in its state in the first group that owes it.
    pub(crate) fn of_key(topic: &TopicHandle, page: Page) -> Self {
        Self {
            topic: topic.name().clone(),
            group: None,
            messages: page.items,
            next: page.next,
            looked_at: None,
        }
    }
}

/// The reason a message cannot be shown.
#[derive(Debug, thiserror::Error)]
pub(crate) enum FindError {
    /// Redis could not be reached, or refused the call.
    #[error(transparent)]
    Broker(#[from] BrokerError),
    /// No such message is stored, or it has ended.
    #[error("topic {topic} has no message {id}{}", .end.as_ref().map_or(String::new(), |end| format!(" any more: it was {end}")))]
    Unknown {
        topic: Topic,
        id: MessageId,
        end: Option<Ended>,
    },
    /// Its record is damaged.
    #[error("message {id}: {error}")]
    Unreadable { id: MessageId, error: InvalidRecord },
}

/// Finds one message of a topic by its id, and its key if that is known.
///
/// # Errors
/// [`FindError`].
pub(crate) async fn find(
    broker: &Broker,
    topic: &TopicHandle,
    id: &MessageId,
    key: Option<&OrderingKey>,
) -> Result<Box<StoredMessage>, FindError> {
    match broker.lookup(topic, id, key).await? {
        Found::Stored {
            listed,
            record,
            details,
        } => {
            let message = StoredMessage::new(topic, listed, record, *details);
            message
                .map(Box::new)
                .map_err(|error| FindError::Unreadable {
                    id: id.clone(),
                    error,
                })
        }
        Found::Unknown { end } => Err(FindError::Unknown {
            topic: topic.name().clone(),
            id: id.clone(),
            end,
        }),
    }
}
