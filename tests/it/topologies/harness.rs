//! Tests of the harness's clusters and sentinels: each fault does what a test will rely on.

use lisa_tests::{Aof, Cluster, Sentinels};
use redis::{RedisResult, cmd};
use std::time::Instant;

/// Sets or reads a key on one server of a site.
fn set(key: &str) -> redis::Cmd {
    cmd("SET").arg(key).arg("x").to_owned()
}

#[tokio::test]
async fn a_cluster_starts_moves_a_slot_in_steps_and_survives_the_death_of_a_master() {
    let begun = Instant::now();
    let mut cluster = Cluster::start(Aof::Always).await;
    println!("started within {:?}", begun.elapsed());
    assert_eq!(cluster.masters().await, [0, 1, 2]);
    let key = "{a}:1";
    let slot = cluster.slot_of(key).await;
    let from = cluster.master_of(slot).await;
    let to = (from + 1) % 3;
    let () = cluster.ask(from, &set(key)).await.unwrap();

    cluster.begin_move(slot, to).await;
    let missing: RedisResult<()> = cluster.ask(from, cmd("GET").arg("{a}:2")).await;
    assert_eq!(missing.unwrap_err().code(), Some("ASK"));
    let half: RedisResult<()> = cluster.ask(from, cmd("MGET").arg(&[key, "{a}:2"])).await;
    assert_eq!(half.unwrap_err().code(), Some("TRYAGAIN"));
    assert_eq!(cluster.move_keys(slot, to, 10).await, 0);
    cluster.end_move(slot, to).await;
    assert_eq!(cluster.master_of(slot).await, to);
    let moved: RedisResult<()> = cluster.ask(from, &set(key)).await;
    assert_eq!(moved.unwrap_err().code(), Some("MOVED"));

    cluster.node(to).kill9();
    let begun = Instant::now();
    let promoted = cluster.promoted(slot, to).await;
    println!("node {promoted} took over after {:?}", begun.elapsed());
    assert_eq!(promoted, to + 3);
    let kept: String = cluster.ask(promoted, cmd("GET").arg(key)).await.unwrap();
    assert_eq!(kept, "x");
    cluster.node(to).restart();
    cluster.ready().await;
    assert_eq!(cluster.replica_of(promoted).await, to);

    cluster.fail_over(to).await;
    assert_eq!(cluster.promoted(slot, promoted).await, to);
}

#[tokio::test]
async fn sentinels_promote_a_replica_of_a_dead_and_of_an_isolated_master() {
    let begun = Instant::now();
    let mut here = Sentinels::start(Aof::Always).await;
    println!("started within {:?}", begun.elapsed());
    assert_eq!(here.master().await, 0);

    here.server(0).kill9();
    let begun = Instant::now();
    let second = here.promoted(0).await;
    println!("server {second} took over after {:?}", begun.elapsed());
    here.server(0).restart();
    here.ready().await;
    println!("well again after {:?}", begun.elapsed());

    let second = here.isolate_master().await;
    let begun = Instant::now();
    let third = here.promoted(second).await;
    println!("server {third} took over after {:?}", begun.elapsed());
    // A client that has not noticed is still served.
    let mut alone = here.servers()[second].connection().await;
    let () = set("alone").query_async(&mut alone).await.unwrap();
    here.rejoin(second).await;
    here.ready().await;
    println!("well again after {:?}", begun.elapsed());
    let mut after = here.servers()[second].connection().await;
    let lost: Option<String> = cmd("GET")
        .arg("alone")
        .query_async(&mut after)
        .await
        .unwrap();
    assert_eq!(lost, None);
}
