//! The consumer that programs build and run: subscriptions, and what they share in one process.
//!
//! Checks what it is given; the work is done by one task a subscription.

use std::collections::{BTreeMap, BTreeSet};
use std::future::IntoFuture;
use std::pin::Pin;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use lisa_shared::broker::Broker;
use lisa_shared::config::Config;
use lisa_shared::metrics::Metrics;
use lisa_shared::role::{self, StartError};
use lisa_shared::shutdown::Shutdown;
use lisa_shared::supervise::{Policy, Supervisor, SupervisorError};
use lisa_shared::topic::InvalidName;

use crate::handler::Handler;
use crate::payloads::Payloads;
use crate::report::{RunReport, Tally};
use crate::subscription::{self, Subscription};

/// How many handlers of a subscription run at once, if nothing else is said.
pub const DEFAULT_CONCURRENCY: usize = 16;
/// How long running handlers may go on after the signal to stop, if nothing else is said.
pub const DEFAULT_GRACE: Duration = Duration::from_secs(25);
/// The most handlers of a subscription that may run at once.
const MAX_CONCURRENCY: usize = 10_000;
/// How often new settings of topics are looked for.
const REFRESH_EVERY: Duration = Duration::from_secs(5);
/// How long [`Consumer::connect`] waits for Redis, and each call after it.
const PATIENCE: Duration = Duration::from_secs(5);

/// Why a consumer cannot be built, or did not end well.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ConsumerError {
    /// A topic or group that cannot be one.
    #[error(transparent)]
    Name(#[from] InvalidName),
    /// Nothing to read.
    #[error("a consumer needs a topic")]
    NoTopic,
    /// The same group of the same topic again.
    #[error("group {group} of topic {topic} is subscribed twice: raise its concurrency instead")]
    Twice {
        /// The topic.
        topic: String,
        /// The group.
        group: String,
    },
    /// A bound that was not kept.
    #[error("concurrency {0}: allowed is 1 to {MAX_CONCURRENCY}")]
    Concurrency(usize),
    /// A time-out that no handler can keep.
    #[error("a handler time-out of zero")]
    HandlerTimeout,
    /// A task failed, or did not end when the grace was over.
    #[error(transparent)]
    Supervisor(#[from] SupervisorError),
}

/// What the subscriptions of one consumer share.
pub(crate) struct Process {
    pub(crate) broker: Broker,
    pub(crate) metrics: Option<Metrics>,
    /// The name by which Redis knows who holds a delivery; another one for each start of a process.
    pub(crate) name: String,
    pub(crate) tally: Tally,
    pub(crate) payloads: Payloads,
    /// What each subscription waits for before it can read.
    pub(crate) awaited: Mutex<BTreeMap<String, String>>,
}

/// Reads and handles the messages of some topics. Cheap to clone; made by [`Consumer::builder`].
#[derive(Clone)]
pub struct Consumer {
    process: Arc<Process>,
    subscriptions: Arc<[Arc<Subscription>]>,
    grace: Duration,
}

impl Process {
    /// Notes what a subscription waits for before it can read; `None` once it reads.
    pub(crate) fn waits_for(&self, subscription: &Subscription, missing: Option<String>) {
        let mut awaited = self.awaited.lock().unwrap_or_else(PoisonError::into_inner);
        let name = subscription.to_string();
        match missing {
            Some(missing) => awaited.insert(name, missing),
            None => awaited.remove(&name),
        };
    }
}

impl Consumer {
    /// Begins a consumer of a Redis, with the default namespace; `url` as in the configuration:
    /// `redis://host:6379`.
    ///
    /// # Errors
    /// A bad address, or a Redis that refuses us or does not answer within 5 s.
    pub async fn connect(url: &str) -> Result<Builder, StartError> {
        let mut config = Config::default();
        config.redis.url = url
            .parse()
            .map_err(|error| StartError::Refused(format!("{error}")))?;
        Ok(Self::builder(role::connect(&config, PATIENCE).await?))
    }

    /// Begins a consumer.
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
        }
    }

    /// The name by which Redis knows this consumer: host, pid and a random part.
    pub fn name(&self) -> &str {
        &self.process.name
    }

    /// What it did so far.
    pub fn report(&self) -> RunReport {
        self.process.tally.report()
    }

    /// Returns what hinders some of its messages while it runs, one sentence for each subscription: those that are suspected
    /// of killing their process wait for one another.
    pub fn warnings(&self) -> Vec<String> {
        let subscriptions = self.subscriptions.iter();
        subscriptions
            .filter_map(|subscription| {
                let warning = subscription.suspects().warning()?;
                Some(format!("subscription {subscription}: {warning}"))
            })
            .collect()
    }

    /// What subscriptions wait for before they can read, such as `waiting for topic order`: a topic or group that is not
    /// registered, perhaps because its name is mistyped. Empty once all of them read, and before the consumer runs.
    pub fn waiting(&self) -> Vec<String> {
        let awaited = &self.process.awaited;
        let awaited = awaited.lock().unwrap_or_else(PoisonError::into_inner);
        awaited.values().cloned().collect()
    }

    /// Runs the consumer by itself, to its end. Nothing happens before the first poll.
    pub fn run(self) -> Run {
        Run {
            consumer: self,
            signal: None,
        }
    }

    /// Starts its tasks under a supervisor, for a program that runs other things beside it. They end with `shutdown`:
    /// running handlers may finish until its grace ends, everything else is handed back.
    ///
    /// Call it once, inside a Tokio runtime.
    pub fn start(&self, supervisor: &Supervisor, shutdown: &Shutdown) {
        for subscription in self.subscriptions.iter() {
            let missing = format!("waiting for topic {}", subscription.topic());
            self.process.waits_for(subscription, Some(missing));
            let name = format!("subscription {subscription}");
            let (process, subscription, shutdown) =
                (self.process.clone(), subscription.clone(), shutdown.clone());
            supervisor.spawn(name, Policy::restart(), move |beat| {
                subscription::run(
                    process.clone(),
                    subscription.clone(),
                    shutdown.clone(),
                    beat,
                )
            });
        }
        let (broker, shutdown) = (self.process.broker.clone(), shutdown.clone());
        supervisor.spawn("settings", Policy::restart(), move |beat| {
            beat.unlimited();
            follow_settings(broker.clone(), shutdown.clone())
        });
    }
}

/// Keeps the settings of the topics fresh, until the shutdown begins.
async fn follow_settings(
    broker: Broker,
    shutdown: Shutdown,
) -> Result<(), std::convert::Infallible> {
    let refresh = async {
        loop {
            tokio::time::sleep(REFRESH_EVERY).await;
            // What is known stays good; that Redis is away is told by the readers.
            if let Err(error) = broker.refresh().await {
                tracing::debug!(%error, "cannot refresh the topics' settings");
            }
        }
    };
    tokio::select! {
        () = refresh => {}
        () = shutdown.draining().cancelled() => {}
    }
    Ok(())
}

/// The settings of a consumer to be built.
pub struct Builder {
    broker: Broker,
    group: String,
    topics: Vec<(String, Arc<dyn Handler>)>,
    subscriptions: Vec<Subscription>,
    concurrency: usize,
    handler_timeout: Option<Duration>,
    grace: Duration,
    metrics: Option<Metrics>,
}

impl Builder {
    /// Reads as this group of each [topic](Builder::topic); `default` if not said. `{instance}` stands for a group
    /// of this process's own: see [`Subscription::of_instance`].
    #[must_use]
    pub fn group(mut self, group: impl Into<String>) -> Self {
        self.group = group.into();
        self
    }

    /// Handles the messages of a topic. The topic need not be registered yet.
    #[must_use]
    pub fn topic(mut self, topic: impl Into<String>, handler: impl Handler) -> Self {
        self.topics.push((topic.into(), Arc::new(handler)));
        self
    }

    /// Adds a subscription with a group and limits of its own.
    #[must_use]
    pub fn subscription(mut self, subscription: Subscription) -> Self {
        self.subscriptions.push(subscription);
        self
    }

    /// Runs up to so many handlers at once for each [topic](Builder::topic); 1 to 10000, [`DEFAULT_CONCURRENCY`] if
    /// not said.
    #[must_use]
    pub fn concurrency(mut self, concurrency: usize) -> Self {
        self.concurrency = concurrency;
        self
    }

    /// Gives up a handler of each [topic](Builder::topic) after so long; as the topic says if not said.
    #[must_use]
    pub fn handler_timeout(mut self, timeout: Duration) -> Self {
        self.handler_timeout = Some(timeout);
        self
    }

    /// Lets running handlers go on for so long after the signal to stop; [`DEFAULT_GRACE`] if not said. For
    /// [`Consumer::run`] only.
    #[must_use]
    pub fn grace(mut self, grace: Duration) -> Self {
        self.grace = grace;
        self
    }

    /// Counts deliveries, lateness and run times there.
    #[must_use]
    pub fn metrics(mut self, metrics: Metrics) -> Self {
        self.metrics = Some(metrics);
        self
    }

    /// Makes the consumer. Redis is not asked yet.
    ///
    /// # Errors
    /// Names, limits or subscriptions that cannot be.
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
        for subscription in &subscriptions {
            subscription.check(MAX_CONCURRENCY)?;
            let (topic, group) = (subscription.topic(), subscription.group());
            if !seen.insert((topic.clone(), group.clone())) {
                return Err(ConsumerError::Twice {
                    topic: topic.to_string(),
                    group: group.to_string(),
                });
            }
        }
        let process = Process {
            broker: self.broker,
            metrics: self.metrics,
            name: role::process_name(),
            tally: Tally::default(),
            payloads: Payloads::default(),
            awaited: Mutex::default(),
        };
        Ok(Consumer {
            process: Arc::new(process),
            subscriptions: subscriptions.into_iter().map(Arc::new).collect(),
            grace: self.grace,
        })
    }
}

/// A consumer that is about to run; await it.
pub struct Run {
    consumer: Consumer,
    signal: Option<Pin<Box<dyn Future<Output = ()> + Send>>>,
}

impl Run {
    /// Ends the run when `signal` is over: no more reads; running handlers may finish until the
    /// [grace](Builder::grace) ends; everything else is handed back.
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
    /// Dropping the future aborts everything; what was in flight comes again after its lease, counted.
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
