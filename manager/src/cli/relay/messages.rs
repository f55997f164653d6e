//! Lists and finds messages.

use lisa_core::broker::{BrokerError, InvalidCursor, StoredMessage, TimeRange};
use lisa_core::message::{MessageId, OrderingKey};
use lisa_core::state::{Ended, State};
use lisa_core::topic::{Group, Topic};
use serde::Deserialize;

use super::{Manager, Redis, Relay};
use crate::cli::client::Call;
use crate::cli::commands::failed;
use crate::cli::error::CliError;
use crate::operations::choose_group;
use crate::operations::messages::{FindError, MessagePage, find};

/// A page of messages to list.
pub(crate) struct PageQuery<'a> {
    pub(crate) limit: usize,
    pub(crate) cursor: Option<&'a str>,
}

impl Relay {
    /// Lists messages of one state.
    pub(crate) async fn messages(
        &self,
        topic: &Topic,
        group: Option<&Group>,
        state: State,
        times: TimeRange,
        page: &PageQuery<'_>,
    ) -> Result<MessagePage, CliError> {
        match self {
            Redis { broker, .. } => {
                let topic = broker.topic(topic).await?;
                let named = group.map(Group::as_str);
                let group = choose_group::choose_for(&topic, state, named).map_err(failed)?;
                let (cursor, limit) = (page.cursor, page.limit);
                let found = broker.list_within(&topic, group, state, times, cursor, limit);
                Ok(MessagePage::new(&topic, group, found.await?))
            }
            Manager(client) => {
                let newest = times.newest_first.then_some("newest");
                let call = client.get(&["topics", topic.as_str(), "messages"]);
                let call = call.query("state", Some(state)).query("group", group);
                let call = call.query("from", times.from).query("to", times.to);
                page.of(call.query("order", newest)).answer().await
            }
        }
    }

    /// Lists the messages of an ordering key.
    pub(crate) async fn messages_of_key(
        &self,
        topic: &Topic,
        key: &OrderingKey,
        page: &PageQuery<'_>,
    ) -> Result<MessagePage, CliError> {
        let cursor = page.cursor.map(str::parse).transpose();
        let cursor = cursor.map_err(|error: InvalidCursor| CliError::Usage(error.to_string()))?;
        match self {
            Redis { broker, .. } => {
                let topic = broker.topic(topic).await?;
                match broker.list_of_key(&topic, key, cursor, page.limit).await {
                    Ok(found) => Ok(MessagePage::of_key(&topic, found)),
                    Err(error @ BrokerError::NoKeyIndex(_)) => {
                        Err(CliError::Failed(error.to_string()))
                    }
                    Err(error) => Err(error.into()),
                }
            }
            Manager(client) => {
                let call = client.get(&["topics", topic.as_str(), "messages"]);
                page.of(call.query("key", Some(key.as_str())))
                    .answer()
                    .await
            }
        }
    }

    /// Finds a message.
    pub(crate) async fn find(
        &self,
        topic: &Topic,
        id: &MessageId,
        key: Option<&OrderingKey>,
    ) -> Result<Result<Box<StoredMessage>, FindError>, CliError> {
        match self {
            // Read each time: the topic may be resharded meanwhile.
            Redis { broker, .. } => {
                let topic = broker.topic(topic).await?;
                match find(broker, &topic, id, key).await {
                    Err(FindError::Broker(error)) => Err(error.into()),
                    found => Ok(found),
                }
            }
            Manager(client) => {
                let call = client.get(&["topics", topic.as_str(), "messages", id.as_str()]);
                let call = call.header("lisa-key", key.map(OrderingKey::as_str));
                match call.answer().await {
                    Err(CliError::Refused(no)) if no.code() == "not_found" => {
                        Ok(Err(FindError::Unknown {
                            topic: topic.clone(),
                            id: id.clone(),
                            end: Ended::deserialize(no.problem()).ok(),
                        }))
                    }
                    found => Ok(Ok(Box::new(found?))),
                }
            }
        }
    }
}

impl PageQuery<'_> {
    pub(super) fn of<'c>(&self, call: Call<'c>) -> Call<'c> {
        let call = call.query("limit", Some(self.limit));
        call.query("cursor", self.cursor)
    }
}
