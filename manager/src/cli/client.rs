//! Calls the routes of the operators' HTTP interface: those of a running manager, or the same ones in this process, over Redis.

mod remote;

use std::fmt::Display;
use std::time::Duration;

use axum::Router;
use axum::body::{Body, to_bytes};
use axum::extract::Request;
use axum::http::header::CONTENT_TYPE;
use axum::http::{HeaderMap, HeaderValue, Method, StatusCode};
use lisa_core::broker::Broker;
use lisa_service::cli::escape;
use lisa_service::config::Loaded;
use lisa_service::http::auth::Scope;
use lisa_service::http::client::Admitted;
use lisa_service::metrics::Metrics;
use lisa_service::shutdown::Shutdown;
use serde::de::DeserializeOwned;
use serde_json::Value;
use tower::ServiceExt;
use url::Url;

use super::error::{CliError, Refusal};
use super::manager_flags::{Access, not_through_manager};
use super::manager_url::ManagerUrl;
use crate::Manager;
use remote::Remote;

/// The time limit for a response to a request whose work grows with the number of messages.
const LONG: Duration = Duration::from_hours(1);

/// The HTTP interface of a manager.
pub(crate) struct Client(Transport);

enum Transport {
    /// A running manager.
    Remote(Remote),
    /// A manager in this process that was not started.
    InProcess(Box<InProcess>),
}

struct InProcess {
    routes: Router,
    broker: Broker,
    loaded: Loaded,
}

impl Client {
    /// Creates a client of a running manager. Does not connect yet. Connecting, and each usual call, times out after
    /// `timeout`.
    ///
    /// # Errors
    /// The token or the certificates cannot be read.
    pub(crate) fn of_manager(
        url: ManagerUrl,
        access: Access,
        timeout: Duration,
    ) -> Result<Self, CliError> {
        let remote = Remote::new(url, access, timeout)?;
        Ok(Self(Transport::Remote(remote)))
    }

    /// Creates a client of the routes in this process. They know the configuration of this process instead of that of the
    /// managers.
    pub(crate) fn over_redis(broker: Broker, loaded: Loaded) -> Self {
        let metrics = Metrics::new(Default::default(), env!("CARGO_PKG_VERSION"), "cli");
        let shutdown = Shutdown::manual(Duration::ZERO);
        let manager = Manager::new(&broker, &metrics, None, &shutdown, &loaded.config);
        Self(Transport::InProcess(Box::new(InProcess {
            routes: manager.command_line_api(loaded.file.is_some()),
            broker,
            loaded,
        })))
    }

    /// Returns the broker, unless the routes are those of a running manager.
    pub(crate) fn broker(&self) -> Option<&Broker> {
        match &self.0 {
            Transport::Remote(_) => None,
            Transport::InProcess(here) => Some(&here.broker),
        }
    }

    /// Returns the broker, for a verb that no route serves.
    ///
    /// # Errors
    /// The routes are those of a running manager.
    pub(crate) fn require_broker(&self, verb: &str) -> Result<&Broker, CliError> {
        self.broker().ok_or_else(|| not_through_manager(verb))
    }

    /// Returns the configuration, unless the routes are those of a running manager.
    pub(crate) fn configuration(&self) -> Option<&Loaded> {
        match &self.0 {
            Transport::Remote(_) => None,
            Transport::InProcess(here) => Some(&here.loaded),
        }
    }

    /// Requires the managers' configuration of a command line that works on Redis: it decides about what it declares.
    ///
    /// # Errors
    /// The command line has no configuration file.
    pub(crate) fn require_managers_file(&self) -> Result<(), CliError> {
        if let Some(loaded) = self.configuration()
            && loaded.file.is_none()
        {
            let why = "pass --url, or --config with the managers' configuration: it has topic_defaults, and owns what it declares";
            return Err(CliError::Usage(why.to_owned()));
        }
        Ok(())
    }

    /// Creates a request for the scope `read`. `path` is below `/v1`.
    pub(crate) fn get(&self, path: &[&str]) -> Call<'_> {
        self.call(Method::GET, path, Scope::Read)
    }

    /// Creates a request for the scope `operate`.
    pub(crate) fn post(&self, path: &[&str]) -> Call<'_> {
        self.call(Method::POST, path, Scope::Operate)
    }

    /// Creates a request for this scope; `None` is any.
    pub(crate) fn call(
        &self,
        method: Method,
        path: &[&str],
        scope: impl Into<Option<Scope>>,
    ) -> Call<'_> {
        let (url, within) = match &self.0 {
            Transport::Remote(remote) => (remote.url.route(path), remote.timeout),
            Transport::InProcess(_) => (ManagerUrl::in_process().route(path), Duration::MAX),
        };
        Call {
            client: self,
            method,
            url,
            headers: HeaderMap::new(),
            body: Vec::new(),
            scope: scope.into(),
            within,
        }
    }
}

/// One request.
pub(crate) struct Call<'c> {
    client: &'c Client,
    method: Method,
    url: Url,
    headers: HeaderMap,
    body: Vec<u8>,
    scope: Option<Scope>,
    /// The time limit for the response of a running manager.
    within: Duration,
}

impl Call<'_> {
    /// Adds a query parameter, if there is a value.
    pub(crate) fn query(mut self, name: &str, value: Option<impl Display>) -> Self {
        if let Some(value) = value {
            let mut pairs = self.url.query_pairs_mut();
            pairs.append_pair(name, &value.to_string());
            drop(pairs);
        }
        self
    }

    /// Adds a header, if the value is present and valid as one.
    pub(crate) fn header(mut self, name: &'static str, value: Option<&str>) -> Self {
        let value = value.and_then(|value| HeaderValue::from_bytes(value.as_bytes()).ok());
        if let Some(value) = value {
            self.headers.insert(name, value);
        }
        self
    }

    /// Sets the body.
    pub(crate) fn json(mut self, body: &Value) -> Self {
        let json = HeaderValue::from_static("application/json");
        self.headers.insert(CONTENT_TYPE, json);
        self.body = body.to_string().into_bytes();
        self
    }

    /// Waits long for the response: the work grows with the number of messages.
    pub(crate) fn long(mut self) -> Self {
        self.within = self.within.max(LONG);
        self
    }

    /// Extends the time limit by `wait`, the longest time for which the manager delays the response.
    pub(crate) fn waits(mut self, wait: Duration) -> Self {
        self.within = self.within.saturating_add(wait);
        self
    }

    /// Sends the request, and reads its response.
    ///
    /// # Errors
    /// [`CliError::Refused`] for a problem; unavailable without a response.
    pub(crate) async fn answer<T: DeserializeOwned>(self) -> Result<T, CliError> {
        let (_, answer) = self.answer_with_status().await?;
        Ok(answer)
    }

    /// Does the same as [`Call::answer`], and returns the status as well.
    ///
    /// # Errors
    /// As [`Call::answer`].
    pub(crate) async fn answer_with_status<T: DeserializeOwned>(
        self,
    ) -> Result<(StatusCode, T), CliError> {
        let (client, scope) = (self.client, self.scope);
        let (status, body) = match &client.0 {
            Transport::Remote(remote) => {
                let mut request = reqwest::Request::new(self.method, self.url);
                *request.headers_mut() = self.headers;
                *request.body_mut() = Some(self.body.into());
                remote.send(request, self.within).await?
            }
            Transport::InProcess(here) => {
                let mut request = Request::new(Body::from(self.body));
                *request.method_mut() = self.method;
                *request.uri_mut() = self.url.as_str().parse().map_err(std::io::Error::other)?;
                *request.headers_mut() = self.headers;
                here.send(request).await?
            }
        };
        if !status.is_success() {
            let problem = serde_json::from_slice(&body).unwrap_or_default();
            let mut refusal = Refusal::new(status, problem);
            if let Transport::Remote(remote) = &client.0
                && let Some(text) = remote.explain(scope, &refusal)
            {
                refusal.text = text;
            }
            if let Transport::InProcess(here) = &client.0
                && refusal.code() == "internal"
            {
                // If Redis refuses every command, the configuration is wrong, and the exit code says so.
                here.broker.topic_names().await?;
            }
            return Err(CliError::Refused(refusal));
        }
        // A response without content is `()`.
        let body: &[u8] = if body.is_empty() { b"null" } else { &body };
        let answer = serde_json::from_slice(body).map_err(|error| {
            let from = match &client.0 {
                Transport::Remote(remote) => {
                    let url = &remote.url;
                    format!(
                        "manager at {url}: unexpected response, possibly of another version of Lisa"
                    )
                }
                Transport::InProcess(_) => "unexpected response".to_owned(),
            };
            CliError::Failed(format!("{from}: {}", escape(&error.to_string())))
        })?;
        Ok((status, answer))
    }
}

impl InProcess {
    async fn send(&self, request: Request) -> Result<(StatusCode, Vec<u8>), CliError> {
        // The user of this process may do what Redis permits.
        let admitted = Admitted::new(true, None);
        let answered = admitted.scope(self.routes.clone().oneshot(request)).await;
        let response = answered.unwrap_or_else(|never| match never {});
        let status = response.status();
        let body = to_bytes(response.into_body(), usize::MAX).await;
        let body = body.map_err(std::io::Error::other)?;
        Ok((status, body.into()))
    }
}
