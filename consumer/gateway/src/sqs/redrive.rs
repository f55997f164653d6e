//! Dead-letter queues: `RedrivePolicy`, and `ListDeadLetterSourceQueues`.
//!
//! The policy is two settings of the topic: `max_attempts`, and `garbage.topic`.

use axum::response::Response;
use lisa_core::broker::BrokerError;
use lisa_core::time::shorten;
use lisa_core::topic::{Topic, TopicSettings};
use lisa_service::http::client::reaches;
use serde::Deserialize;
use serde_json::{Value, json};

use super::Call;
use super::pages::{Page, page};
use super::protocol::{SqsError, ok};
use super::queue_attributes::FIFO;
use super::queues::{Queue, name_of, reached, topic_of};

/// A policy. Libraries send the number as such, or as a text.
#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Policy {
    dead_letter_target_arn: Option<String>,
    max_receive_count: Option<Value>,
}

fn wrong(policy: &str, reason: &str) -> SqsError {
    SqsError::parameter("RedrivePolicy", shorten(policy), reason)
}

/// Returns the name of the queue in an ARN.
pub(super) fn name_in(arn: &str) -> Option<&str> {
    let mut parts = arn.splitn(6, ':');
    let is_queue = parts.next() == Some("arn") && parts.nth(1) == Some("sqs");
    let name = parts.nth(2)?;
    is_queue.then_some(name)
}

/// Sets the policy; an empty one removes it.
pub(super) fn set(
    settings: &mut TopicSettings,
    policy: &str,
    defaults: &TopicSettings,
) -> Result<(), SqsError> {
    if policy.is_empty() {
        if settings.garbage.topic.take().is_some() {
            settings.max_attempts = defaults.max_attempts;
        }
        return Ok(());
    }
    let wrong = |reason: &str| wrong(policy, reason);
    let read: Policy = serde_json::from_str(policy)
        .map_err(|_| wrong("Redrive policy is not a valid JSON map"))?;
    let missing = |attribute| {
        wrong(&format!(
            "Redrive policy does not contain mandatory attribute: {attribute}"
        ))
    };
    let most = read
        .max_receive_count
        .ok_or_else(|| missing("maxReceiveCount"))?;
    let arn = read
        .dead_letter_target_arn
        .ok_or_else(|| missing("deadLetterTargetArn"))?;
    let number = most
        .as_str()
        .map_or_else(|| most.as_u64(), |text| text.parse().ok());
    let number = number.and_then(|number| u32::try_from(number).ok());
    let number = number.filter(|number| (1..=1000).contains(number));
    settings.max_attempts = number.ok_or_else(|| {
        let most = shorten(&most.to_string());
        wrong(&format!(
            "Invalid value for maxReceiveCount: {most}, valid values are from 1 to 1000 both inclusive"
        ))
    })?;
    let topic = name_in(&arn).and_then(|name| topic_of(name).ok());
    let topic = topic.ok_or_else(|| wrong("deadLetterTargetArn is not the ARN of a queue"))?;
    settings.garbage.topic = Some(topic);
    Ok(())
}

/// Checks that the dead-letter queue of a queue exists, and that both are FIFO queues, or neither is.
pub(super) async fn check(
    call: &Call<'_>,
    name: &str,
    settings: &TopicSettings,
    policy: &str,
) -> Result<(), SqsError> {
    let Some(target) = &settings.garbage.topic else {
        return Ok(());
    };
    reached(target)?;
    let broker = &call.gateway().process().broker;
    let there = match broker.topic(target).await {
        Ok(there) if there.removal().is_none() => there,
        Ok(_) | Err(BrokerError::UnknownTopic(_)) => {
            return Err(wrong(policy, "Dead letter target does not exist"));
        }
        Err(error) => return Err(call.gateway().problem(error).into()),
    };
    let is_fifo = name.ends_with(FIFO);
    let arn: Policy = serde_json::from_str(policy).map_err(|_| wrong(policy, "not JSON"))?;
    let arn = arn.dead_letter_target_arn.unwrap_or_default();
    let target_is_fifo = there.settings().sqs.fifo.unwrap_or(is_fifo);
    if target_is_fifo != is_fifo || arn.ends_with(FIFO) != is_fifo {
        let reason = "Dead-letter queue must be same type of queue as the source";
        return Err(wrong(policy, reason));
    }
    Ok(())
}

/// Returns the policy of a queue; `None` if its topic forwards garbage to no other one.
pub(super) fn policy(call: &Call<'_>, queue: &Queue) -> Option<String> {
    let settings = queue.topic.settings();
    let target = settings.garbage.topic.as_ref()?;
    let suffix = if queue.is_fifo() { FIFO } else { "" };
    let arn = call.arn(&format!("{target}{suffix}"));
    let policy = json!({
        "deadLetterTargetArn": arn,
        "maxReceiveCount": settings.max_attempts,
    });
    Some(policy.to_string())
}

/// The parameters of `ListDeadLetterSourceQueues`.
#[derive(Deserialize)]
#[serde(rename_all = "PascalCase")]
pub(super) struct ListSources {
    queue_url: Option<String>,
    max_results: Option<i64>,
    next_token: Option<String>,
}

pub(super) async fn list_sources(
    call: &Call<'_>,
    request: ListSources,
) -> Result<Response, SqsError> {
    let queue = call.queue(request.queue_url.as_deref()).await?;
    let target = queue.topic.name();
    let group = &call.options().group;
    let topics = call.gateway().process().broker.known_topics();
    let sources = topics.iter().filter(|topic| {
        topic.settings().garbage.topic.as_ref() == Some(target)
            && topic.removal().is_none()
            && topic.groups().contains(group)
            && reaches(topic.name())
    });
    let names: Vec<(&Topic, String)> = sources
        .map(|topic| {
            let is_fifo = topic.settings().sqs.fifo.unwrap_or(queue.is_fifo());
            (topic.name(), name_of(topic.name(), is_fifo))
        })
        .collect();
    let Page { names, next } = page(names, request.max_results, request.next_token.as_deref())?;
    let urls: Vec<_> = names.iter().map(|name| call.url(name)).collect();
    let mut answer = json!({ "queueUrls": urls });
    if let Some(next) = next {
        answer["NextToken"] = next.into();
    }
    Ok(ok(&answer))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_policy_has_a_queue_and_a_number() {
        let defaults = TopicSettings::default();
        let mut settings = defaults.clone();
        let arn = "arn:aws:sqs:us-east-1:000000000000:dead.fifo";
        let policy =
            |count: &str| format!(r#"{{"deadLetterTargetArn":"{arn}","maxReceiveCount":{count}}}"#);
        for count in ["5", "\"5\""] {
            set(&mut settings, &policy(count), &defaults).unwrap();
            let target = settings.garbage.topic.as_ref().map(Topic::as_str);
            assert_eq!((settings.max_attempts, target), (5, Some("dead")));
        }
        for (wrong, part) in [
            (policy("0"), "from 1 to 1000"),
            (policy("1001"), "from 1 to 1000"),
            (policy("\"x\""), "from 1 to 1000"),
            (
                policy("5").replace("arn:aws:sqs", "arn:aws:sns"),
                "not the ARN",
            ),
            (policy("5").replace("dead.fifo", "a b"), "not the ARN"),
            (r#"{"maxReceiveCount":3}"#.to_owned(), "deadLetterTargetArn"),
            ("{}".to_owned(), "maxReceiveCount"),
            ("x".to_owned(), "JSON"),
        ] {
            let error = set(&mut settings, &wrong, &defaults).unwrap_err();
            assert!(error.message.contains(part), "{}", error.message);
        }
        set(&mut settings, "", &defaults).unwrap();
        assert_eq!(settings, defaults);
    }
}
