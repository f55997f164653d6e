//! Faults of Redis, and of what is stored in it.

use super::{Hit, between};
use crate::plan::Topic;
use crate::record::ALL;
use crate::settings::NAMESPACE;
use crate::world::World;
use fastrand::Rng;
use lisa_tests::{Server, Stopwatch};
use redis::cmd;
use std::collections::BTreeMap;
use std::time::Duration;
use tokio::time::sleep;

/// The only group of each topic.
const GROUP: &str = "default";
/// The time limit for Redis to notice that its disk is full, as each send writes to it; longer on a slow machine.
const NOTICES: Duration = Duration::from_secs(10);

fn hit(detail: impl Into<String>) -> Hit {
    Hit {
        process: ALL.to_owned(),
        detail: detail.into(),
    }
}

/// Runs a blocking action: a server that ends or starts.
fn block(server: &mut Server, act: impl FnOnce(&mut Server)) {
    tokio::task::block_in_place(|| act(server));
}

pub(super) async fn kill(world: &World, mut dice: Rng) -> Result<Hit, String> {
    let mut server = world.server.lock().await;
    block(&mut server, Server::kill9);
    let away = between(&mut dice, 0, 2000);
    sleep(away).await;
    block(&mut server, Server::restart);
    Ok(hit(format!("away for {away:?}")))
}

pub(super) async fn restart(world: &World, mut dice: Rng) -> Result<Hit, String> {
    let mut server = world.server.lock().await;
    block(&mut server, Server::stop);
    let away = between(&mut dice, 0, 2000);
    sleep(away).await;
    block(&mut server, Server::restart);
    Ok(hit(format!("away for {away:?}")))
}

pub(super) async fn stop(world: &World, mut dice: Rng) -> Result<Hit, String> {
    let mut server = world.server.lock().await;
    let still = between(&mut dice, 300, 5000);
    server.pause();
    sleep(still).await;
    server.resume();
    Ok(hit(format!("stood still for {still:?}")))
}

pub(super) async fn client_kill(world: &World, mut dice: Rng) -> Result<Hit, String> {
    let times = dice.u32(1..=5);
    for _ in 0..times {
        for kind in ["normal", "pubsub"] {
            let mut kill = cmd("CLIENT");
            let _: u32 = world.command(kill.arg(&["KILL", "TYPE", kind])).await?;
        }
        sleep(between(&mut dice, 20, 300)).await;
    }
    Ok(hit(format!("{times} times")))
}

pub(super) async fn client_pause(world: &World, mut dice: Rng) -> Result<Hit, String> {
    let lasts = between(&mut dice, 300, 3500);
    let mut pause = cmd("CLIENT");
    pause.arg("PAUSE").arg(lasts.as_millis() as u64);
    pause.arg(if dice.bool() { "ALL" } else { "WRITE" });
    let () = world.command(&pause).await?;
    sleep(lasts).await;
    Ok(hit(format!("for {lasts:?}")))
}

pub(super) async fn script_flush(world: &World, mut dice: Rng) -> Result<Hit, String> {
    let times = dice.u32(1..=20);
    for _ in 0..times {
        let () = world.command(cmd("SCRIPT").arg("FLUSH")).await?;
        sleep(between(&mut dice, 0, 50)).await;
    }
    Ok(hit(format!("{times} times")))
}

pub(super) async fn memory_full(world: &World, mut dice: Rng) -> Result<Hit, String> {
    let set = |limit: &str| {
        let mut set = cmd("CONFIG");
        set.arg(&["SET", "maxmemory", limit]);
        set
    };
    let lasts = between(&mut dice, 500, 3000);
    let () = world.command(&set("1mb")).await?;
    sleep(lasts).await;
    let () = world.command(&set("0")).await?;
    Ok(hit(format!("for {lasts:?}")))
}

/// With `appendfsync always` Redis ends itself when it cannot write.
pub(super) async fn disk_full(world: &World, mut dice: Rng) -> Result<Hit, String> {
    let disk = world.disk.as_ref()?;
    let mut server = world.server.lock().await;
    disk.fill()?;
    let watch = Stopwatch::start();
    let noticed = loop {
        if block_ended(&mut server) {
            break true;
        }
        if watch.elapsed() > watch.limit(Duration::ZERO, NOTICES) {
            break false;
        }
        sleep(Duration::from_millis(20)).await;
    };
    let noticed_after = watch.elapsed();
    sleep(between(&mut dice, 0, 1000)).await;
    disk.heal()?;
    block(&mut server, Server::restart);
    if noticed {
        Ok(hit(format!("Redis ended after {noticed_after:?}")))
    } else {
        Err("Redis did not end itself".to_owned())
    }
}

fn block_ended(server: &mut Server) -> bool {
    tokio::task::block_in_place(|| server.has_exited())
}

/// Returns a stream of a random topic: of any shard that it has now, even one that is being migrated.
async fn stream(world: &World, dice: &mut Rng) -> Result<String, String> {
    let topic = Topic::BUSY[dice.usize(0..Topic::BUSY.len())].name();
    let pattern = format!("{NAMESPACE}:v1:{{{topic}:*}}:ready:{GROUP}");
    let mut streams: Vec<String> = world.command(cmd("KEYS").arg(pattern)).await?;
    if streams.is_empty() {
        return Err(format!("{topic} has no streams"));
    }
    streams.sort_unstable();
    Ok(streams.swap_remove(dice.usize(0..streams.len())))
}

/// Returns the result of a command on a stream: nothing if the shard was dropped meanwhile, and its stream with it.
async fn unless_gone<T: Default>(
    world: &World,
    stream: &str,
    answer: Result<T, String>,
) -> Result<T, String> {
    match answer {
        Err(_) if !world.command::<bool>(cmd("EXISTS").arg(stream)).await? => Ok(T::default()),
        answer => answer,
    }
}

/// Lets the doctor repair damage done by hand.
async fn repair(world: &World, detail: String) -> Result<Hit, String> {
    let arguments = ["doctor", "--repair", "--yes", "--output", "json"];
    let (code, output, errors) = world.fleet.manager(&arguments).await;
    // Another fault may hit the doctor itself, which then is called again.
    if code == Some(0) {
        return Ok(hit(detail));
    }
    sleep(Duration::from_secs(5)).await;
    match world.fleet.manager(&arguments).await {
        (Some(0), ..) => Ok(hit(detail)),
        (code, again, _) => Err(format!(
            "{detail}: the doctor ended twice with {code:?}\n{output}{errors}\n{again}"
        )),
    }
}

pub(super) async fn delete_stream(world: &World, mut dice: Rng) -> Result<Hit, String> {
    let stream = stream(world, &mut dice).await?;
    let _: u32 = world.command(cmd("DEL").arg(&stream)).await?;
    sleep(between(&mut dice, 0, 1000)).await;
    repair(world, stream).await
}

pub(super) async fn delete_group(world: &World, mut dice: Rng) -> Result<Hit, String> {
    let stream = stream(world, &mut dice).await?;
    let mut destroy = cmd("XGROUP");
    destroy.arg("DESTROY").arg(&stream).arg(GROUP);
    unless_gone(world, &stream, world.command::<u32>(&destroy).await).await?;
    sleep(between(&mut dice, 0, 1000)).await;
    repair(world, stream).await
}

/// Drops a consumer of a group with its messages, as an operator may by mistake.
pub(super) async fn delete_consumer(world: &World, mut dice: Rng) -> Result<Hit, String> {
    let stream = stream(world, &mut dice).await?;
    let mut list = cmd("XINFO");
    list.arg("CONSUMERS").arg(&stream).arg(GROUP);
    let listed: Result<Vec<BTreeMap<String, redis::Value>>, String> = world.command(&list).await;
    let consumers = unless_gone(world, &stream, listed).await?;
    let mut dropped = 0;
    for consumer in &consumers {
        let Some(redis::Value::BulkString(name)) = consumer.get("name") else {
            continue;
        };
        let mut drop = cmd("XGROUP");
        drop.arg("DELCONSUMER").arg(&stream).arg(GROUP).arg(name);
        dropped += unless_gone(world, &stream, world.command::<u32>(&drop).await).await?;
    }
    repair(world, format!("{dropped} deliveries of {stream}")).await
}
