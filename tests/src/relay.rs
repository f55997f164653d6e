//! A declared topic on a real Redis with a clock that stands still: the basis of the tests of scripts and of the model.
//! It uses Redis through the broker, as the roles do, and also through its own connection.

use crate::{Server, Snapshot, eventually, snapshot::Content};
use lisa_core::broker::{
    Broker, BrokerError, Declare, MAX_SEND_BATCH, Moved, Read, ReclaimReport, Settlement,
    TopicHandle, TopicStats, Verdict,
};
use lisa_core::durability::Durability;
use lisa_core::message::{EntryId, MessageId, NewId, Options, PreparedMessage, Record};
use lisa_core::redis::{Connection, ConnectionErrorKind, ConnectionSettings, Reader};
use lisa_core::retry::RetryPolicy;
use lisa_core::state::{Accepted, Settled};
use lisa_core::time::{UnixMs, When};
use lisa_core::topic::{Group, Shard, TopicSettings};
use redis::aio::MultiplexedConnection;
use redis::{Cmd, FromRedisValue, cmd};
use std::collections::BTreeMap;
use std::fmt::Debug;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::Mutex;
use tokio_util::sync::CancellationToken;

/// The keys of the registry that are about schedules. They are no messages.
pub const OF_SCHEDULES: [&str; 9] = [
    "schedules",
    "schedule_progress",
    "schedule_definitions",
    "schedule_names",
    "schedule_faults",
    "failing_schedules",
    "paused_schedules",
    "resumed_schedules",
    "fires",
];

/// The virtual time at which every relay begins, ms.
pub const START: u64 = 1_700_000_000_000;
/// The consumer that [`Relay::read`] reads as.
pub const WORKER: &str = "worker";
/// The time limit of a call: generous, since CI machines are small and busy.
const PATIENCE: Duration = Duration::from_mins(2);
/// The time that a read waits on an empty stream.
const BLOCK: Duration = Duration::from_millis(1);

/// A namespace with one declared topic, named `t`, of the group `default`.
pub struct Relay {
    broker: Broker,
    topic: Arc<TopicHandle>,
    connection: MultiplexedConnection,
    reader: Mutex<Option<Reader>>,
    now: std::sync::atomic::AtomicU64,
}

/// Settings for tests: one shard, three attempts, a retry after 1 s, 2 s, 4 s … without jitter. The lease is 1 s, the
/// shortest, so that young entries can be aged past it.
pub fn settings() -> TopicSettings {
    TopicSettings {
        lease: Duration::from_secs(1),
        max_attempts: 3,
        retry: RetryPolicy::Exponential {
            base: Duration::from_secs(1),
            factor: 2.0,
            max: Duration::from_secs(8),
            jitter: 0.0,
        },
        ..TopicSettings::default()
    }
}

/// Makes a message whose id is the caller's own; its payload names it.
pub fn message(id: &str, when: impl Into<When>) -> PreparedMessage {
    PreparedMessage {
        id: self::id(id),
        new_id: NewId::default(),
        when: when.into(),
        options: Options::default(),
        record: Record {
            caller_id: true,
            payload: format!("payload of {id}").into(),
            ..Record::default()
        },
        durability: Durability::Memory,
    }
}

/// Makes a message whose id the caller did not choose.
pub fn nameless(id: &str, when: impl Into<When>) -> PreparedMessage {
    let mut message = message(id, when);
    message.record.caller_id = false;
    message
}

/// Makes a message id.
pub fn id(id: &str) -> MessageId {
    id.parse().expect("a message id")
}

/// Makes a duration of this many ms.
pub const fn ms(ms: u64) -> Duration {
    Duration::from_millis(ms)
}

/// Makes the settlement of a delivery of a message with a caller's id and three attempts.
///
/// # Panics
/// Panics if the entry has no message.
pub fn settlement(read: &Read, verdict: Verdict) -> Settlement {
    Settlement {
        entry: read.attempt.entry,
        id: read.id.clone().expect("an entry with a message"),
        caller_id: true,
        max_attempts: 3,
        verdict,
    }
}

/// A failed attempt, to be retried after `delay`.
pub fn retry(delay: Duration) -> Verdict {
    Verdict::Retry {
        when: delay.into(),
        error: "it failed".to_owned(),
    }
}

/// Opens a connection to a server, for as long as the value or a clone lives.
pub async fn connection(server: &Server) -> Connection {
    let url = server.socket_url().parse().expect("a redis address");
    let connection = Connection::new(ConnectionSettings::new(url), &CancellationToken::new())
        .expect("a connection");
    connection.wait_up(PATIENCE).await.expect("redis answers");
    connection
}

impl Relay {
    /// Declares the topic on the shared server with [`settings`].
    pub async fn start(stem: &str) -> Self {
        Self::with(stem, settings()).await
    }

    /// Declares the topic on the shared server.
    pub async fn with(stem: &str, settings: TopicSettings) -> Self {
        let server = Server::shared();
        Self::on(server, &connection(server).await, stem, settings).await
    }

    /// Declares the topic on a server, over a connection to it.
    pub async fn on(
        server: &Server,
        connection: &Connection,
        stem: &str,
        settings: TopicSettings,
    ) -> Self {
        let namespace = server.namespace(stem).parse().expect("a namespace");
        let broker = Broker::new(connection.clone(), namespace, PATIENCE, None);
        broker.set_virtual_now(UnixMs::new(START));
        let topic = "t".parse().expect("a topic");
        let topic = broker.declare(&topic, &settings, Declare::Create).await;
        Self {
            broker,
            topic: topic.expect("declared"),
            connection: server.connection().await,
            reader: Mutex::default(),
            now: START.into(),
        }
    }

    /// The broker; its clock is the relay's.
    pub fn broker(&self) -> &Broker {
        &self.broker
    }

    /// The topic.
    pub fn topic(&self) -> &TopicHandle {
        &self.topic
    }

    /// The topic's only group.
    pub fn group(&self) -> &Group {
        &self.topic.groups()[0]
    }

    /// Takes another handle, after new settings.
    pub fn set_topic(&mut self, topic: Arc<TopicHandle>) {
        self.topic = topic;
    }

    /// The virtual time.
    pub fn now(&self) -> UnixMs {
        UnixMs::new(self.now.load(std::sync::atomic::Ordering::Relaxed))
    }

    /// The virtual time in `after` ms; negative for the past.
    pub fn at(&self, after: i64) -> UnixMs {
        UnixMs::new(self.now().get().saturating_add_signed(after))
    }

    /// Lets `by` ms pass; negative steps the clock back.
    pub fn step(&self, by: i64) {
        let now = self.at(by);
        self.now
            .store(now.get(), std::sync::atomic::Ordering::Relaxed);
        self.broker.set_virtual_now(now);
    }

    /// Runs a command on the harness's connection.
    ///
    /// # Panics
    /// Panics if Redis refuses.
    pub async fn command<T: FromRedisValue>(&self, cmd: &Cmd) -> T {
        let reply = cmd.query_async(&mut self.connection.clone()).await;
        reply.unwrap_or_else(|error| panic!("{cmd:?}: {error}"))
    }

    /// The full name of a key of shard 0: `waiting`, `retry:default`.
    pub fn key(&self, what: &str) -> String {
        format!("{}:{}", self.broker.namespace(), self.short_key(0, what))
    }

    /// The name of a key in a [`Snapshot`].
    pub fn short_key(&self, shard: u16, what: &str) -> String {
        format!("v1:{{{}:{shard}}}:{what}", self.topic.name())
    }

    /// Everything in the namespace.
    pub async fn snapshot(&self) -> Snapshot {
        let namespace = self.broker.namespace().as_str();
        let taken = Snapshot::take(&mut self.connection.clone(), namespace).await;
        taken.expect("a snapshot")
    }

    /// A sorted set of shard 0.
    pub async fn zset(&self, what: &str) -> BTreeMap<String, u64> {
        let members = self.snapshot().await.zset(&self.short_key(0, what));
        let whole = members
            .iter()
            .map(|(member, score)| (member.to_string(), *score as u64));
        whole.collect()
    }

    /// A hash of shard 0. Of a value with a NUL, only the text before it: the last attempts follow an error.
    pub async fn hash(&self, what: &str) -> BTreeMap<String, String> {
        let fields = self.snapshot().await.hash(&self.short_key(0, what));
        let texts = fields
            .iter()
            .map(|(field, value)| (field.to_string(), value.to_string()))
            .map(|(field, value)| match value.split_once("\\x00") {
                Some((text, _)) => (field, text.to_owned()),
                None => (field, value),
            });
        texts.collect()
    }

    /// The entries of shard 0: message id, attempt, due.
    pub async fn entries(&self) -> Vec<(String, u32, u64)> {
        let stream = self
            .snapshot()
            .await
            .stream(&self.short_key(0, "ready:default"));
        let read = |(_, fields): &(String, BTreeMap<_, crate::snapshot::Text>)| {
            let number = |name: &str| -> Option<u64> {
                let text = fields.get(name.as_bytes())?.to_string();
                Some(text.parse().expect("a number"))
            };
            let attempt = u32::try_from(number("a").unwrap_or(1)).expect("few attempts");
            let due = number("d").expect("a due time");
            (fields["i".as_bytes()].to_string(), attempt, due)
        };
        stream.entries.iter().map(read).collect()
    }

    /// Sends messages to shard 0.
    pub async fn send(&self, messages: &[PreparedMessage]) -> Vec<Accepted> {
        let mut all = Vec::with_capacity(messages.len());
        for messages in messages.chunks(MAX_SEND_BATCH) {
            let sent = self.broker.send(&self.topic, Shard::new(0), messages).await;
            all.extend(sent.expect("sent"));
        }
        all
    }

    /// Moves what is due on shard 0, at most `batch`; looks again after 60 s.
    pub async fn move_due(&self, batch: u16) -> Moved {
        let (shard, idle) = (Shard::new(0), Duration::from_secs(60));
        let moved = self.broker.move_due(&self.topic, shard, batch, idle).await;
        moved.expect("moved")
    }

    /// Reads up to `count` entries of shard 0 as [`WORKER`].
    pub async fn read(&self, count: usize) -> Vec<Read> {
        self.read_as(Shard::new(0), WORKER, count).await
    }

    /// Reads up to `count` entries of a shard as `consumer`.
    pub async fn read_as(&self, shard: Shard, consumer: &str, count: usize) -> Vec<Read> {
        let mut slot = self.reader.lock().await;
        let mut reader = match slot.take() {
            Some(reader) => reader,
            None => {
                let server = self.broker.server(&self.topic, shard);
                let reader = server.expect("a shard of the topic").reader().await;
                reader.expect("a reader")
            }
        };
        let (topic, group) = (&self.topic, self.group());
        let read = self
            .broker
            .read(&mut reader, topic, shard, group, consumer, count, BLOCK)
            .await;
        *slot = Some(reader);
        read.expect("read")
    }

    /// Sends a message that is due now, and reads it.
    pub async fn hold(&self, id: &str) -> Read {
        self.send(&[message(id, When::NOW)]).await;
        self.read_one().await
    }

    /// Reads exactly one entry.
    ///
    /// # Panics
    /// Panics if none is ready.
    pub async fn read_one(&self) -> Read {
        self.read(1).await.pop().expect("a ready message")
    }

    /// Settles one delivery.
    pub async fn settle(&self, read: &Read, verdict: Verdict) -> Settled {
        self.settle_all(&[settlement(read, verdict)]).await[0]
    }

    /// Settles deliveries of shard 0.
    pub async fn settle_all(&self, settlements: &[Settlement]) -> Vec<Settled> {
        let shard = Shard::new(0);
        let settled = self
            .broker
            .settle(&self.topic, shard, self.group(), settlements)
            .await;
        settled.expect("settled")
    }

    /// Rejects a message that is due now, so that it is in garbage.
    pub async fn put_in_garbage(&self, id: &str) {
        let read = self.hold(id).await;
        let error = "no good".to_owned();
        assert_eq!(
            self.settle(&read, Verdict::Reject { error }).await,
            Settled::Garbage
        );
    }

    /// Makes a delivery of shard 0 that `consumer` holds look untouched for `idle`. Then waits until the connection's
    /// clock is past its entry, which is when a reclaim examines it.
    pub async fn age(&self, entry: EntryId, consumer: &str, idle: Duration) {
        self.set_idle(entry, consumer, idle).await;
        self.clock_past(entry).await;
    }

    /// Makes a delivery of shard 0 that `consumer` holds look untouched for `idle`.
    pub async fn set_idle(&self, entry: EntryId, consumer: &str, idle: Duration) {
        let mut claim = cmd("XCLAIM");
        claim.arg(self.key("ready:default")).arg("default");
        claim.arg(consumer).arg(0).arg(entry.to_string());
        claim.arg("IDLE").arg(idle.as_millis() as u64).arg("JUSTID");
        let claimed: Vec<String> = self.command(&claim).await;
        assert_eq!(claimed, [entry.to_string()]);
    }

    /// Waits until the connection's clock is past an entry.
    pub async fn clock_past(&self, entry: EntryId) {
        let clock = self.broker.connection().clock();
        let late = async || match clock.now_ms() {
            now if now > entry.ms() => Ok(()),
            now => Err(format!("the clock of the connection says {now}")),
        };
        eventually(PATIENCE, late).await;
    }

    /// Reclaims on shard 0.
    pub async fn reclaim(&self) -> ReclaimReport {
        let shard = Shard::new(0);
        let reclaimed = self
            .broker
            .reclaim(&self.topic, shard, self.group(), true)
            .await;
        reclaimed.expect("reclaimed")
    }

    /// Counts the topic's messages.
    pub async fn stats(&self) -> TopicStats {
        self.broker.stats(&self.topic).await.expect("stats")
    }

    /// Removes a payload of shard 0, as only damage can.
    pub async fn lose_payload(&self, id: &str) {
        let removed: u32 = self
            .command(cmd("HDEL").arg(self.key("payload")).arg(id))
            .await;
        assert_eq!(removed, 1);
    }

    /// Puts a string where each of `keys` of shard 0 should be, one after the other. Asserts that `call`, a call of
    /// `script`, is refused for it with nothing written.
    ///
    /// # Panics
    /// Panics if it is not refused, or for another reason.
    pub async fn assert_wrong_types_are_refused_whole<T: Debug>(
        &self,
        script: &str,
        keys: &[&str],
        call: impl AsyncFn() -> Result<T, BrokerError>,
    ) {
        for what in keys {
            let refused = format!("{script}, a string in place of {what}");
            let (key, aside) = (self.key(what), self.key(&format!("{what}:aside")));
            let exists: bool = self.command(cmd("EXISTS").arg(&key)).await;
            if exists {
                let () = self.command(cmd("RENAME").arg(&key).arg(&aside)).await;
            }
            let () = self.command(cmd("SET").arg(&key).arg("in the way")).await;
            let before = self.snapshot().await;
            match call().await {
                Err(BrokerError::Connection(error))
                    if error.kind == ConnectionErrorKind::WrongType => {}
                other => panic!("{refused}: {other:?}"),
            }
            let written = before.diff(&self.snapshot().await);
            assert_eq!(written, "", "{refused}");
            let () = self.command(cmd("DEL").arg(&key)).await;
            if exists {
                let () = self.command(cmd("RENAME").arg(&aside).arg(&key)).await;
            }
        }
    }

    /// Asserts that both sums hold.
    ///
    /// # Panics
    /// Panics if they do not hold, with the counts.
    pub async fn assert_conserved(&self) {
        let stats = self.stats().await;
        assert_eq!(stats.conservation_error, 0, "{stats:#?}");
        assert_eq!(stats.missing_records(), 0, "{stats:#?}");
    }

    /// Asserts that nothing is left of any message but its tombstone.
    ///
    /// # Panics
    /// Panics if something is left, with the keyspace; or if a sum does not hold.
    pub async fn assert_drained(&self) {
        self.assert_conserved().await;
        let snapshot = self.snapshot().await;
        for (key, content) in snapshot.iter() {
            let what = key.rsplit_once("}:").map_or(key, |(_, what)| what);
            let allowed = match content {
                Content::Stream(_) if matches!(what, "series" | "series15" | "failures") => true,
                Content::Stream(stream) => {
                    stream.entries.is_empty()
                        && stream.groups.values().all(|g| g.pending.is_empty())
                }
                _ => {
                    matches!(
                        what,
                        "conf"
                            | "stats"
                            | "tomb"
                            | "into"
                            | "observed"
                            | "purged"
                            | "topics"
                            | "managers"
                            | "snapshot"
                    ) || OF_SCHEDULES.contains(&what)
                }
            };
            assert!(allowed, "{key} is left:\n{snapshot}");
        }
    }
}
