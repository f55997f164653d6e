//! A Redis out of memory: a call that would fill it is refused whole, and every call that drains it works.

use lisa_core::broker::{BrokerError, Verdict};
use lisa_core::redis::ConnectionErrorKind;
use lisa_core::state::{CancelOutcome, Settled};
use lisa_core::time::When;
use lisa_core::topic::Shard;
use lisa_tests::relay::{WORKER, connection, id, message, ms, retry, settings};
use lisa_tests::{Relay, Server};
use redis::cmd;
use std::fmt::Debug;

fn assert_full<T: Debug>(answer: Result<T, BrokerError>) {
    match answer {
        Err(BrokerError::Connection(error)) if error.kind == ConnectionErrorKind::Full => {
            assert!(!error.maybe_applied);
        }
        other => panic!("{other:?}"),
    }
}

#[tokio::test]
async fn a_full_redis_refuses_new_messages_and_drains_the_others() {
    let server = Server::start();
    let relay = Relay::on(&server, &connection(&server).await, "memory", settings()).await;
    let (broker, topic, shard) = (relay.broker(), relay.topic(), Shard::new(0));
    relay.put_in_garbage("dead").await;
    let done = relay.hold("done").await;
    let failed = relay.hold("failed").await;
    let crashed = relay.hold("crashed").await;
    relay.age(crashed.attempt.entry, WORKER, ms(2000)).await;
    relay
        .send(&[message("due", ms(10)), message("stopped", ms(20))])
        .await;
    relay.step(10);

    let () = relay
        .command(cmd("CONFIG").arg(&["SET", "maxmemory", "1"]))
        .await;
    let before = relay.snapshot().await;
    let seen = [(id("dead"), relay.at(-10))];
    assert_full(
        broker
            .send(topic, shard, &[message("new", When::NOW)])
            .await,
    );
    assert_full(broker.requeue(topic, relay.group(), &seen).await);
    assert_eq!(before.diff(&relay.snapshot().await), "");

    assert_eq!(relay.settle(&done, Verdict::Ack).await, Settled::Acked);
    let again = relay.settle(&failed, retry(ms(0))).await;
    assert!(matches!(again, Settled::Retry { .. }));
    assert_eq!(relay.reclaim().await.retry, 1);
    relay.move_due(200).await;
    for read in relay.read(500).await {
        assert_eq!(relay.settle(&read, Verdict::Ack).await, Settled::Acked);
    }
    let stopped = broker.cancel(topic, &id("stopped"), None).await.unwrap();
    assert!(matches!(stopped, CancelOutcome::Cancelled { .. }));
    assert_eq!(broker.purge(topic, relay.group(), &seen).await.unwrap(), 1);
    broker
        .clean(topic, shard, relay.group(), None)
        .await
        .unwrap();
    broker.pause(topic, true).await.unwrap();
    broker.heartbeat("manager", ms(1000)).await.unwrap();
    relay.assert_drained().await;
}
