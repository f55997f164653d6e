//! The attributes of a message: their types, their MD5, and their place in the headers of the message.
//!
//! Each attribute is a header `sqs-attr-NAME`, which other consumers can read. The header `sqs-attributes` has what does not
//! fit there: the exact names, the types, and which values are in base64.

use std::collections::{BTreeMap, HashSet};

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use lisa_core::message::Headers;
use lisa_core::time::shorten;
use md5::{Digest, Md5};
use serde::{Deserialize, Serialize};

use super::protocol::{Kind, SqsError, or_default};
use super::sigv4::hex;

/// The header with the names and types.
pub(super) const INDEX: &str = "sqs-attributes";
const PREFIX: &str = "sqs-attr-";
/// The longest part of a header's name that comes from the name of an attribute.
const MAX_SLUG: usize = 48;
/// The most attributes of a message.
const MAX_ATTRIBUTES: usize = 10;
/// The longest name or type of an attribute.
const MAX_NAME: usize = 256;

/// The attributes of a message, by name.
pub(super) type Attributes = BTreeMap<String, Attribute>;

/// An attribute as requests and answers have it.
#[derive(Clone, Debug, Default, Deserialize, PartialEq, Eq, Serialize)]
#[serde(rename_all = "PascalCase")]
pub(super) struct Attribute {
    #[serde(default, deserialize_with = "or_default")]
    data_type: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    string_value: Option<String>,
    /// In base64.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    binary_value: Option<String>,
}

impl Attribute {
    /// Makes an attribute of the type `String`.
    pub(super) fn text(value: impl Into<String>) -> Self {
        Self {
            data_type: "String".to_owned(),
            string_value: Some(value.into()),
            binary_value: None,
        }
    }

    /// Returns the value of a string.
    pub(super) fn string(&self) -> Option<&str> {
        self.string_value.as_deref()
    }

    /// Returns the first part of the type.
    fn basic_type(&self) -> &str {
        self.data_type.split('.').next().unwrap_or_default()
    }

    /// Returns the bytes of the value.
    fn bytes(&self) -> Option<Vec<u8>> {
        match (&self.string_value, &self.binary_value) {
            (Some(text), None) => Some(text.clone().into_bytes()),
            (None, Some(base64)) => STANDARD.decode(base64).ok(),
            _ => None,
        }
    }

    /// Returns the number of the kind of value, as it is hashed.
    fn kind(&self) -> u8 {
        if self.binary_value.is_some() { 2 } else { 1 }
    }

    fn check(&self, name: &str) -> Result<(), SqsError> {
        let wrong = |why: &str| {
            let name = shorten(name);
            let message = format!("The message attribute '{name}' is invalid: {why}.");
            Err(SqsError::new(Kind::InvalidParameterValue, message))
        };
        // SQS also accepts these letters with accents, although its documentation does not say so.
        let is_known = |c: char| {
            c.is_ascii_alphanumeric() || "_.-".contains(c) || ('\u{c0}'..='\u{17f}').contains(&c)
        };
        if !(1..=MAX_NAME).contains(&name.len()) || !name.chars().all(is_known) {
            return wrong("a name has 1 to 256 of the characters A-Z, a-z, 0-9, _, - and .");
        }
        let lower = name.to_ascii_lowercase();
        let is_reserved = lower.starts_with("aws.") || lower.starts_with("amazon.");
        if is_reserved || name.split('.').any(str::is_empty) {
            return wrong(
                "a name must not begin with AWS. or Amazon., begin or end with a period, or have two periods in sequence",
            );
        }
        // A receiver could not tell them from the headers that Lisa sets.
        if Headers::is_reserved(name) {
            return wrong("a name must not begin with lisa-, which only Lisa sets");
        }
        if let Some(bad) = self.string().and_then(forbidden) {
            return wrong(&format!(
                "it contains the character U+{:04X}",
                u32::from(bad)
            ));
        }
        let is_visible = self
            .data_type
            .bytes()
            .all(|byte| byte.is_ascii_graphic() || byte == b' ');
        if self.data_type.len() > MAX_NAME || !is_visible {
            return wrong("DataType has at most 256 characters of visible ASCII");
        }
        match (self.basic_type(), &self.string_value, &self.binary_value) {
            ("String", Some(text), None) if !text.is_empty() => Ok(()),
            (kind @ "String", ..) => {
                let name = shorten(name);
                let message = format!(
                    "Message (user) attribute '{name}' must contain a non-empty value of type '{kind}'."
                );
                Err(SqsError::new(Kind::InvalidParameterValue, message))
            }
            ("Number", Some(text), None) if text.parse::<f64>().is_ok_and(f64::is_finite) => Ok(()),
            ("Number", ..) => wrong("DataType Number requires a number as StringValue"),
            ("Binary", None, Some(base64)) if !base64.is_empty() => match self.bytes() {
                Some(_) => Ok(()),
                None => wrong("BinaryValue is not base64"),
            },
            ("Binary", ..) => wrong("DataType Binary requires a BinaryValue that is not empty"),
            _ => {
                let name = shorten(name);
                let message = format!(
                    "The message attribute '{name}' has an invalid message attribute type, the set of supported type \
                     prefixes is Binary, Number, and String."
                );
                Err(SqsError::new(Kind::InvalidParameterValue, message))
            }
        }
    }
}

/// Checks the attributes of a message to send.
pub(super) fn check(attributes: &Attributes) -> Result<(), SqsError> {
    if attributes.len() > MAX_ATTRIBUTES {
        let message = format!(
            "Number of message attributes [{}] exceeds the allowed maximum [{MAX_ATTRIBUTES}].",
            attributes.len()
        );
        return Err(SqsError::new(Kind::InvalidParameterValue, message));
    }
    attributes
        .iter()
        .try_for_each(|(name, attribute)| attribute.check(name))
}

/// Returns the bytes of attributes: their names, types and values.
pub(super) fn size(attributes: &Attributes) -> usize {
    let sizes = attributes.iter().map(|(name, attribute)| {
        let text = attribute.string_value.as_ref().map_or(0, String::len);
        let base64 = attribute.binary_value.as_deref().unwrap_or_default();
        let binary = base64.trim_end_matches('=').len() * 3 / 4;
        name.len() + attribute.data_type.len() + text + binary
    });
    sizes.sum()
}

/// Returns the MD5 of attributes, as SDKs compute it.
pub(super) fn md5_of_attributes(attributes: &Attributes) -> String {
    let mut hash = Md5::new();
    for (name, attribute) in attributes {
        let (value, kind) = (attribute.bytes().unwrap_or_default(), attribute.kind());
        let parts: [(&[u8], &[u8]); 3] = [
            (&[], name.as_bytes()),
            (&[], attribute.data_type.as_bytes()),
            (&[kind], &value),
        ];
        for (kind, bytes) in parts {
            let length = u32::try_from(bytes.len()).unwrap_or(u32::MAX);
            hash.update(kind);
            hash.update(length.to_be_bytes());
            hash.update(bytes);
        }
    }
    hex(&hash.finalize())
}

/// Returns the MD5 of a text.
pub(super) fn md5_of(text: &str) -> String {
    hex(&Md5::digest(text.as_bytes()))
}

/// An attribute in the index: its name, its type, and true if its header is in base64.
#[derive(Deserialize, Serialize)]
struct Entry(
    String,
    String,
    #[serde(default, skip_serializing_if = "std::ops::Not::not")] bool,
);

/// Adds attributes to headers.
pub(super) fn to_headers(attributes: &Attributes, headers: &mut Headers) -> Result<(), SqsError> {
    if attributes.is_empty() {
        return Ok(());
    }
    let mut index = Vec::with_capacity(attributes.len());
    for ((name, attribute), header) in attributes.iter().zip(header_names(attributes.keys())) {
        let plain = attribute.string_value.as_deref();
        let is_plain = plain.is_some_and(|text| headers.insert(&header, text).is_ok());
        if !is_plain {
            let value = STANDARD.encode(attribute.bytes().unwrap_or_default());
            headers.insert(&header, &value).map_err(|_| {
                let message = format!(
                    "The message attribute '{name}' is too long: it becomes a header of {} bytes, and 4096 are \
                     allowed. Put it into the body.",
                    value.len()
                );
                SqsError::new(Kind::InvalidParameterValue, message)
            })?;
        }
        index.push(Entry(name.clone(), attribute.data_type.clone(), !is_plain));
    }
    let index = serde_json::to_string(&index).expect("texts always serialize");
    headers.insert(INDEX, &in_ascii(&index)).map_err(|_| {
        let message = "The names and types of the message attributes are too long together: 4096 bytes are allowed.";
        SqsError::new(Kind::InvalidParameterValue, message)
    })
}

/// Escapes the letters beyond ASCII in JSON.
fn in_ascii(json: &str) -> String {
    let escaped = json.chars().map(|c| match c.is_ascii() {
        true => c.to_string(),
        false => format!("\\u{:04x}", u32::from(c)),
    });
    escaped.collect()
}

/// Returns the first character that XML 1.0 does not allow, and so SQS does not allow in a message.
pub(super) fn forbidden(text: &str) -> Option<char> {
    let is_allowed = |c: &char| matches!(c, '\t' | '\n' | '\r' | '\u{20}'..='\u{d7ff}' | '\u{e000}'..='\u{fffd}' | '\u{10000}'..);
    text.chars().find(|c| !is_allowed(c))
}

/// Returns the attributes of a message. Headers that no SQS client set are attributes of the type `String`.
pub(super) fn from_headers(headers: &Headers) -> Attributes {
    let mut attributes = Attributes::new();
    let is_own = |name: &str| name.starts_with("sqs-") || Headers::is_reserved(name);
    for (name, value) in headers.iter().filter(|(name, _)| !is_own(name)) {
        attributes.insert(name.to_owned(), Attribute::text(value));
    }
    let index = headers
        .get(INDEX)
        .and_then(|text| serde_json::from_str(text).ok());
    let index: Vec<Entry> = index.unwrap_or_default();
    let names = header_names(index.iter().map(|Entry(name, ..)| name));
    for (Entry(name, data_type, is_encoded), header) in index.iter().zip(names) {
        let Some(value) = headers.get(&header) else {
            continue;
        };
        let mut attribute = Attribute {
            data_type: data_type.clone(),
            ..Attribute::default()
        };
        if attribute.basic_type() == "Binary" {
            attribute.binary_value = Some(value.to_owned());
        } else if *is_encoded {
            let text = STANDARD
                .decode(value)
                .ok()
                .and_then(|bytes| String::from_utf8(bytes).ok());
            attribute.string_value = text;
        } else {
            attribute.string_value = Some(value.to_owned());
        }
        attributes.insert(name.clone(), attribute);
    }
    attributes
}

/// Returns a different header name for each attribute, in their order.
fn header_names<'a>(names: impl Iterator<Item = &'a String>) -> Vec<String> {
    let mut taken = HashSet::new();
    let slug = |(index, name): (usize, &String)| {
        let plain = |c: char| {
            if c.is_ascii_alphanumeric() {
                c.to_ascii_lowercase()
            } else {
                '-'
            }
        };
        let slug: String = name.chars().take(MAX_SLUG).map(plain).collect();
        let mut header = format!("{PREFIX}{slug}");
        while !taken.insert(header.clone()) {
            header = format!("{header}-{index}");
        }
        header
    };
    names.enumerate().map(slug).collect()
}

/// Returns the attributes that a request names: exact names, `All`, `*`, `.*`, or the beginning of names, such as `foo.*`.
pub(super) fn select(mut attributes: Attributes, names: &[String]) -> Attributes {
    let is_named = |attribute: &String| {
        names.iter().any(|name| match name.strip_suffix(".*") {
            Some(beginning) => attribute.starts_with(beginning),
            None => name == "All" || name == "*" || name == attribute,
        })
    };
    attributes.retain(|name, _| is_named(name));
    attributes
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn read(json: serde_json::Value) -> Attributes {
        serde_json::from_value(json).unwrap()
    }

    #[test]
    fn the_md5_is_that_of_the_sdks() {
        // Of the documentation and the SDKs of AWS.
        assert_eq!(
            md5_of("This is a test message"),
            "fafb00f5732ab283681e124bf8747ed1"
        );
        let one = read(
            json!({"test_attribute_name_1": {"DataType": "String", "StringValue": "test_attribute_value_1"}}),
        );
        assert_eq!(md5_of_attributes(&one), "ba056227cfd9533dba1f72ad9816d233");
        let all = read(json!({
            "b": {"DataType": "Binary", "BinaryValue": "AAH/"},
            "n": {"DataType": "Number.int", "StringValue": "42"},
            "s": {"DataType": "String", "StringValue": "héllo"},
        }));
        assert_eq!(md5_of_attributes(&all), "903aef4c09b2fb424a009563b4960387");
    }

    #[test]
    fn attributes_survive_their_way_through_headers() {
        let given = read(json!({
            "Color": {"DataType": "String", "StringValue": "red"},
            "color": {"DataType": "String.name", "StringValue": " blänk\n"},
            "color-1": {"DataType": "Number", "StringValue": "-1.5e3"},
            "a.b_c": {"DataType": "Binary", "BinaryValue": "AAH/"},
            "attr.1øßä": {"DataType": "String", "StringValue": "x"},
        }));
        check(&given).unwrap();
        let mut headers = Headers::default();
        headers.insert("traceparent", "00-1").unwrap();
        headers.insert("sqs-group-id", "g").unwrap();
        to_headers(&given, &mut headers).unwrap();
        assert_eq!(headers.get("sqs-attr-color"), Some("red"));
        assert_eq!(headers.get("sqs-attr-a-b-c"), Some("AAH/"));
        let mut read = from_headers(&headers);
        assert_eq!(read.remove("traceparent"), Some(Attribute::text("00-1")));
        assert_eq!(read, given);
    }

    #[test]
    fn headers_of_different_attributes_have_different_names() {
        let names = ["X", "X-2", "x", "x-2", &"l".repeat(256), &"l".repeat(255)];
        let names = names.map(str::to_owned);
        let headers = header_names(names.iter());
        let different: HashSet<_> = headers.iter().collect();
        assert_eq!(different.len(), names.len(), "{headers:?}");
        for header in headers {
            assert!(Headers::default().insert(&header, "x").is_ok(), "{header}");
        }
    }

    #[test]
    fn a_wrong_attribute_is_refused() {
        let ten: serde_json::Map<_, _> = (0..11)
            .map(|n| {
                (
                    n.to_string(),
                    json!({"DataType": "String", "StringValue": "x"}),
                )
            })
            .collect();
        for (given, part) in [
            (json!({"a": {"DataType": "String"}}), "non-empty value"),
            (
                json!({"a": {"DataType": "String", "StringValue": ""}}),
                "non-empty value",
            ),
            (
                json!({"a": {"DataType": "String", "BinaryValue": "AA=="}}),
                "type 'String'",
            ),
            (
                json!({"a": {"DataType": "Number", "StringValue": "x"}}),
                "a number",
            ),
            (
                json!({"a": {"DataType": "Number", "StringValue": "inf"}}),
                "a number",
            ),
            (
                json!({"a": {"DataType": "Binary", "BinaryValue": "?"}}),
                "base64",
            ),
            (
                json!({"a": {"DataType": "Binary", "StringValue": "a"}}),
                "BinaryValue",
            ),
            (
                json!({"a": {"DataType": "Stringy", "StringValue": "a"}}),
                "type prefixes",
            ),
            (json!({"a": {"StringValue": "a"}}), "type prefixes"),
            (
                json!({"a": {"DataType": "String.\n", "StringValue": "a"}}),
                "visible ASCII",
            ),
            (
                json!({"a b": {"DataType": "String", "StringValue": "a"}}),
                "characters A-Z",
            ),
            (
                json!({"aws.x": {"DataType": "String", "StringValue": "a"}}),
                "Amazon.",
            ),
            (
                json!({"Lisa-Callback-Topic": {"DataType": "String", "StringValue": "a"}}),
                "only Lisa sets",
            ),
            (
                json!({"x.": {"DataType": "String", "StringValue": "a"}}),
                "a period",
            ),
            (
                json!({"a..b": {"DataType": "String", "StringValue": "a"}}),
                "two periods in sequence",
            ),
            (
                json!({"a": {"DataType": "String", "StringValue": "\u{1}"}}),
                "U+0001",
            ),
            (
                json!({"": {"DataType": "String", "StringValue": "a"}}),
                "characters A-Z",
            ),
            (serde_json::Value::Object(ten), "maximum [10]"),
        ] {
            let error = check(&read(given.clone())).unwrap_err();
            assert_eq!(error.kind, Kind::InvalidParameterValue);
            assert!(error.message.contains(part), "{given}: {}", error.message);
        }
        let long = read(json!({"a": {"DataType": "String", "StringValue": "ä".repeat(2000)}}));
        check(&long).unwrap();
        let error = to_headers(&long, &mut Headers::default()).unwrap_err();
        assert!(error.message.contains("4096"), "{}", error.message);
        let names = (0..10).map(|n| (format!("{n}{}", "l".repeat(250)), Attribute::text("x")));
        let mut names: Attributes = names.collect();
        names
            .values_mut()
            .for_each(|attribute| attribute.data_type = format!("String.{}", "t".repeat(240)));
        check(&names).unwrap();
        let error = to_headers(&names, &mut Headers::default()).unwrap_err();
        assert!(
            error.message.contains("too long together"),
            "{}",
            error.message
        );
    }

    #[test]
    fn an_index_that_another_client_wrote_does_no_harm() {
        let mut headers = Headers::default();
        for index in ["x", "{}", "[1]", r#"[["a","Binary"]]"#] {
            headers.insert(INDEX, index).unwrap();
            assert!(from_headers(&headers).is_empty(), "{index}");
        }
    }

    #[test]
    fn attributes_are_selected_by_name_or_beginning() {
        let all = || {
            read(json!({
                "foo.a": {"DataType": "String", "StringValue": "x"},
                "foo": {"DataType": "String", "StringValue": "x"},
                "bar": {"DataType": "String", "StringValue": "x"},
            }))
        };
        let select = |names: &[&str]| {
            let names: Vec<_> = names.iter().map(|&name| name.to_owned()).collect();
            select(all(), &names).into_keys().collect::<Vec<_>>()
        };
        assert!(select(&[]).is_empty());
        for everything in [["All"], [".*"]] {
            assert_eq!(select(&everything).len(), 3);
        }
        assert_eq!(select(&["foo.*", "nothing"]), ["foo", "foo.a"]);
        assert_eq!(select(&["bar"]), ["bar"]);
    }
}
