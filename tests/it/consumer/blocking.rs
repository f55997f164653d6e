//! Handlers that block their thread: the other messages of their read do not wait for them.

use std::sync::{Condvar, Mutex};

use super::*;
use tokio::task::block_in_place;

/// Counts the handlers that have started. A handler can block its thread until a number of them have.
#[derive(Default)]
struct Started {
    count: Mutex<u32>,
    changed: Condvar,
}

impl Started {
    /// Counts a handler, and returns how many started before it.
    fn add(&self) -> u32 {
        let mut count = self.count.lock().unwrap();
        *count += 1;
        self.changed.notify_all();
        *count - 1
    }

    fn wait_for(&self, expected: u32) -> Result<(), String> {
        let count = self.count.lock().unwrap();
        let waited = self
            .changed
            .wait_timeout_while(count, SOON, |count| *count < expected);
        let (count, _) = waited.unwrap();
        match *count >= expected {
            true => Ok(()),
            false => Err(format!("only {count} handlers have started")),
        }
    }
}

async fn all_are_acked(name: &str, handler: impl Handler) {
    let relay = relay(name).await;
    relay.send(&numbered(20)).await;
    let consumer = Consumer::builder(relay.broker().clone())
        .topic("t", handler)
        .concurrency(100);
    let running = Running::start(consumer.build().unwrap());
    running
        .until(|report| report.acked + report.retried == 20)
        .await;
    assert_eq!(running.stop().await.acked, 20);
    relay.assert_drained().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_handler_that_blocks_its_thread_holds_up_no_other_message_of_its_read() {
    let started = Arc::new(Started::default());
    let handler = delivery_fn(move |_: Delivery, _: Context| {
        let started = started.clone();
        async move {
            // The first read is of one message, the second of all others.
            match started.add() {
                1 => started.wait_for(20),
                _ => Ok(()),
            }
        }
    });
    all_are_acked("blocked", handler).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn handlers_that_block_in_place_run_at_the_same_time() {
    let started = Arc::new(Started::default());
    let handler = delivery_fn(move |_: Delivery, _: Context| {
        let started = started.clone();
        async move {
            started.add();
            block_in_place(|| started.wait_for(20))
        }
    });
    all_are_acked("in-place", handler).await;
}
