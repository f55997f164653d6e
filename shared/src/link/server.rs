//! The servers of a link: the one that holds a key, or one that was chosen.

use std::sync::Arc;
use std::time::Duration;

use redis::{Cmd, Pipeline, Value};
use tokio::time::Instant;

use super::keeper::Node;
use super::nodes::Nodes;
use super::request::Request;
use super::{Aside, Clock, Link, LinkError, Reader, Script};

/// The server that holds a key, or one that was chosen; see [`Link::at`].
#[derive(Clone)]
pub struct Server<'a> {
    pub(super) link: &'a Link,
    pub(super) at: At,
    pub(super) aside: Option<Aside>,
}

/// Which server something belongs to, also when keys have moved away from it.
#[derive(Clone)]
pub struct ServerId(pub(super) Arc<Node>);

#[derive(Clone)]
pub(super) enum At {
    /// Any server will do.
    Any,
    Slot(u16),
    Node(Arc<Node>),
}
impl Server<'_> {
    /// Sends requests over a connection beside the usual one. Each try has the whole response time-out; a reply that does
    /// not come whole within it ends the call, as the same request would hardly do better.
    #[must_use]
    pub fn aside(self, which: Aside) -> Self {
        Self {
            aside: Some(which),
            ..self
        }
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
        self.link
            .run(&self.at, self.aside, Request::One(cmd), None, deadline)
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
        let run = self.link.run(&self.at, self.aside, request, None, deadline);
        match run.await? {
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
            .run(
                &self.at,
                self.aside,
                Request::One(&cmd),
                Some(script),
                deadline,
            )
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

    /// Gives when scripts for its keys last could not run anywhere, as far as this link saw that: the server came back after
    /// it was away, or the slot was half on one node and half on another.
    pub fn disturbed_at(&self) -> Option<std::time::Instant> {
        let moving = match (&self.at, &self.link.0.nodes) {
            (At::Slot(slot), Nodes::Cluster(cluster)) => cluster.moving_since(*slot),
            _ => None,
        };
        self.back_since().max(moving)
    }

    /// Says whether the server answered last time; one that is not known does not.
    pub fn is_up(&self) -> bool {
        match (&self.at, &self.link.0.nodes) {
            (At::Node(node), _) | (_, Nodes::One(node)) => node.is_up(),
            (At::Slot(slot), Nodes::Cluster(cluster)) => {
                cluster.owner(*slot).is_some_and(|node| node.is_up())
            }
            (At::Any, Nodes::Cluster(cluster)) => cluster.is_up(),
        }
    }

    /// Opens a connection of its own for blocking reads: waits until Redis answers, then tries once.
    ///
    /// # Errors
    ///
    /// [`super::LinkErrorKind::Unavailable`] after at most two times the connect time-out; a refusal at once, so pause before
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
