//! Sends what deliveries request at the same time in one task, so that a client library writes it together.
//!
//! Without this, each delivery writes alone: Tokio runs the task of a connection right after the delivery that woke it.

use std::mem;
use std::panic::resume_unwind;
use std::sync::Arc;

use lisa_core::sync::Mutex;
use lisa_core::task;
use tokio::sync::oneshot;
use tokio::task::yield_now;

/// The requests that wait for the next batch: at most one for each delivery that runs.
pub(super) struct Batches<Q, A> {
    waiting: Arc<Mutex<Batch<Q, A>>>,
}

/// Requests, each with the sender of its reply.
pub(super) type Batch<Q, A> = Vec<(Q, Reply<A>)>;

/// Sends the reply to a delivery that waits for it.
pub(super) struct Reply<A>(oneshot::Sender<A>);

impl<A> Reply<A> {
    pub(super) fn send(self, reply: A) {
        // The handler may have reached its timeout.
        let _ = self.0.send(reply);
    }
}

impl<Q, A> Default for Batches<Q, A> {
    fn default() -> Self {
        Self {
            waiting: Arc::default(),
        }
    }
}

impl<Q: Send + 'static, A: Send + 'static> Batches<Q, A> {
    /// Adds a request to the next batch, and returns the reply to it; `None` if `send` ends without a reply. The `send` of
    /// the batch's first request sends the batch, once the tasks that are ready have run and have added theirs.
    ///
    /// # Panics
    /// A panic of `send` continues in its caller, unless that has its reply: the panic of a delivery is counted.
    ///
    /// # Cancel safety
    /// If the future is dropped, the request may be sent or not. The others are sent.
    pub(super) async fn request<F>(
        &self,
        request: Q,
        send: impl FnOnce(Batch<Q, A>) -> F + Send + 'static,
    ) -> Option<A>
    where
        F: Future<Output = ()> + Send,
    {
        let (reply, replied) = oneshot::channel();
        let is_first = {
            let mut waiting = self.waiting.lock();
            waiting.push((request, Reply(reply)));
            waiting.len() == 1
        };
        let sending = is_first.then(|| {
            let waiting = self.waiting.clone();
            // In a task, so that the timeout of one delivery does not end the batch. Its deliveries wait for it.
            task::detached(async move {
                // One yield lets Tokio run about 60 tasks, if that many are ready.
                let mut count = 0;
                while count < waiting.lock().len() {
                    count = waiting.lock().len();
                    yield_now().await;
                }
                let mut batch = mem::take(&mut *waiting.lock());
                batch.retain(|(_, reply)| !reply.0.is_closed());
                send(batch).await;
            })
        });
        if let Ok(reply) = replied.await {
            return Some(reply);
        }
        let panic = sending?.await.err()?.try_into_panic().ok()?;
        resume_unwind(panic)
    }
}

#[cfg(test)]
mod tests {
    use std::panic::AssertUnwindSafe;

    use futures_util::FutureExt;
    use futures_util::future::{join, join_all};

    use super::*;

    #[tokio::test]
    async fn requests_of_one_moment_are_one_batch_and_each_gets_its_reply() {
        let batches = Batches::<u32, (u32, usize)>::default();
        let send = async |batch: Batch<u32, (u32, usize)>| {
            let size = batch.len();
            for (request, reply) in batch {
                reply.send((request, size));
            }
        };
        for start in [0, 100] {
            let all = join_all((start..start + 100).map(|n| batches.request(n, send))).await;
            let expected: Vec<_> = (start..start + 100).map(|n| Some((n, 100))).collect();
            assert_eq!(all, expected);
        }
    }

    #[tokio::test]
    async fn a_request_that_nobody_waits_for_is_left_out_and_one_without_a_reply_ends() {
        let batches = Batches::<&str, &str>::default();
        let send = async |batch: Batch<&str, &str>| {
            for (request, reply) in batch {
                match request {
                    "replied" => reply.send("yes"),
                    "forgotten" => {}
                    other => panic!("{other}"),
                }
            }
        };
        let mut dropped = Box::pin(batches.request("dropped", send));
        assert!(futures_util::poll!(&mut dropped).is_pending());
        drop(dropped);
        let both = join_all(["replied", "forgotten"].map(|text| batches.request(text, send)));
        assert_eq!(both.await, [Some("yes"), None]);
    }

    #[tokio::test]
    async fn a_panic_ends_the_first_delivery_of_its_batch_and_the_others_get_no_reply() {
        let batches = Batches::<&str, &str>::default();
        let send = async |_: Batch<&str, &str>| panic!("boom");
        let first = AssertUnwindSafe(batches.request("first", send)).catch_unwind();
        let (first, second) = join(first, batches.request("second", send)).await;
        assert_eq!(first.unwrap_err().downcast_ref(), Some(&"boom"));
        assert_eq!(second, None);
        let answer = async |batch: Batch<&'static str, &'static str>| {
            for (request, reply) in batch {
                reply.send(request);
            }
        };
        assert_eq!(batches.request("next", answer).await, Some("next"));
    }
}
