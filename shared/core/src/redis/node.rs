//! Supervises the active connection to one server; nothing else replaces it.
//!
//! Requests report what they met. One task decides, connects with jittered exponential backoff, samples Redis's
//! clock, and publishes the state. It sends no requests of other callers.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use redis::RedisError;
use tokio::sync::{Notify, watch};
use tokio::time::{sleep, timeout, timeout_at};
use tokio_util::sync::CancellationToken;

use super::address::Address;
use super::connect::{Opened, Opener, sample_time};
use super::errors::{Action, classify};
use super::extra::Extra;
use super::extra::Extras;
use super::socket::Socket;
use super::{
    Clock, ConnectionError, ConnectionErrorKind, ConnectionSettings, ConnectionStatus, Endpoint,
};
use crate::backoff::Backoff;
use crate::sync::Mutex;
use crate::time::millis;

const SAMPLE: &str = "TIME";
/// Time limit for a clock sample. Together with the pause before it, this is how long an idle connection needs to
/// notice a server that vanished silently.
const SAMPLE_WAIT: Duration = Duration::from_secs(2);
/// A request that waited less than this until its own deadline says nothing about the socket.
const SUSPICIOUS_WAIT: Duration = Duration::from_secs(1);
/// Consecutive timeouts after which the socket is considered dead.
const TIMEOUTS_TO_REBUILD: u32 = 2;
/// A connection that lived shorter than this does not reset the backoff: a demoted master accepts connections too.
pub(super) const STEADY_AFTER: Duration = Duration::from_secs(5);
/// Outages closer together than this count as one.
const BETWEEN_OUTAGES: Duration = Duration::from_secs(60);
/// The longest pause between tries to reach a server that does not refuse us.
pub(super) const BACKOFF_MAX: Duration = Duration::from_secs(2);
/// Maximum pause after the server refused us (wrong password): only an operator can help, and logging refusals is
/// costly.
const BACKOFF_REFUSED: Duration = Duration::from_secs(3);

/// Intervals at which an idle connection is probed and Redis's clock is sampled.
#[derive(Clone, Copy, Debug)]
pub(super) struct Pace {
    /// Interval while all is well.
    pub(super) up: Duration,
    /// Interval while the server answers only with errors.
    pub(super) down: Duration,
}

impl Default for Pace {
    fn default() -> Self {
        Self {
            up: Duration::from_secs(5),
            down: Duration::from_secs(2),
        }
    }
}

/// The connection in use and what is known of its health.
pub(super) struct ActiveConnection {
    generation: u64,
    conn: Socket,
    master: Option<Address>,
    timeouts: AtomicU32,
    pub(super) extras: Extras,
}

/// Identifies the active connection next to which another one was opened; `None` where that does not matter.
#[derive(Clone, Copy)]
pub(super) struct Generation(Option<u64>);

#[derive(Clone)]
enum State {
    Connecting,
    Up(Arc<ActiveConnection>),
    Down {
        error: ConnectionError,
        /// True if the last attempt to connect showed that only an operator can repair it.
        fatal: bool,
    },
    Closed,
}

/// One server and the connection to it, shared by requests and the supervising task.
pub(super) struct Node {
    pub(super) opener: Opener,
    pub(super) clock: Arc<Clock>,
    pub(super) response_timeout: Duration,
    pace: Pace,
    pub(super) closed: CancellationToken,
    /// Time at which the server last came back after an outage.
    back: Mutex<Option<Instant>>,
    started: Instant,
    /// Number of active connections opened so far.
    connections: AtomicU64,
    /// Time of the server's last answer on any socket, in ms since `started`; 0 = never.
    heard_ms: AtomicU64,
    state: watch::Sender<State>,
    status: watch::Sender<ConnectionStatus>,
    suspect: Notify,
}

impl ActiveConnection {
    /// Returns its generation, if sentinels named its master. When it is replaced, others opened next to it are
    /// superseded.
    pub(super) fn generation(&self) -> Generation {
        Generation(self.master.is_some().then_some(self.generation))
    }

    pub(super) fn conn(&self) -> Socket {
        self.conn.clone()
    }

    fn answered(&self) {
        if self.timeouts.load(Ordering::Relaxed) != 0 {
            self.timeouts.store(0, Ordering::Relaxed);
        }
    }
}

impl ActiveConnection {
    /// Returns an additional connection and its number, and opens it if there is none.
    pub(super) async fn extra(
        &self,
        which: Extra,
        node: &Node,
    ) -> Result<(Socket, u64), ConnectionError> {
        let mut slot = self.extras.slot(which).lock().await;
        let conn = match &slot.conn {
            Some(conn) => conn.clone(),
            None => {
                let conn = node.opener.open().await?.conn;
                slot.conn = Some(conn.clone());
                slot.opened += 1;
                conn
            }
        };
        Ok((conn, slot.opened))
    }

    /// Closes an additional connection, unless it was opened again in the meantime.
    pub(super) async fn close_extra(&self, which: Extra, number: u64) {
        let mut slot = self.extras.slot(which).lock().await;
        if slot.opened == number {
            slot.conn = None;
        }
    }
}

impl Node {
    pub(super) fn new(
        settings: &ConnectionSettings,
        pace: Pace,
        closed: CancellationToken,
    ) -> Result<Self, ConnectionError> {
        Ok(Self {
            opener: Opener::new(settings)?,
            clock: Arc::new(Clock::new()),
            response_timeout: settings.response_timeout,
            pace,
            closed,
            back: Mutex::default(),
            started: Instant::now(),
            connections: AtomicU64::new(0),
            heard_ms: AtomicU64::new(0),
            state: watch::Sender::new(State::Connecting),
            status: watch::Sender::new(ConnectionStatus::Connecting),
            suspect: Notify::new(),
        })
    }

    /// Returns when the server last came back after an outage, if ever. A connection that breaks repeatedly counts
    /// once per [`BETWEEN_OUTAGES`]: code that waits for calm after an outage must not wait forever.
    pub(super) fn back(&self) -> Option<Instant> {
        *self.back.lock()
    }

    pub(super) fn came_back(&self) {
        let mut back = self.back.lock();
        if back.is_none_or(|back| back.elapsed() > BETWEEN_OUTAGES) {
            *back = Some(Instant::now());
        }
    }

    /// Records that the server answered on the active connection.
    pub(super) fn answered(&self, active: &ActiveConnection) {
        active.answered();
        self.heard();
    }

    /// Records that the server answered on some socket.
    pub(super) fn heard(&self) {
        let ms = millis(self.started.elapsed()).max(1);
        self.heard_ms.store(ms, Ordering::Relaxed);
    }

    /// Returns whether the server answered anything after `then`. If it did not, requests a probe.
    pub(super) fn heard_since(&self, then: Instant) -> bool {
        let then = millis(then.saturating_duration_since(self.started));
        let heard = self.heard_ms.load(Ordering::Relaxed) > then;
        if !heard {
            self.suspect.notify_one();
        }
        heard
    }

    pub(super) fn status(&self) -> watch::Receiver<ConnectionStatus> {
        self.status.subscribe()
    }

    pub(super) fn is_up(&self) -> bool {
        *self.status.borrow() == ConnectionStatus::Up
    }

    /// Returns the host of a TCP address, otherwise an empty string.
    pub(super) fn host(&self) -> &str {
        match self.opener.url().endpoint() {
            Endpoint::Tcp { host, .. } => host,
            Endpoint::Unix(_) | Endpoint::Sentinel { .. } | Endpoint::Cluster { .. } => "",
        }
    }

    /// Returns the active connection, if there is one.
    pub(super) fn active_now(&self) -> Option<Arc<ActiveConnection>> {
        match &*self.state.borrow() {
            State::Up(active) => Some(active.clone()),
            _ => None,
        }
    }

    /// Returns whether a connection opened next to the active one still leads to the right server.
    pub(super) fn is_current(&self, generation: Generation) -> bool {
        generation.0.is_none_or(|generation| {
            self.active_now()
                .is_some_and(|active| active.generation == generation)
        })
    }

    /// Completes when a connection opened next to the active one may lead to a former master.
    pub(super) async fn superseded(&self, generation: Generation) {
        let Some(generation) = generation.0 else {
            return std::future::pending().await;
        };
        let mut state = self.state.subscribe();
        let other =
            |state: &State| !matches!(state, State::Up(active) if active.generation == generation);
        let _ = state.wait_for(other).await;
    }

    /// Returns the active connection, waiting for one until `end`. A refusal that only an operator can repair ends
    /// the wait.
    pub(super) async fn active(
        &self,
        end: tokio::time::Instant,
    ) -> Result<Arc<ActiveConnection>, ConnectionError> {
        const WAIT: &str = "wait for Redis";
        if let Some(active) = self.active_now() {
            return Ok(active);
        }
        let mut state = self.state.subscribe();
        let settled = |state: &State| match state {
            State::Up(_) | State::Closed => true,
            State::Down { fatal, .. } => *fatal,
            State::Connecting => false,
        };
        let _ = timeout_at(end, state.wait_for(settled)).await;
        let error = match &*state.borrow() {
            State::Up(active) => return Ok(active.clone()),
            State::Down { error, .. } => error.clone(),
            State::Connecting => ConnectionError::local(
                ConnectionErrorKind::Unavailable,
                WAIT,
                "no connection in time",
            ),
            State::Closed => ConnectionError::local(
                ConnectionErrorKind::Unavailable,
                WAIT,
                "the connection is closed",
            ),
        };
        Err(error)
    }

    /// Waits until Redis answers on the active connection, or the connection is refused or closed.
    pub(super) async fn wait_up(&self, limit: Duration) -> Result<(), ConnectionError> {
        let end = tokio::time::Instant::now() + limit;
        self.active(end).await?;
        let mut status = self.status();
        let _ = timeout_at(
            end,
            status.wait_for(|status| *status == ConnectionStatus::Up),
        )
        .await;
        match &*status.borrow() {
            ConnectionStatus::Down { reason, code, .. } => {
                let error = ConnectionError::local(
                    ConnectionErrorKind::Unavailable,
                    "wait for Redis",
                    reason,
                );
                Err(ConnectionError {
                    code: code.clone(),
                    ..error
                })
            }
            ConnectionStatus::Up | ConnectionStatus::Connecting => Ok(()),
        }
    }

    /// Records that a request waited `waited` without an answer.
    pub(super) fn timed_out(&self, active: &ActiveConnection, what: &str, waited: Duration) {
        if waited >= SUSPICIOUS_WAIT.min(self.response_timeout) {
            self.count_timeout(active, what, waited);
        }
    }

    fn count_timeout(&self, active: &ActiveConnection, what: &str, waited: Duration) {
        if active.timeouts.fetch_add(1, Ordering::Relaxed) + 1 < TIMEOUTS_TO_REBUILD {
            self.suspect.notify_one();
            return;
        }
        let detail = format!("no answer within {waited:?}, {TIMEOUTS_TO_REBUILD} times in a row");
        self.retire(
            active,
            ConnectionError::local(ConnectionErrorKind::Unavailable, what, detail),
        );
    }

    /// Takes a connection out of use, unless it has been replaced already.
    pub(super) fn retire(&self, active: &ActiveConnection, error: ConnectionError) {
        self.transition(|state| match state {
            State::Up(current) if current.generation == active.generation => Some(State::Down {
                error,
                // A new connection may work, for instance after NOAUTH on an old one.
                fatal: false,
            }),
            _ => None,
        });
    }

    fn fail(&self, error: ConnectionError) {
        self.transition(|state| {
            (!matches!(state, State::Closed)).then(|| State::Down {
                fatal: error.is_fatal(),
                error,
            })
        });
    }

    /// Returns how many active connections were opened to the server so far.
    pub(super) fn connections(&self) -> u64 {
        self.connections.load(Ordering::Relaxed)
    }

    fn publish(&self, active: Arc<ActiveConnection>) {
        self.connections.fetch_add(1, Ordering::Relaxed);
        self.transition(|state| (!matches!(state, State::Closed)).then_some(State::Up(active)));
    }

    /// Changes the state; nothing else does. The status follows under the same lock, so the two never disagree.
    fn transition(&self, next: impl FnOnce(&State) -> Option<State>) {
        self.state.send_if_modified(|state| {
            let Some(next) = next(state) else {
                return false;
            };
            match &next {
                State::Connecting => self.show(ConnectionStatus::Connecting),
                State::Up(_) => self.show(ConnectionStatus::Up),
                State::Down { error, fatal } => self.show(ConnectionStatus::down(error, *fatal)),
                // Closed on request: nothing to log.
                State::Closed => drop(self.status.send_replace(ConnectionStatus::closed())),
            }
            *state = next;
            true
        });
    }

    fn show(&self, next: ConnectionStatus) {
        self.status.send_if_modified(|status| {
            match (&*status, &next) {
                (old, new) if old == new => return false,
                (_, ConnectionStatus::Up) => {
                    tracing::info!(redis = %self.opener.url(), "connected to Redis")
                }
                // One line per outage: the reason may change with every attempt.
                (ConnectionStatus::Down { code: old, .. }, ConnectionStatus::Down { code, .. })
                    if old == code => {}
                (_, ConnectionStatus::Down { reason, .. }) => {
                    tracing::warn!(redis = %self.opener.url(), reason, "Redis unavailable; retrying")
                }
                (_, ConnectionStatus::Connecting) => {}
            }
            *status = next;
            true
        });
    }
}

/// Supervises the node until the connection is closed.
pub(super) async fn keep(node: Arc<Node>) {
    let closed = node.closed.clone();
    let closing = CloseOnDrop(node);
    let _ = closed
        .run_until_cancelled(keep_connecting(&closing.0))
        .await;
}

/// Closes the node even if its task panics: requests must not wait for a task that is gone.
struct CloseOnDrop(Arc<Node>);

impl Drop for CloseOnDrop {
    fn drop(&mut self) {
        self.0.transition(|_| Some(State::Closed));
    }
}

async fn keep_connecting(node: &Node) {
    let mut backoff = Backoff::up_to(BACKOFF_MAX);
    for generation in 1.. {
        let (conn, master) = loop {
            match node.opener.open().await {
                Ok(Opened {
                    conn,
                    sample,
                    master,
                }) => {
                    node.heard();
                    node.clock
                        .observe(sample.sent, sample.received, sample.redis_us);
                    break (conn, master);
                }
                Err(error) => {
                    let pause = if error.is_fatal() {
                        refused_pause()
                    } else {
                        backoff.next_pause()
                    };
                    node.fail(error);
                    sleep(pause).await;
                }
            }
        };
        let born = Instant::now();
        let active = Arc::new(ActiveConnection {
            generation,
            conn,
            master,
            timeouts: AtomicU32::new(0),
            extras: Extras::default(),
        });
        if generation > 1 {
            node.came_back();
        }
        node.publish(active.clone());
        watch_over(node, active).await;
        if born.elapsed() >= STEADY_AFTER {
            backoff = Backoff::up_to(BACKOFF_MAX);
        }
        sleep(backoff.next_pause()).await;
    }
}

/// Samples the clock over the active connection until it is taken out of use.
async fn watch_over(node: &Node, active: Arc<ActiveConnection>) {
    let mut state = node.state.subscribe();
    let in_use = |state: &State| matches!(state, State::Up(current) if current.generation == active.generation);
    let mut pause = node.pace.up;
    let usual = node.response_timeout.min(SAMPLE_WAIT);
    let mut limit = usual;
    let elsewhere = node.opener.master_changed(active.master.as_ref());
    tokio::pin!(elsewhere);
    while in_use(&state.borrow_and_update()) {
        tokio::select! {
            _ = state.changed() => continue,
            () = sleep(pause) => {}
            (host, port) = &mut elsewhere => {
                let detail = format!("the sentinels now name {host}:{port} as the master");
                node.retire(&active, ConnectionError::local(ConnectionErrorKind::Unavailable, SAMPLE, detail));
                continue;
            }
            // A request timed out: probe now, with a short limit.
            () = node.suspect.notified() => limit = limit.min(SUSPICIOUS_WAIT),
        }
        let mut conn = active.conn();
        let sampled = tokio::select! {
            _ = state.changed() => continue,
            sampled = timeout(limit, sample_time(&mut conn)) => sampled,
        };
        (pause, limit) = match sampled {
            Ok(Ok(sample)) => {
                node.answered(&active);
                node.clock
                    .observe(sample.sent, sample.received, sample.redis_us);
                node.show_if_in_use(&active, ConnectionStatus::Up);
                (node.pace.up, usual)
            }
            Ok(Err(error)) => {
                if error.code().is_some() {
                    node.heard();
                }
                node.sample_failed(&active, error);
                (node.pace.down, usual)
            }
            Err(_) => {
                node.count_timeout(&active, SAMPLE, limit);
                (Duration::ZERO, SUSPICIOUS_WAIT.min(usual))
            }
        };
    }
}

impl Node {
    fn sample_failed(&self, active: &ActiveConnection, error: RedisError) {
        let action = classify(&error).action;
        let error = ConnectionError::from_redis(SAMPLE, error);
        if action == Action::Retry {
            // The socket is fine, the server is not (BUSY): keep it and publish that.
            self.show_if_in_use(active, ConnectionStatus::down(&error, false));
        } else {
            self.retire(active, error);
        }
    }

    fn show_if_in_use(&self, active: &ActiveConnection, status: ConnectionStatus) {
        self.state.send_if_modified(|state| {
            if matches!(state, State::Up(current) if current.generation == active.generation) {
                self.show(status);
            }
            false
        });
    }
}

fn refused_pause() -> Duration {
    BACKOFF_REFUSED.mul_f64(0.3 + 0.7 * fastrand::f64())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_pause_after_a_refusal_has_bounds() {
        for _ in 0..200 {
            assert!((BACKOFF_REFUSED / 4..=BACKOFF_REFUSED).contains(&refused_pause()));
        }
    }
}
