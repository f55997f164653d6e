//! Tests of the schedules of recurring messages.

use super::*;

#[test]
fn a_schedule_needs_a_topic_and_times_and_the_rest_is_as_of_any_message() {
    let text = r#"
        [schedules.nightly]
        topic = "reports"
        cron = "0 0 3 * * *"

        [schedules.every-ten]
        topic = "pings"
        cron = "*/10 * * * * *"
        time_zone = "Europe/Berlin"
        catch_up = "0s"
        payload = '{"all": true}'
        headers = { Content-Type = "application/json", x-api-key = "geheim" }
        key = "a"
        merge_key = "b"
        priority = -5
        ttl = "1m"
        max_attempts = 3
        retry = { kind = "fixed", delay = "5s" }
    "#;
    let file = file("lisa.toml", text);
    let loaded = Loaded::load(from_file(&file.path)).unwrap();
    let schedules = &loaded.config.schedules;
    let nightly = &schedules[&"nightly".parse().unwrap()];
    assert_eq!(nightly.topic.as_str(), "reports");
    assert_eq!(nightly.rule(), "0 0 3 * * * UTC");
    assert_eq!(nightly.catch_up, Duration::from_secs(3600));
    assert_eq!(
        nightly.message,
        crate::recurring::MessageTemplate::default()
    );
    let other = &schedules[&"every-ten".parse().unwrap()];
    assert_eq!(other.rule(), "*/10 * * * * * Europe/Berlin");
    assert_eq!(other.catch_up, Duration::ZERO);
    let message = &other.message;
    assert_eq!(message.payload, r#"{"all": true}"#);
    assert_eq!(
        message.headers.get("content-type"),
        Some("application/json")
    );
    assert_eq!(
        message.options.key.as_ref().map(|key| key.as_str()),
        Some("a")
    );
    assert_eq!(
        message.options.merge_key.as_ref().map(|key| key.as_str()),
        Some("b")
    );
    assert_eq!(
        (message.options.priority, message.options.max_attempts),
        (-5, Some(3))
    );
    assert_eq!(message.options.ttl, Some(Duration::from_secs(60)));
    assert!(matches!(
        message.options.retry,
        Some(RetryPolicy::Fixed { .. })
    ));

    let shown = loaded.to_toml();
    assert!(
        shown.contains("[schedules.every-ten.headers]\nContent-Type = \"application/json\""),
        "{shown}"
    );
    assert!(!shown.contains("geheim"), "{shown}");
    let again = toml(&shown.replace("\"***\"", "\"geheim\"")).unwrap();
    assert_eq!(again.schedules, *schedules);
}

#[test]
fn the_environment_has_schedules_too() {
    let config = Config::load(env(&[
        ("LISA_SCHEDULES__NIGHTLY__TOPIC", "reports"),
        ("LISA_SCHEDULES__NIGHTLY__CRON", "0 0 3 * * *"),
        ("LISA_SCHEDULES__NIGHTLY__PRIORITY", "7"),
        ("LISA_SCHEDULES__NIGHTLY__PAYLOAD", "1"),
        ("LISA_SCHEDULES__NIGHTLY__HEADERS__A", "2"),
    ]));
    let schedules = config.unwrap().schedules;
    let message = &schedules[&"nightly".parse().unwrap()].message;
    assert_eq!(
        (message.options.priority, message.payload.as_str()),
        (7, "1")
    );
    assert_eq!(message.headers.get("a"), Some("2"));
}

#[test]
fn each_mistake_in_a_schedule_is_named() {
    let found = problems(toml(
        r#"
        [schedules.Nightly]
        topic = "reports"
        cron = "0 0 3 * * *"

        [schedules.a]

        [schedules.b]
        topic = "my reports"
        cron = "0 3 * * *"
        time_zone = "Berlin"
        catch_up = "366d"
        payload = 7
        headers = { "a b" = "x", c = 1, lisa-callback-hops = "8" }
        key = ""
        priority = 2147483648
        ttl = "0s"
        max_attempts = 0
        retry = { kind = "fixed", delay = "4000d" }
        delay = "5s"

        [topics.small]
        max_payload = "4B"

        [schedules.large]
        topic = "small"
        cron = "0 0 3 * * *"
        payload = "12345"

        [schedules.c]
        topic = "t"
        cron = "0 0 0 30 2 *"
        headers = "x"
    "#,
    ));
    for (place, says) in [
        ("schedules.Nightly = ", "[a-z0-9][a-z0-9_-]{0,46}"),
        ("schedules.a.topic = ", "missing: the topic to send to"),
        ("schedules.a.cron = ", "missing: when to send"),
        ("schedules.b.topic = \"my reports\"", ""),
        ("schedules.b.cron = \"0 3 * * *\"", "expected six fields"),
        ("schedules.b.time_zone = \"Berlin\"", "IANA"),
        ("schedules.b.catch_up = \"366d\"", "must be at most 365d"),
        ("schedules.b.payload = 7", "put it in quotes"),
        ("schedules.b.headers.\"a b\" = ", "header name"),
        ("schedules.b.headers.c = 1", "put it in quotes"),
        (
            "schedules.b.headers.lisa-callback-hops = ",
            "only Lisa sets",
        ),
        ("schedules.b.key = ", "1 to 256 bytes"),
        ("schedules.b.priority = ", "from -2147483648 to 2147483647"),
        ("schedules.b.ttl = \"0s\"", "must be 1ms to 3653d"),
        ("schedules.b.max_attempts = 0", "must be 1 to 1000"),
        ("schedules.b.retry.delay = ", ""),
        ("schedules.b.delay = \"5s\"", "payload, retry, max_attempts"),
        (
            "schedules.large.payload = \"12345\"",
            "has 5 bytes, and the topic allows up to 4",
        ),
        ("schedules.c.cron = ", "never fires"),
        ("schedules.c.headers = ", "expected a table"),
    ] {
        let is = |line: &&String| line.starts_with(place) && line.contains(says);
        assert!(
            found.iter().any(|line| is(&line)),
            "{place} {says}: {found:#?}"
        );
    }
    assert_eq!(found.len(), 20, "{found:#?}");
}

#[test]
fn none_is_a_key_like_any_other_and_no_duration() {
    let text =
        "[schedules.a]\ntopic = 't'\ncron = '0 0 4 * * *'\nkey = 'none'\nmerge_key = 'none'\n";
    let loaded = Loaded::load(from_file(&file("lisa.toml", text).path)).unwrap();
    let message = &loaded.config.schedules[&"a".parse().unwrap()].message;
    assert_eq!(message.options.key, "none".parse().ok());
    assert_eq!(message.options.merge_key, "none".parse().ok());
    let unset = file("lisa.toml", &format!("{text}ttl = 'none'\n"));
    let error = Config::load(from_file(&unset.path)).unwrap_err();
    assert!(error.to_string().contains("schedules.a.ttl"), "{error}");
}
