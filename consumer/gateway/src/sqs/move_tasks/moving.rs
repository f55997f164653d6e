//! A message move task that runs: takes the messages of the dead-letter queue, sends them on, and notes its progress.

use std::sync::Arc;
use std::time::Duration;

use lisa_consumer_core::Outcome;
use lisa_core::broker::{BrokerError, TopicHandle};
use lisa_core::message::{Headers, MessageId, NewId, Options, PreparedMessage, Record, forwarded};
use lisa_core::state::{SendOutcome, State};
use lisa_core::time::When;
use lisa_core::topic::Topic;
use lisa_service::http::auth::Reach;
use tokio::time::{Instant, sleep, sleep_until};

use super::{CANCELLED, COMPLETED, FAILED, Task};
use crate::handed::Pulled;
use crate::pull::{PullOptions, Taken, take};
use crate::settle::settle_all;
use crate::sqs::Service;
use crate::sqs::protocol::SqsError;

/// Messages of garbage read per call.
const PAGE: usize = 1000;
/// The maximum lag of the estimate of Redis's clock.
const SLACK: Duration = Duration::from_millis(100);
/// The messages that are moved at once.
const BATCH: usize = 50;
/// The lease of messages that are being moved.
const LEASE: Duration = Duration::from_secs(30);
/// The time for which messages that do not tell their source stay invisible, so that others come first.
const NO_SOURCE_FOR: Duration = Duration::from_secs(1);
/// The longest time between two notes of a task's state.
const NOTE_EVERY: Duration = Duration::from_millis(500);

/// A task that runs.
pub(super) struct Moving {
    pub(super) service: Arc<Service>,
    pub(super) id: String,
    pub(super) task: Task,
    pub(super) source: Arc<TopicHandle>,
    pub(super) destination: Option<Arc<TopicHandle>>,
    /// The topics that the token of the client reaches.
    pub(super) reach: Arc<Reach>,
    pub(super) noted: Instant,
}

/// The reason why a task ends before its last message.
enum Stop {
    Cancelled,
    Failed(String),
}

/// The reason why a message was not sent.
enum NotSent {
    /// It does not tell where it comes from.
    NoSource,
    /// The queue cannot take it.
    Failed(String),
}

impl From<BrokerError> for NotSent {
    fn from(error: BrokerError) -> Self {
        Self::Failed(match error {
            BrokerError::UnknownTopic(_) | BrokerError::BeingRemoved(_) => {
                SqsError::no_queue().code().to_owned()
            }
            error => error.to_string(),
        })
    }
}

impl From<BrokerError> for Stop {
    fn from(error: BrokerError) -> Self {
        Self::Failed(error.to_string())
    }
}

impl Moving {
    pub(super) fn note(&self) -> String {
        serde_json::to_string(&self.task).unwrap_or_default()
    }

    /// Runs the task, and notes how it ends. Returns the number of messages moved.
    pub(super) async fn run(mut self, is_own: bool) -> Result<u64, String> {
        let done = match is_own {
            true => self.requeue_all().await,
            false => self.move_all().await,
        };
        let (status, failure) = match done {
            Ok(()) => (COMPLETED, None),
            Err(Stop::Cancelled) => (CANCELLED, None),
            Err(Stop::Failed(failure)) => (FAILED, Some(failure)),
        };
        self.task.status = status.to_owned();
        self.task.failure.clone_from(&failure);
        let noted = self.write().await;
        if let Err(error) = noted {
            tracing::warn!(%error, "cannot note the end of a message move task");
        }
        failure.map_or(Ok(self.task.moved), Err)
    }

    async fn write(&mut self) -> Result<bool, BrokerError> {
        let broker = &self.service.gateway.process().broker;
        self.task.noted = broker.now().get();
        self.noted = Instant::now();
        broker.note_move_task(&self.id, &self.note()).await
    }

    /// Notes the progress, and stops if the task is cancelled.
    async fn progress(&mut self) -> Result<(), Stop> {
        if self.noted.elapsed() < NOTE_EVERY {
            return Ok(());
        }
        match self.write().await? {
            true => Err(Stop::Cancelled),
            false => Ok(()),
        }
    }

    /// Waits until `time`, with notes of the progress.
    async fn wait(&mut self, time: Instant) -> Result<(), Stop> {
        while Instant::now() < time {
            sleep_until(time.min(self.noted + NOTE_EVERY)).await;
            self.progress().await?;
        }
        Ok(())
    }

    /// Moves the messages that are ready now, and those that wait behind them.
    async fn move_all(&mut self) -> Result<(), Stop> {
        let service = self.service.clone();
        let (gateway, group) = (&service.gateway, &service.options.group);
        let most = self
            .task
            .rate
            .map_or(BATCH, |rate| BATCH.min(rate as usize));
        let options = PullOptions {
            max: most,
            max_per_key: most,
            max_keys: None,
            wait: Duration::ZERO,
            lease: Some(LEASE),
            consumer: None,
        };
        let (begun, mut strangers) = (Instant::now(), 0);
        // What comes back while the task runs stays.
        let mut left = self.task.to_move;
        while left > 0 {
            self.progress().await?;
            let taken = take(gateway, &self.source, group, &options).await;
            let taken = taken.map_err(|problem| Stop::Failed(problem.detail().to_owned()))?;
            let Some(Taken { pulled, mut handed }) = taken else {
                break;
            };
            handed.delivered();
            left = left.saturating_sub(pulled.len() as u64);
            let (mut outcomes, mut broken) = (Vec::new(), None);
            for one in pulled {
                let Ok(claims) = gateway.open(&one.token) else {
                    continue;
                };
                if broken.is_some() {
                    outcomes.push(Ok((claims, Outcome::defer(Duration::ZERO))));
                    continue;
                }
                let outcome = match self.send(one).await {
                    Ok(()) => {
                        self.task.moved += 1;
                        Outcome::Ack
                    }
                    Err(NotSent::NoSource) => {
                        strangers += 1;
                        Outcome::defer(NO_SOURCE_FOR)
                    }
                    Err(NotSent::Failed(why)) => {
                        broken = Some(why);
                        Outcome::defer(Duration::ZERO)
                    }
                };
                outcomes.push(Ok((claims, outcome)));
            }
            settle_all(gateway, outcomes).await;
            if let Some(why) = broken {
                return Err(Stop::Failed(why));
            }
            if let Some(rate) = self.task.rate {
                let due = Duration::from_secs_f64(self.task.moved as f64 / rate as f64);
                self.wait(begun + due).await?;
            }
        }
        match strangers {
            0 => Ok(()),
            _ => Err(Stop::Failed("CouldNotDetermineMessageSource".to_owned())),
        }
    }

    /// Sends a message of the dead-letter queue to the queue where it goes.
    async fn send(&self, pulled: Pulled) -> Result<(), NotSent> {
        let broker = &self.service.gateway.process().broker;
        let delivery = pulled.delivery;
        let to = match &self.destination {
            Some(to) => to.clone(),
            None => {
                let source = delivery.headers.get(forwarded::TOPIC);
                let topic = source.and_then(|source| source.parse::<Topic>().ok());
                let topic = topic.filter(|topic| self.reach.has_topic(topic));
                let topic = topic.ok_or(NotSent::NoSource)?;
                broker.topic(&topic).await?
            }
        };
        let mut headers = Headers::default();
        for (name, value) in delivery.headers.iter() {
            // Its origin stays with it.
            if !name.starts_with(forwarded::PREFIX) {
                let _ = headers.insert_any(name, value);
            }
        }
        let (topic, group) = (self.source.name(), &self.service.options.group);
        let message = PreparedMessage {
            id: MessageId::of_move(topic, group, &delivery.id, delivery.entry),
            new_id: NewId::default(),
            when: When::NOW,
            options: Options {
                key: pulled.key,
                ..Options::default()
            },
            record: Record {
                caller_id: true,
                headers,
                payload: delivery.payload,
                ..Record::default()
            },
            durability: to.settings().durability,
        };
        let shard = to.shard_of_message(&message);
        loop {
            match broker
                .send(&to, shard, std::slice::from_ref(&message))
                .await
            {
                Ok(accepted) => {
                    let is_full = accepted
                        .first()
                        .is_none_or(|one| one.outcome == SendOutcome::Full);
                    return match is_full {
                        true => Err(NotSent::Failed("The destination queue is full".to_owned())),
                        false => Ok(()),
                    };
                }
                Err(error) if error.is_retryable() => sleep(SLACK).await,
                Err(error) => return Err(error.into()),
            }
        }
    }

    /// Requeues everything that is in the garbage of the topic now.
    async fn requeue_all(&mut self) -> Result<(), Stop> {
        let service = self.service.clone();
        let (broker, group) = (&service.gateway.process().broker, &service.options.group);
        let newest = broker.now().plus(SLACK);
        let begun = Instant::now();
        let most = self.task.rate.map_or(PAGE, |rate| PAGE.min(rate as usize));
        let mut cursor: Option<String> = None;
        loop {
            self.progress().await?;
            let page = broker
                .list(&self.source, group, State::Garbage, cursor.as_deref(), most)
                .await?;
            let seen: Vec<_> = page
                .items
                .into_iter()
                .filter_map(|message| Some((message.id, message.garbage_at?)))
                .filter(|(_, since)| *since <= newest)
                .collect();
            let done = broker.requeue(&self.source, group, &seen).await?;
            self.task.moved += done;
            // Requeued messages have left garbage, so the same cursor shows the messages after them.
            if done == 0 {
                match page.next {
                    Some(next) => cursor = Some(next),
                    None => return Ok(()),
                }
            }
            if let Some(rate) = self.task.rate {
                let due = Duration::from_secs_f64(self.task.moved as f64 / rate as f64);
                self.wait(begun + due).await?;
            }
        }
    }
}
