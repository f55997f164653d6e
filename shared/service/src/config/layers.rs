//! The sources of a configuration: the file, the environment and the command line, merged in this order.
//!
//! Merges untyped values and records the source of each; [`super::resolve`] interprets them. The defaults are not a layer:
//! they are next to the code that reads each key.

use std::collections::BTreeMap;
use std::fmt;
use std::path::{Path as FilePath, PathBuf};

use figment::providers::{Format, Toml};
use figment::value::{Dict, Map, Tag, Value};
use figment::{Error, Figment, Metadata, Profile, Provider, Source};

use super::problem::{ConfigError, Problem};
use super::yaml::Yaml;
use lisa_core::small_file;

const PREFIX: &str = "LISA_";
/// The largest configuration file.
const MAX_FILE_BYTES: u64 = 16 * 1024 * 1024;
/// Short names of keys, as other programs use them.
const SHORT: [(&str, &[&str]); 2] = [
    ("NAMESPACE", &["namespace"]),
    ("REDIS_URL", &["redis", "url"]),
];
/// The variable that names the configuration file if the command line names none.
const FILE_VARIABLE: &str = "LISA_CONFIG";
/// Variables that the configuration does not read: those of logs, development and our own tests.
const OF_OTHERS: [&str; 12] = [
    "CA_FILE",
    "CLIENT_CERT",
    "CLIENT_KEY",
    "CONFIG",
    "LOG",
    "TOKEN",
    "TOKEN_FILE",
    "URL",
    "REDIS_SERVER",
    "TEST_",
    "MODEL_",
    "MUTANTS_",
];
/// Variables that a command sink sets for its program, which may be one of ours.
const OF_COMMANDS: [&str; 10] = [
    "TOPIC",
    "GROUP",
    "ID",
    "ATTEMPT",
    "MAX_ATTEMPTS",
    "DUE_AT",
    "DELIVERED_AT",
    "LATE",
    "PAYLOAD_BYTES",
    "HEADER_",
];
/// Tables of the configuration, as the first part of a variable name.
const TABLES: [&str; 10] = [
    "AUTH",
    "CONSUMER",
    "HTTP",
    "MANAGER",
    "PRODUCER",
    "REDIS",
    "SCHEDULES",
    "SHUTDOWN",
    "TOPICS",
    "TOPIC_DEFAULTS",
];
/// Marks sources that contain only strings, which may be read as numbers, booleans or lists.
const TEXT_ONLY: &str = "text";

/// The sources of a configuration. The default has none: compiled-in defaults only.
#[derive(Clone, Debug, Default)]
pub struct LoadOptions {
    /// The file: TOML (`.toml`) or YAML (`.yaml`, `.yml`), by its extension; it must exist. If `None`, the file that
    /// `LISA_CONFIG` names.
    pub file: Option<PathBuf>,
    /// Environment variables. Only `LISA_NAMESPACE`, `LISA_REDIS_URL` and names that start with `LISA_` and contain `__`
    /// are keys.
    pub env: Vec<(String, String)>,
    /// Flags of the command line: from key path, such as `redis.url`, to value.
    pub overrides: BTreeMap<String, String>,
    /// The handling of the secret files of sinks.
    pub sink_secrets: SinkSecrets,
    /// The handling of the secret files of sources.
    pub source_secrets: SinkSecrets,
    /// The handling of the secret files of tokens, which only gateways need.
    pub aws_secrets: SinkSecrets,
    /// The handling of the certificate files of listeners.
    pub listener_files: SinkSecrets,
    /// The role whose start is checked, such as `consumer`: a key of it that needs a feature is a problem if this program was
    /// built without that feature.
    pub role: Option<&'static str>,
}

/// The handling of the secret files of sinks, and of sinks that can never work, when a configuration is loaded. Sources are
/// handled likewise.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum SinkSecrets {
    /// Reads the files; one that cannot be read is a problem. For processes that run the sinks.
    #[default]
    Required,
    /// Reads the files; one that cannot be read is a warning, as is a program that this machine cannot run. For checks of
    /// a configuration that may be for other machines.
    Checked,
    /// Does not read the files and does not check the hosts of webhooks; the secrets of files are missing. For processes
    /// that run no sinks.
    Unused,
}

/// The handling of secret files, by what they are for.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Secrets {
    pub(crate) sinks: SinkSecrets,
    pub(crate) sources: SinkSecrets,
    pub(crate) tokens: SinkSecrets,
    pub(crate) listeners: SinkSecrets,
}

impl LoadOptions {
    /// Creates options with the environment of this process.
    pub fn from_process(file: Option<PathBuf>, overrides: BTreeMap<String, String>) -> Self {
        // Lossy: a variable that is not UTF-8 must not panic here. The problem shows its replacement character.
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
            ..Self::default()
        }
    }

    /// Returns the file that is set, else the one that the environment names.
    fn chosen_file(&self) -> Option<PathBuf> {
        let named = self.env.iter().find(|(name, _)| name == FILE_VARIABLE);
        let named = named.map(|(_, path)| path).filter(|path| !path.is_empty());
        self.file.clone().or_else(|| named.map(PathBuf::from))
    }
}

/// The merged values, with the source of each.
pub(super) struct Layers {
    figment: Figment,
    pub(super) values: Dict,
    /// The file that was read.
    pub(super) file: Option<PathBuf>,
    /// The role whose start is checked.
    pub(super) role: Option<&'static str>,
    unused_variables: Vec<Problem>,
}

impl Layers {
    pub(super) fn merge(options: LoadOptions) -> Result<Self, ConfigError> {
        let mut figment = Figment::new();
        let file = options.chosen_file();
        if let Some(path) = &file {
            figment = merge_file(figment, path)?;
        }
        let mut unused_variables = Vec::new();
        // Sorted, because the order of the environment is arbitrary and a later variable wins.
        let env: BTreeMap<_, _> = options.env.into_iter().collect();
        for (name, text) in env {
            let source = format!("environment variable {name}");
            match Variable::of(&name) {
                Variable::Key(path) => figment = figment.merge(Text { source, path, text }),
                Variable::NotOurs => {}
                Variable::Slip(meant) => {
                    let message = format!(
                        "not a key, did you mean {meant}? Two underscores separate the parts of a key"
                    );
                    return Err(unusable(&source, message));
                }
                Variable::Unused => unused_variables.push(Problem {
                    path: String::new(),
                    value: String::new(),
                    message: "ignored: not a key; two underscores separate the parts of a key"
                        .to_owned(),
                    source,
                }),
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
        Ok(Self {
            figment,
            values,
            file,
            role: options.role,
            unused_variables,
        })
    }

    /// Returns the name of the source of a value.
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

    /// Returns the folder of the file that a value comes from.
    pub(super) fn folder(&self, tag: Tag) -> Option<PathBuf> {
        match self.figment.get_metadata(tag)?.source.as_ref()? {
            Source::File(path) => path.parent().map(FilePath::to_path_buf),
            _ => None,
        }
    }

    /// Returns a warning for each variable that starts with `LISA_` and that nothing reads.
    pub(super) fn unused_variables(&self) -> Vec<Problem> {
        self.unused_variables.clone()
    }

    /// Returns true if the value comes from a source that contains only strings.
    pub(super) fn is_text_only(&self, tag: Tag) -> bool {
        let source = self
            .figment
            .get_metadata(tag)
            .and_then(|metadata| metadata.source.as_ref());
        matches!(source, Some(Source::Custom(kind)) if kind == TEXT_ONLY)
    }
}

/// Shows no values, since some are secrets.
impl fmt::Debug for Layers {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut layers = f.debug_struct("Layers");
        layers.field("file", &self.file).finish_non_exhaustive()
    }
}

fn merge_file(figment: Figment, path: &FilePath) -> Result<Figment, ConfigError> {
    let ending = path
        .extension()
        .and_then(|ending| ending.to_str())
        .unwrap_or_default();
    let name = path.display().to_string();
    small_file::check(path, MAX_FILE_BYTES)
        .map_err(|error| unusable(&name, format!("cannot load: {error}")))?;
    match ending {
        "toml" => merge_checked(figment, Toml::file_exact(path), &name),
        "yaml" | "yml" => merge_checked(figment, Yaml::file_exact(path), &name),
        _ => Err(unusable(
            &name,
            "expected a file name that ends in .toml, .yaml or .yml".into(),
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
    // A parser shows the position in several lines that start with a bar; a problem has one line.
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

/// The meaning of an environment variable for the configuration.
enum Variable {
    /// A key, by its path.
    Key(Vec<String>),
    /// A variable of another program, or one that is read elsewhere.
    NotOurs,
    /// A key with single underscores; contains the name that was probably meant.
    Slip(String),
    /// A name that starts with `LISA_`, and that nothing reads.
    Unused,
}

impl Variable {
    fn of(name: &str) -> Self {
        let Some(rest) = name.strip_prefix(PREFIX) else {
            return Self::NotOurs;
        };
        if let Some((_, path)) = SHORT.iter().find(|(short, _)| *short == rest) {
            return Self::Key(path.iter().map(|&key| key.to_owned()).collect());
        }
        let is_named =
            |known: &&str| rest == *known || (known.ends_with('_') && rest.starts_with(*known));
        // The headers of a message may have any name, even one with two underscores.
        if OF_OTHERS.iter().chain(&OF_COMMANDS).any(is_named) {
            return Self::NotOurs;
        }
        if rest.contains("__") {
            return Self::Key(rest.split("__").map(str::to_ascii_lowercase).collect());
        }
        if is_service_link(rest) {
            return Self::NotOurs;
        }
        // Reversed: of two tables that both match, the longer one is last.
        let below = TABLES.iter().rev().find_map(|table| {
            let key = rest.strip_prefix(table)?.strip_prefix('_')?;
            Some((table, key))
        });
        match below {
            Some((table, key)) => Self::Slip(format!("{PREFIX}{table}__{key}")),
            None => Self::Unused,
        }
    }
}

/// Returns true if Kubernetes or Docker sets such a variable for a service whose name begins with `lisa`. No key ends
/// like that.
fn is_service_link(rest: &str) -> bool {
    let of_port = |(index, port): (usize, &str)| {
        rest[index + port.len()..].starts_with(|next: char| next.is_ascii_digit())
    };
    let mut words = rest.rsplit('_');
    let last = words.next();
    last == Some("PORT")
        || last == Some("HOST") && words.next() == Some("SERVICE")
        || rest.contains("SERVICE_PORT")
        || rest.match_indices("PORT_").any(of_port)
}

/// A string for one key. figment's own environment provider would turn the password `0123` into the number 123 before the
/// type of the key is known.
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
