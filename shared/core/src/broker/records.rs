//! Fetches stored records. They may be large, so each reader bounds the size of a reply.

use bytes::Bytes;
use redis::{Pipeline, Value};

use crate::broker::reply::command;
use crate::broker::{Broker, BrokerError, MAX_BATCH, TopicHandle};
use crate::message::{MessageId, Record};
use crate::redis::Extra;
use crate::scripts::{Heads, unexpected};
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
        let mut cmd = command("HMGET", payload);
        for id in ids {
            cmd.arg(id.as_str());
        }
        let wrong = |error| BrokerError::Reply {
            what: "HMGET",
            error,
        };
        let server = self.inner.connection.at(payload).extra(extra);
        match server.call(&cmd, self.inner.call_timeout).await? {
            Value::Array(values) if values.len() == ids.len() => values
                .into_iter()
                .map(|value| match value {
                    Value::BulkString(bytes) => Ok(Some(Bytes::from(bytes))),
                    Value::Nil => Ok(None),
                    other => Err(wrong(unexpected("a record", &other))),
                })
                .collect(),
            other => Err(wrong(unexpected("a record for each id", &other))),
        }
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
        let mut pipeline = Pipeline::with_capacity(ids.len());
        for id in ids {
            let mut cmd = command("HSTRLEN", payload);
            cmd.arg(id.as_str());
            pipeline.add_command(cmd);
        }
        let server = self.inner.connection.at(payload).extra(Extra::Small);
        let sizes = server.pipeline(&pipeline, self.inner.call_timeout).await?;
        let size = |value: Value| match value {
            Value::Int(size) => Ok(usize::try_from(size).unwrap_or(0)),
            other => Err(BrokerError::Reply {
                what: "HSTRLEN",
                error: unexpected("a length", &other),
            }),
        };
        sizes.into_iter().map(size).collect()
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
                return Err(BrokerError::Reply {
                    what: "heads",
                    error: unexpected("a head", &"none"),
                });
            }
            let decoded = |head: Vec<u8>| Record::decode_head(head.into()).unwrap_or_default();
            heads.extend(part.into_iter().map(decoded));
        }
        Ok(heads)
    }
}
