//! `CreateQueue`, `SetQueueAttributes` and `DeleteQueue`: they create, change and remove the topic of a queue.
//!
//! SQS clients change and remove only topics that `CreateQueue` created. All others belong to a configuration file or to an
//! operator, so that their attributes are compared, and ignored or refused. The audit log records each change.

use std::sync::Arc;
use std::time::Duration;

use axum::response::Response;
use lisa_core::broker::{BrokerError, Declare, Removal, TopicHandle};
use lisa_core::time::shorten;
use lisa_core::topic::{Topic, TopicSettings};
use lisa_service::audit::Action;
use lisa_service::http::client::topic_quota;
use serde::{Deserialize, Deserializer};
use serde_json::json;
use tokio::time::{Instant, sleep};

use super::Call;
use super::protocol::{Kind, SqsError, ok, or_default};
use super::queue_attributes::{self as attributes, FIFO, Texts, is_ignorable, is_kept};
use super::queues::{Queue, reached, topic_of};
use super::{redrive, tags};

/// The most attempts to change a topic that others change at the same time.
const MAX_TRIES: usize = 5;
/// The longest time that `CreateQueue` waits until a queue of this name is removed.
const REMOVED_WITHIN: Duration = Duration::from_secs(10);
/// The pause between two looks at a queue that is being removed.
const LOOK_EVERY: Duration = Duration::from_millis(50);
/// The longest name of a queue.
const MAX_NAME: usize = 80;

/// The parameters of `CreateQueue`.
#[derive(Deserialize)]
#[serde(rename_all = "PascalCase")]
pub(super) struct Create {
    queue_name: Option<String>,
    #[serde(default, deserialize_with = "attributes_of")]
    attributes: Texts,
    #[serde(default, alias = "tags", deserialize_with = "or_default")]
    tags: Texts,
}

/// Reads attributes. Blanks around a name are ignored.
fn attributes_of<'de, D: Deserializer<'de>>(from: D) -> Result<Texts, D::Error> {
    let given: Texts = or_default(from)?;
    let trimmed = given.into_iter().map(|(name, value)| match name.trim() {
        trimmed if trimmed.len() == name.len() => (name, value),
        trimmed => (trimmed.to_owned(), value),
    });
    Ok(trimmed.collect())
}

pub(super) async fn create(call: &Call<'_>, request: Create) -> Result<Response, SqsError> {
    let name = request.queue_name.as_deref();
    let name = name.ok_or_else(|| SqsError::missing("QueueName"))?;
    let topic = topic_of(name).map_err(|_| wrong_name())?;
    reached(&topic)?;
    let until = Instant::now() + REMOVED_WITHIN;
    loop {
        let found = newest(call, &topic).await?;
        match found {
            Some(topic) if topic.removal().is_none() => {
                let queue = Queue::of(call, name, topic)?;
                compare(call, &queue, &request.attributes, &request.tags)?;
                break;
            }
            // It was removed a moment ago.
            Some(_) if Instant::now() < until => sleep(LOOK_EVERY).await,
            Some(_) => {
                let message = "You must wait 60 seconds after deleting a queue before you can create another with the same \
                    name.";
                return Err(SqsError::new(Kind::QueueDeletedRecently, message));
            }
            None => {
                call.require_operate("CreateQueue")?;
                let _slot = call.gateway().searches().begin_with_quota().await?;
                if name.len() > MAX_NAME {
                    return Err(wrong_name());
                }
                let settings = new_queue(call, name, &request).await?;
                let declared = declare(call, &topic, &settings, 0, "create_topic", {
                    &request.attributes
                });
                match declared.await {
                    Ok(()) => {
                        tracing::info!(%topic, "created for an SQS client");
                        break;
                    }
                    // Somebody else was faster, or it is being removed.
                    Err(BrokerError::Epoch { .. } | BrokerError::BeingRemoved(_))
                        if Instant::now() < until => {}
                    Err(error) => return Err(refused(call, error)),
                }
            }
        }
    }
    Ok(ok(&json!({ "QueueUrl": call.url(name) })))
}

fn wrong_name() -> SqsError {
    let message =
        "Can only include alphanumeric characters, hyphens, or underscores. 1 to 80 in length";
    SqsError::new(Kind::InvalidParameterValue, message)
}

/// Returns a topic as Redis has it now.
async fn newest(call: &Call<'_>, topic: &Topic) -> Result<Option<Arc<TopicHandle>>, SqsError> {
    match call.gateway().process().broker.newest(topic).await {
        Ok(topic) => Ok(Some(topic)),
        Err(BrokerError::UnknownTopic(_)) => Ok(None),
        Err(error) => Err(call.gateway().problem(error).into()),
    }
}

/// Returns the settings of a new queue.
async fn new_queue(
    call: &Call<'_>,
    name: &str,
    request: &Create,
) -> Result<TopicSettings, SqsError> {
    let given = &request.attributes;
    let wants_fifo = given
        .get("FifoQueue")
        .is_some_and(|value| value.trim().eq_ignore_ascii_case("true"));
    if wants_fifo != name.ends_with(FIFO) {
        if !wants_fifo {
            // As in SQS, where only the name of a FIFO queue has a period.
            return Err(wrong_name());
        }
        let message = "The name of a FIFO queue can only include alphanumeric characters, hyphens, or underscores, must end \
            with .fifo suffix and be 1 to 80 in length.";
        return Err(SqsError::new(Kind::InvalidParameterValue, message));
    }
    let defaults = call.defaults(name);
    let mut settings = defaults.clone();
    for (attribute, value) in given {
        set(call, &mut settings, name, attribute, value, &defaults)?;
    }
    if let Some(policy) = given.get("RedrivePolicy") {
        redrive::check(call, name, &settings, policy).await?;
    }
    tags::check(name, &request.tags)?;
    settings.sqs.tags.clone_from(&request.tags);
    settings.sqs.created = Some(call.gateway().process().broker.now());
    check(&settings)?;
    Ok(settings)
}

/// Sets an attribute, unless attributes without an effect are refused.
fn set(
    call: &Call<'_>,
    settings: &mut TopicSettings,
    name: &str,
    attribute: &str,
    value: &str,
    defaults: &TopicSettings,
) -> Result<(), SqsError> {
    let before = settings.sqs.attributes.get(attribute).cloned();
    attributes::set(settings, name, attribute, value, defaults)?;
    let is_changed = settings.sqs.attributes.get(attribute) != before.as_ref();
    if is_kept(attribute) && is_changed && !call.options().ignore_attributes {
        return Err(without_effect(attribute));
    }
    Ok(())
}

fn without_effect(attribute: &str) -> SqsError {
    SqsError::unsupported(format!(
        "The attribute {attribute} has no effect in Lisa, which refuses it: see consumer.gateway.sqs_ignore_attributes."
    ))
}

fn check(settings: &TopicSettings) -> Result<(), SqsError> {
    settings.check().map_err(|problems| {
        let first = problems.first().map(ToString::to_string);
        SqsError::new(Kind::InvalidAttributeValue, first.unwrap_or_default())
    })
}

/// Declares a topic that is at this epoch, and records it.
async fn declare(
    call: &Call<'_>,
    topic: &Topic,
    settings: &TopicSettings,
    epoch: u64,
    verb: &str,
    given: &Texts,
) -> Result<(), BrokerError> {
    let broker = &call.gateway().process().broker;
    let details = given
        .iter()
        .map(|(name, value)| format!("{name}={}", shorten(value)));
    let details = details.collect::<Vec<_>>().join(", ");
    let action = Action::of_sqs_client(broker, call.token.as_deref(), verb);
    let action = action.topic(topic).details(details);
    let mode = Declare::UpdateAt(epoch);
    let work = broker.declare_by_call(topic, settings, mode, topic_quota());
    let outcome = |declared: &Arc<TopicHandle>| match declared.epoch() == epoch {
        true => "unchanged".to_owned(),
        false => "changed".to_owned(),
    };
    action.run(work, outcome).await.map(drop)
}

/// Returns the error of a topic that cannot be declared.
fn refused(call: &Call<'_>, error: BrokerError) -> SqsError {
    match error {
        BrokerError::OverQuota { .. }
        | BrokerError::TooManyTopics(_)
        | BrokerError::TooManyGroups { .. } => SqsError::new(Kind::OverLimit, error.to_string()),
        error => call.gateway().problem(error).into(),
    }
}

/// Compares attributes and tags with those of a queue that exists. Those that nothing depends on are ignored, if its topic was not
/// created by `CreateQueue`.
fn compare(
    call: &Call<'_>,
    queue: &Queue,
    given: &Texts,
    given_tags: &Texts,
) -> Result<(), SqsError> {
    let before = queue.topic.settings();
    let defaults = call.defaults(&queue.name);
    let mut ignored = Vec::new();
    for (attribute, value) in given {
        let mut after = before.clone();
        attributes::set(&mut after, &queue.name, attribute, value, &defaults)?;
        if after == *before {
            continue;
        }
        let is_ignored = before.sqs.created.is_none()
            && is_ignorable(attribute)
            && call.options().ignore_attributes;
        if !is_ignored {
            return Err(exists(attribute));
        }
        ignored.push(attribute.as_str());
    }
    if before.sqs.created.is_none() && !given_tags.is_empty() && before.sqs.tags != *given_tags {
        if !call.options().ignore_attributes {
            return Err(exists("tags"));
        }
        ignored.push("tags");
    }
    warn_about(call, queue, &ignored);
    Ok(())
}

fn exists(attribute: &str) -> SqsError {
    let message = format!(
        "A queue already exists with the same name and a different value for attribute {attribute}"
    );
    SqsError::new(Kind::QueueNameExists, message)
}

/// Logs ignored attributes, once for each topic.
fn warn_about(call: &Call<'_>, queue: &Queue, ignored: &[&str]) {
    let topic = queue.topic.name();
    if !ignored.is_empty() && call.service.ignoring.lock().insert(topic.clone()) {
        let ignored = ignored.join(", ");
        tracing::warn!(
            queue = queue.name,
            ignored,
            "an SQS client sets attributes that have no effect on a queue; see guides/sqs.md"
        );
    }
}

/// The parameters of `SetQueueAttributes`.
#[derive(Deserialize)]
#[serde(rename_all = "PascalCase")]
pub(super) struct SetAttributes {
    queue_url: Option<String>,
    #[serde(default, deserialize_with = "attributes_of")]
    attributes: Texts,
}

pub(super) async fn set_attributes(
    call: &Call<'_>,
    request: SetAttributes,
) -> Result<Response, SqsError> {
    let queue = call.queue(request.queue_url.as_deref()).await?;
    let (name, given) = (&queue.name, &request.attributes);
    if given.contains_key("FifoQueue") && !queue.is_fifo() {
        return Err(attributes::unknown("FifoQueue"));
    }
    if !may_change(call, &queue.topic) {
        compare(call, &queue, given, &Texts::new()).map_err(|error| match error.kind {
            Kind::QueueNameExists => foreign(queue.topic.name()),
            _ => error,
        })?;
        return Ok(ok(&json!({})));
    }
    let defaults = call.defaults(name);
    if let Some(policy) = given.get("RedrivePolicy").filter(|it| !it.is_empty()) {
        let mut settings = queue.topic.settings().clone();
        redrive::set(&mut settings, policy, &defaults)?;
        redrive::check(call, name, &settings, policy).await?;
    }
    let edit = |settings: &mut TopicSettings| {
        let mut given = given.iter();
        given.try_for_each(|(attribute, value)| {
            set(call, settings, name, attribute, value, &defaults)
        })
    };
    change(call, &queue, "SetQueueAttributes", given, edit).await?;
    Ok(ok(&json!({})))
}

/// Returns true if SQS clients can change and remove a topic.
fn may_change(call: &Call<'_>, topic: &TopicHandle) -> bool {
    let is_declared = call.options().declared.contains(topic.name());
    topic.settings().sqs.created.is_some() && !is_declared
}

fn foreign(topic: &Topic) -> SqsError {
    SqsError::unsupported(format!(
        "The topic {topic} was not created by CreateQueue: Lisa's configuration or an operator declares it. Change it there."
    ))
}

/// Changes the settings of a queue, again if somebody else changes them at the same time. `given` is for the audit log.
pub(super) async fn change(
    call: &Call<'_>,
    queue: &Queue,
    action: &str,
    given: &Texts,
    edit: impl Fn(&mut TopicSettings) -> Result<(), SqsError>,
) -> Result<(), SqsError> {
    let name = queue.topic.name();
    for _ in 0..MAX_TRIES {
        let topic = newest(call, name).await?;
        let topic = topic.filter(|topic| topic.removal().is_none());
        let topic = topic.ok_or_else(SqsError::no_queue)?;
        let mut settings = topic.settings().clone();
        edit(&mut settings)?;
        if settings == *topic.settings() {
            return Ok(());
        }
        call.require_operate(action)?;
        if !may_change(call, &topic) {
            return Err(foreign(name));
        }
        check(&settings)?;
        let _slot = call.gateway().searches().begin_with_quota().await?;
        match declare(call, name, &settings, topic.epoch(), "change_topic", given).await {
            Ok(()) => {
                tracing::info!(topic = %name, action, "changed for an SQS client");
                return Ok(());
            }
            Err(BrokerError::Epoch { .. }) => {}
            Err(error) => return Err(refused(call, error)),
        }
    }
    let message = "The queue is being changed by others; call it again.";
    Err(SqsError::new(Kind::ServiceUnavailable, message))
}

/// The parameters of `DeleteQueue`.
#[derive(Deserialize)]
#[serde(rename_all = "PascalCase")]
pub(super) struct Delete {
    queue_url: Option<String>,
}

pub(super) async fn delete(call: &Call<'_>, request: Delete) -> Result<Response, SqsError> {
    let queue = call.queue(request.queue_url.as_deref()).await?;
    let name = queue.topic.name();
    let topic = newest(call, name).await?;
    let topic = topic.ok_or_else(SqsError::no_queue)?;
    if !may_change(call, &topic) {
        return Err(foreign(name));
    }
    let broker = &call.gateway().process().broker;
    let action = Action::of_sqs_client(broker, call.token.as_deref(), "remove_topic");
    let action = action.topic(name).details(Removal::Force);
    let work = broker.remove_topic(name, Removal::Force, Some(topic.epoch()));
    let removed = action.run(work, |_| "changed".to_owned()).await;
    match removed {
        Ok(_) | Err(BrokerError::UnknownTopic(_)) => {
            tracing::info!(topic = %name, "removed for an SQS client");
            Ok(ok(&json!({})))
        }
        Err(BrokerError::Epoch { .. }) => {
            let message = "The queue is being changed by others; call it again.";
            Err(SqsError::new(Kind::ServiceUnavailable, message))
        }
        Err(error) => Err(call.gateway().problem(error).into()),
    }
}
