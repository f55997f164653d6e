//! One message as a line of JSON: of a batch over HTTP, and of an import.
//!
//! ```text
//! {"payload": any JSON | "payload_text": "…" | "payload_base64": "…",
//!  "delay": "30s" | "deliver_at": "2026-11-21T09:30:00Z", "id": "…", "max_attempts": 16, "headers": {"name": "value"},
//!  "key": "…", "merge_key": "…", "priority": 0, "ttl": "1h" | "expires_at": "2026-11-21T10:30:00Z",
//!  "retry": {"kind": "fixed", "delay": "5s"}, "replace": "id", "durability": "aof",
//!  "even_if_cancelled": false}
//! ```

use std::collections::BTreeMap;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use lisa_shared::http::body::object;
use lisa_shared::http::{Problem, ProblemCode};
use serde::{Deserialize, Deserializer};
use serde_json::value::RawValue;

use crate::fields::Fields;
use crate::outgoing::Outgoing;

/// Bytes of a line besides its payload: 64 headers of the largest size, keys and the rest.
const BESIDES: usize = 320 * 1024;

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Line<'a> {
    #[serde(borrow, default, deserialize_with = "present")]
    payload: Option<&'a RawValue>,
    payload_text: Option<String>,
    payload_base64: Option<String>,
    delay: Option<String>,
    deliver_at: Option<String>,
    id: Option<String>,
    max_attempts: Option<u64>,
    headers: Option<BTreeMap<String, String>>,
    key: Option<String>,
    merge_key: Option<String>,
    #[serde(borrow)]
    priority: Option<&'a RawValue>,
    ttl: Option<String>,
    expires_at: Option<String>,
    #[serde(borrow)]
    retry: Option<&'a RawValue>,
    replace: Option<String>,
    durability: Option<String>,
    even_if_cancelled: Option<bool>,
}

/// Tells `"payload": null`, which is a payload, from no payload.
fn present<'de, D: Deserializer<'de>>(from: D) -> Result<Option<&'de RawValue>, D::Error> {
    <&RawValue>::deserialize(from).map(Some)
}

/// Gives the longest line that a topic can need, in bytes. A payload of which more than half the characters are escaped
/// belongs into `payload_base64`.
pub(crate) fn longest(max_payload: u64) -> usize {
    usize::try_from(max_payload).map_or(usize::MAX, |bytes| bytes * 2 + BESIDES)
}

/// Reads a line; the payload is the exact text of its JSON. Without an id in the line, `id` is asked for one.
///
/// # Errors
/// One problem that lists all that is wrong.
pub(crate) fn parse(line: &[u8], id: impl FnOnce() -> Option<String>) -> Result<Outgoing, Problem> {
    let line: Line<'_> = object(line)
        .map_err(|error| Problem::new(ProblemCode::Invalid, format!("not a message: {error}")))?;
    let mut fields = Fields::new();
    match (line.payload, line.payload_text, line.payload_base64) {
        (Some(json), None, None) => fields.payload(json.get().to_owned()),
        (None, Some(text), None) => fields.payload(text),
        (None, None, Some(text)) => match STANDARD.decode(text) {
            Ok(bytes) => fields.payload(bytes),
            Err(error) => fields.refuse("payload_base64", error),
        },
        _ => fields.refuse(
            "payload",
            "give exactly one of payload, payload_text, payload_base64",
        ),
    }
    fields.due(
        ("delay", line.delay.as_deref()),
        ("deliver_at", line.deliver_at.as_deref()),
    );
    if let Some(id) = line.id.or_else(id) {
        fields.id("id", &id);
    }
    if let Some(number) = line.max_attempts {
        fields.max_attempts("max_attempts", number);
    }
    for (name, value) in line.headers.unwrap_or_default() {
        fields.header(&format!("headers.{name}"), &name, &value);
    }
    if let Some(key) = line.key {
        fields.key("key", &key);
    }
    if let Some(key) = line.merge_key {
        fields.merge_key("merge_key", &key);
    }
    if let Some(number) = line.priority {
        fields.priority("priority", number.get());
    }
    fields.expiry(
        ("ttl", line.ttl.as_deref()),
        ("expires_at", line.expires_at.as_deref()),
    );
    if let Some(json) = line.retry {
        fields.retry("retry", json.get());
    }
    if let Some(id) = line.replace {
        fields.replace("replace", &id);
    }
    if let Some(word) = line.durability {
        fields.durability("durability", &word);
    }
    if let Some(yes) = line.even_if_cancelled {
        fields.even_if_cancelled("even_if_cancelled", if yes { "true" } else { "false" });
    }
    fields.finish()
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use lisa_shared::message::{Expiry, NewMessage, Options};
    use lisa_shared::retry::RetryPolicy;
    use lisa_shared::time::UnixMs;
    use lisa_shared::topic::TopicSettings;

    use super::*;

    fn message(line: &str) -> NewMessage {
        let outgoing = parse(line.as_bytes(), || None).unwrap();
        outgoing
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
    fn an_id_is_made_only_where_none_is_given() {
        let id = |line: &str| {
            let outgoing = parse(line.as_bytes(), || Some("made".to_owned())).unwrap();
            outgoing.message_id().to_string()
        };
        assert_eq!(id(r#"{"payload":1,"id":"given"}"#), "given");
        assert_eq!(id(r#"{"payload":1}"#), "made");
    }

    #[test]
    fn a_broken_line_says_all_that_is_wrong() {
        assert!(refusal("{").starts_with("not a message: "));
        for line in ["[]", "[1,null,null]", " [1]", "null", "\"{}\""] {
            assert_eq!(refusal(line), "not a message: expected a JSON object");
        }
        assert!(refusal(r#"{"payload":1,"dely":"1s"}"#).contains("dely"));
        assert!(refusal("{}").starts_with("payload: give exactly one"));
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
            "priority: allowed is a whole number from -2147483648 to 2147483647",
            "ttl: 0s: allowed is 1ms to 3653d",
            "retry: not a retry policy",
            "replace:",
        ] {
            assert!(all.contains(field), "{field} is missing in {all}");
        }
        let both = r#"{"payload":1,"delay":"1s","deliver_at":"2026-11-21T09:30:00Z"}"#;
        assert!(refusal(both).contains("not both"));
        let both = r#"{"payload":1,"ttl":"1s","expires_at":"2026-11-21T09:30:00Z"}"#;
        assert_eq!(refusal(both), "expires_at: give this or ttl, not both");
        let itself = r#"{"payload":1,"replace":"a","id":"a"}"#;
        assert!(refusal(itself).starts_with("replace: allowed is"));
        for number in ["2147483648", "\"1\"", "[]"] {
            let line = format!(r#"{{"payload":1,"priority":{number}}}"#);
            assert!(refusal(&line).starts_with("priority: "), "{number}");
        }
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
