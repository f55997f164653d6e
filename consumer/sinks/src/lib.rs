//! The sinks of `lisa-consumer`: handlers that deliver messages to external systems.
//!
//! Each sink is an ordinary [`Handler`](lisa_consumer_core::Handler), so applications can embed it, too. A sink only
//! reports how one attempt ended; the consumer and the topic decide about retries. If the process dies before the
//! outcome is settled, the message is delivered to a sink again.

// The macros panic if the output is closed or full. Use `cli::remark` and `cli::print` of `lisa-service`.
#![warn(clippy::print_stdout, clippy::print_stderr)]
// Tests start tasks and share state as they like.
#![cfg_attr(test, allow(clippy::disallowed_methods, clippy::disallowed_types))]

#[cfg(feature = "amqp")]
pub mod amqp;
#[cfg(any(feature = "nats", feature = "redis-stream"))]
mod batches;
#[cfg(feature = "command")]
pub mod command;
#[cfg(feature = "http")]
pub mod http;
#[cfg(feature = "kafka")]
pub mod kafka;
#[cfg(any(feature = "amqp", feature = "nats"))]
mod link;
#[cfg(feature = "nats")]
pub mod nats;
#[cfg(feature = "redis-stream")]
pub mod redis_stream;
#[cfg(feature = "stdout")]
pub mod stdout;

/// Defines the sinks: for each, its feature, its variant of `SinkConfig`, and how to build it. A sink whose feature is disabled is
/// refused with the name of the feature.
macro_rules! sinks {
    (|$namespace:ident| $($feature:literal $module:ident::$sink:ident = $kind:ident$(($settings:ident))? => $build:expr;)+) => {
        $(#[cfg(feature = $feature)] pub use $module::$sink;)+

        /// Builds the sink that a configuration describes.
        ///
        /// # Errors
        /// [`SinkError`].
        #[cfg(feature = "config")]
        #[allow(unused_variables, reason = "not every sink is in every build")]
        pub fn build(
            config: &lisa_service::config::SinkConfig,
            $namespace: &lisa_core::topic::Namespace,
        ) -> Result<Box<dyn lisa_consumer_core::Handler>, SinkError> {
            use lisa_service::config::SinkConfig;
            match config {
                $(
                    #[cfg(feature = $feature)]
                    SinkConfig::$kind$(($settings))? => Ok(Box::new($build)),
                    #[cfg(not(feature = $feature))]
                    SinkConfig::$kind { .. } => Err(SinkError::Unsupported(concat!("sink-", $feature))),
                )+
            }
        }
    };
}

sinks! { |namespace|
    "stdout" stdout::StdoutSink = Stdout => StdoutSink::new(std::io::stdout())?;
    "http" http::HttpSink = Http(settings) => HttpSink::new(settings.clone())?;
    "command" command::CommandSink = Command(settings) => CommandSink::new(settings.clone())?;
    "redis-stream" redis_stream::RedisStreamSink = RedisStream(settings) => RedisStreamSink::new(settings.clone(), namespace.clone());
    "amqp" amqp::AmqpSink = Amqp(settings) => AmqpSink::new(settings.clone());
    "nats" nats::NatsSink = Nats(settings) => NatsSink::new(settings.clone());
    "kafka" kafka::KafkaSink = Kafka(settings) => KafkaSink::new(settings.clone())?;
}

#[cfg(any(
    feature = "amqp",
    feature = "nats",
    feature = "kafka",
    feature = "redis-stream"
))]
use std::borrow::Cow;

#[cfg(any(
    feature = "amqp",
    feature = "nats",
    feature = "kafka",
    feature = "redis-stream"
))]
use {lisa_consumer_core::Delivery, lisa_service::template::Template};

#[cfg(any(feature = "amqp", feature = "nats", feature = "kafka"))]
use lisa_consumer_core::Context;

/// The error of building a sink from its settings.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum SinkError {
    /// The webhook URL cannot be used. The error does not contain the URL, which may hold a token.
    #[cfg(feature = "http")]
    #[error("http sink url: {0}")]
    Url(String),
    /// A signing key is malformed.
    #[cfg(feature = "http")]
    #[error("http sink secret: {0}")]
    Secret(&'static str),
    /// A configured header cannot be sent. The error does not contain its value.
    #[cfg(feature = "http")]
    #[error("http sink header {name:?}: {why}")]
    Header {
        /// The name, as configured.
        name: String,
        /// The reason.
        why: String,
    },
    /// The HTTP client cannot be set up, for example because root certificates are missing.
    #[cfg(feature = "http")]
    #[error("cannot set up the HTTP client: {0}")]
    Client(String),
    /// The Kafka client refuses its settings.
    #[cfg(feature = "kafka")]
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
#[cfg(any(feature = "amqp", feature = "nats", feature = "kafka"))]
fn headers<'d>(
    delivery: &'d Delivery,
    context: &Context,
) -> impl Iterator<Item = (Cow<'d, str>, Cow<'d, str>)> + use<'d> {
    let own = [
        ("lisa-id", Cow::Borrowed(delivery.id.as_str())),
        ("lisa-topic", Cow::Borrowed(delivery.topic.as_str())),
        ("lisa-group", Cow::Borrowed(delivery.group.as_str())),
        ("lisa-attempt", Cow::Owned(delivery.attempt.to_string())),
        ("lisa-due-at", Cow::Owned(delivery.due_at.to_string())),
        ("lisa-late", Cow::Borrowed("true")),
    ];
    let names = own.each_ref().map(|(name, _)| *name);
    let of_message = context.headers_to_pass_on(delivery);
    let of_message = of_message.filter(move |(name, _)| !names.contains(&&**name));
    let is_late = delivery.late;
    let own = own
        .into_iter()
        .filter(move |(name, _)| is_late || *name != "lisa-late");
    of_message.chain(own.map(|(name, value)| (Cow::Borrowed(name), value)))
}

/// Fills in a key of a sink that may contain placeholders: a routing key, a subject, a topic, a record key or a stream.
#[cfg(any(
    feature = "amqp",
    feature = "nats",
    feature = "kafka",
    feature = "redis-stream"
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
#[cfg(any(feature = "http", feature = "command"))]
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

#[cfg(test)]
pub(crate) mod tests {
    use std::sync::Arc;

    use bytes::Bytes;
    use lisa_consumer_core::{Context, Delivery};
    use lisa_core::message::EntryId;
    use lisa_core::time::UnixMs;
    use tokio::time::{Duration, Instant};
    use tokio_util::sync::CancellationToken;

    use super::*;

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

    #[cfg(all(
        feature = "config",
        feature = "stdout",
        feature = "http",
        feature = "command"
    ))]
    #[test]
    fn each_kind_of_sink_is_built_and_a_useless_one_is_refused() {
        use lisa_core::topic::Namespace;
        use lisa_service::config::SinkConfig;
        use lisa_service::targets::{Away, TargetSettings};
        use {command::CommandSinkSettings, http::HttpSinkSettings};

        let http = |secret: &str| {
            SinkConfig::Http(HttpSinkSettings {
                url: "https://example.com/hook".into(),
                secrets: vec![secret.into()],
                headers: Vec::new(),
                timeout: std::time::Duration::from_secs(30),
                allow_private: false,
                retry_after: lisa_service::targets::RetryAfter::Retry,
                target: TargetSettings::new(Away::Retry),
                complete_url: None,
                max_later: 1000,
            })
        };
        let command = |words: &[&str]| {
            SinkConfig::Command(CommandSinkSettings {
                command: words.iter().map(|&word| word.to_owned()).collect(),
                environment: Vec::new(),
            })
        };
        let sink = |config: &SinkConfig| build(config, &Namespace::default());
        for good in [SinkConfig::Stdout, command(&["true"])] {
            assert!(sink(&good).is_ok(), "{good:?}");
        }
        let refused = sink(&http("whsec_short")).err();
        assert!(matches!(refused, Some(SinkError::Secret(_))), "{refused:?}");
        let refused = sink(&command(&[])).err();
        assert!(
            matches!(refused, Some(SinkError::EmptyCommand)),
            "{refused:?}"
        );
    }

    #[cfg(any(feature = "http", feature = "command"))]
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
