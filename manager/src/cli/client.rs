//! Calls routes of a running manager.

use std::fmt::{Display, Write};
use std::path::PathBuf;
use std::time::Duration;

use lisa_core::secret::Secret;
use lisa_core::small_file;
use lisa_service::cli::escape;
use lisa_service::http::auth::Scope;
use lisa_service::role::StartError;
use reqwest::header::{HeaderName, HeaderValue};
use reqwest::{Method, RequestBuilder, StatusCode, redirect};
use serde::de::DeserializeOwned;
use serde_json::Value;

use super::error::{CliError, Refusal};
use super::manager_url::ManagerUrl;

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
/// The time limit for a response to a request whose work grows with the number of messages.
const LONG: Duration = Duration::from_hours(1);

/// A token, and the place that it was read from.
struct Token {
    header: HeaderValue,
    from: String,
}

/// The HTTP interface of a manager.
pub(crate) struct Client {
    http: reqwest::Client,
    url: ManagerUrl,
    token: Option<Token>,
    timeout: Duration,
}

impl Client {
    /// Creates a client. Does not connect yet. Connecting, and each usual call, times out after `timeout`.
    pub(crate) fn new(
        url: ManagerUrl,
        token_file: Option<PathBuf>,
        timeout: Duration,
    ) -> Result<Self, CliError> {
        // The crypto provider is per process, and the first one wins.
        let _ = rustls::crypto::ring::default_provider().install_default();
        let mut builder = reqwest::Client::builder()
            .user_agent(concat!("lisa-manager/", env!("CARGO_PKG_VERSION")))
            .redirect(redirect::Policy::none())
            .no_proxy()
            .connect_timeout(timeout);
        if !url.is_https() {
            // A small container without root certificates can still use http.
            builder = builder.tls_certs_only([]);
        }
        let http = builder
            .build()
            .map_err(|error| StartError::Refused(format!("cannot use HTTPS: {}", chain(error))))?;
        Ok(Self {
            http,
            url,
            token: token(token_file)?,
            timeout,
        })
    }

    /// Creates a request for the scope `read`.
    pub(crate) fn get(&self, path: &[&str]) -> Call<'_> {
        self.call(Method::GET, path, Scope::Read)
    }

    /// Creates a request for the scope `operate`.
    pub(crate) fn post(&self, path: &[&str]) -> Call<'_> {
        self.call(Method::POST, path, Scope::Operate)
    }

    /// Creates a request for this scope.
    pub(crate) fn call(&self, method: Method, path: &[&str], scope: Scope) -> Call<'_> {
        let mut request = self.http.request(method, self.url.route(path));
        if let Some(token) = &self.token {
            request = request.header("authorization", token.header.clone());
        }
        Call {
            client: self,
            request: request.timeout(self.timeout),
            scope,
        }
    }

    fn unavailable(&self, why: &str) -> CliError {
        let text = format!("no manager answers at {}: {why}", self.url);
        CliError::Start(StartError::Unavailable(text))
    }

    /// Explains a response that is not a success, with the remedy if the token or the name of the host is the cause.
    fn refusal(&self, scope: Scope, status: StatusCode, problem: Value) -> CliError {
        let text = |field: &str| problem[field].as_str().unwrap_or_default().to_owned();
        let (code, detail) = (text("code"), text("detail"));
        let (url, scope) = (&self.url, scope.as_str());
        let said = match (code.as_str(), &self.token) {
            ("unauthorized", None) => {
                format!(
                    "it requires a token: name a file with one that has the scope {scope} with --token-file"
                )
            }
            ("unauthorized", Some(token)) => format!(
                "it does not know the token {}: name a file with one that has the scope {scope} with --token-file",
                token.from
            ),
            ("forbidden", Some(token)) => {
                format!("the token {} lacks the scope {scope}", token.from)
            }
            ("host_not_allowed", _) => format!(
                "{detail}; add \"{}\" to auth.allowed_hosts of that manager, or name it by its IP address",
                url.host()
            ),
            _ if !code.is_empty() => {
                return CliError::Refused(Refusal::new(status.as_u16(), code, &detail, problem));
            }
            _ => "no reason given; is it a manager of Lisa?".to_owned(),
        };
        let said = format!("manager at {url}: {status}: {said}");
        CliError::Refused(Refusal::new(status.as_u16(), code, &said, problem))
    }
}

/// One request.
pub(crate) struct Call<'c> {
    client: &'c Client,
    request: RequestBuilder,
    scope: Scope,
}

impl Call<'_> {
    /// Adds a query parameter, if there is a value.
    pub(crate) fn query(mut self, name: &str, value: Option<impl Display>) -> Self {
        if let Some(value) = value {
            self.request = self.request.query(&[(name, value.to_string())]);
        }
        self
    }

    /// Adds a header, if there is a value.
    pub(crate) fn header(mut self, name: &'static str, value: Option<&str>) -> Self {
        if let Some(value) = value {
            let name = HeaderName::from_static(name);
            self.request = self.request.header(name, value.as_bytes());
        }
        self
    }

    /// Sets the body.
    pub(crate) fn json(mut self, body: &Value) -> Self {
        self.request = self.request.json(body);
        self
    }

    /// Waits long for the response: the work grows with the number of messages.
    pub(crate) fn long(mut self) -> Self {
        self.request = self.request.timeout(LONG);
        self
    }

    /// Extends the time limit by `wait`, the longest time for which the manager delays the response.
    pub(crate) fn waits(mut self, wait: Duration) -> Self {
        self.request = self.request.timeout(self.client.timeout + wait);
        self
    }

    /// Sends the request, and reads its response.
    ///
    /// # Errors
    /// [`CliError::Refused`] for a problem; unavailable without a response.
    pub(crate) async fn answer<T: DeserializeOwned>(self) -> Result<T, CliError> {
        let client = self.client;
        let failed = |error: reqwest::Error| {
            let why = match error.is_timeout() {
                true => "no response within the time limit".to_owned(),
                false => chain(error),
            };
            client.unavailable(&why)
        };
        let mut response = self.request.send().await.map_err(failed)?;
        let status = response.status();
        let too_much =
            |what: String| CliError::Failed(format!("manager at {}: response {what}", client.url));
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
        if !status.is_success() {
            let problem = serde_json::from_slice(&body).unwrap_or_default();
            return Err(client.refusal(self.scope, status, problem));
        }
        serde_json::from_slice(&body).map_err(|error| {
            let error = error.to_string();
            CliError::Failed(format!(
                "manager at {}: unexpected response, possibly of another version of Lisa: {}",
                client.url,
                escape(&error)
            ))
        })
    }
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

/// Reads the token from the file, or from the environment.
fn token(file: Option<PathBuf>) -> Result<Option<Token>, CliError> {
    let variable = |name| std::env::var(name).ok().filter(|value| !value.is_empty());
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
    let error = error.without_url();
    let mut text = error.to_string();
    let mut source = std::error::Error::source(&error);
    while let Some(cause) = source {
        let _ = write!(text, ": {cause}");
        source = cause.source();
    }
    text
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
