//! The producer over HTTP: raw bodies and headers for single messages, NDJSON for batches.
//!
//! It reads requests and writes answers; what a send means is the library's. Listener, operators' routes and limits of
//! connections belong to [`lisa_shared::role`].

mod answer;
mod batch;
mod by_key;
mod description;
pub(crate) mod headers;
mod message;

use std::time::Duration;

pub(crate) use answer::{problem, standing};
pub use description::complete;

use axum::middleware::from_fn_with_state;
use axum::routing::get;
use axum::{Json, Router};
use lisa_shared::http::Reads;
use lisa_shared::http::auth::{Scope, TokenSet};
use lisa_shared::http::body::BodyLimits;
use utoipa::openapi::{InfoBuilder, OpenApi, OpenApiBuilder};
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

use crate::producer::Producer;

/// What every handler needs.
#[derive(Clone, Debug)]
struct Api {
    producer: Producer,
    bodies: BodyLimits,
}

/// Gives the producer's routes and their description, to be served beside another role's.
///
/// `body_timeout` bounds the arrival of a body, and of each line of a batch. `reads` are the bounds of all routes of the
/// process that only read.
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
        .routes(routes!(message::deliver_now))
        .route_layer(tokens.require(Scope::Send));
    let read = OpenApiRouter::new()
        .routes(routes!(message::get_message))
        .route_layer(from_fn_with_state(reads.clone(), Reads::bound))
        .route_layer(tokens.require(Scope::Read));
    let api = Api {
        producer,
        bodies: BodyLimits::new(body_timeout),
    };
    OpenApiRouter::with_openapi(description())
        .merge(send)
        .merge(read)
        .with_state(api)
        .split_for_parts()
}

/// Gives the producer's routes with `/openapi.json`, for a listener of their own. The description is open to everyone.
pub fn router(producer: Producer, tokens: &TokenSet, body_timeout: Duration) -> Router {
    let (router, description) = routes(producer, tokens, body_timeout, &Reads::default());
    let description = complete(&description, tokens);
    router.route("/openapi.json", get(async move || Json(description)))
}

fn description() -> OpenApi {
    let info = InfoBuilder::new()
        .title("Lisa")
        .version(env!("CARGO_PKG_VERSION"))
        .description(Some(
            "A delay relay: send a message now, have it delivered when it is due.",
        ))
        .build();
    OpenApiBuilder::new().info(info).build()
}
