//! The consumer that an application builds and runs: its subscriptions and the state they share.
//!
//! Validates the settings. One task for each subscription does the work.

use std::collections::BTreeSet;
use std::future::IntoFuture;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use lisa_core::broker::{Broker, SubscriptionReport, WorkerReport};
use lisa_core::connect::{ConnectError, ConnectOptions};
use lisa_core::topic::TopicOf;
use lisa_service::callbacks::CallbackTopics;
use lisa_service::metrics::Metrics;
use lisa_service::report;
use lisa_service::shutdown::Shutdown;
use lisa_service::spans::Spans;
use lisa_service::supervise::{Policy, Supervisor};
use serde::de::DeserializeOwned;

use crate::delivery::Context;
use crate::error::{ConsumerError, MAX_CONCURRENCY};
use crate::handler::{Handler, handler_fn};
use crate::outcome::IntoOutcome;
use crate::process::Process;
use crate::report::RunReport;
use crate::subscription::{DEFAULT_CONCURRENCY, Subscription};
use crate::workers;

/// The default time that running handlers get to finish after the shutdown signal.
pub const DEFAULT_GRACE: Duration = Duration::from_secs(25);
/// The interval between checks whether the topics' settings are to be refreshed.
const LOOK_EVERY: Duration = Duration::from_secs(1);

/// Reads and handles the messages of one or more topics. Cheap to clone. Created by [`Consumer::builder`].
#[derive(Clone)]
pub struct Consumer {
    process: Arc<Process>,
    subscriptions: Arc<[Arc<Subscription>]>,
    grace: Duration,
}

impl Consumer {
    /// Connects to Redis and returns a builder. `url` is an address such as `redis://host:6379`; see
    /// [`ConnectOptions::new`]. The namespace is `lisa`; for another one, use [`ConnectOptions`] and [`Consumer::builder`].
    ///
    /// # Errors
    /// [`ConnectError`]: the address is invalid, or Redis refuses the connection or does not answer within 5 s.
    pub async fn connect(url: &str) -> Result<Builder, ConnectError> {
        Ok(Self::builder(ConnectOptions::new(url)?.connect().await?))
    }

    /// Returns a builder for a consumer that uses this broker.
    pub fn builder(broker: Broker) -> Builder {
        Builder {
            broker,
            group: "default".to_owned(),
            topics: Vec::new(),
            subscriptions: Vec::new(),
            concurrency: DEFAULT_CONCURRENCY,
            handler_timeout: None,
            grace: DEFAULT_GRACE,
            metrics: None,
            spans: None,
        }
    }

    /// Returns the name of this consumer in Redis: host, process ID and a random part.
    pub fn name(&self) -> &str {
        &self.process.name
    }

    /// Returns what the consumer has done so far.
    pub fn report(&self) -> RunReport {
        self.process.counters.report()
    }

    /// Returns a warning for each subscription whose target is unavailable, fails or is gone, for each whose callbacks cannot
    /// be sent, and for each that has suspects: messages suspected of killing their process. Suspects run one at a time, so
    /// some of them wait while the consumer runs.
    pub fn warnings(&self) -> Vec<String> {
        let subscriptions = self.subscriptions.iter();
        subscriptions
            .flat_map(|subscription| {
                let target = subscription.handler().target();
                let target = target.and_then(|target| target.health().warning);
                let warnings = target.into_iter().chain(subscription.suspects().warning());
                let warnings = warnings.chain(subscription.callbacks().warnings());
                warnings.map(move |warning| format!("subscription {subscription}: {warning}"))
            })
            .collect()
    }

    /// Returns what subscriptions wait for before they can read, such as `waiting for topic order`: a topic or group that is
    /// not registered, perhaps because its name is misspelled. Empty before the consumer runs and once all of them read.
    pub fn waiting(&self) -> Vec<String> {
        let awaited = self.process.awaited.lock();
        awaited.values().cloned().collect()
    }

    /// Runs the consumer to its end. Nothing happens before the first poll.
    pub fn run(self) -> Run {
        Run {
            consumer: self,
            signal: None,
        }
    }

    /// Starts the consumer's tasks under a supervisor, for a program that also runs other tasks. They end with `shutdown`:
    /// running handlers may finish until its grace period ends, and all other deliveries are handed back.
    ///
    /// Call it once, inside a Tokio runtime.
    pub fn start(&self, supervisor: &Supervisor, shutdown: &Shutdown) {
        for subscription in self.subscriptions.iter() {
            let missing = format!("waiting for topic {}", subscription.topic());
            self.process
                .waits_for(subscription.to_string(), Some(missing));
            let name = format!("subscription {subscription}");
            let (process, subscription, shutdown) =
                (self.process.clone(), subscription.clone(), shutdown.clone());
            supervisor.spawn(name, Policy::restart(), move |heartbeat| {
                workers::run(
                    process.clone(),
                    subscription.clone(),
                    shutdown.clone(),
                    heartbeat,
                )
            });
        }
        start_settings(supervisor, &self.process.broker, shutdown);
        let (process, subscriptions) = (self.process.clone(), self.subscriptions.clone());
        let fill = move |report: &mut WorkerReport| {
            let of = |subscription: &Arc<Subscription>| SubscriptionReport {
                topic: subscription.topic().clone(),
                group: subscription.group().clone(),
                concurrency: Some(subscription.limit()),
                busy: process.held_by(subscription.topic(), subscription.group()),
                pullers: Vec::new(),
            };
            report.subscriptions = subscriptions.iter().map(of).collect();
        };
        let (broker, name) = (&self.process.broker, &self.process.name);
        report::start(supervisor, shutdown, broker, "consumer", name, fill);
    }
}

/// Starts the task that follows the settings of the topics.
pub fn start_settings(supervisor: &Supervisor, broker: &Broker, shutdown: &Shutdown) {
    let (broker, shutdown) = (broker.clone(), shutdown.clone());
    supervisor.spawn("settings", Policy::restart(), move |heartbeat| {
        heartbeat.unlimited();
        follow_settings(broker.clone(), shutdown.clone())
    });
}

/// Refreshes the settings of the topics until the shutdown begins.
async fn follow_settings(
    broker: Broker,
    shutdown: Shutdown,
) -> Result<(), std::convert::Infallible> {
    let refresh = async {
        loop {
            tokio::time::sleep(LOOK_EVERY).await;
            // The known settings stay valid. The readers report that Redis is unavailable.
            if broker.claim_refresh()
                && let Err(error) = broker.refresh().await
            {
                tracing::debug!(%error, "cannot refresh the settings of topics; retrying");
            }
        }
    };
    tokio::select! {
        () = refresh => {}
        () = shutdown.draining().cancelled() => {}
    }
    Ok(())
}

/// A builder for a [`Consumer`].
pub struct Builder {
    broker: Broker,
    group: String,
    topics: Vec<(String, Arc<dyn Handler>)>,
    subscriptions: Vec<Subscription>,
    concurrency: usize,
    handler_timeout: Option<Duration>,
    grace: Duration,
    metrics: Option<Metrics>,
    spans: Option<Spans>,
}

impl Builder {
    /// Sets the group to read as, for each [topic](Builder::topic). The default is `default`. `{instance}` means a group of
    /// this process alone: see [`Subscription::of_instance`].
    #[must_use]
    pub fn group(mut self, group: impl Into<String>) -> Self {
        self.group = group.into();
        self
    }

    /// Adds a topic and the handler of its messages. The topic need not be registered yet.
    #[must_use]
    pub fn topic(mut self, topic: impl Into<String>, handler: impl Handler) -> Self {
        self.topics.push((topic.into(), Arc::new(handler)));
        self
    }

    /// Handles the messages of a topic that is tied to a payload type with an async function: as [`Builder::topic`] with
    /// [`handler_fn`].
    #[must_use]
    pub fn handle<T, F, R>(self, topic: TopicOf<T>, function: F) -> Self
    where
        T: DeserializeOwned + Send + 'static,
        F: Fn(T, Context) -> R + Send + Sync + 'static,
        R: Future<Output: IntoOutcome> + Send + 'static,
    {
        self.topic(topic.name(), handler_fn(function))
    }

    /// Adds a subscription with its own group and limits.
    #[must_use]
    pub fn subscription(mut self, subscription: Subscription) -> Self {
        self.subscriptions.push(subscription);
        self
    }

    /// Sets how many handlers may run at a time for each [topic](Builder::topic): 1 to 10000. The default is
    /// [`DEFAULT_CONCURRENCY`].
    #[must_use]
    pub fn concurrency(mut self, concurrency: usize) -> Self {
        self.concurrency = concurrency;
        self
    }

    /// Sets the handler timeout for each [topic](Builder::topic). The default is the topic's `handler_timeout`.
    #[must_use]
    pub fn handler_timeout(mut self, timeout: Duration) -> Self {
        self.handler_timeout = Some(timeout);
        self
    }

    /// Sets how long running handlers may continue after the shutdown signal. The default is [`DEFAULT_GRACE`]. Applies to
    /// [`Consumer::run`] only.
    #[must_use]
    pub fn grace(mut self, grace: Duration) -> Self {
        self.grace = grace;
        self
    }

    /// Records deliveries, lateness and handler run times in these metrics.
    #[must_use]
    pub fn metrics(mut self, metrics: Metrics) -> Self {
        self.metrics = Some(metrics);
        self
    }

    /// Records deliveries with these spans.
    #[must_use]
    pub fn spans(mut self, spans: impl Into<Option<Spans>>) -> Self {
        self.spans = spans.into();
        self
    }

    /// Builds the consumer. Does not call Redis.
    ///
    /// # Errors
    /// A name, limit or subscription is invalid, a subscription is there twice, or there is none.
    pub fn build(self) -> Result<Consumer, ConsumerError> {
        let mut subscriptions = self.subscriptions;
        for (topic, handler) in self.topics {
            let mut subscription =
                Subscription::shared(topic.parse()?, self.group.parse()?, handler)
                    .concurrency(self.concurrency);
            if let Some(timeout) = self.handler_timeout {
                subscription = subscription.handler_timeout(timeout);
            }
            subscriptions.push(subscription);
        }
        if subscriptions.is_empty() {
            return Err(ConsumerError::NoTopic);
        }
        let mut seen = BTreeSet::new();
        let mut callbacks = CallbackTopics::default();
        for subscription in &subscriptions {
            subscription.check(MAX_CONCURRENCY)?;
            let (topic, group) = (subscription.topic(), subscription.group());
            if !seen.insert((topic.clone(), group.clone())) {
                return Err(ConsumerError::Twice {
                    topic: topic.to_string(),
                    group: group.to_string(),
                });
            }
            for to in subscription.callbacks().topics() {
                let added = callbacks.add(topic, to);
                added.map_err(ConsumerError::CallbackCycle)?;
            }
        }
        Ok(Consumer {
            process: Arc::new(Process {
                spans: self.spans,
                ..Process::new(self.broker, self.metrics)
            }),
            subscriptions: subscriptions.into_iter().map(Arc::new).collect(),
            grace: self.grace,
        })
    }
}

/// A consumer that runs when this is awaited.
pub struct Run {
    consumer: Consumer,
    signal: Option<Pin<Box<dyn Future<Output = ()> + Send>>>,
}

impl Run {
    /// Ends the run when `signal` completes. The consumer stops reading, running handlers may finish until the
    /// [grace](Builder::grace) period ends, and all other deliveries are handed back.
    #[must_use]
    pub fn with_graceful_shutdown(
        mut self,
        signal: impl Future<Output = ()> + Send + 'static,
    ) -> Self {
        self.signal = Some(Box::pin(signal));
        self
    }
}

impl IntoFuture for Run {
    type Output = Result<RunReport, ConsumerError>;
    type IntoFuture = Pin<Box<dyn Future<Output = Self::Output> + Send>>;

    /// # Cancel safety
    /// Dropping the future aborts everything. Deliveries in flight are reclaimed after their lease, each as a crash of its
    /// message.
    fn into_future(self) -> Self::IntoFuture {
        Box::pin(async move {
            let shutdown = Shutdown::manual(self.consumer.grace);
            let supervisor = Supervisor::new(&shutdown);
            self.consumer.start(&supervisor, &shutdown);
            let joined = supervisor.join();
            tokio::pin!(joined);
            if let Some(signal) = self.signal {
                tokio::select! {
                    ended = &mut joined => ended?,
                    () = signal => {
                        shutdown.begin();
                        joined.await?;
                    }
                }
            } else {
                joined.await?;
            }
            Ok(self.consumer.report())
        })
    }
}
