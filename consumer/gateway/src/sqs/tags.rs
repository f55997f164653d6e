//! `TagQueue`, `UntagQueue` and `ListQueueTags`. Tags are kept in the settings of the topic.

use axum::response::Response;
use lisa_core::topic::{MAX_TAG_NAME, MAX_TAG_VALUE, MAX_TAGS};
use serde::Deserialize;
use serde_json::json;

use super::Call;
use super::attributes::forbidden;
use super::changes::change;
use super::protocol::{Kind, SqsError, ok, or_default};
use super::queue_attributes::Texts;

/// The parameters of `TagQueue`.
#[derive(Deserialize)]
#[serde(rename_all = "PascalCase")]
pub(super) struct Tag {
    queue_url: Option<String>,
    #[serde(default, deserialize_with = "or_default")]
    tags: Texts,
}

/// The parameters of `UntagQueue`.
#[derive(Deserialize)]
#[serde(rename_all = "PascalCase")]
pub(super) struct Untag {
    queue_url: Option<String>,
    #[serde(default, deserialize_with = "or_default")]
    tag_keys: Vec<String>,
}

/// The parameters of `ListQueueTags`.
#[derive(Deserialize)]
#[serde(rename_all = "PascalCase")]
pub(super) struct ListTags {
    queue_url: Option<String>,
}

fn invalid(message: impl Into<String>) -> SqsError {
    SqsError::new(Kind::InvalidParameterValue, message)
}

/// Checks the tags of a queue.
pub(super) fn check(queue: &str, tags: &Texts) -> Result<(), SqsError> {
    if tags.len() > MAX_TAGS {
        return Err(invalid(format!("Too many tags added for queue {queue}.")));
    }
    tags.keys().try_for_each(|name| check_name(name))?;
    let is_wrong =
        |value: &String| value.chars().count() > MAX_TAG_VALUE || forbidden(value).is_some();
    if tags.values().any(is_wrong) {
        let message =
            format!("Tag values must be between 0 and {MAX_TAG_VALUE} characters in length.");
        return Err(invalid(message));
    }
    Ok(())
}

fn check_name(name: &str) -> Result<(), SqsError> {
    // XML cannot contain every character.
    let is_right = (1..=MAX_TAG_NAME).contains(&name.chars().count()) && forbidden(name).is_none();
    match is_right {
        true => Ok(()),
        false => Err(wrong_names()),
    }
}

fn wrong_names() -> SqsError {
    invalid(format!(
        "Tag keys must be between 1 and {MAX_TAG_NAME} characters in length."
    ))
}

pub(super) async fn tag(call: &Call<'_>, request: Tag) -> Result<Response, SqsError> {
    let queue = call.queue(request.queue_url.as_deref()).await?;
    if request.tags.is_empty() {
        return Err(SqsError::missing("Tags"));
    }
    let given = request.tags.iter();
    let given = given.map(|(name, value)| (format!("tag {name}"), value.clone()));
    change(call, &queue, "TagQueue", &given.collect(), |settings| {
        let mut tags = settings.sqs.tags.clone();
        tags.extend(request.tags.clone());
        check(&queue.name, &tags)?;
        settings.sqs.tags = tags;
        Ok(())
    })
    .await?;
    Ok(ok(&json!({})))
}

pub(super) async fn untag(call: &Call<'_>, request: Untag) -> Result<Response, SqsError> {
    let queue = call.queue(request.queue_url.as_deref()).await?;
    if request.tag_keys.is_empty() {
        return Err(wrong_names());
    }
    request
        .tag_keys
        .iter()
        .try_for_each(|name| check_name(name))?;
    let given = request.tag_keys.iter();
    let given = given.map(|name| (format!("tag {name}"), "none".to_owned()));
    change(call, &queue, "UntagQueue", &given.collect(), |settings| {
        for name in &request.tag_keys {
            settings.sqs.tags.remove(name);
        }
        Ok(())
    })
    .await?;
    Ok(ok(&json!({})))
}

pub(super) async fn list(call: &Call<'_>, request: ListTags) -> Result<Response, SqsError> {
    let queue = call.queue(request.queue_url.as_deref()).await?;
    let tags = &queue.topic.settings().sqs.tags;
    match tags.is_empty() {
        true => Ok(ok(&json!({}))),
        false => Ok(ok(&json!({ "Tags": tags }))),
    }
}
