//! What the relay costs Redis, counted and not timed: calls and commands a message, commands a second at rest, bytes a
//! message. A bound here is a promise: whoever raises one says why.
//!
//! Speed is measured by the benches.

use crate::faults::log::Log;
use crate::faults::role::{Role, config};
use futures_util::StreamExt;
use futures_util::future::join_all;
use lisa_producer::Producer;
use lisa_shared::broker::Verdict;
use lisa_shared::message::NewMessage;
use lisa_shared::time::When;
use lisa_shared::topic::Shard;
use lisa_tests::relay::{WORKER, id, link, message, ms, retry, settings};
use lisa_tests::{Relay, Server, eventually};
use redis::aio::MultiplexedConnection;
use redis::cmd;
use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::sync::{Arc, Mutex};
use std::time::Duration;
use tokio_util::task::AbortOnDropHandle;

const SOON: Duration = Duration::from_secs(20);
const BATCH: usize = 500;
/// What a start costs is over by then.
const SETTLE: Duration = Duration::from_secs(3);
/// The safety nets run each half minute and minute: what they cost would be counted in one span and not in another.
const NO_SWEEP: [(&str, &str); 2] = [
    ("manager.jobs.sweep", "0 0 0 1 1 *"),
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

    fn inside(&self) -> usize {
        self.inside.values().sum()
    }

    /// Asserts which requests were sent, and that scripts called no more than `inside` commands.
    #[track_caller]
    fn costs(&self, requests: &[(&str, usize)], inside: usize) {
        let requests: BTreeMap<_, _> = requests
            .iter()
            .map(|(n, c)| ((*n).to_owned(), *c))
            .collect();
        assert_eq!(self.requests, requests, "{self}");
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
    for _ in 0..5 {
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
        .map(|read| lisa_shared::broker::Settlement {
            caller_id: false,
            ..lisa_tests::relay::settlement(read, Verdict::Ack)
        })
        .collect();
    relay.settle_all(&acks).await;
    let page = ledger.page().await;
    println!("ack {BATCH}: {page}");
    page.costs(&[("EVALSHA", 1)], 12);
    total += page.requests() + page.inside();

    let each = total as f64 / BATCH as f64;
    println!("{each:.3} commands a message from end to end");
    assert!(each <= 1.15, "{each}");
    relay.assert_drained().await;
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
        counts.push((page.requests, page.inside));
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
    let mut bytes = 0;
    for key in ["waiting", "payload"] {
        let mut usage = cmd("MEMORY");
        usage.arg("USAGE").arg(relay.key(key));
        let of_key: usize = relay.command(usage.arg("SAMPLES").arg(0)).await;
        bytes += of_key;
    }
    let each = bytes / COUNT;
    println!("{each} bytes a message");
    assert!(each <= 330, "{each}");
}

/// A script holds everybody up while it runs. The machine may hold up the script: the best of several rounds counts.
#[tokio::test]
async fn no_call_of_full_size_takes_five_milliseconds() {
    let server = Server::start();
    let relay = warm(&server).await;
    let shard = Shard::new(0);
    let set = |name: &str, value: &str| {
        let mut set = cmd("CONFIG");
        set.arg("SET").arg(name).arg(value);
        set
    };
    let () = relay.command(&set("slowlog-log-slower-than", "5000")).await;
    let mut slow = Vec::new();
    for _ in 0..8 {
        let () = relay.command(cmd("SLOWLOG").arg("RESET")).await;
        relay.send(&fresh(BATCH, 100, ms(10))).await;
        relay.step(10);
        relay.move_due(BATCH as u16).await;
        let first = relay.read(BATCH).await;
        let later: Vec<_> = first
            .iter()
            .map(|read| lisa_tests::relay::settlement(read, retry(ms(10))))
            .collect();
        relay.settle_all(&later).await;
        relay.step(10);
        relay.move_due(BATCH as u16).await;
        let again = relay.read(BATCH).await;
        assert_eq!(again.len(), BATCH);
        let bad = |read| {
            let error = "no good".to_owned();
            lisa_tests::relay::settlement(read, Verdict::Reject { error })
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
            .map(|read| lisa_tests::relay::settlement(read, Verdict::Ack))
            .collect();
        assert_eq!(acks.len(), BATCH);
        relay.settle_all(&acks).await;
        slow = relay
            .command::<Vec<redis::Value>>(cmd("SLOWLOG").arg("GET").arg(10))
            .await
            .into_iter()
            .map(|entry| format!("{entry:?}").chars().take(300).collect::<String>())
            .collect();
        if slow.is_empty() {
            break;
        }
    }
    assert!(slow.is_empty(), "{slow:#?}");
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
        relay.broker().lookup(relay.topic(), &id).await.unwrap();
        relay
            .broker()
            .reschedule(relay.topic(), &id, ms(10).into())
            .await
            .unwrap();
        relay.broker().cancel(relay.topic(), &id).await.unwrap();
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
    // A second: 1 of the mover, 2 of the reclaim, 1.7 that the manager is alive, 0.5 read, and less than 1 for the rest.
    assert!(all <= 6.0, "{all}");
    assert!(five <= all + 10.0, "{five}, with one manager {all}");
    for role in managers.into_iter().chain([producer, consumer]) {
        role.stop().await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn twenty_topics_at_rest_cost_less_than_four_requests_a_second_each() {
    let server = Server::start();
    let names: Vec<_> = (0..20).map(|n| format!("topics.t{n}.shards")).collect();
    let topics = names.iter().map(|name| (name.as_str(), "1"));
    let keys: Vec<_> = topics.chain(NO_SWEEP).collect();
    let config = config(&server.socket_url(), "twenty", &keys);
    let ledger = Ledger::open(&server).await;
    let manager = Role::manager(&config).await;
    let rate = at_rest(&ledger).await;
    println!("{rate} requests a second for 20 topics");
    assert!(rate <= 80.0, "{rate}");
    manager.stop().await;
}
