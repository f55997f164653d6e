//! The verbs that watch a relay: `check`, `explain` and `top`.

use super::operators::lisa_manager;
use super::{Running, SOON, after, config, put_in_garbage, send, wait_for};
use lisa_core::broker::NO_MANAGER;
use lisa_core::state::State;
use lisa_tests::relay::{self, ms};
use lisa_tests::{Binary, Server, eventually, free_port};
use redis::cmd;
use serde_json::{Value, json};
use std::time::Duration;

#[tokio::test]
async fn check_reports_the_worst_problem_as_an_exit_code() {
    let server = Server::start();
    let running = Running::start(&config(&server, "cli", &[("topics.orders.shards", "1")])).await;
    let topic = running.topic("orders").await;
    let run = async |arguments: &[&str]| {
        let check = ["check", "--late", "1h", "--oldest", "2h"];
        let arguments = [&check[..], arguments].concat();
        lisa_manager(&server, &arguments).run(SOON).await
    };
    let good = run(&[]).await;
    let printed = (good.code, good.stdout.as_str());
    assert_eq!(printed, (Some(0), "LISA OK: no problems\n"), "{good:?}");

    put_in_garbage(running.broker(), &topic, "g1").await;
    let warning = run(&[]).await;
    assert_eq!(warning.code, Some(1), "{warning:?}");
    let garbage = "LISA WARNING: orders/default: 1 message in garbage\n";
    assert_eq!(warning.stdout, garbage);
    assert_eq!(run(&["--garbage", "1"]).await.code, Some(0));
    let json_of = run(&["--output", "json"]).await;
    let found: Value = serde_json::from_str(&json_of.stdout).unwrap();
    assert_eq!(
        (&found["status"], &found["troubles"][0]["status"]),
        (&json!("warning"), &json!("warning"))
    );

    send(running.broker(), &topic, relay::message("m", ms(0))).await;
    wait_for(running.broker(), &topic, State::Ready, 1, SOON).await;
    let verb = |late: &'static str, oldest: &'static str| {
        lisa_manager(
            &server,
            &[
                "check",
                "--late",
                late,
                "--oldest",
                oldest,
                "--garbage",
                "1",
            ],
        )
    };
    eventually(SOON, async || {
        let late = verb("1ms", "2h").run(SOON).await;
        let is_late = late.stdout.contains("oldest due message has waited for");
        (late.code == Some(1) && is_late)
            .then_some(())
            .ok_or(late.stdout)
    })
    .await;
    assert_eq!(verb("1ms", "1ms").run(SOON).await.code, Some(2));
    running.broker().pause(&topic, true).await.unwrap();
    let paused = verb("1ms", "1ms").run(SOON).await;
    assert_eq!(paused.code, Some(0), "a pause is intended: {paused:?}");
    let notice = "LISA OK: orders: paused, nothing becomes ready\n";
    assert_eq!(paused.stdout, notice);
    let unknown = run(&["--topic", "odrers"]).await;
    assert_eq!(unknown.code, Some(3), "{unknown:?}");
}

#[tokio::test]
async fn a_deleted_record_of_a_waiting_message_is_critical_and_in_the_metrics() {
    let server = Server::start();
    let running = Running::start(&config(&server, "cli", &[("topics.orders.shards", "1")])).await;
    let topic = running.topic("orders").await;
    running.holds(1).await;
    send(running.broker(), &topic, relay::message("m", ms(3_600_000))).await;
    let metric = async || {
        running.job("statistics").await;
        let text = running.runtime.metrics.encode();
        let line = |line: &&str| line.starts_with("lisa_topic_missing_records");
        text.lines().find(line).map(str::to_owned)
    };
    let line = |count| {
        Some(format!(
            r#"lisa_topic_missing_records{{topic="orders"}} {count}"#
        ))
    };
    assert_eq!(metric().await, line(0));
    let key = "cli:v1:{orders:0}:payload";
    let deleted: u32 = running.on_key(key, cmd("HDEL").arg(key).arg("m")).await;
    assert_eq!(deleted, 1);
    assert_eq!(metric().await, line(1));
    let checked = lisa_manager(&server, &["check"]).run(SOON).await;
    let printed = (checked.code, checked.stdout.as_str());
    let critical = "LISA CRITICAL: orders: 1 message without a record\n";
    assert_eq!(printed, (Some(2), critical), "{checked:?}");
}

#[tokio::test]
async fn check_without_a_manager_is_critical_and_without_redis_unknown() {
    let server = Server::start();
    let lone = lisa_manager(&server, &["check"]).run(SOON).await;
    assert_eq!(lone.code, Some(2), "{lone:?}");
    assert_eq!(lone.stdout, format!("LISA CRITICAL: {NO_MANAGER}\n"));
    let url = format!("redis://127.0.0.1:{}", free_port());
    let check = Binary::Manager.with(["check", "--redis-url", &url]);
    let unknown = check.run(SOON).await;
    assert_eq!(unknown.code, Some(3), "{unknown:?}");
    assert!(unknown.stdout.starts_with("LISA UNKNOWN: "), "{unknown:?}");
}

#[tokio::test]
async fn explain_says_where_a_message_is_and_watches_it_to_its_end() {
    let server = Server::start();
    let running = Running::start(&config(&server, "cli", &[("topics.orders.shards", "1")])).await;
    let topic = running.topic("orders").await;
    let id = send(running.broker(), &topic, after(Duration::from_secs(3600))).await;
    let once = lisa_manager(&server, &["explain", "orders", id.as_str()]);
    let once = once.run(SOON).await;
    let head = format!("orders/{id}: waiting");
    assert!(once.stdout.starts_with(&head), "{once:?}");
    assert!(once.stdout.contains("  due at "), "{once:?}");
    assert!(once.stdout.contains("  group default: "), "{once:?}");

    let watch = ["explain", "orders", id.as_str(), "--watch"];
    let mut watch = lisa_manager(&server, &watch).start();
    assert_eq!(watch.next_line(SOON).await, head);
    let cancel = Binary::Producer.with(["cancel", "orders", id.as_str()]);
    let cancel = cancel.env("LISA_REDIS__URL", &server.socket_url());
    let cancel = cancel.env("LISA_NAMESPACE", "cli").run(SOON).await;
    assert_eq!(cancel.code, Some(0), "{cancel:?}");
    assert!(watch.wait_exit(SOON).await.success());
    let lines = watch.lines_to_end(SOON).await;
    let last = lines.last().map(String::as_str).unwrap_or_default();
    assert!(last.contains("has ended: cancelled"), "{lines:?}");

    let gone = lisa_manager(&server, &["explain", "orders", "nix"]);
    assert_eq!(gone.run(SOON).await.code, Some(1));
}

#[tokio::test]
async fn top_shows_each_group_and_refreshes() {
    let server = Server::start();
    let keys = [
        ("topics.orders.groups", "billing"),
        ("topics.hooks.shards", "1"),
    ];
    let running = Running::start(&config(&server, "cli", &keys)).await;
    let topic = running.topic("orders").await;
    send(running.broker(), &topic, relay::message("m", ms(0))).await;
    wait_for(running.broker(), &topic, State::Ready, 1, SOON).await;
    // The manager counts every few seconds.
    eventually(SOON, async || {
        let once = lisa_manager(&server, &["top", "--once"]).run(SOON).await;
        assert_eq!(once.code, Some(0), "{once:?}");
        assert!(!once.stdout.contains('\x1b'), "no terminal: {once:?}");
        let lines: Vec<&str> = once.stdout.lines().collect();
        let has_all = lines[0].starts_with("managers: 1   topics: 2   groups: 2");
        // The group with the oldest message comes first.
        match has_all && lines[2].trim_start().starts_with("orders") {
            true => Ok(()),
            false => Err(once.stdout),
        }
    })
    .await;
    let one = ["top", "--once", "--topic", "hooks"];
    let one = lisa_manager(&server, &one).run(SOON).await;
    assert!(!one.stdout.contains("billing"), "{one:?}");

    let mut top = lisa_manager(&server, &["top", "--interval", "250ms"]).start();
    let mut pictures = 0;
    while pictures < 2 {
        let line = top.next_line(SOON).await;
        pictures += u32::from(line.starts_with("managers: "));
    }
    let often = lisa_manager(&server, &["top", "--interval", "1ms"]);
    assert_eq!(often.run(SOON).await.code, Some(2));
}
