//! Sends a message that is due in half an hour, looks it up, and cancels it.
//!
//! Run `cargo run -p lisa-producer --example send`. Set `REDIS_URL` to use a Redis other than
//! `redis://127.0.0.1:6379`. A second run within ten minutes prints `duplicate`, because the cancelled id is remembered.

use std::time::Duration;

use lisa_producer::{GetOutcome, Producer, TopicOf, TopicSettings};
use serde::{Deserialize, Serialize};

#[derive(Serialize, Deserialize)]
struct Reminder {
    order: u64,
}

const REMINDERS: TopicOf<Reminder> = TopicOf::new("reminders");

#[tokio::main]
async fn main() -> anyhow::Result<()> {
    let url = std::env::var("REDIS_URL").unwrap_or("redis://127.0.0.1:6379".to_owned());
    let producer = Producer::connect(&url).await?;
    producer
        .declare(REMINDERS, &TopicSettings::default())
        .await?;

    let receipt = producer
        .send_to(REMINDERS, &Reminder { order: 7 })
        .delay(Duration::from_secs(30 * 60))
        .id("order-7-reminder")
        .await?;
    println!("{}: {}", receipt.id, receipt.outcome);

    // Send it again, for example after a crash: the id is the idempotency key, so nothing is stored.
    let again = producer
        .send_to(REMINDERS, &Reminder { order: 7 })
        .id("order-7-reminder")
        .await?;
    println!("sent again: {}", again.outcome);

    if let GetOutcome::Stored(message) = producer.get(REMINDERS, "order-7-reminder").await? {
        println!("it is {}", message.listed.state);
    }
    producer.cancel(REMINDERS, "order-7-reminder").await?;
    println!("cancelled");
    Ok(())
}
