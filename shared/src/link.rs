//! The link to Redis: every request of the program goes through here.
//!
//! It keeps one supervised connection to each server, finds the server of a key, repeats what may be repeated until the
//! caller's deadline, and says exactly what is known of a request that failed. It knows no keys and no script by name;
//! [`errors`] holds the table of what each error code means. All requests must be safe to repeat: a lost reply makes the link send again.

mod aside;
pub mod checks;
mod clock;
mod cluster;
mod connect;
pub mod errors;
mod keeper;
mod nodes;
mod progress;
mod reader;
mod request;
mod script;
mod sentinel;
mod server;
mod slots;
mod subscriber;
#[cfg(test)]
mod testing;
#[cfg(test)]
mod tests;
mod url;

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use redis::{Cmd, Value};
use tokio::sync::watch;
use tokio::time::{Instant, sleep, timeout, timeout_at};
use tokio_util::sync::{CancellationToken, DropGuard};

pub use aside::Aside;
pub use clock::{Clock, Jump};
use cluster::Cluster;
use errors::{Action, classify};
pub use errors::{LinkError, LinkErrorKind};
use keeper::{Backoff, Node, Pace};
use nodes::Nodes;
pub use progress::Progress;
pub use reader::Reader;
use request::{Request, name_of};
pub use script::Script;
use server::At;
pub use server::{Server, ServerId};
pub use subscriber::Subscriber;
pub use url::{InvalidRedisUrl, Place, RedisUrl};

use crate::crc16::slot;
use crate::secret::Secret;

/// The longest pause before a request for a slot that is being moved is sent again: a fraction of the shortest lease.
const MOVING_PAUSE: Duration = Duration::from_millis(100);

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
    /// User of the sentinels, if they ask for one; the server's own is not tried.
    pub sentinel_username: Option<String>,
    /// Password of the sentinels.
    pub sentinel_password: Option<Secret>,
    /// Certificates for `rediss…://`.
    pub tls: TlsSettings,
}

/// Certificates for `rediss…://`, as PEM files; nothing given = the certificates of the host.
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
            sentinel_username: None,
            sentinel_password: None,
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

/// Supervised connections to Redis: one, or one to each node of a cluster. Cloning shares them.
#[derive(Clone)]
pub struct Link(Arc<Inner>);

struct Inner {
    nodes: Nodes,
    settings: LinkSettings,
    closed: CancellationToken,
    /// Ends the keepers with the last clone.
    _closer: DropGuard,
}

impl Link {
    /// Starts a link. It needs no Redis yet: tasks connect in the background and keep trying until `closed` is
    /// cancelled or the last clone is dropped. Call it inside a Tokio runtime.
    ///
    /// # Errors
    ///
    /// [`LinkErrorKind::Invalid`] for settings that cannot work.
    pub fn new(settings: LinkSettings, closed: &CancellationToken) -> Result<Self, LinkError> {
        Self::start(settings, closed, Pace::default())
    }

    fn start(
        settings: LinkSettings,
        closed: &CancellationToken,
        pace: Pace,
    ) -> Result<Self, LinkError> {
        let closed = closed.child_token();
        let nodes = if let Place::Cluster { .. } = settings.url.place() {
            let cluster = Cluster::new(&settings, pace, closed.clone())?;
            tokio::spawn(cluster::keep(cluster.clone()));
            Nodes::Cluster(cluster)
        } else {
            let node = Arc::new(Node::new(&settings, pace, closed.clone())?);
            tokio::spawn(keeper::keep(node.clone()));
            Nodes::One(node)
        };
        Ok(Self(Arc::new(Inner {
            nodes,
            settings,
            closed: closed.clone(),
            _closer: closed.drop_guard(),
        })))
    }

    /// Starts another link with the same settings, which ends with this one: for requests that keep a connection busy.
    ///
    /// # Errors
    ///
    /// As [`Link::new`].
    pub fn another(&self) -> Result<Self, LinkError> {
        Self::new(self.0.settings.clone(), &self.0.closed)
    }

    /// Gives the server that holds a key: in a cluster the owner of its slot at the time of each request.
    pub fn at(&self, key: impl AsRef<[u8]>) -> Server<'_> {
        let at = match &self.0.nodes {
            Nodes::One(_) => At::Any,
            Nodes::Cluster(_) => At::Slot(slot(key.as_ref())),
        };
        self.server_at(at)
    }

    /// Gives any server: for what is the same on each.
    pub fn any(&self) -> Server<'_> {
        self.server_at(At::Any)
    }

    fn server_at(&self, at: At) -> Server<'_> {
        Server {
            link: self,
            at,
            aside: None,
        }
    }

    /// Gives the server that something else was found on.
    pub fn server(&self, id: &ServerId) -> Server<'_> {
        self.server_at(At::Node(id.0.clone()))
    }

    /// Gives all servers that hold keys, as far as they are known: one, or the masters of a cluster.
    pub fn servers(&self) -> Vec<Server<'_>> {
        let nodes = match &self.0.nodes {
            Nodes::One(node) => vec![node.clone()],
            Nodes::Cluster(cluster) => cluster.nodes(),
        };
        let server = |node| self.server_at(At::Node(node));
        nodes.into_iter().map(server).collect()
    }

    /// Runs a script by its hash on the server of its first key, loading it where Redis does not know it. The script
    /// must be safe to repeat.
    ///
    /// # Errors
    ///
    /// The last failure; `maybe_applied` covers all tries.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future does not undo the script: Redis may have run it, or may still run it.
    pub async fn eval<K: AsRef<[u8]>, A: AsRef<[u8]>>(
        &self,
        script: &Script,
        keys: &[K],
        args: &[A],
        deadline: Duration,
    ) -> Result<Value, LinkError> {
        let at = keys.first().map_or(At::Any, |key| self.at(key).at);
        let cmd = script.evalsha(keys, args);
        self.run(&at, None, Request::One(&cmd), Some(script), deadline)
            .await
    }

    /// Runs a script as [`Link::eval`] does, and a command behind it on the same connection, which may take as long as
    /// `takes`. Gives both replies; that of the command may be an error.
    ///
    /// # Errors
    ///
    /// As [`Link::eval`], of the script.
    ///
    /// # Cancel safety
    ///
    /// As [`Link::eval`].
    pub async fn eval_then<K: AsRef<[u8]>, A: AsRef<[u8]>>(
        &self,
        script: &Script,
        keys: &[K],
        args: &[A],
        then: &Cmd,
        takes: Duration,
        deadline: Duration,
    ) -> Result<(Value, Value), LinkError> {
        let at = keys.first().map_or(At::Any, |key| self.at(key).at);
        let cmd = script.evalsha(keys, args);
        let request = Request::Then {
            cmd: &cmd,
            then,
            takes,
        };
        match self.run(&at, None, request, Some(script), deadline).await? {
            Value::Array(replies) => {
                let mut replies = replies.into_iter();
                let mut next = || replies.next().unwrap_or(Value::Nil);
                Ok((next(), next()))
            }
            other => Ok((other, Value::Nil)),
        }
    }

    async fn run(
        &self,
        at: &At,
        aside: Option<Aside>,
        request: Request<'_>,
        script: Option<&Script>,
        deadline: Duration,
    ) -> Result<Value, LinkError> {
        let what = || name_of(request, script);
        let end = Instant::now() + deadline;
        let mut backoff = Backoff::new();
        let mut maybe_applied = false;
        let mut last: Option<LinkError> = None;
        // A node that imports the slot, for one try: where `ASK` sent us.
        let mut asking: Option<Arc<Node>> = None;
        loop {
            let found = match asking.take() {
                Some(node) => node.live(end).await.map(|live| (node, live, true)),
                None => {
                    let found = self.0.nodes.live(at, end).await;
                    found.map(|(node, live)| (node, live, false))
                }
            };
            let (node, live, asks) = match found {
                Ok(found) => found,
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
            let whole = self.0.settings.response_timeout + request.takes();
            let limit = match aside {
                // A large reply needs its time, however late the connection was opened.
                Some(_) => whole,
                None => whole.min(end.saturating_duration_since(Instant::now())),
            };
            let opened = match aside {
                // Others may be opening it, one after the other.
                Some(which) => match timeout_at(end, live.aside(which, &node)).await {
                    Ok(opened) => opened,
                    Err(_) => Err(LinkError::local(
                        LinkErrorKind::Unavailable,
                        what(),
                        "no connection in time",
                    )),
                },
                None => Ok((live.conn(), 0)),
            };
            let (mut conn, number) = match opened {
                Ok(conn) => conn,
                Err(error) => {
                    let pause = backoff.next_pause();
                    if error.is_fatal() || Instant::now() + pause >= end {
                        return Err(LinkError {
                            what: what(),
                            maybe_applied,
                            ..error
                        });
                    }
                    last = Some(error);
                    sleep(pause).await;
                    continue;
                }
            };
            let tried = async {
                match (request.send(&mut conn, asks).await, script) {
                    (Err(error), Some(script)) if classify(&error).action == Action::LoadScript => {
                        Request::One(&script.load()).send(&mut conn, false).await?;
                        request.send(&mut conn, asks).await
                    }
                    (tried, _) => tried,
                }
            };
            let (action, error) = match timeout(limit, tried).await {
                Ok(Ok(reply)) => {
                    match aside {
                        Some(_) => node.heard(),
                        None => node.answered(&live),
                    }
                    return Ok(reply);
                }
                Ok(Err(error)) => {
                    let verdict = classify(&error);
                    // In a pipeline the commands beside the refused one ran.
                    maybe_applied |= !verdict.refused || matches!(request, Request::Many(_));
                    let next = match (verdict.action, at) {
                        (Action::Redirect, At::Slot(_)) => self.0.nodes.redirected(&error, &node),
                        _ => None,
                    };
                    let is_ask = error.code() == Some("ASK");
                    let error = LinkError::from_redis(what(), error);
                    let action = match verdict.action {
                        Action::Redirect if matches!(at, At::Slot(_)) => {
                            node.answered(&live);
                            // Followed at once the first time; nodes that disagree get pauses.
                            asking = next.filter(|_| is_ask);
                            Action::Redirect
                        }
                        Action::Redirect => {
                            node.answered(&live);
                            return Err(LinkError {
                                maybe_applied,
                                ..error.of_a_cluster()
                            });
                        }
                        Action::Rebuild | Action::RebuildSlowly if let Some(which) = aside => {
                            live.close_aside(which, number).await;
                            match verdict.action {
                                Action::Rebuild => Action::Retry,
                                slowly => slowly,
                            }
                        }
                        Action::Rebuild | Action::RebuildSlowly => {
                            node.retire(&live, error.clone());
                            verdict.action
                        }
                        action => {
                            node.answered(&live);
                            action
                        }
                    };
                    (action, error)
                }
                Err(_) if let Some(which) = aside => {
                    // The rest of the reply would hold up whatever is asked next.
                    live.close_aside(which, number).await;
                    return Err(LinkError::late(what(), limit));
                }
                Err(_) => {
                    maybe_applied = true;
                    node.timed_out(&live, &what(), limit);
                    (Action::Retry, LinkError::late(what(), limit))
                }
            };
            let pause = match action {
                // Waiting for the next connection is the pause.
                Action::Rebuild => Duration::ZERO,
                Action::Redirect if last.is_none() => Duration::ZERO,
                // A slot is being moved key by key: whoever comes soon after the last one loses no lease.
                Action::Retry if error.is_slot_moving() => backoff.next_pause().min(MOVING_PAUSE),
                Action::Redirect | Action::Retry => backoff.next_pause(),
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
            if error.is_slot_moving() {
                self.0.nodes.moving(at);
            }
            if error.code.as_deref() == Some("CLUSTERDOWN") {
                self.0.nodes.doubt();
            }
            last = Some(error);
            sleep(pause).await;
        }
    }

    /// Watches the status. A cluster is up when each of its slots is served by a node that answers.
    pub fn status(&self) -> watch::Receiver<LinkStatus> {
        match &self.0.nodes {
            Nodes::One(node) => node.status(),
            Nodes::Cluster(cluster) => cluster.status(),
        }
    }

    /// Gives the limit for one try of a request.
    pub fn response_timeout(&self) -> Duration {
        self.0.settings.response_timeout
    }

    /// Says whether Redis answered last time.
    pub fn is_up(&self) -> bool {
        match &self.0.nodes {
            Nodes::One(node) => node.is_up(),
            Nodes::Cluster(cluster) => cluster.is_up(),
        }
    }

    /// Returns a number that changes with each new connection, and with the servers that there are.
    pub fn connections(&self) -> (usize, u64) {
        let nodes = match &self.0.nodes {
            Nodes::One(node) => vec![node.clone()],
            Nodes::Cluster(cluster) => cluster.nodes(),
        };
        let connections = nodes.iter().map(|node| node.connections()).sum();
        (nodes.len(), connections)
    }

    /// Says whether Redis answered anything after `then`, each node of a cluster. One that did not is asked at once whether
    /// it is there, so that soon more is known.
    fn heard_since(&self, then: std::time::Instant) -> bool {
        match &self.0.nodes {
            Nodes::One(node) => node.heard_since(then),
            Nodes::Cluster(cluster) => cluster.heard_since(then),
        }
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
        match &self.0.nodes {
            Nodes::One(node) => node.wait_up(limit).await,
            Nodes::Cluster(cluster) => cluster.wait_up(limit).await,
        }
    }

    /// Gives Redis's clock as seen from here; in a cluster that of some node, and [`Server::clock`] is exact.
    pub fn clock(&self) -> Arc<Clock> {
        match &self.0.nodes {
            Nodes::One(node) => node.clock.clone(),
            Nodes::Cluster(cluster) => cluster.clock(),
        }
    }

    /// Starts a subscription. It connects by itself and ends with the value, or with the link.
    pub fn subscriber(&self) -> Subscriber {
        Subscriber::new(self)
    }
}

impl std::fmt::Debug for Link {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_tuple("Link")
            .field(&*self.status().borrow())
            .finish()
    }
}
