//! Tests code that sends delayed messages, with a private Redis, the real scripts, and a virtual clock.
//!
//! Run `cargo run -p lisa-manager --features test-util --example testing`.

use std::time::Duration;

use lisa_consumer::{Context, handler_fn};
use lisa_manager::testing::TestRelay;
use lisa_producer::{Producer, SendError, TopicSettings};

/// The code under test.
async fn take_order(producer: &Producer, order: u64) -> Result<(), SendError> {
    let reminder = producer.send("reminders", &order);
    reminder.delay(Duration::from_secs(1800)).await?;
    Ok(())
}

#[tokio::main]
async fn main() -> anyhow::Result<()> {
    let relay = TestRelay::start().await?;
    relay.topic("reminders", &TopicSettings::default()).await?;
    take_order(&relay.producer(), 7).await?;

    let deliver = async || {
        let handler = handler_fn(|_: u64, _: Context| async {});
        relay.deliver("reminders", "default", handler).await
    };
    relay.advance(Duration::from_secs(1799)).await?;
    println!("a second early: {} delivered", deliver().await?.acked);
    relay.advance(Duration::from_secs(1)).await?;
    println!("on time: {} delivered", deliver().await?.acked);
    Ok(())
}
