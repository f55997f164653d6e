//! All three roles under a steady load, and the results: messages that were accepted and never delivered, messages that
//! came early, and the order of each key.
//!
//! It knows no fault. A test breaks something, and asks here how long the recovery took, and what was lost when.

use super::SOON;
use crate::faults::role::{Role, config_of};
use lisa_consumer::Delivery;
use lisa_core::broker::{TopicHandle, TopicStats};
use lisa_core::retry::RetryPolicy;
use lisa_core::topic::TopicSettings;
use lisa_producer::{NewMessage, Producer, SendError};
use lisa_tests::relay::{self, ms};
use lisa_tests::{Stopwatch, eventually};
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::{Duration, Instant};
use tokio::task::JoinSet;

/// The topic of all messages.
pub(super) const TOPIC: &str = "t";
/// The longest time that any role may need once Redis is usable again.
const RECOVERY: Duration = Duration::from_secs(5);
/// The part of that which a slow machine makes longer.
const WORK: Duration = Duration::from_secs(1);
/// Sending tasks, each with its own key.
const SENDERS: usize = 12;
/// The pause between two messages of a sender.
const PACE: Duration = ms(40);
/// The longest delay of a message without a key, ms.
const LONGEST: u64 = 400;
/// Messages delivered before a fault.
const UNDER_LOAD: usize = 200;

/// The known facts about one message.
#[derive(Default)]
struct Fate {
    /// Its key and its place in it.
    key: Option<(String, usize)>,
    /// The time of its receipt.
    accepted: Option<Instant>,
    delivered: usize,
}

#[derive(Default)]
struct Log {
    fates: BTreeMap<String, Fate>,
    /// The place of the latest message of each key that came for the first time.
    latest: BTreeMap<String, usize>,
    wrong: Vec<String>,
    /// The reasons why senders were asked to retry, each with its count.
    repeats: BTreeMap<String, usize>,
    /// The number of messages delivered for the first time.
    count: usize,
}

/// The ids of the lost messages, each with the time of its acceptance.
pub(super) type Lost = BTreeMap<String, Instant>;

/// The roles, the senders and their log.
pub(super) struct Load {
    manager: Role,
    producer: Role,
    consumer: Role,
    sends: Producer,
    log: Arc<Mutex<Log>>,
    stop: Arc<AtomicBool>,
    senders: JoinSet<()>,
}

/// The shortest lease, so that what a fault leaves behind comes back soon, and attempts enough for many of them.
pub(super) fn settings() -> TopicSettings {
    TopicSettings {
        max_attempts: 50,
        retry: RetryPolicy::Fixed {
            delay: ms(200),
            jitter: 0.0,
        },
        ..relay::settings()
    }
}

impl Load {
    /// Starts everything on the Redis that `access` describes, and waits until many messages passed.
    pub(super) async fn start(access: &[(&str, String)], settings: TopicSettings) -> Self {
        let mut config = config_of(access, "lisa", &[]);
        config.topics.insert(TOPIC.parse().unwrap(), settings);
        let log: Arc<Mutex<Log>> = Arc::default();
        let manager = Role::manager(&config).await;
        let (producer, sends) = Role::producer(&config).await;
        let seen = log.clone();
        let see = move |delivery: &Delivery| lock(&seen).see(delivery);
        let consumer = Role::consumer_of(&config, &[TOPIC], see).await;
        let (stop, mut senders): (Arc<AtomicBool>, _) = (Arc::default(), JoinSet::new());
        for sender in 0..SENDERS {
            senders.spawn(keep_sending(
                sends.clone(),
                log.clone(),
                stop.clone(),
                sender,
            ));
        }
        let load = Self {
            manager,
            producer,
            consumer,
            sends,
            log,
            stop,
            senders,
        };
        // The fault must strike while messages flow.
        load.passes(UNDER_LOAD).await;
        load
    }

    /// Returns the number of messages delivered so far.
    pub(super) fn count(&self) -> usize {
        lock(&self.log).count
    }

    /// Waits until this many more messages were delivered.
    pub(super) async fn passes(&self, more: usize) {
        let wanted = self.count() + more;
        eventually(SOON, async || match self.count() {
            count if count >= wanted => Ok(()),
            count => Err(format!("{count} of {wanted} delivered")),
        })
        .await;
    }

    /// Asserts that, counted from now, when Redis is usable again, a message passes and every role is ready within five
    /// seconds.
    pub(super) async fn recovers(&self) {
        let watch = Stopwatch::start();
        static PROBES: AtomicUsize = AtomicUsize::new(0);
        let id = format!("probe-{}", PROBES.fetch_add(1, Ordering::Relaxed));
        deliver(
            &self.sends,
            &self.log,
            &self.stop,
            &id,
            NewMessage::new("x"),
            None,
        )
        .await;
        eventually(SOON, async || match lock(&self.log).fates.get(&id) {
            Some(fate) if fate.delivered > 0 => Ok(()),
            _ => Err(format!("{id} was accepted and not delivered")),
        })
        .await;
        let flows = watch.elapsed();
        let roles = [&self.manager, &self.producer, &self.consumer];
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
        println!("messages pass after {flows:?}, all ready after {took:?}");
        watch.assert_took(took, RECOVERY - WORK, WORK);
    }

    /// Sends messages without a key that are due after `delay`, or up to as long again; returns when all are accepted.
    pub(super) async fn stock(&self, count: usize, delay: Duration) {
        let mut sends = JoinSet::new();
        for number in 0..count {
            let delay = delay.mul_f64(1.0 + fastrand::f64());
            let (producer, log, stop) = (self.sends.clone(), self.log.clone(), self.stop.clone());
            sends.spawn(async move {
                let id = format!("stock-{number}");
                let message = NewMessage::new("x").delay(delay);
                deliver(&producer, &log, &stop, &id, message, None).await;
            });
        }
        while let Some(sent) = sends.join_next().await {
            sent.unwrap();
        }
    }

    /// The topic as Redis has it now.
    pub(super) async fn topic(&self) -> Arc<TopicHandle> {
        self.manager.broker.refresh().await.unwrap();
        self.manager.topic(TOPIC).await
    }

    /// The counts of the topic now.
    pub(super) async fn stats(&self) -> TopicStats {
        let topic = self.topic().await;
        self.manager.broker.stats(&topic).await.unwrap()
    }

    /// Drops the keys of retired shards, without waiting for the manager to do it.
    pub(super) async fn leave(&self) {
        let topic = self.topic().await;
        self.manager.broker.drop_retired_keys(&topic).await.unwrap();
    }

    /// The ids of messages that were delivered more than once.
    pub(super) fn doubled(&self) -> Vec<String> {
        let log = lock(&self.log);
        let fates = log.fates.iter().filter(|(_, fate)| fate.delivered > 1);
        fates.map(|(id, _)| id.clone()).collect()
    }

    /// Stops sending, and waits until nothing is on its way and the sums hold.
    pub(super) async fn drained(&mut self) {
        self.stop.store(true, Ordering::SeqCst);
        while let Some(ended) = self.senders.join_next().await {
            ended.unwrap();
        }
        eventually(SOON, async || {
            let topic = self.manager.topic(TOPIC).await;
            let stats = self.manager.broker.stats(&topic).await;
            let stats = stats.map_err(|error| error.to_string())?;
            let group = &stats.groups[0];
            let held = stats.waiting
                + group.ready
                + group.in_flight
                + group.retry
                + group.parked
                + group.garbage;
            if held == 0 && stats.conservation_error == 0 {
                Ok(())
            } else {
                Err(format!("{stats:#?}"))
            }
        })
        .await;
    }

    /// Drains, and checks that nothing was early, out of order or moved to garbage. Ends the roles, and returns the
    /// messages that were accepted and never came.
    pub(super) async fn finish(mut self) -> Lost {
        self.drained().await;
        for role in [self.consumer, self.producer, self.manager] {
            role.stop().await;
        }
        let log = lock(&self.log);
        assert!(log.wrong.is_empty(), "{:#?}", log.wrong);
        let (mut accepted, mut again, mut lost) = (0, 0, Lost::new());
        for (id, fate) in &log.fates {
            accepted += usize::from(fate.accepted.is_some());
            again += usize::from(fate.delivered > 1);
            if let (Some(accepted), 0) = (fate.accepted, fate.delivered) {
                let id = id.clone();
                lost.insert(id, accepted);
            }
        }
        println!(
            "{accepted} accepted, {} delivered, {again} of them more than once, sends repeated {:?}, {} lost",
            log.count,
            log.repeats,
            lost.len()
        );
        lost
    }
}

impl Log {
    fn see(&mut self, delivery: &Delivery) {
        let id = delivery.id.to_string();
        let now = now_ms();
        if now < delivery.due_at.get() {
            self.wrong.push(format!("{id} came early, at {now}"));
        }
        let fate = self.fates.entry(id.clone()).or_default();
        fate.delivered += 1;
        if fate.delivered > 1 {
            return;
        }
        self.count += 1;
        if let Some((key, place)) = &fate.key {
            let latest = self.latest.insert(key.clone(), *place);
            if latest.is_some_and(|latest| latest > *place) {
                self.wrong
                    .push(format!("{id} came after {latest:?} of {key}"));
            }
        }
    }
}

fn lock(log: &Mutex<Log>) -> MutexGuard<'_, Log> {
    log.lock().unwrap()
}

/// Redis's clock: it runs on this host.
fn now_ms() -> u64 {
    u64::try_from(jiff::Timestamp::now().as_millisecond()).unwrap()
}

/// Keeps sending: messages of one key one after the other, and beside them as many without a key and with random
/// delays. The latter wait for nothing: one held shard must not stop messages to the others.
async fn keep_sending(sends: Producer, log: Arc<Mutex<Log>>, stop: Arc<AtomicBool>, sender: usize) {
    let key = format!("k{sender}");
    let mut beside = JoinSet::new();
    for place in 0.. {
        if stop.load(Ordering::SeqCst) {
            break;
        }
        let (sends, log, stop) = (sends.clone(), log.clone(), stop.clone());
        let other = (sends.clone(), log.clone(), stop.clone());
        beside.spawn(async move {
            let (sends, log, stop) = other;
            let id = format!("{sender}-{place}");
            let delay = ms(fastrand::u64(0..=LONGEST));
            let message = NewMessage::new("x").delay(delay);
            deliver(&sends, &log, &stop, &id, message, None).await;
        });
        let id = format!("{key}-{place}");
        let message = NewMessage::new("x").key(key.as_str());
        let key = Some((key.clone(), place));
        deliver(&sends, &log, &stop, &id, message, key).await;
        tokio::time::sleep(PACE).await;
    }
    while let Some(ended) = beside.join_next().await {
        ended.unwrap();
    }
}

/// Sends a message until it is accepted; stops only when all senders stop. The next one of its key is sent after that.
async fn deliver(
    sends: &Producer,
    log: &Mutex<Log>,
    stop: &AtomicBool,
    id: &str,
    message: NewMessage,
    key: Option<(String, usize)>,
) {
    lock(log).fates.entry(id.to_owned()).or_default().key = key;
    let message = message.id(id);
    while !stop.load(Ordering::SeqCst) {
        match sends.send_message(TOPIC, message.clone()).await {
            Ok(_) => {
                let mut log = lock(log);
                log.fates.entry(id.to_owned()).or_default().accepted = Some(Instant::now());
                return;
            }
            // A failover may lose the registration of the topic; a role that declares it does so again.
            Err(error) if error.is_retryable() || matches!(error, SendError::UnknownTopic(_)) => {
                let why = error.to_string().replace(id, "…");
                *lock(log).repeats.entry(why).or_default() += 1;
            }
            Err(error) => {
                lock(log).wrong.push(format!("{id} was refused: {error}"));
                return;
            }
        }
        tokio::time::sleep(ms(20)).await;
    }
}
