//! Goes through all shards of a topic, some of which may be given up meanwhile while others are opened.

use std::sync::Arc;

use super::{Broker, BrokerError, TopicHandle};
use crate::topic::{Shard, Topic};

/// The shards of a topic, one after the other: those that are being given up first, as messages go from them to the others.
///
/// Shards are numbered on, so that what was told to all of them, or asked of all, has reached everything: one that is
/// gone by its turn is left out, and those that were opened meanwhile come last.
pub struct EachShard {
    broker: Broker,
    topic: Topic,
    /// The least number that has not had its turn.
    from: Shard,
}

impl Broker {
    /// Goes through all shards of a topic.
    pub fn each_shard(&self, topic: &TopicHandle) -> EachShard {
        self.each_shard_from(topic, Shard::new(0))
    }

    /// Goes through the shards of a topic from a number on.
    pub(super) fn each_shard_from(&self, topic: &TopicHandle, from: Shard) -> EachShard {
        EachShard {
            broker: self.clone(),
            topic: topic.name().clone(),
            from,
        }
    }
}

impl EachShard {
    /// Gives the next shard, with the topic as it is known now. It may be given up before it is asked: see
    /// [`unless_gone`].
    ///
    /// # Errors
    /// [`BrokerError`]; the same shard is given by the next call.
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

/// Gives what a shard answered; nothing if it was given up since it was to be asked, and so has nothing any more.
///
/// # Errors
/// The answer's, but for [`BrokerError::ShardGone`].
pub fn unless_gone<T>(answer: Result<T, BrokerError>) -> Result<Option<T>, BrokerError> {
    match answer {
        Err(BrokerError::ShardGone { .. }) => Ok(None),
        answer => answer.map(Some),
    }
}
