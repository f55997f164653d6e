//! Texts with placeholders, such as `due.{topic}`: parsed when the configuration is read, filled in for each message.

use std::borrow::Cow;
use std::fmt;

use lisa_core::fields::{Given, Value};
use serde_json::Value as Json;

/// The placeholders of a routing key, a subject, a topic, a record key or a stream.
const OF_DELIVERY: &[&str] = &["topic", "group", "id", "header:NAME"];

/// A text with placeholders: a name in braces, or `header:` and the name of a header. `{{` and `}}` stand for braces.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Template {
    text: String,
    parts: Vec<Part>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum Part {
    Literal(String),
    /// One of the names that the template may use.
    Name(&'static str),
    /// The value of a header, whose name is in lower case.
    Header(String),
}

impl Template {
    /// Parses a text whose placeholders are some of `names`. The name `header:NAME` stands for all headers.
    ///
    /// # Errors
    /// Returns the problem. For an unknown placeholder, it lists those that are allowed.
    pub fn parse(text: &str, names: &[&'static str]) -> Result<Self, String> {
        let (mut parts, mut literal, mut rest) = (Vec::new(), String::new(), text);
        while let Some(at) = rest.find(['{', '}']) {
            literal.push_str(&rest[..at]);
            let (brace, after) = rest[at..].split_at(1);
            if let Some(after) = after.strip_prefix(brace) {
                literal.push_str(brace);
                rest = after;
                continue;
            }
            let placeholder = (brace == "{").then(|| after.split_once('}')).flatten();
            let Some((name, after)) = placeholder else {
                return Err(format!(
                    "unmatched {brace} in {text:?}; write {brace}{brace} for a literal {brace}"
                ));
            };
            let part = match name.strip_prefix("header:") {
                Some(header) if names.contains(&"header:NAME") && !header.is_empty() => {
                    Part::Header(header.to_ascii_lowercase())
                }
                _ => match names.iter().find(|known| **known == name) {
                    Some(&known) if known != "header:NAME" => Part::Name(known),
                    _ => {
                        let allowed: Vec<_> =
                            names.iter().map(|name| format!("{{{name}}}")).collect();
                        let allowed = allowed.join(", ");
                        return Err(format!(
                            "unknown placeholder {{{name}}}; must be one of {allowed}"
                        ));
                    }
                },
            };
            if !literal.is_empty() {
                parts.push(Part::Literal(std::mem::take(&mut literal)));
            }
            parts.push(part);
            rest = after;
        }
        literal.push_str(rest);
        if !literal.is_empty() {
            parts.push(Part::Literal(literal));
        }
        let text = text.to_owned();
        Ok(Self { text, parts })
    }

    /// Parses a text that is part of the program, with the placeholders of a delivery.
    ///
    /// # Panics
    /// If the text is malformed.
    #[cfg(feature = "process")]
    pub(crate) fn constant(text: &str) -> Self {
        Self::parse(text, OF_DELIVERY).expect("a valid template")
    }

    /// Fills in the placeholders. `value` returns the value of a name, and `header` that of a header.
    ///
    /// # Errors
    /// Returns the first placeholder that has no value.
    pub fn render<'a>(
        &'a self,
        value: impl Fn(&'static str) -> Option<Cow<'a, str>>,
        header: impl Fn(&str) -> Option<&'a str>,
    ) -> Result<Cow<'a, str>, MissingValue> {
        let text = |part: &'a Part| match part {
            Part::Literal(text) => Ok(Cow::Borrowed(text.as_str())),
            Part::Name(name) => value(name).ok_or_else(|| MissingValue((*name).to_owned())),
            Part::Header(name) => match header(name) {
                Some(text) => Ok(Cow::Borrowed(text)),
                None => Err(MissingValue(format!("header:{name}"))),
            },
        };
        match self.parts.as_slice() {
            [] => Ok(Cow::Borrowed("")),
            [part] => text(part),
            parts => parts
                .iter()
                .map(text)
                .collect::<Result<String, _>>()
                .map(Cow::Owned),
        }
    }

    /// Returns the text if it has no placeholders.
    pub fn fixed(&self) -> Option<&str> {
        match self.parts.as_slice() {
            [] => Some(""),
            [Part::Literal(text)] => Some(text),
            _ => None,
        }
    }

    /// Returns the literal text before the first placeholder.
    pub fn prefix(&self) -> &str {
        match self.parts.first() {
            Some(Part::Literal(text)) => text,
            _ => "",
        }
    }
}

/// Writes the text as it was parsed.
impl fmt::Display for Template {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

/// Reads it with the placeholders of a delivery.
impl Value for Template {
    const KIND: &'static str = "string";

    fn allowed() -> String {
        let names = OF_DELIVERY.iter().map(|name| format!("`{{{name}}}`"));
        format!("with {}", names.collect::<Vec<_>>().join(", "))
    }

    fn read(given: Given<'_>) -> Result<Self, String> {
        Self::parse(given.text()?, OF_DELIVERY)
    }

    fn show(&self) -> Json {
        self.text.as_str().into()
    }
}

/// A placeholder that has no value for a message.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("no value for {{{0}}}")]
pub struct MissingValue(String);

#[cfg(test)]
mod tests {
    use super::*;

    const NAMES: &[&str] = &["topic", "id", "header:NAME"];

    fn render(text: &str) -> Result<String, String> {
        let template = Template::parse(text, NAMES)?;
        let value = |name| (name == "topic").then_some(Cow::Borrowed("orders"));
        let header = |name: &str| (name == "x-delay").then_some("5000");
        let rendered = template.render(value, header);
        rendered
            .map(Cow::into_owned)
            .map_err(|error| error.to_string())
    }

    #[test]
    fn placeholders_are_filled_in() {
        for (text, rendered) in [
            ("", ""),
            ("due", "due"),
            ("{topic}", "orders"),
            ("due.{topic}.{topic}", "due.orders.orders"),
            ("{header:X-Delay}ms", "5000ms"),
            ("{{{topic}}}", "{orders}"),
            ("a}}b{{", "a}b{"),
        ] {
            assert_eq!(render(text).as_deref(), Ok(rendered), "{text}");
        }
        assert_eq!(render("{id}"), Err("no value for {id}".to_owned()));
        assert_eq!(
            render("{header:x}"),
            Err("no value for {header:x}".to_owned())
        );
    }

    #[test]
    fn an_unknown_placeholder_is_refused_with_those_allowed() {
        for text in [
            "{group}",
            "{}",
            "{header:}",
            "{header:NAME",
            "{topic",
            "topic}",
        ] {
            assert!(Template::parse(text, NAMES).is_err(), "{text}");
        }
        assert_eq!(
            Template::parse("{group}", NAMES).unwrap_err(),
            "unknown placeholder {group}; must be one of {topic}, {id}, {header:NAME}"
        );
        assert!(Template::parse("{header:x}", &["topic"]).is_err());
    }

    #[test]
    fn a_text_without_placeholders_is_fixed() {
        let parse = |text| Template::parse(text, NAMES).unwrap();
        assert_eq!(parse("a{{b").fixed(), Some("a{b"));
        assert_eq!(parse("a{topic}").fixed(), None);
        assert_eq!(
            (parse("a{topic}").prefix(), parse("{topic}a").prefix()),
            ("a", "")
        );
    }
}
