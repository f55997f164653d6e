//! A topic gets another number of shards under load; a manager dies in the middle of it, and an instance.

use super::deployment::{GROUP, STDOUT, TOPIC};
use super::journal::{Journal, message, send_all};
use super::workers::Workers;
use super::{Deployment, SOON, by_id, lines};
use lisa_consumer::{Delivery, Outcome};
use lisa_core::broker::GroupStats;
use lisa_producer::{Producer, SendOutcome};
use lisa_tests::relay::ms;
use lisa_tests::{Binary, eventually};
use std::time::Duration;
use tokio::time::Instant;

const KEYS: usize = 40;
/// The pause between two rounds of a message of each key.
const ROUND: Duration = ms(100);
/// A time longer than the old shards stay open.
const CLOSED: Duration = ms(3500);

/// Takes some time, and fails now and then.
async fn stumble(journal: Journal, delivery: Delivery) -> Outcome {
    let run = journal.begin(&delivery.payload);
    tokio::time::sleep(ms(fastrand::u64(0..=20))).await;
    let outcome = match fastrand::usize(0..40) {
        0 => Outcome::retry_after(ms(50), "a little later"),
        1 => Outcome::defer(ms(20)),
        _ => Outcome::Ack,
    };
    journal.end(run, outcome == Outcome::Ack);
    outcome
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_topic_gets_more_shards_while_everybody_works_and_a_manager_dies() {
    // On a busy machine, an instance may be silent for more than a few seconds. Then its group would be removed.
    let topic = "shards = 3\nlease = \"5s\"\nmax_attempts = 1000\ninstance_ttl = \"20s\"";
    let here = Deployment::start(topic)
        .await
        .reader("{instance}")
        .with("[manager.jobs]\nclean = \"* * * * * *\"");
    let mut doomed = here.manager().await;
    let _manager = here.manager().await;
    let journal = Journal::default();
    let work = {
        let journal = journal.clone();
        move |delivery| stumble(journal.clone(), delivery)
    };
    let workers = Workers::start(&here, GROUP, (2, 32), work).await;
    // Each of these gets everything; one will be killed.
    let mut instance = here.consumer(STDOUT).await;
    let mut killed = here.consumer(STDOUT).await;
    let producer = Producer::new(here.broker().await);
    // Some that are due long after all is over.
    let later = (0..2000).map(|n| message("later", n).delay(Duration::from_secs(3600)));
    send_all(&producer, TOPIC, later.collect()).await;

    let names: Vec<String> = (0..KEYS).map(|key| format!("k{key}")).collect();
    let mut rounds = 0;
    let verb = here.verb(
        Binary::Manager,
        &["topics", "reshard", TOPIC, "--shards", "8"],
    );
    tokio::pin!(verb);
    let (begun, mut resharded) = (Instant::now(), None);
    let mut tick = tokio::time::interval(ROUND);
    while resharded
        .as_ref()
        .is_none_or(|(_, at): &(_, Instant)| at.elapsed() < ms(2000))
    {
        tokio::select! {
            done = &mut verb, if resharded.is_none() => resharded = Some((done, Instant::now())),
            _ = tick.tick() => {
                let round = names.iter().map(|key| message(key, rounds).delay(ms(300)));
                for receipt in producer.send_batch(TOPIC, round.collect()).await.unwrap() {
                    assert_eq!(receipt.unwrap().outcome, SendOutcome::Waiting);
                }
                rounds += 1;
                if !doomed.process.has_exited() && begun.elapsed() > CLOSED {
                    doomed.process.kill9();
                    killed.process.kill9();
                }
            }
        }
        assert!(begun.elapsed() < 2 * SOON, "it takes too long");
    }
    let (done, at) = resharded.unwrap();
    assert_eq!(
        (done.code, done.stdout.as_str()),
        (Some(0), "orders has 8 shards\n"),
        "{done:?}"
    );
    println!(
        "resharded in {:?}, {rounds} messages of each key",
        at - begun
    );
    journal.acks(KEYS * rounds).await;
    let reports = workers.stop().await;
    assert_eq!(reports.iter().map(|report| report.stale).sum::<u64>(), 0);
    assert_eq!((journal.repeats(), journal.overlaps()), (0, Vec::new()));
    for key in &names {
        assert_eq!(journal.order(key), (0..rounds).collect::<Vec<_>>(), "{key}");
    }
    let lines = lines(&mut instance, KEYS * rounds, SOON).await;
    assert_eq!(by_id(&lines).len(), KEYS * rounds, "each once");
    let broker = here.broker().await;
    let handle = broker.topic(&TOPIC.parse().unwrap()).await.unwrap();
    eventually(SOON, async || {
        let stats = broker.stats(&handle).await.unwrap();
        let groups = stats.groups.iter().filter(|group| group.instance);
        let all = |group: &GroupStats| group.ready + group.in_flight + group.retry + group.backlog;
        match groups.map(all).collect::<Vec<_>>()[..] {
            [0] => Ok(()),
            ref left => Err(format!("{left:?}")),
        }
    })
    .await;
    instance.stop().await;
    assert_eq!(instance.process.lines(), Vec::<String>::new(), "none twice");
    let stats = here.stats().await;
    assert_eq!(Deployment::count(&stats, "waiting"), 2000, "{stats:#}");
    here.conserved().await;
    // Ids that Lisa made need not be remembered, so the only wait left is for processes that know the old shards.
    eventually(SOON, async || {
        let snapshot = here.snapshot().await;
        let keys = snapshot.iter().map(|(key, _)| key.to_owned());
        let old = |key: &String| (0..3).any(|n| key.contains(&format!("{{{TOPIC}:{n}}}")));
        match keys.filter(old).collect::<Vec<_>>() {
            left if left == [format!("v1:{{{TOPIC}:0}}:conf")] => Ok(()),
            left => Err(format!("{left:?}")),
        }
    })
    .await;
    let (code, again) = here
        .json(
            Binary::Manager,
            &["topics", "reshard", TOPIC, "--shards", "8"],
        )
        .await;
    assert_eq!((code, &again["in_transit"]), (0, &0.into()), "{again}");
}

#[tokio::test]
async fn after_a_resharding_every_role_starts_with_the_file_that_names_the_old_number() {
    for named in ["shards = 2", ""] {
        let here = Deployment::start(named).await;
        let mut relay = here.combined().await;
        let wait = [("Lisa-Delay", "1s")];
        for _ in 0..5 {
            relay.api.send(TOPIC, "x", &wait).await.expect(202);
        }
        let reshard = ["topics", "reshard", TOPIC, "--shards", "3"];
        let done = here.verb(Binary::Manager, &reshard).await;
        assert_eq!(done.code, Some(0), "{done:?}");
        relay.stop().await;
        let mut manager = here.manager().await;
        let producer = here.producer().await;
        let mut consumer = here.consumer(STDOUT).await;
        producer.api.send(TOPIC, "y", &[]).await.expect(202);
        assert_eq!(by_id(&lines(&mut consumer, 6, SOON).await).len(), 6);
        let topic = manager.api.get_json(&format!("/v1/topics/{TOPIC}")).await;
        assert_eq!(topic["settings"]["shards"], 3, "{topic:#}");
        manager.stop().await;
        let log = manager.process.stderr();
        let warned = log.lines().any(|line| {
            line.contains("WARN") && line.contains("the topic keeps its number of shards")
        });
        assert_eq!(warned, !named.is_empty(), "{log}");
    }
}
