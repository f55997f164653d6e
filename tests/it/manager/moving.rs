//! The times at which messages move, and the manager that moves them.

use super::{Running, SOON, after, config, lateness, read, send, wait_for};
use lisa_core::broker::Broker;
use lisa_core::state::State;
use lisa_tests::relay::{self, ms};
use lisa_tests::{Server, Stopwatch, eventually};
use redis::cmd;
use std::time::{Duration, Instant};

#[tokio::test]
async fn messages_become_ready_when_they_are_due_and_never_before() {
    let server = Server::start();
    let config = config(&server, "exact", &[("topics.t.shards", "1")]);
    let running = Running::start(&config).await;
    let topic = running.topic("t").await;
    running.holds(1).await;
    let mut medians = Vec::new();
    // The machine may be held up in some rounds: a polling mover would have a median of half a second in each.
    while medians.len() < 5 && medians.last().is_none_or(|median| *median >= 100) {
        for index in 0..200 {
            let delay = ms(200 + (index * 37) % 600);
            send(running.broker(), &topic, after(delay)).await;
        }
        let read = read(running.broker(), &topic, 200).await;
        let mut late: Vec<_> = read.iter().map(lateness).collect();
        late.sort_unstable();
        println!(
            "lateness p50 {} p95 {} max {} ms",
            late[100], late[190], late[199]
        );
        assert!(late[0] >= 0, "{late:?}");
        medians.push(late[100]);
    }
    assert!(medians.iter().any(|median| *median < 100), "{medians:?}");
}

#[tokio::test]
async fn a_mover_that_sleeps_is_woken_by_a_message_that_is_due_earlier() {
    let server = Server::start();
    let config = config(&server, "wake", &[("topics.t.shards", "1")]);
    let running = Running::start(&config).await;
    let topic = running.topic("t").await;
    running.holds(1).await;
    send(running.broker(), &topic, after(Duration::from_secs(3600))).await;
    let mut medians = Vec::new();
    // The machine may be held up in some rounds: without wakes most of ten would be late in each.
    while medians.len() < 5 && medians.last().is_none_or(|median| *median >= 100) {
        let mut late = Vec::new();
        for _ in 0..10 {
            send(running.broker(), &topic, after(ms(20))).await;
            late.extend(read(running.broker(), &topic, 1).await.iter().map(lateness));
        }
        late.sort_unstable();
        println!("lateness {late:?} ms");
        medians.push(late[5]);
    }
    assert!(medians.iter().any(|median| *median < 100), "{medians:?}");
}

#[tokio::test]
async fn the_shards_of_a_killed_manager_are_taken_when_its_lease_is_over() {
    let server = Server::start();
    let keys = [
        ("topics.t.shards", "16"),
        ("manager.jobs.sweep", "0 0 0 1 1 *"),
    ];
    let config = config(&server, "takeover", &keys);
    let (one, two) = (Running::start(&config).await, Running::start(&config).await);
    eventually(SOON, async || {
        let held = [&one, &two].map(|running| running.manager.assignments().now().shards.len());
        if held[0] > 0 && held[1] > 0 && held[0] + held[1] == 16 {
            Ok(())
        } else {
            Err(format!("{held:?}"))
        }
    })
    .await;
    let topic = two.topic("t").await;
    drop(one);
    let killed = Stopwatch::start();
    for _ in 0..100 {
        send(two.broker(), &topic, after(ms(50))).await;
    }
    wait_for(two.broker(), &topic, State::Waiting, 0, SOON).await;
    println!("taken after {:?}", killed.elapsed());
    // Its lease, and a heartbeat of the other one.
    killed.assert_within(ms(2000), ms(2000));
    wait_for(two.broker(), &topic, State::Ready, 100, SOON).await;
}

#[tokio::test]
async fn a_manager_that_is_shut_down_leaves_at_once() {
    let server = Server::start();
    let config = config(&server, "leave", &[("topics.t.shards", "4")]);
    let (one, two) = (Running::start(&config).await, Running::start(&config).await);
    eventually(SOON, async || {
        let managers = two.manager.assignments().now().managers.len();
        if managers == 2 { Ok(()) } else { Err(managers) }
    })
    .await;
    one.runtime.shutdown.begin();
    one.runtime.supervisor.join().await.unwrap();
    let alive = two
        .broker()
        .heartbeat("observer", Duration::from_millis(1))
        .await
        .unwrap();
    assert!(!alive.managers.contains(&one.manager.name().to_owned()));
}

#[tokio::test]
async fn five_idle_managers_cost_redis_little_more_than_one() {
    let server = Server::start();
    let keys = [
        ("topics.a.shards", "8"),
        ("topics.b.shards", "8"),
        ("manager.jobs.sweep", "0 0 0 1 1 *"),
        ("manager.jobs.clean", "0 0 0 1 1 *"),
    ];
    let config = config(&server, "idle", &keys);
    let mut connection = server.connection().await;
    let mut commands = async || {
        let info: String = cmd("INFO")
            .arg("stats")
            .query_async(&mut connection)
            .await
            .unwrap();
        let line = info
            .lines()
            .find_map(|line| line.strip_prefix("total_commands_processed:"));
        line.unwrap().trim().parse::<u64>().unwrap()
    };
    let mut running = vec![Running::start(&config).await];
    running[0].holds(16).await;
    let mut rate = async || {
        // A rate needs time: this is a measurement, not a wait for a condition. The median of three is from a machine
        // that was not held up.
        let mut rates = [0.0; 3];
        for rate in &mut rates {
            let (begun, before) = (Instant::now(), commands().await);
            tokio::time::sleep(ms(1500)).await;
            *rate = (commands().await - before) as f64 / begun.elapsed().as_secs_f64();
        }
        rates.sort_unstable_by(f64::total_cmp);
        rates[1]
    };
    let one = rate().await;
    for _ in 1..5 {
        running.push(Running::start(&config).await);
    }
    eventually(SOON, async || {
        let managers: Vec<_> = running
            .iter()
            .map(|one| one.manager.assignments().now().managers.len())
            .collect();
        if managers == [5; 5] {
            Ok(())
        } else {
            Err(format!("{managers:?}"))
        }
    })
    .await;
    // Five heartbeats every 600 ms, of six commands each, are most of it. While shards change managers, it is more.
    eventually(SOON, async || match rate().await {
        five if five < one * 2.0 + 60.0 => Ok(()),
        five => Err(format!("commands a second: one manager {one}, five {five}")),
    })
    .await;
}

#[tokio::test]
async fn a_wiped_redis_is_healed_within_five_seconds() {
    let server = Server::start();
    let config = config(&server, "wiped", &[("topics.t.shards", "2")]);
    let running = Running::start(&config).await;
    running.holds(2).await;
    let mut connection = server.connection().await;
    let _: () = cmd("FLUSHALL").query_async(&mut connection).await.unwrap();
    let wiped = Stopwatch::start();
    let fresh = Broker::new(
        relay::connection(&server).await,
        config.namespace.clone(),
        SOON,
        None,
    );
    let topic = eventually(SOON, async || match fresh.refresh().await {
        Ok(topics) if topics.len() == 1 => Ok(topics[0].clone()),
        seen => Err(format!("{seen:?}")),
    })
    .await;
    for _ in 0..20 {
        send(&fresh, &topic, after(ms(100))).await;
    }
    wait_for(&fresh, &topic, State::Ready, 20, SOON).await;
    wiped.assert_within(ms(5000), ms(2000));
}

#[tokio::test]
async fn a_paused_topic_holds_its_messages_and_goes_on_at_once_when_resumed() {
    let server = Server::start();
    let config = config(&server, "paused", &[("topics.t.shards", "1")]);
    let running = Running::start(&config).await;
    let topic = running.topic("t").await;
    running.holds(1).await;
    assert!(running.broker().pause(&topic, true).await.unwrap());
    let mut took = Vec::new();
    // The machine may delay one or two; a message that waited for the next second would never be quick.
    while took.len() < 10 && took.last().is_none_or(|last| *last >= ms(900)) {
        let ready = 3 * took.len();
        for _ in 0..3 {
            send(running.broker(), &topic, after(ms(10))).await;
        }
        // Twice over everything that would move it.
        running.job("sweep").await;
        wait_for(running.broker(), &topic, State::Waiting, 3, SOON).await;
        running.job("sweep").await;
        wait_for(running.broker(), &topic, State::Waiting, 3, SOON).await;
        let resumed = Instant::now();
        assert!(running.broker().pause(&topic, false).await.unwrap());
        wait_for(running.broker(), &topic, State::Ready, ready + 3, SOON).await;
        took.push(resumed.elapsed());
        assert!(running.broker().pause(&topic, true).await.unwrap());
    }
    assert!(took.iter().any(|took| *took < ms(900)), "{took:?}");
}

#[tokio::test]
async fn a_manager_survives_a_restart_of_redis_without_its_data() {
    let mut server = Server::start();
    let config = config(&server, "restart", &[("topics.t.shards", "1")]);
    let running = Running::start(&config).await;
    let topic = running.topic("t").await;
    running.holds(1).await;
    server.stop();
    eventually(SOON, async || {
        if running.runtime.connection.is_up() {
            Err("up")
        } else {
            Ok(())
        }
    })
    .await;
    server.restart();
    eventually(SOON, async || {
        if running.runtime.connection.is_up() {
            Ok(())
        } else {
            Err("down")
        }
    })
    .await;
    send(running.broker(), &topic, after(ms(100))).await;
    wait_for(running.broker(), &topic, State::Ready, 1, SOON).await;
    eventually(SOON, async || {
        let tasks = running.runtime.supervisor.health();
        if tasks.is_green() {
            Ok(())
        } else {
            Err(format!("{:?}", tasks.tasks()))
        }
    })
    .await;
}
