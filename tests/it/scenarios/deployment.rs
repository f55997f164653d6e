//! A relay as an operator runs it: its own Redis, one configuration, and any number of processes of each role.
//!
//! It starts processes and asks for their counts; the scenarios check the results.

use super::SOON;
use crate::faults::role::config_of;
use lisa_core::broker::Broker;
use lisa_tests::process::Finished;
use lisa_tests::{
    Aof, Api, Binary, Launch, Process, Server, Site, Snapshot, eventually, free_port,
};
use redis::aio::MultiplexedConnection;
use serde_json::Value;
use std::path::PathBuf;

/// The topic of every scenario, and its only group if nothing else is said.
pub(crate) const TOPIC: &str = "orders";
pub(crate) const GROUP: &str = "billing";

/// A Redis and the common part of all configurations.
pub(crate) struct Deployment {
    pub(crate) site: Site,
    topic: String,
    rest: String,
    /// The groups in the configuration, and the one that its consumers read for.
    groups: Vec<String>,
    reader: String,
    /// The folder of the programs of another version, for processes that start from now on.
    programs: Option<PathBuf>,
}

/// A running process with its listener.
pub(crate) struct Role {
    pub(crate) process: Process,
    pub(crate) api: Api,
}

impl Deployment {
    /// Starts with a private Redis; `topic` holds further keys of the topic, in TOML.
    pub(crate) async fn start(topic: &str) -> Self {
        Self::on(Site::start(Aof::Off).await, topic)
    }

    /// Starts on a server that writes each command to disk.
    pub(crate) async fn durable(topic: &str) -> Self {
        Self::on(Site::start(Aof::Always).await, topic)
    }

    /// Starts on this Redis.
    pub(crate) fn on(site: Site, topic: &str) -> Self {
        Self {
            site,
            topic: topic.to_owned(),
            rest: String::new(),
            groups: vec![GROUP.to_owned()],
            reader: GROUP.to_owned(),
            programs: None,
        }
    }

    /// Runs the programs in this folder from now on, or those of this version.
    pub(crate) fn programs_in(mut self, folder: Option<PathBuf>) -> Self {
        self.programs = folder;
        self
    }

    /// Adds whole tables to the configuration.
    pub(crate) fn with(mut self, tables: &str) -> Self {
        self.rest = tables.to_owned();
        self
    }

    /// Sets the topic's groups, in the configuration of processes that start from now on.
    pub(crate) fn groups(mut self, groups: &[&str]) -> Self {
        self.set_groups(groups);
        self
    }

    pub(crate) fn set_groups(&mut self, groups: &[&str]) {
        self.groups = groups.iter().map(|&group| group.to_owned()).collect();
    }

    /// Lets consumer processes read for this group.
    pub(crate) fn reader(mut self, group: &str) -> Self {
        group.clone_into(&mut self.reader);
        self
    }

    /// A configuration like `config/separate.toml`, on free ports; `consumer` holds the keys of the subscription, and
    /// `user` is the login where each role has its own.
    pub(crate) fn config(&self, user: &str, listen: u16, consumer: &str) -> String {
        let access = self.site.access_of(user);
        let access = access
            .iter()
            .map(|(key, value)| format!("{key} = {value:?}\n"));
        let (access, topic, rest) = (String::from_iter(access), &self.topic, &self.rest);
        let (groups, reader) = (&self.groups, &self.reader);
        format!(
            r#"
            namespace = "lisa"
            {access}
            [producer]
            listen = "127.0.0.1:{listen}"
            [manager]
            listen = "127.0.0.1:{listen}"
            [consumer]
            listen = "127.0.0.1:{listen}"
            [[consumer.subscriptions]]
            topic = "{TOPIC}"
            group = "{reader}"
            {consumer}
            [topics.{TOPIC}]
            groups = {groups:?}
            {topic}
            {rest}
            "#
        )
    }

    /// Starts a process of a role, without waiting for anything.
    pub(crate) fn launch(&self, binary: Binary, arguments: &[&str], consumer: &str) -> Role {
        let port = free_port();
        let launch = match &self.programs {
            Some(folder) => Launch::new(folder.join(binary.name()), arguments.iter().copied()),
            None => binary.with(arguments.iter().copied()),
        };
        Role {
            process: launch
                .config(&self.config(user(binary, arguments), port, consumer))
                .start(),
            api: Api::new(port),
        }
    }

    async fn ready(&self, binary: Binary, arguments: &[&str], consumer: &str) -> Role {
        let mut role = self.launch(binary, arguments, consumer);
        role.ready().await;
        role
    }

    /// Starts a producer and waits until it is ready; likewise the others.
    pub(crate) async fn producer(&self) -> Role {
        self.ready(Binary::Producer, &["run"], STDOUT).await
    }

    pub(crate) async fn manager(&self) -> Role {
        self.ready(Binary::Manager, &["run"], STDOUT).await
    }

    /// Producer and manager in one process.
    pub(crate) async fn combined(&self) -> Role {
        let arguments = ["run", "--with-producer"];
        self.ready(Binary::Manager, &arguments, STDOUT).await
    }

    /// Starts a consumer; `settings` are those of its subscription, in TOML.
    pub(crate) async fn consumer(&self, settings: &str) -> Role {
        self.ready(Binary::Consumer, &["run"], settings).await
    }

    /// Runs a verb to its end.
    pub(crate) async fn verb(&self, binary: Binary, arguments: &[&str]) -> Finished {
        let launch = binary.with(arguments.iter().copied());
        launch
            .config(&self.config(user(binary, arguments), free_port(), STDOUT))
            .run(SOON)
            .await
    }

    /// Runs a verb with `--output json`, and returns its exit code and what it printed.
    pub(crate) async fn json(&self, binary: Binary, arguments: &[&str]) -> (i32, Value) {
        let arguments = [arguments, &["--output", "json"]].concat();
        let done = self.verb(binary, &arguments).await;
        let printed = serde_json::from_str(&done.stdout);
        let printed = printed.unwrap_or_else(|error| panic!("{error}: {done:?}"));
        (done.code.unwrap_or(-1), printed)
    }

    /// The counts of the topic, as `lisa-manager stats` prints them.
    pub(crate) async fn stats(&self) -> Value {
        let (code, mut stats) = self.json(Binary::Manager, &["stats"]).await;
        assert_eq!(code, 0);
        let topics = stats["topics"].as_array_mut().expect("a list of topics");
        let found = topics.iter_mut().find(|topic| topic["topic"] == TOPIC);
        found.expect("the topic").take()
    }

    /// The number of messages in a state, all groups together, or `waiting`.
    pub(crate) fn count(stats: &Value, state: &str) -> u64 {
        let number = |of: &Value| {
            of[state]
                .as_u64()
                .unwrap_or_else(|| panic!("no {state} in {stats}"))
        };
        if state == "waiting" {
            return number(stats);
        }
        let groups = stats["groups"].as_array().expect("a list of groups");
        groups.iter().map(number).sum()
    }

    /// A counter of the topic; 0 if nothing was counted.
    pub(crate) fn counter(stats: &Value, name: &str) -> i64 {
        stats["counters"][name].as_i64().unwrap_or(0)
    }

    /// Waits until the given numbers of messages are in the given states, and returns the counts.
    #[track_caller]
    pub(crate) fn settled(&self, wanted: &[(&str, u64)]) -> impl Future<Output = Value> {
        eventually(SOON, async move || {
            let stats = self.stats().await;
            let holds = |(state, count): &(&str, u64)| Self::count(&stats, state) == *count;
            if wanted.iter().all(holds) {
                Ok(stats)
            } else {
                Err(format!("wanted {wanted:?}, seen {stats:#}"))
            }
        })
    }

    /// Waits until no message is on its way any more; garbage may be left. Returns the counts.
    #[track_caller]
    pub(crate) fn drained(&self) -> impl Future<Output = Value> {
        self.settled(&[
            ("waiting", 0),
            ("backlog", 0),
            ("parked", 0),
            ("ready", 0),
            ("in_flight", 0),
            ("retry", 0),
        ])
    }

    /// Checks that every message is in exactly one place, and that no user was refused anything; the last step of every
    /// scenario.
    pub(crate) async fn conserved(&self) {
        let stats = self.stats().await;
        assert_eq!(stats["conservation_error"], 0, "{stats:#}");
        assert_eq!(Self::counter(&stats, "lost"), 0, "{stats:#}");
        let denials = self.site.denials().await;
        assert_eq!(denials, Vec::<String>::new(), "a user lacks a right");
    }

    /// Returns a broker with its own connection, for roles in this process.
    pub(crate) async fn broker(&self) -> Broker {
        let config = config_of(&self.site.access(), "lisa", &[]);
        lisa_service::role::connect(&config, SOON).await.unwrap()
    }

    /// Everything in Redis.
    pub(crate) async fn snapshot(&self) -> Snapshot {
        self.site.snapshot("lisa").await
    }

    /// The only server; see [`Site::server`].
    pub(crate) fn server(&mut self) -> &mut Server {
        self.site.server()
    }

    /// A connection to the server that has this key.
    pub(crate) async fn connection(&self, key: &str) -> MultiplexedConnection {
        self.site.connection(key).await
    }

    /// Returns the number of deliveries on the stream by consumer, by Redis's names of the consumers.
    pub(crate) async fn held(&self) -> Vec<(String, u64)> {
        let key = format!("lisa:v1:{{{TOPIC}:0}}:ready:{GROUP}");
        let mut ask = redis::cmd("XPENDING");
        ask.arg(&key).arg(GROUP);
        let summary = ask.query_async(&mut self.connection(&key).await).await;
        let (_, _, _, holders): Pending = summary.expect("the group exists");
        holders.unwrap_or_default()
    }
}

/// Returns the user of a process with these arguments.
pub(crate) fn user(binary: Binary, arguments: &[&str]) -> &'static str {
    match binary {
        _ if arguments.first() != Some(&"run") => "lisa-operator",
        Binary::Manager if arguments.contains(&"--with-producer") => "lisa-manager-producer",
        Binary::Manager => "lisa-manager",
        Binary::Producer => "lisa-producer",
        Binary::Consumer => "lisa-consumer",
    }
}

/// The summary of XPENDING: how many, the first and the last entry, and how many each consumer holds.
type Pending = (u64, redis::Value, redis::Value, Option<Vec<(String, u64)>>);

/// The subscription of a consumer that prints.
pub(crate) const STDOUT: &str = r#"concurrency = 64
            sink = { type = "stdout" }"#;

impl Role {
    /// Waits until it is ready.
    #[track_caller]
    pub(crate) fn ready(&mut self) -> impl Future<Output = ()> {
        eventually(SOON, async || self.answers("/readyz", 200).await)
    }

    /// Asks once whether a path is answered with this status.
    pub(crate) async fn answers(&self, path: &str, status: u16) -> Result<(), String> {
        let state = match self.api.try_get(path).await {
            Some(reply) if reply.status == status => return Ok(()),
            Some(reply) => format!("{} {}", reply.status, reply.body),
            None => "no answer".to_owned(),
        };
        Err(format!("{state}\n{}", self.process.stderr()))
    }

    /// Ends it with SIGTERM and checks that it exits with 0.
    pub(crate) async fn stop(&mut self) {
        self.process.sigterm();
        let status = self.process.wait_exit(SOON).await;
        assert_eq!(status.code(), Some(0), "{}", self.process.stderr());
    }
}
