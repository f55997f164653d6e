//! Runs a whole relay in one process: producer, manager and consumer.
//!
//! `cargo run -p lisa-manager --example relay` sends a reminder that is due in a second, and exits once it is handled. Set
//! `REDIS_URL` to use a Redis other than `redis://127.0.0.1:6379`. It prints the reminder to standard output, and each step
//! to standard error.

#![allow(
    clippy::disallowed_methods,
    reason = "the tasks of an application are its own"
)]

use std::time::Duration;

use lisa_consumer::{Consumer, Context, handler_fn};
use lisa_manager::{Config, Manager, Runtime, Shutdown};
use lisa_producer::{Producer, TopicSettings};

async fn send_reminder(producer: Producer) -> anyhow::Result<()> {
    producer
        .declare("reminders", &TopicSettings::default())
        .await?;
    eprintln!("declared the topic reminders");
    let receipt = producer
        .send("reminders", "time for tea")
        .delay(Duration::from_secs(1))
        .await?;
    eprintln!("sent {}: {}, due in a second", receipt.id, receipt.outcome);
    Ok(())
}

#[tokio::main]
async fn main() -> anyhow::Result<()> {
    let mut config = Config::default();
    if let Ok(url) = std::env::var("REDIS_URL") {
        config.redis.url = url.parse()?;
    }
    let shutdown = Shutdown::on_signals(config.shutdown.grace)?;
    let runtime = Runtime::with_shutdown("manager+producer+consumer", config, shutdown.clone())?;
    let handler = handler_fn(move |reminder: String, _: Context| {
        let shutdown = shutdown.clone();
        async move {
            println!("{reminder}");
            eprintln!("handled it; shutting down");
            shutdown.begin();
        }
    });
    let (broker, manager) = (runtime.broker.clone(), Manager::of(&runtime));
    let consumer = Consumer::builder(broker.clone())
        .topic("reminders", handler)
        .build()?;
    runtime
        .run(async move |relay| {
            manager.start(&relay.supervisor);
            consumer.start(&relay.supervisor, &relay.shutdown);
            // The relay is running. The rest of the program continues in a task of its own.
            tokio::spawn(async move {
                if let Err(error) = send_reminder(Producer::new(broker)).await {
                    eprintln!("cannot send: {error}");
                }
            });
            Ok(())
        })
        .await?;
    Ok(())
}
