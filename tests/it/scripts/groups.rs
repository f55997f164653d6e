//! The code that all calls on a group of a topic share.

use std::fmt::Debug;

use lisa_core::broker::{BrokerError, Verdict};
use lisa_core::state::State;
use lisa_core::topic::{Group, Shard};
use lisa_tests::Relay;
use lisa_tests::relay::{WORKER, id, ms, settlement};

#[track_caller]
fn assert_unknown<T: Debug>(called: Result<T, BrokerError>) {
    match called {
        Err(error @ BrokerError::UnknownGroup { .. }) => {
            assert_eq!(error.to_string(), "topic t has no group nix");
            assert!(error.is_of_one_topic() && !error.is_retryable() && !error.maybe_applied());
        }
        other => panic!("{other:?}"),
    }
}

#[tokio::test]
async fn a_group_that_the_topic_does_not_have_is_refused_by_name() {
    let relay = Relay::start("groups").await;
    relay.put_in_garbage("g").await;
    let read = relay.hold("a").await;
    let (broker, topic, shard) = (relay.broker(), relay.topic(), Shard::new(0));
    let nix: &Group = &"nix".parse().unwrap();
    let entries = [read.attempt.entry];
    let seen = [(id("g"), relay.now())];
    let before = relay.snapshot().await;
    let mut reader = broker.connection().any().reader().await.unwrap();
    assert_unknown(
        broker
            .read(&mut reader, topic, shard, nix, WORKER, 1, ms(1))
            .await,
    );
    assert_unknown(broker.renew(topic, shard, nix, WORKER, &entries).await);
    assert_unknown(broker.keep(topic, shard, nix, WORKER, &entries).await);
    let settlements = [settlement(&read, Verdict::Ack)];
    assert_unknown(broker.settle(topic, shard, nix, &settlements).await);
    assert_unknown(broker.drop_consumer(topic, shard, nix, WORKER).await);
    assert_unknown(broker.reclaim(topic, shard, nix, true).await);
    assert_unknown(broker.requeue(topic, nix, &seen).await);
    assert_unknown(broker.purge(topic, nix, &seen).await);
    assert_unknown(broker.purge_old(topic, shard, nix).await);
    assert_unknown(broker.in_garbage(topic, nix, &[id("g")]).await);
    assert_unknown(broker.clean(topic, shard, nix, None).await);
    assert_unknown(broker.list(topic, nix, State::Garbage, None, 1).await);
    assert_unknown(broker.consumers(topic, shard, nix).await);
    assert_unknown(broker.idle_consumers(topic, shard, nix, ms(0)).await);
    assert_eq!(before.diff(&relay.snapshot().await), "");
    relay.assert_conserved().await;
}
