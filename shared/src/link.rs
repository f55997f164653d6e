//! The link to Redis: every request of the program goes through here.
//!
//! It keeps one supervised connection to each server, finds the server of a key, repeats what may be repeated until the
//! caller's deadline, and says exactly what is known of a request that failed. It knows no keys and no script by name;
//! [`errors`] holds the table of what each error code means. All requests must be safe to repeat: a lost reply makes the link send again.

pub mod checks;
mod clock;
mod cluster;
mod connect;
pub mod errors;
mod keeper;
mod reader;
mod script;
mod sentinel;
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
use cluster::Cluster;
use errors::{Action, classify, no_error_inside};
pub use errors::{LinkError, LinkErrorKind};
use keeper::{Backoff, Live, Node, Pace};
pub use reader::Reader;
pub use script::Script;
pub use subscriber::Subscriber;
pub use url::{InvalidRedisUrl, Place, RedisUrl};

use crate::crc16::slot;
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

#[derive(Clone)]
enum Nodes {
    /// One server, or the master that sentinels name.
    One(Arc<Node>),
    Cluster(Arc<Cluster>),
}

/// The server that holds a key, or one that was chosen; see [`Link::at`].
#[derive(Clone)]
pub struct Server<'a> {
    link: &'a Link,
    at: At,
}

/// Which server something belongs to, also when keys have moved away from it.
#[derive(Clone)]
pub struct ServerId(Arc<Node>);

#[derive(Clone)]
enum At {
    /// Any server will do.
    Any,
    Slot(u16),
    Node(Arc<Node>),
}

/// One request in either form.
#[derive(Clone, Copy)]
enum Request<'a> {
    One(&'a Cmd),
    Many(&'a Pipeline),
    /// A command, and another one behind it that keeps the connection busy for up to `takes`.
    Then {
        cmd: &'a Cmd,
        then: &'a Cmd,
        takes: Duration,
    },
}

impl Request<'_> {
    /// Sends it; `asks` to a node that imports the slot of the keys.
    async fn send(self, conn: &mut MultiplexedConnection, asks: bool) -> Result<Value, RedisError> {
        let reply = match self {
            Self::Then { cmd, then, .. } => return both(cmd, then, conn, asks).await,
            Self::One(cmd) if asks => asking([cmd], conn).await?.pop(),
            Self::One(cmd) => Some(conn.send_packed_command(cmd).await?),
            Self::Many(pipeline) if asks => {
                Some(Value::Array(asking(pipeline.cmd_iter(), conn).await?))
            }
            Self::Many(pipeline) => {
                let replies = conn.send_packed_commands(pipeline, 0, pipeline.len());
                Some(Value::Array(replies.await?))
            }
        };
        no_error_inside(reply.unwrap_or(Value::Nil))
    }

    /// How long Redis may take for it on purpose.
    fn takes(self) -> Duration {
        match self {
            Self::One(_) | Self::Many(_) => Duration::ZERO,
            Self::Then { takes, .. } => takes,
        }
    }
}

/// Sends two commands in one write; only an error of the first one is an error.
async fn both(
    cmd: &Cmd,
    then: &Cmd,
    conn: &mut MultiplexedConnection,
    asks: bool,
) -> Result<Value, RedisError> {
    let mut pipeline = Pipeline::with_capacity(3);
    if asks {
        pipeline.cmd("ASKING");
    }
    pipeline.add_command(cmd.clone()).add_command(then.clone());
    let replies = conn
        .send_packed_commands(&pipeline, usize::from(asks), 2)
        .await?;
    let mut replies = replies.into_iter();
    let first = no_error_inside(replies.next().unwrap_or(Value::Nil))?;
    Ok(Value::Array(vec![
        first,
        replies.next().unwrap_or(Value::Nil),
    ]))
}

/// Sends commands with an `ASKING` before each: it holds for one command only. One write, so that no other request
/// comes between.
async fn asking(
    cmds: impl IntoIterator<Item = &Cmd>,
    conn: &mut MultiplexedConnection,
) -> Result<Vec<Value>, RedisError> {
    let mut pipeline = Pipeline::new();
    for cmd in cmds {
        pipeline.cmd("ASKING");
        pipeline.add_command(cmd.clone());
    }
    let replies = conn
        .send_packed_commands(&pipeline, 0, pipeline.len())
        .await?;
    Ok(replies.into_iter().skip(1).step_by(2).collect())
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
        Server { link: self, at }
    }

    /// Gives any server: for what is the same on each.
    pub fn any(&self) -> Server<'_> {
        Server {
            link: self,
            at: At::Any,
        }
    }

    /// Gives the server that something else was found on.
    pub fn server(&self, id: &ServerId) -> Server<'_> {
        Server {
            link: self,
            at: At::Node(id.0.clone()),
        }
    }

    /// Gives all servers that hold keys, as far as they are known: one, or the masters of a cluster.
    pub fn servers(&self) -> Vec<Server<'_>> {
        let nodes = match &self.0.nodes {
            Nodes::One(node) => vec![node.clone()],
            Nodes::Cluster(cluster) => cluster.nodes(),
        };
        let server = |node| Server {
            link: self,
            at: At::Node(node),
        };
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
        self.run(&at, Request::One(&cmd), Some(script), deadline)
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
        match self.run(&at, request, Some(script), deadline).await? {
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
            let limit = (self.0.settings.response_timeout + request.takes())
                .min(end.saturating_duration_since(Instant::now()));
            let mut conn = live.conn();
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
                    live.answered();
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
                            live.answered();
                            // Followed at once the first time; nodes that disagree get pauses.
                            asking = next.filter(|_| is_ask);
                            Action::Redirect
                        }
                        Action::Redirect => {
                            live.answered();
                            return Err(LinkError {
                                maybe_applied,
                                ..error.of_a_cluster()
                            });
                        }
                        Action::Rebuild | Action::RebuildSlowly => {
                            node.retire(&live, error.clone());
                            verdict.action
                        }
                        action => {
                            live.answered();
                            action
                        }
                    };
                    (action, error)
                }
                Err(_) => {
                    maybe_applied = true;
                    node.timed_out(&live, &what(), limit);
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
                Action::Redirect if last.is_none() => Duration::ZERO,
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

    /// Says whether Redis answered last time.
    pub fn is_up(&self) -> bool {
        match &self.0.nodes {
            Nodes::One(node) => node.is_up(),
            Nodes::Cluster(cluster) => cluster.is_up(),
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

impl Nodes {
    async fn live(&self, at: &At, end: Instant) -> Result<(Arc<Node>, Arc<Live>), LinkError> {
        let node = match (self, at) {
            (_, At::Node(node)) | (Self::One(node), _) => node,
            (Self::Cluster(cluster), At::Any) => return cluster.live(None, end).await,
            (Self::Cluster(cluster), At::Slot(slot)) => {
                return cluster.live(Some(*slot), end).await;
            }
        };
        Ok((node.clone(), node.live(end).await?))
    }

    fn closed(&self) -> CancellationToken {
        match self {
            Self::One(node) => node.closed.clone(),
            Self::Cluster(cluster) => cluster.closed.clone(),
        }
    }

    /// The server that a key or channel belongs to, as far as known.
    fn owner_of(&self, key: &str) -> Option<Arc<Node>> {
        match self {
            Self::One(node) => Some(node.clone()),
            Self::Cluster(cluster) => cluster.owner(slot(key.as_bytes())),
        }
    }

    /// Watches for changes of owners; with one server there are none.
    fn changes(&self) -> Changes {
        Changes(match self {
            Self::One(_) => None,
            Self::Cluster(cluster) => Some(cluster.changes()),
        })
    }

    /// Takes in a redirection and gives the node that it names.
    fn redirected(&self, error: &RedisError, by: &Node) -> Option<Arc<Node>> {
        match self {
            Self::One(_) => None,
            Self::Cluster(cluster) => cluster.redirected(error, by),
        }
    }

    /// Says that who serves what may have changed.
    fn doubt(&self) {
        if let Self::Cluster(cluster) = self {
            cluster.doubt();
        }
    }
}

/// Tells when keys may have other owners.
struct Changes(Option<watch::Receiver<u64>>);

impl Changes {
    async fn next(&mut self) {
        if let Some(changes) = &mut self.0
            && changes.changed().await.is_ok()
        {
            return;
        }
        std::future::pending().await
    }
}

impl Server<'_> {
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
        self.link
            .run(&self.at, Request::One(cmd), None, deadline)
            .await
    }

    /// Sends several commands in one write, without a transaction, and gives their replies in order. Meant for reads;
    /// all keys must be of one slot.
    ///
    /// # Errors
    ///
    /// As [`Server::call`]; the first error among the replies counts for all.
    ///
    /// # Cancel safety
    ///
    /// As [`Server::call`].
    pub async fn pipeline(
        &self,
        pipeline: &Pipeline,
        deadline: Duration,
    ) -> Result<Vec<Value>, LinkError> {
        if pipeline.is_empty() {
            return Ok(Vec::new());
        }
        let request = Request::Many(pipeline);
        match self.link.run(&self.at, request, None, deadline).await? {
            Value::Array(replies) => Ok(replies),
            other => Ok(vec![other]),
        }
    }

    /// Runs a script on this server, loading it where Redis does not know it; its keys must live there.
    ///
    /// # Errors
    ///
    /// As [`Server::call`].
    ///
    /// # Cancel safety
    ///
    /// As [`Server::call`].
    pub async fn eval<K: AsRef<[u8]>, A: AsRef<[u8]>>(
        &self,
        script: &Script,
        keys: &[K],
        args: &[A],
        deadline: Duration,
    ) -> Result<Value, LinkError> {
        let cmd = script.evalsha(keys, args);
        self.link
            .run(&self.at, Request::One(&cmd), Some(script), deadline)
            .await
    }

    /// Gives the server's clock as seen from here.
    pub fn clock(&self) -> Arc<Clock> {
        match (&self.at, &self.link.0.nodes) {
            (At::Node(node), _) => node.clock.clone(),
            (At::Slot(slot), Nodes::Cluster(cluster)) => match cluster.owner(*slot) {
                Some(node) => node.clock.clone(),
                None => cluster.clock(),
            },
            _ => self.link.clock(),
        }
    }

    /// Gives when the server came back after it was away, as far as this link saw that.
    pub fn back_since(&self) -> Option<std::time::Instant> {
        match (&self.at, &self.link.0.nodes) {
            (At::Node(node), _) | (_, Nodes::One(node)) => node.back(),
            (At::Slot(slot), Nodes::Cluster(cluster)) => {
                cluster.owner(*slot).and_then(|node| node.back())
            }
            (At::Any, Nodes::Cluster(_)) => None,
        }
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
        let inner = &self.link.0;
        let end = Instant::now() + inner.settings.connect_timeout;
        let (node, live) = inner.nodes.live(&self.at, end).await?;
        Reader::open(inner.nodes.clone(), node, &live).await
    }

    /// The address, without a password, where the server is known; for people.
    pub fn name(&self) -> String {
        let node = match (&self.at, &self.link.0.nodes) {
            (At::Node(node), _) | (_, Nodes::One(node)) => Some(node.clone()),
            (At::Slot(slot), Nodes::Cluster(cluster)) => cluster.owner(*slot),
            (At::Any, Nodes::Cluster(_)) => None,
        };
        node.map_or_else(String::new, |node| node.opener.url().to_string())
    }
}

impl std::fmt::Debug for Link {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_tuple("Link")
            .field(&*self.status().borrow())
            .finish()
    }
}

/// Names a request for errors; only failures pay for it.
fn name_of(request: Request<'_>, script: Option<&Script>) -> String {
    match (request, script) {
        (_, Some(script)) => script.name().to_owned(),
        (Request::One(cmd) | Request::Then { cmd, .. }, None) => reader::command_name(cmd),
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
