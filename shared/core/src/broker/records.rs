//! Fetches stored records. They may be large, so each reader bounds the size of a reply.

use bytes::Bytes;

use crate::broker::reply::command;
use crate::broker::{Broker, BrokerError, MAX_BATCH, TopicHandle};
use crate::message::{MessageId, Record};
use crate::redis::Extra;
use crate::scripts::Heads;
use crate::topic::Shard;

impl Broker {
    /// Fetches the records of messages, in order; `None` for a missing one. Takes at most [`MAX_BATCH`] ids.
    ///
    /// All come in one reply, so bound its size: see [`Broker::record_sizes`]. The reply uses the `extra` connection,
    /// and may keep it busy for the whole response timeout.
    ///
    /// # Errors
    /// [`BrokerError`]; [`BrokerError::is_late`] if the reply did not arrive completely within the response timeout.
    pub async fn records(
        &self,
        topic: &TopicHandle,
        shard: Shard,
        ids: &[MessageId],
        extra: Extra,
    ) -> Result<Vec<Option<Bytes>>, BrokerError> {
        if ids.is_empty() {
            return Ok(Vec::new());
        }
        debug_assert!(ids.len() <= MAX_BATCH, "records of {} ids", ids.len());
        let payload = &topic.keys(shard)?.payload;
        let server = self.inner.connection.at(payload).extra(extra);
        let records: Vec<Option<Bytes>> = self
            .ask_at(&server, command("HMGET", payload).ids(ids))
            .await?;
        if records.len() != ids.len() {
            return Err(BrokerError::reply(
                "HMGET",
                "a record for each id",
                &records.len(),
            ));
        }
        Ok(records)
    }

    /// Returns the sizes of the records of messages in bytes, in order; 0 for a missing one. Takes at most [`MAX_BATCH`]
    /// ids.
    ///
    /// # Errors
    /// [`BrokerError`].
    pub async fn record_sizes(
        &self,
        topic: &TopicHandle,
        shard: Shard,
        ids: &[MessageId],
    ) -> Result<Vec<usize>, BrokerError> {
        let payload = &topic.keys(shard)?.payload;
        let size = |id: &MessageId| command("HSTRLEN", payload).arg(id.as_str());
        let server = self.inner.connection.at(payload).extra(Extra::Small);
        let sizes = ids.iter().map(size).collect();
        self.ask_all(&server, sizes).await
    }

    /// Reads the retry settings of messages, in order, from the heads of their records, without their payloads. For an
    /// unreadable head, the topic's settings apply.
    pub(super) async fn heads(
        &self,
        topic: &TopicHandle,
        shard: Shard,
        ids: &[MessageId],
    ) -> Result<Vec<Record>, BrokerError> {
        let mut heads = Vec::with_capacity(ids.len());
        while heads.len() < ids.len() {
            let call = Heads {
                ids: &ids[heads.len()..],
            };
            let keys = topic.keys(shard)?;
            let gone = |_| BrokerError::UnknownTopic(topic.name().clone());
            let part = self.run(keys, &call).await?.map_err(gone)?;
            if part.is_empty() {
                return Err(BrokerError::reply("heads", "a head", &"none"));
            }
            let decoded = |head: Vec<u8>| Record::decode_head(head.into()).unwrap_or_default();
            heads.extend(part.into_iter().map(decoded));
        }
        Ok(heads)
    }
}
