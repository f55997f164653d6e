//! walk: structures that are larger than a page are examined whole, and a fault in the last page is found.

use super::examine::{assert_healthy, checkup, findings};
use super::stage::{Asking, Stage, groups};
use lisa_core::topic::TopicSettings;
use lisa_tests::relay::{message, ms};

#[tokio::test]
async fn many_messages_are_looked_at_in_pages() {
    let stage = Stage::with(TopicSettings {
        max_ready: Some(700),
        ..groups(&["a", "b"])
    })
    .await;
    let names: Vec<_> = (0..2000).map(|n| format!("m{n:04}")).collect();
    let messages: Vec<_> = names
        .iter()
        .enumerate()
        .map(|(n, name)| message(name, ms(if n < 1500 { 0 } else { 9 })).priority(1))
        .collect();
    for part in messages.chunks(200) {
        stage.send(part).await;
    }
    for _ in 0..30 {
        stage.moved().await;
    }
    stage.take("a", 600).await;
    assert_healthy(&stage, 2000).await;
    for name in &names[1990..] {
        stage.lose_payload(name).await;
    }
    let found = checkup(&stage, false).await;
    assert_eq!((found.messages, findings(&found).len()), (1990, 10));
}
