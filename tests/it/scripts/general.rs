//! The rules for every general script: a repeat changes nothing, and a topic that is general for no reason behaves like
//! a plain one.

use super::calls::{CASES, FREE, Verb, second_answers, two_groups};
use super::stage::{Stage, defer, reject};
use lisa_core::broker::{BrokerError, Verdict};
use lisa_tests::relay::{message, ms, retry, settlement};
use redis::cmd;

#[tokio::test]
async fn every_script_can_be_called_again_when_its_answer_was_lost() {
    let second = second_answers();
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
                if !FREE.contains(&case.what) {
                    assert_eq!(again, expected, "{}", case.what);
                }
            }
        }
        let written = before.diff(&busy.stage.snapshot().await);
        let duplicate = "+ v1:{t:0}:stats  duplicates = 1\n";
        // A repeat of a merged send names the same survivor, and is counted as a repeat.
        let is_repeated =
            second.get(case.what) == Some(&"duplicate") || matches!(case.call, Verb::SendMerged);
        let expected = if is_repeated { duplicate } else { "" };
        assert_eq!(written, expected, "{}", case.what);
    }
}

/// Two topics that get the same calls, one plain, one that is marked general and uses none of its features.
struct Twins([Stage; 2]);

impl Twins {
    async fn start() -> Self {
        let plain = Stage::of(&["a"]).await;
        let general = Stage::of(&["a"]).await;
        let mut set = cmd("HSET");
        set.arg(general.key("conf"))
            .arg(&["class", "general", "features", "1"]);
        let _: u64 = general.command(&set).await;
        Self([plain, general])
    }

    /// Makes a call on both, asserts that the answers and then all states and counters are alike.
    async fn both<T: PartialEq + std::fmt::Debug>(&self, call: impl AsyncFn(&Stage) -> T) -> T {
        let [plain, general] = &self.0;
        let (answer, other) = (call(plain).await, call(general).await);
        assert_eq!(answer, other);
        assert_eq!(plain.states().await, general.states().await);
        let counts = async |stage: &Stage| {
            let mut stats = stage.hash("stats").await;
            // A send to a general topic wakes the mover, which then looks; the other needs none.
            stats.retain(|name, _| !matches!(name.as_str(), "alarm"));
            stats
        };
        assert_eq!(counts(plain).await, counts(general).await);
        assert_eq!(plain.hash("payload").await, general.hash("payload").await);
        assert_eq!(plain.conf("class").await.unwrap(), "plain");
        assert_eq!(general.conf("class").await.unwrap(), "general");
        general.assert_whole().await;
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
    twins.both(async |s| s.moved().await.0).await;
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
