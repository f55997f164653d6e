//! Metric families: counters, gauges and histograms, each registered with a name and a help text.

use std::fmt;
use std::hash::Hash;
use std::sync::atomic::AtomicU64;
use std::time::Duration;

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
pub(super) type Durations<L> = Family<L, Histogram, fn() -> Histogram>;

/// The trait bounds of a label set.
pub(super) trait Labels:
    Clone + fmt::Debug + Hash + Eq + EncodeLabelSet + Send + Sync + 'static
{
}

impl<T: Clone + fmt::Debug + Hash + Eq + EncodeLabelSet + Send + Sync + 'static> Labels for T {}

/// A kind of families.
pub(super) trait Kind: Metric + Clone {
    /// The unit, which is appended to the name.
    const UNIT: Option<Unit> = None;

    fn create() -> Self;
}

impl<L: Labels> Kind for Counters<L> {
    fn create() -> Self {
        Self::default()
    }
}

impl<L: Labels> Kind for Gauges<L> {
    fn create() -> Self {
        Self::default()
    }
}

impl<L: Labels> Kind for SecondsGauges<L> {
    const UNIT: Option<Unit> = Some(Unit::Seconds);

    fn create() -> Self {
        Self::default()
    }
}

impl<L: Labels> Kind for Durations<L> {
    const UNIT: Option<Unit> = Some(Unit::Seconds);

    fn create() -> Self {
        Self::new_with_constructor(|| Histogram::new(SECONDS))
    }
}

/// Creates and registers a family.
pub(super) fn register<K: Kind>(registry: &mut Registry, name: &str, help: &str) -> K {
    let family = K::create();
    match K::UNIT {
        Some(unit) => registry.register_with_unit(name, help, unit, family.clone()),
        None => registry.register(name, help, family.clone()),
    }
    family
}

pub(super) fn script_histogram() -> Histogram {
    Histogram::new(SCRIPT_SECONDS)
}

pub(super) fn observe<L: Labels>(family: &Durations<L>, labels: &L, took: Duration) {
    family.get_or_create(labels).observe(took.as_secs_f64());
}
