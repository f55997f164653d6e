//! The state that the subscriptions of one consumer share.

use std::collections::BTreeMap;
use std::sync::{Arc, Weak};

use lisa_core::broker::Broker;
use lisa_core::connect::process_name;
use lisa_core::sync::Mutex;
use lisa_core::topic::{Group, Topic};
use lisa_service::metrics::Metrics;
use lisa_service::spans::Spans;

use crate::report::Counters;
use crate::resting::Resting;
use crate::worker::lease::Leases;
use crate::worker::payload_limits::Payloads;

/// The state that the subscriptions of one consumer share.
pub struct Process {
    /// The messages and their Redis.
    pub broker: Broker,
    /// The metrics of the process, if it has any.
    pub metrics: Option<Metrics>,
    /// The maker of spans, if deliveries are to have any.
    pub(crate) spans: Option<Spans>,
    /// The consumer name that identifies the holder of a delivery in Redis. Each start of a process has a new one.
    pub name: String,
    /// The numbers of deliveries by their outcome.
    pub counters: Counters,
    /// The memory of the payloads that it holds.
    pub payloads: Payloads,
    /// The shards that rest between two reads.
    pub resting: Resting,
    /// The deliveries that the workers of each subscription hold.
    pub(crate) held: Mutex<Vec<HeldBy>>,
    /// The message about what each subscription waits for before it can read.
    pub(crate) awaited: Mutex<BTreeMap<String, String>>,
    #[cfg(feature = "tokens")]
    pub(crate) token_key: crate::token::KeyCache,
}

/// The deliveries that a worker holds for a group of a topic.
pub(crate) struct HeldBy {
    pub(crate) topic: Topic,
    pub(crate) group: Group,
    pub(crate) leases: Weak<Leases>,
}

impl Process {
    /// Returns the state of a consumer that starts now.
    pub fn new(broker: Broker, metrics: Option<Metrics>) -> Self {
        Self {
            broker,
            metrics,
            spans: None,
            name: process_name(),
            counters: Counters::default(),
            payloads: Payloads::default(),
            resting: Resting::default(),
            held: Mutex::default(),
            awaited: Mutex::default(),
            #[cfg(feature = "tokens")]
            token_key: crate::token::KeyCache::default(),
        }
    }

    /// Registers the leases of a new worker.
    pub(crate) fn add_worker(&self, topic: &Topic, group: &Group, leases: &Arc<Leases>) {
        let mut held = self.held.lock();
        // Those of workers that have ended.
        held.retain(|held| held.leases.strong_count() > 0);
        held.push(HeldBy {
            topic: topic.clone(),
            group: group.clone(),
            leases: Arc::downgrade(leases),
        });
    }

    /// Returns the number of deliveries that a subscription holds.
    pub(crate) fn held_by(&self, topic: &Topic, group: &Group) -> usize {
        let held = self.held.lock();
        held.iter()
            .filter(|held| held.topic == *topic && held.group == *group)
            .filter_map(|held| held.leases.upgrade())
            .map(|leases| leases.len())
            .sum()
    }

    /// Records what a subscription waits for before it can read; `None` once it reads.
    pub(crate) fn waits_for(&self, subscription: String, missing: Option<String>) {
        let mut awaited = self.awaited.lock();
        match missing {
            Some(missing) => awaited.insert(subscription, missing),
            None => awaited.remove(&subscription),
        };
    }
}
