//! The manager's HTTP interface for operators.
//!
//! It defines routes, their scopes and their errors. The operations are in [`crate::operations`] and the broker; the role
//! owns the listener.

mod attention;
mod audit;
mod doctor;
mod events;
mod failures;
mod forecast;
mod garbage;
mod garbage_jobs;
mod groups;
mod history;
mod jobs;
mod keys;
mod query;
mod schedules;
mod topics;

use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::middleware::from_fn_with_state;
use lisa_core::broker::{Broker, TopicHandle};
use lisa_core::topic::{Group, Topic};
use lisa_producer::http::describe;
use lisa_service::config::Config;
use lisa_service::http::auth::{Scope, TokenSet};
use lisa_service::http::body::BodyLimits;
use lisa_service::http::{Problem, ProblemCode, Reads};
use lisa_service::shutdown::Shutdown;
use tokio::sync::Notify;
use utoipa::openapi::OpenApi;
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

use crate::assignment::Assignments;
use crate::jobs::scheduler::JobScheduler;
use crate::operations::choose_group::{self, GroupError};
use crate::operations::doctor::Examinations;
use crate::operations::topics::AllTopicsError;

/// The time limit for reading all topics. It is shorter than that of a request, so the topics that answered are shown.
const ALL_WITHIN: Duration = Duration::from_millis(1500);

/// The state of the handlers. Cheap to clone.
#[derive(Clone, Debug)]
pub(crate) struct Api {
    pub(crate) broker: Broker,
    pub(crate) assignments: Assignments,
    pub(crate) schedule: JobScheduler,
    /// Notified when a garbage job was started or stopped.
    pub(crate) garbage_jobs_changed: Arc<Notify>,
    pub(crate) config: Arc<Config>,
    /// Locked while a topic is examined.
    pub(crate) examinations: Arc<Examinations>,
    /// The limits on receiving a request body.
    pub(crate) bodies: BodyLimits,
    /// The limits of all routes of the process that only read.
    pub(crate) reads: Reads,
    pub(crate) shutdown: Shutdown,
}

/// Returns the routes, each behind the scope it requires, and their OpenAPI description.
pub(crate) fn routes(api: Api, tokens: &TokenSet) -> (Router, OpenApi) {
    let statistics = OpenApiRouter::new()
        .routes(routes!(topics::stats))
        .routes(routes!(topics::snapshot))
        .routes(routes!(attention::show))
        .route_layer(from_fn_with_state(Reads::of_statistics(), Reads::bound))
        .route_layer(tokens.require(Scope::Read));
    let read = OpenApiRouter::new()
        .routes(routes!(topics::list))
        .routes(routes!(topics::show))
        .routes(routes!(topics::messages))
        .routes(routes!(forecast::all))
        .routes(routes!(forecast::of_topic))
        .routes(routes!(history::show))
        .routes(routes!(history::show_all))
        .routes(routes!(failures::list))
        .routes(routes!(garbage::errors))
        .routes(routes!(keys::list))
        .routes(routes!(jobs::list))
        .routes(routes!(jobs::workers))
        .routes(routes!(schedules::list))
        .routes(routes!(audit::list))
        .routes(routes!(garbage_jobs::list))
        .route_layer(from_fn_with_state(api.reads.clone(), Reads::bound))
        .route_layer(tokens.require(Scope::Read));
    // Requests for events wait, so they have limits of their own. Each poll also counts as a read.
    let events = OpenApiRouter::new()
        .routes(routes!(events::list))
        .route_layer(from_fn_with_state(Reads::of_waits(), Reads::bound_waits))
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
        .routes(routes!(garbage_jobs::start))
        .routes(routes!(garbage_jobs::stop))
        .routes(routes!(doctor::examine))
        .routes(routes!(doctor::repair))
        .routes(routes!(jobs::run))
        .route_layer(tokens.require(Scope::Operate));
    OpenApiRouter::with_openapi(describe())
        .merge(statistics)
        .merge(read)
        .merge(events)
        .merge(operate)
        .with_state(api)
        .split_for_parts()
}

/// Returns the route of one message, which a producer also has, and its OpenAPI description.
pub(crate) fn message_route(api: Api, tokens: &TokenSet) -> (Router, OpenApi) {
    OpenApiRouter::with_openapi(describe())
        .routes(routes!(topics::message))
        .route_layer(from_fn_with_state(api.reads.clone(), Reads::bound))
        .route_layer(tokens.require(Scope::Read))
        .with_state(api)
        .split_for_parts()
}

impl Api {
    /// Finds a topic by its name in the path.
    async fn topic(&self, name: &str) -> Result<Arc<TopicHandle>, Problem> {
        let topic: Topic = name.parse().map_err(|error| invalid("topic", &error))?;
        let found = self.broker.topic(&topic).await;
        found.map_err(|error| Problem::suggesting_topic(error, &self.broker))
    }

    /// Finds a group of a topic by its name in the path.
    fn group<'a>(topic: &'a TopicHandle, name: &str) -> Result<&'a Group, Problem> {
        choose_group::choose(topic, Some(name)).map_err(wrong_group)
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
    Problem::new(ProblemCode::Invalid, format!("{field}: {error}")).error(field, error.to_string())
}

/// Returns the problem for a request if no topic could be read.
fn none_known(error: AllTopicsError) -> Problem {
    match error {
        AllTopicsError::Broker(error) => error.into(),
        AllTopicsError::Unanswered => Problem::new(ProblemCode::Unavailable, error.to_string()),
    }
}
