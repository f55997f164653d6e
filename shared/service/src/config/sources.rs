//! The settings of sources, with which a producer takes messages off message brokers.
//!
//! Checks them without using the network. The sources themselves are in the producer.

use std::collections::{BTreeMap, BTreeSet};

use super::brokers;
use super::sinks::needs_feature;
use super::table::Table;
use super::topics;
use crate::brokers::amqp::{AmqpSourceSettings, MAX_SHORT_STRING};
use crate::brokers::kafka::{KafkaSourceSettings, Refused, check_topic};
use crate::brokers::nats::NatsSourceSettings;
use crate::template::Template;
use lisa_core::fields::{Any, Field, Reader as _, within};
use lisa_core::message::CallbackOutcome;
use lisa_core::names::words;
use lisa_core::topic::{Topic, TopicSettings};

/// The default of `prefetch`.
const DEFAULT_PREFETCH: u16 = 500;
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
    let from = from.and_then(|from| self::from(from.of_source(), name.as_deref()));
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

fn from(mut table: Table<'_>, name: Option<&str>) -> Option<SourceFrom> {
    let kind = table.required("type", "The type of message broker.");
    let from = match kind? {
        SourceType::Amqp => amqp(&mut table),
        SourceType::Nats => nats(&mut table, name),
        SourceType::Kafka => kafka(&mut table, name),
    };
    table.finish();
    from
}

fn prefetch(table: &mut Table<'_>) -> u16 {
    table.read(
        Field::new(
            "prefetch",
            DEFAULT_PREFETCH,
            "The maximum number of unacknowledged messages at a time.",
        ),
        within(1..=10_000),
    )
}

fn amqp(table: &mut Table<'_>) -> Option<SourceFrom> {
    needs_feature(table, "producer", "source-amqp", cfg!(feature = "amqp"));
    let connection = brokers::amqp::read(table);
    let queue: Option<String> = table.required(
        "queue",
        "With type `amqp`: the queue to take messages off. It must exist.",
    );
    if let Some(queue) = &queue
        && !(1..=MAX_SHORT_STRING).contains(&queue.len())
    {
        table.reject("queue", "must be 1 to 255 bytes");
    }
    let prefetch = prefetch(table);
    Some(SourceFrom::Amqp(AmqpSourceSettings {
        connection: connection?,
        queue: queue?,
        prefetch,
    }))
}

fn nats(table: &mut Table<'_>, name: Option<&str>) -> Option<SourceFrom> {
    needs_feature(table, "producer", "source-nats", cfg!(feature = "nats"));
    let connection = brokers::nats::read(table);
    let stream: Option<String> = table.required(
        "stream",
        "With type `nats`: the stream of JetStream to take messages off. It must exist.",
    );
    let consumer: Option<String> = table.optional(
        "consumer",
        "With type `nats`: the durable pull consumer, which is created if the stream has none of this name. The default is \
         `lisa-` and the name of the source.",
    );
    for (key, text) in [("stream", &stream), ("consumer", &consumer)] {
        let is_bad =
            |char: char| char.is_whitespace() || char.is_control() || ".*>/\\".contains(char);
        if text
            .as_ref()
            .is_some_and(|text| text.is_empty() || text.contains(is_bad))
        {
            table.reject(key, "must be a name without spaces and without . * > / \\");
        }
    }
    let prefetch = prefetch(table);
    Some(SourceFrom::Nats(NatsSourceSettings {
        connection: connection?,
        stream: stream?,
        consumer: consumer.or_else(|| Some(format!("lisa-{}", name?)))?,
        prefetch,
    }))
}

fn kafka(table: &mut Table<'_>, name: Option<&str>) -> Option<SourceFrom> {
    needs_feature(table, "producer", "source-kafka", cfg!(feature = "kafka"));
    let connection = brokers::kafka::read(table);
    let topic: Option<String> = table.required(
        "topic",
        "With type `kafka`: the topic of Kafka to take messages off.",
    );
    let group: Option<String> = table.optional(
        "group",
        "With type `kafka`: the consumer group whose offsets are committed. The default is `lisa-` and the name of the source.",
    );
    let dead_letter_topic: Option<String> = table.optional(
        "dead_letter_topic",
        "With type `kafka`: the topic of Kafka for messages that Lisa permanently refuses. Without it, the source stops at \
         such a message.",
    );
    let skip_refused = table.read(
        Field::new(
            "skip_refused",
            false,
            "With type `kafka`: true to drop messages that Lisa permanently refuses, and so lose them.",
        ),
        Any,
    );
    for (key, text) in [("topic", &topic), ("dead_letter_topic", &dead_letter_topic)] {
        if let Some(Err(problem)) = text.as_deref().map(check_topic) {
            table.reject(key, problem);
        }
    }
    if dead_letter_topic.is_some() && dead_letter_topic == topic {
        table.reject("dead_letter_topic", "must differ from topic");
    }
    if group.as_deref() == Some("") {
        table.reject("group", "must not be empty");
    }
    let refused = match (dead_letter_topic, skip_refused) {
        (Some(_), true) => {
            table.reject("skip_refused", "cannot be combined with dead_letter_topic");
            return None;
        }
        (Some(topic), false) => Refused::DeadLetter(topic),
        (None, true) => Refused::Skip,
        (None, false) => Refused::Block,
    };
    let prefetch = prefetch(table);
    Some(SourceFrom::Kafka(KafkaSourceSettings {
        connection: connection?,
        topic: topic?,
        group: group.or_else(|| Some(format!("lisa-{}", name?)))?,
        prefetch,
        refused,
    }))
}
