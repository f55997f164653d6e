//! The attributes and tags that a client sets on a queue. The settings of its topic decide: attributes without a counterpart are
//! ignored or refused.

use std::collections::BTreeMap;
use std::time::Duration;

use lisa_core::time::shorten;
use lisa_core::topic::{Size, Topic, TopicSettings};
use serde::Deserialize;
use serde_json::Value;

use super::Call;
use super::protocol::{Kind, SqsError};
use crate::pull::MIN_LEASE;

/// The end of the names of queues that keep the order of groups.
pub(super) const FIFO: &str = ".fifo";
/// The longest visibility timeout, in seconds: 12 h.
pub(super) const MAX_TIMEOUT: i64 = 12 * 3600;

/// The attributes and tags that a client sets on a queue.
pub(super) struct Given<'a> {
    /// The name of the queue.
    pub(super) name: &'a str,
    pub(super) attributes: &'a BTreeMap<String, String>,
    pub(super) has_tags: bool,
}

/// The relation of an attribute to the settings of a topic.
enum Effect {
    /// They agree.
    Same,
    /// They differ, for this reason. Messages would be handled in another way than the client expects.
    Other(&'static str),
    /// It has no counterpart, for this reason. Nothing is delivered too early, too often or not at all without it.
    None(&'static str),
}

/// The attribute `RedrivePolicy`. Libraries send the number as such, or as a text.
#[derive(Deserialize)]
struct Redrive {
    #[serde(rename = "maxReceiveCount")]
    most: Value,
}

/// Returns the attributes that the settings of a topic determine.
pub(super) fn of_settings(name: &str, settings: &TopicSettings) -> BTreeMap<&'static str, String> {
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

impl Given<'_> {
    /// Returns the settings of a new topic that follow the attributes as far as possible.
    pub(super) fn settings(&self, defaults: &TopicSettings) -> Result<TopicSettings, SqsError> {
        let mut settings = defaults.clone();
        for (attribute, value) in self.attributes {
            match attribute.as_str() {
                "VisibilityTimeout" => settings.lease = lease(value)?,
                "MaximumMessageSize" => settings.max_payload = size(value)?,
                "RedrivePolicy" => {
                    if let Some(most) = max_attempts(value)? {
                        settings.max_attempts = most;
                    }
                }
                _ => {}
            }
        }
        Ok(settings)
    }

    /// Checks the attributes against the settings of the topic. Those without a counterpart are ignored and logged, or refused, as
    /// the gateway is configured.
    pub(super) fn check(
        &self,
        call: &Call<'_>,
        topic: &Topic,
        settings: &TopicSettings,
    ) -> Result<(), SqsError> {
        let ignores = call.options().ignore_attributes;
        let mut ignored = Vec::new();
        for (attribute, value) in self.attributes {
            match self.effect(attribute, value, settings)? {
                Effect::Same => {}
                Effect::None(_) if ignores => ignored.push(attribute.as_str()),
                Effect::Other(why) | Effect::None(why) => {
                    let value = shorten(value);
                    let message =
                        format!("The attribute {attribute} cannot be set to {value}: {why}.");
                    return Err(SqsError::unsupported(message));
                }
            }
        }
        if self.has_tags {
            if !ignores {
                return Err(SqsError::unsupported("Tags are not supported."));
            }
            ignored.push("tags");
        }
        if !ignored.is_empty() && call.service.ignoring.lock().insert(topic.clone()) {
            let ignored = ignored.join(", ");
            tracing::warn!(
                queue = self.name,
                ignored,
                "an SQS client sets attributes that have no effect on a queue; see guides/sqs.md"
            );
        }
        Ok(())
    }

    fn effect(
        &self,
        attribute: &str,
        value: &str,
        settings: &TopicSettings,
    ) -> Result<Effect, SqsError> {
        let is_fifo = self.name.ends_with(FIFO);
        let (is_same, otherwise) = match attribute {
            "VisibilityTimeout" => {
                let why = "it is the `lease` of the topic, or pass it to ReceiveMessage";
                (
                    lease(value)?.as_secs() == settings.lease.as_secs(),
                    Effect::Other(why),
                )
            }
            "MaximumMessageSize" => {
                let why = "it is `max_payload` of the topic";
                (size(value)? == settings.max_payload, Effect::Other(why))
            }
            "DelaySeconds" => {
                let why = "pass it to SendMessage";
                (number(attribute, value, 0, 900)? == 0, Effect::Other(why))
            }
            "FifoQueue" => {
                let why = "a queue keeps the order of message groups if its name ends with .fifo";
                (flag(attribute, value)? == is_fifo, Effect::Other(why))
            }
            "MessageRetentionPeriod" => {
                let why = "messages are kept until they are delivered; see `ttl` of the topic";
                number(attribute, value, 60, 14 * 24 * 3600)?;
                (false, Effect::None(why))
            }
            "ReceiveMessageWaitTimeSeconds" => {
                let why = "pass WaitTimeSeconds to ReceiveMessage";
                (number(attribute, value, 0, 20)? == 0, Effect::None(why))
            }
            "RedrivePolicy" => {
                let why = "a message goes to the garbage (dead letters) of its topic after `max_attempts`";
                let most = max_attempts(value)?;
                let is_same = most.is_none_or(|most| most == settings.max_attempts);
                (is_same, Effect::None(why))
            }
            "ContentBasedDeduplication" => {
                let why = "it is on in queues whose name ends with .fifo, and only there";
                (flag(attribute, value)? == is_fifo, Effect::None(why))
            }
            "SqsManagedSseEnabled" => (
                !flag(attribute, value)?,
                Effect::None("it has no counterpart in Lisa"),
            ),
            "Policy"
            | "KmsMasterKeyId"
            | "KmsDataKeyReusePeriodSeconds"
            | "RedriveAllowPolicy"
            | "DeduplicationScope"
            | "FifoThroughputLimit" => (
                value.is_empty(),
                Effect::None("it has no counterpart in Lisa"),
            ),
            _ => {
                let message = format!("Unknown Attribute {}.", shorten(attribute));
                return Err(SqsError::new(Kind::InvalidAttributeName, message));
            }
        };
        Ok(if is_same { Effect::Same } else { otherwise })
    }
}

fn invalid(attribute: &str) -> SqsError {
    let message = format!("Invalid value for the parameter {attribute}.");
    SqsError::new(Kind::InvalidAttributeValue, message)
}

fn number(attribute: &str, value: &str, least: u64, most: u64) -> Result<u64, SqsError> {
    let number = value.trim().parse().ok();
    let number = number.filter(|number| (least..=most).contains(number));
    number.ok_or_else(|| invalid(attribute))
}

fn flag(attribute: &str, value: &str) -> Result<bool, SqsError> {
    let flag = value.trim().to_ascii_lowercase().parse();
    flag.map_err(|_| invalid(attribute))
}

/// Reads a visibility timeout. The shortest lease stands for 0, as in `ReceiveMessage`.
fn lease(value: &str) -> Result<Duration, SqsError> {
    let seconds = number("VisibilityTimeout", value, 0, MAX_TIMEOUT.unsigned_abs())?;
    Ok(Duration::from_secs(seconds).max(MIN_LEASE))
}

fn size(value: &str) -> Result<Size, SqsError> {
    let most = lisa_core::topic::MAX_PAYLOAD_LIMIT;
    number("MaximumMessageSize", value, 1024, most).map(Size::new)
}

/// Reads the number of attempts that a redrive policy allows; `None` if it is empty, which means that there is none.
fn max_attempts(policy: &str) -> Result<Option<u32>, SqsError> {
    if policy.is_empty() {
        return Ok(None);
    }
    let wrong = |reason| SqsError::parameter("RedrivePolicy", policy, reason);
    let read: Redrive = serde_json::from_str(policy)
        .map_err(|_| wrong("Redrive policy is not a valid JSON map with maxReceiveCount"))?;
    let most = read
        .most
        .as_str()
        .map_or(read.most.as_u64(), |text| text.parse().ok());
    let most = most.filter(|most| (1..=1000).contains(most));
    let most = most.and_then(|most| u32::try_from(most).ok());
    most.map(Some)
        .ok_or_else(|| wrong("Invalid value for maxReceiveCount; it must be between 1 and 1000"))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns the treatment of one attribute of a queue whose topic has the default settings.
    fn judge(name: &str, attribute: &str, value: &str) -> String {
        let given = Given {
            name,
            attributes: &BTreeMap::new(),
            has_tags: false,
        };
        match given.effect(attribute, value, &TopicSettings::default()) {
            Ok(Effect::Same) => "same".to_owned(),
            Ok(Effect::Other(_)) => "other".to_owned(),
            Ok(Effect::None(_)) => "none".to_owned(),
            Err(error) => error.message,
        }
    }

    #[test]
    fn attributes_are_read_as_libraries_write_them() {
        let redrive =
            r#"{"deadLetterTargetArn":"arn:aws:sqs:us-east-1:0:dead","maxReceiveCount":"16"}"#;
        for (attribute, value, expected) in [
            ("VisibilityTimeout", "30", "same"),
            ("VisibilityTimeout", "0", "other"),
            ("FifoQueue", "False", "same"),
            ("FifoQueue", "true", "other"),
            ("MessageRetentionPeriod", "1209600", "none"),
            ("ReceiveMessageWaitTimeSeconds", "0", "same"),
            ("ReceiveMessageWaitTimeSeconds", "20", "none"),
            ("DelaySeconds", "0", "same"),
            ("DelaySeconds", "5", "other"),
            ("RedrivePolicy", redrive, "same"),
            ("RedrivePolicy", r#"{"maxReceiveCount":3}"#, "none"),
            ("RedrivePolicy", "", "same"),
            ("KmsMasterKeyId", "alias/aws/sqs", "none"),
            ("Policy", "", "same"),
            ("SqsManagedSseEnabled", "TRUE", "none"),
            (
                "VisibilityTimeout",
                "43201",
                "Invalid value for the parameter VisibilityTimeout.",
            ),
            (
                "MaximumMessageSize",
                "1023",
                "Invalid value for the parameter MaximumMessageSize.",
            ),
            (
                "FifoQueue",
                "yes",
                "Invalid value for the parameter FifoQueue.",
            ),
            ("Nonsense", "1", "Unknown Attribute Nonsense."),
        ] {
            assert_eq!(
                judge("orders", attribute, value),
                expected,
                "{attribute} {value}"
            );
        }
        for (attribute, value) in [("FifoQueue", "True"), ("ContentBasedDeduplication", "TRUE")] {
            assert_eq!(
                judge("orders.fifo", attribute, value),
                "same",
                "{attribute}"
            );
        }
        assert_eq!(
            judge("orders.fifo", "ContentBasedDeduplication", "false"),
            "none"
        );
        assert!(judge("orders", "RedrivePolicy", "{}").contains("maxReceiveCount"));
    }

    #[test]
    fn a_new_topic_follows_the_attributes_that_it_can() {
        let attributes = [
            ("VisibilityTimeout", "0"),
            ("MaximumMessageSize", "2048"),
            ("RedrivePolicy", r#"{"maxReceiveCount":3}"#),
            ("Policy", "{}"),
        ];
        let attributes = attributes.map(|(name, value)| (name.to_owned(), value.to_owned()));
        let given = Given {
            name: "orders",
            attributes: &BTreeMap::from(attributes),
            has_tags: true,
        };
        let settings = given.settings(&TopicSettings::default()).unwrap();
        assert_eq!(settings.lease, MIN_LEASE);
        assert_eq!(settings.max_payload, Size::new(2048));
        assert_eq!(settings.max_attempts, 3);
        assert!(settings.check().is_ok());
    }
}
