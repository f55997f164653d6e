//! The settings of sources, with which a producer takes messages off message brokers.
//!
//! Checks them without using the network. The sources themselves are in the producer.

use std::collections::{BTreeMap, BTreeSet};

use super::sinks::needs_feature;
use super::table::Table;
use super::topics;
use crate::brokers::amqp::AmqpSourceSettings;
use crate::brokers::kafka::KafkaSourceSettings;
use crate::brokers::nats::NatsSourceSettings;
use crate::settings::Settings as _;
use crate::template::Template;
use lisa_core::fields::{Any, Field, Reader as _};
use lisa_core::message::CallbackOutcome;
use lisa_core::names::words;
use lisa_core::topic::{Topic, TopicSettings};

/// The longest name, in characters: an id made of the longest name and a hash has 64, the most that an id may have.
const MAX_NAME: usize = 31;

/// A source: a queue, stream or topic of a message broker, and the topics of Lisa that its messages go to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SourceConfig {
    /// The name in metrics, logs and message ids: unique, `[a-z0-9][a-z0-9_-]{0,30}`.
    pub name: String,
    /// The queue, stream or topic of the broker.
    pub from: SourceFrom,
    /// The topic of Lisa that a message goes to. It may depend on the message's headers.
    pub topic: Template,
    /// The topics of Lisa that messages may go to. Other messages are refused.
    pub topics: BTreeSet<Topic>,
}

/// The queue, stream or topic that a source takes messages off.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum SourceFrom {
    /// A queue of RabbitMQ.
    Amqp(AmqpSourceSettings),
    /// A stream of NATS JetStream.
    Nats(NatsSourceSettings),
    /// A topic of Kafka.
    Kafka(KafkaSourceSettings),
}

words!(
    SourceType, "type of source", {
        Amqp = "amqp",
        Nats = "nats",
        Kafka = "kafka",
    }
);

/// Reads all sources of a producer.
pub(super) fn read(table: &mut Table<'_>) -> Vec<SourceConfig> {
    let mut all: Vec<SourceConfig> = Vec::new();
    for row in table.rows("sources") {
        if let Some(source) = source(row, &all) {
            all.push(source);
        }
    }
    all
}

/// Checks that the topics of all sources are declared.
pub(super) fn look_for_topics(
    table: &mut Table<'_>,
    sources: &[SourceConfig],
    declared: &BTreeMap<Topic, TopicSettings>,
) {
    let rows = table.rows("sources");
    if rows.len() != sources.len() {
        // The problems of a source were reported.
        return;
    }
    for (row, source) in rows.iter().zip(sources) {
        let key = match source.topic.fixed() {
            Some(_) => "topic",
            None => "topics",
        };
        for topic in &source.topics {
            topics::look_for(row, key, topic, declared);
        }
    }
}

fn source(mut row: Table<'_>, others: &[SourceConfig]) -> Option<SourceConfig> {
    let name: Option<String> = row.required(
        "name",
        "The name of the source in metrics, logs and the ids of messages, `[a-z0-9][a-z0-9_-]{0,30}`.",
    );
    if let Some(name) = &name {
        if !is_name(name) {
            row.reject("name", "must match [a-z0-9][a-z0-9_-]{0,30}");
        }
        if name.parse::<CallbackOutcome>().is_ok() {
            // The ids that it derives from a hash would be those of callbacks, which no sender may choose.
            row.reject(
                "name",
                "reserved: the ids of callbacks start with this word",
            );
        }
        if others.iter().any(|other| other.name == *name) {
            row.reject("name", "another source has this name");
        }
    }
    let example = "{ type = \"amqp\", url = \"amqp://host\", queue = \"delayed\" }";
    let from = row.required_table(
        "from",
        "The queue, stream or topic of a message broker to take messages off.",
        example,
    );
    let from = from.and_then(|from| SourceFrom::read(from.secrets_of(|secrets| secrets.sources)));
    let topic = topic(&mut row);
    row.finish();
    let (topic, topics) = topic?;
    Some(SourceConfig {
        name: name?,
        from: from?,
        topic,
        topics,
    })
}

fn is_name(text: &str) -> bool {
    let is_plain = |byte: &u8| byte.is_ascii_lowercase() || byte.is_ascii_digit();
    let first = text.as_bytes().first();
    text.len() <= MAX_NAME
        && first.is_some_and(is_plain)
        && text
            .bytes()
            .all(|byte| is_plain(&byte) || b"_-".contains(&byte))
}

/// Reads the topic of messages, and the topics that they may go to.
fn topic(row: &mut Table<'_>) -> Option<(Template, BTreeSet<Topic>)> {
    let text: Option<String> = row.required(
        "topic",
        "The topic that messages go to. `{header:NAME}` stands for a header of the message.",
    );
    let mut topics: Vec<Topic> = row.read(
        Field::new(
            "topics",
            Vec::new(),
            "The topics that messages may go to, if `topic` has placeholders. All other messages are refused.",
        ),
        Any,
    );
    let template = match Template::parse(&text?, &["header:NAME"]) {
        Ok(template) => template,
        Err(message) => {
            row.reject("topic", message);
            return None;
        }
    };
    match template.fixed() {
        Some(_) if !topics.is_empty() => {
            row.reject("topics", "allowed only if `topic` has placeholders");
            return None;
        }
        Some(fixed) => match fixed.parse() {
            Ok(topic) => topics.push(topic),
            Err(error) => row.reject("topic", error.to_string()),
        },
        None if topics.is_empty() => {
            row.reject("topics", "missing: the topics that messages may go to");
        }
        None => {}
    }
    Some((template, topics.into_iter().collect()))
}

impl SourceFrom {
    fn read(mut table: Table<'_>) -> Option<Self> {
        let table = &mut table;
        let from = match table.variant("type", "The type of message broker.", SourceType::as_str)? {
            SourceType::Amqp => {
                needs_feature(
                    table,
                    "type",
                    "producer",
                    "source-amqp",
                    cfg!(feature = "amqp"),
                );
                AmqpSourceSettings::read(table).map(Self::Amqp)
            }
            SourceType::Nats => {
                needs_feature(
                    table,
                    "type",
                    "producer",
                    "source-nats",
                    cfg!(feature = "nats"),
                );
                NatsSourceSettings::read(table).map(Self::Nats)
            }
            SourceType::Kafka => {
                needs_feature(
                    table,
                    "type",
                    "producer",
                    "source-kafka",
                    cfg!(feature = "kafka"),
                );
                KafkaSourceSettings::read(table).map(Self::Kafka)
            }
        };
        table.finish();
        from
    }
}
