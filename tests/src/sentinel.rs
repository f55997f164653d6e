//! A master with two replicas under three sentinels on loopback, and its faults: a dead master, one that its peers do
//! not reach, one after the other. Servers are named by their number, from 0; at first 0 is the master.
//!
//! The servers require a password. Sentinels and replicas have their own users, so that these can be locked out of a
//! server that clients still reach.

use crate::eventually;
use crate::port::{free_port, loopback};
use crate::server::{Aof, Server, access, scheme};
use crate::tls::Files;
use redis::{Cmd, FromRedisValue, RedisResult, cmd};
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;
use tokio::time::timeout;

/// Servers, and sentinels.
const COUNT: usize = 3;
/// The name of the master group.
const GROUP: &str = "main";
/// The password of clients; the peers' is the name of the user.
const PASSWORD: &str = "client";
/// The users with which sentinels and replicas log in.
const PEERS: [&str; 2] = ["watcher", "replica"];
/// Default times of sentinels, in ms, that are meant for longer outages: they take long to correct a server that came
/// back, and one ping per second is too rare where a second of silence means death.
const PERIODS: &[(&str, u32)] = &[
    ("INFO-PERIOD", 1000),
    ("PING-PERIOD", 200),
    ("PUBLISH-PERIOD", 500),
];
/// The limit for everything that all must agree on: generous, since CI machines are small and busy.
const PATIENCE: Duration = Duration::from_secs(30);
/// The time limit of an answer; a paused server never answers.
const ANSWER: Duration = Duration::from_millis(500);

/// A running master with its replicas and sentinels, ended when dropped.
#[derive(Debug)]
pub struct Sentinels {
    servers: Vec<Server>,
    sentinels: Vec<Server>,
}

impl Sentinels {
    /// Starts it and waits until all sentinels know all servers and each other (about 1 s).
    pub async fn start(aof: Aof) -> Self {
        Self::start_with(aof, None).await
    }

    /// Like [`Sentinels::start`], with TLS among all of them and to clients. The engine must [have
    /// TLS](Server::has_tls).
    pub async fn start_tls(aof: Aof) -> Self {
        Self::start_with(aof, Some(Arc::new(Files::write()))).await
    }

    async fn start_with(aof: Aof, tls: Option<Arc<Files>>) -> Self {
        let mut servers: Vec<Server> = Vec::new();
        for _ in 0..COUNT {
            let mut builder = Server::builder()
                .cluster(false)
                .aof(aof)
                .tls_with(tls.clone())
                .password(PASSWORD)
                .config("masteruser", PEERS[1])
                .config("masterauth", PEERS[1])
                .config("repl-diskless-sync-delay", "0");
            for peer in PEERS {
                builder = builder.acl(&format!("{peer} on >{peer} &* +@all"));
            }
            if let Some(master) = servers.first() {
                builder = builder.config("replicaof", &format!("127.0.0.1 {}", master.port()));
            }
            servers.push(builder.start());
        }
        let ports: Vec<u16> = (0..COUNT).map(|_| free_port()).collect();
        let sentinels = (0..COUNT).map(|of| sentinel(of, &ports, &servers, tls.clone()));
        let all = Self {
            sentinels: sentinels.collect(),
            servers,
        };
        for sentinel in &all.sentinels {
            let mut debug = cmd("SENTINEL");
            debug.arg("DEBUG").arg(PERIODS);
            let set: RedisResult<()> = ask(sentinel, &debug).await;
            set.expect("a sentinel takes its periods");
        }
        all.ready().await;
        all
    }

    /// Returns the settings with which a role reaches it: key paths and values.
    pub fn access(&self) -> Vec<(&'static str, String)> {
        access(self.url(), self.servers[0].tls())
    }

    /// The URL with all sentinels and the password: `redis+sentinel://:PASSWORD@127.0.0.1:PORT,…/main`,
    /// `rediss+sentinel://` with TLS.
    pub fn url(&self) -> String {
        let places = self.sentinels.iter();
        let places = places.map(|sentinel| loopback(sentinel.port()).to_string());
        let places = Vec::from_iter(places).join(",");
        let scheme = scheme(self.servers[0].tls());
        format!("{scheme}+sentinel://:{PASSWORD}@{places}/{GROUP}")
    }

    /// The servers.
    pub fn servers(&self) -> &[Server] {
        &self.servers
    }

    /// One server, to kill, pause and restart it.
    pub fn server(&mut self, server: usize) -> &mut Server {
        &mut self.servers[server]
    }

    /// One sentinel, likewise.
    pub fn sentinel(&mut self, sentinel: usize) -> &mut Server {
        &mut self.sentinels[sentinel]
    }

    /// The server that most sentinels call the master.
    ///
    /// # Panics
    /// Panics if no two agree within 30 s.
    pub async fn master(&self) -> usize {
        eventually(PATIENCE, async || self.named().await).await
    }

    /// Waits until the sentinels call another server than `old` the master, and that server agrees; returns it. With a
    /// dead master this takes the second after which it counts as dead, and about one more.
    #[track_caller]
    pub fn promoted(&self, old: usize) -> impl Future<Output = usize> {
        eventually(PATIENCE, async move || {
            let master = self.named().await?;
            let role = self.role(master).await;
            if master == old || role != "master" {
                return Err(format!("{master} is called the master, and is a {role}"));
            }
            Ok(master)
        })
    }

    /// Isolates the master, and returns which one it was. On a busy machine the sentinels may take it for dead just before, and
    /// promote another one; then that one is isolated.
    pub async fn isolate_master(&self) -> usize {
        loop {
            let master = self.master().await;
            self.isolate(master).await;
            if self.role(master).await == "master" {
                return master;
            }
            self.rejoin(master).await;
            self.ready().await;
        }
    }

    /// Lets sentinels and replicas no longer reach a server. Clients do; if it is the master, another one is promoted
    /// beside it.
    async fn isolate(&self, server: usize) {
        self.let_peers(server, "off").await;
        for peer in PEERS {
            self.kill_clients(server, peer).await;
        }
    }

    /// Lets them reach it again: the sentinels make a replica of it, and what it took alone is lost.
    pub async fn rejoin(&self, server: usize) {
        self.let_peers(server, "on").await;
        // A sentinel does not log in again on a connection on which it was refused.
        self.kill_clients(server, "default").await;
    }

    /// Waits until all that run know each other and one master, and its replicas have its data.
    #[track_caller]
    pub fn ready(&self) -> impl Future<Output = ()> {
        eventually(PATIENCE, async || {
            let master = self.named().await?;
            let replicas = self.running().count() - 1;
            for sentinel in &self.sentinels {
                let about = about(sentinel).await?;
                let number = |name: &str| about.get(name).and_then(|n| n.parse::<usize>().ok());
                let well = number("port") == Some(self.servers[master].port().into())
                    && about.get("flags").is_some_and(|flags| flags == "master")
                    && number("num-other-sentinels") == Some(COUNT - 1)
                    && number("num-slaves") >= Some(replicas);
                if !well {
                    return Err(format!("{about:#?}"));
                }
            }
            for server in self.running() {
                let role = self.role(server).await;
                let wanted = if server == master { "master" } else { "slave" };
                let replication = cmd("INFO").arg("replication").to_owned();
                let replication: RedisResult<String> =
                    ask(&self.servers[server], &replication).await;
                let replication = replication.map_err(|error| error.to_string())?;
                if role != wanted || replication.contains("master_link_status:down") {
                    return Err(format!("{server} is a {role}:\n{replication}"));
                }
            }
            Ok(())
        })
    }

    fn running(&self) -> impl Iterator<Item = usize> {
        (0..COUNT).filter(|server| self.servers[*server].pid().is_some())
    }

    /// The server that two sentinels name.
    async fn named(&self) -> Result<usize, String> {
        let mut named = Vec::new();
        for sentinel in &self.sentinels {
            let mut name = cmd("SENTINEL");
            name.arg("GET-MASTER-ADDR-BY-NAME").arg(GROUP);
            if let Ok((_, port)) = ask::<(String, u16)>(sentinel, &name).await {
                named.push(port);
            }
        }
        let agreed = |server: &Server| {
            let votes = named.iter().filter(|port| **port == server.port());
            votes.count() * 2 > COUNT
        };
        let found = self.servers.iter().position(agreed);
        found.ok_or_else(|| format!("the sentinels name {named:?}"))
    }

    /// `master` or `slave`; a reason if it does not say.
    async fn role(&self, server: usize) -> String {
        let role: RedisResult<Vec<redis::Value>> = ask(&self.servers[server], &cmd("ROLE")).await;
        let role = role.and_then(|role| match role.into_iter().next() {
            Some(name) => Ok(redis::from_redis_value(name)?),
            None => Ok(String::new()),
        });
        role.unwrap_or_else(|error| error.to_string())
    }

    async fn let_peers(&self, server: usize, switch: &str) {
        for peer in PEERS {
            let mut set = cmd("ACL");
            set.arg("SETUSER").arg(peer).arg(switch);
            self.order::<()>(server, &set).await;
        }
    }

    async fn kill_clients(&self, server: usize, user: &str) {
        let mut kill = cmd("CLIENT");
        kill.arg("KILL").arg("USER").arg(user);
        self.order::<u32>(server, &kill).await;
    }

    /// Runs a command that must be carried out.
    async fn order<T: FromRedisValue>(&self, server: usize, cmd: &Cmd) -> T {
        let mut connection = self.servers[server].connection().await;
        let done = cmd.query_async(&mut connection).await;
        done.unwrap_or_else(|error| panic!("server {server}, {cmd:?}: {error}"))
    }
}

impl Drop for Sentinels {
    fn drop(&mut self) {
        if std::thread::panicking() {
            for (number, sentinel) in self.sentinels.iter().enumerate() {
                eprintln!("--- log of sentinel {number} ---\n{}---", sentinel.log());
            }
        }
    }
}

/// Starts a sentinel that knows all servers and sentinels from the beginning: they would need seconds to find each
/// other.
fn sentinel(of: usize, ports: &[u16], servers: &[Server], tls: Option<Arc<Files>>) -> Server {
    let id = |sentinel: usize| format!("{:040x}", sentinel + 1);
    let mut lines = vec![
        format!("myid {}", id(of)),
        format!("monitor {GROUP} 127.0.0.1 {} 2", servers[0].port()),
        format!("auth-user {GROUP} {}", PEERS[0]),
        format!("auth-pass {GROUP} {}", PEERS[0]),
        format!("down-after-milliseconds {GROUP} 1000"),
        format!("failover-timeout {GROUP} 3000"),
        format!("parallel-syncs {GROUP} 2"),
    ];
    for replica in &servers[1..] {
        lines.push(format!(
            "known-replica {GROUP} 127.0.0.1 {}",
            replica.port()
        ));
    }
    for (other, port) in ports.iter().enumerate().filter(|(other, _)| *other != of) {
        lines.push(format!(
            "known-sentinel {GROUP} 127.0.0.1 {port} {}",
            id(other)
        ));
    }
    let mut builder = Server::builder()
        .cluster(false)
        .tls_with(tls)
        .port(ports[of])
        .argument("--sentinel");
    for line in lines {
        builder = builder.config("sentinel", &line);
    }
    builder.start()
}

/// Asks a server or a sentinel once.
async fn ask<T: FromRedisValue>(server: &Server, cmd: &Cmd) -> RedisResult<T> {
    let asked = timeout(ANSWER, async {
        let mut connection = server.try_connection().await?;
        cmd.query_async(&mut connection).await
    });
    let silent = || std::io::Error::from(std::io::ErrorKind::TimedOut).into();
    asked.await.unwrap_or_else(|_| Err(silent()))
}

/// Returns a sentinel's knowledge of the master.
async fn about(sentinel: &Server) -> Result<BTreeMap<String, String>, String> {
    let mut master = cmd("SENTINEL");
    master.arg("MASTER").arg(GROUP);
    let known: RedisResult<BTreeMap<String, String>> = ask(sentinel, &master).await;
    known.map_err(|error| error.to_string())
}
