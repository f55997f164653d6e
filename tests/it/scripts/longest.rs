//! The time that a call of a general script keeps Redis busy: never long, whatever features the topic uses.

use super::stage::{Asking, SHARD, Stage, groups, reject};
use lisa_core::broker::{Examination, Removed, Retired, Retirement, Verdict};
use lisa_core::message::{MessageId, PreparedMessage};
use lisa_core::time::UnixMs;
use lisa_core::topic::{OnLate, Size, TopicSettings};
use lisa_tests::relay::{id, message, ms, retry, settlement};
use lisa_tests::{Relay, Server, yardstick};
use redis::cmd;
use std::collections::BTreeMap;
use std::time::Duration;

/// The longest time that one call may keep Redis busy, in µs; in proportion where the machine is slower than intended.
const LONGEST: u64 = 2000;
/// The number of repetitions before a call counts as long: others use the machine, too.
const ROUNDS: usize = 20;

/// The duration of each call in µs, by operation, in order.
type Calls = BTreeMap<&'static str, Vec<u64>>;

/// A life of messages on a server whose calls are timed.
struct Timed {
    stage: Stage,
    calls: Calls,
    server: Server,
    /// The running time of the server at the last call.
    ran: Option<Duration>,
}

/// Returns the running time of the server's main thread, where the system reports it.
fn ran(server: &Server) -> Option<Duration> {
    let pid = server.pid()?;
    let stat = std::fs::read_to_string(format!("/proc/{pid}/task/{pid}/schedstat")).ok()?;
    let nanos = stat.split(' ').next()?.parse().ok()?;
    Some(Duration::from_nanos(nanos))
}

impl Timed {
    async fn start(settings: TopicSettings) -> Self {
        let server = Server::start();
        let connection = lisa_tests::relay::connection(&server).await;
        let stage = Stage::on(Relay::on(&server, &connection, "longest", settings).await);
        for (name, value) in [
            ("slowlog-log-slower-than", "0"),
            ("slowlog-max-len", "9999"),
        ] {
            let () = stage
                .command(cmd("CONFIG").arg(&["SET", name, value]))
                .await;
        }
        Self {
            stage,
            calls: Calls::new(),
            ran: ran(&server),
            server,
        }
    }

    /// Records the script calls since the last call. Time in which others ran in the server's place belongs to no call:
    /// as it may have been any call's, it is subtracted from each.
    async fn look(&mut self, what: &'static str) {
        let since = self
            .ran
            .zip(ran(&self.server))
            .map(|(last, now)| now - last);
        type Call = (u64, u64, u64, Vec<Vec<u8>>, String, String);
        let log: Vec<Call> = self.stage.command(cmd("SLOWLOG").arg(&["GET", "-1"])).await;
        let () = self.stage.command(cmd("SLOWLOG").arg("RESET")).await;
        // An EVAL compiles its script, once in the life of a server.
        let calls = log.iter().rev().filter(|call| call.3[0] == b"EVALSHA");
        let took: Vec<u64> = calls.map(|call| call.2).collect();
        let ran_for = since.map_or(u64::MAX, |time| time.as_micros() as u64);
        let others = took.iter().sum::<u64>().saturating_sub(ran_for);
        let own = took.iter().map(|took| took.saturating_sub(others));
        self.calls.entry(what).or_default().extend(own);
        self.ran = ran(&self.server);
    }

    async fn moved(&mut self, times: usize) {
        for _ in 0..times {
            self.stage.moved().await;
        }
        self.look("move_due").await;
    }

    /// Reads the ready messages of a group, and settles all of them in the same way; returns their number.
    async fn settle(&mut self, group: &str, verdict: Verdict) -> usize {
        let what = match verdict {
            Verdict::Ack => "ack",
            _ => "settle",
        };
        let reads = self.stage.take(group, 200).await;
        let settlements: Vec<_> = reads
            .iter()
            .map(|read| settlement(read, verdict.clone()))
            .collect();
        self.stage.end_all(group, &settlements).await;
        self.look(what).await;
        reads.len()
    }

    /// Examines the topic; the number of pages depends on chance, so only the longest call is recorded.
    async fn doctor(&mut self) {
        let how = Examination::of(self.stage.topic(), false);
        let checkup = self.stage.broker().examine(self.stage.topic(), how).await;
        assert_eq!(checkup.unwrap().findings, []);
        self.look("doctor").await;
        let calls = self.calls.entry("doctor").or_default();
        *calls = calls.iter().copied().max().into_iter().collect();
    }

    /// Returns the contents of a group's garbage.
    async fn garbage(&self, group: &str) -> Vec<(MessageId, UnixMs)> {
        let mut range = cmd("ZRANGE");
        range.arg(self.stage.key(&format!("garbage:{group}")));
        range.arg(0).arg(-1).arg("WITHSCORES");
        let found: Vec<(String, u64)> = self.stage.command(&range).await;
        let seen = found.iter();
        seen.map(|(name, at)| (id(name), UnixMs::new(*at)))
            .collect()
    }

    /// Sends 200 messages, merges and replaces as many, and lets every possible event happen to them.
    async fn run(mut self, ask: Ask) -> (f64, Calls) {
        let batch = |prefix: &str| -> Vec<_> {
            let names = (0..200).map(|n| (n, format!("{prefix}{n:03}")));
            names.map(|(n, name)| ask(n, &name)).collect()
        };
        let slowness = yardstick::slowness(&self.stage).await;
        self.stage.send(&batch("m")).await;
        self.moved(5).await;
        self.stage.send(&batch("n")).await;
        self.moved(5).await;
        let replacing = batch("r").into_iter().enumerate();
        let replacing = replacing.map(|(n, m)| m.replacing(&format!("n{n:03}")));
        self.stage.send(&replacing.collect::<Vec<_>>()).await;
        self.look("send").await;
        self.moved(5).await;

        let broker = self.stage.broker().clone();
        let topic = broker.topic(self.stage.topic().name()).await.unwrap();
        let (first, last) = (&topic.groups()[0], topic.groups().last().unwrap());
        let group = first.as_str();
        self.settle(group, retry(ms(0))).await;
        self.moved(2).await;
        self.settle(group, reject()).await;
        let seen = self.garbage(group).await;
        broker.requeue(&topic, first, &seen).await.unwrap();
        self.look("requeue").await;
        self.moved(2).await;
        self.settle(group, reject()).await;
        let seen = self.garbage(group).await;
        broker.purge(&topic, first, &seen).await.unwrap();
        self.look("purge").await;
        self.doctor().await;
        let held = self.stage.take(group, 100).await;
        self.stage.forget_all(group, &held).await;
        broker.reclaim(&topic, SHARD, first, true).await.unwrap();
        self.look("reclaim").await;
        let how = Some(Retirement::Drop);
        if first != last {
            let retired = broker.retire(&topic, last, how).await.unwrap();
            assert_eq!(retired, Retired::Done);
            let remove = async || broker.remove_group(&topic, SHARD, last).await.unwrap();
            while let Removed::More { .. } = remove().await {}
            self.look("remove_group").await;
            self.stage.refresh().await;
        }
        for _ in 0..10 {
            self.stage.step(1000);
            self.moved(1).await;
            if self.settle(group, Verdict::Ack).await == 0 {
                break;
            }
        }
        broker.clean(&topic, SHARD, first, None).await.unwrap();
        self.look("clean").await;
        let (mut ended, mut into) = (cmd("ZADD"), cmd("HSET"));
        ended.arg(self.stage.key("tomb"));
        into.arg(self.stage.key("into"));
        for n in 0..1000 {
            let id = format!("{n:064}");
            ended.arg(n).arg(&id);
            into.arg(&id).arg(&id);
        }
        let () = self.stage.command(&ended).await;
        let () = self.stage.command(&into).await;
        broker.forget(&topic, SHARD).await.unwrap();
        self.look("forget").await;
        self.stage.assert_conserved().await;
        (slowness, self.calls)
    }
}

type Ask = fn(usize, &str) -> PreparedMessage;

async fn assert_no_long_call(settings: TopicSettings, ask: Ask) {
    let mut least = Calls::new();
    let mut longest = BTreeMap::new();
    let mut slowness = f64::MAX;
    for _ in 0..ROUNDS {
        let (slow, calls) = Timed::start(settings.clone()).await.run(ask).await;
        slowness = slowness.min(slow);
        for (what, calls) in calls {
            let slots = least.entry(what).or_insert_with(|| calls.clone());
            assert_eq!(slots.len(), calls.len(), "{what}");
            for (slot, took) in slots.iter_mut().zip(calls) {
                *slot = took.min(*slot);
            }
            longest.insert(what, slots.iter().copied().max().unwrap_or(0));
        }
        let limit = (LONGEST as f64 * slowness) as u64;
        if longest.values().all(|took| *took < limit) {
            return;
        }
    }
    panic!("{longest:?} µs, on a machine that is {slowness:.1} times slower than meant");
}

fn due(name: &str) -> PreparedMessage {
    message(name, ms(0))
}

#[tokio::test]
async fn no_call_for_two_groups_is_long() {
    assert_no_long_call(groups(&["a", "b"]), |_, name| due(name)).await;
}

#[tokio::test]
async fn no_call_for_many_groups_is_long() {
    assert_no_long_call(groups(&["a", "b", "c", "d", "e"]), |_, name| due(name)).await;
}

#[tokio::test]
async fn no_call_for_messages_with_keys_is_long() {
    assert_no_long_call(groups(&["a"]), |n, name| {
        due(name).key(&format!("k{}", n % 100))
    })
    .await;
    assert_no_long_call(groups(&["a"]), |_, name| due(name).key("k")).await;
}

#[tokio::test]
async fn no_call_for_messages_with_priorities_is_long() {
    assert_no_long_call(groups(&["a"]), |n, name| due(name).priority(n as i32 % 5)).await;
}

#[tokio::test]
async fn no_call_for_messages_that_are_merged_is_long() {
    let ask: Ask = |n, name| due(name).merge(&format!("x{n}"));
    assert_no_long_call(groups(&["a"]), ask).await;
}

#[tokio::test]
async fn no_call_for_messages_that_lapse_is_long() {
    let ask: Ask = |n, name| due(name).ttl(if n % 2 == 0 { 1 } else { 9000 });
    assert_no_long_call(groups(&["a", "b"]), ask).await;
}

#[tokio::test]
async fn no_call_is_long_that_does_everything_at_once() {
    let settings = TopicSettings {
        max_ready: Some(100),
        max_messages: Some(100_000),
        max_bytes: Some(Size::new(100_000_000)),
        rate: Some("100000/s".parse().unwrap()),
        burst: Some(10_000),
        max_lateness: Some(ms(3_600_000)),
        on_late: OnLate::Garbage,
        ..groups(&["a", "b"])
    };
    let ask: Ask = |n, name| {
        let one = due(name).key(&format!("k{}", n % 50)).ttl(3_600_000);
        one.merge(&format!("x{n}")).priority(n as i32 % 7)
    };
    assert_no_long_call(settings, ask).await;
}
