//! The connection to Redis; every request of the program goes through here.
//!
//! It keeps one supervised connection to each server, finds the server of a key, and retries until the caller's
//! deadline. A failed request reports exactly what is known of it. This module knows no key and no script by name;
//! [`errors`] holds the table of what each error code means.
//!
//! Every request must be safe to repeat: after a lost reply, the connection sends it again.

mod address;
mod append;
mod attempts;
mod clock;
mod cluster;
mod connect;
mod endpoint;
pub mod errors;
mod extra;
mod node;
mod nodes;
pub mod preflight;
mod progress;
mod reader;
mod replies;
mod request;
mod script;
mod sentinel;
mod server;
mod slots;
mod socket;
mod subscriber;
#[cfg(test)]
mod testing;
#[cfg(test)]
mod tests;

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use redis::{Cmd, Value};
use tokio::sync::watch;
use tokio_util::sync::{CancellationToken, DropGuard};

pub use append::StreamEntry;
pub use clock::{Clock, Jump};
use cluster::Cluster;
pub use endpoint::{Endpoint, InvalidRedisUrl, RedisUrl};
pub use errors::{ConnectionError, ConnectionErrorKind};
pub use extra::Extra;
use node::{Node, Pace};
pub use nodes::ServerId;
use nodes::{At, Nodes};
pub use progress::Progress;
pub use reader::Reader;
use request::Request;
pub use script::{Script, ScriptCall};
pub use server::Server;
pub use subscriber::Subscriber;

use crate::crc16::slot;
use crate::secret::Secret;
use crate::task;

/// Reasons by which the operating system reports that nothing listens at an address.
const NOBODY_LISTENS: [&str; 2] = ["Connection refused", "No such file or directory"];

/// The settings of a [`Connection`].
#[derive(Clone, Debug)]
pub struct ConnectionSettings {
    /// The address.
    pub url: RedisUrl,
    /// User name; takes precedence over the one in the address.
    pub username: Option<String>,
    /// Password; takes precedence over the one in the address.
    pub password: Option<Secret>,
    /// Time limit for one attempt to connect, including the handshake.
    pub connect_timeout: Duration,
    /// Time limit for one attempt of a request; two timeouts in a row replace the socket.
    pub response_timeout: Duration,
    /// Name shown by `CLIENT LIST`, without spaces.
    pub client_name: String,
    /// User name for the sentinels, if they require one; the server's own is not tried.
    pub sentinel_username: Option<String>,
    /// Password for the sentinels.
    pub sentinel_password: Option<Secret>,
    /// Certificates for `rediss…://`.
    pub tls: TlsSettings,
    /// The most memory that a reply may take, in bytes. A larger one ends its connection.
    pub max_reply: usize,
}

/// The default of [`ConnectionSettings::max_reply`]: many times the largest reply that Lisa asks for.
const MAX_REPLY: usize = 256 * 1024 * 1024;

/// Certificates for `rediss…://`, as PEM files. By default, the certificate authorities of the host are trusted.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct TlsSettings {
    /// Certificate authorities to trust instead of the host's.
    pub ca_file: Option<PathBuf>,
    /// Client certificate.
    pub client_cert: Option<PathBuf>,
    /// Private key of the client certificate.
    pub client_key: Option<PathBuf>,
}

impl ConnectionSettings {
    /// Creates settings for an address, with the defaults: 2 s to connect, 5 s for a reply.
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
            max_reply: MAX_REPLY,
        }
    }
}

/// The last known state of Redis.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ConnectionStatus {
    /// The first attempt to connect is in progress.
    Connecting,
    /// Redis answers.
    Up,
    /// Redis does not answer, or refuses us. The connection keeps retrying.
    Down {
        /// Human-readable cause.
        reason: String,
        /// Error code of Redis, if it replied.
        code: Option<String>,
        /// True if only an operator can repair it (password, permission): a process that is starting should stop.
        fatal: bool,
    },
}

impl ConnectionStatus {
    fn down(error: &ConnectionError, fatal: bool) -> Self {
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

/// Supervised connections to Redis: to one server, or to each node of a cluster. Clones share them.
#[derive(Clone)]
pub struct Connection(Arc<Inner>);

struct Inner {
    nodes: Nodes,
    settings: ConnectionSettings,
    closed: CancellationToken,
    /// Stops the background tasks when the last clone is dropped.
    _closer: DropGuard,
}

impl Connection {
    /// Starts a connection. Redis may be unavailable: tasks connect in the background and retry until `closed` is
    /// cancelled or the last clone is dropped. Must be called within a Tokio runtime.
    ///
    /// # Errors
    ///
    /// [`ConnectionErrorKind::Invalid`] for settings that cannot work.
    pub fn new(
        settings: ConnectionSettings,
        closed: &CancellationToken,
    ) -> Result<Self, ConnectionError> {
        Self::start(settings, closed, Pace::default())
    }

    fn start(
        settings: ConnectionSettings,
        closed: &CancellationToken,
        pace: Pace,
    ) -> Result<Self, ConnectionError> {
        let closed = closed.child_token();
        let nodes = if let Endpoint::Cluster { .. } = settings.url.endpoint() {
            let cluster = Cluster::new(&settings, pace, closed.clone())?;
            task::detached(cluster::keep(cluster.clone()));
            Nodes::Cluster(cluster)
        } else {
            let node = Arc::new(Node::new(&settings, pace, closed.clone())?);
            task::detached(node::keep(node.clone()));
            Nodes::One(node)
        };
        Ok(Self(Arc::new(Inner {
            nodes,
            settings,
            closed: closed.clone(),
            _closer: closed.drop_guard(),
        })))
    }

    /// Starts another connection with the same settings, for requests that keep a connection busy. It closes with
    /// this one.
    ///
    /// # Errors
    ///
    /// As [`Connection::new`].
    pub fn another(&self) -> Result<Self, ConnectionError> {
        Self::new(self.0.settings.clone(), &self.0.closed)
    }

    /// Returns the server that holds a key: in a cluster, the owner of its slot at the time of each request.
    pub fn at(&self, key: impl AsRef<[u8]>) -> Server<'_> {
        let at = match &self.0.nodes {
            Nodes::One(_) => At::Any,
            Nodes::Cluster(_) => At::Slot(slot(key.as_ref())),
        };
        self.server_at(at)
    }

    /// Returns any server, for requests that all servers answer alike.
    pub fn any(&self) -> Server<'_> {
        self.server_at(At::Any)
    }

    /// Returns the server that holds the first key of a call.
    fn server_of(&self, call: &ScriptCall<'_>) -> Server<'_> {
        call.key().map_or_else(|| self.any(), |key| self.at(key))
    }

    fn server_at(&self, at: At) -> Server<'_> {
        Server {
            connection: self,
            at,
            extra: None,
        }
    }

    /// Returns the server that was identified earlier, for example by [`Reader::server_id`].
    pub fn server(&self, id: &ServerId) -> Server<'_> {
        self.server_at(At::Node(id.0.clone()))
    }

    /// Returns true for a cluster, where one command cannot name keys of several slots.
    pub fn is_cluster(&self) -> bool {
        matches!(self.0.nodes, Nodes::Cluster(_))
    }

    /// Returns the id of the server that holds a key now, if it is known.
    pub fn owner_of(&self, key: &str) -> Option<ServerId> {
        self.0.nodes.owner_of(key).map(ServerId)
    }

    /// Returns all known servers that hold keys: one, or the masters of a cluster.
    pub fn servers(&self) -> Vec<Server<'_>> {
        let nodes = match &self.0.nodes {
            Nodes::One(node) => vec![node.clone()],
            Nodes::Cluster(cluster) => cluster.nodes(),
        };
        let server = |node| self.server_at(At::Node(node));
        nodes.into_iter().map(server).collect()
    }

    /// Runs a script by its hash on the server of its first key, and loads it if Redis does not know it. The script
    /// must be safe to repeat.
    ///
    /// # Errors
    ///
    /// The last failure; `maybe_applied` covers all attempts.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future does not undo the script: Redis may have run it, or may still run it.
    pub async fn eval(
        &self,
        call: &ScriptCall<'_>,
        deadline: Duration,
    ) -> Result<Value, ConnectionError> {
        self.server_of(call).eval(call, deadline).await
    }

    /// Runs a script like [`Connection::eval`], but does not repeat it once Redis may have run it.
    ///
    /// # Errors
    ///
    /// As [`Connection::eval`].
    ///
    /// # Cancel safety
    ///
    /// As [`Connection::eval`].
    pub async fn eval_once(
        &self,
        call: &ScriptCall<'_>,
        deadline: Duration,
    ) -> Result<Value, ConnectionError> {
        let server = self.server_of(call);
        let mut attempts = server.attempts(Request::One(&call.cmd), deadline);
        (attempts.script, attempts.once) = (Some(call.script), true);
        attempts.run().await
    }

    /// Runs a script like [`Connection::eval`], followed on the same socket by a command that may take as long as
    /// `takes`. Returns both replies; that of the command may be an error.
    ///
    /// # Errors
    ///
    /// As [`Connection::eval`], for the script only.
    ///
    /// # Cancel safety
    ///
    /// As [`Connection::eval`].
    pub async fn eval_then(
        &self,
        call: &ScriptCall<'_>,
        then: &Cmd,
        takes: Duration,
        deadline: Duration,
    ) -> Result<(Value, Value), ConnectionError> {
        let request = Request::Then {
            cmd: &call.cmd,
            then,
            takes,
        };
        let server = self.server_of(call);
        let mut attempts = server.attempts(request, deadline);
        attempts.script = Some(call.script);
        match attempts.run().await? {
            Value::Array(replies) => {
                let mut replies = replies.into_iter();
                let mut next = || replies.next().unwrap_or(Value::Nil);
                Ok((next(), next()))
            }
            other => Ok((other, Value::Nil)),
        }
    }

    /// Watches the status. A cluster is up when each of its slots is served by a node that answers.
    pub fn status(&self) -> watch::Receiver<ConnectionStatus> {
        match &self.0.nodes {
            Nodes::One(node) => node.status(),
            Nodes::Cluster(cluster) => cluster.status(),
        }
    }

    /// Returns the time limit for one attempt of a request.
    pub fn response_timeout(&self) -> Duration {
        self.0.settings.response_timeout
    }

    /// Returns true if Redis answered last time.
    pub fn is_up(&self) -> bool {
        match &self.0.nodes {
            Nodes::One(node) => node.is_up(),
            Nodes::Cluster(cluster) => cluster.is_up(),
        }
    }

    /// Returns the number of servers and the number of sockets opened to them so far. A change means a new socket or
    /// other servers.
    pub fn connections(&self) -> (usize, u64) {
        let nodes = match &self.0.nodes {
            Nodes::One(node) => vec![node.clone()],
            Nodes::Cluster(cluster) => cluster.nodes(),
        };
        let connections = nodes.iter().map(|node| node.connections()).sum();
        (nodes.len(), connections)
    }

    /// Returns whether Redis (in a cluster, each node) answered anything after `then`. A server that did not is
    /// probed immediately, so that more is known soon.
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
    /// The cause, after `limit` or as soon as only an operator can repair it ([`ConnectionError::is_fatal`]).
    ///
    /// # Cancel safety
    ///
    /// Safe.
    pub async fn wait_up(&self, limit: Duration) -> Result<(), ConnectionError> {
        match &self.0.nodes {
            Nodes::One(node) => node.wait_up(limit).await,
            Nodes::Cluster(cluster) => cluster.wait_up(limit).await,
        }
    }

    /// Waits until Redis answers, like [`Connection::wait_up`], but fails immediately if nothing listens at the
    /// address of a single server.
    ///
    /// # Errors
    ///
    /// As [`Connection::wait_up`].
    ///
    /// # Cancel safety
    ///
    /// Safe.
    pub async fn wait_reachable(&self, limit: Duration) -> Result<(), ConnectionError> {
        let endpoint = self.0.settings.url.endpoint();
        let is_alone = matches!(endpoint, Endpoint::Tcp { .. } | Endpoint::Unix(_));
        tokio::select! {
            up = self.wait_up(limit) => up,
            reason = self.refused(), if is_alone => {
                Err(ConnectionError::local(ConnectionErrorKind::Unavailable, "wait for Redis", reason))
            }
        }
    }

    /// Waits until the operating system reports that nothing listens, and returns its reason.
    async fn refused(&self) -> String {
        let is_refused = |status: &ConnectionStatus| match status {
            ConnectionStatus::Down { reason, .. } => {
                NOBODY_LISTENS.iter().any(|words| reason.contains(words))
            }
            _ => false,
        };
        let mut status = self.status();
        let reason = match status.wait_for(is_refused).await.as_deref() {
            Ok(ConnectionStatus::Down { reason, .. }) => Some(reason.clone()),
            _ => None,
        };
        match reason {
            Some(reason) => reason,
            None => std::future::pending().await,
        }
    }

    /// Returns the estimate of Redis's clock. In a cluster it is that of some node; [`Server::clock`] is exact.
    pub fn clock(&self) -> Arc<Clock> {
        match &self.0.nodes {
            Nodes::One(node) => node.clock.clone(),
            Nodes::Cluster(cluster) => cluster.clock(),
        }
    }

    /// Starts a subscription. It connects in the background and ends when the value is dropped or the connection
    /// closes.
    pub fn subscriber(&self) -> Subscriber {
        Subscriber::new(self)
    }
}

impl std::fmt::Debug for Connection {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_tuple("Connection")
            .field(&*self.status().borrow())
            .finish()
    }
}
