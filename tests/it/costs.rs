//! What the relay costs Redis, counted and not timed: calls and commands a message, commands a second at rest, bytes a
//! message. A bound here is a promise: whoever raises one says why.
//!
//! Speed is measured by the benches.

use crate::faults::log::Log;
use crate::faults::role::{Role, config};
use futures_util::StreamExt;
use futures_util::future::join_all;
use lisa_producer::Producer;
use lisa_shared::broker::{Moved, Settlement, Verdict};
use lisa_shared::message::{Expiry, NewMessage, Options};
use lisa_shared::state::Settled;
use lisa_shared::time::When;
use lisa_shared::topic::{Shard, TopicSettings};
use lisa_tests::relay::{WORKER, id, link, message, ms, retry, settings, settlement};
use lisa_tests::{Relay, Server, eventually};
use redis::aio::MultiplexedConnection;
use redis::cmd;
use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::sync::{Arc, Mutex};
use std::time::Duration;
use tokio_util::task::AbortOnDropHandle;

const SOON: Duration = Duration::from_secs(20);
const BATCH: usize = 200;
/// The most that one call of a general script handles.
const FULL_BATCH: usize = 50;
/// What a start costs is over by then.
const SETTLE: Duration = Duration::from_secs(3);
/// The safety nets run each half minute and minute: what they cost would be counted in one span and not in another.
const NO_SWEEP: [(&str, &str); 3] = [
    ("manager.jobs.sweep", "0 0 0 1 1 *"),
    ("manager.jobs.doctor", "0 0 0 1 1 *"),
    ("manager.jobs.clean", "0 0 0 1 1 *"),
];

/// Writes down every command that a server is given, by clients and by scripts.
struct Ledger {
    lines: Arc<Mutex<Vec<String>>>,
    connection: MultiplexedConnection,
    _task: AbortOnDropHandle<()>,
}

/// The commands of a span of time.
#[derive(Default)]
struct Page {
    /// What clients sent.
    requests: BTreeMap<String, usize>,
    /// What scripts called.
    inside: BTreeMap<String, usize>,
    lines: Vec<String>,
}

impl Ledger {
    async fn open(server: &Server) -> Self {
        let client = redis::Client::open(server.socket_url()).unwrap();
        let monitor = client.get_async_monitor().await.unwrap();
        let lines = Arc::new(Mutex::new(Vec::new()));
        let written = lines.clone();
        let task = tokio::spawn(async move {
            let mut commands = monitor.into_on_message::<String>();
            while let Some(line) = commands.next().await {
                written.lock().unwrap().push(line);
            }
        });
        Self {
            lines,
            connection: server.connection().await,
            _task: AbortOnDropHandle::new(task),
        }
    }

    /// Turns the page: gives all since the last call.
    async fn page(&self) -> Page {
        let mark = format!("mark-{}", fastrand::u64(..));
        let echo: String = cmd("ECHO")
            .arg(&mark)
            .query_async(&mut self.connection.clone())
            .await
            .unwrap();
        assert_eq!(echo, mark);
        let end = eventually(SOON, async || {
            let lines = self.lines.lock().unwrap();
            let end = lines.iter().position(|line| line.contains(&mark));
            end.ok_or("the ledger is behind")
        })
        .await;
        let mut lines: Vec<_> = self.lines.lock().unwrap().drain(..=end).collect();
        lines.pop();
        let mut page = Page::default();
        for line in &lines {
            // 1700000000.123456 [0 lua] "HGET" "key"
            let (head, command) = line.split_once("] \"").unwrap();
            let name = command.split('"').next().unwrap_or_default();
            let side = if head.ends_with(" lua") {
                &mut page.inside
            } else {
                &mut page.requests
            };
            *side.entry(name.to_uppercase()).or_default() += 1;
        }
        page.lines = lines;
        page
    }
}

impl Page {
    fn requests(&self) -> usize {
        self.requests.values().sum()
    }

    /// What clients sent, but for what keeps a link up: it looks at the clock now and then, which is counted at rest.
    fn asked(&self) -> BTreeMap<String, usize> {
        let mut asked = self.requests.clone();
        asked.retain(|name, _| !matches!(name.as_str(), "TIME" | "PING"));
        asked
    }

    fn inside(&self) -> usize {
        self.inside.values().sum()
    }

    fn add(&mut self, other: Self) {
        for (name, count) in other.requests {
            *self.requests.entry(name).or_default() += count;
        }
        for (name, count) in other.inside {
            *self.inside.entry(name).or_default() += count;
        }
        self.lines.extend(other.lines);
    }

    /// Asserts which requests were sent, and that scripts called no more than `inside` commands.
    #[track_caller]
    fn costs(&self, requests: &[(&str, usize)], inside: usize) {
        let requests: BTreeMap<_, _> = requests
            .iter()
            .map(|(n, c)| ((*n).to_owned(), *c))
            .collect();
        assert_eq!(self.asked(), requests, "{self}");
        assert!(self.inside() <= inside, "more than {inside}: {self}");
    }

    /// The last parts of the keys of shard 0 that were touched: `waiting`, `retry:default`.
    fn keys(&self) -> BTreeSet<String> {
        let words = self.lines.iter().flat_map(|line| line.split('"'));
        let keys = words.filter_map(|word| word.split_once(":v1:{t:0}:"));
        keys.map(|(_, what)| what.to_owned()).collect()
    }
}

impl fmt::Display for Page {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "requests {:?}, inside scripts {:?}",
            self.requests, self.inside
        )
    }
}

/// A relay on a server of its own whose scripts are loaded and whose reader is connected.
async fn warm(server: &Server) -> Relay {
    let relay = Relay::on(server, &link(server).await, "costs", settings()).await;
    let read = relay.hold("warm").await;
    relay.settle(&read, Verdict::Ack).await;
    relay.move_due(1).await;
    relay
}

/// The bytes that keys of shard 0 take; one that is not there takes none.
async fn bytes_of(relay: &Relay, keys: &[&str]) -> usize {
    let mut bytes = 0;
    for key in keys {
        let mut usage = cmd("MEMORY");
        usage.arg("USAGE").arg(relay.key(key));
        let of_key: Option<usize> = relay.command(usage.arg("SAMPLES").arg(0)).await;
        bytes += of_key.unwrap_or(0);
    }
    bytes
}

fn fresh(count: usize, size: usize, when: impl Into<When>) -> Vec<NewMessage> {
    let when = when.into();
    let message = |_| NewMessage {
        when,
        ..NewMessage::new(vec![b'x'; size])
    };
    (0..count).map(message).collect()
}

#[tokio::test]
async fn each_batch_is_one_call_and_few_commands() {
    let server = Server::start();
    let (relay, ledger) = (warm(&server).await, Ledger::open(&server).await);
    ledger.page().await;
    let mut total = 0;

    relay.send(&fresh(BATCH, 100, ms(10))).await;
    let page = ledger.page().await;
    println!("send {BATCH}: {page}");
    page.costs(&[("EVALSHA", 1)], 12);
    total += page.requests() + page.inside();

    relay.step(10);
    relay.move_due(BATCH as u16).await;
    let page = ledger.page().await;
    println!("move {BATCH}: {page}");
    page.costs(&[("EVALSHA", 1)], BATCH + 12);
    total += page.requests() + page.inside();

    let mut reads = Vec::new();
    for _ in 0..BATCH / 100 {
        let read = relay.read(100).await;
        let ids: Vec<_> = read.iter().filter_map(|read| read.id.clone()).collect();
        let records = relay.broker().records(relay.topic(), Shard::new(0), &ids);
        assert!(records.await.unwrap().iter().all(Option::is_some));
        reads.extend(read);
        let page = ledger.page().await;
        page.costs(&[("XREADGROUP", 1), ("HMGET", 1)], 0);
        total += page.requests();
    }
    assert_eq!(reads.len(), BATCH);

    let acks: Vec<_> = reads
        .iter()
        .map(|read| Settlement {
            caller_id: false,
            ..settlement(read, Verdict::Ack)
        })
        .collect();
    relay.settle_all(&acks).await;
    let page = ledger.page().await;
    println!("ack {BATCH}: {page}");
    page.costs(&[("EVALSHA", 1)], 12);
    total += page.requests() + page.inside();

    let each = total as f64 / BATCH as f64;
    println!("{each:.3} commands a message from end to end");
    assert!(each <= 1.2, "{each}");
    relay.assert_drained().await;
}

/// What the hot path of a feature may cost.
struct Feature {
    name: &'static str,
    settings: TopicSettings,
    /// What the n-th message asks for.
    options: fn(usize) -> Options,
    /// How often all that is ready is read and acknowledged until nothing is left, each time in one call a group.
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
        // All but the first message of a key are parked, and each ack lets the next one go.
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
    fn messages(&self, count: usize) -> Vec<NewMessage> {
        let mut messages = fresh(count, 100, ms(10));
        for (n, message) in messages.iter_mut().enumerate() {
            message.options = (self.options)(n);
        }
        messages
    }

    /// Takes `count` messages through, each step in as few calls as it takes; gives what each step cost.
    async fn run(&self, relay: &Relay, ledger: &Ledger, count: usize) -> [Page; 3] {
        let groups = relay.topic().groups();
        let shard = Shard::new(0);
        let mut reader = relay.broker().link().any().reader().await.unwrap();
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
    let link = link(&server).await;
    let ledger = Ledger::open(&server).await;
    for feature in features() {
        let relay = Relay::on(&server, &link, "feature", feature.settings.clone()).await;
        // Scripts are loaded, the class and the window are what they stay.
        feature.run(&relay, &ledger, feature.rounds).await;
        let pages = feature.run(&relay, &ledger, FULL_BATCH).await;
        let groups = relay.topic().groups().len();
        // A call of a general script hands on `FULL_BATCH` copies, however many groups they are for; and a call that
        // finds the batch full is followed by one that finds nothing. Sends that may merge go 25 at a time.
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
    let link = link(&server).await;
    for feature in features() {
        let relay = Relay::on(&server, &link, "bytes", feature.settings.clone()).await;
        for messages in feature.messages(COUNT).chunks(BATCH) {
            relay.send(messages).await;
        }
        let each = bytes_of(&relay, &["waiting", "payload", "meta", "merge"]).await / COUNT;
        println!("{}: {each} bytes a message", feature.name);
        assert!(each <= feature.bytes, "{}: {each}", feature.name);
    }
}

#[tokio::test]
async fn a_large_payload_costs_no_more_commands_than_a_small_one() {
    let server = Server::start();
    let (relay, ledger) = (warm(&server).await, Ledger::open(&server).await);
    let mut counts = Vec::new();
    for size in [1, 100_000] {
        ledger.page().await;
        relay.send(&fresh(20, size, ms(10))).await;
        relay.step(10);
        relay.move_due(BATCH as u16).await;
        for read in relay.read(100).await {
            relay.settle(&read, Verdict::Ack).await;
        }
        let page = ledger.page().await;
        counts.push((page.asked(), page.inside));
    }
    assert_eq!(counts[0], counts[1]);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_thousand_sends_at_once_are_few_calls() {
    let server = Server::start();
    let (relay, ledger) = (warm(&server).await, Ledger::open(&server).await);
    let producer = Producer::new(relay.broker().clone());
    ledger.page().await;
    let sends = (0..1000).map(|_| producer.send_bytes("t", "x").delay(ms(10)).into_future());
    for sent in join_all(sends).await {
        sent.unwrap();
    }
    let page = ledger.page().await;
    println!("1000 sends: {page}");
    assert!(page.requests["EVALSHA"] <= 20, "{page}");
    assert!(page.requests() <= 20, "{page}");
}

#[tokio::test]
async fn a_waiting_message_of_100_bytes_takes_at_most_330_bytes() {
    const COUNT: usize = 50_000;
    let server = Server::start();
    let relay = warm(&server).await;
    for _ in 0..COUNT / BATCH {
        relay.send(&fresh(BATCH, 100, ms(10))).await;
    }
    let each = bytes_of(&relay, &["waiting", "payload"]).await / COUNT;
    println!("{each} bytes a message");
    assert!(each <= 330, "{each}");
}

/// A script holds everybody up while it runs. The machine may hold up the script: the best of several rounds counts
/// for each.
#[tokio::test]
async fn no_call_of_full_size_takes_two_milliseconds() {
    let server = Server::start();
    let relay = warm(&server).await;
    let shard = Shard::new(0);
    let set = |name: &str, value: &str| {
        let mut set = cmd("CONFIG");
        set.arg("SET").arg(name).arg(value);
        set
    };
    let () = relay.command(&set("slowlog-log-slower-than", "2000")).await;
    // The scripts that were slow in every round so far.
    let mut slow: Option<BTreeSet<String>> = None;
    for _ in 0..30 {
        let () = relay.command(cmd("SLOWLOG").arg("RESET")).await;
        relay.send(&fresh(BATCH, 100, ms(10))).await;
        relay.step(10);
        relay.move_due(BATCH as u16).await;
        let first = relay.read(BATCH).await;
        let later: Vec<_> = first
            .iter()
            .map(|read| settlement(read, retry(ms(10))))
            .collect();
        relay.settle_all(&later).await;
        relay.step(10);
        relay.move_due(BATCH as u16).await;
        let again = relay.read(BATCH).await;
        assert_eq!(again.len(), BATCH);
        let bad = |read| {
            let error = "no good".to_owned();
            settlement(read, Verdict::Reject { error })
        };
        relay
            .settle_all(&again.iter().map(bad).collect::<Vec<_>>())
            .await;
        let seen: Vec<_> = again
            .iter()
            .map(|read| (read.id.clone().unwrap(), relay.now()))
            .collect();
        let requeued = relay
            .broker()
            .requeue(relay.topic(), relay.group(), &seen)
            .await
            .unwrap();
        assert_eq!(requeued, BATCH as u64);
        relay.move_due(BATCH as u16).await;
        let last = relay.read(BATCH).await;
        for read in &last {
            relay.set_idle(read.attempt.entry, WORKER, ms(2000)).await;
        }
        relay.clock_past(last[BATCH - 1].attempt.entry).await;
        while relay.reclaim().await.more {}
        relay
            .broker()
            .clean(relay.topic(), shard, relay.group(), None)
            .await
            .unwrap();
        relay.step(10_000);
        relay.move_due(BATCH as u16).await;
        let acks = relay.read(BATCH).await;
        let acks: Vec<_> = acks
            .iter()
            .map(|read| settlement(read, Verdict::Ack))
            .collect();
        assert_eq!(acks.len(), BATCH);
        relay.settle_all(&acks).await;
        type Entry = (i64, i64, u64, Vec<Vec<u8>>, String, String);
        let entries: Vec<Entry> = relay.command(cmd("SLOWLOG").arg("GET").arg(100)).await;
        let name = |(_, _, _, words, ..): Entry| String::from_utf8_lossy(&words[1]).into_owned();
        let now: BTreeSet<_> = entries.into_iter().map(name).collect();
        let still = match slow {
            Some(before) => &before & &now,
            None => now,
        };
        let done = still.is_empty();
        slow = Some(still);
        if done {
            break;
        }
    }
    assert_eq!(slow, Some(BTreeSet::new()), "slow in every round");
    relay.assert_drained().await;
}

#[tokio::test]
async fn a_plain_topic_touches_no_key_of_a_feature() {
    let server = Server::start();
    let relay = Relay::on(&server, &link(&server).await, "plain", settings()).await;
    let ledger = Ledger::open(&server).await;
    let sent = [message("now", When::NOW), message("later", ms(10))];
    relay.send(&sent).await;
    relay.step(10);
    relay.move_due(BATCH as u16).await;
    let reads = relay.read(10).await;
    relay.settle(&reads[0], Verdict::Ack).await;
    let hot = [
        "attempts:default",
        "conf",
        "payload",
        "ready:default",
        "retry:default",
    ];
    let hot = hot.into_iter().chain(["stats", "tomb", "waiting", "wake"]);
    let hot: BTreeSet<String> = hot.map(str::to_owned).collect();
    let page = ledger.page().await;
    assert_eq!(page.keys(), hot, "{page}");

    relay.settle(&reads[1], retry(ms(10))).await;
    relay.step(10);
    relay.move_due(BATCH as u16).await;
    let read = relay.read_one().await;
    relay.age(read.attempt.entry, WORKER, ms(2000)).await;
    relay.reclaim().await;
    relay.bury("bad").await;
    let seen = [(id("bad"), relay.now())];
    relay
        .broker()
        .requeue(relay.topic(), relay.group(), &seen)
        .await
        .unwrap();
    for id in [id("later"), id("bad")] {
        relay
            .broker()
            .lookup(relay.topic(), &id, None)
            .await
            .unwrap();
        relay
            .broker()
            .reschedule(relay.topic(), &id, None, ms(10).into())
            .await
            .unwrap();
        relay
            .broker()
            .cancel(relay.topic(), &id, None)
            .await
            .unwrap();
    }
    relay
        .broker()
        .clean(relay.topic(), Shard::new(0), relay.group(), None)
        .await
        .unwrap();
    relay.assert_drained().await;
    assert_eq!(relay.hash("conf").await["class"], "plain");
}

/// The requests a second over five seconds: a rate needs time. Begins when what the start costs is over.
async fn at_rest(ledger: &Ledger) -> f64 {
    const SPAN: f64 = 5.0;
    tokio::time::sleep(SETTLE).await;
    ledger.page().await;
    tokio::time::sleep(Duration::from_secs_f64(SPAN)).await;
    let page = ledger.page().await;
    println!("in {SPAN} s: {page}");
    page.requests() as f64 / SPAN
}

#[tokio::test(flavor = "multi_thread")]
async fn roles_at_rest_ask_redis_for_little() {
    let server = Server::start();
    let url = server.socket_url();
    let keys = [[("topics.t.shards", "1")].as_slice(), &NO_SWEEP].concat();
    let config = config(&url, "rest", &keys);
    let ledger = Ledger::open(&server).await;
    let mut managers = vec![Role::manager(&config).await];
    let alone = at_rest(&ledger).await;
    let (producer, _sends) = Role::producer(&config).await;
    let consumer = Role::consumer(&config, &["t"], &Arc::new(Log::default())).await;
    let all = at_rest(&ledger).await;
    for _ in 1..5 {
        managers.push(Role::manager(&config).await);
    }
    eventually(SOON, async || match consumer.managers().await {
        5 => Ok(()),
        alive => Err(alive),
    })
    .await;
    let five = at_rest(&ledger).await;
    println!(
        "requests a second: one manager {alone}, one of each role {all}, five managers {five}"
    );
    // A second: 0.4 of the mover, nearly none of the reclaim, 0.8 that the manager is alive, 0.4 read, and the rest.
    assert!(all <= 4.0, "{all}");
    assert!(five <= all + 10.0, "{five}, with one manager {all}");
    for role in managers.into_iter().chain([producer, consumer]) {
        role.stop().await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn twenty_topics_at_rest_cost_less_than_a_request_a_second_each() {
    let server = Server::start();
    let names: Vec<_> = (0..20).map(|n| format!("topics.t{n}.shards")).collect();
    let topics = names.iter().map(|name| (name.as_str(), "1"));
    let keys: Vec<_> = topics.chain(NO_SWEEP).collect();
    let config = config(&server.socket_url(), "twenty", &keys);
    let ledger = Ledger::open(&server).await;
    let manager = Role::manager(&config).await;
    let rate = at_rest(&ledger).await;
    println!("{rate} requests a second for 20 topics");
    assert!(rate <= 20.0, "{rate}");
    manager.stop().await;
}
