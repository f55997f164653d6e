//! The state that the subscriptions of one consumer share.

use std::collections::BTreeMap;

use lisa_core::broker::Broker;
use lisa_core::sync::Mutex;
use lisa_service::metrics::Metrics;

use crate::report::Counters;
use crate::worker::payload_limits::Payloads;

/// The state that the subscriptions of one consumer share.
pub(crate) struct Process {
    pub(crate) broker: Broker,
    pub(crate) metrics: Option<Metrics>,
    /// The consumer name that identifies the holder of a delivery in Redis. Each start of a process has a new one.
    pub(crate) name: String,
    pub(crate) counters: Counters,
    pub(crate) payloads: Payloads,
    /// The message about what each subscription waits for before it can read.
    pub(crate) awaited: Mutex<BTreeMap<String, String>>,
    #[cfg(any(feature = "gateway", feature = "sink-http"))]
    pub(crate) token_key: crate::token::KeyCache,
}

impl Process {
    /// Records what a subscription waits for before it can read; `None` once it reads.
    pub(crate) fn waits_for(&self, subscription: String, missing: Option<String>) {
        let mut awaited = self.awaited.lock();
        match missing {
            Some(missing) => awaited.insert(subscription, missing),
            None => awaited.remove(&subscription),
        };
    }
}
