//! Sends requests to a running manager, with a token, and reads its responses within bounds.

use std::path::PathBuf;
use std::time::Duration;

use lisa_core::causes::with_causes;
use lisa_core::secret::Secret;
use lisa_core::small_file;
use lisa_core::time::format_duration;
use lisa_core::tls::{self, ClientCertificate};
use lisa_service::http::auth::{EXPIRED, Scope};
use lisa_service::role::StartError;
use reqwest::header::{AUTHORIZATION, HeaderValue};
use reqwest::{Request, StatusCode, redirect};

use crate::cli::error::{CliError, Refusal};
use crate::cli::manager_flags::Access;
use crate::cli::manager_url::ManagerUrl;

/// The environment variables that name the files of certificates, if options do not.
const CA_FILE: &str = "LISA_CA_FILE";
const CLIENT_CERT: &str = "LISA_CLIENT_CERT";
const CLIENT_KEY: &str = "LISA_CLIENT_KEY";
/// The environment variable that names a file with the token, if `--token-file` does not.
const TOKEN_FILE: &str = "LISA_TOKEN_FILE";
/// The environment variable that holds the token, if no file is named.
const TOKEN: &str = "LISA_TOKEN";
/// The largest token file, in bytes.
const MAX_TOKEN: u64 = 4096;
/// The largest response that is read, in bytes: a message with the largest payload, escaped.
const MAX_ANSWER: usize = 64 << 20;
/// The largest body of a refusal that is read, in bytes.
const MAX_PROBLEM: usize = 64 << 10;
/// The largest number of values in a response. A parsed value takes far more memory than its text.
const MAX_VALUES: usize = 500_000;

/// A token, and the place that it was read from.
struct Token {
    header: HeaderValue,
    from: String,
}

/// A running manager.
pub(super) struct Remote {
    http: reqwest::Client,
    pub(super) url: ManagerUrl,
    token: Option<Token>,
    /// The time limit of a usual call.
    pub(super) timeout: Duration,
}

impl Remote {
    /// Creates a client. Does not connect yet. Connecting times out after `timeout`.
    pub(super) fn new(
        url: ManagerUrl,
        access: Access,
        timeout: Duration,
    ) -> Result<Self, CliError> {
        // The crypto provider is per process, and the first one wins.
        let _ = rustls::crypto::ring::default_provider().install_default();
        let mut builder = reqwest::Client::builder()
            .user_agent(concat!("lisa-manager/", env!("CARGO_PKG_VERSION")))
            .redirect(redirect::Policy::none())
            .no_proxy()
            .connect_timeout(timeout);
        builder = match url.is_https() {
            true => with_certificates(builder, &access)?,
            // A small container without root certificates can still use http.
            false => builder.tls_certs_only([]),
        };
        let http = builder
            .build()
            .map_err(|error| StartError::Refused(format!("cannot use HTTPS: {}", chain(error))))?;
        Ok(Self {
            http,
            url,
            token: token(access.token_file)?,
            timeout,
        })
    }

    fn failed(&self, error: reqwest::Error, within: Duration) -> CliError {
        let url = &self.url;
        let text = match error.is_timeout() && !error.is_connect() {
            true => {
                let within = format_duration(within);
                format!(
                    "the manager at {url} did not respond within {within}; it may be waiting for Redis"
                )
            }
            false => format!(
                "no manager answers at {url}: {}; --url or LISA_URL sets another address",
                chain(error)
            ),
        };
        CliError::Start(StartError::Unavailable(text))
    }

    /// Sends a request, and reads its response.
    ///
    /// # Errors
    /// There is no response in time, or it is too large.
    pub(super) async fn send(
        &self,
        mut request: Request,
        within: Duration,
    ) -> Result<(StatusCode, Vec<u8>), CliError> {
        if let Some(token) = &self.token {
            let headers = request.headers_mut();
            headers.insert(AUTHORIZATION, token.header.clone());
        }
        *request.timeout_mut() = Some(within);
        let failed = |error: reqwest::Error| self.failed(error, within);
        let mut response = self.http.execute(request).await.map_err(failed)?;
        let status = response.status();
        let too_much =
            |what: String| CliError::Failed(format!("manager at {}: response {what}", self.url));
        let most = match status.is_success() {
            true => MAX_ANSWER,
            false => MAX_PROBLEM,
        };
        let (mut body, mut values) = (Vec::new(), Values::default());
        while let Some(part) = response.chunk().await.map_err(failed)? {
            if body.len() + part.len() > most {
                return Err(too_much(format!("larger than {} KiB", most >> 10)));
            }
            values.count(&part);
            if values.count > MAX_VALUES {
                return Err(too_much(format!("with more than {MAX_VALUES} values")));
            }
            body.extend_from_slice(&part);
        }
        Ok((status, body))
    }

    /// Explains a refusal caused by the token, by the host name, or by another server at this URL.
    pub(super) fn explain(&self, scope: Option<Scope>, refusal: &Refusal) -> Option<String> {
        let url = &self.url;
        let one = scope.map_or("a valid one".to_owned(), |scope| {
            format!("one that has the scope {scope}")
        });
        let said = match (refusal.code(), &self.token) {
            ("unauthorized", None) => {
                format!("it requires a token: name a file with {one} with --token-file")
            }
            ("unauthorized", Some(token)) if refusal.detail() == EXPIRED => {
                named(EXPIRED, &token.from)
            }
            ("unauthorized", Some(token)) => format!(
                "it does not know the token {}: name a file with {one} with --token-file",
                token.from
            ),
            ("forbidden", Some(token)) => named(refusal.detail(), &token.from),
            ("host_not_allowed", _) => format!(
                "{}; add \"{}\" to auth.allowed_hosts of that manager, or name it by its IP address",
                refusal.detail(),
                url.host()
            ),
            ("", _) => "no reason given; is it a manager of Lisa?".to_owned(),
            _ => return None,
        };
        Some(format!("manager at {url}: {}: {said}", refusal.status()))
    }
}

/// Says in a refusal where the token is from.
fn named(refusal: &str, from: &str) -> String {
    refusal.replacen("the token", &format!("the token {from}"), 1)
}

/// Counts the values of a JSON text that arrives in parts: each follows a comma or an opening bracket.
#[derive(Default)]
struct Values {
    count: usize,
    in_string: bool,
    is_escaped: bool,
}

impl Values {
    fn count(&mut self, part: &[u8]) {
        for byte in part {
            match (self.in_string, byte) {
                (true, _) if std::mem::take(&mut self.is_escaped) => {}
                (true, b'\\') => self.is_escaped = true,
                (_, b'"') => self.in_string = !self.in_string,
                (false, b',' | b'[' | b'{') => self.count += 1,
                _ => {}
            }
        }
    }
}

/// Returns the value of an environment variable, unless it is empty.
fn variable(name: &str) -> Option<String> {
    std::env::var(name).ok().filter(|value| !value.is_empty())
}

/// Trusts the authorities in a file, and presents a certificate, if options or the environment name them.
fn with_certificates(
    builder: reqwest::ClientBuilder,
    access: &Access,
) -> Result<reqwest::ClientBuilder, CliError> {
    let file = |option: &Option<PathBuf>, name| {
        let option = option.clone();
        option.or_else(|| variable(name).map(PathBuf::from))
    };
    let ca = file(&access.ca_file, CA_FILE);
    let cert = file(&access.client_cert, CLIENT_CERT);
    let key = file(&access.client_key, CLIENT_KEY);
    let client = match (&cert, &key) {
        (Some(cert), Some(key)) => Some(ClientCertificate { cert, key }),
        (None, None) if ca.is_none() => return Ok(builder),
        (None, None) => None,
        _ => {
            let text = "--client-cert and --client-key must be given together";
            return Err(CliError::Usage(text.to_owned()));
        }
    };
    let config = tls::client_config(ca.as_deref(), client).map_err(StartError::Refused)?;
    Ok(builder.tls_backend_preconfigured((*config).clone()))
}

/// Reads the token from the file, or from the environment.
fn token(file: Option<PathBuf>) -> Result<Option<Token>, CliError> {
    let file = file.or_else(|| variable(TOKEN_FILE).map(PathBuf::from));
    let (token, from) = match file {
        Some(file) => {
            let from = format!("in {}", file.display());
            let read = small_file::read(&file, MAX_TOKEN);
            let read = read.map_err(|error| {
                StartError::Refused(format!("cannot read the token {from}: {error}"))
            })?;
            (String::from_utf8_lossy(&read).into_owned(), from)
        }
        None => match variable(TOKEN) {
            Some(token) => (token, format!("in {TOKEN}")),
            None => return Ok(None),
        },
    };
    let token = Secret::from(token.trim());
    let header = format!("Bearer {}", token.expose());
    match HeaderValue::try_from(header) {
        Ok(mut header) if !token.expose().is_empty() => {
            header.set_sensitive(true);
            Ok(Some(Token { header, from }))
        }
        _ => {
            let text = format!("the token {from} must be one line of visible ASCII characters");
            Err(StartError::Refused(text).into())
        }
    }
}

/// Joins an error and its causes on one line, without the URL.
fn chain(error: reqwest::Error) -> String {
    with_causes(&error.without_url())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_values_of_a_response_are_counted_wherever_it_is_cut() {
        let text = br#"{"a": [1, 2, {"b,[": "\"{,\\"}], "c": []}"#;
        for size in 1..=text.len() {
            let mut values = Values::default();
            text.chunks(size).for_each(|part| values.count(part));
            // Three commas, and four brackets.
            assert_eq!(values.count, 7, "in parts of {size}");
        }
    }
}
