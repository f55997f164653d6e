//! The clock of all scripts: a small step back is held, a larger one taken.

use lisa_core::broker::Moved;
use lisa_core::time::{UnixMs, When};
use lisa_tests::Relay;
use lisa_tests::relay::{START, message, ms};

async fn due_of(relay: &Relay, id: &str) -> UnixMs {
    let sent = relay.send(&[message(id, When::NOW)]).await;
    sent[0].due.expect("an answer")
}

#[tokio::test]
async fn a_step_back_of_a_second_is_held_at_the_last_time() {
    let relay = Relay::start("clock").await;
    assert_eq!(due_of(&relay, "a").await.get(), START);
    relay.step(-1000);
    assert_eq!(due_of(&relay, "b").await.get(), START);
    relay.send(&[message("c", ms(10))]).await;
    assert_eq!(relay.zset("waiting").await["c"], START + 10);
    relay.assert_conserved().await;
}

#[tokio::test]
async fn a_larger_step_back_is_taken() {
    let relay = Relay::start("clock").await;
    due_of(&relay, "a").await;
    relay.step(-1001);
    assert_eq!(due_of(&relay, "b").await.get(), START - 1001);
    relay.assert_conserved().await;
}

#[tokio::test]
async fn nothing_due_is_undone_or_early_after_a_step_back() {
    let relay = Relay::start("clock").await;
    relay
        .send(&[message("a", ms(100)), message("b", ms(200))])
        .await;
    relay.step(100);
    relay.move_due(200).await;
    relay.step(-5000);
    let pause = ms(5100);
    assert_eq!(relay.move_due(200).await, Moved::Moved { count: 0, pause });
    assert_eq!(relay.entries().await.len(), 1);
    relay.step(5100);
    let pause = ms(60_000);
    assert_eq!(relay.move_due(200).await, Moved::Moved { count: 1, pause });
    relay.assert_conserved().await;
}

#[tokio::test]
async fn redis_has_the_clock_when_no_virtual_one_is_set() {
    let relay = Relay::start("clock").await;
    relay.broker().set_virtual_now(UnixMs::new(0));
    let before = relay.command::<(u64, u64)>(&redis::cmd("TIME")).await.0;
    let due = due_of(&relay, "a").await.get() / 1000;
    let after = relay.command::<(u64, u64)>(&redis::cmd("TIME")).await.0;
    assert!((before..=after).contains(&due), "{before} {due} {after}");
    relay.assert_conserved().await;
}
