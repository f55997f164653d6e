//! Managers and operators that stopped during a resharding, and continue when it is long over.

use std::time::Duration;

use lisa_core::broker::{
    Broker, BrokerError, Declare, Examination, Migration, Removal, ShardRemoval, Verdict,
};
use lisa_core::redis::{Connection, ConnectionSettings};
use lisa_core::topic::{Shard, TopicSettings};
use lisa_tests::proxy::{FaultProxy, Mode};
use lisa_tests::relay::{connection, id, message, ms, retry, settings, settlement};
use lisa_tests::{Relay, SOON, Server, eventually};
use redis::cmd;
use tokio_util::sync::CancellationToken;

use super::{HOUR, migrate_out, open, send};

const CALL_TIMEOUT: Duration = Duration::from_secs(5);

/// A broker whose calls take long, behind a proxy that can hold them up.
pub(super) async fn slow(server: &Server, relay: &Relay) -> (Broker, FaultProxy) {
    let proxy = FaultProxy::start(server.port()).await;
    let url = server.url_through(&proxy).parse().unwrap();
    let connection =
        Connection::new(ConnectionSettings::new(url), &CancellationToken::new()).unwrap();
    connection.wait_up(SOON).await.unwrap();
    let namespace = relay.broker().namespace().clone();
    let broker = Broker::new(connection, namespace, CALL_TIMEOUT, None);
    broker.set_virtual_now(relay.now());
    broker.topic(relay.topic().name()).await.unwrap();
    proxy.set(Mode::Delay(ms(100))).await;
    (broker, proxy)
}

#[tokio::test]
async fn a_manager_that_stopped_with_a_batch_in_its_hands_puts_nothing_in_once_all_is_over() {
    let server = Server::start();
    let mut relay = Relay::on(&server, &connection(&server).await, "stale", settings()).await;
    send(relay.broker(), relay.topic(), message("m", ms(1000))).await;
    let topic = open(&relay, 2).await;
    let (stale, proxy) = slow(&server, &relay).await;
    let known = topic.clone();
    let step = tokio::spawn(async move {
        let mut migration = Migration::default();
        let step = stale
            .migrate_out(&known, Shard::new(0), &mut migration)
            .await;
        (step, migration)
    });
    let in_transit = relay.short_key(0, "in_transit");
    eventually(SOON, async || there(&relay, &in_transit).await).await;
    proxy.set(Mode::BlackHole).await;
    assert_eq!(migrate_out(relay.broker(), &topic).await, 0);
    let topic = relay.broker().known(topic.name()).unwrap();
    assert!(!topic.is_resharding());
    relay.step(2000);
    relay.set_topic(topic.clone());
    let shard = topic.shard_of_message(&message("m", ms(0)));
    relay
        .broker()
        .move_due(&topic, shard, 50, CALL_TIMEOUT)
        .await
        .unwrap();
    let read = relay.read_as(shard, "worker", 1).await.pop().unwrap();
    let acked = settlement(&read, Verdict::Ack);
    relay
        .broker()
        .settle(&topic, shard, relay.group(), &[acked])
        .await
        .unwrap();
    proxy.set(Mode::Pass).await;
    step.await.unwrap().0.unwrap();
    let stats = relay.broker().stats(&topic).await.unwrap();
    assert_eq!((stats.waiting, stats.conservation_error), (0, 0));
    assert_eq!(stats.groups[0].retry, 0);
}

/// Calls of a manager that does not know of the second resharding and cleans up after the first.
#[tokio::test]
async fn who_clears_away_late_leads_nobody_back() {
    let relay = Relay::start("stale").await;
    send(relay.broker(), relay.topic(), message("m", HOUR)).await;
    let topic = open(&relay, 2).await;
    migrate_out(relay.broker(), &topic).await;
    let first = relay.broker().known(topic.name()).unwrap();
    let second = open(&relay, 3).await;
    relay.broker().drop_retired_keys(&first).await.unwrap();
    let known = relay.broker().known(topic.name()).unwrap();
    assert_eq!(
        known.shards().collect::<Vec<_>>(),
        second.shards().collect::<Vec<_>>()
    );
    assert_eq!(migrate_out(relay.broker(), &known).await, 0);
    let known = relay.broker().known(topic.name()).unwrap();
    assert_eq!(
        known.shards().collect::<Vec<_>>(),
        [3, 4, 5].map(Shard::new)
    );
    assert_eq!(relay.broker().stats(&known).await.unwrap().waiting, 1);
}

/// Calls of a process that does not know of the resharding yet.
#[tokio::test]
async fn a_doctor_that_knows_only_the_old_shards_examines_the_new_ones() {
    let relay = Relay::start("stale").await;
    send(relay.broker(), relay.topic(), message("m", HOUR)).await;
    let namespace = relay.broker().namespace().clone();
    let late = Broker::new(
        connection(Server::shared()).await,
        namespace,
        CALL_TIMEOUT,
        None,
    );
    late.set_virtual_now(relay.now());
    let old = late.topic(relay.topic().name()).await.unwrap();
    let topic = open(&relay, 2).await;
    migrate_out(relay.broker(), &topic).await;
    let topic = relay.broker().known(topic.name()).unwrap();
    relay.broker().drop_retired_keys(&topic).await.unwrap();
    let examined = late.examine(&old, Examination::of(&old, false)).await;
    let checkup = examined.unwrap();
    assert!(checkup.is_healthy(), "{checkup:#?}");
    assert_eq!(checkup.messages, 1);
}

#[tokio::test]
async fn an_operator_who_goes_on_after_the_end_begins_nothing_again() {
    late_operator(false).await;
}

#[tokio::test]
async fn an_operator_who_goes_on_after_the_next_resharding_leads_nobody_back() {
    late_operator(true).await;
}

/// One stops when a new shard is declared and not yet opened; others continue, to the end of the next resharding if
/// `again` is set.
async fn late_operator(again: bool) {
    let server = Server::start();
    let relay = Relay::on(&server, &connection(&server).await, "stale", settings()).await;
    send(relay.broker(), relay.topic(), message("m", HOUR)).await;
    let (stale, proxy) = slow(&server, &relay).await;
    let name = relay.topic().name().clone();
    let late = tokio::spawn(async move { stale.reshard(&name, 2).await });
    let declared = relay.short_key(1, "conf");
    eventually(SOON, async || there(&relay, &declared).await).await;
    proxy.set(Mode::BlackHole).await;
    let mut shards = vec![1, 2];
    let topic = open(&relay, 2).await;
    migrate_out(relay.broker(), &topic).await;
    if again {
        let topic = relay.broker().known(topic.name()).unwrap();
        relay.broker().drop_retired_keys(&topic).await.unwrap();
        shards = vec![3, 4, 5];
        let topic = open(&relay, 3).await;
        migrate_out(relay.broker(), &topic).await;
        let topic = relay.broker().known(topic.name()).unwrap();
        relay.broker().drop_retired_keys(&topic).await.unwrap();
    }
    proxy.set(Mode::Pass).await;
    // Its result does not matter.
    let _ = late.await.unwrap();
    let namespace = relay.broker().namespace().clone();
    let fresh = Broker::new(connection(&server).await, namespace, CALL_TIMEOUT, None);
    let found = fresh.topic(topic.name()).await.unwrap();
    assert_eq!(
        found.shards().map(Shard::get).collect::<Vec<_>>(),
        shards,
        "{:?}",
        relay.snapshot().await
    );
    assert_eq!(fresh.stats(&found).await.unwrap().waiting, 1);
}

/// One stops before the resharding begins. Meanwhile the topic is removed, and created with fewer shards.
#[tokio::test]
async fn an_operator_who_goes_on_with_another_topic_leaves_no_resharding_without_an_end() {
    // After each of the reads that come before.
    futures_util::future::join_all((1..=9).map(late_reshard)).await;
}

async fn late_reshard(reads: u64) {
    let server = Server::start();
    let of_shards = |shards| TopicSettings {
        shards,
        ..settings()
    };
    let connected = connection(&server).await;
    let relay = Relay::on(&server, &connected, "stale", of_shards(3)).await;
    let (stale, _proxy) = slow(&server, &relay).await;
    let (broker, name) = (relay.broker(), relay.topic().name().clone());
    let () = relay.command(cmd("CONFIG").arg("RESETSTAT")).await;
    let of = name.clone();
    let late = tokio::spawn(async move { stale.reshard(&of, 4).await });
    eventually(SOON, async || have_been_made(&relay, reads).await).await;
    match broker.remove_topic(&name, Removal::Force, None).await {
        // It has begun.
        Err(BrokerError::Resharding { .. }) => return drop(late.await.unwrap().unwrap()),
        begun => assert_eq!(begun.unwrap(), Removal::Force),
    }
    let topic = broker.newest(&name).await.unwrap();
    for shard in [1, 2, 0].map(Shard::new) {
        let removed = broker.remove_shard(&topic, shard).await;
        assert_eq!(removed.unwrap(), ShardRemoval::Gone);
    }
    let created = broker.declare(&name, &of_shards(2), Declare::Update).await;
    send(broker, &created.unwrap(), message("m", HOUR)).await;
    // It may reshard the new topic, or not.
    let _ = late.await.unwrap();
    let topic = broker.newest(&name).await.unwrap();
    assert_eq!(migrate_out(broker, &topic).await, 0);
    let topic = broker.newest(&name).await.unwrap();
    assert!(!topic.is_resharding(), "after {reads} reads: {topic:?}");
    assert_eq!(broker.stats(&topic).await.unwrap().waiting, 1);
    broker.drop_retired_keys(&topic).await.unwrap();
    let removed = broker.remove_topic(&name, Removal::Force, None).await;
    assert_eq!(removed.unwrap(), Removal::Force, "after {reads} reads");
}

/// Returns whether Redis has run so many `HMGET`, with which a process reads what a topic is like.
async fn have_been_made(relay: &Relay, reads: u64) -> Result<(), String> {
    let stats: String = relay.command(cmd("INFO").arg("commandstats")).await;
    let calls = stats
        .split_once("cmdstat_hmget:calls=")
        .map_or("0", |(_, rest)| rest.split(',').next().unwrap_or_default());
    match calls.parse::<u64>().unwrap() >= reads {
        true => Ok(()),
        false => Err(format!("{calls} of {reads} reads")),
    }
}

/// It knows of the first resharding, and reports its end when the second one is over, too.
#[tokio::test]
async fn a_manager_that_ends_a_resharding_late_leaves_the_shards_of_the_next_one_to_be_removed() {
    let relay = Relay::start("stale").await;
    send(relay.broker(), relay.topic(), message("m", HOUR)).await;
    let topic = open(&relay, 2).await;
    let namespace = relay.broker().namespace().clone();
    let late = Broker::new(
        connection(Server::shared()).await,
        namespace,
        CALL_TIMEOUT,
        None,
    );
    late.set_virtual_now(relay.now());
    let known = late.topic(topic.name()).await.unwrap();
    assert_eq!(migrate_out(relay.broker(), &topic).await, 0);
    let topic = open(&relay, 3).await;
    assert_eq!(migrate_out(relay.broker(), &topic).await, 0);
    let mut migration = Migration::default();
    let step = late
        .migrate_out(&known, Shard::new(0), &mut migration)
        .await;
    assert_eq!(step.unwrap().left, 0);
    let namespace = relay.broker().namespace().clone();
    let fresh = Broker::new(
        connection(Server::shared()).await,
        namespace,
        CALL_TIMEOUT,
        None,
    );
    fresh.set_virtual_now(relay.now());
    let topic = fresh.topic(topic.name()).await.unwrap();
    assert_eq!(topic.retired(), Some(0..3));
    fresh.drop_retired_keys(&topic).await.unwrap();
    let snapshot = relay.snapshot().await;
    let is_old = |key: &&str| (0..3).any(|n| key.starts_with(&format!("v1:{{t:{n}}}")));
    let left: Vec<&str> = snapshot.iter().map(|(key, _)| key).filter(is_old).collect();
    assert_eq!(left, ["v1:{t:0}:conf"]);
    let topic = fresh.topic(topic.name()).await.unwrap();
    assert_eq!(topic.retired(), None);
    assert_eq!(fresh.stats(&topic).await.unwrap().waiting, 1);
}

/// Returns whether a key exists.
pub(super) async fn there(relay: &Relay, key: &str) -> Result<(), String> {
    match relay.snapshot().await.get(key) {
        Some(_) => Ok(()),
        None => Err(format!("no {key}")),
    }
}

/// Like the failover of a cluster node to a lagging replica, while those of the new shards stay.
#[tokio::test]
async fn an_old_shard_that_goes_back_in_time_loses_nothing_that_it_has() {
    let relay = Relay::start("stale").await;
    // Both go to the same one of the new shards.
    let mut names = (0..)
        .map(|n| format!("m-{n}"))
        .filter(|name| id(name).route().is_multiple_of(2));
    let [gone, here] = [names.next().unwrap(), names.next().unwrap()];
    send(relay.broker(), relay.topic(), message(&gone, HOUR)).await;
    let held = relay.hold(&here).await;
    let topic = open(&relay, 2).await;
    assert_eq!(migrate_out(relay.broker(), &topic).await, 2);
    let settled = [settlement(&held, retry(ms(0)))];
    let settled = relay
        .broker()
        .settle(&topic, Shard::new(0), relay.group(), &settled);
    settled.await.unwrap();
    let mut forget = redis::cmd("HDEL");
    forget.arg(relay.key("conf")).arg("batch");
    relay.command::<()>(&forget).await;
    relay.step(1);
    assert_eq!(migrate_out(relay.broker(), &topic).await, 0);
    let stats = relay.broker().stats(&topic).await.unwrap();
    assert_eq!((stats.waiting, stats.groups[0].retry), (1, 1));
}

/// Old shards redirect to those of the second resharding, even if the manager that removes them does not know of it.
#[tokio::test]
async fn old_shards_are_removed_while_the_topic_is_resharded_again() {
    let relay = Relay::start("reshard").await;
    let before = open(&relay, 2).await;
    migrate_out(relay.broker(), &before).await;
    let first = relay.broker().known(before.name()).unwrap();
    assert!(!first.is_resharding());
    let second = open(&relay, 3).await;
    relay.broker().drop_retired_keys(&first).await.unwrap();
    let topic = relay.broker().known(first.name()).unwrap();
    assert!(topic.is_resharding());
    assert_eq!(topic.first_shard(), Shard::new(1));
    send(relay.broker(), &topic, message("m", HOUR)).await;
    assert_eq!(migrate_out(relay.broker(), &second).await, 0);
    let topic = relay.broker().known(first.name()).unwrap();
    assert!(!topic.is_resharding());
    assert_eq!(topic.retired(), Some(1..3));
    // The one that knew of the first resharding is slow, and repeats it.
    relay.broker().drop_retired_keys(&first).await.unwrap();
    let topic = relay.broker().known(first.name()).unwrap();
    assert_eq!(topic.retired(), Some(1..3));
    relay.broker().drop_retired_keys(&topic).await.unwrap();
    let topic = relay.broker().known(first.name()).unwrap();
    assert_eq!((topic.retired(), topic.settings().shards), (None, 3));
    let stats = relay.broker().stats(&topic).await.unwrap();
    assert_eq!((stats.waiting, stats.conservation_error), (1, 0));
}
