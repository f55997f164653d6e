//! Roles on a cluster, under load on a topic of twelve shards: slots move, masters die and are replaced.

use super::load::{Load, TOPIC, settings};
use super::{SOON, is_long};
use crate::scenarios::deployment::{self, Deployment, STDOUT};
use crate::scenarios::lines;
use lisa_core::durability::Durability;
use lisa_core::topic::TopicSettings;
use lisa_tests::{Aof, Binary, Cluster, Server, Site, free_port};
use std::time::{Duration, Instant};

const SHARDS: u16 = 12;
/// The limit on the lag of replicas, on a small and busy machine.
const BEHIND: Duration = Duration::from_secs(2);

async fn start() -> (Cluster, Load) {
    let here = Cluster::start(Aof::EverySec).await;
    let load = load(&here, Durability::Memory).await;
    (here, load)
}

async fn load(here: &Cluster, durability: Durability) -> Load {
    let settings = TopicSettings {
        shards: SHARDS,
        durability,
        ..settings()
    };
    Load::start(&here.access(), settings).await
}

/// The slots of the topic's shards.
async fn slots(here: &Cluster) -> Vec<u16> {
    let mut slots = Vec::new();
    for shard in 0..SHARDS {
        slots.push(here.slot_of(&format!("{{{TOPIC}:{shard}}}")).await);
    }
    slots
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn slots_move_one_by_one_while_messages_flow() {
    let (here, load) = start().await;
    let slots = slots(&here).await;
    for (number, slot) in slots.iter().enumerate() {
        let to = (here.master_of(*slot).await + 1) % 3;
        if number > 0 {
            here.move_slot(*slot, to).await;
            continue;
        }
        // One of them stays between two nodes for a while; the other shards continue.
        here.begin_move(*slot, to).await;
        here.move_keys(*slot, to, 1).await;
        let before = load.count();
        let held = if is_long() { 10 } else { 2 };
        tokio::time::sleep(Duration::from_secs(held)).await;
        load.passes(50).await;
        let flowed = load.count() - before;
        println!("{flowed} delivered while slot {slot} was held for {held} s");
        while here.move_keys(*slot, to, 100).await > 0 {}
        here.end_move(*slot, to).await;
    }
    load.recovers().await;
    let lost = load.finish().await;
    assert!(lost.is_empty(), "{lost:?}");
}

/// While its keys are on two nodes, a slot takes no outcomes, here for longer than the lease. A message that was
/// handled and waits for its ack must not come again.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_is_handled_while_its_slot_is_open_for_longer_than_a_lease_does_not_come_again() {
    let (here, load) = start().await;
    let slot = slots(&here).await[0];
    let to = (here.master_of(slot).await + 1) % 3;
    here.begin_move(slot, to).await;
    here.move_keys(slot, to, 1).await;
    tokio::time::sleep(4 * settings().lease).await;
    while here.move_keys(slot, to, 100).await > 0 {}
    here.end_move(slot, to).await;
    load.recovers().await;
    let doubled = load.doubled();
    assert!(doubled.is_empty(), "{doubled:?}");
    let lost = load.finish().await;
    assert!(lost.is_empty(), "{lost:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_master_that_dies_is_followed_within_five_seconds_of_the_promotion() {
    let (mut here, load) = start().await;
    let cut = Instant::now();
    let master = kill_a_master(&mut here).await;
    let promoted = Instant::now();
    println!("promoted after {:?}", promoted - cut);
    load.recovers().await;
    revive(&mut here, &load, master).await;
    for (id, accepted) in load.finish().await {
        let unreplicated = accepted + BEHIND >= cut && accepted <= promoted + BEHIND;
        assert!(unreplicated, "{id} at {accepted:?}, cut {cut:?}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn senders_who_wait_for_a_replica_lose_nothing_to_a_master_that_dies() {
    let mut here = Cluster::start(Aof::EverySec).await;
    let load = load(&here, Durability::Replicas(1)).await;
    let master = kill_a_master(&mut here).await;
    // The new one has no replica until the dead one is back: no message for its shards is accepted.
    revive(&mut here, &load, master).await;
    let lost = load.finish().await;
    assert!(lost.is_empty(), "{lost:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_slot_that_moves_and_a_master_that_dies_are_followed_over_tls() {
    if !is_long() {
        return Site::leave_out("takes long: make conformance");
    }
    if !Server::has_tls() {
        return Site::leave_out("the engine was built without TLS");
    }
    let mut here = Cluster::start_tls(Aof::EverySec).await;
    let load = load(&here, Durability::Replicas(1)).await;
    let slot = slots(&here).await[1];
    let to = (here.master_of(slot).await + 1) % 3;
    here.move_slot(slot, to).await;
    load.recovers().await;
    let master = kill_a_master(&mut here).await;
    revive(&mut here, &load, master).await;
    let lost = load.finish().await;
    assert!(lost.is_empty(), "{lost:?}");
}

/// Kills the master of the first shard, and returns it when another one was promoted.
async fn kill_a_master(here: &mut Cluster) -> usize {
    let slot = slots(here).await[0];
    let master = here.master_of(slot).await;
    here.node(master).kill9();
    here.promoted(slot, master).await;
    master
}

/// Lets it come back; then all messages flow again.
async fn revive(here: &mut Cluster, load: &Load, master: usize) {
    here.node(master).restart();
    here.ready().await;
    load.recovers().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn replicas_take_over_one_after_the_other_as_at_an_upgrade_and_nothing_is_lost() {
    let (here, load) = start().await;
    for master in here.masters().await {
        let replica = here.replica_of(master).await;
        here.fail_over(replica).await;
        here.ready().await;
        load.recovers().await;
    }
    let lost = load.finish().await;
    assert!(lost.is_empty(), "{lost:?}");
}

#[tokio::test]
async fn the_programs_find_the_cluster_through_any_node_and_say_if_it_is_none() {
    let cluster = Cluster::start(Aof::Off).await;
    let last = cluster.nodes().last().unwrap().port();
    let here = Deployment::on(Site::Cluster(cluster), "shards = 4");
    let (producer, _manager) = (here.producer().await, here.manager().await);
    let mut consumer = here.consumer(STDOUT).await;
    for number in 0..20 {
        let topic = deployment::TOPIC;
        producer
            .api
            .send(topic, number.to_string(), &[])
            .await
            .expect(202);
    }
    lines(&mut consumer, 20, SOON).await;
    here.drained().await;
    here.conserved().await;

    let verb = async |url: String| {
        let verb = ["stats", "--timeout", "1s", "--redis-url", &url];
        Binary::Manager.with(verb).run(SOON).await
    };
    let through_one = verb(format!("redis+cluster://127.0.0.1:{last}")).await;
    assert_eq!(through_one.code, Some(0), "{through_one:?}");
    assert!(
        through_one.stdout.contains(deployment::TOPIC),
        "{through_one:?}"
    );
    let nobody = verb(format!("redis+cluster://127.0.0.1:{}", free_port())).await;
    assert_eq!(nobody.code, Some(69), "{nobody:?}");
    // Redis names the address of the owner; a connection to one server does not follow.
    let as_one = verb(format!("redis://127.0.0.1:{last}")).await;
    assert_eq!(as_one.code, Some(78), "{as_one:?}");
    assert!(as_one.stderr.contains("redis+cluster"), "{as_one:?}");
}
