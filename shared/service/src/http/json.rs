//! Parses JSON that clients send, in bounded memory.
//!
//! A value of two bytes, such as an element of `[0,0]`, takes 32 bytes or more once it is parsed, and the object `{"":0}` about
//! 650. So the number of values is limited before any is built.

use std::fmt;

use serde::de::{Error as _, SeqAccess, Visitor};
use serde::{Deserialize, Deserializer};
use serde_json::Error;
use serde_json::value::RawValue;

use super::problem::{Problem, ProblemCode};

/// The most values of an object with a few fields, including those within others. Names of fields do not count.
pub const FEW: usize = 4096;

/// The number of values that an object counts as, by its memory.
const OF_OBJECT: usize = 16;

/// The UTF-8 byte order mark, which programs such as PowerShell and Excel write before text. JSON does not allow it.
pub(super) const BYTE_ORDER_MARK: &[u8] = "\u{feff}".as_bytes();

/// Parses a JSON object of at most `max_values` values. Each object within it counts as 16. A byte order mark before it is
/// ignored. Without this check, serde would also accept an array of the struct's fields in order.
///
/// # Errors
/// The bytes are not a JSON object of this type, or it has too many values.
pub fn object<'a, T: Deserialize<'a>>(json: &'a [u8], max_values: usize) -> Result<T, Error> {
    let json = json.strip_prefix(BYTE_ORDER_MARK).unwrap_or(json);
    let first = json.iter().find(|byte| !b" \t\r\n".contains(byte));
    if first != Some(&b'{') {
        return Err(Error::custom("expected a JSON object"));
    }
    value(json, max_values)
}

/// Parses any JSON of at most `max_values` values, counted as by [`object`].
///
/// # Errors
/// The bytes are not JSON of this type, or it has too many values.
pub fn value<'a, T: Deserialize<'a>>(json: &'a [u8], max_values: usize) -> Result<T, Error> {
    if exceeds(json, max_values) {
        return Err(Error::custom(format!(
            "more than {max_values} values; a nested object counts as {OF_OBJECT}"
        )));
    }
    serde_json::from_slice(json)
}

/// Returns true if the text has more than `most` values. In text that is not JSON, counts everything that looks like a value.
fn exceeds(json: &[u8], most: usize) -> bool {
    // Each value is the first one, the first one in an object or array, or follows a comma.
    let (mut values, mut objects, mut is_in_string) = (1, 0_usize, false);
    let mut bytes = json.iter();
    while let Some(byte) = bytes.next() {
        match byte {
            b'"' => is_in_string = !is_in_string,
            b'\\' if is_in_string => {
                bytes.next();
            }
            b',' | b'[' | b'{' if !is_in_string => {
                values += 1;
                objects += usize::from(*byte == b'{');
                // The object itself does not count as one within it.
                if values + objects.saturating_sub(1) * (OF_OBJECT - 1) > most {
                    return true;
                }
            }
            _ => {}
        }
    }
    false
}

/// The reason why bytes were not split into the elements of an array.
#[derive(Debug, thiserror::Error)]
pub enum ElementsError {
    /// There are too many. The rest was not read.
    #[error("more than {0} items are allowed only as lines (application/x-ndjson)")]
    TooMany(usize),
    /// They are not a JSON array.
    #[error("body is not valid: {0}")]
    Json(#[from] Error),
}

impl From<ElementsError> for Problem {
    fn from(error: ElementsError) -> Self {
        let code = match error {
            ElementsError::TooMany(_) => ProblemCode::TooLarge,
            ElementsError::Json(_) => ProblemCode::Invalid,
        };
        Self::new(code, error.to_string())
    }
}

/// Splits a JSON array of at most `most` elements into their texts. Each may be any JSON.
///
/// # Errors
/// There are more, or the bytes are not a JSON array.
pub fn elements(json: &[u8], most: usize) -> Result<Vec<&str>, ElementsError> {
    let mut texts = Vec::new();
    let mut from = serde_json::Deserializer::from_slice(json);
    let split = from.deserialize_seq(Split {
        most,
        texts: &mut texts,
    });
    if texts.len() > most {
        return Err(ElementsError::TooMany(most));
    }
    split.and_then(|()| from.end())?;
    Ok(texts)
}

/// Returns the first element of an array of which perhaps only the beginning has arrived.
pub fn first_element(json: &[u8]) -> Option<&str> {
    let json = json.strip_prefix(BYTE_ORDER_MARK).unwrap_or(json);
    let rest = json.trim_ascii_start().strip_prefix(b"[")?;
    let mut elements = serde_json::Deserializer::from_slice(rest).into_iter::<&RawValue>();
    Some(elements.next()?.ok()?.get())
}

struct Split<'a, 'de> {
    most: usize,
    texts: &'a mut Vec<&'de str>,
}

impl<'de> Visitor<'de> for Split<'_, 'de> {
    type Value = ();

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a JSON array")
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut array: A) -> Result<(), A::Error> {
        while self.texts.len() <= self.most {
            match array.next_element::<&RawValue>()? {
                Some(element) => self.texts.push(element.get()),
                None => break,
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Map, Value};

    use super::*;

    #[test]
    fn values_are_counted_before_they_are_built() {
        for (json, values) in [
            ("{}", 2),
            (r#"{"a": 1, "b": [2, {"c": 3}]}"#, 6 + OF_OBJECT - 1),
            (r#"{"a": ",[{\",[{", "b": 1}"#, 3),
            (r#" {"a\\": [1,2,3]} "#, 5),
        ] {
            let parse = |most| object::<Map<String, Value>>(json.as_bytes(), most);
            assert!(parse(values).is_ok(), "{json}");
            let error = parse(values - 1).unwrap_err().to_string();
            assert_eq!(
                error,
                format!(
                    "more than {} values; a nested object counts as 16",
                    values - 1
                ),
                "{json}"
            );
        }
        let marked: Map<String, Value> = object("\u{feff}{}".as_bytes(), FEW).unwrap();
        assert!(marked.is_empty());
        let zeros = format!("{{\"a\": [{}", "0,".repeat(1_000_000));
        let error = object::<Value>(zeros.as_bytes(), FEW).unwrap_err();
        assert_eq!(
            error.to_string(),
            "more than 4096 values; a nested object counts as 16"
        );
    }

    #[test]
    fn an_array_is_read_up_to_its_limit() {
        let texts = elements(b" [1, {\"a\": [2]}, \"x\"] ", 3).unwrap();
        assert_eq!(texts, ["1", "{\"a\": [2]}", "\"x\""]);
        assert!(elements(b"[]", 2).unwrap().is_empty());
        for many in ["[1,2,3]", "[1,2,3,", "[1,2,3 no JSON"] {
            let error = elements(many.as_bytes(), 2).unwrap_err();
            assert!(matches!(error, ElementsError::TooMany(2)), "{many}");
        }
        for bad in ["{}", "[1", "[1] 2", "1", ""] {
            let error = elements(bad.as_bytes(), 2).unwrap_err();
            assert!(matches!(error, ElementsError::Json(_)), "{bad}");
        }
    }

    #[test]
    fn the_first_element_is_known_before_the_array_ends() {
        assert_eq!(first_element(b" [ {\"a\": 1}, {\"b"), Some("{\"a\": 1}"));
        for incomplete in ["", "[", "[]", "[{\"a\": 1", "{\"a\": 1}"] {
            assert_eq!(first_element(incomplete.as_bytes()), None, "{incomplete}");
        }
    }
}
