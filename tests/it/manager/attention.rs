//! Failing schedules among what needs attention, over HTTP, on the command line and in the dashboard.

use super::SOON;
use super::operators::lisa_manager;
use super::schedules::{create, served};
use super::served::Served;
use lisa_tests::{Server, eventually};
use reqwest::Method;
use serde_json::{Value, json};

/// The troubles with schedules.
async fn troubles(served: &Served, query: &str) -> Vec<Value> {
    let path = format!("/v1/attention{query}");
    let found = served.api.get_json(&path).await;
    let found = found["troubles"].as_array().unwrap().clone();
    let of_schedules = |one: &Value| one["kind"] == "failing_schedules";
    found.into_iter().filter(of_schedules).collect()
}

async fn topic(served: &Served, method: Method, path: &str) -> u16 {
    let request = served.api.request(method, &format!("/v1/topics/{path}"));
    lisa_tests::http::reply(request.json(&json!({})))
        .await
        .status
}

#[tokio::test]
async fn a_failing_schedule_needs_attention_until_it_sends_again() {
    let server = Server::start();
    let served = served(&server, &[]).await;
    assert_eq!(topic(&served, Method::PUT, "gone").await, 201);
    create(&served, "well", "a", "* * * * * *").await;
    create(&served, "lost", "gone", "* * * * * *").await;
    assert_eq!(troubles(&served, "").await, [Value::Null; 0]);
    let removed = topic(&served, Method::DELETE, "gone?how=force").await;
    assert_eq!(removed, 202);
    let found = eventually(SOON, async || {
        let found = troubles(&served, "").await;
        // A topic that is being removed causes another error.
        let is_gone = |one: &Value| one["what"].to_string().contains("not registered");
        match found.first().is_some_and(is_gone) {
            true => Ok(found),
            false => Err(json!(found)),
        }
    })
    .await;
    let what = "schedule lost cannot send: topic gone is not registered";
    assert!(
        found[0]["what"].as_str().unwrap().starts_with(what),
        "{found:?}"
    );
    let fields = ["status", "topic", "schedule"].map(|field| found[0][field].clone());
    assert_eq!(
        (found.len(), fields),
        (1, ["warning", "gone", "lost"].map(Value::from))
    );
    assert_eq!(troubles(&served, "?topic=a").await, [Value::Null; 0]);
    let check = ["check", "--late=1h", "--oldest=2h", "--url", &served.url];
    let checked = lisa_manager(&server, &check).run(SOON).await;
    assert_eq!(checked.code, Some(1), "{checked:?}");
    let line = format!("LISA WARNING: gone: {what}");
    assert!(checked.stdout.starts_with(&line), "{checked:?}");
    let page = served.api.get("/").await.expect(200).body;
    assert!(page.contains("href=\"/schedules/lost\""), "{page}");
    assert!(page.contains(what), "{page}");
    // One that is paused needs no attention.
    let pause = async |verb: &str| {
        let path = format!("schedules/lost/{verb}");
        served.post(&path, Value::Null).await.expect(200);
    };
    pause("pause").await;
    assert_eq!(troubles(&served, "").await, [Value::Null; 0]);
    pause("resume").await;
    assert_eq!(troubles(&served, "").await.len(), 1);
    assert_eq!(topic(&served, Method::PUT, "gone").await, 201);
    eventually(SOON, async || {
        let found = troubles(&served, "").await;
        found.is_empty().then_some(()).ok_or(json!(found))
    })
    .await;
}

#[tokio::test]
async fn of_many_failing_schedules_some_are_named_and_a_thousand_are_counted() {
    let server = Server::start();
    let served = served(&server, &[]).await;
    let mut connection = server.connection().await;
    let mut all = redis::pipe();
    let key = |name: &str| format!("by-call:v1:{{registry}}:{name}");
    let definition = r#"{"topic":"a","cron":"0 0 0 1 1 *","payload":"","time_zone":"UTC"}"#;
    for number in 0..1001 {
        let name = format!("s{number:04}");
        let failed = format!("0 0 1 {}", "no ".repeat(60));
        all.hset(key("schedule_definitions"), &name, definition);
        all.hset(key("schedule_progress"), &name, "1 1 0 0 0 1 1 * UTC");
        all.hset(key("schedule_faults"), &name, failed);
        all.zadd(key("failing_schedules"), &name, 0);
    }
    let _: () = all.query_async(&mut connection).await.unwrap();
    let found = troubles(&served, "").await;
    let what: Vec<_> = found
        .iter()
        .map(|one| one["what"].as_str().unwrap())
        .collect();
    assert_eq!(what.len(), 2, "{what:?}");
    let start = "schedules s0000, s0001, s0002 and 997 more cannot send: no no";
    assert!(
        what[0].starts_with(start) && what[0].len() < 200,
        "{what:?}"
    );
    assert_eq!(
        what[1],
        "there are more failing schedules than are counted here"
    );
    assert_eq!(found[0]["schedule"], "s0000");
    // A run shows that it can send.
    let run = served.post("schedules/s0000/run", Value::Null).await;
    run.expect(200);
    let found = troubles(&served, "").await;
    let start = "schedules s0001, s0002, s0003 and 997 more cannot send";
    assert!(found[0]["what"].as_str().unwrap().starts_with(start));
    assert_eq!(found.len(), 1, "a thousand are left");
}
