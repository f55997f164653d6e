//! A relay for tests of programs that send and handle messages: a private Redis, a clock that the test controls, and the
//! real scripts.
//!
//! ```no_run
//! use std::time::Duration;
//!
//! use lisa_consumer::{Context, handler_fn};
//! use lisa_manager::testing::TestRelay;
//! use lisa_producer::TopicSettings;
//!
//! # async fn example() -> Result<(), Box<dyn std::error::Error>> {
//! let relay = TestRelay::start().await?;
//! relay.topic("reminders", &TopicSettings::default()).await?;
//!
//! // The program under test sends with its producer:
//! let producer = relay.producer();
//! producer.send("reminders", "pay order 7").delay(Duration::from_secs(1800)).await?;
//!
//! let sent = relay.sent("reminders").await?;
//! assert_eq!(sent[0].listed.due_at, Some(relay.now().plus(Duration::from_secs(1800))));
//!
//! let handler = handler_fn(|_: String, _: Context| async {});
//! relay.advance(Duration::from_secs(1799)).await?;
//! assert_eq!(relay.deliver("reminders", "default", handler).await?.acked, 0);
//! relay.advance(Duration::from_secs(1)).await?;
//! let handler = handler_fn(|_: String, _: Context| async {});
//! assert_eq!(relay.deliver("reminders", "default", handler).await?.acked, 1);
//! # Ok(())
//! # }
//! ```
//!
//! Time stands still between two calls of [`TestRelay::advance`]; leases and handler timeouts run in real time. The relay is
//! no load generator, and runs no jobs of a manager: nothing is reclaimed or cleaned.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use lisa_consumer::{Consumer, ConsumerError, Handler, RunReport};
use lisa_core::broker::{Broker, BrokerError, Declare, MAX_BATCH, Moved, TopicHandle, TopicStats};
use lisa_core::redis::{Connection, ConnectionError, ConnectionSettings, RedisUrl};
use lisa_core::state::State;
use lisa_core::time::UnixMs;
use lisa_core::topic::{Group, InvalidName, Namespace, Shard, Topic, TopicSettings};
use lisa_producer::{GetOutcome, Producer, SendError, StoredMessage};
use tempfile::TempDir;
use tokio_util::sync::CancellationToken;

use crate::dev::server::{PrivateServer, ServerError};

/// Returns the paths of the pages and actions of the dashboard that need a session, for the tests of Lisa itself.
#[doc(hidden)]
#[must_use]
pub fn dashboard_paths() -> Vec<String> {
    crate::dashboard::paths()
}

/// The initial time of a test's clock: 2030-01-01T00:00:00Z.
pub const START: UnixMs = UnixMs::new(1_893_456_000_000);
/// The timeout of each call to Redis.
const CALL_TIMEOUT: Duration = Duration::from_secs(10);
/// The interval between checks whether a group has nothing left to handle.
const LOOK_EVERY: Duration = Duration::from_millis(2);

/// The error of a [`TestRelay`].
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum TestError {
    /// No Redis server is installed, or it did not start. The message says how to install one.
    #[error("{0}")]
    Server(String),
    /// The temporary folder of the server could not be created.
    #[error("cannot create a temporary folder")]
    Folder(#[from] std::io::Error),
    /// A name is invalid.
    #[error(transparent)]
    Name(#[from] InvalidName),
    /// Redis is unavailable.
    #[error(transparent)]
    Connection(#[from] ConnectionError),
    /// Redis refused a call, or the topic or group is unknown.
    #[error(transparent)]
    Broker(#[from] BrokerError),
    /// A message could not be read.
    #[error(transparent)]
    Message(#[from] SendError),
    /// The consumer could not run.
    #[error(transparent)]
    Consumer(#[from] ConsumerError),
}

impl From<ServerError> for TestError {
    fn from(error: ServerError) -> Self {
        Self::Server(error.to_string())
    }
}

/// A private relay for one test. Dropping it stops its server and removes its data.
pub struct TestRelay {
    broker: Broker,
    server: PrivateServer,
    _folder: TempDir,
}

impl TestRelay {
    /// Starts a private Redis: the server that `LISA_REDIS_SERVER` names, or the one in the `PATH`. Takes about 50 ms.
    /// Must be called inside a Tokio runtime.
    ///
    /// # Errors
    /// No server is installed, or it did not start.
    pub async fn start() -> Result<Self, TestError> {
        let folder = tempfile::Builder::new().prefix("lisa-").tempdir()?;
        let server = PrivateServer::start(folder.path()).await?;
        let settings = ConnectionSettings::new(RedisUrl::unix(server.socket()));
        let connection = Connection::new(settings, &CancellationToken::new())?;
        connection.wait_up(CALL_TIMEOUT).await?;
        let broker = Broker::new(connection, Namespace::default(), CALL_TIMEOUT, None);
        broker.set_virtual_now(START);
        Ok(Self {
            broker,
            server,
            _folder: folder,
        })
    }

    /// Returns the address of the private Redis, for other connections. Their clock is Redis's, not the
    /// test's.
    pub fn url(&self) -> String {
        format!("unix://{}", self.server.socket().display())
    }

    /// Returns the broker on which consumers are built. Its clock is the test's.
    pub fn broker(&self) -> Broker {
        self.broker.clone()
    }

    /// Returns a producer. Its clock is the test's.
    pub fn producer(&self) -> Producer {
        Producer::new(self.broker())
    }

    /// Returns the time on the test's clock.
    pub fn now(&self) -> UnixMs {
        self.broker.now()
    }

    /// Declares a topic.
    ///
    /// # Errors
    /// The name is invalid, or the topic has another number of shards.
    pub async fn topic(&self, topic: &str, settings: &TopicSettings) -> Result<(), TestError> {
        self.broker
            .declare(&topic.parse()?, settings, Declare::Create)
            .await?;
        Ok(())
    }

    /// Advances the clock, in whole milliseconds, and moves all messages that are then due to their groups.
    ///
    /// # Errors
    /// A call to Redis failed.
    pub async fn advance(&self, by: Duration) -> Result<(), TestError> {
        self.broker.set_virtual_now(self.now().plus(by));
        self.move_due(Duration::from_secs(60)).await?;
        Ok(())
    }

    /// Returns the stored messages of a topic as its first group has them, by time: all that were sent and have not ended
    /// there.
    ///
    /// # Errors
    /// The topic is not declared, or a call to Redis failed.
    pub async fn sent(&self, topic: &str) -> Result<Vec<StoredMessage>, TestError> {
        let name: Topic = topic.parse()?;
        let handle = self.broker.topic(&name).await?;
        let group = handle.groups().first();
        let mut found = BTreeMap::new();
        for state in State::ALL {
            let mut cursor = None;
            loop {
                let page = self
                    .broker
                    .list(&handle, group, *state, cursor.as_deref(), 1000)
                    .await?;
                for listed in page.items {
                    if let GetOutcome::Stored(message) =
                        self.producer().get(topic, &listed.id).await?
                    {
                        let listed = &message.listed;
                        found.insert((listed.time(), listed.id.clone()), *message);
                    }
                }
                cursor = page.next;
                if cursor.is_none() {
                    break;
                }
            }
        }
        Ok(found.into_values().collect())
    }

    /// Handles all messages that are ready for a group, including those that become ready in the meantime, and returns a
    /// report. A message that fails comes again when its pause has [passed](TestRelay::advance).
    ///
    /// # Errors
    /// The topic or group is unknown, or a call to Redis failed.
    ///
    /// # Panics
    /// Never because of the handler: a panic in it is a failed attempt.
    pub async fn deliver(
        &self,
        topic: &str,
        group: &str,
        handler: impl Handler,
    ) -> Result<RunReport, TestError> {
        self.move_due(Duration::from_secs(60)).await?;
        let handle = self.broker.topic(&topic.parse()?).await?;
        let name: Group = group.parse()?;
        if !handle.groups().contains(&name) {
            let (topic, group) = (handle.name().clone(), name);
            return Err(BrokerError::UnknownGroup { topic, group }.into());
        }
        let consumer = Consumer::builder(self.broker())
            .group(group)
            .topic(topic, handler)
            .build()?;
        let broker = self.broker();
        let idle = async move {
            while !is_idle(&broker, &handle, &name).await {
                tokio::time::sleep(LOOK_EVERY).await;
            }
        };
        Ok(consumer.run().with_graceful_shutdown(idle).await?)
    }

    /// Advances the clock as [`TestRelay::advance`] does, in steps from one due time to the next. Handles the messages that
    /// become due at each step, including retries.
    ///
    /// # Errors
    /// As [`TestRelay::deliver`].
    pub async fn deliver_for(
        &self,
        time: Duration,
        topic: &str,
        group: &str,
        handler: impl Handler,
    ) -> Result<RunReport, TestError> {
        let handler = Arc::new(handler);
        let end = self.now().plus(time);
        let mut total = RunReport::default();
        loop {
            total += self.deliver(topic, group, handler.clone()).await?;
            let left = end.since(self.now());
            if left.is_zero() {
                return Ok(total);
            }
            let pause = self.move_due(left).await?;
            self.broker
                .set_virtual_now(self.now().plus(pause.min(left)));
        }
    }

    /// Returns the message counts of a topic.
    ///
    /// # Errors
    /// The topic is not declared, or a call to Redis failed.
    pub async fn stats(&self, topic: &str) -> Result<TopicStats, TestError> {
        let handle = self.broker.topic(&topic.parse()?).await?;
        Ok(self.broker.stats(&handle).await?)
    }

    /// Moves all due messages. Returns the time until the next one is due, at most `idle`.
    async fn move_due(&self, idle: Duration) -> Result<Duration, TestError> {
        let mut least = idle;
        for handle in self.broker.refresh().await? {
            for shard in handle.shards() {
                least = least.min(self.move_shard(&handle, shard, idle).await?);
            }
        }
        Ok(least)
    }

    async fn move_shard(
        &self,
        handle: &TopicHandle,
        shard: Shard,
        idle: Duration,
    ) -> Result<Duration, TestError> {
        loop {
            let batch = u16::try_from(MAX_BATCH).unwrap_or(u16::MAX);
            match self.broker.move_due(handle, shard, batch, idle).await? {
                Moved::Moved { pause, .. } if pause.is_zero() => {}
                Moved::Moved { pause, .. } => return Ok(pause),
                Moved::Paused => return Ok(idle),
            }
        }
    }
}

/// Returns whether a group has nothing to handle; false while Redis is unavailable, which the consumer reports itself.
async fn is_idle(broker: &Broker, topic: &TopicHandle, group: &Group) -> bool {
    let Ok(stats) = broker.stats(topic).await else {
        return false;
    };
    let mut groups = stats.groups.iter().filter(|of| of.group == *group);
    groups.all(|of| of.ready + of.in_flight == 0)
}
