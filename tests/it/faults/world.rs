//! The three roles in this process, each with a runtime of its own, on a private Redis; senders that never stop, and a
//! log of what was promised and what came of it.
//!
//! It knows no fault. A test breaks something, mends it, and asks here how long the recovery took and what was lost.

use lisa_consumer::{Consumer, Context, Delivery, delivery_fn};
use lisa_manager::Manager;
use lisa_producer::{Producer, SendError};
use lisa_shared::broker::{Broker, TopicHandle, TopicStats};
use lisa_shared::config::{Config, LoadOptions};
use lisa_shared::retry::RetryPolicy;
use lisa_shared::role::{Readiness, Runtime, StartError};
use lisa_shared::shutdown::Shutdown;
use lisa_shared::supervise::Health;
use lisa_shared::topic::TopicSettings;
use lisa_tests::relay::{self, ms};
use lisa_tests::{Aof, FaultProxy, Server, eventually};
use redis::aio::MultiplexedConnection;
use redis::{Cmd, FromRedisValue};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::{Duration, Instant};
use tokio::task::{JoinHandle, JoinSet};
use tokio_util::task::AbortOnDropHandle;

/// What every role is promised to need at most after Redis is usable again.
const RECOVERY: Duration = Duration::from_secs(5);
/// Leases and retries that a fault leaves behind are over within this.
const DRAIN: Duration = Duration::from_secs(40);
/// For what has no promise: generous, since CI machines are small and busy.
const SOON: Duration = Duration::from_secs(20);
const TOPIC: &str = "t";
const SENDERS: usize = 4;
/// Between two messages of a sender.
const PACE: Duration = ms(10);
/// Messages delivered before a fault.
const UNDER_LOAD: usize = 100;
/// The longest delay of a message.
const LONGEST: u64 = 400;

/// A configuration of these keys, on a namespace of a server at `url`.
pub(crate) fn config(url: &str, namespace: &str, keys: &[(&str, &str)]) -> Config {
    let own = [("redis.url", url), ("namespace", namespace)];
    let keys = own.iter().chain(keys);
    let overrides: BTreeMap<_, _> = keys
        .map(|(key, value)| ((*key).to_owned(), (*value).to_owned()))
        .collect();
    let options = LoadOptions {
        overrides,
        ..LoadOptions::default()
    };
    Config::load(options).unwrap()
}

/// One running role.
pub(crate) struct Role {
    pub(crate) name: &'static str,
    pub(crate) broker: Broker,
    pub(crate) health: Health,
    readiness: Readiness,
    shutdown: Shutdown,
    run: JoinHandle<Result<(), StartError>>,
}

impl Role {
    /// Starts a manager, and waits until it is ready; likewise the others.
    pub(crate) async fn manager(config: &Config) -> Self {
        let (runtime, role) = Self::prepare("manager", config);
        let run = tokio::spawn(runtime.run(async |runtime| {
            let manager = Manager::of(runtime);
            manager.declare().await?;
            manager.start(&runtime.supervisor);
            Ok(())
        }));
        role.ready(run).await
    }

    pub(crate) async fn producer(config: &Config) -> (Self, Producer) {
        let (runtime, role) = Self::prepare("producer", config);
        let producer = Producer::new(runtime.broker.clone());
        let run = tokio::spawn(runtime.run(async |_| Ok(())));
        (role.ready(run).await, producer)
    }

    /// A consumer that tells `log` of each delivery.
    pub(crate) async fn consumer(config: &Config, topics: &[&str], log: &Arc<Log>) -> Self {
        let (runtime, role) = Self::prepare("consumer", config);
        let mut consumer = Consumer::builder(runtime.broker.clone());
        for topic in topics {
            let log = log.clone();
            let handler = delivery_fn(move |delivery: Delivery, _: Context| {
                log.delivered(&delivery);
                async {}
            });
            consumer = consumer.topic(*topic, handler);
        }
        let consumer = consumer.build().unwrap();
        let run = tokio::spawn(runtime.run(async move |runtime| {
            consumer.start(&runtime.supervisor, &runtime.shutdown);
            Ok(())
        }));
        role.ready(run).await
    }

    fn prepare(name: &'static str, config: &Config) -> (Runtime, Starting) {
        let shutdown = Shutdown::manual(SOON);
        let runtime = Runtime::with_shutdown(name, config.clone(), shutdown.clone()).unwrap();
        let starting = Starting {
            name,
            broker: runtime.broker.clone(),
            health: runtime.supervisor.health(),
            readiness: runtime.readiness.clone(),
            shutdown,
        };
        (runtime, starting)
    }

    /// Why it is not ready.
    pub(crate) fn reasons(&self) -> Vec<String> {
        self.readiness.reasons()
    }

    /// How many managers are alive.
    pub(crate) async fn managers(&self) -> usize {
        let observed = self.broker.beat("observer", Duration::ZERO).await;
        observed.unwrap().managers.len()
    }

    /// A topic as this role knows it.
    pub(crate) async fn topic(&self, name: &str) -> Arc<TopicHandle> {
        self.broker.topic(&name.parse().unwrap()).await.unwrap()
    }

    /// Ends it as an operator would.
    pub(crate) async fn stop(self) {
        self.shutdown.begin();
        let ended = self.run.await.expect("no panic");
        ended.unwrap_or_else(|error| panic!("{}: {error}", self.name));
    }
}

struct Starting {
    name: &'static str,
    broker: Broker,
    health: Health,
    readiness: Readiness,
    shutdown: Shutdown,
}

impl Starting {
    async fn ready(self, run: JoinHandle<Result<(), StartError>>) -> Role {
        let Self {
            name,
            broker,
            health,
            readiness,
            shutdown,
        } = self;
        let role = Role {
            name,
            broker,
            health,
            readiness,
            shutdown,
            run,
        };
        eventually(SOON, async || match role.reasons() {
            reasons if reasons.is_empty() => Ok(()),
            reasons => Err(format!("{}: {reasons:?}", role.name)),
        })
        .await;
        role
    }
}

/// What was promised, and what came of it.
#[derive(Default)]
pub(crate) struct Log {
    state: Mutex<State>,
    /// Grows when data are destroyed on purpose: what was accepted before is forgiven.
    epoch: AtomicU64,
}

#[derive(Default)]
struct State {
    /// Id to the earliest time of its delivery, ms; written before the first try of its send.
    earliest: BTreeMap<String, u64>,
    /// Id to the epoch in which the accepted try began.
    accepted: BTreeMap<String, u64>,
    delivered: BTreeMap<String, usize>,
    early: Vec<String>,
    latest: Duration,
    /// Errors that told a sender to repeat, by word.
    repeated: BTreeMap<String, usize>,
    /// Errors that told a sender to give up.
    refused: BTreeSet<String>,
    /// Reasons for which a role was not ready since the fault.
    reasons: BTreeMap<&'static str, BTreeSet<String>>,
}

impl Log {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap()
    }

    fn delivered(&self, delivery: &Delivery) {
        let now = now_ms();
        let id = delivery.id.to_string();
        let mut state = self.state();
        let earliest = state.earliest.get(&id).copied();
        if earliest.is_some_and(|earliest| now < earliest) || now < delivery.due_at.get() {
            state
                .early
                .push(format!("{id} at {now}, not before {earliest:?}"));
        }
        state.latest = state.latest.max(delivery.lateness());
        *state.delivered.entry(id).or_default() += 1;
    }

    /// How many messages were delivered.
    pub(crate) fn count(&self) -> usize {
        self.state().delivered.len()
    }

    /// How late the latest one was.
    pub(crate) fn latest(&self) -> Duration {
        self.state().latest
    }

    /// Says what was accepted since the last destruction and has not been delivered.
    fn missing(&self) -> Vec<String> {
        let state = self.state();
        let epoch = self.epoch.load(Ordering::SeqCst);
        let owed = state.accepted.iter().filter(|(_, of)| **of == epoch);
        owed.filter(|(id, _)| !state.delivered.contains_key(*id))
            .map(|(id, _)| id.clone())
            .collect()
    }
}

/// Redis's clock: it runs on this host.
fn now_ms() -> u64 {
    u64::try_from(jiff::Timestamp::now().as_millisecond()).unwrap()
}

/// Everything that runs.
pub(crate) struct World {
    pub(crate) server: Server,
    pub(crate) proxy: FaultProxy,
    manager: Role,
    producer: Role,
    consumer: Role,
    log: Arc<Log>,
    sender: Sender,
    senders: JoinSet<()>,
    connection: MultiplexedConnection,
    _watch: AbortOnDropHandle<()>,
}

/// What a sending task needs.
#[derive(Clone)]
struct Sender {
    producer: Producer,
    log: Arc<Log>,
    stop: Arc<AtomicBool>,
    /// Repeats also what tells it to give up: for refusals that an operator mends meanwhile.
    stubborn: Arc<AtomicBool>,
}

impl Sender {
    /// Sends one message until it is accepted; gives up only when all stop.
    async fn send(&self, id: String, delay: Duration) {
        let earliest = now_ms() + u64::try_from(delay.as_millis()).unwrap();
        self.log.state().earliest.insert(id.clone(), earliest);
        while !self.stop.load(Ordering::SeqCst) {
            let epoch = self.log.epoch.load(Ordering::SeqCst);
            let send = self.producer.send_bytes(TOPIC, id.clone());
            match send.id(&id).delay(delay).await {
                Ok(_) => {
                    self.log.state().accepted.insert(id, epoch);
                    return;
                }
                Err(error) if error.is_retryable() => {
                    let word = match error {
                        SendError::Full => "full",
                        SendError::Indeterminate(_) => "indeterminate",
                        _ => "unavailable",
                    };
                    let mut state = self.log.state();
                    *state.repeated.entry(word.to_owned()).or_default() += 1;
                }
                Err(error) => {
                    self.log.state().refused.insert(error.to_string());
                    if !self.stubborn.load(Ordering::SeqCst) {
                        return;
                    }
                }
            }
            tokio::time::sleep(ms(20)).await;
        }
    }

    async fn keep_sending(self, number: usize) {
        for count in 0.. {
            if self.stop.load(Ordering::SeqCst) {
                return;
            }
            let delay = ms(fastrand::u64(0..=LONGEST));
            self.send(format!("{number}-{count}"), delay).await;
            tokio::time::sleep(PACE).await;
        }
    }
}

/// The shortest lease, so that what a fault leaves behind comes back soon, and attempts enough for many of them.
fn settings() -> TopicSettings {
    TopicSettings {
        max_attempts: 50,
        retry: RetryPolicy::Fixed {
            delay: ms(200),
            jitter: 0.0,
        },
        ..relay::settings()
    }
}

impl World {
    /// Starts everything on a server that writes each command to disk, and waits until many messages passed.
    pub(crate) async fn start() -> Self {
        Self::on(Server::builder().aof(Aof::Always).start()).await
    }

    /// Starts everything on this server; the roles reach it through a proxy.
    pub(crate) async fn on(server: Server) -> Self {
        let proxy = FaultProxy::start(server.port()).await;
        let mut config = config(&server.url_through(&proxy), "faults", &[]);
        config.topics.insert(TOPIC.parse().unwrap(), settings());
        let log = Arc::new(Log::default());
        let manager = Role::manager(&config).await;
        let (producer, sends) = Role::producer(&config).await;
        let consumer = Role::consumer(&config, &[TOPIC], &log).await;
        let sender = Sender {
            producer: sends,
            log: log.clone(),
            stop: Arc::default(),
            stubborn: Arc::default(),
        };
        let mut senders = JoinSet::new();
        for number in 0..SENDERS {
            senders.spawn(sender.clone().keep_sending(number));
        }
        let watched =
            [&manager, &producer, &consumer].map(|role| (role.name, role.readiness.clone()));
        let watch = tokio::spawn(watch(watched, log.clone()));
        let world = Self {
            connection: server.connection().await,
            server,
            proxy,
            manager,
            producer,
            consumer,
            log,
            sender,
            senders,
            _watch: AbortOnDropHandle::new(watch),
        };
        // The fault is to strike in the midst of things.
        eventually(SOON, async || match world.log.count() {
            UNDER_LOAD.. => Ok(()),
            count => Err(format!("{count} delivered")),
        })
        .await;
        world.log.state().reasons.clear();
        world
    }

    /// Lets senders repeat also what an operator must mend.
    pub(crate) fn expect_refusals(&self) {
        self.sender.stubborn.store(true, Ordering::SeqCst);
    }

    /// Says that data were destroyed on purpose just now.
    pub(crate) fn forgive(&self) {
        self.log.epoch.fetch_add(1, Ordering::SeqCst);
    }

    /// Runs a command on the harness's own connection, which no fault of the proxy or of passwords reaches.
    pub(crate) async fn command<T: FromRedisValue>(&self, cmd: &Cmd) -> T {
        let reply = cmd.query_async(&mut self.connection.clone()).await;
        reply.unwrap_or_else(|error| panic!("{cmd:?}: {error}"))
    }

    /// Runs many commands there at once.
    pub(crate) async fn pipeline(&self, pipeline: &redis::Pipeline) {
        let sent = pipeline.exec_async(&mut self.connection.clone()).await;
        sent.unwrap();
    }

    /// Connects the harness again, after a restart.
    pub(crate) async fn reconnect(&mut self) {
        self.connection = self.server.connection().await;
    }

    /// Closes every connection of the roles, also the subscriptions.
    pub(crate) async fn kill_clients(&self) {
        for kind in ["normal", "pubsub"] {
            let _: u32 = self
                .command(redis::cmd("CLIENT").arg(&["KILL", "TYPE", kind]))
                .await;
        }
    }

    /// All roles.
    pub(crate) fn roles(&self) -> [&Role; 3] {
        [&self.manager, &self.producer, &self.consumer]
    }

    /// Says whether some role gave a reason with this word in it.
    pub(crate) fn was_unready_for(&self, word: &str) -> bool {
        let state = self.log.state();
        state
            .reasons
            .values()
            .flatten()
            .any(|reason| reason.contains(word))
    }

    /// Waits until a message sent from now on has been delivered.
    async fn flows(&self) {
        static NUMBER: AtomicU64 = AtomicU64::new(0);
        let id = format!("probe-{}", NUMBER.fetch_add(1, Ordering::Relaxed));
        self.sender.send(id.clone(), Duration::ZERO).await;
        eventually(SOON, async || {
            if self.log.state().delivered.contains_key(&id) {
                Ok(())
            } else {
                Err(format!(
                    "{id} was accepted and not delivered; {}",
                    self.seen()
                ))
            }
        })
        .await;
    }

    /// Waits until every role has said that it is not ready.
    pub(crate) async fn all_see_it(&self) {
        let begun = Instant::now();
        eventually(SOON, async || {
            let seen = self.log.state().reasons.len();
            if seen == 3 { Ok(()) } else { Err(self.seen()) }
        })
        .await;
        println!("all roles not ready after {:?}", begun.elapsed());
    }

    /// Measures from now, when Redis is usable again, until every role is ready and a message passes.
    pub(crate) async fn recovers(&self) {
        let begun = Instant::now();
        self.flows().await;
        let roles = self.roles();
        eventually(SOON, async || {
            let not_ready: Vec<_> = roles
                .iter()
                .filter(|role| !role.reasons().is_empty() || !role.health.is_green())
                .map(|role| (role.name, role.reasons(), role.health.tasks()))
                .collect();
            if not_ready.is_empty() {
                Ok(())
            } else {
                Err(format!("{not_ready:#?}"))
            }
        })
        .await;
        let took = begun.elapsed();
        println!("recovered after {took:?}; {}", self.seen());
        assert!(took <= RECOVERY, "{took:?}");
    }

    /// All that is known, for people.
    pub(crate) fn seen(&self) -> String {
        let state = self.log.state();
        format!(
            "{} accepted, {} delivered, repeated {:?}, refused {:?}, reasons {:?}",
            state.accepted.len(),
            state.delivered.len(),
            state.repeated,
            state.refused,
            state.reasons
        )
    }

    async fn stats(&self) -> TopicStats {
        let topic = self.manager.topic(TOPIC).await;
        self.manager.broker.stats(&topic).await.unwrap()
    }

    /// Stops sending, and checks that everything accepted was delivered, nothing early, nothing given up, and that the
    /// sums hold; then ends the roles.
    pub(crate) async fn finish(self) {
        self.finish_with(async |_| 0).await;
    }

    /// As [`World::finish`], with so many messages in no place at the end: for data destroyed on purpose.
    pub(crate) async fn finish_with(mut self, unaccounted: impl AsyncFn(&Self) -> u64) {
        self.sender.stop.store(true, Ordering::SeqCst);
        while let Some(ended) = self.senders.join_next().await {
            ended.unwrap();
        }
        eventually(DRAIN, async || {
            let missing = self.log.missing();
            let stats = self.stats().await;
            let group = &stats.groups[0];
            let held = stats.waiting + group.ready + group.in_flight + group.retry + group.garbage;
            let lost = unaccounted(&self).await;
            if missing.is_empty() && held == 0 && stats.conservation_error == lost {
                Ok(())
            } else {
                Err(format!(
                    "missing {missing:?}, expected to be lost {lost}, {stats:#?}"
                ))
            }
        })
        .await;
        self.assert_well();
        for role in [self.consumer, self.producer, self.manager] {
            role.stop().await;
        }
    }

    /// Asserts that nothing was early, and nobody was told to give up.
    fn assert_well(&self) {
        let state = self.log.state();
        assert!(state.early.is_empty(), "early: {:?}", state.early);
        if !self.sender.stubborn.load(Ordering::SeqCst) {
            assert!(state.refused.is_empty(), "{:?}", state.refused);
        }
        let again = state.delivered.values().filter(|count| **count > 1).count();
        println!(
            "{} accepted, {} delivered, {again} of them more than once",
            state.accepted.len(),
            state.delivered.len()
        );
    }
}

/// Notes why roles are not ready.
async fn watch(roles: [(&'static str, Readiness); 3], log: Arc<Log>) {
    loop {
        for (name, readiness) in &roles {
            let reasons = readiness.reasons();
            if !reasons.is_empty() {
                let mut state = log.state();
                state.reasons.entry(name).or_default().extend(reasons);
            }
        }
        tokio::time::sleep(ms(5)).await;
    }
}
