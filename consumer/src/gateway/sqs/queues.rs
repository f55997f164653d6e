//! Queues: their names and addresses, and their attributes. A queue is a topic with the group of SQS clients.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use axum::response::Response;
use lisa_core::broker::{BrokerError, Declare, TopicHandle};
use lisa_core::topic::{Size, Topic, TopicSettings};
use serde::Deserialize;
use serde_json::{Value, json};

use super::protocol::{Kind, SqsError, ok};
use super::{ACCOUNT, Call};

/// The end of the names of queues that keep the order of groups.
const FIFO: &str = ".fifo";
/// The most queues of a list.
const MAX_LISTED: usize = 1000;

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

impl Call<'_> {
    /// Finds the queue of an address, or of the path of the request.
    pub(super) async fn queue(&self, url: Option<&str>) -> Result<Queue, SqsError> {
        let given = url.or(self.queue.as_deref());
        let given = given.ok_or_else(|| SqsError::missing("QueueUrl"))?;
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
    let names = topics
        .iter()
        .filter(|topic| topic.groups().contains(group))
        .map(|topic| topic.name().as_str())
        .filter(|name| name.starts_with(&prefix) && *name > after.as_str());
    let mut names: Vec<&str> = names.take(limit + 1).collect();
    let has_more = names.len() > limit;
    names.truncate(limit);
    let urls: Vec<String> = names.iter().map(|name| call.url(name)).collect();
    let mut answer = json!({ "QueueUrls": urls });
    if has_more && request.max_results.is_some() {
        answer["NextToken"] = json!(names.last());
    }
    Ok(ok(&answer))
}

/// The parameters of `CreateQueue`.
#[derive(Deserialize)]
#[serde(rename_all = "PascalCase")]
pub(super) struct Create {
    queue_name: Option<String>,
    #[serde(default)]
    attributes: BTreeMap<String, String>,
    #[serde(default, alias = "tags")]
    tags: BTreeMap<String, String>,
}

pub(super) async fn create(call: &Call<'_>, request: Create) -> Result<Response, SqsError> {
    let name = request
        .queue_name
        .ok_or_else(|| SqsError::missing("QueueName"))?;
    if !request.tags.is_empty() {
        return Err(SqsError::unsupported("Tags are not supported."));
    }
    let is_fifo = name.ends_with(FIFO);
    match call.named(&name).await {
        Ok(queue) => {
            check_attributes(&request.attributes, &queue.name, queue.topic.settings()).map_err(
                |error| match error.kind {
                    Kind::UnsupportedOperation => {
                        let message =
                            format!("The queue exists with other attributes. {}", error.message);
                        SqsError::new(Kind::QueueNameExists, message)
                    }
                    _ => error,
                },
            )?;
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
            let settings = new_settings(defaults, &request.attributes);
            check_attributes(&request.attributes, &name, &settings)?;
            if let Err(problems) = settings.check() {
                let all: Vec<_> = problems.iter().map(ToString::to_string).collect();
                return Err(SqsError::new(Kind::InvalidAttributeValue, all.join("; ")));
            }
            let broker = &call.gateway().process().broker;
            let declared = broker.declare(&topic, &settings, Declare::Create).await;
            declared.map_err(|error| SqsError::from(call.gateway().problem(error)))?;
            // It may exist without the group.
            call.named(&name).await?;
            tracing::info!(%topic, is_fifo, "declared a topic for an SQS client");
        }
        Err(error) => return Err(error),
    }
    Ok(ok(&json!({ "QueueUrl": call.url(&name) })))
}

/// Returns the settings of a new topic. Attributes that cannot be used stay as they are, and are refused later.
fn new_settings(defaults: &TopicSettings, attributes: &BTreeMap<String, String>) -> TopicSettings {
    let number = |name: &str| attributes.get(name)?.parse::<u64>().ok();
    let mut settings = defaults.clone();
    if let Some(seconds) = number("VisibilityTimeout") {
        settings.lease = Duration::from_secs(seconds);
    }
    if let Some(bytes) = number("MaximumMessageSize") {
        settings.max_payload = Size::new(bytes);
    }
    settings
}

/// Returns the attributes that the settings of a topic determine.
fn of_settings(name: &str, settings: &TopicSettings) -> BTreeMap<&'static str, String> {
    let mut attributes = BTreeMap::from([
        ("VisibilityTimeout", settings.lease.as_secs().to_string()),
        ("MaximumMessageSize", settings.max_payload.get().to_string()),
        ("DelaySeconds", "0".to_owned()),
        ("ReceiveMessageWaitTimeSeconds", "0".to_owned()),
        ("SqsManagedSseEnabled", "false".to_owned()),
    ]);
    if name.ends_with(FIFO) {
        attributes.insert("FifoQueue", "true".to_owned());
        attributes.insert("ContentBasedDeduplication", "true".to_owned());
    }
    attributes
}

/// Checks that attributes are as the settings of the topic determine.
fn check_attributes(
    given: &BTreeMap<String, String>,
    name: &str,
    settings: &TopicSettings,
) -> Result<(), SqsError> {
    let current = of_settings(name, settings);
    for (attribute, value) in given {
        if current.get(attribute.as_str()) == Some(value) {
            continue;
        }
        let advice = match attribute.as_str() {
            "VisibilityTimeout" => "it is the `lease` of the topic, or pass it to ReceiveMessage",
            "MaximumMessageSize" => "it is `max_payload` of the topic",
            "MessageRetentionPeriod" => {
                "messages are kept until they are delivered; see `ttl` of the topic"
            }
            "DelaySeconds" => "pass it to SendMessage",
            "ReceiveMessageWaitTimeSeconds" => "pass WaitTimeSeconds to ReceiveMessage",
            "RedrivePolicy" | "RedriveAllowPolicy" => {
                "a message goes to the garbage (dead letters) of its topic after `max_attempts`"
            }
            "FifoQueue" => "a queue keeps the order of message groups if its name ends with .fifo",
            "ContentBasedDeduplication" => {
                "it is on in queues whose name ends with .fifo, and only there"
            }
            "Policy"
            | "KmsMasterKeyId"
            | "KmsDataKeyReusePeriodSeconds"
            | "SqsManagedSseEnabled"
            | "DeduplicationScope"
            | "FifoThroughputLimit" => "it has no counterpart in Lisa",
            _ => {
                let message = format!("Unknown Attribute {attribute}.");
                return Err(SqsError::new(Kind::InvalidAttributeName, message));
            }
        };
        let message = format!("The attribute {attribute} cannot be set to {value}: {advice}.");
        return Err(SqsError::unsupported(message));
    }
    Ok(())
}

/// The parameters of `GetQueueAttributes`.
#[derive(Deserialize)]
#[serde(rename_all = "PascalCase")]
pub(super) struct GetAttributes {
    queue_url: Option<String>,
    #[serde(default)]
    attribute_names: Vec<String>,
}

pub(super) async fn attributes(
    call: &Call<'_>,
    request: GetAttributes,
) -> Result<Response, SqsError> {
    let queue = call.queue(request.queue_url.as_deref()).await?;
    let mut all = of_settings(&queue.name, queue.topic.settings());
    let arn = format!("arn:aws:sqs:{}:{ACCOUNT}:{}", call.region, queue.name);
    all.insert("QueueArn", arn);
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
        let stats = call.gateway().process().broker.stats(&queue.topic).await;
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
            let message = format!("Unknown Attribute {name}.");
            return Err(SqsError::new(Kind::InvalidAttributeName, message));
        }
    }
    all.retain(|name, _| is_named(name));
    let answer: Value = json!({ "Attributes": all });
    Ok(ok(&answer))
}

/// The parameters of `SetQueueAttributes`.
#[derive(Deserialize)]
#[serde(rename_all = "PascalCase")]
pub(super) struct SetAttributes {
    queue_url: Option<String>,
    #[serde(default)]
    attributes: BTreeMap<String, String>,
}

pub(super) async fn set_attributes(
    call: &Call<'_>,
    request: SetAttributes,
) -> Result<Response, SqsError> {
    let queue = call.queue(request.queue_url.as_deref()).await?;
    check_attributes(&request.attributes, &queue.name, queue.topic.settings())?;
    Ok(ok(&json!({})))
}
