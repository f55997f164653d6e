//! Wakes: hints that something is due, received over sharded pub/sub.
//!
//! Lossy by design. A wake may be missing (reconnect, full queue) or late, so a receiver also checks by itself
//! periodically. One task per server owns the socket, reconnects, and subscribes again.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::{Duration, Instant};

use redis::{PushInfo, PushKind, Value, cmd};
use tokio::sync::{mpsc, watch};
use tokio::time::{MissedTickBehavior, interval, sleep, timeout};
use tokio_util::task::AbortOnDropHandle;

use super::errors::no_error_inside;
use super::node::{BACKOFF_MAX, Node, STEADY_AFTER};
use super::nodes::Nodes;
use super::{Connection, ConnectionError, ConnectionErrorKind};
use crate::backoff::Backoff;
use crate::task;

/// Maximum number of unread wakes; more are dropped, since the reader is awake already.
const QUEUE: usize = 1024;
/// Interval between pings: a socket that only listens must check whether the server is still alive.
const PING_EVERY: Duration = Duration::from_secs(10);
/// Time that a session waits for the active connection before it retries.
const CONNECT_WITHIN: Duration = Duration::from_secs(2);

/// A subscription to any number of shard channels.
#[derive(Debug)]
pub struct Subscriber {
    wanted: watch::Sender<BTreeSet<String>>,
    pub(super) confirmed: watch::Receiver<BTreeSet<String>>,
    wakes: mpsc::Receiver<String>,
    _task: AbortOnDropHandle<()>,
}

impl Subscriber {
    /// Starts a subscription without channels. Must be called within a Tokio runtime.
    pub fn new(connection: &Connection) -> Self {
        let nodes = connection.0.nodes.clone();
        let (wanted, wanted_seen) = watch::channel(BTreeSet::new());
        let (confirm, confirmed) = watch::channel(BTreeSet::new());
        let (wake, wakes) = mpsc::channel(QUEUE);
        let closed = nodes.closed();
        let report = Report { confirm, wake };
        let task = task::owned(async move {
            let _ = closed
                .run_until_cancelled(run_sessions(nodes, wanted_seen, report))
                .await;
        });
        Self {
            wanted,
            confirmed,
            wakes,
            _task: task,
        }
    }

    /// Adds a channel. It is subscribed as soon as Redis answers, and again after every reconnect. Each time it
    /// counts as woken, for the wakes that were missed.
    pub fn ssubscribe(&self, channel: impl Into<String>) {
        self.wanted
            .send_if_modified(|wanted| wanted.insert(channel.into()));
    }

    /// Waits until Redis has confirmed every channel added so far. Wakes published from then on arrive until the
    /// connection breaks.
    ///
    /// # Cancel safety
    ///
    /// Safe.
    pub async fn subscribed(&mut self) {
        let wanted = self.wanted.borrow().clone();
        // Fails only when the connection is closed: then nothing will ever be confirmed, and next() returns `None`.
        let _ = self
            .confirmed
            .wait_for(|confirmed| confirmed.is_superset(&wanted))
            .await;
    }

    /// Waits for the next wake and returns its channel, or `None` once the connection is closed.
    ///
    /// # Cancel safety
    ///
    /// Safe: no wake is lost by dropping the future.
    pub async fn next(&mut self) -> Option<String> {
        self.wakes.recv().await
    }
}

/// The channels and wakes that sessions report.
#[derive(Clone)]
struct Report {
    confirm: watch::Sender<BTreeSet<String>>,
    wake: mpsc::Sender<String>,
}

/// A running session; it ends when the value is dropped.
struct Running {
    node: Arc<Node>,
    wanted: watch::Sender<BTreeSet<String>>,
    _task: AbortOnDropHandle<()>,
}

/// Keeps a session with each server that has wanted channels, as slots and wanted channels change.
async fn run_sessions(nodes: Nodes, mut wanted: watch::Receiver<BTreeSet<String>>, report: Report) {
    let mut sessions: Vec<Running> = Vec::new();
    let mut changes = nodes.changes();
    loop {
        let mut shares: Vec<(Arc<Node>, BTreeSet<String>)> = Vec::new();
        for channel in wanted.borrow_and_update().iter() {
            let Some(node) = nodes.owner_of(channel) else {
                continue;
            };
            match shares
                .iter_mut()
                .find(|(known, _)| Arc::ptr_eq(known, &node))
            {
                Some((_, share)) => drop(share.insert(channel.clone())),
                None => shares.push((node, [channel.clone()].into())),
            }
        }
        let same = |session: &Running, node: &Arc<Node>| Arc::ptr_eq(&session.node, node);
        sessions.retain(|session| shares.iter().any(|(node, _)| same(session, node)));
        for (node, share) in shares {
            if let Some(session) = sessions.iter().find(|session| same(session, &node)) {
                session.wanted.send_if_modified(|wanted| {
                    let changed = *wanted != share;
                    *wanted = share;
                    changed
                });
                continue;
            }
            let (sender, wanted) = watch::channel(share);
            let session = Session {
                node: node.clone(),
                nodes: nodes.clone(),
                wanted,
                mine: BTreeSet::new(),
                report: report.clone(),
            };
            sessions.push(Running {
                node,
                wanted: sender,
                _task: task::owned(session.keep()),
            });
        }
        tokio::select! {
            changed = wanted.changed() => {
                if changed.is_err() {
                    return;
                }
            }
            () = changes.next() => {}
        }
    }
}

/// The channels of one server.
struct Session {
    node: Arc<Node>,
    nodes: Nodes,
    wanted: watch::Receiver<BTreeSet<String>>,
    /// The channels that this session has subscribed.
    mine: BTreeSet<String>,
    report: Report,
}

impl Session {
    async fn keep(mut self) {
        let mut backoff = Backoff::up_to(BACKOFF_MAX);
        loop {
            let born = Instant::now();
            if let Err(error) = self.listen().await {
                tracing::debug!(%error, "subscription lost; retrying");
            }
            self.forget();
            if born.elapsed() >= STEADY_AFTER {
                backoff = Backoff::up_to(BACKOFF_MAX);
            }
            sleep(backoff.next_pause()).await;
        }
    }

    fn forget(&mut self) {
        let mine = std::mem::take(&mut self.mine);
        self.report
            .confirm
            .send_modify(|confirmed| confirmed.retain(|channel| !mine.contains(channel)));
    }

    /// Serves one socket until it breaks.
    async fn listen(&mut self) -> Result<(), ConnectionError> {
        let (sender, mut pushes) = mpsc::unbounded_channel();
        let end = tokio::time::Instant::now() + CONNECT_WITHIN;
        let generation = self.node.active(end).await?.generation();
        let mut conn = self.node.opener.open_push(sender).await?;
        let mut ping = interval(PING_EVERY);
        ping.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            let missing: Vec<String> = self
                .wanted
                .borrow_and_update()
                .difference(&self.mine)
                .cloned()
                .collect();
            for channel in missing {
                // One channel per command: two of them may belong to different cluster slots.
                self.ask(&mut conn, cmd("SSUBSCRIBE").arg(&channel)).await?;
                self.mine.insert(channel.clone());
                self.report.confirm.send_modify(|confirmed| {
                    confirmed.insert(channel.clone());
                });
                // Wakes published before were missed.
                let _ = self.report.wake.try_send(channel);
            }
            tokio::select! {
                changed = self.wanted.changed() => {
                    if changed.is_err() {
                        return Ok(());
                    }
                }
                push = pushes.recv() => self.take(push)?,
                // A former master no longer publishes anything.
                () = self.node.superseded(generation) => return Ok(()),
                _ = ping.tick() => {
                    self.ask(&mut conn, &cmd("PING")).await?;
                }
            }
        }
    }

    fn take(&self, push: Option<PushInfo>) -> Result<(), ConnectionError> {
        let lost = |detail: &str| {
            Err(ConnectionError::local(
                ConnectionErrorKind::Unavailable,
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
                    // If the queue is full, its reader has enough wakes.
                    let _ = self
                        .report
                        .wake
                        .try_send(String::from_utf8_lossy(&channel).into_owned());
                }
                Ok(())
            }
            // Sent unsolicited when the slot moves away; redis-rs would take it for the reply to our next request.
            Some(PushInfo {
                kind: PushKind::SUnsubscribe,
                ..
            }) => lost("ended by the server"),
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
        conn: &mut super::socket::Socket,
        cmd: &redis::Cmd,
    ) -> Result<Value, ConnectionError> {
        let name = || super::request::command_name(cmd);
        match timeout(self.node.response_timeout, conn.send_packed_command(cmd)).await {
            Ok(reply) => reply.and_then(no_error_inside).map_err(|error| {
                self.nodes.redirected(&error, &self.node);
                ConnectionError::from_redis(name(), error)
            }),
            Err(_) => Err(ConnectionError::local(
                ConnectionErrorKind::Unavailable,
                name(),
                "no answer in time",
            )),
        }
    }
}
