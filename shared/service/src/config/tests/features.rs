//! Tests of the settings of the delivery features: reading, showing, refusing, and the examples.

use super::*;
use lisa_core::durability::Durability;
use lisa_core::topic::{Merge, MergeBy, OnExpired, OnGarbage, OnLate, Size};

/// Loads a topic with these keys.
fn topic(keys: &str) -> Result<TopicSettings, ConfigError> {
    toml(&format!("[topics.a]\n{keys}")).map(|config| config.topics[&"a".parse().unwrap()].clone())
}

#[test]
fn every_setting_of_a_delivery_feature_is_read_and_shown() {
    let keys = r#"
        groups = ["a", "b"]
        merge = "last"
        merge_by = "payload"
        max_wait = "5m"
        on_garbage = "block"
        max_ready = 100
        max_messages = 1000
        max_bytes = "1GiB"
        ttl = "1h"
        on_expired = "drop"
        rate = "100/s"
        burst = 7
        max_lateness = "5m"
        on_late = "garbage"
        key_index = true
        durability = "replicas:2"
        durability_timeout = "250ms"
        instance_ttl = "2m"
        "#;
    let minutes = |n: u64| Duration::from_secs(n * 60);
    let expected = TopicSettings {
        groups: ["a", "b"].map(|name| name.parse().unwrap()).to_vec(),
        merge: Merge::Last,
        merge_by: MergeBy::Payload,
        max_wait: Some(minutes(5)),
        on_garbage: OnGarbage::Block,
        max_ready: Some(100),
        max_messages: Some(1000),
        max_bytes: Some(Size::new(1 << 30)),
        ttl: Some(minutes(60)),
        on_expired: OnExpired::Drop,
        rate: Some("100/s".parse().unwrap()),
        burst: Some(7),
        max_lateness: Some(minutes(5)),
        on_late: OnLate::Garbage,
        key_index: true,
        durability: Durability::Replicas(2),
        durability_timeout: Duration::from_millis(250),
        instance_ttl: minutes(2),
        ..TopicSettings::default()
    };
    assert_eq!(topic(keys).unwrap(), expected);
    let file = file("lisa.toml", &format!("[topics.a]{keys}"));
    let shown = Loaded::load(from_file(&file.path)).unwrap().to_toml();
    let (_, shown) = shown.split_once("[topics.a]").unwrap();
    for line in keys.trim().lines() {
        let line = format!(
            "{}  # {}",
            line.trim().replace(", ", ","),
            file.path.display()
        );
        assert!(shown.contains(&line), "{line}\n\n{shown}");
    }
}

#[test]
fn a_topic_without_delivery_features_shows_what_is_not_set() {
    let shown = Loaded::load(LoadOptions::default()).unwrap().to_toml();
    for line in ["max_wait = \"none\"", "rate = \"none\"", "merge = \"last\""] {
        assert!(shown.contains(&format!("{line}  # default")), "{shown}");
    }
}

#[test]
fn none_overrides_what_the_topic_defaults_set() {
    let config = toml(
        r#"
        topic_defaults = { max_wait = "5m", rate = "5/s", max_bytes = "1MB" }
        [topics.a]
        merge = "first"
        max_wait = "none"
        rate = "none"
        [topics.b]
        "#,
    )
    .unwrap();
    let [a, b] = ["a", "b"].map(|name| config.topics[&name.parse().unwrap()].clone());
    assert_eq!(
        (a.max_wait, a.rate, a.max_bytes),
        (None, None, Some(Size::new(1_000_000)))
    );
    assert_eq!(
        (b.max_wait, b.rate),
        (Some(Duration::from_secs(300)), Some("5/s".parse().unwrap()))
    );
}

#[test]
fn a_wrong_setting_of_a_delivery_feature_says_what_is_allowed() {
    for (given, expected) in [
        (
            "merge = 'sometimes'",
            "topics.a.merge = \"sometimes\": \"sometimes\" is not a merge: must be one of first last reject",
        ),
        (
            "on_late = 3",
            "topics.a.on_late = 3: expected a string, found a number: put it in quotes",
        ),
        (
            "rate = '5/min'",
            "topics.a.rate = \"5/min\": \"5/min\" is not a rate: must be a whole number from 1 to 1000000 and a period, like 100/s, 6000/m or 5/h; or \"none\"",
        ),
        (
            "max_ready = -1",
            "topics.a.max_ready = -1: must be a whole number from 0 to 4294967295; or \"none\"",
        ),
        (
            "max_messages = 0",
            "topics.a.max_messages = 0: must be at least 1",
        ),
        (
            "burst = 5",
            "topics.a.burst = 5: must be \"none\", because rate is not set",
        ),
        (
            "merge = 'reject'\nmax_wait = '5m'",
            "topics.a.max_wait = \"5m\": must be \"none\", because merge is not \"last\"",
        ),
        (
            "groups = ['b', 'b']",
            "topics.a.groups = [\"b\", \"b\"]: must not repeat a name",
        ),
        (
            "groups = ['b', 'instance-1']",
            "topics.a.groups = [\"b\", \"instance-1\"]: must not have a name that begins with instance-",
        ),
        (
            "durability = 'disk'",
            "topics.a.durability = \"disk\": \"disk\" is not a durability: must be memory, aof or replicas:N with N from 1 to 16",
        ),
        (
            "durability_timeout = '1ms'",
            "topics.a.durability_timeout = \"1ms\": must be 10ms to 1m",
        ),
        (
            "instance_ttl = '1s'",
            "topics.a.instance_ttl = \"1s\": must be 5s to 7d",
        ),
    ] {
        let error = topic(given).expect_err(given);
        assert_eq!(problems(Err(error)), [expected]);
    }
}

/// Uncomments the delivery features of an example, and returns the file and their keys.
fn with_features(name: &str) -> (File, Vec<String>) {
    let text = std::fs::read_to_string(example(name)).unwrap();
    let (mut all, mut keys, mut inside) = (String::new(), Vec::new(), false);
    for line in text.lines() {
        let comment = line.trim_start().strip_prefix("# ");
        inside = comment.is_some_and(|text| inside || text.starts_with("The delivery features"));
        let setting = comment.filter(|_| inside).unwrap_or_default();
        let key = setting.split([' ', ':']).next().unwrap_or_default();
        if [" = ", ": "]
            .iter()
            .any(|sign| setting[key.len()..].starts_with(sign))
        {
            keys.push(key.to_owned());
            all += &line.replacen("# ", "", 1);
        } else {
            all += line;
        }
        all.push('\n');
    }
    (file(name, &all), keys)
}

#[test]
fn the_examples_show_each_delivery_feature_once_and_right() {
    let known = serde_json::to_value(TopicSettings::default()).unwrap();
    let orders = ["separate.toml", "combined.toml", "combined.yaml"].map(|name| {
        let (file, mut keys) = with_features(name);
        let config = Config::load(from_file(&file.path)).unwrap();
        let orders = config.topics[&"orders".parse().unwrap()].clone();
        let settings = serde_json::to_value(&orders).unwrap();
        let is_set = |key: &String| !settings[key].is_null();
        assert!(keys.iter().all(is_set), "{name}: {settings:#}");
        let basic = "groups shards lease handler_timeout max_attempts retry max_delay max_payload dedup_window garbage";
        keys.extend(basic.split(' ').map(str::to_owned));
        keys.sort_unstable();
        let mut expected: Vec<_> = known.as_object().unwrap().keys().cloned().collect();
        expected.sort_unstable();
        assert_eq!(keys, expected, "{name}");
        orders
    });
    assert_eq!(orders[1], orders[2]);
    assert_eq!(orders[1].rate, Some("100/s".parse().unwrap()));
}

#[test]
fn the_length_of_a_history_is_bounded() {
    let history = |keys: &str| {
        let config = toml(&format!("[manager.history]\n{keys}"));
        config.map(|config| config.manager.history)
    };
    let default = history("").unwrap();
    assert_eq!((default.minutes, default.quarters), (360, 672));
    assert!(default.enabled && !history("enabled = false").unwrap().enabled);
    for (keys, allowed) in [
        ("minutes = 59", "60 to 1440"),
        ("minutes = 1441", "60 to 1440"),
        ("quarters = 95", "96 to 2976"),
        ("quarters = 2977", "96 to 2976"),
    ] {
        let error = history(keys).unwrap_err().to_string();
        assert!(
            error.contains("manager.history.") && error.contains(allowed),
            "{error}"
        );
    }
}
