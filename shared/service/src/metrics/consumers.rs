//! The metrics of a consumer beside its deliveries: callbacks, suspects, pulls and sinks.

use super::{ActionCode, DeliveryMetrics, Group, GroupCallback, GroupState, Metrics, signed};

impl Metrics {
    /// Counts one try to send a callback of a group.
    pub fn callback(&self, topic: &str, group: &str, outcome: &str, result: &str) {
        let labels = GroupCallback::new(topic, group, outcome, result);
        self.families.callbacks.get_or_create(&labels).inc();
    }

    /// Returns the metrics of a group's deliveries. Keep them: they look up each series only once.
    #[must_use]
    pub fn deliveries(&self, topic: &str, group: &str) -> DeliveryMetrics {
        DeliveryMetrics::new(self.clone(), Group::new(topic, group))
    }

    /// Sets the number of suspects of this process; `state` is `running` or `waiting`.
    pub fn suspects(&self, topic: &str, group: &str, state: &str, count: u64) {
        let labels = GroupState::new(topic, group, state);
        self.families
            .suspects
            .get_or_create(&labels)
            .set(signed(count));
    }

    /// Sets the number of pulls that wait for a message of a group.
    pub fn pulls_waiting(&self, topic: &str, group: &str, count: u64) {
        let labels = Group::new(topic, group);
        let gauge = self.families.pulls_waiting.get_or_create(&labels);
        gauge.set(signed(count));
    }

    /// Removes the gauge of a group that no longer exists.
    pub fn forget_pulls(&self, topic: &str, group: &str) {
        let labels = Group::new(topic, group);
        self.families.pulls_waiting.remove(&labels);
    }

    /// Counts deliveries that pulls over HTTP returned.
    pub fn pulled(&self, topic: &str, group: &str, count: u64) {
        let labels = Group::new(topic, group);
        self.families.pulled.get_or_create(&labels).inc_by(count);
    }

    /// Counts a delivery whose handler leaves its completion to a gateway.
    pub fn completed_later(&self, topic: &str, group: &str) {
        let labels = Group::new(topic, group);
        self.families.completed_later.get_or_create(&labels).inc();
    }

    /// Counts a request of an SQS client.
    pub fn sqs_request(&self, action: &str, code: &str) {
        let labels = ActionCode::new(action, code);
        self.families.sqs_requests.get_or_create(&labels).inc();
    }

    /// Removes the gauges of a group's suspects after this process has stopped reading the group.
    pub fn forget_suspects(&self, topic: &str, group: &str) {
        for state in ["running", "waiting"] {
            let labels = GroupState::new(topic, group, state);
            self.families.suspects.remove(&labels);
        }
    }

    /// Sets the gauges of a sink's target. `is_open` is true while only probes are read; `limit` is the number of deliveries
    /// that may run at a time.
    pub fn sink(&self, topic: &str, group: &str, is_up: bool, is_open: bool, limit: usize) {
        let (labels, families) = (Group::new(topic, group), &self.families);
        families.sink_up.get_or_create(&labels).set(is_up.into());
        families
            .sink_open
            .get_or_create(&labels)
            .set(is_open.into());
        let limit = i64::try_from(limit).unwrap_or(i64::MAX);
        families.sink_limit.get_or_create(&labels).set(limit);
    }

    /// Removes the gauges of a sink's target after this process has stopped reading the group.
    pub fn forget_sink(&self, topic: &str, group: &str) {
        let (labels, families) = (Group::new(topic, group), &self.families);
        for gauges in [&families.sink_up, &families.sink_open, &families.sink_limit] {
            gauges.remove(&labels);
        }
    }
}
