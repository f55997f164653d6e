//! Reads the newest garbage (dead letters) of a group, and the latest time that garbage can have.

use crate::broker::list::{NEVER, list_by_time};
use crate::broker::reply::{command, decode};
use crate::broker::shards::of_each;
use crate::broker::{Broker, BrokerError, ListedMessage, TopicHandle};
use crate::scripts::{Page, PageOfGarbage};
use crate::state::State;
use crate::time::UnixMs;
use crate::topic::{Group, Shard};
use redis::cmd;

/// The newest garbage of a group.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct NewestGarbage {
    /// The newest messages of each shard, newest first.
    pub newest: Vec<ListedMessage>,
    /// The number of all messages in garbage.
    pub total: u64,
}

impl Broker {
    /// Returns the time of the servers that hold the topic's shards: the latest if they differ.
    ///
    /// [`Broker::now`] is an estimate, which may be earlier than the time of what has just happened. This time is not: no
    /// message that is in garbage when the call begins has a later garbage time.
    ///
    /// # Errors
    /// [`BrokerError`].
    pub async fn latest_time(&self, topic: &TopicHandle) -> Result<UnixMs, BrokerError> {
        if self.virtual_now() != 0 {
            return Ok(self.now());
        }
        let time = cmd("TIME");
        let ask = async |shard| {
            let reply = self
                .server(topic, shard)?
                .call(&time, self.inner.call_timeout)
                .await?;
            let (seconds, micros): (u64, u64) = decode("TIME", reply)?;
            Ok(UnixMs::new(seconds * 1000 + micros / 1000))
        };
        let times = of_each(topic.shards().map(ask).collect::<Vec<_>>()).await?;
        Ok(times.into_iter().max().unwrap_or_else(|| self.now()))
    }

    /// Reads the newest garbage of a group: up to `most` messages, evenly shared among its shards, 200 in one call.
    ///
    /// # Errors
    /// [`BrokerError`].
    pub async fn newest_garbage(
        &self,
        topic: &TopicHandle,
        group: &Group,
        most: usize,
    ) -> Result<NewestGarbage, BrokerError> {
        let handle = self.topic(topic.name()).await?;
        let share = most.div_ceil(handle.shards().len().max(1));
        let reads: Vec<_> = handle
            .shards()
            .map(|shard| self.newest_of_shard(&handle, shard, group, share))
            .collect();
        let found = of_each(reads).await?;
        let mut all = NewestGarbage::default();
        for found in found {
            all.newest.extend(found.newest);
            all.total += found.total;
        }
        Ok(all)
    }

    async fn newest_of_shard(
        &self,
        topic: &TopicHandle,
        shard: Shard,
        group: &Group,
        most: usize,
    ) -> Result<NewestGarbage, BrokerError> {
        let keys = topic.group_keys(shard, group)?;
        let total = self.ask(command("ZCARD", &keys.group.garbage)).await?;
        let page = Page {
            from: UnixMs::default(),
            to: NEVER,
            newest_first: true,
            limit: most,
            after: None,
        };
        let found = self.read_page(&keys, page, PageOfGarbage).await?;
        let mut newest = Vec::new();
        list_by_time(found, State::Garbage, most, &mut newest)?;
        Ok(NewestGarbage { newest, total })
    }
}
