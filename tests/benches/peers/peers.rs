//! The peers: how each is run, with which settings, and what it cannot do.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

use crate::store::Store;
use crate::store::owned::postgres_programs;

/// A measured system.
pub(crate) struct Peer {
    /// Its name for `--only`; up to a dash, its folder.
    pub(crate) name: &'static str,
    /// The spelling of its name, without the version.
    pub(crate) title: &'static str,
    /// The language of its program and how it is tuned.
    pub(crate) settings: &'static str,
    /// The features that it lacks.
    pub(crate) cannot: &'static str,
    /// Messages sent in bulk; 0 if it has no bulk call.
    pub(crate) bulk: usize,
    /// Messages sent one per call.
    pub(crate) single: usize,
    /// Messages drained.
    pub(crate) drain: usize,
    /// Worker processes that are tried; more than one where a process is one thread.
    pub(crate) workers: &'static [usize],
    /// The shortest delay that it supports, above zero.
    pub(crate) least_delay: Duration,
    /// The runtime of a client for other languages than Rust, for the section of clients.
    pub(crate) runtime: Option<&'static str>,
}

const MS: Duration = Duration::from_millis(1);
const SECOND: Duration = Duration::from_secs(1);

/// All, Lisa first.
pub(crate) const PEERS: [Peer; 16] = [
    Peer {
        name: "lisa",
        title: "Lisa",
        settings: "Rust; manager and consumer in one process, concurrency 500, default settings of the topic; bulk: `send_batch` of 500; single: 50 callers of one producer",
        cannot: "",
        bulk: 100_000,
        single: 50_000,
        drain: 100_000,
        workers: &[1],
        least_delay: MS,
        runtime: None,
    },
    Peer {
        name: "typescript",
        title: "Lisa from TypeScript",
        settings: "Node, `lisa-relay`, over HTTP; a manager with its producer and a gateway, a process each; concurrency 500, default settings of the topic; bulk: `sendMany` of 1,000; single: 50 `send` in flight",
        cannot: "",
        bulk: 50_000,
        single: 40_000,
        drain: 50_000,
        workers: &[1],
        least_delay: MS,
        runtime: Some("Node"),
    },
    Peer {
        name: "python",
        title: "Lisa from Python",
        settings: "Python, `lisa_relay.AsyncLisa`, uvloop, over HTTP; the rest as from TypeScript; bulk: `send_many` of 500; single: 50 `send` in flight",
        cannot: "",
        bulk: 50_000,
        single: 40_000,
        drain: 50_000,
        workers: &[1],
        least_delay: MS,
        runtime: Some("Python"),
    },
    Peer {
        name: "java",
        title: "Lisa from Java",
        settings: "Java, `lisa.relay.Lisa`, the JVM's defaults, over HTTP; the rest as from Python, but single: `send` of 50 threads; the first two seconds of each stage include the JVM's own compilation",
        cannot: "",
        bulk: 100_000,
        single: 60_000,
        drain: 100_000,
        workers: &[1],
        least_delay: MS,
        runtime: Some("Java"),
    },
    Peer {
        name: "go",
        title: "Lisa from Go",
        settings: "Go, `lisarelay`, over HTTP; the rest as from Python, but single: `Send` of 50 goroutines",
        cannot: "",
        bulk: 50_000,
        single: 40_000,
        drain: 50_000,
        workers: &[1],
        least_delay: MS,
        runtime: Some("Go"),
    },
    Peer {
        name: "bullmq",
        title: "BullMQ",
        settings: "Node, ioredis; concurrency 500, `removeOnComplete`; bulk: `addBulk` of 1,000; single: 50 `add` in flight",
        cannot: "no order by key in the free edition",
        bulk: 40_000,
        single: 40_000,
        drain: 40_000,
        workers: &[1, 2],
        least_delay: MS,
        runtime: Some("Node"),
    },
    Peer {
        name: "apalis",
        title: "apalis-redis",
        settings: "Rust; batches of 500, concurrency 500, parallelized on all threads, polls every 10 ms, events and leases off, results stored (it acknowledges nothing without); bulk: `push_all` of 500; single: 50 `push_task` in flight",
        cannot: "more than about 8,000 due at once: its script fails (`too many results to unpack`) and the worker ends; due times are whole seconds, cut off: early by up to 1 s; no order by key",
        bulk: 50_000,
        single: 25_000,
        drain: 7_000,
        workers: &[1],
        least_delay: SECOND,
        runtime: None,
    },
    Peer {
        name: "apalis-leases",
        title: "apalis-redis with leases",
        settings: "as above, with leases: its default, and what Lisa always has",
        cannot: "as above",
        bulk: 50_000,
        single: 25_000,
        drain: 7_000,
        workers: &[1],
        least_delay: SECOND,
        runtime: None,
    },
    Peer {
        name: "beanstalkd",
        title: "beanstalkd",
        settings: "C server of its own, nothing on disk; our client pipelines: bulk 500 `put` a write; worker: up to 500 `reserve` and their `delete` a write, 2 connections; single: 50 connections",
        cannot: "delays are whole seconds; no order by key; one thread and one machine",
        bulk: 100_000,
        single: 50_000,
        drain: 100_000,
        workers: &[1],
        least_delay: SECOND,
        runtime: None,
    },
    Peer {
        name: "rabbitmq",
        title: "RabbitMQ",
        settings: "Erlang server of its own, no plugin; classic queues, not durable, and transient messages: nothing waits for a disk; one queue per delay with `x-message-ttl`, dead-lettered to the worker's queue; our client in Rust, lapin, 4 channels; bulk: confirms of 500 `publish` at a time on each; single: 50 callers; worker: prefetch 300 on each, up to 100 handled messages per `ack`",
        cannot: "a message expires only at the head of its queue: mixed delays in one queue block each other, so each delay needs its own; no due time in any queue, no cancel; dead-lettering from classic queues is at most once; no order by key",
        bulk: 50_000,
        single: 25_000,
        drain: 50_000,
        workers: &[1],
        least_delay: MS,
        runtime: None,
    },
    Peer {
        name: "nats",
        title: "NATS JetStream",
        settings: "Go server of its own; stream in memory, work queue; our client in Rust, async-nats; bulk: acknowledgments of 500 `publish` at a time; single: 50 callers; worker: a pull consumer, 500 a pull, no limit to pending messages",
        cannot: "this version has no schedules (2.12 has): the worker receives each message early and returns it by `nak` with the rest of the delay, so a send and an overdue drain are those of a queue without delays; no cancel; no order by key",
        bulk: 100_000,
        single: 50_000,
        drain: 100_000,
        workers: &[1],
        least_delay: MS,
        runtime: None,
    },
    Peer {
        name: "pgboss",
        title: "pg-boss on PostgreSQL",
        settings: "Node; PostgreSQL with `fsync`, `synchronous_commit` and `full_page_writes` off and 512 MB of shared buffers, since the others have nothing on disk; a partition of its own, 10 connections; bulk: `insert` of 500; single: 50 `send` in flight; worker: `localConcurrency` 2, `batchSize` 500, `burstWhenBatchFull`, polls every 0.5 s; completed jobs stay",
        cannot: "a waiting worker looks for due jobs every 0.5 s at most: `pollingIntervalSeconds` cannot be lower, and `notify` reports no due times",
        bulk: 20_000,
        single: 5_000,
        drain: 20_000,
        workers: &[1, 2],
        least_delay: MS,
        runtime: None,
    },
    Peer {
        name: "streaq",
        title: "streaq",
        settings: "Python, uvloop; concurrency 500, `ttl=0`, silent; bulk: `enqueue_many` of 500; single: 50 in flight",
        cannot: "delayed tasks are looked for every 0.5 s; no order by key",
        bulk: 20_000,
        single: 10_000,
        drain: 5_000,
        workers: &[1, 2],
        least_delay: MS,
        runtime: Some("Python"),
    },
    Peer {
        name: "arq",
        title: "arq",
        settings: "Python, uvloop, hiredis; `max_jobs` 500, `poll_delay` 50 ms, `queue_read_limit` 1,000, `keep_result` 0; single: 50 in flight",
        cannot: "no bulk call; delayed jobs are looked for every `poll_delay`; no order by key",
        bulk: 0,
        single: 10_000,
        drain: 5_000,
        workers: &[1, 2],
        least_delay: MS,
        runtime: Some("Python"),
    },
    Peer {
        name: "taskiq",
        title: "taskiq",
        settings: "Python, uvloop, hiredis; `RedisStreamBroker`, `ListRedisScheduleSource`; 500 tasks at once and the scheduler in one process, which looks for schedules every second; single: 50 in flight",
        cannot: "no bulk call; schedules are looked for every second; no order by key",
        bulk: 0,
        single: 10_000,
        drain: 5_000,
        workers: &[1],
        least_delay: MS,
        runtime: Some("Python"),
    },
    Peer {
        name: "celery",
        title: "celery",
        settings: "Python, hiredis; 4 threads, prefetch 64, results, events, gossip, mingle and heartbeat off; single: one caller, which is synchronous",
        cannot: "no bulk call; a worker fetches delayed tasks at once and holds them in memory until they are due; a delay above the visibility time-out (1 h) is delivered again; no order by key",
        bulk: 0,
        single: 5_000,
        drain: 5_000,
        workers: &[1, 2],
        least_delay: MS,
        runtime: Some("Python"),
    },
];

impl Peer {
    /// Starts the kind of server that it needs.
    pub(crate) fn store(&self) -> Result<Store, String> {
        match self.name {
            "beanstalkd" => Store::beanstalkd(),
            "rabbitmq" => Store::rabbitmq(),
            "nats" => Store::nats(),
            "pgboss" => Store::postgres(),
            _ if self.is_client() => Store::lisa(),
            _ => Store::redis(),
        }
    }

    /// Returns true if it is a client of Lisa's HTTP interface.
    pub(crate) fn is_client(&self) -> bool {
        matches!(self.name, "typescript" | "python" | "java" | "go")
    }

    /// Its folder, here and where it is installed.
    fn folder(&self) -> &'static str {
        self.name.split('-').next().unwrap_or(self.name)
    }

    /// Its name with the version, as pinned or as reported by itself.
    pub(crate) fn versioned(&self) -> String {
        let pins = match self.folder() {
            "bullmq" => include_str!("bullmq/package.json"),
            "apalis" => include_str!("apalis/Cargo.toml"),
            "streaq" => include_str!("streaq/requirements.txt"),
            "arq" => include_str!("arq/requirements.txt"),
            "celery" => include_str!("celery/requirements.txt"),
            "taskiq" => include_str!("taskiq/requirements.txt"),
            "pgboss" => include_str!("pgboss/package.json"),
            "beanstalkd" => return said(Command::new("beanstalkd").arg("-v")),
            "rabbitmq" | "nats" => return format!("{} {}", self.title, packaged(self.name)),
            _ => return format!("{} {}", self.title, env!("CARGO_PKG_VERSION")),
        };
        let (name, variant) = self.title.split_once(' ').unwrap_or((self.title, ""));
        let pinned = name.to_lowercase();
        let version = pins
            .lines()
            .find_map(|line| line.trim_start_matches([' ', '"']).strip_prefix(&pinned))
            .unwrap_or_default();
        let version = number_in(version);
        let on = match self.name {
            "pgboss" => postgres_version(),
            _ => String::new(),
        };
        let words = format!("{name} {version} {variant} {on}");
        words.trim_end().to_owned()
    }
}

/// The version of a server that `fetch-package.sh` has unpacked.
fn packaged(name: &str) -> String {
    let script = concat!(env!("CARGO_MANIFEST_DIR"), "/fetch-package.sh");
    let program = said(Command::new("bash").args([script, name]));
    let said = match name {
        "nats" => said(Command::new(program).arg("--version")),
        // RabbitMQ itself takes seconds to report it.
        _ => Path::new(&program)
            .ancestors()
            .nth(2)
            .and_then(|package| package.join("lib").read_dir().ok())
            .and_then(|mut servers| servers.next()?.ok())
            .map(|server| server.file_name().to_string_lossy().into_owned())
            .unwrap_or_default(),
    };
    number_in(&said)
}

/// The version of the PostgreSQL in use.
fn postgres_version() -> String {
    postgres_programs()
        .map(|folder| {
            number_in(&said(
                Command::new(folder.join("postgres")).arg("--version"),
            ))
        })
        .unwrap_or_default()
}

/// The first version in a text.
pub(crate) fn number_in(text: &str) -> String {
    let start = text.trim_start_matches(|c: char| !c.is_ascii_digit());
    let end = start.find(|c: char| c != '.' && !c.is_ascii_digit());
    start[..end.unwrap_or(start.len())].to_owned()
}

/// The first line that a command prints.
pub(crate) fn said(command: &mut Command) -> String {
    let output = command.output().map(|output| output.stdout);
    let text = String::from_utf8_lossy(&output.unwrap_or_default()).into_owned();
    text.lines().next().unwrap_or_default().to_owned()
}

/// The installation of the peers.
pub(crate) struct Install {
    sources: PathBuf,
    folder: PathBuf,
}

impl Install {
    /// A folder in the user's cache.
    pub(crate) fn new() -> Self {
        let cache = std::env::var_os("XDG_CACHE_HOME").map(PathBuf::from);
        let home = std::env::var_os("HOME").map(|home| Path::new(&home).join(".cache"));
        let cache = cache.or(home).unwrap_or_else(std::env::temp_dir);
        Self {
            sources: Path::new(env!("CARGO_MANIFEST_DIR")).join("benches/peers"),
            folder: cache.join("lisa-bench"),
        }
    }

    /// Installs a peer if it is missing.
    ///
    /// # Errors
    /// Installs a peer. The error is the last line that the installation printed.
    pub(crate) fn install(&self, peer: &Peer) -> Result<(), String> {
        let output = Command::new("bash")
            .arg(self.sources.join("install.sh"))
            .arg(peer.folder())
            .arg(&self.folder)
            .stdin(Stdio::null())
            .output()
            .map_err(|error| error.to_string())?;
        if output.status.success() {
            return Ok(());
        }
        let text = String::from_utf8_lossy(&output.stderr);
        let last = text.lines().rfind(|line| !line.trim().is_empty());
        Err(last.unwrap_or("it does not say why").to_owned())
    }

    /// The command that runs a peer's program.
    pub(crate) fn command(&self, peer: &Peer, address: &str, arguments: &[&str]) -> Command {
        let folder = self.folder.join(peer.folder());
        let mut command = match peer.folder() {
            "bullmq" | "pgboss" | "typescript" => {
                let mut node = Command::new("node");
                node.arg(folder.join("peer.mjs"));
                node
            }
            "apalis" => {
                let mut apalis = Command::new(folder.join("release/lisa-bench-apalis"));
                if peer.name == "apalis-leases" {
                    apalis.env("LEASES", "1");
                }
                apalis
            }
            "java" => {
                let mut java = Command::new("java");
                let classes = ["lisa-relay.jar", "classes"].map(|part| folder.join(part));
                java.arg("-cp")
                    .arg(std::env::join_paths(classes).expect("paths"));
                java.arg("Peer");
                java
            }
            "go" => Command::new(folder.join("peer")),
            "streaq" | "arq" | "taskiq" | "celery" | "python" => {
                let mut python = Command::new(folder.join("venv/bin/python"));
                python.env("PYTHONPATH", &self.sources);
                python.env("PYTHONDONTWRITEBYTECODE", "1");
                python.args(["-W", "ignore"]);
                python.arg(self.sources.join(peer.folder()).join("peer.py"));
                python
            }
            // This very program: see `main`.
            name => {
                let mut own = Command::new(std::env::current_exe().expect("this program's path"));
                own.args(["--bench", crate::PROGRAM, name]);
                own
            }
        };
        command.arg(address).args(arguments);
        command
    }
}
