//! A new version is rolled out: while messages flow each process is replaced by another one.

use super::deployment::{STDOUT, TOPIC};
use super::{Deployment, Line, Role, SOON, by_id};
use lisa_tests::relay::ms;
use lisa_tests::{Api, Site};
use reqwest::Method;
use std::path::PathBuf;
use std::sync::{Arc, Mutex};
use tokio::task::JoinSet;
use tokio::time::{sleep, timeout};
use tokio_util::sync::CancellationToken;

const SENDERS: usize = 4;
/// The time that messages flow between two replacements.
const BETWEEN: std::time::Duration = ms(300);

/// The addresses of the producers that are not about to end.
type Producers = Arc<Mutex<Vec<Api>>>;

/// Sends one message after the other, each until a producer accepts it, and returns their ids. Every second sender sets a key and
/// other options, which need the general scripts.
async fn keep_sending(producers: Producers, stop: CancellationToken, sender: usize) -> Vec<String> {
    let mut ids = Vec::new();
    while !stop.is_cancelled() {
        let id = format!("{sender}-{}", ids.len());
        loop {
            let api = fastrand::choice(producers.lock().unwrap().iter()).cloned();
            let mut send = api
                .unwrap()
                .request(Method::POST, &format!("/v1/topics/{TOPIC}/messages"))
                .header("Lisa-Id", &id)
                .header("Lisa-Delay", "150ms");
            if sender % 2 == 1 {
                send = send
                    .header("Lisa-Key", format!("key-{}", ids.len() % 7))
                    .header("Lisa-Ttl", "1h")
                    .header("Lisa-Header-trace", &id);
            }
            if send
                .body("x")
                .send()
                .await
                .is_ok_and(|answer| answer.status() == 202)
            {
                break;
            }
            sleep(ms(10)).await;
        }
        ids.push(id);
        sleep(ms(5)).await;
    }
    ids
}

/// Two processes of each role, and senders.
struct Fleet {
    here: Deployment,
    managers: [Role; 2],
    producers: [Role; 2],
    consumers: [Role; 2],
    open: Producers,
    /// The lines that ended consumers printed.
    came: Vec<String>,
    stop: CancellationToken,
    senders: JoinSet<Vec<String>>,
}

impl Fleet {
    async fn start(here: Deployment) -> Self {
        let producers = [here.producer().await, here.producer().await];
        let open = producers.iter().map(|role| role.api.clone()).collect();
        let open: Producers = Arc::new(Mutex::new(open));
        let (stop, mut senders) = (CancellationToken::new(), JoinSet::new());
        for sender in 0..SENDERS {
            senders.spawn(keep_sending(open.clone(), stop.clone(), sender));
        }
        Self {
            managers: [here.manager().await, here.manager().await],
            consumers: [here.consumer(STDOUT).await, here.consumer(STDOUT).await],
            here,
            producers,
            open,
            came: Vec::new(),
            stop,
            senders,
        }
    }

    /// Replaces one manager after the other: the new one is ready before the old one ends. Likewise the others.
    async fn replace_managers(&mut self) {
        for manager in &mut self.managers {
            sleep(BETWEEN).await;
            std::mem::replace(manager, self.here.manager().await)
                .stop()
                .await;
        }
    }

    async fn replace_producers(&mut self) {
        for (place, producer) in self.producers.iter_mut().enumerate() {
            sleep(BETWEEN).await;
            let mut old = std::mem::replace(producer, self.here.producer().await);
            self.open.lock().unwrap()[place] = producer.api.clone();
            old.stop().await;
        }
    }

    async fn replace_consumers(&mut self) {
        for consumer in &mut self.consumers {
            sleep(BETWEEN).await;
            let mut old = std::mem::replace(consumer, self.here.consumer(STDOUT).await);
            old.stop().await;
            self.came.extend(old.process.lines());
        }
    }

    /// Ends the senders, and checks that each message was delivered exactly once.
    async fn end(mut self) {
        sleep(BETWEEN).await;
        self.stop.cancel();
        let sent = timeout(SOON, self.senders.join_all())
            .await
            .expect("all accepted");
        let mut sent = sent.concat();

        let stats = self.here.drained().await;
        let roles = self.consumers.iter_mut().chain(&mut self.producers);
        for role in roles.chain(&mut self.managers) {
            role.stop().await;
            self.came.extend(role.process.lines());
        }
        let came: Vec<Line> = self.came.iter().map(|line| Line::read(line)).collect();
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
        self.here.conserved().await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_process_is_replaced_while_messages_flow_and_each_message_comes_once() {
    let mut fleet = Fleet::start(Deployment::start("").await).await;
    fleet.replace_managers().await;
    fleet.replace_producers().await;
    fleet.replace_consumers().await;
    fleet.end().await;
}

/// `tests/upgrade.sh` builds the old programs and runs this.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_process_is_upgraded_and_rolled_back_while_messages_flow() {
    let Some(old) = std::env::var_os("LISA_TEST_OLD_BIN").map(PathBuf::from) else {
        return Site::leave_out("needs LISA_TEST_OLD_BIN: run tests/upgrade.sh");
    };
    let here = Deployment::start("").await.programs_in(Some(old.clone()));
    let mut fleet = Fleet::start(here).await;
    fleet.here = fleet.here.programs_in(None);
    fleet.replace_managers().await;
    fleet.replace_consumers().await;
    fleet.replace_producers().await;
    sleep(BETWEEN).await;
    fleet.here = fleet.here.programs_in(Some(old));
    fleet.replace_producers().await;
    fleet.replace_consumers().await;
    fleet.replace_managers().await;
    fleet.end().await;
}
