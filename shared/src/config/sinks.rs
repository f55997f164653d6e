//! What the consumer binary does with each delivery: the settings of its sinks.
//!
//! Checks them without asking the network, not even for a name; the sinks themselves are the consumer's.

use std::fmt;
use std::str::FromStr;
use std::time::Duration;

use axum::http::Uri;
use base64::Engine;
use base64::prelude::BASE64_STANDARD;
use serde::Serialize;
use url::Url;

use super::layers::SinkSecrets;
use super::leaf::{Address, OneOrMany};
use super::secret_file;
use super::table::Table;
use super::unusable::{check_program, special_host};
use crate::secret::Secret;
use crate::state::words;
use crate::topic::InvalidName;

words!(
    /// What becomes of a delivery whose webhook answers with `Retry-After`.
    #[derive(Default)]
    RetryAfter, "retry_after", {
        /// It comes again then, counted as an attempt.
        #[default]
        Retry = "retry",
        /// It comes again then, not counted.
        Defer = "defer",
    }
);

/// Where a subscription's deliveries go.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum SinkConfig {
    /// One JSON object a line on standard output.
    Stdout,
    /// A webhook.
    Http {
        /// Where to post: `http://` or `https://` with a host, without user or password. Its path and query may be secrets.
        url: Secret,
        /// Keys that sign each request, `whsec_` + base64 of 24 to 64 bytes; several during a rotation.
        secrets: Vec<Secret>,
        /// How long one request may take. 1 ms to 1 h.
        timeout: Duration,
        /// Whether loopback, private and link-local addresses may be called.
        allow_private: bool,
        /// What becomes of a delivery that is answered with `Retry-After`.
        retry_after: RetryAfter,
    },
    /// A program started for each delivery.
    Command {
        /// The program and its arguments; no shell.
        command: Vec<String>,
    },
}

/// Reads a sink; `None` after a problem without which there is no sink.
pub(super) fn read(mut table: Table<'_>) -> Option<SinkConfig> {
    const TYPES: &str = "stdout, http or command";
    let sink = match table.required::<String>("type", TYPES)?.as_str() {
        "stdout" => Some(SinkConfig::Stdout),
        "http" => http(&mut table),
        "command" => command(&mut table),
        _ => {
            table.problem("type", format!("allowed is {TYPES}"));
            return None;
        }
    };
    table.finish();
    sink
}

fn http(table: &mut Table<'_>) -> Option<SinkConfig> {
    let url: Option<Address> = table.required("url", "where to post the deliveries");
    let url = url.map(|Address(url)| url);
    let host = match url.as_deref().map(check_url) {
        Some(Ok(host)) => Some(host),
        Some(Err(message)) => {
            table.problem("url", message);
            None
        }
        None => None,
    };
    let secrets = secrets(table);
    let hour = Duration::from_secs(3600);
    let timeout = table.bounded(
        "timeout",
        Duration::from_secs(30),
        Duration::from_millis(1)..=hour,
    );
    let allow_private = table.or("allow_private", false);
    if !allow_private
        && table.sink_secrets() != SinkSecrets::Unused
        && let Some(message) = host.as_deref().and_then(special_host)
    {
        table.problem("url", message);
    }
    let retry_after = table.or("retry_after", RetryAfter::default());
    Some(SinkConfig::Http {
        url: url?.into(),
        secrets,
        timeout,
        allow_private,
        retry_after,
    })
}

fn command(table: &mut Table<'_>) -> Option<SinkConfig> {
    let command: Vec<String> =
        table.required("command", "a list of the program and its arguments")?;
    match command.first() {
        Some(program) if !program.is_empty() => {
            if table.sink_secrets() == SinkSecrets::Checked
                && let Err(why) = check_program(program)
            {
                let refused = "a consumer on this machine refuses to start";
                table.warning(
                    "command",
                    format!("cannot run {program:?}: {why}; {refused}"),
                );
            }
        }
        Some(_) | None => table.problem("command", "allowed is a list that starts with a program"),
    }
    Some(SinkConfig::Command { command })
}

fn secrets(table: &mut Table<'_>) -> Vec<Secret> {
    let inline = table
        .optional::<OneOrMany<Secret>>("secret")
        .map(|OneOrMany(secrets)| secrets);
    let from_file = match table.sink_secrets() {
        SinkSecrets::Unused => {
            table.file("secret_file");
            return inline.unwrap_or_default();
        }
        SinkSecrets::Checked => secret_file::check(table, "secret", "secret_file"),
        SinkSecrets::Required => secret_file::read(table, "secret", "secret_file"),
    };
    let key = if table.has("secret_file") {
        "secret_file"
    } else {
        "secret"
    };
    let secrets = from_file.or(inline).unwrap_or_default();
    for (index, secret) in secrets.iter().enumerate() {
        if !is_webhook_secret(secret) {
            let message = "expected \"whsec_\" followed by base64 of 24 to 64 bytes";
            table.problem(key, format!("secret {}: {message}", index + 1));
        }
    }
    secrets
}

fn is_webhook_secret(secret: &Secret) -> bool {
    let key = secret
        .expose()
        .strip_prefix("whsec_")
        .and_then(|text| BASE64_STANDARD.decode(text).ok());
    key.is_some_and(|key| (24..=64).contains(&key.len()))
}

/// Gives the host, an address in its usual spelling.
fn check_url(text: &str) -> Result<String, &'static str> {
    const EXPECTED: &str = "expected an absolute address, like https://example.com/hook";
    let uri: Uri = text.parse().map_err(|_| EXPECTED)?;
    if !matches!(uri.scheme_str(), Some("http" | "https")) {
        return Err("expected an address that starts with http:// or https://");
    }
    match uri.authority() {
        Some(authority) if authority.as_str().contains('@') => {
            return Err("user and password do not belong in the address of a webhook");
        }
        Some(authority) if authority.host().is_empty() => return Err("the host is missing"),
        _ => {}
    }
    let url = Url::parse(text).map_err(|_| EXPECTED)?;
    url.host_str().map(str::to_owned).ok_or(EXPECTED)
}
