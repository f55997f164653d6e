//! Tests: the names match the documentation, and removed series disappear.

use super::*;
use lisa_core::state::Settled;
use serde_json::json;

/// Returns the counts of a topic with one group.
fn reading() -> TopicReading {
    let stats = json!({
        "topic": "orders", "paused": true, "class": "plain", "stored": 9, "waiting": 5, "tombstones": 7,
        "overdue_ms": 1500, "bytes": 900, "counters": { "accepted": 9, "merged": 4, "moved": 1 }, "conservation_error": 0,
        "groups": [{
            "group": "billing", "backlog": 0, "parked": 0, "ready": 3, "in_flight": 4, "retry": 0, "garbage": 0,
            "consumers": 2, "oldest_due_age_ms": 1500, "oldest_ready_age_ms": 90_000, "unconfigured": true,
        }],
    });
    TopicReading {
        stats: serde_json::from_value(stats).unwrap(),
        due: vec![("1m", 1), ("1h", 2), ("24h", 5)],
        max_messages: Some(10),
        max_bytes: Some(1000),
    }
}

fn metrics() -> Metrics {
    Metrics::new(Registry::default(), "1.2.3", "manager")
}

#[test]
fn the_names_are_the_documented_ones() {
    let m = metrics();
    m.sent("orders", "waiting", 2);
    m.moved("orders", 3);
    let deliveries = m.deliveries("orders", "billing");
    deliveries.ended(Settled::Acked);
    deliveries.lateness(Duration::from_millis(4));
    deliveries.handled(Duration::from_millis(40));
    m.suspects("orders", "billing", "waiting", 3);
    m.reclaimed("orders", "billing", "retry", 1);
    m.topics(vec![Arc::new(reading())]);
    let findings = Findings::from([("orphan", 2)]);
    m.doctor_findings([("orders".parse().unwrap(), findings)].into());
    m.clock_skew(-0.25);
    m.redis_up(true);
    m.redis_memory(5, 10);
    m.managers(2);
    m.redis_error("LOADING");
    m.script("send", Duration::from_micros(200));
    m.job("clean", Duration::from_secs(1));
    m.job_failed("clean");
    m.job_succeeded("clean", UnixMs::new(1_795_000_000_999));
    m.schedule_fired("nightly", "sent");
    m.schedule_last("nightly", UnixMs::new(1_795_000_000_000));
    m.http_request("/v1/topics/{topic}", "GET", 200, Duration::from_millis(1));
    let text = m.encode();
    for line in [
        r#"lisa_build_info{version="1.2.3",role="manager"} 1"#,
        r#"lisa_messages_sent_total{topic="orders",outcome="waiting"} 2"#,
        r#"lisa_messages_moved_total{topic="orders"} 3"#,
        r#"lisa_deliveries_total{topic="orders",group="billing",outcome="acked"} 1"#,
        r#"lisa_delivery_lateness_seconds_bucket{le="0.001",topic="orders",group="billing"} 0"#,
        r#"lisa_delivery_lateness_seconds_bucket{le="0.005",topic="orders",group="billing"} 1"#,
        r#"lisa_delivery_lateness_seconds_bucket{le="60.0",topic="orders",group="billing"} 1"#,
        r#"lisa_handle_duration_seconds_count{topic="orders",group="billing"} 1"#,
        r#"lisa_suspects{topic="orders",group="billing",state="waiting"} 3"#,
        r#"lisa_reclaimed_total{topic="orders",group="billing",to="retry"} 1"#,
        r#"lisa_topic_messages{topic="orders",group="",state="waiting"} 5"#,
        r#"lisa_topic_events_total{topic="orders",event="merged"} 4"#,
        r#"lisa_topic_messages{topic="orders",group="billing",state="in_flight"} 4"#,
        r#"lisa_topic_due{topic="orders",within="24h"} 5"#,
        r#"lisa_topic_tombstones{topic="orders"} 7"#,
        r#"lisa_doctor_findings{topic="orders",code="orphan"} 2"#,
        r#"lisa_topic_stored{topic="orders"} 9"#,
        r#"lisa_topic_bytes{topic="orders"} 900"#,
        r#"lisa_topic_max_messages{topic="orders"} 10"#,
        r#"lisa_topic_max_bytes{topic="orders"} 1000"#,
        "lisa_redis_memory_bytes{} 5",
        "lisa_redis_memory_limit_bytes{} 10",
        "lisa_managers{} 2",
        r#"lisa_job_last_success_timestamp_seconds{name="clean"} 1795000000"#,
        r#"lisa_topic_paused{topic="orders",group=""} 1"#,
        r#"lisa_topic_retiring{topic="orders",group="billing"} 0"#,
        r#"lisa_topic_unconfigured{topic="orders",group="billing"} 1"#,
        r#"lisa_topic_consumers{topic="orders",group="billing"} 2"#,
        r#"lisa_topic_oldest_due_age_seconds{topic="orders",group=""} 1.5"#,
        r#"lisa_topic_oldest_ready_age_seconds{topic="orders",group="billing"} 90.0"#,
        r#"lisa_conservation_error{topic="orders"} 0"#,
        r#"lisa_topic_missing_records{topic="orders"} 3"#,
        "lisa_clock_skew_seconds -0.25",
        "lisa_redis_up 1",
        r#"lisa_redis_errors_total{code="LOADING"} 1"#,
        r#"lisa_script_seconds_count{script="send"} 1"#,
        r#"lisa_job_seconds_sum{name="clean"} 1.0"#,
        r#"lisa_job_failures_total{name="clean"} 1"#,
        r#"lisa_schedule_fires_total{schedule="nightly",outcome="sent"} 1"#,
        r#"lisa_schedule_last_timestamp_seconds{schedule="nightly"} 1795000000"#,
        r#"lisa_http_requests_total{route="/v1/topics/{topic}",method="GET",status="200"} 1"#,
        r#"lisa_http_request_seconds_count{route="/v1/topics/{topic}"} 1"#,
    ] {
        assert!(text.lines().any(|found| found == line), "{line}\n{text}");
    }
    assert!(text.ends_with("# EOF\n"));
}

#[test]
fn two_relays_in_one_process_count_apart() {
    let (one, two) = (metrics(), metrics());
    one.moved("orders", 1);
    assert!(!two.encode().contains("orders"));
}

#[test]
fn deliveries_of_one_group_are_counted_together_and_only_by_the_outcomes_they_had() {
    let m = metrics();
    let (one, two) = (m.deliveries("orders", "g"), m.deliveries("orders", "g"));
    assert!(!m.encode().contains("orders"), "nothing ended yet");
    let at = UnixMs::new(1);
    one.ended(Settled::Retry { at });
    one.ended(Settled::Retry { at });
    two.ended(Settled::Retry { at });
    two.ended(Settled::Stale);
    let text = m.encode();
    let prefix = r#"lisa_deliveries_total{topic="orders",group="g","#;
    let mut series: Vec<_> = text
        .lines()
        .filter_map(|line| line.strip_prefix(prefix))
        .collect();
    series.sort_unstable();
    assert_eq!(series, [r#"outcome="retry"} 3"#, r#"outcome="stale"} 1"#]);
    assert!(!text.contains("lateness_seconds_count{"), "{text}");
}

#[test]
fn a_topic_that_is_not_read_any_more_is_gone() {
    let m = metrics();
    m.topics(vec![Arc::new(reading())]);
    let text = m.encode();
    assert!(
        !text.contains(r#"event="moved""#),
        "only for the sums: {text}"
    );
    m.topics(Vec::new());
    m.suspects("orders", "g1", "running", 1);
    m.suspects("orders", "g1", "waiting", 1);
    m.forget_suspects("orders", "g1");
    assert!(!m.encode().contains("orders"));
}

#[test]
fn a_topic_that_is_gone_leaves_no_series() {
    let m = metrics();
    let count = |topic: &str| {
        m.sent(topic, "waiting", 2);
        m.moved(topic, 3);
        m.migrated(topic, 1);
        let deliveries = m.deliveries(topic, "g");
        deliveries.ended(Settled::Acked);
        deliveries.lateness(Duration::from_millis(4));
        deliveries.handled(Duration::from_millis(40));
        m.callback(topic, "g", "acked", "sent");
        m.suspects(topic, "g", "running", 1);
        m.pulls_waiting(topic, "g", 1);
        m.pulled(topic, "g", 1);
        m.completed_later(topic, "g");
        m.sink(topic, "g", true, false, 1);
        m.reclaimed(topic, "g", "retry", 1);
        m.forwarded(topic, "g", "other", 1);
    };
    count("orders");
    count("mail");
    let series = |text: &str, topic: &str| {
        text.lines()
            .filter(|line| line.contains(&format!("topic=\"{topic}\"")))
            .count()
    };
    let before = m.encode();
    m.topic_gone("orders");
    let text = m.encode();
    assert_eq!(series(&text, "orders"), 0, "{text}");
    assert_eq!(series(&text, "mail"), series(&before, "mail"));
    assert!(series(&text, "mail") > 40, "{text}");
    // A topic of the same name counts from zero.
    count("orders");
    assert_eq!(series(&m.encode(), "orders"), series(&before, "orders"));
    assert!(
        m.encode()
            .contains(r#"lisa_messages_sent_total{topic="orders",outcome="waiting"} 2"#)
    );
}

#[test]
fn a_limit_that_is_not_set_is_not_exported() {
    let m = metrics();
    let unlimited = TopicReading {
        max_messages: None,
        max_bytes: None,
        ..reading()
    };
    m.topics(vec![Arc::new(unlimited)]);
    m.redis_memory(6, 0);
    let text = m.encode();
    for name in [
        "topic_max_messages",
        "topic_max_bytes",
        "topic_bytes",
        "redis_memory_limit_bytes",
    ] {
        assert!(!text.contains(&format!("lisa_{name}{{")), "{text}");
    }
    assert!(text.contains("lisa_redis_memory_bytes{} 6"), "{text}");
}
