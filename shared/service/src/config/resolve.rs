//! Turns merged values into a checked configuration: one function for each section of the file.
//!
//! Each key, default and bound is defined here once. Checks that need several keys come last.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::Arc;

use super::findings::Findings;
use super::layers::SinkSecrets;
use super::sinks::needs_feature;
use super::table::Table;
use super::values::Hash;
use super::{
    AuthConfig, Config, ConsumerConfig, DashboardConfig, DoctorMode, GatewayConfig, KedaConfig,
    MAX_READERS, MAX_WAITING, ManagerConfig, ProducerConfig, RedisConfig, SinkConfig, SqsConfig,
    SubscriptionConfig, SubscriptionGroup, listener, schedules, secret_file, sources, topics,
};
use crate::callbacks::CallbackTopics;
use crate::http::auth::{Reach, Scope, SendQuota, Token, TokenSet, check_listener, parse_hex};
use crate::http::tls::ClientName;
use crate::settings::Settings as _;
use lisa_core::fields::{Any, Field, Reader as _, Value as _, within};
use lisa_core::misspelling;
use lisa_core::redis::{Endpoint, TlsSettings};
use lisa_core::secret::Secret;
use lisa_core::small_file::{self, MAX_PEM_BYTES};
use lisa_core::time::UnixMs;
use lisa_core::topic::{
    Group, NamePattern, Namespace, ScheduleQuota, Topic, TopicQuota, TopicSettings,
};

const NONE_REQUIRED: &str = "no key is required";
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
    let (listen_manager, (doctor, jobs, dashboard, history, keda)) = listen(
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
                table.table("history"),
                keda(table, &auth),
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
    let http = listener::read(root.open("http"), &auth);
    let shutdown = root.table("shutdown");
    let log = root.table("log");
    let otel = root.table("otel");
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
            keda,
            is_dev: false,
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
        otel,
    }
}

fn dashboard(mut table: Table<'_>, auth: &AuthConfig) -> DashboardConfig {
    let config = DashboardConfig::read(&mut table).expect(NONE_REQUIRED);
    if let Some(address) = config.listen {
        let tokens = TokenSet::new(auth.tokens.clone());
        if let Err(message) = check_listener(address, &tokens, auth.allow_unauthenticated) {
            table.reject("listen", message);
        }
    }
    table.finish();
    config
}

fn redis(table: Table<'_>) -> RedisConfig {
    let mut table = table.secrets_of(|_| SinkSecrets::Required);
    let config = RedisConfig::read(&mut table).expect(NONE_REQUIRED);
    table.finish();
    config
}

/// Reads the paths of the files.
pub(super) fn tls(table: &mut Table<'_>, _: &str) -> Option<TlsSettings> {
    let mut table = table.open("tls");
    let settings = TlsSettings {
        ca_file: table.file(
            "ca_file",
            "A PEM file of the certificates to trust, in place of the system's.",
        ),
        client_cert: table.file(
            "client_cert",
            "A PEM file of the certificate to present, together with `client_key`.",
        ),
        client_key: table.file(
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
    Some(settings)
}

/// Checks that the files of certificates can be read if they are used.
pub(super) fn check_redis(config: &RedisConfig, table: &mut Table<'_>) {
    let (Endpoint::Tcp { tls, .. }
    | Endpoint::Sentinel { tls, .. }
    | Endpoint::Cluster { tls, .. }) = config.url.endpoint()
    else {
        return;
    };
    for (key, path) in [
        ("tls.ca_file", &config.tls.ca_file),
        ("tls.client_cert", &config.tls.client_cert),
        ("tls.client_key", &config.tls.client_key),
    ] {
        if let Some(path) = path.as_ref().filter(|_| *tls)
            && let Err(error) = small_file::read(path, MAX_PEM_BYTES)
        {
            table.reject(key, format!("cannot read {}: {error}", path.display()));
        }
    }
}

fn auth(mut table: Table<'_>) -> AuthConfig {
    let config = AuthConfig::read(&mut table).expect(NONE_REQUIRED);
    table.finish();
    config
}

pub(super) fn tokens(table: &mut Table<'_>, _: &str) -> Option<Vec<Token>> {
    let mut tokens: Vec<Token> = Vec::new();
    for row in table.rows("tokens") {
        let Some(token) = token(row.secrets_of(|secrets| secrets.tokens), &tokens) else {
            continue;
        };
        tokens.push(token);
    }
    Some(tokens)
}

fn token(mut row: Table<'_>, others: &[Token]) -> Option<Token> {
    let name: Option<String> =
        row.required("name", "The name of the token in logs: 1 to 64 characters.");
    let hash: Option<Hash> = row.optional(
        "sha256",
        "The SHA-256 of the token in hexadecimal. Required unless there is a `client_name`.",
    );
    let previous: Option<Hash> = row.optional(
        "previous_sha256",
        "The SHA-256 of the token's previous secret, in hexadecimal. Both secrets are accepted until this key is removed.",
    );
    let client_name: Option<ClientName> = row.optional(
        "client_name",
        "A DNS name. Connections with a client certificate for it, signed by `http.tls.client_ca_file`, have this token.",
    );
    if !row.has("sha256") && !row.has("client_name") {
        row.reject(
            "sha256",
            "missing: the SHA-256 of the token, or else a client_name",
        );
    }
    if client_name.is_some()
        && others
            .iter()
            .any(|other| other.client_name() == client_name.as_ref())
    {
        row.reject("client_name", "another token has this client_name");
    }
    let scopes: Option<Vec<Scope>> = row.required(
        "scopes",
        "A list of `send`, `read`, `operate`, `receive`, `payload` and `tokens`.",
    );
    let expires: Option<UnixMs> = row.optional(
        "expires",
        "The time from which the token is refused, by the clock of each machine. By default, never.",
    );
    let sends_per_second: Option<u32> = row.optional(
        "sends_per_second",
        "The number of messages that the token may send in a second, in each process: 1 to 1000000. By default, any.",
    );
    if sends_per_second.is_some_and(|sends| !(1..=SendQuota::MOST).contains(&sends)) {
        row.reject("sends_per_second", "must be 1 to 1000000");
    }
    let mut reach = Reach {
        topics: row.optional(
            "topics",
            "The topics that the token reaches, each a name, or a prefix followed by `*`. By default, all.",
        ),
        groups: row.optional(
            "groups",
            "The groups that the token reaches on these topics, in the same form. By default, all.",
        ),
        schedules: row.optional(
            "schedules",
            "The schedules that the token reaches, by name, in the same form; their topics must be reached, too. By default, the names in `topics`.",
        ),
    };
    for (key, patterns) in [
        ("topics", &mut reach.topics),
        ("groups", &mut reach.groups),
        ("schedules", &mut reach.schedules),
    ] {
        let Some(patterns) = patterns else { continue };
        NamePattern::normalize(patterns);
        if patterns.is_empty() {
            row.reject(key, "must have at least one name, or be omitted");
        }
    }
    let topic_quota = TopicQuota::read(&mut row, reach.topics.as_deref());
    reach.schedules = reach.schedules.or_else(|| reach.topics.clone());
    let schedule_quota = ScheduleQuota::read(&mut row, reach.schedules.as_deref());
    for (key, hash) in [("sha256", &hash), ("previous_sha256", &previous)] {
        let mut others = others.iter().flat_map(Token::hashes);
        if hash
            .as_ref()
            .and_then(|hash| parse_hex(&hash.0))
            .is_some_and(|hash| others.any(|other| *other == hash))
        {
            row.reject(key, "another token has this SHA-256");
        }
    }
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
            "must have at least one of send, read, operate, receive, payload and tokens",
        );
    }
    let secret = aws_secret(&mut row, name.as_deref());
    row.finish();
    let token = match &hash {
        Some(hash) => Token::new(name?, &hash.0, scopes?),
        None => Token::without_secret(name?, scopes?),
    };
    let token = token.ok()?.with_client_name(client_name);
    let quota = sends_per_second.map(SendQuota::new).map(Arc::new);
    let token = token.with_expiry(expires).with_reach(reach);
    let token = token.with_quota(quota).with_topic_quota(topic_quota);
    let token = token.with_schedule_quota(schedule_quota);
    let token = match previous {
        Some(previous) => token.with_previous(&previous.0).ok()?,
        None => token,
    };
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

/// Reads the external scaler of a manager, which runs if the table is there.
fn keda(table: &mut Table<'_>, auth: &AuthConfig) -> Option<KedaConfig> {
    let mut table = table.optional_table("keda")?;
    let meaning = "The address of the external scaler for KEDA (gRPC), which runs only if the table `[manager.keda]` exists. An \
                   address beyond this machine requires a token.";
    let listen = address(&mut table, 7816, meaning, auth);
    needs_feature(
        &mut table,
        "listen",
        "manager",
        "keda",
        cfg!(feature = "http2"),
    );
    table.finish();
    Some(KedaConfig { listen })
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
            MAX_WAITING,
            "The maximum number of pulls that wait for a message at a time.",
        ),
        within(1..=1_000_000),
    );
    let max_readers = table.read(
        Field::new(
            "max_readers",
            MAX_READERS,
            "The maximum number of connections to Redis that wait for messages, one for each shard and group that is pulled. Further \
             shards are read up to 20 times a second.",
        ),
        within(1..=100_000),
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
            "With `sqs`: true to keep attributes of queues that have no effect, and to ignore those that a declared topic \
             cannot keep, with one line in the log; false to refuse them.",
        ),
        Any,
    );
    table.finish();
    Some(GatewayConfig {
        listen,
        max_waiting,
        max_readers,
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
        let sink = sink.and_then(SinkConfig::read);
        if let Some(SinkConfig::RedisStream(settings)) = &sink
            && namespace.owns(settings.stream.prefix())
        {
            let why =
                format!("{namespace}: is the prefix of the relay's own keys; choose another name");
            row.reject("sink.stream", why);
        }
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
