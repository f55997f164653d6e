//! The settings of sinks, the built-in handlers of the consumer binary.
//!
//! Checks them without the network, and resolves no names. The sinks themselves are in the consumer.

use std::time::Duration;

use axum::http::Uri;
use base64::Engine;
use base64::prelude::BASE64_STANDARD;
use url::Url;

use super::brokers;
use super::layers::SinkSecrets;
use super::secret_file;
use super::sink_headers;
use super::table::Table;
use super::values::{Address, OneOrMany};
use crate::brokers::amqp::{AmqpSinkSettings, DEFAULT_CONFIRM_TIMEOUT, MAX_SHORT_STRING};
use crate::brokers::kafka::{DEFAULT_DELIVERY_TIMEOUT, KafkaSinkSettings, check_topic};
use crate::brokers::nats::{DEFAULT_ACK_TIMEOUT, NatsSinkSettings, check_subject};
use crate::brokers::redis_stream::{DEFAULT_TIMEOUT, RedisStreamSinkSettings};
use crate::targets::{
    Away, DEFAULT_MAX_AWAY, MAX_VARIABLES, RetryAfter, TargetSettings, check_program,
    check_variable, special_host,
};
use crate::template::Template;
use lisa_core::fields::{Any, Field, Reader as _, within};
use lisa_core::names::words;
use lisa_core::secret::Secret;
use lisa_core::time::MILLISECOND;
use lisa_core::topic::Namespace;

impl SinkConfig {
    /// Returns true if a delivery can be completed later, at a gateway.
    pub fn can_be_later(&self) -> bool {
        matches!(
            self,
            Self::Http {
                complete_url: Some(_),
                ..
            }
        )
    }
}

/// The sink of a subscription.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum SinkConfig {
    /// One JSON object per line on standard output.
    Stdout,
    /// A webhook.
    Http {
        /// The URL: `http://` or `https://` with a host, without user or password. Its path and query may be secrets.
        url: Secret,
        /// The keys that sign each request: `whsec_` and base64 of 24 to 64 bytes. Several during a key rotation.
        secrets: Vec<Secret>,
        /// The headers to send with each request, including `authorization`.
        headers: Vec<(String, Secret)>,
        /// The time limit for one request.
        timeout: Duration,
        /// True to allow calls to loopback, private and link-local addresses.
        allow_private: bool,
        /// The outcome of a delivery whose response has `Retry-After`.
        retry_after: RetryAfter,
        /// The rule for a server that cannot be reached.
        target: TargetSettings,
        /// The URL of a gateway for deliveries that the server completes later.
        complete_url: Option<String>,
        /// The number of messages in flight on a shard from which such deliveries count under the concurrency.
        max_later: usize,
    },
    /// A stream of any Redis.
    RedisStream(RedisStreamSinkSettings),
    /// RabbitMQ.
    Amqp(AmqpSinkSettings),
    /// NATS JetStream.
    Nats(NatsSinkSettings),
    /// Kafka.
    Kafka(KafkaSinkSettings),
    /// A program started for each delivery.
    Command {
        /// The program and its arguments; no shell.
        command: Vec<String>,
        /// The names of environment variables of the consumer that the program also gets.
        environment: Vec<String>,
    },
}

/// Reads a sink. Returns `None` after a problem that leaves no usable sink.
pub(super) fn read(mut table: Table<'_>, namespace: &Namespace) -> Option<SinkConfig> {
    let kind = table.required(
        "type",
        "The type of sink: standard output, a webhook, a program or a message broker.",
    );
    let sink = match kind? {
        SinkType::Stdout => Some(SinkConfig::Stdout),
        SinkType::Http => http(&mut table),
        SinkType::Command => command(&mut table),
        SinkType::RedisStream => redis_stream(&mut table, namespace),
        SinkType::Amqp => amqp(&mut table),
        SinkType::Nats => nats(&mut table),
        SinkType::Kafka => kafka(&mut table),
    };
    table.finish();
    sink
}

words!(
    SinkType, "type of sink", {
        Stdout = "stdout",
        Http = "http",
        Command = "command",
        RedisStream = "redis-stream",
        Amqp = "amqp",
        Nats = "nats",
        Kafka = "kafka",
    }
);

fn http(table: &mut Table<'_>) -> Option<SinkConfig> {
    let url: Option<Address> =
        table.required("url", "With type `http`: the URL to post deliveries to.");
    let url = url.map(|Address(url)| url);
    let host = match url.as_deref().map(check_url) {
        Some(Ok(host)) => Some(host),
        Some(Err(message)) => {
            table.reject("url", message);
            None
        }
        None => None,
    };
    let secrets = secrets(table);
    let headers = sink_headers::read(table);
    let timeout = table.read(
        Field::new(
            "timeout",
            Duration::from_secs(30),
            "With type `http`: the time limit of one request.",
        ),
        within(MILLISECOND..=Duration::from_hours(1)),
    );
    let allow_private = table.read(
        Field::new(
            "allow_private",
            false,
            "With type `http`: true to allow loopback and private addresses. If false, a URL with such an address, or \
             `localhost`, is refused at startup.",
        ),
        Any,
    );
    if !allow_private
        && table.secrets() != SinkSecrets::Unused
        && let Some(message) = host.as_deref().and_then(special_host)
    {
        table.reject("url", message);
    }
    let retry_after = table.read(
        Field::new(
            "retry_after",
            RetryAfter::Retry,
            "With type `http`: whether a response with `Retry-After` counts as an attempt (`retry`) or not (`defer`).",
        ),
        Any,
    );
    let complete_url: Option<String> = table.optional(
        "complete_url",
        "With type `http`: the base URL at which the receiver reaches a gateway. The receiver may then respond with \
         `Lisa-Complete-Later`, and settle the delivery at the gateway.",
    );
    if let Some(Err(message)) = complete_url.as_deref().map(check_url) {
        table.reject("complete_url", message);
    }
    let max_later = table.read(
        Field::new(
            "max_later",
            1000,
            "With type `http`: the number of messages in flight on a shard above which deliveries that are completed later \
             count toward `concurrency`.",
        ),
        within(1..=100_000),
    );
    let target = target(table, Away::Retry);
    Some(SinkConfig::Http {
        url: url?.into(),
        secrets,
        headers,
        timeout,
        allow_private,
        retry_after,
        target,
        complete_url,
        max_later,
    })
}

/// The placeholders of a routing key, a subject, a topic, a record key or a stream.
const PLACEHOLDERS: &[&str] = &["topic", "group", "id", "header:NAME"];

/// Reads a key whose value has placeholders.
fn template(
    table: &mut Table<'_>,
    key: &'static str,
    default: &str,
    meaning: &'static str,
    names: &[&'static str],
) -> Option<Template> {
    let text = table.read(Field::new(key, default.to_owned(), meaning), Any);
    match Template::parse(&text, names) {
        Ok(template) => Some(template),
        Err(message) => {
            table.reject(key, message);
            None
        }
    }
}

/// Checks a destination that is the same for each message.
fn check_fixed(
    table: &mut Table<'_>,
    key: &str,
    template: Option<&Template>,
    check: fn(&str) -> Result<(), String>,
) {
    if let Some(text) = template.and_then(Template::fixed)
        && let Err(problem) = check(text)
    {
        table.reject(key, problem);
    }
}

/// Warns that this program, and so perhaps the process of this role, was built without a feature that a sink or source needs.
pub(super) fn needs_feature(
    table: &mut Table<'_>,
    role: &str,
    feature: &'static str,
    is_there: bool,
) {
    if !is_there && table.secrets() == SinkSecrets::Checked {
        let refused = format!("a {role} built without it does not start");
        table.warning(
            "type",
            format!("built without the feature `{feature}`; {refused}"),
        );
    }
}

fn redis_stream(table: &mut Table<'_>, namespace: &Namespace) -> Option<SinkConfig> {
    let url = table.required(
        "url",
        "With type `redis-stream`: the server, in the syntax of `redis.url`. It may be the server of the relay.",
    );
    let password = secret_file::password(table);
    let ca_file = secret_file::path(
        table,
        "ca_file",
        "With types `redis-stream` and `nats`: a PEM file of the certificates to trust, in place of the system's.",
    );
    let stream = template(
        table,
        "stream",
        "due:{topic}",
        "With type `redis-stream`: the key of the stream. Placeholders are `{topic}`, `{group}`, `{id}` and \
         `{header:NAME}`.",
        PLACEHOLDERS,
    );
    let reserved = format!("{namespace}:");
    if let Some(stream) = &stream
        && stream.prefix().starts_with(&reserved)
    {
        table.reject(
            "stream",
            format!("{reserved} is the prefix of the relay's own keys; choose another name"),
        );
    }
    let max_length = table.read(
        Field::new(
            "max_length",
            None::<u64>,
            "With type `redis-stream`: the approximate number of entries to which the stream is trimmed.",
        ),
        within(1..=1_000_000_000_000),
    );
    let timeout = table.read(
        Field::new(
            "timeout",
            DEFAULT_TIMEOUT,
            "With type `redis-stream`: the time limit for appending an entry, retries included.",
        ),
        within(Duration::from_millis(100)..=Duration::from_hours(1)),
    );
    let target = target(table, Away::Defer);
    Some(SinkConfig::RedisStream(RedisStreamSinkSettings {
        url: url?,
        password,
        ca_file,
        stream: stream?,
        max_length,
        timeout,
        reserved,
        target,
    }))
}

fn amqp(table: &mut Table<'_>) -> Option<SinkConfig> {
    needs_feature(table, "consumer", "sink-amqp", cfg!(feature = "amqp"));
    let connection = brokers::amqp::read(table);
    let exchange = table.read(
        Field::new(
            "exchange",
            String::new(),
            "With type `amqp`: the exchange to publish to. The default exchange routes to the queue that the routing key \
             names.",
        ),
        Any,
    );
    if exchange.len() > MAX_SHORT_STRING {
        table.reject("exchange", "must be at most 255 bytes long");
    }
    let routing_key = template(
        table,
        "routing_key",
        "{topic}",
        "With type `amqp`: the routing key. Placeholders are `{topic}`, `{group}`, `{id}` and `{header:NAME}`.",
        PLACEHOLDERS,
    );
    let mandatory = table.read(
        Field::new(
            "mandatory",
            true,
            "With type `amqp`: true to retry messages that reach no queue. If false, RabbitMQ drops them and they are lost.",
        ),
        Any,
    );
    let confirm_timeout = table.read(
        Field::new(
            "confirm_timeout",
            DEFAULT_CONFIRM_TIMEOUT,
            "With type `amqp`: the time limit for the server's confirm.",
        ),
        within(Duration::from_millis(100)..=Duration::from_hours(1)),
    );
    let target = target(table, Away::Defer);
    Some(SinkConfig::Amqp(AmqpSinkSettings {
        connection: connection?,
        exchange,
        routing_key: routing_key?,
        mandatory,
        confirm_timeout,
        target,
    }))
}

fn nats(table: &mut Table<'_>) -> Option<SinkConfig> {
    needs_feature(table, "consumer", "sink-nats", cfg!(feature = "nats"));
    let connection = brokers::nats::read(table);
    let subject = template(
        table,
        "subject",
        "due.{topic}",
        "With type `nats`: the subject to publish to, which a JetStream stream must include. Placeholders are `{topic}`, \
         `{group}`, `{id}` and `{header:NAME}`.",
        PLACEHOLDERS,
    );
    check_fixed(table, "subject", subject.as_ref(), check_subject);
    let ack_timeout = table.read(
        Field::new(
            "ack_timeout",
            DEFAULT_ACK_TIMEOUT,
            "With type `nats`: the time limit for the stream's acknowledgment.",
        ),
        within(Duration::from_millis(100)..=Duration::from_hours(1)),
    );
    let target = target(table, Away::Defer);
    Some(SinkConfig::Nats(NatsSinkSettings {
        connection: connection?,
        subject: subject?,
        ack_timeout,
        target,
    }))
}

fn kafka(table: &mut Table<'_>) -> Option<SinkConfig> {
    needs_feature(table, "consumer", "sink-kafka", cfg!(feature = "kafka"));
    let connection = brokers::kafka::read(table);
    let topic = template(
        table,
        "topic",
        "due-{topic}",
        "With type `kafka`: the topic to publish to. Placeholders are `{topic}`, `{group}`, `{id}` and `{header:NAME}`.",
        PLACEHOLDERS,
    );
    check_fixed(table, "topic", topic.as_ref(), check_topic);
    let key = template(
        table,
        "key",
        "{id}",
        "With type `kafka`: the key of the record, which determines its partition. Placeholders are those of `topic`.",
        PLACEHOLDERS,
    );
    let delivery_timeout = table.read(
        Field::new(
            "delivery_timeout",
            DEFAULT_DELIVERY_TIMEOUT,
            "With type `kafka`: the time limit until all in-sync replicas have a record.",
        ),
        within(Duration::from_millis(100)..=Duration::from_hours(1)),
    );
    let target = target(table, Away::Defer);
    Some(SinkConfig::Kafka(KafkaSinkSettings {
        connection: connection?,
        topic: topic?,
        key: key?,
        delivery_timeout,
        target,
    }))
}

/// Reads the rule for a target that is unavailable.
fn target(table: &mut Table<'_>, away: Away) -> TargetSettings {
    TargetSettings {
        away: table.read(
            Field::new(
                "away",
                away,
                "With type `http` or a message broker: the outcome of a delivery whose target is unavailable. `defer` \
                 counts no attempt, `retry` does. The default is `retry` for type `http`, and `defer` for brokers.",
            ),
            Any,
        ),
        max_away: table.read(
            Field::new(
                "max_away",
                DEFAULT_MAX_AWAY,
                "With `away = \"defer\"`: the duration of an outage after which deliveries count as attempts.",
            ),
            within(Duration::from_secs(1)..=Duration::from_hours(365 * 24)),
        ),
    }
}

fn command(table: &mut Table<'_>) -> Option<SinkConfig> {
    let command: Option<Vec<String>> = table.required(
        "command",
        "With type `command`: the program to start for each delivery, and its arguments. There is no shell.",
    );
    match command.as_ref().map(|command| command.first()) {
        None => {}
        Some(Some(program)) if !program.is_empty() => {
            if table.secrets() == SinkSecrets::Checked
                && let Err(why) = check_program(program)
            {
                let refused = "a consumer on this machine would not start";
                table.warning(
                    "command",
                    format!("cannot run {program:?}: {why}; {refused}"),
                );
            }
        }
        Some(_) => table.reject("command", "must be a list whose first item is a program"),
    }
    let environment = table.read(
        Field::new(
            "environment",
            Vec::<String>::new(),
            "With type `command`: the names of environment variables of the consumer to pass to the program, in addition \
             to a few common ones such as `PATH`.",
        ),
        Any,
    );
    for name in &environment {
        if let Err(why) = check_variable(name) {
            table.reject("environment", why);
        }
    }
    if environment.len() > MAX_VARIABLES {
        table.reject(
            "environment",
            format!("must have at most {MAX_VARIABLES} names"),
        );
    }
    Some(SinkConfig::Command {
        command: command?,
        environment,
    })
}

fn secrets(table: &mut Table<'_>) -> Vec<Secret> {
    let inline = table
        .optional::<OneOrMany<Secret>>(
            "secret",
            "With type `http`: the keys that sign each request.",
        )
        .map(|OneOrMany(secrets)| secrets);
    const FILE: &str = "With type `http`: a file with one key per line, in place of `secret`.";
    let from_file = secret_file::read_as_used(table, "secret", "secret_file", FILE);
    let key = if table.has("secret_file") {
        "secret_file"
    } else {
        "secret"
    };
    let secrets = from_file.or(inline).unwrap_or_default();
    if table.secrets() == SinkSecrets::Unused {
        return secrets;
    }
    for (index, secret) in secrets.iter().enumerate() {
        if !is_webhook_secret(secret) {
            let message = "expected \"whsec_\" followed by base64 of 24 to 64 bytes";
            table.reject(key, format!("secret {}: {message}", index + 1));
        }
    }
    secrets
}

fn is_webhook_secret(secret: &Secret) -> bool {
    let key = secret
        .expose()
        .strip_prefix("whsec_")
        .and_then(|text| BASE64_STANDARD.decode(text).ok());
    key.is_some_and(|key| (24..=64).contains(&key.len()))
}

/// Returns the host of a URL; IP addresses in their canonical form.
fn check_url(text: &str) -> Result<String, &'static str> {
    const EXPECTED: &str = "expected an absolute URL, like https://example.com/hook";
    let uri: Uri = text.parse().map_err(|_| EXPECTED)?;
    if !matches!(uri.scheme_str(), Some("http" | "https")) {
        return Err("expected a URL that starts with http:// or https://");
    }
    match uri.authority() {
        Some(authority) if authority.as_str().contains('@') => {
            return Err("the URL must not contain a user or a password");
        }
        Some(authority) if authority.host().is_empty() => return Err("the host is missing"),
        _ => {}
    }
    let url = Url::parse(text).map_err(|_| EXPECTED)?;
    url.host_str().map(str::to_owned).ok_or(EXPECTED)
}
