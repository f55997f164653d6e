//! The three roles in this process, each with its own runtime, on a private Redis; senders that never stop, and a log
//! of promises and their outcomes.
//!
//! It knows no fault. A test breaks something, repairs it, and asks here how long the recovery took and what was lost.

use super::log::{Log, Sender, TOPIC};
use super::role::{Role, config};
use lisa_core::broker::TopicStats;
use lisa_core::retry::RetryPolicy;
use lisa_core::topic::{Size, TopicSettings};
use lisa_service::role::Readiness;
use lisa_tests::relay::{self, ms};
use lisa_tests::{Aof, FaultProxy, SOON, Server, Stopwatch, eventually};
use redis::aio::MultiplexedConnection;
use redis::{Cmd, FromRedisValue};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};
use tokio::task::JoinSet;
use tokio_util::task::AbortOnDropHandle;

/// The longest time that any role may need after Redis is usable again.
const RECOVERY: Duration = Duration::from_secs(5);
/// The part of that which a slow machine makes longer.
const WORK: Duration = Duration::from_secs(1);
const SENDERS: usize = 4;
/// Messages delivered before a fault.
const UNDER_LOAD: usize = 100;

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

/// The shortest lease, so that deliveries held during a fault come back soon, and enough attempts for many faults.
fn settings() -> TopicSettings {
    TopicSettings {
        max_attempts: 50,
        max_payload: Size::new(8 * 1024 * 1024),
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
        // The fault must strike while messages flow.
        eventually(SOON, async || match world.log.count() {
            UNDER_LOAD.. => Ok(()),
            count => Err(format!("{count} delivered")),
        })
        .await;
        world.log.state().reasons.clear();
        world
    }

    /// Lets senders also retry errors that an operator must repair.
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

    /// Returns whether some role's reason contains this word.
    pub(crate) fn was_unready_for(&self, word: &str) -> bool {
        let state = self.log.state();
        state
            .reasons
            .values()
            .flatten()
            .any(|reason| reason.contains(word))
    }

    /// Sends this many messages of this size, and waits until all were delivered.
    pub(crate) async fn carries(&self, count: usize, size: usize) {
        for number in 0..count {
            let id = format!("large-{number}");
            self.sender.send_of(id, Duration::ZERO, size).await;
        }
        eventually(SOON, async || {
            let state = self.log.state();
            let large = state.delivered.keys().filter(|id| id.starts_with("large-"));
            match large.count() {
                arrived if arrived == count => Ok(()),
                arrived => Err(format!("{arrived} of {count} delivered")),
            }
        })
        .await;
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

    /// Asserts for this long that no role looks dead, whether or not it is ready.
    pub(crate) async fn all_stay_alive(&self, span: Duration) {
        let end = Instant::now() + span;
        while Instant::now() < end {
            for role in self.roles() {
                assert!(
                    role.health.is_green(),
                    "{}: {:#?}",
                    role.name,
                    role.health.tasks()
                );
            }
            tokio::time::sleep(ms(20)).await;
        }
    }

    /// Measures from now, when Redis is usable again, until every role is ready and a message passes.
    pub(crate) async fn recovers(&self) {
        let watch = Stopwatch::start();
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
        let took = watch.elapsed();
        println!("recovered after {took:?}; {}", self.seen());
        watch.assert_took(took, RECOVERY - WORK, WORK);
    }

    /// Returns all that is known, as text.
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

    /// Stops sending, and checks that everything accepted was delivered, nothing was early or moved to garbage, and the
    /// sums hold; then ends the roles.
    pub(crate) async fn finish(self) {
        self.finish_with(async |_| 0).await;
    }

    /// Like [`World::finish`], with this many messages in no state at the end: for data destroyed on purpose.
    pub(crate) async fn finish_with(mut self, unaccounted: impl AsyncFn(&Self) -> u64) {
        self.sender.stop.store(true, Ordering::SeqCst);
        while let Some(ended) = self.senders.join_next().await {
            ended.unwrap();
        }
        eventually(SOON, async || {
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

    /// Asserts that nothing was early, and no error asked a sender to stop.
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

/// Records why roles are not ready.
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
