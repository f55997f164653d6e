//! One call with many messages does the same as one call per message, whatever the options of the messages.

use super::stage::{Asking, Stage, groups, name};
use fastrand::Rng;
use lisa_core::broker::Verdict;
use lisa_core::message::PreparedMessage;
use lisa_core::topic::{OnExpired, Size, TopicSettings};
use lisa_tests::relay::{id, message, ms, settlement};
use lisa_tests::snapshot::Content;
use redis::cmd;
use std::collections::BTreeMap;

const RUNS: u64 = 12;
const STEPS: usize = 24;

/// Returns the contents of all keys of the shard but its settings, without the ids of stream entries and the time at which
/// the mover looks again.
async fn contents(stage: &Stage) -> BTreeMap<String, String> {
    let (snapshot, prefix) = (stage.snapshot().await, stage.short_key(0, ""));
    let mut all = BTreeMap::new();
    for (key, content) in snapshot.iter() {
        let text = match key.strip_prefix(&prefix) {
            None | Some("conf") => continue,
            Some("stats") => {
                let mut stats = stage.hash("stats").await;
                stats.remove("alarm");
                format!("{stats:?}")
            }
            Some(_) => match content {
                Content::Stream(stream) => {
                    let entries = stream.entries.iter().map(|(_, fields)| fields);
                    format!("{:?}", entries.collect::<Vec<_>>())
                }
                content => format!("{content:?}"),
            },
        };
        all.insert(key.trim_start_matches(&prefix).to_owned(), text);
    }
    all
}

/// Two topics of the same settings: one handles each message alone, the other all of them together.
struct Pair {
    alone: Stage,
    together: Stage,
    groups: Vec<&'static str>,
    named: usize,
}

impl Pair {
    async fn with(rng: &mut Rng) -> Self {
        let all = ["a", "b", "c"];
        let groups_here = all[..rng.usize(1..=3)].to_vec();
        let settings = TopicSettings {
            key_index: rng.bool(),
            max_bytes: rng.bool().then(|| Size::new(1_000_000)),
            on_expired: if rng.bool() {
                OnExpired::Drop
            } else {
                OnExpired::Garbage
            },
            ..groups(&groups_here)
        };
        let pair = Self {
            alone: Stage::with(settings.clone()).await,
            together: Stage::with(settings).await,
            groups: groups_here,
            named: 0,
        };
        // No topic is plain: a plain one puts messages that are due now on the stream at once.
        pair.send(&[message("general", ms(86_400_000)).key("k0")])
            .await;
        pair
    }

    fn both(&self) -> [&Stage; 2] {
        [&self.alone, &self.together]
    }

    async fn send(&self, batch: &[PreparedMessage]) {
        for message in batch {
            self.alone.send(std::slice::from_ref(message)).await;
        }
        self.together.send(batch).await;
    }

    async fn move_due(&self) {
        // Once more than there are messages, so that nothing is left to move.
        for _ in 0..=self.named {
            self.alone.move_due(1).await;
        }
        for _ in 0..=self.named / 50 * self.groups.len() + self.groups.len() {
            self.together.move_due(100).await;
        }
    }

    async fn ack(&self, group: &str, count: usize) {
        for read in self.alone.take(group, count).await {
            self.alone.end(group, &read, Verdict::Ack).await;
        }
        let reads = self.together.take(group, count).await;
        let acks: Vec<_> = reads
            .iter()
            .map(|read| settlement(read, Verdict::Ack))
            .collect();
        self.together.end_all(group, &acks).await;
    }

    async fn assert_same(&self, what: &str) {
        let [alone, together] = [contents(&self.alone).await, contents(&self.together).await];
        for (key, content) in &alone {
            assert_eq!(together.get(key), Some(content), "{key} after {what}");
        }
        assert_eq!(alone.len(), together.len(), "after {what}");
    }
}

fn ask(rng: &mut Rng, names: usize, is_ranked: bool) -> PreparedMessage {
    let delay = [0, 0, 5, 50][rng.usize(..4)];
    let mut asked = message(&format!("m{names:04}"), ms(delay));
    if rng.bool() {
        asked = asked.key(&format!("k{}", rng.u8(..6)));
    }
    if rng.u8(..4) == 0 {
        asked = asked.ttl([1, 40, 5000][rng.usize(..3)]);
    }
    if is_ranked && rng.bool() {
        asked = asked.merge(&format!("x{}", rng.u8(..9)));
    }
    if is_ranked && rng.bool() {
        asked = asked.priority(rng.i32(-2..3));
    }
    asked
}

#[tokio::test]
async fn many_in_one_call_end_as_many_calls_do() {
    for seed in 0..RUNS {
        let mut rng = Rng::with_seed(seed);
        let mut pair = Pair::with(&mut rng).await;
        // A window hands out by rank what is in the backlog at that moment, which depends on the calls.
        let is_ranked = seed % 3 == 0;
        for step in 0..STEPS {
            let what = format!("step {step} of seed {seed}");
            match rng.u8(..if is_ranked { 3 } else { 10 }) {
                0..3 => {
                    let mut batch = Vec::new();
                    for _ in 0..rng.usize(1..40) {
                        pair.named += 1;
                        batch.push(ask(&mut rng, pair.named, is_ranked));
                    }
                    pair.send(&batch).await;
                    if rng.bool() {
                        let gone = id(&format!("m{:04}", rng.usize(1..=pair.named)));
                        for stage in pair.both() {
                            let _ = stage.broker().cancel(stage.topic(), &gone, None).await;
                        }
                        pair.send(&batch).await;
                    }
                }
                3..7 => {
                    let by = [1, 5, 30][rng.usize(..3)];
                    for stage in pair.both() {
                        stage.step(by);
                    }
                    pair.move_due().await;
                }
                7 => {
                    let group = *rng.choice(&pair.groups).unwrap();
                    // It stays so: what the backlog and the mover do first depends on the calls.
                    for stage in pair.both() {
                        let (broker, topic) = (stage.broker(), stage.topic());
                        let _ = broker.pause_group(topic, &name(group), true).await;
                    }
                }
                _ => {
                    let group = *rng.choice(&pair.groups).unwrap();
                    pair.ack(group, rng.usize(1..60)).await;
                }
            }
            pair.assert_same(&what).await;
        }
        pair.together.assert_whole().await;
    }
}

/// Redis searches a small key from its start, unless an element was once too long for that.
#[tokio::test]
async fn a_batch_turns_small_keys_into_tables() {
    let stage = Stage::of(&["a", "b"]).await;
    let asked: Vec<_> = (0..80)
        .map(|n| message(&format!("m{n:02}"), ms(10)).key(&format!("k{:02}", n % 40)))
        .collect();
    stage.send(&asked).await;
    stage.step(10);
    stage.move_due(100).await;
    stage.move_due(100).await;

    for (key, encoding, count) in [
        ("meta", "hashtable", 80),
        ("left", "hashtable", 80),
        ("holder:a", "hashtable", 40),
        ("parked:a", "skiplist", 40),
    ] {
        let mut object = cmd("OBJECT");
        object.arg("ENCODING").arg(stage.key(key));
        assert_eq!(stage.command::<String>(&object).await, encoding, "{key}");
        let size = if encoding == "skiplist" {
            "ZCARD"
        } else {
            "HLEN"
        };
        let size: usize = stage.command(cmd(size).arg(stage.key(key))).await;
        assert_eq!(size, count, "{key}");
    }
}

#[tokio::test]
async fn a_batch_that_turns_a_small_key_into_a_table_keeps_the_holder_of_a_long_key() {
    let stage = Stage::of(&["a"]).await;
    let tildes = "~".repeat(65);
    let mut asked: Vec<_> = (0..40)
        .map(|n| message(&format!("m{n:02}"), ms(10)).key(&format!("k{n:02}")))
        .collect();
    asked.push(message("first", ms(10)).key(&tildes));
    asked.push(message("second", ms(10)).key(&tildes));
    stage.send(&asked).await;
    stage.step(10);
    stage.move_due(100).await;

    let mut holder = cmd("HGET");
    holder.arg(stage.key("holder:a")).arg(&tildes);
    assert_eq!(stage.command::<String>(&holder).await, "first");
}
