//! The messages of an ordering key, on topics that keep an index of them.

use std::fmt;
use std::str::FromStr;
use std::sync::Arc;
use std::time::Instant;

use futures_util::{StreamExt, TryStreamExt, stream};
use redis::Value;

use super::deliver::command;
use super::scan::ScanBudget;
use super::{Broker, BrokerError, CONCURRENT_READS, Found, Page, TopicHandle};
use crate::message::{MessageId, OrderingKey};
use crate::scripts::unexpected;
use crate::topic::Shard;

/// Part of the messages of a key.
#[derive(Clone, Debug)]
pub struct KeyPage {
    /// Their ids, in the order of their bytes on a shard.
    pub ids: Vec<MessageId>,
    /// Where the next page begins; `None` at the end.
    pub next: Option<KeyCursor>,
}

/// Where a page of the messages of a key begins.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KeyCursor {
    shard: Shard,
    after: Option<MessageId>,
}

/// A text that is no such cursor.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("expected the cursor of a page before")]
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
    /// Lists messages of a key, wherever they are: those that were sent while the topic's `key_index` was set. None that was
    /// there before the first page and is there after the last one is left out, also while the topic is resharded.
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
        // The shard of a cursor may have been given up since.
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
        } else if handle.is_leaving(shard) {
            self.wait_for_leaving(&handle, shard).await?;
            Some(KeyCursor {
                shard: open,
                after: None,
            })
        } else if self.has_moved(&handle).await? {
            // What was on the shard may have gone where nobody asked.
            self.newest(topic).await?;
            Some(reached)
        } else {
            None
        };
        Ok(KeyPage { ids, next })
    }

    /// Lists messages of a key with the place of each, in the first group that still owes it. One that ends meanwhile is left
    /// out. At most 10,000 entries of streams are read; one that is behind them counts as ready.
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
        let budget = ScanBudget::new(self.inner.patience);
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

    /// Reads a topic anew.
    async fn newest(&self, topic: &TopicHandle) -> Result<Arc<TopicHandle>, BrokerError> {
        let newest = self.load(topic.name()).await?;
        newest.ok_or_else(|| BrokerError::UnknownTopic(topic.name().clone()))
    }

    /// Waits until what is on its way from a shard has arrived.
    async fn wait_for_leaving(
        &self,
        handle: &TopicHandle,
        shard: Shard,
    ) -> Result<(), BrokerError> {
        let leaving = &handle.keys(shard)?.leaving;
        let reply = self.call(leaving, &command("HKEYS", leaving)).await?;
        let names = texts(&reply, "HKEYS")?;
        let until = Instant::now() + self.inner.patience;
        while !names.is_empty() && self.any_leaving(handle, &[shard], &names).await? {
            self.wait_for_arrival(handle.name(), until).await?;
        }
        Ok(())
    }
}

/// Reads members of the index, behind whose first `skip` bytes the id stands.
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
