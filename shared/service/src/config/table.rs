//! Reads a table key by key, and continues after a mistake, so that all mistakes are found.
//!
//! Each key that is read becomes a setting that `config show` prints. Each key that nothing reads is a problem.

use std::path::PathBuf;

use figment::value::{Dict, Value as Merged};
use serde_json::{Value as Json, json};

use super::findings::{Described, Findings, Variant};
use super::layers::{Secrets, SinkSecrets};
use super::merged::{from_json, kind, present};
use super::problem::{HIDDEN, Path, Problem};
use super::show::Setting;
use lisa_core::fields::{Description, Field, Fields, Limits, Reader, TableReader, Value, refusal};
use lisa_core::misspelling;

pub(super) const DEFAULT: &str = "default";
/// The text that unsets a value.
pub(crate) const NONE: &str = "none";

/// One table, and the tables that it inherits from.
pub(crate) struct Table<'a> {
    /// True if its values may be inherited, so that `none` unsets one.
    inherits: bool,
    /// The handling of the secret files of this table.
    secrets: SinkSecrets,
    findings: &'a Findings,
    path: Path,
    /// Its own values, then the inherited ones.
    layers: Vec<(Path, Dict)>,
    /// The source of the table itself.
    origin: String,
    known: Vec<&'static str>,
    variant: Option<Variant>,
}

impl<'a> Table<'a> {
    pub(super) fn new(
        findings: &'a Findings,
        path: Path,
        layers: Vec<(Path, Dict)>,
        origin: String,
    ) -> Self {
        Self {
            inherits: true,
            secrets: findings.secrets.sinks,
            findings,
            path,
            layers,
            origin,
            known: Vec::new(),
            variant: None,
        }
    }

    /// Returns the path of a key.
    pub(super) fn path(&self, key: &str) -> Path {
        self.path.key(key)
    }

    /// Returns true if the table itself has this key.
    pub(crate) fn has(&self, key: &str) -> bool {
        self.layers
            .first()
            .is_some_and(|(_, values)| present(values, key).is_some())
    }

    /// Reads an optional key.
    pub(crate) fn optional<T: Value>(
        &mut self,
        key: &'static str,
        meaning: &'static str,
    ) -> Option<T> {
        self.describe(|| Description::optional::<T>(key, meaning));
        self.given(key)
    }

    /// Reads a required key.
    pub(crate) fn required<T: Value>(
        &mut self,
        key: &'static str,
        meaning: &'static str,
    ) -> Option<T> {
        self.describe(|| Description::required::<T>(key, meaning));
        if self.find(key).is_none() {
            self.reject(key, format!("missing: {}", as_clause(meaning)));
        }
        self.given(key)
    }

    /// Reads the key on which the other keys depend. The keys that are read from now on are those of its value.
    pub(crate) fn variant<T: Value + Copy>(
        &mut self,
        key: &'static str,
        meaning: &'static str,
        word: fn(T) -> &'static str,
    ) -> Option<T> {
        let read = self.required(key, meaning)?;
        self.variant = Some((key, word(read)));
        Some(read)
    }

    fn given<T: Value>(&mut self, key: &'static str) -> Option<T> {
        self.know(key);
        let (path, value) = self.find(key)?;
        let source = self.findings.source(value);
        match self.findings.read::<T>(value, self.inherits) {
            Ok(read) => {
                self.record(key, read.show(), source);
                Some(read)
            }
            Err(message) => {
                let shown = if T::SECRET {
                    HIDDEN.into()
                } else {
                    path.render(value)
                };
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

    fn describe(&self, description: impl FnOnce() -> Description) {
        if let Some(descriptions) = &mut *self.findings.descriptions.borrow_mut() {
            descriptions.push(Described {
                path: self.path.clone(),
                variant: self.variant,
                description: description(),
            });
        }
    }

    /// Adds a problem with a key, regardless of the source of its value. `key` may be in a nested table (`retry.max`).
    pub(crate) fn reject(&self, key: &str, message: impl Into<String>) {
        self.findings.add(self.about(key, message.into(), ""));
    }

    /// Adds a warning about a key; the configuration is still valid.
    pub(crate) fn warning(&self, key: &str, message: impl Into<String>) {
        let warning = self.about(key, message.into(), "");
        self.findings.warnings.borrow_mut().push(warning);
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

    /// Returns the handling of the secret files of this sink or source.
    pub(crate) fn secrets(&self) -> SinkSecrets {
        self.secrets
    }

    /// Returns the role whose start is checked.
    pub(crate) fn role(&self) -> Option<&'static str> {
        self.findings.layers.role
    }

    /// Handles the secret files of this table as those of a source, a token, or the process itself.
    pub(crate) fn secrets_of(self, of: fn(Secrets) -> SinkSecrets) -> Self {
        Self {
            secrets: of(self.findings.secrets),
            ..self
        }
    }

    /// Reads the path of a file. A relative path in a configuration file is relative to the folder of that file. One from
    /// the environment or the command line is relative to the working directory.
    pub(crate) fn file(&mut self, key: &'static str, meaning: &'static str) -> Option<PathBuf> {
        let path: String = self.optional(key, meaning)?;
        let folder = self
            .find(key)
            .and_then(|(_, value)| self.findings.layers.folder(value.tag()));
        let path = folder.unwrap_or_default().join(path);
        self.findings.files.borrow_mut().insert(path.clone());
        Some(path)
    }

    /// Opens a nested table; a missing one is empty.
    pub(crate) fn open(&mut self, key: &'static str) -> Table<'a> {
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

    /// Opens a required nested table. `example` is part of the problem if it is missing.
    pub(crate) fn required_table(
        &mut self,
        key: &'static str,
        meaning: &'static str,
        example: &str,
    ) -> Option<Table<'a>> {
        self.describe(|| Description {
            kind: "table",
            schema: table_schema(),
            ..Description::required::<String>(key, meaning)
        });
        let table = self.optional_table(key);
        if table.is_none() {
            let meaning = as_clause(meaning);
            self.reject(key, format!("missing: {meaning}, like {example}"));
        }
        table
    }

    /// Opens a nested table unless it is missing.
    pub(crate) fn optional_table(&mut self, key: &'static str) -> Option<Table<'a>> {
        self.know(key);
        self.find(key).is_some().then(|| self.open(key))
    }

    /// Adds a problem with the name of the table itself.
    pub(crate) fn name_problem(&self, message: &str) {
        let source = self.origin.clone();
        let message = message.into();
        self.findings.add(Problem {
            path: self.path.to_string(),
            value: String::new(),
            message,
            source,
        });
    }

    /// Reads `none` as a value like any other.
    pub(crate) fn without_inheritance(self) -> Self {
        Self {
            inherits: false,
            ..self
        }
    }

    /// Inherits the keys that this table does not have from another one.
    pub(crate) fn inherit(mut self, other: &Table<'_>) -> Self {
        self.layers.extend(other.layers.iter().cloned());
        self
    }

    /// Opens all tables of a table whose keys are names.
    pub(crate) fn entries(&mut self, key: &'static str) -> Vec<(String, Table<'a>)> {
        let tables = self.open(key);
        let (place, values) = tables.layers.into_iter().next().unwrap_or_default();
        let open = |(name, value): (String, Merged)| {
            let path = place.key(&name);
            let origin = self.findings.source(&value);
            let values = match value {
                Merged::Empty(..) => Dict::new(),
                value => self.as_table(&value, &path, true)?,
            };
            let layers = vec![(path.clone(), values)];
            Some((name, Table::new(self.findings, path, layers, origin)))
        };
        values.into_iter().filter_map(open).collect()
    }

    /// Reads a table whose keys are names and whose values are strings, or secrets.
    pub(crate) fn texts<T: Value>(
        &mut self,
        key: &'static str,
        meaning: &'static str,
    ) -> Vec<(String, T)> {
        self.describe(|| Description::text_table(key, meaning));
        let table = self.open(key);
        let (place, values) = table.layers.first().cloned().unwrap_or_default();
        let mut texts = Vec::new();
        for (name, value) in values {
            let path = place.key(&name);
            let is_hidden = T::SECRET || path.is_secretive();
            let source = self.findings.source(&value);
            match self.findings.read::<T>(&value, self.inherits) {
                Ok(text) => {
                    let shown = if is_hidden {
                        HIDDEN.into()
                    } else {
                        text.show()
                    };
                    table.record(&name, shown, source);
                    texts.push((name, text));
                }
                Err(message) => {
                    let shown = if is_hidden {
                        HIDDEN.into()
                    } else {
                        path.render(&value)
                    };
                    self.findings.add(Problem {
                        path: path.to_string(),
                        value: shown,
                        message,
                        source,
                    });
                }
            }
        }
        texts
    }

    /// Adds a problem with an entry of a table whose values are secrets.
    pub(crate) fn reject_secret(&self, key: &str, name: &str, message: String) {
        let source = self.find(key).map(|(_, table)| self.findings.source(table));
        self.findings.add(Problem {
            path: self.path(key).key(name).to_string(),
            value: HIDDEN.into(),
            message,
            source: source.unwrap_or_else(|| self.origin.clone()),
        });
    }

    /// Opens all tables of a list.
    pub(crate) fn rows(&mut self, key: &'static str) -> Vec<Table<'a>> {
        self.know(key);
        let Some((place, value)) = self.find(key) else {
            return Vec::new();
        };
        let Some(items) = self.as_list(value) else {
            self.reject(
                key,
                format!("expected a list of tables, found {}", kind(value)),
            );
            return Vec::new();
        };
        let open = |(index, value): (usize, Merged)| {
            let path = place.item(index);
            let values = self.as_table(&value, &path, true)?;
            let layers = vec![(path.clone(), values)];
            let origin = self.findings.source(&value);
            Some(Table::new(self.findings, path, layers, origin))
        };
        items.into_iter().enumerate().filter_map(open).collect()
    }

    /// Reports each key of the table itself that was not read.
    pub(crate) fn finish(&self) {
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
            let message = match misspelling::meant(key, self.known.iter().copied()) {
                Some(meant) => format!("unknown key, did you mean {meant}? Known keys: {known}"),
                None => format!("unknown key, known keys: {known}"),
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

    fn find(&self, key: &str) -> Option<(Path, &Merged)> {
        self.layers.iter().find_map(|(place, values)| {
            let mut keys = key.split('.');
            let first = keys.next()?;
            let mut found = (place.key(first), present(values, first)?);
            for key in keys {
                let Merged::Dict(_, values) = found.1 else {
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

    fn as_table(&self, value: &Merged, path: &Path, own: bool) -> Option<Dict> {
        let read = match value {
            Merged::Dict(_, values) => return Some(values.clone()),
            Merged::String(tag, text) if self.findings.is_text_only(value) => from_json(text, *tag),
            _ => None,
        };
        if let Some(Merged::Dict(_, values)) = read {
            return Some(values);
        }
        // An inherited value was reported in its own table.
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

    /// Reads a list. From the environment, also reads JSON, or keys that are numbers (`LISA_…__0__TOPIC`).
    fn as_list(&self, value: &Merged) -> Option<Vec<Merged>> {
        match value {
            Merged::Array(_, items) => Some(items.clone()),
            Merged::String(tag, text) if self.findings.is_text_only(value) => {
                match from_json(text, *tag)? {
                    Merged::Array(_, items) => Some(items),
                    _ => None,
                }
            }
            Merged::Dict(_, values) if self.findings.is_text_only(value) => {
                let numbered = values
                    .iter()
                    .map(|(key, value)| Some((key.parse().ok()?, value.clone())));
                let mut numbered: Vec<(usize, Merged)> = numbered.collect::<Option<_>>()?;
                numbered.sort_by_key(|(number, _)| *number);
                Some(numbered.into_iter().map(|(_, value)| value).collect())
            }
            _ => None,
        }
    }
}

/// Reads the fields of a struct, and records the source of each.
impl Reader for Table<'_> {
    fn read<T: Value>(&mut self, field: Field<T>, limits: impl Limits<T>) -> T {
        // What cannot be written is no default.
        let default = Some(field.default.show()).filter(|shown| self.inherits || *shown != NONE);
        self.describe(|| Description {
            default: default.clone(),
            ..Description::of(&field, &limits)
        });
        if let Some(default) = default
            && self.find(field.name).is_none()
        {
            self.record(field.name, default, DEFAULT.into());
        }
        let value = self.given(field.name).unwrap_or(field.default);
        if let Some(message) = refusal(&value, &limits) {
            self.reject(field.name, message);
        }
        value
    }

    fn table<F: Fields>(&mut self, name: &'static str) -> F {
        let mut below = self.open(name);
        let read = F::read_fields(&mut below);
        below.finish();
        read
    }

    fn problem(&mut self, name: &'static str, value: Json, message: String) {
        let problem = self.about(name, message, &value.to_string());
        self.findings.add(problem);
    }
}

impl TableReader for Table<'_> {
    fn required_field<T: Value>(&mut self, name: &'static str, meaning: &'static str) -> Option<T> {
        self.required(name, meaning)
    }

    fn table_if_any<F: Fields>(&mut self, name: &'static str) -> Option<F> {
        let mut table = self.optional_table(name)?;
        let read = F::read_fields(&mut table);
        table.finish();
        Some(read)
    }

    fn text_table(&mut self, name: &'static str, meaning: &'static str) -> Vec<(String, String)> {
        self.texts(name, meaning)
    }

    fn entry_problem(&mut self, table: &'static str, name: &str, message: String) {
        self.reject(&format!("{table}.{name}"), message);
    }
}

/// Returns the schema of a table, to which its keys are added.
pub(crate) fn table_schema() -> Json {
    json!({ "type": "object", "additionalProperties": false, "properties": {} })
}

/// Turns the meaning of a key, a sentence, into a part of one.
fn as_clause(meaning: &str) -> String {
    let mut chars = meaning.strip_suffix('.').unwrap_or(meaning).chars();
    let first = chars.next().map(|first| first.to_ascii_lowercase());
    first.into_iter().chain(chars).collect()
}
