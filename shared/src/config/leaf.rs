//! How one value of each type is read and shown: texts, numbers, durations, sizes, names, addresses, secrets.
//!
//! Strict with files (a number is not a text, a bare number is no duration); texts from the environment and the
//! command line are read as the type that the key has.

use std::net::SocketAddr;
use std::time::Duration;

use figment::value::Value;
use serde_json::Value as Json;

use super::DoctorMode;
use super::problem::hide_path;
use super::sinks::RetryAfter;
use super::subscription::SubscriptionGroup;
use crate::cron::{Cron, TimeZone};
use crate::durability::Durability;
use crate::http::auth::Scope;
use crate::http::{HostName, Origin};
use crate::link::RedisUrl;
use crate::message::{MergeKey, OrderingKey};
use crate::secret::Secret;
use crate::telemetry::LogFormat;
use crate::time::{format_duration, parse_duration};
use crate::topic::{Group, Merge, MergeBy, Namespace, OnExpired, OnGarbage, OnLate, Rate, Topic};

/// A type that a key can have.
pub(super) trait Leaf: Sized {
    /// Whether the value is hidden wherever it is shown.
    const SECRET: bool = false;

    /// Reads a value; a `text_only` one may be the text of a number, boolean or list. The error says what is allowed.
    fn read(value: &Value, text_only: bool) -> Result<Self, String>;

    /// Gives what `config show` prints.
    fn show(&self) -> Json;
}

fn text(value: &Value) -> Result<&str, String> {
    match value {
        Value::String(_, text) => Ok(text),
        Value::Num(..) | Value::Bool(..) => Err(format!(
            "expected a text, found {}: put it in quotes",
            kind(value)
        )),
        other => Err(format!("expected a text, found {}", kind(other))),
    }
}

/// Names the type of a value.
pub(super) fn kind(value: &Value) -> &'static str {
    match value {
        Value::String(..) | Value::Char(..) => "a text",
        Value::Bool(..) => "a boolean",
        Value::Num(..) => "a number",
        Value::Empty(..) => "nothing",
        Value::Dict(..) => "a table",
        Value::Array(..) => "a list",
    }
}

impl Leaf for String {
    fn read(value: &Value, _: bool) -> Result<Self, String> {
        text(value).map(str::to_owned)
    }

    fn show(&self) -> Json {
        self.as_str().into()
    }
}

/// The address of a webhook, whose path or query may be a secret.
pub(super) struct Address(pub(super) String);

impl Leaf for Address {
    fn read(value: &Value, _: bool) -> Result<Self, String> {
        text(value).map(|text| Self(text.to_owned()))
    }

    fn show(&self) -> Json {
        hide_path(&self.0).into()
    }
}

impl Leaf for Secret {
    const SECRET: bool = true;

    fn read(value: &Value, _: bool) -> Result<Self, String> {
        match text(value)? {
            "" => Err("expected a text that is not empty".into()),
            text => Ok(Self::new(text)),
        }
    }

    fn show(&self) -> Json {
        self.to_string().into()
    }
}

impl Leaf for bool {
    fn read(value: &Value, text_only: bool) -> Result<Self, String> {
        match value {
            Value::Bool(_, bool) => Ok(*bool),
            Value::String(_, text) if text_only && text == "true" => Ok(true),
            Value::String(_, text) if text_only && text == "false" => Ok(false),
            other => Err(format!("expected true or false, found {}", kind(other))),
        }
    }

    fn show(&self) -> Json {
        (*self).into()
    }
}

impl Leaf for u64 {
    fn read(value: &Value, text_only: bool) -> Result<Self, String> {
        let expected = |found: &str| format!("expected a whole number from 0, found {found}");
        match value {
            Value::Num(_, num) => {
                let number = num.to_i128().and_then(|number| Self::try_from(number).ok());
                let number =
                    number.or_else(|| num.to_u128().and_then(|number| number.try_into().ok()));
                number.ok_or_else(|| expected("another number"))
            }
            Value::String(_, text) if text_only => {
                text.parse().map_err(|_| expected("another text"))
            }
            other => Err(expected(kind(other))),
        }
    }

    fn show(&self) -> Json {
        (*self).into()
    }
}

/// The smaller whole numbers: read as the largest, then narrowed.
macro_rules! narrow_leaf {
    ($($type:ty),*) => {$(
        impl Leaf for $type {
            fn read(value: &Value, text_only: bool) -> Result<Self, String> {
                Self::try_from(u64::read(value, text_only)?)
                    .map_err(|_| format!("allowed is up to {}", Self::MAX))
            }

            fn show(&self) -> Json {
                (*self).into()
            }
        }
    )*};
}
narrow_leaf!(u16, u32, usize);

impl Leaf for i32 {
    fn read(value: &Value, text_only: bool) -> Result<Self, String> {
        let number = match value {
            Value::Num(_, num) => num.to_i128().and_then(|number| number.try_into().ok()),
            Value::String(_, text) if text_only => text.parse().ok(),
            _ => None,
        };
        number.ok_or_else(|| {
            format!(
                "allowed is a whole number from {} to {}",
                Self::MIN,
                Self::MAX
            )
        })
    }

    fn show(&self) -> Json {
        (*self).into()
    }
}

impl Leaf for f64 {
    fn read(value: &Value, text_only: bool) -> Result<Self, String> {
        let number = match value {
            Value::Num(_, num) => {
                // Whole numbers are numbers too; they are small here, so nothing is lost.
                // YAML has them without a sign, TOML with one.
                num.to_f64()
                    .or_else(|| num.to_i128().map(|number| number as Self))
                    .or_else(|| num.to_u128().map(|number| number as Self))
            }
            Value::String(_, text) if text_only => text.parse().ok(),
            _ => None,
        };
        number
            .filter(|number| number.is_finite())
            .ok_or_else(|| format!("expected a number, found {}", kind(value)))
    }

    fn show(&self) -> Json {
        (*self).into()
    }
}

impl Leaf for Duration {
    fn read(value: &Value, text_only: bool) -> Result<Self, String> {
        match value {
            // "30" must not fall through to advice about quotes.
            Value::Num(..) if !text_only => Err(
                "expected a duration with a unit in quotes, like \"250ms\", \"30s\" or \"5m\""
                    .into(),
            ),
            other => parse_duration(text(other)?).map_err(|error| error.to_string()),
        }
    }

    fn show(&self) -> Json {
        format_duration(*self).into()
    }
}

/// Writes a duration in the units of the documentation: `365d`, `1m30s`, `250ms`.
impl Leaf for SocketAddr {
    fn read(value: &Value, _: bool) -> Result<Self, String> {
        let text = text(value)?;
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

/// Types that are the text they print.
macro_rules! text_leaf {
    ($($type:ty),*) => {$(
        impl Leaf for $type {
            fn read(value: &Value, _: bool) -> Result<Self, String> {
                text(value)?.parse().map_err(|error| format!("{error}"))
            }

            fn show(&self) -> Json {
                self.to_string().into()
            }
        }
    )*};
}
text_leaf!(
    Topic,
    Group,
    Namespace,
    RedisUrl,
    Cron,
    TimeZone,
    SubscriptionGroup,
    OrderingKey,
    MergeKey,
    HostName,
    Origin
);
text_leaf!(
    Rate, Durability, Merge, MergeBy, OnGarbage, OnExpired, OnLate, RetryAfter, DoctorMode
);

impl Leaf for LogFormat {
    fn read(value: &Value, _: bool) -> Result<Self, String> {
        text(value)?
            .parse()
            .map_err(|_| "allowed is auto, json or pretty".into())
    }

    fn show(&self) -> Json {
        serde_json::to_value(self).expect("a unit variant is a text")
    }
}

impl Leaf for Scope {
    fn read(value: &Value, _: bool) -> Result<Self, String> {
        text(value)?
            .parse()
            .map_err(|_| "allowed is send, read or operate".into())
    }

    fn show(&self) -> Json {
        serde_json::to_value(self).expect("a unit variant is a text")
    }
}

/// The SHA-256 of a token in hexadecimal; hidden, as a weak token could be guessed from it.
pub(super) struct Hash(pub(super) String);

impl Leaf for Hash {
    const SECRET: bool = true;

    fn read(value: &Value, _: bool) -> Result<Self, String> {
        let text = text(value)?;
        if text.len() == 64 && text.bytes().all(|byte| byte.is_ascii_hexdigit()) {
            Ok(Self(text.into()))
        } else {
            Err("expected 64 hexadecimal digits: printf %s TOKEN | sha256sum".into())
        }
    }

    fn show(&self) -> Json {
        Secret::new("").to_string().into()
    }
}

/// A value that need not be there. `"none"` says so, also where another source or `[topic_defaults]` has one.
impl<T: Leaf> Leaf for Option<T> {
    const SECRET: bool = T::SECRET;

    fn read(value: &Value, text_only: bool) -> Result<Self, String> {
        match value {
            Value::String(_, text) if text == "none" => Ok(None),
            value => T::read(value, text_only)
                .map(Some)
                .map_err(|message| format!("{message}; or \"none\"")),
        }
    }

    fn show(&self) -> Json {
        self.as_ref().map_or_else(|| "none".into(), Leaf::show)
    }
}

/// A list of values of one type.
impl<T: Leaf> Leaf for Vec<T> {
    const SECRET: bool = T::SECRET;

    fn read(value: &Value, text_only: bool) -> Result<Self, String> {
        let items = match value {
            Value::Array(_, items) => items.clone(),
            Value::String(_, text) if text_only => split_list(text),
            other => return Err(format!("expected a list, found {}", kind(other))),
        };
        let mut wrong = Vec::new();
        let mut list = Self::new();
        for (index, item) in items.iter().enumerate() {
            match T::read(item, text_only) {
                Ok(item) => list.push(item),
                Err(message) => wrong.push(format!("item {}: {message}", index + 1)),
            }
        }
        if wrong.is_empty() {
            Ok(list)
        } else {
            Err(wrong.join("; "))
        }
    }

    fn show(&self) -> Json {
        self.iter().map(Leaf::show).collect()
    }
}

/// Splits the text of a list: JSON (`["a", "b,c"]`), or texts separated by commas, in brackets or without.
fn split_list(text: &str) -> Vec<Value> {
    let text = text.trim();
    if let Ok(items) = serde_json::from_str::<Vec<String>>(text) {
        return items.into_iter().map(Value::from).collect();
    }
    let inner = text
        .strip_prefix('[')
        .and_then(|text| text.strip_suffix(']'))
        .unwrap_or(text);
    inner
        .split(',')
        .map(str::trim)
        .filter(|item| !item.is_empty())
        .map(Value::from)
        .collect()
}

/// One value, or a list of them.
pub(super) struct OneOrMany<T>(pub(super) Vec<T>);

impl<T: Leaf> Leaf for OneOrMany<T> {
    const SECRET: bool = T::SECRET;

    fn read(value: &Value, text_only: bool) -> Result<Self, String> {
        match value {
            Value::String(..) if !text_only => T::read(value, text_only).map(|one| Self(vec![one])),
            _ => Vec::read(value, text_only).map(Self),
        }
    }

    fn show(&self) -> Json {
        self.0.show()
    }
}

/// A number of bytes: a whole number, or a text with a unit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Size(pub(super) u64);

const UNITS: [(&str, u64); 6] = [
    ("GiB", 1 << 30),
    ("MiB", 1 << 20),
    ("KiB", 1 << 10),
    ("MB", 1_000_000),
    ("KB", 1_000),
    ("B", 1),
];

impl Leaf for Size {
    fn read(value: &Value, text_only: bool) -> Result<Self, String> {
        if let Ok(bytes) = u64::read(value, text_only) {
            return Ok(Self(bytes));
        }
        let expected = || {
            String::from(
                "expected a size, like \"512B\", \"256KiB\" or \"1MiB\", or a whole number of bytes",
            )
        };
        let Value::String(_, text) = value else {
            return Err(expected());
        };
        let (number, factor) = UNITS
            .iter()
            .find_map(|(unit, factor)| Some((text.trim().strip_suffix(unit)?.trim_end(), factor)))
            .ok_or_else(expected)?;
        let number: u64 = number.parse().map_err(|_| expected())?;
        number.checked_mul(*factor).map(Self).ok_or_else(expected)
    }

    fn show(&self) -> Json {
        let binary = UNITS
            .iter()
            .filter(|(unit, _)| unit.ends_with("iB") || *unit == "B");
        let exact = binary
            .into_iter()
            .find(|(_, factor)| self.0 >= *factor && self.0.is_multiple_of(*factor));
        let (unit, factor) = exact.unwrap_or(&("B", 1));
        format!("{}{unit}", self.0 / factor).into()
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
            assert_eq!(Size::read(&Value::from(given), false), Ok(Size(bytes)));
        }
        assert_eq!(Size::read(&Value::from(4096), false), Ok(Size(4096)));
        assert_eq!(Size::read(&Value::from("4096"), true), Ok(Size(4096)));
        for bad in ["4096", "KiB", "1.5MiB", "-1B", "99999999999GiB"] {
            assert!(Size::read(&Value::from(bad), false).is_err(), "{bad}");
        }
        assert_eq!(
            [Size(262_144).show(), Size(1000).show(), Size(0).show()],
            ["256KiB", "1000B", "0B"]
        );
    }

    #[test]
    fn a_duration_is_shown_as_users_write_it() {
        for text in ["365d", "1m30s", "1h1ms", "0s", "5us"] {
            let duration = Duration::read(&Value::from(text), false).unwrap();
            assert_eq!(duration.show(), text);
        }
    }

    #[test]
    fn a_list_in_the_environment_is_json_or_separated_by_commas() {
        let read = |given: &str| Vec::<String>::read(&Value::from(given), true).unwrap();
        assert_eq!(read("a, 07"), ["a", "07"]);
        assert_eq!(read("[a,b]"), ["a", "b"]);
        assert_eq!(read(r#"["a,b", "c"]"#), ["a,b", "c"]);
        assert!(Vec::<String>::read(&Value::from("a"), false).is_err());
    }
}
