//! Wakes: hints that something is due, received over sharded pub/sub.
//!
//! Lossy by design. A wake may be missing (reconnects, full queue) or late; whoever waits for one also looks by
//! itself now and then. One task owns the connection, reconnects and subscribes again.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::{Duration, Instant};

use redis::{PushInfo, PushKind, Value, cmd};
use tokio::sync::{mpsc, watch};
use tokio::time::{MissedTickBehavior, interval, sleep, timeout};
use tokio_util::task::AbortOnDropHandle;

use super::errors::no_error_inside;
use super::keeper::{Backoff, STEADY_AFTER, Shared};
use super::{Link, LinkError, LinkErrorKind};

/// Wakes that may lie unread; more are dropped, as the reader is awake already.
const QUEUE: usize = 1024;
/// A connection that only listens must ask now and then whether the server still lives.
const PING_EVERY: Duration = Duration::from_secs(10);

/// A subscription to any number of shard channels.
#[derive(Debug)]
pub struct Subscriber {
    wanted: watch::Sender<BTreeSet<String>>,
    pub(super) confirmed: watch::Receiver<BTreeSet<String>>,
    wakes: mpsc::Receiver<String>,
    _task: AbortOnDropHandle<()>,
}

impl Subscriber {
    /// Starts a subscription without channels. Call it inside a Tokio runtime.
    pub fn new(link: &Link) -> Self {
        let shared = link.0.shared.clone();
        let (wanted, wanted_seen) = watch::channel(BTreeSet::new());
        let (confirm, confirmed) = watch::channel(BTreeSet::new());
        let (wake, wakes) = mpsc::channel(QUEUE);
        let task = tokio::spawn(async move {
            let closed = shared.closed.clone();
            let _ = closed
                .run_until_cancelled(
                    Session {
                        shared,
                        wanted: wanted_seen,
                        confirm,
                        wake,
                    }
                    .keep(),
                )
                .await;
        });
        Self {
            wanted,
            confirmed,
            wakes,
            _task: AbortOnDropHandle::new(task),
        }
    }

    /// Adds a channel, which is subscribed as soon as Redis answers and again after every reconnect. It counts as
    /// woken then, for the wakes that were missed.
    pub fn ssubscribe(&self, channel: impl Into<String>) {
        self.wanted
            .send_if_modified(|wanted| wanted.insert(channel.into()));
    }

    /// Waits until Redis has confirmed every channel added so far; wakes published from then on arrive, until the
    /// connection breaks.
    ///
    /// # Cancel safety
    ///
    /// Safe.
    pub async fn subscribed(&mut self) {
        let wanted = self.wanted.borrow().clone();
        // Fails only when the link is closed: then nothing will ever be confirmed and next() says so.
        let _ = self
            .confirmed
            .wait_for(|confirmed| confirmed.is_superset(&wanted))
            .await;
    }

    /// Waits for the next wake and gives its channel, or nothing once the link is closed.
    ///
    /// # Cancel safety
    ///
    /// Safe: no wake is lost by dropping the future.
    pub async fn next(&mut self) -> Option<String> {
        self.wakes.recv().await
    }
}

struct Session {
    shared: Arc<Shared>,
    wanted: watch::Receiver<BTreeSet<String>>,
    confirm: watch::Sender<BTreeSet<String>>,
    wake: mpsc::Sender<String>,
}

impl Session {
    async fn keep(mut self) {
        let mut backoff = Backoff::new();
        loop {
            let born = Instant::now();
            if let Err(error) = self.listen().await {
                tracing::debug!(%error, "subscription lost");
            }
            self.confirm.send_replace(BTreeSet::new());
            if born.elapsed() >= STEADY_AFTER {
                backoff = Backoff::new();
            }
            sleep(backoff.next_pause()).await;
        }
    }

    /// Serves one connection until it breaks.
    async fn listen(&mut self) -> Result<(), LinkError> {
        let (sender, mut pushes) = mpsc::unbounded_channel();
        let mut conn = self.shared.opener.open_push(sender).await?;
        let mut ping = interval(PING_EVERY);
        ping.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            let missing: Vec<String> = self
                .wanted
                .borrow_and_update()
                .difference(&self.confirm.borrow())
                .cloned()
                .collect();
            for channel in missing {
                // One channel a command: two of them may belong to different cluster slots.
                self.ask(&mut conn, cmd("SSUBSCRIBE").arg(&channel)).await?;
                self.confirm.send_modify(|confirmed| {
                    confirmed.insert(channel.clone());
                });
                // What was published before was missed.
                let _ = self.wake.try_send(channel);
            }
            tokio::select! {
                changed = self.wanted.changed() => {
                    if changed.is_err() {
                        return Ok(());
                    }
                }
                push = pushes.recv() => self.take(push)?,
                _ = ping.tick() => {
                    self.ask(&mut conn, &cmd("PING")).await?;
                }
            }
        }
    }

    fn take(&self, push: Option<PushInfo>) -> Result<(), LinkError> {
        let lost = |detail: &str| {
            Err(LinkError::local(
                LinkErrorKind::Unavailable,
                "subscription",
                detail,
            ))
        };
        match push {
            Some(PushInfo {
                kind: PushKind::SMessage,
                data,
            }) => {
                if let Some(Value::BulkString(channel)) = data.into_iter().next() {
                    // A full queue means that its reader has wakes enough.
                    let _ = self
                        .wake
                        .try_send(String::from_utf8_lossy(&channel).into_owned());
                }
                Ok(())
            }
            // Sent unasked when the slot moves away; redis-rs would take it for the reply to our next request.
            Some(PushInfo {
                kind: PushKind::SUnsubscribe,
                ..
            }) => lost("the server ended it"),
            Some(PushInfo {
                kind: PushKind::Disconnection,
                ..
            })
            | None => lost("disconnected"),
            Some(_) => Ok(()),
        }
    }

    async fn ask(
        &self,
        conn: &mut redis::aio::MultiplexedConnection,
        cmd: &redis::Cmd,
    ) -> Result<Value, LinkError> {
        let name = || super::reader::command_name(cmd);
        match timeout(self.shared.response_timeout, conn.send_packed_command(cmd)).await {
            Ok(reply) => reply
                .and_then(no_error_inside)
                .map_err(|error| LinkError::from_redis(name(), error)),
            Err(_) => Err(LinkError::local(
                LinkErrorKind::Unavailable,
                name(),
                "no answer in time",
            )),
        }
    }
}
