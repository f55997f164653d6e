//! The metrics of the deliveries of one group, each looked up once instead of for each message.

use std::sync::OnceLock;
use std::time::Duration;

use lisa_core::state::Settled;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::histogram::Histogram;

use super::{Group, GroupOutcome, Metrics};

/// The metrics of the deliveries of one group; see [`Metrics::deliveries`].
///
/// A series is exported from its first value on, as if each value were recorded by name.
pub struct DeliveryMetrics {
    metrics: Metrics,
    group: Group,
    ended: [OnceLock<Counter>; 7],
    lateness: OnceLock<Histogram>,
    handled: OnceLock<Histogram>,
}

impl DeliveryMetrics {
    pub(super) fn new(metrics: Metrics, group: Group) -> Self {
        Self {
            metrics,
            group,
            ended: Default::default(),
            lateness: OnceLock::new(),
            handled: OnceLock::new(),
        }
    }

    /// Counts one ended delivery.
    pub fn ended(&self, outcome: Settled) {
        let counter = match outcome {
            Settled::Acked => &self.ended[0],
            Settled::Retry { .. } => &self.ended[1],
            Settled::Deferred { .. } => &self.ended[2],
            Settled::Garbage => &self.ended[3],
            Settled::Expired => &self.ended[4],
            Settled::Lost => &self.ended[5],
            Settled::Stale => &self.ended[6],
        };
        let look_up = || {
            let Group { topic, group } = &self.group;
            let labels = GroupOutcome::new(topic, group, outcome.as_str());
            self.metrics.families.deliveries.get_or_create(&labels)
        };
        counter.get_or_init(look_up).inc();
    }

    /// Records the time from the due time of a delivery to the start of its handler.
    pub fn lateness(&self, lateness: Duration) {
        let family = &self.metrics.families.delivery_lateness;
        let look_up = || family.get_or_create(&self.group);
        let histogram = self.lateness.get_or_init(look_up);
        histogram.observe(lateness.as_secs_f64());
    }

    /// Records the run time of a handler.
    pub fn handled(&self, took: Duration) {
        let family = &self.metrics.families.handle_duration;
        let look_up = || family.get_or_create(&self.group);
        let histogram = self.handled.get_or_init(look_up);
        histogram.observe(took.as_secs_f64());
    }
}
