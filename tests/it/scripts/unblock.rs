//! A read that waits is ended in Redis, even while Redis is paused.

use lisa_core::topic::Shard;
use lisa_tests::relay::{Relay, connection, settings};
use lisa_tests::{SOON, Server, eventually};
use redis::cmd;
use std::convert::Infallible;
use std::time::Duration;

/// A failover pauses Redis, for example. Without `ERROR`, `CLIENT UNBLOCK` then ends the process of Redis.
#[tokio::test]
async fn a_read_that_waits_for_the_end_of_a_pause_can_be_ended_and_redis_survives() {
    let server = Server::start();
    let relay = Relay::on(&server, &connection(&server).await, "unblock", settings()).await;
    let (broker, topic, group) = (relay.broker(), relay.topic(), relay.group());
    let shard = Shard::new(0);
    let at = broker.server(topic, shard).unwrap();
    let mut reader = at.reader().await.unwrap();
    let id = broker.reader_id(&mut reader).await.unwrap();
    let _: () = relay
        .command(cmd("CLIENT").arg(&["PAUSE", "600000", "WRITE"]))
        .await;
    let minute = Duration::from_secs(60);
    let read = broker.read(&mut reader, topic, shard, group, "w", 1, minute);
    let end = async {
        eventually(SOON, async || {
            let list: String = relay.command(cmd("CLIENT").arg("LIST")).await;
            let waits = |client: &str| client.contains("xreadgroup") && client.contains(" flags=b");
            list.lines().any(waits).then_some(()).ok_or(list)
        })
        .await;
        broker.unblock(&id).await.expect("Redis answers");
        let _: () = relay.command(cmd("CLIENT").arg("UNPAUSE")).await;
        // Later versions end it only after the pause.
        eventually(SOON, async || -> Result<Infallible, String> {
            broker.unblock(&id).await.expect("Redis answers");
            Err("the read goes on".to_owned())
        })
        .await
    };
    tokio::select! {
        read = read => assert!(read.expect("no error").is_empty()),
        never = end => match never {},
    }
    assert!(!reader.is_open());
    let _: () = relay.command(cmd("CLIENT").arg("UNPAUSE")).await;
    relay.hold("m").await;
    relay.assert_conserved().await;
}
