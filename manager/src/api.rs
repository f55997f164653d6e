//! The manager's HTTP interface for operators.
//!
//! It defines routes, their scopes and their errors. The operations are in [`crate::operations`] and the broker; the role
//! owns the listener. The command line calls the same routes: in its own process, or at the manager that `--url` names.

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
mod precondition;
mod schedules;
mod tokens;
mod topics;

use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::http::{Method, Uri};
use axum::middleware::from_fn_with_state;
use lisa_core::broker::{Broker, BrokerError, TopicHandle};
use lisa_core::topic::{Group, Topic};
use lisa_service::config::Config;
use lisa_service::http::auth::{Scope, TokenSet};
use lisa_service::http::body::BodyLimits;
use lisa_service::http::{
    GroupPath, Problem, ProblemCode, Reads, WithoutQuery, describe, unknown_route,
};
use lisa_service::shutdown::Shutdown;
use tokio::sync::Notify;
use utoipa::openapi::OpenApi;
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

use crate::assignment::Assignments;
use crate::jobs::scheduler::JobScheduler;
use crate::operations::audit::Action;
use crate::operations::choose_group::{self, GroupError};
use crate::operations::doctor::Examinations;
use crate::operations::topics::AllTopicsError;
use crate::recurring::StoredSchedules;

/// The interface that calls the routes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Via {
    /// The listener of a manager.
    Http,
    /// The command line of this process.
    CommandLine,
}

impl Via {
    /// Returns the time limit for reading all topics. On a listener it is shorter than that of a request, so the topics that
    /// answered are shown.
    const fn all_within(self) -> Duration {
        match self {
            Self::Http => Duration::from_millis(1500),
            Self::CommandLine => Duration::from_mins(1),
        }
    }
}

/// The state of the handlers. Cheap to clone.
#[derive(Clone, Debug)]
pub(crate) struct Api {
    pub(crate) via: Via,
    pub(crate) broker: Broker,
    pub(crate) assignments: Assignments,
    pub(crate) schedule: JobScheduler,
    /// Notified when a garbage job was started or stopped.
    pub(crate) garbage_jobs_changed: Arc<Notify>,
    pub(crate) stored_schedules: StoredSchedules,
    pub(crate) config: Arc<Config>,
    /// True if `config` is the managers' configuration, which is authoritative for what it declares.
    pub(crate) is_managers_config: bool,
    /// The tokens that this process accepts.
    pub(crate) tokens: TokenSet,
    /// Locked while a topic is examined.
    pub(crate) examinations: Arc<Examinations>,
    /// The limits on receiving a request body.
    pub(crate) bodies: BodyLimits,
    /// The limits of all routes of the process that only read.
    pub(crate) reads: Reads,
    pub(crate) shutdown: Shutdown,
}

/// The routes, by what protects them on a listener.
struct Routes {
    statistics: OpenApiRouter<Api>,
    read: OpenApiRouter<Api>,
    /// The route of one message, which a producer also has.
    message: OpenApiRouter<Api>,
    events: OpenApiRouter<Api>,
    operate: OpenApiRouter<Api>,
    /// The route with which a token sees itself.
    own_token: OpenApiRouter<Api>,
    read_tokens: OpenApiRouter<Api>,
    tokens: OpenApiRouter<Api>,
}

impl Routes {
    fn new() -> Self {
        Self {
            statistics: exact(
                OpenApiRouter::new()
                    .routes(routes!(topics::stats))
                    .routes(routes!(topics::snapshot))
                    .routes(routes!(attention::show)),
            ),
            read: exact(
                OpenApiRouter::new()
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
                    .routes(routes!(schedules::show))
                    .routes(routes!(audit::list))
                    .routes(routes!(garbage_jobs::list)),
            ),
            message: exact(
                OpenApiRouter::with_openapi(describe()).routes(routes!(topics::message)),
            ),
            events: exact(OpenApiRouter::new().routes(routes!(events::list))),
            operate: exact(
                OpenApiRouter::new()
                    .routes(routes!(topics::put))
                    .routes(routes!(topics::remove))
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
                    .routes(routes!(schedules::put))
                    .routes(routes!(schedules::remove))
                    .routes(routes!(schedules::pause))
                    .routes(routes!(schedules::resume))
                    .routes(routes!(schedules::run))
                    .routes(routes!(schedules::backfill))
                    .routes(routes!(jobs::run)),
            ),
            own_token: exact(OpenApiRouter::new().routes(routes!(tokens::show_own))),
            read_tokens: exact(
                OpenApiRouter::new()
                    .routes(routes!(tokens::list))
                    .routes(routes!(tokens::show)),
            ),
            tokens: exact(
                OpenApiRouter::new()
                    .routes(routes!(tokens::put))
                    .routes(routes!(tokens::rotate))
                    .routes(routes!(tokens::remove)),
            ),
        }
    }
}

/// Refuses queries of routes that have none.
fn exact(routes: OpenApiRouter<Api>) -> OpenApiRouter<Api> {
    let without = WithoutQuery::of(routes.get_openapi());
    routes.route_layer(from_fn_with_state(without, WithoutQuery::refuse))
}

/// Returns the routes, each behind the scope it requires, and their OpenAPI description.
pub(crate) fn routes(api: Api, tokens: &TokenSet) -> (Router, OpenApi) {
    let routes = Routes::new();
    let read = || tokens.require(Scope::Read);
    let bound = |reads: Reads| from_fn_with_state(reads, Reads::bound);
    let statistics = routes.statistics.route_layer(bound(Reads::of_statistics()));
    let reads = routes.read.route_layer(bound(api.reads.clone()));
    let own_token = routes.own_token.route_layer(bound(api.reads.clone()));
    let read_tokens = routes.read_tokens.route_layer(bound(api.reads.clone()));
    // Requests for events wait, so they have limits of their own. Each poll also counts as a read.
    let waits = from_fn_with_state(Reads::of_waits(), Reads::bound_waits);
    let events = routes.events.route_layer(waits);
    OpenApiRouter::with_openapi(describe())
        .merge(statistics.route_layer(read()))
        .merge(reads.route_layer(read()))
        .merge(events.route_layer(read()))
        .merge(routes.operate.route_layer(tokens.require(Scope::Operate)))
        .merge(own_token.route_layer(tokens.require_any()))
        .merge(read_tokens.route_layer(tokens.require(Scope::Tokens)))
        .merge(routes.tokens.route_layer(tokens.require(Scope::Tokens)))
        .with_state(api)
        .split_for_parts()
}

/// Returns the route of one message, which a producer also has, and its OpenAPI description.
pub(crate) fn message_route(api: Api, tokens: &TokenSet) -> (Router, OpenApi) {
    let message = Routes::new().message;
    message
        .route_layer(from_fn_with_state(api.reads.clone(), Reads::bound))
        .route_layer(tokens.require(Scope::Read))
        .with_state(api)
        .split_for_parts()
}

/// Returns all routes without scopes and limits, for the only user of this process.
pub(crate) fn unlimited(api: Api) -> Router {
    let routes = Routes::new();
    let all = routes.statistics.merge(routes.read).merge(routes.message);
    let all = all.merge(routes.events).merge(routes.operate);
    let all = all.merge(routes.own_token).merge(routes.read_tokens);
    let all = all.merge(routes.tokens);
    let router: Router = all.with_state(api).into();
    router.fallback(async |method: Method, uri: Uri| unknown_route(&method, uri.path()))
}

impl Api {
    /// Creates an action, to be recorded in the audit log.
    fn action(&self, action: &str) -> Action {
        match self.via {
            Via::Http => Action::over_http(&self.broker, action),
            Via::CommandLine => Action::on_command_line(&self.broker, action),
        }
    }

    /// Finds a topic by its name in the path.
    async fn topic(&self, name: &str) -> Result<Arc<TopicHandle>, Problem> {
        let topic: Topic = name.parse().map_err(|error| invalid("topic", &error))?;
        match self.broker.topic(&topic).await {
            Ok(topic) => Ok(topic),
            Err(error) => Err(self.refused(error).await),
        }
    }

    /// Returns the problem of a failure. One about an unknown topic suggests the nearest registered topic.
    async fn refused(&self, error: BrokerError) -> Problem {
        let is_unknown = matches!(error, BrokerError::UnknownTopic(_));
        // A command line has read only the topic that it names. A failure must not hide the error that is being explained.
        if is_unknown
            && self.via == Via::CommandLine
            && let Err(error) = self.broker.refresh().await
        {
            tracing::debug!(%error, "cannot read the registry");
        }
        Problem::suggesting_topic(error, &self.broker)
    }

    /// Returns the problem of a request if no topic could be read.
    async fn none_read(&self, error: AllTopicsError) -> Problem {
        match error {
            AllTopicsError::Broker(error) => self.refused(error).await,
            AllTopicsError::Unanswered => Problem::new(ProblemCode::Unavailable, error.to_string()),
        }
    }

    /// Finds a topic and one of its groups.
    async fn find(&self, path: &GroupPath) -> Result<(Arc<TopicHandle>, Group), Problem> {
        let mut topic = self.topic(&path.topic).await?;
        if let Ok(group) = path.group.parse() {
            topic = match self.broker.topic_with(topic.name(), &group).await {
                Ok(topic) => topic,
                Err(error) => return Err(self.refused(error).await),
            };
        }
        let group = Self::group(&topic, &path.group)?.clone();
        Ok((topic, group))
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
