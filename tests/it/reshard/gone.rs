//! Calls that go through all shards, by a process that does not know yet that the old ones are gone.

use std::sync::Arc;
use std::time::Duration;

use super::{HOUR, migrate_out, open, send};
use lisa_core::broker::{
    Broker, Examination, Found, Membership, Removed, Retired, Retirement, TopicHandle, Verdict,
};
use lisa_core::state::{CancelOutcome, Settled, State};
use lisa_core::topic::{Group, Shard, TopicSettings};
use lisa_tests::relay::{connection, id, message, ms, settings};
use lisa_tests::{Relay, Server};

/// A process whose topic had two shards and gets three, as it knows it.
struct Late {
    relay: Relay,
    broker: Broker,
    topic: Arc<TopicHandle>,
    in_garbage: Vec<&'static str>,
}

impl Late {
    /// Two shards with messages in garbage, and one that waits; new shards are open, and nothing is migrated yet.
    async fn start() -> Self {
        let groups: [Group; 2] = ["default", "other"].map(|name| name.parse().unwrap());
        let settings = TopicSettings {
            shards: 2,
            groups: groups.to_vec(),
            ..settings()
        };
        let relay = Relay::with("gone", settings).await;
        // The messages of shard 0, whose deliveries the relay settles.
        let all = ["a", "b", "c", "d", "e", "f", "g", "h"];
        let of_first = |name: &&str| relay.topic().shard_of(&id(name)) == Shard::new(0);
        let in_garbage: Vec<&str> = all.into_iter().filter(of_first).take(3).collect();
        assert_eq!(in_garbage.len(), 3);
        for name in &in_garbage {
            relay.send(&[message(name, ms(0))]).await;
            relay.move_due(50).await;
            let read = relay.read_one().await;
            let error = "no good".to_owned();
            let settled = relay.settle(&read, Verdict::Reject { error }).await;
            assert_eq!(settled, Settled::Garbage);
        }
        send(relay.broker(), relay.topic(), message("waits", HOUR)).await;
        open(&relay, 3).await;
        let namespace = relay.broker().namespace().clone();
        let broker = Broker::new(connection(Server::shared()).await, namespace, HOUR, None);
        broker.set_virtual_now(relay.now());
        let topic = broker.topic(relay.topic().name()).await.unwrap();
        assert!(topic.is_resharding());
        Self {
            relay,
            broker,
            topic,
            in_garbage,
        }
    }

    /// Other processes remove the old shards.
    async fn drop_retired_keys(&self) {
        let broker = self.relay.broker();
        let topic = broker.known(self.topic.name()).unwrap();
        assert_eq!(migrate_out(broker, &topic).await, 0);
        let topic = broker.known(topic.name()).unwrap();
        assert!(!topic.is_resharding());
        broker.drop_retired_keys(&topic).await.unwrap();
        assert!(self.broker.known(topic.name()).unwrap().is_resharding());
    }

    /// Returns the numbers of shards that this process knows now.
    fn shards(&self) -> Vec<u16> {
        let topic = self.broker.known(self.topic.name()).unwrap();
        topic.shards().map(Shard::get).collect()
    }

    async fn listed(&self, cursor: Option<&str>, limit: usize) -> (Vec<String>, Option<String>) {
        let group = self.relay.group();
        let page = self
            .broker
            .list(&self.topic, group, State::Garbage, cursor, limit)
            .await
            .unwrap();
        let ids = page.items.iter().map(|item| item.id.to_string());
        (ids.collect(), page.next)
    }
}

async fn late() -> Late {
    let late = Late::start().await;
    late.drop_retired_keys().await;
    late
}

#[tokio::test]
async fn a_list_goes_on_when_the_shard_of_its_page_is_gone() {
    let late = Late::start().await;
    let (first, next) = late.listed(None, 1).await;
    late.drop_retired_keys().await;
    let (mut rest, end) = late.listed(next.as_deref(), 10).await;
    assert_eq!((first.len(), end), (1, None));
    // One that moved meanwhile is shown twice.
    rest.sort();
    assert_eq!(rest, late.in_garbage);
}

/// A process that knew only the old shards, and none of the new ones.
#[tokio::test]
async fn a_list_by_who_knew_only_the_old_shards_shows_what_the_new_ones_have() {
    let relay = Relay::start("gone").await;
    relay.put_in_garbage("m").await;
    let namespace = relay.broker().namespace().clone();
    let other = Broker::new(connection(Server::shared()).await, namespace, HOUR, None);
    let before = other.topic(relay.topic().name()).await.unwrap();
    let topic = open(&relay, 2).await;
    assert_eq!(migrate_out(relay.broker(), &topic).await, 0);
    let topic = relay.broker().known(topic.name()).unwrap();
    relay.broker().drop_retired_keys(&topic).await.unwrap();
    let page = other.list(&before, relay.group(), State::Garbage, None, 9);
    let items = page.await.unwrap().items;
    assert_eq!(items.len(), 1);
    assert_eq!(items[0].id, id("m"));
}

#[tokio::test]
async fn garbage_is_requeued_and_purged_that_was_seen_on_a_shard_that_is_gone() {
    let late = Late::start().await;
    let (broker, topic, group) = (&late.broker, &*late.topic, late.relay.group());
    let ids: Vec<_> = late.in_garbage.iter().map(|name| id(name)).collect();
    let seen = broker.in_garbage(topic, group, &ids).await.unwrap();
    assert_eq!(seen.len(), 3);
    late.drop_retired_keys().await;
    let requeued = broker.requeue(topic, group, &seen[..1]).await;
    assert_eq!(requeued.unwrap(), 1);
    assert_eq!(late.shards(), [2, 3, 4]);
    let purged = broker.purge(topic, group, &seen[1..]).await;
    assert_eq!(purged.unwrap(), 2);
    assert_eq!(broker.in_garbage(topic, group, &ids).await.unwrap(), []);
}

#[tokio::test]
async fn a_purge_is_the_first_to_notice_that_a_shard_is_gone() {
    let late = Late::start().await;
    let (broker, topic, group) = (&late.broker, &*late.topic, late.relay.group());
    let ids: Vec<_> = late.in_garbage.iter().map(|name| id(name)).collect();
    let seen = broker.in_garbage(topic, group, &ids).await.unwrap();
    late.drop_retired_keys().await;
    let purged = broker.purge(topic, group, &seen).await;
    assert_eq!(purged.unwrap(), 3);
}

#[tokio::test]
async fn garbage_is_looked_for_where_it_went() {
    let late = late().await;
    let ids: Vec<_> = late.in_garbage.iter().map(|name| id(name)).collect();
    let group = late.relay.group();
    let seen = late.broker.in_garbage(&late.topic, group, &ids).await;
    let mut seen: Vec<String> = seen.unwrap().iter().map(|(id, _)| id.to_string()).collect();
    seen.sort();
    assert_eq!(seen, late.in_garbage);
}

/// A message that is neither on its old shard nor on the new one yet is waited for.
#[tokio::test]
async fn garbage_that_is_on_its_way_is_requeued_when_it_has_arrived() {
    let late = Late::start().await;
    let (broker, topic, group) = (&late.broker, &*late.topic, late.relay.group());
    let ids = [id(late.in_garbage[0])];
    let seen = broker.in_garbage(topic, group, &ids).await.unwrap();
    // As left by a manager that stopped with the batch in its hands.
    let garbage = late.relay.key("garbage:default");
    let in_transit = late.relay.key("in_transit");
    let score = seen[0].1.get();
    for cmd in [
        redis::cmd("ZREM").arg(&garbage).arg(ids[0].as_str()),
        redis::cmd("HSET")
            .arg(&in_transit)
            .arg(ids[0].as_str())
            .arg("bundle"),
    ] {
        late.relay.command::<()>(cmd).await;
    }
    let requeue = broker.requeue(topic, group, &seen);
    tokio::pin!(requeue);
    let waited = tokio::time::timeout(Duration::from_millis(50), &mut requeue).await;
    assert!(waited.is_err(), "{waited:?}");
    for cmd in [
        redis::cmd("ZADD")
            .arg(&garbage)
            .arg(score)
            .arg(ids[0].as_str()),
        redis::cmd("HDEL").arg(&in_transit).arg(ids[0].as_str()),
    ] {
        late.relay.command::<()>(cmd).await;
    }
    late.drop_retired_keys().await;
    assert_eq!(requeue.await.unwrap(), 1);
}

#[tokio::test]
async fn an_examination_leaves_out_a_shard_that_is_gone() {
    let late = late().await;
    for repair in [false, true] {
        let how = Examination::of(&late.topic, repair);
        let checkup = late.broker.examine(&late.topic, how).await.unwrap();
        assert_eq!((checkup.findings, checkup.unclear), (vec![], 0));
        assert_eq!(checkup.messages, 4);
    }
}

#[tokio::test]
async fn counts_are_those_of_the_shards_that_are_there() {
    let late = late().await;
    let stats = late.broker.stats(&late.topic).await.unwrap();
    assert_eq!((stats.waiting, stats.migrating), (1, None));
    assert_eq!(stats.counters["accepted"], 4);
    assert_eq!(stats.conservation_error, 0);
    assert_eq!(late.shards(), [2, 3, 4]);
}

#[tokio::test]
async fn a_pause_reaches_the_shards_that_are_there() {
    let late = late().await;
    assert!(late.broker.pause(&late.topic, true).await.unwrap());
    let stats = late.broker.stats(&late.topic).await.unwrap();
    assert!(stats.paused);
}

#[tokio::test]
async fn a_group_is_paused_and_retired_on_the_shards_that_are_there() {
    let late = late().await;
    let (broker, topic) = (&late.broker, &*late.topic);
    let other: Group = "other".parse().unwrap();
    assert!(broker.pause_group(topic, &other, true).await.unwrap());
    let retired = broker.retire(topic, &other, Some(Retirement::Drop)).await;
    assert_eq!(retired.unwrap(), Retired::Done);
    let mut shards = broker.all_shards(topic);
    while let Some((topic, shard)) = shards.next().await.unwrap() {
        let removed = broker.remove_group(&topic, shard, &other).await.unwrap();
        assert!(!matches!(removed, Removed::Kept), "{shard}: {removed:?}");
    }
}

#[tokio::test]
async fn an_instance_joins_the_shards_that_are_there() {
    let late = late().await;
    let group = Group::for_instance();
    let joined = late.broker.join(&late.topic, &group).await.unwrap();
    assert_eq!(joined, Membership::Member);
    let newest = late.broker.known(late.topic.name()).unwrap();
    assert!(newest.groups().contains(&group));
    for shard in [2, 3, 4] {
        let conf = late.relay.snapshot().await;
        let conf = conf.hash(&late.relay.short_key(shard, "conf"));
        let lease = format!("instance:{group}");
        assert!(conf.keys().any(|field| field.0 == lease.as_bytes()));
    }
}

#[tokio::test]
async fn a_message_is_found_and_cancelled_on_the_shards_that_are_there() {
    let late = late().await;
    let (broker, topic) = (&late.broker, &*late.topic);
    let found = broker.lookup(topic, &id("waits"), None).await.unwrap();
    assert!(matches!(found, Found::Stored { .. }), "{found:?}");
    let cancelled = broker.cancel(topic, &id("waits"), None).await.unwrap();
    assert!(matches!(cancelled, CancelOutcome::Cancelled { .. }));
}
