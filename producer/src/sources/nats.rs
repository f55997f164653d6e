//! Takes messages off a stream of NATS JetStream, with a durable pull consumer.
//!
//! The id is the header `Nats-Msg-Id`, else the name of the stream, the sequence number and the time at which the stream
//! stored the message. Other headers that start with `Nats-` are omitted. A message that Lisa refuses permanently is
//! terminated: the server does not deliver it again.

use std::future::pending;
use std::sync::atomic::Ordering;
use std::time::Duration;

use async_nats::Client;
use async_nats::connection::State;
use async_nats::jetstream::consumer::pull::{self, Batch};
use async_nats::jetstream::consumer::{AckPolicy, PullConsumer};
use async_nats::jetstream::{self, AckKind, Message};
use futures_util::StreamExt;
use futures_util::stream::FuturesUnordered;
use lisa_service::brokers::nats::{ClientLimits, NatsSourceSettings, connect};
use lisa_service::shutdown::Shutdown;
use tokio::time::{interval, timeout};

use super::intake::{Incoming, Intake, Taken};

/// The time for which a request waits at the server for messages.
const EXPIRES: Duration = Duration::from_secs(30);
/// The interval between checks of the connection: the client reconnects by itself, but its requests are lost.
const CHECK: Duration = Duration::from_secs(1);
/// The time limit for writing the last acknowledgments.
const FLUSH: Duration = Duration::from_secs(1);
/// The largest message that any NATS server allows, with its headers. A smaller limit would cut the connection at each
/// delivery of a larger message, which Lisa refuses.
const MAX_MESSAGE: u64 = 64 * 1024 * 1024;
/// The prefix of NATS's own headers.
const OF_NATS: &str = "nats-";

/// Takes messages until the shutdown.
///
/// # Errors
/// Returns the reason if the connection ended or the consumer cannot be used.
///
/// # Cancel safety
/// Dropping the future leaves the messages in flight unacknowledged.
pub(super) async fn pull(
    settings: &NatsSourceSettings,
    intake: &Intake,
    shutdown: &Shutdown,
) -> Result<(), String> {
    let opening = open(settings, intake.name());
    let Some(opened) = shutdown.draining().run_until_cancelled(opening).await else {
        return Ok(());
    };
    let (client, consumer) = opened?;
    intake.health().up();
    let ended = consume(settings, &client, &consumer, intake, shutdown).await;
    let _ = timeout(FLUSH, client.flush()).await;
    ended
}

async fn open(
    settings: &NatsSourceSettings,
    source: &str,
) -> Result<(Client, PullConsumer), String> {
    let (stream, name) = (&settings.stream, settings.consumer(source));
    let limits = ClientLimits {
        max_message: MAX_MESSAGE,
        // The messages of one request, and its status.
        waiting: 2 * usize::from(settings.prefetch) + 64,
    };
    let client = connect(&settings.connection, "lisa-producer", limits).await?;
    let found = jetstream::new(client.clone()).get_stream(stream).await;
    let found = found.map_err(|error| format!("cannot open stream {stream}: {error}"))?;
    let config = pull::Config {
        durable_name: Some(name.clone()),
        ack_policy: AckPolicy::Explicit,
        // Bounded by the requests of the processes that share the consumer.
        max_ack_pending: -1,
        ..pull::Config::default()
    };
    let consumer = found.get_or_create_consumer(&name, config).await;
    let consumer = consumer.map_err(|error| format!("cannot open consumer {name}: {error}"))?;
    match consumer.cached_info().config.ack_policy {
        AckPolicy::Explicit => Ok((client, consumer)),
        _ => Err(format!(
            "cannot use consumer {name}: its ack policy is not explicit"
        )),
    }
}

/// Takes messages until the shutdown, then acknowledges those in flight until the grace period ends.
async fn consume(
    settings: &NatsSourceSettings,
    client: &Client,
    consumer: &PullConsumer,
    intake: &Intake,
    shutdown: &Shutdown,
) -> Result<(), String> {
    let prefetch = usize::from(settings.prefetch);
    let connects = || client.statistics().connects.load(Ordering::Relaxed);
    let (first, mut check) = (connects(), interval(CHECK));
    let (mut in_flight, mut batch) = (FuturesUnordered::new(), None::<Batch>);
    loop {
        let free = prefetch - in_flight.len();
        let is_pulling =
            in_flight.is_empty() || (!intake.health().is_stalled() && free * 2 >= prefetch);
        if batch.is_none() && is_pulling {
            let request = consumer.batch().max_messages(free).expires(EXPIRES);
            let requested = request.messages().await;
            batch = Some(requested.map_err(|error| format!("cannot request messages: {error}"))?);
        }
        tokio::select! {
            settled = in_flight.next(), if !in_flight.is_empty() => {
                if let Some(Err(error)) = settled {
                    return Err(format!("cannot acknowledge: {error}"));
                }
            }
            message = next(&mut batch) => match message {
                Some(Ok(message)) => in_flight.push(settle(intake, message)),
                Some(Err(error)) => return Err(format!("cannot take messages: {error}")),
                None => batch = None,
            },
            _ = check.tick() => {
                if client.connection_state() != State::Connected || connects() != first {
                    return Err("connection lost".to_owned());
                }
            }
            () = shutdown.draining().cancelled() => break,
        }
    }
    drop(batch);
    let finish = async {
        while let Some(settled) = in_flight.next().await {
            settled?;
        }
        Ok::<(), async_nats::Error>(())
    };
    if let Some(Err(error)) = shutdown.now().run_until_cancelled(finish).await {
        tracing::warn!(source = intake.name(), %error, "cannot acknowledge messages in flight; the broker delivers them again");
    }
    Ok(())
}

async fn next(batch: &mut Option<Batch>) -> Option<Result<Message, async_nats::Error>> {
    match batch {
        Some(batch) => batch.next().await,
        None => pending().await,
    }
}

/// Sends a message to Lisa, then acknowledges or terminates it at the server.
async fn settle(intake: &Intake, message: Message) -> Result<(), async_nats::Error> {
    match intake.take(incoming(&message)).await {
        Taken::Accepted => message.ack().await,
        Taken::Refused(_) => message.ack_with(AckKind::Term).await,
    }
}

fn incoming(message: &Message) -> Incoming {
    let mut headers = Vec::new();
    let mut id = None;
    let given = message.headers.iter().flat_map(|headers| headers.iter());
    for (name, values) in given {
        let name: &str = name.as_ref();
        for value in values {
            if name.eq_ignore_ascii_case("Nats-Msg-Id") {
                id = Some(value.as_str().to_owned());
            } else if !name.to_ascii_lowercase().starts_with(OF_NATS) {
                headers.push((name.to_owned(), Some(value.as_str().to_owned())));
            }
        }
    }
    Incoming {
        payload: message.payload.clone(),
        headers,
        id: id.or_else(|| position(message)),
    }
}

/// Returns the position of a message in its stream, with its time: a stream that is deleted and created again restarts at
/// sequence number 1.
fn position(message: &Message) -> Option<String> {
    let info = message.info().ok()?;
    let stored_ms = info.published.unix_timestamp_nanos() / 1_000_000;
    let (stream, sequence) = (info.stream, info.stream_sequence);
    Some(format!("{stream}-{sequence}-{stored_ms}"))
}
