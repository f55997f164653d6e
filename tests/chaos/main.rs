//! The real binaries under load, hit by faults at random: `make chaos`.
//!
//! Senders, processes, faults and checks are those of one seed. Every part records its actions and observations in a
//! file outside Redis. At the end a judge reads it, and the run has failed if a promise was broken. See
//! shared/docs/internals/testing.md.

mod disk;
mod drain;
mod faults;
mod fleet;
mod history;
mod journal;
mod judge;
mod load;
#[path = "../benches/report/machine.rs"]
mod machine;
mod member;
mod options;
mod plan;
mod puller;
mod pullout;
mod record;
mod report;
mod rest;
mod settings;
mod shards;
mod storm;
mod target;
mod wire;
mod witness;
mod worker;
mod world;

use faults::KINDS;
use journal::Journal;
use judge::judge;
use load::Load;
use options::Options;
use plan::Dice;
use report::Faults;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;
use storm::Storm;
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep};
use world::World;

/// The pause between two lines of progress.
const PROGRESS: Duration = Duration::from_secs(5);
/// Violations that are printed; all are in a file.
const SHOWN: usize = 20;

fn main() -> ExitCode {
    let mut arguments = std::env::args().skip(1).peekable();
    match arguments.peek().map(String::as_str) {
        Some("worker") => return worker::consume(arguments.skip(1)),
        Some("handler") => return worker::command(arguments.skip(1)),
        _ => {}
    }
    let options = match Options::parse(arguments) {
        Ok(options) => options,
        Err(problem) => return refuse(&problem),
    };
    if options.list {
        for kind in KINDS {
            println!("{:<16} {}", kind.name, kind.what);
        }
        return ExitCode::SUCCESS;
    }
    if let Some(folder) = &options.judge {
        return judge_again(folder);
    }
    let known = |name: &String| KINDS.iter().any(|kind| kind.name == name);
    if let Some(name) = options.only.iter().find(|name| !known(name)) {
        return refuse(&format!("{name:?} is no kind of fault: see --list"));
    }
    disk::enter_own_namespace();
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(4)
        .enable_all()
        .build()
        .expect("a runtime");
    runtime.block_on(chaos(options))
}

/// Judges the history of a run that failed, after the judge was corrected.
fn judge_again(folder: &Path) -> ExitCode {
    let history = match history::History::read(folder) {
        Ok(history) => history,
        Err(error) => return refuse(&format!("{}: {error}", folder.display())),
    };
    let verdict = judge(&history);
    println!("{verdict:#?}");
    ExitCode::from(u8::from(!verdict.violations.is_empty()))
}

fn refuse(problem: &str) -> ExitCode {
    eprintln!("{problem}");
    ExitCode::from(2)
}

async fn chaos(options: Options) -> ExitCode {
    println!("seed {}", options.seed);
    // It fails only where one is installed already; then that one serves.
    let _ = rustls::crypto::ring::default_provider().install_default();
    let begun = Instant::now();
    let steal = machine::Steal::start();
    let folder = log_folder();
    let journal = Arc::new(Journal::create(&folder).expect("a history can be written"));
    let mut tasks = JoinSet::new();
    let world = World::start(&folder, journal.clone(), &mut tasks).await;
    println!("logs in {}", folder.display());
    let watch = tokio::spawn(progress(journal.clone()));
    let mut faults = Faults::default();
    tokio::select! {
        () = run(&options, &world, &mut faults) => {}
        () = witness::watch(&world) => unreachable!("it never ends"),
        ended = tasks.join_next() => panic!("a task of the harness ended: {ended:?}"),
    }
    watch.abort();
    journal.flush();
    let engine = engine(&world).await;
    tasks.shutdown().await;
    world.fleet.end().await;
    drop(world);

    let history = history::History::read(&folder).expect("the history can be read");
    let crashes = history.disturbances.iter();
    for kind in [faults::CRASH, witness::STALL] {
        for _ in crashes.clone().filter(|fault| fault.kind == kind) {
            faults.note(kind, None);
        }
    }
    let verdict = judge(&history);
    let mut violations = journal.violations();
    violations.extend(verdict.violations.iter().cloned());
    let mut facts = machine::facts(&options.command());
    facts.push(("server".to_owned(), engine));
    facts.push(("lasted".to_owned(), report::lasted(begun.elapsed())));
    if let Some(percent) = steal.percent() {
        let stolen = format!("{percent:.1} % of the processor time");
        facts.push(("taken by other guests of the host".to_owned(), stolen));
    }
    let text = report::markdown(&facts, &faults, &verdict, &violations);
    println!("\n{text}");
    if options.save {
        let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("chaos/results.md");
        std::fs::write(&path, &text).expect("the results can be written");
        println!("written to {}", path.display());
    }
    end(&options, &folder, &violations)
}

/// Prints how it ended; keeps the logs of a run that failed.
fn end(options: &Options, folder: &Path, violations: &[String]) -> ExitCode {
    if violations.is_empty() {
        println!("all promises were kept");
        // The files of a successful run are not needed.
        let _ = std::fs::remove_dir_all(folder);
        return ExitCode::SUCCESS;
    }
    let path = folder.join("violations.txt");
    let written = std::fs::write(&path, violations.join("\n"));
    written.expect("the violations can be written");
    for violation in violations.iter().take(SHOWN) {
        println!("VIOLATION {violation}");
    }
    println!("{} violations, all in {}", violations.len(), path.display());
    println!("again: {}", options.command());
    ExitCode::FAILURE
}

/// All phases of a run.
async fn run(options: &Options, world: &World, faults: &mut Faults) {
    let dice = Dice::new(options.seed, options.messages, options.longest_delay());
    let (journal, fleet) = (world.journal.clone(), world.fleet.clone());
    let load = Arc::new(Load::new(journal, fleet, dice, options.rate()));
    let storm = Storm {
        options,
        world,
        load: &load,
    };
    let sending = tokio::spawn({
        let load = load.clone();
        async move { load.run().await }
    });
    let pullouts = pullout::PullOuts::new(world);
    let rage = async {
        storm.rage(faults).await;
        pullouts.stop();
    };
    tokio::join!(rage, pullouts.keep());
    load.stop();
    sending.await.expect("the senders do not panic");
    println!("the senders have ended; draining");
    let is_well = drain::drain(world, options.drain()).await;
    let still = drain::resharding(world).await;
    faults.resharded = world.fleet.shards().begun();
    let still = still.map_or(0, |topics| topics.len() as u64);
    faults.ended = faults.resharded.saturating_sub(still);
    if !is_well {
        // The next phase would only fail for the same reason.
        return;
    }

    println!("FLUSHALL");
    let sending = tokio::spawn({
        let load = load.clone();
        async move { load.run().await }
    });
    storm.flush(faults).await;
    load.stop();
    sending.await.expect("the senders do not panic");
    drain::drain(world, options.drain()).await;
}

async fn progress(journal: Arc<Journal>) {
    let begun = Instant::now();
    loop {
        sleep(PROGRESS).await;
        let counts = journal.counts();
        println!(
            "{:>5} s: {} accepted, {} unknown, {} refused, {} handled, {} duplicates, {} faults",
            begun.elapsed().as_secs(),
            counts.accepted,
            counts.unknown,
            counts.refused,
            counts.done,
            counts.again,
            counts.faults
        );
        journal.flush();
    }
}

async fn engine(world: &World) -> String {
    let info: Result<String, String> = world.command(redis::cmd("INFO").arg("server")).await;
    let info = info.unwrap_or_default();
    let version = info
        .lines()
        .find_map(|line| line.strip_prefix("redis_version:"));
    format!(
        "{}, appendfsync always",
        version.unwrap_or("unknown").trim()
    )
}

/// A new folder beside the build.
fn log_folder() -> PathBuf {
    let target = Path::new(env!("CARGO_MANIFEST_DIR")).with_file_name("target");
    let folder = target.join("chaos").join(record::now().to_string());
    let made = std::fs::create_dir_all(&folder);
    made.unwrap_or_else(|error| panic!("{}: {error}", folder.display()));
    folder
}
