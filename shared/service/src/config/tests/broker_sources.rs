//! Tests of the settings of the producer's sources.

use super::*;
use crate::brokers::kafka::Refused;

const TOPICS: &str = "[topics.orders]\n[topics.payments]\n";

/// Loads a source named `in` with these keys besides `name`.
fn source(keys: &str) -> Result<Config, ConfigError> {
    toml(&format!(
        "[[producer.sources]]\nname = 'in'\n{keys}\n{TOPICS}"
    ))
}

const AMQP: &str = "from = { type = 'amqp', url = 'amqp://u:hunter2@h/v', queue = 'delayed' }";

#[test]
fn a_source_needs_a_name_a_place_and_a_topic() {
    let config = source(&format!("{AMQP}\ntopic = 'orders'")).unwrap();
    let [source] = config.producer.sources.as_slice() else {
        panic!("{:?}", config.producer.sources);
    };
    assert_eq!(source.name, "in");
    assert_eq!(source.topics, ["orders".parse().unwrap()].into());
    let SourceFrom::Amqp(amqp) = &source.from else {
        panic!("{source:?}");
    };
    assert_eq!((amqp.queue.as_str(), amqp.prefetch), ("delayed", 500));
}

#[test]
fn names_of_consumers_and_groups_come_from_the_name_of_the_source() {
    let from = |from: &str| {
        let keys = format!("from = {{ {from} }}\ntopic = 'orders'");
        source(&keys).unwrap().producer.sources.remove(0).from
    };
    let SourceFrom::Nats(nats) = from("type = 'nats', url = 'nats://h', stream = 'IN'") else {
        panic!("another type");
    };
    assert_eq!(
        (nats.stream.as_str(), nats.consumer("in").as_str()),
        ("IN", "lisa-in")
    );
    let kafka = "type = 'kafka', brokers = ['h:9092'], topic = 'a.b'";
    for (keys, refused) in [
        ("", Refused::Block),
        (", skip_refused = true", Refused::Skip),
        (
            ", dead_letter_topic = 'd'",
            Refused::DeadLetter("d".to_owned()),
        ),
    ] {
        let SourceFrom::Kafka(kafka) = from(&format!("{kafka}{keys}")) else {
            panic!("another type");
        };
        assert_eq!(
            (kafka.group("in").as_str(), kafka.refused()),
            ("lisa-in", refused)
        );
    }
}

#[test]
fn a_topic_with_placeholders_lists_the_allowed_ones() {
    let topic = |keys: &str| source(&format!("{AMQP}\n{keys}"));
    let config = topic("topic = '{header:to}'\ntopics = ['orders', 'payments']").unwrap();
    assert_eq!(config.producer.sources[0].topics.len(), 2);
    for (keys, expected) in [
        (
            "topic = '{header:to}'",
            "producer.sources[0].topics = : missing: the topics that messages may go to",
        ),
        (
            "topic = '{id}'\ntopics = ['orders']",
            "producer.sources[0].topic = \"{id}\": unknown placeholder {id}; must be one of {header:NAME}",
        ),
        (
            "topic = 'orders'\ntopics = ['orders']",
            "producer.sources[0].topics = [\"orders\"]: allowed only if `topic` has placeholders",
        ),
        (
            "topic = 'oders'",
            "producer.sources[0].topic = \"oders\": this topic is not declared here, did you mean orders? If not, declare it: [topics.oders]",
        ),
        (
            "topic = 'a b'",
            "producer.sources[0].topic = \"a b\": \"a b\" is not a topic: must be [A-Za-z0-9_][A-Za-z0-9._-]{0,79}",
        ),
    ] {
        assert_eq!(problems(topic(keys)), [expected]);
    }
}

#[test]
fn what_is_wrong_with_a_source_is_named() {
    let row = |name: &str, from: &str| {
        format!("[[producer.sources]]\nname = '{name}'\nfrom = {{ {from} }}\ntopic = 'orders'\n")
    };
    let amqp = "type = 'amqp', url = 'amqp://h', queue = 'q'";
    let nats = "type = 'nats', url = 'nats://h'";
    let kafka = "type = 'kafka', brokers = ['h:1'], topic = 't'";
    for (rows, path, expected) in [
        (
            row("In", amqp),
            "name",
            "must match [a-z0-9][a-z0-9_-]{0,30}",
        ),
        (
            row("success", amqp),
            "name",
            "reserved: the ids of callbacks start with this word",
        ),
        (
            [row("a", amqp), row("a", amqp)].concat(),
            "name",
            "another source has this name",
        ),
        (
            row("a", "type = 'sqs'"),
            "from.type",
            "must be one of amqp nats kafka",
        ),
        (
            row("a", "type = 'amqp', url = 'http://h', queue = 'q'"),
            "from.url",
            "amqp://",
        ),
        (
            row("a", "type = 'amqp', url = 'amqp://h'"),
            "from.queue",
            "missing",
        ),
        (
            row("a", &format!("{amqp}, prefetch = 0")),
            "from.prefetch",
            "1 to 10000",
        ),
        (
            row("a", &format!("{nats}, stream = 'a.b'")),
            "from.stream",
            "without spaces",
        ),
        (
            row("a", &format!("{kafka}, dead_letter_topic = 't'")),
            "from.dead_letter_topic",
            "must differ from topic",
        ),
        (
            row(
                "a",
                &format!("{kafka}, dead_letter_topic = 'd', skip_refused = true"),
            ),
            "from.skip_refused",
            "cannot be combined",
        ),
        (
            row("a", &format!("{kafka}, group = ''")),
            "from.group",
            "must not be empty",
        ),
    ] {
        let found = problems(toml(&[&rows, TOPICS].concat()));
        let found = found.join("\n");
        assert!(
            found.contains(path) && found.contains(expected),
            "{path}: {found}"
        );
    }
}

#[test]
fn passwords_are_hidden_and_read_only_where_sources_run() {
    let shown = file(
        "lisa.toml",
        &format!("[[producer.sources]]\nname = 'in'\ntopic = 'a'\n{AMQP}"),
    );
    let shown = Loaded::load(from_file(&shown.path)).unwrap();
    assert!(!shown.to_toml().contains("hunter2"), "{}", shown.to_toml());
    let file = file(
        "lisa.toml",
        "[[producer.sources]]\nname = 'in'\ntopic = 'a'\n\
         from = { type = 'amqp', url = 'amqp://u@h', password_file = 'none', queue = 'q' }",
    );
    let load = |source_secrets| {
        let loaded = Loaded::load(LoadOptions {
            source_secrets,
            sink_secrets: SinkSecrets::Required,
            ..from_file(&file.path)
        });
        loaded.map(|loaded| loaded.warnings)
    };
    assert!(load(SinkSecrets::Unused).unwrap().is_empty());
    let warnings = load(SinkSecrets::Checked).unwrap();
    let path = "producer.sources[0].from.password_file";
    assert!(
        warnings.iter().any(|warning| warning.path == path),
        "{warnings:?}"
    );
    assert!(load(SinkSecrets::Required).is_err());
}
