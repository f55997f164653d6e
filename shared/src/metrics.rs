//! Every metric of Lisa: its name, labels, unit and help text, and the text form for a scrape.
//!
//! Nothing here is global: each process or embedded role makes its own [`Metrics`]. Only configured
//! topics and groups may become labels; callers make sure of that, or the number of series would
//! be in the hands of strangers.

mod families;

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use prometheus_client::encoding::{EncodeLabelSet, text};
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::metrics::info::Info;
use prometheus_client::registry::{Registry, Unit};

use crate::time::UnixMs;
use families::{
    Counters, Gauges, Histograms, SecondsGauges, counters, gauges, histograms, observe,
    script_histogram, seconds, seconds_gauges,
};

/// Content type of [`Metrics::encode`].
pub const CONTENT_TYPE: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";

/// Declares label sets: a private struct each, with an owned string per label.
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
    TopicEvent { topic, event }
    TopicCode { topic, code }
    TopicOutcome { topic, outcome }
    Group { topic, group }
    GroupOutcome { topic, group, outcome }
    GroupTo { topic, group, to }
    GroupState { topic, group, state }
    Code { code }
    Script { script }
    Job { job }
    Task { task }
    Schedule { schedule }
    ScheduleOutcome { schedule, outcome }
    Request { route, method, status }
    Route { route }
}

/// The metrics of one process or embedded role; a cheap clone.
#[derive(Clone)]
pub struct Metrics {
    families: Arc<Families>,
}

struct Families {
    registry: Registry,
    messages_sent: Counters<TopicOutcome>,
    messages_moved: Counters<Topic>,
    messages_handed_over: Counters<Topic>,
    deliveries: Counters<GroupOutcome>,
    delivery_lateness: Histograms<Group>,
    handle_duration: Histograms<Group>,
    suspects: Gauges<GroupState>,
    reclaimed: Counters<GroupTo>,
    topic_messages: Gauges<GroupState>,
    topic_events: Counters<TopicEvent>,
    topic_stored: Gauges<Topic>,
    topic_bytes: Gauges<Topic>,
    topic_tombstones: Gauges<Topic>,
    topic_paused: Gauges<Group>,
    topic_retiring: Gauges<Group>,
    topic_unconfigured: Gauges<Group>,
    topic_consumers: Gauges<Group>,
    topic_oldest_due_age: SecondsGauges<Group>,
    topic_oldest_ready_age: SecondsGauges<Group>,
    conservation_error: Gauges<Topic>,
    doctor_findings: Gauges<TopicCode>,
    clock_skew: Gauge<f64, AtomicU64>,
    redis_up: Gauge,
    redis_evicts: Gauge,
    redis_errors: Counters<Code>,
    script: Histograms<Script>,
    job: Histograms<Job>,
    job_failures: Counters<Job>,
    panics: Counters<Task>,
    schedule_fires: Counters<ScheduleOutcome>,
    schedule_last: Gauges<Schedule>,
    http_requests: Counters<Request>,
    http_request: Histograms<Route>,
}

impl Metrics {
    /// Registers all metrics in `registry`, which may hold the caller's own ones already.
    ///
    /// `role` is what the process runs, for example `consumer` or `manager+producer`.
    #[must_use]
    pub fn new(mut registry: Registry, version: &str, role: &str) -> Self {
        let lisa = registry.sub_registry_with_prefix("lisa");
        let build = vec![("version", version.to_owned()), ("role", role.to_owned())];
        lisa.register(
            "build",
            "Version and role of this process",
            Info::new(build),
        );
        let families = Families {
            messages_sent: counters(lisa, "messages_sent", "Sends by their outcome"),
            messages_moved: counters(
                lisa,
                "messages_moved",
                "Messages that became due and were moved on",
            ),
            messages_handed_over: counters(
                lisa,
                "messages_handed_over",
                "Messages that went from one shard to another while their topic was resharded",
            ),
            deliveries: counters(lisa, "deliveries", "Deliveries settled, by outcome"),
            delivery_lateness: seconds(lisa, "delivery_lateness", "Handler start minus due time"),
            handle_duration: seconds(lisa, "handle_duration", "Run time of handlers"),
            suspects: gauges(
                lisa,
                "suspects",
                "Messages that may kill their process, as this one sees them: state is running (in its turn) or waiting",
            ),
            reclaimed: counters(
                lisa,
                "reclaimed",
                "Deliveries taken back after their lease, by where the message went",
            ),
            topic_messages: gauges(
                lisa,
                "topic_messages",
                "Messages by state; group is empty for those still waiting",
            ),
            topic_events: counters(
                lisa,
                "topic_events",
                "What happened to a topic's messages since it was declared, as Redis counts it",
            ),
            topic_stored: gauges(
                lisa,
                "topic_stored",
                "Stored messages, each once however many groups owe it",
            ),
            topic_bytes: gauges(
                lisa,
                "topic_bytes",
                "Stored records, where max_bytes bounds them",
            ),
            topic_tombstones: gauges(
                lisa,
                "topic_tombstones",
                "Ended ids that are remembered for the dedup window",
            ),
            topic_paused: gauges(
                lisa,
                "topic_paused",
                "Whether a group is paused: 1 or 0; group is empty for the topic",
            ),
            topic_retiring: gauges(
                lisa,
                "topic_retiring",
                "Whether a group drains or is dropped: 1 or 0",
            ),
            topic_unconfigured: gauges(
                lisa,
                "topic_unconfigured",
                "Whether the managers' file does not name a group, which gets every message all the same: 1 or 0",
            ),
            topic_consumers: gauges(
                lisa,
                "topic_consumers",
                "Consumers of a group that reported within the last 30 s",
            ),
            topic_oldest_due_age: seconds_gauges(
                lisa,
                "topic_oldest_due_age",
                "Age since its due time of the oldest message that is due and that no consumer holds; group is empty for the topic",
            ),
            topic_oldest_ready_age: seconds_gauges(
                lisa,
                "topic_oldest_ready_age",
                "Age since its due time of the first message of a group that is ready and that no consumer has read",
            ),
            conservation_error: gauges(
                lisa,
                "conservation_error",
                "Messages the conservation law cannot account for; always 0",
            ),
            doctor_findings: gauges(
                lisa,
                "doctor_findings",
                "Faults that the last examination of a topic found and did not mend",
            ),
            clock_skew: Gauge::default(),
            redis_up: Gauge::default(),
            redis_evicts: Gauge::default(),
            redis_errors: counters(lisa, "redis_errors", "Failed script calls, by error code"),
            script: histograms(
                lisa,
                "script",
                "Round trip of a script call",
                script_histogram,
            ),
            job: seconds(lisa, "job", "Run time of maintenance jobs"),
            job_failures: counters(lisa, "job_failures", "Maintenance jobs that failed"),
            panics: counters(
                lisa,
                "panics",
                "Panics: each ended one loop, job or request and nothing else",
            ),
            schedule_fires: counters(
                lisa,
                "schedule_fires",
                "Times of schedules for which a message was sent, was there, or could not be sent",
            ),
            schedule_last: gauges(
                lisa,
                "schedule_last_timestamp_seconds",
                "The newest time of a schedule for which a message was sent, perhaps ahead",
            ),
            http_requests: counters(lisa, "http_requests", "HTTP requests answered"),
            http_request: seconds(
                lisa,
                "http_request",
                "Time to the head of the HTTP response",
            ),
            registry: Registry::default(),
        };
        lisa.register_with_unit(
            "clock_skew",
            "Redis's clock minus this host's",
            Unit::Seconds,
            families.clock_skew.clone(),
        );
        lisa.register(
            "redis_up",
            "Whether Redis answers: 1 or 0",
            families.redis_up.clone(),
        );
        lisa.register(
            "redis_evicts",
            "Whether Redis may delete messages to make room: 1 or 0",
            families.redis_evicts.clone(),
        );
        let families = Arc::new(Families {
            registry,
            ..families
        });
        Self { families }
    }

    /// The text of a scrape, in the format of [`CONTENT_TYPE`].
    #[must_use]
    pub fn encode(&self) -> String {
        let mut out = String::new();
        text::encode(&mut out, &self.families.registry).expect("writing to a string cannot fail");
        out
    }

    /// Counts `count` sends with one outcome, for example `waiting`, `duplicate` or an error's code.
    pub fn sent(&self, topic: &str, outcome: &str, count: u64) {
        let labels = TopicOutcome::new(topic, outcome);
        self.families
            .messages_sent
            .get_or_create(&labels)
            .inc_by(count);
    }

    /// Counts `count` messages moved out of waiting.
    pub fn moved(&self, topic: &str, count: u64) {
        let labels = Topic::new(topic);
        self.families
            .messages_moved
            .get_or_create(&labels)
            .inc_by(count);
    }

    /// Counts `count` messages handed over to other shards.
    pub fn handed_over(&self, topic: &str, count: u64) {
        let labels = Topic::new(topic);
        let counter = self.families.messages_handed_over.get_or_create(&labels);
        counter.inc_by(count);
    }

    /// Counts one settled delivery.
    pub fn delivered(&self, topic: &str, group: &str, outcome: &str) {
        let labels = GroupOutcome::new(topic, group, outcome);
        self.families.deliveries.get_or_create(&labels).inc();
    }

    /// Records how long after its due time a message reached its handler.
    pub fn lateness(&self, topic: &str, group: &str, lateness: Duration) {
        observe(
            &self.families.delivery_lateness,
            &Group::new(topic, group),
            lateness,
        );
    }

    /// Records how long a handler ran.
    pub fn handled(&self, topic: &str, group: &str, took: Duration) {
        observe(
            &self.families.handle_duration,
            &Group::new(topic, group),
            took,
        );
    }

    /// Sets how many suspects a process has; `state` is `running` or `waiting`.
    pub fn suspects(&self, topic: &str, group: &str, state: &str, count: u64) {
        let labels = GroupState::new(topic, group, state);
        self.families
            .suspects
            .get_or_create(&labels)
            .set(signed(count));
    }

    /// Drops the gauges of a group's suspects: this process reads it no longer.
    pub fn forget_suspects(&self, topic: &str, group: &str) {
        for state in ["running", "waiting"] {
            let labels = GroupState::new(topic, group, state);
            self.families.suspects.remove(&labels);
        }
    }

    /// Counts `count` reclaimed deliveries; `to` is `retry`, `garbage`, `expired` or `lost`.
    pub fn reclaimed(&self, topic: &str, group: &str, to: &str, count: u64) {
        let labels = GroupTo::new(topic, group, to);
        self.families.reclaimed.get_or_create(&labels).inc_by(count);
    }

    /// Sets how many messages are in a state; `group` is empty for `waiting`.
    pub fn topic_messages(&self, topic: &str, group: &str, state: &str, count: u64) {
        let labels = GroupState::new(topic, group, state);
        self.families
            .topic_messages
            .get_or_create(&labels)
            .set(signed(count));
    }

    /// Drops the gauge of a state, so that a retired group is not reported for ever.
    pub fn forget_messages(&self, topic: &str, group: &str, state: &str) {
        let labels = GroupState::new(topic, group, state);
        self.families.topic_messages.remove(&labels);
    }

    /// Sets how often something happened to a topic's messages; Redis counts, so that it does not matter who reports.
    pub fn topic_events(&self, topic: &str, event: &str, count: u64) {
        let labels = TopicEvent::new(topic, event);
        let counter = self.families.topic_events.get_or_create(&labels);
        counter.inner().store(count, Ordering::Relaxed);
    }

    /// Drops the count of an event, which another process reports from now on.
    pub fn forget_events(&self, topic: &str, event: &str) {
        let labels = TopicEvent::new(topic, event);
        self.families.topic_events.remove(&labels);
    }

    /// Sets how many messages of a topic are stored.
    pub fn topic_stored(&self, topic: &str, count: u64) {
        self.families
            .topic_stored
            .get_or_create(&Topic::new(topic))
            .set(signed(count));
    }

    /// Drops the gauge of a topic's stored messages, which another process reports from now on.
    pub fn forget_stored(&self, topic: &str) {
        self.families.topic_stored.remove(&Topic::new(topic));
    }

    /// Sets how many bytes the stored records of a topic take.
    pub fn topic_bytes(&self, topic: &str, bytes: u64) {
        let labels = Topic::new(topic);
        self.families
            .topic_bytes
            .get_or_create(&labels)
            .set(signed(bytes));
    }

    /// Drops the gauge of a topic's bytes, which nothing bounds any more or another process reports.
    pub fn forget_bytes(&self, topic: &str) {
        self.families.topic_bytes.remove(&Topic::new(topic));
    }

    /// Sets how many ended ids of a topic are remembered.
    pub fn topic_tombstones(&self, topic: &str, count: u64) {
        self.families
            .topic_tombstones
            .get_or_create(&Topic::new(topic))
            .set(signed(count));
    }

    /// Drops the gauge of a topic's tombstones, which another process reports from now on.
    pub fn forget_tombstones(&self, topic: &str) {
        self.families.topic_tombstones.remove(&Topic::new(topic));
    }

    /// Sets whether a group is paused; the topic itself, if `group` is empty.
    pub fn topic_paused(&self, topic: &str, group: &str, paused: bool) {
        let labels = Group::new(topic, group);
        self.families
            .topic_paused
            .get_or_create(&labels)
            .set(i64::from(paused));
    }

    /// Sets whether a group drains or is dropped.
    pub fn topic_retiring(&self, topic: &str, group: &str, retiring: bool) {
        let labels = Group::new(topic, group);
        self.families
            .topic_retiring
            .get_or_create(&labels)
            .set(i64::from(retiring));
    }

    /// Sets whether the settings of the topic do not name a group.
    pub fn topic_unconfigured(&self, topic: &str, group: &str, unconfigured: bool) {
        let labels = Group::new(topic, group);
        self.families
            .topic_unconfigured
            .get_or_create(&labels)
            .set(i64::from(unconfigured));
    }

    /// Sets how many consumers a group has.
    pub fn topic_consumers(&self, topic: &str, group: &str, count: u64) {
        self.families
            .topic_consumers
            .get_or_create(&Group::new(topic, group))
            .set(signed(count));
    }

    /// Sets the age of the oldest message that is due and that no consumer holds; of the topic, if `group` is empty.
    pub fn topic_oldest_due_age(&self, topic: &str, group: &str, age: Duration) {
        self.families
            .topic_oldest_due_age
            .get_or_create(&Group::new(topic, group))
            .set(age.as_secs_f64());
    }

    /// Sets the age of the first message of a group that no consumer has read.
    pub fn topic_oldest_ready_age(&self, topic: &str, group: &str, age: Duration) {
        self.families
            .topic_oldest_ready_age
            .get_or_create(&Group::new(topic, group))
            .set(age.as_secs_f64());
    }

    /// Drops what says whether a group, or the topic itself, is paused, goes away or is not configured, and who reads it.
    pub fn forget_group(&self, topic: &str, group: &str) {
        let labels = Group::new(topic, group);
        self.families.topic_paused.remove(&labels);
        self.families.topic_retiring.remove(&labels);
        self.families.topic_unconfigured.remove(&labels);
        self.families.topic_consumers.remove(&labels);
        self.families.topic_oldest_due_age.remove(&labels);
        self.families.topic_oldest_ready_age.remove(&labels);
    }

    /// Sets the topic's conservation error.
    pub fn conservation_error(&self, topic: &str, error: u64) {
        let labels = Topic::new(topic);
        self.families
            .conservation_error
            .get_or_create(&labels)
            .set(signed(error));
    }

    /// Drops the gauge of a topic's conservation error, which another process reports from now on.
    pub fn forget_conservation_error(&self, topic: &str) {
        self.families.conservation_error.remove(&Topic::new(topic));
    }

    /// Sets how many faults of a kind the last examination of a topic left; `code` as in the findings.
    pub fn doctor_findings(&self, topic: &str, code: &str, count: u64) {
        let labels = TopicCode::new(topic, code);
        self.families
            .doctor_findings
            .get_or_create(&labels)
            .set(signed(count));
    }

    /// Drops the gauge of a fault of a topic that is gone.
    pub fn forget_doctor_findings(&self, topic: &str, code: &str) {
        let labels = TopicCode::new(topic, code);
        self.families.doctor_findings.remove(&labels);
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

    /// Counts one failed script call; `code` comes from the table of known codes, never from the wire.
    pub fn redis_error(&self, code: &str) {
        self.families
            .redis_errors
            .get_or_create(&Code::new(code))
            .inc();
    }

    /// Records the round trip of one script call.
    pub fn script(&self, script: &str, took: Duration) {
        observe(&self.families.script, &Script::new(script), took);
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

    /// Counts one panic in a task or in one of its loops; `task` as in `/healthz`.
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
            .schedule_last
            .get_or_create(&Schedule::new(schedule));
        last.set(signed(time.get() / 1000));
    }

    /// Records one answered HTTP request; `route` is the pattern, never the path.
    pub fn http_request(&self, route: &str, method: &str, status: u16, took: Duration) {
        let labels = Request::new(route, method, &status.to_string());
        self.families.http_requests.get_or_create(&labels).inc();
        observe(&self.families.http_request, &Route::new(route), took);
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
