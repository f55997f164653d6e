//! Rejects messages that can never succeed, and runs a hook for each message that goes to garbage (dead letters).
//!
//! Run `cargo run -p lisa-consumer --example dead_letters`. Set `REDIS_URL` to use a Redis other than
//! `redis://127.0.0.1:6379`. A running manager whose configuration has `[topics.charges]` declares the topic. Then send an
//! even number, which is charged, and an odd one, which goes to garbage: `lisa-producer send charges 2` and
//! `lisa-producer send charges 3`. Steps are printed to standard error, and messages in garbage to standard output.

use lisa_consumer::{Consumer, Context, Outcome, handler_fn};

async fn charge(order: u64, _: Context) -> Outcome {
    if order % 2 == 1 {
        eprintln!("order {order}: rejected");
        // No further attempts: the message goes to garbage immediately.
        return Outcome::reject(format!("order {order} was never paid"));
    }
    eprintln!("order {order}: charged");
    Outcome::Ack
}

#[tokio::main]
async fn main() -> anyhow::Result<()> {
    let url = std::env::var("REDIS_URL").unwrap_or("redis://127.0.0.1:6379".to_owned());
    // The hook runs at least once for each message, in one consumer of the group, no matter which process moved the message
    // to garbage.
    let handler = handler_fn(charge).on_garbage(|delivery, reason| async move {
        let error = delivery.last_error.unwrap_or_default();
        println!("{} is in garbage: {reason}: {error}", delivery.id);
    });
    eprintln!("handling messages of the topic charges until Ctrl-C");
    let report = Consumer::connect(&url)
        .await?
        .topic("charges", handler)
        .build()?
        .run()
        .with_graceful_shutdown(async { _ = tokio::signal::ctrl_c().await })
        .await?;
    eprintln!("{} acked, {} to garbage", report.acked, report.garbage);
    Ok(())
}
