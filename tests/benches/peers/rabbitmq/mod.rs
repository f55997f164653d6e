//! RabbitMQ without plugins: a message waits in a queue of its delay, whose time to live dead-letters it to the queue of
//! the worker. One connection has four channels. Each pipelines its confirms: of 500 messages at a time in bulk, or of the
//! 50 callers in turn. A worker consumes on each, and acknowledges up to 100 handled messages with one frame.

use std::time::{Duration, Instant};

use futures_util::StreamExt;
use futures_util::future::{join_all, try_join_all};
use lapin::options::{
    BasicAckOptions, BasicConsumeOptions, BasicPublishOptions, BasicQosOptions,
    ConfirmSelectOptions, QueueDeclareOptions,
};
use lapin::types::{AMQPValue, FieldTable, ShortString};
use lapin::{BasicProperties, Channel, Confirmation, Connection, ConnectionProperties};

use crate::protocol::{self, CALLERS, Mode, Plan, Tally};

const QUEUE: &str = "bench";
const CHANNELS: usize = 4;
const BATCH: usize = 500;
const PREFETCH: u16 = 300;
const WINDOW: usize = 100;
/// Kept in memory only.
const TRANSIENT: u8 = 1;

/// Runs as the program of this peer.
pub(crate) async fn run(address: &str, mode: Mode) {
    let url = format!("amqp://guest:guest@{address}/%2f");
    let connection = Connection::connect(&url, ConnectionProperties::default())
        .await
        .expect("RabbitMQ accepts");
    let channels = (0..CHANNELS).map(|_| connection.create_channel());
    let channels = try_join_all(channels).await.expect("channels");
    declare(&channels[0], QUEUE.into(), FieldTable::default()).await;
    match mode {
        Mode::Send(plan) => send(&channels, plan).await,
        Mode::Work => work(&channels).await,
    }
}

/// A classic queue in memory.
async fn declare(channel: &Channel, name: ShortString, arguments: FieldTable) {
    let declared = channel.queue_declare(name, QueueDeclareOptions::default(), arguments);
    declared.await.expect("a queue");
}

async fn send(channels: &[Channel], plan: Plan) {
    let ms = plan.delay.as_millis() as u64;
    let queue = ShortString::from(format!("{QUEUE}.after.{ms}"));
    let mut arguments = FieldTable::default();
    for (name, value) in [
        ("x-message-ttl", AMQPValue::LongLongInt(ms as i64)),
        ("x-dead-letter-exchange", AMQPValue::LongString("".into())),
        (
            "x-dead-letter-routing-key",
            AMQPValue::LongString(QUEUE.into()),
        ),
    ] {
        arguments.insert(name.into(), value);
    }
    declare(&channels[0], queue.clone(), arguments).await;
    for channel in channels {
        let confirms = channel.confirm_select(ConfirmSelectOptions::default());
        confirms.await.expect("confirms");
    }
    protocol::await_go();
    let start = Instant::now();
    if plan.rate > 0 {
        let batch = async |size| batch(&channels[0], &queue, size, plan.delay).await;
        protocol::send_at_rate(start, plan, batch).await;
    } else if plan.bulk {
        let share = plan.n / CHANNELS;
        let senders = channels
            .iter()
            .map(|channel| batches(channel, &queue, share, BATCH, plan.delay));
        join_all(senders).await;
    } else {
        let share = plan.n / CALLERS;
        let callers = (0..CALLERS).map(|caller| {
            let channel = &channels[caller % CHANNELS];
            batches(channel, &queue, share, 1, plan.delay)
        });
        join_all(callers).await;
    }
    protocol::sent(start);
}

async fn batches(channel: &Channel, queue: &ShortString, n: usize, size: usize, delay: Duration) {
    for out in (0..n).step_by(size) {
        batch(channel, queue, size.min(n - out), delay).await;
    }
}

/// Publishes messages, then waits until all are confirmed.
async fn batch(channel: &Channel, queue: &ShortString, size: usize, delay: Duration) {
    let mut confirms = Vec::with_capacity(size);
    for _ in 0..size {
        let confirm = channel
            .basic_publish(
                "".into(),
                queue.clone(),
                BasicPublishOptions::default(),
                protocol::message(delay).as_bytes(),
                BasicProperties::default().with_delivery_mode(TRANSIENT),
            )
            .await;
        confirms.push(confirm.expect("published"));
    }
    for confirmation in try_join_all(confirms).await.expect("confirmed") {
        assert_eq!(confirmation, Confirmation::Ack(None));
    }
}

async fn work(channels: &[Channel]) {
    let tally = Tally::default();
    protocol::await_go();
    tally.watch();
    join_all(channels.iter().map(|channel| consume(channel, &tally))).await;
}

async fn consume(channel: &Channel, tally: &Tally) {
    let prefetch = channel.basic_qos(PREFETCH, BasicQosOptions::default());
    prefetch.await.expect("a prefetch");
    let options = BasicConsumeOptions::default();
    let consumer = channel.basic_consume(QUEUE.into(), "".into(), options, FieldTable::default());
    let mut windows = consumer.await.expect("a consumer").ready_chunks(WINDOW);
    while let Some(window) = windows.next().await {
        let mut last = None;
        for delivery in window {
            let delivery = delivery.expect("a delivery");
            tally.handle(&delivery.data);
            last = Some(delivery.acker);
        }
        if let Some(acker) = last {
            let all = BasicAckOptions { multiple: true };
            acker.ack(all).await.expect("acknowledged");
        }
    }
}
