//! The Redis of a scenario, in any topology: one server reached in one of three ways or with a user for each role, a
//! master under sentinels, or a cluster.
//!
//! `LISA_TEST_TOPOLOGY` selects the one that [`Site::start`] returns: `single`, the default, `socket`, `tls`, `users`,
//! `sentinel`, `cluster`, and these two with `-tls`. A test that needs another one says why and is
//! [skipped](Site::lacks).

use crate::{Aof, Cluster, Sentinels, Server, Snapshot};
use redis::aio::MultiplexedConnection;
use std::io::Write;
use std::panic::Location;

/// The parts of a [`Site`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Topology {
    /// One server, over TCP.
    Single,
    /// One server, over its unix socket.
    Socket,
    /// One server, over TLS with certificates of both sides.
    Tls,
    /// One server, with a user for each role.
    Users,
    /// A master with two replicas under three sentinels.
    Sentinel,
    /// The same with TLS everywhere.
    SentinelTls,
    /// A cluster of three masters and three replicas.
    Cluster,
    /// The same with TLS everywhere.
    ClusterTls,
}

impl Topology {
    /// The one that `LISA_TEST_TOPOLOGY` names.
    ///
    /// # Panics
    /// Panics if it names none.
    pub fn of_tests() -> Self {
        let Ok(name) = std::env::var("LISA_TEST_TOPOLOGY") else {
            return Self::Single;
        };
        match name.as_str() {
            "single" => Self::Single,
            "socket" => Self::Socket,
            "tls" => Self::Tls,
            "users" => Self::Users,
            "sentinel" => Self::Sentinel,
            "sentinel-tls" => Self::SentinelTls,
            "cluster" => Self::Cluster,
            "cluster-tls" => Self::ClusterTls,
            _ => panic!("LISA_TEST_TOPOLOGY is {name:?}"),
        }
    }

    /// Returns whether it is one server, which a test may stop and restart.
    pub fn is_one_server(self) -> bool {
        matches!(self, Self::Single | Self::Socket | Self::Tls | Self::Users)
    }
}

/// A running Redis, ended when dropped.
#[derive(Debug)]
pub enum Site {
    /// One server.
    One(Box<Server>),
    /// A master under sentinels.
    Sentinels(Sentinels),
    /// A cluster.
    Cluster(Cluster),
}

impl Site {
    /// Starts the topology of these tests.
    pub async fn start(aof: Aof) -> Self {
        let one = || Server::builder().aof(aof);
        let boxed = |server| Self::One(Box::new(server));
        match Topology::of_tests() {
            Topology::Single => boxed(one().start()),
            Topology::Socket => boxed(one().socket_only().start()),
            Topology::Tls => boxed(one().tls().start()),
            Topology::Users => boxed(one().role_users().start()),
            Topology::Sentinel => Self::Sentinels(Sentinels::start(aof).await),
            Topology::SentinelTls => Self::Sentinels(Sentinels::start_tls(aof).await),
            Topology::Cluster => Self::Cluster(Cluster::start(aof).await),
            Topology::ClusterTls => Self::Cluster(Cluster::start_tls(aof).await),
        }
    }

    /// Returns whether a test must be skipped because the topology of these tests is not among those that it is for. If
    /// so, records the location and the reason: on stderr, and in the file that `LISA_TEST_SKIPS` names.
    #[track_caller]
    pub fn lacks(wanted: impl Fn(Topology) -> bool, reason: &str) -> bool {
        let lacks = !wanted(Topology::of_tests());
        if lacks {
            Self::leave_out(reason);
        }
        lacks
    }

    /// Records that the calling test is skipped, and why.
    #[track_caller]
    pub fn leave_out(reason: &str) {
        let place = Location::caller();
        let line = format!("{}:{}: {reason}", place.file(), place.line());
        eprintln!("left out: {line}");
        if let Ok(path) = std::env::var("LISA_TEST_SKIPS") {
            let file = std::fs::OpenOptions::new()
                .create(true)
                .append(true)
                .open(&path);
            file.and_then(|mut file| file.write_all(format!("{line}\n").as_bytes()))
                .unwrap_or_else(|error| panic!("write {path}: {error}"));
        }
    }

    /// Returns the settings with which a role reaches it: key paths and values.
    pub fn access(&self) -> Vec<(&'static str, String)> {
        match self {
            Self::One(server) => server.access(),
            Self::Sentinels(sentinels) => sentinels.access(),
            Self::Cluster(cluster) => cluster.access(),
        }
    }

    /// Like [`Site::access`], logging in as this user where there is one for each role.
    pub fn access_of(&self, user: &str) -> Vec<(&'static str, String)> {
        match self {
            Self::One(server) => server.access_of(user),
            _ => self.access(),
        }
    }

    /// Returns the commands that Redis has refused to the users of the roles.
    pub async fn denials(&self) -> Vec<String> {
        match self {
            Self::One(server) => server.denials().await,
            _ => Vec::new(),
        }
    }

    /// The only server.
    ///
    /// # Panics
    /// Panics if there are several: the test should have been skipped.
    pub fn server(&mut self) -> &mut Server {
        match self {
            Self::One(server) => server,
            _ => panic!("a test that needs the only server must ask Site::lacks first"),
        }
    }

    /// Connects to the server that has a key now.
    pub async fn connection(&self, key: &str) -> MultiplexedConnection {
        let server = match self {
            Self::One(server) => server,
            Self::Sentinels(sentinels) => &sentinels.servers()[sentinels.master().await],
            Self::Cluster(cluster) => {
                let slot = cluster.slot_of(key).await;
                &cluster.nodes()[cluster.master_of(slot).await]
            }
        };
        server.connection().await
    }

    /// Returns all keys that begin with `<namespace>:`; in a cluster, master by master, so not of one moment.
    ///
    /// # Panics
    /// Panics if a server does not answer.
    pub async fn snapshot(&self, namespace: &str) -> Snapshot {
        let take = async |server: &Server| {
            let taken = Snapshot::take(&mut server.connection().await, namespace).await;
            taken.unwrap_or_else(|error| panic!("no snapshot: {error}"))
        };
        match self {
            Self::One(server) => take(server).await,
            Self::Sentinels(sentinels) => {
                take(&sentinels.servers()[sentinels.master().await]).await
            }
            Self::Cluster(cluster) => {
                let mut all = Snapshot::default();
                for master in cluster.masters().await {
                    all.extend(take(&cluster.nodes()[master]).await);
                }
                all
            }
        }
    }
}
