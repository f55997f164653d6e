//! Lists the messages of an ordering key, on topics that keep an index of their keys.

use std::time::Instant;

use futures_util::{StreamExt, TryStreamExt, stream};

use crate::broker::reply::command;
use crate::broker::scan::ScanBudget;
use crate::broker::{
    After, Broker, BrokerError, CONCURRENT_READS, Cursor, Found, Page, TopicHandle,
};
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
pub type KeyCursor = Cursor<After<MessageId>>;

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
            handle = self.newest(topic.name()).await?;
        }
        if !handle.settings().key_index {
            return Err(BrokerError::NoKeyIndex(topic.name().clone()));
        }
        let open = handle.shard_of_route(key.route());
        let begin = KeyCursor {
            shard: handle.old_shard_of_route(key.route()).unwrap_or(open),
            position: After(None),
        };
        // The shard of a cursor may have been retired since.
        let cursor = cursor.filter(|cursor| handle.keys(cursor.shard).is_ok());
        let KeyCursor {
            shard,
            position: After(begun),
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
            position: After(ids.last().cloned().or(begun)),
        };
        let next = if ids.len() == limit {
            Some(reached)
        } else if handle.is_retiring(shard) {
            self.wait_for_transit(&handle, shard).await?;
            Some(KeyCursor {
                shard: open,
                position: After(None),
            })
        } else if self.has_moved(&handle).await? {
            // Messages of the shard may have migrated to one that was not asked.
            self.newest(topic.name()).await?;
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
