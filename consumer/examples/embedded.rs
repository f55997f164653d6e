//! A program with a whole delay relay inside: producer, manager and consumer in one process.
//!
//! `cargo run -p lisa-consumer --example embedded -- redis://127.0.0.1:6379` sends a reminder that is due in a second,
//! and ends when it was handled.

use std::time::Duration;

use lisa_consumer::{Consumer, Context, handler_fn};
use lisa_manager::Manager;
use lisa_producer::Producer;
use lisa_shared::broker::Declare;
use lisa_shared::config::{Config, LoadOptions};
use lisa_shared::role::Runtime;
use lisa_shared::shutdown::Shutdown;
use lisa_shared::topic::{Topic, TopicSettings};
use serde::{Deserialize, Serialize};

#[derive(Serialize, Deserialize)]
struct Reminder {
    text: String,
}

#[tokio::main]
async fn main() -> anyhow::Result<()> {
    let mut options = LoadOptions::default();
    let url = std::env::args()
        .skip(1)
        .map(|url| ("redis.url".to_owned(), url));
    options.overrides.extend(url);
    let config = Config::load(options)?;
    let shutdown = Shutdown::on_signals(config.shutdown.grace)?;
    let runtime = Runtime::with_shutdown("manager+producer+consumer", config, shutdown.clone())?;

    let handler = handler_fn(move |reminder: Reminder, _: Context| {
        let shutdown = shutdown.clone();
        async move {
            println!("{}", reminder.text);
            shutdown.begin();
        }
    });
    let broker = runtime.broker.clone();
    let consumer = Consumer::builder(broker.clone())
        .topic("reminders", handler)
        .build()?;
    let manager = Manager::of(&runtime);
    runtime
        .run(async move |relay| {
            let topic: Topic = "reminders".parse().expect("a topic's name");
            let settings = TopicSettings::default();
            broker.declare(&topic, &settings, Declare::Create).await?;
            manager.start(&relay.supervisor);
            consumer.start(&relay.supervisor, &relay.shutdown);
            let reminder = Reminder {
                text: "time for tea".to_owned(),
            };
            let sending = Producer::new(broker).send("reminders", &reminder);
            println!("{:?}", sending.delay(Duration::from_secs(1)).await);
            Ok(())
        })
        .await?;
    Ok(())
}
