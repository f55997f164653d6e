//! One run of a job over many topics: a failure of one topic, shard or server does not affect the others.

use std::collections::BTreeSet;
use std::panic::AssertUnwindSafe;

use futures_util::FutureExt;
use futures_util::future::join_all;
use lisa_core::broker::{Broker, BrokerError, CONCURRENT_READS, TopicHandle};
use lisa_core::topic::Topic;
use lisa_service::metrics::Metrics;
use lisa_service::panics::panic_text;

use super::{JobError, Tools};
use crate::assignment::AssignedShard;

/// The number of topics that are handled at a time. Each makes several calls to Redis.
const TOPICS_AT_ONCE: usize = 8;

/// The names of servers. The second value is true if the server is up.
type Servers = BTreeSet<(String, bool)>;

/// The failures of one run so far. A topic that fails, panics, or whose server does not answer is recorded and skipped.
pub(crate) struct Round {
    job: &'static str,
    broker: Broker,
    metrics: Metrics,
    /// The servers that did not answer in this run. They are not called again, since each try may take seconds.
    silent: BTreeSet<String>,
    is_complete: bool,
    failure: Option<JobError>,
}

impl Round {
    pub(crate) fn new(job: &'static str, tools: &Tools) -> Self {
        Self {
            job,
            broker: tools.broker.clone(),
            metrics: tools.metrics.clone(),
            silent: BTreeSet::new(),
            is_complete: true,
            failure: None,
        }
    }

    /// Runs a call for one shard and returns its result. If the shard, its topic or its server is at fault, records the
    /// failure and returns `None`. A topic or group that was removed or a shard that was retired in the meantime is no failure:
    /// returns `None`.
    pub(crate) async fn of_shard<T>(
        &mut self,
        assigned: &AssignedShard,
        call: impl Future<Output = Result<T, BrokerError>>,
    ) -> Option<T> {
        let servers = server(&self.broker, assigned).into_iter().collect();
        self.pass_on(assigned.topic.name(), servers, call).await
    }

    /// Runs calls for shards, at most [`CONCURRENT_READS`] at a time, each like [`Round::of_shard`]. Returns their results in
    /// order.
    pub(crate) async fn of_shards<'a, T, F: Future<Output = Result<T, BrokerError>>>(
        &mut self,
        calls: impl IntoIterator<Item = (&'a AssignedShard, F)>,
    ) -> Vec<Option<T>> {
        let broker = self.broker.clone();
        let calls = calls.into_iter().map(|(assigned, call)| {
            let servers = server(&broker, assigned).into_iter().collect();
            (assigned.topic.name(), servers, call)
        });
        self.in_batches(CONCURRENT_READS, calls).await
    }

    /// Runs calls for topics, a few at a time, each like [`Round::of_topic`]. Returns their results in order.
    pub(crate) async fn of_topics<'a, T, F: Future<Output = Result<T, BrokerError>>>(
        &mut self,
        calls: impl IntoIterator<Item = (&'a TopicHandle, F)>,
    ) -> Vec<Option<T>> {
        let broker = self.broker.clone();
        let calls = calls.into_iter();
        let calls = calls.map(|(topic, call)| (topic.name(), servers(&broker, topic), call));
        self.in_batches(TOPICS_AT_ONCE, calls).await
    }

    /// Makes up to `most` calls at a time. Servers that do not answer one batch are not called by the next.
    async fn in_batches<'a, T, F: Future<Output = Result<T, BrokerError>>>(
        &mut self,
        most: usize,
        mut calls: impl Iterator<Item = (&'a Topic, Servers, F)>,
    ) -> Vec<Option<T>> {
        let mut results = Vec::new();
        loop {
            let mut batch = Vec::new();
            for (topic, servers, call) in calls.by_ref().take(most) {
                let call = self.ask(&servers).then(|| caught(call));
                batch.push((topic, servers, call));
            }
            if batch.is_empty() {
                return results;
            }
            let made = batch.into_iter().map(|(topic, servers, call)| async move {
                let result = match call {
                    Some(call) => Some(call.await),
                    None => None,
                };
                (topic, servers, result)
            });
            for (topic, servers, result) in join_all(made).await {
                results.push(result.and_then(|result| self.judge(topic, servers, result)));
            }
        }
    }

    /// Runs a call for all shards of a topic, like [`Round::of_shard`].
    pub(crate) async fn of_topic<T>(
        &mut self,
        topic: &TopicHandle,
        call: impl Future<Output = Result<T, BrokerError>>,
    ) -> Option<T> {
        let servers = servers(&self.broker, topic);
        self.pass_on(topic.name(), servers, call).await
    }

    /// Returns whether a server of the topic does not answer.
    pub(crate) fn is_away(&self, topic: &TopicHandle) -> bool {
        servers(&self.broker, topic)
            .iter()
            .any(|(server, is_up)| !is_up || self.silent.contains(server))
    }

    /// Returns whether all servers have answered so far.
    pub(crate) fn is_complete(&self) -> bool {
        self.is_complete
    }

    /// Ends the run: returns the report, or the first failure.
    pub(crate) fn report<T>(self, report: T) -> Result<T, JobError> {
        self.failure.map_or(Ok(report), Err)
    }

    fn ask(&mut self, servers: &Servers) -> bool {
        let away = |(server, is_up): &&(String, bool)| !is_up || self.silent.contains(server);
        let Some((server, _)) = servers.iter().find(away) else {
            return true;
        };
        let server = server.clone();
        self.note(JobError::Away { server });
        false
    }

    fn note(&mut self, error: JobError) {
        self.is_complete &= matches!(error, JobError::Topic { .. });
        self.failure.get_or_insert(error);
    }

    async fn pass_on<T>(
        &mut self,
        topic: &Topic,
        servers: Servers,
        call: impl Future<Output = Result<T, BrokerError>>,
    ) -> Option<T> {
        if !self.ask(&servers) {
            return None;
        }
        let result = caught(Box::pin(call)).await;
        self.judge(topic, servers, result)
    }

    /// Returns the result of a call, or records its failure.
    fn judge<T>(
        &mut self,
        topic: &Topic,
        servers: Servers,
        result: std::thread::Result<Result<T, BrokerError>>,
    ) -> Option<T> {
        let error = match result {
            Ok(Ok(given)) => return Some(given),
            Ok(Err(error)) if error.is_gone() => return None,
            Ok(Err(error)) if error.is_of_one_topic() => JobError::topic(topic, &error),
            Ok(Err(error)) => {
                // A slot that is being moved says nothing about the other shards of its server.
                if !error.is_slot_moving() {
                    self.silent
                        .extend(servers.into_iter().map(|(name, _)| name));
                }
                JobError::Redis(error)
            }
            Err(panic) => {
                let (job, reason) = (self.job, panic_text(&*panic));
                tracing::error!(job, %topic, reason, "job panicked on one topic; continuing with the others");
                self.metrics.panicked(job);
                JobError::topic(topic, &reason)
            }
        };
        self.note(error);
        None
    }
}

fn server(broker: &Broker, assigned: &AssignedShard) -> Option<(String, bool)> {
    let server = broker.server(&assigned.topic, assigned.shard).ok()?;
    Some((server.name(), server.is_up()))
}

fn servers(broker: &Broker, topic: &TopicHandle) -> Servers {
    let servers = topic.shards().filter_map(|shard| {
        let server = broker.server(topic, shard).ok()?;
        Some((server.name(), server.is_up()))
    });
    servers.collect()
}

/// Makes a call whose panic is its result.
async fn caught<T>(call: impl Future<Output = T>) -> std::thread::Result<T> {
    AssertUnwindSafe(call).catch_unwind().await
}
