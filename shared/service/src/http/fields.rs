//! Reads declared fields from bodies that are a JSON object, and from queries. Names every wrong field in one answer.

use axum::extract::FromRequestParts;
use axum::http::request::Parts;
use lisa_core::fields::{Fields, JsonReader, TextReader};
use serde_json::{Map, Value};
use url::form_urlencoded;

use super::json::{FEW, object};
use super::problem::{Problem, ProblemCode};

/// Reads the fields of a body, which may be empty. A long body may have one value for every 16 bytes. A field that is `null`
/// is missing.
///
/// # Errors
/// One problem that lists everything that is wrong.
pub fn read_fields<F: Fields>(body: &[u8]) -> Result<F, Problem> {
    read_fields_over(body, &Map::new())
}

/// Does the same as [`read_fields`], but a missing field takes its value from `defaults`. One that is `null` has its declared
/// default.
///
/// # Errors
/// As [`read_fields`].
pub fn read_fields_over<F: Fields>(
    body: &[u8],
    defaults: &Map<String, Value>,
) -> Result<F, Problem> {
    let given = read_object(body)?;
    let mut reader = JsonReader::new(&given).null_is_missing().over(defaults);
    let fields = F::read_fields(&mut reader);
    let problems = reader.finish();
    match problems.is_empty() {
        true => Ok(fields),
        false => Err(problems.into()),
    }
}

/// Reads a body that is a JSON object. It may be empty. A long one may have one value for every 16 bytes.
///
/// # Errors
/// It is no such object.
pub fn read_object(body: &[u8]) -> Result<Map<String, Value>, Problem> {
    if body.trim_ascii().is_empty() {
        return Ok(Map::new());
    }
    object(body, FEW.max(body.len() / 16)).map_err(|error| {
        let detail = format!("body is not valid: {error}");
        Problem::new(ProblemCode::Invalid, detail).error("body", error.to_string())
    })
}

/// The query of a request, as declared fields.
#[derive(Clone, Copy, Debug)]
pub struct Query<F>(pub F);

impl<F: Fields, S: Send + Sync> FromRequestParts<S> for Query<F> {
    type Rejection = Problem;

    async fn from_request_parts(parts: &mut Parts, _: &S) -> Result<Self, Problem> {
        let query = parts.uri.query().unwrap_or_default();
        let given: Vec<_> = form_urlencoded::parse(query.as_bytes()).collect();
        let mut reader = TextReader::new(&given);
        let fields = F::read_fields(&mut reader);
        let problems = reader.finish();
        match problems.is_empty() {
            true => Ok(Self(fields)),
            false => Err(problems.into()),
        }
    }
}

#[cfg(test)]
mod tests {
    use axum::http::Request;
    use futures_util::FutureExt;
    use lisa_core::fields;

    use super::*;

    fields! {
        #[derive(Debug)]
        struct Pair {
            /// One.
            one: u32 = 7;
            /// Two.
            two: Option<u32> = None;
        }
    }

    #[test]
    fn a_body_that_is_no_object_is_invalid_and_each_wrong_field_is_named() {
        for (text, field, why) in [
            ("null", "body", "body is not valid: expected a JSON object"),
            (
                "[1, 2]",
                "body",
                "body is not valid: expected a JSON object",
            ),
            (" [1]", "body", "body is not valid: expected a JSON object"),
            (
                "\"{}\"",
                "body",
                "body is not valid: expected a JSON object",
            ),
            (
                "{\"one\": 1",
                "body",
                "body is not valid: EOF while parsing",
            ),
            ("{} {}", "body", "body is not valid: trailing characters"),
            ("{\"one\": \"x\"}", "one", "one: must be a whole number"),
            ("{\"onne\": 1}", "onne", "onne: unknown field"),
        ] {
            let problem = read_fields::<Pair>(text.as_bytes()).unwrap_err();
            assert_eq!(problem.code(), ProblemCode::Invalid);
            let json = serde_json::to_value(&problem).unwrap();
            assert_eq!(json["errors"][0]["field"], field, "{text}");
            let detail = problem.detail();
            assert!(detail.starts_with(why), "{text}: {detail}");
        }
        for (query, field, why) in [
            ("one=x", "one", "one: must be a whole number"),
            ("one=1&one=2", "one", "one: given more than once"),
            ("onne=1", "onne", "onne: unknown field, did you mean one?"),
            ("two=", "two", "two: must be a whole number"),
        ] {
            let mut parts = Request::get(format!("/?{query}"))
                .body(())
                .unwrap()
                .into_parts()
                .0;
            let read = Query::<Pair>::from_request_parts(&mut parts, &()).now_or_never();
            let problem = read.unwrap().unwrap_err();
            let json = serde_json::to_value(&problem).unwrap();
            assert_eq!(json["errors"][0]["field"], field, "{query}");
            let detail = problem.detail();
            assert!(detail.starts_with(why), "{query}: {detail}");
        }
        for (text, one) in [("", 7), ("\r\n\t {\"one\": 1, \"two\": null}", 1)] {
            let pair: Pair = read_fields(text.as_bytes()).unwrap();
            assert_eq!((pair.one, pair.two), (one, None));
        }
    }
}
