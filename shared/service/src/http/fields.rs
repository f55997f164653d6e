//! Reads bodies that are a JSON object of declared fields, and names every wrong field in one answer.

use lisa_core::fields::{Fields, JsonReader};
use serde_json::{Map, Value};

use super::body::object;
use super::problem::{Problem, ProblemCode};

/// Reads the fields of a body, which may be empty. A field that is `null` is missing.
///
/// # Errors
/// One problem that lists everything that is wrong.
pub fn read_fields<F: Fields>(body: &[u8]) -> Result<F, Problem> {
    let given: Map<String, Value> = match body.trim_ascii().is_empty() {
        true => Map::new(),
        false => object(body).map_err(|error| not_json(&error))?,
    };
    let mut reader = JsonReader::new(&given).null_is_missing();
    let fields = F::read_fields(&mut reader);
    let problems = reader.finish();
    match problems.is_empty() {
        true => Ok(fields),
        false => Err(problems.into()),
    }
}

/// Returns the problem of a body that cannot be parsed.
pub(super) fn not_json(error: &serde_json::Error) -> Problem {
    let detail = format!("body is not valid: {error}");
    Problem::new(ProblemCode::Invalid, detail).error("body", error.to_string())
}
