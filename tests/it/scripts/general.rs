//! What holds for every general script alike: a wrong type is refused whole, a repeat changes nothing, and a topic that
//! is full for no reason does as a plain one.

use super::stage::{Asking, SHARD, Stage, defer, groups, name, reject};
use lisa_shared::broker::{Broker, BrokerError, Retirement, Settlement, Verdict};
use lisa_shared::message::MessageId;
use lisa_shared::time::{UnixMs, When};
use lisa_shared::topic::{Group, TopicSettings};
use lisa_tests::relay::{START, id, message, ms, retry, settlement};
use redis::cmd;
use std::collections::BTreeMap;

/// All keys of a shard that every general script looks at.
const OF_SHARD: [&str; 8] = [
    "conf", "stats", "waiting", "payload", "meta", "merge", "left", "tomb",
];
/// All keys of a group.
const OF_GROUP: [&str; 9] = [
    "ready", "retry", "attempts", "backlog", "lane", "holder", "garbage", "dead", "notices",
];

fn keys(groups: &[&str]) -> Vec<String> {
    let of_groups = groups
        .iter()
        .flat_map(|group| OF_GROUP.map(|key| format!("{key}:{group}")));
    let of_shard = OF_SHARD.iter().map(|key| (*key).to_owned());
    of_shard.chain(of_groups).collect()
}

/// The messages of a [`busy`] topic by their place: what each call below is about.
struct Busy {
    stage: Stage,
    /// Held by a consumer of a, the holder of key `k`, with another behind it.
    held: Settlement,
    /// Those who ask for a message in garbage of a.
    seen: [(MessageId, UnixMs); 1],
}

/// A topic of two groups with something in every place, so that each call has something to do.
async fn busy(other: TopicSettings) -> Busy {
    let stage = Stage::with(TopicSettings {
        max_ready: Some(3),
        max_bytes: Some(1_000_000),
        dedup_window: ms(0),
        ..other
    })
    .await;
    stage
        .put(&[message("dead", ms(0)), message("again", ms(0)).ttl(90_000)])
        .await;
    stage.run("a", "dead", reject()).await;
    stage.run("a", "again", retry(ms(20))).await;
    stage.send(&[message("gone", ms(9))]).await;
    stage.cancel("gone").await;
    stage
        .put(&["holder", "parked"].map(|name| message(name, ms(0)).key("k")))
        .await;
    let held = stage.begin("a", "holder").await;
    stage.forget("a", &held).await;
    stage
        .put(&["r1", "r2", "gated"].map(|name| message(name, ms(1)).merge(name)))
        .await;
    stage
        .send(&[
            message("due", ms(10)).key("k").priority(2),
            message("waits", ms(50_000)).merge("x"),
        ])
        .await;
    stage.pass(5).await;
    stage.step(20);
    Busy {
        stage,
        held: settlement(&held, Verdict::Ack),
        seen: [(id("dead"), UnixMs::new(START))],
    }
}

async fn two_groups() -> Busy {
    busy(groups(&["a", "b"])).await
}

/// A call of a general script, and whose groups' keys it looks at.
struct Case {
    what: &'static str,
    groups: &'static [&'static str],
    call: Verb,
}

#[derive(Clone, Copy, Debug)]
enum Verb {
    Send,
    SendMerged,
    SendReplacing,
    MoveDue,
    Ack,
    Retry,
    Defer,
    Reject,
    Expired,
    Lost,
    Reclaim,
    Cancel,
    CancelWaiting,
    Reschedule,
    Requeue,
    Purge,
    Clean,
    PauseTopic,
    PauseGroup,
    Retire,
    RemoveGroup,
    Lookup,
    Stats,
}

const BOTH: &[&str] = &["a", "b"];
const ONE: &[&str] = &["a"];
const NONE: &[&str] = &[];

const CASES: [Case; 23] = [
    case("send", NONE, Verb::Send),
    case("a send that is merged", BOTH, Verb::SendMerged),
    case("a send that replaces", BOTH, Verb::SendReplacing),
    case("move_due", BOTH, Verb::MoveDue),
    case("ack", ONE, Verb::Ack),
    case("settle with retry", ONE, Verb::Retry),
    case("settle with defer", ONE, Verb::Defer),
    case("settle with reject", ONE, Verb::Reject),
    case("settle with expired", ONE, Verb::Expired),
    case("settle with lost", ONE, Verb::Lost),
    case("reclaim", ONE, Verb::Reclaim),
    case("cancel", BOTH, Verb::Cancel),
    case("cancel of a waiting message", BOTH, Verb::CancelWaiting),
    case("reschedule", BOTH, Verb::Reschedule),
    case("requeue", ONE, Verb::Requeue),
    case("purge", ONE, Verb::Purge),
    case("clean", BOTH, Verb::Clean),
    case("pause of the topic", NONE, Verb::PauseTopic),
    case("pause of a group", NONE, Verb::PauseGroup),
    case("retire", NONE, Verb::Retire),
    case("remove_group", ONE, Verb::RemoveGroup),
    case("lookup", BOTH, Verb::Lookup),
    case("stats", BOTH, Verb::Stats),
];

const fn case(what: &'static str, groups: &'static [&'static str], call: Verb) -> Case {
    Case { what, groups, call }
}

impl Verb {
    /// What must be so before the call.
    async fn prepare(self, busy: &Busy) {
        if let Self::RemoveGroup = self {
            let (broker, topic) = (busy.stage.broker(), busy.stage.topic());
            let drop = Some(Retirement::Drop);
            broker.retire(topic, &name("a"), drop).await.unwrap();
        }
    }

    /// Makes the call; gives the outcome as text.
    async fn call(self, busy: &Busy) -> Result<String, BrokerError> {
        let (broker, topic): (&Broker, _) = (busy.stage.broker(), busy.stage.topic());
        let a: &Group = &name("a");
        let send = async |message| {
            let sent = broker.send(topic, SHARD, &[message]).await?;
            Ok(sent[0].outcome.to_string())
        };
        let settle = async |verdict| {
            let settlement = Settlement {
                verdict,
                ..busy.held.clone()
            };
            let settled = broker.settle(topic, SHARD, a, &[settlement]).await?;
            Ok(settled[0].as_str().to_owned())
        };
        match self {
            Self::Send => send(message("new", ms(9)).key("k").ttl(5)).await,
            Self::SendMerged => send(message("new", ms(9)).merge("x")).await,
            Self::SendReplacing => send(message("new", ms(9)).replacing("waits")).await,
            Self::MoveDue => {
                let moved = broker.move_due(topic, SHARD, 200, ms(60_000)).await?;
                Ok(format!("{moved:?}"))
            }
            Self::Ack => settle(Verdict::Ack).await,
            Self::Retry => settle(retry(ms(5))).await,
            Self::Defer => settle(defer(5)).await,
            Self::Reject => settle(reject()).await,
            Self::Expired => settle(Verdict::Expired).await,
            Self::Lost => settle(Verdict::Lost).await,
            Self::Reclaim => Ok(format!(
                "{:?}",
                broker.reclaim(topic, SHARD, a, true).await?
            )),
            Self::Cancel => cancel(broker.cancel(topic, &id("gated"), None).await?),
            Self::CancelWaiting => cancel(broker.cancel(topic, &id("waits"), None).await?),
            Self::Reschedule => {
                let when = When::At(UnixMs::new(START + 70_000));
                Ok(format!(
                    "{:?}",
                    broker.reschedule(topic, &id("gated"), None, when).await?
                ))
            }
            Self::Requeue => Ok(broker.requeue(topic, a, &busy.seen).await?.to_string()),
            Self::Purge => Ok(broker.purge(topic, a, &busy.seen).await?.to_string()),
            Self::Clean => Ok(format!("{:?}", broker.clean(topic, SHARD, a, None).await?)),
            Self::PauseTopic => Ok(broker.pause(topic, true).await?.to_string()),
            Self::PauseGroup => Ok(broker.pause_group(topic, a, true).await?.to_string()),
            Self::Retire => {
                let how = Some(Retirement::Drain);
                Ok(format!("{:?}", broker.retire(topic, a, how).await?))
            }
            Self::RemoveGroup => Ok(format!("{:?}", broker.remove_group(topic, SHARD, a).await?)),
            Self::Lookup => Ok(format!(
                "{:?}",
                broker.lookup(topic, &id("gated"), None).await?
            )),
            Self::Stats => Ok(format!("{:?}", broker.stats(topic).await?)),
        }
    }
}

#[expect(clippy::unnecessary_wraps, reason = "as the other arms")]
fn cancel(outcome: lisa_shared::state::CancelOutcome) -> Result<String, BrokerError> {
    let text = format!("{outcome:?}");
    let end = text.find([' ', '{']).unwrap_or(text.len());
    Ok(text[..end].to_owned())
}

#[tokio::test]
async fn a_wrong_type_anywhere_is_refused_whole_by_every_script() {
    for case in CASES {
        let busy = two_groups().await;
        case.call.prepare(&busy).await;
        let keys = keys(case.groups);
        let keys: Vec<&str> = keys.iter().map(String::as_str).collect();
        busy.stage
            .assert_wrong_types_are_refused_whole(&keys, async || case.call.call(&busy).await)
            .await;
        // Nothing was harmed: the same call does its work now, or the test would prove nothing.
        let before = busy.stage.snapshot().await;
        let outcome = case.call.call(&busy).await.unwrap();
        let changed = before != busy.stage.snapshot().await;
        let reads = matches!(case.call, Verb::Lookup | Verb::Stats);
        assert_eq!(changed, !reads, "{}: {outcome}", case.what);
    }
}

#[tokio::test]
async fn a_declaration_or_a_join_onto_a_wrong_type_changes_nothing() {
    let busy = two_groups().await;
    let (broker, topic) = (busy.stage.broker(), busy.stage.topic());
    let other = groups(&["a", "b", "c"]);
    let declare = async || {
        let update = lisa_shared::broker::Declare::Update;
        broker.declare(topic.name(), &other, update).await
    };
    let stage = &busy.stage;
    stage
        .assert_wrong_types_are_refused_whole(&["conf", "ready:a"], declare)
        .await;
    let join = async || broker.join(topic, &name("instance-1")).await;
    stage
        .assert_wrong_types_are_refused_whole(&["conf", "ready:instance-1"], join)
        .await;
    stage.assert_whole().await;
}

#[tokio::test]
async fn every_script_can_be_called_again_when_its_answer_was_lost() {
    // What the second call answers, where it is not what the first one did.
    let second: BTreeMap<&str, &str> = [
        ("send", "duplicate"),
        ("a send that is merged", "duplicate"),
        ("a send that replaces", "duplicate"),
        ("ack", "stale"),
        ("settle with retry", "stale"),
        ("settle with defer", "stale"),
        ("settle with reject", "stale"),
        ("settle with expired", "stale"),
        ("settle with lost", "stale"),
        ("requeue", "0"),
        ("purge", "0"),
        ("pause of the topic", "false"),
        ("pause of a group", "false"),
        ("retire", "Same"),
    ]
    .into();
    let free = ["move_due", "reclaim", "clean", "remove_group"];
    for case in CASES {
        let busy = two_groups().await;
        case.call.prepare(&busy).await;
        let first = case.call.call(&busy).await.unwrap();
        let before = busy.stage.snapshot().await;
        match case.call.call(&busy).await {
            // The group is gone.
            Err(BrokerError::UnknownGroup { .. }) if matches!(case.call, Verb::RemoveGroup) => {}
            again => {
                let again = again.unwrap();
                let expected = second.get(case.what).copied().unwrap_or(&first);
                if !free.contains(&case.what) {
                    assert_eq!(again, expected, "{}", case.what);
                }
            }
        }
        let written = before.diff(&busy.stage.snapshot().await);
        let duplicate = "+ v1:{t:0}:stats  duplicates = 1\n";
        let expected = if second.get(case.what) == Some(&"duplicate") {
            duplicate
        } else {
            ""
        };
        assert_eq!(written, expected, "{}", case.what);
    }
}

/// Two topics that get the same calls, one plain, one that says it is full and uses nothing of it.
struct Twins([Stage; 2]);

impl Twins {
    async fn start() -> Self {
        let plain = Stage::of(&["a"]).await;
        let full = Stage::of(&["a"]).await;
        let mut set = cmd("HSET");
        set.arg(full.key("conf"))
            .arg(&["class", "full", "features", "1"]);
        let _: u64 = full.command(&set).await;
        Self([plain, full])
    }

    /// Makes a call on both, asserts that the answers and then all places and counters are alike.
    async fn both<T: PartialEq + std::fmt::Debug>(&self, call: impl AsyncFn(&Stage) -> T) -> T {
        let [plain, full] = &self.0;
        let (answer, other) = (call(plain).await, call(full).await);
        assert_eq!(answer, other);
        assert_eq!(plain.places().await, full.places().await);
        let counts = async |stage: &Stage| {
            let mut stats = stage.hash("stats").await;
            // A send to a full topic wakes the mover, which then looks; the other needs none.
            stats.retain(|name, _| !matches!(name.as_str(), "alarm"));
            stats
        };
        assert_eq!(counts(plain).await, counts(full).await);
        assert_eq!(plain.hash("payload").await, full.hash("payload").await);
        assert_eq!(plain.conf("class").await.unwrap(), "plain");
        assert_eq!(full.conf("class").await.unwrap(), "full");
        full.assert_whole().await;
        answer
    }

    /// Sends to both, and moves what is due: only a plain topic puts that straight on the stream.
    async fn send(&self, names: &[(&str, u64)]) {
        let batch: Vec<_> = names
            .iter()
            .map(|(n, after)| message(n, ms(*after)))
            .collect();
        self.both(async |stage| {
            let sent = stage.sent(&batch).await;
            stage.moved().await;
            let sent = sent.iter().map(|line| line.replace("ready ", "waiting "));
            sent.collect::<Vec<_>>()
        })
        .await;
    }

    fn step(&self, by: i64) {
        for stage in &self.0 {
            stage.step(by);
        }
    }
}

#[tokio::test]
async fn a_topic_that_is_full_for_no_reason_does_as_a_plain_one() {
    let twins = Twins::start().await;
    twins
        .send(&[("m1", 0), ("m2", 0), ("m3", 5), ("m4", 5), ("m0", 3)])
        .await;
    twins
        .both(async |s| s.run("a", "m1", Verdict::Ack).await)
        .await;
    twins
        .both(async |s| s.run("a", "m2", retry(ms(7))).await)
        .await;
    twins.step(8);
    for _ in 0..3 {
        twins.both(async |s| s.move_due(2).await).await;
    }
    twins.both(async |s| s.ready("a").await).await;
    twins.both(async |s| s.run("a", "m0", reject()).await).await;
    twins.both(async |s| s.run("a", "m3", defer(2)).await).await;
    twins
        .both(async |s| s.run("a", "m4", Verdict::Lost).await)
        .await;
    twins
        .both(async |s| s.run("a", "m2", retry(ms(30))).await)
        .await;
    for name in ["m0", "m1", "m2", "m3", "never"] {
        twins.both(async |s| s.reschedule(name, ms(11)).await).await;
    }
    twins.both(async |s| s.cancel("m3").await).await;
    twins.both(async |s| s.cancel("m3").await).await;
    twins.both(async |s| s.requeue("a", "m0", 8).await).await;
    twins
        .send(&[("m5", 20), ("m5b", 0), ("m3", 1), ("m1", 1)])
        .await;
    twins.step(11);
    twins.both(async |s| s.moved().await.0).await;
    twins
        .both(async |s| {
            let held: Vec<_> = s.take("a", 50).await;
            let acks: Vec<_> = held
                .iter()
                .map(|read| settlement(read, Verdict::Ack))
                .collect();
            let first = s.end_all("a", &acks[..2]).await;
            (first, s.end_all("a", &acks).await)
        })
        .await;
    twins
        .both(async |s| s.broker().pause(s.topic(), true).await.unwrap())
        .await;
    twins
        .both(async |s| s.sent(&[message("m6", ms(0))]).await)
        .await;
    twins.step(30);
    twins.both(async |s| s.move_due(200).await).await;
    twins
        .both(async |s| s.broker().pause(s.topic(), false).await.unwrap())
        .await;
    twins.both(async |s| s.moved().await.0).await;
    twins.both(async |s| s.drain("a").await).await;
    for stage in &twins.0 {
        stage.assert_nothing_is_left().await;
    }
}
