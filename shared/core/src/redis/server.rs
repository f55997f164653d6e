//! The servers of a connection: the owner of a key, or a chosen server.

use std::sync::Arc;
use std::time::Duration;

use redis::{Cmd, Pipeline, Value};
use tokio::time::Instant;

use super::attempts::Attempts;
use super::nodes::{At, Nodes};
use super::request::Request;
use super::{Clock, Connection, ConnectionError, Extra, Reader, ScriptCall};

/// The owner of a key, or a chosen server; see [`Connection::at`].
#[derive(Clone)]
pub struct Server<'a> {
    pub(super) connection: &'a Connection,
    pub(super) at: At,
    pub(super) extra: Option<Extra>,
}

impl Server<'_> {
    /// Sends requests over an additional connection. Each attempt gets the whole response timeout. A reply that is
    /// incomplete by then ends the call, since a retry would hardly do better.
    #[must_use]
    pub fn extra(self, which: Extra) -> Self {
        Self {
            extra: Some(which),
            ..self
        }
    }

    /// Sends one command and returns its reply. Retryable failures are retried until `deadline` has passed.
    ///
    /// # Errors
    ///
    /// The last failure; `maybe_applied` covers all attempts.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future does not undo the command: Redis may have run it, or may still run it.
    pub async fn call(&self, cmd: &Cmd, deadline: Duration) -> Result<Value, ConnectionError> {
        self.attempts(Request::One(cmd), deadline).run().await
    }

    /// Sends several commands in one write, without a transaction, and returns their replies in order. Intended for
    /// reads; all keys must be of one slot.
    ///
    /// # Errors
    ///
    /// As [`Server::call`]; the first error among the replies fails the whole pipeline.
    ///
    /// # Cancel safety
    ///
    /// As [`Server::call`].
    pub async fn pipeline(
        &self,
        pipeline: &Pipeline,
        deadline: Duration,
    ) -> Result<Vec<Value>, ConnectionError> {
        self.replies(pipeline, Request::Many(pipeline), deadline)
            .await
    }

    /// Does what [`Server::call`] does, but never repeats a request that Redis may have carried out.
    ///
    /// # Errors
    ///
    /// As [`Server::call`].
    ///
    /// # Cancel safety
    ///
    /// As [`Server::call`].
    pub async fn call_once(&self, cmd: &Cmd, deadline: Duration) -> Result<Value, ConnectionError> {
        let mut attempts = self.attempts(Request::One(cmd), deadline);
        attempts.once = true;
        attempts.run().await
    }

    /// Sends independent reads in one write and returns their replies in order. The error of a read is its reply
    /// ([`Value::ServerError`]) and affects no other read. No redirect to another server is followed.
    ///
    /// # Errors
    ///
    /// As [`Server::call`], if the server did not answer.
    ///
    /// # Cancel safety
    ///
    /// As [`Server::call`].
    pub async fn pipeline_each(
        &self,
        pipeline: &Pipeline,
        deadline: Duration,
    ) -> Result<Vec<Value>, ConnectionError> {
        self.replies(pipeline, Request::Each(pipeline), deadline)
            .await
    }

    async fn replies(
        &self,
        pipeline: &Pipeline,
        request: Request<'_>,
        deadline: Duration,
    ) -> Result<Vec<Value>, ConnectionError> {
        if pipeline.is_empty() {
            return Ok(Vec::new());
        }
        match self.attempts(request, deadline).run().await? {
            Value::Array(replies) => Ok(replies),
            other => Ok(vec![other]),
        }
    }

    /// Runs a script on this server, and loads it if the server does not know it. The keys must be stored there.
    ///
    /// # Errors
    ///
    /// As [`Server::call`].
    ///
    /// # Cancel safety
    ///
    /// As [`Server::call`].
    pub async fn eval(
        &self,
        call: &ScriptCall<'_>,
        deadline: Duration,
    ) -> Result<Value, ConnectionError> {
        let mut attempts = self.attempts(Request::One(&call.cmd), deadline);
        attempts.script = Some(call.script);
        attempts.run().await
    }

    pub(super) fn attempts<'r>(&'r self, request: Request<'r>, deadline: Duration) -> Attempts<'r> {
        let inner = &self.connection.0;
        let timeout = inner.settings.response_timeout;
        let mut attempts = Attempts::new(&inner.nodes, &self.at, request, timeout, deadline);
        attempts.extra = self.extra;
        attempts
    }

    /// Returns the estimate of the server's clock.
    pub fn clock(&self) -> Arc<Clock> {
        match (&self.at, &self.connection.0.nodes) {
            (At::Node(node), _) => node.clock.clone(),
            (At::Slot(slot), Nodes::Cluster(cluster)) => match cluster.owner(*slot) {
                Some(node) => node.clock.clone(),
                None => cluster.clock(),
            },
            _ => self.connection.clock(),
        }
    }

    /// Returns when the server came back after an outage, as far as this connection saw it.
    pub fn back_since(&self) -> Option<std::time::Instant> {
        match (&self.at, &self.connection.0.nodes) {
            (At::Node(node), _) | (_, Nodes::One(node)) => node.back(),
            (At::Slot(slot), Nodes::Cluster(cluster)) => {
                cluster.owner(*slot).and_then(|node| node.back())
            }
            (At::Any, Nodes::Cluster(_)) => None,
        }
    }

    /// Returns when scripts for its keys last could not run anywhere, as far as this connection saw it. Either the
    /// server came back after an outage, or the slot was split between two nodes.
    pub fn disturbed_at(&self) -> Option<std::time::Instant> {
        let moving = match (&self.at, &self.connection.0.nodes) {
            (At::Slot(slot), Nodes::Cluster(cluster)) => cluster.moving_since(*slot),
            _ => None,
        };
        self.back_since().max(moving)
    }

    /// Returns true if the server answered last time; false if the server is not known.
    pub fn is_up(&self) -> bool {
        match (&self.at, &self.connection.0.nodes) {
            (At::Node(node), _) | (_, Nodes::One(node)) => node.is_up(),
            (At::Slot(slot), Nodes::Cluster(cluster)) => {
                cluster.owner(*slot).is_some_and(|node| node.is_up())
            }
            (At::Any, Nodes::Cluster(cluster)) => cluster.is_up(),
        }
    }

    /// Opens a dedicated connection for blocking reads: waits until Redis answers, then tries once.
    ///
    /// # Errors
    ///
    /// [`super::ConnectionErrorKind::Unavailable`] after at most twice the connect timeout. A refusal is returned
    /// immediately, so pause before the next attempt.
    ///
    /// # Cancel safety
    ///
    /// Safe.
    pub async fn reader(&self) -> Result<Reader, ConnectionError> {
        let inner = &self.connection.0;
        let end = Instant::now() + inner.settings.connect_timeout;
        let (node, active) = inner.nodes.active(&self.at, end).await?;
        Reader::open(inner.nodes.clone(), node, &active).await
    }

    /// Returns the server's address for display, without its password; empty if the server is not known.
    pub fn name(&self) -> String {
        let node = match (&self.at, &self.connection.0.nodes) {
            (At::Node(node), _) | (_, Nodes::One(node)) => Some(node.clone()),
            (At::Slot(slot), Nodes::Cluster(cluster)) => cluster.owner(*slot),
            (At::Any, Nodes::Cluster(_)) => None,
        };
        node.map_or_else(String::new, |node| node.opener.url().to_string())
    }
}
