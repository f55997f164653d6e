//! The responses of a gateway.

use std::io;
use std::pin::Pin;
use std::task::{Context, Poll};

use axum::body::{Body, Bytes, HttpBody};
use axum::http::header::{CACHE_CONTROL, CONTENT_TYPE};
use axum::http::{HeaderMap, HeaderName, HeaderValue};
use axum::response::{IntoResponse, Response};
use base64::display::Base64Display;
use base64::engine::general_purpose::STANDARD;
use hyper::body::{Frame, SizeHint};
use lisa_core::message::{Headers, OrderingKey};
use lisa_service::http::{Problem, ProblemCode};
use serde::{Serialize, Serializer};
use utoipa::ToSchema;

use super::handed::{Handed, Pulled};

/// The media type of the response that is the payload.
pub(super) const OCTETS: &str = "application/octet-stream";

/// The headers of a message that keep their names in a response.
const KEPT: [&str; 3] = ["content-type", "traceparent", "tracestate"];

/// A delivery that was pulled.
#[derive(Serialize, ToSchema)]
#[schema(as = Delivery)]
pub(super) struct DeliveryBody<'a> {
    /// The token with which the delivery is settled. A secret.
    token: &'a str,
    /// The id of the message.
    id: &'a str,
    /// The number of this attempt, from 1.
    attempt: u32,
    /// The number of the last attempt. If it fails, the message goes to garbage (dead letters).
    max_attempts: u32,
    /// The time at which this attempt was due.
    due_at: String,
    /// True if it is later than the topic's `max_lateness`.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    #[schema(required = false)]
    late: bool,
    /// The end of the lease.
    lease_until: String,
    /// The ordering key of the message.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(required = false)]
    key: Option<&'a str>,
    /// The headers of the message.
    #[schema(value_type = std::collections::BTreeMap<String, String>)]
    headers: &'a Headers,
    /// The payload, if it is UTF-8.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(required = false)]
    payload: Option<&'a str>,
    /// The payload in base64, if it is not UTF-8.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(required = false, value_type = String)]
    payload_base64: Option<InBase64<'a>>,
}

impl<'a> DeliveryBody<'a> {
    pub(super) fn new(pulled: &'a Pulled) -> Self {
        let delivery = &pulled.delivery;
        let payload = str::from_utf8(&delivery.payload).ok();
        Self {
            token: &pulled.token,
            id: delivery.id.as_str(),
            attempt: delivery.attempt,
            max_attempts: delivery.max_attempts,
            due_at: delivery.due_at.to_string(),
            late: delivery.late,
            lease_until: pulled.lease_until.to_string(),
            key: pulled.key.as_ref().map(OrderingKey::as_str),
            headers: &delivery.headers,
            payload,
            payload_base64: payload.is_none().then_some(InBase64(&delivery.payload)),
        }
    }
}

/// Bytes that are written in base64, without a copy of it.
struct InBase64<'a>(&'a [u8]);

impl Serialize for InBase64<'_> {
    fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        to.collect_str(&Base64Display::new(self.0, &STANDARD))
    }
}

/// Counts the bytes of a text.
struct Length(usize);

impl io::Write for Length {
    fn write(&mut self, part: &[u8]) -> io::Result<usize> {
        self.0 += part.len();
        Ok(part.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// Writes JSON without a buffer that is larger than the text.
pub(super) fn exact_json(body: &impl Serialize) -> Vec<u8> {
    let mut length = Length(0);
    serde_json::to_writer(&mut length, body).expect(SERIALIZES);
    let mut text = Vec::with_capacity(length.0);
    serde_json::to_writer(&mut text, body).expect(SERIALIZES);
    text
}

const SERIALIZES: &str = "texts and numbers always serialize";

/// A body with deliveries. They are handed back unless the connection takes the body.
pub(super) struct Answer {
    bytes: Option<Bytes>,
    handed: Handed,
}

impl Answer {
    /// Makes a response of JSON, with this media type.
    ///
    /// # Errors
    /// There is no memory for the response. Its deliveries are handed back.
    pub(super) fn json(
        body: &impl Serialize,
        media_type: &'static str,
        mut handed: Handed,
    ) -> Result<Response, Problem> {
        let mut length = Length(0);
        if handed.is_large() {
            serde_json::to_writer(&mut length, body).expect(SERIALIZES);
            handed.reserve_text(length.0)?;
        }
        let mut text = Vec::with_capacity(length.0);
        serde_json::to_writer(&mut text, body).expect(SERIALIZES);
        let mut headers = HeaderMap::new();
        headers.insert(CONTENT_TYPE, HeaderValue::from_static(media_type));
        Self::respond(text.into(), headers, handed)
    }

    /// Makes a response of another text, which is rendered from JSON.
    ///
    /// # Errors
    /// There is no memory for the response. Its deliveries are handed back.
    pub(super) fn text(
        body: &impl Serialize,
        render: impl FnOnce(&serde_json::Value) -> String,
        media_type: &'static str,
        mut handed: Handed,
    ) -> Result<Response, Problem> {
        if handed.is_large() {
            let mut length = Length(0);
            serde_json::to_writer(&mut length, body).expect(SERIALIZES);
            // The JSON and the text.
            handed.reserve_text(2 * length.0)?;
        }
        let json = serde_json::to_value(body).expect(SERIALIZES);
        let text = render(&json);
        drop(json);
        let mut headers = HeaderMap::new();
        headers.insert(CONTENT_TYPE, HeaderValue::from_static(media_type));
        Self::respond(text.into(), headers, handed)
    }

    /// Makes a response that is the payload of a delivery.
    pub(super) fn octets(pulled: &Pulled, handed: Handed) -> Result<Response, Problem> {
        let headers = headers(pulled).map_err(|error| {
            Problem::new(
                ProblemCode::Internal,
                format!("cannot send a header: {error}"),
            )
        })?;
        let payload = pulled.delivery.payload.clone();
        Self::respond(payload, headers, handed)
    }

    fn respond(bytes: Bytes, headers: HeaderMap, mut handed: Handed) -> Result<Response, Problem> {
        let bytes = handed.hold(bytes)?;
        if bytes.is_empty() {
            // A connection does not ask for an empty body.
            handed.delivered();
        }
        let bytes = Some(bytes).filter(|bytes| !bytes.is_empty());
        let body = Body::new(Self { bytes, handed });
        let mut response = (headers, body).into_response();
        // A token must not be kept by caches.
        let no_store = HeaderValue::from_static("no-store");
        response.headers_mut().insert(CACHE_CONTROL, no_store);
        Ok(response)
    }
}

impl HttpBody for Answer {
    type Data = Bytes;
    type Error = axum::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        _: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, axum::Error>>> {
        let bytes = self.bytes.take();
        if bytes.is_some() {
            self.handed.delivered();
        }
        Poll::Ready(bytes.map(|bytes| Ok(Frame::data(bytes))))
    }

    fn is_end_stream(&self) -> bool {
        self.bytes.is_none()
    }

    fn size_hint(&self) -> SizeHint {
        SizeHint::with_exact(self.bytes.as_ref().map_or(0, Bytes::len) as u64)
    }
}

/// Returns the headers of a response that is the payload of a delivery.
fn headers(pulled: &Pulled) -> Result<HeaderMap, axum::http::header::InvalidHeaderValue> {
    let delivery = &pulled.delivery;
    let mut headers = HeaderMap::new();
    headers.insert(CONTENT_TYPE, HeaderValue::from_static(OCTETS));
    for (name, value) in [
        ("lisa-token", pulled.token.as_str()),
        ("lisa-id", delivery.id.as_str()),
        ("lisa-topic", delivery.topic.as_str()),
        ("lisa-group", delivery.group.as_str()),
        ("lisa-attempt", &delivery.attempt.to_string()),
        ("lisa-max-attempts", &delivery.max_attempts.to_string()),
        ("lisa-due-at", &delivery.due_at.to_string()),
        ("lisa-lease-until", &pulled.lease_until.to_string()),
    ] {
        headers.insert(HeaderName::from_static(name), HeaderValue::from_str(value)?);
    }
    if let Some(key) = &pulled.key {
        headers.insert("lisa-key", HeaderValue::from_str(key.as_str())?);
    }
    if delivery.late {
        headers.insert("lisa-late", HeaderValue::from_static("true"));
    }
    for (name, value) in delivery.headers.iter() {
        let name = match KEPT.contains(&name) {
            true => name.to_owned(),
            false => format!("lisa-header-{name}"),
        };
        let name = HeaderName::try_from(name).expect("the names of message headers are tokens");
        headers.insert(name, HeaderValue::from_str(value)?);
    }
    Ok(headers)
}
