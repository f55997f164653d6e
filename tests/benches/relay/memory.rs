//! The server memory of a stored message, by its state.

use std::time::Duration;

use lisa_core::broker::{Read, TopicStats};
use lisa_core::topic::{Group, Merge, Shard, TopicSettings};
use lisa_producer::NewMessage;

use crate::lab::Lab;
use crate::lisa::{HOUR, Lisa, TOPIC, payload};
use crate::plot;
use crate::report::{Plot, Reach, Report, Section, number, thousands};

const SIZE: usize = 100;
/// The most that one read takes.
const READ: usize = 1_000;

const NOTE: &str = "Growth of `used_memory` over the number of messages of 100 B: everything counts, payload, index, \
allocator. `stream-node-max-entries` is 20, as in the shipped `redis.conf`. The server's hash tables double at powers of \
two; the numbers of messages are such that all tables are equally full (95 %). Each message has its own key or merge \
key, 8 B; on those topics and the one with priorities `max_ready` is a million, since otherwise most due messages would \
be held back. Bytes are the same each time, so there is one round.";

/// A topic and its messages.
struct Kind {
    name: &'static str,
    settings: TopicSettings,
    make: fn(u64, NewMessage) -> NewMessage,
}

/// Bytes of a message in each state.
struct Bytes {
    waiting: f64,
    ready: f64,
    in_flight: f64,
}

/// Measures each kind of topic on an empty server.
pub(crate) async fn run(lab: &Lab, report: &mut Report) {
    let many = lab.options.pick(1_000_000, 125_000);
    let some = lab.options.pick(250_000, 31_250);
    let header = [
        "topic",
        "messages",
        "waiting, B",
        "ready, B",
        "in flight, B",
    ];
    let mut section = Section::new("Memory", NOTE, &header);
    let kinds = kinds();
    let mut bars = Vec::new();
    for (index, kind) in kinds.iter().enumerate() {
        let n = if index == 0 { many } else { some };
        eprintln!("  {}/{} {}", index + 1, kinds.len(), kind.name);
        let bytes = measure(lab, kind, n).await;
        section.row([
            kind.name.to_owned(),
            thousands(n as i64),
            number(bytes.waiting),
            number(bytes.ready),
            number(bytes.in_flight),
        ]);
        bars.push((kind.name.to_owned(), bytes.waiting));
        if index == 0 {
            let figure = "memory of a waiting message of 100 B, plain topic";
            report.reach(Reach::at_most(figure, (300.0, 285.0), " B", bytes.waiting));
        }
    }
    lab.flush().await;
    section.plots.push(Plot {
        file: "memory".to_owned(),
        title: "Memory of a waiting message of 100 B".to_owned(),
        svg: plot::bars("Memory of a waiting message of 100 B", "bytes", &bars),
    });
    report.section(section);
}

fn kinds() -> Vec<Kind> {
    let plain = TopicSettings::default;
    let wide = || TopicSettings {
        max_ready: Some(1_000_000),
        ..plain()
    };
    let groups = ["default", "second"].map(|name| name.parse::<Group>().expect("a group"));
    let kind = |name, settings, make| Kind {
        name,
        settings,
        make,
    };
    vec![
        kind("plain", plain(), |_, message| message),
        kind("ordering key", wide(), |n, message| {
            message.key(format!("{n:08}"))
        }),
        kind(
            "merge key",
            TopicSettings {
                merge: Merge::Last,
                ..wide()
            },
            |n, message| message.merge_key(format!("{n:08}")),
        ),
        kind("priority", wide(), |n, message| {
            message.priority((n % 10) as i32)
        }),
        kind("ttl", plain(), |_, message| message.ttl(HOUR)),
        kind(
            "two groups",
            TopicSettings {
                groups: groups.to_vec(),
                ..plain()
            },
            |_, message| message,
        ),
    ]
}

/// The bytes of a plain message that waits.
pub(crate) async fn of_waiting(lab: &Lab, n: u64) -> f64 {
    let (lisa, empty) = fill(lab, &kinds()[0], n, HOUR).await;
    let bytes = (lab.used_memory().await - empty) / n as f64;
    lisa.end().await;
    lab.flush().await;
    bytes
}

/// Sends messages to an empty server. Returns the relay, and the memory before.
async fn fill(lab: &Lab, kind: &Kind, n: u64, delay: Duration) -> (Lisa, f64) {
    lab.flush().await;
    let lisa = Lisa::new(lab, kind.settings.clone()).await;
    // Scripts are loaded and connections open before the first figure.
    let dress = kind.make;
    lisa.send_batches(1, move |_| {
        dress(n, NewMessage::new(payload(SIZE)).delay(HOUR))
    })
    .await;
    let empty = lab.used_memory().await;
    let make = move |number| dress(number, NewMessage::new(payload(SIZE)).delay(delay));
    lisa.send_batches(n, make).await;
    (lisa, empty)
}

async fn measure(lab: &Lab, kind: &Kind, n: u64) -> Bytes {
    let per_message = |now: f64, empty: f64| (now - empty) / n as f64;
    let (lisa, empty) = fill(lab, kind, n, HOUR).await;
    let waiting = per_message(lab.used_memory().await, empty);
    lisa.end().await;

    let (lisa, empty) = fill(lab, kind, n, Duration::from_millis(1)).await;
    lisa.start_manager();
    wait_until_ready(&lisa, n).await;
    let ready = per_message(lab.used_memory().await, empty);
    read_all(&lisa, &kind.settings.groups, n).await;
    let in_flight = per_message(lab.used_memory().await, empty);
    lisa.end().await;
    Bytes {
        waiting,
        ready,
        in_flight,
    }
}

async fn wait_until_ready(lisa: &Lisa, n: u64) {
    loop {
        let stats = stats(lisa).await;
        if stats.groups.iter().all(|group| group.ready == n) {
            break;
        }
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

async fn stats(lisa: &Lisa) -> TopicStats {
    let topic = TOPIC.parse().expect("a topic");
    let handle = lisa.broker().topic(&topic).await.expect("declared");
    lisa.broker().stats(&handle).await.expect("counted")
}

/// Takes every ready message as a consumer does, and keeps it.
async fn read_all(lisa: &Lisa, groups: &[Group], n: u64) {
    let broker = lisa.broker();
    let topic = TOPIC.parse().expect("a topic");
    let handle = broker.topic(&topic).await.expect("declared");
    for group in groups {
        let mut reader = broker.connection().any().reader().await.expect("a reader");
        let mut taken = 0;
        while taken < n {
            let block = Duration::from_millis(100);
            let read: Vec<Read> = broker
                .read(
                    &mut reader,
                    &handle,
                    Shard::new(0),
                    group,
                    "bench",
                    READ,
                    block,
                )
                .await
                .expect("read");
            assert!(!read.is_empty(), "{taken} of {n} were ready for {group}");
            taken += read.len() as u64;
        }
    }
}
