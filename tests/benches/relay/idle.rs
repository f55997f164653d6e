//! The cost of an idle relay: processor time of each role, and commands that Redis receives.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use futures_util::StreamExt;
use lisa_tests::eventually;
use redis::cmd;
use tokio_util::task::AbortOnDropHandle;

use crate::binaries::{Role, Running, Site};
use crate::lab::Lab;
use crate::report::{Reach, Report, Section, number};
use crate::slowlog;

/// The time after which the cost of the start is over, and what each topic adds to it.
const SETTLE: (Duration, Duration) = (Duration::from_secs(5), Duration::from_millis(3));
/// The time limit for the monitor to show what was just sent.
const PATIENCE: Duration = Duration::from_secs(10);

const NOTE: &str = "The real release binaries with the shipped settings and no messages. Processor time in percent \
of one core; with several processes of a role, all of them together. Requests are the commands that clients \
send, counted with `MONITOR` by the name of the connection; commands inside scripts are listed separately. A topic has \
one shard, and each consumer reads all topics. With 1,000 topics or more, the server's time is measured before `MONITOR` begins.";

/// The numbers of processes of each role, and of topics.
const CASES: [(usize, usize, usize, usize); 6] = [
    (0, 1, 1, 1),
    (1, 1, 1, 1),
    (1, 10, 1, 1),
    (0, 1, 1, 100),
    (0, 1, 0, 1_000),
    (0, 1, 0, 10_000),
];
/// The number of topics from which the server's time is measured without `MONITOR`.
const WITHOUT_MONITOR: usize = 1_000;
/// The name of the connections of this process.
const OWN: &str = "lisa-bench";
/// The number of topics whose cost to the server has a target.
const MANY: usize = 10_000;

/// The measurements of one case.
struct Seen {
    seconds: f64,
    /// Processor seconds by role.
    cpu: BTreeMap<&'static str, Option<f64>>,
    /// Processor seconds of the server's main thread.
    server_cpu: f64,
    /// Requests by the name of the connection and the command.
    requests: BTreeMap<(String, String), u64>,
    inside: u64,
}

impl Seen {
    fn requests_of(&self, role: &str) -> u64 {
        let name = format!("lisa-{role}");
        let own = self.requests.iter().filter(|((by, _), _)| *by == name);
        own.map(|(_, count)| count).sum()
    }
}

/// Watches the cases one after the other; rounds would compare nothing here, since no speed is measured.
pub(crate) async fn run(lab: &Lab, report: &mut Report) {
    // The rarest job of a manager runs once a minute; the target figure includes it.
    let spans = [lab.options.pick(60, 10), lab.options.pick(30, 10)].map(Duration::from_secs);
    let header = [
        "processes, topics",
        "requests/s",
        "per topic",
        "of producer",
        "of managers",
        "of consumer",
        "commands in scripts/s",
        "CPU producer, %",
        "CPU managers, %",
        "CPU consumer, %",
        "CPU server, %",
    ];
    let note = format!(
        "{NOTE} Watched for {} s, with producer for {} s.",
        spans[0].as_secs(),
        spans[1].as_secs()
    );
    let mut section = Section::new("Idle", &note, &header);
    let mut kinds = BTreeMap::new();
    for (index, case) in CASES.iter().enumerate() {
        let (producers, managers, consumers, topics) = *case;
        let name = name(*case);
        eprintln!("  {}/{} {name}", index + 1, CASES.len());
        lab.flush().await;
        let seen = watch(lab, *case, spans[producers.min(1)]).await;
        let requests: u64 = seen.requests.values().sum();
        let rate = requests as f64 / seen.seconds;
        let of = |role: &str, processes: usize| match processes {
            0 => "–".to_owned(),
            _ => number(seen.requests_of(role) as f64 / seen.seconds),
        };
        let cpu = |role: Role| match seen.cpu.get(role.name()) {
            Some(Some(seconds)) => number(seconds * 100.0 / seen.seconds),
            _ => "–".to_owned(),
        };
        section.row([
            name,
            number(rate),
            number(rate / topics as f64),
            of("producer", producers),
            of("manager", managers),
            of("consumer", consumers),
            number(seen.inside as f64 / seen.seconds),
            cpu(Role::Producer),
            cpu(Role::Manager),
            cpu(Role::Consumer),
            number(seen.server_cpu * 100.0 / seen.seconds),
        ]);
        if topics == MANY {
            report.reach(Reach::at_most(
                format!(
                    "{} idle topics, one manager: share of a Redis core",
                    number(MANY as f64)
                ),
                (10.0, 3.0),
                " %",
                seen.server_cpu * 100.0 / seen.seconds,
            ));
        }
        if (producers, managers, consumers) == (0, 1, 1) {
            for (asked, count) in &seen.requests {
                let rates: &mut Vec<_> = kinds.entry(asked.clone()).or_default();
                rates.push((topics, *count as f64 / seen.seconds));
            }
            let bounds = if topics == 1 { (2.0, 1.0) } else { (1.0, 0.5) };
            let word = if topics == 1 { "topic" } else { "topics" };
            report.reach(Reach::at_most(
                format!("idle requests a second per topic and shard, one manager and one consumer, {topics} {word}"),
                bounds,
                "",
                rate / topics as f64,
            ));
        }
    }
    report.section(section);
    report.section(by_kind(&kinds));
}

/// Returns the requests of one manager and one consumer by kind; each has its rate with some numbers of topics.
fn by_kind(kinds: &BTreeMap<(String, String), Vec<(usize, f64)>>) -> Section {
    let note = "Requests per second of one manager and one consumer: a command, or the script that is called.";
    let header = ["connection", "request", "1 topic", "100 topics"];
    let mut section = Section::new("Idle, by request", note, &header);
    for ((connection, request), rates) in kinds {
        let at = |topics| {
            let rate = rates.iter().find(|(of, _)| *of == topics);
            rate.map_or("–".to_owned(), |(_, rate)| number(*rate))
        };
        section.row([connection.clone(), format!("`{request}`"), at(1), at(100)]);
    }
    section
}

fn name((producers, managers, consumers, topics): (usize, usize, usize, usize)) -> String {
    let parts = [
        (producers, "producer"),
        (managers, "manager"),
        (consumers, "consumer"),
        (topics, "topic"),
    ];
    let parts = parts
        .iter()
        .filter(|(count, _)| *count > 0)
        .map(|(count, word)| {
            let plural = if *count == 1 { "" } else { "s" };
            format!("{count} {word}{plural}")
        });
    parts.collect::<Vec<_>>().join(", ")
}

async fn watch(
    lab: &Lab,
    (producers, managers, consumers, topics): (usize, usize, usize, usize),
    span: Duration,
) -> Seen {
    // Over TCP, each connection has its own address.
    let site = Site::new(&lab.over_tcp(), topics);
    let mut running = Vec::new();
    // The manager first: it declares the topics.
    for (role, count) in [
        (Role::Manager, managers),
        (Role::Producer, producers),
        (Role::Consumer, consumers),
    ] {
        for _ in 0..count {
            running.push(site.start(role).await);
        }
    }
    tokio::time::sleep(SETTLE.0 + SETTLE.1 * topics as u32).await;
    // `MONITOR` takes a share of the server's time that matters where there are many requests.
    let alone = if topics < WITHOUT_MONITOR {
        None
    } else {
        let cpu = lab.cpu().await;
        tokio::time::sleep(span).await;
        Some(lab.cpu().await - cpu)
    };
    let monitor = Monitor::open(lab).await;
    let names = connections(lab).await;
    let (server_cpu, cpu) = (lab.cpu().await, cpu(&running));
    monitor.take(lab).await;
    let began = Instant::now();
    tokio::time::sleep(span).await;
    let lines = monitor.take(lab).await;
    let seconds = began.elapsed().as_secs_f64();
    let mut seen = Seen {
        seconds,
        cpu: self::cpu(&running)
            .into_iter()
            .map(|(role, now)| (role, now.zip(cpu[role]).map(|(now, then)| now - then)))
            .collect(),
        server_cpu: alone.unwrap_or(lab.cpu().await - server_cpu),
        requests: BTreeMap::new(),
        inside: 0,
    };
    // A client that connected meanwhile is known by now.
    let names: BTreeMap<_, _> = names.into_iter().chain(connections(lab).await).collect();
    for line in &lines {
        match sender(line) {
            "lua" => seen.inside += 1,
            address => {
                let name = names.get(address).map_or("", String::as_str);
                let name = if name.is_empty() { "unnamed" } else { name };
                // Connections of earlier sections still sample the clock.
                if name != OWN {
                    let asked = (name.to_owned(), request(line));
                    *seen.requests.entry(asked).or_default() += 1;
                }
            }
        }
    }
    seen
}

/// Processor seconds so far, all processes of a role together.
fn cpu(running: &[Running]) -> BTreeMap<&'static str, Option<f64>> {
    let mut all = BTreeMap::new();
    for process in running {
        let sum = all.entry(process.role.name()).or_insert(Some(0.0));
        *sum = sum.zip(process.cpu()).map(|(sum, cpu)| sum + cpu);
    }
    all
}

/// The names of all TCP connections to the server by their addresses.
async fn connections(lab: &Lab) -> BTreeMap<String, String> {
    let list: String = lab.ask(cmd("CLIENT").arg("LIST")).await;
    let field = |line: &str, name: &str| {
        let mut fields = line.split(' ');
        fields.find_map(|field| Some(field.strip_prefix(name)?.to_owned()))
    };
    let named = list
        .lines()
        .filter_map(|line| Some((field(line, "addr=")?, field(line, "name=")?)));
    named.collect()
}

/// The sender in a line such as `1700000000.123456 [0 127.0.0.1:50000] "TIME"`; `lua` for what a script called.
fn sender(line: &str) -> &str {
    let inside = line
        .split_once('[')
        .and_then(|(_, rest)| rest.split_once(']'));
    let inside = inside.and_then(|(inside, _)| inside.split_once(' '));
    inside.map_or("", |(_, sender)| sender)
}

/// Returns a client's request in such a line: the command, or the name of the script that it called.
fn request(line: &str) -> String {
    let mut words = line.split('"').skip(1).step_by(2);
    let command = words.next().unwrap_or_default().to_uppercase();
    match (command.as_str(), words.next()) {
        ("EVALSHA", Some(hash)) => slowlog::name(hash).unwrap_or(hash).to_owned(),
        _ => command,
    }
}

/// All commands that the server gets, except those of the harness.
struct Monitor {
    lines: Arc<Mutex<Vec<String>>>,
    _task: AbortOnDropHandle<()>,
}

impl Monitor {
    async fn open(lab: &Lab) -> Self {
        let client = redis::Client::open(lab.server().socket_url()).expect("the address");
        let monitor = client.get_async_monitor().await.expect("MONITOR");
        let lines = Arc::new(Mutex::new(Vec::new()));
        let written = lines.clone();
        let task = tokio::spawn(async move {
            let mut commands = monitor.into_on_message::<String>();
            while let Some(line) = commands.next().await {
                written.lock().expect("no holder panics").push(line);
            }
        });
        Self {
            lines,
            _task: AbortOnDropHandle::new(task),
        }
    }

    /// Returns the lines since the last call, without those of the unix socket, which only the harness uses.
    async fn take(&self, lab: &Lab) -> Vec<String> {
        let mark = format!("mark-{}", fastrand::u64(..));
        let _: String = lab.ask(cmd("ECHO").arg(&mark)).await;
        let end = eventually(PATIENCE, async || {
            let lines = self.lines.lock().expect("no holder panics");
            let end = lines.iter().position(|line| line.contains(&mark));
            end.ok_or("the monitor is behind")
        })
        .await;
        let mut lines = self.lines.lock().expect("no holder panics");
        let taken = lines.drain(..=end);
        taken
            .filter(|line| !sender(line).starts_with("unix:"))
            .collect()
    }
}
