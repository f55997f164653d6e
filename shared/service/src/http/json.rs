//! Parses JSON that clients send, in bounded memory.
//!
//! A value of two bytes, such as an element of `[0,0]`, takes 32 bytes or more once it is parsed, and the object `{"":0}` about
//! 650. So the number of values is limited before any is built.

use std::fmt;

use serde::de::{Error as _, SeqAccess, Visitor};
use serde::{Deserialize, Deserializer};
use serde_json::Error;
use serde_json::value::RawValue;

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

/// The texts of the elements of an array. Those beyond the limit are only counted.
#[derive(Debug)]
pub struct Elements<'a> {
    /// The first elements.
    pub texts: Vec<&'a str>,
    /// The number of all elements.
    pub count: usize,
}

/// Splits a JSON array into the texts of its elements, each of which may be any JSON. Keeps at most `most`.
///
/// # Errors
/// The bytes are not a JSON array.
pub fn elements(json: &[u8], most: usize) -> Result<Elements<'_>, Error> {
    let mut from = serde_json::Deserializer::from_slice(json);
    let all = from.deserialize_seq(First(most))?;
    from.end()?;
    Ok(all)
}

/// Returns the first element of an array of which perhaps only the beginning has arrived.
pub fn first_element(json: &[u8]) -> Option<&str> {
    let json = json.strip_prefix(BYTE_ORDER_MARK).unwrap_or(json);
    let rest = json.trim_ascii_start().strip_prefix(b"[")?;
    let mut elements = serde_json::Deserializer::from_slice(rest).into_iter::<&RawValue>();
    Some(elements.next()?.ok()?.get())
}

struct First(usize);

impl<'de> Visitor<'de> for First {
    type Value = Elements<'de>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a JSON array")
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut array: A) -> Result<Self::Value, A::Error> {
        let (mut texts, mut count) = (Vec::new(), 0);
        while let Some(element) = array.next_element::<&RawValue>()? {
            count += 1;
            if count <= self.0 {
                texts.push(element.get());
            }
        }
        Ok(Elements { texts, count })
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
    fn of_an_array_the_first_elements_are_kept_and_all_are_counted() {
        let all = elements(b" [1, {\"a\": [2]}, \"x\"] ", 2).unwrap();
        assert_eq!((all.texts, all.count), (vec!["1", "{\"a\": [2]}"], 3));
        assert_eq!(elements(b"[]", 2).unwrap().count, 0);
        for bad in ["{}", "[1", "[1] 2", "1", ""] {
            assert!(elements(bad.as_bytes(), 2).is_err(), "{bad}");
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
