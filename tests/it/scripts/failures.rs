//! The newest failed attempts of a topic: what is appended, how many are kept, how they are listed and followed.

use lisa_core::broker::{
    AfterFailure, Event, FailedAttempt, FailedOutcome, Failure, FailureFilter, ShardTail,
    TailOptions, TailStart, Verdict,
};
use lisa_core::state::Settled;
use lisa_core::time::UnixMs;
use lisa_core::topic::{OnExpired, Shard, TopicSettings};
use lisa_tests::Server;
use lisa_tests::relay::{self, Relay, START, WORKER, message, ms, retry, settings, settlement};
use redis::cmd;
use std::time::Duration;

/// More than a shard keeps, in whole nodes of the stream.
const TOO_MANY: usize = 1500;
const MOST: u64 = 1100;

async fn failures(relay: &Relay) -> Vec<Failure> {
    let (topic, filter) = (relay.topic(), FailureFilter::default());
    let found = relay.broker().failures(topic, filter, None, 1000).await;
    found.expect("failures").0
}

fn reject() -> Verdict {
    let error = "no good".to_owned();
    Verdict::Reject { error }
}

fn failure(
    id: &str,
    attempt: u32,
    outcome: FailedOutcome,
    error: &str,
    then: AfterFailure,
) -> Failure {
    Failure {
        id: relay::id(id),
        group: "default".parse().unwrap(),
        attempt,
        failed: FailedAttempt {
            at: UnixMs::new(START),
            outcome,
            consumer: Some(WORKER.to_owned()),
            error: error.to_owned(),
        },
        then,
        next_attempt_at: None,
    }
}

/// Fills the failures of shard 0 with entries of another version.
async fn fill(relay: &Relay) {
    let mut fill = cmd("EVAL");
    fill.arg("for i = 1, tonumber(ARGV[1]) do redis.call('XADD', KEYS[1], '*', 'new', i) end");
    fill.arg(1).arg(relay.key("failures")).arg(TOO_MANY);
    let () = relay.command(&fill).await;
}

#[tokio::test]
async fn each_failed_attempt_is_listed_with_what_followed() {
    let relay = Relay::start("failures").await;
    let read = relay.hold("a").await;
    relay.settle(&read, retry(ms(5))).await;
    let first = Failure {
        next_attempt_at: Some(UnixMs::new(START + 5)),
        ..failure(
            "a",
            1,
            FailedOutcome::Failed,
            "it failed",
            AfterFailure::Retry,
        )
    };
    assert_eq!(failures(&relay).await, std::slice::from_ref(&first));

    let read = relay.hold("b").await;
    relay.age(read.attempt.entry, WORKER, ms(1000)).await;
    relay.reclaim().await;
    let error = "the lease of worker ran out";
    let second = Failure {
        next_attempt_at: Some(UnixMs::new(START)),
        ..failure(
            "b",
            1,
            FailedOutcome::LeaseExpired,
            error,
            AfterFailure::Retry,
        )
    };
    relay.put_in_garbage("c").await;
    let third = failure(
        "c",
        1,
        FailedOutcome::Rejected,
        "no good",
        AfterFailure::Garbage,
    );
    assert_eq!(failures(&relay).await, [third, second, first]);

    relay.step(5);
    relay.move_due(200).await;
    for read in relay.read(10).await {
        relay.settle(&read, retry(ms(0))).await;
    }
    let attempts: Vec<_> = failures(&relay).await[..2]
        .iter()
        .map(|failure| failure.attempt)
        .collect();
    // The crash was not charged.
    assert_eq!(attempts, [2, 1]);
    relay.assert_conserved().await;
}

#[tokio::test]
async fn what_is_not_a_failure_is_not_listed_and_an_expired_message_is() {
    let expires = TopicSettings {
        ttl: Some(ms(100)),
        on_expired: OnExpired::Drop,
        ..settings()
    };
    let relay = Relay::with("failures", expires).await;
    let hold = async |id: &str| {
        relay.send(&[message(id, ms(0))]).await;
        relay.move_due(200).await;
        relay.read_one().await
    };
    let when = ms(1).into();
    for (id, verdict) in [
        ("acked", Verdict::Ack),
        ("deferred", Verdict::Defer { when }),
        ("handed-back", Verdict::HandBack { when }),
    ] {
        relay.settle(&hold(id).await, verdict).await;
        assert_eq!(failures(&relay).await, []);
    }
    let read = hold("late").await;
    assert_eq!(relay.settle(&read, retry(ms(200))).await, Settled::Expired);
    let expired = failure(
        "late",
        1,
        FailedOutcome::Failed,
        "it failed",
        AfterFailure::Expired,
    );
    assert_eq!(failures(&relay).await, [expired]);
    assert_eq!(relay.settle(&read, reject()).await, Settled::Stale);
    let read = hold("gone").await;
    relay.lose_payload("gone").await;
    assert_eq!(relay.settle(&read, retry(ms(1))).await, Settled::Lost);
    let kept: u64 = relay.command(cmd("XLEN").arg(relay.key("failures"))).await;
    assert_eq!(kept, 1);
}

#[tokio::test]
async fn a_shard_keeps_about_the_newest_thousand_failures() {
    let relay = Relay::start("failures").await;
    fill(&relay).await;
    relay.put_in_garbage("a").await;
    let kept: u64 = relay.command(cmd("XLEN").arg(relay.key("failures"))).await;
    assert!((1000..=MOST).contains(&kept), "{kept} are kept");
    assert_eq!(
        failures(&relay).await.len(),
        1,
        "those of another version are left out"
    );
}

#[tokio::test]
async fn failures_are_listed_by_page_group_and_time() {
    let groups = ["a", "b"].map(|name| name.parse().unwrap());
    let two = TopicSettings {
        groups: groups.to_vec(),
        ..settings()
    };
    let relay = Relay::with("failures", two).await;
    let (broker, topic) = (relay.broker(), relay.topic());
    let ids: Vec<String> = (0..5).map(|n| format!("m{n}")).collect();
    let messages: Vec<_> = ids.iter().map(|id| message(id, ms(0))).collect();
    relay.send(&messages).await;
    relay.move_due(200).await;
    let server = broker.server(topic, Shard::new(0)).unwrap();
    for group in &groups {
        let mut reader = server.reader().await.unwrap();
        let read = broker
            .read(&mut reader, topic, Shard::new(0), group, WORKER, 10, ms(1))
            .await
            .unwrap();
        assert_eq!(read.len(), 5);
        for read in &read {
            broker
                .settle(topic, Shard::new(0), group, &[settlement(read, reject())])
                .await
                .unwrap();
        }
    }
    let of_b = FailureFilter {
        group: Some(&groups[1]),
        since: None,
    };
    let (mut seen, mut cursor) = (Vec::new(), None);
    loop {
        let (page, next) = broker.failures(topic, of_b, cursor, 2).await.unwrap();
        assert!(
            page.len() <= 2 && page.iter().all(|failure| failure.group == groups[1]),
            "{page:?}"
        );
        seen.extend(page.into_iter().map(|failure| failure.id.to_string()));
        match next {
            Some(next) => cursor = Some(next),
            None => break,
        }
    }
    assert_eq!(seen, ["m4", "m3", "m2", "m1", "m0"]);
    let all = broker
        .failures(topic, FailureFilter::default(), None, 10)
        .await
        .unwrap();
    assert_eq!((all.0.len(), all.1), (10, None));
    let later = UnixMs::new(broker.connection().clock().now_ms() + 60_000);
    let later = FailureFilter {
        group: None,
        since: Some(later),
    };
    assert_eq!(
        broker.failures(topic, later, None, 10).await.unwrap(),
        (Vec::new(), None)
    );
}

#[tokio::test]
async fn a_page_has_the_newest_of_all_shards_however_they_are_distributed() {
    let many = TopicSettings {
        shards: 20,
        ..settings()
    };
    let relay = Relay::with("failures", many).await;
    let (broker, topic) = (relay.broker(), relay.topic());
    // Most are on one shard, in the middle of the others by time; each eleventh is of another version.
    let mut expected = Vec::new();
    for n in 0..600_u64 {
        let shard = if (100..500).contains(&n) { 7 } else { n % 20 };
        let key = relay.key("failures");
        let key = key.replace(":0}", &format!(":{shard}}}"));
        let mut add = cmd("XADD");
        add.arg(key).arg(format!("{}-1", 1000 + n));
        let record = format!("{} failed\tw\tno", 1000 + n);
        if n % 11 == 0 {
            add.arg(&["new", "1"]);
        } else {
            let id = format!("m{n:03}");
            let fields = [
                "i", &id, "g", "default", "n", "1", "r", &record, "o", "garbage", "t", "0",
            ];
            add.arg(&fields);
            expected.push(id);
        }
        let _: String = relay.command(&add).await;
    }
    expected.reverse();
    for limit in [1, 7, 90, 1000] {
        let (mut seen, mut cursor) = (Vec::new(), None);
        loop {
            let filter = FailureFilter::default();
            let (page, next) = broker.failures(topic, filter, cursor, limit).await.unwrap();
            let is_full = page.len() == limit;
            seen.extend(page.into_iter().map(|failure| failure.id.to_string()));
            match next {
                Some(next) if is_full => cursor = Some(next),
                Some(_) => panic!("a page with a next one is not full"),
                None => break,
            }
        }
        assert_eq!(seen, expected, "{limit} at a time");
    }
}

#[tokio::test]
async fn a_page_reads_about_as_many_entries_however_many_shards_there_are() {
    let server = Server::start();
    let many = TopicSettings {
        shards: 100,
        ..settings()
    };
    let connection = relay::connection(&server).await;
    let relay = Relay::on(&server, &connection, "failures", many).await;
    let fill = "for i = 1, 200 do redis.call('XADD', KEYS[1], '*', 'i', 'm', 'g', 'default', 'n', '1', 'r', '1 failed\tw\tno', 'o', 'garbage') end";
    for shard in 0..100 {
        let key = relay.key("failures").replace(":0}", &format!(":{shard}}}"));
        let () = relay.command(cmd("EVAL").arg(fill).arg(1).arg(key)).await;
    }
    for (setting, value) in [
        ("slowlog-max-len", "10000"),
        ("slowlog-log-slower-than", "0"),
    ] {
        let () = relay
            .command(cmd("CONFIG").arg(&["SET", setting, value]))
            .await;
    }
    let found = failures(&relay).await;
    assert_eq!(found.len(), 1000);
    type Entry = (i64, i64, u64, Vec<String>, String, String);
    let calls: Vec<Entry> = relay.command(cmd("SLOWLOG").arg("GET").arg(10_000)).await;
    let counts = calls.iter().filter(|call| call.3[0] == "XREVRANGE");
    let asked: usize = counts.map(|call| call.3[5].parse::<usize>().unwrap()).sum();
    // Two pages at a time, and a few rounds for the shards with the newest.
    assert!((1000..=10_000).contains(&asked), "{asked} entries");
}

#[tokio::test]
async fn a_damaged_stream_of_failures_stops_no_message_and_is_reported() {
    let relay = Relay::start("failures").await;
    let key = relay.key("failures");
    let () = relay.command(cmd("SET").arg(&key).arg("in the way")).await;
    let read = relay.hold("retried").await;
    let settled = relay.settle(&read, retry(ms(5))).await;
    assert!(matches!(settled, Settled::Retry { .. }), "{settled:?}");
    let read = relay.hold("rejected").await;
    assert_eq!(relay.settle(&read, reject()).await, Settled::Garbage);
    let read = relay.hold("abandoned").await;
    relay.age(read.attempt.entry, WORKER, ms(1000)).await;
    assert_eq!(relay.reclaim().await.retry, 1);
    let counts = relay.stats().await;
    assert_eq!((counts.groups[0].retry, counts.groups[0].garbage), (2, 1));
    relay.assert_conserved().await;

    let (broker, topic) = (relay.broker(), relay.topic());
    let listed = broker.failures(topic, FailureFilter::default(), None, 10);
    let mut tail = follow(&relay, false, TailStart::Now);
    for error in [
        listed.await.unwrap_err(),
        tail.next(topic, ms(1)).await.unwrap_err(),
    ] {
        let text = error.to_string();
        let what = format!(
            "the failed attempts of topic {} on shard 0 are unreadable: ",
            topic.name()
        );
        assert!(text.starts_with(&what), "{text}");
        assert!(text.contains("WRONGTYPE"), "{text}");
        assert!(error.is_of_one_topic() && !error.is_retryable(), "{text}");
    }
    let () = relay.command(cmd("DEL").arg(&key)).await;
    relay.put_in_garbage("after").await;
    assert_eq!(failures(&relay).await.len(), 1);
}

fn follow(relay: &Relay, ready: bool, start: TailStart) -> ShardTail {
    let options = TailOptions {
        group: None,
        ready,
        start,
    };
    relay.broker().tail(Shard::new(0), options)
}

/// Reads events until there are `count`.
async fn events(tail: &mut ShardTail, relay: &Relay, count: usize) -> Vec<Event> {
    let mut events = Vec::new();
    while events.len() < count {
        let block = Duration::from_secs(20);
        let next = tail.next(relay.topic(), block).await.expect("events");
        assert!(
            !next.is_empty(),
            "{} of {count} events: {events:?}",
            events.len()
        );
        events.extend(next);
    }
    events
}

fn name(event: &Event) -> String {
    match event {
        Event::Ready { id, attempt, .. } => format!("ready {id} {}", attempt.number),
        Event::Failed(failure) => format!("{} {} {}", failure.then, failure.id, failure.attempt),
        Event::Missed { group, count } => {
            let group = group.as_ref().map_or("failures", |group| group.as_str());
            format!("missed {group} {count:?}")
        }
    }
}

async fn names(tail: &mut ShardTail, relay: &Relay, count: usize) -> Vec<String> {
    events(tail, relay, count).await.iter().map(name).collect()
}

#[tokio::test]
async fn events_are_followed_and_those_that_were_over_are_counted() {
    let relay = Relay::start("failures").await;
    relay.put_in_garbage("before").await;
    let mut tail = follow(&relay, true, TailStart::Now);
    assert_eq!(tail.next(relay.topic(), ms(1)).await.unwrap(), []);
    let read = relay.hold("a").await;
    assert_eq!(names(&mut tail, &relay, 1).await, ["ready a 1"]);
    relay.settle(&read, retry(ms(0))).await;
    assert_eq!(names(&mut tail, &relay, 1).await, ["retry a 1"]);
    relay.move_due(200).await;
    assert_eq!(names(&mut tail, &relay, 1).await, ["ready a 2"]);
    let read = relay.read_one().await;
    relay.settle(&read, Verdict::Ack).await;
    let read = relay.hold("b").await;
    relay.settle(&read, Verdict::Ack).await;
    relay.hold("c").await;
    let seen = names(&mut tail, &relay, 2).await;
    assert_eq!(seen, ["ready c 1", "missed default Some(1)"]);
    assert_eq!(tail.next(relay.topic(), ms(1)).await.unwrap(), []);
}

#[tokio::test]
async fn failures_that_are_no_longer_kept_are_missed() {
    let relay = Relay::start("failures").await;
    relay.put_in_garbage("a").await;
    let mut tail = follow(&relay, false, TailStart::Since(UnixMs::new(0)));
    assert_eq!(names(&mut tail, &relay, 1).await, ["garbage a 1"]);
    fill(&relay).await;
    relay.put_in_garbage("b").await;
    let kept: u64 = relay.command(cmd("XLEN").arg(relay.key("failures"))).await;
    let missed = TOO_MANY as u64 + 1 - kept;
    let mut seen = Vec::new();
    while seen.len() < 2 {
        let next = tail
            .next(relay.topic(), Duration::from_secs(20))
            .await
            .unwrap();
        seen.extend(next.iter().map(name));
    }
    seen.sort();
    assert_eq!(
        seen,
        [
            "garbage b 1".to_owned(),
            format!("missed failures Some({missed})")
        ]
    );
    let mut all = follow(&relay, false, TailStart::Since(UnixMs::new(0)));
    assert_eq!(
        names(&mut all, &relay, 2).await,
        ["missed failures None", "garbage b 1"]
    );
}

#[tokio::test]
async fn a_stream_that_lost_data_is_followed_from_its_end() {
    let relay = Relay::start("failures").await;
    relay.put_in_garbage("a").await;
    let mut tail = follow(&relay, false, TailStart::Now);
    assert_eq!(tail.next(relay.topic(), ms(1)).await.unwrap(), []);
    let () = relay.command(cmd("DEL").arg(relay.key("failures"))).await;
    assert_eq!(names(&mut tail, &relay, 1).await, ["missed failures None"]);
    relay.put_in_garbage("b").await;
    assert_eq!(names(&mut tail, &relay, 1).await, ["garbage b 1"]);
}
