//! A slot that moves, with the last contents of its keys: Redis ends a script that touches a key again which it has
//! emptied, and earlier writes stay.

use lisa_core::broker::{Broker, Moved, Verdict};
use lisa_core::message::EntryId;
use lisa_core::redis::{Connection, ConnectionSettings};
use lisa_core::state::Settled;
use lisa_core::time::UnixMs;
use lisa_core::topic::Shard;
use lisa_tests::relay::{START, id, message, ms, retry, settings};
use lisa_tests::{Aof, Cluster, Relay, SOON};
use redis::cmd;
use std::time::Duration;
use tokio_util::sync::CancellationToken;

const SHARD: Shard = Shard::new(0);

/// Relays of several namespaces, whose shards are all in one slot.
struct Slot {
    cluster: Cluster,
    connection: Connection,
    master: usize,
    slot: u16,
}

impl Slot {
    async fn of(key: &str) -> Self {
        let cluster = Cluster::start(Aof::Off).await;
        let slot = cluster.slot_of(key).await;
        let master = cluster.master_of(slot).await;
        let url = cluster.url().parse().expect("a redis address");
        let connection = Connection::new(ConnectionSettings::new(url), &CancellationToken::new())
            .expect("a connection");
        connection.wait_up(SOON).await.expect("redis answers");
        Self {
            cluster,
            connection,
            master,
            slot,
        }
    }

    async fn relay(&self, stem: &str) -> Relay {
        let node = &self.cluster.nodes()[self.master];
        Relay::on(node, &self.connection, stem, settings()).await
    }

    async fn begin_move(&self) {
        let to = (self.master + 1) % 3;
        self.cluster.begin_move(self.slot, to).await;
    }
}

/// Lets the first attempt at a message fail, so that it is in retry.
async fn fail(relay: &Relay, name: &str) {
    let read = relay.hold(name).await;
    relay.settle(&read, retry(ms(5))).await;
}

/// From the first subscription on, garbage is noted for hooks.
async fn enable_garbage_hook(relay: &Relay) {
    let (broker, topic) = (relay.broker(), relay.topic());
    let taken = broker.take_garbage_hooks(topic, SHARD, relay.group(), 1, ms(0));
    assert!(taken.await.unwrap().0.is_empty());
}

#[tokio::test]
async fn plain_scripts_touch_no_key_that_they_have_emptied() {
    let here = Slot::of("{t:0}").await;

    let moving = here.relay("moving").await;
    fail(&moving, "failed").await;
    moving.send(&[message("waiting", ms(5))]).await;
    moving.step(5);

    let acking = here.relay("acking").await;
    let read = acking.hold("ended").await;
    acking.settle(&read, Verdict::Ack).await;
    fail(&acking, "last").await;
    acking.step(5);
    acking.move_due(9).await;
    let last = acking.read_one().await;

    let telling = here.relay("telling").await;
    let group = telling.group().clone();
    let (broker, topic) = (telling.broker(), telling.topic());
    enable_garbage_hook(&telling).await;
    for name in ["told", "other"] {
        telling.put_in_garbage(name).await;
    }
    let taking = here.relay("taking").await;
    let (taker, of) = (taking.broker(), taking.topic());
    enable_garbage_hook(&taking).await;
    taking.put_in_garbage("kept").await;
    taking.send(&[message("stored", ms(9))]).await;
    let time = UnixMs::new(START);
    taker
        .finish_garbage_hook(of, SHARD, &group, &id("kept"), time)
        .await
        .unwrap();
    let mut note = cmd("ZADD");
    note.arg(taking.key("garbage_hook:default"))
        .arg(START)
        .arg("gone");
    let _: u64 = taking.command(&note).await;

    here.begin_move().await;

    let moved = moving.move_due(9).await;
    assert!(matches!(moved, Moved::Moved { count: 2, .. }), "{moved:?}");
    let stats = moving.hash("stats").await;
    assert_eq!(stats["last_time"], (START + 5).to_string());
    assert_eq!(stats["alarm"], (START + 5 + 60_000).to_string());

    assert_eq!(acking.settle(&last, Verdict::Ack).await, Settled::Acked);
    assert_eq!(acking.hash("stats").await["acked:default"], "2");
    assert_eq!(acking.zset("tomb").await.len(), 2);

    let taken = taker
        .take_garbage_hooks(of, SHARD, &group, 9, ms(1000))
        .await;
    assert!(taken.unwrap().0.is_empty());
    assert!(taking.zset("garbage_hook:default").await.is_empty());

    for name in ["told", "other"] {
        let noted = id(name);
        let finished = broker.finish_garbage_hook(topic, SHARD, &group, &noted, time);
        assert!(finished.await.unwrap(), "{name}");
    }
}

#[tokio::test]
async fn a_manager_that_beats_or_leaves_touches_no_key_that_it_has_emptied() {
    let here = Slot::of("{registry}").await;
    let relay = here.relay("beating").await;
    let namespace = relay.broker().namespace();
    let managers = format!("{namespace}:v1:{{registry}}:managers");
    let mut old = cmd("ZADD");
    old.arg(managers).arg(1).arg("old");
    let node = &here.cluster.nodes()[here.master];
    let _: u64 = old
        .query_async(&mut node.connection().await)
        .await
        .expect("ZADD");
    here.begin_move().await;
    let minute = Duration::from_secs(60);
    let alive = relay.broker().heartbeat("new", minute).await.unwrap();
    assert_eq!(alive.managers, ["new"]);
    let alive = relay
        .broker()
        .heartbeat("new", Duration::ZERO)
        .await
        .unwrap();
    assert!(alive.managers.is_empty());
}

#[tokio::test]
async fn general_scripts_wait_until_the_slot_has_moved() {
    let here = Slot::of("{t:0}").await;
    let relay = here.relay("waiting").await;
    let mut keyed = message("m", ms(5));
    keyed.options.key = Some("k".parse().unwrap());
    relay.send(&[keyed]).await;
    let broker = Broker::new(
        here.connection.clone(),
        relay.broker().namespace().clone(),
        ms(300),
        None,
    );
    let topic = broker.topic(relay.topic().name()).await.unwrap();
    here.begin_move().await;
    let before = relay.snapshot().await;
    let group = relay.group();
    let error = broker.cancel(&topic, &id("m"), None).await.unwrap_err();
    assert!(error.is_retryable(), "{error}");
    let after: Option<EntryId> = None;
    let error = broker.clean(&topic, SHARD, group, after).await.unwrap_err();
    assert!(error.is_retryable(), "{error}");
    assert_eq!(before.diff(&relay.snapshot().await), "");
}
