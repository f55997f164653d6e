//! Sends messages with the same ordering key: they are delivered one at a time, in the order of their due times.
//!
//! Run `cargo run -p lisa-producer --example ordering`. Set `REDIS_URL` to use a Redis other than
//! `redis://127.0.0.1:6379`.

use lisa_producer::{OnGarbage, Producer, TopicSettings};

#[tokio::main]
async fn main() -> anyhow::Result<()> {
    let url = std::env::var("REDIS_URL").unwrap_or("redis://127.0.0.1:6379".to_owned());
    let producer = Producer::connect(&url).await?;
    let settings = TopicSettings {
        // If a step goes to garbage (dead letters), the later steps wait until it is purged, or requeued and finished.
        on_garbage: OnGarbage::Block,
        ..TopicSettings::default()
    };
    producer.declare("steps", &settings).await?;
    for step in ["reserve", "charge", "ship"] {
        let receipt = producer.send("steps", &step).key("order-7").await?;
        println!("{step}: {}", receipt.outcome);
    }
    Ok(())
}
