//! parked_keys: lists the ordering keys with parked messages, and the message that each waits for.

use super::stage::Asking;
use lisa_core::broker::ParkedKeyPage;
use lisa_core::message::PreparedMessage;
use lisa_core::state::State;
use lisa_core::time::When;
use lisa_core::topic::{OnGarbage, TopicSettings};
use lisa_tests::Relay;
use lisa_tests::relay::{message, ms, retry};

fn keyed(id: &str, key: &str) -> PreparedMessage {
    message(id, When::NOW).key(key)
}

/// Lists all pages of a size.
async fn all(relay: &Relay, limit: usize) -> Vec<String> {
    let (mut cursor, mut found) = (None, Vec::new());
    loop {
        let page = relay
            .broker()
            .parked_keys(relay.topic(), relay.group(), cursor, limit);
        let ParkedKeyPage { keys, next } = page.await.unwrap();
        for key in keys {
            let holder = key.holder.expect("a holder");
            let state = holder.state.map_or("stream", State::as_str);
            found.push(format!("{}:{} {} {state}", key.key, key.parked, holder.id));
        }
        cursor = next;
        if cursor.is_none() {
            return found;
        }
    }
}

#[tokio::test]
async fn each_key_with_parked_messages_is_listed_with_its_holder() {
    let settings = TopicSettings {
        on_garbage: OnGarbage::Block,
        ..lisa_tests::relay::settings()
    };
    let relay = Relay::with("parked_keys", settings).await;
    let sent = [
        keyed("a1", "a"),
        keyed("a2", "a"),
        keyed("a3", "a"),
        keyed("ab1", "ab"),
        keyed("ab2", "ab"),
        keyed("b1", "b"),
        keyed("b2", "b"),
        keyed("c1", "c"),
    ];
    relay.send(&sent).await;
    relay.move_due(100).await;
    for read in relay.read(10).await {
        match read.id.as_ref().unwrap().as_str() {
            "ab1" => relay.settle(&read, retry(ms(500))).await,
            "b1" => {
                let error = "no".to_owned();
                let verdict = lisa_core::broker::Verdict::Reject { error };
                relay.settle(&read, verdict).await
            }
            _ => continue,
        };
    }
    let expected = ["a:2 a1 stream", "ab:1 ab1 retry", "b:1 b1 garbage"];
    for limit in [1, 2, 3, 50] {
        assert_eq!(all(&relay, limit).await, expected, "{limit}");
    }
}
