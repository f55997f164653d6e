//! Tests of `config show`, of the examples, and of the page of all keys.

use super::*;

#[test]
fn the_shown_configuration_names_sources_hides_secrets_and_loads_again() {
    let file = file(
        "lisa.toml",
        "[topics.orders]\nlease = '90s'\n[topics.'a.b']\n",
    );
    let mut options = env(&[("LISA_CONSUMER__LISTEN", "127.0.0.1:9")]);
    options.file = Some(file.path.clone());
    let loaded = Loaded::load(options.clone()).unwrap();
    let shown = loaded.to_toml();
    for line in [
        "namespace = \"lisa\"  # default".to_owned(),
        format!("lease = \"1m30s\"  # {}", file.path.display()),
        "listen = \"127.0.0.1:9\"  # environment variable LISA_CONSUMER__LISTEN".to_owned(),
        "[topics.\"a.b\".retry]".to_owned(),
    ] {
        assert!(
            shown.lines().any(|shown| shown == line),
            "{line}\n\n{shown}"
        );
    }
    assert_eq!(toml(&shown).unwrap(), loaded.config);

    options
        .env
        .push(("LISA_REDIS__PASSWORD".into(), "hunter2".into()));
    options
        .env
        .push(("LISA_REDIS__URL".into(), "redis://ann:hunter2@h".into()));
    let loaded = Loaded::load(options).unwrap();
    let json: serde_json::Value = serde_json::from_str(&loaded.to_json()).unwrap();
    assert_eq!(json["redis.password"]["value"], "***");
    assert_eq!(
        json["redis.password"]["source"],
        "environment variable LISA_REDIS__PASSWORD"
    );
    assert_eq!(json["redis.url"]["value"], "redis://ann:***@h:6379/0");
    let all = [loaded.to_toml(), loaded.to_json(), format!("{loaded:?}")].concat();
    assert!(!all.contains("hunter2"));
}

#[test]
fn the_example_for_separate_services_is_the_built_in_configuration_with_one_topic() {
    let config = Config::load(from_file(example("separate.toml"))).unwrap();
    let mut expected = Config::default();
    let settings = TopicSettings {
        groups: vec!["billing".parse().unwrap()],
        ..TopicSettings::default()
    };
    expected.topics.insert("orders".parse().unwrap(), settings);
    expected.consumer.subscriptions.push(SubscriptionConfig {
        topic: "orders".parse().unwrap(),
        group: "billing".parse().unwrap(),
        concurrency: 16,
        success_topic: None,
        garbage_topic: None,
        sink: SinkConfig::Stdout,
    });
    assert_eq!(config, expected);
}

#[test]
fn the_combined_example_says_the_same_in_toml_and_yaml() {
    let toml = Config::load(from_file(example("combined.toml"))).unwrap();
    let yaml = Config::load(from_file(example("combined.yaml"))).unwrap();
    assert_eq!(toml, yaml);
    assert_eq!(toml.topics.len(), 2);
}

/// Returns the sinks of an example, in the order of its subscriptions.
fn sinks_of(name: &str) -> Vec<SinkConfig> {
    let config = Config::load(from_file(example(name))).unwrap();
    let subscriptions = config.consumer.subscriptions.into_iter();
    subscriptions.map(|one| one.sink).collect()
}

#[test]
fn the_webhook_example_has_both_sinks() {
    let sinks = sinks_of("webhook.toml");
    assert!(matches!(
        sinks[..],
        [SinkConfig::Http(_), SinkConfig::Command(_)]
    ));
}

#[test]
fn the_brokers_example_has_a_sink_of_each_kind() {
    let sinks = sinks_of("brokers.toml");
    assert!(matches!(
        sinks[..],
        [
            SinkConfig::Amqp(_),
            SinkConfig::Nats(_),
            SinkConfig::Kafka(_),
            SinkConfig::RedisStream(_)
        ]
    ));
}

#[test]
fn the_path_and_the_query_of_a_webhook_are_hidden_as_they_may_be_secrets() {
    let text = "[[consumer.subscriptions]]\ntopic = 'a'\ngroup = 'b'\nsink = { type = 'http', url = 'https://h/hook/hunter2?token=hunter2' }";
    let file = file("lisa.toml", text);
    let loaded = Loaded::load(from_file(&file.path)).unwrap();
    let shown = [loaded.to_toml(), loaded.to_json(), format!("{loaded:?}")].concat();
    assert!(
        shown.contains("\"https://h/***\"") && !shown.contains("hunter2"),
        "{shown}"
    );
    for wrong in [
        text.replace("https", "ftps"),
        text.replace("https://", ""),
        text.replace("https://h", "https://h h"),
        text.replace("url = ", "timeout = '1w', url = "),
        text.replace("url", "addr"),
        text.replace("sink = {", "sink = [{").replace('}', "}]"),
    ] {
        let wrong = file_with(&wrong);
        let error = Config::load(from_file(&wrong.path))
            .unwrap_err()
            .to_string();
        assert!(!error.contains("hunter2"), "{error}");
    }
}

fn file_with(text: &str) -> File {
    file("lisa.toml", text)
}
