//! The cost of each feature in calls, commands and bytes.

use super::ledger::{Ledger, Page};
use super::{BATCH, bytes_of, fresh};
use lisa_core::broker::{Moved, Settlement, Verdict};
use lisa_core::message::{Expiry, Options, PreparedMessage};
use lisa_core::state::Settled;
use lisa_core::topic::{Shard, TopicSettings};
use lisa_tests::relay::{WORKER, connection, ms, settings, settlement};
use lisa_tests::{Relay, Server};
use std::time::Duration;

/// The most that one call of a general script handles.
const FULL_BATCH: usize = 50;

/// Limits on the cost of a feature's hot path.
struct Feature {
    name: &'static str,
    settings: TopicSettings,
    /// The options of the n-th message.
    options: fn(usize) -> Options,
    /// The number of rounds until nothing is left. Each round reads and acknowledges all ready messages, in one call
    /// per group.
    rounds: usize,
    /// The commands that scripts call for [`FULL_BATCH`] messages: in the send, in the moves, in the acks.
    commands: [usize; 3],
    /// The bytes of a waiting message of 100 bytes.
    bytes: usize,
}

fn key(n: usize) -> Options {
    Options {
        key: Some(format!("k{n}").parse().unwrap()),
        ..Options::default()
    }
}

fn features() -> [Feature; 8] {
    let plain: fn(usize) -> Options = |_| Options::default();
    let with = |change: fn(&mut TopicSettings)| {
        let mut settings = settings();
        change(&mut settings);
        settings
    };
    [
        Feature {
            name: "ordered, each message has its own key",
            settings: settings(),
            options: key,
            rounds: 1,
            commands: [75, 215, 135],
            bytes: 450,
        },
        // All but the first message of a key are parked, and each ack releases the next one.
        Feature {
            name: "ordered, ten messages a key",
            settings: settings(),
            options: |n| key(n % (FULL_BATCH / 10)),
            rounds: 10,
            commands: [75, 165, 530],
            bytes: 450,
        },
        Feature {
            name: "merge, nothing to merge with",
            settings: with(|it| it.max_ready = Some(1000)),
            options: |n| Options {
                merge_key: Some(format!("m{n}").parse().unwrap()),
                ..Options::default()
            },
            rounds: 1,
            commands: [205, 255, 85],
            bytes: 530,
        },
        Feature {
            name: "priority, room for all",
            settings: with(|it| it.max_ready = Some(1000)),
            options: |n| Options {
                priority: n as i32 % 10 - 5,
                ..Options::default()
            },
            rounds: 1,
            commands: [65, 160, 35],
            bytes: 450,
        },
        // The move fills the window once; from then on the acks do.
        Feature {
            name: "priority, a narrow window",
            settings: with(|it| it.max_ready = Some(20)),
            options: |n| Options {
                priority: n as i32 % 10 - 5,
                ..Options::default()
            },
            rounds: 3,
            commands: [65, 130, 125],
            bytes: 450,
        },
        Feature {
            name: "two groups",
            settings: with(|it| it.groups = ["a", "b"].map(|name| name.parse().unwrap()).into()),
            options: plain,
            rounds: 1,
            commands: [20, 200, 55],
            bytes: 330,
        },
        Feature {
            name: "ttl of the topic",
            settings: with(|it| it.ttl = Some(Duration::from_secs(60))),
            options: plain,
            rounds: 1,
            commands: [75, 105, 30],
            bytes: 450,
        },
        Feature {
            name: "ttl of the message",
            settings: settings(),
            options: |_| Options {
                expiry: Some(Expiry::After(Duration::from_secs(60))),
                ..Options::default()
            },
            rounds: 1,
            commands: [75, 105, 30],
            bytes: 450,
        },
    ]
}

impl Feature {
    fn messages(&self, count: usize) -> Vec<PreparedMessage> {
        let mut messages = fresh(count, 100, ms(10));
        for (n, message) in messages.iter_mut().enumerate() {
            message.options = (self.options)(n);
        }
        messages
    }

    /// Takes `count` messages through, each step in as few calls as possible; returns the cost of each step.
    async fn run(&self, relay: &Relay, ledger: &Ledger, count: usize) -> [Page; 3] {
        let groups = relay.topic().groups();
        let shard = Shard::new(0);
        let mut reader = relay.broker().connection().any().reader().await.unwrap();
        ledger.page().await;
        relay.send(&self.messages(count)).await;
        let send = ledger.page().await;
        relay.step(10);
        let more = |moved| matches!(moved, Moved::Moved { pause, .. } if pause.is_zero());
        while more(relay.move_due(FULL_BATCH as u16).await) {}
        let moved = ledger.page().await;
        let mut acked = Page::default();
        for _ in 0..self.rounds {
            for group in groups {
                let (broker, topic) = (relay.broker(), relay.topic());
                let read = broker.read(&mut reader, topic, shard, group, WORKER, count, ms(1));
                let read = read.await.unwrap();
                ledger.page().await;
                let acks: Vec<_> = read
                    .iter()
                    .map(|read| Settlement {
                        caller_id: false,
                        ..settlement(read, Verdict::Ack)
                    })
                    .collect();
                let settled = broker.settle(topic, shard, group, &acks).await.unwrap();
                assert!(settled.iter().all(|how| *how == Settled::Acked));
                acked.add(ledger.page().await);
            }
        }
        relay.assert_drained().await;
        [send, moved, acked]
    }
}

#[tokio::test]
async fn each_feature_takes_few_calls_and_commands() {
    let server = Server::start();
    let connection = connection(&server).await;
    let ledger = Ledger::open(&server).await;
    for feature in features() {
        let relay = Relay::on(&server, &connection, "feature", feature.settings.clone()).await;
        // The scripts are loaded, and the class and the window no longer change.
        feature.run(&relay, &ledger, feature.rounds).await;
        let pages = feature.run(&relay, &ledger, FULL_BATCH).await;
        let groups = relay.topic().groups().len();
        // A call of a general script moves `FULL_BATCH` copies, over all groups together. A call that finds the batch
        // full is followed by one that finds nothing. Sends that may merge go 25 at a time.
        let merges = (feature.options)(0).merge_key.is_some();
        let calls = [
            if merges { FULL_BATCH / 25 } else { 1 },
            groups + 1,
            feature.rounds * groups,
        ];
        for (n, step) in ["send", "move", "ack"].into_iter().enumerate() {
            println!("{}: {step} {FULL_BATCH}: {}", feature.name, pages[n]);
            pages[n].costs(&[("EVALSHA", calls[n])], feature.commands[n]);
        }
    }
}

#[tokio::test]
async fn a_waiting_message_takes_few_bytes_more_for_each_feature() {
    const COUNT: usize = 10_000;
    let server = Server::start();
    let connection = connection(&server).await;
    for feature in features() {
        let relay = Relay::on(&server, &connection, "bytes", feature.settings.clone()).await;
        for messages in feature.messages(COUNT).chunks(BATCH) {
            relay.send(messages).await;
        }
        let each = bytes_of(&relay, &["waiting", "payload", "meta", "merge"]).await / COUNT;
        println!("{}: {each} bytes a message", feature.name);
        assert!(each <= feature.bytes, "{}: {each}", feature.name);
    }
}
