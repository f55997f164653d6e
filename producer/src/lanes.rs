//! Makes few calls of many sends: one lane for each shard of a topic and each durability.
//!
//! A send that finds its lane idle goes at once, with those of other callers that are ready. While two calls of a lane are
//! under way, further sends gather, and the next call takes as many of them as fit. What gathers is bounded by its bytes: beyond that a send is refused at once.
//! It knows no validation and no retry: the broker repeats what may be repeated.

use std::collections::{HashMap, HashSet, VecDeque};
use std::panic::AssertUnwindSafe;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use futures_util::FutureExt;
use lisa_shared::broker::{Broker, MAX_BATCH, TopicHandle};
use lisa_shared::durability::Durability;
use lisa_shared::message::{MessageId, NewMessage};
use lisa_shared::state::Accepted;
use lisa_shared::supervise::panic_text;
use lisa_shared::topic::{Shard, Topic};
use tokio::sync::oneshot;
use tokio_util::task::TaskTracker;

use crate::error::{Failure, SendError};

/// Calls of one lane under way at a time: one that Redis works on, one that travels.
const CALLS: u8 = 2;
/// So many sends are not shared out between calls.
const TOO_FEW_TO_SHARE: usize = 16;
/// Bytes of records in one call, unless a single message is larger: what Redis copies without a hiccup.
const MAX_BYTES: usize = 1024 * 1024;
/// Bytes of records in all lanes of a producer, those under way included: what an outage may cost in memory.
const MAX_HELD: usize = 64 * 1024 * 1024;
/// What a message costs beside its record.
const OVERHEAD: usize = 512;

type Answer = Result<Accepted, Failure>;
type Key = (Topic, Shard, Durability);

/// All lanes of a producer; a cheap clone.
#[derive(Clone)]
pub(crate) struct Lanes {
    broker: Broker,
    busy: Arc<Mutex<HashMap<Key, Lane>>>,
    held: Arc<AtomicUsize>,
    calls: TaskTracker,
}

/// Room that a message takes until it is answered.
struct Room {
    bytes: usize,
    held: Arc<AtomicUsize>,
}

impl Room {
    /// Takes room; none if the lanes are full. A message of any size fits when nothing else is there.
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

/// A lane that has something to do. Idle ones are not kept.
#[derive(Default)]
struct Lane {
    queue: VecDeque<Job>,
    /// Tasks that make calls, and those of them that wait for an answer.
    calls: u8,
    under_way: u8,
}

struct Job {
    topic: Arc<TopicHandle>,
    message: NewMessage,
    answer: oneshot::Sender<Answer>,
    room: Room,
}

impl Lanes {
    pub(crate) fn new(broker: Broker) -> Self {
        Self {
            broker,
            busy: Arc::default(),
            held: Arc::default(),
            calls: TaskTracker::new(),
        }
    }

    /// Sends one message together with its neighbours.
    ///
    /// # Errors
    /// [`SendError::Busy`] at once if too much is waiting; else what the call gave.
    ///
    /// # Cancel safety
    /// The message may be sent all the same.
    pub(crate) async fn send(
        &self,
        topic: Arc<TopicHandle>,
        message: NewMessage,
    ) -> Result<Accepted, SendError> {
        let id = message.id.clone();
        let bytes = message.record.encoded_len() + message.options.text_len() + OVERHEAD;
        let room = Room::take(&self.held, bytes).ok_or(SendError::Busy { limit: MAX_HELD })?;
        let (answer, answered) = oneshot::channel();
        self.enqueue(Job {
            topic,
            message,
            answer,
            room,
        });
        match answered.await {
            Ok(answer) => answer.map_err(|failure| SendError::of_message(failure, &id)),
            // The call was cut off with its runtime, or panicked.
            Err(_) => Err(SendError::Indeterminate {
                id,
                why: "the call was cut off".to_owned(),
                stored: false,
            }),
        }
    }

    /// Owns a task that is no send but must not outlive the producer unseen.
    pub(crate) fn track(&self, task: impl Future<Output = ()> + Send + 'static) {
        self.calls.spawn(task);
    }

    /// Waits until no call is under way.
    pub(crate) async fn idle(&self) {
        self.calls.close();
        self.calls.wait().await;
        self.calls.reopen();
    }

    fn enqueue(&self, job: Job) {
        let shard = job.topic.shard_of_message(&job.message);
        let key = (job.topic.name().clone(), shard, job.message.durability);
        let mut busy = self.busy();
        let lane = busy.entry(key.clone()).or_default();
        lane.queue.push_back(job);
        if lane.calls < CALLS {
            lane.calls += 1;
            let lanes = self.clone();
            // A task of its own: a caller that goes away must not take its neighbours' messages along.
            self.calls.spawn(async move {
                loop {
                    // Callers that are ready, as all of an answered call are, get their turn first.
                    tokio::task::yield_now().await;
                    let Some(jobs) = lanes.take(&key) else {
                        break;
                    };
                    // A bug in one call must not close the lane: those behind would wait for ever.
                    let call = AssertUnwindSafe(lanes.call(&key, jobs)).catch_unwind();
                    if let Err(panic) = call.await {
                        let reason = panic_text(&*panic);
                        tracing::error!(topic = %key.0, shard = %key.1, reason, "a call of sends failed");
                    }
                    lanes.answered(&key);
                }
            });
        }
    }

    fn answered(&self, key: &Key) {
        if let Some(lane) = self.busy().get_mut(key) {
            lane.under_way -= 1;
        }
    }

    /// Takes the next batch; `None` when the lane has run dry, which ends this call's task. Where two calls are about to be
    /// made, each takes half: Redis works on one while the callers of the other go on.
    fn take(&self, key: &Key) -> Option<Vec<Job>> {
        let mut busy = self.busy();
        let lane = busy.get_mut(key)?;
        let share = lane
            .queue
            .len()
            .div_ceil(usize::from(lane.calls - lane.under_way));
        let share = share.max(TOO_FEW_TO_SHARE);
        let mut batch = Batch::default();
        let mut jobs = Vec::new();
        while jobs.len() < share
            && let Some(job) = lane.queue.pop_front_if(|job| batch.admits(&job.message))
        {
            jobs.push(job);
        }
        if !jobs.is_empty() {
            lane.under_way += 1;
            return Some(jobs);
        }
        lane.calls -= 1;
        if lane.calls == 0 {
            busy.remove(key);
        }
        None
    }

    async fn call(&self, key: &Key, jobs: Vec<Job>) {
        let topic = jobs[0].topic.clone();
        // Rooms are given back with the answers.
        let (messages, answers): (Vec<_>, Vec<_>) = jobs
            .into_iter()
            .map(|job| (job.message, (job.answer, job.room)))
            .unzip();
        // A caller that has gone does not hear the answer: not an error.
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
                for (place, (answer, _room)) in answers.into_iter().enumerate() {
                    let _ = answer.send(failure.of_place(place));
                }
            }
        }
    }

    /// Redis was away for the broker's whole patience: nobody behind shall wait for as long again.
    fn fail_queued(&self, key: &Key, failure: &Failure) {
        let mut busy = self.busy();
        let queue = busy
            .get_mut(key)
            .map(|lane| std::mem::take(&mut lane.queue));
        drop(busy);
        for job in queue.into_iter().flatten() {
            let _ = job.answer.send(Err(failure.of_those_behind()));
        }
    }

    fn busy(&self) -> MutexGuard<'_, HashMap<Key, Lane>> {
        self.busy.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// What one call of the send script may hold.
#[derive(Default)]
pub(crate) struct Batch {
    ids: HashSet<MessageId>,
    bytes: usize,
    durability: Option<Durability>,
}

impl Batch {
    /// Counts a message in if it fits. One whose id is in the batch already does not, as an id is sent once a call; nor does
    /// one of another durability.
    pub(crate) fn admits(&mut self, message: &NewMessage) -> bool {
        let bytes = message.record.encoded_len();
        let fits = self.ids.len() < MAX_BATCH
            && (self.ids.is_empty() || self.bytes + bytes <= MAX_BYTES)
            && self
                .durability
                .is_none_or(|of_all| of_all == message.durability)
            && self.ids.insert(message.id.clone());
        if fits {
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
    fn the_lanes_take_64_mib_and_room_is_given_back() {
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
    fn a_batch_ends_at_200_messages_at_1_mib_at_an_id_it_holds_and_at_another_durability() {
        let mut batch = Batch::default();
        assert!((0..MAX_BATCH).all(|_| batch.admits(&NewMessage::new("x"))));
        assert!(!batch.admits(&NewMessage::new("x")));

        let mut batch = Batch::default();
        let large = NewMessage::new(vec![0; 3 * MAX_BYTES]);
        assert!(batch.admits(&large), "a single message is never too large");
        assert!(!batch.admits(&NewMessage::new("x")));

        let mut batch = Batch::default();
        let message = NewMessage::new("x");
        assert!(batch.admits(&message));
        assert!(!batch.admits(&message));
        let mut safer = NewMessage::new("x");
        safer.durability = Durability::Replicas(1);
        assert!(!batch.admits(&safer));
    }

    #[test]
    fn messages_that_replace_or_are_merged_with_one_of_their_batch_are_in_it() {
        let mut batch = Batch::default();
        let message = NewMessage::new("x");
        let mut next = NewMessage::new("y");
        next.options.replace = Some(message.id.clone());
        assert!(batch.admits(&message) && batch.admits(&next));
        for _ in 0..2 {
            let mut merged = NewMessage::new("z");
            merged.options.merge_key = "m".parse().ok();
            assert!(batch.admits(&merged));
        }
    }
}
