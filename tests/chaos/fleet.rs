//! The processes of the relay. Each has its own proxy before Redis, is restarted whenever it ends, and always has a
//! reader for its output.

use crate::journal::Journal;
use crate::member::Member;
use crate::plan::{GATEWAYS, LISTENERS, READERS};
use crate::settings::{Role, Settings, worker_topic};
use crate::shards::Shards;
use lisa_tests::{FaultProxy, Process, free_port};
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::{Mutex, MutexGuard};

/// The interval at which the processes are checked.
const LOOK: Duration = Duration::from_millis(20);

/// The processes by name and role; what each consumer serves is in [`Settings::serves`].
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
    ("clock-1", Role::Consumer),
    (GATEWAYS[0], Role::Consumer),
    (GATEWAYS[1], Role::Consumer),
    (READERS[0], Role::Consumer),
    (READERS[1], Role::Consumer),
    (LISTENERS[0], Role::Listener),
    (LISTENERS[1], Role::Listener),
];

/// All processes.
pub(crate) struct Fleet {
    settings: Settings,
    journal: Arc<Journal>,
    members: Vec<Mutex<Member>>,
    /// The proxies, separate from their members, so that a fault of the network does not wait for one of a process.
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
            let member = Member::new(name, role, &settings, &journal).await;
            fleet.proxies.push((name, member.proxy.clone()));
            if role == Role::Producer {
                fleet.producers.push((name, member.listen));
            }
            fleet.members.push(Mutex::new(member));
        }
        fleet
    }

    /// The numbers of shards.
    pub(crate) fn shards(&self) -> &Shards {
        &self.settings.shards
    }

    /// The producers' names and ports.
    pub(crate) fn producers(&self) -> &[(&'static str, u16)] {
        &self.producers
    }

    /// The processes' names and proxies.
    pub(crate) fn proxies(&self) -> &[(&'static str, Arc<FaultProxy>)] {
        &self.proxies
    }

    /// Waits for a process of a role that no other fault holds; `pick` chooses where there are several.
    pub(crate) async fn take(&self, role: Role, pick: usize) -> MutexGuard<'_, Member> {
        let of_role: Vec<usize> = MEMBERS
            .iter()
            .enumerate()
            .filter(|(_, (_, of))| *of == role)
            .map(|(index, _)| index)
            .collect();
        self.members[of_role[pick % of_role.len()]].lock().await
    }

    /// Waits for the process of a name until no other fault holds it.
    pub(crate) async fn member(&self, name: &str) -> MutexGuard<'_, Member> {
        let index = MEMBERS.iter().position(|(of, _)| *of == name);
        self.members[index.expect("a name of this list")]
            .lock()
            .await
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

    /// Restarts the processes, forever.
    pub(crate) async fn watch(&self) {
        loop {
            for index in 0..self.members.len() {
                // A process that a fault holds is checked when the fault is over.
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
            if worker_topic(member.name).is_none() {
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
