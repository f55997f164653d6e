//! The gauges and counters of topics and their groups, which a manager reads from Redis and removes when they are gone.

use std::sync::atomic::Ordering;
use std::time::Duration;

use super::{Group, GroupState, Metrics, Topic, TopicCode, TopicEvent, TopicWithin, signed};

impl Metrics {
    /// Sets the number of messages in a state; `group` is empty for `waiting`.
    pub fn topic_messages(&self, topic: &str, group: &str, state: &str, count: u64) {
        let labels = GroupState::new(topic, group, state);
        self.families
            .topic_messages
            .get_or_create(&labels)
            .set(signed(count));
    }

    /// Removes the gauge of a state, so that a retired group is not reported forever.
    pub fn forget_messages(&self, topic: &str, group: &str, state: &str) {
        let labels = GroupState::new(topic, group, state);
        self.families.topic_messages.remove(&labels);
    }

    /// Sets the count of an event of a topic's messages. Redis counts the events, so any process can report them.
    pub fn topic_events(&self, topic: &str, event: &str, count: u64) {
        let labels = TopicEvent::new(topic, event);
        let counter = self.families.topic_events.get_or_create(&labels);
        counter.inner().store(count, Ordering::Relaxed);
    }

    /// Removes the count of an event, which another process reports from now on.
    pub fn forget_events(&self, topic: &str, event: &str) {
        let labels = TopicEvent::new(topic, event);
        self.families.topic_events.remove(&labels);
    }

    /// Sets the number of stored messages of a topic.
    pub fn topic_stored(&self, topic: &str, count: u64) {
        self.families
            .topic_stored
            .get_or_create(&Topic::new(topic))
            .set(signed(count));
    }

    /// Removes the gauge of a topic's stored messages, which another process reports from now on.
    pub fn forget_stored(&self, topic: &str) {
        self.families.topic_stored.remove(&Topic::new(topic));
    }

    /// Sets the number of waiting messages of a topic that become due within a period.
    pub fn topic_due(&self, topic: &str, within: &str, count: u64) {
        let gauge = self
            .families
            .topic_due
            .get_or_create(&TopicWithin::new(topic, within));
        gauge.set(signed(count));
    }

    /// Removes the gauge of a topic's messages that become due, which another process reports from now on.
    pub fn forget_due(&self, topic: &str, within: &str) {
        self.families
            .topic_due
            .remove(&TopicWithin::new(topic, within));
    }

    /// Sets the size of the stored records of a topic, in bytes.
    pub fn topic_bytes(&self, topic: &str, bytes: u64) {
        let labels = Topic::new(topic);
        self.families
            .topic_bytes
            .get_or_create(&labels)
            .set(signed(bytes));
    }

    /// Removes the gauge of a topic's bytes, which are no longer limited or which another process reports from now on.
    pub fn forget_bytes(&self, topic: &str) {
        self.families.topic_bytes.remove(&Topic::new(topic));
    }

    /// Sets the limits of a topic: messages, and bytes. `None` removes the gauge.
    pub fn topic_limits(&self, topic: &str, messages: Option<u64>, bytes: Option<u64>) {
        let (labels, families) = (Topic::new(topic), &self.families);
        for (gauges, limit) in [
            (&families.topic_max_messages, messages),
            (&families.topic_max_bytes, bytes),
        ] {
            match limit {
                Some(limit) => {
                    gauges.get_or_create(&labels).set(signed(limit));
                }
                None => {
                    gauges.remove(&labels);
                }
            }
        }
    }

    /// Sets the number of tombstones of a topic.
    pub fn topic_tombstones(&self, topic: &str, count: u64) {
        self.families
            .topic_tombstones
            .get_or_create(&Topic::new(topic))
            .set(signed(count));
    }

    /// Removes the gauge of a topic's tombstones, which another process reports from now on.
    pub fn forget_tombstones(&self, topic: &str) {
        self.families.topic_tombstones.remove(&Topic::new(topic));
    }

    /// Sets whether a group is paused, or the topic itself if `group` is empty.
    pub fn topic_paused(&self, topic: &str, group: &str, paused: bool) {
        let labels = Group::new(topic, group);
        self.families
            .topic_paused
            .get_or_create(&labels)
            .set(i64::from(paused));
    }

    /// Sets whether a group is being drained or dropped.
    pub fn topic_retiring(&self, topic: &str, group: &str, retiring: bool) {
        let labels = Group::new(topic, group);
        self.families
            .topic_retiring
            .get_or_create(&labels)
            .set(i64::from(retiring));
    }

    /// Sets whether a group is missing from the settings of the topic.
    pub fn topic_unconfigured(&self, topic: &str, group: &str, unconfigured: bool) {
        let labels = Group::new(topic, group);
        self.families
            .topic_unconfigured
            .get_or_create(&labels)
            .set(i64::from(unconfigured));
    }

    /// Sets the number of consumers of a group.
    pub fn topic_consumers(&self, topic: &str, group: &str, count: u64) {
        self.families
            .topic_consumers
            .get_or_create(&Group::new(topic, group))
            .set(signed(count));
    }

    /// Sets the age of the oldest due message that no consumer holds; of the whole topic if `group` is empty.
    pub fn topic_oldest_due_age(&self, topic: &str, group: &str, age: Duration) {
        self.families
            .topic_oldest_due_age
            .get_or_create(&Group::new(topic, group))
            .set(age.as_secs_f64());
    }

    /// Sets the age of the first ready message of a group, which no consumer has read.
    pub fn topic_oldest_ready_age(&self, topic: &str, group: &str, age: Duration) {
        self.families
            .topic_oldest_ready_age
            .get_or_create(&Group::new(topic, group))
            .set(age.as_secs_f64());
    }

    /// Removes the gauges of a group's pause, retirement, configuration, consumers and ages; of the topic itself if `group`
    /// is empty.
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

    /// Sets a lower bound of the number of messages of a topic that have no record.
    pub fn missing_records(&self, topic: &str, count: u64) {
        let labels = Topic::new(topic);
        self.families
            .topic_missing_records
            .get_or_create(&labels)
            .set(signed(count));
    }

    /// Removes the gauges of a topic's conservation error and missing records, which another process reports from now on.
    pub fn forget_losses(&self, topic: &str) {
        let labels = Topic::new(topic);
        self.families.conservation_error.remove(&labels);
        self.families.topic_missing_records.remove(&labels);
    }

    /// Sets the number of faults with one `code` that the last examination of a topic did not repair.
    pub fn doctor_findings(&self, topic: &str, code: &str, count: u64) {
        let labels = TopicCode::new(topic, code);
        self.families
            .doctor_findings
            .get_or_create(&labels)
            .set(signed(count));
    }

    /// Removes the gauge of a fault, for a topic that this process no longer serves.
    pub fn forget_doctor_findings(&self, topic: &str, code: &str) {
        let labels = TopicCode::new(topic, code);
        self.families.doctor_findings.remove(&labels);
    }
}
