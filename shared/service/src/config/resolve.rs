//! Turns merged values into a checked configuration: one function for each section of the file.
//!
//! Each key, default and bound is defined here once. Checks that need several keys come last.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::time::Duration;

use super::table::{Findings, Table};
use super::values::Hash;
use super::{
    AuthConfig, BasePath, Config, ConsumerConfig, DashboardConfig, DoctorMode, GatewayConfig,
    HistoryConfig, ManagerConfig, ProducerConfig, RedisConfig, SinkConfig, SqsConfig,
    SubscriptionConfig, SubscriptionGroup, schedules, secret_file, sinks, sources, topics,
};
use crate::callbacks::CallbackTopics;
use crate::http::auth::{Scope, Token, TokenSet, check_listener};
use lisa_core::fields::{Any, Field, Reader as _, Value as _, within};
use lisa_core::misspelling;
use lisa_core::redis::{Endpoint, RedisUrl, TlsSettings};
use lisa_core::secret::Secret;
use lisa_core::small_file::{self, MAX_PEM_BYTES};
use lisa_core::topic::{Group, Namespace, Topic, TopicSettings};

const DEFAULT_URL: &str = "redis://127.0.0.1:6379";
/// The shortest secret key of signed requests: a shorter one could be guessed from a signature.
const MIN_AWS_SECRET: usize = 16;

/// Reads the whole configuration. The result is meaningful only if no problem was found.
pub(super) fn resolve(findings: &Findings) -> Config {
    let mut root = findings.root();
    let namespace = root.read(
        Field::new(
            "namespace",
            Namespace::default(),
            "The first part of every key in Redis.",
        ),
        Any,
    );
    let redis = redis(root.open("redis"));
    let auth = auth(root.open("auth"));
    let (listen_producer, sources) = listen(&mut root, "producer", 7811, &auth, sources::read);
    let (listen_manager, (doctor, jobs, dashboard, history)) = listen(
        &mut root,
        "manager",
        7812,
        &auth,
        |table| {
            let doctor = Field::new(
                "doctor",
                DoctorMode::Report,
                "The action after Redis failed over or was restored: nothing, a report, or repairs.",
            );
            let doctor = table.read(doctor, Any);
            (
                doctor,
                table.table("jobs"),
                dashboard(table.open("dashboard"), &auth),
                history(table.open("history")),
            )
        },
    );
    let (topic_defaults, topics) = topics::read(&mut root);
    sources::look_for_topics(&mut root.open("producer"), &sources, &topics);
    let consumer = |table: &mut Table<'_>| {
        let subscriptions = subscriptions(table, &namespace, &topics);
        (subscriptions, gateway(table, &auth))
    };
    let (listen_consumer, (subscriptions, gateway)) =
        listen(&mut root, "consumer", 7813, &auth, consumer);
    let schedules = schedules::read(&mut root, &topics);
    let http = root.table("http");
    let shutdown = root.table("shutdown");
    let log = root.table("log");
    root.finish();
    Config {
        namespace,
        redis,
        producer: ProducerConfig {
            listen: listen_producer,
            sources,
        },
        manager: ManagerConfig {
            listen: listen_manager,
            jobs,
            doctor,
            dashboard,
            history,
        },
        consumer: ConsumerConfig {
            listen: listen_consumer,
            subscriptions,
            gateway,
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

fn dashboard(mut table: Table<'_>, auth: &AuthConfig) -> DashboardConfig {
    let enabled = Field::new(
        "enabled",
        true,
        "True to serve the dashboard: pages for operators, at `/`.",
    );
    let enabled = table.read(enabled, Any);
    let listen: Option<SocketAddr> = table.optional(
        "listen",
        "The address of a separate listener for the dashboard. Without one, it is on the listener of the manager.",
    );
    if let Some(address) = listen {
        let tokens = TokenSet::new(auth.tokens.clone());
        if let Err(message) = check_listener(address, &tokens, auth.allow_unauthenticated) {
            table.reject("listen", message);
        }
    }
    let base_path = Field::new(
        "base_path",
        BasePath::default(),
        "The path at which browsers reach the dashboard, such as `/lisa` behind a proxy. The proxy may keep or remove it.",
    );
    let base_path = table.read(base_path, Any);
    let show_payload = Field::new(
        "show_payload",
        true,
        "True to show payloads and headers to tokens with the scope `payload`; false to hide them from everyone.",
    );
    let config = DashboardConfig {
        enabled,
        listen,
        base_path,
        show_payload: table.read(show_payload, Any),
        session_key_file: table.file(
            "session_key_file",
            "A file with at least 32 random bytes, the same for all managers. Without one, sessions end when the manager restarts.",
        ),
    };
    table.finish();
    config
}

fn history(mut table: Table<'_>) -> HistoryConfig {
    let enabled = Field::new(
        "enabled",
        true,
        "True to record counts and lateness of each topic over time, up to 215 KB of Redis's memory for each.",
    );
    let minutes = Field::new(
        "minutes",
        360,
        "The number of samples to keep for each topic, one a minute. The newest period of this length is shown by the minute.",
    );
    let quarters = Field::new(
        "quarters",
        672,
        "The number of samples to keep for each topic, one a quarter hour.",
    );
    let config = HistoryConfig {
        enabled: table.read(enabled, Any),
        minutes: table.read(minutes, within(60..=1440)),
        quarters: table.read(quarters, within(96..=2976)),
    };
    table.finish();
    config
}

fn redis(mut table: Table<'_>) -> RedisConfig {
    let timeouts = within(Duration::from_millis(10)..=Duration::from_mins(1));
    let url = DEFAULT_URL.parse().expect("a valid default");
    let url = table.read(
        Field::new(
            "url",
            url,
            "The address of the server. It may contain user and password. The guide to Redis deployments has the syntax.",
        ),
        Any,
    );
    let is_tls = match RedisUrl::endpoint(&url) {
        Endpoint::Tcp { tls, .. }
        | Endpoint::Sentinel { tls, .. }
        | Endpoint::Cluster { tls, .. } => *tls,
        Endpoint::Unix { .. } => false,
    };
    let username = table.optional(
        "username",
        "The user. Takes precedence over the one in the URL.",
    );
    let password = table.optional(
        "password",
        "The password. Takes precedence over the one in the URL.",
    );
    const FILE: &str = "A file whose only line is the password.";
    let mut from_file =
        secret_file::read(&mut table, "password", "password_file", FILE).unwrap_or_default();
    if from_file.len() > 1 {
        table.reject("password_file", "expected a file with one line");
    }
    let config = RedisConfig {
        url,
        username,
        password: from_file.pop().or(password),
        sentinel_username: table.optional("sentinel_username", "The user of the sentinels."),
        sentinel_password: table.optional(
            "sentinel_password",
            "The password of the sentinels. The one of the server is not tried.",
        ),
        connect_timeout: table.read(
            Field::new(
                "connect_timeout",
                Duration::from_secs(2),
                "The time limit for connecting.",
            ),
            timeouts,
        ),
        response_timeout: table.read(
            Field::new(
                "response_timeout",
                Duration::from_secs(5),
                "The time limit for a response.",
            ),
            timeouts,
        ),
        tls: tls(table.open("tls"), is_tls),
        allow_eviction: table.read(
            Field::new(
                "allow_eviction",
                false,
                "True to run on a server that may evict keys, and so lose messages.",
            ),
            Any,
        ),
    };
    table.finish();
    config
}

/// Reads the paths of the files. Checks that the files can be read if they are used.
fn tls(mut table: Table<'_>, is_used: bool) -> TlsSettings {
    let mut file = |key, meaning| {
        let path = table.file(key, meaning)?;
        if is_used && let Err(error) = small_file::read(&path, MAX_PEM_BYTES) {
            table.reject(key, format!("cannot read {}: {error}", path.display()));
        }
        Some(path)
    };
    let settings = TlsSettings {
        ca_file: file(
            "ca_file",
            "A PEM file of the certificates to trust, in place of the system's.",
        ),
        client_cert: file(
            "client_cert",
            "A PEM file of the certificate to present, together with `client_key`.",
        ),
        client_key: file(
            "client_key",
            "A PEM file of the private key of `client_cert`.",
        ),
    };
    if settings.client_cert.is_some() != settings.client_key.is_some() {
        table.reject(
            "client_cert",
            "client_cert and client_key must be set together",
        );
    }
    table.finish();
    settings
}

fn auth(mut table: Table<'_>) -> AuthConfig {
    let allow_unauthenticated = table.read(
        Field::new(
            "allow_unauthenticated",
            false,
            "True to listen beyond this machine without any token.",
        ),
        Any,
    );
    let mut tokens: Vec<Token> = Vec::new();
    for row in table.rows("tokens") {
        let Some(token) = token(row.of_token(), &tokens) else {
            continue;
        };
        tokens.push(token);
    }
    let allowed_hosts = table.read(
        Field::new(
            "allowed_hosts",
            Vec::new(),
            "Host names that requests without a token may use, besides `localhost`, IP addresses and names without a dot.",
        ),
        Any,
    );
    let allowed_origins = table.read(
        Field::new(
            "allowed_origins",
            Vec::new(),
            "Origins of pages that may make changes although `Host` is another one.",
        ),
        Any,
    );
    table.finish();
    AuthConfig {
        tokens,
        allow_unauthenticated,
        allowed_hosts,
        allowed_origins,
    }
}

fn token(mut row: Table<'_>, others: &[Token]) -> Option<Token> {
    let name: Option<String> =
        row.required("name", "The name of the token in logs: 1 to 64 characters.");
    let hash: Option<Hash> = row.required("sha256", "The SHA-256 of the token in hexadecimal.");
    let scopes: Option<Vec<Scope>> = row.required(
        "scopes",
        "A list of `send`, `read`, `operate`, `receive` and `payload`.",
    );
    if name
        .as_ref()
        .is_some_and(|name| others.iter().any(|other| other.name() == name))
    {
        row.reject("name", "another token has this name");
    }
    if name
        .as_ref()
        .is_some_and(|name| !(1..=64).contains(&name.chars().count()))
    {
        row.reject("name", "must be 1 to 64 characters");
    }
    if scopes.as_ref().is_some_and(Vec::is_empty) {
        row.reject(
            "scopes",
            "must have at least one of send, read, operate, receive and payload",
        );
    }
    let secret = aws_secret(&mut row, name.as_deref());
    row.finish();
    let token = Token::new(name?, &hash?.0, scopes?).ok()?;
    Some(match secret {
        Some(secret) => token.with_aws_secret(secret),
        None => token,
    })
}

/// Reads the secret key of a token that signs requests.
fn aws_secret(row: &mut Table<'_>, name: Option<&str>) -> Option<Secret> {
    const KEY: &str = "aws_secret_file";
    const MEANING: &str = "A file whose only line is the secret key with which SQS clients sign, at least 16 characters; \
        their access key id is `name`.";
    let lines = secret_file::read_as_used(row, "aws_secret", KEY, MEANING)?;
    let is_plain = |c: char| c.is_ascii_alphanumeric() || "._-".contains(c);
    if !name?.chars().all(is_plain) {
        row.reject(
            "name",
            "with aws_secret_file, must consist of letters, digits, `.`, `_` and `-`",
        );
    }
    let [secret] = <[Secret; 1]>::try_from(lines)
        .map_err(|_| row.reject(KEY, "expected a file with one line"))
        .ok()?;
    if secret.expose().chars().count() < MIN_AWS_SECRET {
        row.reject(KEY, "expected a secret key of at least 16 characters");
        return None;
    }
    Some(secret)
}

/// Reads the table of a role: its listener, and whatever `rest` reads.
fn listen<T>(
    root: &mut Table<'_>,
    role: &'static str,
    port: u16,
    auth: &AuthConfig,
    rest: impl FnOnce(&mut Table<'_>) -> T,
) -> (SocketAddr, T) {
    let mut table = root.open(role);
    let meaning =
        "The address of the HTTP interface. An address beyond this machine requires a token.";
    let address = address(&mut table, port, meaning, auth);
    let rest = rest(&mut table);
    table.finish();
    (address, rest)
}

/// Reads the address of a listener.
fn address(
    table: &mut Table<'_>,
    port: u16,
    meaning: &'static str,
    auth: &AuthConfig,
) -> SocketAddr {
    let address = table.read(
        Field::new("listen", SocketAddr::from(([127, 0, 0, 1], port)), meaning),
        Any,
    );
    let tokens = TokenSet::new(auth.tokens.clone());
    if let Err(message) = check_listener(address, &tokens, auth.allow_unauthenticated) {
        table.reject("listen", message);
    }
    address
}

/// Reads the gateway of a consumer, which runs if the table is there.
fn gateway(table: &mut Table<'_>, auth: &AuthConfig) -> Option<GatewayConfig> {
    let mut table = table.optional_table("gateway")?;
    let meaning = "The address of the gateway, which runs only if the table `[consumer.gateway]` exists. An address beyond this \
                   machine requires a token.";
    let listen = address(&mut table, 7814, meaning, auth);
    let max_waiting = table.read(
        Field::new(
            "max_waiting",
            10_000,
            "The maximum number of pulls that wait for a message at a time.",
        ),
        within(1..=1_000_000),
    );
    let sqs = table.read(
        Field::new("sqs", false, "True to also serve SQS clients."),
        Any,
    );
    let sqs_group = table.read(
        Field::new(
            "sqs_group",
            Group::default(),
            "With `sqs`: the group of each topic from which these clients receive.",
        ),
        Any,
    );
    let ignore_attributes = table.read(
        Field::new(
            "sqs_ignore_attributes",
            true,
            "With `sqs`: true to ignore attributes and tags of queues that have no counterpart, with one line in the log; \
             false to refuse them.",
        ),
        Any,
    );
    table.finish();
    Some(GatewayConfig {
        listen,
        max_waiting,
        sqs: sqs.then_some(SqsConfig {
            group: sqs_group,
            ignore_attributes,
        }),
    })
}

fn subscriptions(
    table: &mut Table<'_>,
    namespace: &Namespace,
    topics: &BTreeMap<Topic, TopicSettings>,
) -> Vec<SubscriptionConfig> {
    let mut all: Vec<SubscriptionConfig> = Vec::new();
    let mut callbacks = CallbackTopics::default();
    for mut row in table.rows("subscriptions") {
        let topic = row.required("topic", "The topic to read.");
        let group = row.required(
            "group",
            "The group of the topic to read, or `{instance}` for a group of this process alone.",
        );
        let concurrency = row.read(
            Field::new(
                "concurrency",
                16,
                "The maximum number of deliveries at a time.",
            ),
            within(1..=10_000),
        );
        let success_topic = row.optional(
            "success_topic",
            "The topic that gets a callback (a message about the outcome) for each message that succeeds.",
        );
        let garbage_topic = row.optional(
            "garbage_topic",
            "The topic that gets a callback for each message that goes to garbage (dead letters).",
        );
        let example = "{ type = \"stdout\" }";
        let sink = row.required_table("sink", "The destination of deliveries.", example);
        let sink = sink.and_then(|sink| sinks::read(sink, namespace));
        if let (Some(topic), Some(group)) = (&topic, &group) {
            if all
                .iter()
                .any(|other| other.topic == *topic && other.group == *group)
            {
                row.reject(
                    "group",
                    format!("topic {topic} already has a subscription for this group"),
                );
            }
            topics::look_for(&row, "topic", topic, topics);
            let known = topics.get(topic).map(|settings| &settings.groups);
            if let (SubscriptionGroup::Named(group), Some(groups)) = (group, known)
                && !groups.contains(group)
            {
                let names = groups.iter().map(Group::as_str);
                let meant = misspelling::suggestion(group.as_str(), names);
                let groups = groups.show();
                row.reject(
                    "group",
                    format!("topic {topic} has no such group; its groups are {groups}{meant}"),
                );
            }
        }
        let is_later = sink.as_ref().is_some_and(SinkConfig::can_be_later);
        if is_later && success_topic.is_some() {
            let why = "cannot be combined with sink.complete_url: a gateway sends no callbacks";
            row.reject("success_topic", why);
        }
        if let Some(topic) = &topic {
            for (key, to) in [
                ("success_topic", &success_topic),
                ("garbage_topic", &garbage_topic),
            ] {
                if let Some(to) = to {
                    callback_topic(&row, key, topic, to, topics, &mut callbacks);
                }
            }
        }
        row.finish();
        if let (Some(topic), Some(group), Some(sink)) = (topic, group, sink) {
            all.push(SubscriptionConfig {
                topic,
                group,
                concurrency,
                success_topic,
                garbage_topic,
                sink,
            });
        }
    }
    all
}

/// Checks the callback topic that a key of a subscription names.
fn callback_topic(
    row: &Table<'_>,
    key: &str,
    of: &Topic,
    to: &Topic,
    topics: &BTreeMap<Topic, TopicSettings>,
    callbacks: &mut CallbackTopics,
) {
    topics::look_for(row, key, to, topics);
    if let Err(cycle) = callbacks.add(of, to) {
        row.reject(key, format!("callbacks form a cycle: {cycle}"));
    }
    if let (Some(source), Some(target)) = (topics.get(of), topics.get(to))
        && target.dedup_window < source.lease
    {
        row.warning(
            key,
            format!(
                "dedup_window of {to} is shorter than lease of {of}: a callback that is repeated after a crash may be \
                 delivered twice"
            ),
        );
    }
}
