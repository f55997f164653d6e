//! The sinks of the `lisa-consumer` binary: handlers that deliver messages to the outside.
//!
//! Each sink is an ordinary [`Handler`](crate::Handler), so applications can embed it, too. A sink only reports how one
//! attempt ended; the consumer and the topic decide about retries. If the process dies before the outcome is settled,
//! the message is delivered to a sink again.

#[cfg(feature = "sink-amqp")]
pub mod amqp;
#[cfg(any(feature = "sink-nats", feature = "sink-redis-stream"))]
mod batches;
#[cfg(feature = "sink-command")]
pub mod command;
#[cfg(feature = "sink-http")]
pub mod http;
#[cfg(feature = "sink-kafka")]
pub mod kafka;
#[cfg(any(feature = "sink-amqp", feature = "sink-nats"))]
mod link;
#[cfg(feature = "sink-nats")]
pub mod nats;
#[cfg(feature = "sink-redis-stream")]
pub mod redis_stream;
#[cfg(feature = "sink-stdout")]
pub mod stdout;

#[cfg(feature = "sink-amqp")]
pub use amqp::AmqpSink;
#[cfg(feature = "sink-command")]
pub use command::{CommandSink, CommandSinkSettings};
#[cfg(feature = "sink-http")]
pub use http::{HttpSink, HttpSinkSettings};
#[cfg(feature = "sink-kafka")]
pub use kafka::KafkaSink;
#[cfg(feature = "sink-nats")]
pub use nats::NatsSink;
#[cfg(feature = "sink-redis-stream")]
pub use redis_stream::RedisStreamSink;
#[cfg(feature = "sink-stdout")]
pub use stdout::StdoutSink;

#[cfg(any(
    feature = "sink-amqp",
    feature = "sink-nats",
    feature = "sink-kafka",
    feature = "sink-redis-stream"
))]
use std::borrow::Cow;

#[cfg(any(
    feature = "sink-amqp",
    feature = "sink-nats",
    feature = "sink-kafka",
    feature = "sink-redis-stream"
))]
use {crate::delivery::Delivery, lisa_service::template::Template};

/// The error of building a sink from its settings.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum SinkError {
    /// The webhook URL cannot be used. The error does not contain the URL, which may hold a token.
    #[cfg(feature = "sink-http")]
    #[error("http sink url: {0}")]
    Url(String),
    /// A signing key is malformed.
    #[cfg(feature = "sink-http")]
    #[error("http sink secret: {0}")]
    Secret(&'static str),
    /// A configured header cannot be sent. The error does not contain its value.
    #[cfg(feature = "sink-http")]
    #[error("http sink header {name:?}: {why}")]
    Header {
        /// The name, as configured.
        name: String,
        /// The reason.
        why: String,
    },
    /// The HTTP client cannot be set up, for example because root certificates are missing.
    #[cfg(feature = "sink-http")]
    #[error("cannot set up the HTTP client: {0}")]
    Client(String),
    /// The Kafka client refuses its settings.
    #[cfg(feature = "sink-kafka")]
    #[error("kafka sink: cannot create the client: {0}")]
    Kafka(String),
    /// The command is empty.
    #[error("command sink: the command is empty")]
    EmptyCommand,
    /// The program does not exist or is not executable.
    #[error("command sink: cannot run {program:?}: {why}")]
    NoProgram {
        /// The program, as configured.
        program: String,
        /// The reason.
        why: &'static str,
    },
    /// An environment variable cannot be passed to the program.
    #[error("command sink: environment {name:?}: {why}")]
    Environment {
        /// The name, as configured.
        name: String,
        /// The reason.
        why: &'static str,
    },
    /// This program was built without a feature that the sink needs.
    #[error("built without the feature `{0}`")]
    Unsupported(&'static str),
    /// The writer thread cannot be started.
    #[error("cannot start the writer thread of stdout")]
    Thread(#[source] std::io::Error),
}

/// Returns the headers to publish: those of the message, and those with which Lisa describes the delivery, which win.
#[cfg(any(feature = "sink-amqp", feature = "sink-nats", feature = "sink-kafka"))]
fn headers(delivery: &Delivery) -> impl Iterator<Item = (&str, Cow<'_, str>)> {
    let own = [
        ("lisa-id", Cow::Borrowed(delivery.id.as_str())),
        ("lisa-topic", Cow::Borrowed(delivery.topic.as_str())),
        ("lisa-group", Cow::Borrowed(delivery.group.as_str())),
        ("lisa-attempt", Cow::Owned(delivery.attempt.to_string())),
        ("lisa-due-at", Cow::Owned(delivery.due_at.to_string())),
        ("lisa-late", Cow::Borrowed("true")),
    ];
    let names = own.each_ref().map(|(name, _)| *name);
    let of_message = delivery.headers.iter();
    let of_message = of_message.filter(move |(name, _)| !names.contains(name));
    let is_late = delivery.late;
    let own = own
        .into_iter()
        .filter(move |(name, _)| is_late || *name != "lisa-late");
    of_message
        .map(|(name, value)| (name, Cow::Borrowed(value)))
        .chain(own)
}

/// Fills in a key of a sink that may contain placeholders: a routing key, a subject, a topic, a record key or a stream.
#[cfg(any(
    feature = "sink-amqp",
    feature = "sink-nats",
    feature = "sink-kafka",
    feature = "sink-redis-stream"
))]
fn destination<'a>(template: &'a Template, delivery: &'a Delivery) -> Result<Cow<'a, str>, String> {
    let value = |name| {
        Some(Cow::Borrowed(match name {
            "topic" => delivery.topic.as_str(),
            "group" => delivery.group.as_str(),
            "id" => delivery.id.as_str(),
            _ => return None,
        }))
    };
    let rendered = template.render(value, |name| delivery.headers.get(name));
    rendered.map_err(|error| format!("cannot build the destination: {error}"))
}

/// Converts untrusted bytes for an error text: at most `limit` characters on one line. Replaces characters that control a
/// terminal or change the text direction with spaces.
#[cfg(any(feature = "sink-http", feature = "sink-command"))]
fn printable(bytes: &[u8], limit: usize) -> String {
    let text = String::from_utf8_lossy(bytes);
    let steers = |c: char| {
        c.is_control()
            || matches!(c, '\u{200e}'..='\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2066}'..='\u{2069}')
    };
    let line: String = text
        .trim()
        .chars()
        .take(limit)
        .map(|c| if steers(c) { ' ' } else { c })
        .collect();
    line.trim().to_owned()
}

/// Joins an error and its causes on one line.
#[cfg(any(feature = "sink-http", feature = "sink-nats"))]
fn chain(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut source = error.source();
    while let Some(cause) = source {
        text.push_str(": ");
        text.push_str(&cause.to_string());
        source = cause.source();
    }
    text
}

#[cfg(test)]
pub(crate) mod tests {
    use std::sync::Arc;

    use bytes::Bytes;
    use lisa_core::message::EntryId;
    use lisa_core::time::UnixMs;
    use tokio::time::{Duration, Instant};
    use tokio_util::sync::CancellationToken;

    use super::*;
    use crate::delivery::{Context, Delivery};

    /// The second attempt of a message, 5 ms after its due time.
    pub(crate) fn delivery(payload: impl Into<Bytes>) -> Delivery {
        Delivery {
            topic: "orders".parse().unwrap(),
            group: "billing".parse().unwrap(),
            id: "order-7".parse().unwrap(),
            entry: EntryId::new(1_700_000_000_001, 0),
            attempt: 2,
            max_attempts: 16,
            due_at: UnixMs::new(1_700_000_000_000),
            delivered_at: UnixMs::new(1_700_000_000_005),
            late: false,
            last_error: None,
            headers: Arc::default(),
            payload: payload.into(),
        }
    }

    pub(super) fn context() -> Context {
        Context::new(
            &delivery(""),
            Instant::now() + Duration::from_secs(300),
            CancellationToken::new(),
            CancellationToken::new(),
        )
    }

    #[cfg(any(feature = "sink-http", feature = "sink-command"))]
    #[test]
    fn foreign_text_becomes_one_short_line() {
        assert_eq!(
            printable(b" \x1b[31mred\r\nline\xff \n", 100),
            "[31mred  line\u{fffd}"
        );
        assert_eq!(printable("ab\u{202e}c".as_bytes(), 100), "ab c");
        assert_eq!(printable("ääää".as_bytes(), 3), "äää");
        assert_eq!(printable(b"", 3), "");
    }
}
