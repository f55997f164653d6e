//! The environment of all measurements: a private server, the clock of its main thread, and alternating rounds.
//!
//! Knows neither Lisa nor the variants. Absolute figures of a shared machine hold only for their minute, so variants
//! take turns, and ratios are those of one round.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::rc::Rc;
use std::time::Instant;

use futures_util::future::LocalBoxFuture;
use lisa_tests::{Aof, Server};
use redis::aio::MultiplexedConnection;
use redis::{FromRedisValue, cmd};
use rustix::time::{ClockId, clock_gettime};

use crate::options::Options;
use crate::report::number;
use crate::slowlog::{self, Call};

/// The number of times that each variant is measured.
pub(crate) const ROUNDS: usize = 5;
/// Script calls that take at least this many µs are recorded one by one.
pub(crate) const LONG_US: u64 = 500;

/// A server and what is known about the run. Cheap to clone.
#[derive(Clone)]
pub(crate) struct Lab {
    /// The options of the command line.
    pub(crate) options: Options,
    /// One server, or the nodes of a cluster.
    nodes: Rc<[Node]>,
    transport: Transport,
    records: Rc<Records>,
}

/// A server with the harness's connection to it.
struct Node {
    server: Server,
    connection: MultiplexedConnection,
}

/// The type of connection of the measured program.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Transport {
    Unix,
    Tcp,
    Cluster,
}

/// Records over all servers of a run.
#[derive(Default)]
struct Records {
    section: Cell<&'static str>,
    variant: RefCell<String>,
    longest: RefCell<BTreeMap<Place, Vec<f64>>>,
}

/// The stage and variant in which a script was called.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Place {
    /// The section.
    pub(crate) section: &'static str,
    /// The script.
    pub(crate) script: String,
    /// The variant that was timed.
    pub(crate) variant: String,
}

/// One timed stretch of work.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Sample {
    /// Messages.
    pub(crate) n: u64,
    /// Wall-clock time.
    pub(crate) seconds: f64,
    /// Processor time of the server's main thread.
    pub(crate) cpu: f64,
    /// Processor time of this process, which is the client.
    pub(crate) client: f64,
}

impl Sample {
    /// Several stretches as one.
    pub(crate) fn sum(parts: &[Self]) -> Self {
        Self {
            n: parts.iter().map(|part| part.n).sum(),
            seconds: parts.iter().map(|part| part.seconds).sum(),
            cpu: parts.iter().map(|part| part.cpu).sum(),
            client: parts.iter().map(|part| part.client).sum(),
        }
    }

    /// Messages per second.
    pub(crate) fn rate(&self) -> f64 {
        self.n as f64 / self.seconds
    }

    /// Processor time of the server's main thread for one message, µs.
    pub(crate) fn cpu_us(&self) -> f64 {
        self.cpu * 1e6 / self.n as f64
    }

    /// Processor time of the client for one message, µs.
    pub(crate) fn client_us(&self) -> f64 {
        self.client * 1e6 / self.n as f64
    }
}

/// The median of some values, and their extremes.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Spread {
    /// The median.
    pub(crate) median: f64,
    /// The least.
    pub(crate) min: f64,
    /// The greatest.
    pub(crate) max: f64,
}

impl Spread {
    /// Sorts values; there must be one.
    pub(crate) fn of(values: impl IntoIterator<Item = f64>) -> Self {
        let mut values: Vec<f64> = values.into_iter().collect();
        values.sort_by(f64::total_cmp);
        let middle = values.len() / 2;
        let median = if values.len().is_multiple_of(2) {
            f64::midpoint(values[middle - 1], values[middle])
        } else {
            values[middle]
        };
        Self {
            median,
            min: values[0],
            max: values[values.len() - 1],
        }
    }

    /// The median, with the least and the most.
    pub(crate) fn ranged(self) -> String {
        format!(
            "{} ({}–{})",
            number(self.median),
            number(self.min),
            number(self.max)
        )
    }

    /// The ratio of two variants, round by round.
    pub(crate) fn of_ratios<T>(over: &[T], under: &[T], figure: impl Fn(&T) -> f64) -> Self {
        let rounds = over.iter().zip(under);
        Self::of(rounds.map(|(over, under)| figure(over) / figure(under)))
    }
}

/// One of the variants that are compared, and a round of it.
pub(crate) struct Variant<'a, T> {
    name: String,
    round: Box<dyn Fn() -> LocalBoxFuture<'a, T> + 'a>,
}

impl<'a, T: 'a> Variant<'a, T> {
    /// Names a round. It prepares its data on an empty server, and times its own work.
    pub(crate) fn new<R: Future<Output = T> + 'a>(
        name: impl Into<String>,
        round: impl Fn() -> R + 'a,
    ) -> Self {
        Self {
            name: name.into(),
            round: Box::new(move || Box::pin(round())),
        }
    }
}

impl Lab {
    /// Starts a server as the shipped configuration has it, without append-only file.
    pub(crate) async fn start(options: Options) -> Self {
        Self::with(options, Rc::default(), vec![settings(Aof::Off).start()]).await
    }

    /// Adds another server, built from [`settings`], to the same run.
    pub(crate) async fn beside(&self, server: Server) -> Self {
        Self::with(self.options.clone(), self.records.clone(), vec![server]).await
    }

    /// Adds the nodes of a cluster; its figures are sums over them.
    pub(crate) async fn beside_cluster(&self, nodes: Vec<Server>) -> Self {
        let cluster = Self::with(self.options.clone(), self.records.clone(), nodes).await;
        Self {
            transport: Transport::Cluster,
            ..cluster
        }
    }

    async fn with(options: Options, records: Rc<Records>, servers: Vec<Server>) -> Self {
        let mut nodes = Vec::new();
        for server in servers {
            let connection = server.connection().await;
            nodes.push(Node { server, connection });
        }
        Self {
            options,
            nodes: nodes.into(),
            transport: Transport::Unix,
            records,
        }
    }

    /// The same server, for which TCP is used.
    pub(crate) fn over_tcp(&self) -> Self {
        Self {
            transport: Transport::Tcp,
            ..self.clone()
        }
    }

    /// The server; of a cluster, its first node.
    pub(crate) fn server(&self) -> &Server {
        &self.nodes[0].server
    }

    /// The address for the measured program: the unix socket, TCP, or all nodes of a cluster.
    pub(crate) fn url(&self) -> String {
        match self.transport {
            Transport::Unix => self.server().socket_url(),
            Transport::Tcp => self.server().url(),
            Transport::Cluster => {
                let port = |node: &Node| format!("127.0.0.1:{}", node.server.port());
                let ports: Vec<_> = self.nodes.iter().map(port).collect();
                format!("redis+cluster://{}", ports.join(","))
            }
        }
    }

    /// Opens a connection for the measured program.
    pub(crate) async fn connect(&self) -> MultiplexedConnection {
        let client = redis::Client::open(self.url()).expect("an address");
        let connection = client.get_multiplexed_async_connection().await;
        connection.expect("a server that accepts")
    }

    /// The harness's connection; a clone of it is another user of the same one.
    pub(crate) fn connection(&self) -> MultiplexedConnection {
        self.nodes[0].connection.clone()
    }

    /// Asks the server.
    ///
    /// # Panics
    /// Panics if it refuses.
    pub(crate) async fn ask<T: FromRedisValue>(&self, command: &redis::Cmd) -> T {
        let reply = command.query_async(&mut self.connection()).await;
        reply.unwrap_or_else(|error| panic!("{command:?}: {error}"))
    }

    /// Asks each node.
    async fn ask_all<T: FromRedisValue>(&self, command: &redis::Cmd) -> Vec<T> {
        let mut replies = Vec::new();
        for node in &*self.nodes {
            let reply = command.query_async(&mut node.connection.clone()).await;
            replies.push(reply.unwrap_or_else(|error| panic!("{command:?}: {error}")));
        }
        replies
    }

    /// Removes everything from the server.
    pub(crate) async fn flush(&self) {
        self.ask_all::<()>(cmd("FLUSHALL").arg("SYNC")).await;
    }

    /// Takes a field of `INFO <part>`.
    ///
    /// # Panics
    /// Panics if the server does not have it.
    pub(crate) async fn info(&self, part: &str, field: &str) -> String {
        let info: String = self.ask(cmd("INFO").arg(part)).await;
        let found = info.lines().find_map(|line| {
            let (name, value) = line.split_once(':')?;
            (name == field).then(|| value.trim().to_owned())
        });
        found.unwrap_or_else(|| panic!("no {field} in INFO {part}"))
    }

    /// The server's name and version.
    pub(crate) async fn engine(&self) -> String {
        let info: String = self.ask(cmd("INFO").arg("server")).await;
        let version = |name: &str| info.lines().find_map(|line| line.strip_prefix(name));
        match version("valkey_version:") {
            Some(version) => format!("Valkey {version}"),
            None => format!("Redis {}", version("redis_version:").unwrap_or("unnamed")),
        }
    }

    /// Seconds that the server's main thread has run.
    pub(crate) async fn cpu(&self) -> f64 {
        let infos: Vec<String> = self.ask_all(cmd("INFO").arg("cpu")).await;
        infos
            .iter()
            .flat_map(|info| info.lines())
            .filter(|line| line.starts_with("used_cpu_") && line.contains("main_thread"))
            .filter_map(|line| line.split_once(':')?.1.trim().parse::<f64>().ok())
            .sum()
    }

    /// Times the work on `n` messages.
    pub(crate) async fn timed(&self, n: u64, work: impl Future<Output = ()>) -> Sample {
        self.ask_all::<()>(cmd("SLOWLOG").arg("RESET")).await;
        let cpu = self.cpu().await;
        let (client, started) = (client_cpu(), Instant::now());
        work.await;
        let seconds = started.elapsed().as_secs_f64();
        let client = client_cpu() - client;
        let cpu = self.cpu().await - cpu;
        self.note_longest().await;
        Sample {
            n,
            seconds,
            cpu,
            client,
        }
    }

    /// Bytes that the server uses.
    pub(crate) async fn used_memory(&self) -> f64 {
        let bytes = self.info("memory", "used_memory").await;
        bytes.parse().expect("a number of bytes")
    }

    /// Logs calls that take at least this many µs; [`LONG_US`] is the default.
    pub(crate) async fn log_calls_from(&self, us: u64) {
        let mut set = cmd("CONFIG");
        set.arg("SET").arg("slowlog-log-slower-than").arg(us);
        self.ask::<()>(&set).await;
    }

    /// The script calls since the latest [`Lab::timed`] began that the slow log has.
    pub(crate) async fn script_calls(&self) -> Vec<Call> {
        let mut calls = Vec::new();
        for node in &*self.nodes {
            calls.extend(slowlog::read(&mut node.connection.clone()).await);
        }
        calls
    }

    async fn note_longest(&self) {
        let mut longest: BTreeMap<String, f64> = BTreeMap::new();
        for call in self.script_calls().await {
            if call.us < LONG_US {
                continue;
            }
            let ms = call.us as f64 / 1e3;
            let known = longest.entry(call.script).or_default();
            *known = known.max(ms);
        }
        let mut all = self.records.longest.borrow_mut();
        for (script, ms) in longest {
            let place = Place {
                section: self.records.section.get(),
                script,
                variant: self.records.variant.borrow().clone(),
            };
            all.entry(place).or_default().push(ms);
        }
    }

    /// Sets the section that runs now, for the records.
    pub(crate) fn enter(&self, section: &'static str) {
        eprintln!("{section}");
        self.records.section.set(section);
    }

    /// Sets the variant that is timed now.
    pub(crate) fn turn_to(&self, variant: &str, step: usize, steps: usize) {
        eprintln!("  {step}/{steps} {variant}");
        *self.records.variant.borrow_mut() = variant.to_owned();
    }

    /// The longest call of each timed stretch that had one of at least 0.5 ms, in ms.
    pub(crate) fn longest(&self) -> BTreeMap<Place, Vec<f64>> {
        self.records.longest.borrow().clone()
    }

    /// Runs all variants in turn, [`ROUNDS`] times, each on an empty server; returns the rounds of each.
    pub(crate) async fn alternate<T>(&self, variants: &[Variant<'_, T>]) -> Vec<Vec<T>> {
        let steps = ROUNDS * variants.len();
        let mut rounds: Vec<Vec<T>> = variants.iter().map(|_| Vec::new()).collect();
        for round in 0..ROUNDS {
            for (index, variant) in variants.iter().enumerate() {
                let step = round * variants.len() + index + 1;
                self.turn_to(&variant.name, step, steps);
                self.flush().await;
                rounds[index].push((variant.round)().await);
            }
        }
        self.flush().await;
        rounds
    }
}

/// Seconds that all threads of this process have run.
pub(crate) fn client_cpu() -> f64 {
    let time = clock_gettime(ClockId::ProcessCPUTime);
    time.tv_sec as f64 + time.tv_nsec as f64 / 1e9
}

/// Seconds that the processors of the machine have worked, to the hundredth; 0 where the system does not tell.
pub(crate) fn machine_cpu() -> f64 {
    let stat = std::fs::read_to_string("/proc/stat").unwrap_or_default();
    let times = stat.lines().next().unwrap_or_default().split_whitespace();
    let times: Vec<f64> = times.filter_map(|time| time.parse().ok()).collect();
    match *times {
        [user, nice, system, _idle, _io, irq, soft_irq, ..] => {
            (user + nice + system + irq + soft_irq) / 100.0
        }
        _ => 0.0,
    }
}

/// The settings of a server to measure on: those of the shipped configuration, and a slow log of long calls.
pub(crate) fn settings(aof: Aof) -> lisa_tests::server::ServerBuilder {
    Server::builder()
        .cluster(false)
        .aof(aof)
        .config("slowlog-log-slower-than", &LONG_US.to_string())
        .config("slowlog-max-len", "1000000")
}
