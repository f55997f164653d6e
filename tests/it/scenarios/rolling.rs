//! A new version is rolled out: while messages flow each process is replaced by another one.

use super::deployment::{STDOUT, TOPIC};
use super::{Deployment, Line, SOON, by_id};
use lisa_tests::Api;
use lisa_tests::relay::ms;
use reqwest::Method;
use std::sync::{Arc, Mutex};
use tokio::task::JoinSet;
use tokio::time::{sleep, timeout};
use tokio_util::sync::CancellationToken;

const SENDERS: usize = 4;
/// The time that messages flow between two replacements.
const BETWEEN: std::time::Duration = ms(300);

/// The addresses of the producers that are not about to end.
type Producers = Arc<Mutex<Vec<Api>>>;

/// Sends one message after the other, each until a producer accepts it, and returns their ids.
async fn keep_sending(producers: Producers, stop: CancellationToken, sender: usize) -> Vec<String> {
    let mut ids = Vec::new();
    while !stop.is_cancelled() {
        let id = format!("{sender}-{}", ids.len());
        loop {
            let api = fastrand::choice(producers.lock().unwrap().iter()).cloned();
            let send = api
                .unwrap()
                .request(Method::POST, &format!("/v1/topics/{TOPIC}/messages"));
            let send = send
                .header("Lisa-Id", &id)
                .header("Lisa-Delay", "150ms")
                .body("x");
            if send.send().await.is_ok_and(|answer| answer.status() == 202) {
                break;
            }
            sleep(ms(10)).await;
        }
        ids.push(id);
        sleep(ms(5)).await;
    }
    ids
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_process_is_replaced_while_messages_flow_and_each_message_comes_once() {
    let here = Deployment::start("").await;
    let mut managers = [here.manager().await, here.manager().await];
    let mut producers = [here.producer().await, here.producer().await];
    let mut consumers = [here.consumer(STDOUT).await, here.consumer(STDOUT).await];
    let open: Producers = Arc::new(Mutex::new(
        producers.iter().map(|role| role.api.clone()).collect(),
    ));
    let (stop, mut senders) = (CancellationToken::new(), JoinSet::new());
    for sender in 0..SENDERS {
        senders.spawn(keep_sending(open.clone(), stop.clone(), sender));
    }

    for manager in &mut managers {
        sleep(BETWEEN).await;
        let mut old = std::mem::replace(manager, here.manager().await);
        old.stop().await;
    }
    for (place, producer) in producers.iter_mut().enumerate() {
        sleep(BETWEEN).await;
        let mut old = std::mem::replace(producer, here.producer().await);
        open.lock().unwrap()[place] = producer.api.clone();
        old.stop().await;
    }
    let mut came: Vec<String> = Vec::new();
    for consumer in &mut consumers {
        sleep(BETWEEN).await;
        let mut old = std::mem::replace(consumer, here.consumer(STDOUT).await);
        old.stop().await;
        came.extend(old.process.lines());
    }
    sleep(BETWEEN).await;
    stop.cancel();
    let sent = timeout(SOON, senders.join_all())
        .await
        .expect("all accepted");
    let mut sent = sent.concat();

    let stats = here.drained().await;
    for role in consumers
        .iter_mut()
        .chain(&mut producers)
        .chain(&mut managers)
    {
        role.stop().await;
        came.extend(role.process.lines());
    }
    let came: Vec<Line> = came.iter().map(|line| Line::read(line)).collect();
    let times = by_id(&came);
    println!("{} sent and delivered", sent.len());
    assert!(came.iter().all(|line| line.attempt == 1), "{came:?}");
    assert!(times.values().all(|times| *times == 1), "{times:?}");
    let mut ids: Vec<String> = times.keys().map(|id| (*id).to_owned()).collect();
    ids.sort();
    sent.sort();
    assert_eq!(ids, sent);
    for nothing in ["reclaimed", "retried", "exhausted"] {
        assert_eq!(Deployment::counter(&stats, nothing), 0, "{stats:#}");
    }
    here.conserved().await;
}
