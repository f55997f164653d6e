//! The shard map of a topic. Shard 0 points to the newest shards, for processes that know only older ones.

use std::ops::Range;

use crate::broker::reply::{command, utf8};
use crate::broker::{Broker, BrokerError, TopicHandle};
use crate::keys::ShardKeys;
use crate::scripts::{MarkRetired, Redirect};
use crate::topic::{Shard, Topic};

/// The shards of a topic. The numbers of successors follow those of the shards before them.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct ShardMap {
    /// The retiring shards. The end of the range is the first shard that is not retiring.
    pub(crate) old: Range<u16>,
    /// The retired shards, whose keys may still be there.
    pub(crate) retired: Option<Range<u16>>,
}

impl ShardMap {
    /// Creates a map that begins at shard `open`, without retiring or retired shards.
    pub(crate) fn of(open: u16) -> Self {
        Self {
            old: open..open,
            retired: None,
        }
    }
}

impl Broker {
    /// Reads the shard map of a topic, which need not exist.
    pub(crate) async fn read_shard_map(&self, topic: &Topic) -> Result<ShardMap, BrokerError> {
        let mut map = ShardMap::default();
        loop {
            let open = map.old.end;
            let shard = ShardKeys::new(&self.inner.namespace, topic, Shard::new(open), &[]);
            let fields = command("HMGET", &shard.conf).arg(&["next", "previous", "retired"]);
            let fields: [Option<Vec<u8>>; 3] = self.ask(fields).await?;
            let [next, previous, retired] = fields.map(|field| field.and_then(utf8));
            let number = |text: Option<String>| text?.parse::<u16>().ok();
            if let Some((start, end)) = retired.as_deref().and_then(|text| text.split_once(' ')) {
                let retired = start.parse().ok().zip(end.parse().ok());
                map.retired = retired.map(|(start, end)| start..end);
            }
            match number(next).filter(|next| *next > open) {
                Some(next) => map.old = next..next,
                None => {
                    map.old = number(previous).filter(|old| *old < open).unwrap_or(open)..open;
                    return Ok(map);
                }
            }
        }
    }

    /// Returns true if a topic has other shards by now than a handle knows.
    pub(crate) async fn has_moved(&self, handle: &TopicHandle) -> Result<bool, BrokerError> {
        let map = self.read_shard_map(handle.name()).await?;
        Ok(map.old.end != handle.open())
    }

    /// Redirects processes that look for a topic from its first shard to another one. Returns the shard to which they are
    /// redirected now.
    pub(crate) async fn redirect(
        &self,
        topic: &Topic,
        call: &Redirect,
    ) -> Result<u16, BrokerError> {
        let first = ShardKeys::new(&self.inner.namespace, topic, Shard::new(0), &[]);
        let unknown = |_| BrokerError::UnknownTopic(topic.clone());
        self.run(&first, call).await?.map_err(unknown)
    }

    /// Records that shards are retired and may still have keys, or, with `gone`, that their keys are gone.
    pub(crate) async fn mark_retired(
        &self,
        topic: &Topic,
        shards: Range<u16>,
        gone: bool,
    ) -> Result<(), BrokerError> {
        let first = ShardKeys::new(&self.inner.namespace, topic, Shard::new(0), &[]);
        let unknown = |_| BrokerError::UnknownTopic(topic.clone());
        self.run(&first, &MarkRetired { shards, gone })
            .await?
            .map_err(unknown)
    }
}
