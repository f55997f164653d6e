//! One run of a job over many topics: what one topic, one shard or one server does not give costs the others nothing.

use std::collections::BTreeSet;
use std::panic::AssertUnwindSafe;

use futures_util::FutureExt;
use lisa_shared::broker::{Broker, BrokerError, TopicHandle};
use lisa_shared::metrics::Metrics;
use lisa_shared::supervise::panic_text;
use lisa_shared::topic::Topic;

use super::{JobError, Tools};
use crate::share::Held;

/// What went wrong in one run so far. Each topic is asked in its turn; one that fails, panics, or whose server does not
/// answer is noted and passed over.
pub(crate) struct Round {
    job: &'static str,
    broker: Broker,
    metrics: Metrics,
    /// Servers that did not answer in this run. They are not asked again: each try may take seconds.
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

    /// Passes on what a call for one shard gave. Nothing, and a note, if the shard, its topic or its server is at fault. A
    /// group that was removed meanwhile, or a shard that was given up, gives nothing and is nobody's fault.
    pub(crate) async fn of_shard<T>(
        &mut self,
        held: &Held,
        call: impl Future<Output = Result<T, BrokerError>>,
    ) -> Option<T> {
        let servers = self.server(held).into_iter().collect();
        self.pass_on(held.topic.name(), servers, call).await
    }

    /// Does the same with a call that asks all shards of a topic.
    pub(crate) async fn of_topic<T>(
        &mut self,
        topic: &TopicHandle,
        call: impl Future<Output = Result<T, BrokerError>>,
    ) -> Option<T> {
        let servers = self.servers(topic);
        self.pass_on(topic.name(), servers, call).await
    }

    /// Says whether a server of a topic does not answer.
    pub(crate) fn is_away(&self, topic: &TopicHandle) -> bool {
        let servers = self.servers(topic);
        servers
            .iter()
            .any(|(server, is_up)| !is_up || self.silent.contains(server))
    }

    /// Says whether all servers answered so far.
    pub(crate) fn is_complete(&self) -> bool {
        self.is_complete
    }

    /// Ends the run.
    pub(crate) fn report<T>(self, report: T) -> Result<T, JobError> {
        self.failure.map_or(Ok(report), Err)
    }

    fn server(&self, held: &Held) -> Option<(String, bool)> {
        let server = self.broker.server(&held.topic, held.shard).ok()?;
        Some((server.name(), server.is_up()))
    }

    fn servers(&self, topic: &TopicHandle) -> BTreeSet<(String, bool)> {
        let servers = topic.shards().filter_map(|shard| {
            let server = self.broker.server(topic, shard).ok()?;
            Some((server.name(), server.is_up()))
        });
        servers.collect()
    }

    fn ask(&mut self, servers: &BTreeSet<(String, bool)>) -> bool {
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
        servers: BTreeSet<(String, bool)>,
        call: impl Future<Output = Result<T, BrokerError>>,
    ) -> Option<T> {
        if !self.ask(&servers) {
            return None;
        }
        let error = match AssertUnwindSafe(Box::pin(call)).catch_unwind().await {
            Ok(Ok(given)) => return Some(given),
            Ok(Err(BrokerError::UnknownGroup { .. } | BrokerError::ShardGone { .. })) => {
                return None;
            }
            Ok(Err(error)) if error.is_of_one_topic() => JobError::topic(topic, &error),
            Ok(Err(error)) => {
                // A slot that moves says nothing of the other shards of its server.
                if !error.is_slot_moving() {
                    self.silent
                        .extend(servers.into_iter().map(|(name, _)| name));
                }
                JobError::Redis(error)
            }
            Err(panic) => {
                let (job, reason) = (self.job, panic_text(&*panic));
                tracing::error!(job, %topic, reason, "a job failed on one topic: it goes on with the others");
                self.metrics.panicked(job);
                JobError::topic(topic, &reason)
            }
        };
        self.note(error);
        None
    }
}
