//! Tests of the configuration as users see it: files, environment, flags, and all mistakes in them.

mod broker_sinks;
mod broker_sources;
mod features;
mod listeners;
mod schedules;
mod shown;
mod sources;
mod subscriptions;
mod tokens;

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::time::Duration;

use super::*;
use lisa_core::retry::RetryPolicy;
use lisa_core::topic::Size;

const SHA: &str = "0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef";

/// A file in its own directory.
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

/// Expects a failed load and returns `path = value: message` of each problem.
fn problems(result: Result<Config, ConfigError>) -> Vec<String> {
    let problems = result.expect_err("a wrong configuration").problems;
    let line =
        |problem: &Problem| format!("{} = {}: {}", problem.path, problem.value, problem.message);
    problems.iter().map(line).collect()
}

fn example(name: &str) -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR"))
        .join("../../config")
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
            ("topics.orders.retry.max", "\"10m\"", "default"),
            (
                "topics.orders.shards",
                "\"0\"",
                "environment variable LISA_TOPICS__ORDERS__SHARDS"
            ),
        ]
    );
    assert_eq!(error.to_string().lines().count(), 10);
    let line = format!("topics.orders.lease = \"100d\": must be 1s to 12h ({path})");
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
    let known = "namespace, redis, auth, producer, manager, topic_defaults, topics, consumer, schedules, http, shutdown, log";
    assert!(
        error.contains(&format!(
            "unknown key, did you mean topics? Known keys: {known}"
        )),
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
        (secs(20), Size::new(1000), 16)
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
        ["topics.a.retry.base = \"1s\": unknown key, known keys: kind, delay, jitter"]
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
fn a_scaler_runs_if_its_table_is_there_and_needs_tokens_beyond_loopback() {
    let keda = |text: &str| toml(text).unwrap().manager.keda;
    assert_eq!(keda("[manager]"), None);
    let default = keda("[manager.keda]").unwrap().listen;
    assert_eq!(default.to_string(), "127.0.0.1:7816");
    let found = problems(toml("[manager.keda]\nlisten = '0.0.0.0:7816'"));
    assert!(
        found.len() == 1 && found[0].starts_with("manager.keda.listen = \"0.0.0.0:7816\""),
        "{found:?}"
    );
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
    assert!(found[0].contains("cannot both be set"), "{found:?}");
    let found = problems(toml("[redis]\npassword_file = '/nonexistent/file'"));
    assert!(found[0].contains("cannot read the file"), "{found:?}");
}
