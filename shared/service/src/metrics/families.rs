//! Metric families: counters, gauges and histograms, each registered with a name and a help text.

use std::collections::HashMap;
use std::fmt;
use std::hash::Hash;
use std::sync::atomic::AtomicU64;
use std::time::Duration;

use lisa_core::sync::Mutex;
use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::metrics::histogram::Histogram;
use prometheus_client::registry::{Metric, Registry, Unit};

/// The upper bounds of buckets for lateness, handlers, jobs and requests, in seconds.
const SECONDS: [f64; 15] = [
    0.001, 0.002, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0,
];

/// The upper bounds of buckets for script calls, in seconds. Most calls take well under a millisecond.
const SCRIPT_SECONDS: [f64; 12] = [
    0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.5, 2.5,
];

pub(super) type Counters<L> = Family<L, Counter>;
pub(super) type Gauges<L> = Family<L, Gauge>;
pub(super) type SecondsGauges<L> = Family<L, Gauge<f64, AtomicU64>>;
pub(super) type Durations<L> = Family<L, Histogram>;
pub(super) type TopicCounters<L> = OfTopics<L, Counter>;
pub(super) type TopicGauges<L> = OfTopics<L, Gauge>;
pub(super) type TopicDurations<L> = OfTopics<L, Histogram>;

/// The trait bounds of a label set.
pub(super) trait Labels:
    Clone + fmt::Debug + Hash + Eq + EncodeLabelSet + Send + Sync + 'static
{
}

impl<T: Clone + fmt::Debug + Hash + Eq + EncodeLabelSet + Send + Sync + 'static> Labels for T {}

/// The labels of a series of a topic.
pub(super) trait TopicLabels: Labels {
    fn topic(&self) -> &str;
}

/// A family of series of topics. Those of a topic that is gone can be removed.
pub(super) struct OfTopics<L, M> {
    family: Family<L, M>,
    /// The labels of all series, by topic.
    labels: Mutex<HashMap<Box<str>, Vec<L>>>,
}

impl<L: TopicLabels, M: Clone> OfTopics<L, M> {
    fn new(family: Family<L, M>) -> Self {
        Self {
            family,
            labels: Mutex::default(),
        }
    }

    pub(super) fn get_or_create(&self, labels: &L) -> M {
        if let Some(metric) = self.family.get(labels) {
            return metric.clone();
        }
        // Locked until the series is there, so that no other call forgets its labels meanwhile.
        let mut all = self.labels.lock();
        let of_topic = all.entry(labels.topic().into()).or_default();
        if !of_topic.contains(labels) {
            of_topic.push(labels.clone());
        }
        self.family.get_or_create_owned(labels)
    }

    pub(super) fn remove(&self, labels: &L) {
        self.family.remove(labels);
        let mut all = self.labels.lock();
        if let Some(of_topic) = all.get_mut(labels.topic()) {
            of_topic.retain(|other| other != labels);
            if of_topic.is_empty() {
                all.remove(labels.topic());
            }
        }
    }
}

/// A kind of families.
pub(super) trait Kind {
    /// The unit, which is appended to the name.
    const UNIT: Option<Unit> = None;
    type Family: Metric;

    fn create() -> Self;

    /// Returns the family that is scraped.
    fn family(&self) -> Self::Family;

    /// Removes the series of a topic that is gone.
    fn forget_topic(&self, _topic: &str) {}
}

macro_rules! kinds {
    ($($metric:ty $([$unit:expr])?: $create:expr;)+) => {$(
        impl<L: Labels> Kind for Family<L, $metric> {
            $(const UNIT: Option<Unit> = Some($unit);)?
            type Family = Self;

            fn create() -> Self {
                $create
            }

            fn family(&self) -> Self {
                self.clone()
            }
        }

        impl<L: TopicLabels> Kind for OfTopics<L, $metric> {
            $(const UNIT: Option<Unit> = Some($unit);)?
            type Family = Family<L, $metric>;

            fn create() -> Self {
                Self::new($create)
            }

            fn family(&self) -> Family<L, $metric> {
                self.family.clone()
            }

            fn forget_topic(&self, topic: &str) {
                for labels in self.labels.lock().remove(topic).unwrap_or_default() {
                    self.family.remove(&labels);
                }
            }
        }
    )+};
}

kinds! {
    Counter: Family::default();
    Gauge: Family::default();
    Gauge<f64, AtomicU64> [Unit::Seconds]: Family::default();
    Histogram [Unit::Seconds]: Family::new_with_constructor(|| Histogram::new(SECONDS));
}

/// Creates and registers a family.
pub(super) fn register<K: Kind>(registry: &mut Registry, name: &str, help: &str) -> K {
    let kind = K::create();
    match K::UNIT {
        Some(unit) => registry.register_with_unit(name, help, unit, kind.family()),
        None => registry.register(name, help, kind.family()),
    }
    kind
}

pub(super) fn script_histogram() -> Histogram {
    Histogram::new(SCRIPT_SECONDS)
}

pub(super) fn observe<L: Labels>(family: &Durations<L>, labels: &L, took: Duration) {
    family.get_or_create(labels).observe(took.as_secs_f64());
}
