//! Keeps one connection alive: the only place that replaces it.
//!
//! Requests report what they met; one task decides, connects with jittered back-off, samples Redis's clock, and
//! publishes the state. It sends no request of anybody else.

use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use redis::RedisError;
use redis::aio::MultiplexedConnection;
use tokio::sync::{Notify, watch};
use tokio::time::{sleep, timeout, timeout_at};
use tokio_util::sync::CancellationToken;

use super::aside::Asides;
use super::connect::{Address, Opened, Opener, sample_time};
use super::errors::{Action, classify};
use super::{Clock, LinkError, LinkErrorKind, LinkSettings, LinkStatus, Place};
use crate::time::millis;

const SAMPLE: &str = "TIME";
/// How long a sample of the clock may take: with the pause before it, what an idle link needs to
/// notice a server that is gone without a word.
const SAMPLE_WAIT: Duration = Duration::from_secs(2);
/// A request that waited less than this before its own deadline says nothing about the connection.
const SUSPICIOUS_WAIT: Duration = Duration::from_secs(1);
/// Time-outs in a row after which the connection is taken for dead.
const TIMEOUTS_TO_REBUILD: u32 = 2;
/// A connection that lived shorter than this does not reset the back-off: a demoted master accepts connections too.
pub(super) const STEADY_AFTER: Duration = Duration::from_secs(5);
/// Outages closer to one another than this are one.
const BETWEEN_OUTAGES: Duration = Duration::from_secs(60);
const BACKOFF_FIRST: Duration = Duration::from_millis(50);
const BACKOFF_MAX: Duration = Duration::from_secs(2);
/// Pause after the server refused us (wrong password): only an operator can help, and logs of refusals cost.
const BACKOFF_REFUSED: Duration = Duration::from_secs(3);

/// How often an idle connection is tried (and Redis's clock sampled).
#[derive(Clone, Copy, Debug)]
pub(super) struct Pace {
    /// While all is well.
    pub(super) up: Duration,
    /// While the server answers, but only with errors.
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

/// One connection and what is known of its health.
pub(super) struct Live {
    generation: u64,
    conn: MultiplexedConnection,
    master: Option<Address>,
    timeouts: AtomicU32,
    pub(super) asides: Asides,
}

/// The connection that another one was opened beside, where that matters.
#[derive(Clone, Copy)]
pub(super) struct Following(Option<u64>);

#[derive(Clone)]
enum State {
    Connecting,
    Up(Arc<Live>),
    Down {
        error: LinkError,
        /// Whether the last try to connect showed that only an operator can mend it.
        fatal: bool,
    },
    Closed,
}

/// One server and the connection to it: what requests and the keeper share.
pub(super) struct Node {
    pub(super) opener: Opener,
    pub(super) clock: Arc<Clock>,
    pub(super) response_timeout: Duration,
    pace: Pace,
    pub(super) closed: CancellationToken,
    /// When a connection was last replaced.
    back: Mutex<Option<Instant>>,
    started: Instant,
    /// How many connections were made.
    connections: AtomicU64,
    /// When the server last answered anything on any connection, in ms since the start; 0 for never.
    heard_ms: AtomicU64,
    state: watch::Sender<State>,
    status: watch::Sender<LinkStatus>,
    suspect: Notify,
}

impl Live {
    /// Names it where it leads to a master that sentinels named: others opened beside it lead astray when it is replaced.
    pub(super) fn following(&self) -> Following {
        Following(self.master.is_some().then_some(self.generation))
    }

    pub(super) fn conn(&self) -> MultiplexedConnection {
        self.conn.clone()
    }

    fn answered(&self) {
        if self.timeouts.load(Ordering::Relaxed) != 0 {
            self.timeouts.store(0, Ordering::Relaxed);
        }
    }
}

impl Node {
    pub(super) fn new(
        settings: &LinkSettings,
        pace: Pace,
        closed: CancellationToken,
    ) -> Result<Self, LinkError> {
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
            status: watch::Sender::new(LinkStatus::Connecting),
            suspect: Notify::new(),
        })
    }

    /// When the server came back after it was away, if that has happened. A connection that breaks again and again counts
    /// once in a while only: what waits for calm after an outage must not wait for ever.
    pub(super) fn back(&self) -> Option<Instant> {
        *self.lock_back()
    }

    pub(super) fn came_back(&self) {
        let mut back = self.lock_back();
        if back.is_none_or(|back| back.elapsed() > BETWEEN_OUTAGES) {
            *back = Some(Instant::now());
        }
    }

    /// Notes that the server answered on the connection of the link.
    pub(super) fn answered(&self, live: &Live) {
        live.answered();
        self.heard();
    }

    /// Notes that the server answered on some connection.
    pub(super) fn heard(&self) {
        let ms = millis(self.started.elapsed()).max(1);
        self.heard_ms.store(ms, Ordering::Relaxed);
    }

    /// Says whether the server answered anything after `then`. Where it did not, it is asked whether it is there at all.
    pub(super) fn heard_since(&self, then: Instant) -> bool {
        let then = millis(then.saturating_duration_since(self.started));
        let heard = self.heard_ms.load(Ordering::Relaxed) > then;
        if !heard {
            self.suspect.notify_one();
        }
        heard
    }

    fn lock_back(&self) -> MutexGuard<'_, Option<Instant>> {
        self.back.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn status(&self) -> watch::Receiver<LinkStatus> {
        self.status.subscribe()
    }

    pub(super) fn is_up(&self) -> bool {
        *self.status.borrow() == LinkStatus::Up
    }

    /// The host of the server, empty behind a socket.
    pub(super) fn host(&self) -> &str {
        match self.opener.url().place() {
            Place::Tcp { host, .. } => host,
            Place::Unix(_) | Place::Sentinel { .. } | Place::Cluster { .. } => "",
        }
    }

    /// Gives the connection in use, if there is one.
    pub(super) fn live_now(&self) -> Option<Arc<Live>> {
        match &*self.state.borrow() {
            State::Up(live) => Some(live.clone()),
            _ => None,
        }
    }

    /// Says whether what was opened beside a connection still leads to the right server.
    pub(super) fn still_leads(&self, following: Following) -> bool {
        following.0.is_none_or(|generation| {
            self.live_now()
                .is_some_and(|live| live.generation == generation)
        })
    }

    /// Ends when what was opened beside a connection may lead to a former master.
    pub(super) async fn astray(&self, following: Following) {
        let Some(generation) = following.0 else {
            return std::future::pending().await;
        };
        let mut state = self.state.subscribe();
        let other =
            |state: &State| !matches!(state, State::Up(live) if live.generation == generation);
        let _ = state.wait_for(other).await;
    }

    /// Gives the connection in use, waiting for one until `end`; a refusal that only an operator can mend ends the wait.
    pub(super) async fn live(&self, end: tokio::time::Instant) -> Result<Arc<Live>, LinkError> {
        const WAIT: &str = "wait for redis";
        if let Some(live) = self.live_now() {
            return Ok(live);
        }
        let mut state = self.state.subscribe();
        let settled = |state: &State| match state {
            State::Up(_) | State::Closed => true,
            State::Down { fatal, .. } => *fatal,
            State::Connecting => false,
        };
        let _ = timeout_at(end, state.wait_for(settled)).await;
        let error = match &*state.borrow() {
            State::Up(live) => return Ok(live.clone()),
            State::Down { error, .. } => error.clone(),
            State::Connecting => {
                LinkError::local(LinkErrorKind::Unavailable, WAIT, "no connection in time")
            }
            State::Closed => {
                LinkError::local(LinkErrorKind::Unavailable, WAIT, "the link is closed")
            }
        };
        Err(error)
    }

    /// Waits until Redis answers on the connection in use, or the link is refused or closed.
    pub(super) async fn wait_up(&self, limit: Duration) -> Result<(), LinkError> {
        let end = tokio::time::Instant::now() + limit;
        self.live(end).await?;
        let mut status = self.status();
        let _ = timeout_at(end, status.wait_for(|status| *status == LinkStatus::Up)).await;
        match &*status.borrow() {
            LinkStatus::Down { reason, code, .. } => {
                let error = LinkError::local(LinkErrorKind::Unavailable, "wait for redis", reason);
                Err(LinkError {
                    code: code.clone(),
                    ..error
                })
            }
            LinkStatus::Up | LinkStatus::Connecting => Ok(()),
        }
    }

    /// Notes that a request waited `waited` for an answer in vain.
    pub(super) fn timed_out(&self, live: &Live, what: &str, waited: Duration) {
        if waited >= SUSPICIOUS_WAIT.min(self.response_timeout) {
            self.mute(live, what, waited);
        }
    }

    fn mute(&self, live: &Live, what: &str, waited: Duration) {
        if live.timeouts.fetch_add(1, Ordering::Relaxed) + 1 < TIMEOUTS_TO_REBUILD {
            self.suspect.notify_one();
            return;
        }
        let detail = format!("no answer within {waited:?}, {TIMEOUTS_TO_REBUILD} times in a row");
        self.retire(
            live,
            LinkError::local(LinkErrorKind::Unavailable, what, detail),
        );
    }

    /// Takes a connection out of use, unless it has been replaced already.
    pub(super) fn retire(&self, live: &Live, error: LinkError) {
        self.transition(|state| match state {
            State::Up(current) if current.generation == live.generation => Some(State::Down {
                error,
                // A new connection may do: NOAUTH on an old one, for instance.
                fatal: false,
            }),
            _ => None,
        });
    }

    fn fail(&self, error: LinkError) {
        self.transition(|state| {
            (!matches!(state, State::Closed)).then(|| State::Down {
                fatal: error.is_fatal(),
                error,
            })
        });
    }

    /// How many connections the link has made to the server so far.
    pub(super) fn connections(&self) -> u64 {
        self.connections.load(Ordering::Relaxed)
    }

    fn publish(&self, live: Arc<Live>) {
        self.connections.fetch_add(1, Ordering::Relaxed);
        self.transition(|state| (!matches!(state, State::Closed)).then_some(State::Up(live)));
    }

    /// The only place that changes the state; the status follows under the same lock, so the two never disagree.
    fn transition(&self, next: impl FnOnce(&State) -> Option<State>) {
        self.state.send_if_modified(|state| {
            let Some(next) = next(state) else {
                return false;
            };
            match &next {
                State::Connecting => self.show(LinkStatus::Connecting),
                State::Up(_) => self.show(LinkStatus::Up),
                State::Down { error, fatal } => self.show(LinkStatus::down(error, *fatal)),
                // Asked for, so nothing to log.
                State::Closed => drop(self.status.send_replace(LinkStatus::closed())),
            }
            *state = next;
            true
        });
    }

    fn show(&self, next: LinkStatus) {
        self.status.send_if_modified(|status| {
            match (&*status, &next) {
                (old, new) if old == new => return false,
                (_, LinkStatus::Up) => {
                    tracing::info!(redis = %self.opener.url(), "connected to redis")
                }
                // One line an outage: its reason may change with every try.
                (LinkStatus::Down { code: old, .. }, LinkStatus::Down { code, .. })
                    if old == code => {}
                (_, LinkStatus::Down { reason, .. }) => {
                    tracing::warn!(redis = %self.opener.url(), reason, "no working connection to redis")
                }
                (_, LinkStatus::Connecting) => {}
            }
            *status = next;
            true
        });
    }
}

/// Runs until the link is closed.
pub(super) async fn keep(node: Arc<Node>) {
    let closed = node.closed.clone();
    let closing = CloseOnDrop(node);
    let _ = closed
        .run_until_cancelled(keep_connecting(&closing.0))
        .await;
}

/// Closes the link also when the keeper panics: requests must not wait for a keeper that is gone.
struct CloseOnDrop(Arc<Node>);

impl Drop for CloseOnDrop {
    fn drop(&mut self) {
        self.0.transition(|_| Some(State::Closed));
    }
}

async fn keep_connecting(node: &Node) {
    let mut backoff = Backoff::new();
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
        let live = Arc::new(Live {
            generation,
            conn,
            master,
            timeouts: AtomicU32::new(0),
            asides: Asides::default(),
        });
        if generation > 1 {
            node.came_back();
        }
        node.publish(live.clone());
        watch_over(node, live).await;
        if born.elapsed() >= STEADY_AFTER {
            backoff = Backoff::new();
        }
        sleep(backoff.next_pause()).await;
    }
}

/// Samples the clock over a connection until it is taken out of use.
async fn watch_over(node: &Node, live: Arc<Live>) {
    let mut state = node.state.subscribe();
    let in_use = |state: &State| matches!(state, State::Up(current) if current.generation == live.generation);
    let mut pause = node.pace.up;
    let usual = node.response_timeout.min(SAMPLE_WAIT);
    let mut limit = usual;
    let elsewhere = node.opener.master_changed(live.master.as_ref());
    tokio::pin!(elsewhere);
    while in_use(&state.borrow_and_update()) {
        tokio::select! {
            _ = state.changed() => continue,
            () = sleep(pause) => {}
            (host, port) = &mut elsewhere => {
                let detail = format!("the sentinels made {host}:{port} the master");
                node.retire(&live, LinkError::local(LinkErrorKind::Unavailable, SAMPLE, detail));
                continue;
            }
            // A request waited in vain: find out now, and do not wait long.
            () = node.suspect.notified() => limit = limit.min(SUSPICIOUS_WAIT),
        }
        let mut conn = live.conn();
        let sampled = tokio::select! {
            _ = state.changed() => continue,
            sampled = timeout(limit, sample_time(&mut conn)) => sampled,
        };
        (pause, limit) = match sampled {
            Ok(Ok(sample)) => {
                node.answered(&live);
                node.clock
                    .observe(sample.sent, sample.received, sample.redis_us);
                node.show_if_in_use(&live, LinkStatus::Up);
                (node.pace.up, usual)
            }
            Ok(Err(error)) => {
                if error.code().is_some() {
                    node.heard();
                }
                node.sample_failed(&live, error);
                (node.pace.down, usual)
            }
            Err(_) => {
                node.mute(&live, SAMPLE, limit);
                (Duration::ZERO, SUSPICIOUS_WAIT.min(usual))
            }
        };
    }
}

impl Node {
    fn sample_failed(&self, live: &Live, error: RedisError) {
        let action = classify(&error).action;
        let error = LinkError::from_redis(SAMPLE, error);
        if action == Action::Retry {
            // The connection is fine, the server is not (BUSY): keep it and say so.
            self.show_if_in_use(live, LinkStatus::down(&error, false));
        } else {
            self.retire(live, error);
        }
    }

    fn show_if_in_use(&self, live: &Live, status: LinkStatus) {
        self.state.send_if_modified(|state| {
            if matches!(state, State::Up(current) if current.generation == live.generation) {
                self.show(status);
            }
            false
        });
    }
}

/// Pauses that double from 50 ms to a maximum, each with full jitter so that processes do not come in step.
#[derive(Debug)]
pub(super) struct Backoff {
    ceiling: Duration,
}

impl Backoff {
    pub(super) fn new() -> Self {
        Self {
            ceiling: BACKOFF_FIRST,
        }
    }

    /// Gives the next pause, from 50 ms (from zero the first time) to the ceiling reached.
    pub(super) fn next_pause(&mut self) -> Duration {
        let floor = if self.ceiling == BACKOFF_FIRST {
            Duration::ZERO
        } else {
            BACKOFF_FIRST
        };
        let pause = floor + (self.ceiling - floor).mul_f64(fastrand::f64());
        self.ceiling = (self.ceiling * 2).min(BACKOFF_MAX);
        pause
    }
}

fn refused_pause() -> Duration {
    BACKOFF_REFUSED.mul_f64(0.3 + 0.7 * fastrand::f64())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pauses_grow_to_their_bounds_and_no_further() {
        for _ in 0..200 {
            let mut backoff = Backoff::new();
            assert!(backoff.next_pause() <= BACKOFF_FIRST);
            for _ in 0..20 {
                let pause = backoff.next_pause();
                assert!((BACKOFF_FIRST..=BACKOFF_MAX).contains(&pause), "{pause:?}");
            }
            assert!((BACKOFF_REFUSED / 4..=BACKOFF_REFUSED).contains(&refused_pause()));
        }
    }
}
