//! Settings that are changed while a resharding creates its shards: each change is either refused or kept.

use lisa_core::broker::{Broker, BrokerError, Declare};
use lisa_core::topic::TopicSettings;
use lisa_tests::relay::{connection, settings};
use lisa_tests::{Relay, SOON, Server};

use super::migrate_out;
use super::stale::slow;

#[tokio::test]
async fn a_change_while_new_shards_are_created_is_refused_or_kept() {
    let server = Server::start();
    let first = TopicSettings {
        max_messages: Some(1_000_000),
        ..settings()
    };
    let relay = Relay::on(&server, &connection(&server).await, "changed", first).await;
    let name = relay.topic().name().clone();
    let (other, namespace) = (connection(&server).await, relay.broker().namespace());
    let (operator, _proxy) = slow(&server, &relay).await;
    let of = name.clone();
    let resharding = tokio::spawn(async move { operator.reshard(&of, 3).await });
    let (mut kept, mut refused) = (1_000_000, 0);
    while !resharding.is_finished() {
        let reader = Broker::new(other.clone(), namespace.clone(), SOON, None);
        let there = reader.topic(&name).await.unwrap();
        assert_eq!(
            there.settings().max_messages,
            Some(kept),
            "a change was lost"
        );
        let changed = TopicSettings {
            max_messages: Some(kept + 1),
            ..settings()
        };
        match relay
            .broker()
            .declare(&name, &changed, Declare::Update)
            .await
        {
            Ok(_) => kept += 1,
            Err(BrokerError::Resharding { to: 3, .. }) => refused += 1,
            Err(error) => panic!("{error}"),
        }
    }
    resharding.await.unwrap().unwrap();
    assert!(refused > 0 && kept > 1_000_001, "{refused} refused, {kept}");
    let topic = relay.broker().topic(&name).await.unwrap();
    assert_eq!(migrate_out(relay.broker(), &topic).await, 0);
    let again = relay
        .broker()
        .declare(&name, topic.settings(), Declare::Update);
    assert_eq!(again.await.unwrap().settings().max_messages, Some(kept));
}
