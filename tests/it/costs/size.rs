//! The estimates of `lisa-manager size`, compared with measured runs.

use super::fresh;
use lisa_core::broker::{Moved, Settlement, Verdict};
use lisa_core::message::PreparedMessage;
use lisa_core::topic::{Group, TopicSettings};
use lisa_tests::relay::{connection, ms, settings, settlement};
use lisa_tests::{Aof, Binary, Relay, SOON, Server};
use redis::cmd;
use serde_json::Value;

const MESSAGES: usize = 100_000;
const HOUR: std::time::Duration = std::time::Duration::from_hours(1);
/// The most by which an estimate may differ from the measured value.
const TOLERANCE: f64 = 0.15;

/// Returns what `lisa-manager size` prints for one topic and these options.
async fn size(options: &[&str]) -> Value {
    let fixed = [
        "size",
        "--output",
        "json",
        "--producers",
        "1",
        "--managers",
        "1",
        "--consumers",
        "0",
    ];
    let done = Binary::Manager.with(fixed.iter().chain(options).copied());
    let done = done.run(SOON).await;
    assert_eq!(done.code, Some(0), "{done:?}");
    serde_json::from_str(&done.stdout).unwrap_or_else(|error| panic!("{error}: {done:?}"))
}

/// Compares an estimate with a measured value.
fn compare(what: &str, estimate: &Value, measured: f64) {
    let estimate = estimate.as_f64().expect(what);
    let difference = estimate / measured - 1.0;
    println!(
        "{what}: estimate {estimate}, measured {measured}, {:+.1} %",
        difference * 100.0
    );
    assert!(
        difference.abs() <= TOLERANCE,
        "{what}: estimate {estimate}, measured {measured}"
    );
}

/// A number in `INFO`.
async fn info(relay: &Relay, section: &str, name: &str) -> f64 {
    let text: String = relay.command(cmd("INFO").arg(section)).await;
    let value = text
        .lines()
        .find_map(|line| line.strip_prefix(name)?.strip_prefix(':'));
    value.expect(name).trim().parse().expect(name)
}

async fn relay(aof: Aof, settings: TopicSettings) -> (Server, Relay) {
    let server = Server::builder().aof(aof).cluster(false).start();
    let relay = Relay::on(&server, &connection(&server).await, "lisa", settings).await;
    (server, relay)
}

/// Changes the messages before they are sent.
fn dressed(size: usize, dress: impl Fn(usize, &mut PreparedMessage)) -> Vec<PreparedMessage> {
    let mut messages = fresh(MESSAGES, size, HOUR);
    for (number, message) in messages.iter_mut().enumerate() {
        dress(number, message);
    }
    messages
}

/// Measures the memory of waiting messages, and compares the estimate for these options.
async fn waiting(what: &str, messages: &[PreparedMessage], options: &[&str]) {
    let (_server, relay) = relay(Aof::Off, settings()).await;
    relay.send(messages).await;
    let number = messages.len().to_string();
    let needs = size(&[&["--waiting", &number, "--outage", "0s"], options].concat()).await;
    compare(
        what,
        &needs["redis"]["memory"],
        info(&relay, "memory", "used_memory").await,
    );
}

#[tokio::test]
async fn the_memory_of_small_and_large_messages_is_as_estimated() {
    let plain = |_: usize, _: &mut PreparedMessage| ();
    waiting("100 B", &dressed(100, plain), &["--payload", "100B"]).await;
    waiting("2 KiB", &dressed(2048, plain), &["--payload", "2KiB"]).await;
}

#[tokio::test]
async fn the_memory_of_messages_with_keys_and_headers_is_as_estimated() {
    let messages = dressed(300, |number, message| {
        message.options.key = Some(format!("customer-{number:011}").parse().unwrap());
        let headers = &mut message.record.headers;
        headers.insert("content-type", "application/json").unwrap();
        headers.insert("traceparent", &"0".repeat(55)).unwrap();
    });
    let options = ["--payload", "300B", "--key", "20", "--headers", "94"];
    waiting("keys and headers", &messages, &options).await;
}

#[tokio::test]
async fn the_memory_of_due_messages_in_three_groups_is_as_estimated() {
    let groups = ["a", "b", "c"].map(|name| name.parse::<Group>().unwrap());
    let settings = TopicSettings {
        groups: groups.to_vec(),
        ..settings()
    };
    let (_server, relay) = relay(Aof::Off, settings).await;
    relay.send(&fresh(MESSAGES, 200, ms(10))).await;
    relay.step(10);
    move_all(&relay).await;
    let rate = (MESSAGES / 100).to_string();
    let needs = [
        "--waiting",
        "0",
        "--sends",
        &rate,
        "--outage",
        "100s",
        "--groups",
        "3",
        "--payload",
        "200B",
    ];
    let needs = size(&needs).await;
    compare(
        "ready in three groups",
        &needs["redis"]["memory"],
        info(&relay, "memory", "used_memory").await,
    );
}

/// Moves what is due.
async fn move_all(relay: &Relay) {
    loop {
        match relay.move_due(200).await {
            Moved::Moved { pause, .. } if pause.is_zero() => {}
            _ => return,
        }
    }
}

/// Sends, moves, reads and settles messages that are due now.
async fn handle(relay: &Relay, messages: &[PreparedMessage], verdict: impl Fn() -> Verdict) {
    relay.send(messages).await;
    move_all(relay).await;
    loop {
        let read = relay.read(200).await;
        if read.is_empty() {
            break;
        }
        let ends = read.iter().map(|read| Settlement {
            caller_id: false,
            ..settlement(read, verdict())
        });
        let ends: Vec<_> = ends.collect();
        relay.settle_all(&ends).await;
    }
}

#[tokio::test]
async fn the_memory_of_garbage_is_as_estimated() {
    let (_server, relay) = relay(Aof::Off, settings()).await;
    let error = || "the payment provider answered 500: try again later".to_owned();
    let reject = || Verdict::Reject { error: error() };
    handle(&relay, &fresh(MESSAGES, 1024, ms(0)), reject).await;
    let number = MESSAGES.to_string();
    let needs = size(&["--waiting", "0", "--garbage", &number, "--outage", "0s"]).await;
    compare(
        "garbage",
        &needs["redis"]["memory"],
        info(&relay, "memory", "used_memory").await,
    );
}

#[tokio::test]
async fn the_size_of_the_append_only_file_and_of_a_snapshot_is_as_estimated() {
    const FEW: usize = 20_000;
    let (server, relay) = relay(Aof::EverySec, settings()).await;
    let before = info(&relay, "persistence", "aof_current_size").await;
    handle(&relay, &fresh(FEW, 1024, ms(0)), || Verdict::Ack).await;
    let written = info(&relay, "persistence", "aof_current_size").await - before;
    let needs = size(&["--sends", "1", "--deliveries", "1", "--batch", "200"]).await;
    compare(
        "bytes written per message",
        &needs["redis"]["disk_per_second"],
        written / FEW as f64,
    );

    // Redis compresses what repeats, and the estimate assumes that nothing does.
    let mut messages = fresh(FEW, 1024, HOUR);
    for message in &mut messages {
        let payload: Vec<u8> = std::iter::repeat_with(|| fastrand::u8(..))
            .take(1024)
            .collect();
        message.record.payload = payload.into();
    }
    relay.send(&messages).await;
    let _: String = relay.command(&cmd("SAVE")).await;
    let file = std::fs::metadata(server.dir().join("dump.rdb")).expect("a snapshot");
    let number = FEW.to_string();
    let needs = size(&["--waiting", &number, "--outage", "0s"]).await;
    compare("snapshot", &needs["redis"]["snapshot"], file.len() as f64);
}
