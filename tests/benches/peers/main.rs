//! The same work on other delay queues and on Lisa: `make bench-peers`.
//!
//! Every peer has its own program beside this file, which speaks as `protocol` says, and is installed on demand outside
//! this project. They take turns, each stage on a fresh server; the figures are medians of three rounds. Lisa and the
//! clients of beanstalkd, RabbitMQ and NATS are this program again, started with the word `program`.

mod beanstalkd;
mod calls;
mod lisa;
#[path = "../report/machine.rs"]
mod machine;
mod measure;
mod nats;
#[path = "../relay/options.rs"]
#[expect(dead_code, reason = "the peers have their own numbers of messages")]
mod options;
mod peers;
#[path = "../report/plot.rs"]
#[expect(dead_code, reason = "here are only bars")]
mod plot;
mod program;
mod protocol;
mod rabbitmq;
#[path = "../report/report.rs"]
mod report;
mod role;
mod store;
mod table;

use std::time::Duration;

use measure::{Scale, Speed};
use options::Options;
use peers::{Install, PEERS, Peer};

/// The first argument of this program when it runs as a peer.
const PROGRAM: &str = "program";
const ROUNDS: usize = 3;
/// The numbers of handlers at once in the section of clients.
const HANDLERS: [usize; 2] = [50, 200];
const FULL: Scale = Scale {
    divisor: 1,
    lateness: Duration::from_secs(6),
    idle: Duration::from_secs(5),
};
const QUICK: Scale = Scale {
    divisor: 5,
    lateness: Duration::from_secs(2),
    idle: Duration::from_secs(2),
};

/// The measurements of a peer, one entry per round; a failed one has the reason.
struct Found {
    peer: &'static Peer,
    installed: Result<(), String>,
    /// Worker processes: the number that drained fastest in a trial before the first round.
    workers: usize,
    bulk: Vec<Result<Speed, String>>,
    single: Vec<Result<Speed, String>>,
    drain: Vec<Result<Speed, String>>,
    /// Drains with each of `HANDLERS` at once.
    handlers: [Vec<Result<Speed, String>>; HANDLERS.len()],
    late: Vec<Result<Vec<i64>, String>>,
    idle: Result<Option<f64>, String>,
    burst: Result<Speed, String>,
}

fn main() {
    let mut arguments = std::env::args().skip(1);
    // `cargo test --benches` and `cargo bench --no-run` only check that this builds.
    if !std::env::args().any(|argument| argument == "--bench") {
        return;
    }
    if std::env::args().nth(2).as_deref() == Some(PROGRAM) {
        let name = arguments.nth(2);
        return be(name.as_deref(), arguments);
    }
    let options = match Options::parse(arguments) {
        Ok(options) => options,
        Err(problem) => refuse(&problem),
    };
    if options.list {
        for peer in &PEERS {
            println!("{:<14} {}", peer.name, peer.settings);
        }
        return;
    }
    let known = |name: &String| PEERS.iter().any(|peer| peer.name == name);
    if let Some(name) = options.only.iter().find(|name| !known(name)) {
        refuse(&format!("{name:?} is no peer: see --list"));
    }
    bench(&options);
}

fn refuse(problem: &str) -> ! {
    eprintln!("{problem}");
    std::process::exit(2)
}

/// Returns whether this process is the program of a peer.
fn be(name: Option<&str>, arguments: impl Iterator<Item = String>) {
    match name {
        Some("manager") => return role::manager(arguments),
        Some("consumer") => return role::consumer(arguments),
        _ => {}
    }
    let (address, mode) = protocol::arguments(arguments);
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .enable_all()
        .build()
        .expect("a runtime");
    match name {
        Some("lisa") => runtime.block_on(lisa::run(&address, mode)),
        Some("beanstalkd") => beanstalkd::run(&address, &mode),
        Some("rabbitmq") => runtime.block_on(rabbitmq::run(&address, mode)),
        Some("nats") => runtime.block_on(nats::run(&address, mode)),
        other => refuse(&format!("{other:?} is no program of this one")),
    }
}

fn bench(options: &Options) {
    let steal = machine::Steal::start();
    let install = Install::new();
    let (scale, rounds) = if options.quick {
        (QUICK, 1)
    } else {
        (FULL, ROUNDS)
    };
    let wanted: Vec<&Peer> = PEERS
        .iter()
        .filter(|peer| options.wants(peer.name))
        .collect();
    let mut all: Vec<Found> = wanted
        .iter()
        .map(|peer| {
            eprintln!("installing {}", peer.name);
            Found::new(peer, install.install(peer))
        })
        .collect();
    for round in 1..=rounds {
        for found in all.iter_mut().filter(|found| found.installed.is_ok()) {
            eprint!("round {round} of {rounds}, {}:", found.peer.name);
            if round == 1 && found.peer.workers.len() > 1 {
                found.choose(&install, scale);
            }
            found.round(&install, scale);
            if round == 1 {
                found.once(&install, scale);
            }
            eprintln!();
        }
    }
    let calls = options.wants("lisa").then(|| {
        let calls = step("one caller", || calls::measure(scale));
        eprintln!();
        calls
    });
    let command = options
        .command()
        .replacen("make bench", "make bench-peers", 1);
    let mut report = table::report(&command, &all, calls, rounds);
    if let Some(percent) = steal.percent() {
        report.fact(
            "taken by other guests of the host",
            format!("{percent:.1} % of the processor time"),
        );
    }
    println!("{}", report.markdown());
    let folder = options.folder();
    report
        .write(&folder, "peers")
        .expect("the results are written");
    eprintln!("written to {}", folder.display());
}

impl Found {
    fn new(peer: &'static Peer, installed: Result<(), String>) -> Self {
        if let Err(why) = &installed {
            eprintln!("{} cannot be installed: {why}", peer.name);
        }
        let unknown = || Err("not measured".to_owned());
        Self {
            peer,
            installed,
            workers: peer.workers[0],
            bulk: Vec::new(),
            single: Vec::new(),
            drain: Vec::new(),
            handlers: Default::default(),
            late: Vec::new(),
            idle: unknown().map(|()| None),
            burst: Err("not measured".to_owned()),
        }
    }

    /// Finds the number of processes with which it drains fastest: processes that read the same ids conflict.
    fn choose(&mut self, install: &Install, scale: Scale) {
        let peer = self.peer;
        let n = peer.drain / scale.divisor;
        let mut best = 0.0;
        for &workers in peer.workers {
            let trial = step("trial", || {
                measure::drain(peer, install, workers, None, n, Duration::from_secs(60))
            });
            if let Ok(speed) = trial
                && speed.rate > best
            {
                (best, self.workers) = (speed.rate, workers);
            }
        }
    }

    /// Measures a round.
    fn round(&mut self, install: &Install, scale: Scale) {
        let (peer, workers) = (self.peer, self.workers);
        if peer.bulk > 0 {
            self.bulk
                .push(step("bulk", || measure::send(peer, install, true, scale)));
        }
        self.single.push(step("single", || {
            measure::send(peer, install, false, scale)
        }));
        self.drain.push(step("drain", || {
            let n = peer.drain / scale.divisor;
            measure::drain(peer, install, workers, None, n, Duration::from_secs(60))
        }));
        if peer.runtime.is_some() {
            for (at, handlers) in HANDLERS.into_iter().enumerate() {
                let drain = step(&format!("{handlers} handlers"), || {
                    let n = peer.drain / scale.divisor;
                    // One process: what a client itself can do.
                    measure::drain(peer, install, 1, Some(handlers), n, Duration::from_secs(60))
                });
                self.handlers[at].push(drain);
            }
        }
        self.late.push(step("lateness", || {
            measure::lateness(peer, install, workers, scale)
        }));
    }

    /// Measures what is measured only once.
    fn once(&mut self, install: &Install, scale: Scale) {
        let (peer, workers) = (self.peer, self.workers);
        self.idle = step("idle", || measure::idle(peer, install, scale));
        self.burst = step("burst", || {
            measure::drain(
                peer,
                install,
                workers,
                None,
                table::BURST,
                Duration::from_secs(20),
            )
        });
    }
}

/// Prints the current step, and why it failed.
fn step<T>(name: &str, work: impl FnOnce() -> Result<T, String>) -> Result<T, String> {
    eprint!(" {name}");
    let result = work();
    if let Err(why) = &result {
        eprint!(" ({why})");
    }
    result
}
