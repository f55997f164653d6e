//! The values that the layers of a configuration merge to, as figment has them.

use figment::value::{Dict, Empty, Num, Tag, Value as Merged};
use lisa_core::fields::Given;
use serde_json::Value as Json;

/// The only key of the table that stands for a time of TOML.
const TOML_TIME: &str = "$__toml_private_datetime";

pub(super) fn to_json(value: &Merged) -> Json {
    let time = value.as_dict().and_then(|table| table.get(TOML_TIME));
    time.unwrap_or(value).deserialize().unwrap_or_default()
}

/// Returns the name of the type of a value, with its article.
pub(super) fn kind(value: &Merged) -> &'static str {
    Given::Json(&to_json(value)).kind()
}

/// Returns the value of a key. A key without a value (`jobs:` in YAML with nothing below) is not set.
pub(super) fn present<'v>(values: &'v Dict, key: &str) -> Option<&'v Merged> {
    values
        .get(key)
        .filter(|value| !matches!(value, Merged::Empty(..)))
}

pub(super) fn from_json(text: &str, tag: Tag) -> Option<Merged> {
    let json = serde_json::from_str(text).ok()?;
    Some(tagged(json, tag))
}

fn tagged(json: Json, tag: Tag) -> Merged {
    match json {
        Json::Null => Merged::Empty(tag, Empty::Unit),
        Json::Bool(bool) => Merged::Bool(tag, bool),
        Json::String(text) => Merged::String(tag, text),
        Json::Number(number) => match (number.as_i64(), number.as_f64()) {
            (Some(number), _) => Merged::Num(tag, Num::I64(number)),
            (None, number) => Merged::Num(tag, Num::F64(number.unwrap_or(f64::NAN))),
        },
        Json::Array(items) => Merged::Array(
            tag,
            items.into_iter().map(|item| tagged(item, tag)).collect(),
        ),
        Json::Object(entries) => Merged::Dict(
            tag,
            entries
                .into_iter()
                .map(|(key, value)| (key, tagged(value, tag)))
                .collect(),
        ),
    }
}
