//! `lisa-manager tail` and the list of failures over HTTP: what an operator sees while messages fail.

use super::deployment::TOPIC;
use super::{Deployment, Role, SOON};
use lisa_tests::{Binary, Launch, Site, Topology, eventually, free_port};
use serde_json::{Value, json};

/// A subscription that rejects each message.
const GRIM: &str = r#"sink = { type = "command", command = ["/bin/sh", "-c", "exit 65"] }"#;

async fn next(tail: &mut Role) -> Value {
    let line = tail.process.next_line(SOON).await;
    serde_json::from_str(&line).unwrap_or_else(|error| panic!("{error}: {line}"))
}

#[tokio::test]
async fn failures_are_printed_as_they_happen_and_listed_afterwards() {
    let here = Deployment::start("shards = 2").await;
    let manager = here.combined().await;
    let _consumer = here.consumer(GRIM).await;
    let api = &manager.api;
    let send = async |id: &str| {
        api.send(TOPIC, "x", &[("Lisa-Id", id)]).await.expect(202);
    };
    send("first").await;
    here.settled(&[("garbage", 1)]).await;
    let arguments = ["tail", TOPIC, "--failures", "--since", "10m"];
    let mut tail = here.launch(Binary::Manager, &arguments, GRIM);
    let first = next(&mut tail).await;
    assert_eq!(first["event"], "garbage", "{first}");
    assert_eq!(
        (&first["id"], &first["attempt"]),
        (&json!("first"), &json!(1)),
        "{first}"
    );
    assert_eq!(
        (&first["outcome"], &first["then"]),
        (&json!("rejected"), &json!("garbage"))
    );
    for id in ["second", "third"] {
        send(id).await;
        assert_eq!(next(&mut tail).await["id"], id);
    }

    let path = format!("/v1/topics/{TOPIC}/failures");
    let page = api.get_json(&format!("{path}?limit=2")).await;
    let ids = |page: &Value| {
        let failures = page["failures"].as_array().expect("a list").iter();
        failures
            .map(|failure| failure["id"].clone())
            .collect::<Vec<_>>()
    };
    assert_eq!(ids(&page), ["third", "second"]);
    let cursor = page["next"].as_str().expect("a cursor");
    let rest = api
        .get_json(&format!("{path}?limit=2&since=24h&cursor={cursor}"))
        .await;
    assert_eq!(
        (ids(&rest), &rest["next"]),
        (vec![json!("first")], &Value::Null)
    );
    let mut listed = rest["failures"][0].clone();
    listed["event"] = json!("garbage");
    assert_eq!(listed, first);
    for (query, status) in [
        ("group=nobody", 404),
        ("limit=0", 422),
        ("limit=1001", 422),
        ("since=yesterday", 422),
        ("cursor=x", 422),
        ("before=x", 422),
    ] {
        let reply = api
            .try_get(&format!("{path}?{query}"))
            .await
            .expect("an answer");
        assert_eq!(reply.status, status, "{query}: {reply:?}");
    }
    here.conserved().await;
}

#[tokio::test]
async fn a_wrong_topic_or_group_ends_a_tail_with_1() {
    let here = Deployment::start("").await;
    let _manager = here.combined().await;
    for (arguments, said) in [
        (vec!["tail", "ordres"], "did you mean"),
        (
            vec!["tail", TOPIC, "--group", "nobody"],
            "has no group nobody",
        ),
    ] {
        let done = here.verb(Binary::Manager, &arguments).await;
        assert_eq!(done.code, Some(1), "{done:?}");
        assert!(done.stderr.contains(said), "{done:?}");
    }
}

#[tokio::test]
async fn a_tail_goes_on_after_a_restart_of_redis() {
    if Site::lacks(Topology::is_one_server, "kills the only server") {
        return;
    }
    let mut here = Deployment::durable("").await;
    let manager = here.combined().await;
    let mut consumer = here.consumer(GRIM).await;
    let mut tail = here.launch(Binary::Manager, &["tail", TOPIC], GRIM);
    let send = async |id: &str| {
        let options = [("Lisa-Id", id)];
        manager.api.send(TOPIC, "x", &options).await.expect(202);
    };
    // Until the first event, the tail may not have begun.
    let mut sent = 0;
    eventually(SOON, async || {
        sent += 1;
        send(&format!("early-{sent}")).await;
        match tail.process.lines() {
            lines if lines.is_empty() => Err(tail.process.stderr()),
            _ => Ok(()),
        }
    })
    .await;
    here.drained().await;
    here.server().kill9();
    eventually(SOON, async || match tail.process.stderr() {
        said if said.contains("cannot read events; retrying: ") => Ok(()),
        said => Err(said),
    })
    .await;
    here.server().restart();
    consumer.ready().await;
    eventually(SOON, async || manager.answers("/readyz", 200).await).await;
    send("late").await;
    let is_late = |line: &Value| line["event"] == "garbage" && line["id"] == "late";
    while !is_late(&next(&mut tail).await) {}
    let said = tail.process.stderr();
    assert!(said.contains("can read events again"), "{said}");
    here.conserved().await;
}

#[tokio::test]
async fn a_closed_pipe_ends_a_tail_with_0() {
    let here = Deployment::start("").await;
    let manager = here.combined().await;
    let _consumer = here.consumer(GRIM).await;
    let send = async |id: &str| {
        let options = [("Lisa-Id", id)];
        manager.api.send(TOPIC, "x", &options).await.expect(202);
    };
    send("first").await;
    here.settled(&[("garbage", 1)]).await;
    let script =
        format!(r#"set -o pipefail; "$0" tail {TOPIC} --failures --since 10m "$@" | head -1"#);
    let program = Binary::Manager.path().into_os_string();
    let mut head = Launch::new("/bin/bash", ["-c".into(), script.into(), program])
        .config(&here.config("lisa-operator", free_port(), GRIM))
        .start();
    let line = head.next_line(SOON).await;
    assert!(line.contains(r#""id":"first""#), "{line}");
    // A tail notices the closed pipe when it prints.
    let mut sent = 0;
    let status = eventually(SOON, async || {
        sent += 1;
        send(&format!("later-{sent}")).await;
        head.exit_status().ok_or("still runs")
    })
    .await;
    assert_eq!((status.code(), head.stderr().as_str()), (Some(0), ""));
    here.conserved().await;
}
