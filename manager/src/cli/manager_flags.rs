//! The options of a running manager to work through.

use std::path::PathBuf;

use clap::Args;
use lisa_service::cli::GlobalFlags;

use super::error::CliError;
use super::manager_url::ManagerUrl;

/// The environment variable with the URL of a manager, if `--url` does not name one.
const URL: &str = "LISA_URL";

/// A running manager to work through.
#[derive(Debug, Args)]
#[command(next_help_heading = "Global options")]
pub(crate) struct ManagerFlags {
    /// URL of a manager, such as https://lisa.example.com: work through its HTTP interface instead of Redis [default: the URL
    /// in LISA_URL]
    #[arg(long, global = true, value_name = "URL")]
    pub(crate) url: Option<ManagerUrl>,
    #[command(flatten)]
    pub(crate) access: Access,
}

/// The files that a client of a manager needs.
#[derive(Debug, Args)]
#[command(next_help_heading = "Global options")]
pub(crate) struct Access {
    /// File with the token for that manager [default: the file that LISA_TOKEN_FILE names, or the token in LISA_TOKEN]
    #[arg(long, global = true, value_name = "FILE")]
    pub(crate) token_file: Option<PathBuf>,
    /// PEM file of the certificate authorities to trust for that manager, in place of the system's [default: the file that
    /// LISA_CA_FILE names]
    #[arg(long, global = true, value_name = "FILE")]
    pub(crate) ca_file: Option<PathBuf>,
    /// PEM file of the certificate to present to that manager [default: the file that LISA_CLIENT_CERT names]
    #[arg(long, global = true, value_name = "FILE")]
    pub(crate) client_cert: Option<PathBuf>,
    /// PEM file of the private key of that certificate [default: the file that LISA_CLIENT_KEY names]
    #[arg(long, global = true, value_name = "FILE")]
    pub(crate) client_key: Option<PathBuf>,
}

impl Access {
    /// Refuses options for a manager where none is named.
    pub(crate) fn check_unused(&self) -> Result<(), CliError> {
        let options = [
            ("--token-file", &self.token_file),
            ("--ca-file", &self.ca_file),
            ("--client-cert", &self.client_cert),
            ("--client-key", &self.client_key),
        ];
        match options.iter().find(|(_, file)| file.is_some()) {
            Some((option, _)) => Err(CliError::Usage(format!("{option} requires --url"))),
            None => Ok(()),
        }
    }
}

impl ManagerFlags {
    /// Returns the URL of the manager to work through: that of `--url`, else that of the environment unless an option names
    /// a Redis. `without_relay` is the name of a verb that never works on a running relay: the environment does not apply to it.
    pub(crate) fn url(
        &self,
        flags: &GlobalFlags,
        without_relay: Option<&str>,
    ) -> Result<Option<ManagerUrl>, CliError> {
        let names_redis = flags.redis_url.is_some() || flags.namespace.is_some();
        match (&self.url, without_relay) {
            (Some(_), _) if names_redis => {
                let text = "--url cannot be combined with --redis-url or --namespace";
                Err(CliError::Usage(text.to_owned()))
            }
            (Some(_), Some(verb)) => Err(not_through_manager(verb)),
            (Some(url), None) => Ok(Some(url.clone())),
            (None, Some(_)) => Ok(None),
            (None, None) if names_redis => Ok(None),
            (None, None) => match std::env::var(URL) {
                Ok(url) if !url.is_empty() => {
                    let url = url.parse();
                    url.map(Some)
                        .map_err(|error| CliError::Usage(format!("{URL}: {error}")))
                }
                _ => Ok(None),
            },
        }
    }
}

/// Returns the error of a verb that no route of a manager serves.
pub(super) fn not_through_manager(verb: &str) -> CliError {
    CliError::Usage(format!(
        "{verb} does not work through a manager: leave out --url and {URL}"
    ))
}
