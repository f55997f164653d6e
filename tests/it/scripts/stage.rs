//! The setup of the feature tests: a topic of named groups, messages with options, and the states of all messages as
//! lines that can be compared whole.

use lisa_core::broker::{Moved, Read, Settlement, Verdict};
use lisa_core::message::{Expiry, PreparedMessage};
use lisa_core::state::{CancelOutcome, End, Ended, RescheduleOutcome, Settled};
use lisa_core::time::{UnixMs, When};
use lisa_core::topic::{Group, Shard, TopicSettings};
use lisa_tests::relay::{START, WORKER, id, ms, settings, settlement};
use lisa_tests::snapshot::{Content, Snapshot, Text};
use lisa_tests::{Relay, SOON, eventually};
use redis::cmd;
use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write;
use std::ops::Deref;

/// The shard that all these tests are about.
pub(super) const SHARD: Shard = Shard::new(0);

/// Settings of a topic with these groups.
pub(super) fn groups(names: &[&str]) -> TopicSettings {
    TopicSettings {
        groups: names.iter().map(|name| name.parse().unwrap()).collect(),
        ..settings()
    }
}

/// A message with options.
pub(super) trait Asking: Sized {
    fn options(&mut self) -> &mut lisa_core::message::Options;

    fn key(mut self, key: &str) -> Self {
        self.options().key = Some(key.parse().unwrap());
        self
    }

    fn merge(mut self, key: &str) -> Self {
        self.options().merge_key = Some(key.parse().unwrap());
        self
    }

    fn priority(mut self, priority: i32) -> Self {
        self.options().priority = priority;
        self
    }

    fn ttl(mut self, after: u64) -> Self {
        self.options().expiry = Some(Expiry::After(ms(after)));
        self
    }

    fn expires(mut self, after: u64) -> Self {
        self.options().expiry = Some(Expiry::At(UnixMs::new(START + after)));
        self
    }

    fn replacing(mut self, name: &str) -> Self {
        self.options().replace = Some(id(name));
        self
    }
}

impl Asking for PreparedMessage {
    fn options(&mut self) -> &mut lisa_core::message::Options {
        &mut self.options
    }
}

/// Returns the verdict that moves a message to garbage.
pub(super) fn reject() -> Verdict {
    let error = "no good".to_owned();
    Verdict::Reject { error }
}

/// Returns a verdict: again in this many ms, uncounted.
pub(super) fn defer(after: u64) -> Verdict {
    let when = When::After(ms(after));
    Verdict::Defer { when }
}

/// A topic with features on a relay.
pub(super) struct Stage(Relay);

impl Deref for Stage {
    type Target = Relay;

    fn deref(&self) -> &Relay {
        &self.0
    }
}

impl Stage {
    /// Declares a topic with these settings.
    pub(super) async fn with(settings: TopicSettings) -> Self {
        Self(Relay::with("features", settings).await)
    }

    /// Declares a topic with these groups, and no other feature.
    pub(super) async fn of(names: &[&str]) -> Self {
        Self::with(groups(names)).await
    }

    /// Builds the setup on a relay.
    pub(super) fn on(relay: Relay) -> Self {
        Self(relay)
    }

    /// Changes the settings of the topic; groups are only added.
    pub(super) async fn update(&mut self, settings: TopicSettings) {
        let name = self.topic().name().clone();
        let update = lisa_core::broker::Declare::Update;
        let topic = self.broker().declare(&name, &settings, update).await;
        self.0.set_topic(topic.unwrap());
    }

    /// Takes the newest handle, after the groups changed.
    pub(super) async fn refresh(&mut self) {
        let topic = self.broker().topic(self.topic().name()).await.unwrap();
        self.0.set_topic(topic);
    }

    /// Returns the states of all messages, one line per key: `waiting m@10`, `ready:a m#1@10`. Times are in ms after
    /// the start.
    ///
    /// An entry of `ready` is its id, attempt, due time, crashes and lapse time; an item of `backlog` its id and
    /// priority, in the order of the pick; of `parked` its key and id; of `merge` its ordering key, merge key and id.
    pub(super) async fn states(&self) -> Vec<String> {
        self.places_in(&self.snapshot().await)
    }

    /// Returns the states of all messages when the snapshot was taken.
    pub(super) fn places_in(&self, snapshot: &Snapshot) -> Vec<String> {
        let prefix = self.short_key(0, "");
        let mut lines = Vec::new();
        for (key, content) in snapshot.iter() {
            let Some(what) = key.strip_prefix(&prefix) else {
                continue;
            };
            let kind = what.split(':').next().unwrap();
            let items = items(kind, content);
            if !items.is_empty() {
                lines.push(format!("{what} {}", items.join(", ")));
            }
        }
        lines
    }

    /// The ids on the stream of a group, in order.
    pub(super) async fn ready(&self, group: &str) -> Vec<String> {
        let key = self.short_key(0, &format!("ready:{group}"));
        let stream = self.snapshot().await.stream(&key);
        let entries = stream.entries.iter();
        entries
            .map(|(_, fields)| text(&fields[b"i".as_slice()]))
            .collect()
    }

    /// A counter of the shard; 0 if it is not there.
    pub(super) async fn count(&self, name: &str) -> i64 {
        let stats = self.hash("stats").await;
        stats.get(name).map_or(0, |count| count.parse().unwrap())
    }

    /// A field of `conf`.
    pub(super) async fn conf(&self, field: &str) -> Option<String> {
        self.hash("conf").await.remove(field)
    }

    /// Sends, and returns how each message ended: `merged m1@10`, `duplicate m2 acked`, `replace_conflict m3
    /// in_flight`.
    pub(super) async fn sent(&self, messages: &[PreparedMessage]) -> Vec<String> {
        let mut outcomes = Vec::new();
        for sent in self.send(messages).await {
            let mut line = format!("{} {}", sent.outcome, sent.id);
            if let Some(due) = sent.due {
                write!(line, "@{}", after(due.get() as f64)).unwrap();
            }
            if let Some(blocked) = sent.blocked {
                write!(line, " {blocked}").unwrap();
            }
            if let Some(end) = sent.ended {
                write!(line, " {end}").unwrap();
            }
            outcomes.push(line);
        }
        outcomes
    }

    /// Moves what is due, at most 200 copies; returns how many, and how long until the next look.
    pub(super) async fn moved(&self) -> (u64, u64) {
        match self.move_due(200).await {
            Moved::Moved { count, pause } => (count, u64::try_from(pause.as_millis()).unwrap()),
            Moved::Paused => panic!("the topic is paused"),
        }
    }

    /// Lets `by` ms pass, then moves what is due.
    pub(super) async fn pass(&self, by: u64) {
        self.step(i64::try_from(by).unwrap());
        self.moved().await;
    }

    /// Sends, and moves what is due.
    pub(super) async fn put(&self, messages: &[PreparedMessage]) {
        self.send(messages).await;
        self.moved().await;
    }

    /// Reads up to `count` entries of a group.
    pub(super) async fn take(&self, group: &str, count: usize) -> Vec<Read> {
        // A busy machine may take longer than the limit of one connection.
        let reader = eventually(SOON, async || {
            self.broker().connection().any().reader().await
        });
        let mut reader = reader.await;
        let (broker, topic, group) = (self.broker(), self.topic(), name(group));
        let read = broker.read(&mut reader, topic, SHARD, &group, WORKER, count, ms(1));
        read.await.unwrap()
    }

    /// Reads the next entry of a group, which must be of that message.
    pub(super) async fn begin(&self, group: &str, id: &str) -> Read {
        let read = self.take(group, 1).await.pop().expect("a ready message");
        assert_eq!(read.id.as_ref().unwrap().as_str(), id);
        read
    }

    /// Settles one delivery of a group.
    pub(super) async fn end(&self, group: &str, read: &Read, verdict: Verdict) -> Settled {
        self.end_all(group, &[settlement(read, verdict)]).await[0]
    }

    /// Settles deliveries of a group.
    pub(super) async fn end_all(&self, group: &str, settlements: &[Settlement]) -> Vec<Settled> {
        let (broker, topic) = (self.broker(), self.topic());
        let settled = broker.settle(topic, SHARD, &name(group), settlements).await;
        settled.unwrap()
    }

    /// Reads the next entry of a group, which must be of that message, and settles it.
    pub(super) async fn run(&self, group: &str, id: &str, verdict: Verdict) -> Settled {
        let read = self.begin(group, id).await;
        self.end(group, &read, verdict).await
    }

    /// Reads and acks the next message of a group; returns its id.
    pub(super) async fn handle(&self, group: &str) -> String {
        let read = self.take(group, 1).await.pop().expect("a ready message");
        assert_eq!(self.end(group, &read, Verdict::Ack).await, Settled::Acked);
        read.id.unwrap().to_string()
    }

    /// Handles everything ready in a group, and all messages that follow; returns the ids in order.
    pub(super) async fn drain(&self, group: &str) -> Vec<String> {
        let mut handled = Vec::new();
        while !self.ready(group).await.is_empty() {
            handled.push(self.handle(group).await);
        }
        handled
    }

    /// Makes a delivery look untouched for an hour, so that a reclaim takes it.
    pub(super) async fn forget(&self, group: &str, read: &Read) {
        self.forget_all(group, std::slice::from_ref(read)).await;
    }

    /// Makes deliveries look untouched for an hour.
    pub(super) async fn forget_all(&self, group: &str, reads: &[Read]) {
        let Some(last) = reads.last() else { return };
        let mut claim = cmd("XCLAIM");
        claim.arg(self.key(&format!("ready:{group}"))).arg(group);
        claim.arg(WORKER).arg(0);
        for read in reads {
            claim.arg(read.attempt.entry.to_string());
        }
        claim.arg("IDLE").arg(3_600_000).arg("JUSTID");
        let claimed: Vec<String> = self.command(&claim).await;
        assert_eq!(claimed.len(), reads.len());
        self.clock_past(last.attempt.entry).await;
    }

    /// Pauses or resumes a group; returns whether that changed anything.
    pub(super) async fn pause_group(&self, group: &str, paused: bool) -> bool {
        let (broker, topic) = (self.broker(), self.topic());
        let changed = broker.pause_group(topic, &name(group), paused).await;
        changed.unwrap()
    }

    /// Cancels a message; returns the outcome in a word, and how it ended if that is known.
    pub(super) async fn cancel(&self, message: &str) -> String {
        match self.broker().cancel(self.topic(), &id(message), None).await {
            Ok(CancelOutcome::Cancelled { in_garbage, .. }) if in_garbage.is_empty() => {
                "cancelled".to_owned()
            }
            Ok(CancelOutcome::Cancelled { in_garbage, .. }) => {
                let names: Vec<_> = in_garbage.iter().map(Group::as_str).collect();
                format!("cancelled in garbage of {}", names.join(" "))
            }
            Ok(CancelOutcome::InFlight) => "in_flight".to_owned(),
            Ok(CancelOutcome::Garbage) => "garbage".to_owned(),
            Ok(CancelOutcome::Unknown { end }) => unknown(end),
            Err(error) => panic!("{error}"),
        }
    }

    /// Reschedules a message; returns the outcome in a word, and the new due time or how it ended.
    pub(super) async fn reschedule(&self, message: &str, when: impl Into<When>) -> String {
        let (broker, topic) = (self.broker(), self.topic());
        match broker
            .reschedule(topic, &id(message), None, when.into())
            .await
        {
            Ok(RescheduleOutcome::Rescheduled { due }) => {
                format!("rescheduled@{}", after(due.get() as f64))
            }
            Ok(RescheduleOutcome::InFlight) => "in_flight".to_owned(),
            Ok(RescheduleOutcome::Garbage) => "garbage".to_owned(),
            Ok(RescheduleOutcome::Unknown { end }) => unknown(end),
            Err(error) => panic!("{error}"),
        }
    }

    /// Requeues a message that went to a group's garbage `at` ms after the start; returns how many were requeued.
    pub(super) async fn requeue(&self, group: &str, message: &str, at: u64) -> u64 {
        let seen = [(id(message), UnixMs::new(START + at))];
        let (broker, topic) = (self.broker(), self.topic());
        let requeued = broker.requeue(topic, &name(group), &seen).await;
        requeued.unwrap()
    }

    /// Purges a message that went to a group's garbage `at` ms after the start; returns how many were purged.
    pub(super) async fn purge(&self, group: &str, message: &str, at: u64) -> u64 {
        let seen = [(id(message), UnixMs::new(START + at))];
        let (broker, topic) = (self.broker(), self.topic());
        let purged = broker.purge(topic, &name(group), &seen).await;
        purged.unwrap()
    }

    /// Asserts that both sums hold, and that a payload is stored for each message in some state and for no other. Other
    /// messages leave only tombstones.
    pub(super) async fn assert_whole(&self) {
        self.assert_conserved().await;
        let snapshot = self.snapshot().await;
        let hash = |what: &str| snapshot.hash(&self.short_key(0, what));
        let stored = ids(&hash("payload"));
        let mut placed = BTreeSet::new();
        for line in self.states().await {
            let (what, items) = line.split_once(' ').unwrap();
            let kind = what.split(':').next().unwrap();
            if matches!(
                kind,
                "waiting" | "retry" | "ready" | "backlog" | "parked" | "garbage"
            ) {
                placed.extend(items.split(", ").map(|item| placed_id(kind, item)));
            }
        }
        assert_eq!(placed, stored, "{snapshot}");
        let mut groups = vec!["meta".to_owned(), "left".to_owned()];
        groups.extend(
            self.topic()
                .groups()
                .iter()
                .map(|g| format!("attempts:{g}")),
        );
        for what in groups {
            assert!(ids(&hash(&what)).is_subset(&stored), "{what}: {snapshot}");
        }
    }

    /// Asserts that nothing is left of any message but its tombstone, and that both sums hold.
    pub(super) async fn assert_nothing_is_left(&self) {
        self.assert_drained().await;
    }
}

/// Makes the name of a group.
pub(super) fn name(group: &str) -> Group {
    group.parse().unwrap()
}

fn unknown(end: Option<Ended>) -> String {
    end.map_or("unknown".to_owned(), |end| format!("unknown {end}"))
}

fn text(text: &Text) -> String {
    String::from_utf8_lossy(&text.0).into_owned()
}

fn ids(hash: &BTreeMap<Text, Text>) -> BTreeSet<String> {
    hash.keys().map(text).collect()
}

/// Ms after the start.
fn after(time: f64) -> i64 {
    time as i64 - START as i64
}

fn placed_id(kind: &str, item: &str) -> String {
    let item = match kind {
        "parked" => item.rsplit_once('>').unwrap().1,
        _ => item,
    };
    let end = item.find(['#', '@', '*']).unwrap_or(item.len());
    item[..end].to_owned()
}

/// Returns the items of a key, in its order.
fn items(kind: &str, content: &Content) -> Vec<String> {
    match (kind, content) {
        ("conf" | "stats" | "payload" | "meta" | "into" | "failures", _) => Vec::new(),
        ("ready", Content::Stream(stream)) => stream
            .entries
            .iter()
            .map(|(_, fields)| entry(fields))
            .collect(),
        // The last attempts behind an error are not shown.
        ("attempts" | "garbage_info", Content::Hash(fields)) => fields
            .iter()
            .map(|(id, value)| (text(id), text(value)))
            .map(|(id, value)| format!("{id}={}", value.split('\0').next().unwrap()))
            .collect(),
        (_, Content::Hash(fields)) => fields
            .iter()
            .map(|(field, value)| format!("{}={}", text(field).replace('\0', "/"), text(value)))
            .collect(),
        (_, Content::Zset(members)) => {
            let mut members: Vec<_> = members.iter().collect();
            members.sort_by(|a, b| a.1.total_cmp(b.1).then_with(|| a.0.cmp(b.0)));
            let item = |(member, score): (&Text, &f64)| zset_item(kind, &text(member), *score);
            members.into_iter().map(item).collect()
        }
        _ => panic!("{kind}: {content:?}"),
    }
}

fn zset_item(kind: &str, member: &str, score: f64) -> String {
    const POSITION: usize = 26;
    match kind {
        "backlog" if score == 0.0 => member[POSITION..].to_owned(),
        "backlog" => format!("{}*{}", &member[POSITION..], -score),
        "parked" => {
            let (key, rest) = member.split_once('\0').unwrap();
            format!("{key}>{}", &rest[POSITION..])
        }
        "tomb" => {
            let end = End::ALL[(score % 4.0) as usize];
            format!("{member} {end}@{}", after((score / 4.0).floor()))
        }
        _ => {
            let id = member.strip_prefix('~').map_or(member, |rest| &rest[12..]);
            format!("{id}@{}", after(score))
        }
    }
}

fn entry(fields: &BTreeMap<Text, Text>) -> String {
    let field = |name: &str| fields.get(name.as_bytes()).map(text);
    let due = after(field("d").unwrap().parse().unwrap());
    let attempt = field("a").unwrap_or_else(|| "1".into());
    let mut item = format!("{}#{attempt}@{due}", field("i").unwrap());
    if let Some(crashes) = field("c") {
        write!(item, " c{crashes}").unwrap();
    }
    if let Some(lapse) = field("x") {
        write!(item, " x{}", after(lapse.parse().unwrap())).unwrap();
    }
    item
}
