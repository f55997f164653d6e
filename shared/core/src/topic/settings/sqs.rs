//! The settings of a topic as a queue of Amazon SQS. Only gateways follow them; the scripts know none.

use std::collections::BTreeMap;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::fields;
use crate::fields::{Reader, Value as _, optional_text};
use crate::time::{UnixMs, duration_text};

/// Texts by name.
pub type Texts = BTreeMap<String, String>;

/// The most tags of a queue.
pub const MAX_TAGS: usize = 50;
/// The longest name of a tag, in characters.
pub const MAX_TAG_NAME: usize = 128;
/// The longest value of a tag, in characters.
pub const MAX_TAG_VALUE: usize = 256;
/// The most bytes of all tags, and of all kept attributes: settings are read by every process.
const MAX_TEXTS: usize = 12 * 1024;

/// The attributes of queues that have no effect on a topic, and are kept for the clients that read them.
pub const KEPT_ATTRIBUTES: [&str; 7] = [
    "DeduplicationScope",
    "FifoThroughputLimit",
    "KmsDataKeyReusePeriodSeconds",
    "KmsMasterKeyId",
    "Policy",
    "RedriveAllowPolicy",
    "SqsManagedSseEnabled",
];

fields! {
    /// The settings of a topic as a queue of Amazon SQS, which gateways follow with `sqs = true`.
    #[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
    #[serde(default)]
    #[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
    pub struct QueueSettings, check = check {
        /// The delay of messages that SQS clients send without one (`DelaySeconds`).
        [serde(with = "duration_text")]
        [cfg_attr(feature = "openapi", schema(value_type = String))]
        delay: Duration = Duration::ZERO, in ..=Duration::from_mins(15);
        /// The time that a receive without one waits for messages (`ReceiveMessageWaitTimeSeconds`).
        [serde(with = "duration_text")]
        [cfg_attr(feature = "openapi", schema(value_type = String))]
        wait: Duration = Duration::ZERO, in ..=Duration::from_secs(20);
        /// True if messages stay visible when they are received without a `VisibilityTimeout`, as if it were 0. Otherwise, the
        /// `lease` of the topic applies.
        stays_visible: bool = false;
        /// True for a FIFO queue, whose only name ends with `.fifo`; false for a standard queue, whose name does not. If unset,
        /// the queue has both names.
        fifo: Option<bool> = None;
        /// True if messages to a name with `.fifo` are deduplicated by their bodies unless they have a `MessageDeduplicationId`;
        /// false if they must have one. A standard queue ignores it.
        content_based_deduplication: bool = true;
        /// The tags of the queue: up to 50, and 12 KiB.
        [cfg_attr(feature = "openapi", schema(value_type = BTreeMap<String, String>))]
        tags: Texts = Texts::new();
        /// The attributes of the queue that have no effect, such as `Policy` and `KmsMasterKeyId`. SQS clients can read them.
        [cfg_attr(feature = "openapi", schema(value_type = BTreeMap<String, String>))]
        attributes: Texts = Texts::new();
        /// The time at which `CreateQueue` created the topic. SQS clients can change and remove only a topic that has it.
        [serde(with = "optional_text")]
        [cfg_attr(feature = "openapi", schema(value_type = Option<String>))]
        created: Option<UnixMs> = None;
    }
}

/// Checks the tags and attributes.
fn check(settings: &QueueSettings, from: &mut impl Reader) {
    for (field, message, texts) in [
        ("tags", wrong_tags(&settings.tags), &settings.tags),
        (
            "attributes",
            wrong_attributes(&settings.attributes),
            &settings.attributes,
        ),
    ] {
        if let Some(message) = message {
            from.problem(field, texts.show(), message);
        }
    }
}

fn bytes(texts: &Texts) -> usize {
    let sizes = texts.iter().map(|(name, value)| name.len() + value.len());
    sizes.sum()
}

fn wrong_tags(tags: &Texts) -> Option<String> {
    let is_wrong = |(name, value): (&String, &String)| {
        !(1..=MAX_TAG_NAME).contains(&name.chars().count()) || value.chars().count() > MAX_TAG_VALUE
    };
    let message = if tags.len() > MAX_TAGS {
        format!("must have at most {MAX_TAGS} entries")
    } else if tags.iter().any(is_wrong) {
        format!(
            "must have names of 1 to {MAX_TAG_NAME} characters and values of at most {MAX_TAG_VALUE}"
        )
    } else if bytes(tags) > MAX_TEXTS {
        format!("must have at most {MAX_TEXTS} bytes")
    } else {
        return None;
    };
    Some(message)
}

fn wrong_attributes(attributes: &Texts) -> Option<String> {
    let is_kept = |name: &&String| KEPT_ATTRIBUTES.contains(&name.as_str());
    if !attributes.keys().all(|name| is_kept(&name)) {
        return Some(format!("must be among {}", KEPT_ATTRIBUTES.join(", ")));
    }
    (bytes(attributes) > MAX_TEXTS).then(|| format!("must have at most {MAX_TEXTS} bytes"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::topic::TopicSettings;

    #[test]
    fn tags_and_attributes_have_bounds() {
        let wrong = |change: fn(&mut QueueSettings)| {
            let mut settings = TopicSettings::default();
            change(&mut settings.sqs);
            let problems = settings.check().err().unwrap_or_default();
            let fields = problems.into_iter().map(|problem| problem.field);
            fields.collect::<Vec<_>>()
        };
        fn tag(name: &str, value: &str) -> (String, String) {
            (name.to_owned(), value.to_owned())
        }
        assert_eq!(wrong(|sqs| sqs.tags = [tag("a", "")].into()), [""; 0]);
        let many = |sqs: &mut QueueSettings| {
            sqs.tags = (0..51).map(|n| (n.to_string(), String::new())).collect();
        };
        assert_eq!(wrong(many), ["sqs.tags"]);
        assert_eq!(wrong(|sqs| sqs.tags = [tag("", "")].into()), ["sqs.tags"]);
        let long = |sqs: &mut QueueSettings| {
            sqs.tags = [("a".to_owned(), "ä".repeat(257))].into();
        };
        assert_eq!(wrong(long), ["sqs.tags"]);
        let policy = |sqs: &mut QueueSettings| {
            sqs.attributes = [("Policy".to_owned(), "x".repeat(MAX_TEXTS))].into();
        };
        assert_eq!(wrong(policy), ["sqs.attributes"]);
        let other = |sqs: &mut QueueSettings| {
            sqs.attributes = [("DelaySeconds".to_owned(), "1".to_owned())].into();
        };
        assert_eq!(wrong(other), ["sqs.attributes"]);
        let late = |sqs: &mut QueueSettings| sqs.delay = Duration::from_secs(901);
        assert_eq!(wrong(late), ["sqs.delay"]);
    }
}
