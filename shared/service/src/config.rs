//! The configuration of all roles: compiled-in defaults, then the file, the `LISA_` environment, the command line.
//!
//! One file can serve every role. Loading does not stop at the first mistake: [`ConfigError`] lists all of them, each with
//! key path, value and source. Nothing is watched here, and no server is contacted: [`crate::role::Program`] reloads.
//!
//! The page `shared/docs/reference/configuration.md` lists every key with its bounds and its default.
//!
//! An environment variable is the key path in capitals with `__` between the parts: `LISA_TOPICS__ORDERS__LEASE`. Lists
//! are separated by commas or written as JSON. A list of tables is JSON, or numbered from 0:
//! `LISA_CONSUMER__SUBSCRIPTIONS__0__TOPIC`. Such a list replaces the list of the file. Topics with `.` or `-` in their
//! name cannot be set in the environment. `LISA_REDIS_URL` is short for `LISA_REDIS__URL`, and `LISA_CONFIG` names the
//! file if the command line names none. Relative paths in a configuration file start at the folder of that file.

mod findings;
pub(crate) mod layers;
mod listener;
mod merged;
mod problem;
mod reference;
mod resolve;
mod schedules;
pub(crate) mod secret_file;
mod show;
mod sinks;
mod sources;
pub(crate) mod table;
#[cfg(test)]
mod tests;
mod topics;
pub(crate) mod values;
mod yaml;

use std::collections::BTreeMap;
use std::fmt;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::str::FromStr;
use std::sync::Arc;
use std::time::Duration;

pub use crate::cron::{Cron, InvalidCron};
pub use findings::Variant;
pub use layers::{LoadOptions, SinkSecrets};
pub use problem::{ConfigError, Problem};
pub use reference::{Key, keys, schema};
pub use show::Loaded;
pub use sinks::SinkConfig;
pub use sources::{SourceConfig, SourceFrom};

use crate::http::auth::Token;
use crate::http::{HostName, Origin};
use crate::recurring::RecurringMessage;
use crate::settings::settings;
use crate::spans::ProcessContext;
use crate::telemetry::LogFormat;
use lisa_core::fields;
use lisa_core::names::words;
use lisa_core::redis::{ConnectionSettings, RedisUrl, TlsSettings};
use lisa_core::secret::Secret;
use lisa_core::text_value;
use lisa_core::topic::ScheduleName;
use lisa_core::topic::{Group, Namespace, SubscriptionGroup, Topic, TopicSettings};

/// A complete and checked configuration.
#[derive(Clone, Debug, PartialEq)]
pub struct Config {
    /// The first part of every key in Redis.
    pub namespace: Namespace,
    /// The connection to Redis.
    pub redis: RedisConfig,
    /// The producer's own settings.
    pub producer: ProducerConfig,
    /// The manager's own settings.
    pub manager: ManagerConfig,
    /// The consumer's own settings.
    pub consumer: ConsumerConfig,
    /// The settings of topics that are not declared here.
    pub topic_defaults: TopicSettings,
    /// The declared topics.
    pub topics: BTreeMap<Topic, TopicSettings>,
    /// The recurring messages that managers send.
    pub schedules: BTreeMap<ScheduleName, RecurringMessage>,
    /// Access to the HTTP interfaces.
    pub auth: AuthConfig,
    /// The limits of every listener.
    pub http: HttpConfig,
    /// The shutdown of a process.
    pub shutdown: ShutdownConfig,
    /// The logs.
    pub log: LogConfig,
    /// The spans of OpenTelemetry.
    pub otel: OtelConfig,
}

settings! {
    /// The connection to Redis.
    #[derive(Clone, Debug, PartialEq, Eq)]
    pub struct RedisConfig, check = resolve::check_redis {
        /// The address of the server. It may contain user and password. The guide to Redis deployments has the syntax.
        default url: RedisUrl = "redis://127.0.0.1:6379".parse().expect("a valid default");
        /// The user. Takes precedence over the one in the URL.
        optional username: Option<String>;
        /// The password. Takes precedence over the one in the URL.
        secret password: Option<Secret>;
        /// The user of the sentinels.
        optional sentinel_username: Option<String>;
        /// The password of the sentinels. The one of the server is not tried.
        optional sentinel_password: Option<Secret>;
        /// The time limit for connecting.
        default connect_timeout: Duration = Duration::from_secs(2), in Duration::from_millis(10)..=Duration::from_mins(1);
        /// The time limit for a response.
        default response_timeout: Duration = Duration::from_secs(5), in Duration::from_millis(10)..=Duration::from_mins(1);
        /// The certificates for `rediss://`.
        part tls: TlsSettings, by resolve::tls;
        /// True to run on a server that may evict keys, and so lose messages.
        default allow_eviction: bool = false;
    }
}

impl RedisConfig {
    /// Returns the settings of a connection; `client_name` is what `CLIENT LIST` shows, without spaces.
    pub fn connection_settings(&self, client_name: impl Into<String>) -> ConnectionSettings {
        ConnectionSettings {
            username: self.username.clone(),
            password: self.password.clone(),
            connect_timeout: self.connect_timeout,
            response_timeout: self.response_timeout,
            client_name: client_name.into(),
            sentinel_username: self.sentinel_username.clone(),
            sentinel_password: self.sentinel_password.clone(),
            tls: self.tls.clone(),
            ..ConnectionSettings::new(self.url.clone())
        }
    }
}

/// The producer's own settings.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ProducerConfig {
    /// The address of the HTTP interface.
    pub listen: SocketAddr,
    /// The sources that messages are taken off.
    pub sources: Vec<SourceConfig>,
}

/// The manager's own settings.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ManagerConfig {
    /// The address of the HTTP interface; in combined mode also the producer's.
    pub listen: SocketAddr,
    /// The times of the periodic jobs.
    pub jobs: JobsConfig,
    /// The action after Redis failed over or was restored.
    pub doctor: DoctorMode,
    /// The dashboard.
    pub dashboard: DashboardConfig,
    /// The history of the topics.
    pub history: HistoryConfig,
    /// The external scaler for KEDA, which runs if its table exists.
    pub keda: Option<KedaConfig>,
    /// True in development mode, where a group may well have no consumer. Not a key.
    pub is_dev: bool,
}

/// The external scaler for KEDA.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct KedaConfig {
    /// The address of the gRPC interface.
    pub listen: SocketAddr,
}

fields! {
    /// The samples of each topic's counts that are kept.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub struct HistoryConfig {
        /// True to record counts and lateness of each topic over time, up to 215 KB of Redis's memory for each.
        enabled: bool = true;
        /// The number of samples to keep for each topic, one a minute. The newest period of this length is shown by the minute.
        minutes: u64 = 360, in 60..=1440;
        /// The number of samples to keep for each topic, one a quarter hour.
        quarters: u64 = 672, in 96..=2976;
    }
}

settings! {
    /// The pages for operators that a manager serves.
    #[derive(Clone, Debug, PartialEq, Eq)]
    pub struct DashboardConfig {
        /// True to serve the dashboard: pages for operators, at `/`.
        default enabled: bool = true;
        /// The address of a separate listener for the dashboard. Without one, it is on the listener of the manager.
        optional listen: Option<SocketAddr>;
        /// The path at which browsers reach the dashboard, such as `/lisa` behind a proxy. The proxy may keep or remove it.
        default base_path: BasePath = BasePath::default();
        /// True to show payloads and headers to tokens with the scope `payload`; false to hide them from everyone.
        default show_payload: bool = true;
        /// A file with at least 32 random bytes, the same for all managers. Without one, sessions end when the manager restarts.
        path session_key_file: Option<PathBuf>;
    }
}

/// A path such as `/lisa`, without a slash at its end. The root is the empty path.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct BasePath(String);

/// The text is not a base path.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("expected a path of letters, digits, - and _, like /lisa or /ops/lisa")]
pub struct InvalidBasePath;

impl BasePath {
    /// Returns the path, to put before the path of a page.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl FromStr for BasePath {
    type Err = InvalidBasePath;

    fn from_str(text: &str) -> Result<Self, InvalidBasePath> {
        let path = text.strip_suffix('/').unwrap_or(text);
        let is_part = |part: &str| {
            let is_of_part = |byte: u8| byte.is_ascii_alphanumeric() || b"-_".contains(&byte);
            !part.is_empty() && part.bytes().all(is_of_part)
        };
        let is_path = path.is_empty()
            || path
                .strip_prefix('/')
                .is_some_and(|parts| parts.split('/').all(is_part));
        match is_path && text.len() <= 128 {
            true => Ok(Self(path.to_owned())),
            false => Err(InvalidBasePath),
        }
    }
}

impl fmt::Display for BasePath {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self.0.as_str() {
            "" => "/",
            path => path,
        })
    }
}

text_value! {
    BasePath, "string", "a path of letters, digits, `-` and `_`, such as `/lisa`";
}

words!(
    /// The action of a manager after Redis failed over or was restored.
    DoctorMode, "doctor", {
        /// Nothing.
        Off = "off",
        /// Examines the topics and reports what is wrong.
        Report = "report",
        /// Examines and repairs them.
        Repair = "repair",
    }
);

fields! {
    /// The times of the periodic jobs, in UTC.
    #[derive(Clone, Debug, PartialEq, Eq)]
    pub struct JobsConfig {
        /// When to reclaim messages whose lease has expired.
        reclaim: Cron = cron("* * * * * *");
        /// When to drop old tombstones and garbage, remove idle consumers and retired groups, and recover deliveries that nobody holds.
        clean: Cron = cron("0 * * * * *");
        /// When to refresh the gauges.
        statistics: Cron = cron("*/5 * * * * *");
        /// When to read the registry, and to move due messages on each shard in case a wake was lost.
        sweep: Cron = cron("*/30 * * * * *");
        /// When to look for a failover or a restore of Redis.
        doctor: Cron = cron("*/30 * * * * *");
    }
}

fn cron(text: &str) -> Cron {
    text.parse().expect("a valid default")
}

/// The consumer's own settings.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ConsumerConfig {
    /// The address of health checks and metrics.
    pub listen: SocketAddr,
    /// The subscriptions, each with its sink.
    pub subscriptions: Vec<SubscriptionConfig>,
    /// The gateway, from which messages are pulled over HTTP.
    pub gateway: Option<GatewayConfig>,
}

/// The default of [`GatewayConfig::max_waiting`].
pub const MAX_WAITING: usize = 10_000;
/// The default of [`GatewayConfig::max_readers`].
pub const MAX_READERS: usize = 1000;

/// The gateway of a consumer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GatewayConfig {
    /// The address of the HTTP interface.
    pub listen: SocketAddr,
    /// The maximum number of pulls that wait for a message at a time. 1 to 1000000.
    pub max_waiting: usize,
    /// The maximum number of connections to Redis that wait for messages. 1 to 100000.
    pub max_readers: usize,
    /// The settings for clients of Amazon SQS; `None` without them.
    pub sqs: Option<SqsConfig>,
}

/// The settings for clients of Amazon SQS.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SqsConfig {
    /// The group of each topic from which they receive.
    pub group: Group,
    /// True to keep or ignore attributes and tags of queues that have no effect; false to refuse them.
    pub ignore_attributes: bool,
}

/// One group of one topic, read into one sink.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SubscriptionConfig {
    /// The topic.
    pub topic: Topic,
    /// The group of the topic.
    pub group: SubscriptionGroup,
    /// The maximum number of deliveries at a time. 1 to 10000.
    pub concurrency: usize,
    /// The topic that gets a callback for each message that succeeds.
    pub success_topic: Option<Topic>,
    /// The topic that gets a callback for each message that goes to garbage.
    pub garbage_topic: Option<Topic>,
    /// The destination of deliveries.
    pub sink: SinkConfig,
}

impl SubscriptionConfig {
    /// Returns the topics that get callbacks.
    pub fn callback_topics(&self) -> impl Iterator<Item = &Topic> {
        [&self.success_topic, &self.garbage_topic]
            .into_iter()
            .flatten()
    }
}

settings! {
    /// Access to the HTTP interfaces.
    #[derive(Clone, Debug, PartialEq, Eq)]
    pub struct AuthConfig {
        /// True to listen beyond this machine without any token.
        default allow_unauthenticated: bool = false;
        /// The bearer tokens.
        part tokens: Vec<Token>, by resolve::tokens;
        /// Host names that requests without a token may use, besides `localhost`, IP addresses and names without a dot.
        default allowed_hosts: Vec<HostName> = Vec::new();
        /// Origins of pages that may make changes although `Host` is another one.
        default allowed_origins: Vec<Origin> = Vec::new();
    }
}

settings! {
    /// The limits and the certificate of every listener.
    #[derive(Clone, Debug, PartialEq, Eq)]
    pub struct HttpConfig {
        /// The maximum number of connections of each listener.
        default max_connections: usize = 10_000, in 1..=1_000_000;
        /// The time limit for receiving a request body.
        default body_timeout: Duration = Duration::from_secs(30), in Duration::from_secs(1)..=Duration::from_hours(1);
        /// The files of the certificate; without them, listeners speak plain HTTP.
        part tls: Option<ListenerTls>, by listener::tls;
    }
}

/// The files of the certificate of every listener.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ListenerTls {
    /// The certificate and its chain, as PEM.
    pub cert_file: PathBuf,
    /// The private key of the certificate, as PEM.
    pub key_file: PathBuf,
    /// The authorities of client certificates, as PEM; `None` to ask for no client certificate.
    pub client_ca_file: Option<PathBuf>,
}

impl ListenerTls {
    fn has(&self, file: &Path) -> bool {
        let own = [
            Some(&self.cert_file),
            Some(&self.key_file),
            self.client_ca_file.as_ref(),
        ];
        own.contains(&Some(&file.to_path_buf()))
    }
}

impl HttpConfig {
    /// Returns the URL of a listener at this address, without a path.
    #[must_use]
    pub fn url(&self, listen: SocketAddr) -> String {
        let scheme = match self.tls {
            Some(_) => "https",
            None => "http",
        };
        format!("{scheme}://{listen}")
    }
}

fields! {
    /// The shutdown of a process.
    #[derive(Clone, Debug, PartialEq, Eq)]
    pub struct ShutdownConfig {
        /// The time that running work may take to finish after the first signal.
        grace: Duration = Duration::from_secs(25), in ..=Duration::from_hours(1);
    }
}

fields! {
    /// The logs.
    #[derive(Clone, Debug, PartialEq, Eq)]
    pub struct LogConfig {
        /// The format of the log on standard error. `auto` is text on a terminal and JSON otherwise.
        format: LogFormat = LogFormat::Auto;
    }
}

fields! {
    /// The spans of OpenTelemetry. The standard variables of the environment, such as `OTEL_EXPORTER_OTLP_ENDPOINT`, decide whether they are exported.
    #[derive(Clone, Debug, PartialEq, Eq)]
    pub struct OtelConfig {
        /// The relation of the span of a delivery to the trace context that its message carries: `links` starts a trace of its own with a link, `parent` continues that trace.
        process: ProcessContext = ProcessContext::Links;
    }
}

impl Config {
    /// Loads and checks a configuration.
    ///
    /// # Errors
    /// Lists every mistake. A file that cannot be loaded is reported alone, as is an environment variable with single
    /// underscores in place of `__`.
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
    /// Loads and checks a configuration, and records the source of each value.
    ///
    /// # Errors
    /// As [`Config::load`].
    pub fn load(options: LoadOptions) -> Result<Self, ConfigError> {
        let secrets = layers::Secrets {
            sinks: options.sink_secrets,
            sources: options.source_secrets,
            tokens: options.aws_secrets,
            listeners: options.listener_files,
        };
        Self::read(Arc::new(layers::Layers::merge(options)?), secrets)
    }

    /// Reads the files again that the configuration names, such as those of passwords, and keeps its other values.
    ///
    /// # Errors
    /// As [`Config::load`].
    pub fn read_files_again(&self) -> Result<Self, ConfigError> {
        Self::read(self.layers.clone(), self.secrets)
    }

    fn read(layers: Arc<layers::Layers>, secrets: layers::Secrets) -> Result<Self, ConfigError> {
        let findings = findings::Findings::new(layers.clone(), secrets);
        let config = resolve::resolve(&findings);
        let found = findings.finish();
        if !found.problems.is_empty() {
            return Err(ConfigError {
                problems: found.problems,
            });
        }
        let mut files = found.files;
        if let Some(tls) = &config.http.tls {
            // Listeners watch these themselves.
            files.retain(|file| !tls.has(file));
        }
        Ok(Self {
            config,
            file: layers.file.clone(),
            warnings: found.warnings,
            files,
            settings: found.settings,
            layers,
            secrets,
        })
    }
}
