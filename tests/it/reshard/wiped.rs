//! A `FLUSHALL` while processes know different shards of a topic.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use lisa_core::broker::{Broker, Declare};
use lisa_core::topic::TopicSettings;
use lisa_tests::proxy::Mode;
use lisa_tests::relay::{connection, ms, settings};
use lisa_tests::{Relay, Server};
use redis::cmd;
use tokio::task::JoinSet;
use tokio::time::sleep;

use super::stale::slow;
use super::{HOUR, migrate_out, open};

/// The time that a call of a process takes.
const CALL: Duration = Duration::from_millis(10);

/// Four processes that know a topic on different shards restore it, each after a pause in ms. Returns its first shard.
async fn restored(server: &Server, pauses: [u64; 4]) -> u16 {
    let file = TopicSettings {
        shards: 2,
        ..settings()
    };
    let connection = connection(server).await;
    let relay = Relay::on(server, &connection, "wiped", file.clone()).await;
    let (name, namespace) = (relay.topic().name(), relay.broker().namespace());
    let new = Broker::new(connection.clone(), namespace.clone(), HOUR, None);
    let (mut processes, mut proxies) = (Vec::new(), Vec::new());
    for shards in [2, 3, 4] {
        if shards > 2 {
            let topic = open(&relay, shards).await;
            assert_eq!(migrate_out(relay.broker(), &topic).await, 0);
        }
        // Notices nothing of what follows.
        let (process, proxy) = slow(server, &relay).await;
        proxy.set(Mode::Delay(CALL)).await;
        processes.push(Arc::new(process));
        proxies.push(proxy);
    }
    let () = relay.command(&cmd("FLUSHALL")).await;
    let [pauses @ .., pause] = pauses.map(ms);
    let mut restoring = JoinSet::new();
    for (process, pause) in processes.iter().cloned().zip(pauses) {
        restoring.spawn(async move {
            sleep(pause).await;
            process.redeclare_lost().await
        });
    }
    sleep(pause).await;
    new.declare(name, &file, Declare::Create).await.unwrap();
    // Who finds that another one restores it leaves it for its next turn.
    restoring.join_all().await;
    processes.push(Arc::new(new));
    for process in &processes {
        process.redeclare_lost().await.unwrap();
        process.refresh().await.unwrap();
    }
    let topic = processes[0].newest(name).await.unwrap();
    let shards: Vec<_> = topic.shards().collect();
    let keys: Vec<String> = relay.command(cmd("KEYS").arg("*:conf")).await;
    let mut declared = Vec::new();
    for key in keys {
        let epoch: Option<u64> = relay.command(cmd("HGET").arg(&key).arg("epoch")).await;
        declared.extend(epoch.map(|_| key));
    }
    assert_eq!(declared.len(), shards.len(), "{declared:?}");
    for (nth, process) in processes.iter().enumerate() {
        let known = process.topic(name).await.unwrap();
        assert!(known.shards().eq(shards.iter().copied()), "process {nth}");
    }
    shards[0].get()
}

/// Otherwise, messages would be sent to shards that the registry does not name.
#[tokio::test(flavor = "multi_thread")]
async fn all_processes_restore_a_topic_where_the_first_of_them_does() {
    let server = Server::start();
    let mut first = BTreeSet::new();
    for round in 0..100 {
        if round >= 16 && first.len() == 3 {
            break;
        }
        // Each is the first sometimes, or comes between two calls of the others. The last one makes fewer calls.
        let pauses = [0, 1, 2, 4].map(|nth| (nth + round) % 3 * 10 + nth / 4 * round % 16 * 8);
        first.insert(restored(&server, pauses).await);
    }
    assert_eq!(first, [0, 2, 5].into());
}
