//! The counts of topics, each shared by the calls of a second.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use lisa_core::broker::{Broker, TopicHandle};
use lisa_core::sync::Mutex as SyncMutex;
use lisa_core::topic::Topic;
use lisa_service::config::Config;
use lisa_service::http::{Problem, Reads};
use tokio::sync::Mutex;
use tokio::time::Instant;

use crate::operations::demand::TopicDemand;
use crate::operations::schedules::Schedules;

/// The time for which a count is used.
const FRESH: Duration = Duration::from_secs(1);
/// The number of counts at which old ones are forgotten.
const MANY: usize = 256;

/// The newest counts, by topic and by the time in which messages become due.
pub(super) struct Counts {
    broker: Broker,
    config: Arc<Config>,
    reads: Reads,
    newest: SyncMutex<HashMap<(Topic, Duration), Arc<Newest>>>,
}

/// A count, which one caller makes while the others wait.
#[derive(Default)]
struct Newest(Mutex<Option<(Instant, Arc<TopicDemand>)>>);

impl Newest {
    /// Returns true if it is neither being made nor fresh.
    fn is_old(&self) -> bool {
        let count = self.0.try_lock();
        count.is_ok_and(|count| count.as_ref().is_none_or(|(at, _)| at.elapsed() > FRESH))
    }
}

impl Counts {
    pub(super) fn new(broker: &Broker, config: Arc<Config>) -> Self {
        Self {
            broker: broker.clone(),
            config,
            reads: Reads::of_statistics(),
            newest: SyncMutex::default(),
        }
    }

    /// Finds a topic.
    ///
    /// # Errors
    /// It does not exist, or Redis did not answer in time.
    pub(super) async fn topic(&self, topic: &Topic) -> Result<Arc<TopicHandle>, Problem> {
        if let Some(known) = self.broker.known(topic) {
            return Ok(known);
        }
        let found = self.reads.run(self.broker.topic(topic)).await?;
        found.map_err(|error| Problem::suggesting_topic(error, &self.broker))
    }

    /// Counts the messages of a topic that are due, or become due `within` this time.
    ///
    /// # Errors
    /// Redis did not answer in time, or the client reads too much.
    pub(super) async fn of(
        &self,
        topic: &TopicHandle,
        within: Duration,
    ) -> Result<Arc<TopicDemand>, Problem> {
        let newest = {
            let mut all = self.newest.lock();
            if all.len() >= MANY {
                all.retain(|_, newest| !newest.is_old());
            }
            all.entry((topic.name().clone(), within))
                .or_default()
                .clone()
        };
        let mut newest = newest.0.lock().await;
        if let Some((at, demand)) = &*newest
            && at.elapsed() <= FRESH
        {
            return Ok(demand.clone());
        }
        let at = Instant::now();
        let schedules = Schedules {
            broker: &self.broker,
            config: &self.config,
        };
        let count = TopicDemand::count(schedules, topic, within);
        let demand = Arc::new(self.reads.run(count).await??);
        *newest = Some((at, demand.clone()));
        Ok(demand)
    }
}
