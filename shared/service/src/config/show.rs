//! Prints the effective configuration with the source of each value, secrets hidden.
//!
//! Only prints what was recorded while reading; `***` replaces every secret.

use std::collections::BTreeSet;
use std::fmt::Write as _;
use std::path::PathBuf;
use std::sync::Arc;

use serde_json::{Map, Value as Json, json};

use super::Config;
use super::layers::{Layers, Secrets};
use super::problem::{Path, Problem, Step, quoted_key};

/// A checked configuration together with the source of each of its values.
#[derive(Clone, Debug)]
pub struct Loaded {
    /// The configuration.
    pub config: Config,
    /// The file that was read.
    pub file: Option<PathBuf>,
    /// Probable mistakes; the configuration can be used nevertheless.
    pub warnings: Vec<Problem>,
    /// The files that the configuration names, such as those of passwords.
    pub files: BTreeSet<PathBuf>,
    pub(super) settings: Vec<Setting>,
    pub(super) layers: Arc<Layers>,
    pub(super) secrets: Secrets,
}

/// The value of one key in effect.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Setting {
    pub(super) path: Path,
    pub(super) value: Json,
    pub(super) source: String,
}

/// A setting with the last part of its path.
type Entry<'a> = (&'a str, &'a Setting);

impl Loaded {
    /// Prints the effective configuration as TOML, with the source of each value as a comment after it.
    pub fn to_toml(&self) -> String {
        let mut tables: Vec<(&[Step], Vec<Entry<'_>>)> = Vec::new();
        for setting in &self.settings {
            let Some((Step::Key(key), table)) = setting.path.0.split_last() else {
                continue;
            };
            match tables.iter_mut().find(|(path, _)| *path == table) {
                Some((_, entries)) => entries.push((key, setting)),
                None => tables.push((table, vec![(key, setting)])),
            }
        }
        let mut text = String::new();
        for (path, entries) in tables {
            if !path.is_empty() {
                let _ = writeln!(text, "\n{}", header(path));
            }
            for (key, Setting { value, source, .. }) in entries {
                // The JSON of a list, string, number or boolean is valid TOML.
                let source = source.replace(char::is_control, " ");
                let _ = writeln!(text, "{} = {value}  # {source}", quoted_key(key));
            }
        }
        text
    }

    /// Returns the keys that another configuration has with other values, or does not have, and those that only it has. Secrets
    /// look all the same here.
    pub fn changes(&self, other: &Self) -> Vec<String> {
        let is_new = |setting: &&Setting, others: &[Setting]| {
            let is_same =
                |other: &Setting| other.path == setting.path && other.value == setting.value;
            !others.iter().any(is_same)
        };
        let gone = self
            .settings
            .iter()
            .filter(|one| is_new(one, &other.settings));
        let new = other
            .settings
            .iter()
            .filter(|one| is_new(one, &self.settings));
        let keys: BTreeSet<String> = gone.chain(new).map(|one| one.path.to_string()).collect();
        keys.into_iter().collect()
    }

    /// Prints the effective configuration as one JSON object: key path → `{"value": …, "source": …}`.
    pub fn to_json(&self) -> String {
        let entry = |Setting {
                         path,
                         value,
                         source,
                     }: &Setting| {
            (
                path.to_string(),
                json!({ "value": value, "source": source }),
            )
        };
        let all: Map<_, _> = self.settings.iter().map(entry).collect();
        format!("{:#}", Json::Object(all))
    }
}

/// Formats `[table]`, or `[[table]]` for a new item of a list.
fn header(path: &[Step]) -> String {
    let keys = path.iter().filter_map(|step| match step {
        Step::Key(key) => Some(quoted_key(key)),
        Step::Item(_) => None,
    });
    let keys = keys.collect::<Vec<_>>().join(".");
    match path.last() {
        Some(Step::Item(_)) => format!("[[{keys}]]"),
        _ => format!("[{keys}]"),
    }
}
