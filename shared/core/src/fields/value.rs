//! Reads and shows single values: strings, numbers, durations, sizes, names, secrets.
//!
//! Strict with typed sources: a number is not a string, and a bare number is not a duration. Text, as of a header or an
//! environment variable, is read as the type of the field.

use std::collections::BTreeMap;
use std::fmt;
use std::net::SocketAddr;
use std::str::FromStr;
use std::time::Duration;

use serde::{Deserialize, Serialize};
use serde_json::{Value as Json, json};

use crate::secret::Secret;
use crate::time::{UnixMs, format_duration, parse_duration, shorten};

/// A value as its source has it.
#[derive(Clone, Copy, Debug)]
pub enum Given<'a> {
    /// Text that may stand for any type.
    Text(&'a str),
    /// A typed value.
    Json(&'a Json),
}

impl<'a> Given<'a> {
    /// Returns the text of a string.
    ///
    /// # Errors
    /// A text that says what was found instead.
    pub fn text(self) -> Result<&'a str, String> {
        match self {
            Self::Text(text) => Ok(text),
            Self::Json(Json::String(text)) => Ok(text),
            Self::Json(Json::Number(_) | Json::Bool(_)) => Err(format!(
                "expected a string, found {}: put it in quotes",
                self.kind()
            )),
            Self::Json(_) => Err(format!("expected a string, found {}", self.kind())),
        }
    }

    /// Returns the name of the type of the value, with its article.
    pub fn kind(self) -> &'static str {
        match self {
            Self::Text(_) | Self::Json(Json::String(_)) => "a string",
            Self::Json(Json::Bool(_)) => "a boolean",
            Self::Json(Json::Number(_)) => "a number",
            Self::Json(Json::Null) => "nothing",
            Self::Json(Json::Object(_)) => "a table",
            Self::Json(Json::Array(_)) => "a list",
        }
    }
}

/// A type that a field can have.
pub trait Value: Sized {
    /// True if the value must never be shown.
    const SECRET: bool = false;

    /// The name of the type in references, e.g. `duration`.
    const KIND: &'static str;

    /// Returns the values that the type allows; empty if its name says it.
    fn allowed() -> String {
        String::new()
    }

    /// Reads a value.
    ///
    /// # Errors
    /// A text that says what is allowed.
    fn read(given: Given<'_>) -> Result<Self, String>;

    /// Reads a value where a source cannot unset it: the text `none` is then a value like any other.
    ///
    /// # Errors
    /// As [`Value::read`].
    fn read_set(given: Given<'_>) -> Result<Self, String> {
        Self::read(given)
    }

    /// Returns the value as people write it.
    fn show(&self) -> Json;

    /// Returns the JSON Schema of the type.
    fn schema() -> Json {
        json!({ "type": "string" })
    }
}

impl Value for String {
    const KIND: &'static str = "string";

    fn read(given: Given<'_>) -> Result<Self, String> {
        given.text().map(str::to_owned)
    }

    fn show(&self) -> Json {
        self.as_str().into()
    }
}

impl Value for Secret {
    const SECRET: bool = true;
    const KIND: &'static str = "string";

    fn allowed() -> String {
        "not empty".into()
    }

    fn read(given: Given<'_>) -> Result<Self, String> {
        match given.text()? {
            "" => Err("expected a non-empty string".into()),
            text => Ok(Self::new(text)),
        }
    }

    fn show(&self) -> Json {
        self.to_string().into()
    }
}

impl Value for bool {
    const KIND: &'static str = "boolean";

    fn read(given: Given<'_>) -> Result<Self, String> {
        match given {
            Given::Json(Json::Bool(bool)) => Ok(*bool),
            Given::Text("true") => Ok(true),
            Given::Text("false") => Ok(false),
            other => Err(format!("expected true or false, found {}", other.kind())),
        }
    }

    fn show(&self) -> Json {
        (*self).into()
    }

    fn schema() -> Json {
        json!({ "type": "boolean" })
    }
}

/// Implements [`Value`] for integers.
macro_rules! integers {
    ($($type:ty),*) => {$(
        impl Value for $type {
            const KIND: &'static str = "integer";

            fn allowed() -> String {
                format!("{} to {}", Self::MIN, Self::MAX)
            }

            fn read(given: Given<'_>) -> Result<Self, String> {
                let number = match given {
                    Given::Json(Json::Number(number)) => number
                        .as_i64()
                        .map(i128::from)
                        .or_else(|| number.as_u64().map(i128::from)),
                    Given::Text(text) => text.parse().ok(),
                    Given::Json(_) => None,
                };
                number.and_then(|number| Self::try_from(number).ok()).ok_or_else(|| {
                    let (low, high) = (Self::MIN, Self::MAX);
                    format!("must be a whole number from {low} to {high}")
                })
            }

            fn show(&self) -> Json {
                (*self).into()
            }

            fn schema() -> Json {
                json!({ "type": "integer", "minimum": Self::MIN, "maximum": Self::MAX })
            }
        }
    )*};
}
integers!(u16, u32, u64, usize, i32);

impl Value for f64 {
    const KIND: &'static str = "number";

    fn read(given: Given<'_>) -> Result<Self, String> {
        let number = match given {
            Given::Json(number) => number.as_f64(),
            Given::Text(text) => text.parse().ok(),
        };
        number
            .filter(|number| number.is_finite())
            .ok_or_else(|| format!("expected a number, found {}", given.kind()))
    }

    fn show(&self) -> Json {
        (*self).into()
    }

    fn schema() -> Json {
        json!({ "type": "number" })
    }
}

impl Value for Duration {
    const KIND: &'static str = "duration";

    fn read(given: Given<'_>) -> Result<Self, String> {
        match given {
            // A bare 30 needs a unit, not only quotes.
            Given::Json(Json::Number(_)) => Err(
                "expected a duration with a unit in quotes, like \"250ms\", \"30s\" or \"5m\""
                    .into(),
            ),
            other => parse_duration(other.text()?).map_err(|error| error.to_string()),
        }
    }

    fn show(&self) -> Json {
        format_duration(*self).into()
    }

    fn schema() -> Json {
        json!({ "type": "string", "pattern": "^ *[0-9]+ *(ms|[smhd])( *[0-9]+ *(ms|[smhd]))* *$" })
    }
}

impl Value for UnixMs {
    const KIND: &'static str = "time";

    fn allowed() -> String {
        "RFC 3339".into()
    }

    fn read(given: Given<'_>) -> Result<Self, String> {
        let text = given.text()?.trim();
        text.parse().map_err(|error| format!("{error}"))
    }

    fn show(&self) -> Json {
        self.to_string().into()
    }
}

/// Reads `localhost` as `127.0.0.1`.
impl Value for SocketAddr {
    const KIND: &'static str = "address:port";

    fn read(given: Given<'_>) -> Result<Self, String> {
        let text = given.text()?;
        let text = match text.strip_prefix("localhost:") {
            Some(port) => format!("127.0.0.1:{port}"),
            None => text.into(),
        };
        text.parse().map_err(|_| {
            "expected address:port, like 127.0.0.1:7811, 0.0.0.0:7811 or [::1]:7811".into()
        })
    }

    fn show(&self) -> Json {
        self.to_string().into()
    }
}

/// Implements [`Value`](crate::fields::Value) for types that parse the text that they print: `Type, kind, allowed`.
#[macro_export]
macro_rules! text_value {
    ($($type:ty, $kind:literal, $allowed:expr;)+) => {$(
        impl $crate::fields::Value for $type {
            const KIND: &'static str = $kind;

            fn allowed() -> String {
                String::from($allowed)
            }

            fn read(given: $crate::fields::Given<'_>) -> Result<Self, String> {
                given.text()?.parse().map_err(|error| format!("{error}"))
            }

            fn show(&self) -> serde_json::Value {
                self.to_string().into()
            }

            fn schema() -> serde_json::Value {
                $crate::fields::text_schema($allowed)
            }
        }
    )+};
}

/// Returns the schema of a text, with its pattern if what is allowed is one.
#[doc(hidden)]
pub fn text_schema(allowed: &str) -> Json {
    match allowed.starts_with('[') {
        true => json!({ "type": "string", "pattern": format!("^{allowed}$") }),
        false => json!({ "type": "string" }),
    }
}

/// An optional value. `"none"` unsets it, even if another source sets it.
impl<T: Value> Value for Option<T> {
    const SECRET: bool = T::SECRET;
    const KIND: &'static str = T::KIND;

    fn allowed() -> String {
        T::allowed()
    }

    fn read(given: Given<'_>) -> Result<Self, String> {
        match given {
            Given::Text("none") => Ok(None),
            Given::Json(Json::String(text)) if text == "none" => Ok(None),
            given => T::read(given)
                .map(Some)
                .map_err(|message| format!("{message}; or \"none\"")),
        }
    }

    fn read_set(given: Given<'_>) -> Result<Self, String> {
        match given {
            Given::Json(Json::Null) => Ok(None),
            given => T::read(given).map(Some),
        }
    }

    fn show(&self) -> Json {
        self.as_ref().map_or_else(|| "none".into(), Value::show)
    }

    fn schema() -> Json {
        T::schema()
    }
}

/// Serializes an optional value as users write it, by `#[serde(with = "optional_text")]`.
pub mod optional_text {
    use serde::{Deserialize as _, Deserializer, Serialize as _, Serializer, de};
    use serde_json::Value as Json;

    use super::{Given, Value};

    /// Serializes a value; `None` is null.
    ///
    /// # Errors
    /// Those of the serializer.
    pub fn serialize<T: Value, S: Serializer>(value: &Option<T>, to: S) -> Result<S::Ok, S::Error> {
        value.as_ref().map(Value::show).serialize(to)
    }

    /// Deserializes a value; null is `None`.
    ///
    /// # Errors
    /// The value is not one of the type.
    pub fn deserialize<'de, T: Value, D: Deserializer<'de>>(
        from: D,
    ) -> Result<Option<T>, D::Error> {
        let json = Json::deserialize(from)?;
        Option::read_set(Given::Json(&json)).map_err(de::Error::custom)
    }
}

/// A list of values of one type.
impl<T: Value> Value for Vec<T> {
    const SECRET: bool = T::SECRET;
    const KIND: &'static str = "list";

    fn allowed() -> String {
        match T::allowed() {
            allowed if allowed.is_empty() => format!("each a {}", T::KIND),
            allowed => format!("each {allowed}"),
        }
    }

    fn read(given: Given<'_>) -> Result<Self, String> {
        let read = |(index, item): (usize, Given<'_>)| {
            T::read(item).map_err(|message| format!("item {}: {message}", index + 1))
        };
        let items: Vec<_> = match given {
            Given::Json(Json::Array(items)) => items
                .iter()
                .map(Given::Json)
                .enumerate()
                .map(read)
                .collect(),
            Given::Text(text) => {
                let items = split_list(text);
                let items = items.iter().map(|item| Given::Text(item));
                items.enumerate().map(read).collect()
            }
            other => return Err(format!("expected a list, found {}", other.kind())),
        };
        let wrong: Vec<_> = items
            .iter()
            .filter_map(|item| item.as_ref().err().cloned())
            .collect();
        if wrong.is_empty() {
            Ok(items.into_iter().flatten().collect())
        } else {
            Err(wrong.join("; "))
        }
    }

    fn show(&self) -> Json {
        self.iter().map(Value::show).collect()
    }

    fn schema() -> Json {
        json!({ "type": "array", "items": T::schema() })
    }
}

/// Texts by name: a table. As text, a JSON object.
impl Value for BTreeMap<String, String> {
    const KIND: &'static str = super::TEXT_TABLE;

    fn read(given: Given<'_>) -> Result<Self, String> {
        let parsed;
        let json = match given {
            Given::Json(json) => json,
            Given::Text(text) => {
                parsed =
                    serde_json::from_str(text).map_err(|_| "expected a JSON object".to_owned())?;
                &parsed
            }
        };
        let Json::Object(object) = json else {
            let kind = Given::Json(json).kind();
            return Err(format!("expected a table, found {kind}"));
        };
        let texts = object.iter().map(|(name, value)| {
            let text = Given::Json(value).text();
            let text = text.map_err(|message| format!("{}: {message}", shorten(name)))?;
            Ok((name.clone(), text.to_owned()))
        });
        texts.collect()
    }

    fn show(&self) -> Json {
        let texts = self.iter().map(|(name, text)| (name.clone(), text.show()));
        Json::Object(texts.collect())
    }

    fn schema() -> Json {
        json!({ "type": "object", "additionalProperties": { "type": "string" } })
    }
}

/// Splits the text of a list: JSON (`["a", "b,c"]`), or strings separated by commas, with or without brackets.
fn split_list(text: &str) -> Vec<String> {
    let text = text.trim();
    if let Ok(items) = serde_json::from_str(text) {
        return items;
    }
    let inner = text
        .strip_prefix('[')
        .and_then(|text| text.strip_suffix(']'))
        .unwrap_or(text);
    inner
        .split(',')
        .map(str::trim)
        .filter(|item| !item.is_empty())
        .map(str::to_owned)
        .collect()
}

/// A number of bytes: an integer, or a string with a unit such as `256KiB`.
#[derive(
    Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Default, Serialize, Deserialize,
)]
#[serde(transparent)]
pub struct Size(u64);

const UNITS: [(&str, u64); 6] = [
    ("GiB", 1 << 30),
    ("MiB", 1 << 20),
    ("KiB", 1 << 10),
    ("MB", 1_000_000),
    ("KB", 1_000),
    ("B", 1),
];

impl Size {
    /// Creates a size from a number of bytes.
    pub const fn new(bytes: u64) -> Self {
        Self(bytes)
    }

    /// Returns the number of bytes.
    pub const fn get(self) -> u64 {
        self.0
    }
}

impl fmt::Display for Size {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut binary = UNITS.iter().filter(|(unit, _)| unit.ends_with("iB"));
        let exact = binary.find(|(_, factor)| self.0 >= *factor && self.0.is_multiple_of(*factor));
        let (unit, factor) = exact.unwrap_or(&("B", 1));
        write!(f, "{}{unit}", self.0 / factor)
    }
}

impl FromStr for Size {
    type Err = &'static str;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        const EXPECTED: &str =
            "expected a size, like \"512B\", \"256KiB\" or \"1MiB\", or a whole number of bytes";
        let (number, factor) = UNITS
            .iter()
            .find_map(|(unit, factor)| Some((text.trim().strip_suffix(unit)?.trim_end(), factor)))
            .ok_or(EXPECTED)?;
        let number: u64 = number.parse().map_err(|_| EXPECTED)?;
        number.checked_mul(*factor).map(Self).ok_or(EXPECTED)
    }
}

impl Value for Size {
    const KIND: &'static str = "size";

    fn read(given: Given<'_>) -> Result<Self, String> {
        match (u64::read(given), given) {
            (Ok(bytes), _) => Ok(Self(bytes)),
            (Err(_), Given::Text(text)) => text.parse().map_err(str::to_owned),
            (Err(_), Given::Json(Json::String(text))) => text.parse().map_err(str::to_owned),
            (Err(_), Given::Json(_)) => "".parse().map_err(str::to_owned),
        }
    }

    fn show(&self) -> Json {
        self.to_string().into()
    }

    fn schema() -> Json {
        json!({ "type": ["string", "integer"] })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_size_has_a_unit_or_is_a_number_of_bytes() {
        for (given, bytes) in [
            ("256KiB", 262_144),
            ("1 MiB", 1 << 20),
            ("10B", 10),
            ("2KB", 2_000),
        ] {
            assert_eq!(Size::read(Given::Json(&given.into())), Ok(Size(bytes)));
        }
        assert_eq!(Size::read(Given::Json(&4096.into())), Ok(Size(4096)));
        assert_eq!(Size::read(Given::Text("4096")), Ok(Size(4096)));
        for bad in ["4096", "KiB", "1.5MiB", "-1B", "99999999999GiB"] {
            assert!(Size::read(Given::Json(&bad.into())).is_err(), "{bad}");
        }
        assert_eq!(
            [Size(262_144), Size(1000), Size(0)].map(|size| size.to_string()),
            ["256KiB", "1000B", "0B"]
        );
    }

    #[test]
    fn a_duration_is_shown_as_users_write_it() {
        for text in ["365d", "1m30s", "1h1ms", "0s", "5ms"] {
            let duration = Duration::read(Given::Json(&text.into())).unwrap();
            assert_eq!(duration.show(), text);
        }
    }

    #[test]
    fn a_list_as_text_is_json_or_separated_by_commas() {
        let read = |given: &str| Vec::<String>::read(Given::Text(given)).unwrap();
        assert_eq!(read("a, 07"), ["a", "07"]);
        assert_eq!(read("[a,b]"), ["a", "b"]);
        assert_eq!(read(r#"["a,b", "c"]"#), ["a,b", "c"]);
        assert!(Vec::<String>::read(Given::Json(&"a".into())).is_err());
    }
}
