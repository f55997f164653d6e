//! A hundred thousand overdue messages of random priorities, without roles: the test measures the order and the cost in
//! Redis.

use lisa_core::broker::{Moved, Settlement, Verdict};
use lisa_core::message::{Options, PreparedMessage};
use lisa_tests::relay::{connection, ms, settings, settlement};
use lisa_tests::{Relay, Server};
use redis::cmd;
use std::collections::{BTreeSet, HashMap};

/// The default window of a topic with priorities.
const WINDOW: usize = 100;
/// The most messages of one call.
const BATCH: usize = 200;
/// Within this time all messages become due, ms.
const SPREAD: u64 = 5_000;

/// The part that is stopped while the messages become due.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Paused {
    /// The topic: they stay where they are.
    Topic,
    /// One of two groups: they gather in its backlog.
    Group,
}

/// The outcome of a run.
struct Served {
    /// The place in the right order of each message, in the order in which they were served.
    ranks: Vec<usize>,
    /// Processor time of Redis for a message.
    micros: f64,
    /// Calls of scripts, and those that took 10 ms or more.
    calls: usize,
    slow: Vec<String>,
}

impl Served {
    /// Returns the largest number of later messages that were served before one message.
    fn most_overtaken(&self) -> usize {
        let mut served = BTreeSet::new();
        let overtaken = self.ranks.iter().map(|rank| {
            served.insert(*rank);
            served.range(rank + 1..).count()
        });
        overtaken.max().unwrap_or_default()
    }
}

fn random_priority() -> i32 {
    match fastrand::u32(0..4) {
        0 => fastrand::i32(..),
        1 => [i32::MIN, i32::MAX, -1, 0, 1][fastrand::usize(..5)],
        // Many of each, so that the due time decides.
        _ => fastrand::i32(-3..=3),
    }
}

/// Stops the topic or its group, sends `count` messages, lets them become due, and serves them in the order in which
/// they come.
async fn serve(count: usize, paused: Paused) -> Served {
    let server = Server::start();
    let mut settings = settings();
    if paused == Paused::Group {
        settings.groups.push("other".parse().unwrap());
    }
    let relay = Relay::on(&server, &connection(&server).await, "priority", settings).await;
    let pause = async |stop| match paused {
        Paused::Topic => relay.broker().pause(relay.topic(), stop).await,
        Paused::Group => {
            let broker = relay.broker();
            broker.pause_group(relay.topic(), relay.group(), stop).await
        }
    };
    pause(true).await.unwrap();
    let mut config = cmd("CONFIG");
    config.arg("SET").arg("slowlog-log-slower-than").arg(10_000);
    let () = relay.command(&config).await;

    // Priority, due time, arrival: the order of the pick.
    let mut order = Vec::with_capacity(count);
    while order.len() < count {
        let mut batch = Vec::with_capacity(BATCH);
        for _ in 0..BATCH.min(count - order.len()) {
            let delay = fastrand::u64(0..SPREAD);
            let priority = random_priority();
            let message = PreparedMessage {
                when: ms(delay).into(),
                options: Options {
                    priority,
                    ..Options::default()
                },
                ..PreparedMessage::new("x")
            };
            order.push((-i64::from(priority), delay, order.len(), message.id.clone()));
            batch.push(message);
        }
        relay.send(&batch).await;
    }
    order.sort_unstable();
    let rank = order.into_iter().enumerate();
    let rank: HashMap<_, _> = rank.map(|(rank, (.., id))| (id, rank)).collect();
    relay.step(SPREAD as i64);

    let move_all = async || loop {
        match relay.move_due(BATCH as u16).await {
            Moved::Moved { pause, .. } if pause.is_zero() => {}
            _ => break,
        }
    };
    if paused == Paused::Group {
        move_all().await;
    }
    pause(false).await.unwrap();
    move_all().await;
    let mut ranks = Vec::with_capacity(count);
    while ranks.len() < count {
        let reads = relay.read(WINDOW).await;
        assert!((1..=WINDOW).contains(&reads.len()), "{} read", reads.len());
        let acks: Vec<Settlement> = reads
            .iter()
            .map(|read| Settlement {
                caller_id: false,
                ..settlement(read, Verdict::Ack)
            })
            .collect();
        ranks.extend(acks.iter().map(|ack| rank[&ack.id]));
        relay.settle_all(&acks).await;
    }
    match paused {
        Paused::Topic => relay.assert_drained().await,
        Paused::Group => relay.assert_conserved().await,
    }

    let info = async |section| -> String { relay.command(cmd("INFO").arg(section)).await };
    let (cpu, stats) = (info("cpu").await, info("commandstats").await);
    let number = |text: &str, name: &str| -> f64 {
        let fields = text.split([',', '\r', '\n']);
        let value = fields.filter_map(|field| field.strip_prefix(name)).next();
        let value = value.and_then(|value| value.parse().ok());
        value.unwrap_or_else(|| panic!("no {name} in {text}"))
    };
    let cpu = number(&cpu, "used_cpu_user:") + number(&cpu, "used_cpu_sys:");
    let calls = number(&stats, "cmdstat_evalsha:calls=") as usize;
    let slow: Vec<redis::Value> = relay.command(cmd("SLOWLOG").arg("GET").arg(-1)).await;
    Served {
        ranks,
        micros: cpu * 1e6 / count as f64,
        calls,
        slow: slow
            .iter()
            .map(|entry| format!("{entry:?}").chars().take(200).collect())
            .collect(),
    }
}

#[tokio::test]
async fn a_hundred_thousand_overdue_messages_are_served_by_priority_at_the_price_of_ten_thousand() {
    let few = serve(10_000, Paused::Topic).await;
    let many = serve(100_000, Paused::Topic).await;
    for served in [&few, &many] {
        let (count, overtaken) = (served.ranks.len(), served.most_overtaken());
        println!(
            "{count} messages: {:.1} µs each in {} calls, {} of them slow; overtaken by {overtaken} at most",
            served.micros,
            served.calls,
            served.slow.len()
        );
        assert_eq!(served.ranks.iter().collect::<BTreeSet<_>>().len(), count);
        assert!(
            overtaken <= WINDOW,
            "one of {count} was overtaken by {overtaken}"
        );
    }
    // A busy machine delays a call now and then; a script that looks at all messages takes long each time.
    assert!(many.slow.len() * 4 <= many.calls, "{:#?}", many.slow);
    assert!(
        many.micros <= 3.0 * few.micros,
        "{:.1} µs a message instead of {:.1}",
        many.micros,
        few.micros
    );
}

#[tokio::test]
async fn what_became_due_for_a_paused_group_is_served_exactly_by_priority_due_time_and_arrival() {
    let served = serve(3_000, Paused::Group).await;
    assert!(
        served.ranks.is_sorted(),
        "overtaken by {}",
        served.most_overtaken()
    );
}
