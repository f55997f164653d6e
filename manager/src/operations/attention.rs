//! Decides what needs the attention of an operator: the same rules for the front page, `check` and HTTP.

use std::cmp::Reverse;
use std::time::Duration;

use lisa_core::broker::{BrokerError, GroupStats, NO_MANAGER, TopicStats};
use lisa_core::fields;
use lisa_core::names::words;
use lisa_core::time::format_age;
use lisa_core::topic::{Group, ScheduleName, Topic};
use serde::{Deserialize, Serialize};
use tokio::time::timeout;
use utoipa::ToSchema;

use super::counted;
use super::schedules::{FailingSchedules, Schedules};
use super::topics::{AllTopicsError, StatsList, stats_of_all};

words!(
    /// The severity of a trouble, the worst last.
    Status, "status", {
        /// Nothing is wrong.
        Ok = "ok",
        /// It is intended, but should not be forgotten.
        Notice = "notice",
        /// Somebody should look at it.
        Warning = "warning",
        /// It could not be found out.
        Unknown = "unknown",
        /// Messages are not delivered, or are lost.
        Critical = "critical",
    }
);

words!(
    /// The kind of a trouble.
    TroubleKind, "kind of trouble", {
        /// No manager is running.
        NoManager = "no_manager",
        /// It could not be read.
        Unreadable = "unreadable",
        /// A topic cannot be read completely.
        Damaged = "damaged",
        /// Messages are unaccounted for.
        Unaccounted = "unaccounted",
        /// Messages have no record.
        MissingRecords = "missing_records",
        /// The oldest due message is late, and no consumer reads the group.
        NoConsumer = "no_consumer",
        /// The oldest due message that no consumer holds is late.
        Late = "late",
        /// A topic has reached its limits, and refuses sends.
        Full = "full",
        /// Garbage has more messages than its limit.
        Garbage = "garbage",
        /// A topic or group is paused.
        Paused = "paused",
        /// A group is being removed.
        Retiring = "retiring",
        /// A group is not in the configuration, but still gets every message.
        Unconfigured = "unconfigured",
        /// The last sends of schedules failed.
        FailingSchedules = "failing_schedules",
    }
);

/// The kind of a trouble as a server names it, which may be newer than this program.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(untagged)]
pub(crate) enum ReportedKind {
    /// A kind that this program knows.
    Known(TroubleKind),
    /// Any other.
    Other(String),
}

fields! {
    /// The topic to check, and the limits above which something needs attention.
    #[derive(Clone, Debug)]
    pub(crate) struct AttentionQuery, query {
        /// Only this topic.
        topic: Option<Topic> = None;
        /// Warn if the oldest due message of a group is older than this.
        late: Duration = Duration::from_secs(5);
        /// Report as critical if the oldest due message of a group is older than this.
        oldest: Duration = Duration::from_mins(5);
        /// Warn if the garbage of a group has more messages than this.
        garbage: u64 = 0;
    }
}

/// The things that need attention.
#[derive(Debug, Serialize, Deserialize, ToSchema)]
pub(crate) struct Attention {
    /// The worst status of all troubles; `ok` if there are none.
    pub(crate) status: Status,
    /// The troubles, the worst first.
    pub(crate) troubles: Vec<Trouble>,
    /// The number of messages that were counted as lost earlier. They are no trouble, because the loss cannot be undone.
    pub(crate) lost: u64,
}

/// Something that needs attention.
#[derive(Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub(crate) struct Trouble {
    pub(crate) status: Status,
    #[schema(value_type = TroubleKind)]
    pub(crate) kind: ReportedKind,
    /// The topic; absent if it concerns all.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = String, required = false)]
    pub(crate) topic: Option<String>,
    /// The group; absent if it concerns all of the topic.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Group, required = false)]
    pub(crate) group: Option<Group>,
    /// The schedule, or the first of several; absent if it concerns none.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = ScheduleName, required = false)]
    pub(crate) schedule: Option<ScheduleName>,
    /// The trouble, in words.
    pub(crate) what: String,
}

impl Trouble {
    fn new(status: Status, kind: TroubleKind, what: impl Into<String>) -> Self {
        Self {
            status,
            kind: ReportedKind::Known(kind),
            topic: None,
            group: None,
            schedule: None,
            what: what.into(),
        }
    }

    fn of_topic(self, topic: impl Into<String>) -> Self {
        Self {
            topic: Some(topic.into()),
            ..self
        }
    }

    /// Returns its topic and group as `topic/group`, its topic, or nothing.
    pub(crate) fn subject(&self) -> String {
        match (&self.topic, &self.group) {
            (Some(topic), Some(group)) => format!("{topic}/{group}"),
            (topic, _) => topic.clone().unwrap_or_default(),
        }
    }
}

impl Attention {
    pub(crate) fn new(mut troubles: Vec<Trouble>, lost: u64) -> Self {
        troubles.sort_by_key(|trouble| Reverse(trouble.status));
        Self {
            status: troubles.first().map_or(Status::Ok, |worst| worst.status),
            troubles,
            lost,
        }
    }

    /// Returns the result if nothing could be read.
    pub(crate) fn unreadable(why: String) -> Self {
        Self::new(
            vec![Trouble::new(Status::Unknown, TroubleKind::Unreadable, why)],
            0,
        )
    }
}

/// Reads what needs attention, each part `within` a time; `is_dev` as in [`attention`].
///
/// # Errors
/// [`AllTopicsError`]; for a topic that is not registered, [`BrokerError::UnknownTopic`] in it.
pub(crate) async fn read(
    schedules: Schedules<'_>,
    query: &AttentionQuery,
    (is_dev, within): (bool, Duration),
) -> Result<Attention, AllTopicsError> {
    let (failing, stats) = tokio::join!(
        timeout(within, schedules.failing()),
        stats_of_all(schedules.broker, within)
    );
    let mut stats = stats?;
    let mut failing = failing.ok().and_then(Result::ok);
    if let Some(topic) = &query.topic
        && !stats.keep_only(topic)
    {
        return Err(BrokerError::UnknownTopic(topic.clone()).into());
    }
    if let (Some(topic), Some(failing)) = (&query.topic, &mut failing) {
        failing.keep_only(topic);
    }
    Ok(attention(&stats, failing.as_ref(), query, is_dev))
}

/// Returns what needs attention. `failing` is `None` if the schedules could not be read. In development mode (`is_dev`), a group without
/// a consumer is only a notice: a topic gets the group `default` with its first message, so that it can be pulled later.
pub(crate) fn attention(
    stats: &StatsList,
    failing: Option<&FailingSchedules>,
    limits: &AttentionQuery,
    is_dev: bool,
) -> Attention {
    use Status::{Critical, Unknown};
    let mut found = Vec::new();
    match stats.managers {
        Some(0) => found.push(Trouble::new(Critical, TroubleKind::NoManager, NO_MANAGER)),
        None => {
            let what = "cannot read the managers";
            found.push(Trouble::new(Unknown, TroubleKind::Unreadable, what));
        }
        Some(_) => {}
    }
    for damaged in &stats.missing.damaged {
        let what = format!("cannot be read: {}", damaged.error);
        let trouble = Trouble::new(Critical, TroubleKind::Damaged, what);
        found.push(trouble.of_topic(&damaged.topic));
    }
    for topic in &stats.missing.unanswered {
        let trouble = Trouble::new(Unknown, TroubleKind::Unreadable, "Redis did not answer");
        found.push(trouble.of_topic(topic.as_str()));
    }
    for topic in &stats.topics {
        let troubles = in_topic(topic, limits).into_iter();
        found.extend(troubles.map(|trouble| trouble.of_topic(topic.topic.as_str())));
    }
    found.extend(of_schedules(failing));
    if is_dev {
        for trouble in &mut found {
            if trouble.kind == ReportedKind::Known(TroubleKind::NoConsumer) {
                trouble.status = Status::Notice;
            }
        }
    }
    Attention::new(found, stats.topics.iter().map(TopicStats::lost).sum())
}

fn of_schedules(failing: Option<&FailingSchedules>) -> Vec<Trouble> {
    use Status::{Unknown, Warning};
    let Some(failing) = failing else {
        let what = "cannot read the failing schedules";
        return vec![Trouble::new(Unknown, TroubleKind::Unreadable, what)];
    };
    let new = |what| Trouble::new(Warning, TroubleKind::FailingSchedules, what);
    let of_topics = failing.topics.iter().map(|(topic, of_topic)| Trouble {
        topic: topic.as_ref().map(Topic::to_string),
        schedule: of_topic.first().cloned(),
        ..new(of_topic.text())
    });
    let more = "there are more failing schedules than are counted here".to_owned();
    of_topics.chain(failing.is_cut.then(|| new(more))).collect()
}

fn in_topic(stats: &TopicStats, limits: &AttentionQuery) -> Vec<Trouble> {
    use Status::{Critical, Notice, Warning};
    let mut found = Vec::new();
    if stats.conservation_error > 0 {
        let messages = counted(stats.conservation_error, "message");
        let what = format!("{messages} unaccounted for");
        found.push(Trouble::new(Critical, TroubleKind::Unaccounted, what));
    }
    if stats.missing_records() > 0 {
        let messages = counted(stats.missing_records(), "message");
        let what = format!("{messages} without a record");
        found.push(Trouble::new(Critical, TroubleKind::MissingRecords, what));
    }
    if stats.full {
        let what = "max_messages or max_bytes reached on at least one shard, which refuses sends";
        found.push(Trouble::new(Warning, TroubleKind::Full, what));
    }
    if stats.paused {
        let what = "paused, nothing becomes ready";
        found.push(Trouble::new(Notice, TroubleKind::Paused, what));
    } else if stats.groups.is_empty() {
        found.extend(late(stats.overdue_ms, true, limits));
    }
    for group in &stats.groups {
        let troubles = in_group(stats, group, limits).into_iter();
        found.extend(troubles.map(|trouble| Trouble {
            group: Some(group.group.clone()),
            ..trouble
        }));
    }
    found
}

fn in_group(topic: &TopicStats, stats: &GroupStats, limits: &AttentionQuery) -> Vec<Trouble> {
    use Status::{Notice, Warning};
    let mut found = Vec::new();
    if stats.garbage > limits.garbage {
        let what = format!("{} in garbage", counted(stats.garbage, "message"));
        found.push(Trouble::new(Warning, TroubleKind::Garbage, what));
    }
    if stats.paused {
        let held = counted(stats.backlog, "message");
        let what = format!("paused, {held} held back");
        found.push(Trouble::new(Notice, TroubleKind::Paused, what));
    }
    if let Some(how) = stats.retiring {
        let what = format!("retiring ({})", how.as_str());
        found.push(Trouble::new(Notice, TroubleKind::Retiring, what));
    } else if stats.unconfigured {
        let what = "not in the configuration, but still gets every message";
        found.push(Trouble::new(Warning, TroubleKind::Unconfigured, what));
    }
    if !topic.paused && !stats.paused {
        let is_read = stats.ready == 0 || stats.consumers > 0;
        found.extend(late(stats.oldest_due_age_ms, is_read, limits));
    }
    found
}

/// Returns the trouble with a message that has been due for so long.
fn late(age_ms: u64, is_read: bool, limits: &AttentionQuery) -> Option<Trouble> {
    let status = match Duration::from_millis(age_ms) {
        age if age > limits.oldest => Status::Critical,
        age if age > limits.late => Status::Warning,
        _ => return None,
    };
    let what = format!(
        "the oldest due message has waited for {}",
        format_age(age_ms)
    );
    Some(match is_read {
        true => Trouble::new(status, TroubleKind::Late, what),
        false => {
            let what = format!("no consumer, {what}");
            Trouble::new(status, TroubleKind::NoConsumer, what)
        }
    })
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    #[test]
    fn the_worst_trouble_decides_and_comes_first() {
        use Status::{Critical, Notice, Ok, Unknown, Warning};
        for (statuses, worst) in [
            (vec![], Ok),
            (vec![Notice], Notice),
            (vec![Warning], Warning),
            (vec![Warning, Unknown], Unknown),
            (vec![Unknown, Critical, Warning], Critical),
        ] {
            let statuses = statuses.into_iter();
            let troubles = statuses.map(|status| Trouble::new(status, TroubleKind::Late, "x"));
            let attention = Attention::new(troubles.collect(), 0);
            let first = attention.troubles.first();
            assert_eq!(attention.status, worst);
            assert_eq!(first.map_or(Ok, |trouble| trouble.status), worst);
        }
    }

    /// The counts of one topic with one group, with these differences.
    fn stats(topic: Value, group: Value) -> StatsList {
        let mut one = json!({
            "group": "g", "backlog": 0, "parked": 0, "ready": 0, "in_flight": 0, "retry": 0, "garbage": 0, "consumers": 1,
            "oldest_due_age_ms": 0, "oldest_ready_age_ms": 0,
        });
        merge(&mut one, group);
        let mut all = json!({
            "topic": "t", "paused": false, "class": "plain", "stored": 10, "waiting": 0, "tombstones": 0, "overdue_ms": 0,
            "groups": [one], "counters": {}, "conservation_error": 0,
        });
        merge(&mut all, topic);
        serde_json::from_value(json!({ "topics": [all], "managers": 1 })).unwrap()
    }

    fn merge(to: &mut Value, from: Value) {
        let Value::Object(from) = from else { panic!() };
        to.as_object_mut().unwrap().extend(from);
    }

    fn all_of(stats: &StatsList, is_dev: bool) -> Attention {
        let failing = FailingSchedules::default();
        attention(stats, Some(&failing), &AttentionQuery::default(), is_dev)
    }

    #[test]
    fn each_count_has_one_trouble_with_its_status_and_subject() {
        use Status::{Critical, Notice, Warning};
        let paused = json!({ "paused": true });
        let (late, later) = (
            json!({ "oldest_due_age_ms": 5001 }),
            json!({ "oldest_due_age_ms": 300_001 }),
        );
        let unread = json!({ "oldest_due_age_ms": 5001, "ready": 1, "consumers": 0 });
        let late_and_paused = json!({ "oldest_due_age_ms": 300_001, "paused": true });
        for (topic, group, status, kind, subject) in [
            (
                json!({ "conservation_error": 1 }),
                json!({}),
                Critical,
                "unaccounted",
                "t",
            ),
            (
                json!({ "waiting": 11 }),
                json!({}),
                Critical,
                "missing_records",
                "t",
            ),
            (json!({ "full": true }), json!({}), Warning, "full", "t"),
            (paused.clone(), json!({}), Notice, "paused", "t"),
            (paused, later.clone(), Notice, "paused", "t"),
            (
                json!({}),
                json!({ "paused": true }),
                Notice,
                "paused",
                "t/g",
            ),
            (json!({}), late_and_paused, Notice, "paused", "t/g"),
            (
                json!({}),
                json!({ "garbage": 1 }),
                Warning,
                "garbage",
                "t/g",
            ),
            (
                json!({}),
                json!({ "retiring": "drain" }),
                Notice,
                "retiring",
                "t/g",
            ),
            (
                json!({}),
                json!({ "unconfigured": true }),
                Warning,
                "unconfigured",
                "t/g",
            ),
            (json!({}), late, Warning, "late", "t/g"),
            (json!({}), later, Critical, "late", "t/g"),
            (json!({}), unread, Warning, "no_consumer", "t/g"),
            (
                json!({ "groups": [], "overdue_ms": 5001 }),
                json!({}),
                Warning,
                "late",
                "t",
            ),
        ] {
            let found = all_of(&stats(topic, group), false).troubles;
            let seen: Vec<_> = { found.iter() }
                .map(|one| (one.status, json!(one.kind), one.subject()))
                .collect();
            assert_eq!(
                seen,
                [(status, json!(kind), subject.to_owned())],
                "{found:?}"
            );
        }
        let well = all_of(&stats(json!({}), json!({})), false);
        assert_eq!((well.status, well.troubles.len()), (Status::Ok, 0));
    }

    #[test]
    fn in_development_a_group_without_a_consumer_is_a_notice() {
        let unread = json!({ "oldest_due_age_ms": 300_001, "ready": 1, "consumers": 0 });
        let status = |is_dev| {
            let stats = stats(json!({}), unread.clone());
            all_of(&stats, is_dev).status
        };
        assert_eq!(
            (status(false), status(true)),
            (Status::Critical, Status::Notice)
        );
    }

    #[test]
    fn schedules_that_cannot_be_read_are_a_trouble() {
        let stats = stats(json!({}), json!({}));
        let limits = AttentionQuery::default();
        let found = attention(&stats, None, &limits, false);
        assert_eq!(found.status, Status::Unknown);
    }

    #[test]
    fn a_kind_of_a_newer_server_is_kept_as_it_is() {
        let newer = json!({ "status": "warning", "kind": "of_tomorrow", "topic": "t", "what": "x", "more": 1 });
        let read: Trouble = serde_json::from_value(newer.clone()).unwrap();
        assert_eq!(json!(read)["kind"], newer["kind"]);
        let known = json!({ "status": "warning", "kind": "full", "what": "x" });
        let read: Trouble = serde_json::from_value(known.clone()).unwrap();
        assert_eq!(read.kind, ReportedKind::Known(TroubleKind::Full));
        assert_eq!(json!(read), known);
    }
}
