//! Parses one message from a line of JSON: of a batch over HTTP, or of an import.
//!
//! ```text
//! {"payload": any JSON | "payload_text": "…" | "payload_base64": "…", "headers": {"name": "value"},
//!  and the fields of MessageOptions: "delay": "30s", "id": "…", "retry": {"kind": "fixed", "delay": "5s"}, …}
//! ```

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::fmt;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use bytes::Bytes;
use lisa_core::fields::{FieldProblem, Fields as _, JsonReader};
use lisa_core::message::{Headers, MAX_HEADERS, MessageOptions};
use lisa_core::time::shorten;
use lisa_service::http::json::{self, ElementsError};
use lisa_service::http::{Problem, ProblemCode};
use serde::de::{Error as _, MapAccess, Visitor};
use serde::{Deserialize, Deserializer};
use serde_json::value::RawValue;
use serde_json::{Map, Value};

use crate::message::NewMessage;

/// The most bytes of a line in addition to its payload: 64 headers of the largest size, keys and the rest.
const BESIDES: usize = 320 * 1024;
/// The most bytes of all fields of a line that are not in `CONTENT`, as JSON. Many times as much memory holds them.
const MAX_OPTIONS: usize = 64 * 1024;
/// The most messages of a batch that is read as a whole: elements of a JSON array, or lines declared as JSON.
const MAX_ELEMENTS: usize = 1000;
/// The fields of a line that are not options.
pub(crate) const CONTENT: [&str; 4] = ["payload", "payload_text", "payload_base64", "headers"];

/// Returns the longest line that a topic can need, in bytes. A payload of which more than half the characters are escaped
/// belongs in `payload_base64`.
pub(crate) fn longest(max_payload: u64) -> usize {
    usize::try_from(max_payload).map_or(usize::MAX, |bytes| bytes * 2 + BESIDES)
}

/// Parses a line. A JSON payload keeps its exact text. If the line has no id, `id` may supply one.
///
/// # Errors
/// One problem that lists everything that is wrong.
pub(crate) fn parse(
    line: &[u8],
    id: impl FnOnce() -> Option<String>,
) -> Result<NewMessage, Problem> {
    // A payload is not built, and the other fields have a limit of their own.
    let line: Line<'_> = json::object(line, usize::MAX)
        .map_err(|error| Problem::new(ProblemCode::Invalid, format!("not a message: {error}")))?;
    let mut options = JsonReader::new(&line.options).null_is_missing();
    let mut problems = Vec::new();
    let payload = line.payload(&mut problems);
    let headers = line.headers(&mut problems);
    let mut message = NewMessage::new(payload).options(MessageOptions::read_fields(&mut options));
    options.know(&CONTENT);
    problems.extend(options.finish());
    if !problems.is_empty() {
        return Err(problems.into());
    }
    if line.options.get("id").is_none_or(Value::is_null)
        && let Some(id) = id()
    {
        message = message.id(id);
    }
    Ok(message.headers(headers))
}

/// Splits a JSON array into the texts of its elements.
///
/// # Errors
/// Not a JSON array, or one with too many elements. An element may be any JSON.
pub(crate) fn elements(array: &[u8]) -> Result<Vec<&str>, Problem> {
    Ok(json::elements(array, MAX_ELEMENTS)?)
}

/// Splits a text into lines, and skips empty ones.
///
/// # Errors
/// Not UTF-8, or too many lines.
pub(crate) fn lines(text: &[u8]) -> Result<Vec<&str>, Problem> {
    let text = str::from_utf8(text).map_err(|error| {
        Problem::new(ProblemCode::Invalid, format!("body is not valid: {error}"))
    })?;
    let lines = text.lines().filter(|line| !line.trim_ascii().is_empty());
    let lines: Vec<_> = lines.take(MAX_ELEMENTS + 1).collect();
    if lines.len() > MAX_ELEMENTS {
        return Err(ElementsError::TooMany(MAX_ELEMENTS).into());
    }
    Ok(lines)
}

/// The fields of a line. `null` is a payload; any other field that is null is missing.
struct Line<'a> {
    content: BTreeMap<&'static str, &'a RawValue>,
    options: Map<String, Value>,
}

impl<'de: 'a, 'a> Deserialize<'de> for Line<'a> {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        struct Fields;

        impl<'de> Visitor<'de> for Fields {
            type Value = Line<'de>;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a JSON object")
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Self::Value, A::Error> {
                let mut line = Line {
                    content: BTreeMap::new(),
                    options: Map::new(),
                };
                let mut length = 0;
                while let Some(name) = map.next_key::<Cow<'de, str>>()? {
                    let raw: &RawValue = map.next_value()?;
                    let refuse = |why: &dyn fmt::Display| {
                        A::Error::custom(format_args!("{why} `{}`", shorten(&name)))
                    };
                    let is_new = match CONTENT.iter().find(|known| **known == name) {
                        Some(known) => line.content.insert(known, raw).is_none(),
                        None => {
                            length += name.len() + raw.get().len();
                            if length > MAX_OPTIONS {
                                return Err(refuse(&"more than 64 KiB of options up to field"));
                            }
                            let value = json::value(raw.get().as_bytes(), json::FEW);
                            let value =
                                value.map_err(|error| refuse(&format_args!("{error} of field")))?;
                            line.options.insert(name.to_string(), value).is_none()
                        }
                    };
                    if !is_new {
                        return Err(refuse(&"duplicate field"));
                    }
                }
                Ok(line)
            }
        }

        from.deserialize_map(Fields)
    }
}

impl Line<'_> {
    /// Returns a field that is not an option, unless it is missing.
    fn content(&self, name: &str) -> Option<&RawValue> {
        let raw = self.content.get(name).copied();
        raw.filter(|raw| name == "payload" || raw.get() != "null")
    }

    fn payload(&self, problems: &mut Vec<FieldProblem>) -> Bytes {
        let [json, text, base64] =
            ["payload", "payload_text", "payload_base64"].map(|name| self.content(name));
        match (json, text, base64) {
            (Some(json), None, None) => Bytes::copy_from_slice(json.get().as_bytes()),
            (None, Some(_), None) => self.read::<String>("payload_text", problems).into(),
            (None, None, Some(_)) => {
                let text: String = self.read("payload_base64", problems);
                let bytes = STANDARD.decode(text);
                bytes.map(Bytes::from).unwrap_or_else(|error| {
                    problems.push(problem("payload_base64", error));
                    Bytes::new()
                })
            }
            _ => {
                let expected =
                    "exactly one of payload, payload_text and payload_base64 is required";
                problems.push(problem("payload", expected));
                Bytes::new()
            }
        }
    }

    fn headers(&self, problems: &mut Vec<FieldProblem>) -> Headers {
        let mut headers = Headers::default();
        // Each header above the limit gets its own error. Above twice the limit, one error replaces them, and no headers are built.
        let given = self.content("headers").map_or("{}", RawValue::get);
        let given = json::object(given.as_bytes(), 2 * MAX_HEADERS);
        let given: BTreeMap<String, String> = given.unwrap_or_else(|error| {
            problems.push(problem("headers", error));
            BTreeMap::new()
        });
        for (name, value) in given {
            if let Err(error) = headers.insert(&name, &value) {
                problems.push(problem(&format!("headers.{}", shorten(&name)), error));
            }
        }
        headers
    }

    /// Reads a field, if there is one.
    fn read<T: for<'de> Deserialize<'de> + Default>(
        &self,
        name: &'static str,
        problems: &mut Vec<FieldProblem>,
    ) -> T {
        let read = self
            .content(name)
            .map(|raw| serde_json::from_str(raw.get()));
        read.unwrap_or_else(|| Ok(T::default()))
            .unwrap_or_else(|error| {
                problems.push(problem(name, error));
                T::default()
            })
    }
}

fn problem(field: &str, why: impl ToString) -> FieldProblem {
    FieldProblem {
        field: field.to_owned(),
        value: String::new(),
        message: why.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use lisa_core::message::{Expiry, Options, PreparedMessage};
    use lisa_core::retry::RetryPolicy;
    use lisa_core::time::UnixMs;
    use lisa_core::topic::TopicSettings;

    use super::*;

    fn message(line: &str) -> PreparedMessage {
        let message = parse(line.as_bytes(), || None).unwrap();
        message
            .check(&TopicSettings::default(), UnixMs::new(0))
            .unwrap()
    }

    fn refusal(line: &str) -> String {
        parse(line.as_bytes(), || None)
            .unwrap_err()
            .detail()
            .to_owned()
    }

    #[test]
    fn json_is_kept_to_the_byte() {
        for json in [
            "null",
            "1234567890123456789",
            "1.0e2",
            "[ ]",
            r#"{"b":1, "a":"\u00e4"}"#,
        ] {
            let message = message(&format!(r#"{{"payload": {json} }}"#));
            assert_eq!(message.record.payload, json);
        }
    }

    #[test]
    fn a_payload_may_be_text_base64_or_empty() {
        assert_eq!(message(r#"{"payload_text":"a\nb"}"#).record.payload, "a\nb");
        assert_eq!(
            message(r#"{"payload_base64":"AP8="}"#).record.payload,
            &[0, 255][..]
        );
        assert_eq!(message(r#"{"payload_text":""}"#).record.payload, "");
    }

    #[test]
    fn an_id_is_generated_only_if_the_line_has_none() {
        let id = |line: &str| {
            let message = parse(line.as_bytes(), || Some("made".to_owned())).unwrap();
            message.message_id().to_string()
        };
        assert_eq!(id(r#"{"payload":1,"id":"given"}"#), "given");
        assert_eq!(id(r#"{"payload":1}"#), "made");
    }

    #[test]
    fn a_broken_line_is_refused_with_everything_that_is_wrong() {
        assert!(refusal("{").starts_with("not a message: "));
        for line in ["[]", "[1,null,null]", " [1]", "null", "\"{}\""] {
            assert_eq!(refusal(line), "not a message: expected a JSON object");
        }
        assert!(refusal(r#"{"payload":1,"dely":"1s"}"#).contains("dely"));
        assert!(refusal("{}").starts_with("payload: exactly one of "));
        assert!(refusal(r#"{"payload":1,"payload_text":"1"}"#).starts_with("payload:"));
        let all = refusal(
            r#"{"payload_base64":"?","delay":"1","id":"a.b","max_attempts":0,"headers":{"ä":"x"},"key":"\u0000",
                "merge_key":"","priority":1.5,"ttl":"0s","retry":{"kind":"fixed","delay":5},"replace":"a.b"}"#,
        );
        for field in [
            "payload_base64:",
            "delay:",
            "id:",
            "max_attempts:",
            "headers.ä:",
            "key: \"\\0\"",
            "merge_key:",
            "priority: must be a whole number from -2147483648 to 2147483647",
            "ttl: must be 1ms to 3653d",
            "retry: not a retry policy",
            "replace:",
        ] {
            assert!(all.contains(field), "{field} is missing in {all}");
        }
        let both = r#"{"payload":1,"delay":"1s","deliver_at":"2026-11-21T09:30:00Z"}"#;
        assert_eq!(refusal(both), "deliver_at: cannot be combined with delay");
        let both = r#"{"payload":1,"ttl":"1s","expires_at":"2026-11-21T09:30:00Z"}"#;
        assert_eq!(refusal(both), "expires_at: cannot be combined with ttl");
        let itself = r#"{"payload":1,"replace":"a","id":"a"}"#;
        assert!(refusal(itself).starts_with("replace: must be"));
        for number in ["2147483648", "\"1\"", "[]"] {
            let line = format!(r#"{{"payload":1,"priority":{number}}}"#);
            assert!(refusal(&line).starts_with("priority: "), "{number}");
        }
    }

    #[test]
    fn null_is_missing_but_neither_unknown_nor_repeated() {
        let nulls =
            r#"{"payload":null,"payload_text":null,"headers":null,"id":null,"priority":null}"#;
        let message = parse(nulls.as_bytes(), || Some("made".to_owned())).unwrap();
        assert_eq!(message.message_id().as_str(), "made");
        assert!(
            refusal(r#"{"payload":1,"dely":null}"#)
                .starts_with("dely: unknown field, did you mean delay?")
        );
        for line in [
            r#"{"payload":1,"delay":null,"delay":"1s"}"#,
            r#"{"payload":1,"delay":"1s","delay":null}"#,
            r#"{"payload_text":null,"payload_text":"a"}"#,
        ] {
            assert!(refusal(line).contains("duplicate field"), "{line}");
        }
    }

    #[test]
    fn a_refusal_is_short_whatever_the_line_is() {
        let all =
            |field: &dyn Fn(usize) -> String| (0..1000).map(field).collect::<Vec<_>>().join(",");
        let unknown = all(&|n| format!(r#""field{n}":0"#));
        let headers = all(&|n| format!(r#""{} {n}":"a""#, "x".repeat(300)));
        let too_many = refusal(&format!(r#"{{"payload":1,"headers":{{{headers}}}}}"#));
        assert_eq!(
            too_many,
            "headers: more than 128 values; a nested object counts as 16"
        );
        for line in [
            format!(r#"{{"payload":1,{unknown}}}"#),
            format!(r#"{{"payload":1,"retry":{{{unknown}}}}}"#),
            format!(r#"{{"payload":1,"headers":{{{headers}}}}}"#),
            format!(r#"{{"payload":1,"{0}":1,"{0}":1}}"#, "x".repeat(30_000)),
        ] {
            assert!(refusal(&line).len() < 16 * 1024);
        }
    }

    #[test]
    fn options_that_would_take_much_memory_are_refused() {
        let many = "0,".repeat(MAX_OPTIONS / 2);
        let one = format!(r#"{{"payload":1,"id":[{many}0]}}"#);
        let two = format!(
            r#"{{"payload":1,"id":[{0}0],"key":[{0}0]}}"#,
            &many[..many.len() / 2]
        );
        for (line, expected) in [
            (one, "more than 64 KiB of options up to field `id`"),
            (
                two,
                "more than 4096 values; a nested object counts as 16 of field `id`",
            ),
        ] {
            let refusal = refusal(&line);
            assert!(refusal.contains(expected), "{refusal}");
        }
        let texts = format!(
            r#"{{"payload":1,"id":"{0}","key":"{0}"}}"#,
            &many[1..many.len() / 2]
        );
        assert!(refusal(&texts).contains("more than 64 KiB of options up to field `key`"));
        let payload = format!(r#"{{"payload":[{many}0]}}"#);
        assert!(parse(payload.as_bytes(), || None).is_ok());
        let number = refusal(r#"{"payload":1,"priority":1e400}"#);
        assert!(number.contains("number out of range") && number.contains("`priority`"));
    }

    #[test]
    fn a_line_may_ask_for_every_option() {
        let line = r#"{"payload":1,"id":"a","key":"k","merge_key":"m","priority":-3,"ttl":"1h","replace":"b","even_if_cancelled":true,
            "retry":{"kind":"fixed","delay":"5s","jitter":0}}"#;
        let message = message(&line.replace('\n', ""));
        let expected = Options {
            key: "k".parse().ok(),
            merge_key: "m".parse().ok(),
            priority: -3,
            expiry: Some(Expiry::After(Duration::from_secs(3600))),
            replace: "b".parse().ok(),
            even_if_cancelled: true,
        };
        assert_eq!(message.options, expected);
        let retry = RetryPolicy::Fixed {
            delay: Duration::from_secs(5),
            jitter: 0.0,
        };
        assert_eq!(message.record.retry, Some(retry));
        let plain = r#"{"payload":1,"key":null,"priority":0,"retry":null}"#;
        assert!(self::message(plain).options.is_plain());
    }
}
