//! The protocols of SQS clients, and the errors and answers of the newer one: JSON 1.0 of AWS.
//!
//! An error has a shape, which SDKs turn into an exception, and a code from before JSON, which they report as the code of the
//! error.

use axum::Json;
use axum::body::{Body, to_bytes};
use axum::http::header::CONTENT_TYPE;
use axum::http::request::Parts;
use axum::http::{HeaderName, HeaderValue, Method, StatusCode};
use axum::response::{IntoResponse, Response};
use lisa_core::time::{shorten, shorten_to};
use lisa_producer::SendError;
use lisa_service::http::auth::Scope;
use lisa_service::http::{Problem, ProblemCode, names_action};
use serde::{Deserialize, Deserializer, Serialize};
use serde_json::{Value, json};

use super::{ACTION, query_json, xml};

/// The media type of requests and answers.
pub(super) const MEDIA_TYPE: &str = "application/x-amz-json-1.0";

/// The longest value that an error repeats. SQS repeats those that are too long by a little.
const MAX_SHOWN: usize = 256;

/// The protocol of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Protocol {
    Json,
    /// The older one, with answers in XML.
    Query,
    /// The older one, with answers in JSON, to a client that accepts them.
    QueryInJson,
}

impl Protocol {
    /// Returns the protocol of a request; `None` if it is of neither.
    pub(super) fn of(parts: &Parts) -> Option<Self> {
        match parts.method {
            Method::POST if parts.headers.contains_key(ACTION) => Some(Self::Json),
            Method::GET if !names_action(&parts.uri) => None,
            Method::POST | Method::GET => Some(match query_json::is_accepted(&parts.headers) {
                true => Self::QueryInJson,
                false => Self::Query,
            }),
            _ => None,
        }
    }

    /// Returns true for the older one.
    pub(super) fn is_query(self) -> bool {
        self != Self::Json
    }

    /// Returns the media type of its answers.
    pub(super) const fn media_type(self) -> &'static str {
        match self {
            Self::Json => MEDIA_TYPE,
            Self::Query => xml::MEDIA_TYPE,
            Self::QueryInJson => query_json::MEDIA_TYPE,
        }
    }

    /// Returns the answer to an action, whose result is that of the newer protocol. The name of the action must be known.
    pub(super) fn render(self, action: &str, result: &Value, request: &str) -> String {
        match self {
            Self::Json => result.to_string(),
            Self::Query => xml::render(action, result, request),
            Self::QueryInJson => query_json::render(action, result, request),
        }
    }

    /// Turns an answer of the newer protocol into one of this protocol.
    pub(super) async fn translate(
        self,
        action: &str,
        response: Response,
        request: &str,
    ) -> Result<Response, SqsError> {
        if self == Self::Json {
            return Ok(response);
        }
        let (mut parts, body) = response.into_parts();
        let failed = |error: &dyn std::fmt::Display| {
            tracing::error!(%error, action, "cannot write an answer of the query protocol");
            SqsError::new(Kind::InternalFailure, "The answer cannot be written.")
        };
        // It is in memory.
        let json = to_bytes(body, usize::MAX)
            .await
            .map_err(|error| failed(&error))?;
        let result: Value = serde_json::from_slice(&json).map_err(|error| failed(&error))?;
        let media_type = HeaderValue::from_static(self.media_type());
        parts.headers.insert(CONTENT_TYPE, media_type);
        let text = self.render(action, &result, request);
        Ok(Response::from_parts(parts, Body::from(text)))
    }

    /// Returns the answer with an error.
    pub(super) fn error(self, error: SqsError, request: &str) -> Response {
        let text = match self {
            Self::Json => return error.into_response(),
            Self::Query => xml::error(&error, request),
            Self::QueryInJson => query_json::error(&error, request),
        };
        let media_type = [(CONTENT_TYPE, self.media_type())];
        (error.status(), media_type, text).into_response()
    }
}

/// Defines the kinds of errors: first those of SQS, whose shapes have their names, then those that all services of AWS have.
macro_rules! kinds {
    (
        sqs { $($kind:ident = $code:literal, $status:ident;)+ }
        common { $($common:ident = $shape:literal, $common_code:literal, $common_status:ident;)+ }
    ) => {
        /// The kind of an error.
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub(super) enum Kind {
            $($kind,)+
            $($common,)+
        }

        impl Kind {
            /// Returns the name of the shape, and the code.
            const fn names(self) -> (&'static str, &'static str) {
                match self {
                    $(Self::$kind => (concat!("com.amazonaws.sqs#", stringify!($kind)), $code),)+
                    $(Self::$common => (concat!("com.amazon.coral.service#", $shape), $common_code),)+
                }
            }

            const fn status(self) -> StatusCode {
                match self {
                    $(Self::$kind => StatusCode::$status,)+
                    $(Self::$common => StatusCode::$common_status,)+
                }
            }
        }
    };
}

kinds! {
    sqs {
        BatchEntryIdsNotDistinct = "AWS.SimpleQueueService.BatchEntryIdsNotDistinct", BAD_REQUEST;
        BatchRequestTooLong = "AWS.SimpleQueueService.BatchRequestTooLong", BAD_REQUEST;
        EmptyBatchRequest = "AWS.SimpleQueueService.EmptyBatchRequest", BAD_REQUEST;
        InvalidAttributeName = "InvalidAttributeName", BAD_REQUEST;
        InvalidAttributeValue = "InvalidAttributeValue", BAD_REQUEST;
        InvalidBatchEntryId = "AWS.SimpleQueueService.InvalidBatchEntryId", BAD_REQUEST;
        InvalidMessageContents = "InvalidMessageContents", BAD_REQUEST;
        MessageNotInflight = "AWS.SimpleQueueService.MessageNotInflight", BAD_REQUEST;
        OverLimit = "OverLimit", FORBIDDEN;
        PurgeQueueInProgress = "AWS.SimpleQueueService.PurgeQueueInProgress", FORBIDDEN;
        QueueDeletedRecently = "AWS.SimpleQueueService.QueueDeletedRecently", BAD_REQUEST;
        QueueDoesNotExist = "AWS.SimpleQueueService.NonExistentQueue", BAD_REQUEST;
        QueueNameExists = "QueueAlreadyExists", BAD_REQUEST;
        ReceiptHandleIsInvalid = "ReceiptHandleIsInvalid", BAD_REQUEST;
        RequestThrottled = "RequestThrottled", BAD_REQUEST;
        ResourceNotFoundException = "ResourceNotFoundException", NOT_FOUND;
        TooManyEntriesInBatchRequest = "AWS.SimpleQueueService.TooManyEntriesInBatchRequest", BAD_REQUEST;
        UnsupportedOperation = "AWS.SimpleQueueService.UnsupportedOperation", BAD_REQUEST;
    }
    common {
        AccessDenied = "AccessDeniedException", "AccessDenied", FORBIDDEN;
        IncompleteSignature = "IncompleteSignatureException", "IncompleteSignature", BAD_REQUEST;
        InternalFailure = "InternalFailure", "InternalFailure", INTERNAL_SERVER_ERROR;
        InvalidAction = "UnknownOperationException", "InvalidAction", BAD_REQUEST;
        InvalidClientTokenId = "UnrecognizedClientException", "InvalidClientTokenId", FORBIDDEN;
        MalformedQueryString = "MalformedQueryString", "MalformedQueryString", BAD_REQUEST;
        MissingAction = "MissingAction", "MissingAction", BAD_REQUEST;
        InvalidParameterValue = "InvalidParameterValueException", "InvalidParameterValue", BAD_REQUEST;
        MissingAuthenticationToken = "MissingAuthenticationTokenException", "MissingAuthenticationToken", FORBIDDEN;
        MissingParameter = "MissingRequiredParameterException", "MissingParameter", BAD_REQUEST;
        SerializationException = "SerializationException", "SerializationException", BAD_REQUEST;
        ServiceUnavailable = "ServiceUnavailableException", "ServiceUnavailable", SERVICE_UNAVAILABLE;
        SignatureDoesNotMatch = "InvalidSignatureException", "SignatureDoesNotMatch", FORBIDDEN;
    }
}

/// An error of a request, or of an entry of a batch.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct SqsError {
    pub(super) kind: Kind,
    pub(super) message: String,
}

impl SqsError {
    pub(super) fn new(kind: Kind, message: impl Into<String>) -> Self {
        let message = message.into();
        Self { kind, message }
    }

    /// A parameter that the request lacks.
    pub(super) fn missing(parameter: &str) -> Self {
        let message = format!("The request must contain the parameter {parameter}.");
        Self::new(Kind::MissingParameter, message)
    }

    /// A parameter with a value that is not allowed.
    pub(super) fn parameter(
        parameter: &str,
        value: impl std::fmt::Display,
        reason: impl std::fmt::Display,
    ) -> Self {
        let value = shorten_to(&value.to_string(), MAX_SHOWN);
        let message =
            format!("Value {value} for parameter {parameter} is invalid. Reason: {reason}.");
        Self::new(Kind::InvalidParameterValue, message)
    }

    /// A queue that does not exist.
    pub(super) fn no_queue() -> Self {
        Self::new(
            Kind::QueueDoesNotExist,
            "The specified queue does not exist.",
        )
    }

    /// An action that does not exist.
    pub(super) fn invalid_action(action: &str) -> Self {
        let action = shorten(action);
        let message = format!("The action {action} is not valid for this endpoint.");
        Self::new(Kind::InvalidAction, message)
    }

    /// An action for which a token lacks a scope.
    pub(super) fn lacks_scope(scope: Scope, action: &str) -> Self {
        let message = format!("The token lacks the scope `{scope}`, which {action} requires.");
        Self::new(Kind::AccessDenied, message)
    }

    /// An action that concerns groups which a token does not reach.
    pub(super) fn lacks_groups(action: &str) -> Self {
        let message = format!("The token is limited to some groups, and {action} requires others.");
        Self::new(Kind::AccessDenied, message)
    }

    /// A message to a FIFO queue that has no deduplication id.
    pub(super) fn no_deduplication_id() -> Self {
        let message = "The queue should either have ContentBasedDeduplication enabled or MessageDeduplicationId provided \
            explicitly";
        Self::new(Kind::InvalidParameterValue, message)
    }

    /// A purge of a queue too soon after the last one.
    pub(super) fn purged(queue: &str) -> Self {
        let message =
            format!("Only one PurgeQueue operation on {queue} is allowed every 60 seconds.");
        Self::new(Kind::PurgeQueueInProgress, message)
    }

    /// A message move task on a queue that has a running one.
    pub(super) fn task_runs() -> Self {
        let message = "There is already a task running. Only one active task is allowed for a source queue arn at a given time.";
        Self::new(Kind::InvalidParameterValue, message)
    }

    /// Something that Lisa does not do.
    pub(super) fn unsupported(message: impl Into<String>) -> Self {
        Self::new(Kind::UnsupportedOperation, message)
    }

    /// Returns the code, which clients see.
    pub(super) fn code(&self) -> &'static str {
        self.kind.names().1
    }

    pub(super) fn is_of_sender(&self) -> bool {
        self.kind.status().is_client_error()
    }

    /// Returns the side that made the mistake.
    pub(super) fn fault(&self) -> &'static str {
        match self.is_of_sender() {
            true => "Sender",
            false => "Receiver",
        }
    }

    /// Returns the message in the older protocol.
    pub(super) fn message_of_query(&self) -> &str {
        match self.kind {
            Kind::QueueDoesNotExist => "The specified queue does not exist for this wsdl version.",
            _ => &self.message,
        }
    }

    /// Returns the error as the answer to an entry of a batch.
    pub(super) fn of_entry<'a>(&'a self, id: &'a str) -> FailedEntry<'a> {
        FailedEntry {
            id,
            sender_fault: self.is_of_sender(),
            code: self.code(),
            message: &self.message,
        }
    }

    /// Returns the status of the response.
    pub(super) const fn status(&self) -> StatusCode {
        self.kind.status()
    }
}

/// An entry of a batch that failed.
#[derive(Debug, Serialize)]
#[serde(rename_all = "PascalCase")]
pub(super) struct FailedEntry<'a> {
    id: &'a str,
    sender_fault: bool,
    code: &'static str,
    message: &'a str,
}

impl IntoResponse for SqsError {
    fn into_response(self) -> Response {
        let (shape, code) = self.kind.names();
        let fault = self.fault();
        let body = json!({ "__type": shape, "message": self.message });
        let mut response = respond(self.kind.status(), &body);
        let query = HeaderValue::try_from(format!("{code};{fault}")).expect("visible ASCII");
        let name = HeaderName::from_static("x-amzn-query-error");
        response.headers_mut().insert(name, query);
        response
    }
}

/// Reads a member that is null if the client's library has no value for it, which counts as absent.
pub(super) fn or_default<'de, D: Deserializer<'de>, T: Default + Deserialize<'de>>(
    from: D,
) -> Result<T, D::Error> {
    Option::deserialize(from).map(Option::unwrap_or_default)
}

/// Makes a response.
pub(super) fn respond(status: StatusCode, body: &impl Serialize) -> Response {
    (status, [(CONTENT_TYPE, MEDIA_TYPE)], Json(body)).into_response()
}

/// Makes the response to a request that succeeded.
pub(super) fn ok(body: &impl Serialize) -> Response {
    respond(StatusCode::OK, body)
}

impl From<Problem> for SqsError {
    fn from(problem: Problem) -> Self {
        let kind = match problem.code() {
            ProblemCode::UnknownTopic | ProblemCode::NotFound => return Self::no_queue(),
            ProblemCode::Stale | ProblemCode::InvalidDeliveryToken => Kind::ReceiptHandleIsInvalid,
            ProblemCode::Internal => Kind::InternalFailure,
            ProblemCode::Unavailable | ProblemCode::Indeterminate => Kind::ServiceUnavailable,
            _ => Kind::InvalidParameterValue,
        };
        Self::new(kind, problem.detail())
    }
}

impl From<SendError> for SqsError {
    fn from(error: SendError) -> Self {
        let kind = match &error {
            SendError::UnknownTopic(_) | SendError::BeingRemoved(_) => return Self::no_queue(),
            SendError::Full | SendError::OverQuota { .. } | SendError::RedisFull => {
                Kind::RequestThrottled
            }
            SendError::Unavailable(_)
            | SendError::Busy { .. }
            | SendError::Indeterminate { .. } => Kind::ServiceUnavailable,
            SendError::Refused(_) | SendError::Unreadable(_) => {
                tracing::error!(%error, "cannot send a message of an SQS client");
                Kind::InternalFailure
            }
            _ => Kind::InvalidParameterValue,
        };
        Self::new(kind, error.to_string())
    }
}

#[cfg(test)]
mod tests {
    use axum::body::to_bytes;

    use super::*;

    #[tokio::test]
    async fn an_error_has_the_names_that_sdks_read() {
        let error = SqsError::new(Kind::QueueDoesNotExist, "no \"queue\"");
        let response = error.clone().into_response();
        assert_eq!(response.status(), StatusCode::BAD_REQUEST);
        let header = |name: &str| response.headers()[name].to_str().unwrap().to_owned();
        assert_eq!(
            header("x-amzn-query-error"),
            "AWS.SimpleQueueService.NonExistentQueue;Sender"
        );
        assert_eq!(header("content-type"), MEDIA_TYPE);
        let body = to_bytes(response.into_body(), 1000).await.unwrap();
        let body: serde_json::Value = serde_json::from_slice(&body).unwrap();
        assert_eq!(
            body,
            json!({"__type": "com.amazonaws.sqs#QueueDoesNotExist", "message": "no \"queue\""})
        );
        let common = SqsError::missing("QueueUrl").into_response();
        let body = to_bytes(common.into_body(), 1000).await.unwrap();
        let body: serde_json::Value = serde_json::from_slice(&body).unwrap();
        let shape = "com.amazon.coral.service#MissingRequiredParameterException";
        assert_eq!(body["__type"], shape);
        let entry = serde_json::to_value(error.of_entry("a")).unwrap();
        assert_eq!(entry["Code"], "AWS.SimpleQueueService.NonExistentQueue");
        assert_eq!(entry["SenderFault"], true);
    }

    #[test]
    fn a_full_topic_and_an_outage_are_worth_a_retry_by_the_sdk() {
        assert_eq!(SqsError::from(SendError::Full).kind, Kind::RequestThrottled);
        let busy = SqsError::from(SendError::Busy { limit: 1 });
        assert_eq!(busy.kind.status(), StatusCode::SERVICE_UNAVAILABLE);
        assert!(!busy.is_of_sender());
        let stale = Problem::new(ProblemCode::Stale, "x");
        assert_eq!(SqsError::from(stale).kind, Kind::ReceiptHandleIsInvalid);
        let large = SendError::TooLarge { size: 2, limit: 1 };
        assert_eq!(SqsError::from(large).kind, Kind::InvalidParameterValue);
    }
}
