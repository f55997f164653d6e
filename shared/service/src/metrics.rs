//! The metrics of Lisa: names, labels, units and help texts, and the text format of a scrape.
//!
//! Nothing is global: each process or embedded role creates its own [`Metrics`]. Callers must use only configured topics and
//! groups as labels. Otherwise strangers could create any number of series.

mod consumers;
mod deliveries;
mod families;
mod topics;

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::time::Duration;

use prometheus_client::encoding::{EncodeLabelSet, text};
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::metrics::info::Info;
use prometheus_client::registry::{Registry, Unit};

pub use deliveries::DeliveryMetrics;
use families::{
    Counters, Durations, Gauges, Kind as _, SecondsGauges, TopicCounters, TopicDurations,
    TopicGauges, TopicLabels, observe, register, script_histogram,
};
use lisa_core::broker::Observer;
use lisa_core::time::UnixMs;
use topics::Topics;
pub use topics::{Findings, TopicReading};

/// The content type of [`Metrics::encode`].
pub const CONTENT_TYPE: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";

/// Declares label sets as private structs, with one owned string per label.
macro_rules! labels {
    ($($name:ident { $($label:ident),+ })+) => {$(
        #[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
        struct $name { $($label: String),+ }

        impl $name {
            fn new($($label: &str),+) -> Self {
                Self { $($label: $label.to_owned()),+ }
            }
        }
    )+};
}

labels! {
    Topic { topic }
    TopicOutcome { topic, outcome }
    Group { topic, group }
    GroupOutcome { topic, group, outcome }
    GroupCallback { topic, group, outcome, result }
    GroupTo { topic, group, to }
    GroupState { topic, group, state }
    Code { code }
    Script { script }
    Source { source }
    SourceOutcome { source, outcome }
    ActionCode { action, code }
    MethodCode { method, code }
    Job { name }
    Task { task }
    Reload { result }
    RecurringMessage { schedule }
    ScheduleOutcome { schedule, outcome }
    Request { route, method, status }
    Route { route }
}

macro_rules! of_topics {
    ($($name:ident)+) => {$(
        impl TopicLabels for $name {
            fn topic(&self) -> &str {
                &self.topic
            }
        }
    )+};
}

of_topics! { Topic TopicOutcome Group GroupOutcome GroupCallback GroupTo GroupState }

/// The labels of a gauge that has no value until it is known.
#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct NoLabels {}

/// The metrics of one process or embedded role. Cheap to clone.
#[derive(Clone)]
pub struct Metrics {
    families: Arc<Families>,
}

/// Declares families of metrics: the name of each, its help text, its kind and its labels.
macro_rules! families {
    ($(#[doc = $help:literal] $name:ident: $kind:ident<$labels:ident>;)+) => {
        struct Families {
            registry: Registry,
            topics: Arc<Topics>,
            clock_skew: Gauge<f64, AtomicU64>,
            redis_up: Gauge,
            redis_evicts: Gauge,
            script: Durations<Script>,
            $($name: $kind<$labels>,)+
        }

        impl Families {
            /// Creates the families, and registers the declared ones.
            fn new(registry: &mut Registry) -> Self {
                Self {
                    registry: Registry::default(),
                    topics: Arc::default(),
                    clock_skew: Gauge::default(),
                    redis_up: Gauge::default(),
                    redis_evicts: Gauge::default(),
                    script: Durations::new_with_constructor(script_histogram),
                    $($name: register(
                        registry,
                        stringify!($name),
                        $help.trim().trim_end_matches('.'),
                    ),)+
                }
            }

            /// Removes the series of a topic that is gone.
            fn forget_topic(&self, topic: &str) {
                $(self.$name.forget_topic(topic);)+
            }
        }
    };
}

families! {
    /// Number of sends, by outcome or error code.
    messages_sent: TopicCounters<TopicOutcome>;
    /// Number of due messages moved to their groups, one per group, including retries.
    messages_moved: TopicCounters<Topic>;
    /// Number of messages migrated to another shard while their topic was resharded.
    messages_migrated: TopicCounters<Topic>;
    /// Number of ended deliveries, by outcome; stale means lease lost or already settled.
    deliveries: TopicCounters<GroupOutcome>;
    /// Number of attempts to send a callback, by outcome of its message and by result: sent, duplicate, full, failed or too_many_hops.
    callbacks: TopicCounters<GroupCallback>;
    /// Time from the due time of an attempt to the start of its handler, in seconds.
    delivery_lateness: TopicDurations<Group>;
    /// Run time of handlers in seconds.
    handle_duration: TopicDurations<Group>;
    /// Number of messages suspected of killing processes, as seen by this one; state is running (on trial) or waiting.
    suspects: TopicGauges<GroupState>;
    /// Number of pulls over HTTP that wait for a message.
    pulls_waiting: TopicGauges<Group>;
    /// Number of deliveries that pulls over HTTP returned.
    pulled: TopicCounters<Group>;
    /// Number of deliveries whose handler leaves their completion to a gateway.
    completed_later: TopicCounters<Group>;
    /// Number of requests of SQS clients, by action and code: ok, or the code of the error.
    sqs_requests: Counters<ActionCode>;
    /// Target of a sink: 0 while it is unavailable (cannot be reached, or blocks all deliveries) or gone (410), else 1.
    sink_up: TopicGauges<Group>;
    /// Circuit breaker of a sink: 1 while only probes are read because its target is unavailable, fails or is gone, else 0.
    sink_open: TopicGauges<Group>;
    /// Number of deliveries of a sink that may run at a time, adapted to what its target accepts; at most the concurrency.
    sink_limit: TopicGauges<Group>;
    /// Source of messages: 0 while its broker is unavailable or the source is blocked, else 1.
    source_up: Gauges<Source>;
    /// Number of messages taken off a source, by outcome: accepted, duplicate or refused.
    source_messages: Counters<SourceOutcome>;
    /// Number of deliveries reclaimed after their lease expired, by destination: retry, garbage, expired or lost.
    reclaimed: TopicCounters<GroupTo>;
    /// Number of messages forwarded from garbage to another topic, by that topic.
    forwarded: TopicCounters<GroupTo>;
    /// Memory that Redis uses for its data, in bytes; in a cluster, that of the fullest server.
    redis_memory_bytes: Gauges<NoLabels>;
    /// Memory limit (maxmemory) of the same server, in bytes; only exported if it is set.
    redis_memory_limit_bytes: Gauges<NoLabels>;
    /// Number of running managers, as this manager sees them.
    managers: Gauges<NoLabels>;
    /// Age of the oldest counts of a topic in the snapshot, in seconds; read once a minute by one manager, if manager.history is on.
    snapshot_age: SecondsGauges<NoLabels>;
    /// Number of calls of the external scaler for KEDA, by method and by gRPC code, such as Ok.
    scaler_calls: Counters<MethodCode>;
    /// Number of failed script calls, by error code.
    redis_errors: Counters<Code>;
    /// Run time of maintenance jobs in seconds, including failed runs.
    job: Durations<Job>;
    /// Number of failed runs of maintenance jobs.
    job_failures: Counters<Job>;
    /// Time at which a maintenance job last succeeded, in seconds since the epoch on this host's clock.
    job_last_success_timestamp_seconds: Gauges<Job>;
    /// Number of reloads of the configuration, by result: applied, unchanged or failed.
    config_reloads: Counters<Reload>;
    /// Number of panics, by task; each ended only one loop, job, connection, request or task.
    panics: Counters<Task>;
    /// Number of schedule times processed, by outcome: sent, late, known (already sent) or failed; schedules that were created at run time count together, as `(run time)`.
    schedule_fires: Counters<ScheduleOutcome>;
    /// Newest time of a schedule for which its message is stored, in seconds since the epoch; may be in the future.
    schedule_last_timestamp_seconds: Gauges<RecurringMessage>;
    /// Number of answered HTTP requests.
    http_requests: Counters<Request>;
    /// Time from the head of an HTTP request to the head of its response, in seconds.
    http_request: Durations<Route>;
    /// Time at which the certificate of the listeners expires, in seconds since the epoch; only exported with TLS.
    http_certificate_expiry_timestamp_seconds: Gauges<NoLabels>;
}

impl Metrics {
    /// Registers all metrics in `registry`, which may already contain metrics of the caller.
    ///
    /// `role` names the roles of the process, for example `consumer` or `manager+producer`.
    #[must_use]
    pub fn new(mut registry: Registry, version: &str, role: &str) -> Self {
        let lisa = registry.sub_registry_with_prefix("lisa");
        let build = vec![("version", version.to_owned()), ("role", role.to_owned())];
        lisa.register(
            "build",
            "Version and role of this process; the value is always 1",
            Info::new(build),
        );
        #[cfg(feature = "process")]
        lisa.register(
            "log_lines_lost",
            "Number of log lines that were lost because stderr was closed, full or blocked",
            crate::telemetry::lost_lines(),
        );
        let families = Families::new(lisa);
        lisa.register_with_unit(
            "script",
            "Round-trip time of successful script calls in seconds",
            Unit::Seconds,
            families.script.clone(),
        );
        lisa.register_with_unit(
            "clock_skew",
            "Redis's clock minus this host's clock, in seconds",
            Unit::Seconds,
            families.clock_skew.clone(),
        );
        lisa.register(
            "redis_up",
            "Availability of Redis: 1 if it answers, else 0",
            families.redis_up.clone(),
        );
        lisa.register(
            "redis_evicts",
            "Eviction in Redis: 1 if it may delete messages to free memory, else 0",
            families.redis_evicts.clone(),
        );
        lisa.register_collector(Box::new(families.topics.clone()));
        // Present from the start, so that a rule sees the first one.
        for result in ["applied", "unchanged", "failed"] {
            let _ = families.config_reloads.get_or_create(&Reload::new(result));
        }
        let families = Arc::new(Families {
            registry,
            ..families
        });
        Self { families }
    }

    /// Returns the text of a scrape, in the format of [`CONTENT_TYPE`].
    #[must_use]
    pub fn encode(&self) -> String {
        let mut out = String::new();
        text::encode(&mut out, &self.families.registry).expect("writing to a string cannot fail");
        out
    }

    /// Removes all series of a topic that is gone.
    pub fn forget_topic(&self, topic: &str) {
        self.families.forget_topic(topic);
    }

    /// Counts `count` sends with one outcome, for example `waiting`, `duplicate` or an error code.
    pub fn sent(&self, topic: &str, outcome: &str, count: u64) {
        let labels = TopicOutcome::new(topic, outcome);
        self.families
            .messages_sent
            .get_or_create(&labels)
            .inc_by(count);
    }

    /// Counts `count` due messages moved to their groups, one per group, including retries.
    pub fn moved(&self, topic: &str, count: u64) {
        let labels = Topic::new(topic);
        self.families
            .messages_moved
            .get_or_create(&labels)
            .inc_by(count);
    }

    /// Counts `count` messages migrated to other shards.
    pub fn migrated(&self, topic: &str, count: u64) {
        let labels = Topic::new(topic);
        let counter = self.families.messages_migrated.get_or_create(&labels);
        counter.inc_by(count);
    }

    /// Sets the gauge of a source: whether it can take messages off its broker.
    pub fn source_up(&self, source: &str, is_up: bool) {
        let gauge = &self.families.source_up;
        gauge.get_or_create(&Source::new(source)).set(is_up.into());
    }

    /// Counts a message of a source; `outcome` is `accepted`, `duplicate` or `refused`.
    pub fn source_message(&self, source: &str, outcome: &str) {
        let labels = SourceOutcome::new(source, outcome);
        self.families.source_messages.get_or_create(&labels).inc();
    }

    /// Counts a call of the external scaler; `code` is a code of gRPC.
    pub fn scaler_call(&self, method: &str, code: &str) {
        let labels = MethodCode::new(method, code);
        self.families.scaler_calls.get_or_create(&labels).inc();
    }

    /// Counts `count` reclaimed deliveries; `to` is `retry`, `garbage`, `expired` or `lost`.
    pub fn reclaimed(&self, topic: &str, group: &str, to: &str, count: u64) {
        let labels = GroupTo::new(topic, group, to);
        self.families.reclaimed.get_or_create(&labels).inc_by(count);
    }

    /// Counts `count` messages forwarded from garbage to another topic.
    pub fn forwarded(&self, topic: &str, group: &str, to: &str, count: u64) {
        let labels = GroupTo::new(topic, group, to);
        self.families.forwarded.get_or_create(&labels).inc_by(count);
    }

    /// Sets Redis's clock minus this host's, in seconds.
    pub fn clock_skew(&self, seconds: f64) {
        self.families.clock_skew.set(seconds);
    }

    /// Sets whether Redis answers.
    pub fn redis_up(&self, up: bool) {
        self.families.redis_up.set(i64::from(up));
    }

    /// Sets whether Redis evicts keys.
    pub fn redis_evicts(&self, evicts: bool) {
        self.families.redis_evicts.set(i64::from(evicts));
    }

    /// Sets the memory that Redis uses, and its limit; 0 for none.
    pub fn redis_memory(&self, used: u64, limit: u64) {
        let families = &self.families;
        families
            .redis_memory_bytes
            .get_or_create(&NoLabels {})
            .set(signed(used));
        if limit == 0 {
            families.redis_memory_limit_bytes.remove(&NoLabels {});
        } else {
            let gauge = families
                .redis_memory_limit_bytes
                .get_or_create(&NoLabels {});
            gauge.set(signed(limit));
        }
    }

    /// Sets the time at which the certificate of the listeners expires, in seconds since the epoch; removes it without TLS.
    pub fn certificate_expires(&self, at: Option<u64>) {
        let gauge = &self.families.http_certificate_expiry_timestamp_seconds;
        match at {
            Some(at) => {
                gauge.get_or_create(&NoLabels {}).set(signed(at));
            }
            None => {
                gauge.remove(&NoLabels {});
            }
        }
    }

    /// Sets the number of running managers.
    pub fn managers(&self, count: usize) {
        let count = i64::try_from(count).unwrap_or(i64::MAX);
        self.families
            .managers
            .get_or_create(&NoLabels {})
            .set(count);
    }

    /// Sets the age of the snapshot; removes it if another process reports it.
    pub fn snapshot_age(&self, age: Option<Duration>) {
        let gauge = &self.families.snapshot_age;
        match age {
            Some(age) => {
                gauge.get_or_create(&NoLabels {}).set(age.as_secs_f64());
            }
            None => {
                gauge.remove(&NoLabels {});
            }
        }
    }

    /// Records one run of a maintenance job, failed or not.
    pub fn job(&self, job: &str, took: Duration) {
        observe(&self.families.job, &Job::new(job), took);
    }

    /// Counts one failed run of a maintenance job.
    pub fn job_failed(&self, job: &str) {
        self.families
            .job_failures
            .get_or_create(&Job::new(job))
            .inc();
    }

    /// Sets the time at which a maintenance job last succeeded.
    pub fn job_succeeded(&self, job: &str, at: UnixMs) {
        let last = self
            .families
            .job_last_success_timestamp_seconds
            .get_or_create(&Job::new(job));
        last.set(signed(at.get() / 1000));
    }

    /// Counts one reload of the configuration; `result` is `applied`, `unchanged` or `failed`.
    pub fn reloaded(&self, result: &str) {
        let reloads = &self.families.config_reloads;
        reloads.get_or_create(&Reload::new(result)).inc();
    }

    /// Counts one panic; `task` is a task in `/healthz`, the kind of a loop, a job, `connection`, `request`, `delivery` or `gateway`.
    pub fn panicked(&self, task: &str) {
        self.families.panics.get_or_create(&Task::new(task)).inc();
    }

    /// Counts one time of a schedule; `outcome` is `sent`, `late`, `known` or `failed`.
    pub fn schedule_fired(&self, schedule: &str, outcome: &str) {
        let labels = ScheduleOutcome::new(schedule, outcome);
        self.families.schedule_fires.get_or_create(&labels).inc();
    }

    /// Sets the newest time of a schedule for which its message is stored.
    pub fn schedule_last(&self, schedule: &str, time: UnixMs) {
        let last = self
            .families
            .schedule_last_timestamp_seconds
            .get_or_create(&RecurringMessage::new(schedule));
        last.set(signed(time.get() / 1000));
    }

    /// Records one answered HTTP request; `route` is the pattern, never the path.
    pub fn http_request(&self, route: &str, method: &str, status: u16, took: Duration) {
        let labels = Request::new(route, method, &status.to_string());
        self.families.http_requests.get_or_create(&labels).inc();
        observe(&self.families.http_request, &Route::new(route), took);
    }
}

impl Observer for Metrics {
    fn script(&self, script: &str, took: Duration) {
        observe(&self.families.script, &Script::new(script), took);
    }

    fn redis_error(&self, code: &str) {
        let counter = self.families.redis_errors.get_or_create(&Code::new(code));
        counter.inc();
    }

    fn topic_gone(&self, topic: &str) {
        self.forget_topic(topic);
    }
}

impl fmt::Debug for Metrics {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Metrics").finish_non_exhaustive()
    }
}

fn signed(count: u64) -> i64 {
    i64::try_from(count).unwrap_or(i64::MAX)
}

#[cfg(test)]
mod tests;
