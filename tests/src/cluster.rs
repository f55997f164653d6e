//! A Redis Cluster of three masters with a replica each on loopback, and its faults: dead nodes, failovers, slots that
//! move in steps. A node is named by its number, from 0; at first 0–2 are masters and 3–5 their replicas.

use crate::eventually;
use crate::port::{free_port, loopback};
use crate::server::{Aof, Server, access, scheme};
use crate::tls::Files;
use redis::{Cmd, FromRedisValue, RedisResult, cmd};
use std::sync::Arc;
use std::time::Duration;
use tokio::time::timeout;

/// Masters at first; as many replicas.
const MASTERS: usize = 3;
const SLOTS: u16 = 16_384;
/// After this many ms without an answer, a node counts as dead.
const NODE_TIMEOUT: &str = "2000";
/// The limit for everything that the nodes must agree on: generous, since CI machines are small and busy.
const PATIENCE: Duration = Duration::from_secs(30);
/// The time limit for a node to report its state; a paused one never does.
const ANSWER: Duration = Duration::from_millis(500);

/// A running cluster, ended when dropped.
#[derive(Debug)]
pub struct Cluster {
    nodes: Vec<Server>,
}

/// A node's own view of its state.
#[derive(Debug)]
struct Own {
    id: String,
    /// The id of its master; `None` of a master.
    master: Option<String>,
    epoch: u64,
    slots: Vec<(u16, u16)>,
}

impl Own {
    /// Reads the line `myself` of `CLUSTER NODES`.
    fn read(nodes: &str) -> Option<Self> {
        let line = nodes.lines().find(|line| line.contains("myself"))?;
        let words: Vec<&str> = line.split_whitespace().collect();
        let range = |word: &&str| {
            let (first, last) = word.split_once('-').unwrap_or((word, word));
            // What is on its way stands in brackets.
            Some((first.parse().ok()?, last.parse().ok()?))
        };
        Some(Self {
            id: (*words.first()?).to_owned(),
            master: words
                .get(3)
                .filter(|id| **id != "-")
                .map(|id| (*id).to_owned()),
            epoch: words.get(6)?.parse().ok()?,
            slots: words.get(8..)?.iter().filter_map(range).collect(),
        })
    }

    fn has(&self, slot: u16) -> bool {
        let within = |(first, last): &(u16, u16)| (*first..=*last).contains(&slot);
        self.master.is_none() && self.slots.iter().any(within)
    }
}

/// The ports on which a node listens: for clients and for the other nodes.
type Ports = (u16, u16);

/// The file `nodes.conf` of one node of a new cluster. It already describes all nodes: an introduction by `CLUSTER
/// MEET` takes far longer.
fn description(of: usize, ports: &[Ports]) -> String {
    let id = |node: usize| format!("{:040x}", node + 1);
    let share = usize::from(SLOTS) / MASTERS;
    let mut text = String::new();
    for (node, (port, bus)) in ports.iter().enumerate() {
        let myself = if node == of { "myself," } else { "" };
        let first = node * share;
        let last = if node + 1 == MASTERS {
            usize::from(SLOTS) - 1
        } else {
            first + share - 1
        };
        let epoch = node % MASTERS + 1;
        let (role, slots) = match node.checked_sub(MASTERS) {
            None => ("master -".to_owned(), format!(" {first}-{last}")),
            Some(master) => (format!("slave {}", id(master)), String::new()),
        };
        text += &format!(
            "{} {}@{bus} {myself}{role} 0 0 {epoch} connected{slots}\n",
            id(node),
            loopback(*port)
        );
    }
    text + &format!("vars currentEpoch {MASTERS} lastVoteEpoch 0\n")
}

impl Cluster {
    /// Starts it and waits until it serves all slots and every replica has its master's data (about 3 s).
    pub async fn start(aof: Aof) -> Self {
        Self::start_with(aof, None).await
    }

    /// Like [`Cluster::start`], with TLS between the nodes and to clients. The engine must [have TLS](Server::has_tls).
    pub async fn start_tls(aof: Aof) -> Self {
        Self::start_with(aof, Some(Arc::new(Files::write()))).await
    }

    async fn start_with(aof: Aof, tls: Option<Arc<Files>>) -> Self {
        let ports: Vec<Ports> = (0..2 * MASTERS)
            .map(|_| (free_port(), free_port()))
            .collect();
        let start = |of: usize| {
            Server::builder()
                .cluster(false) // put together here, not by the builder
                .aof(aof)
                .tls_with(tls.clone())
                .port(ports[of].0)
                .config("cluster-enabled", "yes")
                .config("cluster-port", &ports[of].1.to_string())
                .config("cluster-node-timeout", NODE_TIMEOUT)
                .config("cluster-replica-validity-factor", "0")
                .config("cluster-allow-replica-migration", "no")
                .config("repl-diskless-sync-delay", "0")
                .file("nodes.conf", description(of, &ports))
                .start()
        };
        let start = &start;
        let nodes = std::thread::scope(|scope| {
            let starts: Vec<_> = (0..2 * MASTERS)
                .map(|of| scope.spawn(move || start(of)))
                .collect();
            let started = starts.into_iter();
            started
                .map(|start| start.join().expect("the node started"))
                .collect()
        });
        let cluster = Self { nodes };
        cluster.ready().await;
        cluster
    }

    /// Returns the settings with which a role reaches it: key paths and values.
    pub fn access(&self) -> Vec<(&'static str, String)> {
        access(self.url(), self.nodes[0].tls())
    }

    /// The URL with all nodes: `redis+cluster://127.0.0.1:PORT,…`, `rediss+cluster://` with TLS.
    pub fn url(&self) -> String {
        let places = self
            .nodes
            .iter()
            .map(|node| loopback(node.port()).to_string());
        let places = Vec::from_iter(places).join(",");
        format!("{}+cluster://{places}", scheme(self.nodes[0].tls()))
    }

    /// The nodes.
    pub fn nodes(&self) -> &[Server] {
        &self.nodes
    }

    /// One node, to kill, pause and restart it.
    pub fn node(&mut self, node: usize) -> &mut Server {
        &mut self.nodes[node]
    }

    /// Runs a command on one node, without following redirections.
    ///
    /// # Errors
    /// Returns the node's reply, or an error if it is not running.
    pub async fn ask<T: FromRedisValue>(&self, node: usize, cmd: &Cmd) -> RedisResult<T> {
        let silent = || std::io::Error::from(std::io::ErrorKind::TimedOut).into();
        let asked = timeout(ANSWER, async {
            let mut connection = self.nodes[node].try_connection().await?;
            cmd.query_async(&mut connection).await
        });
        asked.await.unwrap_or_else(|_| Err(silent()))
    }

    /// Waits until every running node says that all slots are served and that its master's data are here, and all agree
    /// who is a master.
    #[track_caller]
    pub fn ready(&self) -> impl Future<Output = ()> {
        eventually(PATIENCE, async || {
            let own = self.own().await;
            for node in self.running() {
                let text = async |words: [&str; 2]| -> Result<String, String> {
                    let asked = self.ask(node, cmd(words[0]).arg(words[1])).await;
                    asked.map_err(|error| format!("node {node}: {error}"))
                };
                let info = text(["CLUSTER", "INFO"]).await?;
                let nodes = text(["CLUSTER", "NODES"]).await?;
                let replication = text(["INFO", "replication"]).await?;
                let knows_all = !self.running().any(|other| {
                    let Some((_, own)) = own.iter().find(|(of, _)| *of == other) else {
                        return true;
                    };
                    let role = if own.master.is_none() {
                        "master"
                    } else {
                        "slave"
                    };
                    let line = nodes.lines().find(|line| line.starts_with(&own.id));
                    line.is_none_or(|line| line.contains("fail") || !line.contains(role))
                });
                let well = info.contains("cluster_state:ok") && knows_all;
                if !well || replication.contains("master_link_status:down") {
                    return Err(format!("node {node}:\n{info}\n{nodes}\n{replication}"));
                }
            }
            Ok(())
        })
    }

    /// The slot of a key.
    pub async fn slot_of(&self, key: &str) -> u16 {
        for node in self.running() {
            if let Ok(slot) = self.ask(node, cmd("CLUSTER").arg("KEYSLOT").arg(key)).await {
                return slot;
            }
        }
        panic!("no node runs");
    }

    /// The master of a slot: of those which claim it, the one of the newest epoch.
    ///
    /// # Panics
    /// Panics if no node claims it within 30 s.
    pub async fn master_of(&self, slot: u16) -> usize {
        eventually(PATIENCE, async || {
            let all = self.own().await;
            let claims = all.iter().filter(|(_, own)| own.has(slot));
            let newest = claims.max_by_key(|(_, own)| own.epoch);
            newest
                .map(|(node, _)| *node)
                .ok_or_else(|| format!("no node has slot {slot}: {all:#?}"))
        })
        .await
    }

    /// The nodes that are masters now.
    pub async fn masters(&self) -> Vec<usize> {
        let all = self.own().await;
        let masters = all.iter().filter(|(_, own)| own.master.is_none());
        masters.map(|(node, _)| *node).collect()
    }

    /// A replica of a master.
    ///
    /// # Panics
    /// Panics if it has none that is running.
    pub async fn replica_of(&self, master: usize) -> usize {
        let all = self.own().await;
        let id = all.iter().find(|(node, _)| *node == master);
        let id = id.map(|(_, own)| own.id.clone());
        let found = all.iter().find(|(_, own)| own.master == id);
        found
            .unwrap_or_else(|| panic!("node {master} has no replica: {all:#?}"))
            .0
    }

    /// Waits until a slot has another master than `old` and the cluster serves all slots again, and returns the new
    /// one. With a dead master this takes the node timeout of 2 s and about one more.
    #[track_caller]
    pub fn promoted(&self, slot: u16, old: usize) -> impl Future<Output = usize> {
        eventually(PATIENCE, async move || {
            let master = self.master_of(slot).await;
            for node in self.running() {
                let info: String = self
                    .ask(node, cmd("CLUSTER").arg("INFO"))
                    .await
                    .map_err(|error| format!("node {node}: {error}"))?;
                if master == old || !info.contains("cluster_state:ok") {
                    return Err(format!(
                        "node {master} has slot {slot}; node {node}:\n{info}"
                    ));
                }
            }
            Ok(master)
        })
    }

    /// Makes a replica the master, as an operator would: nothing is lost. Returns when it has taken over.
    ///
    /// # Panics
    /// Panics if the replica refuses, or has not taken over after 30 s.
    pub async fn fail_over(&self, replica: usize) {
        self.order::<()>(replica, cmd("CLUSTER").arg("FAILOVER"))
            .await;
        eventually(PATIENCE, async || {
            let masters = self.masters().await;
            if masters.contains(&replica) {
                Ok(())
            } else {
                Err(format!("the masters are {masters:?}"))
            }
        })
        .await;
    }

    /// Begins to move a slot. From now on the source redirects requests for missing keys, and answers `TRYAGAIN` where
    /// only some keys of a request are there.
    pub async fn begin_move(&self, slot: u16, to: usize) {
        let from = self.master_of(slot).await;
        let [from_id, to_id] = [self.id(from).await, self.id(to).await];
        let set = |state: &str, id: &str| setslot(slot, state, id);
        self.order::<()>(to, &set("IMPORTING", &from_id)).await;
        self.order::<()>(from, &set("MIGRATING", &to_id)).await;
    }

    /// Moves up to `count` keys of a slot whose move has begun, and returns how many are left.
    pub async fn move_keys(&self, slot: u16, to: usize, count: usize) -> usize {
        let from = self.master_of(slot).await;
        let mut list = cmd("CLUSTER");
        list.arg("GETKEYSINSLOT").arg(slot).arg(count);
        let keys: Vec<String> = self.order(from, &list).await;
        if !keys.is_empty() {
            let mut migrate = cmd("MIGRATE");
            migrate.arg("127.0.0.1").arg(self.nodes[to].port());
            migrate.arg("").arg(0).arg(5_000).arg("KEYS").arg(&keys);
            let _: redis::Value = self.order(from, &migrate).await;
        }
        let mut left = cmd("CLUSTER");
        left.arg("COUNTKEYSINSLOT").arg(slot);
        self.order(from, &left).await
    }

    /// Ends the move of a slot, whose keys must all be there, and notifies every master.
    pub async fn end_move(&self, slot: u16, to: usize) {
        let from = self.master_of(slot).await;
        let node = setslot(slot, "NODE", &self.id(to).await);
        // The target first: every node knows an owner of the slot at any moment.
        let others = self.masters().await;
        let others = others
            .into_iter()
            .filter(|other| ![from, to].contains(other));
        for told in [to, from].into_iter().chain(others) {
            self.order::<()>(told, &node).await;
        }
    }

    /// Moves a slot with its keys.
    pub async fn move_slot(&self, slot: u16, to: usize) {
        self.begin_move(slot, to).await;
        while self.move_keys(slot, to, 100).await > 0 {}
        self.end_move(slot, to).await;
    }

    fn running(&self) -> impl Iterator<Item = usize> {
        (0..self.nodes.len()).filter(|node| self.nodes[*node].pid().is_some())
    }

    async fn id(&self, node: usize) -> String {
        self.order(node, cmd("CLUSTER").arg("MYID")).await
    }

    /// Returns the state of every node that answers.
    async fn own(&self) -> Vec<(usize, Own)> {
        let mut all = Vec::new();
        for node in self.running() {
            let nodes: RedisResult<String> = self.ask(node, cmd("CLUSTER").arg("NODES")).await;
            if let Some(own) = nodes.ok().and_then(|nodes| Own::read(&nodes)) {
                all.push((node, own));
            }
        }
        all
    }

    /// Runs a command that must be carried out, and may take long.
    async fn order<T: FromRedisValue>(&self, node: usize, cmd: &Cmd) -> T {
        let mut connection = self.nodes[node].connection().await;
        let done = cmd.query_async(&mut connection).await;
        done.unwrap_or_else(|error| panic!("node {node}, {cmd:?}: {error}"))
    }
}

impl Drop for Cluster {
    fn drop(&mut self) {
        if std::thread::panicking() {
            for (number, node) in self.nodes.iter().enumerate() {
                eprintln!("--- log of node {number} ---\n{}---", node.log());
            }
        }
    }
}

fn setslot(slot: u16, state: &str, id: &str) -> Cmd {
    let mut set = cmd("CLUSTER");
    set.arg("SETSLOT").arg(slot).arg(state).arg(id);
    set
}
