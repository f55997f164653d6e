//! Combines single sends into few calls: one queue for each shard of a topic and each durability.
//!
//! A send to an idle queue starts a call immediately, together with the sends of other callers that are ready. While two
//! calls of a queue are in progress, further sends wait, and the next call takes as many of them as fit. Waiting sends are
//! bounded by their bytes: beyond the limit a send is refused immediately. This module does not validate and does not retry:
//! the broker repeats calls that are safe to repeat.

use std::collections::{HashMap, HashSet, VecDeque};
use std::panic::AssertUnwindSafe;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use futures_util::FutureExt;
use lisa_core::broker::{Broker, MAX_SEND_BATCH, TopicHandle};
use lisa_core::durability::Durability;
use lisa_core::message::{MessageId, PreparedMessage};
use lisa_core::state::Accepted;
use lisa_core::sync::Mutex;
use lisa_core::topic::{Shard, Topic};
use lisa_service::panics::panic_text;
use tokio::sync::oneshot;
use tokio_util::task::TaskTracker;

use crate::error::{Failure, SendError};

/// Concurrent calls of one queue: one that Redis executes, one on the network.
const CALLS: u8 = 2;
/// Up to this many sends go into one call instead of being shared between two.
const TOO_FEW_TO_SHARE: usize = 16;
/// The most bytes of records in one call, unless a single message is larger: Redis copies this much without a stall.
const MAX_BYTES: usize = 1024 * 1024;
/// The most bytes of records in the batcher of a producer, calls in progress included: the memory an outage may cost.
const MAX_HELD: usize = 64 * 1024 * 1024;
/// The memory a message takes in addition to its record, in bytes.
const OVERHEAD: usize = 512;

/// Returns the memory that a message takes until it is answered, in bytes.
pub(crate) fn held_by(message: &PreparedMessage) -> usize {
    message.record.encoded_len() + message.options.text_len() + OVERHEAD
}

type Answer = Result<Accepted, Failure>;
type Key = (Topic, Shard, Durability);

/// The queues of a producer. Cheap to clone.
#[derive(Clone)]
pub(crate) struct SendBatcher {
    broker: Broker,
    busy: Arc<Mutex<HashMap<Key, Queue>>>,
    held: Arc<AtomicUsize>,
    calls: TaskTracker,
}

/// The room that a message takes until it is answered. Dropping it returns the room.
struct Room {
    bytes: usize,
    held: Arc<AtomicUsize>,
}

impl Room {
    /// Takes room. Returns `None` if the batcher is full. A message of any size fits if the batcher is empty.
    fn take(held: &Arc<AtomicUsize>, bytes: usize) -> Option<Self> {
        let order = Ordering::Relaxed;
        held.fetch_update(order, order, |held| {
            (held == 0 || held + bytes <= MAX_HELD).then(|| held + bytes)
        })
        .ok()?;
        Some(Self {
            bytes,
            held: held.clone(),
        })
    }
}

impl Drop for Room {
    fn drop(&mut self) {
        self.held.fetch_sub(self.bytes, Ordering::Relaxed);
    }
}

/// A queue with work to do. Idle queues are not kept.
#[derive(Default)]
struct Queue {
    queue: VecDeque<Job>,
    /// The tasks that make calls, and the number of them that wait for a reply.
    calls: u8,
    under_way: u8,
}

struct Job {
    topic: Arc<TopicHandle>,
    message: PreparedMessage,
    answer: oneshot::Sender<Answer>,
    room: Room,
}

impl SendBatcher {
    pub(crate) fn new(broker: Broker) -> Self {
        Self {
            broker,
            busy: Arc::default(),
            held: Arc::default(),
            calls: TaskTracker::new(),
        }
    }

    /// Sends one message together with others of its queue.
    ///
    /// # Errors
    /// [`SendError::Busy`] immediately if the batcher is full; else the error of the call.
    ///
    /// # Cancel safety
    /// Not cancel safe: the message may still be sent.
    pub(crate) async fn send(
        &self,
        topic: Arc<TopicHandle>,
        message: PreparedMessage,
    ) -> Result<Accepted, SendError> {
        let id = message.id.clone();
        let room =
            Room::take(&self.held, held_by(&message)).ok_or(SendError::Busy { limit: MAX_HELD })?;
        let (answer, answered) = oneshot::channel();
        self.enqueue(Job {
            topic,
            message,
            answer,
            room,
        });
        match answered.await {
            Ok(answer) => answer.map_err(|failure| SendError::of_message(failure, &id)),
            // The call ended with its runtime, or panicked.
            Err(_) => Err(SendError::Indeterminate {
                id,
                why: "the call was interrupted".to_owned(),
                stored: false,
            }),
        }
    }

    /// Spawns a task that is not a send, so that [`idle`](Self::idle) waits for it too.
    pub(crate) fn track(&self, task: impl Future<Output = ()> + Send + 'static) {
        self.calls.spawn(task);
    }

    /// Waits until no call is in progress.
    pub(crate) async fn idle(&self) {
        self.calls.close();
        self.calls.wait().await;
        self.calls.reopen();
    }

    fn enqueue(&self, job: Job) {
        let shard = job.topic.shard_of_message(&job.message);
        let key = (job.topic.name().clone(), shard, job.message.durability);
        let mut busy = self.busy.lock();
        let queue = busy.entry(key.clone()).or_default();
        queue.queue.push_back(job);
        if queue.calls < CALLS {
            queue.calls += 1;
            let batcher = self.clone();
            // A separate task: a caller that is dropped must not cancel the messages of others.
            self.calls.spawn(async move {
                loop {
                    // Callers that are ready run first. After a reply, those are all callers of its call.
                    tokio::task::yield_now().await;
                    let Some(jobs) = batcher.take(&key) else {
                        break;
                    };
                    // A bug in one call must not close the queue: the sends behind it would wait forever.
                    let call = AssertUnwindSafe(batcher.call(&key, jobs)).catch_unwind();
                    if let Err(panic) = call.await {
                        let reason = panic_text(&*panic);
                        tracing::error!(topic = %key.0, shard = %key.1, reason, "send call panicked");
                    }
                    batcher.answered(&key);
                }
            });
        }
    }

    fn answered(&self, key: &Key) {
        if let Some(queue) = self.busy.lock().get_mut(key) {
            queue.under_way -= 1;
        }
    }

    /// Takes the next batch. Returns `None` if the queue is empty, which ends this call's task. If two calls are about to be
    /// made, each takes half: Redis executes one while the callers of the other continue.
    fn take(&self, key: &Key) -> Option<Vec<Job>> {
        let mut busy = self.busy.lock();
        let queue = busy.get_mut(key)?;
        let share = queue
            .queue
            .len()
            .div_ceil(usize::from(queue.calls - queue.under_way));
        let share = share.max(TOO_FEW_TO_SHARE);
        let mut batch = Batch::default();
        let mut jobs = Vec::new();
        while jobs.len() < share
            && let Some(job) = queue.queue.pop_front_if(|job| batch.admits(&job.message))
        {
            jobs.push(job);
        }
        if !jobs.is_empty() {
            queue.under_way += 1;
            return Some(jobs);
        }
        queue.calls -= 1;
        if queue.calls == 0 {
            busy.remove(key);
        }
        None
    }

    async fn call(&self, key: &Key, jobs: Vec<Job>) {
        let topic = jobs[0].topic.clone();
        // The room of a message is returned with its answer.
        let (messages, answers): (Vec<_>, Vec<_>) = jobs
            .into_iter()
            .map(|job| (job.message, (job.answer, job.room)))
            .unzip();
        // The caller may have been dropped, so a failed `send` of the answer is not an error.
        match self.broker.send(&topic, key.1, &messages).await {
            Ok(accepted) => {
                for ((answer, _room), accepted) in answers.into_iter().zip(accepted) {
                    let _ = answer.send(Ok(accepted));
                }
            }
            Err(error) => {
                let failure = Failure::from(error);
                if failure.is_outage() {
                    self.fail_queued(key, &failure);
                }
                for (index, (answer, _room)) in answers.into_iter().enumerate() {
                    let _ = answer.send(failure.of_index(index));
                }
            }
        }
    }

    /// Fails the sends that wait in a queue: Redis was unavailable for a whole call timeout, and they must not wait for
    /// another.
    fn fail_queued(&self, key: &Key, failure: &Failure) {
        let mut busy = self.busy.lock();
        let queue = busy
            .get_mut(key)
            .map(|queue| std::mem::take(&mut queue.queue));
        drop(busy);
        for job in queue.into_iter().flatten() {
            let _ = job.answer.send(Err(failure.of_those_behind()));
        }
    }
}

/// The contents of one call of the send script.
#[derive(Default)]
pub(crate) struct Batch {
    count: usize,
    /// The ids that another message may also have.
    ids: HashSet<MessageId>,
    bytes: usize,
    durability: Option<Durability>,
}

impl Batch {
    /// Adds a message and returns true if it fits. A call sends each id once and has one durability, so a message with an id
    /// that is in the batch already, or with another durability, does not fit.
    pub(crate) fn admits(&mut self, message: &PreparedMessage) -> bool {
        let bytes = message.record.encoded_len();
        let fits = self.count < MAX_SEND_BATCH
            && (self.count == 0 || self.bytes + bytes <= MAX_BYTES)
            && self
                .durability
                .is_none_or(|of_all| of_all == message.durability)
            && (message.new_id.is_new() || self.ids.insert(message.id.clone()));
        if fits {
            self.count += 1;
            self.durability = Some(message.durability);
            self.bytes += bytes;
        }
        fits
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_batcher_holds_64_mib_and_room_is_returned() {
        let held = Arc::default();
        let large = Room::take(&held, 2 * MAX_HELD);
        assert!(large.is_some(), "a single message is never too large");
        assert!(Room::take(&held, 1).is_none());
        drop(large);
        let all: Vec<_> = std::iter::from_fn(|| Room::take(&held, MAX_BYTES)).collect();
        assert_eq!(all.len(), 64);
        drop(all);
        assert_eq!(held.load(Ordering::Relaxed), 0);
    }

    #[test]
    fn a_batch_ends_at_100_messages_at_1_mib_at_an_id_it_holds_and_at_another_durability() {
        let mut batch = Batch::default();
        assert!((0..MAX_SEND_BATCH).all(|_| batch.admits(&PreparedMessage::new("x"))));
        assert!(!batch.admits(&PreparedMessage::new("x")));

        let mut batch = Batch::default();
        let large = PreparedMessage::new(vec![0; 3 * MAX_BYTES]);
        assert!(batch.admits(&large), "a single message is never too large");
        assert!(!batch.admits(&PreparedMessage::new("x")));

        let mut batch = Batch::default();
        let message = PreparedMessage::new("x");
        assert!(batch.admits(&message));
        assert!(!batch.admits(&message));
        let mut safer = PreparedMessage::new("x");
        safer.durability = Durability::Replicas(1);
        assert!(!batch.admits(&safer));
    }

    #[test]
    fn messages_that_replace_or_are_merged_with_one_of_their_batch_are_in_it() {
        let mut batch = Batch::default();
        let message = PreparedMessage::new("x");
        let mut next = PreparedMessage::new("y");
        next.options.replace = Some(message.id.clone());
        assert!(batch.admits(&message) && batch.admits(&next));
        for _ in 0..2 {
            let mut merged = PreparedMessage::new("z");
            merged.options.merge_key = "m".parse().ok();
            assert!(batch.admits(&merged));
        }
    }
}
