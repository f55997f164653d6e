//! Reads a shard: takes permits, reads up to that many messages, fetches their records and starts their deliveries.
//!
//! Reads that block use their own connection, which is replaced after any error. A message is read only when there is a permit
//! to run its handler.

use std::future::pending;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use futures_util::FutureExt;
use lisa_core::broker::{Broker, BrokerError, MAX_BATCH, Read, ReaderId, TopicHandle};
use lisa_core::message::MessageId;
use lisa_core::redis::Reader;
use lisa_core::state::Attempt;
use lisa_core::topic::{Group, Shard};
use tokio::sync::OwnedSemaphorePermit;
use tokio::time::{Instant, sleep};
use tokio_util::sync::CancellationToken;

use crate::target::{Reservation, Target};
use crate::worker::deliver::{Job, put_off};
use crate::worker::payloads::{Fetch, Part};
use crate::worker::runner::{self, Jobs};
use crate::worker::state::{SettleQueue, ShardWorker};
use crate::worker::trial;

/// The largest number of messages that a read requests.
const BATCH: usize = MAX_BATCH;
/// The longest time that a read waits for a message.
pub const BLOCK: Duration = Duration::from_secs(5);
/// The interval between requests to end a read that is no longer wanted.
const UNBLOCK_EVERY: Duration = Duration::from_millis(50);

/// Reads until the shutdown begins.
pub(crate) async fn run(queue: &SettleQueue) {
    let worker = &queue.worker;
    worker.part.rest();
    tokio::select! {
        () = worker.hooks_enabled.cancelled() => {}
        () = worker.draining().cancelled() => return,
    }
    worker.part.ok();
    let mut source = Source::default();
    let mut outage = worker.outage("read messages");
    let mut busy = false;
    let mut turns_until = None;
    while let Some((permits, probe)) = take_permits(worker, busy).await {
        if permits.num_permits() == 0 {
            continue;
        }
        let topic = worker.topic();
        let begun = Instant::now();
        // The shard that ended the last read may need the permit again.
        let takes_turns = probe.is_some() || turns_until.is_some_and(|until| begun < until);
        let block = block(worker, &topic, takes_turns);
        let reading = Reading {
            broker: &worker.process.broker,
            topic: &topic,
            shard: worker.shard,
            group: worker.subscription.group(),
            consumer: &worker.process.name,
        };
        let shared = worker.permits.reads.begin(block);
        let is_ended = AtomicBool::new(false);
        let unwanted = async {
            tokio::select! {
                () = shared.ended() => is_ended.store(true, Ordering::Relaxed),
                () = worker.draining().cancelled() => {}
            }
        };
        let count = permits.num_permits();
        let found = read(&reading, &mut source, count, block, unwanted, &worker.stop).await;
        drop(shared);
        if is_ended.into_inner() {
            turns_until = Some(Instant::now() + BLOCK);
        }
        match found {
            Ok(reads) => {
                worker.part.ok();
                outage.recovered();
                busy = !reads.is_empty();
                if busy {
                    // The settings may have changed while the read waited. Runs concurrently with the next read.
                    let topic = worker.topic();
                    queue.spawn(start(queue.clone(), topic, reads, begun, permits, probe));
                } else if block.is_zero() {
                    // Another shard may have a message for them.
                    drop((permits, probe));
                    let draining = worker.draining().cancelled();
                    worker.process.resting.rest(draining).await;
                }
            }
            Err(error) => {
                source = Source::default();
                busy = false;
                drop(permits);
                // Redis answered, even if with an error: this loop is not stuck, and a restart would not help.
                if error.is_answered() {
                    worker.part.ok();
                }
                let pause = outage.failed(&error);
                tokio::select! {
                    () = sleep(pause) => {}
                    () = worker.draining().cancelled() => return,
                }
            }
        }
    }
}

/// Waits for a permit, and takes more for a shard that just had messages. Returns `None` when the shutdown begins. With a
/// reservation, the message is a probe of the target.
///
/// An idle shard takes only one: further permits would be idle with it.
async fn take_permits(
    worker: &ShardWorker,
    busy: bool,
) -> Option<(OwnedSemaphorePermit, Option<Reservation>)> {
    if worker.draining().is_cancelled() {
        return None;
    }
    let target = worker.subscription.handler().target();
    let probe = match target {
        Some(target) => readable(worker, target).await?,
        None => None,
    };
    let mut permits = match worker.permits.handlers.clone().try_acquire_owned() {
        Ok(permit) => permit,
        Err(_) => {
            worker.part.rest();
            let acquire = worker.permits.handlers.clone().acquire_owned();
            let acquire = worker.permits.reads.wait_for(acquire, busy);
            tokio::pin!(acquire);
            let permit = loop {
                let held = async {
                    match target {
                        Some(target) => target.held().await,
                        None => pending().await,
                    }
                };
                tokio::select! {
                    permit = &mut acquire => break permit.ok()?,
                    () = held => {}
                    () = worker.draining().cancelled() => return None,
                }
            };
            worker.part.ok();
            // Lets handlers that are about to end release their permits, too.
            tokio::task::yield_now().await;
            permit
        }
    };
    if busy && probe.is_none() {
        let share = worker.subscription.limit() / worker.topic().shards().len();
        // One half is read while the other half is handled.
        let more = share.div_ceil(2).min(BATCH).saturating_sub(1);
        let more = more.min(worker.permits.handlers.available_permits());
        if let Ok(more) = worker
            .permits
            .handlers
            .clone()
            .try_acquire_many_owned(u32::try_from(more).unwrap_or(0))
        {
            permits.merge(more);
        }
    }
    if let Some(target) = target {
        target.collect(&mut permits);
    }
    // Permits of handlers that end because of the shutdown must not fetch more messages.
    (!worker.draining().is_cancelled()).then_some((permits, probe))
}

/// Waits until the target may get deliveries. Returns `None` when the shutdown begins.
async fn readable(worker: &ShardWorker, target: &Target) -> Option<Option<Reservation>> {
    let readable = target.readable();
    tokio::pin!(readable);
    if let Some(now) = (&mut readable).now_or_never() {
        return Some(now);
    }
    worker.part.rest();
    let probe = tokio::select! {
        probe = readable => probe,
        () = worker.draining().cancelled() => return None,
    };
    worker.part.ok();
    Some(probe)
}

/// The reader and the ID of its connection in Redis; no ID if the Redis user may not request it.
#[derive(Default)]
pub struct Source(Option<(Reader, Option<ReaderId>)>);

/// The entries to read, and the consumer that reads them.
pub struct Reading<'a> {
    /// The messages and their Redis.
    pub broker: &'a Broker,
    /// The topic.
    pub topic: &'a TopicHandle,
    /// The shard whose stream is read.
    pub shard: Shard,
    /// The group that reads.
    pub group: &'a Group,
    /// The name of the consumer in Redis.
    pub consumer: &'a str,
}

impl Source {
    async fn open(
        &mut self,
        reading: &Reading<'_>,
    ) -> Result<&mut (Reader, Option<ReaderId>), BrokerError> {
        let open = match self.0.take() {
            Some(open) if open.0.is_open() => open,
            _ => {
                let broker = reading.broker;
                let server = broker.server(reading.topic, reading.shard)?;
                let mut reader = server.reader().await?;
                match broker.reader_id(&mut reader).await {
                    Ok(id) => (reader, Some(id)),
                    Err(BrokerError::Connection(error)) if error.is_fatal() => {
                        (server.reader().await?, None)
                    }
                    Err(error) => return Err(error),
                }
            }
        };
        Ok(self.0.insert(open))
    }
}

/// Reads up to `count` messages. If `block` is zero, uses the connection of the process, and ignores `unwanted`. Otherwise, uses the
/// connection of `source`, and stops waiting once `unwanted` completes: it then returns what is available. Drops the read when `stop` is
/// cancelled.
pub async fn read(
    reading: &Reading<'_>,
    source: &mut Source,
    count: usize,
    block: Duration,
    unwanted: impl Future<Output = ()>,
    stop: &CancellationToken,
) -> Result<Vec<Read>, BrokerError> {
    let Reading {
        broker,
        topic,
        shard,
        group,
        consumer,
    } = *reading;
    if block.is_zero() {
        let read = broker.read_now(topic, shard, group, consumer, count);
        return stop
            .run_until_cancelled(read)
            .await
            .unwrap_or(Ok(Vec::new()));
    }
    tokio::pin!(unwanted);
    let (reader, mut id) = tokio::select! {
        open = source.open(reading) => {
            let (reader, id) = open?;
            (reader, id.as_ref())
        }
        () = &mut unwanted => return Ok(Vec::new()),
    };
    let read = broker.read(reader, topic, shard, group, consumer, count, block);
    tokio::pin!(read);
    tokio::select! {
        biased;
        read = &mut read => return read,
        () = unwanted => {}
    }
    // Dropping the read could lose messages that Redis has just delivered to it. So it is ended in Redis: repeatedly, since
    // it may not have started there yet.
    loop {
        let unblock = async {
            if let Some(unblocked) = id
                && let Err(error) = broker.unblock(unblocked).await
            {
                tracing::debug!(%error, "cannot unblock a read; waiting for it to end");
                if matches!(error, BrokerError::Connection(error) if error.is_fatal()) {
                    id = None;
                }
            }
            sleep(UNBLOCK_EVERY).await;
        };
        tokio::select! {
            biased;
            read = &mut read => return read,
            () = stop.cancelled() => return Ok(Vec::new()),
            () = unblock => {}
        }
    }
}

/// Returns how long a read may block: not at all if other shards may be waiting for the last permit or for the probe, and at most
/// half a lease, since the lease counts from the start of the read.
fn block(worker: &ShardWorker, topic: &TopicHandle, takes_turns: bool) -> Duration {
    let is_crowded = takes_turns || worker.permits.handlers.available_permits() == 0;
    if is_crowded && topic.shards().len() > 1 {
        return Duration::ZERO;
    }
    BLOCK.min(topic.settings().lease / 2)
}

/// Fetches the records of the messages of a read that began at `begun`, and starts each delivery when its record arrives.
/// Holds the reservation of a probe meanwhile.
async fn start(
    queue: SettleQueue,
    topic: Arc<TopicHandle>,
    reads: Vec<Read>,
    begun: Instant,
    mut taken: OwnedSemaphorePermit,
    _probe: Option<Reservation>,
) {
    let worker = &queue.worker;
    // An entry without a message cannot be settled; the manager drops it after its lease.
    let reads: Vec<(MessageId, Attempt)> = reads
        .into_iter()
        .filter_map(|read| Some((read.id?, read.attempt)))
        .collect();
    let reads = trial::divert(&queue, &topic, reads, begun, &mut taken);
    let (ids, attempts): (Vec<MessageId>, Vec<Attempt>) = reads.into_iter().unzip();
    let permits = taken.split(ids.len());
    let mut permits = permits.expect("a read returns at most one message for each permit");
    // Releases the unused permits before payloads are fetched.
    drop(taken);
    let entries = attempts.iter().map(|attempt| attempt.entry);
    let leases = worker.leases.hold(entries, begun);
    let mut left = attempts.into_iter().zip(leases);
    let mut fetch = Fetch::new(worker, &topic);
    let mut next = 0;
    while next < ids.len() {
        let part = fetch.next(&ids[next..]).await;
        let records = match part {
            Part::Records(records) => records,
            Part::TooLarge(unfetched) => {
                let (_, lease) = left.next().expect("an attempt for each id");
                drop(permits.split(1));
                put_off(&queue, ids[next].clone(), lease, unfetched).await;
                next += 1;
                continue;
            }
            Part::Stopped => break,
        };
        let ids = ids[next..].iter().cloned();
        let fetched = records.into_iter().zip(ids).zip(&mut left);
        let jobs: Vec<Job> = fetched
            .map(|((record, id), (attempt, lease))| Job {
                id,
                attempt,
                record,
                lease,
                permit: permits.split(1).expect("a permit for each id"),
            })
            .collect();
        next += jobs.len();
        runner::start(Jobs::new(queue.clone(), topic.clone(), jobs));
    }
    for (id, (_, lease)) in ids.into_iter().skip(next).zip(left) {
        queue.hand_back(id, lease).await;
    }
}
