//! reclaim: reclaims deliveries that were idle for a lease, charges an attempt to marked ones, and touches nothing
//! younger.

use lisa_core::broker::{Broker, Leased, Read, ReclaimReport, SHORT_LEASES, Verdict};
use lisa_core::state::Settled;
use lisa_core::time::When;
use lisa_core::topic::{Shard, Size, TopicSettings};
use lisa_tests::relay::{START, WORKER, connection, message, ms, settings, settlement};
use lisa_tests::{Relay, Server, eventually, unless_held_up};
use redis::cmd;

const IDLE: std::time::Duration = ms(3_600_000);

fn report(retry: u64, garbage: u64, lost: u64) -> ReclaimReport {
    ReclaimReport {
        retry,
        garbage,
        lost,
        ..ReclaimReport::default()
    }
}

async fn start_handler(relay: &Relay, read: &Read) {
    let (shard, entries) = (Shard::new(0), [read.attempt.entry]);
    let held = relay
        .broker()
        .renew(relay.topic(), shard, relay.group(), WORKER, &entries)
        .await;
    assert_eq!(held.expect("an answer"), entries);
}

#[tokio::test]
async fn a_running_lease_is_left_alone() {
    unless_held_up(settings().lease / 4, async || {
        let relay = Relay::start("reclaim").await;
        let read = relay.hold("a").await;
        relay.age(read.attempt.entry, WORKER, ms(0)).await;
        let before = relay.snapshot().await;
        assert_eq!(relay.reclaim().await, report(0, 0, 0));
        assert_eq!(before.diff(&relay.snapshot().await), "");
        relay.assert_conserved().await;
    })
    .await;
}

#[tokio::test]
async fn a_renewed_lease_is_left_alone() {
    unless_held_up(settings().lease / 4, async || {
        let relay = Relay::start("reclaim").await;
        let read = relay.hold("a").await;
        relay.age(read.attempt.entry, WORKER, IDLE).await;
        start_handler(&relay, &read).await;
        assert_eq!(relay.reclaim().await, report(0, 0, 0));
        assert_eq!(relay.settle(&read, Verdict::Ack).await, Settled::Acked);
        relay.assert_drained().await;
    })
    .await;
}

#[tokio::test]
async fn the_first_crash_brings_the_message_back_at_once_and_charges_nothing() {
    let relay = Relay::start("reclaim").await;
    let read = relay.hold("a").await;
    relay.age(read.attempt.entry, WORKER, ms(1000)).await;
    assert_eq!(relay.reclaim().await, report(1, 0, 0));
    assert_eq!(
        relay.zset("retry:default").await,
        [("a".into(), START)].into()
    );
    assert_eq!(
        relay.hash("attempts:default").await["a"],
        "0 1 the lease of worker ran out"
    );
    assert_eq!(relay.reclaim().await, report(0, 0, 0));
    relay.move_due(200).await;
    let again = relay.read_one().await;
    assert_eq!((again.attempt.number, again.attempt.crashes), (1, 1));
    assert!(!again.attempt.is_suspect());
    relay.assert_conserved().await;
}

#[tokio::test]
async fn a_message_that_is_not_marked_is_charged_for_no_crash() {
    let relay = Relay::start("reclaim").await;
    let mut one = message("a", When::NOW);
    one.record.max_attempts = Some(1);
    relay.send(&[one]).await;
    let mut read = relay.read_one().await;
    for crashes in 1..10 {
        relay.age(read.attempt.entry, WORKER, IDLE).await;
        assert_eq!(relay.reclaim().await, report(1, 0, 0));
        let counts = format!("0 {crashes} the lease of worker ran out");
        assert_eq!(relay.hash("attempts:default").await["a"], counts);
        assert_eq!(relay.zset("retry:default").await["a"], START);
        relay.move_due(200).await;
        read = relay.read_one().await;
        assert_eq!(read.attempt.is_suspect(), crashes >= 2);
    }
    relay.assert_conserved().await;
}

#[tokio::test]
async fn a_mark_that_was_removed_charges_nothing() {
    let relay = Relay::start("reclaim").await;
    let read = relay.hold("a").await;
    start_handler(&relay, &read).await;
    let (broker, shard, entries) = (relay.broker(), Shard::new(0), [read.attempt.entry]);
    let unmark = async || {
        broker
            .unmark(relay.topic(), shard, relay.group(), WORKER, &entries)
            .await
    };
    assert_eq!(unmark().await.expect("an answer"), entries);
    relay.age(read.attempt.entry, WORKER, IDLE).await;
    assert_eq!(relay.reclaim().await, report(1, 0, 0));
    let counts = "0 1 the lease of worker ran out";
    assert_eq!(relay.hash("attempts:default").await["a"], counts);
    // A delivery that is no longer held is not claimed again.
    assert_eq!(unmark().await.expect("an answer"), []);
    assert_eq!(relay.zset("retry:default").await.len(), 1);
    relay.assert_conserved().await;
}

#[tokio::test]
async fn a_renewed_lease_keeps_the_mark_as_it_is() {
    let relay = Relay::start("reclaim").await;
    let marked = relay.hold("marked").await;
    let other = relay.hold("other").await;
    start_handler(&relay, &marked).await;
    let entries = [marked.attempt.entry, other.attempt.entry];
    for _ in 0..3 {
        let kept = relay.broker().keep(
            relay.topic(),
            Shard::new(0),
            relay.group(),
            WORKER,
            &entries,
        );
        assert_eq!(kept.await.expect("an answer"), entries);
    }
    for entry in entries {
        relay.age(entry, WORKER, IDLE).await;
    }
    assert_eq!(relay.reclaim().await, report(2, 0, 0));
    let counts = relay.hash("attempts:default").await;
    assert_eq!(counts["marked"], "1 1 the lease of worker ran out");
    assert_eq!(counts["other"], "0 1 the lease of worker ran out");
    relay.assert_conserved().await;
}

/// Sets a lease of its own for a delivery.
async fn lease(relay: &Relay, read: &Read, time: std::time::Duration) -> Leased {
    let (shard, entries) = (Shard::new(0), [read.attempt.entry]);
    let leased = relay
        .broker()
        .lease(relay.topic(), shard, relay.group(), WORKER, &entries, time);
    leased.await.expect("an answer")
}

/// The only delivery in flight: entry, consumer, idle time in ms, delivery count.
async fn pending(relay: &Relay) -> (String, String, u64, u64) {
    let mut list = cmd("XPENDING");
    list.arg(relay.key("ready:default"));
    list.arg(relay.group().as_str()).arg("-").arg("+").arg(10);
    let mut pending: Vec<_> = relay.command(&list).await;
    pending.pop().expect("a delivery in flight")
}

fn held(held: u64) -> ReclaimReport {
    ReclaimReport {
        held,
        ..ReclaimReport::default()
    }
}

#[tokio::test]
async fn a_pulled_delivery_is_charged_one_attempt_and_no_crash_when_its_lease_ends() {
    let relay = Relay::start("reclaim").await;
    let mut read = relay.hold("a").await;
    for attempt in 1..=3 {
        let leased = lease(&relay, &read, ms(90_000)).await;
        assert_eq!(leased.held, [read.attempt.entry]);
        assert_eq!(leased.until, relay.at(90_000));
        relay.age(read.attempt.entry, WORKER, IDLE).await;
        relay.step(89_999);
        assert_eq!(relay.reclaim().await, held(1));
        let (_, _, idle, _) = pending(&relay).await;
        assert!(
            idle < IDLE.as_millis() as u64,
            "not listed again until then"
        );
        relay.age(read.attempt.entry, WORKER, IDLE).await;
        relay.step(1);
        if attempt == 3 {
            break;
        }
        assert_eq!(relay.reclaim().await, report(1, 0, 0));
        let counts = format!("{attempt} 0 not settled before its lease ended");
        assert_eq!(relay.hash("attempts:default").await["a"], counts);
        relay.step(10_000);
        relay.move_due(200).await;
        read = relay.read_one().await;
        assert_eq!(read.attempt.number, attempt + 1);
        assert!(!read.attempt.is_suspect());
    }
    assert_eq!(relay.reclaim().await, report(0, 1, 0));
    let dead = relay.hash("garbage_info:default").await;
    assert_eq!(dead["a"], "exhausted 3 not settled before its lease ended");
    relay.assert_conserved().await;
}

#[tokio::test]
async fn a_pulled_delivery_keeps_the_crashes_of_others() {
    let relay = Relay::start("reclaim").await;
    let mut read = relay.hold("a").await;
    for _ in 0..2 {
        relay.age(read.attempt.entry, WORKER, IDLE).await;
        relay.reclaim().await;
        relay.move_due(200).await;
        read = relay.read_one().await;
    }
    lease(&relay, &read, ms(1000)).await;
    relay.step(1000);
    relay.age(read.attempt.entry, WORKER, IDLE).await;
    assert_eq!(relay.reclaim().await, report(1, 0, 0));
    let counts = "1 2 not settled before its lease ended";
    assert_eq!(relay.hash("attempts:default").await["a"], counts);
    relay.assert_conserved().await;
}

#[tokio::test]
async fn what_lies_behind_many_held_deliveries_is_reached_by_continuing_after_them() {
    let relay = Relay::start("reclaim").await;
    for n in 0..60 {
        let read = relay.hold(&format!("held-{n}")).await;
        lease(&relay, &read, ms(90_000)).await;
        relay.age(read.attempt.entry, WORKER, IDLE).await;
    }
    let read = relay.hold("over").await;
    relay.age(read.attempt.entry, WORKER, IDLE).await;
    let (broker, topic, group) = (relay.broker(), relay.topic(), relay.group());
    let mut after = None;
    let mut found = Vec::new();
    for _ in 0..2 {
        let reclaimed = broker.reclaim_after(topic, Shard::new(0), group, true, after);
        let page = reclaimed.await.unwrap();
        let report = page.report;
        found.push((report.held, report.retry, report.more));
        after = page.last;
    }
    assert_eq!(found, [(50, 0, true), (10, 1, false)]);
    assert_eq!(after, Some(read.attempt.entry));
    relay.assert_conserved().await;
}

/// The entry is younger than a lease of the topic, so that only the list of short leases has it.
#[tokio::test]
async fn a_lease_shorter_than_that_of_the_topic_ends_at_its_time() {
    let mut long = settings();
    long.lease = ms(3_600_000);
    let relay = Relay::with("reclaim", long).await;
    let (short, other) = (relay.hold("short").await, relay.hold("other").await);
    lease(&relay, &short, ms(1)).await;
    lease(&relay, &other, ms(3_600_000)).await;
    relay.step(1);
    eventually(ms(20_000), async || match relay.reclaim().await.retry {
        1 => Ok(()),
        retry => Err(format!("{retry} reclaimed")),
    })
    .await;
    let error = "1 0 not settled before its lease ended";
    assert_eq!(
        relay.hash("attempts:default").await,
        [("short".into(), error.into())].into()
    );
    assert_eq!(relay.settle(&short, Verdict::Ack).await, Settled::Stale);
    assert_eq!(relay.settle(&other, Verdict::Ack).await, Settled::Acked);
    relay.assert_conserved().await;
}

#[tokio::test]
async fn any_consumer_extends_and_shortens_a_lease_and_none_revives_a_lost_one() {
    let mut long = settings();
    long.lease = ms(3_600_000);
    let relay = Relay::with("reclaim", long).await;
    let read = relay.hold("a").await;
    let holds = format!("{WORKER}-leases");
    for (time, holder) in [
        (3_600_000, &*holds),
        (1, SHORT_LEASES),
        (90_000, SHORT_LEASES),
        (7_200_000, &*holds),
    ] {
        assert_eq!(
            lease(&relay, &read, ms(time)).await.held,
            [read.attempt.entry]
        );
        let until = relay.now().get() + time;
        let (_, consumer, _, count) = pending(&relay).await;
        assert_eq!((consumer.as_str(), count), (holder, until));
    }
    assert_eq!(relay.settle(&read, Verdict::Ack).await, Settled::Acked);
    assert_eq!(lease(&relay, &read, ms(1000)).await.held, []);
    relay.assert_drained().await;
}

#[tokio::test]
async fn reclaim_sends_an_exhausted_message_to_garbage() {
    let relay = Relay::start("reclaim").await;
    let mut read = relay.hold("a").await;
    for attempt in 1..=3 {
        start_handler(&relay, &read).await;
        relay.age(read.attempt.entry, WORKER, IDLE).await;
        if attempt == 3 {
            break;
        }
        assert_eq!(relay.reclaim().await, report(1, 0, 0));
        relay.step(10_000);
        relay.move_due(200).await;
        read = relay.read_one().await;
    }
    assert_eq!(relay.reclaim().await, report(0, 1, 0));
    let dead = relay.hash("garbage_info:default").await;
    assert_eq!(dead["a"], "exhausted 3 the lease of worker ran out");
    assert_eq!(relay.hash("attempts:default").await, [].into());
    relay.assert_conserved().await;
}

#[tokio::test]
async fn a_charged_message_waits_as_the_policy_says() {
    let relay = Relay::start("reclaim").await;
    let mut read = relay.hold("a").await;
    for due in [START + 1000, START + 1000 + 2000] {
        start_handler(&relay, &read).await;
        relay.age(read.attempt.entry, WORKER, IDLE).await;
        relay.reclaim().await;
        assert_eq!(relay.zset("retry:default").await["a"], due);
        relay.step(due as i64 - relay.now().get() as i64);
        relay.move_due(200).await;
        read = relay.read_one().await;
    }
    relay.assert_conserved().await;
}

#[tokio::test]
async fn a_charged_message_waits_as_its_own_policy_says() {
    let relay = Relay::start("reclaim").await;
    let mut one = message("a", When::NOW);
    one.record.retry = r#"{"kind":"list","delays":["9s","30s"],"jitter":0}"#.parse().ok();
    relay.send(&[one]).await;
    let mut read = relay.read_one().await;
    for due in [START + 9000, START + 39_000] {
        start_handler(&relay, &read).await;
        relay.age(read.attempt.entry, WORKER, IDLE).await;
        relay.reclaim().await;
        assert_eq!(relay.zset("retry:default").await["a"], due);
        relay.step(due as i64 - relay.now().get() as i64);
        relay.move_due(200).await;
        read = relay.read_one().await;
    }
    relay.assert_conserved().await;
}

#[tokio::test]
async fn a_message_may_have_its_own_number_of_attempts() {
    let relay = Relay::start("reclaim").await;
    let mut one = message("a", When::NOW);
    one.record.max_attempts = Some(1);
    relay.send(&[one]).await;
    let read = relay.read_one().await;
    start_handler(&relay, &read).await;
    relay.age(read.attempt.entry, WORKER, IDLE).await;
    assert_eq!(relay.reclaim().await, report(0, 1, 0));
    relay.assert_conserved().await;
}

#[tokio::test]
async fn a_delivery_without_payload_or_entry_is_lost() {
    let relay = Relay::start("reclaim").await;
    let no_payload = relay.hold("a").await;
    let no_entry = relay.hold("b").await;
    relay.lose_payload("a").await;
    relay.lose_payload("b").await;
    for read in [&no_payload, &no_entry] {
        relay.age(read.attempt.entry, WORKER, IDLE).await;
    }
    let mut delete = cmd("XDEL");
    delete
        .arg(relay.key("ready:default"))
        .arg(no_entry.attempt.entry.to_string());
    let _: u64 = relay.command(&delete).await;
    assert_eq!(relay.reclaim().await, report(0, 0, 2));
    relay.assert_drained().await;
}

#[tokio::test]
async fn fifty_at_a_time_are_taken_back() {
    let relay = Relay::start("reclaim").await;
    let batch: Vec<_> = (0..51)
        .map(|n| message(&format!("m{n}"), When::NOW))
        .collect();
    relay.send(&batch).await;
    for read in relay.read(51).await {
        relay.age(read.attempt.entry, WORKER, IDLE).await;
    }
    let first = relay.reclaim().await;
    assert_eq!((first.retry, first.more), (50, true));
    assert_eq!(relay.reclaim().await, report(1, 0, 0));
    relay.assert_conserved().await;
}

/// The clock itself cannot be stepped here; entries from the future are the effect of a step.
#[tokio::test]
async fn a_lease_ends_also_after_the_clock_of_redis_stepped_back() {
    unless_held_up(settings().lease / 4, async || {
        let relay = Relay::start("reclaim").await;
        let future = relay.broker().connection().clock().now_ms() + 3_600_000;
        let mut set = cmd("XSETID");
        set.arg(relay.key("ready:default"))
            .arg(format!("{future}-0"));
        let () = relay.command(&set).await;
        let read = relay.hold("a").await;
        assert!(read.attempt.entry.ms() >= future);
        relay.set_idle(read.attempt.entry, WORKER, ms(0)).await;
        assert_eq!(relay.reclaim().await, report(0, 0, 0));
        relay.set_idle(read.attempt.entry, WORKER, IDLE).await;
        assert_eq!(relay.reclaim().await, report(1, 0, 0));
        relay.assert_conserved().await;
    })
    .await;
}

#[tokio::test]
async fn a_topic_without_its_group_has_nothing_to_reclaim() {
    let relay = Relay::start("reclaim").await;
    let () = relay
        .command(cmd("DEL").arg(relay.key("ready:default")))
        .await;
    assert_eq!(relay.reclaim().await, report(0, 0, 0));
    relay.assert_drained().await;
}

/// Holds back the script of a reclaim that has already looked, and lets `meanwhile` run before it.
async fn reclaim_after(meanwhile: impl AsyncFnOnce(&Relay, &Broker, &Read)) {
    let server = Server::start();
    let relay = Relay::on(&server, &connection(&server).await, "reclaim", settings()).await;
    let other = connection(&server).await;
    let other = Broker::new(other, relay.broker().namespace().clone(), IDLE, None);
    other.set_virtual_now(relay.now());
    let mut admin = server.connection().await;
    // Redis must know both scripts: one that has to be loaded first would lose its place.
    let done = relay.hold("done").await;
    relay.settle(&done, Verdict::Ack).await;
    let crashed = relay.hold("crashed").await;
    relay.age(crashed.attempt.entry, WORKER, IDLE).await;
    assert_eq!(relay.reclaim().await, report(1, 0, 0));
    let read = relay.hold("a").await;
    relay.age(read.attempt.entry, WORKER, IDLE).await;
    // Writes are held back and run in their order when the pause ends; reads are answered.
    let () = relay
        .command(cmd("CLIENT").arg(&["PAUSE", "60000", "WRITE"]))
        .await;
    let mut held_back = async |count: usize| {
        let look = async || {
            let list = cmd("CLIENT").arg("LIST").query_async(&mut admin).await;
            let list: String = list.expect("a list");
            let blocked = |line: &&str| line.contains(" flags=b");
            match list.lines().filter(blocked).count() {
                found if found == count => Ok(()),
                _ => Err(list),
            }
        };
        eventually(ms(20_000), look).await;
    };
    let late = async {
        held_back(1).await;
        let resume = async {
            held_back(2).await;
            let () = relay.command(cmd("CLIENT").arg("UNPAUSE")).await;
        };
        tokio::join!(relay.reclaim(), resume).0
    };
    let ((), report) = tokio::join!(meanwhile(&relay, &other, &read), late);
    assert_eq!((report.kept, report.retry), (1, 0));
    relay.assert_conserved().await;
}

#[tokio::test]
async fn a_lease_that_was_renewed_since_the_look_is_kept() {
    reclaim_after(async |relay, other, read| {
        let (shard, entries) = (Shard::new(0), [read.attempt.entry]);
        let held = other
            .renew(relay.topic(), shard, relay.group(), WORKER, &entries)
            .await;
        assert_eq!(held.expect("renewed"), entries);
    })
    .await;
}

#[tokio::test]
async fn a_message_that_was_acked_since_the_look_stays_acked() {
    reclaim_after(async |relay, other, read| {
        let acks = [settlement(read, Verdict::Ack)];
        let settled = other
            .settle(relay.topic(), Shard::new(0), relay.group(), &acks)
            .await;
        assert_eq!(settled.expect("settled"), [Settled::Acked]);
    })
    .await;
}

#[tokio::test]
async fn large_messages_are_reclaimed_by_their_own_policies_without_a_fetch_of_their_payloads() {
    const LARGE: usize = 700 * 1024;
    let settings = TopicSettings {
        max_payload: Size::new(LARGE as u64),
        ..settings()
    };
    let relay = Relay::with("reclaim", settings).await;
    for name in ["a", "b", "c"] {
        let mut message = message(name, ms(0));
        message.record.payload = vec![b'x'; LARGE].into();
        message.record.max_attempts = Some(1);
        relay.send(&[message]).await;
    }
    let reads = relay.read(3).await;
    for read in &reads {
        start_handler(&relay, read).await;
        relay.age(read.attempt.entry, WORKER, IDLE).await;
    }
    assert_eq!(relay.reclaim().await, report(0, 3, 0));
    relay.assert_conserved().await;
}
