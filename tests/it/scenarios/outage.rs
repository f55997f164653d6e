//! Redis killed under load.

use super::deployment::{STDOUT, TOPIC};
use super::{Deployment, Line, Role, SOON};
use lisa_tests::{Api, Site, Stopwatch, Topology, eventually};
use std::collections::HashSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;
use tokio::time::sleep;

const SENDERS: usize = 8;
/// The time limit for every role to serve again after Redis does.
const RECOVERY: Duration = Duration::from_secs(5);
/// The part of that which a slow machine makes longer.
const WORK: Duration = Duration::from_secs(1);

/// State that the senders and the test share.
#[derive(Default)]
struct Load {
    over: AtomicBool,
    repeats: AtomicUsize,
}

/// Sends messages under its own ids until the load is over; each is repeated until it is accepted. Returns the ids.
async fn send(api: Api, sender: usize, load: Arc<Load>) -> Vec<String> {
    let mut ids = Vec::new();
    while !load.over.load(Ordering::Relaxed) {
        let id = format!("s{sender}-{}", ids.len());
        let delay = format!("{}ms", fastrand::u64(0..2000));
        let options = [("Lisa-Id", id.as_str()), ("Lisa-Delay", delay.as_str())];
        loop {
            let reply = api.send(TOPIC, id.clone(), &options).await;
            match reply.status {
                202 => break,
                503 => {
                    let problem = reply.json();
                    assert_eq!(problem["id"], id, "{problem}");
                    assert!(!reply.header("retry-after").is_empty(), "{reply:?}");
                    load.repeats.fetch_add(1, Ordering::Relaxed);
                    sleep(Duration::from_millis(50)).await;
                }
                _ => panic!("{reply:?}"),
            }
        }
        ids.push(id);
        sleep(Duration::from_millis(5)).await;
    }
    ids
}

/// Waits until each role answers this path with this status.
async fn all_answer(roles: [&Role; 3], path: &str, status: u16) {
    eventually(SOON, async || {
        for role in roles {
            role.answers(path, status).await?;
        }
        Ok::<(), String>(())
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn redis_killed_twice_under_load_loses_nothing_and_every_role_comes_back_by_itself() {
    if Site::lacks(Topology::is_one_server, "kills the only server") {
        return;
    }
    let mut here = Deployment::durable("lease = \"2s\"").await;
    let (manager, producer) = (here.manager().await, here.producer().await);
    let mut consumer = here.consumer(STDOUT).await;
    let load = Arc::new(Load::default());
    let send = |sender| tokio::spawn(send(producer.api.clone(), sender, load.clone()));
    let senders: Vec<_> = (0..SENDERS).map(send).collect();

    let mut seen: Vec<Line> = Vec::new();
    for long in [true, false] {
        // Not before messages flow to the end again.
        for _ in 0..100 {
            seen.push(Line::read(&consumer.process.next_line(SOON).await));
        }
        here.server().kill9();
        let roles = [&manager, &producer, &consumer];
        all_answer(roles, "/readyz", 503).await;
        if long {
            // Senders do not notice a short outage: their requests wait for its end.
            eventually(SOON, async || match load.repeats.load(Ordering::Relaxed) {
                repeats if repeats < SENDERS => Err(format!("{repeats} repeats")),
                _ => Ok(()),
            })
            .await;
        }
        here.server().restart();
        let back = Stopwatch::start();
        all_answer(roles, "/readyz", 200).await;
        all_answer(roles, "/healthz", 200).await;
        println!("all ready {:?} after redis", back.elapsed());
        back.assert_within(RECOVERY - WORK, WORK);
    }
    seen.push(Line::read(&consumer.process.next_line(SOON).await));
    load.over.store(true, Ordering::Relaxed);
    let mut sent = HashSet::new();
    for sender in senders {
        sent.extend(sender.await.expect("a sender ends well"));
    }
    let stats = here.drained().await;
    seen.extend(consumer.process.lines().iter().map(|line| Line::read(line)));
    consumer.stop().await;
    let rest = consumer.process.lines_to_end(SOON).await;
    seen.extend(rest.iter().map(|line| Line::read(line)));

    let delivered: HashSet<&str> = seen.iter().map(|line| line.id.as_str()).collect();
    let lost: Vec<_> = sent
        .iter()
        .filter(|id| !delivered.contains(id.as_str()))
        .collect();
    println!(
        "{} sent, {:?} repeats, {} deliveries of {}",
        sent.len(),
        load.repeats,
        seen.len(),
        delivered.len()
    );
    assert_eq!(lost, Vec::<&String>::new());
    assert_eq!(
        delivered.len(),
        sent.len(),
        "delivered a message that was not sent"
    );
    assert_eq!(
        Deployment::counter(&stats, "accepted"),
        sent.len() as i64,
        "{stats:#}"
    );
    assert_eq!(
        Deployment::counter(&stats, "acked"),
        sent.len() as i64,
        "{stats:#}"
    );
    here.conserved().await;
}

/// A time longer than the lease, which is therefore over when Redis comes back.
const AWAY: Duration = Duration::from_secs(3);

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_running_handler_keeps_its_message_although_redis_was_away_for_longer_than_the_lease() {
    if Site::lacks(Topology::is_one_server, "kills the only server") {
        return;
    }
    let mut here = Deployment::durable("lease = \"1s\"").await;
    let relay = here.combined().await;
    let dir = tempfile::tempdir().unwrap();
    let started = dir.path().join("started");
    let script = format!("echo $LISA_ATTEMPT >> {}; sleep 7", started.display());
    let sink =
        format!("sink = {{ type = \"command\", command = [\"/bin/sh\", \"-c\", {script:?}] }}");
    let _consumer = here.consumer(&sink).await;
    relay.api.send(TOPIC, "x", &[]).await.expect(202);
    let attempts = || std::fs::read_to_string(&started).unwrap_or_default();
    eventually(SOON, async || match &*attempts() {
        "1\n" => Ok(()),
        other => Err(format!("{other:?}")),
    })
    .await;
    here.server().kill9();
    // An outage is a span of time, so this is a true sleep.
    sleep(AWAY).await;
    here.server().restart();
    let stats = here.drained().await;
    assert_eq!(attempts(), "1\n", "{stats:#}");
    assert_eq!(Deployment::counter(&stats, "acked"), 1, "{stats:#}");
    assert_eq!(Deployment::counter(&stats, "reclaimed"), 0, "{stats:#}");
    here.conserved().await;
}
