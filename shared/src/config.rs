//! The configuration of all roles: compiled-in defaults, then the file, the `LISA_` environment, the command line.
//!
//! One file may serve every role. Reading stops at nothing: [`ConfigError`] lists all that is wrong, each with key
//! path, value and source. Nothing is watched or re-read, and no server is asked here.
//!
//! | key | default | allowed |
//! |---|---|---|
//! | `namespace` | `"lisa"` | `[a-z0-9_-]{1,32}` |
//! | `redis.url` | `"redis://127.0.0.1:6379"` | see [`crate::link::RedisUrl`] |
//! | `redis.username`, `redis.password` | as in the address | a text; wins over the address |
//! | `redis.password_file` | | a file of one line, instead of `password` |
//! | `redis.sentinel_username`, `redis.sentinel_password` | none | a text; the sentinels' own |
//! | `redis.connect_timeout` | `"2s"` | 10 ms to 60 s |
//! | `redis.response_timeout` | `"5s"` | 10 ms to 60 s |
//! | `redis.tls.ca_file`, `redis.tls.client_cert`, `redis.tls.client_key` | those of the host, none | PEM files, for `rediss…://` |
//! | `redis.allow_eviction` | `false` | run on a Redis that may evict keys |
//! | `producer.listen`, `manager.listen`, `consumer.listen` | `"127.0.0.1:7811"`, `7812`, `7813` | address:port; beyond loopback only with tokens |
//! | `manager.jobs.reclaim` | `"* * * * * *"` | cron, six fields, UTC |
//! | `manager.jobs.clean` | `"0 * * * * *"` | cron |
//! | `manager.jobs.statistics` | `"*/5 * * * * *"` | cron |
//! | `manager.jobs.sweep` | `"*/30 * * * * *"` | cron |
//! | `manager.jobs.doctor` | `"*/30 * * * * *"` | cron |
//! | `manager.doctor` | `"report"` | `off`, `report`, `repair` |
//! | `consumer.subscriptions[].topic`, `group`, `sink` | | required; see [`SubscriptionGroup`], [`SinkConfig`] |
//! | `consumer.subscriptions[].concurrency` | `16` | 1 to 10000 |
//! | `topic_defaults.*`, `topics.<name>.*` | [`TopicSettings::default`] | see [`TopicSettings`] |
//! | `schedules.<name>.topic`, `cron` | | required; a topic, cron |
//! | `schedules.<name>.time_zone` | `"UTC"` | a name of the IANA database |
//! | `schedules.<name>.catch_up` | `"1h"` | up to 365 d |
//! | `schedules.<name>.payload`, `headers`, `key`, `merge_key`, `priority`, `ttl`, `max_attempts`, `retry` | as a message that does not say | see [`crate::schedule::Template`] |
//! | `auth.tokens[]` | none | `name` (1 to 64 characters), `sha256` (64 hexadecimal digits), `scopes` (of `send`, `read`, `operate`) |
//! | `auth.allow_unauthenticated` | `false` | |
//! | `auth.allowed_hosts` | `[]` | names of hosts, without scheme and port |
//! | `auth.allowed_origins` | `[]` | origins of pages: `https://name`, with a port where it is not the scheme's own |
//! | `http.max_connections` | `10000` | 1 to 1000000, for each listener |
//! | `http.body_timeout` | `"30s"` | 1 s to 1 h |
//! | `shutdown.grace` | `"25s"` | up to 1 h |
//! | `log.format` | `"auto"` | `auto`, `json`, `pretty` |
//!
//! An environment variable is the key path in capitals with `__` between the parts: `LISA_TOPICS__ORDERS__LEASE`. Lists
//! are separated by commas or written as JSON; a list of tables is JSON, or numbered from 0:
//! `LISA_CONSUMER__SUBSCRIPTIONS__0__TOPIC`. Such a list replaces that of the file. Topics with `.` or `-` in their name
//! are out of reach of the environment. `LISA_REDIS_URL` is `LISA_REDIS__URL`, and `LISA_CONFIG` names the file where the
//! command line names none. Relative paths of files start at the folder of the configuration file that names them.

mod layers;
mod leaf;
mod problem;
mod resolve;
mod schedules;
mod secret_file;
mod show;
mod sinks;
mod slip;
mod subscription;
mod table;
#[cfg(test)]
mod tests;
mod topics;
mod unusable;
mod yaml;

use std::collections::BTreeMap;
use std::fmt;
use std::net::SocketAddr;
use std::str::FromStr;
use std::time::Duration;

pub use crate::cron::{Cron, InvalidCron};
pub use layers::{LoadOptions, SinkSecrets};
pub use problem::{ConfigError, Problem};
pub use show::Loaded;
pub use sinks::{RetryAfter, SinkConfig};
pub use slip::meant;
pub use subscription::SubscriptionGroup;
pub use unusable::{check_program, special_address, special_host};

use serde::Serialize;

use crate::http::auth::Token;
use crate::http::{HostName, Origin};
use crate::link::{LinkSettings, RedisUrl, TlsSettings};
use crate::schedule::{Schedule, ScheduleName};
use crate::secret::Secret;
use crate::state::words;
use crate::telemetry::LogFormat;
use crate::topic::{InvalidName, Namespace, Topic, TopicSettings};

/// A complete and checked configuration.
#[derive(Clone, Debug, PartialEq)]
pub struct Config {
    /// The first part of every key in Redis.
    pub namespace: Namespace,
    /// How to reach Redis.
    pub redis: RedisConfig,
    /// The producer's own settings.
    pub producer: ProducerConfig,
    /// The manager's own settings.
    pub manager: ManagerConfig,
    /// The consumer's own settings.
    pub consumer: ConsumerConfig,
    /// The settings of topics that are not named here.
    pub topic_defaults: TopicSettings,
    /// The topics named here.
    pub topics: BTreeMap<Topic, TopicSettings>,
    /// The messages that managers send again and again.
    pub schedules: BTreeMap<ScheduleName, Schedule>,
    /// Who may call the HTTP interfaces.
    pub auth: AuthConfig,
    /// Limits of every listener.
    pub http: HttpConfig,
    /// How a process ends.
    pub shutdown: ShutdownConfig,
    /// How logs look.
    pub log: LogConfig,
}

/// How to reach Redis.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RedisConfig {
    /// The address; may hold a user and a password.
    pub url: RedisUrl,
    /// The user; wins over the one in the address.
    pub username: Option<String>,
    /// The password, given or read from a file; wins over the one in the address.
    pub password: Option<Secret>,
    /// The user of the sentinels, where they ask for one.
    pub sentinel_username: Option<String>,
    /// The password of the sentinels; the server's own is not tried.
    pub sentinel_password: Option<Secret>,
    /// How long a connection may take to come up. 10 ms to 60 s.
    pub connect_timeout: Duration,
    /// How long an answer may take. 10 ms to 60 s.
    pub response_timeout: Duration,
    /// Certificates for `rediss://`.
    pub tls: TlsSettings,
    /// Whether to run on a server that may evict keys, and so lose messages.
    pub allow_eviction: bool,
}

impl RedisConfig {
    /// Gives the settings of a link; `client_name` is what `CLIENT LIST` shows, without spaces.
    pub fn link_settings(&self, client_name: impl Into<String>) -> LinkSettings {
        LinkSettings {
            url: self.url.clone(),
            username: self.username.clone(),
            password: self.password.clone(),
            connect_timeout: self.connect_timeout,
            response_timeout: self.response_timeout,
            client_name: client_name.into(),
            sentinel_username: self.sentinel_username.clone(),
            sentinel_password: self.sentinel_password.clone(),
            tls: self.tls.clone(),
        }
    }
}

/// The producer's own settings.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ProducerConfig {
    /// Where the HTTP interface listens.
    pub listen: SocketAddr,
}

/// The manager's own settings.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ManagerConfig {
    /// Where the HTTP interface listens; in combined mode the producer's too.
    pub listen: SocketAddr,
    /// When the periodic jobs run.
    pub jobs: JobsConfig,
    /// What is done after Redis failed over or was restored.
    pub doctor: DoctorMode,
}

words!(
    /// What a manager does with its topics after Redis failed over or was restored.
    DoctorMode, "doctor", {
        /// Nothing.
        Off = "off",
        /// Examines them, and says what is wrong.
        Report = "report",
        /// Examines and mends them.
        Repair = "repair",
    }
);

/// When the periodic jobs run, in UTC.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct JobsConfig {
    /// Takes back what is in flight past its lease.
    pub reclaim: Cron,
    /// Drops what nothing refers to, and garbage past its age.
    pub clean: Cron,
    /// Refreshes the gauges.
    pub statistics: Cron,
    /// Wakes every mover, should a wake-up have been lost.
    pub sweep: Cron,
    /// Looks whether Redis failed over or was restored, and has topics examined then.
    pub doctor: Cron,
}

/// The consumer's own settings.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ConsumerConfig {
    /// Where health and metrics are served.
    pub listen: SocketAddr,
    /// What is read, and what becomes of it.
    pub subscriptions: Vec<SubscriptionConfig>,
}

/// One group of one topic, read into one sink.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SubscriptionConfig {
    /// The topic.
    pub topic: Topic,
    /// The group of the topic.
    pub group: SubscriptionGroup,
    /// How many deliveries may run at a time. 1 to 10000.
    pub concurrency: usize,
    /// What to do with each delivery.
    pub sink: SinkConfig,
}

/// Who may call the HTTP interfaces.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AuthConfig {
    /// The bearer tokens.
    pub tokens: Vec<Token>,
    /// Whether to listen beyond this machine without any token.
    pub allow_unauthenticated: bool,
    /// Names of the listeners' hosts that requests may be for without a token, beside `localhost`, IP addresses and names
    /// without a dot.
    pub allowed_hosts: Vec<HostName>,
    /// Origins of pages that may change something although `Host` is another one.
    pub allowed_origins: Vec<Origin>,
}

/// Limits of every listener.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HttpConfig {
    /// Connections served at a time. 1 to 1000000.
    pub max_connections: usize,
    /// How long a request's body may take to arrive. 1 s to 1 h.
    pub body_timeout: Duration,
}

/// How a process ends.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ShutdownConfig {
    /// How long work in progress may go on after the first signal. Up to 1 h.
    pub grace: Duration,
}

/// How logs look.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LogConfig {
    /// The format on standard error.
    pub format: LogFormat,
}

impl Config {
    /// Loads and checks a configuration.
    ///
    /// # Errors
    /// All that is wrong with it. A file that is missing or cannot be parsed hides the mistakes of the other sources.
    pub fn load(options: LoadOptions) -> Result<Self, ConfigError> {
        Loaded::load(options).map(|loaded| loaded.config)
    }
}

/// The compiled-in defaults: no topics, no subscriptions.
impl Default for Config {
    fn default() -> Self {
        Self::load(LoadOptions::default()).expect("the compiled-in defaults have no mistakes")
    }
}

impl Loaded {
    /// Loads and checks a configuration, and remembers the source of each value.
    ///
    /// # Errors
    /// As [`Config::load`].
    pub fn load(options: LoadOptions) -> Result<Self, ConfigError> {
        let sink_secrets = options.sink_secrets;
        let layers = layers::Layers::merge(options)?;
        let file = layers.file.clone();
        let findings = table::Findings::new(layers, sink_secrets);
        let config = resolve::resolve(&findings);
        let (settings, problems, warnings) = findings.finish();
        if problems.is_empty() {
            Ok(Self {
                config,
                file,
                warnings,
                settings,
            })
        } else {
            Err(ConfigError { problems })
        }
    }
}
