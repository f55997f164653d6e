//! The configuration as its users meet it: files, environment, flags, and every mistake in them.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::time::Duration;

use super::*;
use crate::retry::RetryPolicy;

const SHA: &str = "0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef";

/// A file in a directory of its own.
struct File {
    _dir: tempfile::TempDir,
    path: PathBuf,
}

fn file(name: &str, text: &str) -> File {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join(name);
    std::fs::write(&path, text).unwrap();
    File { _dir: dir, path }
}

fn env(pairs: &[(&str, &str)]) -> LoadOptions {
    let env = pairs
        .iter()
        .map(|(name, text)| (name.to_string(), text.to_string()))
        .collect();
    LoadOptions {
        env,
        ..LoadOptions::default()
    }
}

fn from_file(path: impl Into<PathBuf>) -> LoadOptions {
    LoadOptions {
        file: Some(path.into()),
        ..LoadOptions::default()
    }
}

fn toml(text: &str) -> Result<Config, ConfigError> {
    Config::load(from_file(&file("lisa.toml", text).path))
}

/// Loads what must be wrong and gives `path = value: message` of each problem.
fn problems(result: Result<Config, ConfigError>) -> Vec<String> {
    let problems = result.expect_err("a wrong configuration").problems;
    let line =
        |problem: &Problem| format!("{} = {}: {}", problem.path, problem.value, problem.message);
    problems.iter().map(line).collect()
}

fn example(name: &str) -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR"))
        .join("../config")
        .join(name)
}

#[test]
fn a_role_without_any_configuration_has_the_defaults() {
    let config = Config::default();
    assert_eq!(config.redis.url.to_string(), "redis://127.0.0.1:6379/0");
    assert_eq!(config.producer.listen.to_string(), "127.0.0.1:7811");
    assert_eq!(config.manager.listen.to_string(), "127.0.0.1:7812");
    assert_eq!(config.consumer.listen.to_string(), "127.0.0.1:7813");
    assert_eq!(config.topic_defaults, TopicSettings::default());
    assert_eq!(config.shutdown.grace, Duration::from_secs(25));
    assert!(config.topics.is_empty() && config.consumer.subscriptions.is_empty());
}

#[test]
fn every_mistake_is_reported_at_once_with_path_value_and_source() {
    let file = file(
        "lisa.toml",
        r#"
        [redis]
        connect_timeout = 5
        [manager.jobs]
        clean = "* * * * *"
        [topics.orders]
        leese = "30s"
        lease = "100d"
        max_attempts = "many"
        retry = { base = "1h", factor = 0.5, jitter = 7 }
        "#,
    );
    let mut options = from_file(&file.path);
    options.env = vec![("LISA_TOPICS__ORDERS__SHARDS".into(), "0".into())];
    options.overrides = BTreeMap::from([("producer.listen".into(), "nowhere".into())]);
    let error = Config::load(options).unwrap_err();
    let path = file.path.display().to_string();
    let mut found: Vec<_> = error
        .problems
        .iter()
        .map(|problem| {
            (
                problem.path.as_str(),
                problem.value.as_str(),
                problem.source.as_str(),
            )
        })
        .collect();
    found.sort_unstable();
    assert_eq!(
        found,
        [
            ("manager.jobs.clean", "\"* * * * *\"", path.as_str()),
            ("producer.listen", "\"nowhere\"", "command line"),
            ("redis.connect_timeout", "5", &path),
            ("topics.orders.lease", "\"100d\"", &path),
            ("topics.orders.leese", "\"30s\"", &path),
            ("topics.orders.max_attempts", "\"many\"", &path),
            ("topics.orders.retry.factor", "0.5", &path),
            ("topics.orders.retry.jitter", "7", &path),
            ("topics.orders.retry.max", "10m", "default"),
            (
                "topics.orders.shards",
                "\"0\"",
                "environment variable LISA_TOPICS__ORDERS__SHARDS"
            ),
        ]
    );
    assert_eq!(error.to_string().lines().count(), 10);
    let line = format!("topics.orders.lease = \"100d\": allowed is 1s to 12h ({path})");
    assert!(error.to_string().contains(&line), "{error}");
}

#[test]
fn a_wrong_shape_or_name_is_reported_where_it_stands() {
    let file = file(
        "lisa.toml",
        "consumer = { subscriptions = 3 }\n[topics]\n'A B' = {}\nb = 3\n[topicz]\n",
    );
    let error = Config::load(from_file(&file.path)).unwrap_err().to_string();
    let path = file.path.display().to_string();
    let starts = [
        "topics.b = 3: ",
        "topics.\"A B\": ",
        "consumer.subscriptions = 3: ",
        "topicz = ",
    ];
    for (line, start) in error.lines().zip(starts) {
        assert!(
            line.starts_with(start) && line.ends_with(&format!("({path})")),
            "{error}"
        );
    }
    let known = "namespace, redis, auth, producer, manager, topic_defaults, topics, consumer, http, shutdown, log";
    assert!(
        error.contains(&format!("unknown key, known here: {known}")),
        "{error}"
    );
}

#[test]
fn a_topic_takes_its_own_keys_then_the_topic_defaults_then_the_built_in_ones() {
    let config = toml(
        r#"
        [topic_defaults]
        lease = "10s"
        max_payload = 1000
        retry = { base = "2s" }
        [topics.a]
        lease = "20s"
        retry = { max = "1m" }
        [topics.b]
        retry = { kind = "fixed" }
        "#,
    );
    let config = config.unwrap();
    let [a, b] = ["a", "b"].map(|name| config.topics[&name.parse().unwrap()].clone());
    let secs = Duration::from_secs;
    assert_eq!(
        (a.lease, a.max_payload, a.max_attempts),
        (secs(20), 1000, 16)
    );
    assert_eq!(
        a.retry,
        RetryPolicy::Exponential {
            base: secs(2),
            factor: 2.0,
            max: secs(60),
            jitter: 0.2
        }
    );
    assert_eq!(
        (b.lease, b.retry),
        (
            secs(10),
            RetryPolicy::Fixed {
                delay: secs(10),
                jitter: 0.2
            }
        )
    );
    assert_eq!(config.topic_defaults.lease, secs(10));
}

#[test]
fn a_mistake_in_the_topic_defaults_is_reported_once() {
    let result =
        toml("topic_defaults = { lease = '0s', shards = 'x', nope = 1 }\n[topics]\na = {}\nb = {}");
    let found = problems(result);
    assert_eq!(found.len(), 3, "{found:#?}");
    assert!(
        found.iter().all(|line| line.starts_with("topic_defaults.")),
        "{found:#?}"
    );
}

#[test]
fn a_key_of_another_kind_of_retry_policy_is_unknown() {
    let found = problems(toml("[topics.a]\nretry = { kind = 'fixed', base = '1s' }"));
    assert_eq!(
        found,
        ["topics.a.retry.base = \"1s\": unknown key, known here: kind, delay, jitter"]
    );
}

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
    assert_eq!((orders.shards, orders.max_payload), (8, 1 << 20));
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
fn a_number_for_a_text_is_refused_with_advice_and_without_the_secret() {
    let file = file(
        "lisa.yaml",
        "redis:\n  username: 0123\n  password: 777123\n",
    );
    let error = Config::load(from_file(&file.path)).unwrap_err().to_string();
    assert_eq!(error.matches("put it in quotes").count(), 2, "{error}");
    assert!(!error.contains("777123"), "{error}");
}

#[test]
fn a_listener_beyond_loopback_needs_tokens() {
    let open = "[producer]\nlisten = '0.0.0.0:7811'\n";
    let found = problems(toml(open));
    assert!(
        found.len() == 1 && found[0].starts_with("producer.listen = \"0.0.0.0:7811\""),
        "{found:?}"
    );
    let tokens = format!("[[auth.tokens]]\nname = 'a'\nsha256 = '{SHA}'\nscopes = ['send']");
    assert_eq!(
        toml(&format!("{open}{tokens}")).unwrap().auth.tokens[0].name(),
        "a"
    );
    assert!(toml(&format!("{open}[auth]\nallow_unauthenticated = true")).is_ok());
}

#[test]
fn every_mistake_in_a_token_is_reported_and_no_hash_shown() {
    let found = problems(toml(&format!(
        "[[auth.tokens]]\nname = ''\nsha256 = '{}'\nscopes = ['sent']\ntoken = 'hunter2'",
        &SHA[1..]
    )));
    let paths: Vec<_> = found
        .iter()
        .map(|line| line.split(" = ").next().unwrap())
        .collect();
    let expected = ["sha256", "scopes", "name", "token"].map(|key| format!("auth.tokens[0].{key}"));
    assert_eq!(paths, expected);
    assert!(
        !found.concat().contains(&SHA[1..]) && !found.concat().contains("hunter2"),
        "{found:?}"
    );
}

#[test]
fn subscriptions_are_checked_against_each_other_and_the_topics() {
    let row = |topic, group| {
        format!(
            "[[consumer.subscriptions]]\ntopic = '{topic}'\ngroup = '{group}'\nsink = {{ type = 'stdout' }}\n"
        )
    };
    let text = [
        row("orders", "billing"),
        row("orders", "other"),
        row("free", "any"),
        row("free", "any"),
    ]
    .concat();
    let found = problems(toml(&format!(
        "{text}[topics.orders]\ngroups = ['billing']"
    )));
    assert_eq!(
        found,
        [
            "consumer.subscriptions[1].group = \"other\": topic orders has no such group, its groups are [\"billing\"]",
            "consumer.subscriptions[3].group = \"any\": topic free has a subscription for this group already",
        ]
    );
    let found = problems(toml(
        "[[consumer.subscriptions]]\ntopic = 'A'\nconcurrency = 0\nsink = { type = 'x' }",
    ));
    assert_eq!(found.len(), 4, "{found:#?}");
}

#[test]
fn a_webhook_is_checked_and_its_secrets_are_hidden() {
    let sink = |rest: &str| {
        let text = format!(
            "[[consumer.subscriptions]]\ntopic = 'a'\ngroup = 'b'\n[consumer.subscriptions.sink]\ntype = 'http'\n{rest}"
        );
        toml(&text)
    };
    let good = "whsec_ZXhhbXBsZS1rZXktdGhhdC1ldmVyeWJvZHkta25vd3M=";
    let config = sink(&format!(
        "url = 'https://h/x'\nsecret = ['{good}', '{good}']\ntimeout = '5s'"
    ))
    .unwrap();
    let SinkConfig::Http {
        secrets,
        timeout,
        retry_after,
        ..
    } = &config.consumer.subscriptions[0].sink
    else {
        panic!("a webhook");
    };
    assert_eq!((secrets.len(), *timeout), (2, Duration::from_secs(5)));
    assert_eq!(*retry_after, RetryAfter::Retry);
    assert!(!format!("{config:?}").contains("whsec_"));

    let keys = file("keys", &format!("{good}\n\n{good}\n"));
    let from_file = sink(&format!(
        "url = 'http://h'\nsecret_file = '{}'",
        keys.path.display()
    ))
    .unwrap();
    assert!(format!("{from_file:?}").contains("[***, ***]"));

    let found = problems(sink(
        "url = 'ftp://h'\nsecret = 'whsec_c2hvcnQ='\ntimeout = '2h'\nheaders = 1\nretry_after = 'later'",
    ));
    assert_eq!(found.len(), 5, "{found:#?}");
    assert!(!found.concat().contains("c2hvcnQ"), "{found:?}");
    assert_eq!(
        problems(sink("url = 'https://ann:pw@h'\nsecret = 'plain'")).len(),
        2
    );
}

#[test]
fn a_password_comes_from_a_file_too_but_not_twice() {
    let secret = file("password", "0123 \n");
    let path = secret.path.display();
    let config = toml(&format!("[redis]\npassword_file = '{path}'")).unwrap();
    assert_eq!(
        config.redis.password.as_ref().map(Secret::expose),
        Some("0123 ")
    );
    let found = problems(toml(&format!(
        "[redis]\npassword = 'x'\npassword_file = '{path}'"
    )));
    assert!(found[0].contains("exclude each other"), "{found:?}");
    let found = problems(toml("[redis]\npassword_file = '/nonexistent/file'"));
    assert!(found[0].contains("cannot read the file"), "{found:?}");
}

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

#[test]
fn the_webhook_example_has_both_sinks() {
    let config = Config::load(from_file(example("webhook.toml"))).unwrap();
    let sinks: Vec<_> = config
        .consumer
        .subscriptions
        .iter()
        .map(|one| &one.sink)
        .collect();
    assert!(matches!(
        sinks[..],
        [SinkConfig::Http { .. }, SinkConfig::Command { .. }]
    ));
}
