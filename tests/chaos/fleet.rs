//! The processes of the relay: each with a proxy of its own before Redis, started again whenever it ends, and never
//! without somebody who reads what it prints.

use crate::journal::Journal;
use crate::record::{Record, now};
use lisa_tests::{FaultProxy, Launch, Process, free_port};
use std::fs::OpenOptions;
use std::io::{Read, Seek, SeekFrom, Write};
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::ExitStatus;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::{Mutex, MutexGuard};

/// How often the processes are looked at.
const LOOK: Duration = Duration::from_millis(20);
/// The longest time from SIGTERM to the end of a process: its grace, and what Redis may cost it.
const END: Duration = Duration::from_secs(30);
/// What is left of a pipe after the end of its writer is read within this.
const SOON: Duration = Duration::from_secs(10);
const ABORTED: i32 = 6;

/// What a process is there for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Role {
    Producer,
    Manager,
    Consumer,
}

/// The processes by name and role; what each consumer reads and how is in [`Settings::subscription`].
const MEMBERS: &[(&str, Role)] = &[
    ("producer-1", Role::Producer),
    ("producer-2", Role::Producer),
    ("manager-1", Role::Manager),
    ("manager-2", Role::Manager),
    ("hook-1", Role::Consumer),
    ("hook-2", Role::Consumer),
    ("keyed-1", Role::Consumer),
    ("keyed-2", Role::Consumer),
    ("printer-1", Role::Consumer),
    ("printer-2", Role::Consumer),
    ("wild-1", Role::Consumer),
    ("command-1", Role::Consumer),
];

/// What all configurations have in common.
#[derive(Clone, Debug)]
pub(crate) struct Settings {
    /// Where the binaries are.
    pub(crate) bin: PathBuf,
    /// The port of Redis.
    pub(crate) redis: u16,
    /// The port of the webhook target.
    pub(crate) target: u16,
    pub(crate) folder: PathBuf,
}

/// The namespace of everything.
pub(crate) const NAMESPACE: &str = "chaos";

impl Settings {
    /// The configuration of a process that reaches Redis at this port.
    pub(crate) fn toml(&self, redis: u16, listen: u16, name: &str) -> String {
        let subscription = self.subscription(name);
        format!(
            r#"
            namespace = "{NAMESPACE}"
            [redis]
            url = "redis://127.0.0.1:{redis}"
            connect_timeout = "1s"
            response_timeout = "2s"
            [producer]
            listen = "127.0.0.1:{listen}"
            [manager]
            listen = "127.0.0.1:{listen}"
            doctor = "repair"
            [manager.jobs]
            clean = "*/5 * * * * *"
            doctor = "*/5 * * * * *"
            [consumer]
            listen = "127.0.0.1:{listen}"
            {subscription}
            [shutdown]
            grace = "5s"
            [topic_defaults]
            lease = "3s"
            handler_timeout = "6s"
            max_attempts = 100
            dedup_window = "3m"
            retry = {{ base = "200ms", factor = 2.0, max = "3s" }}
            [topics.plain]
            shards = 2
            [topics.keyed]
            shards = 2
            [topics.lines]
            [topics.wild]
            [topics.command]
            "#
        )
    }

    fn subscription(&self, name: &str) -> String {
        let (topic, sink) = match name.split('-').next().unwrap_or_default() {
            "hook" => {
                let url = format!("http://127.0.0.1:{}/{name}", self.target);
                let sink = format!(r#"{{ type = "http", url = "{url}", allow_private = true }}"#);
                ("plain", sink)
            }
            "printer" => ("lines", r#"{ type = "stdout" }"#.to_owned()),
            "command" => {
                let (this, file) = (this_program(), self.handled(name));
                let command = [
                    &this.to_string_lossy(),
                    "handler",
                    name,
                    &file.to_string_lossy(),
                ];
                (
                    "command",
                    format!(r#"{{ type = "command", command = {command:?} }}"#),
                )
            }
            _ => return String::new(),
        };
        format!(
            r#"
            [[consumer.subscriptions]]
            topic = "{topic}"
            group = "default"
            concurrency = 64
            sink = {sink}"#
        )
    }

    /// The file to which the handlers of the `command` sink write.
    fn handled(&self, name: &str) -> PathBuf {
        self.folder.join(format!("{name}.handled"))
    }

    fn launch(&self, name: &str, role: Role, config: &str) -> Launch {
        let program = |name: &str| self.bin.join(name);
        let file = self.folder.join(format!("{name}.toml"));
        let written = std::fs::write(&file, config);
        written.unwrap_or_else(|error| panic!("{}: {error}", file.display()));
        let file = file.to_string_lossy().into_owned();
        let run = ["run", "--config", &file];
        match (role, name.split('-').next()) {
            (Role::Producer, _) => Launch::new(program("lisa-producer"), run),
            (Role::Manager, _) => Launch::new(program("lisa-manager"), run),
            (Role::Consumer, Some(topic @ ("keyed" | "wild"))) => {
                Launch::new(this_program(), ["worker", name, topic, &file])
            }
            (Role::Consumer, _) => Launch::new(program("lisa-consumer"), run),
        }
    }
}

fn this_program() -> PathBuf {
    std::env::current_exe().expect("this program has a path")
}

/// One process, or the place where it stands again soon.
pub(crate) struct Member {
    pub(crate) name: &'static str,
    pub(crate) role: Role,
    pub(crate) proxy: Arc<FaultProxy>,
    settings: Settings,
    journal: Arc<Journal>,
    listen: u16,
    process: Process,
    /// Until when it was seen running, ms.
    seen: u64,
    /// How much of its file of handled messages was read.
    handled: u64,
}

impl Member {
    /// Kills it as a crash would.
    pub(crate) async fn kill9(&mut self) {
        tokio::task::block_in_place(|| self.process.kill9());
        self.bury().await;
    }

    /// Asks it to end and waits; one that does not end is a violation, and is killed.
    pub(crate) async fn terminate(&mut self) {
        self.process.sigterm();
        let begun = now();
        while !self.process.has_exited() {
            self.drain();
            tokio::time::sleep(LOOK).await;
            if now() > begun + END.as_millis() as u64 {
                let name = self.name;
                self.journal
                    .violation(format!("{name} did not end within {END:?} of SIGTERM"));
                return self.kill9().await;
            }
        }
        self.bury().await;
    }

    /// Freezes it.
    pub(crate) fn stop(&mut self) {
        self.process.stop();
    }

    /// Lets it go on.
    pub(crate) fn cont(&mut self) {
        self.process.cont();
    }

    /// Starts it again after its end, with these environment variables.
    pub(crate) fn start(&mut self, environment: &[(&str, String)]) {
        let config = self
            .settings
            .toml(self.proxy.port(), self.listen, self.name);
        let mut launch = self.settings.launch(self.name, self.role, &config);
        for (name, value) in environment {
            launch = launch.env(name, value);
        }
        self.process = launch.start();
        self.seen = now();
    }

    /// Reads what it has printed, and starts it again if it has ended.
    async fn look(&mut self) {
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
            (Role::Consumer, Some("printer")) => self.read_printed(line),
            (Role::Consumer, Some("keyed" | "wild")) => self.journal.note_line(line),
            _ => {}
        }
    }

    /// A line of the `stdout` sink: the message is done when its line is out.
    fn read_printed(&self, line: &str) {
        let read = || -> Option<(u64, u32, u64)> {
            let line: serde_json::Value = serde_json::from_str(line).ok()?;
            let number = crate::plan::number(line["id"].as_str()?)?;
            let attempt = u32::try_from(line["attempt"].as_u64()?).ok()?;
            let due = crate::target::instant(line["due_at"].as_str()?)?;
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

    /// What the programs of the `command` sink wrote since the last look, whole lines only.
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
        self.start(&[]);
    }
}

fn words(status: ExitStatus) -> String {
    match (status.code(), status.signal()) {
        (Some(code), _) => format!("code {code}"),
        (None, Some(signal)) => format!("signal {signal}"),
        (None, None) => status.to_string(),
    }
}

/// All processes.
pub(crate) struct Fleet {
    settings: Settings,
    journal: Arc<Journal>,
    members: Vec<Mutex<Member>>,
    /// Beside their members, so that a fault of the network does not wait for one of a process.
    proxies: Vec<(&'static str, Arc<FaultProxy>)>,
    /// The ports of the producers, by name.
    producers: Vec<(&'static str, u16)>,
}

impl Fleet {
    /// Starts all processes.
    pub(crate) async fn start(settings: Settings, journal: Arc<Journal>) -> Self {
        let mut fleet = Self {
            members: Vec::new(),
            proxies: Vec::new(),
            producers: Vec::new(),
            settings: settings.clone(),
            journal: journal.clone(),
        };
        for &(name, role) in MEMBERS {
            let proxy = Arc::new(FaultProxy::start(settings.redis).await);
            let listen = free_port();
            let config = settings.toml(proxy.port(), listen, name);
            let member = Member {
                name,
                role,
                proxy: proxy.clone(),
                settings: settings.clone(),
                journal: journal.clone(),
                listen,
                process: settings.launch(name, role, &config).start(),
                seen: now(),
                handled: 0,
            };
            fleet.members.push(Mutex::new(member));
            fleet.proxies.push((name, proxy));
            if role == Role::Producer {
                fleet.producers.push((name, listen));
            }
        }
        fleet
    }

    /// The producers' names and ports.
    pub(crate) fn producers(&self) -> &[(&'static str, u16)] {
        &self.producers
    }

    /// The processes' names and proxies.
    pub(crate) fn proxies(&self) -> &[(&'static str, Arc<FaultProxy>)] {
        &self.proxies
    }

    /// Waits for a process of a role that no other fault has in its hands; `pick` chooses where there are several.
    pub(crate) async fn take(&self, role: Role, pick: usize) -> MutexGuard<'_, Member> {
        let of_role: Vec<usize> = MEMBERS
            .iter()
            .enumerate()
            .filter(|(_, (_, of))| *of == role)
            .map(|(index, _)| index)
            .collect();
        self.members[of_role[pick % of_role.len()]].lock().await
    }

    /// Starts one more manager, which the caller ends.
    pub(crate) fn another_manager(&self) -> Process {
        let config = self
            .settings
            .toml(self.settings.redis, free_port(), "manager-3");
        self.settings
            .launch("manager-3", Role::Manager, &config)
            .start()
    }

    /// Looks after the processes, for ever.
    pub(crate) async fn watch(&self) {
        loop {
            for index in 0..self.members.len() {
                // A process in the hands of a fault is looked at when that is over.
                if let Ok(mut member) = self.members[index].try_lock() {
                    member.look().await;
                }
            }
            tokio::time::sleep(LOOK).await;
        }
    }

    /// Ends all processes as an operator would.
    pub(crate) async fn end(&self) {
        for member in &self.members {
            member.lock().await.terminate().await;
        }
        self.journal.flush();
    }

    /// The processes with a listener, and its port.
    pub(crate) async fn listeners(&self) -> Vec<(&'static str, u16)> {
        let mut listeners = Vec::new();
        for member in &self.members {
            let member = member.lock().await;
            // A worker of the harness listens to nobody.
            if !matches!(member.name.split_once('-'), Some(("keyed" | "wild", _))) {
                listeners.push((member.name, member.listen));
            }
        }
        listeners
    }

    /// A verb of `lisa-manager`, past all proxies: its exit code and output.
    pub(crate) async fn manager(&self, arguments: &[&str]) -> (Option<i32>, String, String) {
        let file = self.settings.folder.join("verbs.toml");
        let config = self.settings.toml(self.settings.redis, 1, "verbs");
        let written = std::fs::write(&file, config);
        written.unwrap_or_else(|error| panic!("{}: {error}", file.display()));
        run(&self.settings.bin.join("lisa-manager"), arguments, &file).await
    }

    /// A send by the command line, past all proxies.
    pub(crate) async fn send(&self, arguments: &[&str]) -> (Option<i32>, String, String) {
        let file = self.settings.folder.join("producer-1.toml");
        run(&self.settings.bin.join("lisa-producer"), arguments, &file).await
    }
}

async fn run(program: &Path, arguments: &[&str], file: &Path) -> (Option<i32>, String, String) {
    let output = tokio::process::Command::new(program)
        .args(arguments)
        .arg("--config")
        .arg(file)
        .stdin(std::process::Stdio::null())
        .kill_on_drop(true)
        .output()
        .await
        .unwrap_or_else(|error| panic!("{}: {error}", program.display()));
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    (
        output.status.code(),
        text(&output.stdout),
        text(&output.stderr),
    )
}
