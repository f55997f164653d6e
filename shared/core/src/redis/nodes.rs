//! The servers behind a connection: one server, or the nodes of a cluster.

use std::sync::Arc;

use redis::RedisError;
use tokio::sync::watch;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use super::ConnectionError;
use super::cluster::Cluster;
use super::node::{ActiveConnection, Node};
use crate::crc16::slot;

/// Identifies a server, even after keys have moved away from it.
#[derive(Clone)]
pub struct ServerId(pub(super) Arc<Node>);

impl PartialEq for ServerId {
    fn eq(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }
}

impl Eq for ServerId {}

#[derive(Clone)]
pub(super) enum At {
    /// Any server.
    Any,
    Slot(u16),
    Node(Arc<Node>),
}

#[derive(Clone)]
pub(super) enum Nodes {
    /// One server, or the master that sentinels name.
    One(Arc<Node>),
    Cluster(Arc<Cluster>),
}

impl Nodes {
    pub(super) async fn active(
        &self,
        at: &At,
        end: Instant,
    ) -> Result<(Arc<Node>, Arc<ActiveConnection>), ConnectionError> {
        let node = match (self, at) {
            (_, At::Node(node)) | (Self::One(node), _) => node,
            (Self::Cluster(cluster), At::Any) => return cluster.active(None, end).await,
            (Self::Cluster(cluster), At::Slot(slot)) => {
                return cluster.active(Some(*slot), end).await;
            }
        };
        Ok((node.clone(), node.active(end).await?))
    }

    pub(super) fn closed(&self) -> CancellationToken {
        match self {
            Self::One(node) => node.closed.clone(),
            Self::Cluster(cluster) => cluster.closed.clone(),
        }
    }

    /// Returns the server that a key or channel belongs to, if known.
    pub(super) fn owner_of(&self, key: &str) -> Option<Arc<Node>> {
        match self {
            Self::One(node) => Some(node.clone()),
            Self::Cluster(cluster) => cluster.owner(slot(key.as_bytes())),
        }
    }

    /// Watches for changes of owners; a single server has none.
    pub(super) fn changes(&self) -> Changes {
        Changes(match self {
            Self::One(_) => None,
            Self::Cluster(cluster) => Some(cluster.changes()),
        })
    }

    /// Applies a redirection and returns the node that it names.
    pub(super) fn redirected(&self, error: &RedisError, by: &Node) -> Option<Arc<Node>> {
        match self {
            Self::One(_) => None,
            Self::Cluster(cluster) => cluster.redirected(error, by),
        }
    }

    /// Records that a slot is being moved.
    pub(super) fn moving(&self, at: &At) {
        if let (Self::Cluster(cluster), At::Slot(slot)) = (self, at) {
            cluster.moving(*slot);
        }
    }

    /// Requests a refresh of the slot map.
    pub(super) fn mark_outdated(&self) {
        if let Self::Cluster(cluster) = self {
            cluster.mark_outdated();
        }
    }
}

/// Notifies of possible changes of the owners of keys.
pub(super) struct Changes(Option<watch::Receiver<u64>>);

impl Changes {
    pub(super) async fn next(&mut self) {
        if let Some(changes) = &mut self.0
            && changes.changed().await.is_ok()
        {
            return;
        }
        std::future::pending().await
    }
}
