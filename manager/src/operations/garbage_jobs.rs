//! Garbage jobs: requeue or purge the messages in a group's garbage that match a filter, in the background.
//!
//! A job takes what was in garbage when it began, so a message that fails again is not taken again. Its state is in Redis
//! after each batch; the manager of the topic's first shard runs it, and another one continues if that manager ends.

use std::time::Duration;

use lisa_core::broker::{
    Broker, BrokerError, GarbagePosition, InGarbage, JobChange, MAX_BATCH, MAX_GARBAGE_JOBS,
    TopicHandle,
};
use lisa_core::fields;
use lisa_core::time::UnixMs;
use lisa_core::topic::{Group, Shard, Topic};
use lisa_service::http::client::{reaches, reaches_named};
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use super::garbage::Verb;
use super::garbage_filter::Filter;

/// The most jobs that run at a time.
const MAX_RUNNING: usize = 10;
/// The most ended jobs that are kept.
const MAX_ENDED: usize = 20;
/// The messages read in one step of a job.
const PAGE: usize = 500;
/// The messages requeued or purged in one step of a job.
const BATCH: usize = 50;
/// The most messages that a count reads.
const MAX_COUNTED: u64 = 100_000;
/// The highest rate of a job, per second.
pub(crate) const MAX_RATE: u32 = 10_000;

/// The state of a job.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "lowercase")]
#[schema(as = GarbageJobState)]
pub(crate) enum JobState {
    /// A manager works on it, or will.
    Running,
    /// It ends after the current batch.
    Stopping,
    /// An operator stopped it.
    Stopped,
    /// It took all that match, or its maximum.
    Done,
    /// Its topic or group is gone.
    Failed,
}

impl JobState {
    pub(crate) const fn as_str(self) -> &'static str {
        match self {
            Self::Running => "running",
            Self::Stopping => "stopping",
            Self::Stopped => "stopped",
            Self::Done => "done",
            Self::Failed => "failed",
        }
    }

    /// Returns whether a manager has work to do for the job.
    pub(crate) const fn is_open(self) -> bool {
        matches!(self, Self::Running | Self::Stopping)
    }
}

/// A requeue or purge in the background.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub(crate) struct GarbageJob {
    pub(crate) id: String,
    /// `requeue` or `purge`.
    pub(crate) verb: String,
    pub(crate) topic: Topic,
    pub(crate) group: Group,
    pub(crate) filter: Filter,
    /// The maximum number of messages to take.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) max: Option<u64>,
    /// The maximum number of messages to take per second.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) rate: Option<u32>,
    pub(crate) state: JobState,
    /// The number of matching messages when it began; a lower bound if there were more than 100,000 in garbage.
    pub(crate) expected: u64,
    /// The number of messages that it has examined.
    pub(crate) looked_at: u64,
    /// The number of messages requeued or purged.
    pub(crate) done: u64,
    pub(crate) began_at: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) ended_at: Option<String>,
    /// The reason it failed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) error: Option<String>,
}

impl GarbageJob {
    /// Returns whether an operator has asked it to stop.
    pub(crate) fn is_stopping(&self) -> bool {
        self.state == JobState::Stopping
    }
}

/// The garbage jobs, the newest first.
#[derive(Debug, Serialize, Deserialize, ToSchema)]
pub(crate) struct GarbageJobs {
    pub(crate) jobs: Vec<GarbageJob>,
}

/// A job as it is stored.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct Stored {
    pub(crate) job: GarbageJob,
    /// The shard, the time and the number of messages of that time where it continues.
    at: (u16, u64, usize),
    /// The text that was read.
    #[serde(skip)]
    before: String,
}

fields! {
    /// The limits of a job, which HTTP and the command line read.
    #[derive(Clone, Copy, Debug, Serialize)]
    pub(crate) struct JobLimits {
        /// The maximum number of messages to take.
        max: Option<u64> = None, in 1..;
        /// The maximum number of messages to take per second.
        rate: Option<u32> = None, in 1..=MAX_RATE;
    }
}

/// A job to start.
#[derive(Clone, Debug)]
pub(crate) struct NewJob {
    pub(crate) verb: Verb,
    pub(crate) filter: Filter,
    pub(crate) limits: JobLimits,
}

/// The reason a job cannot be started or stopped.
#[derive(Debug, thiserror::Error)]
pub(crate) enum JobError {
    #[error(transparent)]
    Broker(#[from] BrokerError),
    #[error("too many garbage jobs are running: wait, or stop one")]
    TooMany,
    #[error("no garbage job {0}")]
    Unknown(String),
    #[error("cannot store the job: {0}")]
    Text(#[from] serde_json::Error),
}

/// The number of messages that a filter matches.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[schema(as = GarbageCount)]
pub(crate) struct Counted {
    /// The number of matching messages among those examined.
    pub(crate) found: u64,
    /// The number of messages examined.
    pub(crate) looked_at: u64,
    /// False if there are more than 100,000 messages in garbage: the others were not examined.
    pub(crate) is_complete: bool,
}

/// Counts the messages in a group's garbage that match a filter. Reads up to 100,000 messages, 500 at a time.
///
/// # Errors
/// [`JobError`].
pub(crate) async fn count(
    broker: &Broker,
    topic: &TopicHandle,
    group: &Group,
    filter: &Filter,
) -> Result<Counted, JobError> {
    let mut counted = Counted::default();
    for shard in topic.shards() {
        let mut position = first(filter);
        loop {
            let page = broker
                .garbage_from(topic, shard, group, position, filter.last(), PAGE)
                .await?;
            let matching = matching(broker, topic, shard, filter, &page).await?;
            counted.found += matching.iter().filter(|matches| **matches).count() as u64;
            for message in &page {
                position.pass(message);
                position.skip += 1;
            }
            counted.looked_at += page.len() as u64;
            if counted.looked_at >= MAX_COUNTED {
                return Ok(counted);
            }
            if page.len() < PAGE {
                break;
            }
        }
    }
    counted.is_complete = true;
    Ok(counted)
}

/// Returns whether each message of a page matches. Reads their ordering keys only for a filter by key.
async fn matching(
    broker: &Broker,
    topic: &TopicHandle,
    shard: Shard,
    filter: &Filter,
    page: &[InGarbage],
) -> Result<Vec<bool>, BrokerError> {
    let mut keys = vec![None; page.len()];
    if filter.key.is_some() {
        keys.clear();
        for chunk in page.chunks(MAX_BATCH) {
            let ids: Vec<_> = chunk.iter().map(|message| message.id.clone()).collect();
            keys.extend(broker.readable_ordering_keys(topic, shard, &ids).await?);
        }
    }
    let pairs = page.iter().zip(&keys);
    Ok(pairs
        .map(|(message, key)| {
            let info = message.info.as_ref();
            let (reason, error) = (info.map(|info| info.reason), info.map(|info| &*info.error));
            filter.matches(reason, error, key.as_ref())
        })
        .collect())
}

/// Returns the jobs, the newest first.
///
/// # Errors
/// [`BrokerError`].
pub(crate) async fn list(broker: &Broker) -> Result<Vec<GarbageJob>, BrokerError> {
    let mut jobs: Vec<_> = stored(broker)
        .await?
        .into_iter()
        .map(|stored| stored.job)
        .filter(|job| reaches(&job.topic))
        .collect();
    jobs.sort_by(|one, other| other.began_at.cmp(&one.began_at));
    Ok(jobs)
}

/// Reads the jobs that this version understands.
pub(crate) async fn stored(broker: &Broker) -> Result<Vec<Stored>, BrokerError> {
    let jobs = broker.garbage_jobs().await?.into_iter();
    let read = |(_, before): (String, String)| {
        let stored: Stored = serde_json::from_str(&before).ok()?;
        Some(Stored { before, ..stored })
    };
    Ok(jobs.filter_map(read).collect())
}

/// Counts the matching messages and starts a job for them.
///
/// # Errors
/// [`JobError`].
pub(crate) async fn start(
    broker: &Broker,
    topic: &TopicHandle,
    group: &Group,
    new: &NewJob,
) -> Result<GarbageJob, JobError> {
    let began = broker.latest_time(topic).await?;
    let counted = count(broker, topic, group, &new.filter).await?;
    make_room(broker).await?;
    let job = GarbageJob {
        id: format!("{:016x}", fastrand::u64(..)),
        verb: new.verb.as_str().to_owned(),
        topic: topic.name().clone(),
        group: group.clone(),
        filter: new.filter.clone(),
        max: new.limits.max,
        rate: new.limits.rate,
        state: JobState::Running,
        expected: counted.found,
        looked_at: 0,
        done: 0,
        began_at: began.to_string(),
        ended_at: None,
        error: None,
    };
    let new = Stored {
        job,
        at: (topic.first_shard().get(), new.filter.first().get(), 0),
        before: String::new(),
    };
    match store(broker, &new, "").await? {
        JobChange::Changed => Ok(new.job),
        JobChange::Other | JobChange::Full => Err(JobError::TooMany),
    }
}

/// Removes the oldest ended jobs, and refuses if too many run.
async fn make_room(broker: &Broker) -> Result<(), JobError> {
    const { assert!(MAX_RUNNING + MAX_ENDED < MAX_GARBAGE_JOBS) };
    let (open, mut ended): (Vec<_>, Vec<_>) = stored(broker)
        .await?
        .into_iter()
        .partition(|stored| stored.job.state.is_open());
    let own = open.iter().filter(|stored| reaches(&stored.job.topic));
    // A team cannot stop another team's jobs, so it must not take every slot.
    let is_too_much = !reaches_named(None) && own.count() >= MAX_RUNNING / 2;
    if open.len() >= MAX_RUNNING || is_too_much {
        return Err(JobError::TooMany);
    }
    ended.sort_by(|one, other| other.job.ended_at.cmp(&one.job.ended_at));
    for old in ended.iter().skip(MAX_ENDED - 1) {
        broker
            .change_garbage_job(&old.job.id, &old.before, "")
            .await?;
    }
    Ok(())
}

/// Stops a job after its current batch. Returns it; a job that has ended stays as it is.
///
/// # Errors
/// [`JobError`].
pub(crate) async fn stop(broker: &Broker, id: &str) -> Result<GarbageJob, JobError> {
    loop {
        let found = stored(broker).await?.into_iter();
        let mut found = found.filter(|stored| stored.job.id == id && reaches(&stored.job.topic));
        let Some(mut running) = found.next() else {
            return Err(JobError::Unknown(id.to_owned()));
        };
        if running.job.state != JobState::Running {
            return Ok(running.job);
        }
        running.job.state = JobState::Stopping;
        if store(broker, &running, &running.before).await? == JobChange::Changed {
            return Ok(running.job);
        }
        // The manager has finished a batch in the meantime.
    }
}

/// Stores a job, unless another process has changed it since it was `before`.
async fn store(broker: &Broker, stored: &Stored, before: &str) -> Result<JobChange, JobError> {
    let text = serde_json::to_string(stored)?;
    let change = broker.change_garbage_job(&stored.job.id, before, &text);
    Ok(change.await?)
}

/// Does one step of an open job: handles up to [`BATCH`] messages, or passes a page of others, and stores the new state.
/// Returns the pause before the next step; `None` if the job has ended.
///
/// Two managers may do the same step for a moment. No message is then handled twice, but the counts of one are lost.
///
/// # Errors
/// [`JobError`]; the job continues at the next step.
pub(crate) async fn step(
    broker: &Broker,
    mut stored_job: Stored,
) -> Result<Option<Duration>, JobError> {
    let Stored { job, at, before } = &mut stored_job;
    let handled = match job.state {
        JobState::Stopping => {
            job.state = JobState::Stopped;
            0
        }
        _ => match advance(broker, job, at).await {
            Ok(handled) => handled,
            Err(
                error @ JobError::Broker(
                    BrokerError::UnknownTopic(_) | BrokerError::UnknownGroup { .. },
                ),
            ) => {
                job.state = JobState::Failed;
                job.error = Some(error.to_string());
                0
            }
            Err(error) => return Err(error),
        },
    };
    if !job.state.is_open() {
        job.ended_at = Some(broker.now().to_string());
        tracing::info!(job = job.id, verb = job.verb, topic = %job.topic, group = %job.group, done = job.done, state = job.state.as_str(), "garbage job ended");
    }
    let before = std::mem::take(before);
    let mut change = store(broker, &stored_job, &before).await?;
    if change == JobChange::Other && stored_job.job.state == JobState::Running {
        // It was stopped during the batch, whose count must not be lost.
        let is_this = |other: &Stored| {
            other.job.id == stored_job.job.id && other.job.state == JobState::Stopping
        };
        if let Some(stopping) = stored(broker).await?.into_iter().find(is_this) {
            stored_job.job.state = JobState::Stopping;
            change = store(broker, &stored_job, &stopping.before).await?;
        }
    }
    if change == JobChange::Other || stored_job.job.state.is_open() {
        let rate = stored_job.job.rate;
        let pause = rate.map(|rate| Duration::from_secs(1) * handled / rate.max(1));
        return Ok(Some(pause.unwrap_or_default()));
    }
    Ok(None)
}

/// Handles a batch of messages, and moves the job's position behind it. Returns the number of messages in the batch.
async fn advance(
    broker: &Broker,
    job: &mut GarbageJob,
    at: &mut (u16, u64, usize),
) -> Result<u32, JobError> {
    let began: UnixMs = job.began_at.parse().unwrap_or_default();
    let topic = broker.topic(&job.topic).await?;
    let left = job.max.map_or(u64::MAX, |max| max.saturating_sub(job.done));
    if left == 0 {
        job.state = JobState::Done;
        return Ok(0);
    }
    let room = BATCH.min(usize::try_from(left).unwrap_or(BATCH));
    let room = job.rate.map_or(room, |rate| room.min(rate.max(1) as usize));
    let (wanted, from, skip) = *at;
    let Some(shard) = topic.shards().find(|other| other.get() >= wanted) else {
        job.state = JobState::Done;
        return Ok(0);
    };
    let mut position = GarbagePosition {
        from: UnixMs::new(from),
        skip,
    };
    if shard.get() != wanted {
        position = first(&job.filter);
    }
    let to = job.filter.last().min(began);
    let page = broker
        .garbage_from(&topic, shard, &job.group, position, to, PAGE)
        .await?;
    let mut batch = Vec::new();
    let mut looked_at = 0;
    let matching = matching(broker, &topic, shard, &job.filter, &page).await?;
    for (message, matches) in page.iter().zip(matching) {
        if batch.len() == room {
            break;
        }
        looked_at += 1;
        position.pass(message);
        if matches {
            // It leaves garbage, so it is not among those to skip.
            batch.push((message.id.clone(), message.time));
        } else {
            position.skip += 1;
        }
    }
    job.done += if job.verb == Verb::Purge.as_str() {
        broker.purge(&topic, &job.group, &batch).await?
    } else {
        broker.requeue(&topic, &job.group, &batch).await?
    };
    job.looked_at += looked_at as u64;
    *at = (shard.get(), position.from.get(), position.skip);
    if looked_at == page.len() && page.len() < PAGE {
        let next = first(&job.filter);
        *at = (shard.get() + 1, next.from.get(), next.skip);
    }
    Ok(u32::try_from(batch.len()).unwrap_or(u32::MAX))
}

fn first(filter: &Filter) -> GarbagePosition {
    GarbagePosition {
        from: filter.first(),
        skip: 0,
    }
}

/// Returns the extent of a job for the audit log.
pub(crate) fn extent(new: &NewJob) -> String {
    let max = new.limits.max.map(|max| format!("max {max}"));
    let rate = new.limits.rate.map(|rate| format!("rate {rate}/s"));
    let filter = Some(new.filter.summary()).filter(|filter| !filter.is_empty());
    let parts: Vec<_> = [max, rate, filter].into_iter().flatten().collect();
    format!("job: {}", parts.join(", "))
}

/// Returns the outcome of a start for the audit log.
pub(crate) fn started(job: &GarbageJob) -> String {
    format!("started {}; {} expected", job.id, job.expected)
}
