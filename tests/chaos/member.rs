//! One process of the relay: how it is ended, frozen and started again, and what it prints.

use crate::journal::Journal;
use crate::plan;
use crate::record::{Record, now};
use crate::settings::{Role, Settings, worker_topic};
use crate::target;
use lisa_tests::{FaultProxy, Launch, Process, Stopwatch, free_port};
use std::fs::OpenOptions;
use std::io::{Read, Seek, SeekFrom, Write};
use std::os::unix::process::ExitStatusExt;
use std::process::ExitStatus;
use std::sync::Arc;
use std::time::Duration;
use tokio::time::sleep;

/// The interval at which an ending process is checked.
const LOOK: Duration = Duration::from_millis(20);
/// The longest time from SIGTERM to the end of a process: its grace, plus delays by Redis. A slow machine makes half of
/// it longer.
const END: Duration = Duration::from_secs(30);
/// The time limit for reading the rest of a pipe after its writer has ended.
const SOON: Duration = Duration::from_secs(10);
const ABORTED: i32 = 6;

/// One process, or the slot where it starts again soon.
pub(crate) struct Member {
    pub(crate) name: &'static str,
    pub(crate) role: Role,
    pub(crate) proxy: Arc<FaultProxy>,
    settings: Settings,
    journal: Arc<Journal>,
    pub(crate) listen: u16,
    process: Process,
    /// The last time at which it was seen running, in ms.
    seen: u64,
    /// The bytes read so far from its file of handled messages.
    handled: u64,
}

impl Member {
    /// Starts a process of this name, behind a proxy before the port of Redis.
    pub(crate) async fn new(
        name: &'static str,
        role: Role,
        settings: &Settings,
        journal: &Arc<Journal>,
    ) -> Self {
        let proxy = Arc::new(FaultProxy::start(settings.redis).await);
        let listen = free_port();
        let config = settings.toml(proxy.port(), listen, name);
        Self {
            name,
            role,
            proxy,
            settings: settings.clone(),
            journal: journal.clone(),
            listen,
            process: settings.launch(name, role, &config).start(),
            seen: now(),
            handled: 0,
        }
    }

    /// Kills it as a crash would.
    pub(crate) async fn kill9(&mut self) {
        tokio::task::block_in_place(|| self.process.kill9());
        self.bury().await;
    }

    /// Asks it to end and waits; one that does not end is a violation, and is killed.
    pub(crate) async fn terminate(&mut self) {
        self.process.sigterm();
        let watch = Stopwatch::start();
        while !self.process.has_exited() {
            self.drain();
            sleep(LOOK).await;
            if watch.elapsed() > watch.limit(END / 2, END / 2) {
                let name = self.name;
                self.journal.violation(format!(
                    "{name} did not end within {END:?} and more of SIGTERM"
                ));
                return self.kill9().await;
            }
        }
        self.bury().await;
    }

    /// Freezes it.
    pub(crate) fn stop(&mut self) {
        self.process.stop();
    }

    /// Resumes it.
    pub(crate) fn cont(&mut self) {
        self.process.cont();
    }

    /// Starts it again after its end.
    pub(crate) fn start(&mut self) {
        self.start_with(|launch| launch);
    }

    /// Starts it again after its end, as `prepare` says.
    pub(crate) fn start_with(&mut self, prepare: impl FnOnce(Launch) -> Launch) {
        let config = self
            .settings
            .toml(self.proxy.port(), self.listen, self.name);
        let launch = self.settings.launch(self.name, self.role, &config);
        self.process = prepare(launch).start();
        self.seen = now();
    }

    /// Reads what it has printed, and starts it again if it has ended.
    pub(crate) async fn look(&mut self) {
        if let Some(status) = self.process.exit_status() {
            self.revive(status).await;
        } else {
            self.seen = now();
        }
        self.drain();
    }

    /// Reads what it has printed.
    fn drain(&mut self) {
        for line in self.process.lines() {
            self.read(&line);
        }
        self.read_handled();
    }

    /// Reads the rest of what it printed, and keeps its log.
    async fn bury(&mut self) {
        for line in self.process.lines_to_end(SOON).await {
            self.read(&line);
        }
        self.read_handled();
        let path = self.settings.folder.join(format!("{}.log", self.name));
        let file = OpenOptions::new().create(true).append(true).open(path);
        let errors = self.process.stderr();
        let kept = file.and_then(|mut file| file.write_all(errors.as_bytes()));
        kept.expect("a log can be kept");
    }

    fn read(&self, line: &str) {
        match (self.role, self.name.split('-').next()) {
            (Role::Consumer, Some("clock")) => self.read_tick(line),
            (Role::Consumer, Some("printer")) | (Role::Listener, _) => self.read_printed(line),
            (Role::Consumer, _) if worker_topic(self.name).is_some() => {
                self.journal.note_line(line);
            }
            _ => {}
        }
    }

    /// A line of the `stdout` sink: the message is done when its line is out.
    fn read_printed(&self, line: &str) {
        let read = || -> Option<(u64, u32, u64)> {
            let line: serde_json::Value = serde_json::from_str(line).ok()?;
            let number = plan::number(line["id"].as_str()?)?;
            let attempt = u32::try_from(line["attempt"].as_u64()?).ok()?;
            let due = target::instant(line["due_at"].as_str()?)?;
            Some((number, attempt, due))
        };
        // A process that is killed may leave half a line.
        let Some((number, attempt, due)) = read() else {
            return;
        };
        let process = self.name.to_owned();
        self.journal.note(&Record::Begin {
            number,
            attempt,
            due,
            process: process.clone(),
        });
        self.journal.note(&Record::End {
            number,
            attempt,
            process,
            done: true,
        });
    }

    /// A line of the `stdout` sink with a recurring message; its id names the time.
    fn read_tick(&self, line: &str) {
        let read = || -> Option<u64> {
            let line: serde_json::Value = serde_json::from_str(line).ok()?;
            let (_, time) = line["id"].as_str()?.split_once(':')?;
            let time = jiff::civil::DateTime::strptime("%Y%m%dT%H%M%SZ", time).ok()?;
            let time = time.to_zoned(jiff::tz::TimeZone::UTC).ok()?.timestamp();
            u64::try_from(time.as_millisecond()).ok()
        };
        if let Some(time) = read() {
            let process = self.name.to_owned();
            self.journal.note(&Record::Tick { time, process });
        }
    }

    /// Reads the lines that the programs of the `command` sink wrote since the last call, whole lines only.
    fn read_handled(&mut self) {
        let path = self.settings.handled(self.name);
        let Ok(mut file) = std::fs::File::open(path) else {
            return;
        };
        let mut text = String::new();
        let read = file
            .seek(SeekFrom::Start(self.handled))
            .and_then(|_| file.read_to_string(&mut text));
        read.expect("a file of handled messages can be read");
        let whole = text.rfind('\n').map_or(0, |end| end + 1);
        for line in text[..whole].lines() {
            self.journal.note_line(line);
        }
        self.handled += whole as u64;
    }

    /// Notes an end that no fault asked for, and starts it again.
    async fn revive(&mut self, status: ExitStatus) {
        self.bury().await;
        let (kind, process) = ("crash".to_owned(), self.name.to_owned());
        let planned = self.name.starts_with("wild") && status.signal() == Some(ABORTED);
        let detail = format!("ended with {}", words(status));
        if !planned {
            self.journal
                .violation(format!("{} {detail} by itself", self.name));
        }
        self.journal.note(&Record::Fault {
            from: self.seen,
            kind,
            process,
            detail,
        });
        self.start();
    }
}

fn words(status: ExitStatus) -> String {
    match (status.code(), status.signal()) {
        (Some(code), _) => format!("code {code}"),
        (None, Some(signal)) => format!("signal {signal}"),
        (None, None) => status.to_string(),
    }
}
