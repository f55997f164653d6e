//! A dedicated connection for blocking reads.
//!
//! An abandoned blocking read lives on in the server and swallows the next entry, unless its socket is closed. So the
//! read owns the socket while it runs: an error, a timeout or a dropped future closes it. A reader never reconnects.

use std::sync::Arc;
use std::time::Duration;

use redis::{Cmd, Value};
use tokio::time::timeout;

use super::errors::no_error_inside;
use super::node::{ActiveConnection, Generation, Node};
use super::nodes::Nodes;
use super::request::command_name;
use super::socket::Socket;
use super::{ConnectionError, ConnectionErrorKind, ServerId};

/// Time that a read may take beyond its BLOCK time.
const BLOCK_GRACE: Duration = Duration::from_secs(5);

/// A dedicated connection to one server. After any failure it is closed for good, and a new reader must be opened.
///
/// It also closes when it is superseded: this server is no longer the one to read from.
pub struct Reader {
    conn: Option<Socket>,
    nodes: Nodes,
    node: Arc<Node>,
    generation: Generation,
    response_timeout: Duration,
}

impl Reader {
    pub(super) async fn open(
        nodes: Nodes,
        node: Arc<Node>,
        active: &ActiveConnection,
    ) -> Result<Self, ConnectionError> {
        let conn = node.opener.open().await?.conn;
        Ok(Self {
            conn: Some(conn),
            nodes,
            generation: active.generation(),
            response_timeout: node.response_timeout,
            node,
        })
    }

    /// Returns whether the next read can be sent.
    pub fn is_open(&self) -> bool {
        self.conn.is_some() && self.node.is_current(self.generation)
    }

    /// Returns the server it reads from, for requests about its connection: see [`super::Connection::server`].
    pub fn server_id(&self) -> ServerId {
        ServerId(self.node.clone())
    }

    /// Sends a command that blocks in Redis for up to `block`, and returns its reply. The caller puts the same BLOCK
    /// into the command. If there is no reply within 5 s after that, the connection is closed.
    ///
    /// # Errors
    ///
    /// After any error the reader is closed; a closed one returns [`ConnectionErrorKind::Unavailable`] immediately.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future closes the connection, so that Redis delivers nothing to a read that nobody awaits.
    /// Entries that Redis had just delivered stay pending and are reclaimed after their lease.
    pub async fn read(&mut self, cmd: &Cmd, block: Duration) -> Result<Value, ConnectionError> {
        self.send(cmd, block + BLOCK_GRACE).await
    }

    /// Sends a command that does not block on the same connection, once and within the response timeout.
    ///
    /// # Errors
    ///
    /// As [`Reader::read`].
    ///
    /// # Cancel safety
    ///
    /// As [`Reader::read`].
    pub async fn call(&mut self, cmd: &Cmd) -> Result<Value, ConnectionError> {
        self.send(cmd, self.response_timeout).await
    }

    async fn send(&mut self, cmd: &Cmd, limit: Duration) -> Result<Value, ConnectionError> {
        let failed = |detail: String| {
            ConnectionError::local(ConnectionErrorKind::Unavailable, command_name(cmd), detail)
        };
        if !self.node.is_current(self.generation) {
            self.conn = None;
        }
        // Taken out here, the socket is closed wherever this future ends without putting it back.
        let mut conn = self
            .conn
            .take()
            .ok_or_else(|| failed("this reader is closed".to_owned()))?;
        let reply = match timeout(limit, conn.send_packed_command(cmd)).await {
            Ok(reply) => reply.and_then(no_error_inside).map_err(|error| {
                self.nodes.redirected(&error, &self.node);
                ConnectionError::from_redis(command_name(cmd), error)
            })?,
            Err(_) => {
                return Err(ConnectionError {
                    maybe_applied: true,
                    ..failed(format!("no answer within {limit:?}"))
                });
            }
        };
        self.node.heard();
        self.conn = Some(conn);
        Ok(reply)
    }
}

impl std::fmt::Debug for Reader {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Reader")
            .field("open", &self.is_open())
            .finish()
    }
}
