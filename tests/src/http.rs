//! A small HTTP client for the roles' listeners: one line per request, and the whole reply as its result.

use crate::tls::{Authority, Identity};
use crate::{SOON, eventually};
use reqwest::header::HeaderMap;
use reqwest::{Certificate, Client, ClientBuilder, Method, RequestBuilder, redirect};
use serde_json::Value;
use std::sync::Once;
use std::time::Duration;

/// The longest wait for a reply.
const PATIENCE: Duration = Duration::from_secs(30);

/// A client of one listener. Clones share its connections.
#[derive(Clone, Debug)]
pub struct Api {
    base: String,
    token: Option<String>,
    client: Client,
}

/// A reply with any status.
#[derive(Clone, Debug)]
pub struct Reply {
    /// The status code.
    pub status: u16,
    /// All headers.
    pub headers: HeaderMap,
    /// The body as text.
    pub body: String,
}

impl Reply {
    /// The body as JSON.
    ///
    /// # Panics
    /// Panics if the body is not JSON; the message has the whole reply.
    #[track_caller]
    pub fn json(&self) -> Value {
        serde_json::from_str(&self.body)
            .unwrap_or_else(|error| panic!("no JSON ({error}): {self:?}"))
    }

    /// Checks the status, and returns the reply.
    ///
    /// # Panics
    /// Panics if the status is another one; the message has the whole reply.
    #[track_caller]
    pub fn expect(self, status: u16) -> Self {
        assert_eq!(self.status, status, "{self:?}");
        self
    }

    /// The value of a header; empty if it is missing or no text.
    pub fn header(&self, name: &str) -> &str {
        let value = self.headers.get(name).and_then(|value| value.to_str().ok());
        value.unwrap_or_default()
    }
}

impl Api {
    /// A client of the listener on this loopback port.
    pub fn new(port: u16) -> Self {
        Self::with("http", port, |builder| builder)
    }

    /// A client of the listener with TLS on this loopback port. It trusts only this authority, presents this certificate,
    /// and follows no redirects.
    ///
    /// # Panics
    /// Panics if the certificates are not PEM.
    pub fn over_tls(port: u16, authority: &Authority, identity: Option<&Identity>) -> Self {
        Self::with("https", port, |builder| {
            let trusted = Certificate::from_pem(authority.pem().as_bytes());
            let builder = builder.redirect(redirect::Policy::none());
            let builder = builder.tls_certs_only([trusted.expect("a certificate")]);
            match identity {
                Some(identity) => {
                    let pem = [&*identity.key, &identity.cert].concat();
                    let identity = reqwest::Identity::from_pem(pem.as_bytes());
                    builder.identity(identity.expect("a certificate with its key"))
                }
                None => builder,
            }
        })
    }

    fn with(scheme: &str, port: u16, set: impl FnOnce(ClientBuilder) -> ClientBuilder) -> Self {
        static PROVIDER: Once = Once::new();
        PROVIDER.call_once(|| {
            // It fails only if the code under test has installed one before; then that one serves.
            let _ = rustls::crypto::ring::default_provider().install_default();
        });
        let client = set(Client::builder().timeout(PATIENCE).no_proxy()).build();
        Self {
            base: format!("{scheme}://{}", crate::port::loopback(port)),
            token: None,
            client: client.expect("the HTTP client is built"),
        }
    }

    /// The host and port of the listener.
    pub fn address(&self) -> &str {
        self.base
            .split_once("://")
            .map_or("", |(_, address)| address)
    }

    /// The URL of the listener, without a path.
    pub fn url(&self) -> &str {
        &self.base
    }

    /// Sends this bearer token with each request.
    pub fn token(mut self, token: &str) -> Self {
        self.token = Some(token.to_owned());
        self
    }

    /// Sends one message to `topic`: the body is its payload, the headers (`Lisa-Delay` …) its options.
    pub async fn send(
        &self,
        topic: &str,
        payload: impl Into<Vec<u8>>,
        headers: &[(&str, &str)],
    ) -> Reply {
        let mut request = self.request(Method::POST, &format!("/v1/topics/{topic}/messages"));
        for (name, value) in headers {
            request = request.header(*name, *value);
        }
        reply(request.body(payload.into())).await
    }

    /// Sends a batch to `topic` and returns the result of each message, in order.
    ///
    /// # Panics
    /// Panics if the whole batch is refused.
    pub async fn batch(&self, topic: &str, messages: &[Value]) -> Vec<Value> {
        let lines: String = messages
            .iter()
            .map(|message| format!("{message}\n"))
            .collect();
        let request = self
            .request(Method::POST, &format!("/v1/topics/{topic}/messages:batch"))
            .header("Content-Type", "application/x-ndjson")
            .body(lines);
        let reply = reply(request).await.expect(200);
        let results: Result<Vec<Value>, _> = reply.body.lines().map(serde_json::from_str).collect();
        results.unwrap_or_else(|error| panic!("no NDJSON ({error}): {reply:?}"))
    }

    /// Gets a path.
    pub async fn get(&self, path: &str) -> Reply {
        reply(self.request(Method::GET, path)).await
    }

    /// Gets a path that must answer 200 with JSON. Repeats it, as clients do, while the server asks for that: on a busy machine
    /// Redis may not answer it in time.
    pub async fn get_json(&self, path: &str) -> Value {
        let read = eventually(SOON, async || match self.get(path).await {
            reply if reply.status == 503 && reply.headers.contains_key("retry-after") => {
                Err(reply.body)
            }
            reply => Ok(reply),
        });
        read.await.expect(200).json()
    }

    /// Sends JSON to a path with any method but GET: `POST`, `PATCH`, `DELETE`; `Value::Null` is no body.
    pub async fn call(&self, method: Method, path: &str, body: &Value) -> Reply {
        let request = self.request(method, path);
        let request = if body.is_null() {
            request
        } else {
            request.json(body)
        };
        reply(request).await
    }

    /// Sends a request without judging the reply: `None` when no listener answers. For waiting until a role is up.
    pub async fn try_get(&self, path: &str) -> Option<Reply> {
        try_reply(self.request(Method::GET, path)).await.ok()
    }

    /// Gets a path without an answer, and returns the reason.
    ///
    /// # Panics
    /// Panics if there is an answer.
    pub async fn refused(&self, path: &str) -> String {
        let reply = try_reply(self.request(Method::GET, path)).await;
        format!("{:?}", reply.expect_err("no answer"))
    }

    /// Builds any other request.
    pub fn request(&self, method: Method, path: &str) -> RequestBuilder {
        let request = self.client.request(method, format!("{}{path}", self.base));
        match &self.token {
            Some(token) => request.bearer_auth(token),
            None => request,
        }
    }
}

/// Sends a request, and reads the reply.
///
/// # Panics
/// Panics without a reply.
pub async fn reply(request: RequestBuilder) -> Reply {
    try_reply(request)
        .await
        .unwrap_or_else(|error| panic!("no reply: {error:?}"))
}

async fn try_reply(request: RequestBuilder) -> reqwest::Result<Reply> {
    let response = request.send().await?;
    Ok(Reply {
        status: response.status().as_u16(),
        headers: response.headers().clone(),
        body: response.text().await?,
    })
}
