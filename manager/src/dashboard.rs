//! The dashboard: pages for operators, rendered on the server, that work without JavaScript.
//!
//! `GET` only reads. An action is a form that posts, answered by a redirect (303) to the page it concerns; a destructive one
//! is asked for on a page of its own first. A send is answered by its receipt, and its form carries an id, so that a repeat of
//! the request is a duplicate. Pages call the same functions as the HTTP interface and the command line. Every
//! reading is bounded in time and shared by all viewers for a moment.

mod actions;
mod assets;
mod back;
mod cache;
mod chart;
mod cookies;
mod doctor;
mod document;
mod ended_sessions;
mod failures;
mod find;
mod forecast;
mod form;
mod garbage;
mod garbage_filter;
mod help;
mod history;
mod inputs;
mod keys;
mod login;
mod message;
mod messages;
mod overview;
mod own_token;
mod page;
mod parts;
mod removal;
mod routes;
mod schedule;
mod schedule_form;
mod schedules;
mod send;
mod session;
mod system;
mod text;
mod token;
mod token_form;
mod tokens;
mod topic;
mod topic_form;
mod workers;

use std::collections::BTreeMap;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::extract::{ConnectInfo, Request, State as With};
use axum::http::header::{HOST, HeaderName, SET_COOKIE};
use axum::http::{HeaderValue, Method};
use axum::middleware::{Next, from_fn_with_state};
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use lisa_core::broker::{Broker, BrokerError, TopicHandle, TopicStats};
use lisa_core::sync::Mutex;
use lisa_core::time::UnixMs;
use lisa_core::topic::{Group, Topic};
use lisa_producer::{Producer, ProducerOptions};
use lisa_service::config::Config;
use lisa_service::cron::TimeZone;
use lisa_service::http::auth::{Reach, Scope, TokenSet};
use lisa_service::http::body::BodyLimits;
use lisa_service::http::client::{Client, reaches};
use lisa_service::http::tls::is_secure;
use lisa_service::http::{CrossSite, Problem, ProblemCode, Reads, Unread};
use tokio::sync::Notify;
use url::form_urlencoded::byte_serialize;

use crate::assignment::Assignments;
use crate::jobs::scheduler::JobScheduler;
use crate::operations::audit::Action;
use crate::operations::doctor::Examinations;
use crate::operations::error_groups::ErrorGroups;
use crate::operations::forecast::ForecastView;
use crate::operations::history::HistoryView;
use crate::operations::newest_counts::{NewestCounts, TOO_OLD, newest_counts};
use crate::operations::rates::Rates;
use crate::operations::schedules::{FailingSchedules, Schedules};
use crate::operations::topics::AllTopicsError;
use crate::operations::workers::WorkersList;
use crate::recurring::StoredSchedules;
use cache::{Cached, CachedBy, PartsOf, Queries, Reading};
use cookies::{cookie, session_names};
use document::{document, with_headers};
use ended_sessions::EndedSessions;
use page::{Choices, Context, Failure, Page, see_other};
#[cfg(feature = "test-util")]
pub(crate) use routes::paths;
use routes::{guarded, guarded_pages, session_pages};
pub(crate) use session::KeyError;
use session::{Sessions, Viewer};

/// The queries of all pages that run at a time.
const CONCURRENT_QUERIES: usize = 4;
/// The time for which all viewers see the same counts.
const FRESH: Duration = Duration::from_secs(2);
/// The time for which all viewers see the same consumers, which cost a call for each group.
const FRESH_WORKERS: Duration = Duration::from_secs(5);
/// The time for which all viewers see the same groups of errors.
const FRESH_ERRORS: Duration = Duration::from_secs(30);
/// The time for which all viewers see the same forecast.
const FRESH_FORECAST: Duration = Duration::from_secs(10);
/// The time for which all viewers see the same history.
const FRESH_HISTORY: Duration = Duration::from_secs(10);
/// The time over which rates are taken: long enough for slow topics, short enough to be called present.
const RATE_WINDOW: Duration = Duration::from_secs(20);
/// The longest time between two counts that make a rate. Nobody looked for longer.
const RATE_LONGEST: Duration = Duration::from_mins(1);
/// The topics whose own counts are kept.
const MOST_TOPICS: usize = 256;
/// The viewers with different limits whose counts are kept.
const MOST_LIMITS: usize = 16;
/// The time for reading all topics, shorter than the deadline of a page, so that those that answered are shown.
const ALL_WITHIN: Duration = Duration::from_millis(1500);
/// A header of requests that the script makes, which do not prolong a session.
const IS_REFRESH: HeaderName = HeaderName::from_static("lisa-refresh");

/// The parts of a manager that the pages need.
pub(crate) struct Parts {
    pub(crate) broker: Broker,
    pub(crate) config: Arc<Config>,
    pub(crate) assignments: Assignments,
    pub(crate) schedule: JobScheduler,
    pub(crate) examinations: Arc<Examinations>,
    /// Notified when a garbage job was started or stopped.
    pub(crate) garbage_jobs_changed: Arc<Notify>,
    pub(crate) stored_schedules: StoredSchedules,
    /// True if the process also has the producer's routes.
    pub(crate) has_producer: bool,
}

/// The state of all pages. Cheap to clone.
#[derive(Clone)]
struct Dashboard(Arc<Inner>);

struct Inner {
    parts: Parts,
    base: Arc<str>,
    sessions: Sessions,
    ended_sessions: EndedSessions,
    cross_site: CrossSite,
    bodies: BodyLimits,
    /// The memory for large responses.
    unread: Unread,
    queries: Queries,
    /// The limits of changes that search all shards for their message.
    searches: Reads,
    producer: Producer,
    all: Cached<NewestCounts>,
    /// The parts of these counts that viewers with limits see.
    limited: PartsOf<Arc<Reach>, NewestCounts>,
    /// The topics that an action changed, each with the time after which it must be counted.
    acted_on: Mutex<BTreeMap<Topic, UnixMs>>,
    topics: CachedBy<Topic, TopicStats>,
    /// The rates, from the counts that pages have read.
    rates: Mutex<Rates>,
    workers: Cached<WorkersList>,
    /// The parts of these that viewers with limits see.
    limited_workers: PartsOf<Arc<Reach>, WorkersList>,
    /// By the limits of the viewer.
    failing_schedules: CachedBy<Arc<Reach>, FailingSchedules>,
    errors: CachedBy<(Topic, Group), ErrorGroups>,
    /// By topic, the limits of the viewer, period and time zone.
    forecasts: CachedBy<(Option<Topic>, Arc<Reach>, u64, String), ForecastView>,
    /// By topic, period and time zone.
    histories: CachedBy<(Option<Topic>, u64, String), HistoryView>,
}

/// Returns the routes of the pages, at `/` and, if there is one, below the base path.
///
/// # Errors
/// The key of the sessions cannot be used.
pub(crate) fn routes(parts: Parts, tokens: &TokenSet) -> Result<Router, KeyError> {
    let config = &parts.config;
    let key_file = config.manager.dashboard.session_key_file.as_deref();
    let auth = &config.auth;
    let options = ProducerOptions {
        topics: config.topics.clone(),
        ..ProducerOptions::default()
    };
    let dashboard = Dashboard(Arc::new(Inner {
        base: config.manager.dashboard.base_path.as_str().into(),
        sessions: Sessions::new(tokens, key_file)?,
        ended_sessions: EndedSessions::default(),
        cross_site: CrossSite::new(
            tokens,
            auth.allowed_hosts.clone(),
            auth.allowed_origins.clone(),
        ),
        bodies: BodyLimits::new(config.http.body_timeout),
        unread: Unread::default(),
        queries: Queries::new(CONCURRENT_QUERIES),
        searches: Reads::of_searches(),
        producer: Producer::with_options(parts.broker.clone(), options),
        all: Cached::new(FRESH),
        limited: PartsOf::new(MOST_LIMITS),
        acted_on: Mutex::default(),
        topics: CachedBy::new(MOST_TOPICS, FRESH),
        rates: Mutex::new(Rates::new(RATE_WINDOW, RATE_LONGEST)),
        workers: Cached::new(FRESH_WORKERS),
        limited_workers: PartsOf::new(MOST_LIMITS),
        failing_schedules: CachedBy::new(MOST_LIMITS, FRESH),
        errors: CachedBy::new(MOST_TOPICS, FRESH_ERRORS),
        forecasts: CachedBy::new(MOST_TOPICS, FRESH_FORECAST),
        histories: CachedBy::new(MOST_TOPICS, FRESH_HISTORY),
        parts,
    }));
    let mut router = Router::new();
    let mut prefixes = vec![String::new()];
    if !dashboard.0.base.is_empty() {
        prefixes.push(dashboard.0.base.to_string());
        let overview = guarded("/", Scope::Read, get(overview::show));
        router = router.route(&dashboard.0.base, overview);
    }
    for at in prefixes {
        for (path, page) in session_pages() {
            router = router.route(&format!("{at}{path}"), page);
        }
        for (path, scope, page) in guarded_pages() {
            let page = guarded(&path, scope, page);
            router = router.route(&format!("{at}{path}"), page);
        }
    }
    let assets = |at: &str| (format!("{at}/assets/{{file}}"), get(assets::serve));
    let mut router = router
        .route_layer(from_fn_with_state(dashboard.clone(), frame))
        .with_state(dashboard.clone());
    let (path, serve) = assets("");
    router = router.route(&path, serve);
    if !dashboard.0.base.is_empty() {
        let (path, serve) = assets(&dashboard.0.base);
        router = router.route(&path, serve);
    }
    Ok(router)
}

impl Dashboard {
    fn broker(&self) -> &Broker {
        &self.0.parts.broker
    }

    /// Returns the newest counts of all topics that the viewer reaches.
    async fn counts(&self) -> Reading<NewestCounts> {
        let acted_on = |topic: &Topic| self.0.acted_on.lock().get(topic).copied();
        let read = async || {
            let counts = newest_counts(self.broker(), ALL_WITHIN, acted_on).await?;
            self.0.rates.lock().note_all(&counts);
            Ok::<_, AllTopicsError>(counts)
        };
        let reading = self.0.all.get(&self.0.queries, read).await;
        reading.reached(&self.0.limited, NewestCounts::within)
    }

    /// Returns the running processes that serve topics that the viewer reaches, and the consumers of these topics.
    async fn workers(&self) -> Reading<WorkersList> {
        let read = async || crate::operations::workers::list(self.broker()).await;
        let reading = self.0.workers.get(&self.0.queries, read).await;
        reading.reached(&self.0.limited_workers, WorkersList::within)
    }

    /// Returns the schedules that the viewer reaches and whose last send failed.
    async fn failing_schedules(&self, context: &Context) -> Reading<FailingSchedules> {
        let cached = self.0.failing_schedules.of(context.viewer.reach());
        let read = async || context.viewer.scope(self.schedules().failing()).await;
        cached.get(&self.0.queries, read).await
    }

    /// Returns the counts of a topic.
    async fn stats_of(&self, topic: &TopicHandle) -> Reading<TopicStats> {
        let cached = self.0.topics.of(topic.name().clone());
        let read = async || {
            let (stats, at) = self.broker().stats_at(topic).await?;
            self.0.rates.lock().note(&stats, at);
            Ok::<_, BrokerError>(stats)
        };
        cached.get(&self.0.queries, read).await
    }

    /// Makes the next page show what an action changed.
    async fn changed(&self, topic: &Topic) {
        let now = self.broker().now();
        {
            let mut acted_on = self.0.acted_on.lock();
            acted_on.retain(|_, at| now.since(*at) < TOO_OLD);
            acted_on.insert(topic.clone(), now);
        }
        self.0.all.expire().await;
        self.0.topics.of(topic.clone()).expire().await;
    }

    /// Returns the schedules of the relay.
    fn schedules(&self) -> Schedules<'_> {
        Schedules {
            broker: self.broker(),
            config: &self.0.parts.config,
        }
    }

    /// Creates an action of the viewer, for the audit log.
    fn action(&self, context: &Context, action: &str) -> Action {
        Action::in_dashboard(self.broker(), context.viewer.name(), action)
    }

    /// Finds a topic by its name in the path, or in a query.
    async fn topic(&self, name: &str) -> Result<Arc<TopicHandle>, Failure> {
        let topic: Topic = name
            .parse()
            .map_err(|error| Failure::invalid("topic", &error))?;
        if !reaches(&topic) {
            let why = format!("the token does not reach the topic {topic}");
            return Err(Failure::Reach(why));
        }
        let found = self.broker().topic(&topic).await;
        found.map_err(|error| Problem::suggesting_topic(error, self.broker()).into())
    }

    /// Runs a read that is not shared, in one of the slots and in time.
    async fn read<T>(
        &self,
        read: impl Future<Output = Result<T, BrokerError>>,
    ) -> Result<T, Failure> {
        let mut failed = None;
        let read = async {
            match read.await {
                Ok(value) => Ok(value),
                Err(error) => {
                    let text = error.to_string();
                    failed = Some(error);
                    Err(text)
                }
            }
        };
        match self.0.queries.run(read).await {
            Ok(value) => Ok(value),
            Err(text) => Err(match failed {
                Some(error) if !error.is_retryable() => error.into(),
                _ => Failure::new(ProblemCode::Unavailable, text),
            }),
        }
    }

    /// Does the same for an operation that refuses with a problem.
    async fn read_or_problem<T>(
        &self,
        read: impl Future<Output = Result<T, Problem>>,
    ) -> Result<T, Failure> {
        let mut refused = None;
        let read = async {
            read.await.map_err(|problem| {
                let text = problem.detail().to_owned();
                refused = Some(problem);
                text
            })
        };
        let read = self.0.queries.run(read).await;
        let unavailable = |text| Problem::new(ProblemCode::Unavailable, text);
        read.map_err(|text| refused.unwrap_or_else(|| unavailable(text)).into())
    }

    fn context(&self, request: &Request, viewer: Viewer) -> Context {
        let config = &self.0.parts.config;
        let uri = request.uri();
        let path = uri.path();
        let path = match path.strip_prefix(&*self.0.base) {
            Some("") => "/",
            Some(path) if path.starts_with('/') => path,
            _ => path,
        };
        let here = match uri.query() {
            Some(query) => format!("{path}?{query}"),
            None => path.to_owned(),
        };
        let host = request
            .headers()
            .get(HOST)
            .and_then(|host| host.to_str().ok());
        let host = host.filter(|host| {
            host.bytes()
                .all(|byte| byte.is_ascii_alphanumeric() || b".:-[]_".contains(&byte))
        });
        let url = match (config.manager.dashboard.listen, host) {
            (None, Some(host)) => {
                // A browser sends a secure cookie only over HTTPS.
                let [secure, _] = session_names(request.headers());
                let is_secure = is_secure(request.extensions())
                    || cookie(request.headers(), &secure).is_some()
                    || self.0.cross_site.is_secure(host);
                let scheme = if is_secure { "https" } else { "http" };
                Some(format!("{scheme}://{host}"))
            }
            _ => None,
        };
        let listen = || config.http.url(config.manager.listen);
        let own = url.clone().unwrap_or_else(listen);
        let producer = match self.0.parts.has_producer {
            true => own.clone(),
            false => config.http.url(config.producer.listen),
        };
        let choices = cookie(request.headers(), "lisa-choices")
            .map_or(Choices::default(), |text| Choices::parse(&text));
        let zone = cookie(request.headers(), "lisa-zone").filter(|_| !choices.is_utc);
        let redis = &config.redis.url;
        // Redis itself has no limits.
        let is_shown = redis.username().is_none()
            && redis.password().is_none()
            && !viewer.reach().is_limited();
        Context {
            base: self.0.base.clone(),
            namespace: config.namespace.to_string().into(),
            viewer,
            choices,
            here: here.into(),
            api: own.into(),
            producer: producer.into(),
            url: url.map(Into::into),
            redis: is_shown.then(|| redis.to_string().into()),
            now: self.broker().now(),
            zone: zone
                .and_then(|zone| zone.parse().ok())
                .unwrap_or(TimeZone::UTC),
        }
    }
}

/// Checks the session and the origin of a request, and puts the frame around the page that answers it.
async fn frame(With(dashboard): With<Dashboard>, mut request: Request, next: Next) -> Response {
    let base = dashboard.0.base.clone();
    let headers = request.headers().clone();
    let is_change = !matches!(*request.method(), Method::GET | Method::HEAD);
    let path = request.uri().path();
    let path = path.strip_prefix(&*base).unwrap_or(path);
    let is_open = matches!(path, "/login" | "/choices");
    let plain_path = path.to_owned();
    let is_logout = path == "/logout";
    let mut refused = None;
    let session = dashboard.viewer(&headers, is_change && !is_open).await;
    let session = session.unwrap_or_else(|failure| {
        refused = Some(failure);
        None
    });
    let viewer = match &session {
        Some((viewer, _)) => viewer.clone(),
        None => Viewer::Stranger,
    };
    let context = dashboard.context(&request, viewer);
    let admitted = context.viewer.admitted();
    let client = admitted.map_or_else(Client::current, |admitted| admitted.client());
    let mut response = if let Some(failure) = refused {
        failure.into_response()
    } else if is_change && !dashboard.0.cross_site.allows_change(&request) {
        let detail = "pages of other origins may not use this; see auth.allowed_origins";
        Failure::new(ProblemCode::CrossSite, detail).into_response()
    } else if session.is_none() && !is_open {
        let next: String = byte_serialize(context.here.as_bytes()).collect();
        let next = if is_change {
            String::new()
        } else {
            format!("?next={next}")
        };
        return with_headers(see_other(&format!("{base}/login{next}"), None));
    } else if !is_open && !is_logout && !context.viewer.can(Scope::Read) {
        Failure::Forbidden(Scope::Read).into_response()
    } else {
        if let Some(name) = context.viewer.name() {
            tracing::Span::current().record("token", name);
        }
        request.extensions_mut().insert(context.clone());
        let answer = next.run(request);
        match context.viewer.admitted() {
            Some(client) => client.scope(answer).await,
            None => answer.await,
        }
    };
    let line = cookie(&headers, "lisa-line").filter(|_| !headers.contains_key(IS_REFRESH));
    if let Some(mut page) = response.extensions_mut().remove::<Page>() {
        if is_change && page.is_failure {
            page.back = Some(back::page_of_form(&plain_path, &base, &headers));
        }
        let text = page.render(&context, line.as_deref()).into_string();
        response = document(&headers, page.status, text);
        if line.is_some() {
            let gone =
                HeaderValue::from_static("lisa-line=; Path=/; Max-Age=0; HttpOnly; SameSite=Lax");
            response.headers_mut().append(SET_COOKIE, gone);
        }
    }
    if let Some((_, Some(renewed))) = session
        && !is_logout
        && !headers.contains_key(IS_REFRESH)
        && let Ok(renewed) = HeaderValue::from_str(&renewed)
    {
        response.headers_mut().append(SET_COOKIE, renewed);
    }
    let response = dashboard.0.unread.hold(client, response).await;
    with_headers(response)
}

/// Returns the address of a client.
fn peer(request: Option<&ConnectInfo<SocketAddr>>) -> IpAddr {
    request.map_or(IpAddr::from([0, 0, 0, 0]), |peer| {
        peer.0.ip().to_canonical()
    })
}
