//! The global options, which all programs share.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::time::Duration;

use clap::Args;
use lisa_core::time::parse_duration;

use super::output::Output;

/// The flags that may stand before or after the verb.
#[derive(Clone, Debug, Args)]
#[command(next_help_heading = "Global options")]
pub struct GlobalFlags {
    /// Configuration file, TOML or YAML by its extension [default: the file that LISA_CONFIG names]
    #[arg(long, global = true, value_name = "FILE")]
    pub config: Option<PathBuf>,
    /// Address of Redis; overrides LISA_REDIS_URL and redis.url. A password in it is visible in the process list: use
    /// LISA_REDIS__PASSWORD_FILE instead
    #[arg(long, global = true, value_name = "URL")]
    pub redis_url: Option<String>,
    /// First part of all keys; overrides the configured namespace
    #[arg(long, global = true, value_name = "NAME")]
    pub namespace: Option<String>,
    /// Time limit for connecting and for each call to Redis (exit code 69); `run` keeps retrying
    #[arg(long, global = true, value_name = "DURATION", default_value = "5s", value_parser = parse_duration)]
    pub timeout: Duration,
    /// The format of results.
    #[command(flatten)]
    pub output: Output,
}

impl GlobalFlags {
    /// Returns the settings that the flags override.
    #[must_use]
    pub fn overrides(&self) -> BTreeMap<String, String> {
        let given = [
            ("redis.url", &self.redis_url),
            ("namespace", &self.namespace),
        ];
        let given = given
            .into_iter()
            .filter_map(|(key, value)| Some((key.to_owned(), value.clone()?)));
        given.collect()
    }
}
