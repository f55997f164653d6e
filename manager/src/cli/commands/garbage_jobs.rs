//! `garbage requeue` and `garbage purge` with a filter, `garbage jobs` and `garbage stop`.

use std::time::Duration;

use lisa_core::broker::NO_MANAGER;
use lisa_core::time::format_duration;
use lisa_service::cli::{Output, Rows, escape, prompt, remark};
use serde::Serialize;
use serde_json::json;
use tokio::time::{Instant, sleep};

use super::{be_sure, choose_group, counted, of_group, print, require_terminal};
use crate::cli::args::{JobArgs, SweepArgs};
use crate::cli::client::Client;
use crate::cli::error::CliError;
use crate::garbage_jobs;
use crate::operations::garbage::Verb;
use crate::operations::garbage_filter::Filter;
use crate::operations::garbage_jobs::{Counted, GarbageJob, GarbageJobs, JobLimits, JobState};

/// The pause between two looks at the progress.
const LOOK_EVERY: Duration = Duration::from_millis(500);
/// The time between two progress reports.
const REPORT_EVERY: Duration = Duration::from_secs(2);

impl JobArgs {
    /// Returns whether an option asks for a job.
    pub(crate) fn is_job(&self) -> bool {
        !self.filter.0.is_empty() || self.limits.0.max.is_some() || self.limits.0.rate.is_some()
    }
}

/// The body of a request that starts a job.
#[derive(Serialize)]
struct New<'a> {
    verb: &'a str,
    #[serde(flatten)]
    filter: &'a Filter,
    #[serde(flatten)]
    limits: JobLimits,
    dry_run: bool,
}

/// Starts a job for the messages that match, and waits for its end.
pub(crate) async fn start(
    client: &Client,
    verb: Verb,
    args: SweepArgs,
    output: &Output,
) -> Result<(), CliError> {
    if !args.ids.is_empty() {
        let text = "use ids or a filter, not both".to_owned();
        return Err(CliError::Usage(text));
    }
    let topic = &args.topic;
    let group = choose_group(client, topic, args.group.as_ref()).await?;
    let (word, filter) = (verb.as_str(), &args.job.filter.0);
    let limits = args.job.limits.0;
    let job = |dry_run: bool| {
        let new = json!(New {
            verb: word,
            filter,
            limits,
            dry_run,
        });
        let call = client.post(&of_group(topic, &group, &["garbage", "jobs"]));
        call.json(&new).long()
    };
    if args.dry_run || !args.yes {
        let found: Counted = job(true).answer().await?;
        let at_least = if found.is_complete { "" } else { "at least " };
        let messages = counted(found.found, "message");
        if args.dry_run {
            return match output.is_table() {
                false => Ok(output.object(&found)?),
                true => match limits.max.filter(|max| *max < found.found) {
                    Some(max) => print(&format!("would {word} {max} of {at_least}{messages}")),
                    None => print(&format!("would {word} {at_least}{messages}")),
                },
            };
        }
        require_terminal(format_args!("{word} with a filter"))?;
        let most = limits
            .max
            .map_or(String::new(), |max| format!(", up to {max}"));
        prompt(format_args!(
            "{word} {at_least}{messages} of {topic}/{group}{most}? [y/N] "
        ));
        be_sure()?;
    }
    let job: GarbageJob = job(false).answer().await?;
    if let Some(broker) = client.broker()
        && matches!(broker.has_manager().await, Ok(false))
    {
        remark(NO_MANAGER);
    }
    let job = if args.job.no_wait {
        job
    } else {
        wait(client, job).await?
    };
    if !output.is_table() {
        output.object(&job)?;
    } else {
        let done = counted(job.done, "message");
        print(&match job.state {
            JobState::Running | JobState::Stopping => format!("job {} started", job.id),
            JobState::Stopped => format!("stopped; {word}d {done}"),
            JobState::Done | JobState::Failed => format!("{word}d {done}"),
        })?;
    }
    match job.error {
        Some(error) => Err(CliError::Failed(format!(
            "job {}: {}",
            job.id,
            escape(&error)
        ))),
        None => Ok(()),
    }
}

/// Waits for the end of a job, and prints its progress to stderr. The job continues if this process ends.
async fn wait(client: &Client, mut job: GarbageJob) -> Result<GarbageJob, CliError> {
    remark(format_args!(
        "job {0}; stop it with `garbage stop {0}`",
        job.id
    ));
    if client.broker().is_some() {
        let most = format_duration(garbage_jobs::LOOK_EVERY);
        remark(format_args!("a manager begins within {most}"));
    }
    let mut reported = Instant::now();
    while job.state.is_open() {
        sleep(LOOK_EVERY).await;
        let all: GarbageJobs = client.get(&["garbage", "jobs"]).answer().await?;
        let Some(newest) = all.jobs.into_iter().find(|other| other.id == job.id) else {
            let text = format!("job {} has ended, and its result was removed", job.id);
            return Err(CliError::Failed(text));
        };
        job = newest;
        if job.state.is_open() && reported.elapsed() >= REPORT_EVERY {
            reported = Instant::now();
            remark(format_args!("{} of {}", job.done, job.expected));
        }
    }
    Ok(job)
}

/// Prints the jobs.
pub(crate) async fn list(client: &Client, output: &Output) -> Result<(), CliError> {
    let list: GarbageJobs = client.get(&["garbage", "jobs"]).answer().await?;
    let mut rows = Rows::new([
        "JOB", "STATE", "VERB", "TOPIC", "GROUP", "DONE", "EXPECTED", "EXAMINED", "BEGAN", "ENDED",
    ]);
    for job in &list.jobs {
        let state = match &job.error {
            Some(error) => format!("{}: {error}", job.state.as_str()),
            None => job.state.as_str().to_owned(),
        };
        rows.add_row([
            job.id.clone(),
            state,
            job.verb.clone(),
            job.topic.to_string(),
            job.group.to_string(),
            job.done.to_string(),
            job.expected.to_string(),
            job.looked_at.to_string(),
            job.began_at.clone(),
            job.ended_at.clone().unwrap_or_default(),
        ]);
    }
    Ok(output.list(&list, Some("jobs"), &rows)?)
}

/// Stops a job.
pub(crate) async fn stop(client: &Client, id: &str, output: &Output) -> Result<(), CliError> {
    let stop = client.post(&["garbage", "jobs", id, "stop"]);
    let job: GarbageJob = stop.answer().await?;
    match output.is_table() {
        false => Ok(output.object(&job)?),
        true => print(&format!("job {} is {}", job.id, job.state.as_str())),
    }
}
