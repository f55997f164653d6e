//! The `http` sink: sends each delivery as a webhook, a `POST` as in Standard Webhooks 1.0.0.
//!
//! The body is the payload. The headers are:
//! - `webhook-id`: the message id, the same in every attempt; the receiver's idempotency key
//! - `webhook-timestamp`: the time of the attempt, in Unix seconds
//! - `webhook-signature`: one signature for each secret
//! - `Lisa-Topic`, `Lisa-Group`, `Lisa-Attempt`, `Lisa-Max-Attempts`, `Lisa-Due-At`, and `Lisa-Late: true` if it is late
//! - `Lisa-Fence`: a number that grows with each delivery of the message to the group
//! - with a `complete_url`: `Lisa-Delivery`, the token of the delivery, and `Lisa-Complete-Url`, where to settle it
//! - the message's own headers: `content-type`, `traceparent`, `tracestate` and the `Lisa-Callback-` headers of a callback as
//!   they are, others as `Lisa-Header-<name>`
//! - with spans, `traceparent` and `tracestate` of the delivery; those of the message are then `Lisa-Origin-Traceparent` and
//!   `Lisa-Origin-Tracestate`
//! - the configured headers, unless one of the others has the same name
//!
//! A 2xx is an ack, or with `Lisa-Complete-Later: 30m` a promise to complete the delivery at a gateway within that time. Any other status with `Lisa-Outcome: reject` is a reject, 410 pauses the group, and everything else is a
//! retry. `Retry-After` of 429, 502, 503 and 504 is honored up to an hour, as a retry or as a defer. A server that cannot be
//! reached is a retry or a defer, as `away` says. The sink follows no redirects, ignores proxies of the environment, and
//! keeps connections open for the next delivery. Certificates are checked against the system's roots (or `SSL_CERT_FILE`,
//! `SSL_CERT_DIR`).

mod address;
mod answer;
mod client;
mod signature;
#[cfg(test)]
mod tests;

use std::fmt;
use std::time::{Duration, SystemTime};

use async_trait::async_trait;
use http_body_util::BodyExt;
use hyper::body::Incoming;
use hyper::header::{
    ACCEPT, CONTENT_LENGTH, CONTENT_TYPE, HeaderMap, HeaderName, HeaderValue, InvalidHeaderValue,
    USER_AGENT,
};
use lisa_consumer_core::target::{Answer, Target};
use lisa_consumer_core::{Context, Delivery, Handler, Outcome};
use lisa_core::message::Headers;
use lisa_core::secret::Secret;
use lisa_service::spans::TRACE_HEADERS;
use lisa_service::targets::{RetryAfter, special_host};
pub use lisa_service::webhook::HttpSinkSettings;
use lisa_service::webhook::{MAX_OWN_HEADERS, check_header};
use tokio::time::{Instant, timeout};
use url::Url;

use self::address::{Lookup, Resolver};
use self::answer::Rules;
use self::client::{Client, Failure};
use self::signature::WebhookSecret;
use super::SinkError;

/// The number of bytes that are read of an answer's body.
const MAX_BODY: usize = 64 * 1024;

/// The value of `User-Agent`, unless the settings have one.
const USER: &str = concat!("Lisa/", env!("CARGO_PKG_VERSION"));
/// The time for reading an answer's body, within the timeout of the request. The status has decided by then. The body only
/// explains an error, and reading it frees the connection for the next request.
const BODY_TIME: Duration = Duration::from_secs(2);

/// A sink that sends each delivery as a webhook.
#[derive(Clone)]
pub struct HttpSink {
    client: Client,
    host: String,
    secrets: Vec<WebhookSecret>,
    own_headers: HeaderMap,
    timeout: Duration,
    retry_after: RetryAfter,
    target: Target,
    complete_url: Option<String>,
    max_later: usize,
}

/// Shows only the host of the URL; the rest may hold a token.
impl fmt::Debug for HttpSink {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("HttpSink")
            .field("host", &self.host)
            .finish_non_exhaustive()
    }
}

impl HttpSink {
    /// Creates the sink and its client. Does not connect yet.
    ///
    /// # Errors
    /// [`SinkError::Url`] for a URL that is invalid, or whose host is refused without `allow_private`;
    /// [`SinkError::Secret`] for a malformed key; [`SinkError::Header`] for a header that cannot be sent; [`SinkError::Client`] for an `https` URL if the system has no
    /// root certificates. A name that resolves to a refused address is no error here: each delivery then ends as if the
    /// server could not be reached.
    pub fn new(settings: HttpSinkSettings) -> Result<Self, SinkError> {
        Self::with_lookup(settings, address::system)
    }

    fn with_lookup(settings: HttpSinkSettings, lookup: Lookup) -> Result<Self, SinkError> {
        let url = parse_url(settings.url.expose())?;
        if !settings.allow_private {
            check_host(&url)?;
        }
        let uri = url.as_str().parse();
        let uri = uri.map_err(|error| SinkError::Url(format!("invalid: {error}")))?;
        let resolver = Resolver {
            allow_private: settings.allow_private,
            lookup,
        };
        let client = Client::new(uri, resolver, settings.timeout);
        let secrets = settings.secrets.iter();
        let secrets = secrets.map(|secret| secret.expose().parse());
        Ok(Self {
            client: client.map_err(SinkError::Client)?,
            host: url.host_str().unwrap_or_default().to_owned(),
            own_headers: own_headers(&settings.headers)?,
            secrets: secrets.collect::<Result<_, _>>()?,
            timeout: settings.timeout,
            retry_after: settings.retry_after,
            target: Target::new(settings.target),
            complete_url: settings.complete_url.as_deref().map(gateway).transpose()?,
            max_later: settings.max_later,
        })
    }

    fn headers(
        &self,
        delivery: &Delivery,
        context: &Context,
    ) -> Result<HeaderMap, InvalidHeaderValue> {
        let id = delivery.id.as_str();
        let timestamp = (delivery.delivered_at.get() / 1000).to_string();
        let mut headers = self.own_headers.clone();
        let own = [
            ("webhook-id", id),
            ("webhook-timestamp", &timestamp),
            ("lisa-topic", delivery.topic.as_str()),
            ("lisa-group", delivery.group.as_str()),
            ("lisa-attempt", &delivery.attempt.to_string()),
            ("lisa-max-attempts", &delivery.max_attempts.to_string()),
            ("lisa-due-at", &delivery.due_at.to_string()),
            ("lisa-fence", &delivery.fence().to_string()),
        ];
        for (name, value) in own {
            headers.insert(HeaderName::from_static(name), HeaderValue::from_str(value)?);
        }
        if let (Some(gateway), Some(token)) = (&self.complete_url, context.token()) {
            let url = format!("{gateway}/v1/deliveries/{token}");
            for (name, value) in [("lisa-delivery", token), ("lisa-complete-url", &url)] {
                let mut value = HeaderValue::from_str(value)?;
                value.set_sensitive(true);
                headers.insert(HeaderName::from_static(name), value);
            }
        }
        if delivery.late {
            headers.insert("lisa-late", HeaderValue::from_static("true"));
        }
        if let Some(signature) = signature::sign(&self.secrets, id, &timestamp, &delivery.payload) {
            headers.insert("webhook-signature", HeaderValue::from_str(&signature)?);
        }
        for (name, value) in [(USER_AGENT, USER), (ACCEPT, "*/*")] {
            headers
                .entry(name)
                .or_insert(HeaderValue::from_static(value));
        }
        let unknown = HeaderValue::from_static("application/octet-stream");
        headers.entry(CONTENT_TYPE).or_insert(unknown);
        // The client omits it for an empty body, and some servers then answer 411.
        headers.insert(CONTENT_LENGTH, HeaderValue::from(delivery.payload.len()));
        for (name, value) in context.headers_to_pass_on(delivery) {
            let is_kept = name == "content-type"
                || TRACE_HEADERS.contains(&&*name)
                || Headers::is_reserved(&name);
            let name = match is_kept {
                true => name.into_owned(),
                false => format!("lisa-header-{name}"),
            };
            let name = HeaderName::try_from(name).expect("the names of message headers are tokens");
            headers.insert(name, HeaderValue::from_str(&value)?);
        }
        Ok(headers)
    }
}

/// # Cancel safety
/// Dropping the future closes its connection. The server may still have handled the request.
#[async_trait]
impl Handler for HttpSink {
    async fn handle(&self, delivery: Delivery, context: Context) -> Outcome {
        self.target.outcome(self.post(delivery, &context).await)
    }

    fn max_later(&self) -> Option<usize> {
        self.complete_url.as_ref().map(|_| self.max_later)
    }

    fn target(&self) -> Option<&Target> {
        Some(&self.target)
    }
}

impl HttpSink {
    async fn post(&self, delivery: Delivery, context: &Context) -> Answer {
        let started = Instant::now();
        let headers = match self.headers(&delivery, context) {
            Ok(headers) => headers,
            Err(error) => {
                return Answer::Refused(Outcome::reject(format!("cannot send a header: {error}")));
            }
        };
        let (head, body) = match self.client.post(headers, delivery.payload).await {
            Ok(response) => response.into_parts(),
            Err(Failure::Unreachable(error)) => return Answer::Away(error),
            Err(Failure::Late(error)) => return Answer::Overloaded(Outcome::retry(error)),
            Err(Failure::Broken(error)) => return Answer::Failed(Outcome::retry(error)),
        };
        let left = self.timeout.saturating_sub(started.elapsed());
        let body = read_body(body, left.min(BODY_TIME)).await;
        let now = SystemTime::UNIX_EPOCH
            + Duration::from_millis(delivery.delivered_at.plus(started.elapsed()).get());
        let rules = Rules {
            retry_after: self.retry_after,
            can_be_later: self.complete_url.is_some(),
        };
        answer::answer(head.status, &head.headers, &body, now, rules)
    }
}

/// Reads the start of the body: all that arrives within `limit`, until it ends, breaks or has [`MAX_BODY`] bytes.
async fn read_body(mut incoming: Incoming, limit: Duration) -> Vec<u8> {
    let mut body = Vec::new();
    let read = async {
        while body.len() < MAX_BODY
            && let Some(Ok(frame)) = incoming.frame().await
        {
            if let Some(data) = frame.data_ref() {
                body.extend_from_slice(data);
            }
        }
    };
    // A body that takes too long is used as far as it was read.
    let _ = timeout(limit, read).await;
    body
}

/// Checks the configured headers and returns them, marked as sensitive.
fn own_headers(given: &[(String, Secret)]) -> Result<HeaderMap, SinkError> {
    let refused = |name: &str, why: &str| SinkError::Header {
        name: name.to_owned(),
        why: why.to_owned(),
    };
    let mut headers = HeaderMap::new();
    for (name, value) in given {
        check_header(name, value.expose()).map_err(|why| refused(name, &why))?;
        let invalid = |_| refused(name, "not the name of a header");
        let header = HeaderName::from_bytes(name.as_bytes()).map_err(invalid)?;
        let invalid = |_| refused(name, "not the value of a header");
        let mut value = HeaderValue::from_str(value.expose()).map_err(invalid)?;
        value.set_sensitive(true);
        if headers.insert(header, value).is_some() {
            return Err(refused(name, "set twice"));
        }
    }
    match given.get(MAX_OWN_HEADERS) {
        Some((name, _)) => Err(refused(name, "more than 32 headers")),
        None => Ok(headers),
    }
}

/// Refuses a host that is known to be outside the public internet. The client does not call the resolver for addresses.
fn check_host(url: &Url) -> Result<(), SinkError> {
    match special_host(url.host_str().unwrap_or_default()) {
        Some(reason) => Err(SinkError::Url(reason)),
        None => Ok(()),
    }
}

/// Checks the URL of a gateway, and returns it without a slash at its end.
fn gateway(text: &str) -> Result<String, SinkError> {
    let url = parse_url(text)?;
    if url.query().is_some() || url.fragment().is_some() {
        let reason = "the URL of a gateway must not have a query or a fragment";
        return Err(SinkError::Url(reason.to_owned()));
    }
    Ok(url.as_str().trim_end_matches('/').to_owned())
}

fn parse_url(text: &str) -> Result<Url, SinkError> {
    let url = Url::parse(text).map_err(|error| SinkError::Url(format!("invalid: {error}")))?;
    if !matches!(url.scheme(), "http" | "https") {
        let reason = "must start with http:// or https://";
        return Err(SinkError::Url(reason.to_owned()));
    }
    if !url.username().is_empty() || url.password().is_some() {
        let reason = "must not contain credentials; sign with a secret instead";
        return Err(SinkError::Url(reason.to_owned()));
    }
    Ok(url)
}
