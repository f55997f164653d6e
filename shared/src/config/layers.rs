//! Where a configuration comes from: the file, the environment and the command line, merged in this order.
//!
//! Merges untyped values and remembers where each came from; what they mean is [`super::resolve`]'s to say. The
//! defaults are no layer here: they stand beside each key that is read.

use std::collections::BTreeMap;
use std::path::{Path as FilePath, PathBuf};

use figment::providers::{Format, Toml};
use figment::value::{Dict, Map, Tag, Value};
use figment::{Error, Figment, Metadata, Profile, Provider, Source};

use super::problem::{ConfigError, Problem};
use super::yaml::Yaml;

const PREFIX: &str = "LISA_";
/// Marks sources that know only texts: what they give may be read as a number, boolean or list.
const TEXT_ONLY: &str = "text";

/// From where a configuration is loaded; the default is from nowhere: compiled-in defaults only.
#[derive(Clone, Debug, Default)]
pub struct LoadOptions {
    /// The file, TOML (`.toml`) or YAML (`.yaml`, `.yml`) by its ending; it must exist.
    pub file: Option<PathBuf>,
    /// Environment variables. Of these only `LISA_NAMESPACE` and names that start with `LISA_` and contain `__` count.
    pub env: Vec<(String, String)>,
    /// Flags of the command line: key path, e.g. `redis.url`, to value.
    pub overrides: BTreeMap<String, String>,
}

impl LoadOptions {
    /// Takes the environment of this process.
    pub fn from_process(file: Option<PathBuf>, overrides: BTreeMap<String, String>) -> Self {
        // Lossy: a variable that is not UTF-8 must not panic here; its replacement character shows in the problem.
        let env = std::env::vars_os()
            .map(|(name, value)| {
                (
                    name.to_string_lossy().into_owned(),
                    value.to_string_lossy().into_owned(),
                )
            })
            .collect();
        Self {
            file,
            env,
            overrides,
        }
    }
}

/// The merged values, with the source of each.
pub(super) struct Layers {
    figment: Figment,
    pub(super) values: Dict,
}

impl Layers {
    pub(super) fn merge(options: LoadOptions) -> Result<Self, ConfigError> {
        let mut figment = Figment::new();
        if let Some(path) = &options.file {
            figment = merge_file(figment, path)?;
        }
        // Sorted, as the order of the environment is arbitrary and a later variable wins.
        let env: BTreeMap<_, _> = options.env.into_iter().collect();
        for (name, text) in env {
            if let Some(path) = path_of_variable(&name) {
                figment = figment.merge(Text {
                    source: format!("environment variable {name}"),
                    path,
                    text,
                });
            }
        }
        for (path, text) in options.overrides {
            let path = path.split('.').map(str::to_owned).collect();
            figment = figment.merge(Text {
                source: "command line".into(),
                path,
                text,
            });
        }
        let merged = figment
            .data()
            .map_err(|error| failed("configuration", &error))?;
        let values = merged.get(&Profile::Default).cloned().unwrap_or_default();
        Ok(Self { figment, values })
    }

    /// Names the source of a value.
    pub(super) fn source(&self, tag: Tag) -> String {
        match self.figment.get_metadata(tag) {
            Some(Metadata {
                source: Some(Source::File(path)),
                ..
            }) => path.display().to_string(),
            Some(metadata) => metadata.name.to_string(),
            None => "default".into(),
        }
    }

    /// Whether a value comes from a source that knows only texts.
    pub(super) fn is_text_only(&self, tag: Tag) -> bool {
        let source = self
            .figment
            .get_metadata(tag)
            .and_then(|metadata| metadata.source.as_ref());
        matches!(source, Some(Source::Custom(kind)) if kind == TEXT_ONLY)
    }
}

fn merge_file(figment: Figment, path: &FilePath) -> Result<Figment, ConfigError> {
    let ending = path
        .extension()
        .and_then(|ending| ending.to_str())
        .unwrap_or_default();
    let name = path.display().to_string();
    match ending {
        "toml" => merge_checked(figment, Toml::file_exact(path), &name),
        "yaml" | "yml" => merge_checked(figment, Yaml::file_exact(path), &name),
        _ => Err(unusable(
            &name,
            "a configuration file ends in .toml, .yaml or .yml".into(),
        )),
    }
}

fn merge_checked(
    figment: Figment,
    file: impl Provider,
    name: &str,
) -> Result<Figment, ConfigError> {
    file.data().map_err(|error| failed(name, &error))?;
    Ok(figment.merge(file))
}

fn failed(source: &str, error: &Error) -> ConfigError {
    let figment::error::Kind::Message(message) = &error.kind else {
        return unusable(source, error.to_string());
    };
    // A parser draws the place under several lines that start with a bar; a problem has one line.
    let lines: Vec<_> = message
        .lines()
        .map(str::trim)
        .filter(|line| !line.is_empty() && !is_drawing(line))
        .collect();
    unusable(source, format!("cannot load: {}", lines.join(": ")))
}

fn is_drawing(line: &str) -> bool {
    line.trim_start_matches(|char: char| char.is_ascii_digit() || char == ' ')
        .starts_with('|')
}

fn unusable(source: &str, message: String) -> ConfigError {
    let problem = Problem {
        path: String::new(),
        value: String::new(),
        message,
        source: source.into(),
    };
    ConfigError {
        problems: vec![problem],
    }
}

fn path_of_variable(name: &str) -> Option<Vec<String>> {
    let rest = name.strip_prefix(PREFIX)?;
    if rest != "NAMESPACE" && !rest.contains("__") {
        return None;
    }
    Some(rest.split("__").map(str::to_ascii_lowercase).collect())
}

/// One text for one key. figment's own environment provider would turn the password `0123` into the number 123
/// before anybody knows that it is a text.
struct Text {
    source: String,
    path: Vec<String>,
    text: String,
}

impl Provider for Text {
    fn metadata(&self) -> Metadata {
        Metadata::from(self.source.clone(), Source::Custom(TEXT_ONLY.into()))
    }

    fn data(&self) -> Result<Map<Profile, Dict>, Error> {
        let mut value = Value::from(self.text.as_str());
        for key in self.path.iter().skip(1).rev() {
            value = Value::from(Dict::from([(key.clone(), value)]));
        }
        let root = self.path.first().cloned().unwrap_or_default();
        Ok(Profile::Default.collect(Dict::from([(root, value)])))
    }
}
