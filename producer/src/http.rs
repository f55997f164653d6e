//! The producer's HTTP interface: raw bodies and headers for single messages, NDJSON for batches.
//!
//! It parses requests and writes responses; the library implements the operations. The listener, the operators' routes and
//! the connection limits belong to [`lisa_service::role`].

mod answer;
mod batch;
mod by_key;
pub(crate) mod headers;
mod message;

use std::time::Duration;

pub use answer::{problem, standing};

use axum::Router;
use axum::middleware::from_fn_with_state;
use lisa_core::message::MessageId;
use lisa_service::http::auth::{Scope, TokenSet};
use lisa_service::http::body::BodyLimits;
use lisa_service::http::client::Client;
use lisa_service::http::client::may_learn_names;
use lisa_service::http::{Problem, ProblemCode, ReadSlot, Reads, Unread, WithoutQuery};
use lisa_service::http::{describe, with_description};
use utoipa::openapi::OpenApi;
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

use crate::error::SendError;
use crate::message_ref::MessageRef;
use crate::producer::Producer;

/// The state of the handlers.
#[derive(Clone, Debug)]
struct Api {
    producer: Producer,
    bodies: BodyLimits,
    searches: Reads,
}

impl Api {
    /// Waits for a slot for a call that searches all shards for its message. Any other call needs none.
    async fn search_slot(
        &self,
        topic: &str,
        message: &MessageRef,
    ) -> Result<Option<ReadSlot>, Problem> {
        match self.producer.searches(topic, message).await {
            true => Ok(Some(self.searches.begin(Client::current()).await?)),
            false => Ok(None),
        }
    }

    /// Returns the [`problem`] for an error. One about an unknown topic suggests the nearest known topic, if the client may
    /// read.
    fn problem(&self, error: SendError) -> Problem {
        match &error {
            SendError::UnknownTopic(topic) => {
                let suggestion = match may_learn_names() {
                    true => self.producer.broker().suggest_topic(topic),
                    false => String::new(),
                };
                Problem::new(ProblemCode::UnknownTopic, format!("{error}{suggestion}"))
            }
            _ => problem(error),
        }
    }

    /// Does the same, with the id of the message concerned where the client needs it.
    fn problem_with(&self, error: SendError, id: &MessageId) -> Problem {
        match error {
            SendError::UnknownTopic(_) => self.problem(error),
            _ => answer::problem_with(error, id),
        }
    }
}

/// Returns the producer's routes and their OpenAPI description, to be served with those of another role.
///
/// `body_timeout` is the time limit for receiving a body, and each line of a batch. `reads` are the limits of all read-only
/// routes of the process.
pub fn routes(
    producer: Producer,
    tokens: &TokenSet,
    body_timeout: Duration,
    reads: &Reads,
) -> (Router, OpenApi) {
    let send = OpenApiRouter::new()
        .routes(routes!(message::send, by_key::cancel, by_key::reschedule))
        .routes(routes!(batch::send_batch))
        .routes(routes!(message::cancel, message::reschedule))
        .routes(routes!(message::deliver_now));
    let without = WithoutQuery::of(send.get_openapi());
    let send = send
        .route_layer(from_fn_with_state(without, WithoutQuery::refuse))
        // The response to a cancel has the payload.
        .route_layer(from_fn_with_state(reads.unread().clone(), Unread::bound))
        .route_layer(tokens.require(Scope::Send));
    let read = OpenApiRouter::new().routes(routes!(message::get_message));
    let without = WithoutQuery::of(read.get_openapi());
    let read = read
        .route_layer(from_fn_with_state(without, WithoutQuery::refuse))
        .route_layer(from_fn_with_state(reads.clone(), Reads::bound))
        .route_layer(tokens.require(Scope::Read));
    let api = Api {
        producer,
        bodies: BodyLimits::new(body_timeout),
        searches: Reads::of_searches(),
    };
    OpenApiRouter::with_openapi(describe())
        .merge(send)
        .merge(read)
        .with_state(api)
        .split_for_parts()
}

/// Returns the producer's routes and `/openapi.json`, for a separate listener. The description requires no token.
pub fn router(producer: Producer, tokens: &TokenSet, body_timeout: Duration) -> Router {
    let (router, description) = routes(producer, tokens, body_timeout, &Reads::default());
    with_description(router, &description, tokens)
}
