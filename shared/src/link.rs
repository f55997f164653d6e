//! The link to Redis: every request of the program goes through here.
//!
//! It keeps one supervised connection, repeats what may be repeated until the caller's deadline, and says exactly
//! what is known of a request that failed. It knows no keys and no script by name; [`errors`] holds the table of what
//! each error code means. All requests must be safe to repeat: a lost reply makes the link send again.

pub mod checks;
mod clock;
mod connect;
pub mod errors;
mod keeper;
mod reader;
mod script;
mod subscriber;
#[cfg(test)]
mod testing;
#[cfg(test)]
mod tests;
mod url;

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use redis::aio::MultiplexedConnection;
use redis::{Cmd, Pipeline, RedisError, Value};
use tokio::sync::watch;
use tokio::time::{Instant, sleep, timeout};
use tokio_util::sync::{CancellationToken, DropGuard};

pub use clock::{Clock, Jump};
use errors::{Action, classify, no_error_inside};
pub use errors::{LinkError, LinkErrorKind};
use keeper::{Backoff, Pace, Shared};
pub use reader::Reader;
pub use script::Script;
pub use subscriber::Subscriber;
pub use url::{InvalidRedisUrl, Place, RedisUrl};

use crate::secret::Secret;

/// How to reach Redis.
#[derive(Clone, Debug)]
pub struct LinkSettings {
    /// Address.
    pub url: RedisUrl,
    /// User; wins over the one in the address.
    pub username: Option<String>,
    /// Password; wins over the one in the address.
    pub password: Option<Secret>,
    /// Limit for one try to connect, greeting included.
    pub connect_timeout: Duration,
    /// Limit for one try of a request; two time-outs in a row replace the connection.
    pub response_timeout: Duration,
    /// Name shown by `CLIENT LIST`; no spaces.
    pub client_name: String,
    /// Certificates for `rediss://`.
    pub tls: TlsSettings,
}

/// Certificates for `rediss://`, as PEM files; nothing given = the certificates of the host.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct TlsSettings {
    /// Authorities to trust instead of the host's.
    pub ca_file: Option<PathBuf>,
    /// Certificate of this client.
    pub client_cert: Option<PathBuf>,
    /// Private key of this client.
    pub client_key: Option<PathBuf>,
}

impl LinkSettings {
    /// Takes an address and the defaults: 2 s to connect, 5 s for a reply.
    pub fn new(url: RedisUrl) -> Self {
        Self {
            url,
            username: None,
            password: None,
            connect_timeout: Duration::from_secs(2),
            response_timeout: Duration::from_secs(5),
            client_name: "lisa".to_owned(),
            tls: TlsSettings::default(),
        }
    }
}

/// What the link knows of Redis now.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum LinkStatus {
    /// The first try to connect is under way.
    Connecting,
    /// Redis answers.
    Up,
    /// Redis does not answer, or not us. The link keeps trying.
    Down {
        /// What went wrong, for people.
        reason: String,
        /// Error code of Redis, if it answered.
        code: Option<String>,
        /// Whether only an operator can mend it (password, permission): a starting process should stop.
        fatal: bool,
    },
}

impl LinkStatus {
    fn down(error: &LinkError, fatal: bool) -> Self {
        Self::Down {
            reason: error.to_string(),
            code: error.code.clone(),
            fatal,
        }
    }

    fn closed() -> Self {
        Self::Down {
            reason: "closed".to_owned(),
            code: None,
            fatal: false,
        }
    }
}

/// A supervised connection to Redis; cloning shares it.
#[derive(Clone)]
pub struct Link(Arc<Inner>);

struct Inner {
    shared: Arc<Shared>,
    /// Ends the keeper with the last clone.
    _closer: DropGuard,
}

/// One request in either form.
#[derive(Clone, Copy)]
enum Request<'a> {
    One(&'a Cmd),
    Many(&'a Pipeline),
}

impl Request<'_> {
    async fn send(self, conn: &mut MultiplexedConnection) -> Result<Value, RedisError> {
        let reply = match self {
            Self::One(cmd) => conn.send_packed_command(cmd).await?,
            Self::Many(pipeline) => Value::Array(
                conn.send_packed_commands(pipeline, 0, pipeline.len())
                    .await?,
            ),
        };
        no_error_inside(reply)
    }
}

impl Link {
    /// Starts a link. It needs no Redis yet: one task connects in the background and keeps trying until `closed` is
    /// cancelled or the last clone is dropped. Call it inside a Tokio runtime.
    ///
    /// # Errors
    ///
    /// [`LinkErrorKind::Invalid`] for settings that cannot work, [`LinkErrorKind::NotSupported`] for Sentinel and
    /// Cluster addresses.
    pub fn new(settings: LinkSettings, closed: &CancellationToken) -> Result<Self, LinkError> {
        Self::start(settings, closed, Pace::default())
    }

    fn start(
        settings: LinkSettings,
        closed: &CancellationToken,
        pace: Pace,
    ) -> Result<Self, LinkError> {
        let closed = closed.child_token();
        let shared = Arc::new(Shared::new(&settings, pace, closed.clone())?);
        tokio::spawn(keeper::keep(shared.clone()));
        Ok(Self(Arc::new(Inner {
            shared,
            _closer: closed.drop_guard(),
        })))
    }

    /// Sends one command and gives its reply, repeating what may be repeated until `deadline` has passed.
    ///
    /// # Errors
    ///
    /// The last failure; `maybe_applied` covers all tries.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future does not undo the command: Redis may have run it, or may still run it.
    pub async fn call(&self, cmd: &Cmd, deadline: Duration) -> Result<Value, LinkError> {
        self.run(Request::One(cmd), None, deadline).await
    }

    /// Sends several commands in one write, without a transaction, and gives their replies in order. Meant for reads.
    ///
    /// # Errors
    ///
    /// As [`Link::call`]; the first error among the replies counts for all.
    ///
    /// # Cancel safety
    ///
    /// As [`Link::call`].
    pub async fn pipeline(
        &self,
        pipeline: &Pipeline,
        deadline: Duration,
    ) -> Result<Vec<Value>, LinkError> {
        if pipeline.is_empty() {
            return Ok(Vec::new());
        }
        match self.run(Request::Many(pipeline), None, deadline).await? {
            Value::Array(replies) => Ok(replies),
            other => Ok(vec![other]),
        }
    }

    /// Runs a script by its hash, loading it where Redis does not know it. The script must be safe to repeat.
    ///
    /// # Errors
    ///
    /// As [`Link::call`].
    ///
    /// # Cancel safety
    ///
    /// As [`Link::call`].
    pub async fn eval<K: AsRef<[u8]>, A: AsRef<[u8]>>(
        &self,
        script: &Script,
        keys: &[K],
        args: &[A],
        deadline: Duration,
    ) -> Result<Value, LinkError> {
        let cmd = script.evalsha(keys, args);
        self.run(Request::One(&cmd), Some(script), deadline).await
    }

    async fn run(
        &self,
        request: Request<'_>,
        script: Option<&Script>,
        deadline: Duration,
    ) -> Result<Value, LinkError> {
        let shared = &*self.0.shared;
        let what = || name_of(request, script);
        let end = Instant::now() + deadline;
        let mut backoff = Backoff::new();
        let mut maybe_applied = false;
        let mut last: Option<LinkError> = None;
        loop {
            let live = match shared.live(end).await {
                Ok(live) => live,
                // What an earlier try met says more than "no connection", unless Redis refuses us now.
                Err(down) => {
                    let error = last.filter(|_| !down.is_fatal()).unwrap_or(down);
                    return Err(LinkError {
                        what: what(),
                        maybe_applied,
                        ..error
                    });
                }
            };
            let limit = shared
                .response_timeout
                .min(end.saturating_duration_since(Instant::now()));
            let mut conn = live.conn();
            let tried = async {
                match (request.send(&mut conn).await, script) {
                    (Err(error), Some(script)) if classify(&error).action == Action::LoadScript => {
                        Request::One(&script.load()).send(&mut conn).await?;
                        request.send(&mut conn).await
                    }
                    (tried, _) => tried,
                }
            };
            let (action, error) = match timeout(limit, tried).await {
                Ok(Ok(reply)) => {
                    live.answered();
                    return Ok(reply);
                }
                Ok(Err(error)) => {
                    let verdict = classify(&error);
                    // In a pipeline the commands beside the refused one ran.
                    maybe_applied |= !verdict.refused || matches!(request, Request::Many(_));
                    let error = LinkError::from_redis(what(), error);
                    if matches!(verdict.action, Action::Rebuild | Action::RebuildSlowly) {
                        shared.retire(&live, error.clone());
                    } else {
                        live.answered();
                    }
                    (verdict.action, error)
                }
                Err(_) => {
                    maybe_applied = true;
                    shared.timed_out(&live, &what(), limit);
                    let detail = format!("no answer within {limit:?}");
                    (
                        Action::Retry,
                        LinkError::local(LinkErrorKind::Unavailable, what(), detail),
                    )
                }
            };
            let pause = match action {
                // Waiting for the next connection is the pause.
                Action::Rebuild => Duration::ZERO,
                Action::Retry => backoff.next_pause(),
                Action::LoadScript if script.is_some() => backoff.next_pause(),
                Action::LoadScript | Action::RebuildSlowly | Action::GiveUp => {
                    return Err(LinkError {
                        maybe_applied,
                        ..error
                    });
                }
            };
            if Instant::now() + pause >= end {
                return Err(LinkError {
                    maybe_applied,
                    ..error
                });
            }
            last = Some(error);
            sleep(pause).await;
        }
    }

    /// Watches the status.
    pub fn status(&self) -> watch::Receiver<LinkStatus> {
        self.0.shared.status()
    }

    /// Says whether Redis answered last time.
    pub fn is_up(&self) -> bool {
        self.0.shared.is_up()
    }

    /// Waits until Redis answers.
    ///
    /// # Errors
    ///
    /// The reason why not, after `limit` or as soon as only an operator can mend it ([`LinkError::is_fatal`]).
    ///
    /// # Cancel safety
    ///
    /// Safe.
    pub async fn wait_up(&self, limit: Duration) -> Result<(), LinkError> {
        self.0.shared.wait_up(limit).await
    }

    /// Gives Redis's clock as seen from here.
    pub fn clock(&self) -> &Clock {
        &self.0.shared.clock
    }

    /// Opens a connection of its own for blocking reads: waits until Redis answers, then tries once.
    ///
    /// # Errors
    ///
    /// [`LinkErrorKind::Unavailable`] after at most two times the connect time-out; a refusal at once, so pause before
    /// asking again.
    ///
    /// # Cancel safety
    ///
    /// Safe.
    pub async fn reader(&self) -> Result<Reader, LinkError> {
        Reader::open(&self.0.shared).await
    }

    /// Starts a subscription connection. It connects by itself and ends with the value, or with the link.
    pub fn subscriber(&self) -> Subscriber {
        Subscriber::new(self)
    }
}

impl std::fmt::Debug for Link {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_tuple("Link")
            .field(&*self.0.shared.status().borrow())
            .finish()
    }
}

/// Names a request for errors; only failures pay for it.
fn name_of(request: Request<'_>, script: Option<&Script>) -> String {
    match (request, script) {
        (_, Some(script)) => script.name().to_owned(),
        (Request::One(cmd), None) => reader::command_name(cmd),
        (Request::Many(pipeline), None) => {
            let first = pipeline
                .cmd_iter()
                .next()
                .map(reader::command_name)
                .unwrap_or_default();
            format!("pipeline of {} from {first}", pipeline.len())
        }
    }
}
