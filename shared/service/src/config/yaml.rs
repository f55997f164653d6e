//! The YAML format for figment, with a maintained parser.
//!
//! Stricter than YAML 1.1: a repeated key is an error, only `true` and `false` are booleans (`no` is a string), and
//! documents that expand without bound are refused. Anchors and merge keys work.

use figment::Error;
use figment::providers::Format;
use serde::de::DeserializeOwned;
use serde::de::value::MapDeserializer;
use serde_saphyr::{DuplicateKeyPolicy, UserMessageFormatter};

/// Reads YAML text or files.
#[derive(Debug)]
pub(super) struct Yaml;

impl Format for Yaml {
    type Error = Error;

    const NAME: &'static str = "YAML";

    fn from_str<T: DeserializeOwned>(text: &str) -> Result<T, Error> {
        let options = serde_saphyr::options! {
            duplicate_keys: DuplicateKeyPolicy::Error,
            strict_booleans: true,
            with_snippet: false,
        };
        let read = serde_saphyr::from_str_with_options::<Option<T>>(text, options);
        // A file with only comments is a null document: no settings, and not a mistake.
        match read.map_err(|error| error.render_with_formatter(&UserMessageFormatter))? {
            Some(document) => Ok(document),
            None => T::deserialize(MapDeserializer::new(std::iter::empty::<(String, String)>())),
        }
    }
}

#[cfg(test)]
mod tests {
    use figment::value::Dict;

    use super::*;

    fn parse(text: &str) -> Result<Dict, String> {
        Yaml::from_str(text).map_err(|error| error.to_string())
    }

    #[test]
    fn comments_alone_are_an_empty_document() {
        assert!(parse("# nothing\n").unwrap().is_empty());
        assert!(parse("").unwrap().is_empty());
    }

    #[test]
    fn a_repeated_key_is_an_error_with_line_and_column() {
        let error = parse("redis:\n  url: a\n  url: b\n").unwrap_err();
        assert!(
            error.contains("duplicate") && error.contains("line 3"),
            "{error}"
        );
    }

    #[test]
    fn an_unfolding_bomb_is_refused() {
        let mut text = String::from("a0: &a0 [x, x, x, x, x, x, x, x, x, x]\n");
        for level in 1..10 {
            let below = format!("*a{}, ", level - 1).repeat(10);
            text += &format!("a{level}: &a{level} [{below}]\n");
        }
        assert!(parse(&text).is_err());
    }

    #[test]
    fn no_is_a_text_and_true_a_boolean() {
        let dict = parse("a: no\nb: true\n").unwrap();
        assert_eq!(
            (dict["a"].as_str(), dict["b"].to_bool()),
            (Some("no"), Some(true))
        );
    }
}
