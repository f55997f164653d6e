//! A Redis Cluster: the map of slots to nodes, and a supervised connection to each node.
//!
//! One task keeps the slot map. It queries a node periodically, and whenever a request met a node that is unavailable
//! or not the owner. `MOVED` updates the map immediately. The task sends no requests of other callers.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use futures_util::future::select_all;
use redis::RedisError;
use tokio::sync::{Notify, watch};
use tokio::time::{Instant, sleep_until, timeout};
use tokio_util::sync::{CancellationToken, DropGuard};

use super::address::{Address, CONNECT};
use super::connect::Opener;
use super::node::{self, ActiveConnection, BACKOFF_MAX, Node, Pace};
use super::slots::{Range, parse_address, parse_slots, slots};
use super::{
    Clock, ConnectionError, ConnectionErrorKind, ConnectionSettings, ConnectionStatus, Endpoint,
    RedisUrl,
};
use crate::backoff::Backoff;
use crate::crc16::SLOTS;
use crate::sync::{Mutex, RwLock};
use crate::task;

const LEARN: &str = "CLUSTER SLOTS";
/// Maximum age of the map while all is well. Such a refresh finds only what no request has met yet.
const LOOK_EVERY: Duration = Duration::from_secs(30);
/// The same while a node is unavailable, so that its successor is found soon.
const LOOK_WHILE_DOWN: Duration = Duration::from_millis(300);
/// Minimum pause between two refreshes, however many requests ask for one.
const LOOK_AT_MOST_EVERY: Duration = Duration::from_millis(100);
/// The largest number of nodes: twice what Redis recommends for a cluster.
const MAX_NODES: usize = 2000;

/// The nodes of a cluster and the slots that they serve.
pub(super) struct Cluster {
    template: ConnectionSettings,
    seeds: Vec<Address>,
    tls: bool,
    pace: Pace,
    pub(super) closed: CancellationToken,
    /// The owner of each slot.
    owners: RwLock<Vec<Option<Arc<Node>>>>,
    /// The nodes that own slots, by address; dropping the guard closes the node.
    nodes: Mutex<BTreeMap<Address, (Arc<Node>, DropGuard)>>,
    /// Counts the changes of the owners.
    changes: watch::Sender<u64>,
    outdated: Notify,
    /// Time at which a request last found each slot split between two nodes.
    moving: Mutex<BTreeMap<u16, std::time::Instant>>,
    status: watch::Sender<ConnectionStatus>,
    /// The host's clock, used while no node is known.
    clock: Arc<Clock>,
}

impl Cluster {
    pub(super) fn new(
        settings: &ConnectionSettings,
        pace: Pace,
        closed: CancellationToken,
    ) -> Result<Arc<Self>, ConnectionError> {
        let Endpoint::Cluster { nodes, tls } = settings.url.endpoint() else {
            let detail = format!("{} is not a cluster address", settings.url);
            return Err(ConnectionError::local(
                ConnectionErrorKind::Invalid,
                LEARN,
                detail,
            ));
        };
        let cluster = Self {
            template: settings.clone(),
            seeds: nodes.clone(),
            tls: *tls,
            pace,
            closed,
            owners: RwLock::new(vec![None; usize::from(SLOTS)]),
            nodes: Mutex::default(),
            changes: watch::Sender::new(0),
            outdated: Notify::new(),
            moving: Mutex::default(),
            status: watch::Sender::new(ConnectionStatus::Connecting),
            clock: Arc::new(Clock::new()),
        };
        // Settings that cannot work must fail here, not in a task.
        for seed in &cluster.seeds {
            cluster.opener(seed)?;
        }
        Ok(Arc::new(cluster))
    }

    pub(super) fn status(&self) -> watch::Receiver<ConnectionStatus> {
        self.status.subscribe()
    }

    pub(super) fn is_up(&self) -> bool {
        *self.status.borrow() == ConnectionStatus::Up
    }

    /// Returns whether each node answered anything after `then`.
    pub(super) fn heard_since(&self, then: std::time::Instant) -> bool {
        // Every silent node is probed, so do not stop at the first one.
        let silent = |node: &Arc<Node>| !node.heard_since(then);
        self.nodes().iter().filter(|node| silent(node)).count() == 0
    }

    /// Returns the owner of a slot, if known.
    pub(super) fn owner(&self, slot: u16) -> Option<Arc<Node>> {
        let owners = self.owners.read();
        owners.get(usize::from(slot)).cloned().flatten()
    }

    /// Records that a request found a slot split between two nodes.
    pub(super) fn moving(&self, slot: u16) {
        let mut moving = self.moving.lock();
        moving.insert(slot, std::time::Instant::now());
    }

    /// Returns when a request last found this slot split between two nodes, if ever.
    pub(super) fn moving_since(&self, slot: u16) -> Option<std::time::Instant> {
        let moving = self.moving.lock();
        moving.get(&slot).copied()
    }

    /// Returns all nodes that own slots, sorted by address.
    pub(super) fn nodes(&self) -> Vec<Arc<Node>> {
        self.nodes
            .lock()
            .values()
            .map(|(node, _)| node.clone())
            .collect()
    }

    /// Watches for changes of the owners.
    pub(super) fn changes(&self) -> watch::Receiver<u64> {
        self.changes.subscribe()
    }

    /// Returns the clock of some node.
    pub(super) fn clock(&self) -> Arc<Clock> {
        let nodes = self.nodes.lock();
        let mut nodes = nodes.values();
        nodes
            .next()
            .map_or_else(|| self.clock.clone(), |(node, _)| node.clock.clone())
    }

    /// Returns the active connection to the owner of a slot, or to any node. Waits for one until `end`, also if the
    /// owner changes. A refusal that only an operator can repair ends the wait.
    pub(super) async fn active(
        &self,
        slot: Option<u16>,
        end: Instant,
    ) -> Result<(Arc<Node>, Arc<ActiveConnection>), ConnectionError> {
        loop {
            let mut changes = self.changes();
            let node = match slot {
                Some(slot) => self.owner(slot),
                None => {
                    let nodes = self.nodes();
                    let up = nodes.iter().find(|node| node.is_up());
                    up.or(nodes.first()).cloned()
                }
            };
            if let Some(active) = node.as_ref().and_then(|node| node.active_now()) {
                return Ok((node.expect("it has a connection"), active));
            }
            self.outdated.notify_one();
            let waited = async {
                match &node {
                    Some(node) => node.active(end).await,
                    None => {
                        sleep_until(end).await;
                        Err(self.no_node(slot))
                    }
                }
            };
            tokio::select! {
                active = waited => match (active, node) {
                    (Ok(active), Some(node)) => return Ok((node, active)),
                    // The node was closed because it no longer owns a slot.
                    (Err(_), _) if changes.has_changed().unwrap_or(false) => {}
                    (Err(error), _) => return Err(error),
                    (Ok(_), None) => {}
                },
                _ = changes.changed() => {}
                () = self.closed.cancelled() => {
                    let detail = "the connection is closed";
                    return Err(ConnectionError::local(ConnectionErrorKind::Unavailable, "wait for Redis", detail));
                }
            }
        }
    }

    /// Waits until all slots are served.
    pub(super) async fn wait_up(&self, limit: Duration) -> Result<(), ConnectionError> {
        let mut status = self.status();
        let settled = |status: &ConnectionStatus| match status {
            ConnectionStatus::Up => true,
            ConnectionStatus::Down { fatal, .. } => *fatal,
            ConnectionStatus::Connecting => false,
        };
        let _ = timeout(limit, status.wait_for(settled)).await;
        let (reason, code, fatal) = match &*status.borrow() {
            ConnectionStatus::Up => return Ok(()),
            ConnectionStatus::Connecting => ("no connection in time".to_owned(), None, false),
            ConnectionStatus::Down {
                reason,
                code,
                fatal,
            } => (reason.clone(), code.clone(), *fatal),
        };
        let kind = if fatal {
            ConnectionErrorKind::Denied
        } else {
            ConnectionErrorKind::Unavailable
        };
        Err(ConnectionError {
            code,
            ..ConnectionError::local(kind, "wait for Redis", reason)
        })
    }

    fn no_node(&self, slot: Option<u16>) -> ConnectionError {
        let reason = match (&*self.status.borrow(), slot) {
            (ConnectionStatus::Down { reason, .. }, _) => reason.clone(),
            (_, Some(slot)) => format!("{}: no node serves slot {slot}", self.template.url),
            (_, None) => format!("{}: no known node", self.template.url),
        };
        ConnectionError::local(ConnectionErrorKind::Unavailable, "wait for Redis", reason)
    }

    /// Applies a redirection: `MOVED` names the new owner of a slot. Returns the node to ask, if there is one.
    pub(super) fn redirected(&self, error: &RedisError, by: &Node) -> Option<Arc<Node>> {
        let (address, slot) = error.redirect_node()?;
        let node = self.node(parse_address(address, by.host())?).ok()?;
        if error.code() == Some("MOVED") {
            self.mark_outdated();
            let mut owners = self.owners.write();
            *owners.get_mut(usize::from(slot))? = Some(node.clone());
            drop(owners);
            self.changes.send_modify(|changes| *changes += 1);
        }
        Some(node)
    }

    /// Requests a refresh of the slot map, since the known owners may be outdated.
    pub(super) fn mark_outdated(&self) {
        self.outdated.notify_one();
    }

    fn settings(&self, (host, port): &Address) -> ConnectionSettings {
        let mut settings = self.template.clone();
        settings.url = RedisUrl::tcp(host, *port, self.tls);
        // User and password in the address of the cluster apply to each node.
        settings.username = settings
            .username
            .or_else(|| self.template.url.username().map(str::to_owned));
        settings.password = settings
            .password
            .or_else(|| self.template.url.password().cloned());
        settings
    }

    fn opener(&self, address: &Address) -> Result<Opener, ConnectionError> {
        Opener::new(&self.settings(address))
    }

    /// Returns the node at an address, and connects to it if it is new.
    fn node(&self, address: Address) -> Result<Arc<Node>, ConnectionError> {
        let mut nodes = self.nodes.lock();
        if let Some((node, _)) = nodes.get(&address) {
            return Ok(node.clone());
        }
        if nodes.len() >= MAX_NODES {
            let detail = format!(
                "{}: the cluster names more than {MAX_NODES} nodes",
                self.template.url
            );
            return Err(ConnectionError::local(
                ConnectionErrorKind::Unavailable,
                CONNECT,
                detail,
            ));
        }
        let closed = self.closed.child_token();
        let node = Node::new(&self.settings(&address), self.pace, closed.clone())?;
        let node = Arc::new(node);
        task::detached(node::keep(node.clone()));
        nodes.insert(address, (node.clone(), closed.drop_guard()));
        Ok(node)
    }

    /// Installs a new slot map and drops the nodes that own nothing.
    fn install(&self, ranges: &[Range]) -> Result<(), ConnectionError> {
        let mut owners = vec![None; usize::from(SLOTS)];
        for range in ranges {
            let node = self.node(range.owner.clone())?;
            for slot in range.first..=range.last {
                owners[usize::from(slot)] = Some(node.clone());
            }
        }
        let same = |old: &Option<Arc<Node>>, new: &Option<Arc<Node>>| match (old, new) {
            (Some(old), Some(new)) => Arc::ptr_eq(old, new),
            (None, None) => true,
            _ => false,
        };
        let changed = {
            let mut known = self.owners.write();
            let changed = !known.iter().zip(&owners).all(|(old, new)| same(old, new));
            for (old, new) in known.iter().zip(&owners) {
                // For users of these slots, the successor is the server that came back.
                if let (Some(old), Some(new)) = (old, new)
                    && !Arc::ptr_eq(old, new)
                    && !old.is_up()
                {
                    new.came_back();
                }
            }
            if changed {
                *known = owners;
            }
            changed
        };
        self.nodes
            .lock()
            .retain(|address, _| ranges.iter().any(|range| range.owner == *address));
        if changed {
            self.changes.send_modify(|changes| *changes += 1);
        }
        Ok(())
    }

    /// Fetches the slot map from a node that answers, or else from one of the seeds.
    async fn learn(&self) -> Result<(), ConnectionError> {
        let mut nodes = self.nodes();
        fastrand::shuffle(&mut nodes);
        for node in nodes {
            let Some(active) = node.active_now() else {
                continue;
            };
            let (mut conn, question) = (active.conn(), slots());
            if let Ok(Ok(reply)) = timeout(LOOK_WHILE_DOWN, conn.ask(&question)).await
                && let Some(ranges) = parse_slots(&reply, node.host())
            {
                return self.install(&ranges);
            }
        }
        let mut seeds = self.seeds.clone();
        fastrand::shuffle(&mut seeds);
        let mut failed = None;
        for seed in seeds {
            match self.learn_from(&seed).await {
                Ok(ranges) => return self.install(&ranges),
                Err(error) => failed = Some(error),
            }
        }
        Err(failed.unwrap_or_else(|| self.no_node(None)))
    }

    async fn learn_from(&self, seed: &Address) -> Result<Vec<Range>, ConnectionError> {
        let mut conn = self.opener(seed)?.open().await?.conn;
        let (host, port) = seed;
        let failed = |kind, detail: &str| {
            ConnectionError::local(kind, LEARN, format!("{host}:{port}: {detail}"))
        };
        let question = slots();
        match timeout(self.template.connect_timeout, conn.ask(&question)).await {
            Ok(Ok(reply)) => parse_slots(&reply, host).ok_or_else(|| {
                failed(
                    ConnectionErrorKind::Unavailable,
                    "the node knows no slots yet",
                )
            }),
            Ok(Err(error))
                if error
                    .detail()
                    .is_some_and(|text| text.contains("cluster support")) =>
            {
                let detail = "not a cluster node: use redis:// or rediss://";
                Err(failed(ConnectionErrorKind::NotSupported, detail))
            }
            Ok(Err(error)) => Err(ConnectionError::from_redis(LEARN, error)),
            Err(_) => Err(failed(
                ConnectionErrorKind::Unavailable,
                "no answer in time",
            )),
        }
    }

    /// Returns the status of the cluster. It is up if each slot is served by a node that answers.
    fn overall_status(&self) -> ConnectionStatus {
        for (node, _) in self.nodes.lock().values() {
            let status = node.status();
            match &*status.borrow() {
                ConnectionStatus::Up => {}
                other => return other.clone(),
            }
        }
        let owners = self.owners.read();
        let served = owners.iter().flatten().count();
        if served == usize::from(SLOTS) {
            return ConnectionStatus::Up;
        }
        ConnectionStatus::Down {
            reason: format!("the cluster serves only {served} of {SLOTS} slots"),
            code: None,
            fatal: false,
        }
    }

    fn show(&self, next: ConnectionStatus) {
        self.status.send_if_modified(|status| {
            let changed = *status != next;
            *status = next;
            changed
        });
    }
}

/// Keeps the slot map until the connection is closed.
pub(super) async fn keep(cluster: Arc<Cluster>) {
    let _ = cluster
        .closed
        .clone()
        .run_until_cancelled(refresh_loop(&cluster))
        .await;
    cluster.show(ConnectionStatus::closed());
}

async fn refresh_loop(cluster: &Cluster) {
    let mut backoff = Backoff::up_to(BACKOFF_MAX);
    loop {
        let learned = cluster.learn().await;
        let pause = match &learned {
            Ok(()) => {
                backoff = Backoff::up_to(BACKOFF_MAX);
                cluster.show(cluster.overall_status());
                LOOK_EVERY
            }
            Err(error) => {
                tracing::debug!(%error, "cannot read the slot map; retrying");
                // If there is a map, the status of its nodes says more than this error.
                if cluster.nodes.lock().is_empty() {
                    cluster.show(ConnectionStatus::down(error, error.is_fatal()));
                }
                backoff.next_pause()
            }
        };
        watch_over(cluster, Instant::now() + pause).await;
    }
}

/// Publishes the status of the nodes until the next refresh of the map is due.
async fn watch_over(cluster: &Cluster, end: Instant) {
    let begun = Instant::now();
    loop {
        let mut statuses: Vec<_> = cluster.nodes().iter().map(|node| node.status()).collect();
        if statuses.is_empty() {
            return sleep_until(end).await;
        }
        let status = cluster.overall_status();
        let look = match &status {
            ConnectionStatus::Down { .. } => end.min(begun + LOOK_WHILE_DOWN),
            ConnectionStatus::Up | ConnectionStatus::Connecting => end,
        };
        cluster.show(status);
        tokio::select! {
            _ = select_all(statuses.iter_mut().map(|status| Box::pin(status.changed()))) => {}
            () = cluster.outdated.notified() => {
                return sleep_until(begun + LOOK_AT_MOST_EVERY).await;
            }
            () = sleep_until(look) => return,
        }
    }
}
