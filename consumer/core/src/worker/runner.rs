//! Runs fetched deliveries concurrently, in few tasks if their handlers do not wait.
//!
//! A runner is a task that runs one delivery after another. First it starts the next runner, which takes the other deliveries
//! while a handler waits or blocks its thread. So each delivery that waits has a task of its own, and one that does not wait
//! needs none. Between two deliveries, a runner lets other tasks run, as if each delivery had a task.

use std::future::{self, poll_fn};
use std::mem;
use std::sync::Arc;
use std::task::Poll;
use std::vec;

use lisa_core::broker::TopicHandle;
use lisa_core::sync::Mutex;

use crate::worker::deliver::{self, Job};
use crate::worker::state::SettleQueue;

/// The fetched deliveries of a read that no runner has taken yet.
pub(crate) struct Jobs {
    queue: SettleQueue,
    topic: Arc<TopicHandle>,
    left: Mutex<vec::IntoIter<Job>>,
}

impl Jobs {
    pub(crate) fn new(queue: SettleQueue, topic: Arc<TopicHandle>, jobs: Vec<Job>) -> Arc<Self> {
        Arc::new(Self {
            queue,
            topic,
            left: Mutex::new(jobs.into_iter()),
        })
    }

    fn next(&self) -> Option<Job> {
        self.left.lock().next()
    }

    fn is_empty(&self) -> bool {
        self.left.lock().len() == 0
    }
}

/// Starts a runner.
pub(crate) fn start(jobs: Arc<Jobs>) {
    let queue = jobs.queue.clone();
    queue.spawn(run(jobs));
}

async fn run(jobs: Arc<Jobs>) {
    let mut next = jobs.next();
    if !jobs.is_empty() {
        start(jobs.clone());
        // Tokio reserves the last task that a thread starts for that thread, even while the thread is blocked. So the runner
        // must not be the last one.
        jobs.queue.deliveries.spawn(future::ready(()));
    }
    while let Some(job) = next {
        deliver::run(&jobs.queue, &jobs.topic, job).await;
        next = jobs.next();
        if next.is_some() {
            let_others_run().await;
        }
    }
}

/// Lets every other task that is ready run once. Costs less than [`tokio::task::yield_now`], which also polls for I/O.
async fn let_others_run() {
    let mut is_done = false;
    poll_fn(|context| {
        if mem::replace(&mut is_done, true) {
            return Poll::Ready(());
        }
        context.waker().wake_by_ref();
        Poll::Pending
    })
    .await;
}
