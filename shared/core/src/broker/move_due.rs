//! Moves due messages from the waiting set to their groups.

use std::time::Duration;

use super::execute::Tries;
use super::{Broker, BrokerError, MAX_GENERAL_HOT_BATCH, TopicHandle};
use crate::scripts::{MoveDue, MoveDuePlain, Moved, Refusal};
use crate::topic::Shard;

impl Broker {
    /// Moves up to `batch` (at most [`MAX_BATCH`](super::MAX_BATCH)) due messages to the stream, or into the backlog or the parked set of
    /// groups that hold them back. Returns when to look again, after `idle` at the latest. A send of anything due
    /// earlier publishes a wake.
    ///
    /// # Errors
    /// [`BrokerError`].
    pub async fn move_due(
        &self,
        topic: &TopicHandle,
        shard: Shard,
        batch: u16,
        idle: Duration,
    ) -> Result<Moved, BrokerError> {
        let mut tries = Tries::new(topic);
        loop {
            let handle = self.topic(topic.name()).await?;
            if !handle.has(shard) {
                return Ok(Moved::Paused);
            }
            let keys = handle.keys(shard)?.only_group();
            let plain = keys.filter(|_| !handle.needs_general(shard));
            let needs_general = plain.is_none();
            let moved = if let Some(keys) = plain {
                let call = MoveDuePlain {
                    now: self.virtual_now(),
                    group: &keys.group.name,
                    batch,
                    idle,
                };
                self.run(&keys, &call).await?
            } else {
                let batch = batch.min(MAX_GENERAL_HOT_BATCH as u16);
                let call = MoveDue { batch, idle };
                self.general_once(&handle, shard, None, &call).await?
            };
            let refusal = match moved {
                Ok(moved) => return Ok(moved),
                Err(refusal) => refusal,
            };
            if refusal == Refusal::Class {
                handle.set_needs_general(shard, !needs_general);
            }
            self.recover(&mut tries, &handle, shard, refusal).await?;
        }
    }
}
