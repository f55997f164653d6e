//! Reads a table key by key, and goes on after a mistake, so that all are found.
//!
//! Each key that is read becomes a setting that `config show` prints; each key that nobody reads is a problem.

use std::cell::RefCell;
use std::ops::RangeInclusive;
use std::path::PathBuf;

use figment::value::{Dict, Empty, Num, Tag, Value};
use serde_json::Value as Json;

use super::layers::{Layers, SinkSecrets};
use super::leaf::{Leaf, kind};
use super::problem::{HIDDEN, Path, Problem};
use super::show::Setting;
use super::slip;

const DEFAULT: &str = "default";

/// What one load finds out: settings and problems.
pub(super) struct Findings {
    layers: Layers,
    pub(super) settings: RefCell<Vec<Setting>>,
    problems: RefCell<Vec<Problem>>,
    warnings: RefCell<Vec<Problem>>,
    sink_secrets: SinkSecrets,
}

impl Findings {
    pub(super) fn new(layers: Layers, sink_secrets: SinkSecrets) -> Self {
        Self {
            settings: RefCell::default(),
            problems: RefCell::default(),
            warnings: RefCell::new(layers.unused_variables()),
            layers,
            sink_secrets,
        }
    }

    /// Opens the outermost table.
    pub(super) fn root(&self) -> Table<'_> {
        Table::new(
            self,
            Path::default(),
            vec![(Path::default(), self.layers.values.clone())],
            DEFAULT.into(),
        )
    }

    /// Adds a problem once: topics inherit a mistake of the topic defaults, which is still one mistake.
    fn add(&self, problem: Problem) {
        let mut problems = self.problems.borrow_mut();
        if !problems.contains(&problem) {
            problems.push(problem);
        }
    }

    /// Gives the settings, the problems, and the warnings.
    pub(super) fn finish(self) -> (Vec<Setting>, Vec<Problem>, Vec<Problem>) {
        (
            self.settings.into_inner(),
            self.problems.into_inner(),
            self.warnings.into_inner(),
        )
    }

    fn source(&self, value: &Value) -> String {
        self.layers.source(value.tag())
    }

    fn is_text_only(&self, value: &Value) -> bool {
        self.layers.is_text_only(value.tag())
    }
}

/// One table, with the tables that it inherits from behind it.
pub(super) struct Table<'a> {
    findings: &'a Findings,
    path: Path,
    /// Its own values first, then those it inherits.
    layers: Vec<(Path, Dict)>,
    /// Where the table itself stands.
    origin: String,
    known: Vec<&'static str>,
}

impl<'a> Table<'a> {
    fn new(findings: &'a Findings, path: Path, layers: Vec<(Path, Dict)>, origin: String) -> Self {
        Self {
            findings,
            path,
            layers,
            origin,
            known: Vec::new(),
        }
    }

    /// Gives the place of a key.
    pub(super) fn path(&self, key: &str) -> Path {
        self.path.key(key)
    }

    /// Whether the table itself has this key.
    pub(super) fn has(&self, key: &str) -> bool {
        self.layers
            .first()
            .is_some_and(|(_, values)| present(values, key).is_some())
    }

    /// Reads an optional key.
    pub(super) fn optional<T: Leaf>(&mut self, key: &'static str) -> Option<T> {
        self.know(key);
        let (path, value) = self.find(key)?;
        match T::read(value, self.findings.is_text_only(value)) {
            Ok(leaf) => {
                self.record(key, leaf.show(), self.findings.source(value));
                Some(leaf)
            }
            Err(message) => {
                let shown = if T::SECRET {
                    HIDDEN.into()
                } else {
                    path.render(value)
                };
                let source = self.findings.source(value);
                self.findings.add(Problem {
                    path: path.to_string(),
                    value: shown,
                    message,
                    source,
                });
                None
            }
        }
    }

    /// Reads a key that has a default.
    pub(super) fn or<T: Leaf>(&mut self, key: &'static str, default: T) -> T {
        if self.find(key).is_none() {
            self.record(key, default.show(), DEFAULT.into());
        }
        self.optional(key).unwrap_or(default)
    }

    /// Reads a key that has a default and bounds.
    pub(super) fn bounded<T>(
        &mut self,
        key: &'static str,
        default: T,
        bounds: RangeInclusive<T>,
    ) -> T
    where
        T: Leaf + PartialOrd,
    {
        let value = self.or(key, default);
        self.bound(key, &value, &bounds);
        value
    }

    /// Reads an optional key that has bounds.
    pub(super) fn optional_bounded<T>(
        &mut self,
        key: &'static str,
        bounds: RangeInclusive<T>,
    ) -> Option<T>
    where
        T: Leaf + PartialOrd,
    {
        let value = self.optional(key)?;
        self.bound(key, &value, &bounds);
        Some(value)
    }

    fn bound<T: Leaf + PartialOrd>(&self, key: &str, value: &T, bounds: &RangeInclusive<T>) {
        if !bounds.contains(value) {
            let plain = |bound: &T| bound.show().to_string().replace('"', "");
            let message = format!(
                "allowed is {} to {}",
                plain(bounds.start()),
                plain(bounds.end())
            );
            self.problem(key, message);
        }
    }

    /// Reads a key that must be there.
    pub(super) fn required<T: Leaf>(&mut self, key: &'static str, what: &str) -> Option<T> {
        if self.find(key).is_none() {
            self.problem(key, format!("missing: {what}"));
        }
        self.optional(key)
    }

    /// Adds a problem with a key, wherever its value comes from. `key` may lead into tables below (`retry.max`).
    pub(super) fn problem(&self, key: &str, message: impl Into<String>) {
        self.problem_with(key, message, "");
    }

    /// Adds a warning about a key: the configuration can be used all the same.
    pub(super) fn warning(&self, key: &str, message: impl Into<String>) {
        let warning = self.about(key, message.into(), "");
        self.findings.warnings.borrow_mut().push(warning);
    }

    /// Adds a problem with a key; `default` is the value shown where the key is set nowhere.
    pub(super) fn problem_with(&self, key: &str, message: impl Into<String>, default: &str) {
        self.findings.add(self.about(key, message.into(), default));
    }

    fn about(&self, key: &str, message: String, default: &str) -> Problem {
        let mut path = self.path.clone();
        for part in key.split('.') {
            path = path.key(part);
        }
        let (path, value, source) = match self.find(key) {
            Some((path, value)) => {
                let shown = path.render(value);
                (path, shown, self.findings.source(value))
            }
            None if default.is_empty() => (path, String::new(), self.origin.clone()),
            None => (path, default.into(), DEFAULT.into()),
        };
        Problem {
            path: path.to_string(),
            value,
            message,
            source,
        }
    }

    /// What becomes of the secret files of sinks.
    pub(super) fn sink_secrets(&self) -> SinkSecrets {
        self.findings.sink_secrets
    }

    /// Reads the path of a file. A relative one starts at the folder of the configuration file that names it; one from the
    /// environment or the command line at the working directory.
    pub(super) fn file(&mut self, key: &'static str) -> Option<PathBuf> {
        let path: String = self.optional(key)?;
        let folder = self
            .find(key)
            .and_then(|(_, value)| self.findings.layers.folder(value.tag()));
        Some(folder.unwrap_or_default().join(path))
    }

    /// Opens a table below; one that is not there is empty.
    pub(super) fn table(&mut self, key: &'static str) -> Table<'a> {
        self.know(key);
        let path = self.path(key);
        let layers = self
            .layers
            .iter()
            .enumerate()
            .map(|(index, (place, values))| {
                let place = place.key(key);
                let values =
                    present(values, key).and_then(|value| self.as_table(value, &place, index == 0));
                (place, values.unwrap_or_default())
            })
            .collect();
        let origin = match self.find(key) {
            Some((_, value)) => self.findings.source(value),
            None => self.origin.clone(),
        };
        Table::new(self.findings, path, layers, origin)
    }

    /// Opens a table below that must be there.
    pub(super) fn required_table(&mut self, key: &'static str, what: &str) -> Option<Table<'a>> {
        if self.find(key).is_none() {
            self.know(key);
            self.problem(key, format!("missing: {what}"));
            return None;
        }
        Some(self.table(key))
    }

    /// Adds a problem with the name of the table itself.
    pub(super) fn name_problem(&self, message: &str) {
        let source = self.origin.clone();
        let message = message.into();
        self.findings.add(Problem {
            path: self.path.to_string(),
            value: String::new(),
            message,
            source,
        });
    }

    /// Lets the keys that this table does not have come from another one.
    pub(super) fn inherit(mut self, other: &Table<'_>) -> Self {
        self.layers.extend(other.layers.iter().cloned());
        self
    }

    /// Opens all tables of a table whose keys are names.
    pub(super) fn entries(&mut self, key: &'static str) -> Vec<(String, Table<'a>)> {
        let tables = self.table(key);
        let (place, values) = tables.layers.into_iter().next().unwrap_or_default();
        let open = |(name, value): (String, Value)| {
            let path = place.key(&name);
            let origin = self.findings.source(&value);
            let values = match value {
                Value::Empty(..) => Dict::new(),
                value => self.as_table(&value, &path, true)?,
            };
            let layers = vec![(path.clone(), values)];
            Some((name, Table::new(self.findings, path, layers, origin)))
        };
        values.into_iter().filter_map(open).collect()
    }

    /// Reads a table whose keys are names, and whose values are texts.
    pub(super) fn texts(&mut self, key: &'static str) -> Vec<(String, String)> {
        let table = self.table(key);
        let (place, values) = table.layers.first().cloned().unwrap_or_default();
        let mut texts = Vec::new();
        for (name, value) in values {
            let path = place.key(&name);
            let secretive = path.is_secretive();
            let source = self.findings.source(&value);
            match String::read(&value, self.findings.is_text_only(&value)) {
                Ok(text) => {
                    let shown = if secretive { HIDDEN } else { &text };
                    table.record(&name, shown.into(), source);
                    texts.push((name, text));
                }
                Err(message) => self.findings.add(Problem {
                    path: path.to_string(),
                    value: path.render(&value),
                    message,
                    source,
                }),
            }
        }
        texts
    }

    /// Opens all tables of a list.
    pub(super) fn rows(&mut self, key: &'static str) -> Vec<Table<'a>> {
        self.know(key);
        let Some((place, value)) = self.find(key) else {
            return Vec::new();
        };
        let Some(items) = self.as_list(value) else {
            self.problem(
                key,
                format!("expected a list of tables, found {}", kind(value)),
            );
            return Vec::new();
        };
        let open = |(index, value): (usize, Value)| {
            let path = place.item(index);
            let values = self.as_table(&value, &path, true)?;
            let layers = vec![(path.clone(), values)];
            let origin = self.findings.source(&value);
            Some(Table::new(self.findings, path, layers, origin))
        };
        items.into_iter().enumerate().filter_map(open).collect()
    }

    /// Reports each key of the table itself that was not read.
    pub(super) fn finish(self) {
        let Some((place, values)) = self.layers.first() else {
            return;
        };
        for (key, value) in values {
            if self.known.contains(&key.as_str()) {
                continue;
            }
            let path = place.key(key);
            let shown = path.render(value);
            let known = self.known.join(", ");
            let message = match slip::meant(key, self.known.iter().copied()) {
                Some(meant) => format!("unknown key, did you mean {meant}? Known here: {known}"),
                None => format!("unknown key, known here: {known}"),
            };
            let source = self.findings.source(value);
            self.findings.add(Problem {
                path: path.to_string(),
                value: shown,
                message,
                source,
            });
        }
    }

    fn find(&self, key: &str) -> Option<(Path, &Value)> {
        self.layers.iter().find_map(|(place, values)| {
            let mut keys = key.split('.');
            let first = keys.next()?;
            let mut found = (place.key(first), present(values, first)?);
            for key in keys {
                let Value::Dict(_, values) = found.1 else {
                    return None;
                };
                found = (found.0.key(key), present(values, key)?);
            }
            Some(found)
        })
    }

    fn record(&self, key: &str, value: Json, source: String) {
        let path = self.path(key);
        let mut settings = self.findings.settings.borrow_mut();
        settings.push(Setting {
            path,
            value,
            source,
        });
    }

    fn know(&mut self, key: &'static str) {
        if !self.known.contains(&key) {
            self.known.push(key);
        }
    }

    fn as_table(&self, value: &Value, path: &Path, own: bool) -> Option<Dict> {
        let read = match value {
            Value::Dict(_, values) => return Some(values.clone()),
            Value::String(tag, text) if self.findings.is_text_only(value) => from_json(text, *tag),
            _ => None,
        };
        if let Some(Value::Dict(_, values)) = read {
            return Some(values);
        }
        // What is inherited was reported where it stands.
        if own {
            let shown = path.render(value);
            let message = format!("expected a table, found {}", kind(value));
            let source = self.findings.source(value);
            self.findings.add(Problem {
                path: path.to_string(),
                value: shown,
                message,
                source,
            });
        }
        None
    }

    /// Takes a list, and from the environment also JSON or keys that are numbers (`LISA_…__0__TOPIC`).
    fn as_list(&self, value: &Value) -> Option<Vec<Value>> {
        match value {
            Value::Array(_, items) => Some(items.clone()),
            Value::String(tag, text) if self.findings.is_text_only(value) => {
                match from_json(text, *tag)? {
                    Value::Array(_, items) => Some(items),
                    _ => None,
                }
            }
            Value::Dict(_, values) if self.findings.is_text_only(value) => {
                let numbered = values
                    .iter()
                    .map(|(key, value)| Some((key.parse().ok()?, value.clone())));
                let mut numbered: Vec<(usize, Value)> = numbered.collect::<Option<_>>()?;
                numbered.sort_by_key(|(number, _)| *number);
                Some(numbered.into_iter().map(|(_, value)| value).collect())
            }
            _ => None,
        }
    }
}

/// A key without a value (`jobs:` in YAML with nothing below) is not set.
fn present<'v>(values: &'v Dict, key: &str) -> Option<&'v Value> {
    values
        .get(key)
        .filter(|value| !matches!(value, Value::Empty(..)))
}

fn from_json(text: &str, tag: Tag) -> Option<Value> {
    let json = serde_json::from_str(text).ok()?;
    Some(tagged(json, tag))
}

fn tagged(json: Json, tag: Tag) -> Value {
    match json {
        Json::Null => Value::Empty(tag, Empty::Unit),
        Json::Bool(bool) => Value::Bool(tag, bool),
        Json::String(text) => Value::String(tag, text),
        Json::Number(number) => match (number.as_i64(), number.as_f64()) {
            (Some(number), _) => Value::Num(tag, Num::I64(number)),
            (None, number) => Value::Num(tag, Num::F64(number.unwrap_or(f64::NAN))),
        },
        Json::Array(items) => Value::Array(
            tag,
            items.into_iter().map(|item| tagged(item, tag)).collect(),
        ),
        Json::Object(entries) => Value::Dict(
            tag,
            entries
                .into_iter()
                .map(|(key, value)| (key, tagged(value, tag)))
                .collect(),
        ),
    }
}
