//! A Redis Cluster: which node serves which slot, and a supervised connection to each of them.
//!
//! One task keeps the map of slots: it asks a node when a request met a node that is not the owner or is away, and now
//! and then. `MOVED` mends the map at once. It sends no request of anybody else.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError, RwLock};
use std::time::Duration;

use futures_util::future::select_all;
use redis::RedisError;
use tokio::sync::{Notify, watch};
use tokio::time::{Instant, sleep_until, timeout};
use tokio_util::sync::{CancellationToken, DropGuard};

use super::connect::{Address, Opener, ask};
use super::keeper::{self, Backoff, Live, Node, Pace};
use super::slots::{Range, parse_address, parse_slots, slots};
use super::{Clock, LinkError, LinkErrorKind, LinkSettings, LinkStatus, Place, RedisUrl};
use crate::crc16::SLOTS;

const LEARN: &str = "CLUSTER SLOTS";
/// How old the map may become while all is well: only a look for what no request has met yet.
const LOOK_EVERY: Duration = Duration::from_secs(30);
/// The same while a node is away, so that its heir is known soon.
const LOOK_WHILE_DOWN: Duration = Duration::from_millis(300);
/// The least pause between two looks, however many requests ask for one.
const LOOK_AT_MOST_EVERY: Duration = Duration::from_millis(100);

/// The nodes of a cluster and what they serve.
pub(super) struct Cluster {
    template: LinkSettings,
    seeds: Vec<Address>,
    tls: bool,
    pace: Pace,
    pub(super) closed: CancellationToken,
    /// The owner of each slot.
    owners: RwLock<Vec<Option<Arc<Node>>>>,
    /// Each node that owns something, by its address; dropping the guard closes it.
    nodes: Mutex<BTreeMap<Address, (Arc<Node>, DropGuard)>>,
    /// Counts the changes of the owners.
    changes: watch::Sender<u64>,
    outdated: Notify,
    /// When a request last met each slot half on one node and half on another.
    moving: Mutex<BTreeMap<u16, std::time::Instant>>,
    status: watch::Sender<LinkStatus>,
    /// The host's clock, until a node has told its own.
    clock: Arc<Clock>,
}

impl Cluster {
    pub(super) fn new(
        settings: &LinkSettings,
        pace: Pace,
        closed: CancellationToken,
    ) -> Result<Arc<Self>, LinkError> {
        let Place::Cluster { nodes, tls } = settings.url.place() else {
            let detail = format!("{} is no cluster", settings.url);
            return Err(LinkError::local(LinkErrorKind::Invalid, LEARN, detail));
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
            status: watch::Sender::new(LinkStatus::Connecting),
            clock: Arc::new(Clock::new()),
        };
        // Settings that cannot work show now and not in a task.
        for seed in &cluster.seeds {
            cluster.opener(seed)?;
        }
        Ok(Arc::new(cluster))
    }

    pub(super) fn status(&self) -> watch::Receiver<LinkStatus> {
        self.status.subscribe()
    }

    pub(super) fn is_up(&self) -> bool {
        *self.status.borrow() == LinkStatus::Up
    }

    /// Says whether each node answered something after `then`.
    pub(super) fn heard_since(&self, then: std::time::Instant) -> bool {
        // Each one is asked, also behind one that is silent.
        let silent = |node: &Arc<Node>| !node.heard_since(then);
        self.nodes().iter().filter(|node| silent(node)).count() == 0
    }

    /// The owner of a slot, as far as known.
    pub(super) fn owner(&self, slot: u16) -> Option<Arc<Node>> {
        let owners = self.owners.read().unwrap_or_else(PoisonError::into_inner);
        owners.get(usize::from(slot)).cloned().flatten()
    }

    /// Notes that a request met a slot half on one node and half on another.
    pub(super) fn moving(&self, slot: u16) {
        let mut moving = self.moving.lock().unwrap_or_else(PoisonError::into_inner);
        moving.insert(slot, std::time::Instant::now());
    }

    /// When a request last met this slot so, if any did.
    pub(super) fn moving_since(&self, slot: u16) -> Option<std::time::Instant> {
        let moving = self.moving.lock().unwrap_or_else(PoisonError::into_inner);
        moving.get(&slot).copied()
    }

    /// All nodes that own slots, in the order of their addresses.
    pub(super) fn nodes(&self) -> Vec<Arc<Node>> {
        self.lock().values().map(|(node, _)| node.clone()).collect()
    }

    /// Watches for changes of the owners.
    pub(super) fn changes(&self) -> watch::Receiver<u64> {
        self.changes.subscribe()
    }

    /// The clock of some node.
    pub(super) fn clock(&self) -> Arc<Clock> {
        let nodes = self.lock();
        let mut nodes = nodes.values();
        nodes
            .next()
            .map_or_else(|| self.clock.clone(), |(node, _)| node.clock.clone())
    }

    /// Gives a working connection to the owner of a slot, or to any node; waits for one until `end`, also for another
    /// owner. A refusal that only an operator can mend ends the wait.
    pub(super) async fn live(
        &self,
        slot: Option<u16>,
        end: Instant,
    ) -> Result<(Arc<Node>, Arc<Live>), LinkError> {
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
            if let Some(live) = node.as_ref().and_then(|node| node.live_now()) {
                return Ok((node.expect("it has a connection"), live));
            }
            self.outdated.notify_one();
            let waited = async {
                match &node {
                    Some(node) => node.live(end).await,
                    None => {
                        sleep_until(end).await;
                        Err(self.nobody(slot))
                    }
                }
            };
            tokio::select! {
                live = waited => match (live, node) {
                    (Ok(live), Some(node)) => return Ok((node, live)),
                    // Closed because it owns nothing any more.
                    (Err(_), _) if changes.has_changed().unwrap_or(false) => {}
                    (Err(error), _) => return Err(error),
                    (Ok(_), None) => {}
                },
                _ = changes.changed() => {}
                () = self.closed.cancelled() => {
                    let detail = "the link is closed";
                    return Err(LinkError::local(LinkErrorKind::Unavailable, "wait for redis", detail));
                }
            }
        }
    }

    /// Waits until all slots are served.
    pub(super) async fn wait_up(&self, limit: Duration) -> Result<(), LinkError> {
        let mut status = self.status();
        let settled = |status: &LinkStatus| match status {
            LinkStatus::Up => true,
            LinkStatus::Down { fatal, .. } => *fatal,
            LinkStatus::Connecting => false,
        };
        let _ = timeout(limit, status.wait_for(settled)).await;
        let (reason, code, fatal) = match &*status.borrow() {
            LinkStatus::Up => return Ok(()),
            LinkStatus::Connecting => ("no connection in time".to_owned(), None, false),
            LinkStatus::Down {
                reason,
                code,
                fatal,
            } => (reason.clone(), code.clone(), *fatal),
        };
        let kind = if fatal {
            LinkErrorKind::Denied
        } else {
            LinkErrorKind::Unavailable
        };
        Err(LinkError {
            code,
            ..LinkError::local(kind, "wait for redis", reason)
        })
    }

    fn nobody(&self, slot: Option<u16>) -> LinkError {
        let reason = match (&*self.status.borrow(), slot) {
            (LinkStatus::Down { reason, .. }, _) => reason.clone(),
            (_, Some(slot)) => format!("{}: no node serves slot {slot}", self.template.url),
            (_, None) => format!("{}: no node is known", self.template.url),
        };
        LinkError::local(LinkErrorKind::Unavailable, "wait for redis", reason)
    }

    /// Takes in a redirection: `MOVED` names the new owner of a slot. Gives the node to ask where there is one.
    pub(super) fn redirected(&self, error: &RedisError, by: &Node) -> Option<Arc<Node>> {
        let (address, slot) = error.redirect_node()?;
        let node = self.node(parse_address(address, by.host())?).ok()?;
        if error.code() == Some("MOVED") {
            self.doubt();
            let mut owners = self.owners.write().unwrap_or_else(PoisonError::into_inner);
            *owners.get_mut(usize::from(slot))? = Some(node.clone());
            drop(owners);
            self.changes.send_modify(|changes| *changes += 1);
        }
        Some(node)
    }

    /// Says that what is known of the owners may not hold any more.
    pub(super) fn doubt(&self) {
        self.outdated.notify_one();
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, BTreeMap<Address, (Arc<Node>, DropGuard)>> {
        self.nodes.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn settings(&self, (host, port): &Address) -> LinkSettings {
        let mut settings = self.template.clone();
        settings.url = RedisUrl::tcp(host, *port, self.tls);
        // What stands in the address of the cluster is for each of its nodes.
        settings.username = settings
            .username
            .or_else(|| self.template.url.username().map(str::to_owned));
        settings.password = settings
            .password
            .or_else(|| self.template.url.password().cloned());
        settings
    }

    fn opener(&self, address: &Address) -> Result<Opener, LinkError> {
        Opener::new(&self.settings(address))
    }

    /// Gives the node at an address, connecting to it if it is new.
    fn node(&self, address: Address) -> Result<Arc<Node>, LinkError> {
        let mut nodes = self.lock();
        if let Some((node, _)) = nodes.get(&address) {
            return Ok(node.clone());
        }
        let closed = self.closed.child_token();
        let node = Node::new(&self.settings(&address), self.pace, closed.clone())?;
        let node = Arc::new(node);
        tokio::spawn(keeper::keep(node.clone()));
        nodes.insert(address, (node.clone(), closed.drop_guard()));
        Ok(node)
    }

    /// Takes a new map into use; nodes that own nothing are let go.
    fn adopt(&self, ranges: &[Range]) -> Result<(), LinkError> {
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
            let mut known = self.owners.write().unwrap_or_else(PoisonError::into_inner);
            let changed = !known.iter().zip(&owners).all(|(old, new)| same(old, new));
            for (old, new) in known.iter().zip(&owners) {
                // To whoever asks for these slots the heir is the server that came back.
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
        self.lock()
            .retain(|address, _| ranges.iter().any(|range| range.owner == *address));
        if changed {
            self.changes.send_modify(|changes| *changes += 1);
        }
        Ok(())
    }

    /// Asks a node that answers, or else one of the seeds, who serves what.
    async fn learn(&self) -> Result<(), LinkError> {
        let mut nodes = self.nodes();
        fastrand::shuffle(&mut nodes);
        for node in nodes {
            let Some(live) = node.live_now() else {
                continue;
            };
            let (mut conn, question) = (live.conn(), slots());
            if let Ok(Ok(reply)) = timeout(LOOK_WHILE_DOWN, ask(&mut conn, &question)).await
                && let Some(ranges) = parse_slots(&reply, node.host())
            {
                return self.adopt(&ranges);
            }
        }
        let mut seeds = self.seeds.clone();
        fastrand::shuffle(&mut seeds);
        let mut failed = None;
        for seed in seeds {
            match self.learn_from(&seed).await {
                Ok(ranges) => return self.adopt(&ranges),
                Err(error) => failed = Some(error),
            }
        }
        Err(failed.unwrap_or_else(|| self.nobody(None)))
    }

    async fn learn_from(&self, seed: &Address) -> Result<Vec<Range>, LinkError> {
        let mut conn = self.opener(seed)?.open().await?.conn;
        let (host, port) = seed;
        let failed =
            |kind, detail: &str| LinkError::local(kind, LEARN, format!("{host}:{port}: {detail}"));
        let question = slots();
        match timeout(self.template.connect_timeout, ask(&mut conn, &question)).await {
            Ok(Ok(reply)) => parse_slots(&reply, host)
                .ok_or_else(|| failed(LinkErrorKind::Unavailable, "the node knows no slots yet")),
            Ok(Err(error))
                if error
                    .detail()
                    .is_some_and(|text| text.contains("cluster support")) =>
            {
                let detail = "not a cluster node: name it by redis:// or rediss://";
                Err(failed(LinkErrorKind::NotSupported, detail))
            }
            Ok(Err(error)) => Err(LinkError::from_redis(LEARN, error)),
            Err(_) => Err(failed(LinkErrorKind::Unavailable, "no answer in time")),
        }
    }

    /// Up is a cluster all of whose slots are served by a node that answers.
    fn judge(&self) -> LinkStatus {
        for (node, _) in self.lock().values() {
            let status = node.status();
            match &*status.borrow() {
                LinkStatus::Up => {}
                other => return other.clone(),
            }
        }
        let owners = self.owners.read().unwrap_or_else(PoisonError::into_inner);
        let served = owners.iter().flatten().count();
        if served == usize::from(SLOTS) {
            return LinkStatus::Up;
        }
        LinkStatus::Down {
            reason: format!("the cluster serves only {served} of {SLOTS} slots"),
            code: None,
            fatal: false,
        }
    }

    fn show(&self, next: LinkStatus) {
        self.status.send_if_modified(|status| {
            let changed = *status != next;
            *status = next;
            changed
        });
    }
}

/// Keeps the map until the link is closed.
pub(super) async fn keep(cluster: Arc<Cluster>) {
    let _ = cluster
        .closed
        .clone()
        .run_until_cancelled(survey(&cluster))
        .await;
    cluster.show(LinkStatus::closed());
}

async fn survey(cluster: &Cluster) {
    let mut backoff = Backoff::new();
    loop {
        let learned = cluster.learn().await;
        let pause = match &learned {
            Ok(()) => {
                backoff = Backoff::new();
                cluster.show(cluster.judge());
                LOOK_EVERY
            }
            Err(error) => {
                tracing::debug!(%error, "nobody tells who serves which slots");
                // With a map in hand its nodes tell more than the question for a newer one.
                if cluster.lock().is_empty() {
                    cluster.show(LinkStatus::down(error, error.is_fatal()));
                }
                backoff.next_pause()
            }
        };
        attend(cluster, Instant::now() + pause).await;
    }
}

/// Publishes what the nodes say of themselves until it is time to look at the map again.
async fn attend(cluster: &Cluster, end: Instant) {
    let begun = Instant::now();
    loop {
        let mut statuses: Vec<_> = cluster.nodes().iter().map(|node| node.status()).collect();
        if statuses.is_empty() {
            return sleep_until(end).await;
        }
        let status = cluster.judge();
        let look = match &status {
            LinkStatus::Down { .. } => end.min(begun + LOOK_WHILE_DOWN),
            LinkStatus::Up | LinkStatus::Connecting => end,
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
