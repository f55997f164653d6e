//! Queues: their names and addresses, and their attributes. A queue is a topic with the group of SQS clients.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use axum::response::Response;
use lisa_core::broker::{BrokerError, Declare, TopicHandle};
use lisa_core::time::shorten;
use lisa_core::topic::Topic;
use lisa_service::http::client::{Client, reaches};
use serde::Deserialize;
use serde_json::json;
use tokio::time::timeout;

use super::protocol::{Kind, SqsError, ok, or_default};
use super::queue_attributes::{FIFO, Given, of_settings};
use super::Call;

/// The most queues of a list.
const MAX_LISTED: usize = 1000;
/// The time limit of reading the counts of a queue, after the wait for a slot.
const COUNTS_WITHIN: Duration = Duration::from_secs(2);

/// A queue, as a request names it.
#[derive(Debug)]
pub(super) struct Queue {
    pub(super) name: String,
    pub(super) topic: Arc<TopicHandle>,
}

impl Queue {
    /// Returns true if the queue keeps the order of message groups.
    pub(super) fn is_fifo(&self) -> bool {
        self.name.ends_with(FIFO)
    }
}

/// Returns the topic of a queue's name: `orders` and `orders.fifo` are the topic `orders`.
fn topic_of(name: &str) -> Result<Topic, String> {
    let stem = name.strip_suffix(FIFO).unwrap_or(name);
    stem.parse().map_err(|error| format!("{error}"))
}

/// Refuses a topic that the token does not reach, whether it exists or not.
fn reached(topic: &Topic) -> Result<(), SqsError> {
    match reaches(topic) {
        true => Ok(()),
        false => {
            let message = format!("The token does not reach the topic {topic}.");
            Err(SqsError::new(Kind::AccessDenied, message))
        }
    }
}

impl Call<'_> {
    /// Finds the queue of an address, or of the path of the request.
    pub(super) async fn queue(&self, url: Option<&str>) -> Result<Queue, SqsError> {
        let given = url.or(self.queue.as_deref());
        let given = given.ok_or_else(|| SqsError::missing("QueueUrl"))?;
        let given = given.trim_end_matches('/');
        let name = given.rsplit('/').next().unwrap_or(given);
        self.named(name).await
    }

    /// Finds the queue with a name.
    pub(super) async fn named(&self, name: &str) -> Result<Queue, SqsError> {
        let missing = |why: String| {
            let message = format!("The specified queue does not exist: {why}.");
            SqsError::new(Kind::QueueDoesNotExist, message)
        };
        let topic = topic_of(name).map_err(missing)?;
        reached(&topic)?;
        let broker = &self.gateway().process().broker;
        let topic = match broker.topic(&topic).await {
            Ok(topic) => topic,
            Err(BrokerError::UnknownTopic(topic)) => {
                return Err(missing(format!("Lisa has no topic {topic}")));
            }
            Err(error) => return Err(self.gateway().problem(error).into()),
        };
        let group = &self.options().group;
        if !topic.groups().contains(group) {
            let why = format!("the topic {} has no group {group}", topic.name());
            return Err(missing(why));
        }
        let name = name.to_owned();
        Ok(Queue { name, topic })
    }

    fn url(&self, name: &str) -> String {
        format!("{}{name}", self.base)
    }
}

/// The parameters of `GetQueueUrl`.
#[derive(Deserialize)]
#[serde(rename_all = "PascalCase")]
pub(super) struct GetUrl {
    queue_name: Option<String>,
}

pub(super) async fn get_url(call: &Call<'_>, request: GetUrl) -> Result<Response, SqsError> {
    let name = request
        .queue_name
        .ok_or_else(|| SqsError::missing("QueueName"))?;
    let queue = call.named(&name).await?;
    Ok(ok(&json!({ "QueueUrl": call.url(&queue.name) })))
}

/// The parameters of `ListQueues`.
#[derive(Deserialize)]
#[serde(rename_all = "PascalCase")]
pub(super) struct List {
    queue_name_prefix: Option<String>,
    max_results: Option<i64>,
    /// The last queue of the page before.
    next_token: Option<String>,
}

pub(super) fn list(call: &Call<'_>, request: List) -> Result<Response, SqsError> {
    let limit = match request.max_results {
        None => MAX_LISTED,
        Some(given) => usize::try_from(given)
            .ok()
            .filter(|given| (1..=MAX_LISTED).contains(given))
            .ok_or_else(|| {
                SqsError::parameter("MaxResults", given, "Must be between 1 and 1000")
            })?,
    };
    let prefix = request.queue_name_prefix.unwrap_or_default();
    let after = request.next_token.unwrap_or_default();
    let topics = call.gateway().process().broker.known_topics();
    let group = &call.options().group;
    // Each topic has two names, of which the list has the shorter one that begins so.
    let name_of = |topic: &Topic| {
        let names = [topic.to_string(), format!("{topic}{FIFO}")];
        names.into_iter().find(|name| name.starts_with(&prefix))
    };
    let found = topics
        .iter()
        .filter(|topic| topic.groups().contains(group) && topic.name().as_str() > after.as_str())
        .filter(|topic| reaches(topic.name()))
        .filter_map(|topic| Some((topic.name(), name_of(topic.name())?)));
    let mut found: Vec<_> = found.take(limit + 1).collect();
    let has_more = found.len() > limit;
    found.truncate(limit);
    let urls: Vec<String> = found.iter().map(|(_, name)| call.url(name)).collect();
    let mut answer = json!({});
    if !urls.is_empty() {
        answer["QueueUrls"] = json!(urls);
    }
    if has_more && request.max_results.is_some() {
        answer["NextToken"] = json!(found.last().map(|(topic, _)| topic));
    }
    Ok(ok(&answer))
}

/// The parameters of `CreateQueue`.
#[derive(Deserialize)]
#[serde(rename_all = "PascalCase")]
pub(super) struct Create {
    queue_name: Option<String>,
    #[serde(default, deserialize_with = "or_default")]
    attributes: BTreeMap<String, String>,
    #[serde(default, alias = "tags", deserialize_with = "or_default")]
    tags: BTreeMap<String, String>,
}

pub(super) async fn create(call: &Call<'_>, request: Create) -> Result<Response, SqsError> {
    let name = request
        .queue_name
        .ok_or_else(|| SqsError::missing("QueueName"))?;
    let given = Given {
        name: &name,
        attributes: &request.attributes,
        has_tags: !request.tags.is_empty(),
    };
    match call.named(&name).await {
        Ok(queue) => {
            let checked = given.check(call, queue.topic.name(), queue.topic.settings());
            checked.map_err(|error| match error.kind {
                Kind::UnsupportedOperation => {
                    let message = format!(
                        "A queue already exists with the same name and a different value. {}",
                        error.message
                    );
                    SqsError::new(Kind::QueueNameExists, message)
                }
                _ => error,
            })?;
        }
        Err(error) if error.kind == Kind::QueueDoesNotExist => {
            let topic = topic_of(&name).map_err(|why| {
                SqsError::new(Kind::InvalidParameterValue, format!("QueueName: {why}."))
            })?;
            let Some(defaults) = &call.options().create else {
                let message = format!(
                    "CreateQueue creates no topics here: declare [topics.{topic}] with the group {} in Lisa's \
                     configuration, then call it again.",
                    call.options().group
                );
                return Err(SqsError::unsupported(message));
            };
            let settings = given.settings(defaults)?;
            given.check(call, &topic, &settings)?;
            let broker = &call.gateway().process().broker;
            let declared = broker.declare(&topic, &settings, Declare::Create).await;
            declared.map_err(|error| SqsError::from(call.gateway().problem(error)))?;
            // It may exist without the group.
            call.named(&name).await?;
            tracing::info!(%topic, "declared a topic for an SQS client");
        }
        Err(error) => return Err(error),
    }
    Ok(ok(&json!({ "QueueUrl": call.url(&name) })))
}

/// The parameters of `GetQueueAttributes`.
#[derive(Deserialize)]
#[serde(rename_all = "PascalCase")]
pub(super) struct GetAttributes {
    queue_url: Option<String>,
    #[serde(default, deserialize_with = "or_default")]
    attribute_names: Vec<String>,
}

pub(super) async fn attributes(
    call: &Call<'_>,
    request: GetAttributes,
) -> Result<Response, SqsError> {
    let queue = call.queue(request.queue_url.as_deref()).await?;
    let mut all = of_settings(&queue.name, queue.topic.settings());
    all.insert("QueueArn", call.arn(&queue.name));
    if let Some(ttl) = queue.topic.settings().ttl {
        all.insert("MessageRetentionPeriod", ttl.as_secs().to_string());
    }
    let is_named = |name: &str| {
        let mut names = request.attribute_names.iter();
        names.any(|given| given == "All" || given == name)
    };
    const COUNTS: [&str; 3] = [
        "ApproximateNumberOfMessages",
        "ApproximateNumberOfMessagesNotVisible",
        "ApproximateNumberOfMessagesDelayed",
    ];
    if COUNTS.iter().any(|name| is_named(name)) {
        let late = || {
            let message =
                "Too many counts are read at the same time, or Redis did not answer; retry later.";
            SqsError::new(Kind::ServiceUnavailable, message)
        };
        let slot = call.service.counts.begin(Client::current()).await;
        let _slot = slot.map_err(|_| late())?;
        let stats = call.gateway().process().broker.stats(&queue.topic);
        let stats = timeout(COUNTS_WITHIN, stats).await.map_err(|_| late())?;
        let stats = stats.map_err(|error| SqsError::from(call.gateway().problem(error)))?;
        let group = stats
            .groups
            .iter()
            .find(|group| group.group == call.options().group);
        let [visible, held, delayed] = group.map_or([0; 3], |group| {
            let visible = group.ready + group.backlog + group.parked;
            [visible, group.in_flight, stats.waiting + group.retry]
        });
        all.extend(
            COUNTS
                .into_iter()
                .zip([visible, held, delayed].map(|count| count.to_string())),
        );
    }
    let known = [
        "MessageRetentionPeriod",
        "Policy",
        "CreatedTimestamp",
        "LastModifiedTimestamp",
        "RedrivePolicy",
    ];
    for name in &request.attribute_names {
        let may_be = [
            "All",
            "RedriveAllowPolicy",
            "KmsMasterKeyId",
            "KmsDataKeyReusePeriodSeconds",
            "FifoQueue",
            "ContentBasedDeduplication",
            "DeduplicationScope",
            "FifoThroughputLimit",
        ];
        if !all.contains_key(name.as_str())
            && !known.contains(&&**name)
            && !may_be.contains(&&**name)
        {
            let message = format!("Unknown Attribute {}.", shorten(name));
            return Err(SqsError::new(Kind::InvalidAttributeName, message));
        }
    }
    all.retain(|name, _| is_named(name));
    match all.is_empty() {
        true => Ok(ok(&json!({}))),
        false => Ok(ok(&json!({ "Attributes": all }))),
    }
}

/// The parameters of `SetQueueAttributes`.
#[derive(Deserialize)]
#[serde(rename_all = "PascalCase")]
pub(super) struct SetAttributes {
    queue_url: Option<String>,
    #[serde(default, deserialize_with = "or_default")]
    attributes: BTreeMap<String, String>,
}

pub(super) async fn set_attributes(
    call: &Call<'_>,
    request: SetAttributes,
) -> Result<Response, SqsError> {
    let queue = call.queue(request.queue_url.as_deref()).await?;
    let given = Given {
        name: &queue.name,
        attributes: &request.attributes,
        has_tags: false,
    };
    given.check(call, queue.topic.name(), queue.topic.settings())?;
    Ok(ok(&json!({})))
}
