//! `StartMessageMoveTask`, `ListMessageMoveTasks` and `CancelMessageMoveTask`: messages of a dead-letter queue go back to the
//! queues that they come from, or to another one.
//!
//! The gateway that starts a task runs it, and notes its state in Redis, where every gateway finds it. A message is sent with an
//! id derived from its delivery before it is acknowledged, so a gateway that is killed loses none. The garbage (dead letters) that
//! a topic itself keeps is requeued by the same call.

mod moving;

use std::sync::Arc;
use std::time::Duration;

use axum::response::Response;
use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use lisa_core::broker::{MAX_MOVE_TASKS, MoveTasks, StoredMoveTask, TopicHandle};
use lisa_core::time::UnixMs;
use lisa_core::topic::Topic;
use lisa_service::http::client;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use tokio::time::Instant;
use uuid::Uuid;

use super::Call;
use super::protocol::{Kind, SqsError, ok};
use super::queues::topic_of as topic_name;
use super::receive::within;
use super::redrive::name_in;
use super::running::{Running, Verb};
use moving::Moving;

/// The time after its last note from which a task counts as failed: its gateway is gone.
const LOST_AFTER: Duration = Duration::from_secs(15);
/// The most ended tasks of a queue that are listed and kept, as in SQS.
const KEPT: usize = 10;
/// The largest number of attempts to store a task while other tasks are being started.
const MAX_TRIES: usize = 20;
/// The highest rate of a task, in messages a second.
const MAX_RATE: i64 = 500;

/// The states of tasks, as SQS names them.
const RUNNING: &str = "RUNNING";
const COMPLETED: &str = "COMPLETED";
const CANCELLING: &str = "CANCELLING";
const CANCELLED: &str = "CANCELLED";
const FAILED: &str = "FAILED";

/// The state of a task, as its gateway notes it.
#[derive(Clone, Debug, Serialize, Deserialize)]
struct Task {
    source: String,
    destination: Option<String>,
    rate: Option<u64>,
    status: String,
    moved: u64,
    to_move: u64,
    failure: Option<String>,
    started: u64,
    /// The time of this note.
    noted: u64,
}

/// The queue name and the id in a task handle.
#[derive(Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
struct Handle {
    task_id: String,
    source_arn: String,
}

impl Handle {
    fn seal(&self) -> String {
        STANDARD.encode(serde_json::to_vec(self).unwrap_or_default())
    }

    fn open(text: &str) -> Option<Self> {
        serde_json::from_slice(&STANDARD.decode(text).ok()?).ok()
    }
}

/// The parameters of `StartMessageMoveTask`.
#[derive(Deserialize)]
#[serde(rename_all = "PascalCase")]
pub(super) struct Start {
    source_arn: Option<String>,
    destination_arn: Option<String>,
    max_number_of_messages_per_second: Option<i64>,
}

/// Finds the topic of an ARN.
async fn topic_of(
    call: &Call<'_>,
    parameter: &str,
    arn: Option<&str>,
) -> Result<(String, Arc<TopicHandle>), SqsError> {
    let arn = arn.ok_or_else(|| SqsError::missing(parameter))?;
    let name = name_in(arn).ok_or_else(|| {
        let message = format!(
            "You must use this format to specify the {parameter}: arn:<partition>:<service>:<region>:<account-id>:<resource-id>"
        );
        SqsError::new(Kind::InvalidParameterValue, message)
    })?;
    let queue = call.named(name).await.map_err(|error| match error.kind {
        Kind::QueueDoesNotExist => {
            let message = format!(
                "The resource that you specified for the {parameter} parameter doesn't exist."
            );
            SqsError::new(Kind::ResourceNotFoundException, message)
        }
        _ => error,
    })?;
    Ok((name.to_owned(), queue.topic))
}

pub(super) async fn start(call: &Call<'_>, request: Start) -> Result<Response, SqsError> {
    let (name, source) = topic_of(call, "SourceArn", request.source_arn.as_deref()).await?;
    let rate = request.max_number_of_messages_per_second;
    let rate = rate.map(|rate| within("MaxNumberOfMessagesPerSecond", rate, 1, MAX_RATE));
    let rate = rate.transpose()?;
    let is_fed = is_dead_letter_queue(call, source.name()).await?;
    let broker = &call.gateway().process().broker;
    let stats = broker.stats(&source).await;
    let stats = stats.map_err(|error| SqsError::from(call.gateway().problem(error)))?;
    let mut groups = stats.groups.into_iter();
    let group = groups.find(|group| group.group == call.options().group);
    let (ready, garbage) = group.map_or((0, 0), |group| {
        (group.ready + group.backlog + group.parked, group.garbage)
    });
    let destination = match request.destination_arn.as_deref() {
        // A topic that keeps its own garbage is its own dead-letter queue.
        Some(arn) if !is_fed && Some(arn) == request.source_arn.as_deref() => None,
        Some(arn) => Some(topic_of(call, "DestinationArn", Some(arn)).await?),
        None => None,
    };
    let is_own = !is_fed && garbage > 0 && destination.is_none();
    if !is_fed && !is_own {
        let message = "Source queue must be configured as a Dead Letter Queue.";
        return Err(SqsError::new(Kind::InvalidParameterValue, message));
    }
    let verb = if is_own { Verb::Requeue } else { Verb::Move };
    let running = Running::begin(call, verb, &name, source.name())?;
    let now = broker.now();
    let task = Task {
        source: name,
        destination: destination.as_ref().map(|(name, _)| name.clone()),
        rate,
        status: RUNNING.to_owned(),
        moved: 0,
        to_move: if is_own { garbage } else { ready },
        failure: None,
        started: now.get(),
        noted: now.get(),
    };
    let handle = Handle {
        task_id: Uuid::now_v7().to_string(),
        source_arn: call.arn(&task.source),
    };
    let moving = Moving {
        service: call.service.clone(),
        id: handle.task_id.clone(),
        task,
        source,
        destination: destination.map(|(_, topic)| topic),
        reach: client::reach(),
        noted: Instant::now(),
    };
    store(call, &moving).await?;
    drop(running.start(call, moving.run(is_own)));
    Ok(ok(&json!({ "TaskHandle": handle.seal() })))
}

/// Returns true if the garbage of another topic is forwarded to this one.
async fn is_dead_letter_queue(call: &Call<'_>, topic: &Topic) -> Result<bool, SqsError> {
    let broker = &call.gateway().process().broker;
    let is_target = || {
        let topics = broker.known_topics();
        let mut targets = topics
            .iter()
            .filter_map(|other| other.settings().garbage.topic.as_ref());
        targets.any(|target| target == topic)
    };
    if is_target() {
        return Ok(true);
    }
    // The gateway may not know a new one.
    let refreshed = broker.refresh().await;
    refreshed.map_err(|error| SqsError::from(call.gateway().problem(error)))?;
    Ok(is_target())
}

/// Reads all tasks, the newest first, and the number of starts.
async fn stored(call: &Call<'_>) -> Result<(Vec<(String, Task)>, u64), SqsError> {
    let broker = &call.gateway().process().broker;
    let stored = broker.move_tasks().await;
    let MoveTasks { tasks, starts } =
        stored.map_err(|error| SqsError::from(call.gateway().problem(error)))?;
    let now = broker.now();
    let tasks = { tasks.into_iter() }.filter_map(|stored| Task::read(stored, now));
    let mut tasks: Vec<_> = tasks.collect();
    tasks.sort_by_key(|(_, task)| std::cmp::Reverse(task.started));
    Ok((tasks, starts))
}

/// Stores a new task, unless one runs on its queue or too many run.
async fn store(call: &Call<'_>, new: &Moving) -> Result<(), SqsError> {
    let broker = &call.gateway().process().broker;
    let failed = |error| SqsError::from(call.gateway().problem(error));
    for _ in 0..MAX_TRIES {
        let (tasks, starts) = stored(call).await?;
        let is_running =
            |(_, task): &(String, Task)| task.source == new.task.source && task.is_open();
        if tasks.iter().any(is_running) {
            return Err(SqsError::task_runs());
        }
        let old = excess(&tasks, &new.task.source);
        let old = old.ok_or_else(|| {
            let message = "Too many message move tasks run at the same time; retry later.";
            SqsError::new(Kind::ServiceUnavailable, message)
        })?;
        broker.forget_move_tasks(&old).await.map_err(failed)?;
        let started = broker.start_move_task(&new.id, &new.note(), starts).await;
        if started.map_err(failed)? {
            return Ok(());
        }
    }
    let message = "Other message move tasks are being started at the same time; retry later.";
    Err(SqsError::new(Kind::ServiceUnavailable, message))
}

/// A filter of tasks.
type IsCounted<'a> = &'a dyn Fn(&Task) -> bool;

/// Returns the ended tasks to forget, so that another one of the queue can be stored. Returns `None` if too many run.
fn excess(tasks: &[(String, Task)], queue: &str) -> Option<Vec<String>> {
    let is_own = |task: &Task| {
        let topic = topic_name(&task.source);
        topic.is_ok_and(|topic| client::reaches(&topic))
    };
    // A team cannot stop the tasks of another team, so it gets half of the slots that others leave.
    let others = tasks.iter().filter(|(_, task)| !is_own(task)).count();
    let share = match client::reaches_named(None) {
        true => MAX_MOVE_TASKS,
        false => 1.max(MAX_MOVE_TASKS.saturating_sub(others) / 2),
    };
    let is_of_queue = |task: &Task| task.source == queue;
    let bounds: [(IsCounted<'_>, usize); 3] = [
        (&is_of_queue, KEPT),
        (&is_own, share),
        (&|_| true, MAX_MOVE_TASKS),
    ];
    let mut kept: Vec<_> = tasks.iter().collect();
    let mut old = Vec::new();
    for (is_counted, most) in bounds {
        while kept.iter().filter(|(_, task)| is_counted(task)).count() >= most {
            let mut newest_first = kept.iter();
            let oldest = newest_first.rposition(|(_, task)| is_counted(task) && !task.is_open())?;
            old.push(kept.remove(oldest).0.clone());
        }
    }
    Some(old)
}

/// The parameters of `ListMessageMoveTasks`.
#[derive(Deserialize)]
#[serde(rename_all = "PascalCase")]
pub(super) struct List {
    source_arn: Option<String>,
    max_results: Option<i64>,
}

pub(super) async fn list(call: &Call<'_>, request: List) -> Result<Response, SqsError> {
    let (name, _) = topic_of(call, "SourceArn", request.source_arn.as_deref()).await?;
    let most = within("MaxResults", request.max_results.unwrap_or(1), 1, 10)?;
    let (tasks, _) = stored(call).await?;
    let tasks = tasks.iter().filter(|(_, task)| task.source == name);
    let results = tasks.take(usize::try_from(most).unwrap_or(1));
    let results: Vec<Value> = results.map(|(id, task)| task.shown(call, id)).collect();
    Ok(ok(&json!({ "Results": results })))
}

/// The parameters of `CancelMessageMoveTask`.
#[derive(Deserialize)]
#[serde(rename_all = "PascalCase")]
pub(super) struct Cancel {
    task_handle: Option<String>,
}

pub(super) async fn cancel(call: &Call<'_>, request: Cancel) -> Result<Response, SqsError> {
    let handle = request.task_handle;
    let handle = handle.ok_or_else(|| SqsError::missing("TaskHandle"))?;
    let invalid = || {
        SqsError::new(
            Kind::InvalidParameterValue,
            "Value for parameter TaskHandle is invalid.",
        )
    };
    let handle = Handle::open(&handle).ok_or_else(invalid)?;
    topic_of(call, "SourceArn", Some(&handle.source_arn)).await?;
    let (tasks, _) = stored(call).await?;
    let unknown = || {
        let message = "Task does not exist.";
        SqsError::new(Kind::ResourceNotFoundException, message)
    };
    let task = tasks.iter().find(|(id, _)| *id == handle.task_id);
    let (id, task) = task.ok_or_else(unknown)?;
    if call.arn(&task.source) != handle.source_arn {
        return Err(unknown());
    }
    if task.status != RUNNING {
        let message = "Only active tasks can be cancelled.";
        return Err(SqsError::unsupported(message));
    }
    let stopped = call.gateway().process().broker.stop_move_task(id).await;
    stopped.map_err(|error| SqsError::from(call.gateway().problem(error)))?;
    Ok(ok(
        &json!({ "ApproximateNumberOfMessagesMoved": task.moved }),
    ))
}

impl Task {
    fn read(stored: StoredMoveTask, now: UnixMs) -> Option<(String, Self)> {
        let mut task: Self = serde_json::from_str(&stored.note).ok()?;
        if task.status == RUNNING && now.since(UnixMs::new(task.noted)) > LOST_AFTER {
            task.status = FAILED.to_owned();
            task.failure = Some("its gateway has ended".to_owned());
        } else if task.status == RUNNING && stored.is_stopping {
            task.status = CANCELLING.to_owned();
        }
        Some((stored.id, task))
    }

    fn is_open(&self) -> bool {
        matches!(self.status.as_str(), RUNNING | CANCELLING)
    }

    fn shown(&self, call: &Call<'_>, id: &str) -> Value {
        let source_arn = call.arn(&self.source);
        let mut shown = json!({
            "Status": self.status,
            "SourceArn": source_arn,
            "ApproximateNumberOfMessagesMoved": self.moved,
            "ApproximateNumberOfMessagesToMove": self.to_move,
            "StartedTimestamp": self.started,
        });
        if self.status == RUNNING {
            let task_id = id.to_owned();
            shown["TaskHandle"] = json!(
                Handle {
                    task_id,
                    source_arn
                }
                .seal()
            );
        }
        let reached = |name: &&String| topic_name(name).is_ok_and(|topic| client::reaches(&topic));
        if let Some(destination) = self.destination.as_ref().filter(reached) {
            shown["DestinationArn"] = json!(call.arn(destination));
        }
        if let Some(rate) = self.rate {
            shown["MaxNumberOfMessagesPerSecond"] = json!(rate);
        }
        if let Some(failure) = &self.failure {
            shown["FailureReason"] = json!(failure);
        }
        shown
    }
}

#[cfg(test)]
mod tests {
    use lisa_service::http::auth::Reach;
    use lisa_service::http::client::Admitted;

    use super::*;

    /// Tasks of queues, the newest first, each named after its position.
    fn tasks(each: &[(usize, &str, &str)]) -> Vec<(String, Task)> {
        let mut tasks = Vec::new();
        for (count, source, status) in each {
            for _ in 0..*count {
                let task = Task {
                    source: (*source).to_owned(),
                    destination: None,
                    rate: None,
                    status: (*status).to_owned(),
                    moved: 0,
                    to_move: 0,
                    failure: None,
                    started: 0,
                    noted: 0,
                };
                tasks.push((tasks.len().to_string(), task));
            }
        }
        tasks
    }

    async fn of_shop(each: &[(usize, &str, &str)], queue: &str) -> Option<Vec<String>> {
        let reach = Arc::new(Reach {
            topics: Some(vec!["shop-*".parse().unwrap()]),
            ..Reach::default()
        });
        let shop = Admitted::new(true, Some("shop".into())).within(&reach);
        let tasks = tasks(each);
        shop.scope(async { excess(&tasks, queue) }).await
    }

    #[tokio::test]
    async fn a_team_takes_half_of_the_slots_that_others_leave_and_its_own_old_tasks_go_first() {
        let names = |names: &[&str]| Some(names.iter().map(|name| (*name).to_owned()).collect());
        assert_eq!(excess(&tasks(&[]), "a"), names(&[]));
        // Each queue keeps ten, including the new one.
        let of_queue = tasks(&[(3, "b", COMPLETED), (11, "a", FAILED)]);
        assert_eq!(excess(&of_queue, "a"), names(&["13", "12"]));
        // The oldest one that has ended, even of another queue.
        let all = tasks(&[(99, "a", RUNNING), (1, "b", COMPLETED)]);
        assert_eq!(excess(&all, "c"), names(&["99"]));
        assert_eq!(excess(&tasks(&[(100, "a", RUNNING)]), "c"), None);
        // A team has half of those that others leave, and one in any case.
        let team = [
            (2, "bank", COMPLETED),
            (48, "shop-a", COMPLETED),
            (2, "bank", COMPLETED),
        ];
        assert_eq!(of_shop(&team, "shop-b").await, names(&["49"]));
        for (own, others, result) in [
            (49, 0, names(&[])),
            (50, 0, None),
            (24, 50, names(&[])),
            (25, 50, None),
            (0, 99, names(&[])),
            (1, 98, None),
        ] {
            let team = [(own, "shop-a", RUNNING), (others, "bank", RUNNING)];
            assert_eq!(of_shop(&team, "shop-b").await, result, "{own}, {others}");
        }
    }
}
