//! Lists the messages of an ordering key, on topics that keep an index of their keys.

use std::fmt;
use std::str::FromStr;
use std::sync::Arc;
use std::time::Instant;

use futures_util::{StreamExt, TryStreamExt, stream};

use crate::broker::reply::command;
use crate::broker::scan::ScanBudget;
use crate::broker::{Broker, BrokerError, CONCURRENT_READS, Found, Listed, Page, TopicHandle};
use crate::message::{MessageId, OrderingKey};
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
        let range = command("ZRANGE", index)
            .arg(first)
            .arg(format!("({key}\u{1}"))
            .arg(&["BYLEX", "LIMIT", "0"])
            .arg(limit);
        let ids = ids(self.ask(range).await?, key.len() + 1)?;
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
            Found::Stored { listed, .. } => Some(Listed {
                key: Some(key.clone()),
                ..listed
            }),
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
        let names: Vec<Vec<u8>> = self.ask(command("HKEYS", in_transit)).await?;
        let until = Instant::now() + self.inner.call_timeout;
        while !names.is_empty() && self.any_in_transit(handle, &[shard], &names).await? {
            self.wait_for_arrival(handle.name(), until).await?;
        }
        Ok(())
    }
}

/// Parses members of the index, in which the id follows the first `skip` bytes.
fn ids(members: Vec<Vec<u8>>, skip: usize) -> Result<Vec<MessageId>, BrokerError> {
    let id = |member: &Vec<u8>| str::from_utf8(member.get(skip..)?).ok()?.parse().ok();
    let read = |member| {
        id(member).ok_or_else(|| BrokerError::reply("ZRANGE", "a message of the key", member))
    };
    members.iter().map(read).collect()
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
