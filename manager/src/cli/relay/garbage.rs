//! Shows, requeues and purges garbage (dead letters).

use lisa_core::state::State;
use lisa_core::topic::{Group, Topic};
use serde::Deserialize;
use serde_json::json;

use super::{Manager, PageQuery, Redis, Relay, of_group};
use crate::cli::client::{Call, Client};
use crate::cli::commands::failed;
use crate::cli::error::CliError;
use crate::operations::audit::{self, Action};
use crate::operations::choose_group::choose;
use crate::operations::error_groups::{self, ErrorGroups};
use crate::operations::garbage::{self, Selection, Swept, Verb};
use crate::operations::garbage_filter::{Filter, InvalidFilter};
use crate::operations::garbage_jobs::{self, Counted, GarbageJob, JobError, NewJob};
use crate::operations::garbage_search::{self, Search};
use crate::operations::messages::MessagePage;

#[derive(Deserialize)]
struct Jobs {
    jobs: Vec<GarbageJob>,
}

impl Relay {
    /// Searches garbage.
    pub(crate) async fn search_garbage(
        &self,
        topic: &Topic,
        group: Option<&Group>,
        filter: &Filter,
        newest_first: bool,
        page: &PageQuery<'_>,
    ) -> Result<MessagePage, CliError> {
        match self {
            Redis { broker, .. } => {
                let topic = broker.topic(topic).await?;
                let group = choose(&topic, group.map(Group::as_str)).map_err(failed)?;
                let conditions = filter.conditions();
                let search = Search {
                    conditions: conditions.map_err(wrong_filter)?,
                    newest_first,
                    cursor: page.cursor,
                    limit: page.limit,
                };
                Ok(garbage_search::search(broker, &topic, group, search).await?)
            }
            Manager(client) => {
                let call = client.get(&["topics", topic.as_str(), "messages"]);
                let call = call.query("state", Some(State::Garbage));
                let call = call
                    .query("group", group)
                    .query("error", filter.error.as_ref());
                let call = call.query("key", filter.key.as_ref());
                let call = call.query("reason", filter.reason.as_ref());
                let call = call.query("from", filter.from.as_ref());
                let call = call.query("to", filter.to.as_ref());
                let call = call.query("order", newest_first.then_some("newest"));
                page.of(call).answer().await
            }
        }
    }

    /// Groups the errors in garbage.
    pub(crate) async fn errors(
        &self,
        topic: &Topic,
        group: &Group,
    ) -> Result<ErrorGroups, CliError> {
        match self {
            Redis { broker, .. } => {
                let topic = broker.topic(topic).await?;
                Ok(error_groups::error_groups(broker, &topic, group).await?)
            }
            Manager(client) => {
                let path = of_group(topic, group, &["garbage", "errors"]);
                client.get(&path).answer().await
            }
        }
    }

    /// Requeues or purges a selection of garbage, or counts it.
    pub(crate) async fn sweep(
        &self,
        topic: &Topic,
        group: &Group,
        verb: Verb,
        selection: &Selection,
        dry_run: bool,
    ) -> Result<Swept, CliError> {
        match self {
            Redis { broker, .. } => {
                let topic = broker.topic(topic).await?;
                let sweep = garbage::sweep(broker, &topic, group, verb, selection, dry_run);
                if dry_run {
                    return Ok(sweep.await?);
                }
                let action = Action::on_command_line(broker, verb.as_str())
                    .topic(topic.name())
                    .group(group)
                    .details(audit::extent(selection));
                Ok(action.run(sweep, audit::swept).await?)
            }
            Manager(client) => {
                let body = match selection {
                    Selection::All => json!({ "all": true, "dry_run": dry_run }),
                    Selection::Ids(ids) => json!({ "ids": ids, "dry_run": dry_run }),
                };
                let path = of_group(topic, group, &["garbage", verb.as_str()]);
                client.post(&path).json(&body).long().answer().await
            }
        }
    }

    /// Counts the messages in garbage that match a filter.
    pub(crate) async fn count_garbage(
        &self,
        topic: &Topic,
        group: &Group,
        new: &NewJob,
    ) -> Result<Counted, CliError> {
        match self {
            Redis { broker, .. } => {
                let topic = broker.topic(topic).await?;
                let counted = garbage_jobs::count(broker, &topic, group, &new.filter);
                counted.await.map_err(refused)
            }
            Manager(client) => new_job(client, topic, group, new, true).answer().await,
        }
    }

    /// Starts a garbage job.
    pub(crate) async fn start_garbage_job(
        &self,
        topic: &Topic,
        group: &Group,
        new: &NewJob,
    ) -> Result<GarbageJob, CliError> {
        match self {
            Redis { broker, .. } => {
                let topic = broker.topic(topic).await?;
                let action = Action::on_command_line(broker, new.verb.as_str())
                    .topic(topic.name())
                    .group(group)
                    .details(garbage_jobs::extent(new));
                let start = garbage_jobs::start(broker, &topic, group, new);
                let job = action.run(start, garbage_jobs::started).await;
                job.map_err(refused)
            }
            Manager(client) => new_job(client, topic, group, new, false).answer().await,
        }
    }

    /// Lists the garbage jobs.
    pub(crate) async fn garbage_jobs(&self) -> Result<Vec<GarbageJob>, CliError> {
        match self {
            Redis { broker, .. } => Ok(garbage_jobs::list(broker).await?),
            Manager(client) => {
                let list: Jobs = client.get(&["garbage", "jobs"]).answer().await?;
                Ok(list.jobs)
            }
        }
    }

    /// Stops a garbage job.
    pub(crate) async fn stop_garbage_job(&self, id: &str) -> Result<GarbageJob, CliError> {
        match self {
            Redis { broker, .. } => {
                let action = Action::on_command_line(broker, "stop_garbage_job").details(id);
                let stopped = action.run(garbage_jobs::stop(broker, id), |job| {
                    job.state.as_str().to_owned()
                });
                stopped.await.map_err(refused)
            }
            Manager(client) => client.post(&["garbage", "jobs", id, "stop"]).answer().await,
        }
    }
}

fn new_job<'c>(
    client: &'c Client,
    topic: &Topic,
    group: &Group,
    new: &NewJob,
    dry_run: bool,
) -> Call<'c> {
    let Filter {
        error,
        key,
        reason,
        from,
        to,
    } = &new.filter;
    let body = json!({
        "verb": new.verb.as_str(), "error": error, "key": key, "reason": reason, "from": from,
        "to": to, "max": new.max, "rate": new.rate, "dry_run": dry_run,
    });
    let path = of_group(topic, group, &["garbage", "jobs"]);
    client.post(&path).json(&body).long()
}

fn wrong_filter(error: InvalidFilter) -> CliError {
    CliError::Usage(format!("--{error}"))
}

fn refused(error: JobError) -> CliError {
    match error {
        JobError::Broker(error) => error.into(),
        JobError::Filter(error) => wrong_filter(error),
        error => CliError::Failed(error.to_string()),
    }
}
