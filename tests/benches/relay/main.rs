//! The throughput of Lisa on one Redis thread, compared with the limit of that thread: `make bench`.
//!
//! One private server per section, variants in turn, medians of five rounds. Figures of one run are comparable with
//! each other, not with those of another day: see shared/docs/operate/capacity.md.

mod backlog;
mod binaries;
mod calls;
mod cases;
mod ceiling;
mod costs;
mod dashboard;
mod durability;
mod engines;
mod features;
mod http;
mod idle;
mod lab;
mod lateness;
mod lisa;
mod longest;
#[path = "../report/machine.rs"]
mod machine;
mod memory;
mod options;
mod payloads;
#[path = "../report/plot.rs"]
mod plot;
mod prototype;
mod pull;
#[path = "../report/report.rs"]
mod report;
mod resharding;
mod shards;
mod sinks;
mod slowlog;
mod sqs;
mod startup;
mod throughput;

use futures_util::future::LocalBoxFuture;
use lab::Lab;
use options::Options;
use report::Report;

type Run = for<'a> fn(&'a Lab, &'a mut Report) -> LocalBoxFuture<'a, ()>;

/// The sections in the order of the report: name, what it measures, how.
const SECTIONS: &[(&str, &str, Run)] = &[
    (
        "throughput",
        "send, drain and all stages at once, beside the ceiling and the prototype",
        |lab, report| Box::pin(throughput::run(lab, report)),
    ),
    (
        "payloads",
        "100 B to 100 KiB, beside their ceilings",
        |lab, report| Box::pin(payloads::run(lab, report)),
    ),
    (
        "durability",
        "no append-only file, everysec, always",
        |lab, report| Box::pin(durability::run(lab, report)),
    ),
    (
        "shards",
        "one shard and four, on one to four Redis processes",
        |lab, report| Box::pin(shards::run(lab, report)),
    ),
    (
        "resharding",
        "messages that wait go to twice as many shards",
        |lab, report| Box::pin(resharding::run(lab, report)),
    ),
    (
        "features",
        "ordered, merging, priority and two-group topics beside a plain one",
        |lab, report| Box::pin(features::run(lab, report)),
    ),
    (
        "costs",
        "time in scripts and bytes of a message, by the features that it uses",
        |lab, report| Box::pin(costs::run(lab, report)),
    ),
    (
        "backlog",
        "sends and moves while up to five million messages wait",
        |lab, report| Box::pin(backlog::run(lab, report)),
    ),
    ("engines", "Redis 7, Redis 8 and Valkey", |lab, report| {
        Box::pin(engines::run(lab, report))
    }),
    (
        "http",
        "sends through the producer binary over HTTP, beside the Rust API",
        |lab, report| Box::pin(http::run(lab, report)),
    ),
    (
        "pull",
        "pulls and acks over HTTP, alone and in batches, and how late a long poll is answered",
        |lab, report| Box::pin(pull::run(lab, report)),
    ),
    (
        "sqs",
        "requests of SQS clients, beside an independent emulator of SQS",
        |lab, report| Box::pin(sqs::run(lab, report)),
    ),
    (
        "sinks",
        "sinks of message brokers, beside the client libraries that they use",
        |lab, report| Box::pin(sinks::run(lab, report)),
    ),
    (
        "lateness",
        "from due to the start of the handler, at rates and after a burst",
        |lab, report| Box::pin(lateness::run(lab, report)),
    ),
    (
        "memory",
        "bytes of a waiting, ready and in-flight message",
        |lab, report| Box::pin(memory::run(lab, report)),
    ),
    (
        "idle",
        "what the binaries cost with nothing to do",
        |lab, report| Box::pin(idle::run(lab, report)),
    ),
    (
        "dashboard",
        "pages and calls of operators with five million waiting messages, and 20 tabs over 1,000 topics",
        |lab, report| Box::pin(dashboard::run(lab, report)),
    ),
    (
        "startup",
        "how soon the binaries are ready, and their memory then",
        |lab, report| Box::pin(startup::run(lab, report)),
    ),
    (
        "longest",
        "what each script costs, and the longest single call of all sections that ran",
        |lab, report| Box::pin(longest::run(lab, report)),
    ),
];

fn main() {
    if std::env::args().nth(1).as_deref() == Some(sinks::SERVE_KAFKA) {
        return sinks::serve();
    }
    // `cargo test --benches` and `cargo bench --no-run` only check that this builds.
    if !std::env::args().any(|argument| argument == "--bench") {
        return;
    }
    let options = match Options::parse(std::env::args().skip(1)) {
        Ok(options) => options,
        Err(problem) => refuse(&problem),
    };
    if options.list {
        for (name, what, _) in SECTIONS {
            println!("{name:<12} {what}");
        }
        return;
    }
    let known = |name: &String| SECTIONS.iter().any(|(section, ..)| section == name);
    if let Some(name) = options.only.iter().find(|name| !known(name)) {
        refuse(&format!("{name:?} is no section: see --list"));
    }
    // The server's thread has its own core: on two cores, another worker would only take turns with it.
    let cores = std::thread::available_parallelism().map_or(1, std::num::NonZero::get);
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(cores.saturating_sub(1).max(1))
        .enable_all()
        .build()
        .expect("a runtime");
    runtime.block_on(bench(options));
}

fn refuse(problem: &str) -> ! {
    eprintln!("{problem}");
    std::process::exit(2)
}

async fn bench(options: Options) {
    let steal = machine::Steal::start();
    let (folder, command) = (options.folder(), options.command());
    let lab = Lab::start(options).await;
    let mut report = Report::new("What Lisa does", machine::facts(&command));
    report.fact("server", lab.engine().await);
    for (name, _, run) in SECTIONS {
        if lab.options.wants(name) {
            lab.enter(name);
            run(&lab, &mut report).await;
        }
    }
    if let Some(percent) = steal.percent() {
        report.fact(
            "taken by other guests of the host",
            format!("{percent:.1} % of the processor time"),
        );
    }
    println!("{}", report.markdown());
    report
        .write(&folder, "relay")
        .expect("the results are written");
    eprintln!("written to {}", folder.display());
}
