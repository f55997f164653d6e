//! The counts that operators see are those of all keys, at each step of a resharding.

use std::collections::BTreeMap;

use lisa_core::broker::{Migration, TopicStats, Verdict};
use lisa_core::topic::{Shard, TopicSettings};
use lisa_tests::Relay;
use lisa_tests::relay::{message, ms, settings, settlement};
use lisa_tests::snapshot::{Content, Snapshot};
use redis::Value;

use super::{HOUR, migrate_out, open, send};

/// The number of messages of a group in each state, as in `GroupStats::by_state`.
type ByState = [u64; 6];

/// Counts the messages of each group, one key at a time.
fn full_count(snapshot: &Snapshot) -> BTreeMap<String, ByState> {
    let mut counts: BTreeMap<String, ByState> = BTreeMap::new();
    for (key, content) in snapshot.iter() {
        let Some((_, name)) = key.split_once("}:") else {
            continue;
        };
        let Some((kind, group)) = name.split_once(':') else {
            continue;
        };
        let mut add = |state: usize, count: usize| {
            counts.entry(group.to_owned()).or_default()[state] += count as u64;
        };
        match (kind, content) {
            ("backlog", Content::Zset(members)) => add(0, members.len()),
            ("parked", Content::Zset(members)) => add(1, members.len()),
            ("ready", Content::Stream(stream)) => {
                let reader = &stream.groups[group.as_bytes()];
                let last = entry(&reader.last_delivered);
                let unread = stream.entries.iter().filter(|(id, _)| entry(id) > last);
                add(2, unread.count());
                add(3, reader.pending.len());
            }
            ("retry", Content::Zset(members)) => add(4, members.len()),
            ("garbage", Content::Zset(members)) => add(5, members.len()),
            _ => {}
        }
    }
    counts
}

/// Returns the time and the number of an entry.
fn entry(id: &str) -> (u64, u64) {
    let (time, number) = id.split_once('-').unwrap();
    (time.parse().unwrap(), number.parse().unwrap())
}

/// Checks the statistics of each group.
pub(super) async fn check(relay: &Relay, stats: &TopicStats) {
    let mut counts = full_count(&relay.snapshot().await);
    for group in &stats.groups {
        let counted = counts.remove(group.group.as_str()).unwrap_or_default();
        let seen = group.by_state().map(|(_, count)| count);
        assert_eq!(seen, counted, "{}", group.group);
    }
}

/// Returns the lag of a group of shard 0 as Redis knows it.
async fn lag(relay: &Relay, group: &str) -> Option<u64> {
    let key = relay.key(&format!("ready:{group}"));
    let rows: Vec<BTreeMap<String, Value>> = relay
        .command(redis::cmd("XINFO").arg("GROUPS").arg(key))
        .await;
    match rows[0]["lag"] {
        Value::Int(lag) => Some(u64::try_from(lag).unwrap()),
        _ => None,
    }
}

/// Returns the number of unread messages of a group on shard 0.
async fn unread(relay: &Relay, group: &str) -> u64 {
    let shard = relay.snapshot().await.below("v1:{t:0}");
    full_count(&shard).get(group).map_or(0, |counts| counts[2])
}

#[tokio::test]
async fn unread_messages_are_counted_right_and_redis_knows_the_lag() {
    let groups = ["busy", "slow"].map(|group| group.parse().unwrap());
    let settings = TopicSettings {
        groups: groups.into(),
        ..settings()
    };
    let relay = Relay::with("reshard", settings).await;
    for n in 0..180 {
        send(
            relay.broker(),
            relay.topic(),
            message(&format!("m-{n}"), ms(5)),
        )
        .await;
    }
    relay.step(10);
    for _ in 0..10 {
        relay.move_due(50).await;
    }
    // Deliveries of one group stay in flight on the old shard all the time.
    let reads = relay.read(4).await;
    let acked = [settlement(&reads[3], Verdict::Ack)];
    relay.settle_all(&acked).await;
    assert_eq!(unread(&relay, "busy").await, 176);
    assert_eq!(lag(&relay, "slow").await, Some(180));

    let topic = open(&relay, 2).await;
    let (mut migration, mut withdrawn) = (Migration::default(), 0);
    for n in 0.. {
        assert!(n < 500, "it comes to no end");
        send(
            relay.broker(),
            &topic,
            message(&format!("new-{n}"), ms(n % 20)),
        )
        .await;
        let before = unread(&relay, "slow").await;
        let step = relay
            .broker()
            .migrate_out(&topic, Shard::new(0), &mut migration)
            .await
            .unwrap();
        let left = unread(&relay, "slow").await;
        withdrawn += u32::from(left < before);
        assert_eq!(lag(&relay, "slow").await, Some(left));
        let stats = relay.broker().stats(&topic).await.unwrap();
        assert_eq!(stats.conservation_error, 0);
        check(&relay, &stats).await;
        if !step.more {
            break;
        }
        for shard in [1, 2].map(Shard::new) {
            relay
                .broker()
                .move_due(&topic, shard, 50, HOUR)
                .await
                .unwrap();
        }
    }
    assert!(withdrawn > 2, "in several steps");
    // Three are still in flight there.
    assert_eq!(unread(&relay, "busy").await, 0);
    assert_eq!(lag(&relay, "busy").await, Some(0));
    let late: Vec<_> = reads[..3]
        .iter()
        .map(|read| settlement(read, Verdict::Ack))
        .collect();
    relay.settle_all(&late).await;
    assert_eq!(migrate_out(relay.broker(), &topic).await, 0);
    let topic = relay.broker().known(topic.name()).unwrap();
    assert!(!topic.is_resharding());
    check(&relay, &relay.broker().stats(&topic).await.unwrap()).await;
}

#[tokio::test]
async fn a_group_does_not_pass_an_unread_entry() {
    let relay = Relay::start("reshard").await;
    // More than one call withdraws, with ids that follow each other.
    let key = relay.key("ready:default");
    for n in 0..60 {
        send(
            relay.broker(),
            relay.topic(),
            message(&format!("m-{n}"), ms(5)),
        )
        .await;
    }
    relay.step(10);
    relay.move_due(100).await;
    let entries = relay.entries().await;
    assert_eq!(entries.len(), 60);
    let script = "local all = redis.call('XRANGE', KEYS[1], '-', '+')
        redis.call('DEL', KEYS[1])
        for n, entry in ipairs(all) do redis.call('XADD', KEYS[1], '7-' .. n, unpack(entry[2])) end
        redis.call('XGROUP', 'CREATE', KEYS[1], 'default', '0')";
    let _: Value = relay
        .command(redis::cmd("EVAL").arg(script).arg(1).arg(key))
        .await;
    let topic = open(&relay, 2).await;
    assert_eq!(migrate_out(relay.broker(), &topic).await, 0);
    let topic = relay.broker().known(topic.name()).unwrap();
    let stats = relay.broker().stats(&topic).await.unwrap();
    let group = &stats.groups[0];
    assert_eq!(
        (group.retry + group.ready, stats.conservation_error),
        (60, 0)
    );
    assert_eq!(stats.counters.get("recovered"), None);
}
