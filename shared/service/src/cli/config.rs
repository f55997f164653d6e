//! The verbs that check and show the configuration. They need no Redis.

use std::collections::BTreeMap;
use std::path::PathBuf;

use clap::Subcommand;
use serde_json::{Value, json};

use super::output::escape_json;
use super::{Format, Output, print};
use crate::cli::remark;
use crate::config::{LoadOptions, Loaded, Problem, SinkSecrets, schema};
use crate::role::StartError;

/// A verb about the configuration.
#[derive(Debug, Subcommand)]
pub enum ConfigVerb {
    /// Check the configuration, and list every mistake
    Check,
    /// Print the configuration in effect, with the source of each value
    Show,
    /// Print the JSON Schema of configuration files, for editors
    Schema,
}

impl ConfigVerb {
    /// Runs the verb on the whole configuration, whichever program reads its parts. A check also refuses what a start of `role`
    /// would refuse because this program was built without a feature.
    ///
    /// # Errors
    /// The configuration is invalid, or the result cannot be printed.
    pub fn execute(
        &self,
        role: &'static str,
        file: Option<PathBuf>,
        overrides: BTreeMap<String, String>,
        output: &Output,
    ) -> Result<(), StartError> {
        let options = LoadOptions {
            sink_secrets: SinkSecrets::Checked,
            source_secrets: SinkSecrets::Checked,
            aws_secrets: SinkSecrets::Checked,
            listener_files: SinkSecrets::Checked,
            role: matches!(self, Self::Check).then_some(role),
            ..LoadOptions::from_process(file, overrides)
        };
        let loaded = Loaded::load(options)?;
        let text = match (self, output.format) {
            (Self::Schema, _) => format!("{:#}", schema()),
            (Self::Check, Format::Table) => checked(&loaded),
            (Self::Check, _) => return output.object(&valid(&loaded.warnings)),
            (Self::Show, Format::Table) => loaded.to_toml(),
            (Self::Show, Format::Json) => escape_json(&loaded.to_json()).into_owned(),
            (Self::Show, _) => {
                let shown: Value = serde_json::from_str(&loaded.to_json()).unwrap_or_default();
                return output.object(&shown);
            }
        };
        print(&text).map_err(StartError::Write)
    }
}

/// Reports a valid configuration, after its warnings on stderr.
fn checked(loaded: &Loaded) -> String {
    for warning in &loaded.warnings {
        remark(format_args!("warning: {warning}"));
    }
    match &loaded.file {
        Some(file) => format!("{} is valid", file.display()),
        None => "no configuration file given; the defaults and the environment are valid".into(),
    }
}

/// Reports as JSON that a configuration is valid, with its warnings.
fn valid(warnings: &[Problem]) -> Value {
    let mut valid = json!({ "valid": true });
    if !warnings.is_empty() {
        valid["warnings"] = warnings.iter().map(Problem::to_string).collect();
    }
    valid
}
