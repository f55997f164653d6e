//! Takes messages off a topic of Kafka, as a member of a consumer group.
//!
//! The id is topic, partition, offset and timestamp. An offset is committed only when Lisa has all messages of the partition
//! before it. Kafka has no dead letters: a message that Lisa refuses permanently blocks the source, unless the settings name
//! a topic for such messages or skip them.

mod progress;

use std::panic::catch_unwind;
use std::pin::pin;
use std::sync::Arc;
use std::time::{Duration, Instant};

use futures_util::future::{Fuse, FusedFuture};
use futures_util::stream::FuturesUnordered;
use futures_util::{FutureExt, StreamExt};
use lisa_service::brokers::kafka::{Context, KafkaSourceSettings, Refused, client};
use lisa_service::shutdown::Shutdown;
use rdkafka::consumer::{CommitMode, Consumer, StreamConsumer};
use rdkafka::error::{KafkaError, KafkaResult};
use rdkafka::message::{Header, Headers, Message, OwnedHeaders, OwnedMessage};
use rdkafka::producer::{FutureProducer, FutureRecord};
use rdkafka::types::RDKafkaErrorCode;
use rdkafka::util::Timeout;
use rdkafka::{Offset, TopicPartitionList};
use tokio::task::spawn_blocking;
use tokio::time::{interval, timeout};

use self::progress::Progress;
use super::intake::{Incoming, Intake, Taken};

/// The interval between commits of offsets, and between checks of the connections.
const TICK: Duration = Duration::from_secs(1);
/// The time without a sign of an outage after which the brokers count as available. Signs come once a second.
const RECENT: Duration = Duration::from_millis(2500);
/// The time limit for the last commit, and for leaving the group.
const CLOSE: Duration = Duration::from_secs(5);
/// The time limit for publishing a dead letter.
const PUBLISH: Duration = Duration::from_secs(10);
/// The header of a dead letter that contains the reason.
const REASON: &str = "lisa-refused";

type Members = StreamConsumer<Context>;

/// Takes messages until the shutdown.
///
/// # Errors
/// Returns the reason if the client failed, or if a message that Lisa refuses permanently blocks the source.
///
/// # Cancel safety
/// Dropping the future leaves the messages in flight uncommitted.
pub(super) async fn pull(
    settings: &KafkaSourceSettings,
    intake: &Intake,
    shutdown: &Shutdown,
) -> Result<(), String> {
    let context = Context::default();
    let opened = open(settings, intake.name(), &context);
    let (consumer, dead_letters) =
        opened.map_err(|error| format!("cannot create the client: {error}"))?;
    let consumer = Arc::new(consumer);
    let source = Source {
        settings,
        intake,
        context,
        dead_letters,
        progress: Progress::default(),
    };
    let ended = source.consume(&consumer, shutdown).await;
    // Leaving the group waits for the brokers, which may be unavailable.
    let leaving = spawn_blocking(move || drop(consumer));
    let _ = timeout(CLOSE, leaving).await;
    ended
}

fn open(
    settings: &KafkaSourceSettings,
    source: &str,
    context: &Context,
) -> KafkaResult<(Members, Option<FutureProducer<Context>>)> {
    let mut config = client(&settings.connection, "lisa-producer");
    let consumer: Members = config
        .clone()
        .set("group.id", settings.group(source))
        .set("enable.auto.commit", "false")
        .set("enable.auto.offset.store", "false")
        .set("auto.offset.reset", "earliest")
        .create_with_context(context.clone())?;
    consumer.subscribe(&[&settings.topic])?;
    let dead_letters = match settings.refused() {
        Refused::DeadLetter(_) => {
            if config.get("message.max.bytes").is_none() {
                // The limit of the topic applies, not that of the client.
                config.set("message.max.bytes", "1000000000");
            }
            config
                .set("acks", "all")
                .set("enable.idempotence", "true")
                .set("message.timeout.ms", PUBLISH.as_millis().to_string());
            Some(config.create_with_context(Context::default())?)
        }
        Refused::Block | Refused::Skip => None,
    };
    Ok((consumer, dead_letters))
}

struct Source<'a> {
    settings: &'a KafkaSourceSettings,
    intake: &'a Intake,
    context: Context,
    dead_letters: Option<FutureProducer<Context>>,
    progress: Progress,
}

impl Source<'_> {
    /// Takes messages until the shutdown, then waits for those in flight until the grace period ends.
    async fn consume(mut self, consumer: &Arc<Members>, shutdown: &Shutdown) -> Result<(), String> {
        let ended = self.take(consumer, shutdown).await;
        if let Err(error) = &ended {
            self.intake.health().down(error.clone());
        }
        match timeout(CLOSE, commit(consumer.clone(), self.offsets(consumer))).await {
            Ok(Ok(_)) => {}
            Ok(Err(error)) => self.not_committed(&error),
            Err(_) => self.not_committed(&format!("no answer within {CLOSE:?}")),
        }
        ended
    }

    async fn take(&mut self, consumer: &Arc<Members>, shutdown: &Shutdown) -> Result<(), String> {
        let (health, prefetch) = (self.intake.health(), usize::from(self.settings.prefetch));
        let (settings, intake, dead_letters) =
            (self.settings, self.intake, self.dead_letters.clone());
        let settle = |message| settle(settings, intake, dead_letters.as_ref(), message);
        let (started, mut tick) = (Instant::now(), interval(TICK));
        let mut in_flight = FuturesUnordered::new();
        let mut committing = pin!(Fuse::terminated());
        loop {
            let is_pulling =
                in_flight.is_empty() || (in_flight.len() < prefetch && !health.is_stalled());
            tokio::select! {
                Some(settled) = in_flight.next() => {
                    let (partition, offset) = settled?;
                    self.progress.done(partition, offset);
                }
                message = consumer.recv(), if is_pulling => {
                    let message = match message {
                        Ok(message) => message.detach(),
                        Err(error) if passes(&error) => {
                            health.down(error.to_string());
                            continue;
                        }
                        Err(error) => return Err(format!("cannot take messages: {error}")),
                    };
                    self.progress.begun(message.partition(), message.offset());
                    in_flight.push(settle(message));
                }
                _ = tick.tick() => {
                    let recent = Instant::now().checked_sub(RECENT);
                    match recent.and_then(|recent| self.context.down_since(recent)) {
                        Some(reason) => health.down(format!("no broker is connected: {reason}")),
                        None if started.elapsed() > RECENT => health.up(),
                        None => {}
                    }
                    if committing.is_terminated() {
                        let offsets = self.offsets(consumer);
                        committing.set(commit(consumer.clone(), offsets).fuse());
                    }
                }
                committed = &mut committing => match committed {
                    Ok(offsets) => self.committed(offsets),
                    Err(error) => self.not_committed(&error),
                },
                () = shutdown.draining().cancelled() => break,
            }
        }
        let finish = async {
            while let Some(settled) = in_flight.next().await {
                let (partition, offset) = settled?;
                self.progress.done(partition, offset);
            }
            Ok::<(), String>(())
        };
        let finished = shutdown.now().run_until_cancelled(finish).await;
        finished.unwrap_or(Ok(()))
    }

    /// Returns the offsets to commit, for the partitions that are still assigned to this process.
    fn offsets(&self, consumer: &Members) -> TopicPartitionList {
        let mut offsets = TopicPartitionList::new();
        let assigned = consumer.assignment().unwrap_or_default();
        for element in assigned.elements() {
            let (topic, partition) = (element.topic(), element.partition());
            if let Some(offset) = self.progress.next_commit(partition) {
                // Fails only for an offset below zero.
                let _ = offsets.add_partition_offset(topic, partition, Offset::Offset(offset));
            }
        }
        offsets
    }

    fn committed(&mut self, offsets: TopicPartitionList) {
        for element in offsets.elements() {
            if let Offset::Offset(offset) = element.offset() {
                self.progress.committed(element.partition(), offset);
            }
        }
    }

    fn not_committed(&self, error: &str) {
        tracing::warn!(
            source = self.intake.name(),
            error,
            "cannot commit offsets; accepted messages may be delivered again, as duplicates"
        );
    }
}

/// Commits offsets, and returns them.
async fn commit(
    consumer: Arc<Members>,
    offsets: TopicPartitionList,
) -> Result<TopicPartitionList, String> {
    if offsets.count() == 0 {
        return Ok(offsets);
    }
    let committing = spawn_blocking(move || {
        let committed = consumer.commit(&offsets, CommitMode::Sync);
        committed
            .map(|()| offsets)
            .map_err(|error| error.to_string())
    });
    committing.await.map_err(|error| error.to_string())?
}

/// Sends a message to Lisa, and returns its partition and offset when it counts as done.
async fn settle(
    settings: &KafkaSourceSettings,
    intake: &Intake,
    dead_letters: Option<&FutureProducer<Context>>,
    message: OwnedMessage,
) -> Result<(i32, i64), String> {
    let position = (message.partition(), message.offset());
    // The library panics at a header whose name is not UTF-8.
    let taken = match catch_unwind(|| incoming(&message)) {
        Ok(incoming) => intake.take(incoming).await,
        Err(_) => {
            let (partition, offset) = position;
            let place = format!("{}:{partition}:{offset}", settings.topic);
            intake.refuse("the name of a header is not UTF-8", &place)
        }
    };
    if let Taken::Refused(reason) = taken {
        match (settings.refused(), dead_letters) {
            (Refused::Skip, _) => {}
            (Refused::DeadLetter(topic), Some(producer)) => {
                publish(producer, &topic, &message, &reason).await?;
            }
            _ => {
                let (partition, offset) = position;
                return Err(format!(
                    "blocked at {}:{partition}:{offset}: {reason}",
                    settings.topic
                ));
            }
        }
    }
    Ok(position)
}

/// Publishes a message that Lisa refuses: unchanged, with the reason in a header.
async fn publish(
    producer: &FutureProducer<Context>,
    topic: &str,
    message: &OwnedMessage,
    reason: &str,
) -> Result<(), String> {
    let headers = message.headers().cloned().unwrap_or_else(OwnedHeaders::new);
    let headers = headers.insert(Header {
        key: REASON,
        value: Some(reason),
    });
    let mut record = FutureRecord::<[u8], [u8]>::to(topic).headers(headers);
    record.key = message.key();
    record.payload = message.payload();
    let too_large = Some(RDKafkaErrorCode::MessageSizeTooLarge);
    let sent = match producer.send(record, Timeout::After(PUBLISH)).await {
        Err((error, _)) if error.rdkafka_error_code() == too_large => {
            // The topic does not take a message that another topic took: its position is left.
            let (from, partition, offset) =
                (message.topic(), message.partition(), message.offset());
            let value = format!("{reason}; without payload, see {from}:{partition}:{offset}");
            let headers = OwnedHeaders::new().insert(Header {
                key: REASON,
                value: Some(value.as_str()),
            });
            let mut record = FutureRecord::<[u8], [u8]>::to(topic).headers(headers);
            record.key = message.key();
            producer.send(record, Timeout::After(PUBLISH)).await
        }
        sent => sent,
    };
    sent.map(|_| ())
        .map_err(|(error, _)| format!("cannot publish a dead letter to topic {topic}: {error}"))
}

fn incoming(message: &OwnedMessage) -> Incoming {
    let headers = message.headers().into_iter().flat_map(Headers::iter);
    let headers = headers.map(|header| {
        let text = header.value.map(|value| String::from_utf8(value.to_vec()));
        (header.key.to_owned(), text.and_then(Result::ok))
    });
    // A topic that is deleted and created again restarts at offset 0, but at another time.
    let stored_ms = message.timestamp().to_millis().unwrap_or(0);
    Incoming {
        headers: headers.collect(),
        id: Some(format!(
            "{}-{}-{}-{stored_ms}",
            message.topic(),
            message.partition(),
            message.offset()
        )),
        payload: message.payload().unwrap_or_default().to_vec().into(),
    }
}

/// Returns true for an error of a connection: the client reconnects by itself.
fn passes(error: &KafkaError) -> bool {
    use RDKafkaErrorCode as Code;
    let passing = [
        Code::AllBrokersDown,
        Code::Authentication,
        Code::BrokerTransportFailure,
        Code::OperationTimedOut,
        Code::Resolve,
        Code::SSL,
    ];
    let is_fatal = matches!(error, KafkaError::MessageConsumptionFatal(_));
    let code = error.rdkafka_error_code();
    !is_fatal && code.is_some_and(|code| passing.contains(&code))
}
