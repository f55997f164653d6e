//! Fetches payloads by size: about 1 MiB a request, over separate connections, so that leases are renewed and outcomes
//! settled while large payloads arrive.
//!
//! Small payloads, the usual case, arrive in one request for all messages of a read. If that many messages of the largest
//! recent size would exceed 1 MiB, the sizes are requested first. Large requests of a process to one server take turns, so
//! its network carries about one of them at a time. A server that does not answer delays no other server. A payload that is
//! too large for its network is tried rarely, no matter how many there are.

use std::time::{Duration, Instant};

use bytes::Bytes;
use lisa_core::broker::{BrokerError, TopicHandle};
use lisa_core::message::MessageId;
use lisa_core::outage::Outage;
use lisa_core::redis::Extra;
use lisa_core::topic::Shard;
use tokio::time::sleep;
use tokio_util::sync::CancellationToken;

use crate::process::Process;
use crate::worker::payload_limits::{SMALL, Sizes, Slots};
use crate::worker::state::ShardWorker;

/// The number of tries to fetch a large payload in a request of its own before the others continue without it.
const TRIES_ALONE: u32 = 2;

/// The result of one step of a fetch.
pub enum Part {
    /// The records of the first messages, at least one; `None` for a message without a record.
    Records(Vec<Option<Bytes>>),
    /// The first message is too large to arrive within the response timeout, even in a request of its own.
    TooLarge(Unfetched),
    /// The shutdown began.
    Stopped,
}

/// A payload that is too large for the network.
pub struct Unfetched {
    /// Its size in bytes.
    pub size: usize,
    /// The pause before the next try.
    pub pause: Duration,
    /// True if this payload was requested; false if it was deferred because one of its size or smaller did not arrive.
    pub tried: bool,
}

/// A fetch of the records of several messages, in parts.
pub struct Fetch<'a> {
    process: &'a Process,
    topic: &'a TopicHandle,
    shard: Shard,
    recent: &'a Sizes,
    /// Cancelled when the fetch must stop.
    draining: &'a CancellationToken,
    /// The sizes of the remaining messages, the last one first; empty if they were not requested.
    sizes: Vec<usize>,
    /// True if the sizes must be requested even if recent payloads were small.
    is_in_doubt: bool,
    tries_alone: u32,
    outage: Outage,
}

impl<'a> Fetch<'a> {
    pub(crate) fn new(worker: &'a ShardWorker, topic: &'a TopicHandle) -> Self {
        let outage = worker.outage("fetch messages");
        Self::of(
            &worker.process,
            topic,
            worker.shard,
            &worker.sizes,
            worker.draining(),
            outage,
        )
    }

    /// Creates a fetch outside a worker. `recent` are the recent sizes of the shard's messages.
    pub fn of(
        process: &'a Process,
        topic: &'a TopicHandle,
        shard: Shard,
        recent: &'a Sizes,
        draining: &'a CancellationToken,
        outage: Outage,
    ) -> Self {
        Self {
            process,
            topic,
            shard,
            recent,
            draining,
            sizes: Vec::new(),
            is_in_doubt: false,
            tries_alone: 0,
            outage,
        }
    }

    /// Fetches the next part, however long that takes. `ids` are the remaining messages, at least one, in the order of the
    /// first call.
    pub async fn next(&mut self, ids: &[MessageId]) -> Part {
        let draining = self.draining;
        if draining.is_cancelled() {
            return Part::Stopped;
        }
        tokio::select! {
            biased;
            part = self.until_answered(ids) => part,
            () = draining.cancelled() => Part::Stopped,
        }
    }

    async fn until_answered(&mut self, ids: &[MessageId]) -> Part {
        loop {
            let error = match self.once(ids).await {
                Ok(part) => {
                    self.outage.recovered();
                    return part;
                }
                Err(error) => error,
            };
            sleep(self.outage.failed(&error)).await;
        }
    }

    async fn once(&mut self, ids: &[MessageId]) -> Result<Part, BrokerError> {
        let process = self.process;
        let broker = &process.broker;
        let server = broker.server(self.topic, self.shard)?.name();
        let slots = process.payloads.of(server);
        let (count, bytes) = self.plan(ids, &slots).await?;
        if count == 1
            && self.tries_alone == 0
            && !self.sizes.is_empty()
            && let Some(pause) = slots.pause(bytes, Instant::now())
        {
            return Ok(self.too_large(bytes, pause, false));
        }
        let which = if bytes <= SMALL {
            Extra::Small
        } else {
            Extra::Large
        };
        let slot = slots.slot(which, bytes).await;
        let begun = Instant::now();
        let fetched = broker.records(self.topic, self.shard, &ids[..count], which);
        let fetched = fetched.await;
        drop(slot);
        match fetched {
            Ok(records) => {
                slots.took(begun.elapsed(), broker.connection().response_timeout());
                let size = |record: &Option<Bytes>| record.as_ref().map_or(0, Bytes::len);
                let largest = records.iter().map(size).max().unwrap_or(0);
                slots.arrived(largest, Instant::now());
                self.recent.note(records.iter().map(size));
                self.sizes.truncate(ids.len() - count);
                self.tries_alone = 0;
                Ok(Part::Records(records))
            }
            Err(error) if error.is_late() => {
                if count > 1 {
                    slots.too_much();
                } else if which == Extra::Large && !self.sizes.is_empty() {
                    // Redis returned the sizes, so it is reachable.
                    self.tries_alone += 1;
                    if self.tries_alone == TRIES_ALONE {
                        return Ok(self.too_large(
                            bytes,
                            slots.failed(bytes, Instant::now()),
                            true,
                        ));
                    }
                }
                self.sizes.clear();
                self.is_in_doubt = true;
                Err(error)
            }
            Err(error) => Err(error),
        }
    }

    /// Skips the first message.
    fn too_large(&mut self, size: usize, pause: Duration, tried: bool) -> Part {
        self.sizes.pop();
        self.tries_alone = 0;
        Part::TooLarge(Unfetched { size, pause, tried })
    }

    /// Returns how many messages to request next, and how many bytes to expect.
    async fn plan(
        &mut self,
        ids: &[MessageId],
        slots: &Slots,
    ) -> Result<(usize, usize), BrokerError> {
        let most = slots.most();
        if self.sizes.is_empty() {
            let expected = ids.len().saturating_mul(self.recent.largest(self.topic));
            let is_in_doubt = self.is_in_doubt || slots.limit(Instant::now()).is_some();
            if !is_in_doubt && (expected <= most || ids.len() == 1) {
                return Ok((ids.len(), expected));
            }
            let broker = &self.process.broker;
            let sizes = broker.record_sizes(self.topic, self.shard, ids);
            self.sizes = sizes.await?;
            self.recent.note(self.sizes.iter().copied());
            self.sizes.reverse();
        }
        // A payload that is too large is requested alone.
        let limit = slots.limit(Instant::now());
        let most = limit.map_or(most, |limit| most.min(limit - 1));
        Ok(fitting(self.sizes.iter().rev().copied(), most))
    }
}

/// Returns how many of these sizes fit into `most` bytes together, at least one, and their sum.
fn fitting(sizes: impl Iterator<Item = usize>, most: usize) -> (usize, usize) {
    let (mut count, mut bytes) = (0, 0);
    for size in sizes {
        if count > 0 && bytes + size > most {
            break;
        }
        (count, bytes) = (count + 1, bytes + size);
    }
    (count, bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_part_has_what_fits_and_at_least_one() {
        let fit = |sizes: &[usize]| fitting(sizes.iter().copied(), 100);
        assert_eq!(fit(&[40, 60, 1]), (2, 100));
        assert_eq!(fit(&[500, 1]), (1, 500));
        assert_eq!(fit(&[0, 0, 101]), (2, 0));
        assert_eq!(fit(&[7]), (1, 7));
    }
}
