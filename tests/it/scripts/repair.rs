//! repair: each fault, seeded by hand, is found without a change, repaired, and then not found again. Afterwards the
//! sums hold and every message is in one state.

mod deliveries;

use super::examine::{checkup, findings};
use super::stage::{Asking, SHARD, Stage, groups, name, reject};
use lisa_core::broker::{Examination, Fault, Outcome, Verdict};
use lisa_core::topic::TopicSettings;
use lisa_tests::relay::{WORKER, message, ms, retry};
use redis::cmd;

/// Runs a command on a key of the shard.
async fn by_hand(stage: &Stage, words: &[&str]) {
    let mut command = cmd(words[0]);
    command.arg(stage.key(words[1])).arg(&words[2..]);
    let _: redis::Value = stage.command(&command).await;
}

/// Examines without a change, repairs, and examines again: returns what was found and what was repaired.
async fn found_and_repaired(stage: &Stage) -> (Vec<String>, Vec<String>) {
    let before = stage.snapshot().await;
    let found = findings(&checkup(stage, false).await);
    assert_eq!(before.diff(&stage.snapshot().await), "");
    let repaired = checkup(stage, true).await;
    assert!(repaired.is_healthy(), "{repaired:#?}");
    let again = checkup(stage, false).await;
    assert_eq!(
        findings(&again),
        Vec::<String>::new(),
        "{}",
        stage.snapshot().await
    );
    stage.assert_whole().await;
    (found, findings(&repaired))
}

#[tokio::test]
async fn an_orphan_whose_waiting_place_is_gone_waits_again() {
    let stage = Stage::of(&["a", "b"]).await;
    stage
        .send(&[message("m", ms(9)).key("k"), message("n", ms(9))])
        .await;
    by_hand(&stage, &["DEL", "waiting"]).await;
    let (found, repaired) = found_and_repaired(&stage).await;
    assert_eq!(
        found,
        [
            "orphan m: nothing refers to it",
            "orphan n: nothing refers to it",
            "counters: 2 more were accepted than there are"
        ]
    );
    assert_eq!(
        repaired,
        [
            "orphan m: nothing refers to it; back to waiting, due as it was",
            "orphan n: nothing refers to it; back to waiting, due now"
        ]
    );
    assert_eq!(stage.states().await, ["waiting n@0, m@9"]);
    assert_eq!(stage.count("accepted").await, 2);
    stage.pass(9).await;
    assert_eq!(stage.drain("a").await, ["n", "m"]);
    assert_eq!(stage.drain("b").await, ["n", "m"]);
    stage.assert_nothing_is_left().await;
}

#[tokio::test]
async fn an_orphan_goes_back_to_the_groups_that_miss_it() {
    let stage = Stage::of(&["a", "b", "c"]).await;
    stage.put(&[message("m", ms(0)), message("n", ms(0))]).await;
    stage.handle("a").await;
    for group in ["b", "c"] {
        let key = stage.key(&format!("ready:{group}"));
        let entries: Vec<(String, Vec<String>)> = stage
            .command(cmd("XRANGE").arg(&key).arg("-").arg("+"))
            .await;
        let _: u64 = stage
            .command(cmd("XDEL").arg(&key).arg(&entries[0].0))
            .await;
    }
    let (found, repaired) = found_and_repaired(&stage).await;
    assert_eq!(
        found,
        [
            "orphan m: 2 groups owe it",
            "counters of b: 1 more were moved than there are",
            "counters of c: 1 more were moved than there are"
        ]
    );
    assert_eq!(
        repaired,
        ["orphan m: 2 groups owe it; back to retry:b, retry:c"]
    );
    stage.moved().await;
    assert_eq!(stage.drain("a").await, ["n"]);
    assert_eq!(stage.drain("b").await, ["n", "m"]);
    assert_eq!(stage.drain("c").await, ["n", "m"]);
    stage.assert_nothing_is_left().await;
}

#[tokio::test]
async fn an_orphan_that_was_in_garbage_goes_back_to_garbage() {
    let stage = Stage::of(&["a"]).await;
    stage.put(&[message("m", ms(0))]).await;
    stage.run("a", "m", reject()).await;
    by_hand(&stage, &["DEL", "garbage:a"]).await;
    let (found, repaired) = found_and_repaired(&stage).await;
    assert_eq!(
        found,
        [
            "orphan m: nothing refers to it",
            "garbage m of a: it has garbage_info and is not in garbage",
            "counters of a: 1 more were moved than there are"
        ]
    );
    assert_eq!(
        repaired[0],
        "orphan m: nothing refers to it; back to garbage:a"
    );
    assert_eq!(
        stage.states().await,
        ["garbage:a m@0", "garbage_info:a m=rejected 1 no good"]
    );
}

#[tokio::test]
async fn a_message_that_no_counter_knows_is_accepted() {
    let stage = Stage::of(&["a"]).await;
    by_hand(&stage, &["HSET", "payload", "m", "\u{1}\u{0}x"]).await;
    let (found, repaired) = found_and_repaired(&stage).await;
    assert_eq!(found, ["orphan m: nothing refers to it"]);
    assert_eq!(
        repaired,
        ["orphan m: nothing refers to it; back to waiting, due now"]
    );
    assert_eq!(stage.count("accepted").await, 1);
    stage.moved().await;
    assert_eq!(stage.drain("a").await, ["m"]);
}

#[tokio::test]
async fn a_ghost_is_removed_from_every_place_and_counted_as_lost() {
    let stage = Stage::with(TopicSettings {
        max_ready: Some(2),
        ..groups(&["a", "b"])
    })
    .await;
    stage
        .put(&[message("m1", ms(0)).key("k"), message("m2", ms(0)).key("k")])
        .await;
    stage
        .put(&[message("m3", ms(0)), message("m4", ms(0))])
        .await;
    stage.run("a", "m1", retry(ms(50))).await;
    stage.run("b", "m1", reject()).await;
    stage.send(&[message("m5", ms(99)).key("k")]).await;
    for ghost in ["m1", "m2", "m4", "m5"] {
        stage.lose_payload(ghost).await;
    }
    let (found, repaired) = found_and_repaired(&stage).await;
    assert_eq!(
        found,
        [
            "ghost m1: in retry:a, garbage:b",
            "ghost m2: in parked:a, backlog:b",
            "ghost m4: in ready:a, ready:b",
            "ghost m5: in waiting",
        ]
    );
    assert_eq!(repaired.len(), 4, "{repaired:?}");
    let lost = (stage.count("lost:a").await, stage.count("lost:b").await);
    assert_eq!(lost, (4, 4));
    assert_eq!(stage.drain("a").await, ["m3"]);
    assert_eq!(stage.drain("b").await, ["m3"]);
    stage.assert_nothing_is_left().await;
}

#[tokio::test]
async fn a_ghost_in_flight_is_taken_from_its_consumer() {
    let stage = Stage::of(&["a"]).await;
    stage.put(&[message("m", ms(0))]).await;
    stage.begin("a", "m").await;
    stage.lose_payload("m").await;
    let (found, repaired) = found_and_repaired(&stage).await;
    assert_eq!(found, ["ghost m of a: in in_flight:a"]);
    assert_eq!(
        repaired,
        ["ghost m of a: in in_flight:a; removed, and counted as lost"]
    );
    stage.assert_nothing_is_left().await;
}

#[tokio::test]
async fn of_two_places_the_one_furthest_along_is_kept() {
    let stage = Stage::of(&["a", "b"]).await;
    stage
        .put(&[
            message("m", ms(0)),
            message("n", ms(0)),
            message("o", ms(0)),
        ])
        .await;
    let read = stage.begin("a", "m").await;
    stage.run("b", "m", Verdict::Ack).await;
    by_hand(&stage, &["ZADD", "retry:a", "5", "m"]).await;
    by_hand(&stage, &["ZADD", "garbage:a", "5", "n"]).await;
    by_hand(&stage, &["HSET", "garbage_info:a", "n", "rejected 1 twice"]).await;
    by_hand(&stage, &["ZADD", "waiting", "5", "o"]).await;
    by_hand(
        &stage,
        &["XADD", "ready:b", "*", "i", "o", "a", "1", "d", "5"],
    )
    .await;
    let (found, repaired) = found_and_repaired(&stage).await;
    let twice = [
        "twice m: in retry:a, in_flight:a",
        "twice n: in garbage:a, ready:a, ready:b",
        "twice o: in waiting, ready:a, ready:b, ready:b",
    ];
    assert_eq!(found[..3], twice);
    assert_eq!(
        repaired,
        [
            "twice m: in retry:a, in_flight:a; kept in in_flight:a",
            "twice n: in garbage:a, ready:a, ready:b; kept in ready:a, ready:b",
            "twice o: in waiting, ready:a, ready:b, ready:b; kept in ready:a, ready:b",
        ]
    );
    stage.end("a", &read, Verdict::Ack).await;
    assert_eq!(stage.drain("a").await, ["n", "o"]);
    assert_eq!(stage.drain("b").await, ["n", "o"]);
}

#[tokio::test]
async fn a_copy_that_a_group_misses_is_put_back_and_a_wrong_count_is_repaired() {
    let stage = Stage::of(&["a", "b"]).await;
    stage
        .put(&[
            message("m", ms(0)),
            message("n", ms(0)),
            message("o", ms(0)),
        ])
        .await;
    for id in ["m", "n"] {
        stage.run("a", id, retry(ms(50))).await;
    }
    by_hand(&stage, &["ZREM", "retry:a", "m"]).await;
    by_hand(&stage, &["HSET", "left", "n", "5"]).await;
    by_hand(&stage, &["HDEL", "left", "o"]).await;
    let (found, repaired) = found_and_repaired(&stage).await;
    assert_eq!(
        found,
        [
            "left m: 2 is left, and 1 groups have it",
            "left n: 5 is left, and 2 groups have it",
            "left o: nothing is left, and 2 groups have it",
            "counters of a: 1 more were moved than there are"
        ]
    );
    assert_eq!(
        repaired,
        [
            "left m: 2 is left, and 1 groups have it; back to retry:a",
            "left n: 5 is left, and 2 groups have it; 2 is left",
            "left o: nothing is left, and 2 groups have it; 2 is left",
        ]
    );
    stage.pass(50).await;
    stage.drain("a").await;
    stage.drain("b").await;
    stage.assert_nothing_is_left().await;
}

#[tokio::test]
async fn what_is_kept_of_messages_that_are_gone_is_removed() {
    let stage = Stage::of(&["a"]).await;
    for what in ["left", "attempts:a", "garbage_info:a"] {
        by_hand(&stage, &["HSET", what, "gone", "1 0 x"]).await;
    }
    stage.send(&[message("m", ms(9)).key("k")]).await;
    let meta: Vec<u8> = stage
        .command(cmd("HGET").arg(stage.key("meta")).arg("m"))
        .await;
    let _: u64 = stage
        .command(cmd("HSET").arg(stage.key("meta")).arg("gone").arg(meta))
        .await;
    stage.cancel("m").await;
    by_hand(&stage, &["HSET", "merge", "k\0m", "gone"]).await;
    by_hand(&stage, &["ZADD", "bykey", "0", "k\0gone"]).await;
    by_hand(&stage, &["HSET", "holder:a", "k", "gone"]).await;
    by_hand(&stage, &["ZADD", "garbage_hook:a", "1", "gone"]).await;
    let (found, _) = found_and_repaired(&stage).await;
    assert_eq!(
        found,
        [
            "leftover gone: meta, left, attempts:a, garbage_info:a, garbage_hook:a",
            "key gone of a: its holder does not exist",
            "merge gone: its message does not exist",
            "index gone: its message does not exist",
        ]
    );
    stage.assert_nothing_is_left().await;
}

#[tokio::test]
async fn a_key_whose_holder_is_gone_goes_on() {
    let stage = Stage::of(&["a"]).await;
    stage
        .put(&["m1", "m2", "m3"].map(|id| message(id, ms(0)).key("k")))
        .await;
    by_hand(&stage, &["HSET", "holder:a", "k", "never"]).await;
    let m1 = stage.begin("a", "m1").await;
    stage.end("a", &m1, Verdict::Ack).await;
    assert_eq!(stage.ready("a").await, [""; 0]);
    let (found, repaired) = found_and_repaired(&stage).await;
    assert_eq!(found, ["key never of a: its holder does not exist"]);
    assert_eq!(
        repaired,
        ["key never of a: its holder does not exist; the key goes on with m2"]
    );
    assert_eq!(stage.drain("a").await, ["m2", "m3"]);
    stage.assert_nothing_is_left().await;
}

#[tokio::test]
async fn messages_that_are_parked_behind_nobody_go_on() {
    let stage = Stage::of(&["a"]).await;
    stage
        .put(&["m1", "m2", "m3"].map(|id| message(id, ms(0)).key("k")))
        .await;
    let m1 = stage.begin("a", "m1").await;
    by_hand(&stage, &["DEL", "holder:a"]).await;
    stage.end("a", &m1, Verdict::Ack).await;
    let (found, repaired) = found_and_repaired(&stage).await;
    assert_eq!(
        found,
        [
            "key m2 of a: its messages are parked without a holder",
            "key m3 of a: its messages are parked without a holder"
        ]
    );
    assert_eq!(repaired.len(), 1, "{repaired:?}");
    assert_eq!(stage.drain("a").await, ["m2", "m3"]);
    stage.assert_nothing_is_left().await;
}

#[tokio::test]
async fn a_message_on_its_way_gets_its_key_back() {
    let stage = Stage::of(&["a"]).await;
    stage.put(&[message("m1", ms(0)).key("k")]).await;
    by_hand(&stage, &["DEL", "holder:a"]).await;
    let (found, _) = found_and_repaired(&stage).await;
    assert_eq!(
        found,
        ["key m1 of a: it was released and does not hold its key"]
    );
    stage.put(&[message("m2", ms(0)).key("k")]).await;
    assert_eq!(stage.ready("a").await, ["m1"]);
    assert_eq!(stage.drain("a").await, ["m1", "m2"]);
    stage.assert_nothing_is_left().await;
}

#[tokio::test]
async fn a_merge_key_that_its_message_does_not_have_is_removed() {
    let stage = Stage::of(&["a"]).await;
    stage.send(&[message("m", ms(9)).merge("x")]).await;
    by_hand(&stage, &["HSET", "merge", "\0y", "m"]).await;
    let (found, _) = found_and_repaired(&stage).await;
    assert_eq!(found, ["merge m: it differs from the message"]);
    let sent = stage.sent(&[message("n", ms(9)).merge("x")]).await;
    assert_eq!(sent, ["merged m@9"]);
}

#[tokio::test]
async fn an_entry_of_the_index_under_another_key_is_removed() {
    let stage = Stage::with(TopicSettings {
        key_index: true,
        ..groups(&["a"])
    })
    .await;
    stage
        .send(&["m", "n"].map(|name| message(name, ms(9)).key("k")))
        .await;
    for entry in ["x\0m", "k\0gone"] {
        by_hand(&stage, &["ZADD", "bykey", "0", entry]).await;
    }
    let (found, _) = found_and_repaired(&stage).await;
    assert_eq!(
        found,
        [
            "index gone: its message does not exist",
            "index m: its key differs",
        ]
    );
    let left = stage.zset("bykey").await.into_keys();
    assert_eq!(left.collect::<Vec<_>>(), ["k\\x00m", "k\\x00n"]);
}

#[tokio::test]
async fn garbage_without_a_record_gets_one() {
    let stage = Stage::of(&["a"]).await;
    stage.put(&[message("m", ms(0)), message("n", ms(0))]).await;
    stage.run("a", "m", reject()).await;
    by_hand(&stage, &["DEL", "garbage_info:a"]).await;
    by_hand(&stage, &["HSET", "garbage_info:a", "n", "rejected 1 never"]).await;
    by_hand(&stage, &["ZADD", "garbage_hook:a", "1", "n"]).await;
    let (found, _) = found_and_repaired(&stage).await;
    assert_eq!(
        found,
        [
            "garbage m of a: it is in garbage without garbage_info",
            "garbage n of a: it has a pending garbage hook and is not in garbage",
            "garbage n of a: it has garbage_info and is not in garbage",
        ]
    );
    assert_eq!(
        stage.states().await[1],
        "garbage_info:a m=rejected 0 the reason is lost"
    );
    assert_eq!(stage.requeue("a", "m", 0).await, 1);
}

#[tokio::test]
async fn members_by_other_names_than_their_own_are_put_in_again() {
    let stage = Stage::with(TopicSettings {
        max_ready: Some(1),
        ..groups(&["a"])
    })
    .await;
    stage.put(&[message("m0", ms(0)).key("k")]).await;
    stage
        .put(&[
            message("parked", ms(0)).key("k"),
            message("held", ms(0)).key("l"),
        ])
        .await;
    stage.send(&[message("waits", ms(9)).key("m")]).await;
    for id in ["parked", "held", "waits"] {
        by_hand(&stage, &["HDEL", "meta", id]).await;
    }
    let (found, repaired) = found_and_repaired(&stage).await;
    assert_eq!(
        found,
        [
            "member held of a: in backlog:a under a name that is not its own",
            "member parked of a: in parked:a under a name that is not its own",
            "member waits: in waiting under a name that is not its own",
        ]
    );
    assert_eq!(
        repaired[3],
        "key held of a: its holder does not exist; the key is free"
    );
    assert_eq!(stage.cancel("waits").await, "cancelled");
    assert_eq!(stage.drain("a").await, ["m0", "parked", "held"]);
}

#[tokio::test]
async fn a_member_with_another_arrival_than_its_meta_is_renamed() {
    let stage = Stage::of(&["a"]).await;
    stage.send(&[message("m", ms(9)).key("k")]).await;
    stage.put(&[message("n", ms(0))]).await;
    stage.run("a", "n", retry(ms(70))).await;
    for (what, from, to) in [
        ("waiting", "~000000000001m", "~000000000007m"),
        ("retry:a", "n", "~000000000009n"),
    ] {
        by_hand(&stage, &["ZREM", what, from]).await;
        let due = stage.at(if what == "waiting" { 9 } else { 70 }).get();
        by_hand(&stage, &["ZADD", what, &due.to_string(), to]).await;
    }
    let (found, _) = found_and_repaired(&stage).await;
    assert_eq!(found.len(), 2, "{found:?}");
    assert_eq!(stage.cancel("m").await, "cancelled");
    stage.pass(70).await;
    assert_eq!(stage.drain("a").await, ["n"]);
    stage.assert_nothing_is_left().await;
}

#[tokio::test]
async fn a_repair_beside_a_key_of_a_wrong_type_changes_nothing() {
    let stage = Stage::of(&["a"]).await;
    stage.send(&[message("m", ms(9))]).await;
    by_hand(&stage, &["DEL", "waiting"]).await;
    for what in [
        "stats",
        "waiting",
        "payload",
        "meta",
        "merge",
        "bykey",
        "left",
        "tomb",
        "in_transit",
        "series",
        "series15",
        "observed",
        "failures",
        "ready:a",
        "retry:a",
        "attempts:a",
        "backlog:a",
        "parked:a",
        "holder:a",
        "garbage:a",
        "garbage_info:a",
        "garbage_hook:a",
    ] {
        let (key, aside) = (stage.key(what), stage.key("aside"));
        let exists: bool = stage.command(cmd("EXISTS").arg(&key)).await;
        if exists {
            let () = stage.command(cmd("RENAME").arg(&key).arg(&aside)).await;
        }
        by_hand(&stage, &["SET", what, "in the way"]).await;
        let before = stage.snapshot().await;
        let checkup = checkup(&stage, true).await;
        assert_eq!(checkup.findings.len(), 1, "{checkup:#?}");
        let finding = &checkup.findings[0];
        assert_eq!(
            (finding.fault, finding.outcome),
            (Fault::Type, Outcome::Found)
        );
        assert!(finding.seen.starts_with(&key), "{finding:?}");
        assert_eq!(before.diff(&stage.snapshot().await), "", "{what}");
        by_hand(&stage, &["DEL", what]).await;
        if exists {
            let () = stage.command(cmd("RENAME").arg(&aside).arg(&key)).await;
        }
    }
    let (_, repaired) = found_and_repaired(&stage).await;
    assert_eq!(repaired.len(), 1, "{repaired:?}");
}
