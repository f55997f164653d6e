//! The manager's HTTP interface: what operators see and do.
//!
//! Only routes, their scopes and their errors; what they ask is the broker's, and the listener is shared with others.

mod doctor;
mod garbage;
mod groups;
mod jobs;
mod schedules;
mod topics;

use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::middleware::from_fn_with_state;
use lisa_shared::broker::{Broker, BrokerError, TopicHandle};
use lisa_shared::config::Config;
use lisa_shared::http::auth::{Scope, TokenSet};
use lisa_shared::http::body::BodyLimits;
use lisa_shared::http::{Problem, ProblemCode, Reads};
use lisa_shared::link::LinkErrorKind;
use lisa_shared::topic::{Group, Topic};
use tokio::sync::Mutex;
use utoipa::openapi::{InfoBuilder, OpenApi, OpenApiBuilder};
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

use crate::group::{self, GroupError};
use crate::schedule::Schedule;
use crate::share::Shares;
use crate::view::AllTopicsError;

/// The time limit for a read of all topics: less than that of a request, so that the topics that answered are shown.
const ALL_WITHIN: Duration = Duration::from_millis(1500);

/// What the handlers work with. A cheap clone.
#[derive(Clone, Debug)]
pub(crate) struct Api {
    pub(crate) broker: Broker,
    pub(crate) shares: Shares,
    pub(crate) schedule: Schedule,
    pub(crate) config: Arc<Config>,
    /// Held while a topic is examined.
    pub(crate) examining: Arc<Mutex<()>>,
    /// How long a request's body may take.
    pub(crate) bodies: BodyLimits,
}

/// The routes, each behind the scope it needs, and their description.
pub(crate) fn routes(api: Api, tokens: &TokenSet, reads: &Reads) -> (Router, OpenApi) {
    let statistics = OpenApiRouter::new()
        .routes(routes!(topics::stats))
        .route_layer(from_fn_with_state(Reads::of_statistics(), Reads::bound))
        .route_layer(tokens.require(Scope::Read));
    let read = OpenApiRouter::new()
        .routes(routes!(topics::list))
        .routes(routes!(topics::show))
        .routes(routes!(topics::messages))
        .routes(routes!(jobs::list))
        .routes(routes!(jobs::workers))
        .routes(routes!(schedules::list))
        .route_layer(from_fn_with_state(reads.clone(), Reads::bound))
        .route_layer(tokens.require(Scope::Read));
    let operate = OpenApiRouter::new()
        .routes(routes!(topics::pause))
        .routes(routes!(topics::resume))
        .routes(routes!(groups::pause))
        .routes(routes!(groups::resume))
        .routes(routes!(groups::drain))
        .routes(routes!(groups::drop_group))
        .routes(routes!(groups::keep))
        .routes(routes!(garbage::requeue))
        .routes(routes!(garbage::purge))
        .routes(routes!(doctor::examine))
        .routes(routes!(doctor::repair))
        .routes(routes!(jobs::run))
        .route_layer(tokens.require(Scope::Operate));
    OpenApiRouter::with_openapi(description())
        .merge(statistics)
        .merge(read)
        .merge(operate)
        .with_state(api)
        .split_for_parts()
}

/// The route of one message, which a producer has too, and its description.
pub(crate) fn message_route(api: Api, tokens: &TokenSet, reads: &Reads) -> (Router, OpenApi) {
    OpenApiRouter::with_openapi(description())
        .routes(routes!(topics::message))
        .route_layer(from_fn_with_state(reads.clone(), Reads::bound))
        .route_layer(tokens.require(Scope::Read))
        .with_state(api)
        .split_for_parts()
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

impl Api {
    /// Finds a topic by its name in a path.
    async fn topic(&self, name: &str) -> Result<Arc<TopicHandle>, Problem> {
        let topic: Topic = name.parse().map_err(|error| invalid("topic", &error))?;
        self.broker.topic(&topic).await.map_err(problem)
    }

    /// Finds a topic's group by its name in a path.
    fn group<'a>(topic: &'a TopicHandle, name: &str) -> Result<&'a Group, Problem> {
        group::choose(topic, Some(name)).map_err(wrong_group)
    }
}

fn wrong_group(error: GroupError) -> Problem {
    match error {
        GroupError::Unknown { .. } | GroupError::NoGroup(_) => {
            Problem::new(ProblemCode::NotFound, error.to_string())
        }
        GroupError::Several { .. } => invalid("group", &error),
    }
}

fn invalid(field: &str, error: &dyn std::fmt::Display) -> Problem {
    Problem::new(ProblemCode::Invalid, "a value is not valid").error(field, error.to_string())
}

/// Returns the answer to a client if no topic could be read.
fn none_known(error: AllTopicsError) -> Problem {
    match error {
        AllTopicsError::Broker(error) => problem(error),
        AllTopicsError::Unanswered => Problem::new(ProblemCode::Unavailable, error.to_string()),
    }
}

/// What a failure of the broker is to a client.
fn problem(error: BrokerError) -> Problem {
    let code = match &error {
        BrokerError::UnknownTopic(_) => ProblemCode::UnknownTopic,
        BrokerError::UnknownGroup { .. } => ProblemCode::NotFound,
        BrokerError::Reply { what: "cursor", .. } => {
            return Problem::new(
                ProblemCode::Invalid,
                "the cursor is not one of a page before",
            )
            .error("cursor", "use the value of `next`");
        }
        BrokerError::Changing(_) | BrokerError::Undeclared(_) | BrokerError::ShardGone { .. } => {
            ProblemCode::Unavailable
        }
        BrokerError::Link(link) if link.kind == LinkErrorKind::Unavailable => {
            if link.maybe_applied {
                ProblemCode::Indeterminate
            } else {
                ProblemCode::Unavailable
            }
        }
        _ => ProblemCode::Internal,
    };
    if code == ProblemCode::Internal {
        tracing::error!(%error, "a request failed");
    }
    Problem::new(code, error.to_string())
}
