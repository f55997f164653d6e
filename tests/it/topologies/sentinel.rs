//! Roles on a master under sentinels, under load: the master dies, or is cut off.

use super::load::{Load, Lost, settings};
use super::{SOON, is_long};
use crate::scenarios::deployment::{Deployment, STDOUT, TOPIC};
use crate::scenarios::lines;
use lisa_core::durability::Durability;
use lisa_core::topic::TopicSettings;
use lisa_tests::{Aof, Binary, Sentinels, Server, Site, Stopwatch, free_port};
use std::time::{Duration, Instant};

/// The limit on the lag of replicas, on a small and busy machine.
const BEHIND: Duration = Duration::from_secs(2);
/// The time after a promotion until no role uses the old master any more.
const FOLLOWED: Duration = Duration::from_secs(5);
/// The part of that which a slow machine makes longer.
const WORK: Duration = Duration::from_secs(1);

async fn start(durability: Durability) -> (Sentinels, Load) {
    let here = Sentinels::start(Aof::EverySec).await;
    let load = load(&here, durability).await;
    (here, load)
}

async fn load(here: &Sentinels, durability: Durability) -> Load {
    let settings = TopicSettings {
        durability,
        ..settings()
    };
    Load::start(&here.access(), settings).await
}

/// Asserts that a master accepted the lost messages while its replicas received nothing from it.
#[track_caller]
fn assert_unreplicated(lost: &Lost, spans: &[(Instant, Instant)]) {
    for (id, accepted) in lost {
        let within = |(cut, promoted): &(Instant, Instant)| {
            *accepted + BEHIND >= *cut && *accepted <= *promoted + BEHIND
        };
        assert!(
            spans.iter().any(within),
            "{id} at {accepted:?} of {spans:?}"
        );
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_master_that_dies_is_followed_within_five_seconds_of_the_promotion() {
    let (mut here, load) = start(Durability::Memory).await;
    let cut = Instant::now();
    here.server(0).kill9();
    here.promoted(0).await;
    let promoted = Instant::now();
    println!("promoted after {:?}", promoted - cut);
    load.recovers().await;
    let lost = load.finish().await;
    assert_unreplicated(&lost, &[(cut, promoted)]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_master_that_dies_is_followed_over_tls() {
    if !is_long() {
        return Site::leave_out("takes long: make conformance");
    }
    if !Server::has_tls() {
        return Site::leave_out("the engine was built without TLS");
    }
    let mut here = Sentinels::start_tls(Aof::EverySec).await;
    let load = load(&here, Durability::Replicas(1)).await;
    here.server(0).kill9();
    here.promoted(0).await;
    load.recovers().await;
    let lost = load.finish().await;
    assert!(lost.is_empty(), "{lost:?}");
}

/// Cuts a master off from its peers and not from the roles, and lets it come back. Returns when it was cut off, when
/// the last role stopped using it, and what was lost.
async fn isolated(durability: Durability) -> (Instant, Instant, Lost) {
    let (here, load) = start(durability).await;
    let cut = Instant::now();
    let old = here.isolate_master().await;
    let master = here.promoted(old).await;
    let (promoted, watch) = (Instant::now(), Stopwatch::start());
    println!("promoted after {:?}", promoted - cut);
    // The old one answers as before, but soon receives nothing any more.
    let commands = async || here.servers()[old].calls("evalsha").await;
    loop {
        let before = commands().await;
        load.passes(50).await;
        if commands().await == before {
            break;
        }
        // A role that is too late still uses the old master.
        watch.assert_within(FOLLOWED - WORK, WORK);
    }
    let left = Instant::now();
    println!("left {:?} after the promotion", left - promoted);
    load.recovers().await;
    here.rejoin(old).await;
    here.ready().await;
    assert_eq!(here.master().await, master);
    load.recovers().await;
    (cut, left, load.finish().await)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_isolated_master_that_still_answers_is_left_within_five_seconds_of_the_promotion() {
    if !is_long() {
        return Site::leave_out("takes long: make conformance");
    }
    let (cut, left, lost) = isolated(Durability::Memory).await;
    assert_unreplicated(&lost, &[(cut, left)]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn senders_who_wait_for_a_replica_lose_nothing_to_an_isolated_master() {
    let (.., lost) = isolated(Durability::Replicas(1)).await;
    assert!(lost.is_empty(), "{lost:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn masters_that_die_one_after_the_other_are_followed_each_time() {
    if !is_long() {
        return Site::leave_out("takes long: make conformance");
    }
    let (mut here, load) = start(Durability::Memory).await;
    let mut spans = Vec::new();
    for _ in 0..3 {
        let master = here.master().await;
        let cut = Instant::now();
        here.server(master).kill9();
        here.promoted(master).await;
        spans.push((cut, Instant::now()));
        load.recovers().await;
        here.server(master).restart();
        here.ready().await;
        load.passes(100).await;
    }
    let lost = load.finish().await;
    assert_unreplicated(&lost, &spans);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn sentinels_that_are_away_disturb_nobody_as_long_as_the_master_lives() {
    let (mut here, load) = start(Durability::Memory).await;
    for sentinel in 0..3 {
        here.sentinel(sentinel).kill9();
        load.passes(100).await;
        load.recovers().await;
    }
    let lost = load.finish().await;
    assert!(lost.is_empty(), "{lost:?}");
}

#[tokio::test]
async fn the_programs_find_the_master_and_say_what_they_do_not_find() {
    let site = Site::Sentinels(Sentinels::start(Aof::Off).await);
    let url = site.access()[0].1.clone();
    let here = Deployment::on(site, "");
    let (producer, _manager) = (here.producer().await, here.manager().await);
    let mut consumer = here.consumer(STDOUT).await;
    producer.api.send(TOPIC, "x", &[]).await.expect(202);
    lines(&mut consumer, 1, SOON).await;
    here.drained().await;
    here.conserved().await;

    let other = url.replace("/main", "/other");
    let nobody = format!("redis+sentinel://127.0.0.1:{}/main", free_port());
    for (url, said) in [(other, "\"other\""), (nobody, "sentinel")] {
        let verb = Binary::Manager.with(["stats", "--timeout", "1s", "--redis-url", &url]);
        let done = verb.run(SOON).await;
        assert_eq!(done.code, Some(69), "{url}: {done:?}");
        assert!(done.stderr.contains(said), "{url}: {done:?}");
    }
    let wrong = url.replace(":client@", ":wrong@");
    let verb = Binary::Manager.with(["stats", "--redis-url", &wrong]);
    let done = verb.run(SOON).await;
    assert_eq!(done.code, Some(78), "{done:?}");
}
