//! The purges of SQS clients: how often one of a topic may begin.

use std::time::Duration;

use crate::broker::reply::command;
use crate::broker::{Broker, BrokerError, TopicHandle};
use crate::message::MessageId;
use crate::time::millis;

impl Broker {
    /// Notes that a purge of a topic begins, unless another one began less than `every` ago, in any process. Returns true if it may
    /// begin. Redis removes the note by itself.
    ///
    /// # Errors
    /// [`BrokerError`].
    pub async fn begin_purge(
        &self,
        topic: &TopicHandle,
        every: Duration,
    ) -> Result<bool, BrokerError> {
        let key = &topic.keys(topic.first_shard())?.purged;
        // A repeated call finds its own note.
        let own = MessageId::generate();
        let set = command("SET", key).arg(&[own.as_str(), "NX", "GET", "PX"]);
        let noted: Option<String> = self.ask(set.arg(millis(every))).await?;
        Ok(noted.is_none_or(|noted| noted == own.as_str()))
    }

    /// Removes the note of a purge that failed, so that it can be called again.
    ///
    /// # Errors
    /// [`BrokerError`]. Calling again is safe.
    pub async fn allow_purge(&self, topic: &TopicHandle) -> Result<(), BrokerError> {
        let key = &topic.keys(topic.first_shard())?.purged;
        let set = command("SET", key).arg(&["", "PX", "1"]);
        self.ask(set).await
    }
}
