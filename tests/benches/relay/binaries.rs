//! Lisa's real binaries, as an operator runs them, and the machine resources they use.

use std::fmt::Write;
use std::fs;
use std::time::{Duration, Instant};

use lisa_tests::{Api, Binary, Process, free_port};

use crate::lab::Lab;

/// The time limit for a process to become ready, or to end.
const PATIENCE: Duration = Duration::from_secs(120);
/// The polling interval while a process starts: finer than the measured times.
const ASK_EVERY: Duration = Duration::from_micros(500);

/// The role of a process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Role {
    /// `lisa-producer run`
    Producer,
    /// `lisa-manager run`
    Manager,
    /// `lisa-consumer run`
    Consumer,
    /// `lisa-manager run --with-producer`
    Combined,
    /// `lisa-consumer run` with a gateway and no subscription
    Gateway,
}

impl Role {
    /// Those that a relay needs.
    pub(crate) const ALL: [Self; 4] = [
        Self::Producer,
        Self::Manager,
        Self::Consumer,
        Self::Combined,
    ];

    /// Returns its name in a table.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Producer => "producer",
            Self::Manager => "manager",
            Self::Consumer => "consumer",
            Self::Combined => "combined (manager with producer)",
            Self::Gateway => "gateway",
        }
    }
}

/// One configuration for all processes that belong together.
pub(crate) struct Site {
    url: String,
    namespace: String,
    topics: Vec<String>,
    gateway: String,
    more: String,
}

impl Site {
    /// A site on the lab's server with this many plain topics, named `t0`, `t1` …
    pub(crate) fn new(lab: &Lab, topics: usize) -> Self {
        Self::with(
            lab,
            (0..topics).map(|number| format!("t{number}")).collect(),
        )
    }

    /// A site with these plain topics.
    pub(crate) fn with(lab: &Lab, topics: Vec<String>) -> Self {
        // A first compilation takes minutes; the processes that are timed must not wait for it.
        eprintln!("  the binaries: {}", Binary::Manager.path().display());
        Self {
            url: lab.url(),
            namespace: lab.server().namespace("site"),
            topics,
            gateway: String::new(),
            more: String::new(),
        }
    }

    /// Adds TOML to the configuration of gateways, in the table `consumer`.
    pub(crate) fn gateway(self, gateway: String) -> Self {
        Self { gateway, ..self }
    }

    /// Adds whole tables of TOML to the configuration of other roles.
    pub(crate) fn more(self, more: &str) -> Self {
        Self {
            more: more.to_owned(),
            ..self
        }
    }

    /// Its namespace.
    pub(crate) fn namespace(&self) -> &str {
        &self.namespace
    }

    /// Starts a process and waits until its listener says that it is ready.
    ///
    /// # Panics
    /// Panics if it is not ready within two minutes; the message has its log.
    pub(crate) async fn start(&self, role: Role) -> Running {
        let (binary, arguments) = match role {
            Role::Producer => (Binary::Producer, &["run"][..]),
            Role::Manager => (Binary::Manager, &["run"][..]),
            Role::Consumer | Role::Gateway => (Binary::Consumer, &["run"][..]),
            Role::Combined => (Binary::Manager, &["run", "--with-producer"][..]),
        };
        let port = free_port();
        let launch = binary.with(arguments.iter().copied());
        let launch = launch.config(&self.config(role, port));
        let api = Api::new(port);
        let began = Instant::now();
        let process = launch.start();
        loop {
            if api
                .try_get("/readyz")
                .await
                .is_some_and(|reply| reply.status == 200)
            {
                break;
            }
            let log = || process.stderr();
            assert!(
                began.elapsed() < PATIENCE,
                "{role:?} is not ready:\n{}",
                log()
            );
            tokio::time::sleep(ASK_EVERY).await;
        }
        Running {
            role,
            process,
            port,
            ready_after: began.elapsed(),
        }
    }

    fn config(&self, role: Role, port: u16) -> String {
        let (url, namespace) = (&self.url, &self.namespace);
        let mut config = format!("namespace = \"{namespace}\"\n[redis]\nurl = \"{url}\"\n");
        if role == Role::Gateway {
            let own = free_port();
            let _ = write!(
                config,
                "[consumer]\nlisten = \"127.0.0.1:{own}\"\ngateway.listen = \"127.0.0.1:{port}\"\n{}",
                self.gateway
            );
            return config;
        }
        for role in ["producer", "manager", "consumer"] {
            let _ = write!(config, "[{role}]\nlisten = \"127.0.0.1:{port}\"\n");
        }
        for topic in &self.topics {
            let _ = write!(
                config,
                "[[consumer.subscriptions]]\ntopic = \"{topic}\"\ngroup = \"default\"\nconcurrency = 16\nsink = {{ type = \"stdout\" }}\n"
            );
        }
        for topic in &self.topics {
            let _ = writeln!(config, "[topics.{topic}]");
        }
        config + &self.more
    }
}

/// A process that is ready. Dropping it kills it.
pub(crate) struct Running {
    /// Its role.
    pub(crate) role: Role,
    /// The port of its listener, on 127.0.0.1.
    pub(crate) port: u16,
    /// The time from its start until it reported ready.
    pub(crate) ready_after: Duration,
    process: Process,
}

impl Running {
    /// Processor time of all its threads so far, in seconds; `None` where the system does not report it (other than
    /// Linux).
    pub(crate) fn cpu(&self) -> Option<f64> {
        let tasks = fs::read_dir(format!("/proc/{}/task", self.process.pid()?)).ok()?;
        let nanos = tasks.flatten().filter_map(|task| {
            let text = fs::read_to_string(task.path().join("schedstat")).ok()?;
            text.split_whitespace().next()?.parse::<f64>().ok()
        });
        // A system that keeps no such statistics has no file, or zeros.
        Some(nanos.sum::<f64>() / 1e9).filter(|seconds| *seconds > 0.0)
    }

    /// A size of `/proc/<pid>/status` in MiB, such as `VmRSS`; `None` where the system does not report it.
    pub(crate) fn mib(&self, field: &str) -> Option<f64> {
        let status = fs::read_to_string(format!("/proc/{}/status", self.process.pid()?)).ok()?;
        let size = status
            .lines()
            .find_map(|line| line.strip_prefix(field)?.strip_prefix(':'))?;
        let kib: f64 = size.split_whitespace().next()?.parse().ok()?;
        Some(kib / 1024.0)
    }

    /// Ends it as an operator does.
    ///
    /// # Panics
    /// Panics if it does not end within two minutes.
    pub(crate) async fn end(mut self) {
        self.process.sigterm();
        self.process.wait_exit(PATIENCE).await;
    }

    /// Returns its number of threads; `None` where the system does not report it.
    pub(crate) fn threads(&self) -> Option<usize> {
        let tasks = fs::read_dir(format!("/proc/{}/task", self.process.pid()?)).ok()?;
        Some(tasks.count())
    }
}
