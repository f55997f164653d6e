//! Faults of Redis. After each one, every role recovers by itself within five seconds of a usable Redis. Meanwhile it
//! reports that it is not ready, and no accepted message is lost, early or moved to garbage.
//!
//! The roles run in this process under load; what users see of their binaries is in `scenarios`.

pub(crate) mod log;
pub(crate) mod role;
mod world;

use lisa_core::broker::MAX_SEND_BATCH;
use lisa_core::message::PreparedMessage;
use lisa_core::topic::Shard;
use lisa_tests::relay::ms;
use lisa_tests::{
    Aof, Binary, Mode, Process, SOON, Server, Site, Stopwatch, eventually, free_port,
};
use log::Log;
use redis::cmd;
use role::{Role, config};
use std::sync::Arc;
use std::time::{Duration, Instant};
use tokio::task::block_in_place;
use tokio::time::sleep;
use world::World;

/// The length of a fault that has no end of its own. Faults are spans of time, so these sleeps are real.
const SPAN: Duration = Duration::from_secs(3);
const STREAM: &str = "faults:v1:{t:0}:ready:default";
const PAYLOADS: &str = "faults:v1:{t:0}:payload";

#[tokio::test(flavor = "multi_thread")]
async fn redis_killed_and_started_again() {
    let mut world = World::start().await;
    block_in_place(|| world.server.kill9());
    world.all_see_it().await;
    block_in_place(|| world.server.restart());
    world.recovers().await;
    world.finish().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn redis_frozen_for_eight_seconds() {
    let mut world = World::start().await;
    world.server.pause();
    world.all_stay_alive(Duration::from_secs(8)).await;
    world.server.resume();
    world.recovers().await;
    world.finish().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_network_that_swallows_everything() {
    let world = World::start().await;
    world.proxy.set(Mode::BlackHole).await;
    world.all_see_it().await;
    world.proxy.set(Mode::Pass).await;
    world.recovers().await;
    world.finish().await;
}

/// The consumer has permits for reads many times as large as the network carries within the response timeout.
#[tokio::test(flavor = "multi_thread")]
async fn a_slow_network_and_large_payloads() {
    const SIZE: usize = 1024 * 1024;
    let world = World::start().await;
    world.proxy.set(Mode::Rate(SIZE as u32)).await;
    world.carries(16, SIZE).await;
    world.all_stay_alive(Duration::ZERO).await;
    world.proxy.set(Mode::Pass).await;
    world.recovers().await;
    world.finish().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn all_data_removed() {
    let world = World::start().await;
    let () = world.command(&cmd("FLUSHALL")).await;
    world.forgive();
    world.recovers().await;
    world.finish().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn all_scripts_forgotten_again_and_again() {
    let world = World::start().await;
    let end = Instant::now() + SPAN;
    while Instant::now() < end {
        let () = world.command(cmd("SCRIPT").arg("FLUSH")).await;
        sleep(ms(50)).await;
    }
    world.recovers().await;
    world.finish().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn the_consumer_group_destroyed() {
    let world = World::start().await;
    for _ in 0..3 {
        let destroyed: u32 = world
            .command(cmd("XGROUP").arg(&["DESTROY", STREAM, "default"]))
            .await;
        assert_eq!(destroyed, 1);
        world.recovers().await;
    }
    world.finish().await;
}

/// Messages on the stream are lost from every state. This shows as a conservation error; new messages pass.
#[tokio::test(flavor = "multi_thread")]
async fn the_stream_deleted() {
    let world = World::start().await;
    for _ in 0..3 {
        let deleted: u32 = world.command(cmd("DEL").arg(STREAM)).await;
        assert_eq!(deleted, 1);
        world.forgive();
        world.recovers().await;
    }
    let unaccounted = async |world: &World| world.command(cmd("HLEN").arg(PAYLOADS)).await;
    world.finish_with(unaccounted).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn redis_loading_its_data_for_seconds() {
    let server = Server::builder()
        .aof(Aof::Always)
        .config("key-load-delay", "100")
        .start();
    let mut world = World::on(server).await;
    let mut ballast = redis::pipe();
    for number in 0..20_000 {
        ballast.set(format!("ballast:{number}"), "").ignore();
    }
    world.pipeline(&ballast).await;
    block_in_place(|| world.server.kill9());
    let begun = Instant::now();
    block_in_place(|| world.server.restart());
    println!("loaded for {:?}", begun.elapsed());
    assert!(world.was_unready_for("LOADING"), "{}", world.seen());
    world.recovers().await;
    world.reconnect().await;
    world.finish().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_master_that_becomes_a_replica_and_a_master_again() {
    let world = World::start().await;
    if world.server.is_cluster() {
        Site::leave_out("a cluster decides which node is whose replica");
        return world.finish().await;
    }
    let () = world
        .command(cmd("REPLICAOF").arg(&["127.0.0.1", "1"]))
        .await;
    world.all_see_it().await;
    let () = world.command(cmd("REPLICAOF").arg(&["NO", "ONE"])).await;
    world.recovers().await;
    world.finish().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_password_changed_and_changed_back() {
    let server = Server::builder().aof(Aof::Always).password("right").start();
    let world = World::on(server).await;
    world.expect_refusals();
    let password = async |word: &str| {
        let () = world
            .command(cmd("CONFIG").arg(&["SET", "requirepass", word]))
            .await;
    };
    password("wrong").await;
    world.kill_clients().await;
    world.all_see_it().await;
    sleep(SPAN).await;
    password("right").await;
    world.recovers().await;
    world.finish().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn all_connections_killed_again_and_again() {
    let world = World::start().await;
    let end = Instant::now() + SPAN;
    while Instant::now() < end {
        world.kill_clients().await;
        sleep(ms(200)).await;
    }
    world.recovers().await;
    world.finish().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn no_room_for_another_client() {
    let world = World::start().await;
    let limit = async |clients: &str| {
        let () = world
            .command(cmd("CONFIG").arg(&["SET", "maxclients", clients]))
            .await;
    };
    limit("1").await;
    world.kill_clients().await;
    world.all_see_it().await;
    sleep(SPAN).await;
    limit("10000").await;
    world.recovers().await;
    world.finish().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_redis_that_is_busy_with_one_command() {
    let world = World::start().await;
    let () = world.command(cmd("DEBUG").arg("SLEEP").arg(3)).await;
    world.recovers().await;
    world.finish().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_killed_loop_is_seen_and_comes_back() {
    let world = World::start().await;
    for role in world.roles() {
        let loops: Vec<_> = role
            .health
            .tasks()
            .into_iter()
            .map(|task| task.name)
            .collect();
        for name in loops {
            let is_green = |wanted: bool| {
                eventually(Duration::from_secs(5), async move || {
                    if role.health.is_green() == wanted {
                        Ok(())
                    } else {
                        Err(format!("{:#?}", role.health.tasks()))
                    }
                })
            };
            assert!(role.health.abort(&name), "{name}");
            is_green(false).await;
            is_green(true).await;
        }
        world.recovers().await;
    }
    world.finish().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn of_five_managers_the_one_that_moves_is_killed_and_another_moves_after_a_lease_and_a_heartbeat()
 {
    const MESSAGES: usize = 200;
    let server = Server::start();
    let toml = format!(
        "namespace = \"five\"\nlog.format = \"json\"\n[redis]\nurl = \"{}\"\n[topics.t]\n",
        server.url()
    );
    let mut managers: Vec<Process> = (0..5)
        .map(|_| {
            let toml = format!("{toml}[manager]\nlisten = \"127.0.0.1:{}\"\n", free_port());
            Binary::Manager.with(["run"]).config(&toml).start()
        })
        .collect();
    let log = Arc::new(Log::default());
    let config = config(&server.url(), "five", &[]);
    let consumer = Role::consumer(&config, &["t"], &log).await;
    eventually(SOON, async || {
        let managers = consumer.managers().await;
        if managers == 5 { Ok(()) } else { Err(managers) }
    })
    .await;

    let topic = consumer.topic("t").await;
    let messages: Vec<_> = (0..MESSAGES)
        .map(|number| PreparedMessage {
            when: ms(20 * number as u64).into(),
            ..PreparedMessage::new("x")
        })
        .collect();
    for messages in messages.chunks(MAX_SEND_BATCH) {
        let sent = consumer.broker.send(&topic, Shard::new(0), messages);
        sent.await.unwrap();
    }
    let delivered = async |wanted: usize| {
        eventually(SOON, async || match log.count() {
            count if count >= wanted => Ok(()),
            count => Err(format!("{count} of {wanted}")),
        })
        .await;
    };
    delivered(MESSAGES / 5).await;
    let holds = |manager: &Process| {
        let log = manager.stderr();
        let assignment = log
            .lines()
            .rfind(|line| line.contains("assignment changed"));
        assignment.is_some_and(|line| line.contains("\"shards\":1"))
    };
    let holder = managers.iter().position(holds).expect("one of them moves");
    managers[holder].kill9();
    let watch = Stopwatch::start();
    delivered(MESSAGES).await;
    println!("the latest of {MESSAGES} was {:?} late", log.latest());
    // A lease of 1.2 s that was just renewed, and the next heartbeat of another manager 0.6 s later. Then three processes
    // follow each other: that manager, Redis and the consumer.
    watch.assert_took(log.latest(), ms(1800), ms(800));
    consumer.stop().await;
}
