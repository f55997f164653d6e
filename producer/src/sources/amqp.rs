//! Takes messages off a queue of RabbitMQ or another AMQP 0-9-1 server.
//!
//! The id is the property `message_id`. The properties `content_type`, `content_encoding` and `correlation_id` become
//! headers. A message that Lisa refuses permanently gets a nack without requeue, so that the queue's dead-letter exchange
//! gets it.

use futures_util::StreamExt;
use futures_util::stream::FuturesUnordered;
use lapin::message::Delivery;
use lapin::options::{
    BasicAckOptions, BasicCancelOptions, BasicConsumeOptions, BasicNackOptions, BasicQosOptions,
};
use lapin::types::{AMQPValue, FieldTable};
use lapin::{Channel, Consumer};
use lisa_service::brokers::amqp::{AmqpSourceSettings, Client, connect};
use lisa_service::shutdown::Shutdown;
use tokio::time::timeout;

use super::intake::{Incoming, Intake, Taken};

/// Takes messages until the shutdown.
///
/// # Errors
/// Returns the reason if the connection or the consumer could not be opened, or has ended.
///
/// # Cancel safety
/// Dropping the future leaves the messages in flight unacknowledged.
pub(super) async fn pull(
    settings: &AmqpSourceSettings,
    intake: &Intake,
    shutdown: &Shutdown,
) -> Result<(), String> {
    let opening = open(settings, intake.name());
    let Some(opened) = shutdown.draining().run_until_cancelled(opening).await else {
        return Ok(());
    };
    let (client, channel, consumer) = opened?;
    intake.health().up();
    let ended = consume(&channel, consumer, intake, shutdown).await;
    client.close().await;
    ended
}

async fn open(
    settings: &AmqpSourceSettings,
    name: &str,
) -> Result<(Client, Channel, Consumer), String> {
    let limit = settings.connection.connect_timeout;
    let client = connect(&settings.connection, "lisa-producer").await?;
    let subscribing = async {
        let channel = client.create_channel().await?;
        let qos = channel.basic_qos(settings.prefetch, BasicQosOptions::default());
        qos.await?;
        let consumer = channel.basic_consume(
            settings.queue.as_str().into(),
            format!("lisa-{name}").into(),
            BasicConsumeOptions::default(),
            FieldTable::default(),
        );
        let consumer = consumer.await?;
        Ok::<_, lapin::Error>((channel, consumer))
    };
    match timeout(limit, subscribing).await {
        Ok(Ok((channel, consumer))) => Ok((client, channel, consumer)),
        Ok(Err(error)) => Err(format!("cannot consume queue {}: {error}", settings.queue)),
        Err(_) => Err(format!(
            "cannot consume queue {}: no answer within {limit:?}",
            settings.queue
        )),
    }
}

/// Takes messages until the shutdown, then acknowledges those in flight until the grace period ends.
async fn consume(
    channel: &Channel,
    mut consumer: Consumer,
    intake: &Intake,
    shutdown: &Shutdown,
) -> Result<(), String> {
    let mut in_flight = FuturesUnordered::new();
    let tag = consumer.tag();
    loop {
        let is_pulling = in_flight.is_empty() || !intake.health().is_stalled();
        tokio::select! {
            settled = in_flight.next(), if !in_flight.is_empty() => {
                if let Some(Err(error)) = settled {
                    return Err(format!("cannot acknowledge: {error}"));
                }
            }
            delivery = consumer.next(), if is_pulling => match delivery {
                Some(Ok(delivery)) => in_flight.push(settle(intake, delivery)),
                Some(Err(error)) => return Err(format!("connection lost: {error}")),
                None => return Err("consumer ended by the server: the queue was deleted, or its node stopped".to_owned()),
            },
            () = shutdown.draining().cancelled() => break,
        }
    }
    let finish = async {
        channel
            .basic_cancel(tag, BasicCancelOptions::default())
            .await?;
        while let Some(settled) = in_flight.next().await {
            settled?;
        }
        Ok::<(), lapin::Error>(())
    };
    if let Some(Err(error)) = shutdown.now().run_until_cancelled(finish).await {
        tracing::warn!(source = intake.name(), %error, "cannot acknowledge messages in flight; the broker delivers them again");
    }
    Ok(())
}

/// Sends a message to Lisa, then acknowledges or refuses it at the broker.
async fn settle(intake: &Intake, delivery: Delivery) -> lapin::Result<bool> {
    let acker = delivery.acker.clone();
    match intake.take(incoming(delivery)).await {
        Taken::Accepted => acker.ack(BasicAckOptions::default()).await,
        Taken::Refused(_) => {
            let without_requeue = BasicNackOptions {
                multiple: false,
                requeue: false,
            };
            acker.nack(without_requeue).await
        }
    }
}

fn incoming(delivery: Delivery) -> Incoming {
    let properties = &delivery.properties;
    let named = [
        ("content-type", properties.content_type()),
        ("content-encoding", properties.content_encoding()),
        ("correlation-id", properties.correlation_id()),
    ];
    let named = named.into_iter().filter_map(|(name, value)| {
        let value = value.as_ref()?.as_str().to_owned();
        Some((name.to_owned(), Some(value)))
    });
    let table = properties.headers().as_ref().map(FieldTable::inner);
    let headers = table.into_iter().flatten();
    let headers = headers.map(|(name, value)| (name.as_str().to_owned(), text(value)));
    Incoming {
        headers: headers.chain(named).collect(),
        id: properties
            .message_id()
            .as_ref()
            .map(|id| id.as_str().to_owned()),
        payload: delivery.data.into(),
    }
}

/// Returns a value as text. Returns `None` for lists, tables and other values without a single text.
fn text(value: &AMQPValue) -> Option<String> {
    match value {
        AMQPValue::LongString(text) => String::from_utf8(text.as_bytes().to_vec()).ok(),
        AMQPValue::ShortString(text) => Some(text.as_str().to_owned()),
        AMQPValue::Boolean(value) => Some(value.to_string()),
        AMQPValue::ShortShortInt(value) => Some(value.to_string()),
        AMQPValue::ShortShortUInt(value) => Some(value.to_string()),
        AMQPValue::ShortInt(value) => Some(value.to_string()),
        AMQPValue::ShortUInt(value) => Some(value.to_string()),
        AMQPValue::LongInt(value) => Some(value.to_string()),
        AMQPValue::LongUInt(value) => Some(value.to_string()),
        AMQPValue::LongLongInt(value) => Some(value.to_string()),
        AMQPValue::Float(value) => Some(value.to_string()),
        AMQPValue::Double(value) => Some(value.to_string()),
        AMQPValue::DecimalValue(_)
        | AMQPValue::FieldArray(_)
        | AMQPValue::Timestamp(_)
        | AMQPValue::FieldTable(_)
        | AMQPValue::ByteArray(_)
        | AMQPValue::Void => None,
    }
}
