//! Converts a broker's message into one for Lisa: its topic, options, id and headers.

use std::borrow::Cow;
use std::time::Duration;

use axum::http::{HeaderMap, HeaderName, HeaderValue};
use bytes::Bytes;
use lisa_core::message::{Headers, MessageId};
use lisa_core::time::shorten;
use lisa_core::topic::Topic;
use lisa_service::config::SourceConfig;
use sha2::{Digest, Sha256};

use crate::http::headers;
use crate::message::NewMessage;

/// The header of RabbitMQ's delayed message plugin: the delay in milliseconds.
const X_DELAY: &str = "x-delay";
/// The headers that Lisa's own sinks add, which are omitted because they describe an earlier delivery.
const OF_SINKS: [&str; 8] = [
    "lisa-attempt",
    "lisa-due-at",
    "lisa-group",
    "lisa-late",
    "lisa-origin-traceparent",
    "lisa-origin-tracestate",
    "lisa-refused",
    "lisa-topic",
];
/// The largest number of headers that are read.
const MAX_HEADERS: usize = 1000;
/// The header that each delivery of a sink has. In such a message, the id is that of the earlier message.
const OF_A_DELIVERY: &str = "lisa-attempt";
/// The prefix of the headers of callbacks, which only Lisa sets: they are omitted.
const CALLBACK: &str = "lisa-callback-";
const ID: &str = "lisa-id";
const IDEMPOTENCY_KEY: &str = "idempotency-key";

/// A message as its broker delivers it.
#[derive(Debug)]
pub(in crate::sources) struct Incoming {
    pub(in crate::sources) payload: Bytes,
    /// The headers, in any case; `None` for a value that is not text.
    pub(in crate::sources) headers: Vec<(String, Option<String>)>,
    /// The id that is the same in every redelivery, if there is one.
    pub(in crate::sources) id: Option<String>,
}

/// A message to send.
#[derive(Debug)]
pub(in crate::sources) struct Outgoing {
    pub(in crate::sources) topic: Topic,
    pub(in crate::sources) message: NewMessage,
    /// The name of the first header that was omitted because Lisa cannot carry it.
    pub(in crate::sources) left_out: Option<String>,
    /// True if the durability is that of the message, not of the topic.
    pub(in crate::sources) has_durability: bool,
}

/// Converts a message.
///
/// # Errors
/// Returns the reason why Lisa refuses it permanently.
pub(in crate::sources) fn read(
    incoming: Incoming,
    source: &SourceConfig,
) -> Result<Outgoing, String> {
    if incoming.headers.len() > MAX_HEADERS {
        let count = incoming.headers.len();
        return Err(format!("{count} headers: must be at most {MAX_HEADERS}"));
    }
    let topic = topic(&incoming, source)?;
    let (mut options, mut own, mut left_out, mut delay) =
        (HeaderMap::new(), Headers::default(), None, None);
    let mut names = incoming.headers.iter().map(|(name, _)| name);
    let was_delivered = names.any(|name| name.eq_ignore_ascii_case(OF_A_DELIVERY));
    for (name, value) in &incoming.headers {
        let lower = name.to_ascii_lowercase();
        if OF_SINKS.contains(&lower.as_str()) || (was_delivered && lower == ID) {
            continue;
        }
        if lower == X_DELAY {
            delay = x_delay(value.as_deref())?;
        } else if is_option(&lower) {
            let (key, value) = option(&lower, value.as_deref()).ok_or_else(|| {
                format!(
                    "{}: expected text without control characters",
                    shorten(name)
                )
            })?;
            options.append(key, value);
        } else {
            let inserted = value.as_ref().map(|value| own.insert(&lower, value));
            if !matches!(inserted, Some(Ok(()))) {
                left_out.get_or_insert_with(|| shorten(name));
            }
        }
    }
    for (name, value) in own.iter() {
        // An explicit `Lisa-Header-` wins, as over HTTP.
        let name = format!("lisa-header-{name}");
        if let Some((key, value)) = option(&name, Some(value))
            && !options.contains_key(&key)
        {
            options.append(key, value);
        }
    }
    let has = |name: &str| options.contains_key(name);
    let has_due_time = has("lisa-delay") || has("lisa-deliver-at");
    let has_id = has(ID) || has(IDEMPOTENCY_KEY);
    let has_durability = has("lisa-durability");
    let mut message = headers::message(&options)
        .map_err(|problem| problem.detail().to_owned())?
        .payload(incoming.payload);
    if let Some(delay) = delay
        && !has_due_time
    {
        message = message.delay(delay);
    }
    if let Some(id) = incoming.id
        && !has_id
    {
        message = message.id(message_id(&source.name, &id));
    }
    Ok(Outgoing {
        topic,
        message,
        left_out,
        has_durability,
    })
}

fn topic(incoming: &Incoming, source: &SourceConfig) -> Result<Topic, String> {
    let header = |name: &str| {
        let mut headers = incoming.headers.iter();
        let found = headers.find(|(other, _)| other.eq_ignore_ascii_case(name));
        found.and_then(|(_, value)| value.as_deref())
    };
    let name = source.topic.render(|_| None, header);
    let name = name.map_err(|error| format!("topic: {error}"))?;
    let topic: Topic = name.parse().map_err(|error| format!("topic: {error}"))?;
    match source.topics.contains(&topic) {
        true => Ok(topic),
        false => Err(format!("topic: {topic} is not one of the source's topics")),
    }
}

fn option(name: &str, value: Option<&str>) -> Option<(HeaderName, HeaderValue)> {
    let name = HeaderName::from_bytes(name.as_bytes()).ok()?;
    let value = HeaderValue::from_bytes(value?.as_bytes()).ok()?;
    Some((name, value))
}

/// Returns true for a header that sets an option of the message, or is refused because it starts like one.
fn is_option(name: &str) -> bool {
    (name.starts_with("lisa-") && !name.starts_with(CALLBACK)) || name == IDEMPOTENCY_KEY
}

/// Reads the delay of RabbitMQ's plugin. The plugin makes the number negative once it has delayed the message, so that is
/// no delay.
fn x_delay(value: Option<&str>) -> Result<Option<Duration>, String> {
    let millis: Option<i64> = value.and_then(|text| text.trim().parse().ok());
    let millis = millis.ok_or_else(|| {
        let found = value.map_or(Cow::Borrowed("no text"), |text| shorten(text).into());
        format!("{X_DELAY}: expected a whole number of milliseconds, found {found:?}")
    })?;
    Ok(u64::try_from(millis).ok().map(Duration::from_millis))
}

/// Returns the id of a message: the name of its source, a colon, and its id at the broker. A hash replaces the id at the
/// broker if the result would be too long or contain characters that are not allowed.
fn message_id(source: &str, id: &str) -> MessageId {
    let plain = format!("{source}:{id}").parse();
    plain.unwrap_or_else(|_| {
        let hash = Sha256::digest(id.as_bytes());
        let digits: String = hash[..16]
            .iter()
            .map(|byte| format!("{byte:02x}"))
            .collect();
        let id = format!("{source}:{digits}").parse();
        id.expect("the name of a source has up to 31 characters that ids allow")
    })
}

#[cfg(test)]
mod tests {
    use lisa_core::time::UnixMs;
    use lisa_core::topic::TopicSettings;
    use lisa_service::config::{Config, LoadOptions};

    use super::*;

    /// A source whose topic is in the header `to`.
    fn source() -> SourceConfig {
        let row = r#"[{"name": "in", "topic": "{header:to}", "topics": ["orders"],
            "from": {"type": "amqp", "url": "amqp://h", "queue": "q"}}]"#;
        let options = LoadOptions {
            env: vec![("LISA_PRODUCER__SOURCES".to_owned(), row.to_owned())],
            ..LoadOptions::default()
        };
        Config::load(options).unwrap().producer.sources.remove(0)
    }

    /// Reads a message with these headers, and `to`, at the time 0.
    fn message(
        id: Option<&str>,
        headers: &[(&str, Option<&str>)],
    ) -> Result<lisa_core::message::PreparedMessage, String> {
        let own =
            |(name, value): &(&str, Option<&str>)| ((*name).to_owned(), value.map(str::to_owned));
        let topic = ("To", Some("orders"));
        let incoming = Incoming {
            payload: Bytes::from_static(b"x"),
            headers: headers.iter().chain([&topic]).map(own).collect(),
            id: id.map(str::to_owned),
        };
        let read = read(incoming, &source())?;
        let checked = read
            .message
            .check(&TopicSettings::default(), UnixMs::new(0));
        checked.map_err(|error| error.to_string())
    }

    fn due(headers: &[(&str, Option<&str>)]) -> Result<u64, String> {
        message(None, headers).map(|message| message.when.due(UnixMs::new(0)).get())
    }

    #[test]
    fn the_due_time_is_in_the_headers_of_http_or_of_rabbitmq() {
        assert_eq!(due(&[]), Ok(0));
        assert_eq!(due(&[("x-delay", Some("5000"))]), Ok(5000));
        assert_eq!(due(&[("X-Delay", Some("-5000"))]), Ok(0), "delayed before");
        assert_eq!(due(&[("LISA-DELAY", Some("5s"))]), Ok(5000));
        let at = ("Lisa-Deliver-At", Some("1970-01-01T00:00:07Z"));
        assert_eq!(due(&[("x-delay", Some("5000")), at]), Ok(7000));
        for (name, value) in [
            ("x-delay", Some("5s")),
            ("x-delay", None),
            ("lisa-delay", Some("5")),
            ("lisa-delay", None),
            ("lisa-dealy", Some("5s")),
            ("lisa-header-lisa-callback-hops", Some("8")),
            ("lisa-key", Some("a\nb")),
        ] {
            let refused = due(&[(name, value)]).unwrap_err();
            assert!(
                refused.to_lowercase().starts_with(name),
                "{name}: {refused}"
            );
        }
    }

    #[test]
    fn an_id_has_the_name_of_its_source_and_is_hashed_if_it_is_not_allowed() {
        let id =
            |given: Option<&str>, headers: &[_]| message(given, headers).unwrap().id.to_string();
        assert_eq!(id(Some("order-7"), &[]), "in:order-7");
        assert_eq!(id(Some("order-7"), &[("Lisa-Id", Some("own"))]), "own");
        let again = [("lisa-id", Some("own")), ("Lisa-Attempt", Some("1"))];
        assert_eq!(id(Some("order-7"), &again), "in:order-7", "a new message");
        let hashed = id(Some("order 7"), &[]);
        assert_eq!((hashed.len(), &hashed[..3]), (35, "in:"));
        assert_eq!(hashed, id(Some("order 7"), &[]), "the same each time");
        assert_ne!(hashed, id(Some("order 8"), &[]));
        assert_eq!(id(Some(&"x".repeat(61)), &[]).len(), 64);
        assert_eq!(id(Some(&"x".repeat(62)), &[]).len(), 35);
        assert_ne!(id(None, &[]), id(None, &[]));
        let longest = message_id(&"n".repeat(31), "ä");
        assert_eq!(longest.as_str().len(), 64);
    }

    #[test]
    fn headers_are_carried_and_what_cannot_be_is_left_out() {
        let trace = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01";
        let message = message(
            None,
            &[
                ("Region", Some("emea")),
                ("traceparent", Some(trace)),
                ("Lisa-Header-Color", Some("red")),
                ("color", Some("blue")),
                ("lisa-attempt", Some("3")),
                ("Lisa-Callback-Hops", Some("8")),
                ("x-death", None),
                ("my name", Some("x")),
                ("city", Some("K\u{f6}ln")),
            ],
        );
        let headers = message.unwrap().record.headers;
        let found: Vec<_> = headers.iter().collect();
        let expected = [
            ("color", "red"),
            ("region", "emea"),
            ("to", "orders"),
            ("traceparent", trace),
        ];
        assert_eq!(found, expected);
    }

    #[test]
    fn a_message_with_very_many_headers_is_refused() {
        let names: Vec<String> = (0..40_000).map(|n| format!("lisa-{n}")).collect();
        let headers: Vec<_> = names
            .iter()
            .map(|name| (name.as_str(), Some("x")))
            .collect();
        let refused = message(None, &headers).unwrap_err();
        assert!(refused.contains("at most 1000"), "{refused}");
    }

    #[test]
    fn only_a_topic_of_the_source_is_used() {
        let read = |headers: &[(&str, &str)]| {
            let own =
                |(name, value): &(&str, &str)| ((*name).to_owned(), Some((*value).to_owned()));
            let incoming = Incoming {
                payload: Bytes::new(),
                headers: headers.iter().map(own).collect(),
                id: None,
            };
            read(incoming, &source()).map(|read| read.topic.to_string())
        };
        assert_eq!(read(&[("TO", "orders")]).as_deref(), Ok("orders"));
        for (headers, expected) in [
            (&[][..], "topic: no value for {header:to}"),
            (
                &[("to", "payments")],
                "topic: payments is not one of the source's topics",
            ),
            (
                &[("to", "A B")],
                "topic: \"A B\" is not a topic: must be [A-Za-z0-9_][A-Za-z0-9._-]{0,79}",
            ),
        ] {
            assert_eq!(read(headers).unwrap_err(), expected);
        }
    }
}
