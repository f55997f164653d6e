//! lookup: finds one message, in every state.

use super::stage::{Asking, Stage, groups, reject};
use lisa_core::broker::{Found, ListedMessage, NO_MANAGER, Verdict};
use lisa_core::message::Record;
use lisa_core::state::{End, GarbageReason, State};
use lisa_core::time::{UnixMs, When};
use lisa_core::topic::{OnGarbage, TopicSettings};
use lisa_tests::Relay;
use lisa_tests::relay::{START, WORKER, id, message, ms, retry};

async fn lookup(relay: &Relay, name: &str) -> Found {
    relay
        .broker()
        .lookup(relay.topic(), &id(name), None)
        .await
        .expect("an answer")
}

/// Looks a stored message up and checks its record.
async fn listed(relay: &Relay, name: &str) -> ListedMessage {
    match lookup(relay, name).await {
        Found::Stored { listed, record, .. } => {
            let record = Record::decode(record).expect("an answer");
            assert_eq!(record, message(name, When::NOW).record);
            listed
        }
        unknown => panic!("{name}: {unknown:?}"),
    }
}

fn expected(name: &str, state: State, after: u64, attempt: u32) -> ListedMessage {
    ListedMessage::new(id(name), state, Some(UnixMs::new(START + after)), attempt)
}

#[tokio::test]
async fn a_message_is_found_in_every_state() {
    let relay = Relay::start("lookup").await;
    relay.send(&[message("a", ms(10))]).await;
    assert_eq!(
        listed(&relay, "a").await,
        expected("a", State::Waiting, 10, 1)
    );
    relay.step(10);
    relay.move_due(200).await;
    assert_eq!(
        listed(&relay, "a").await,
        expected("a", State::Ready, 10, 1)
    );
    let read = relay.read_one().await;
    let held = ListedMessage {
        consumer: Some(WORKER.to_owned()),
        ..expected("a", State::InFlight, 10, 1)
    };
    assert_eq!(listed(&relay, "a").await, held);
    relay.settle(&read, retry(ms(20))).await;
    let failed = ListedMessage {
        error: Some("it failed".to_owned()),
        ..expected("a", State::Retry, 30, 2)
    };
    assert_eq!(listed(&relay, "a").await, failed);
    relay.step(20);
    relay.move_due(200).await;
    let read = relay.read_one().await;
    let error = "no good at all".to_owned();
    relay
        .settle(
            &read,
            Verdict::Reject {
                error: error.clone(),
            },
        )
        .await;
    let in_garbage = ListedMessage {
        reason: Some(GarbageReason::Rejected),
        error: Some(error),
        ..expected("a", State::Garbage, 30, 2)
    };
    assert_eq!(listed(&relay, "a").await, in_garbage);
    relay.assert_conserved().await;
}

#[tokio::test]
async fn an_unknown_message_says_how_it_ended() {
    let relay = Relay::start("lookup").await;
    let read = relay.hold("done").await;
    relay.settle(&read, Verdict::Ack).await;
    relay.send(&[message("stopped", ms(5))]).await;
    relay
        .broker()
        .cancel(relay.topic(), &id("stopped"), None)
        .await
        .unwrap();
    relay.put_in_garbage("bad").await;
    let seen = [(id("bad"), relay.now())];
    relay
        .broker()
        .purge(relay.topic(), relay.group(), &seen)
        .await
        .unwrap();
    let ends = [
        ("done", Some(End::Acked)),
        ("stopped", Some(End::Cancelled)),
        ("bad", Some(End::Purged)),
        ("never", None),
    ];
    for (name, end) in ends {
        let found = Found::Unknown {
            end: end.map(Into::into),
        };
        assert_eq!(lookup(&relay, name).await, found, "{name}");
    }
    relay.assert_drained().await;
}

#[tokio::test]
async fn a_message_far_behind_on_the_stream_is_found() {
    let relay = Relay::start("lookup").await;
    for part in 0..8 {
        let batch: Vec<_> = (0..200)
            .map(|n| message(&format!("m{part}-{n}"), When::NOW))
            .collect();
        relay.send(&batch).await;
    }
    let found = listed(&relay, "m7-199").await;
    assert_eq!(found, expected("m7-199", State::Ready, 0, 1));
    relay.assert_conserved().await;
}

/// Sends messages that are due now: `m00000`, `m00001` and so on.
async fn send_many(relay: &Relay, count: usize) {
    let names: Vec<String> = (0..count).map(|n| format!("m{n:05}")).collect();
    for names in names.chunks(200) {
        let batch: Vec<_> = names.iter().map(|name| message(name, When::NOW)).collect();
        relay.send(&batch).await;
    }
}

#[tokio::test]
async fn a_message_behind_more_entries_than_are_read_says_at_least_and_invents_no_time() {
    let relay = Relay::start("lookup").await;
    send_many(&relay, 10_002).await;
    let unread = |before: &str| {
        let group = relay.group();
        [format!(
            "{group}: ready, no consumer has read it yet; {before} before it"
        )]
    };
    assert_eq!(whys(&relay, "m09999").await, unread("9999"));
    assert_eq!(listed(&relay, "m09999").await.due_at, Some(relay.now()));
    assert_eq!(whys(&relay, "m10001").await, unread("at least 10000"));
    let behind = ListedMessage {
        due_at: None,
        ..expected("m10001", State::Ready, 0, 1)
    };
    assert_eq!(listed(&relay, "m10001").await, behind);
    assert_eq!(relay.read(3).await.len(), 3);
    assert_eq!(whys(&relay, "m09999").await, unread("9996"));
    assert_eq!(whys(&relay, "m10001").await, unread("at least 9997"));
    relay.assert_conserved().await;
}

#[tokio::test]
async fn a_group_that_may_be_done_with_a_message_far_behind_says_so() {
    let stage = Stage::of(&["a", "b"]).await;
    send_many(&stage, 5002).await;
    while stage.moved().await.0 > 0 {}
    let all = |why: &str| ["a", "b"].map(|group| format!("{group}: {why}"));
    let unread = "ready, no consumer has read it yet; at least 5000 before it";
    assert_eq!(whys(&stage, "m05001").await, all(unread));
    let reads = stage.take("a", 5002).await;
    let either = "on the stream, ready or in flight; at least 5000 before it";
    let mut expected = all(unread);
    expected[0] = format!("a: {either}");
    assert_eq!(whys(&stage, "m05001").await, expected);
    let last = reads.last().expect("all were read");
    stage.end("a", last, Verdict::Ack).await;
    let Found::Stored {
        listed, details, ..
    } = lookup(&stage, "m05001").await
    else {
        panic!("b owes it");
    };
    assert_eq!((listed.state, listed.due_at), (State::Ready, None));
    let states = details.copies.iter().map(|copy| copy.state());
    assert_eq!(states.collect::<Vec<_>>(), ["unknown", "unknown"]);
    let done = "done, or on the stream with at least 5000 before it";
    assert_eq!(whys(&stage, "m05001").await, all(done));
}

#[tokio::test]
async fn a_lookup_changes_nothing() {
    let relay = Relay::start("lookup").await;
    relay.put_in_garbage("dead").await;
    relay.hold("held").await;
    let before = relay.snapshot().await;
    for name in ["dead", "held", "never"] {
        lookup(&relay, name).await;
    }
    assert_eq!(before.diff(&relay.snapshot().await), "");
    relay.assert_conserved().await;
}

/// Returns the reason why a message waits in each group.
async fn whys(relay: &Relay, name: &str) -> Vec<String> {
    match lookup(relay, name).await {
        Found::Stored { details, .. } => {
            let copies = details.copies.into_iter();
            copies
                .map(|copy| format!("{}: {}", copy.group, copy.why))
                .collect()
        }
        unknown => panic!("{name}: {unknown:?}"),
    }
}

#[tokio::test]
async fn a_message_says_what_its_sender_asked_for() {
    let stage = Stage::of(&["a", "b"]).await;
    let asking = message("m", ms(10))
        .key("k")
        .merge("x")
        .priority(-3)
        .ttl(50);
    stage.send(&[asking]).await;
    let Found::Stored {
        listed, details, ..
    } = lookup(&stage, "m").await
    else {
        panic!("it is stored");
    };
    assert_eq!(details.due, Some(UnixMs::new(START + 10)));
    assert_eq!(details.expires, Some(UnixMs::new(START + 60)));
    assert_eq!(details.priority, -3);
    assert_eq!(listed.key, Some("k".parse().unwrap()));
    assert_eq!(details.merge_key.as_deref(), Some("x"));
    let groups: Vec<_> = details
        .copies
        .iter()
        .map(|copy| copy.group.as_str())
        .collect();
    assert_eq!(groups, ["a", "b"]);
}

#[tokio::test]
async fn a_message_says_why_it_has_not_run_in_each_group() {
    let stage = Stage::of(&["a", "b", "c", "d"]).await;
    stage.pause_group("b", true).await;
    let at = |after| stage.at(after);
    let due = at(5);
    stage
        .send(&["m1", "m2"].map(|name| message(name, ms(5)).key("k")))
        .await;
    let all = |why: &str| ["a", "b", "c", "d"].map(|group| format!("{group}: {why}"));
    let mut expected = all(&format!("not due before {due}"));
    expected[1] += "; the group is paused";
    assert_eq!(whys(&stage, "m1").await, expected);
    stage.step(5);
    stage
        .broker()
        .heartbeat("manager", ms(60_000))
        .await
        .unwrap();
    let mut expected = all("due, not yet moved");
    expected[1] += "; the group is paused";
    assert_eq!(whys(&stage, "m1").await, expected);
    stage.moved().await;
    stage.begin("a", "m1").await;
    stage.run("c", "m1", retry(ms(50))).await;
    stage.run("d", "m1", reject()).await;
    let later = stage.at(50);
    assert_eq!(
        whys(&stage, "m1").await,
        [
            "a: worker runs attempt 1".to_owned(),
            "b: held back; the group is paused".to_owned(),
            format!("c: attempt 2 is due at {later}"),
            "d: in garbage after 1 attempt: rejected: no good".to_owned(),
        ]
    );
    assert_eq!(
        whys(&stage, "m2").await,
        [
            "a: behind m1 of the same ordering key",
            "b: behind m1 of the same ordering key",
            "c: behind m1 of the same ordering key",
            "d: ready, no consumer has read it yet; 0 before it"
        ]
    );
    stage.run("d", "m2", Verdict::Ack).await;
    assert_eq!(
        whys(&stage, "m2").await[3],
        "d: done, or never due for this group"
    );
    stage.assert_whole().await;
}

#[tokio::test]
async fn a_message_behind_a_window_or_a_rate_says_so() {
    let stage = Stage::with(TopicSettings {
        max_ready: Some(1),
        ..groups(&["a"])
    })
    .await;
    stage
        .put(&["m1", "m2", "m3"].map(|name| message(name, ms(0))))
        .await;
    assert_eq!(
        whys(&stage, "m3").await,
        ["a: the window is full: 1 ready or in flight; 1 before it"]
    );
    let stage = Stage::with(TopicSettings {
        rate: Some("10/s".parse().unwrap()),
        burst: Some(1),
        ..groups(&["a"])
    })
    .await;
    stage
        .put(&["m1", "m2", "m3"].map(|name| message(name, ms(0))))
        .await;
    let free = stage.at(100);
    assert_eq!(
        whys(&stage, "m3").await,
        [format!(
            "a: the rate lets the next one through at {free}; 1 before it"
        )]
    );
}

#[tokio::test]
async fn what_stands_behind_a_message_in_garbage_says_so_until_that_is_gone() {
    let stage = Stage::with(TopicSettings {
        on_garbage: OnGarbage::Block,
        ..groups(&["a"])
    })
    .await;
    stage
        .put(&["m1", "m2"].map(|name| message(name, ms(0)).key("k")))
        .await;
    assert_eq!(
        whys(&stage, "m2").await,
        ["a: behind m1 of the same ordering key"]
    );
    stage.run("a", "m1", reject()).await;
    assert_eq!(
        whys(&stage, "m2").await,
        ["a: blocked by m1 of the same ordering key, which is in garbage: requeue or purge it"]
    );
    stage.purge("a", "m1", 0).await;
    assert_eq!(
        whys(&stage, "m2").await,
        ["a: ready, no consumer has read it yet; 0 before it"]
    );
}

#[tokio::test]
async fn an_overdue_message_says_that_no_manager_is_running() {
    let stage = Stage::of(&["a"]).await;
    let due = stage.at(5);
    stage.send(&[message("m", ms(5))]).await;
    let early = format!("a: not due before {due}");
    assert_eq!(whys(&stage, "m").await, [early]);
    stage.step(5);
    let late = format!("a: due, not yet moved; {NO_MANAGER}");
    assert_eq!(whys(&stage, "m").await, [late]);
    stage
        .broker()
        .heartbeat("manager", ms(60_000))
        .await
        .unwrap();
    assert_eq!(whys(&stage, "m").await, ["a: due, not yet moved"]);
    stage.broker().heartbeat("manager", ms(0)).await.unwrap();
    stage.moved().await;
    stage.run("a", "m", retry(ms(50))).await;
    let later = stage.at(50);
    let retried = format!("a: attempt 2 is due at {later}");
    assert_eq!(whys(&stage, "m").await, [retried.as_str()]);
    stage.step(50);
    let late = format!("{retried}; {NO_MANAGER}");
    assert_eq!(whys(&stage, "m").await, [late]);
}

#[tokio::test]
async fn a_copy_that_may_go_on_says_so_and_not_that_a_window_is_full() {
    let stage = Stage::with(TopicSettings {
        rate: Some("10/s".parse().unwrap()),
        burst: Some(1),
        ..groups(&["a"])
    })
    .await;
    stage
        .put(&["m1", "m2"].map(|name| message(name, ms(0))))
        .await;
    stage.step(100);
    assert_eq!(
        whys(&stage, "m2").await,
        ["a: eligible, not yet moved; 0 before it"]
    );
}

#[tokio::test]
async fn a_ready_message_says_how_many_go_before_it_that_nobody_has_read() {
    let stage = Stage::of(&["a"]).await;
    stage
        .put(&["m1", "m2", "m3", "m4"].map(|name| message(name, ms(0))))
        .await;
    let why = |before| format!("a: ready, no consumer has read it yet; {before} before it");
    assert_eq!(whys(&stage, "m4").await, [why(3)]);
    assert_eq!(stage.take("a", 2).await.len(), 2);
    assert_eq!(whys(&stage, "m4").await, [why(1)]);
    assert_eq!(whys(&stage, "m3").await, [why(0)]);
}

#[tokio::test]
async fn a_paused_topic_is_named_before_anything_else() {
    let stage = Stage::of(&["a"]).await;
    stage
        .put(&["m1", "m2"].map(|name| message(name, ms(0)).key("k")))
        .await;
    stage.broker().pause(stage.topic(), true).await.unwrap();
    stage.run("a", "m1", Verdict::Ack).await;
    assert_eq!(
        whys(&stage, "m2").await,
        ["a: held back; the topic is paused"]
    );
}

#[tokio::test]
async fn a_message_is_listed_where_the_first_group_that_owes_it_has_it() {
    let stage = Stage::of(&["a", "b"]).await;
    stage.put(&[message("m", ms(0))]).await;
    stage.run("a", "m", Verdict::Ack).await;
    assert_eq!(listed(&stage, "m").await, expected("m", State::Ready, 0, 1));
    stage.run("b", "m", Verdict::Ack).await;
    let end = Some(End::Acked.into());
    assert_eq!(lookup(&stage, "m").await, Found::Unknown { end });
}
