//! Garbage jobs: their states in the registry, and the walk over a group's garbage by time.
//!
//! A state is a text of the caller, which this does not read.

use crate::broker::attempts::error_in;
use crate::broker::list::GarbageInfo;
use crate::broker::reply::{Seen, command, utf8};
use crate::broker::{Broker, BrokerError, TopicHandle};
use crate::message::MessageId;
use crate::scripts::{ChangeGarbageJob, JobChange};
use crate::time::UnixMs;
use crate::topic::{Group, Shard};

/// The largest number of garbage jobs that are stored.
pub const MAX_GARBAGE_JOBS: usize = 50;

/// A message in garbage, as a walk finds it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct InGarbage {
    /// The message.
    pub id: MessageId,
    /// The time at which it moved to garbage.
    pub time: UnixMs,
    /// The reason; `None` if it is unreadable.
    pub info: Option<GarbageInfo>,
}

/// A position in the garbage of a shard.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct GarbagePosition {
    /// The first time.
    pub from: UnixMs,
    /// The number of messages of exactly this time to skip.
    pub skip: usize,
}

impl GarbagePosition {
    /// Moves the position to the time of a message. If the message stays in garbage, it must also be skipped.
    pub fn pass(&mut self, message: &InGarbage) {
        if message.time > self.from {
            self.from = message.time;
            self.skip = 0;
        }
    }
}

impl Broker {
    /// Returns up to `limit` messages in a group's garbage on a shard, by the time at which they moved there: from a position
    /// on, up to and including `to`. Costs two reads.
    ///
    /// # Errors
    /// [`BrokerError`].
    pub async fn garbage_from(
        &self,
        topic: &TopicHandle,
        shard: Shard,
        group: &Group,
        position: GarbagePosition,
        to: UnixMs,
        limit: usize,
    ) -> Result<Vec<InGarbage>, BrokerError> {
        let keys = topic.group_keys(shard, group)?.group;
        let range = command("ZRANGE", &keys.garbage)
            .arg(position.from.get())
            .arg(to.get())
            .arg(&["BYSCORE", "LIMIT"])
            .arg(position.skip)
            .arg(limit)
            .arg("WITHSCORES");
        let seen: Vec<Seen> = self.ask_seen(range).await?;
        if seen.is_empty() {
            return Ok(Vec::new());
        }
        let infos = command("HMGET", &keys.garbage_info).ids(seen.iter().map(|(id, _)| id));
        let infos: Vec<Option<Vec<u8>>> = self.ask(infos).await?;
        let found = seen.into_iter().zip(infos);
        let found = found.map(|((id, time), info)| InGarbage {
            id,
            time,
            info: info
                .and_then(utf8)
                .and_then(|info| GarbageInfo::parse(error_in(&info))),
        });
        Ok(found.collect())
    }

    /// Returns for each message whether its garbage hook has yet to run.
    ///
    /// # Errors
    /// [`BrokerError`].
    pub async fn awaits_garbage_hook(
        &self,
        topic: &TopicHandle,
        shard: Shard,
        group: &Group,
        ids: &[MessageId],
    ) -> Result<Vec<bool>, BrokerError> {
        if ids.is_empty() {
            return Ok(Vec::new());
        }
        let keys = topic.group_keys(shard, group)?.group;
        let scores = command("ZMSCORE", &keys.garbage_hook).ids(ids);
        let scores: Vec<Option<f64>> = self.ask(scores).await?;
        Ok(scores.iter().map(Option::is_some).collect())
    }

    /// Wakes the manager that forwards the garbage of a shard, if there is one. A hint: it looks twice a second anyway.
    pub(super) async fn wake_forwarder(&self, topic: &TopicHandle, shard: Shard) {
        if topic.settings().garbage.topic.is_some()
            && let Ok(keys) = topic.keys(shard)
        {
            let now = self.now_at(topic, shard).get();
            let wake = command("SPUBLISH", &keys.wake).arg(now);
            let _: Result<u64, BrokerError> = self.ask(wake).await;
        }
    }

    /// Returns the garbage jobs: id and state.
    ///
    /// # Errors
    /// [`BrokerError`].
    pub async fn garbage_jobs(&self) -> Result<Vec<(String, String)>, BrokerError> {
        let mut jobs = self.fields(&self.inner.registry.garbage_jobs).await?;
        jobs.sort_unstable();
        Ok(jobs)
    }

    /// Replaces the state of a garbage job, unless it is no longer `before`, the state that the caller read. An empty state
    /// stands for no job. At most [`MAX_GARBAGE_JOBS`] are stored.
    ///
    /// # Errors
    /// [`BrokerError`].
    pub async fn change_garbage_job(
        &self,
        id: &str,
        before: &str,
        after: &str,
    ) -> Result<JobChange, BrokerError> {
        let most = MAX_GARBAGE_JOBS;
        let change = ChangeGarbageJob {
            id,
            before,
            after,
            most,
        };
        self.run_on_registry(&change).await
    }
}
