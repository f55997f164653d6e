//! The options of a message as headers of its request.

use axum::http::HeaderMap;
use lisa_shared::http::{Problem, ProblemCode};

use crate::fields::{Fields, NOT_YET};
use crate::outgoing::Outgoing;

const DELAY: &str = "Lisa-Delay";
const DELIVER_AT: &str = "Lisa-Deliver-At";
const ID: &str = "Lisa-Id";
const IDEMPOTENCY_KEY: &str = "Idempotency-Key";
const MAX_ATTEMPTS: &str = "Lisa-Max-Attempts";
const NAMED: &str = "lisa-header-";
/// Headers of features that this version does not have.
const FEATURES: [&str; 4] = ["lisa-key", "lisa-merge-key", "lisa-priority", "lisa-ttl"];
/// Headers of the request that the message keeps.
const KEPT: [&str; 3] = ["content-type", "traceparent", "tracestate"];

/// Reads all options; the payload is still empty.
///
/// # Errors
/// One problem that lists all that is wrong; a header of ours that is not known is wrong.
pub(super) fn outgoing(headers: &HeaderMap) -> Result<Outgoing, Problem> {
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
    let known = [DELAY, DELIVER_AT, ID, MAX_ATTEMPTS];
    for name in headers.keys().map(|name| name.as_str()) {
        if FEATURES.contains(&name) {
            fields.refuse(name, NOT_YET);
        } else if name.starts_with("lisa-")
            && !name.starts_with(NAMED)
            && !known.iter().any(|known| known.eq_ignore_ascii_case(name))
        {
            fields.refuse(name, "unknown header");
        }
    }
}

/// Gives the one value of a header.
fn only<'a>(headers: &'a HeaderMap, name: &str, fields: &mut Fields) -> Option<&'a str> {
    let mut values = headers.get_all(name).iter();
    let value = values.next()?;
    if values.next().is_some() {
        fields.refuse(name, "given more than once");
        return None;
    }
    let text = value.to_str();
    if text.is_err() {
        fields.refuse(name, "not visible ASCII");
    }
    text.ok()
}

/// The draft of the header writes a quoted string; most clients do not.
fn unquoted(key: &str) -> &str {
    let inner = key.strip_prefix('"').and_then(|key| key.strip_suffix('"'));
    inner.unwrap_or(key)
}

#[cfg(test)]
mod tests {
    use axum::http::{HeaderName, HeaderValue};

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
            ("lisa-key", "order-7"),
            ("lisa-priority", "1"),
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
            "lisa-key",
            "lisa-priority",
            "lisa-dealy",
            "lisa-header-x",
        ] {
            assert!(named.contains(&name), "{name} is missing in {named:?}");
        }
        assert_eq!(named.len(), 7);
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
