//! Reads a shard: takes permits, reads so many messages, fetches their records, starts their deliveries.
//!
//! Has a connection of its own, which is replaced after any error. A message is only read when there is a permit to
//! run its handler.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use lisa_shared::broker::{BrokerError, Read, ReaderId, Settlement, TopicHandle, Verdict};
use lisa_shared::link::Reader;
use lisa_shared::message::{MessageId, Record};
use lisa_shared::state::Attempt;
use lisa_shared::time::When;
use tokio::sync::OwnedSemaphorePermit;
use tokio::time::{Instant, sleep};

use crate::deliver::{self, Job};
use crate::feed::{Desk, Feed};
use crate::lease::Lease;
use crate::payloads::{Fetch, Part, Unfetched};
use crate::suspects;

/// The most messages a read asks for.
const BATCH: usize = 100;
/// How long a read waits for a message.
const BLOCK: Duration = Duration::from_millis(2500);
/// How long an idle shard may keep the last free permit from the others. With fewer permits than shards, a full round
/// over all shards takes twice this.
const CROWDED_BLOCK: Duration = Duration::from_millis(100);
/// The pauses after errors.
const FIRST_PAUSE: Duration = Duration::from_millis(50);
const LONGEST_PAUSE: Duration = Duration::from_secs(1);
/// How often Redis is asked to end a read that is not wanted any more.
const UNBLOCK_EVERY: Duration = Duration::from_millis(50);

/// Reads until the shutdown begins.
pub(crate) async fn run(desk: &Desk) {
    let feed = &desk.feed;
    let mut source = Source::default();
    let mut trouble = Trouble::default();
    let mut busy = false;
    while let Some(permits) = take_permits(feed, busy).await {
        let topic = feed.topic();
        let begun = Instant::now();
        match read(feed, &mut source, &topic, permits.num_permits()).await {
            Ok(reads) => {
                feed.pulse.ok();
                trouble.over(feed);
                busy = !reads.is_empty();
                if busy {
                    // Beside the next read.
                    desk.deliveries
                        .spawn(start(desk.clone(), topic, reads, begun, permits));
                }
            }
            Err(error) => {
                source = Source::default();
                drop(permits);
                // Redis answered, if only "not now": this loop is not stuck, and no restart would help.
                if error.is_answered() {
                    feed.pulse.ok();
                }
                let pause = trouble.met(feed, &error);
                tokio::select! {
                    () = sleep(pause) => {}
                    () = feed.draining().cancelled() => return,
                }
            }
        }
    }
}

/// Waits for a permit, and takes more for a shard that just had messages. None when the shutdown begins.
///
/// An idle shard takes one only: the others would lie idle with it.
async fn take_permits(feed: &Feed, busy: bool) -> Option<OwnedSemaphorePermit> {
    if feed.draining().is_cancelled() {
        return None;
    }
    let mut permits = match feed.permits.clone().try_acquire_owned() {
        Ok(permit) => permit,
        Err(_) => {
            feed.pulse.rest();
            let permit = tokio::select! {
                permit = feed.permits.clone().acquire_owned() => permit.ok()?,
                () = feed.draining().cancelled() => return None,
            };
            feed.pulse.ok();
            // Handlers that are about to end together give their permits back together.
            tokio::task::yield_now().await;
            permit
        }
    };
    if busy {
        let share = feed.subscription.limit() / feed.topic().shards().len();
        // One half is read while the other half is handled.
        let more = share.div_ceil(2).min(BATCH).saturating_sub(1);
        let more = more.min(feed.permits.available_permits());
        if let Ok(more) = feed
            .permits
            .clone()
            .try_acquire_many_owned(u32::try_from(more).unwrap_or(0))
        {
            permits.merge(more);
        }
    }
    // Handlers that end because of the shutdown free their permits: those are not for more messages.
    (!feed.draining().is_cancelled()).then_some(permits)
}

/// The reader, and the name under which Redis knows it, if the user may ask.
#[derive(Default)]
struct Source(Option<(Reader, Option<ReaderId>)>);

impl Source {
    async fn open(
        &mut self,
        feed: &Feed,
        topic: &TopicHandle,
    ) -> Result<&mut (Reader, Option<ReaderId>), BrokerError> {
        let open = match self.0.take() {
            Some(open) if open.0.is_open() => open,
            _ => {
                let broker = &feed.process.broker;
                let server = broker.server(topic, feed.shard)?;
                let mut reader = server.reader().await?;
                match broker.reader_id(&mut reader).await {
                    Ok(id) => (reader, Some(id)),
                    Err(BrokerError::Link(error)) if error.is_fatal() => {
                        (server.reader().await?, None)
                    }
                    Err(error) => return Err(error),
                }
            }
        };
        Ok(self.0.insert(open))
    }
}

/// Reads up to `count` messages. Once the shutdown begins it gives what there is without waiting.
async fn read(
    feed: &Feed,
    source: &mut Source,
    topic: &TopicHandle,
    count: usize,
) -> Result<Vec<Read>, BrokerError> {
    let (broker, name) = (&feed.process.broker, &feed.process.name);
    let (reader, id) = tokio::select! {
        open = source.open(feed, topic) => open?,
        () = feed.draining().cancelled() => return Ok(Vec::new()),
    };
    let (shard, group) = (feed.shard, feed.subscription.group());
    let read = broker.read(reader, topic, shard, group, name, count, block(feed, topic));
    tokio::pin!(read);
    tokio::select! {
        biased;
        read = &mut read => return read,
        () = feed.draining().cancelled() => {}
    }
    // Dropped, the read could take with it what Redis just handed over. So it is ended in Redis; again and again, as
    // it may not have begun there yet.
    loop {
        let unblock = async {
            if let Some(id) = id
                && let Err(error) = broker.unblock(id).await
            {
                tracing::debug!(%error, "cannot unblock a read: waiting for its end");
            }
            sleep(UNBLOCK_EVERY).await;
        };
        tokio::select! {
            biased;
            read = &mut read => return read,
            () = feed.stop.cancelled() => return Ok(Vec::new()),
            () = unblock => {}
        }
    }
}

/// Returns the longest wait of a read: short with the last permit in hand, and at most half a lease, since the lease counts
/// from the start of the read.
fn block(feed: &Feed, topic: &TopicHandle) -> Duration {
    if feed.permits.available_permits() > 0 || topic.shards().len() == 1 {
        return BLOCK.min(topic.settings().lease / 2);
    }
    let shards = topic.shards().len() as f64;
    let share = feed.subscription.limit() as f64 / shards;
    CROWDED_BLOCK
        .mul_f64(share.min(1.0))
        .max(Duration::from_millis(1))
}

/// Fetches the records of what a read that began at `begun` gave, and starts a delivery for each as it comes.
async fn start(
    desk: Desk,
    topic: Arc<TopicHandle>,
    reads: Vec<Read>,
    begun: Instant,
    mut taken: OwnedSemaphorePermit,
) {
    let feed = &desk.feed;
    // An entry without a message cannot be settled; the manager drops it when its lease is over.
    let reads: Vec<(MessageId, Attempt)> = reads
        .into_iter()
        .filter_map(|read| Some((read.id?, read.attempt)))
        .collect();
    let reads = suspects::divert(&desk, &topic, reads, begun, &mut taken);
    let (ids, attempts): (Vec<MessageId>, Vec<Attempt>) = reads.into_iter().unzip();
    let permits = taken.split(ids.len());
    let mut permits = permits.expect("a read gives at most one message for each permit");
    // What nobody needs is not held while payloads come in.
    drop(taken);
    let entries = attempts.iter().map(|attempt| attempt.entry);
    let leases = feed.leases.hold(entries, begun);
    let mut left = attempts.into_iter().zip(leases);
    let mut fetch = Fetch::new(feed, &topic);
    let mut next = 0;
    while next < ids.len() {
        let part = fetch.next(&ids[next..]).await;
        let records = match part {
            Part::Records(records) => records,
            Part::TooLarge(unfetched) => {
                let (_, lease) = left.next().expect("an attempt for each id");
                drop(permits.split(1));
                put_off(&desk, ids[next].clone(), lease, unfetched).await;
                next += 1;
                continue;
            }
            Part::Stopped => break,
        };
        for record in records {
            let (attempt, lease) = left.next().expect("an attempt for each id");
            let id = ids[next].clone();
            next += 1;
            let permit = permits.split(1).expect("a permit for each id");
            let (desk, topic) = (desk.clone(), topic.clone());
            let tasks = desk.deliveries.clone();
            tasks.spawn(deliver_one(desk, topic, id, attempt, lease, permit, record));
        }
    }
    for (id, (_, lease)) in ids.into_iter().skip(next).zip(left) {
        desk.hand_back(id, lease).await;
    }
}

/// Sees a delivery whose record was fetched to its end.
pub(crate) async fn deliver_one(
    desk: Desk,
    topic: Arc<TopicHandle>,
    id: MessageId,
    attempt: Attempt,
    lease: Lease,
    permit: OwnedSemaphorePermit,
    record: Option<Bytes>,
) {
    match decode(record) {
        Ok(record) => {
            let job = Job {
                id,
                attempt,
                record,
                lease,
                permit,
                topic,
            };
            deliver::run(desk, job).await;
        }
        Err(verdict) => refuse(&desk, id, lease, verdict).await,
    }
}

/// Gives a delivery back whose payload is too large for the network, uncounted: no handler has seen it, and an operator
/// can help.
pub(crate) async fn put_off(desk: &Desk, id: MessageId, lease: Lease, unfetched: Unfetched) {
    let feed = &desk.feed;
    let Unfetched { size, pause, tried } = unfetched;
    let pause = pause.min(feed.topic().settings().max_delay);
    if tried {
        let timeout = feed.process.broker.link().response_timeout();
        tracing::error!(
            %id, subscription = %feed.subscription, size, ?timeout, retry_in = ?pause,
            "cannot fetch a payload within redis.response_timeout; deferring all payloads of this size or larger on this server"
        );
    } else {
        tracing::debug!(%id, subscription = %feed.subscription, size, retry_in = ?pause, "deferring a payload that is too large");
    }
    desk.put_off(id, lease, When::After(pause)).await;
}

fn decode(record: Option<Bytes>) -> Result<Record, Verdict> {
    let bytes = record.ok_or(Verdict::Lost)?;
    Record::decode(bytes).map_err(|error| Verdict::Reject {
        error: format!("the record cannot be decoded: {error}"),
    })
}

/// Settles what no handler can be given.
async fn refuse(desk: &Desk, id: MessageId, lease: Lease, verdict: Verdict) {
    let feed = &desk.feed;
    let (entry, lost) = (lease.entry(), verdict == Verdict::Lost);
    tracing::warn!(%id, subscription = %feed.subscription, lost, "a message without a readable payload");
    let settlement = Settlement {
        entry,
        id,
        caller_id: false,
        max_attempts: u32::MAX,
        verdict,
    };
    desk.settle(settlement, lease).await;
}

/// Errors in a row: how long to pause, and what was said of them.
#[derive(Default)]
pub(crate) struct Trouble {
    pause: Option<Duration>,
    said: String,
}

impl Trouble {
    pub(crate) fn any(&self) -> bool {
        self.pause.is_some()
    }

    /// Takes note of an error, logs it if it is news, and gives the pause before the next try.
    ///
    /// The errors of one outage may read differently each time; the first one says enough.
    pub(crate) fn met(&mut self, feed: &Feed, error: &BrokerError) -> Duration {
        let text = error.to_string();
        let is_news = if error.is_retryable() {
            !self.any()
        } else {
            text != self.said
        };
        if is_news {
            tracing::warn!(error = text, subscription = %feed.subscription, shard = %feed.shard, "cannot read: trying on");
            self.said = text;
        }
        let pause = self.pause.unwrap_or(FIRST_PAUSE);
        self.pause = Some((pause * 2).min(LONGEST_PAUSE));
        // Readers that fell together shall not come back together.
        pause.mul_f64(0.5 + fastrand::f64() / 2.0)
    }

    pub(crate) fn over(&mut self, feed: &Feed) {
        if self.pause.take().is_some() {
            tracing::info!(subscription = %feed.subscription, shard = %feed.shard, "reading again");
            self.said.clear();
        }
    }
}
