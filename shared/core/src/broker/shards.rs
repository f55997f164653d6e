//! Iterates over all shards of a topic, even while a resharding retires some and creates others.

use std::sync::Arc;

use futures_util::{StreamExt, TryStreamExt, stream};

use crate::broker::{Broker, BrokerError, CONCURRENT_READS, TopicHandle};
use crate::topic::{Shard, Topic};

/// An iterator over the shards of a topic. Retiring shards come first, since messages migrate from them to the others.
///
/// Shard numbers only grow, so a call that is made for each shard has reached everything: a shard that is gone by its
/// turn is left out, and shards created in the meantime come last.
pub struct AllShards {
    broker: Broker,
    topic: Topic,
    /// The lowest number that has not had its turn.
    from: Shard,
}

impl Broker {
    /// Returns an iterator over all shards of a topic.
    pub fn all_shards(&self, topic: &TopicHandle) -> AllShards {
        self.all_shards_from(topic, Shard::new(0))
    }

    /// Returns an iterator over the shards of a topic from a number on.
    pub(super) fn all_shards_from(&self, topic: &TopicHandle, from: Shard) -> AllShards {
        AllShards {
            broker: self.clone(),
            topic: topic.name().clone(),
            from,
        }
    }
}

impl AllShards {
    /// Returns the next shard, with the topic as it is known now. The shard may be gone before it is asked: see
    /// [`unless_gone`].
    ///
    /// # Errors
    /// [`BrokerError`]; the next call returns the same shard.
    pub async fn next(&mut self) -> Result<Option<(Arc<TopicHandle>, Shard)>, BrokerError> {
        loop {
            let topic = self.broker.topic(&self.topic).await?;
            let shard = self.from.max(topic.first_shard());
            if topic.has(shard) {
                self.from = Shard::new(shard.get() + 1);
                return Ok(Some((topic, shard)));
            }
            if !self.broker.has_moved(&topic).await? {
                return Ok(None);
            }
            let newest = self.broker.load(&self.topic).await?;
            if newest.is_none_or(|newest| newest.open() <= topic.open()) {
                return Ok(None);
            }
        }
    }
}

/// Returns the result of a shard, or `None` if the shard is gone and so has nothing any more.
///
/// # Errors
/// The errors of `answer` except [`BrokerError::ShardGone`].
pub fn unless_gone<T>(answer: Result<T, BrokerError>) -> Result<Option<T>, BrokerError> {
    match answer {
        Err(BrokerError::ShardGone { .. }) => Ok(None),
        answer => answer.map(Some),
    }
}

/// Makes one read for each shard, at most [`CONCURRENT_READS`] at a time. Returns the results of the shards that are not gone, in
/// order.
///
/// # Errors
/// The first error of a read except [`BrokerError::ShardGone`].
pub(super) async fn of_each<T>(
    reads: Vec<impl Future<Output = Result<T, BrokerError>>>,
) -> Result<Vec<T>, BrokerError> {
    let found = stream::iter(reads)
        .buffered(CONCURRENT_READS)
        .map(unless_gone);
    let found: Vec<Option<T>> = found.try_collect().await?;
    Ok(found.into_iter().flatten().collect())
}
