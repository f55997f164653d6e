//! What a link leads to: one server, or the nodes of a cluster.

use std::sync::Arc;

use redis::RedisError;
use tokio::sync::watch;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use super::LinkError;
use super::cluster::Cluster;
use super::keeper::{Live, Node};
use super::server::At;
use crate::crc16::slot;

#[derive(Clone)]
pub(super) enum Nodes {
    /// One server, or the master that sentinels name.
    One(Arc<Node>),
    Cluster(Arc<Cluster>),
}

impl Nodes {
    pub(super) async fn live(
        &self,
        at: &At,
        end: Instant,
    ) -> Result<(Arc<Node>, Arc<Live>), LinkError> {
        let node = match (self, at) {
            (_, At::Node(node)) | (Self::One(node), _) => node,
            (Self::Cluster(cluster), At::Any) => return cluster.live(None, end).await,
            (Self::Cluster(cluster), At::Slot(slot)) => {
                return cluster.live(Some(*slot), end).await;
            }
        };
        Ok((node.clone(), node.live(end).await?))
    }

    pub(super) fn closed(&self) -> CancellationToken {
        match self {
            Self::One(node) => node.closed.clone(),
            Self::Cluster(cluster) => cluster.closed.clone(),
        }
    }

    /// The server that a key or channel belongs to, as far as known.
    pub(super) fn owner_of(&self, key: &str) -> Option<Arc<Node>> {
        match self {
            Self::One(node) => Some(node.clone()),
            Self::Cluster(cluster) => cluster.owner(slot(key.as_bytes())),
        }
    }

    /// Watches for changes of owners; with one server there are none.
    pub(super) fn changes(&self) -> Changes {
        Changes(match self {
            Self::One(_) => None,
            Self::Cluster(cluster) => Some(cluster.changes()),
        })
    }

    /// Takes in a redirection and gives the node that it names.
    pub(super) fn redirected(&self, error: &RedisError, by: &Node) -> Option<Arc<Node>> {
        match self {
            Self::One(_) => None,
            Self::Cluster(cluster) => cluster.redirected(error, by),
        }
    }

    /// Notes that a slot is being moved.
    pub(super) fn moving(&self, at: &At) {
        if let (Self::Cluster(cluster), At::Slot(slot)) = (self, at) {
            cluster.moving(*slot);
        }
    }

    /// Says that who serves what may have changed.
    pub(super) fn doubt(&self) {
        if let Self::Cluster(cluster) = self {
            cluster.doubt();
        }
    }
}

/// Tells when keys may have other owners.
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
