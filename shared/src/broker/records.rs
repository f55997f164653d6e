//! How stored records are fetched. They may be large, so each reader bounds what one reply brings.

use bytes::Bytes;
use redis::{Pipeline, Value};

use super::deliver::command;
use super::{Broker, BrokerError, MAX_BATCH, TopicHandle};
use crate::link::Aside;
use crate::message::{MessageId, Record};
use crate::scripts::{Heads, unexpected};
use crate::topic::Shard;

impl Broker {
    /// Fetches the records of messages, in order; `None` where there is none. At most [`MAX_BATCH`] ids.
    ///
    /// All come in one reply, so bound what that may hold: see [`Broker::record_sizes`]. It travels over a connection
    /// `beside` the usual one, which it may keep busy for the whole response time-out.
    ///
    /// # Errors
    /// [`BrokerError`]; [`BrokerError::is_late`] where the reply did not come whole within the response time-out.
    pub async fn records(
        &self,
        topic: &TopicHandle,
        shard: Shard,
        ids: &[MessageId],
        beside: Aside,
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
        let server = self.inner.link.at(payload).aside(beside);
        match server.call(&cmd, self.inner.patience).await? {
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

    /// Gives the lengths of the records of messages in bytes, in order; 0 where there is none. At most [`MAX_BATCH`] ids.
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
        let server = self.inner.link.at(payload).aside(Aside::Small);
        let sizes = server.pipeline(&pipeline, self.inner.patience).await?;
        let size = |value: Value| match value {
            Value::Int(size) => Ok(usize::try_from(size).unwrap_or(0)),
            other => Err(BrokerError::Reply {
                what: "HSTRLEN",
                error: unexpected("a length", &other),
            }),
        };
        sizes.into_iter().map(size).collect()
    }

    /// Reads how messages are tried again, in order, from the heads of their records: payloads stay where they are. One
    /// that cannot be read is as its topic says.
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
