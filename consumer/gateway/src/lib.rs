//! A gateway, from which workers in any language pull messages over HTTP.
//!
//! A pull takes messages of one group with a lease, and gets a token for each delivery. A client with the token settles
//! the delivery, at any gateway. The lease is in Redis, so a gateway keeps no record of what it handed out: see decision 0030.
//! Nothing is read unless a pull waits for it.

// The macros panic if the output is closed or full. Use `cli::remark` and `cli::print` of `lisa-service`.
#![warn(clippy::print_stdout, clippy::print_stderr)]
// Tests start tasks and share state as they like.
#![cfg_attr(test, allow(clippy::disallowed_methods, clippy::disallowed_types))]

mod answer;
mod batch;
mod empty_reads;
#[cfg(feature = "fuzzing")]
#[doc(hidden)]
pub mod fuzzing;
mod handed;
mod polls;
mod pull;
mod reader;
mod settle;
mod settle_and_pull;
mod sqs;

use std::collections::{BTreeMap, HashMap};
use std::convert::Infallible;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use axum::Router;
use axum::middleware::from_fn_with_state;
use lisa_consumer_core::internals::{CONFIRM_EVERY, Claims, KeyError, Process, Sizes, TokenKey};
use lisa_core::broker::{
    Broker, BrokerError, Settlement, SubscriptionReport, TopicHandle, WorkerReport,
};
use lisa_core::outage::Outage;
use lisa_core::state::Settled;
use lisa_core::sync::Mutex;
use lisa_core::topic::{Group, Shard, Topic, TopicSettings};
use lisa_service::http::auth::{Scope, TokenSet};
use lisa_service::http::body::BodyLimits;
use lisa_service::http::client::Client;
use lisa_service::http::share::{Share, Shares, Shortage};
use lisa_service::http::{Problem, ProblemCode, Reads, WithoutQuery};
use lisa_service::metrics::{DeliveryMetrics, Metrics};
use lisa_service::report;
use lisa_service::shutdown::Shutdown;
use lisa_service::spans::Spans;
use lisa_service::supervise::{Heartbeat, Policy, Supervisor, contain};
use tokio::runtime::Handle;
use tokio::sync::{Semaphore, watch};
use tokio::time::sleep;
use tokio_util::task::TaskTracker;
use utoipa::openapi::OpenApi;
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

use empty_reads::EmptyReads;
use handed::Handed;
use polls::Polls;
pub use sqs::{SqsOptions, actions as sqs_actions};

/// The interval between updates of the gauges.
const REPORT_EVERY: Duration = Duration::from_secs(1);

/// The limits of a gateway.
#[derive(Clone, Copy, Debug)]
pub struct GatewayLimits {
    /// The maximum number of pulls that wait at a time. One client has at most three quarters of them.
    pub max_waiting: usize,
    /// The maximum number of connections that wait for messages, one for each shard of a group. One client has at most three quarters of
    /// them. Further shards are read for each pull that does not wait, and up to 20 times a second: those of one client up to 1,000 times
    /// together.
    pub max_readers: usize,
    /// The time limit for receiving a body, and for each line of a batch.
    pub body_timeout: Duration,
}

/// The time without a lack of connections after which the next one is logged.
const QUIET_FOR: Duration = Duration::from_mins(1);

/// A gateway. Cheap to clone.
#[derive(Clone)]
pub struct Gateway {
    shared: Arc<Shared>,
    sqs: Option<Arc<SqsOptions>>,
    create: Option<Arc<TopicSettings>>,
    spans: Option<Spans>,
}

struct Shared {
    process: Process,
    key: watch::Sender<Option<TokenKey>>,
    groups: Mutex<HashMap<(Topic, Group), Arc<GroupPolls>>>,
    /// The pulls that wait.
    waiting: Shares,
    /// The connections of the readers that block.
    readers: Shares,
    /// True if a reader got no connection since this was last read.
    lacks_readers: AtomicBool,
    empty_reads: EmptyReads,
    /// The readers that pause. Counted for each client, but not limited.
    resting: Shares,
    room: Shares,
    /// The memory for the results of batches.
    results: Shares,
    /// The items of batches that wait for Redis.
    under_way: Shares,
    bodies: BodyLimits,
    /// The limits of looking up messages for stale receipt handles.
    searches: Reads,
    /// The readers, and the settlements of deliveries that no client got.
    tasks: TaskTracker,
    shutdown: Shutdown,
}

/// The state that the pulls of one group share.
struct GroupPolls {
    topic: Topic,
    group: Group,
    polls: Arc<Polls<Handed>>,
    sizes: Sizes,
    metrics: Option<DeliveryMetrics>,
    /// The names that pulling workers have given, each with the time of its last pull.
    pullers: Mutex<BTreeMap<String, Instant>>,
}

/// The time for which a worker that pulled is reported.
const PULLER_SEEN: Duration = Duration::from_secs(30);
/// The most workers of a group that are reported.
const MAX_PULLERS: usize = 100;

impl GroupPolls {
    /// Notes that a worker of this name pulls. Further names than [`MAX_PULLERS`] are not noted.
    fn note_puller(&self, name: &str) {
        let mut pullers = self.pullers.lock();
        if let Some(seen) = pullers.get_mut(name) {
            *seen = Instant::now();
            return;
        }
        if pullers.len() >= MAX_PULLERS {
            pullers.retain(|_, seen| seen.elapsed() < PULLER_SEEN);
        }
        if pullers.len() < MAX_PULLERS {
            pullers.insert(name.to_owned(), Instant::now());
        }
    }

    /// Returns the report of the group; `None` if nobody pulls.
    fn report(&self) -> Option<SubscriptionReport> {
        let mut pullers = self.pullers.lock();
        pullers.retain(|_, seen| seen.elapsed() < PULLER_SEEN);
        let busy = self.polls.len();
        let is_pulled = busy > 0 || !pullers.is_empty();
        is_pulled.then(|| SubscriptionReport {
            topic: self.topic.clone(),
            group: self.group.clone(),
            concurrency: None,
            busy,
            pullers: pullers.keys().cloned().collect(),
        })
    }

    /// Counts ended deliveries.
    fn count(&self, settled: &[Settled]) {
        let Some(metrics) = &self.metrics else { return };
        settled.iter().for_each(|settled| metrics.ended(*settled));
    }
}

impl Gateway {
    /// Creates a gateway.
    pub fn new(
        broker: Broker,
        metrics: Option<Metrics>,
        limits: GatewayLimits,
        shutdown: &Shutdown,
    ) -> Self {
        let but_a_quarter = |units| Shares::new(units, units - units / 4);
        let shared = Shared {
            process: Process::new(broker, metrics),
            key: watch::Sender::default(),
            groups: Mutex::default(),
            waiting: but_a_quarter(limits.max_waiting),
            readers: but_a_quarter(limits.max_readers),
            lacks_readers: AtomicBool::new(false),
            empty_reads: EmptyReads::default(),
            resting: Shares::new(Semaphore::MAX_PERMITS, Semaphore::MAX_PERMITS),
            room: Shares::new(handed::ROOM, handed::ROOM_OF_ONE),
            results: Shares::new(batch::ROOM, batch::ROOM_OF_ONE),
            under_way: Shares::new(batch::ITEMS_OF_ALL, batch::ITEMS_OF_ONE),
            bodies: BodyLimits::new(limits.body_timeout),
            searches: Reads::of_searches(),
            tasks: TaskTracker::new(),
            shutdown: shutdown.clone(),
        };
        Self {
            shared: Arc::new(shared),
            sqs: None,
            create: None,
            spans: None,
        }
    }

    /// Also declares a topic at the first pull from it, with these settings, if they have the group that is pulled. For
    /// development only: a misspelled name creates a topic.
    #[must_use]
    pub fn with_auto_create(mut self, settings: TopicSettings) -> Self {
        self.create = Some(Arc::new(settings));
        self
    }

    /// Records pulls and settlements with these spans.
    #[must_use]
    pub fn with_spans(mut self, spans: impl Into<Option<Spans>>) -> Self {
        self.spans = spans.into();
        self
    }

    /// Also serves clients of Amazon SQS, at `/`. The OpenAPI description does not cover this protocol.
    #[must_use]
    pub fn with_sqs(mut self, options: SqsOptions) -> Self {
        self.sqs = Some(Arc::new(options));
        self
    }

    /// Returns true if it also serves clients of Amazon SQS.
    pub fn serves_sqs(&self) -> bool {
        self.sqs.is_some()
    }

    /// Returns the routes and their OpenAPI description. Pulls require a token with the scope `receive`; to settle a delivery
    /// requires only the token of the delivery.
    pub fn routes(&self, tokens: &TokenSet) -> (Router, OpenApi) {
        let exact = |routes: OpenApiRouter<Self>| {
            let without = WithoutQuery::of(routes.get_openapi());
            routes.route_layer(from_fn_with_state(without, WithoutQuery::refuse))
        };
        let pull = OpenApiRouter::new()
            .routes(routes!(pull::pull))
            .routes(routes!(settle_and_pull::settle_and_pull));
        let pull = exact(pull).route_layer(tokens.require(Scope::Receive));
        let settle = OpenApiRouter::new()
            .routes(routes!(settle::ack))
            .routes(routes!(settle::retry))
            .routes(routes!(settle::defer))
            .routes(routes!(settle::reject))
            .routes(routes!(settle::extend))
            .routes(routes!(batch::settle_batch))
            .routes(routes!(batch::extend_batch));
        let settle = exact(settle);
        // Without tokens, nobody is a stranger.
        let settle = match tokens.is_empty() {
            true => settle.route_layer(tokens.require(Scope::Receive)),
            false => settle,
        };
        let (router, description) = OpenApiRouter::with_openapi(lisa_service::http::describe())
            .merge(pull)
            .merge(settle)
            .with_state(self.clone())
            .split_for_parts();
        let router = match &self.sqs {
            Some(options) => router.merge(sqs::routes(self, options, tokens)),
            None => router,
        };
        (router, description)
    }

    /// Starts the gateway's task, which ends with the shutdown: waiting pulls are then answered, and deliveries that no client
    /// got are handed back. Until the task has read the key of the tokens, pulls are refused as unavailable.
    ///
    /// Call it once, inside a Tokio runtime.
    pub fn start(&self, supervisor: &Supervisor) {
        let gateway = self.clone();
        supervisor.spawn("gateway", Policy::restart(), move |heartbeat| {
            gateway.clone().run(heartbeat)
        });
        let gateway = self.clone();
        let fill = move |report: &mut WorkerReport| {
            let groups = gateway.shared.groups.lock();
            report.subscriptions = groups.values().filter_map(|of| of.report()).collect();
        };
        let Process { broker, name, .. } = self.process();
        let shutdown = self.shutdown();
        report::start(supervisor, shutdown, broker, "gateway", name, fill);
    }

    /// Waits until the gateway can serve: it has read the key of the tokens from Redis.
    pub async fn ready(&self) {
        let mut key = self.shared.key.subscribe();
        // Fails only without a sender, which lives as long as this.
        let _ = key.wait_for(Option::is_some).await;
    }

    async fn run(self, heartbeat: Heartbeat) -> Result<(), Infallible> {
        heartbeat.unlimited();
        let shared = &self.shared;
        let keep = self.keep_key();
        let report = async {
            let mut quiet_until = Instant::now();
            loop {
                self.report();
                if shared.lacks_readers.swap(false, Ordering::Relaxed) {
                    if quiet_until <= Instant::now() {
                        let (all, of_one) = (shared.readers.all(), shared.readers.of_one());
                        tracing::warn!(
                            all,
                            of_one,
                            "no connection is left for some shards that are pulled: they are read at intervals (consumer.gateway.max_readers)"
                        );
                    }
                    quiet_until = Instant::now() + QUIET_FOR;
                }
                sleep(REPORT_EVERY).await;
            }
        };
        tokio::select! {
            () = keep => {}
            () = report => {}
            () = shared.shutdown.draining().cancelled() => {}
        }
        shared.tasks.close();
        let settled = shared
            .shutdown
            .now()
            .run_until_cancelled(shared.tasks.wait());
        settled.await;
        Ok(())
    }

    /// Reads the key of the tokens, or stores a new one, and confirms it from then on.
    async fn keep_key(&self) {
        let mut outage = Outage::new("read the key of delivery tokens");
        loop {
            let known = self.shared.key.borrow().clone();
            let pause = match TokenKey::read(&self.shared.process.broker, known).await {
                Ok(key) => {
                    outage.recovered();
                    self.shared.key.send_replace(Some(key));
                    CONFIRM_EVERY
                }
                Err(KeyError::Broker(error)) => outage.failed(&error),
                Err(error) => {
                    tracing::error!(%error, "retrying");
                    CONFIRM_EVERY
                }
            };
            sleep(pause).await;
        }
    }

    /// Updates the gauges, and forgets groups that nobody pulls.
    fn report(&self) {
        let mut groups = self.shared.groups.lock();
        groups.retain(|(topic, group), polls| {
            let waiting = polls.polls.len() as u64;
            if let Some(metrics) = &self.shared.process.metrics {
                metrics.pulls_waiting(topic.as_str(), group.as_str(), waiting);
            }
            let is_used = Arc::strong_count(polls) > 1 || !polls.polls.is_idle();
            let known = self.shared.process.broker.known(topic);
            let is_known = { known.as_ref() }.is_some_and(|topic| topic.groups().contains(group));
            if !is_used
                && !is_known
                && let Some(metrics) = &self.shared.process.metrics
            {
                match known {
                    Some(_) => metrics.forget_pulls(topic.as_str(), group.as_str()),
                    // Its last deliveries have ended after it was forgotten.
                    None => metrics.forget_topic(topic.as_str()),
                }
            }
            is_used || is_known
        });
    }

    /// Returns the state of the pulls of a group.
    fn group(&self, topic: &Topic, group: &Group) -> Arc<GroupPolls> {
        let mut groups = self.shared.groups.lock();
        let polls = groups.entry((topic.clone(), group.clone()));
        let new = || {
            let metrics = self.shared.process.metrics.as_ref();
            let of_group = GroupPolls {
                topic: topic.clone(),
                group: group.clone(),
                polls: Arc::default(),
                sizes: Sizes::default(),
                pullers: Mutex::default(),
                metrics: metrics.map(|metrics| metrics.deliveries(topic.as_str(), group.as_str())),
            };
            Arc::new(of_group)
        };
        polls.or_insert_with(new).clone()
    }

    /// Returns the key of the tokens.
    fn key(&self) -> Result<TokenKey, Problem> {
        self.shared.key.borrow().clone().ok_or_else(|| {
            let detail = "the gateway has not read its key from Redis yet";
            Problem::new(ProblemCode::Unavailable, detail)
        })
    }

    /// Returns the delivery of a token.
    fn open(&self, token: &str) -> Result<Claims, Problem> {
        self.key()?.open(token).ok_or_else(|| {
            let detail = "the delivery token was altered or cut, or is of another relay: send the token \
                          of a pulled delivery, or the header Lisa-Delivery of a webhook";
            Problem::new(ProblemCode::InvalidDeliveryToken, detail)
        })
    }

    /// Admits a pull, or refuses it if too many wait. Dropping the value ends the pull.
    fn admit(&self, client: Client) -> Result<Share, Problem> {
        let waiting = &self.shared.waiting;
        let mut seat = waiting.begin(client);
        seat.try_add(1).map_err(|shortage| {
            let limit = match shortage {
                Shortage::OfClient => format!("{} pulls of this client", waiting.of_one()),
                Shortage::OfAll => format!("{} pulls", waiting.all()),
            };
            let detail = format!(
                "{limit} wait at this gateway, which is its limit (consumer.gateway.max_waiting)"
            );
            Problem::new(ProblemCode::Unavailable, detail)
        })?;
        Ok(seat)
    }

    /// Runs a task, which the end of the gateway awaits. A panic ends only this task, and is counted.
    fn spawn(&self, task: impl Future<Output = ()> + Send + 'static) {
        let metrics = self.process().metrics.clone();
        self.shared.tasks.spawn(async move {
            // The panic hook logs it.
            let _ = contain("gateway", metrics.as_ref(), task).await;
        });
    }

    /// Settles deliveries in the background.
    fn settle_later(
        &self,
        group: &Arc<GroupPolls>,
        topic: Arc<TopicHandle>,
        shard: Shard,
        settlements: Vec<Settlement>,
    ) {
        let settle = handed::settle(self.clone(), group.clone(), topic, shard, settlements);
        // After the end of the runtime, the deliveries come again after their lease.
        if Handle::try_current().is_ok() {
            self.spawn(settle);
        }
    }

    /// Returns the problem for a failure. One about an unknown topic suggests the nearest known topic, if the client may read.
    fn problem(&self, error: BrokerError) -> Problem {
        Problem::suggesting_topic(error, &self.shared.process.broker)
    }

    fn process(&self) -> &Process {
        &self.shared.process
    }

    fn shutdown(&self) -> &Shutdown {
        &self.shared.shutdown
    }

    /// Begins the share of the current client in the memory for answers.
    fn room(&self) -> Share {
        self.shared.room.begin(Client::current())
    }

    /// Begins the share of the current client in the memory for the results of batches.
    fn results(&self) -> Share {
        self.shared.results.begin(Client::current())
    }

    fn searches(&self) -> &Reads {
        &self.shared.searches
    }

    fn bodies(&self) -> &BodyLimits {
        &self.shared.bodies
    }
}
