//! The attempts of one request: finds the server, sends, and decides after a failure whether to try again.

use std::sync::Arc;
use std::time::Duration;

use futures_util::FutureExt;
use futures_util::future::BoxFuture;
use redis::{RedisError, Value};
use tokio::time::{Instant, sleep, timeout, timeout_at};

use super::errors::{Action, ConnectionError, ConnectionErrorKind, classify};
use super::extra::Extra;
use super::node::{ActiveConnection, BACKOFF_MAX, Node};
use super::nodes::{At, Nodes};
use super::request::{Request, name_of};
use super::script::Script;
use super::socket::Socket;
use crate::backoff::Backoff;

/// Maximum pause before retrying a request whose slot is being moved: a fraction of the shortest lease.
const MOVING_PAUSE: Duration = Duration::from_millis(100);

/// A request, and what its attempts have shown so far.
pub(super) struct Attempts<'r> {
    nodes: &'r Nodes,
    at: &'r At,
    /// The extra connection that is used instead of the main one.
    pub(super) extra: Option<Extra>,
    request: Request<'r>,
    /// The script that the request runs.
    pub(super) script: Option<&'r Script>,
    /// True if an attempt that Redis may have carried out must be the last one.
    pub(super) once: bool,
    /// The time limit of one attempt.
    response_timeout: Duration,
    end: Instant,
    backoff: Backoff,
    /// True if Redis may have carried out an attempt.
    maybe_applied: bool,
    last: Option<ConnectionError>,
    /// The importing node that `ASK` named, for one attempt.
    asking: Option<Arc<Node>>,
}

/// A failed attempt, and the action that its error requires.
struct Failure {
    action: Action,
    error: ConnectionError,
}

/// The server of an attempt.
struct Target {
    node: Arc<Node>,
    active: Arc<ActiveConnection>,
    /// True if it imports the slot, and serves it only after `ASKING`.
    asks: bool,
}

impl<'r> Attempts<'r> {
    /// Creates a request for a server on its main connection.
    pub(super) fn new(
        nodes: &'r Nodes,
        at: &'r At,
        request: Request<'r>,
        response_timeout: Duration,
        deadline: Duration,
    ) -> Self {
        Self {
            nodes,
            at,
            extra: None,
            request,
            script: None,
            once: false,
            response_timeout,
            end: Instant::now() + deadline,
            backoff: Backoff::up_to(BACKOFF_MAX),
            maybe_applied: false,
            last: None,
            asking: None,
        }
    }

    /// Tries until an attempt succeeds, its failure is final, or no time is left for another one.
    pub(super) fn run(self) -> BoxFuture<'r, Result<Value, ConnectionError>> {
        // A trait object, because every future of this crate contains it: the compiler limits the depth of types, also in the
        // programs of users.
        self.try_all().boxed()
    }

    async fn try_all(mut self) -> Result<Value, ConnectionError> {
        loop {
            let Failure { action, error } = match self.attempt().await {
                Ok(reply) => return Ok(reply),
                Err(failure) => failure,
            };
            let is_over = self.once && self.maybe_applied;
            let pause = self.pause(action, &error).filter(|_| !is_over);
            let Some(pause) = pause.filter(|pause| Instant::now() + *pause < self.end) else {
                return Err(ConnectionError {
                    maybe_applied: self.maybe_applied,
                    ..error
                });
            };
            if error.is_slot_moving() {
                self.nodes.moving(self.at);
            }
            if error.code.as_deref() == Some("CLUSTERDOWN") {
                self.nodes.mark_outdated();
            }
            self.last = Some(error);
            sleep(pause).await;
        }
    }

    /// Returns the pause before the next attempt. `None` ends the request.
    fn pause(&mut self, action: Action, error: &ConnectionError) -> Option<Duration> {
        match action {
            // Waiting for the next socket is the pause.
            Action::Rebuild => Some(Duration::ZERO),
            // The first redirection is followed immediately. Nodes that disagree cause pauses.
            Action::Redirect if self.last.is_none() => Some(Duration::ZERO),
            // A slot moves key by key: a retry soon after the last key loses no lease.
            Action::Retry if error.is_slot_moving() => {
                Some(self.backoff.next_pause().min(MOVING_PAUSE))
            }
            Action::Redirect | Action::Retry => Some(self.backoff.next_pause()),
            Action::LoadScript if self.script.is_some() => Some(self.backoff.next_pause()),
            Action::LoadScript | Action::RebuildSlowly | Action::GiveUp => None,
        }
    }

    async fn attempt(&mut self) -> Result<Value, Failure> {
        let target = self.target().await?;
        let whole = self.response_timeout + self.request.takes();
        let limit = match self.extra {
            // A large reply gets the whole timeout, however late the socket was opened.
            Some(_) => whole,
            None => whole.min(self.end.saturating_duration_since(Instant::now())),
        };
        let (mut conn, number) = self.open(&target).await?;
        let Target { node, active, .. } = &target;
        let late = || ConnectionError::late(self.what(), limit);
        match (
            timeout(limit, self.send(&mut conn, target.asks)).await,
            self.extra,
        ) {
            (Ok(Ok(reply)), Some(_)) => {
                node.heard();
                Ok(reply)
            }
            (Ok(Ok(reply)), None) => {
                node.answered(active);
                Ok(reply)
            }
            (Ok(Err(error)), _) => Err(self.failed(error, &target, number).await),
            (Err(_), Some(which)) => {
                let error = late();
                self.maybe_applied = true;
                // The rest of the reply would delay the next request.
                active.close_extra(which, number).await;
                Err(Failure::last(error))
            }
            (Err(_), None) => {
                let error = late();
                self.maybe_applied = true;
                node.timed_out(active, &self.what(), limit);
                let action = Action::Retry;
                Err(Failure { action, error })
            }
        }
    }

    async fn target(&mut self) -> Result<Target, Failure> {
        let asking = self.asking.take();
        let asks = asking.is_some();
        let found = match asking {
            Some(node) => node.active(self.end).await.map(|active| (node, active)),
            None => self.nodes.active(self.at, self.end).await,
        };
        match found {
            Ok((node, active)) => Ok(Target { node, active, asks }),
            // An earlier failure says more than "no connection", unless Redis refuses us now.
            Err(down) => {
                let last = self.last.take().filter(|_| !down.is_fatal());
                Err(Failure::last(self.named(last.unwrap_or(down))))
            }
        }
    }

    /// Returns the socket, with its number if it is an extra one.
    async fn open(&self, target: &Target) -> Result<(Socket, u64), Failure> {
        let Some(which) = self.extra else {
            return Ok((target.active.conn(), 0));
        };
        let opened = target.active.extra(which, &target.node);
        // Other callers may be opening it, one after the other.
        let opened = timeout_at(self.end, opened).await.unwrap_or_else(|_| {
            Err(ConnectionError::local(
                ConnectionErrorKind::Unavailable,
                self.what(),
                "no connection in time",
            ))
        });
        opened.map_err(|error| Failure {
            action: match error.is_fatal() {
                true => Action::GiveUp,
                false => Action::Retry,
            },
            error: self.named(error),
        })
    }

    /// Sends the request; loads its script if Redis does not know it.
    async fn send(&self, conn: &mut Socket, asks: bool) -> Result<Value, RedisError> {
        match (self.request.send(conn, asks).await, self.script) {
            (Err(error), Some(script)) if classify(&error).action == Action::LoadScript => {
                Request::One(&script.load()).send(conn, false).await?;
                self.request.send(conn, asks).await
            }
            (tried, _) => tried,
        }
    }

    /// Decides what an error of Redis or of the socket requires.
    async fn failed(&mut self, error: RedisError, target: &Target, number: u64) -> Failure {
        let Target { node, active, .. } = target;
        let verdict = classify(&error);
        // In a pipeline, the other commands ran.
        self.maybe_applied |= !verdict.refused || matches!(self.request, Request::Many(_));
        let action = match (verdict.action, self.extra) {
            (Action::Redirect, _) => {
                node.answered(active);
                let At::Slot(_) = self.at else {
                    let error = ConnectionError::from_redis(self.what(), error);
                    return Failure::last(error.of_a_cluster());
                };
                let next = self.nodes.redirected(&error, node);
                self.asking = next.filter(|_| error.code() == Some("ASK"));
                Action::Redirect
            }
            (action @ (Action::Rebuild | Action::RebuildSlowly), Some(which)) => {
                active.close_extra(which, number).await;
                match action {
                    Action::Rebuild => Action::Retry,
                    slowly => slowly,
                }
            }
            (action @ (Action::Rebuild | Action::RebuildSlowly), None) => {
                let error = ConnectionError::from_redis(self.what(), error);
                node.retire(active, error.clone());
                return Failure { action, error };
            }
            (action, _) => {
                node.answered(active);
                action
            }
        };
        let error = ConnectionError::from_redis(self.what(), error);
        Failure { action, error }
    }

    fn named(&self, error: ConnectionError) -> ConnectionError {
        let what = self.what();
        ConnectionError { what, ..error }
    }

    fn what(&self) -> String {
        name_of(self.request, self.script)
    }
}

impl Failure {
    /// Creates a failure after which nothing is tried.
    fn last(error: ConnectionError) -> Self {
        let action = Action::GiveUp;
        Self { action, error }
    }
}
