//! The problems of a configuration, each with its key path, value and source.
//!
//! Only describes them; [`super::table`] and [`super::resolve`] find them.

use std::fmt;

use axum::http::Uri;
use figment::value::Value;
use serde_json::Value as Json;

use lisa_core::time::shorten;

/// The text that replaces a secret.
pub(super) const HIDDEN: &str = "***";
/// Parts of key names that may mean a secret, even if the name is misspelled.
const SECRETIVE: [&str; 9] = [
    "pas", "pw", "secret", "token", "sha256", "key", "cred", "auth", "head",
];

/// All problems of a configuration.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub struct ConfigError {
    /// The problems in the order in which they were found; at least one.
    pub problems: Vec<Problem>,
}

/// Prints one line for each problem.
impl fmt::Display for ConfigError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (index, problem) in self.problems.iter().enumerate() {
            if index > 0 {
                f.write_str("\n")?;
            }
            problem.fmt(f)?;
        }
        Ok(())
    }
}

/// One problem of a configuration.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Problem {
    /// The key, e.g. `topics.orders.lease` or `consumer.subscriptions[0].group`; empty if a whole source is unusable.
    pub path: String,
    /// The value as written, with secrets hidden; empty if there is none.
    pub value: String,
    /// The mistake, and what is allowed.
    pub message: String,
    /// The path of the file, `environment variable NAME`, `command line` or `default`.
    pub source: String,
}

impl fmt::Display for Problem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            path,
            value,
            message,
            source,
        } = self;
        match (path.is_empty(), value.is_empty()) {
            (true, _) => write!(f, "{source}: {message}"),
            (false, true) => write!(f, "{path}: {message} ({source})"),
            (false, false) => write!(f, "{path} = {value}: {message} ({source})"),
        }
    }
}

/// The path of a key: the tables, with an index for each list, and the key.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Path(pub(super) Vec<Step>);

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Step {
    Key(String),
    Item(usize),
}

impl Path {
    pub(super) fn key(&self, key: &str) -> Self {
        self.with(Step::Key(key.into()))
    }

    pub(super) fn item(&self, index: usize) -> Self {
        self.with(Step::Item(index))
    }

    fn with(&self, step: Step) -> Self {
        let mut steps = self.0.clone();
        steps.push(step);
        Self(steps)
    }

    /// Returns true if the key may mean a secret. The tables around it do not count, because topics can have any name.
    pub(super) fn is_secretive(&self) -> bool {
        let below_auth = self.0.first() == Some(&Step::Key("auth".into()));
        let last = self.0.iter().rev().find_map(|step| match step {
            Step::Key(key) => Some(key),
            Step::Item(_) => None,
        });
        // The path of a file is not a secret, and shows the mistake.
        let last = last.filter(|key| !key.ends_with("_file"));
        let may_be_secret = |key: &String| is_secretive(&key.to_ascii_lowercase());
        below_auth || last.is_some_and(may_be_secret)
    }

    /// Formats the value of this key for a problem: one line, short, with secrets hidden.
    pub(super) fn render(&self, value: &Value) -> String {
        let is_address = self.0.last() == Some(&Step::Key("url".into()));
        match value {
            _ if self.is_secretive() => HIDDEN.into(),
            // Not an address: any part may be the secret.
            Value::String(_, text) if is_address && !text.contains("://") => HIDDEN.into(),
            _ => render(value),
        }
    }
}

impl fmt::Display for Path {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (index, step) in self.0.iter().enumerate() {
            match step {
                Step::Item(item) => write!(f, "[{item}]")?,
                Step::Key(key) if index == 0 => f.write_str(&quoted_key(key))?,
                Step::Key(key) => write!(f, ".{}", quoted_key(key))?,
            }
        }
        Ok(())
    }
}

/// Formats a key as in TOML: in quotes if it contains a dot or another special character.
pub(super) fn quoted_key(key: &str) -> String {
    let bare = |byte: u8| byte.is_ascii_alphanumeric() || b"_-".contains(&byte);
    if !key.is_empty() && key.bytes().all(bare) {
        key.into()
    } else {
        Json::from(key).to_string()
    }
}

/// Formats a value for a problem: one line, short, with the secrets of addresses hidden.
fn render(value: &Value) -> String {
    match value {
        Value::String(_, text) if has_secretive_key(text) => HIDDEN.into(),
        Value::String(_, text) => Json::from(shorten(&hide_secrets(text))).to_string(),
        Value::Char(_, char) => Json::from(char.to_string()).to_string(),
        Value::Bool(_, bool) => bool.to_string(),
        Value::Num(_, num) => match (num.to_i128(), num.to_u128(), num.to_f64()) {
            (Some(number), ..) => number.to_string(),
            (_, Some(number), _) => number.to_string(),
            (_, _, number) => format!("{:?}", number.unwrap_or(f64::NAN)),
        },
        Value::Empty(..) => "null".into(),
        Value::Array(_, items) => {
            let items: Vec<_> = items.iter().map(render).collect();
            shorten(&format!("[{}]", items.join(", ")))
        }
        Value::Dict(_, entries) => {
            let entries: Vec<_> = entries
                .iter()
                .map(|(key, value)| {
                    let value = Path::default().key(key).render(value);
                    format!("{} = {value}", quoted_key(key))
                })
                .collect();
            shorten(&format!("{{ {} }}", entries.join(", ")))
        }
    }
}

fn is_secretive(text: &str) -> bool {
    SECRETIVE.iter().any(|part| text.contains(part))
}

/// Returns true for a table or a list as text, as an environment variable may have it, in which a key may mean a secret.
fn has_secretive_key(text: &str) -> bool {
    text.trim_start().starts_with(['{', '[']) && is_secretive(&text.to_ascii_lowercase())
}

/// Hides the secrets of an address. For Redis, hides everything before the last `@`, and options with a password. For a
/// webhook or anything else, hides everything but the scheme and the host: the path of a webhook is often its only secret.
fn hide_secrets(text: &str) -> String {
    let Some((scheme, rest)) = text.split_once("://") else {
        return text.into();
    };
    // An address of Redis. Any other is treated as a webhook's.
    if scheme.starts_with("redis") || scheme.starts_with("unix") {
        let rest = match rest.rsplit_once('@') {
            Some((_, address)) => format!("***@{address}"),
            None => rest.into(),
        };
        return match rest.split_once('?') {
            Some((address, options)) if options.contains("pass") => {
                format!("{scheme}://{address}?***")
            }
            _ => format!("{scheme}://{rest}"),
        };
    }
    let host = rest
        .split(['/', '?', '#', '\\', ' '])
        .next()
        .unwrap_or_default();
    let hidden = &rest[host.len()..];
    match (rest.contains('@'), hidden) {
        (true, _) => format!("{scheme}://***"),
        (false, "" | "/") => text.into(),
        (false, _) => format!("{scheme}://{host}/***"),
    }
}

/// Formats the address of a webhook without its path and query. Hides a text that is not an address completely.
pub(super) fn hide_path(text: &str) -> String {
    let is_address = text.starts_with("http://") || text.starts_with("https://");
    if is_address && text.parse::<Uri>().is_ok() {
        hide_secrets(text)
    } else {
        HIDDEN.into()
    }
}

/// Formats the URL of a server without its password and its query.
pub(super) fn hide_login(text: &str) -> String {
    let Ok(mut url) = url::Url::parse(text) else {
        return HIDDEN.into();
    };
    if url.cannot_be_a_base() {
        return HIDDEN.into();
    }
    if url.password().is_some() {
        let _ = url.set_password(Some("***"));
    }
    if url.query().is_some() {
        url.set_query(Some("***"));
    }
    url.into()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_key_with_a_dot_is_quoted_in_a_path() {
        let path = Path::default()
            .key("topics")
            .key("a.b")
            .key("groups")
            .item(1);
        assert_eq!(path.to_string(), "topics.\"a.b\".groups[1]");
    }

    #[test]
    fn an_address_that_is_none_is_hidden_whole() {
        let url = Path::default().key("sink").key("url");
        for given in ["hooks.example.com/services/x", "ann:p@ss@h:6379"] {
            assert_eq!(url.render(&Value::from(given)), HIDDEN);
            assert_eq!(hide_path(given), HIDDEN);
        }
        assert_eq!(hide_path("https://h h/x"), HIDDEN);
        assert_eq!(hide_path("ftp://h/x"), HIDDEN);
        assert_eq!(hide_path("https://h/x"), "https://h/***");
        let row = Value::from(figment::util::map!["url" => "h/x"]);
        assert_eq!(render(&row), "{ url = *** }");
    }

    #[test]
    fn a_table_as_text_is_hidden_if_it_may_have_a_secret() {
        let sink = Path::default().key("sink");
        for text in [
            r#"{"secret":"whsec_x""#,
            r#" [{"sink":{"secret":["whsec_x"]}}"#,
            r#"{"authorization":"x""#,
        ] {
            assert_eq!(sink.render(&Value::from(text)), HIDDEN);
        }
        let shown = r#""{\"type\":\"stdout\"""#;
        assert_eq!(sink.render(&Value::from(r#"{"type":"stdout""#)), shown);
    }

    #[test]
    fn a_shown_value_hides_the_secrets_of_an_address() {
        for (given, shown) in [
            ("redis://ann:p@ss@h:1/2", "\"redis://***@h:1/2\""),
            ("unix:///s?db=1&pass=x", "\"unix:///s?***\""),
            ("redis://h/0", "\"redis://h/0\""),
            ("https://h:1/hook?token=x", "\"https://h:1/***\""),
            ("https://h/services/T0/B0/x", "\"https://h/***\""),
            ("https://h?x", "\"https://h/***\""),
            ("https://h#x", "\"https://h/***\""),
            ("https://h/", "\"https://h/\""),
            ("https://ann:p/ss@h/", "\"https://***\""),
            ("https://h/p@ss", "\"https://***\""),
            ("[{url = 'https://h/x'}]", "\"[{url = 'https://h/***\""),
            ("a\nb", "\"a\\nb\""),
        ] {
            assert_eq!(render(&Value::from(given)), shown);
        }
    }
}
