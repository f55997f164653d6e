//! Debounces: sends with the same merge key become one message, which is delivered after a second without a send.
//!
//! Run `cargo run -p lisa-producer --example debounce`. Set `REDIS_URL` to use a Redis other than
//! `redis://127.0.0.1:6379`.

use std::time::Duration;

use lisa_producer::{Merge, Producer, TopicSettings};

#[tokio::main]
async fn main() -> anyhow::Result<()> {
    let url = std::env::var("REDIS_URL").unwrap_or("redis://127.0.0.1:6379".to_owned());
    let producer = Producer::connect(&url).await?;
    let settings = TopicSettings {
        // The last send wins and restarts the delay, but the message waits at most a minute after the first send.
        merge: Merge::Last,
        max_wait: Some(Duration::from_secs(60)),
        ..TopicSettings::default()
    };
    producer.declare("reindex", &settings).await?;
    for version in 1..=5 {
        let receipt = producer
            .send("reindex", &version)
            .merge_key("document-7")
            .delay(Duration::from_secs(1))
            .await?;
        println!("version {version}: {}", receipt.outcome);
    }
    Ok(())
}
