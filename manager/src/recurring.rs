//! Sends recurring messages: one for each time of each schedule (cron), some seconds ahead.
//!
//! The id of a message consists of the schedule and the time, so each message is stored once, no matter how many managers send
//! it. Schedules come from this manager's configuration, or from Redis if they were created at run time.

mod declared;
mod stored;

use std::time::Duration;

use lisa_core::broker::{Broker, BrokerError};
use lisa_core::message::MessageId;
use lisa_core::time::UnixMs;
use lisa_core::topic::{MergeBy, ScheduleName};
use lisa_producer::{NewMessage, Producer, ProducerOptions, Receipt, SendError, SendOutcome};
use lisa_service::config::Config;
use lisa_service::metrics::Metrics;
use lisa_service::recurring::RecurringMessage;
use lisa_service::shutdown::Shutdown;
use lisa_service::spans::Spans;
use lisa_service::supervise::Heartbeat;
use tokio::time::sleep;

pub(crate) use declared::Recurring;
pub(crate) use stored::StoredSchedules;

/// The time by which a message is sent ahead. It is still in time if managers are unavailable for that long.
pub(crate) const AHEAD: Duration = Duration::from_secs(5);
/// The longest delay of a time that does not count as missed.
const IN_TIME: Duration = Duration::from_secs(2);
/// The time that a round may continue at shutdown. A send may wait longer for a replica; a message that it stored stays.
const LAST_ROUND: Duration = Duration::from_secs(5);
/// The interval at which a pause reports progress.
const PROGRESS_EVERY: Duration = Duration::from_millis(500);
/// The number of sends that wait for an answer at a time. Concurrent sends share calls, and what a call waits for.
pub(crate) const SENDS_AT_A_TIME: usize = 200;

/// Sends the messages of schedules. Cheap to clone.
#[derive(Clone, Debug)]
pub(crate) struct Sender {
    broker: Broker,
    producer: Producer,
    metrics: Metrics,
}

/// The result of a send for one time, as metrics name it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Outcome {
    Sent,
    Late,
    /// Another manager had sent it.
    Known,
    Failed,
}

impl Outcome {
    /// Returns the result of a send that began at `now`.
    fn of(sent: &Result<Receipt, SendError>, time: UnixMs, now: UnixMs) -> Self {
        match sent {
            Ok(receipt) if receipt.outcome == SendOutcome::Duplicate => Self::Known,
            Ok(_) if now.since(time) >= IN_TIME => Self::Late,
            Ok(_) => Self::Sent,
            Err(error) if is_stored(error) => Self::Sent,
            Err(_) => Self::Failed,
        }
    }

    fn as_str(self) -> &'static str {
        match self {
            Self::Sent => "sent",
            Self::Late => "late",
            Self::Known => "known",
            Self::Failed => "failed",
        }
    }
}

impl Sender {
    /// Creates the sender of a manager.
    pub(crate) fn new(
        broker: &Broker,
        metrics: &Metrics,
        spans: Option<&Spans>,
        config: &Config,
    ) -> Self {
        let options = ProducerOptions {
            topics: config.topics.clone(),
            metrics: Some(metrics.clone()),
            spans: spans.cloned(),
            ..ProducerOptions::default()
        };
        Self {
            broker: broker.clone(),
            producer: Producer::with_options(broker.clone(), options),
            metrics: metrics.clone(),
        }
    }

    /// Sends the message of a schedule for one of its times. A past time is due now.
    pub(crate) async fn send(
        &self,
        name: &ScheduleName,
        schedule: &RecurringMessage,
        time: UnixMs,
    ) -> Result<Receipt, SendError> {
        let id = MessageId::of_schedule(name, time);
        self.send_as(id, schedule, time).await
    }

    /// Sends a message of a schedule with this id, due at `time`.
    pub(crate) async fn send_as(
        &self,
        id: MessageId,
        schedule: &RecurringMessage,
        time: UnixMs,
    ) -> Result<Receipt, SendError> {
        let template = &schedule.message;
        let message = NewMessage::new(template.payload.clone())
            .headers(template.headers.clone())
            .options(template.options.clone());
        let message = message.id(id).at(time);
        self.producer.send_message(&schedule.topic, message).await
    }

    /// Returns how far ahead the messages of a schedule are sent, at most `most`.
    fn ahead(&self, schedule: &RecurringMessage, most: Duration) -> Duration {
        let Some(topic) = self.broker.known(&schedule.topic) else {
            return most;
        };
        let settings = topic.settings();
        if schedule.message.options.merge_key.is_some() || settings.merge_by == MergeBy::Payload {
            // It must not merge with the previous message, which may still be waiting.
            return Duration::ZERO;
        }
        // A message that is due later would be refused.
        most.min(settings.max_delay / 2)
    }
}

/// Runs a round. Returns `None` if the shutdown begins and the round does not end soon.
async fn before_shutdown<T>(shutdown: &Shutdown, round: impl Future<Output = T>) -> Option<T> {
    let too_long = async {
        shutdown.draining().cancelled().await;
        sleep(LAST_ROUND).await;
    };
    tokio::select! {
        round = round => Some(round),
        () = too_long => None,
    }
}

/// Waits until the next round, and reports progress meanwhile. Ends early if `woken` does, or when the shutdown begins.
async fn pause(
    length: Duration,
    woken: impl Future<Output = ()>,
    heartbeat: &Heartbeat,
    shutdown: &Shutdown,
) {
    let progress = async {
        loop {
            heartbeat.ok();
            sleep(PROGRESS_EVERY).await;
        }
    };
    tokio::select! {
        () = sleep(length) => {}
        () = woken => {}
        () = shutdown.draining().cancelled() => {}
        () = progress => {}
    }
}

/// Returns whether the message is stored, though not as durably as the topic requires.
fn is_stored(error: &SendError) -> bool {
    matches!(error, SendError::Indeterminate { stored: true, .. })
}

/// Returns whether sending the same message again cannot succeed.
fn is_about_the_message(error: &SendError) -> bool {
    matches!(
        error,
        SendError::TooLarge { .. } | SendError::Invalid(_) | SendError::Encode(_)
    )
}

/// Removes the stored schedules that the configuration of this manager declares: what a file declares is the file's.
///
/// # Errors
/// [`BrokerError`].
pub(crate) async fn take_over(broker: &Broker, config: &Config) -> Result<(), BrokerError> {
    let names: Vec<ScheduleName> = config.schedules.keys().cloned().collect();
    for stored in broker.read_schedules(&names).await? {
        if stored.definition.is_some() {
            broker
                .remove_schedule(&stored.name, Some(stored.version))
                .await?;
            tracing::warn!(schedule = %stored.name, "the configuration declares the schedule; the one that was created at run time is removed");
        }
    }
    Ok(())
}
