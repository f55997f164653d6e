//! HTTP errors as RFC 9457 problem details with a stable code.
//!
//! Not an error type for Rust callers: the roles convert their own errors into a [`Problem`] when they respond.

use std::fmt::Display;
use std::time::Duration;

use axum::body::Body;
use axum::http::header::{CONTENT_TYPE, RETRY_AFTER};
use axum::http::{HeaderValue, StatusCode};
use axum::response::{IntoResponse, Response};
use serde::{Serialize, Serializer};
use utoipa::ToSchema;

use lisa_core::fields::FieldProblem;
use lisa_core::message::MessageId;
use lisa_core::state::{End, Ended};
use lisa_core::time::shorten_to;

/// The media type of a problem.
pub const PROBLEM_JSON: &str = "application/problem+json";
/// The most invalid fields that a problem lists.
const MAX_FIELDS: usize = 32;
/// The most characters of the name of an invalid field.
const MAX_FIELD: usize = 128;
/// The most bytes of a text of a brief problem.
const MAX_BRIEF: usize = 160;

/// The kind of a problem. Clients may rely on it: codes and statuses never change their meaning.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum ProblemCode {
    /// The request violates HTTP itself.
    Malformed,
    /// A value is malformed or out of bounds.
    Invalid,
    /// The topic is not configured.
    UnknownTopic,
    /// The message, group or job does not exist, or no longer exists.
    NotFound,
    /// The message to replace does not exist, or no longer exists.
    UnknownMessage,
    /// No route has this path.
    UnknownRoute,
    /// The route does not support this method.
    MethodNotAllowed,
    /// A consumer holds the message.
    InFlight,
    /// The message is in garbage (dead letters).
    Garbage,
    /// A message with this id was cancelled, and its tombstone still exists.
    Cancelled,
    /// The configuration of the managers declares the topic; nothing was done.
    DeclaredInFile,
    /// The topic has messages; nothing was done.
    NotEmpty,
    /// The topic does not meet `If-Match` or `If-None-Match`; nothing was done.
    PreconditionFailed,
    /// The same kind of operation is already in progress, or the limit of things of this kind is reached; nothing was done.
    Busy,
    /// The topic would exceed the quota of the token; nothing was done.
    Quota,
    /// The delivery lost its lease, or is already settled; nothing was done.
    Stale,
    /// The payload or the body exceeds its limit.
    TooLarge,
    /// The route does not accept the media type of the body.
    UnsupportedMediaType,
    /// The topic has reached its limits, or Redis its memory limit; nothing was stored.
    Full,
    /// The request has no valid token.
    Unauthorized,
    /// The token of a delivery is malformed, was altered, or was not made by a gateway of this relay.
    InvalidDeliveryToken,
    /// The token lacks the scope that the route requires, or does not reach what the request is about.
    Forbidden,
    /// A page of another origin may have sent the request.
    CrossSite,
    /// The host in the request may belong to somebody else.
    HostNotAllowed,
    /// Redis is unavailable, or the process is overloaded or draining; nothing was done.
    Unavailable,
    /// Redis did not confirm the operation in time. It may or may not have happened; repeat it with the same id.
    Indeterminate,
    /// The client did not send its request in time.
    Timeout,
    /// A bug in the server.
    Internal,
    /// The request target and headers exceed their limit.
    HeaderTooLarge,
}

impl ProblemCode {
    /// Returns the code as written in responses and documentation.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        self.row().0
    }

    /// Returns the HTTP status of the code.
    #[must_use]
    pub fn status(self) -> StatusCode {
        self.row().1
    }

    /// Returns the code that best fits a bare status.
    #[must_use]
    pub fn of_status(status: StatusCode) -> Self {
        match status {
            StatusCode::UNAUTHORIZED => Self::Unauthorized,
            StatusCode::FORBIDDEN => Self::Forbidden,
            StatusCode::NOT_FOUND => Self::NotFound,
            StatusCode::METHOD_NOT_ALLOWED => Self::MethodNotAllowed,
            StatusCode::REQUEST_TIMEOUT => Self::Timeout,
            StatusCode::PAYLOAD_TOO_LARGE => Self::TooLarge,
            StatusCode::UNSUPPORTED_MEDIA_TYPE => Self::UnsupportedMediaType,
            StatusCode::TOO_MANY_REQUESTS => Self::Full,
            StatusCode::REQUEST_HEADER_FIELDS_TOO_LARGE => Self::HeaderTooLarge,
            StatusCode::SERVICE_UNAVAILABLE => Self::Unavailable,
            status if status.is_client_error() => Self::Invalid,
            _ => Self::Internal,
        }
    }

    fn title(self) -> &'static str {
        self.row().2
    }

    fn row(self) -> (&'static str, StatusCode, &'static str) {
        use StatusCode as S;
        match self {
            Self::Malformed => ("malformed", S::BAD_REQUEST, "malformed request"),
            Self::Invalid => ("invalid", S::UNPROCESSABLE_ENTITY, "invalid request"),
            Self::UnknownTopic => ("unknown_topic", S::NOT_FOUND, "unknown topic"),
            Self::Cancelled => ("cancelled", S::CONFLICT, "message was cancelled"),
            Self::NotFound => ("not_found", S::NOT_FOUND, "not found"),
            Self::UnknownMessage => ("unknown_message", S::NOT_FOUND, "unknown message"),
            Self::UnknownRoute => ("unknown_route", S::NOT_FOUND, "no such route"),
            Self::MethodNotAllowed => (
                "method_not_allowed",
                S::METHOD_NOT_ALLOWED,
                "method not allowed",
            ),
            Self::InFlight => ("in_flight", S::CONFLICT, "message is in flight"),
            Self::Garbage => ("garbage", S::CONFLICT, "message is in garbage"),
            Self::Stale => ("stale", S::CONFLICT, "delivery is stale"),
            Self::DeclaredInFile => (
                "declared_in_file",
                S::CONFLICT,
                "declared in the configuration",
            ),
            Self::NotEmpty => ("not_empty", S::CONFLICT, "topic has messages"),
            Self::PreconditionFailed => (
                "precondition_failed",
                S::PRECONDITION_FAILED,
                "precondition failed",
            ),
            Self::Busy => ("busy", S::CONFLICT, "already in progress"),
            Self::Quota => ("quota", S::CONFLICT, "quota exceeded"),
            Self::TooLarge => ("too_large", S::PAYLOAD_TOO_LARGE, "too large"),
            Self::UnsupportedMediaType => (
                "unsupported_media_type",
                S::UNSUPPORTED_MEDIA_TYPE,
                "unsupported media type",
            ),
            Self::Full => ("full", S::TOO_MANY_REQUESTS, "full"),
            Self::Unauthorized => ("unauthorized", S::UNAUTHORIZED, "no valid token"),
            Self::InvalidDeliveryToken => (
                "invalid_delivery_token",
                S::UNAUTHORIZED,
                "delivery token is not valid",
            ),
            Self::Forbidden => ("forbidden", S::FORBIDDEN, "not allowed by the token"),
            Self::CrossSite => ("cross_site", S::FORBIDDEN, "cross-site request"),
            Self::HostNotAllowed => ("host_not_allowed", S::FORBIDDEN, "host not allowed"),
            Self::Unavailable => ("unavailable", S::SERVICE_UNAVAILABLE, "unavailable"),
            Self::Indeterminate => ("indeterminate", S::SERVICE_UNAVAILABLE, "outcome unknown"),
            Self::Timeout => (
                "timeout",
                S::REQUEST_TIMEOUT,
                "request not received in time",
            ),
            Self::Internal => ("internal", S::INTERNAL_SERVER_ERROR, "internal error"),
            Self::HeaderTooLarge => (
                "header_too_large",
                S::REQUEST_HEADER_FIELDS_TOO_LARGE,
                "headers too large",
            ),
        }
    }
}

impl Serialize for ProblemCode {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(self.as_str())
    }
}

/// One invalid field of a request.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, ToSchema)]
pub struct FieldError {
    /// The header name, query parameter or JSON path.
    pub field: String,
    /// The fault and the allowed values.
    pub detail: String,
}

/// An error as RFC 9457 problem details. Also serializes to JSON, for the results of a batch.
#[derive(Clone, Debug, Serialize, ToSchema)]
pub struct Problem {
    /// The code as a URN.
    #[serde(rename = "type")]
    #[schema(value_type = String, pattern = "^urn:lisa:problem:")]
    // Boxed texts keep the type below clippy's size limit for errors.
    kind: Box<str>,
    /// The meaning of the code.
    title: &'static str,
    /// The HTTP status.
    #[schema(minimum = 400, maximum = 599)]
    status: u16,
    /// An explanation of this occurrence.
    #[schema(value_type = String)]
    detail: Box<str>,
    /// The error code. Codes never change their meaning; a later version may add some.
    #[schema(value_type = String)]
    code: ProblemCode,
    /// The affected message.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = String, required = false)]
    id: Option<Box<str>>,
    /// The end of the affected message, if it has ended and Lisa still remembers it.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = End, required = false)]
    ended: Option<End>,
    /// The id of the message that stands for it, if `ended` is merged.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = String, required = false)]
    into: Option<MessageId>,
    /// True with the code indeterminate if the message is stored, and only its durability was not reached. If absent, it is
    /// unknown whether the message is stored.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    #[schema(required = false)]
    stored: bool,
    /// Everything that is wrong with the request.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    #[schema(required = false)]
    errors: Vec<FieldError>,
    /// The value of `Retry-After`, in seconds.
    #[serde(skip)]
    retry_after: Option<u32>,
}

impl Problem {
    /// Creates a problem with a sentence about this occurrence, which must contain no secret and no payload.
    ///
    /// The codes `unavailable`, `indeterminate` and `full` set `Retry-After` to one second.
    #[must_use]
    pub fn new(code: ProblemCode, detail: impl Into<String>) -> Self {
        let passing = matches!(
            code,
            ProblemCode::Unavailable | ProblemCode::Indeterminate | ProblemCode::Full
        );
        Self {
            kind: format!("urn:lisa:problem:{}", code.as_str()).into(),
            title: code.title(),
            status: code.status().as_u16(),
            detail: detail.into().into(),
            code,
            id: None,
            ended: None,
            into: None,
            stored: false,
            errors: Vec::new(),
            retry_after: passing.then_some(1),
        }
    }

    /// Creates the problem of a message that does not exist or has ended.
    #[must_use]
    pub fn no_message(topic: &str, id: impl Display, end: Option<Ended>) -> Self {
        let detail = match &end {
            Some(end) => format!("message {id} has ended: {end}"),
            None => format!(
                "topic {topic} has no message {id}: it was never sent, or it has ended and left no tombstone"
            ),
        };
        let problem = Self::new(ProblemCode::NotFound, detail).id(id.to_string());
        match end {
            Some(end) => problem.ended(end),
            None => problem,
        }
    }

    /// Adds the end of the message.
    #[must_use]
    pub fn ended(mut self, end: impl Into<Ended>) -> Self {
        let Ended { how, into } = end.into();
        self.ended = Some(how);
        self.into = into;
        self
    }

    /// Adds an invalid field.
    #[must_use]
    pub fn error(mut self, field: impl Into<String>, detail: impl Into<String>) -> Self {
        self.errors.push(FieldError {
            field: field.into(),
            detail: detail.into(),
        });
        self
    }

    /// Adds the id of the message, so that a client that did not choose the id can repeat the request with it.
    #[must_use]
    pub fn id(mut self, id: impl Into<String>) -> Self {
        self.id = Some(id.into().into());
        self
    }

    /// Marks the operation as done, but without the requested durability.
    #[must_use]
    pub fn stored(mut self) -> Self {
        self.stored = true;
        self
    }

    /// Sets `Retry-After`, rounded up to whole seconds.
    #[must_use]
    pub fn retry_after(mut self, after: Duration) -> Self {
        let seconds = after.as_millis().div_ceil(1000);
        self.retry_after = Some(u32::try_from(seconds).unwrap_or(u32::MAX));
        self
    }

    /// Shortens its texts, which may repeat a text of the request of any length, and keeps one field. For the results of a batch,
    /// which come many at a time.
    #[must_use]
    pub fn brief(mut self) -> Self {
        self.detail = brief(&self.detail).into();
        self.errors.truncate(1);
        for error in &mut self.errors {
            error.field = brief(&error.field);
            error.detail = brief(&error.detail);
        }
        self
    }

    /// Returns the stable code.
    #[must_use]
    pub fn code(&self) -> ProblemCode {
        self.code
    }

    /// Returns the invalid fields of the request.
    #[must_use]
    pub fn errors(&self) -> &[FieldError] {
        &self.errors
    }

    /// Returns the sentence about this occurrence.
    #[must_use]
    pub fn detail(&self) -> &str {
        &self.detail
    }
}

/// Shortens a text, and replaces control characters, each of which would take six bytes of JSON.
fn brief(text: &str) -> String {
    let mut short = text[..text.floor_char_boundary(MAX_BRIEF)].replace(char::is_control, "?");
    if short.len() < text.len() {
        short.push('…');
    }
    short
}

impl Display for Problem {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.detail)
    }
}

/// Lists what is wrong with the fields of a request: the first 32 problems, each with up to 128 characters of its field. A
/// request may contain any number of fields of any length.
impl From<Vec<FieldProblem>> for Problem {
    fn from(mut problems: Vec<FieldProblem>) -> Self {
        let more = problems.len().saturating_sub(MAX_FIELDS);
        problems.truncate(MAX_FIELDS);
        for problem in &mut problems {
            problem.field = shorten_to(&problem.field, MAX_FIELD);
        }
        let texts = problems
            .iter()
            .map(|problem| format!("{}: {}", problem.field, problem.message));
        let mut texts: Vec<_> = texts.collect();
        if more > 0 {
            texts.push(format!("and {more} more"));
        }
        let problem = Self::new(ProblemCode::Invalid, texts.join("; "));
        problems.into_iter().fold(problem, |problem, of_field| {
            problem.error(of_field.field, of_field.message)
        })
    }
}

impl IntoResponse for Problem {
    fn into_response(self) -> Response {
        let json = serde_json::to_vec(&self).expect("strings and numbers always serialize");
        let mut response = Response::new(Body::from(json));
        *response.status_mut() = self.code.status();
        // For the layers around the routes.
        response.extensions_mut().insert(self.code);
        let headers = response.headers_mut();
        headers.insert(CONTENT_TYPE, HeaderValue::from_static(PROBLEM_JSON));
        if let Some(seconds) = self.retry_after {
            headers.insert(RETRY_AFTER, HeaderValue::from(seconds));
        }
        response
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_problem_has_the_members_of_rfc_9457_and_our_own() {
        let problem = Problem::new(ProblemCode::Invalid, "two values are wrong")
            .error("Lisa-Delay", "not a duration")
            .error("Lisa-Id", "longer than 64");
        let json = serde_json::to_value(&problem).unwrap();
        let expected = serde_json::json!({
            "type": "urn:lisa:problem:invalid",
            "title": "invalid request",
            "status": 422,
            "detail": "two values are wrong",
            "code": "invalid",
            "errors": [
                {"field": "Lisa-Delay", "detail": "not a duration"},
                {"field": "Lisa-Id", "detail": "longer than 64"},
            ],
        });
        assert_eq!(json, expected);
    }

    #[test]
    fn a_list_of_invalid_fields_is_short_however_many_there_are() {
        let problem = |field: String| FieldProblem {
            field,
            value: String::new(),
            message: "wrong".into(),
        };
        let many = (0..1000).map(|n| problem(format!("{n}{}", "x".repeat(1000))));
        let json = serde_json::to_value(Problem::from(many.collect::<Vec<_>>())).unwrap();
        assert_eq!(json["errors"].as_array().unwrap().len(), MAX_FIELDS);
        assert!(json["detail"].as_str().unwrap().ends_with("; and 968 more"));
        assert!(json.to_string().len() < 16 * 1024);
    }

    #[test]
    fn passing_problems_say_when_to_come_back() {
        let response = Problem::new(ProblemCode::Indeterminate, "no answer")
            .id("m1")
            .retry_after(Duration::from_millis(1200))
            .into_response();
        assert_eq!(response.status(), 503);
        assert_eq!(response.headers()[RETRY_AFTER], "2");
        assert_eq!(response.headers()[CONTENT_TYPE], PROBLEM_JSON);
        let plain = Problem::new(ProblemCode::Invalid, "").into_response();
        assert!(!plain.headers().contains_key(RETRY_AFTER));
    }
}
