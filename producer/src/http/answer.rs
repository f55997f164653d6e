//! The JSON responses of the producer's routes.

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use bytes::Bytes;
use lisa_core::broker::BrokerError;
use lisa_core::durability::Durability;
use lisa_core::message::{Headers, MessageId, Record};
use lisa_core::openapi::one_of;
use lisa_core::state::{Blocked, End, SendOutcome};
use lisa_core::time::UnixMs;
use lisa_core::topic::Group;
use lisa_service::http::{Problem, ProblemCode};
use serde::Serialize;
use utoipa::ToSchema;
use utoipa::openapi::schema::Object;

use crate::error::SendError;
use crate::receipt::Receipt;

/// The outcome of a reschedule.
const RESCHEDULED: &str = "rescheduled";

/// A message that was accepted.
#[derive(Serialize, ToSchema)]
pub(super) struct Sent<'a> {
    /// The id of the message that stands: for a merged send, that of the earlier message, which may have ended since.
    id: &'a str,
    /// Its topic; absent in the results of a batch.
    #[serde(skip_serializing_if = "Option::is_none")]
    topic: Option<&'a str>,
    /// Its due time; null if it is no longer waiting.
    due_at: Option<String>,
    /// The outcome: `rescheduled` for a reschedule, any other for a send.
    #[schema(schema_with = outcomes)]
    outcome: &'static str,
    /// For a duplicate of a message that has ended, its end: nothing will be delivered under this id. A duplicate of a
    /// cancelled message is refused with 409. A repeat of a merged message is `merged` again, without `ended`; it is a
    /// duplicate that ended `merged` only if the message it was merged into is no longer known.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(schema_with = ends, required = false)]
    ended: Option<&'static str>,
    /// The durability reached, `aof` or `replicas:N`; if absent, the message is in the memory of Redis.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Durability, required = false)]
    durability: Option<Durability>,
}

/// Returns the schema of the outcomes of [`Sent`]. A refused send is a problem.
fn outcomes() -> Object {
    let refused = [SendOutcome::Full, SendOutcome::ReplaceConflict];
    let accepted = SendOutcome::ALL
        .iter()
        .filter(|outcome| !refused.contains(outcome));
    one_of(
        accepted
            .map(|outcome| outcome.as_str())
            .chain([RESCHEDULED]),
    )
}

/// Returns the schema of the ends of a duplicate. A duplicate of a cancelled message is a problem.
fn ends() -> Object {
    let ends = End::ALL.iter().filter(|end| **end != End::Cancelled);
    one_of(ends.map(|end| end.as_str()))
}

impl<'a> Sent<'a> {
    pub(super) fn new(receipt: &'a Receipt, topic: Option<&'a str>) -> Self {
        Self {
            id: receipt.id.as_str(),
            topic,
            due_at: receipt.due.map(|due| due.to_string()),
            outcome: receipt.outcome.as_str(),
            ended: receipt.ended.map(End::as_str),
            durability: Some(receipt.durability).filter(|safe| *safe != Durability::Memory),
        }
    }

    pub(super) fn rescheduled(id: &'a str, topic: &'a str, due: UnixMs) -> Self {
        Self {
            id,
            topic: Some(topic),
            due_at: Some(due.to_string()),
            outcome: RESCHEDULED,
            ended: None,
            durability: None,
        }
    }
}

/// Returns a payload as text if it is UTF-8, or else in base64.
fn text_or_base64(payload: &Bytes) -> (Option<String>, Option<String>) {
    match std::str::from_utf8(payload) {
        Ok(text) => (Some(text.to_owned()), None),
        Err(_) => (None, Some(STANDARD.encode(payload))),
    }
}

/// The outcome of a cancel.
const CANCELLED: &str = "cancelled";

/// A cancelled message with its headers and payload, which are absent if this was a repeat, or if the token lacks the scope
/// `read`.
#[derive(Serialize, ToSchema)]
pub(super) struct Cancelled<'a> {
    id: &'a str,
    topic: &'a str,
    #[schema(schema_with = cancelled)]
    outcome: &'static str,
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Headers, required = false)]
    headers: Option<Headers>,
    /// The payload, if it is UTF-8.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = String, required = false)]
    payload: Option<String>,
    /// Any other payload, in base64 with padding.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = String, required = false)]
    payload_base64: Option<String>,
    /// The groups that had moved it to garbage (dead letters) before: their copies stay there, and a requeue there runs a
    /// handler.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    #[schema(required = false)]
    in_garbage: Vec<Group>,
}

/// Returns the schema of the outcome of [`Cancelled`].
fn cancelled() -> Object {
    one_of([CANCELLED])
}

impl<'a> Cancelled<'a> {
    pub(super) fn new(
        id: &'a str,
        topic: &'a str,
        record: Option<Record>,
        in_garbage: Vec<Group>,
    ) -> Self {
        let payload = record.as_ref().map(|record| &record.payload);
        let (payload, payload_base64) = payload.map_or((None, None), text_or_base64);
        Self {
            id,
            topic,
            outcome: CANCELLED,
            headers: record.map(|record| record.headers),
            payload,
            payload_base64,
            in_garbage,
        }
    }
}

/// Converts an error to a response. Details that only an operator should see go to the log, not to the client.
pub fn problem(error: SendError) -> Problem {
    use ProblemCode as Code;
    let text = error.to_string();
    match error {
        SendError::TooLarge { .. } => Problem::new(Code::TooLarge, &*text).error("payload", text),
        SendError::UnknownTopic(_) | SendError::BeingRemoved(_) => {
            Problem::new(Code::UnknownTopic, text)
        }
        SendError::Invalid(invalid) => {
            Problem::new(Code::Invalid, text).error(invalid.field, invalid.detail)
        }
        SendError::Encode(_) => Problem::new(Code::Invalid, text),
        SendError::Full | SendError::OverQuota { .. } | SendError::RedisFull => {
            Problem::new(Code::Full, text)
        }
        SendError::ReplaceConflict { id, blocked } => {
            let code = match blocked {
                Blocked::InFlight => Code::InFlight,
                Blocked::Garbage => Code::Garbage,
                Blocked::Unknown => Code::UnknownMessage,
            };
            Problem::new(code, text).id(id.as_str())
        }
        SendError::Unavailable(error) => {
            tracing::debug!(%error, "unavailable");
            let why = match &*error {
                BrokerError::Changing(_) | BrokerError::Undeclared(_) => error.to_string(),
                _ => "Redis unavailable".to_owned(),
            };
            Problem::new(Code::Unavailable, format!("{why}: nothing was done"))
        }
        SendError::Busy { .. } => Problem::new(Code::Unavailable, text),
        SendError::Indeterminate { id, stored, .. } => {
            let problem = Problem::new(Code::Indeterminate, text).id(id.as_str());
            if stored { problem.stored() } else { problem }
        }
        SendError::Refused(error) => {
            tracing::error!(%error, "Redis refused a request");
            Problem::new(
                Code::Unavailable,
                "Redis refused the request; see the server's log",
            )
        }
        SendError::Unreadable(error) => {
            tracing::error!(%error, "cannot read a stored message");
            Problem::new(Code::Internal, text)
        }
    }
}

/// Refuses the receipt of a send that will not be delivered because a message with its id was cancelled.
///
/// # Errors
/// The problem `cancelled`.
pub fn standing(receipt: Receipt) -> Result<Receipt, Problem> {
    if receipt.ended != Some(End::Cancelled) {
        return Ok(receipt);
    }
    let id = &receipt.id;
    let detail = format!(
        "message {id} was cancelled and will not be delivered; Lisa-Even-If-Cancelled: true sends it again"
    );
    let problem = Problem::new(ProblemCode::Cancelled, detail).id(id.as_str());
    Err(problem.ended(End::Cancelled))
}

/// Returns the [`problem`] with the id of the message concerned, so that the client can repeat the send with it.
pub(super) fn problem_with(error: SendError, id: &MessageId) -> Problem {
    // An error about a message that may be stored names its id itself: the topic may have influenced it.
    let nameless = error.is_retryable() && !matches!(error, SendError::Indeterminate { .. });
    let problem = problem(error);
    if nameless {
        problem.id(id.as_str())
    } else {
        problem
    }
}

#[cfg(test)]
mod tests {
    use axum::response::IntoResponse;

    use super::*;

    #[test]
    fn a_full_topic_asks_for_a_retry_and_names_the_id_to_repeat() {
        let id = MessageId::generate();
        let problem = problem_with(SendError::Full, &id);
        let json = serde_json::to_value(&problem).unwrap();
        assert_eq!(
            (&json["code"], &json["id"]),
            (&"full".into(), &id.as_str().into())
        );
        let response = problem.into_response();
        assert_eq!(response.status(), 429);
        assert_eq!(response.headers()["retry-after"], "1");
    }

    #[test]
    fn a_send_of_a_cancelled_id_is_not_said_to_have_stored_nothing() {
        // The reply to an earlier send of it may have been lost.
        let receipt = Receipt {
            id: "order-7".parse().unwrap(),
            due: None,
            outcome: SendOutcome::Duplicate,
            ended: Some(End::Cancelled),
            durability: Durability::Memory,
        };
        let refused = standing(receipt).unwrap_err();
        let expected = "message order-7 was cancelled and will not be delivered; \
                        Lisa-Even-If-Cancelled: true sends it again";
        assert_eq!(refused.detail(), expected);
    }

    #[test]
    fn a_topic_that_is_not_declared_yet_is_unavailable_for_now() {
        let undeclared = BrokerError::Undeclared("orders".parse().unwrap());
        let problem = problem(SendError::of_call(undeclared.into()));
        assert_eq!(
            problem.detail(),
            "topic orders is not declared yet: nothing was done"
        );
        let response = problem.into_response();
        assert_eq!(response.status(), 503);
        assert_eq!(response.headers()["retry-after"], "1");
    }

    #[test]
    fn a_full_redis_is_not_called_a_full_topic() {
        let json = serde_json::to_value(problem(SendError::RedisFull)).unwrap();
        assert_eq!(
            (&json["code"], &json["title"]),
            (&"full".into(), &"full".into())
        );
        assert!(json["detail"].as_str().unwrap().contains("Redis"), "{json}");
    }

    #[test]
    fn what_is_not_replaced_says_why_and_which() {
        let sent = MessageId::generate();
        for (blocked, status, code) in [
            (Blocked::InFlight, 409, "in_flight"),
            (Blocked::Garbage, 409, "garbage"),
            (Blocked::Unknown, 404, "unknown_message"),
        ] {
            let id = "old".parse().unwrap();
            let problem = problem_with(SendError::ReplaceConflict { id, blocked }, &sent);
            assert!(problem.detail().contains("old"), "{}", problem.detail());
            let json = serde_json::to_value(&problem).unwrap();
            assert_eq!((&json["code"], &json["id"]), (&code.into(), &"old".into()));
            assert_eq!(problem.into_response().status(), status);
        }
    }

    #[test]
    fn a_message_that_may_be_stored_is_named_by_the_id_it_was_sent_under() {
        let (described, sent) = (MessageId::generate(), MessageId::generate());
        let problem = problem_with(
            SendError::Indeterminate {
                id: sent.clone(),
                why: "no answer".to_owned(),
                stored: false,
            },
            &described,
        );
        let json = serde_json::to_value(&problem).unwrap();
        assert_eq!(json["id"], sent.as_str());
        assert!(json.get("stored").is_none(), "{json}");
    }
}
