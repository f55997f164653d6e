//! Lists the messages of an ordering key, on topics that keep an index of their keys.

use std::fmt;
use std::str::FromStr;
use std::sync::Arc;
use std::time::Instant;

use futures_util::{StreamExt, TryStreamExt, stream};
use redis::Value;

use crate::broker::reply::command;
use crate::broker::scan::ScanBudget;
use crate::broker::{Broker, BrokerError, CONCURRENT_READS, Found, Page, TopicHandle};
use crate::message::{MessageId, OrderingKey};
use crate::scripts::unexpected;
use crate::topic::Shard;

/// A page of the messages of a key.
#[derive(Clone, Debug)]
pub struct KeyPage {
    /// Their ids, in byte order within a shard.
    pub ids: Vec<MessageId>,
    /// The start of the next page; `None` at the end.
    pub next: Option<KeyCursor>,
}

/// The start of a page of the messages of a key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KeyCursor {
    shard: Shard,
    after: Option<MessageId>,
}

/// A text that is not such a cursor.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("expected the cursor of a previous page")]
pub struct InvalidCursor;

impl fmt::Display for KeyCursor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let after = self.after.as_ref().map_or("", MessageId::as_str);
        write!(f, "{}:{after}", self.shard)
    }
}

impl FromStr for KeyCursor {
    type Err = InvalidCursor;

    fn from_str(text: &str) -> Result<Self, InvalidCursor> {
        let (shard, after) = text.split_once(':').ok_or(InvalidCursor)?;
        let shard = Shard::new(shard.parse().map_err(|_| InvalidCursor)?);
        let after = match after {
            "" => None,
            id => Some(id.parse().map_err(|_| InvalidCursor)?),
        };
        Ok(Self { shard, after })
    }
}

impl Broker {
    /// Lists messages of a key in any state, if they were sent while the topic's `key_index` was set. No message is
    /// missed that is there from before the first page until after the last one, even while the topic is resharded.
    ///
    /// # Errors
    /// [`BrokerError::NoKeyIndex`]; other [`BrokerError`]s.
    pub async fn of_key(
        &self,
        topic: &TopicHandle,
        key: &OrderingKey,
        cursor: Option<KeyCursor>,
        limit: usize,
    ) -> Result<KeyPage, BrokerError> {
        let mut handle = self.topic(topic.name()).await?;
        if !handle.settings().key_index {
            // It may have been set since this process last looked.
            handle = self.newest(topic).await?;
        }
        if !handle.settings().key_index {
            return Err(BrokerError::NoKeyIndex(topic.name().clone()));
        }
        let open = handle.shard_of_route(key.route());
        let begin = KeyCursor {
            shard: handle.old_shard_of_route(key.route()).unwrap_or(open),
            after: None,
        };
        // The shard of a cursor may have been retired since.
        let cursor = cursor.filter(|cursor| handle.keys(cursor.shard).is_ok());
        let KeyCursor {
            shard,
            after: begun,
        } = cursor.unwrap_or(begin);
        let index = &handle.keys(shard)?.bykey;
        let (key, after) = (key.as_str(), begun.as_ref().map(MessageId::as_str));
        let first = after.map_or_else(|| format!("[{key}\0"), |after| format!("({key}\0{after}"));
        let mut cmd = command("ZRANGE", index);
        cmd.arg(first).arg(format!("({key}\u{1}")).arg("BYLEX");
        cmd.arg("LIMIT").arg(0).arg(limit);
        let ids = ids(&self.call(index, &cmd).await?, key.len() + 1)?;
        let reached = KeyCursor {
            shard,
            after: ids.last().cloned().or(begun),
        };
        let next = if ids.len() == limit {
            Some(reached)
        } else if handle.is_retiring(shard) {
            self.wait_for_transit(&handle, shard).await?;
            Some(KeyCursor {
                shard: open,
                after: None,
            })
        } else if self.has_moved(&handle).await? {
            // Messages of the shard may have migrated to one that was not asked.
            self.newest(topic).await?;
            Some(reached)
        } else {
            None
        };
        Ok(KeyPage { ids, next })
    }

    /// Lists messages of a key, each with its state in the first group that must still deliver it. Leaves out a message
    /// that ends in the meantime. Reads at most 10,000 stream entries. A message behind them counts as ready.
    ///
    /// # Errors
    /// [`BrokerError::NoKeyIndex`]; other [`BrokerError`]s.
    pub async fn list_of_key(
        &self,
        topic: &TopicHandle,
        key: &OrderingKey,
        cursor: Option<KeyCursor>,
        limit: usize,
    ) -> Result<Page, BrokerError> {
        let page = self.of_key(topic, key, cursor, limit).await?;
        let budget = ScanBudget::new(self.inner.call_timeout);
        let lookups = page.ids.iter();
        let lookups = lookups.map(|id| self.lookup_within(topic, id, Some(key), &budget));
        // Collected first: a stream of closures is not `Send` for every lifetime.
        let lookups: Vec<_> = lookups.collect();
        let lookups = stream::iter(lookups).buffered(CONCURRENT_READS);
        let found: Vec<Found> = lookups.try_collect().await?;
        let listed = |found| match found {
            Found::Stored { listed, .. } => Some(listed),
            Found::Unknown { .. } => None,
        };
        let items = found.into_iter().filter_map(listed).collect();
        let next = page.next.map(|next| next.to_string());
        Ok(Page { items, next })
    }

    /// Reads a topic again.
    async fn newest(&self, topic: &TopicHandle) -> Result<Arc<TopicHandle>, BrokerError> {
        let newest = self.load(topic.name()).await?;
        newest.ok_or_else(|| BrokerError::UnknownTopic(topic.name().clone()))
    }

    /// Waits until everything in transit from a shard has arrived.
    async fn wait_for_transit(
        &self,
        handle: &TopicHandle,
        shard: Shard,
    ) -> Result<(), BrokerError> {
        let in_transit = &handle.keys(shard)?.in_transit;
        let reply = self.call(in_transit, &command("HKEYS", in_transit)).await?;
        let names = texts(&reply, "HKEYS")?;
        let until = Instant::now() + self.inner.call_timeout;
        while !names.is_empty() && self.any_in_transit(handle, &[shard], &names).await? {
            self.wait_for_arrival(handle.name(), until).await?;
        }
        Ok(())
    }
}

/// Parses members of the index, in which the id follows the first `skip` bytes.
fn ids(reply: &Value, skip: usize) -> Result<Vec<MessageId>, BrokerError> {
    let read = |member: &[u8]| {
        let id = member.get(skip..).and_then(|id| str::from_utf8(id).ok());
        let id = id.and_then(|id| id.parse().ok());
        id.ok_or_else(|| BrokerError::Reply {
            what: "ZRANGE",
            error: unexpected("a message of the key", reply),
        })
    };
    let members = texts(reply, "ZRANGE")?;
    members.into_iter().map(read).collect()
}

fn texts<'v>(reply: &'v Value, what: &'static str) -> Result<Vec<&'v [u8]>, BrokerError> {
    let wrong = || BrokerError::Reply {
        what,
        error: unexpected("a list of texts", reply),
    };
    let Value::Array(values) = reply else {
        return Err(wrong());
    };
    let text = |value: &'v Value| match value {
        Value::BulkString(bytes) => Ok(bytes.as_slice()),
        _ => Err(wrong()),
    };
    values.iter().map(text).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_cursor_is_read_as_it_is_written() {
        for text in ["0:", "7:order-7", "65535:a:b"] {
            let cursor: KeyCursor = text.parse().unwrap();
            assert_eq!(cursor.to_string(), text);
        }
        for bad in ["", "7", ":a", "-1:a", "65536:a", "1:a b"] {
            assert_eq!(bad.parse::<KeyCursor>(), Err(InvalidCursor), "{bad}");
        }
    }
}
