//! The options of a message as headers of its request.

use axum::http::{HeaderMap, HeaderValue};
use lisa_shared::http::{Problem, ProblemCode};

use crate::fields::Fields;
use crate::message_ref::MessageRef;
use crate::outgoing::Outgoing;

const DELAY: &str = "Lisa-Delay";
const DELIVER_AT: &str = "Lisa-Deliver-At";
const ID: &str = "Lisa-Id";
const IDEMPOTENCY_KEY: &str = "Idempotency-Key";
const MAX_ATTEMPTS: &str = "Lisa-Max-Attempts";
const KEY: &str = "Lisa-Key";
const MERGE_KEY: &str = "Lisa-Merge-Key";
const PRIORITY: &str = "Lisa-Priority";
const TTL: &str = "Lisa-Ttl";
const EXPIRES_AT: &str = "Lisa-Expires-At";
const RETRY: &str = "Lisa-Retry";
const REPLACE: &str = "Lisa-Replace";
const DURABILITY: &str = "Lisa-Durability";
const EVEN_IF_CANCELLED: &str = "Lisa-Even-If-Cancelled";
const NAMED: &str = "lisa-header-";
/// All of ours, besides those that begin with `NAMED`.
const KNOWN: [&str; 13] = [
    DELAY,
    DELIVER_AT,
    ID,
    MAX_ATTEMPTS,
    KEY,
    MERGE_KEY,
    PRIORITY,
    TTL,
    EXPIRES_AT,
    RETRY,
    REPLACE,
    DURABILITY,
    EVEN_IF_CANCELLED,
];
/// Headers of the request that the message keeps.
const KEPT: [&str; 3] = ["content-type", "traceparent", "tracestate"];

/// Reads all options; the payload is still empty.
///
/// # Errors
/// One problem that lists all that is wrong; a header of ours that is not known is wrong.
pub(crate) fn outgoing(headers: &HeaderMap) -> Result<Outgoing, Problem> {
    let mut fields = Fields::new();
    refuse_unknown(headers, &mut fields);
    let delay = only(headers, DELAY, &mut fields);
    let deliver_at = only(headers, DELIVER_AT, &mut fields);
    fields.due((DELAY, delay), (DELIVER_AT, deliver_at));
    let key = only(headers, IDEMPOTENCY_KEY, &mut fields).map(unquoted);
    match (only(headers, ID, &mut fields), key) {
        (Some(id), Some(key)) if id != key => {
            fields.refuse(
                IDEMPOTENCY_KEY,
                "give this or Lisa-Id, or the same value in both",
            );
        }
        (Some(id), _) => fields.id(ID, id),
        (None, Some(key)) => fields.id(IDEMPOTENCY_KEY, key),
        (None, None) => {}
    }
    if let Some(number) = only(headers, MAX_ATTEMPTS, &mut fields) {
        match number.parse() {
            Ok(number) => fields.max_attempts(MAX_ATTEMPTS, number),
            Err(_) => fields.refuse(MAX_ATTEMPTS, "not a whole number from 1 to 1000"),
        }
    }
    if let Some(key) = only_text(headers, KEY, &mut fields) {
        fields.key(KEY, key);
    }
    if let Some(key) = only_text(headers, MERGE_KEY, &mut fields) {
        fields.merge_key(MERGE_KEY, key);
    }
    if let Some(number) = only(headers, PRIORITY, &mut fields) {
        fields.priority(PRIORITY, number);
    }
    let ttl = only(headers, TTL, &mut fields);
    let expires_at = only(headers, EXPIRES_AT, &mut fields);
    fields.expiry((TTL, ttl), (EXPIRES_AT, expires_at));
    if let Some(json) = only(headers, RETRY, &mut fields) {
        fields.retry(RETRY, json);
    }
    if let Some(id) = only(headers, REPLACE, &mut fields) {
        fields.replace(REPLACE, id);
    }
    if let Some(word) = only(headers, DURABILITY, &mut fields) {
        fields.durability(DURABILITY, word);
    }
    if let Some(word) = only(headers, EVEN_IF_CANCELLED, &mut fields) {
        fields.even_if_cancelled(EVEN_IF_CANCELLED, word);
    }
    for name in KEPT {
        if let Some(value) = only(headers, name, &mut fields) {
            fields.header(name, name, value);
        }
    }
    // After those kept: who names a header of the message expressly means it.
    for name in headers.keys() {
        if let Some(named) = name.as_str().strip_prefix(NAMED)
            && let Some(value) = only(headers, name.as_str(), &mut fields)
        {
            fields.header(name.as_str(), named, value);
        }
    }
    fields.finish()
}

/// Names the message of a verb: the id of its path, and its key if a header has it.
///
/// # Errors
/// A key that is not allowed.
pub(super) fn message(headers: &HeaderMap, id: &str) -> Result<MessageRef, Problem> {
    let mut fields = Fields::new();
    let mut message = MessageRef::new(id);
    if let Some(key) = only_text(headers, KEY, &mut fields) {
        fields.key(KEY, key);
        message = message.key(key);
    }
    fields.finish().map(|_| message)
}

/// Reads the key of a verb that is about all messages of one.
///
/// # Errors
/// A key that is missing or not allowed.
pub(super) fn key(headers: &HeaderMap) -> Result<String, Problem> {
    let mut fields = Fields::new();
    let key = only_text(headers, KEY, &mut fields).map(str::to_owned);
    match &key {
        Some(key) => fields.key(KEY, key),
        // One that is there and cannot be read was refused for that.
        None if headers.contains_key(KEY) => {}
        None => fields.refuse(KEY, "name the ordering key, or a message in the path"),
    }
    fields.finish().map(|_| key.unwrap_or_default())
}

/// Refuses options beside a batch, whose lines have their own.
///
/// # Errors
/// A problem that names them.
pub(super) fn none_beside_a_batch(headers: &HeaderMap) -> Result<(), Problem> {
    let ours =
        |name: &&str| name.starts_with("lisa-") || name.eq_ignore_ascii_case(IDEMPOTENCY_KEY);
    let mut given = headers.keys().map(|name| name.as_str()).filter(ours);
    let Some(first) = given.next() else {
        return Ok(());
    };
    let detail = format!("{first}: the lines of a batch have their own options");
    Err(Problem::new(ProblemCode::Invalid, detail).error(first, "not for a batch"))
}

fn refuse_unknown(headers: &HeaderMap, fields: &mut Fields) {
    for name in headers.keys().map(|name| name.as_str()) {
        if name.starts_with("lisa-")
            && !name.starts_with(NAMED)
            && !KNOWN.iter().any(|known| known.eq_ignore_ascii_case(name))
        {
            fields.refuse(name, "unknown header");
        }
    }
}

/// Gives the one value of a header of visible ASCII.
fn only<'a>(headers: &'a HeaderMap, name: &str, fields: &mut Fields) -> Option<&'a str> {
    let text = only_value(headers, name, fields)?.to_str();
    if text.is_err() {
        fields.refuse(name, "not visible ASCII");
    }
    text.ok()
}

/// Gives the one value of a header of UTF-8.
fn only_text<'a>(headers: &'a HeaderMap, name: &str, fields: &mut Fields) -> Option<&'a str> {
    let text = std::str::from_utf8(only_value(headers, name, fields)?.as_bytes());
    if text.is_err() {
        fields.refuse(name, "not UTF-8");
    }
    text.ok()
}

fn only_value<'a>(
    headers: &'a HeaderMap,
    name: &str,
    fields: &mut Fields,
) -> Option<&'a HeaderValue> {
    let mut values = headers.get_all(name).iter();
    let value = values.next()?;
    if values.next().is_some() {
        fields.refuse(name, "given more than once");
        return None;
    }
    Some(value)
}

/// The draft of the header writes a quoted string; most clients do not.
fn unquoted(key: &str) -> &str {
    let inner = key.strip_prefix('"').and_then(|key| key.strip_suffix('"'));
    inner.unwrap_or(key)
}

#[cfg(test)]
mod tests {
    use axum::http::HeaderName;

    use super::*;

    fn headers(lines: &[(&'static str, &'static str)]) -> HeaderMap {
        let line = |&(name, value)| {
            (
                HeaderName::from_static(name),
                HeaderValue::from_static(value),
            )
        };
        // `collect` keeps the last of several values.
        let mut headers = HeaderMap::new();
        for (name, value) in lines.iter().map(line) {
            headers.append(name, value);
        }
        headers
    }

    #[test]
    fn each_bad_header_is_named_in_one_answer() {
        let headers = headers(&[
            ("lisa-delay", "90"),
            ("lisa-id", "a b"),
            ("lisa-max-attempts", "many"),
            ("lisa-key", ""),
            ("lisa-merge-key", "a\tb"),
            ("lisa-priority", "2147483648"),
            ("lisa-ttl", "0s"),
            ("lisa-retry", "{\"kind\":\"fixd\"}"),
            ("lisa-replace", "a.b"),
            ("lisa-dealy", "1s"),
            ("lisa-header-x", "1"),
            ("lisa-header-x", "2"),
        ]);
        let problem = outgoing(&headers).unwrap_err();
        let problem = serde_json::to_value(&problem).unwrap();
        let named: Vec<&str> = problem["errors"]
            .as_array()
            .unwrap()
            .iter()
            .map(|e| e["field"].as_str().unwrap())
            .collect();
        for name in [
            "Lisa-Delay",
            "Lisa-Id",
            "Lisa-Max-Attempts",
            "Lisa-Key",
            "Lisa-Merge-Key",
            "Lisa-Priority",
            "Lisa-Ttl",
            "Lisa-Retry",
            "Lisa-Replace",
            "lisa-dealy",
            "lisa-header-x",
        ] {
            assert!(named.contains(&name), "{name} is missing in {named:?}");
        }
        assert_eq!(named.len(), 11);
    }

    #[test]
    fn a_key_is_utf_8_and_names_the_message_of_a_verb() {
        let mut headers = HeaderMap::new();
        headers.insert(
            "lisa-key",
            HeaderValue::from_bytes("Müller".as_bytes()).unwrap(),
        );
        let named = message(&headers, "a").unwrap();
        assert_eq!(named, MessageRef::new("a").key("Müller"));
        assert_eq!(
            message(&HeaderMap::new(), "a").unwrap(),
            MessageRef::new("a")
        );
        headers.insert("lisa-key", HeaderValue::from_bytes(b"\xff").unwrap());
        let problem = message(&headers, "a").unwrap_err();
        assert_eq!(problem.detail(), "Lisa-Key: not UTF-8");
        assert!(outgoing(&headers).is_err());
    }

    #[test]
    fn an_idempotency_key_is_an_id() {
        let id = |lines: &[_]| outgoing(&headers(lines)).map(|o| o.message_id().to_string());
        assert_eq!(id(&[("idempotency-key", "abc")]).unwrap(), "abc");
        assert_eq!(id(&[("idempotency-key", "\"abc\"")]).unwrap(), "abc");
        assert_eq!(
            id(&[("idempotency-key", "abc"), ("lisa-id", "abc")]).unwrap(),
            "abc"
        );
        assert!(id(&[("idempotency-key", "abc"), ("lisa-id", "abd")]).is_err());
    }
}
