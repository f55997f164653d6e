//! Runs a manager with a recurring message, which is sent at each time of a cron expression, and a consumer that prints it.
//!
//! Run `cargo run -p lisa-manager --example recurring`. Set `REDIS_URL` to use a Redis other than
//! `redis://127.0.0.1:6379`. In a configuration file, `[schedules.tick]` does the same.

use std::time::Duration;

use lisa_consumer::{Consumer, Context, Delivery, delivery_fn};
use lisa_manager::{Config, Manager, MessageTemplate, RecurringMessage, Runtime, TimeZone};
use lisa_producer::TopicSettings;

#[tokio::main]
async fn main() -> anyhow::Result<()> {
    let mut config = Config::default();
    if let Ok(url) = std::env::var("REDIS_URL") {
        config.redis.url = url.parse()?;
    }
    config
        .topics
        .insert("ticks".parse()?, TopicSettings::default());
    let tick = RecurringMessage {
        topic: "ticks".parse()?,
        cron: "* * * * * *".parse()?,
        time_zone: TimeZone::UTC,
        catch_up: Duration::from_secs(60),
        message: MessageTemplate {
            payload: "tick".to_owned(),
            ..MessageTemplate::default()
        },
    };
    config.schedules.insert("tick".parse()?, tick);
    let runtime = Runtime::start("manager+consumer", config)?;
    let manager = Manager::of(&runtime);
    // The id of a recurring message is the name of its schedule and its time.
    let handler = delivery_fn(|delivery: Delivery, _: Context| async move {
        println!("handled {}", delivery.id);
    });
    let consumer = Consumer::builder(runtime.broker.clone())
        .topic("ticks", handler)
        .build()?;
    runtime
        .run(async move |relay| {
            manager.declare().await?;
            manager.start(&relay.supervisor);
            println!("sending a message every second");
            consumer.start(&relay.supervisor, &relay.shutdown);
            Ok(())
        })
        .await?;
    Ok(())
}
