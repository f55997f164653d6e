//! From merged values to a checked configuration: one function for each section of the file.
//!
//! Keys, defaults and bounds stand here once each. Checks that need several keys come last.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::time::Duration;

use super::leaf::{Hash, Leaf};
use super::table::{Findings, Table};
use super::{
    AuthConfig, Config, ConsumerConfig, DoctorMode, HttpConfig, JobsConfig, LogConfig,
    ManagerConfig, ProducerConfig, RedisConfig, ShutdownConfig, SubscriptionConfig,
    SubscriptionGroup, schedules, secret_file, sinks, slip, topics,
};
use crate::cron::Cron;
use crate::http::auth::{Scope, Token, TokenSet, check_listener};
use crate::link::{Place, RedisUrl, TlsSettings};
use crate::small_file::{self, MAX_PEM_BYTES};
use crate::telemetry::LogFormat;
use crate::topic::{Group, Namespace, Topic, TopicSettings};

const DEFAULT_URL: &str = "redis://127.0.0.1:6379";

/// Reads everything; meaningful only if no problem was found.
pub(super) fn resolve(findings: &Findings) -> Config {
    let mut root = findings.root();
    let namespace = root.or("namespace", Namespace::default());
    let redis = redis(root.table("redis"));
    let auth = auth(root.table("auth"));
    let producer = ProducerConfig {
        listen: listen(&mut root, "producer", 7811, &auth, |_| ()).0,
    };
    let (listen_manager, (jobs, doctor)) = listen(&mut root, "manager", 7812, &auth, |table| {
        let doctor = table.or("doctor", DoctorMode::Report);
        (jobs(table.table("jobs")), doctor)
    });
    let (topic_defaults, topics) = topics::read(&mut root);
    let (listen_consumer, subscriptions) = listen(&mut root, "consumer", 7813, &auth, |table| {
        subscriptions(table, &topics)
    });
    let schedules = schedules::read(&mut root, &topics);
    let http = http(root.table("http"));
    let shutdown = shutdown(root.table("shutdown"));
    let log = log(root.table("log"));
    root.finish();
    Config {
        namespace,
        redis,
        producer,
        manager: ManagerConfig {
            listen: listen_manager,
            jobs,
            doctor,
        },
        consumer: ConsumerConfig {
            listen: listen_consumer,
            subscriptions,
        },
        topic_defaults,
        topics,
        schedules,
        auth,
        http,
        shutdown,
        log,
    }
}

fn redis(mut table: Table<'_>) -> RedisConfig {
    let bounds = Duration::from_millis(10)..=Duration::from_secs(60);
    let url = table.or(
        "url",
        DEFAULT_URL
            .parse()
            .expect("the default address is an address"),
    );
    let is_tls = match RedisUrl::place(&url) {
        Place::Tcp { tls, .. } | Place::Sentinel { tls, .. } | Place::Cluster { tls, .. } => *tls,
        Place::Unix { .. } => false,
    };
    let username = table.optional("username");
    let password = table.optional("password");
    let mut from_file =
        secret_file::read(&mut table, "password", "password_file").unwrap_or_default();
    if from_file.len() > 1 {
        table.problem("password_file", "expected a file of one line");
    }
    let config = RedisConfig {
        url,
        username,
        password: from_file.pop().or(password),
        sentinel_username: table.optional("sentinel_username"),
        sentinel_password: table.optional("sentinel_password"),
        connect_timeout: table.bounded("connect_timeout", Duration::from_secs(2), bounds.clone()),
        response_timeout: table.bounded("response_timeout", Duration::from_secs(5), bounds),
        tls: tls(table.table("tls"), is_tls),
        allow_eviction: table.or("allow_eviction", false),
    };
    table.finish();
    config
}

/// Reads the files' paths, and looks at the files where they are used.
fn tls(mut table: Table<'_>, is_used: bool) -> TlsSettings {
    let mut file = |key| {
        let path = table.file(key)?;
        if is_used && let Err(error) = small_file::read(&path, MAX_PEM_BYTES) {
            table.problem(key, format!("cannot read {}: {error}", path.display()));
        }
        Some(path)
    };
    let settings = TlsSettings {
        ca_file: file("ca_file"),
        client_cert: file("client_cert"),
        client_key: file("client_key"),
    };
    if settings.client_cert.is_some() != settings.client_key.is_some() {
        table.problem("client_cert", "client_cert and client_key need each other");
    }
    table.finish();
    settings
}

fn auth(mut table: Table<'_>) -> AuthConfig {
    let allow_unauthenticated = table.or("allow_unauthenticated", false);
    let mut tokens: Vec<Token> = Vec::new();
    for row in table.rows("tokens") {
        let Some(token) = token(row, &tokens) else {
            continue;
        };
        tokens.push(token);
    }
    let allowed_hosts = table.or("allowed_hosts", Vec::new());
    let allowed_origins = table.or("allowed_origins", Vec::new());
    table.finish();
    AuthConfig {
        tokens,
        allow_unauthenticated,
        allowed_hosts,
        allowed_origins,
    }
}

fn token(mut row: Table<'_>, others: &[Token]) -> Option<Token> {
    let name: Option<String> = row.required("name", "who uses the token, as logs name it");
    let hash: Option<Hash> = row.required("sha256", "the SHA-256 of the token in hexadecimal");
    let scopes: Option<Vec<Scope>> = row.required("scopes", "a list of send, read and operate");
    if name
        .as_ref()
        .is_some_and(|name| others.iter().any(|other| other.name() == name))
    {
        row.problem("name", "another token has this name");
    }
    if name
        .as_ref()
        .is_some_and(|name| !(1..=64).contains(&name.chars().count()))
    {
        row.problem("name", "allowed is 1 to 64 characters");
    }
    if scopes.as_ref().is_some_and(Vec::is_empty) {
        row.problem(
            "scopes",
            "allowed is at least one of send, read and operate",
        );
    }
    row.finish();
    Token::new(name?, &hash?.0, scopes?).ok()
}

/// Reads a role's table: its listener, and what else `rest` reads of it.
fn listen<T>(
    root: &mut Table<'_>,
    role: &'static str,
    port: u16,
    auth: &AuthConfig,
    rest: impl FnOnce(&mut Table<'_>) -> T,
) -> (SocketAddr, T) {
    let mut table = root.table(role);
    let address = table.or("listen", SocketAddr::from(([127, 0, 0, 1], port)));
    let tokens = TokenSet::new(auth.tokens.clone());
    if let Err(message) = check_listener(address, &tokens, auth.allow_unauthenticated) {
        table.problem("listen", message);
    }
    let rest = rest(&mut table);
    table.finish();
    (address, rest)
}

fn jobs(mut table: Table<'_>) -> JobsConfig {
    let mut cron = |key, default: &str| -> Cron {
        table.or(
            key,
            default
                .parse()
                .expect("the default expressions are expressions"),
        )
    };
    let config = JobsConfig {
        reclaim: cron("reclaim", "* * * * * *"),
        clean: cron("clean", "0 * * * * *"),
        statistics: cron("statistics", "*/5 * * * * *"),
        sweep: cron("sweep", "*/30 * * * * *"),
        doctor: cron("doctor", "*/30 * * * * *"),
    };
    table.finish();
    config
}

fn subscriptions(
    table: &mut Table<'_>,
    topics: &BTreeMap<Topic, TopicSettings>,
) -> Vec<SubscriptionConfig> {
    let mut all: Vec<SubscriptionConfig> = Vec::new();
    for mut row in table.rows("subscriptions") {
        let topic = row.required("topic", "the topic to read");
        let group = row.required("group", "the group of the topic to read for");
        let concurrency = row.bounded("concurrency", 16, 1..=10_000);
        let sink = row
            .required_table("sink", "what to do with each delivery")
            .and_then(sinks::read);
        if let (Some(topic), Some(group)) = (&topic, &group) {
            if all
                .iter()
                .any(|other| other.topic == *topic && other.group == *group)
            {
                row.problem(
                    "group",
                    format!("topic {topic} has a subscription for this group already"),
                );
            }
            topics::look_for(&row, topic, topics);
            let known = topics.get(topic).map(|settings| &settings.groups);
            if let (SubscriptionGroup::Named(group), Some(groups)) = (group, known)
                && !groups.contains(group)
            {
                let meant = slip::meant(group.as_str(), groups.iter().map(Group::as_str));
                let meant = meant.map_or(String::new(), |meant| format!("; did you mean {meant}?"));
                let groups = groups.show();
                row.problem(
                    "group",
                    format!("topic {topic} has no such group, its groups are {groups}{meant}"),
                );
            }
        }
        row.finish();
        if let (Some(topic), Some(group), Some(sink)) = (topic, group, sink) {
            all.push(SubscriptionConfig {
                topic,
                group,
                concurrency,
                sink,
            });
        }
    }
    all
}

fn http(mut table: Table<'_>) -> HttpConfig {
    let bounds = Duration::from_secs(1)..=Duration::from_secs(3600);
    let config = HttpConfig {
        max_connections: table.bounded("max_connections", 10_000, 1..=1_000_000),
        body_timeout: table.bounded("body_timeout", Duration::from_secs(30), bounds),
    };
    table.finish();
    config
}

fn shutdown(mut table: Table<'_>) -> ShutdownConfig {
    let grace = table.bounded(
        "grace",
        Duration::from_secs(25),
        Duration::ZERO..=Duration::from_secs(3600),
    );
    table.finish();
    ShutdownConfig { grace }
}

fn log(mut table: Table<'_>) -> LogConfig {
    let format = table.or("format", LogFormat::default());
    table.finish();
    LogConfig { format }
}
