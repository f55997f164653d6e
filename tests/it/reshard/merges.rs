//! Messages of one merge key, of which one is on its way to another shard.

use lisa_core::broker::Migration;
use lisa_core::state::SendOutcome;
use lisa_core::topic::{Merge, Shard, TopicSettings};
use lisa_tests::proxy::Mode;
use lisa_tests::relay::{connection, message, ms, settings};
use lisa_tests::{Relay, SOON, Server, eventually};

use super::stale::{slow, there};
use super::{HOUR, migrate_out, open, send};

#[tokio::test]
async fn a_send_joins_the_message_that_is_on_its_way_to_its_new_shard() {
    let server = Server::start();
    let settings = TopicSettings {
        merge: Merge::First,
        ..settings()
    };
    let relay = Relay::on(&server, &connection(&server).await, "merges", settings).await;
    let merged = |name: &str| {
        let mut message = message(name, HOUR);
        message.options.merge_key = Some("k".parse().unwrap());
        message
    };
    send(relay.broker(), relay.topic(), merged("first")).await;
    let topic = open(&relay, 3).await;
    // A manager stops with the batch in its hands.
    let (stopped, proxy) = slow(&server, &relay).await;
    let known = topic.clone();
    let step = tokio::spawn(async move {
        let mut migration = Migration::default();
        let step = stopped.migrate_out(&known, Shard::new(0), &mut migration);
        step.await.map(|_| ())
    });
    let in_transit = relay.short_key(0, "in_transit");
    eventually(SOON, async || there(&relay, &in_transit).await).await;
    proxy.set(Mode::BlackHole).await;
    let sent = send(relay.broker(), &topic, merged("second"));
    tokio::pin!(sent);
    let waited = tokio::time::timeout(ms(50), &mut sent).await;
    assert!(waited.is_err(), "the result is not known yet: {waited:?}");
    assert_eq!(migrate_out(relay.broker(), &topic).await, 0);
    assert_eq!(sent.await, SendOutcome::Merged);
    step.abort();
    let topic = relay.broker().known(topic.name()).unwrap();
    let stats = relay.broker().stats(&topic).await.unwrap();
    assert_eq!((stats.waiting, stats.conservation_error), (1, 0));
}
