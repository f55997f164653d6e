//! Queues: their names and addresses, and how their attributes are read. A queue is a topic with the group of SQS clients.

use std::sync::Arc;
use std::time::Duration;

use axum::response::Response;
use lisa_core::broker::{BrokerError, TopicHandle};
use lisa_core::time::{UnixMs, shorten};
use lisa_core::topic::{InvalidName, Topic, TopicSettings};
use lisa_service::http::client::{Client, reaches};
use serde::Deserialize;
use serde_json::json;
use tokio::time::timeout;

use super::pages::{Page, page};
use super::protocol::{Kind, SqsError, ok, or_default};
use super::queue_attributes::{FIFO, is_known, of_new_queue, of_settings};
use super::{ACCOUNT, Call, redrive};

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
pub(super) fn topic_of(name: &str) -> Result<Topic, InvalidName> {
    name.strip_suffix(FIFO).unwrap_or(name).parse()
}

/// Returns the name of the queue of a topic.
pub(super) fn name_of(topic: &Topic, is_fifo: bool) -> String {
    match is_fifo {
        true => format!("{topic}{FIFO}"),
        false => topic.to_string(),
    }
}

/// Refuses a topic that the token does not reach, whether it exists or not.
pub(super) fn reached(topic: &Topic) -> Result<(), SqsError> {
    match reaches(topic) {
        true => Ok(()),
        false => {
            let message = format!("The token does not reach the topic {topic}.");
            Err(SqsError::new(Kind::AccessDenied, message))
        }
    }
}

impl Queue {
    /// Returns the queue of a topic, if that has this name, and the group of SQS clients.
    pub(super) fn of(
        call: &Call<'_>,
        name: &str,
        topic: Arc<TopicHandle>,
    ) -> Result<Self, SqsError> {
        let group = &call.options().group;
        let has_name = topic.settings().sqs.fifo != Some(!name.ends_with(FIFO));
        if !has_name || topic.removal().is_some() {
            return Err(SqsError::no_queue());
        }
        if !topic.groups().contains(group) {
            let topic = topic.name();
            tracing::debug!(%topic, %group, "no queue for SQS clients, because it lacks their group");
            return Err(SqsError::no_queue());
        }
        let name = name.to_owned();
        Ok(Self { name, topic })
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
        let topic = topic_of(name).map_err(|_| SqsError::no_queue())?;
        reached(&topic)?;
        let broker = &self.gateway().process().broker;
        match broker.topic(&topic).await {
            Ok(topic) => Queue::of(self, name, topic),
            Err(BrokerError::UnknownTopic(_)) => Err(SqsError::no_queue()),
            Err(error) => Err(self.gateway().problem(error).into()),
        }
    }

    pub(super) fn url(&self, name: &str) -> String {
        format!("{}{name}", self.base)
    }

    pub(super) fn arn(&self, name: &str) -> String {
        format!("arn:aws:sqs:{}:{ACCOUNT}:{name}", self.region)
    }

    /// Returns the settings of a new queue without attributes.
    pub(super) fn defaults(&self, name: &str) -> TopicSettings {
        of_new_queue(name, &self.options().create)
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
    let prefix = request.queue_name_prefix.unwrap_or_default();
    let topics = call.gateway().process().broker.known_topics();
    let group = &call.options().group;
    // A topic may have two names, of which the list has the shorter one that begins so.
    let name = |topic: &TopicHandle| {
        let fifo = topic.settings().sqs.fifo;
        let kinds = [false, true].into_iter();
        let mut names = kinds
            .filter(|is_fifo| fifo.is_none_or(|fifo| fifo == *is_fifo))
            .map(|is_fifo| name_of(topic.name(), is_fifo));
        names.find(|name| name.starts_with(&prefix))
    };
    let found = topics
        .iter()
        .filter(|topic| topic.groups().contains(group) && topic.removal().is_none())
        .filter(|topic| reaches(topic.name()))
        .filter_map(|topic| Some((topic.name(), name(topic)?)));
    let token = request.next_token.as_deref();
    let Page { names, next } = page(found.collect(), request.max_results, token)?;
    let urls: Vec<String> = names.iter().map(|name| call.url(name)).collect();
    let mut answer = json!({});
    if !urls.is_empty() {
        answer["QueueUrls"] = json!(urls);
    }
    if let Some(next) = next {
        answer["NextToken"] = next.into();
    }
    Ok(ok(&answer))
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
    if let Some(name) = request.attribute_names.iter().find(|name| !is_known(name)) {
        let message = format!("Unknown Attribute {}.", shorten(name));
        return Err(SqsError::new(Kind::InvalidAttributeName, message));
    }
    let mut all = of_settings(&queue.name, queue.topic.settings());
    let seconds = |at: UnixMs| (at.get() / 1000).to_string();
    for (name, value) in [
        ("QueueArn", Some(call.arn(&queue.name))),
        ("CreatedTimestamp", queue.topic.created_at().map(seconds)),
        (
            "LastModifiedTimestamp",
            queue.topic.changed_at().map(seconds),
        ),
        ("RedrivePolicy", redrive::policy(call, &queue)),
    ] {
        all.extend(value.map(|value| (name, value)));
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
    all.retain(|name, _| is_named(name));
    match all.is_empty() {
        true => Ok(ok(&json!({}))),
        false => Ok(ok(&json!({ "Attributes": all }))),
    }
}
