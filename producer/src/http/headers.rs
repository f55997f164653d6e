//! Reads the options of a message from the headers of its request: `max_attempts` is `Lisa-Max-Attempts`.

use axum::http::{HeaderMap, HeaderValue};
use lisa_core::fields::{
    Any, Field, FieldProblem, Fields, Given, Limits, Reader, Value, read_within,
};
use lisa_core::message::{Headers, MessageOptions, OrderingKey};
use lisa_core::misspelling::meant_option;
use lisa_service::http::{Problem, ProblemCode, header_name};
use serde_json::Value as Json;

use crate::message::NewMessage;
use crate::message_ref::MessageRef;

const IDEMPOTENCY_KEY: &str = "Idempotency-Key";
const ID: &str = "Lisa-Id";
const PREFIX: &str = "lisa-";
const NAMED: &str = "lisa-header-";
/// Headers of the request that become headers of the message.
const KEPT: [&str; 3] = ["content-type", "traceparent", "tracestate"];

/// Reads all options. The payload is still empty.
///
/// # Errors
/// One problem that lists everything that is wrong, unknown `Lisa-` headers included.
pub(crate) fn message(headers: &HeaderMap) -> Result<NewMessage, Problem> {
    let mut options = OptionHeaders::new(headers);
    let message = NewMessage::new("").options(MessageOptions::read_fields(&mut options));
    let headers = options.message_headers();
    options.refuse_unknown();
    options.finish()?;
    Ok(message.headers(headers))
}

/// Returns the message that a request is about: the id in its path, and the key if a header has it.
///
/// # Errors
/// A key that is not allowed.
pub(super) fn message_ref(headers: &HeaderMap, id: &str) -> Result<MessageRef, Problem> {
    let mut options = OptionHeaders::new(headers);
    let key = options.key();
    options.finish()?;
    let message = MessageRef::new(id);
    Ok(match key {
        Some(key) => message.key(key),
        None => message,
    })
}

/// Reads the ordering key of a request that is about all messages of the key.
///
/// # Errors
/// A key that is missing or not allowed.
pub(super) fn key(headers: &HeaderMap) -> Result<String, Problem> {
    let mut options = OptionHeaders::new(headers);
    let key = options.key();
    options.finish()?;
    key.map(String::from).ok_or_else(|| {
        let why = "missing: set the ordering key, or put a message id in the path";
        let key = header_name("key");
        Problem::new(ProblemCode::Invalid, format!("{key}: {why}")).error(key, why)
    })
}

/// Refuses options in the headers of a batch, whose lines have their own.
///
/// # Errors
/// A problem that names them.
pub(super) fn none_beside_a_batch(headers: &HeaderMap) -> Result<(), Problem> {
    let ours = |name: &&str| name.starts_with(PREFIX) || name.eq_ignore_ascii_case(IDEMPOTENCY_KEY);
    let mut given = headers.keys().map(|name| name.as_str()).filter(ours);
    let Some(first) = given.next() else {
        return Ok(());
    };
    let detail = format!("{first}: not allowed with a batch; set options on its lines");
    Err(Problem::new(ProblemCode::Invalid, detail).error(first, "not allowed with a batch"))
}

/// The options in the headers of a request.
struct OptionHeaders<'h> {
    headers: &'h HeaderMap,
    known: Vec<&'static str>,
    problems: Vec<FieldProblem>,
}

impl<'h> OptionHeaders<'h> {
    fn new(headers: &'h HeaderMap) -> Self {
        Self {
            headers,
            known: Vec::new(),
            problems: Vec::new(),
        }
    }

    fn finish(self) -> Result<(), Problem> {
        match self.problems {
            problems if problems.is_empty() => Ok(()),
            problems => Err(problems.into()),
        }
    }

    fn refuse(&mut self, header: &str, why: impl ToString) {
        self.problems.push(FieldProblem {
            field: header.to_owned(),
            value: String::new(),
            message: why.to_string(),
        });
    }

    fn key(&mut self) -> Option<OrderingKey> {
        self.read(Field::new("key", None, ""), Any)
    }

    /// Returns the headers of the message.
    fn message_headers(&mut self) -> Headers {
        let mut headers = Headers::default();
        let kept = KEPT.iter().map(|name| (*name, *name));
        let names = self.headers.keys().map(|name| name.as_str());
        let named = names.filter_map(|name| Some((name, name.strip_prefix(NAMED)?)));
        // The kept ones first, so that an explicit `Lisa-Header-` wins.
        for (header, name) in kept.chain(named) {
            let Some(value) = self.only(header) else {
                continue;
            };
            if let Err(error) = headers.insert(name, value) {
                self.refuse(header, error);
            }
        }
        headers
    }

    fn refuse_unknown(&mut self) {
        for name in self.headers.keys().map(|name| name.as_str()) {
            let Some(option) = name.strip_prefix(PREFIX) else {
                continue;
            };
            let option = option.replace('-', "_");
            let is_known = |known: &&str| header_name(known).eq_ignore_ascii_case(name);
            if name.starts_with(NAMED) || self.known.iter().any(is_known) {
                continue;
            }
            let known = self.known.iter().map(|name| header_name(name));
            let known = known.collect::<Vec<_>>().join(", ");
            let why = match meant_option(&option, &self.known).map(header_name) {
                Some(meant) => format!("unknown header, did you mean {meant}? Known: {known}"),
                None => format!("unknown header, known: {known}"),
            };
            self.refuse(name, format!("{why}, Lisa-Header-NAME"));
        }
    }

    /// Returns the id: of its own header, or of the idempotency key.
    fn id(&mut self) -> Option<(&'static str, &'h str)> {
        let id = self.only(ID);
        match (id, self.only(IDEMPOTENCY_KEY).map(unquoted)) {
            (Some(id), Some(key)) if id != key => {
                self.refuse(
                    IDEMPOTENCY_KEY,
                    "differs from Lisa-Id: set only one of them, or the same value in both",
                );
                None
            }
            (Some(id), _) => Some((ID, id)),
            (None, key) => key.map(|key| (IDEMPOTENCY_KEY, key)),
        }
    }

    /// Returns the only value of a header.
    fn only(&mut self, name: &str) -> Option<&'h str> {
        let mut values = self.headers.get_all(name).iter();
        let value = values.next()?;
        if values.next().is_some() {
            self.refuse(name, "given more than once");
            return None;
        }
        let text = std::str::from_utf8(HeaderValue::as_bytes(value));
        if text.is_err() {
            self.refuse(name, "not UTF-8");
        }
        text.ok()
    }
}

impl Reader for OptionHeaders<'_> {
    fn read<T: Value>(&mut self, field: Field<T>, limits: impl Limits<T>) -> T {
        let name = header_name(field.name);
        let given = match name.as_str() {
            ID => self.id(),
            name => self.only(name).map(|text| (name, text)),
        };
        let value = match given {
            None => field.default,
            Some((name, text)) => read_within(Given::Text(text), &limits).unwrap_or_else(|why| {
                self.refuse(name, why);
                field.default
            }),
        };
        self.known.push(field.name);
        value
    }

    fn table<F: Fields>(&mut self, _: &'static str) -> F {
        unreachable!("an option is one header")
    }

    fn problem(&mut self, name: &'static str, _: Json, message: String) {
        self.refuse(&header_name(name), message);
    }

    fn spell(&self, name: &str) -> String {
        header_name(name)
    }
}

/// Removes the quotes from an idempotency key: the draft standard requires a quoted string, and most clients send none.
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
        let problem = message(&headers).unwrap_err();
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
    fn an_unknown_header_is_answered_with_the_one_that_was_probably_meant() {
        for (unknown, why) in [
            (
                "lisa-due-at",
                "unknown header, did you mean Lisa-Deliver-At? ",
            ),
            ("lisa-dealy", "unknown header, did you mean Lisa-Delay? "),
            (
                "lisa-max_attempts",
                "unknown header, did you mean Lisa-Max-Attempts? ",
            ),
            ("lisa-colour", "unknown header, known: "),
        ] {
            let problem = message(&headers(&[(unknown, "1s")])).unwrap_err();
            let detail = problem.detail();
            assert!(detail.starts_with(&format!("{unknown}: {why}")), "{detail}");
            assert!(detail.ends_with(", Lisa-Header-NAME"), "{detail}");
        }
    }

    #[test]
    fn a_key_is_utf_8_and_names_the_message_of_a_verb() {
        let mut headers = HeaderMap::new();
        headers.insert(
            "lisa-key",
            HeaderValue::from_bytes("Müller".as_bytes()).unwrap(),
        );
        let named = message_ref(&headers, "a").unwrap();
        assert_eq!(named, MessageRef::new("a").key("Müller"));
        assert_eq!(
            message_ref(&HeaderMap::new(), "a").unwrap(),
            MessageRef::new("a")
        );
        headers.insert("lisa-key", HeaderValue::from_bytes(b"\xff").unwrap());
        let problem = message_ref(&headers, "a").unwrap_err();
        assert_eq!(problem.detail(), "Lisa-Key: not UTF-8");
        assert!(message(&headers).is_err());
    }

    #[test]
    fn an_idempotency_key_is_an_id() {
        let id = |lines: &[_]| message(&headers(lines)).map(|o| o.message_id().to_string());
        assert_eq!(id(&[("idempotency-key", "abc")]).unwrap(), "abc");
        assert_eq!(id(&[("idempotency-key", "\"abc\"")]).unwrap(), "abc");
        assert_eq!(
            id(&[("idempotency-key", "abc"), ("lisa-id", "abc")]).unwrap(),
            "abc"
        );
        assert!(id(&[("idempotency-key", "abc"), ("lisa-id", "abd")]).is_err());
    }
}
