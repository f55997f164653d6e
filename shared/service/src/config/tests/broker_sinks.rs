//! Tests of the keys of sinks that publish to message brokers.

use super::*;

/// Returns the problems of a sink with these keys, for a process that runs it.
fn problems_of(sink: &str) -> Vec<String> {
    let file = file(
        "lisa.toml",
        &format!(
            "[topics.orders]\n[[consumer.subscriptions]]\ntopic = 'orders'\ngroup = 'default'\nsink = {{ {sink} }}"
        ),
    );
    match Config::load(from_file(&file.path)) {
        Ok(_) => Vec::new(),
        Err(error) => vec![error.to_string()],
    }
}

#[test]
fn what_is_wrong_with_a_sink_is_named() {
    for (sink, key, expected) in [
        ("type = 'amqp', url = 'http://h'", "url", "amqp://"),
        ("type = 'amqp', url = 'amqp://h/'", "url", "virtual host"),
        (
            "type = 'amqp', url = 'amqp://h', password = 'x'",
            "url",
            "requires a user",
        ),
        (
            "type = 'amqp', url = 'amqp://h', routing_key = '{key}'",
            "routing_key",
            "{header:NAME}",
        ),
        (
            "type = 'amqp', url = 'amqp://h', ca_file = 'none.pem'",
            "ca_file",
            "cannot read the file",
        ),
        (
            "type = 'amqp', url = 'amqp://h', away = 'never'",
            "away",
            "must be one of defer retry",
        ),
        (
            "type = 'nats', url = 'nats://hunter2@h'",
            "url",
            "`token` or `token_file`",
        ),
        (
            "type = 'nats', url = 'nats://h', creds_file = 'none.creds'",
            "creds_file",
            "cannot read the file",
        ),
        (
            "type = 'nats', url = 'nats://h', subject = 'due.>'",
            "subject",
            "wildcard",
        ),
        (
            "type = 'kafka', brokers = ['h']",
            "brokers",
            "[\"host:9092\"]",
        ),
        (
            "type = 'kafka', brokers = ['h:1'], topic = 'a/b'",
            "topic",
            "[a-zA-Z0-9._-]{1,249}",
        ),
        (
            "type = 'kafka', brokers = ['h:1'], client = { acks = '0' }",
            "client",
            "Lisa sets this itself",
        ),
        (
            "type = 'redis-stream', url = 'redis://h', stream = 'lisa:x'",
            "stream",
            "the relay's own keys",
        ),
    ] {
        let found = problems_of(sink).join("\n");
        assert!(
            found.contains(&format!("sink.{key}")) && found.contains(expected),
            "{sink}: {found}"
        );
        assert!(!found.contains("hunter2"), "{found}");
    }
    for sink in [
        "type = 'amqp', url = 'amqp://u@h', password = 'x'",
        "type = 'nats', url = ['nats://u:p@h', 'tls://u:p@i'], subject = 'due.{header:to}'",
        "type = 'kafka', brokers = ['h:1'], topic = 'a-{topic}'",
        "type = 'redis-stream', url = 'redis+cluster://h:1', stream = 'lisa2'",
    ] {
        assert_eq!(problems_of(sink), [""; 0], "{sink}");
    }
}
