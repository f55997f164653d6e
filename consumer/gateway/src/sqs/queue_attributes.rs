//! The attributes of a queue: those that settings of its topic stand for, and those that are kept for the clients that read them.

use std::collections::BTreeMap;
use std::time::Duration;

use lisa_core::time::shorten;
use lisa_core::topic::{KEPT_ATTRIBUTES, OnExpired, Size, TopicSettings};
use serde::de::IgnoredAny;

use super::protocol::{Kind, SqsError};
use super::redrive;
use crate::pull::MIN_LEASE;

/// The end of the names of queues that keep the order of groups.
pub(super) const FIFO: &str = ".fifo";
/// The longest visibility timeout, in seconds: 12 h.
pub(super) const MAX_TIMEOUT: i64 = 12 * 3600;
/// The largest message of SQS, in bytes, and the default of new queues.
pub(super) const MAX_MESSAGE: u64 = 1024 * 1024;
/// The longest retention period, in seconds: 14 days.
const MAX_RETENTION: u64 = 14 * 24 * 3600;

/// Attributes as clients set and read them.
pub(super) type Texts = BTreeMap<String, String>;

/// Returns the attributes that the settings of a topic determine.
pub(super) fn of_settings(name: &str, settings: &TopicSettings) -> BTreeMap<&'static str, String> {
    let sqs = &settings.sqs;
    let timeout = if sqs.stays_visible {
        Duration::ZERO
    } else {
        settings.lease
    };
    // Without a ttl, messages are kept for longer than SQS can say.
    let retention = settings.ttl.map_or(MAX_RETENTION, |ttl| ttl.as_secs());
    let mut attributes = BTreeMap::from([
        ("VisibilityTimeout", timeout.as_secs().to_string()),
        ("MessageRetentionPeriod", retention.to_string()),
        ("MaximumMessageSize", settings.max_payload.get().to_string()),
        ("DelaySeconds", sqs.delay.as_secs().to_string()),
        (
            "ReceiveMessageWaitTimeSeconds",
            sqs.wait.as_secs().to_string(),
        ),
        ("SqsManagedSseEnabled", "false".to_owned()),
    ]);
    if name.ends_with(FIFO) {
        let content = sqs.content_based_deduplication.to_string();
        attributes.insert("FifoQueue", "true".to_owned());
        attributes.insert("ContentBasedDeduplication", content);
        attributes.insert("DeduplicationScope", "queue".to_owned());
        attributes.insert("FifoThroughputLimit", "perQueue".to_owned());
    }
    for name in KEPT_ATTRIBUTES {
        if let Some(value) = sqs.attributes.get(name) {
            attributes.insert(name, value.clone());
        }
    }
    attributes
}

/// Returns true for the name of an attribute that a client may read.
pub(super) fn is_known(name: &str) -> bool {
    const OTHERS: [&str; 15] = [
        "All",
        "ApproximateNumberOfMessages",
        "ApproximateNumberOfMessagesDelayed",
        "ApproximateNumberOfMessagesNotVisible",
        "ContentBasedDeduplication",
        "CreatedTimestamp",
        "DelaySeconds",
        "FifoQueue",
        "LastModifiedTimestamp",
        "MaximumMessageSize",
        "MessageRetentionPeriod",
        "QueueArn",
        "ReceiveMessageWaitTimeSeconds",
        "RedrivePolicy",
        "VisibilityTimeout",
    ];
    OTHERS.contains(&name) || KEPT_ATTRIBUTES.contains(&name)
}

/// Returns true for an attribute that is kept and has no effect.
pub(super) fn is_kept(attribute: &str) -> bool {
    KEPT_ATTRIBUTES.contains(&attribute)
}

/// Returns true for an attribute without which nothing is delivered too early, too often or not at all.
pub(super) fn is_ignorable(attribute: &str) -> bool {
    const OTHERS: [&str; 4] = [
        "ContentBasedDeduplication",
        "MessageRetentionPeriod",
        "ReceiveMessageWaitTimeSeconds",
        "RedrivePolicy",
    ];
    OTHERS.contains(&attribute) || is_kept(attribute)
}

/// Returns the settings of a new queue, before its attributes: a message is visible again as soon as its visibility timeout ends.
pub(super) fn of_new_queue(name: &str, defaults: &TopicSettings) -> TopicSettings {
    use lisa_core::retry::RetryPolicy;

    let mut settings = defaults.clone();
    settings.retry = RetryPolicy::Fixed {
        delay: Duration::ZERO,
        jitter: 0.0,
    };
    settings.max_payload = Size::new(MAX_MESSAGE);
    settings.sqs.fifo = Some(name.ends_with(FIFO));
    settings.sqs.content_based_deduplication = false;
    settings
}

/// Sets one attribute of a queue. `defaults` are the settings without attributes.
pub(super) fn set(
    settings: &mut TopicSettings,
    name: &str,
    attribute: &str,
    value: &str,
    defaults: &TopicSettings,
) -> Result<(), SqsError> {
    let is_fifo = name.ends_with(FIFO);
    let seconds = |least, most| number(attribute, value, least, most).map(Duration::from_secs);
    match attribute {
        "VisibilityTimeout" => {
            let timeout = seconds(0, MAX_TIMEOUT.unsigned_abs())?;
            settings.sqs.stays_visible = timeout.is_zero();
            settings.lease = timeout.max(MIN_LEASE);
        }
        "MaximumMessageSize" => {
            // That of a topic may be larger.
            let most = settings.max_payload.get().max(MAX_MESSAGE);
            settings.max_payload = number(attribute, value, 1024, most).map(Size::new)?;
        }
        "DelaySeconds" => settings.sqs.delay = seconds(0, 900)?,
        "ReceiveMessageWaitTimeSeconds" => settings.sqs.wait = seconds(0, 20)?,
        "MessageRetentionPeriod" => {
            settings.ttl = Some(seconds(1, MAX_RETENTION)?);
            settings.on_expired = OnExpired::Drop;
        }
        // Standard queues do not even have them as false.
        "FifoQueue" | "ContentBasedDeduplication" if !is_fifo => return Err(unknown(attribute)),
        "FifoQueue" => {
            if !flag(attribute, value)? {
                let message = "Invalid value for the parameter FifoQueue. Reason: Modifying queue type is not supported.";
                return Err(SqsError::new(Kind::InvalidAttributeValue, message));
            }
        }
        "ContentBasedDeduplication" => {
            settings.sqs.content_based_deduplication = flag(attribute, value)?;
        }
        "RedrivePolicy" => redrive::set(settings, value, defaults)?,
        _ if is_kept(attribute) => {
            check_kept(attribute, value, is_fifo)?;
            let kept = &mut settings.sqs.attributes;
            match value {
                "" => drop(kept.remove(attribute)),
                _ => drop(kept.insert(attribute.to_owned(), value.to_owned())),
            }
        }
        _ => return Err(unknown(attribute)),
    }
    Ok(())
}

/// Checks an attribute that is kept.
fn check_kept(attribute: &str, value: &str, is_fifo: bool) -> Result<(), SqsError> {
    let is_valid = match attribute {
        _ if value.is_empty() => true,
        "DeduplicationScope" | "FifoThroughputLimit" if !is_fifo => {
            let message =
                format!("You can specify the {attribute} only when FifoQueue is set to true.");
            return Err(SqsError::new(Kind::InvalidAttributeName, message));
        }
        "DeduplicationScope" => ["messageGroup", "queue"].contains(&value),
        "FifoThroughputLimit" => ["perMessageGroupId", "perQueue"].contains(&value),
        "KmsDataKeyReusePeriodSeconds" => number(attribute, value, 60, 24 * 3600).is_ok(),
        "SqsManagedSseEnabled" => flag(attribute, value).is_ok(),
        "Policy" | "RedriveAllowPolicy" => value.len() <= MAX_POLICY && is_object(value),
        _ => value.len() <= MAX_KEY_ID,
    };
    match is_valid {
        true => Ok(()),
        false => Err(invalid(attribute)),
    }
}

/// The longest policy, in bytes.
pub(super) const MAX_POLICY: usize = 8 * 1024;
/// The longest id of a key, in bytes.
const MAX_KEY_ID: usize = 2048;

/// Returns true for a JSON object, which is not built in memory.
fn is_object(text: &str) -> bool {
    text.trim_start().starts_with('{') && serde_json::from_str::<IgnoredAny>(text).is_ok()
}

/// An attribute that queues of this kind do not have.
pub(super) fn unknown(attribute: &str) -> SqsError {
    let message = format!("Unknown Attribute {}.", shorten(attribute));
    SqsError::new(Kind::InvalidAttributeName, message)
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

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns the effect of an attribute on the default settings: the settings that change, or the error.
    fn judge(name: &str, attribute: &str, value: &str) -> String {
        let defaults = TopicSettings::default();
        let mut settings = defaults.clone();
        match set(&mut settings, name, attribute, value, &defaults) {
            Ok(()) if settings == defaults => "same".to_owned(),
            Ok(()) => "set".to_owned(),
            Err(error) => error.message,
        }
    }

    #[test]
    fn attributes_are_read_as_libraries_write_them() {
        let redrive =
            r#"{"deadLetterTargetArn":"arn:aws:sqs:us-east-1:0:dead","maxReceiveCount":"16"}"#;
        for (attribute, value, expected) in [
            ("VisibilityTimeout", "30", "same"),
            ("VisibilityTimeout", "0", "set"),
            ("FifoQueue", "False", "Unknown Attribute FifoQueue."),
            ("FifoQueue", "true", "Unknown Attribute FifoQueue."),
            (
                "ContentBasedDeduplication",
                "false",
                "Unknown Attribute ContentBasedDeduplication.",
            ),
            ("MessageRetentionPeriod", "1209600", "set"),
            ("ReceiveMessageWaitTimeSeconds", "0", "same"),
            ("ReceiveMessageWaitTimeSeconds", "20", "set"),
            ("DelaySeconds", "0", "same"),
            ("DelaySeconds", "5", "set"),
            ("RedrivePolicy", redrive, "set"),
            ("RedrivePolicy", "", "same"),
            ("KmsMasterKeyId", "alias/aws/sqs", "set"),
            ("Policy", "", "same"),
            ("SqsManagedSseEnabled", "TRUE", "set"),
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
                "MaximumMessageSize",
                "1048577",
                "Invalid value for the parameter MaximumMessageSize.",
            ),
            ("Policy", "[]", "Invalid value for the parameter Policy."),
            (
                "DeduplicationScope",
                "queue",
                "You can specify the DeduplicationScope only when FifoQueue is set to true.",
            ),
            ("Nonsense", "1", "Unknown Attribute Nonsense."),
        ] {
            assert_eq!(
                judge("orders", attribute, value),
                expected,
                "{attribute} {value}"
            );
        }
        assert_eq!(
            judge("orders.fifo", "FifoQueue", "yes"),
            "Invalid value for the parameter FifoQueue."
        );
        for (attribute, value) in [("FifoQueue", "True"), ("ContentBasedDeduplication", "TRUE")] {
            assert_eq!(
                judge("orders.fifo", attribute, value),
                "same",
                "{attribute}"
            );
        }
        assert_eq!(
            judge("orders.fifo", "ContentBasedDeduplication", "false"),
            "set"
        );
    }

    #[test]
    fn what_is_set_is_returned() {
        let defaults = of_new_queue("orders.fifo", &TopicSettings::default());
        let mut settings = defaults.clone();
        let given = [
            ("VisibilityTimeout", "7"),
            ("MaximumMessageSize", "2048"),
            ("DelaySeconds", "900"),
            ("ReceiveMessageWaitTimeSeconds", "20"),
            ("MessageRetentionPeriod", "60"),
            ("FifoQueue", "true"),
            ("ContentBasedDeduplication", "true"),
            ("DeduplicationScope", "messageGroup"),
            ("FifoThroughputLimit", "perMessageGroupId"),
            ("KmsMasterKeyId", "alias/a"),
            ("KmsDataKeyReusePeriodSeconds", "300"),
            ("SqsManagedSseEnabled", "true"),
            ("Policy", "{}"),
            ("RedriveAllowPolicy", "{\"redrivePermission\":\"allowAll\"}"),
        ];
        for (attribute, value) in given {
            set(&mut settings, "orders.fifo", attribute, value, &defaults).unwrap();
        }
        settings.check().unwrap();
        assert_eq!(
            of_settings("orders.fifo", &settings),
            given.map(|(name, value)| (name, value.to_owned())).into()
        );
        assert!(given.iter().all(|(name, _)| is_known(name)));
        assert!(settings.on_expired == OnExpired::Drop);
    }
}
