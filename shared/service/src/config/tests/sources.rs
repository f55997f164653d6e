//! Tests of the sources of values: files, environment, flags, and their precedence.

use super::*;

#[test]
fn the_environment_keeps_texts_and_still_gives_numbers_booleans_and_lists() {
    let config = Config::load(env(&[
        ("LISA_NAMESPACE", "007"),
        ("LISA_REDIS__USERNAME", "true"),
        ("LISA_REDIS__PASSWORD", "0123"),
        ("LISA_REDIS__ALLOW_EVICTION", "true"),
        ("LISA_TOPICS__ORDERS__GROUPS", "[012]"),
        ("LISA_TOPICS__ORDERS__SHARDS", "8"),
        ("LISA_TOPICS__ORDERS__MAX_PAYLOAD", "1MiB"),
        ("LISA_TOPICS__ORDERS__RETRY__FACTOR", "3"),
        ("LISA_TOPICS__ORDERS__RATE", "5/m"),
        ("LISA_TOPICS__ORDERS__BURST", "2"),
        ("LISA_TOPICS__ORDERS__MAX_BYTES", "none"),
        ("LISA_LOG", "debug"),
        ("REDIS_URL", "redis://elsewhere"),
        ("PATH__X", "1"),
    ]))
    .unwrap();
    assert_eq!(config.namespace.as_str(), "007");
    assert_eq!(config.redis.username.as_deref(), Some("true"));
    assert_eq!(
        config.redis.password.as_ref().map(Secret::expose),
        Some("0123")
    );
    assert!(config.redis.allow_eviction);
    assert_eq!(config.redis.url.to_string(), "redis://127.0.0.1:6379/0");
    let orders = &config.topics[&"orders".parse().unwrap()];
    assert_eq!(orders.groups, ["012".parse().unwrap()]);
    assert_eq!((orders.shards, orders.max_payload), (8, Size::new(1 << 20)));
    assert_eq!(
        (orders.rate, orders.burst, orders.max_bytes),
        (Some("5/m".parse().unwrap()), Some(2), None)
    );
    assert!(matches!(
        orders.retry,
        RetryPolicy::Exponential { factor: 3.0, .. }
    ));
}

#[test]
fn an_unknown_variable_is_named_and_its_secret_hidden() {
    let error = Config::load(env(&[
        ("LISA_RADIS__PASSWORD", "hunter2"),
        ("LISA_REDIS__PASWORD", "hunter2"),
    ]));
    let error = error.unwrap_err();
    let sources: Vec<_> = error
        .problems
        .iter()
        .map(|problem| problem.source.as_str())
        .collect();
    assert_eq!(
        sources,
        [
            "environment variable LISA_REDIS__PASWORD",
            "environment variable LISA_RADIS__PASSWORD"
        ]
    );
    assert!(!error.to_string().contains("hunter2"), "{error}");
}

#[test]
fn subscriptions_can_come_from_the_environment_alone() {
    let numbered = Config::load(env(&[
        ("LISA_CONSUMER__SUBSCRIPTIONS__0__TOPIC", "orders"),
        ("LISA_CONSUMER__SUBSCRIPTIONS__0__GROUP", "billing"),
        ("LISA_CONSUMER__SUBSCRIPTIONS__0__CONCURRENCY", "4"),
        ("LISA_CONSUMER__SUBSCRIPTIONS__0__SINK__TYPE", "stdout"),
    ]));
    let json = r#"[{"topic": "orders", "group": "billing", "concurrency": 4, "sink": {"type": "stdout"}}]"#;
    let json = Config::load(env(&[("LISA_CONSUMER__SUBSCRIPTIONS", json)])).unwrap();
    assert_eq!(json.consumer.subscriptions.len(), 1);
    assert_eq!(json, numbered.unwrap());
}

#[test]
fn later_sources_win() {
    let file = file(
        "lisa.toml",
        "namespace = 'file'\n[redis]\nusername = 'file'\n[log]\nformat = 'json'",
    );
    let mut options = env(&[("LISA_NAMESPACE", "env"), ("LISA_REDIS__USERNAME", "env")]);
    options.file = Some(file.path.clone());
    options.overrides = BTreeMap::from([("namespace".into(), "flag".into())]);
    let config = Config::load(options).unwrap();
    assert_eq!(config.namespace.as_str(), "flag");
    assert_eq!(config.redis.username.as_deref(), Some("env"));
    assert_eq!(config.log.format, LogFormat::Json);
}

#[test]
fn a_missing_file_and_an_unknown_ending_are_errors() {
    let dir = tempfile::tempdir().unwrap();
    for name in ["none.toml", "none.yaml"] {
        let error = Config::load(from_file(dir.path().join(name))).unwrap_err();
        assert!(error.problems[0].source.ends_with(name), "{error}");
        assert!(error.to_string().contains("No such file"), "{error}");
    }
    let error = Config::load(from_file(&file("lisa.json", "{}").path)).unwrap_err();
    assert!(
        error.to_string().contains(".toml, .yaml or .yml"),
        "{error}"
    );
}

#[test]
fn a_file_that_cannot_be_parsed_names_line_and_column_on_one_line() {
    for (name, text, place) in [
        ("lisa.toml", "[redis]\nurl = \n", "line 2, column 7"),
        (
            "lisa.toml",
            "[log]\nformat = 'json'\nformat = 'json'\n",
            "line 3",
        ),
        (
            "lisa.yaml",
            "log:\n  format: json\n  format: json\n",
            "line 3, column 3",
        ),
        ("lisa.yml", "log: [\n", "line"),
    ] {
        let error = Config::load(from_file(&file(name, text).path))
            .unwrap_err()
            .to_string();
        assert!(
            error.contains(place) && error.lines().count() == 1,
            "{error}"
        );
    }
}

#[test]
fn a_whole_number_is_a_number_in_every_format() {
    let toml = "[topics.orders]\nretry = { base = \"1s\", factor = 3, jitter = 0 }\n";
    let yaml = "topics:\n  orders:\n    retry: { base: 1s, factor: 3, jitter: 0 }\n";
    for (name, text) in [("lisa.toml", toml), ("lisa.yaml", yaml)] {
        let file = file(name, text);
        let config = Config::load(from_file(&file.path)).unwrap();
        let retry = &config.topics[&"orders".parse().unwrap()].retry;
        let RetryPolicy::Exponential { factor, jitter, .. } = retry else {
            panic!("{retry:?}");
        };
        assert_eq!((*factor, *jitter), (3.0, 0.0), "{name}");
    }
}

#[test]
fn a_yaml_key_without_a_value_is_not_set() {
    let file = file(
        "lisa.yaml",
        "consumer:\nmanager:\n  jobs:\ntopics:\n  orders:\n",
    );
    let config = Config::load(from_file(&file.path)).unwrap();
    assert_eq!(
        config.topics[&"orders".parse().unwrap()],
        TopicSettings::default()
    );
}

#[test]
fn the_environment_names_the_file_and_the_address_of_redis() {
    let file = file("lisa.toml", "namespace = 'file'");
    let mut options = env(&[
        ("LISA_CONFIG", file.path.to_str().unwrap()),
        ("LISA_REDIS_URL", "redis://h:1"),
    ]);
    let loaded = Loaded::load(options.clone()).unwrap();
    assert_eq!(loaded.file.as_deref(), Some(file.path.as_path()));
    let config = loaded.config;
    assert_eq!(config.namespace.as_str(), "file");
    assert_eq!(config.redis.url.to_string(), "redis://h:1/0");
    let other = super::file("other.toml", "namespace = 'flag'");
    options.file = Some(other.path.clone());
    options
        .env
        .push(("LISA_REDIS__URL".into(), "redis://h:2".into()));
    let config = Config::load(options).unwrap();
    assert_eq!(config.namespace.as_str(), "flag", "the command line wins");
    assert_eq!(config.redis.url.to_string(), "redis://h:2/0");
    assert!(Config::load(env(&[("LISA_CONFIG", "/none/lisa.toml")])).is_err());
    assert!(Config::load(env(&[("LISA_CONFIG", "")])).is_ok());
}

#[test]
fn no_variable_of_ours_is_ignored_in_silence() {
    for (name, meant) in [
        ("LISA_REDIS_PASSWORD", "LISA_REDIS__PASSWORD"),
        ("LISA_TOPIC_DEFAULTS_LEASE", "LISA_TOPIC_DEFAULTS__LEASE"),
        ("LISA_MANAGER_LISTEN", "LISA_MANAGER__LISTEN"),
    ] {
        let error = Config::load(env(&[(name, "hunter2")]))
            .unwrap_err()
            .to_string();
        assert!(error.contains(name) && error.contains(meant), "{error}");
        assert!(!error.contains("hunter2"), "{error}");
    }
    let loaded = Loaded::load(env(&[
        ("LISA_CONFG", "x"),
        ("LISA_LOG", "debug"),
        ("LISA_TEST_ENGINE", "x"),
        ("LISA_REDIS_SERVER", "x"),
        ("LISA_TOPIC", "of a command sink"),
        ("LISA_PAYLOAD_BYTES", "of a command sink"),
        ("LISA_HEADER_CONTENT_TYPE", "of a command sink"),
        ("LISA_HEADER_X__Y", "of a command sink"),
        ("LISA_REDIS_PORT", "tcp://10.0.0.9:6379"),
        ("LISA_REDIS_SERVICE_HOST", "10.0.0.9"),
        ("LISA_MANAGER_SERVICE_PORT_HTTP", "7812"),
        ("LISA_MANAGER_PORT_7812_TCP_ADDR", "10.0.0.9"),
        ("LISA_SERVICE_HOST", "10.0.0.9"),
        ("LISA_PORT_80_TCP", "tcp://10.0.0.9:80"),
        ("LISBON", "x"),
    ]));
    let warnings = loaded.unwrap().warnings;
    let sources: Vec<_> = warnings.iter().map(|w| w.source.as_str()).collect();
    assert_eq!(sources, ["environment variable LISA_CONFG"]);
}

#[test]
fn a_relative_path_starts_at_the_folder_of_the_file_that_names_it() {
    let file = file(
        "lisa.toml",
        "[redis]\npassword_file = 'redis.pw'\n[redis.tls]\nca_file = 'certs/ca.pem'",
    );
    let folder = file.path.parent().unwrap();
    std::fs::write(folder.join("redis.pw"), "hunter2\n").unwrap();
    let redis = Config::load(from_file(&file.path)).unwrap().redis;
    assert_eq!(redis.password.unwrap().expose(), "hunter2");
    assert_eq!(redis.tls.ca_file, Some(folder.join("certs/ca.pem")));
    let elsewhere = env(&[("LISA_REDIS__TLS__CA_FILE", "certs/ca.pem")]);
    let redis = Config::load(elsewhere).unwrap().redis;
    assert_eq!(redis.tls.ca_file, Some("certs/ca.pem".into()));
}

#[test]
fn what_is_not_a_regular_file_is_refused_without_waiting() {
    let folder = tempfile::tempdir().unwrap();
    let fifo = folder.path().join("fifo.toml");
    let made = std::process::Command::new("mkfifo").arg(&fifo).status();
    assert!(made.unwrap().success());
    for path in [fifo.as_path(), folder.path(), "/dev/zero".as_ref()] {
        let shown = path.display();
        let found = Config::load(from_file(path)).unwrap_err().to_string();
        assert_eq!(found, format!("{shown}: cannot load: not a regular file"));
        let with_tls =
            |url: &str| toml(&format!("[redis]\nurl = '{url}'\ntls.ca_file = {path:?}\n"));
        assert_eq!(
            problems(with_tls("rediss://h")),
            [format!(
                "redis.tls.ca_file = {path:?}: cannot read {shown}: not a regular file"
            )]
        );
        // Nothing reads it without TLS.
        assert!(with_tls("redis://h").is_ok());
    }
}
