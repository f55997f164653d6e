//! Everything that runs: the server, the processes, and the journal in which all of it is written.

use crate::disk::Disk;
use crate::fleet::Fleet;
use crate::journal::Journal;
use crate::plan::{BY_CALL, GATEWAYS, TICKS};
use crate::puller;
use crate::record::{Record, now};
use crate::settings::Settings;
use crate::shards::Shards;
use crate::target;
use lisa_tests::{Aof, Server, Stopwatch, free_port};
use redis::{Cmd, FromRedisValue};
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::Mutex;
use tokio::task::JoinSet;
use tokio::time::{sleep, timeout};

/// The time limit for the processes to start; longer on a slow machine.
const START: Duration = Duration::from_secs(60);

/// The time limit of a command of the harness to Redis, on any machine. Redis may be stopped or frozen meanwhile.
const ANSWER: Duration = Duration::from_secs(60);

/// The system into which faults are injected.
pub(crate) struct World {
    pub(crate) server: Mutex<Server>,
    /// The server's disk, or the reason why it cannot be filled.
    pub(crate) disk: Result<Disk, String>,
    pub(crate) fleet: Arc<Fleet>,
    pub(crate) journal: Arc<Journal>,
    /// The library that changes the clock of a process, or the reason why there is none.
    pub(crate) faketime: Result<String, String>,
}

impl World {
    /// Starts a server that writes each command to disk, and all processes; waits until each topic is served.
    pub(crate) async fn start(
        folder: &Path,
        journal: Arc<Journal>,
        tasks: &mut JoinSet<()>,
    ) -> Self {
        let data = folder.join("data");
        let made = std::fs::create_dir(&data);
        made.unwrap_or_else(|error| panic!("{}: {error}", data.display()));
        let disk = Disk::mount(&data);
        let mut server = Server::builder().aof(Aof::Always).cluster(false);
        if let Ok(disk) = &disk {
            server = server.config("dir", &disk.path().to_string_lossy());
        }
        let server = tokio::task::block_in_place(|| server.start());
        let settings = Settings {
            bin: bin(),
            redis: server.port(),
            target: target::serve(journal.clone(), tasks)
                .await
                .expect("a port for the webhook target"),
            gateways: GATEWAYS.map(|_| free_port()),
            folder: folder.to_owned(),
            shards: Arc::new(Shards::default()),
        };
        puller::start(settings.gateways, &journal, tasks);
        let fleet = Arc::new(Fleet::start(settings, journal.clone()).await);
        let watched = fleet.clone();
        tasks.spawn(async move { watched.watch().await });
        let world = Self {
            server: Mutex::new(server),
            disk,
            fleet,
            journal,
            faketime: faketime(),
        };
        world.ready().await;
        let (name, cron) = BY_CALL;
        let (topic, cron) = (format!("topic={TICKS}"), format!("cron={cron}"));
        let create = ["schedules", "create", name, &topic, &cron];
        let (code, _, error) = world.fleet.manager(&create).await;
        assert_eq!(code, Some(0), "{error}");
        world
    }

    /// Waits until all processes are ready.
    async fn ready(&self) {
        let watch = Stopwatch::start();
        for (name, port) in self.fleet.listeners().await {
            let url = format!("http://127.0.0.1:{port}/readyz");
            loop {
                let answer = reqwest::get(&url).await.map(|answer| answer.status());
                if answer.as_ref().is_ok_and(|status| status.is_success()) {
                    break;
                }
                let limit = watch.limit(Duration::ZERO, START);
                assert!(watch.elapsed() < limit, "{name} is not ready: {answer:?}");
                sleep(Duration::from_millis(50)).await;
            }
        }
    }

    /// Runs a command on its own connection, past all proxies.
    ///
    /// # Errors
    /// Returns the reply of Redis, or an error if there is none within [`ANSWER`].
    pub(crate) async fn command<T: FromRedisValue>(&self, command: &Cmd) -> Result<T, String> {
        let ask = async {
            let mut connection = self.server.lock().await.connection().await;
            command.query_async(&mut connection).await
        };
        match timeout(ANSWER, ask).await {
            Ok(answer) => answer.map_err(|error| error.to_string()),
            Err(_) => Err(format!("no answer within {ANSWER:?}")),
        }
    }

    /// Returns the line of the server's log that says why its process ended by itself, if it did.
    pub(crate) async fn crash(&self) -> Option<String> {
        let log = self.server.lock().await.log();
        let is_crash = |line: &&str| line.contains("Guru Meditation") || line.contains("by signal");
        log.lines().find(is_crash).map(str::to_owned)
    }

    /// Writes what disturbed a process, or all, until now.
    pub(crate) fn disturbed(&self, from: u64, kind: &str, process: &str, detail: &str) {
        let fault = Record::Fault {
            from,
            kind: kind.to_owned(),
            process: process.to_owned(),
            detail: detail.to_owned(),
        };
        self.journal.note(&fault);
    }

    /// Waits until, counting only what began after `from`, each producer accepts messages and each busy topic delivers;
    /// returns the time from then, in ms.
    ///
    /// # Errors
    /// Returns the names of those that were silent all the time.
    pub(crate) async fn flows_since(
        &self,
        from: u64,
        call_timeout: Duration,
    ) -> Result<u64, Vec<&'static str>> {
        let producers = self.fleet.producers().iter();
        let producers: Vec<_> = producers.map(|(name, _)| *name).collect();
        let watch = Stopwatch::start();
        loop {
            let silent = self.journal.silent_since(from, &producers);
            if silent.is_empty() {
                return Ok(now() - from);
            }
            if watch.elapsed() > watch.limit(call_timeout / 2, call_timeout / 2) {
                return Err(silent);
            }
            sleep(Duration::from_millis(5)).await;
        }
    }
}

/// Returns the folder of the binaries: beside this program, unless `LISA_TEST_BIN_DIR` says otherwise.
fn bin() -> std::path::PathBuf {
    if let Some(directory) = std::env::var_os("LISA_TEST_BIN_DIR") {
        return directory.into();
    }
    let this = std::env::current_exe().expect("this program has a path");
    this.parent().expect("it is in a directory").to_owned()
}

/// Finds libfaketime where Debian puts it.
fn faketime() -> Result<String, String> {
    let directories = std::fs::read_dir("/usr/lib")
        .into_iter()
        .flatten()
        .flatten();
    directories
        .map(|directory| directory.path().join("faketime/libfaketimeMT.so.1"))
        .find(|library| library.exists())
        .map(|library| library.to_string_lossy().into_owned())
        .ok_or_else(|| "libfaketime is not installed (Debian: faketime)".to_owned())
}
