//! Handles the messages of a topic until Ctrl-C.
//!
//! Run `cargo run -p lisa-consumer --example handle`. Set `REDIS_URL` to use a Redis other than
//! `redis://127.0.0.1:6379`. A running manager whose configuration has `[topics.reminders]` declares the topic. Then send
//! messages: `lisa-producer send reminders '{"order": 7}'`, or `{"order": 0}` for one that fails and is retried.

use lisa_consumer::{Consumer, Context, TopicOf};
use serde::Deserialize;

#[derive(Deserialize)]
struct Reminder {
    order: u64,
}

const REMINDERS: TopicOf<Reminder> = TopicOf::new("reminders");

async fn remind(reminder: Reminder, context: Context) -> Result<(), String> {
    if reminder.order == 0 {
        println!("order 0: attempt {} failed", context.attempt());
        // An error is retried with exponential backoff. After the last attempt, the message goes to garbage (dead letters).
        return Err("there is no order 0".to_owned());
    }
    println!(
        "order {} ({}, attempt {} of {})",
        reminder.order,
        context.id(),
        context.attempt(),
        context.max_attempts(),
    );
    Ok(())
}

#[tokio::main]
async fn main() -> anyhow::Result<()> {
    let url = std::env::var("REDIS_URL").unwrap_or("redis://127.0.0.1:6379".to_owned());
    eprintln!("handling messages of the topic reminders until Ctrl-C");
    let report = Consumer::connect(&url)
        .await?
        .handle(REMINDERS, remind)
        .concurrency(64)
        .build()?
        .run()
        .with_graceful_shutdown(async { _ = tokio::signal::ctrl_c().await })
        .await?;
    println!("{} acked, {} retried", report.acked, report.retried);
    Ok(())
}
