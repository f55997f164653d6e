//! The messages promised to senders, their outcomes, and the senders that keep asking for promises.

use lisa_consumer::Delivery;
use lisa_producer::{Producer, SendError};
use lisa_tests::relay::ms;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

/// The topic of all messages.
pub(super) const TOPIC: &str = "t";
/// The pause between two messages of a sender.
const PACE: Duration = ms(10);
/// The longest delay of a message, ms.
const LONGEST: u64 = 400;

/// The messages promised, and their outcomes.
#[derive(Default)]
pub(crate) struct Log {
    state: Mutex<State>,
    /// Grows when data are destroyed on purpose: messages accepted before that need not arrive.
    pub(super) epoch: AtomicU64,
}

#[derive(Default)]
pub(super) struct State {
    /// Id to the earliest time of its delivery, ms; written before the first try of its send.
    pub(super) earliest: BTreeMap<String, u64>,
    /// Id to the epoch in which the accepted try began.
    pub(super) accepted: BTreeMap<String, u64>,
    pub(super) delivered: BTreeMap<String, usize>,
    pub(super) early: Vec<String>,
    latest: Duration,
    /// Errors that asked a sender to retry, by word.
    pub(super) repeated: BTreeMap<String, usize>,
    /// Errors that asked a sender to stop.
    pub(super) refused: BTreeSet<String>,
    /// Reasons for which a role was not ready since the fault.
    pub(super) reasons: BTreeMap<&'static str, BTreeSet<String>>,
}

impl Log {
    pub(super) fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap()
    }

    pub(super) fn delivered(&self, delivery: &Delivery) {
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

    /// Returns the number of messages delivered.
    pub(crate) fn count(&self) -> usize {
        self.state().delivered.len()
    }

    /// Returns the longest delay of a delivery after its due time.
    pub(crate) fn latest(&self) -> Duration {
        self.state().latest
    }

    /// Returns the messages that were accepted since the last destruction and have not been delivered.
    pub(super) fn missing(&self) -> Vec<String> {
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

/// Everything that a sending task needs.
#[derive(Clone)]
pub(super) struct Sender {
    pub(super) producer: Producer,
    pub(super) log: Arc<Log>,
    pub(super) stop: Arc<AtomicBool>,
    /// True if it also retries errors that ask it to stop: for refusals that an operator repairs meanwhile.
    pub(super) stubborn: Arc<AtomicBool>,
}

impl Sender {
    /// Sends one message until it is accepted; stops only when all senders stop.
    pub(super) async fn send(&self, id: String, delay: Duration) {
        let size = id.len();
        self.send_of(id, delay, size).await;
    }

    /// Like [`Sender::send`], with a payload of this size.
    pub(super) async fn send_of(&self, id: String, delay: Duration, size: usize) {
        let earliest = now_ms() + u64::try_from(delay.as_millis()).unwrap();
        self.log.state().earliest.insert(id.clone(), earliest);
        while !self.stop.load(Ordering::SeqCst) {
            let epoch = self.log.epoch.load(Ordering::SeqCst);
            let send = self.producer.send_bytes(TOPIC, vec![b'x'; size]);
            match send.id(&id).delay(delay).await {
                Ok(_) => {
                    self.log.state().accepted.insert(id, epoch);
                    return;
                }
                Err(error) if error.is_retryable() => {
                    let word = match error {
                        SendError::RedisFull => "full",
                        SendError::Indeterminate { .. } => "indeterminate",
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

    pub(super) async fn keep_sending(self, number: usize) {
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
