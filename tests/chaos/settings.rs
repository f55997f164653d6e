//! The configuration of each process, and how it is started.

use crate::plan::{GATEWAYS, IN_FILE, TICKS, Topic};
use crate::shards::Shards;
use lisa_tests::Launch;
use std::path::PathBuf;
use std::sync::Arc;

/// The role of a process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Role {
    Producer,
    Manager,
    Consumer,
    /// A consumer that reads as its own group.
    Listener,
}

/// The settings that all configurations share.
#[derive(Clone, Debug)]
pub(crate) struct Settings {
    /// The folder of the binaries.
    pub(crate) bin: PathBuf,
    /// The port of Redis.
    pub(crate) redis: u16,
    /// The port of the webhook target.
    pub(crate) target: u16,
    /// The ports of the gateways, in the order of [`GATEWAYS`].
    pub(crate) gateways: [u16; GATEWAYS.len()],
    pub(crate) folder: PathBuf,
    /// The numbers of shards.
    pub(crate) shards: Arc<Shards>,
}

/// The namespace of everything.
pub(crate) const NAMESPACE: &str = "chaos";

impl Settings {
    /// The configuration of a process that reaches Redis at this port.
    pub(crate) fn toml(&self, redis: u16, listen: u16, name: &str) -> String {
        let serves = self.serves(name);
        let topics = Topic::ALL.map(|topic| {
            let (name, shards) = (topic.name(), self.shards.of(topic));
            let window = topic.dedup_window().as_secs();
            let lifetime = match topic {
                Topic::Radio => "instance_ttl = \"10s\"\n",
                _ => "",
            };
            let groups = topic.groups();
            format!(
                "[topics.{name}]\nshards = {shards}\ndedup_window = \"{window}s\"\ngroups = {groups:?}\n{lifetime}"
            )
        });
        let topics = topics.concat();
        let (schedule, cron) = IN_FILE;
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
            {serves}
            [shutdown]
            grace = "5s"
            [topic_defaults]
            lease = "3s"
            handler_timeout = "6s"
            max_attempts = 100
            retry = {{ base = "200ms", factor = 2.0, max = "3s" }}
            {topics}
            [topics.{TICKS}]
            dedup_window = "20s"
            [schedules.{schedule}]
            topic = "{TICKS}"
            cron = "{cron}"
            "#
        )
    }

    /// A consumer's gateway or subscription, by its name.
    fn serves(&self, name: &str) -> String {
        if let Some(index) = GATEWAYS.iter().position(|gateway| *gateway == name) {
            let port = self.gateways[index];
            return format!("[consumer.gateway]\nlisten = \"127.0.0.1:{port}\"");
        }
        let (topic, sink) = match name.split('-').next().unwrap_or_default() {
            "hook" => {
                let url = format!("http://127.0.0.1:{}/{name}", self.target);
                let sink = format!(r#"{{ type = "http", url = "{url}", allow_private = true }}"#);
                ("plain", sink)
            }
            "printer" => ("lines", r#"{ type = "stdout" }"#.to_owned()),
            "clock" => (TICKS, r#"{ type = "stdout" }"#.to_owned()),
            "radio" => ("radio", r#"{ type = "stdout" }"#.to_owned()),
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
        let group = if topic == "radio" {
            "{instance}"
        } else {
            "default"
        };
        format!(
            r#"
            [[consumer.subscriptions]]
            topic = "{topic}"
            group = "{group}"
            concurrency = 64
            sink = {sink}"#
        )
    }

    /// The file to which the handlers of the `command` sink write.
    pub(crate) fn handled(&self, name: &str) -> PathBuf {
        self.folder.join(format!("{name}.handled"))
    }

    /// Prepares a process; its configuration stays in the log folder.
    pub(crate) fn launch(&self, name: &str, role: Role, config: &str) -> Launch {
        let program = |name: &str| self.bin.join(name);
        let file = self.folder.join(format!("{name}.toml"));
        let written = std::fs::write(&file, config);
        written.unwrap_or_else(|error| panic!("{}: {error}", file.display()));
        let file = file.to_string_lossy().into_owned();
        let run = ["run", "--config", &file];
        match role {
            Role::Producer => Launch::new(program("lisa-producer"), run),
            Role::Manager => Launch::new(program("lisa-manager"), run),
            Role::Consumer | Role::Listener => match worker_topic(name) {
                Some(topic) => Launch::new(this_program(), ["worker", name, topic, &file]),
                None => Launch::new(program("lisa-consumer"), run),
            },
        }
    }
}

/// Returns the topic of a consumer that is this program itself, with handlers in Rust and no listener; `None` for
/// others.
pub(crate) fn worker_topic(name: &str) -> Option<&str> {
    let topic = name.split('-').next()?;
    ["keyed", "wild", "twice"].contains(&topic).then_some(topic)
}

fn this_program() -> PathBuf {
    std::env::current_exe().expect("this program has a path")
}
