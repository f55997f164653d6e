//! A connection of its own for blocking reads.
//!
//! A blocking read that is abandoned lives on in the server and swallows the next entry, unless its connection is
//! closed. So the read owns the connection while it runs: an error, a time-out or a dropped future closes it. A reader
//! never reconnects.

use std::sync::Arc;
use std::time::Duration;

use redis::aio::MultiplexedConnection;
use redis::{Arg, Cmd, Value};
use tokio::time::timeout;

use super::errors::no_error_inside;
use super::keeper::{Following, Live, Node};
use super::nodes::Nodes;
use super::{LinkError, LinkErrorKind, ServerId};

/// How much longer than its BLOCK time a read may take.
const BLOCK_GRACE: Duration = Duration::from_secs(5);

/// A dedicated connection to one server; after any failure it is closed for good and a new reader must be opened.
///
/// It closes also when the link found that this server is not the one to read from any more.
pub struct Reader {
    conn: Option<MultiplexedConnection>,
    nodes: Nodes,
    node: Arc<Node>,
    following: Following,
    response_timeout: Duration,
}

impl Reader {
    pub(super) async fn open(
        nodes: Nodes,
        node: Arc<Node>,
        beside: &Live,
    ) -> Result<Self, LinkError> {
        let conn = node.opener.open().await?.conn;
        Ok(Self {
            conn: Some(conn),
            nodes,
            following: beside.following(),
            response_timeout: node.response_timeout,
            node,
        })
    }

    /// Says whether the next read can be sent.
    pub fn is_open(&self) -> bool {
        self.conn.is_some() && self.node.still_leads(self.following)
    }

    /// Says which server it reads from, for requests about its connection: see [`super::Link::server`].
    pub fn server_id(&self) -> ServerId {
        ServerId(self.node.clone())
    }

    /// Sends a command that blocks up to `block` in Redis (the caller puts the same BLOCK into it) and gives its
    /// reply. Without a reply 5 s after that, the connection is closed.
    ///
    /// # Errors
    ///
    /// After any error the reader is closed; on a closed one [`LinkErrorKind::Unavailable`] at once.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future closes the connection, so that Redis hands nothing to a read nobody waits for. Entries
    /// that Redis had just handed over stay pending, and are reclaimed after their lease.
    pub async fn read(&mut self, cmd: &Cmd, block: Duration) -> Result<Value, LinkError> {
        self.send(cmd, block + BLOCK_GRACE).await
    }

    /// Sends a command that does not block, on the same connection, once and within the response time-out.
    ///
    /// # Errors
    ///
    /// As [`Reader::read`].
    ///
    /// # Cancel safety
    ///
    /// As [`Reader::read`].
    pub async fn call(&mut self, cmd: &Cmd) -> Result<Value, LinkError> {
        self.send(cmd, self.response_timeout).await
    }

    async fn send(&mut self, cmd: &Cmd, limit: Duration) -> Result<Value, LinkError> {
        let failed = |detail: String| {
            LinkError::local(LinkErrorKind::Unavailable, command_name(cmd), detail)
        };
        if !self.node.still_leads(self.following) {
            self.conn = None;
        }
        // Taken out, the connection is closed wherever this future ends without putting it back.
        let mut conn = self
            .conn
            .take()
            .ok_or_else(|| failed("this reader is closed".to_owned()))?;
        let reply = match timeout(limit, conn.send_packed_command(cmd)).await {
            Ok(reply) => reply.and_then(no_error_inside).map_err(|error| {
                self.nodes.redirected(&error, &self.node);
                LinkError::from_redis(command_name(cmd), error)
            })?,
            Err(_) => {
                return Err(LinkError {
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

/// Gives the first word of a command, for errors.
pub(super) fn command_name(cmd: &Cmd) -> String {
    match cmd.args_iter().next() {
        Some(Arg::Simple(name)) => String::from_utf8_lossy(name).into_owned(),
        _ => "command".to_owned(),
    }
}
