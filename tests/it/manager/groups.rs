//! Groups as operators and jobs handle them: fan-out, pause, drain, drop, keep, and groups of one instance.

use super::operators::lisa_manager;
use super::served::Served;
use super::{Running, SOON, config, send, wait_for};
use lisa_core::broker::{Broker, GroupStats, Retirement, TopicHandle, Verdict};
use lisa_core::message::{Options, PreparedMessage};
use lisa_core::state::State;
use lisa_core::topic::Group;
use lisa_tests::relay::{self, ms};
use lisa_tests::{Api, Server, eventually, free_port};
use redis::cmd;
use serde_json::{Value, json};

/// Jobs run only when a test asks for it.
const NEVER: (&str, &str) = ("manager.jobs.clean", "0 0 0 1 1 *");

fn group(name: &str) -> Group {
    name.parse().expect("a group")
}

/// Adds a group that no configuration names, as an earlier configuration would have left it.
async fn add_group(server: &Server, namespace: &str, groups: &str) {
    let earlier = config(server, namespace, &[("topics.t.groups", groups)]);
    let running = Running::start(&earlier).await;
    running.runtime.shutdown.begin();
    running.runtime.supervisor.join().await.expect("ended");
}

async fn stats_of(broker: &Broker, topic: &TopicHandle, name: &str) -> Option<GroupStats> {
    let stats = broker.stats(topic).await.expect("counted");
    assert_eq!(stats.conservation_error, 0, "{stats:#?}");
    stats
        .groups
        .into_iter()
        .find(|counts| counts.group.as_str() == name)
}

/// Sends messages that are due, and waits until each group has them.
async fn send_due(running: &Running, topic: &TopicHandle, count: usize) {
    for _ in 0..count {
        send(running.broker(), topic, PreparedMessage::new("payload")).await;
    }
    wait_for(running.broker(), topic, State::Waiting, 0, SOON).await;
}

/// Reads a group's messages until there are `count`, and acknowledges them.
async fn ack_all(running: &Running, topic: &TopicHandle, group: &Group, count: usize) {
    let broker = running.broker();
    let mut reader = broker.connection().any().reader().await.expect("a reader");
    let mut acked = 0;
    while acked < count {
        for shard in topic.shards() {
            let read = broker.read(&mut reader, topic, shard, group, "c", 100, ms(10));
            let settlements: Vec<_> = read
                .await
                .expect("read")
                .iter()
                .map(|read| relay::settlement(read, Verdict::Ack))
                .collect();
            let settled = broker.settle(topic, shard, group, &settlements).await;
            acked += settled.expect("settled").len();
        }
    }
}

/// The messages that are stored on a shard of topic `t`.
async fn stored(server: &Server, namespace: &str, shard: u16) -> u64 {
    let mut connection = server.connection().await;
    let mut len = cmd("HLEN");
    let key = format!("{namespace}:v1:{{t:{shard}}}:payload");
    len.arg(key)
        .query_async(&mut connection)
        .await
        .expect("HLEN")
}

#[tokio::test]
async fn the_command_line_pauses_drains_keeps_and_drops_a_group() {
    let server = Server::start();
    let keys = [("topics.t.groups", "a,b"), ("topics.t.shards", "2"), NEVER];
    let running = Running::start(&config(&server, "cli", &keys)).await;
    let topic = running.topic("t").await;
    let run = async |arguments: &[&str]| lisa_manager(&server, arguments).run(SOON).await;
    let list = async || {
        let list = run(&["groups", "list", "t", "--output", "json"]).await;
        serde_json::from_str::<Value>(&list.stdout).unwrap()["groups"].clone()
    };
    let paused = run(&["pause", "t", "--group", "b"]).await;
    assert_eq!(paused.stdout, "t/b is paused\n");
    let paused = run(&["pause", "t", "--group", "b"]).await;
    assert_eq!(paused.stdout, "t/b is already paused\n");
    // More than one batch on each shard.
    send_due(&running, &topic, 500).await;
    let groups = list().await;
    assert_eq!(
        (&groups[0]["ready"], &groups[0]["backlog"]),
        (&json!(500), &json!(0))
    );
    assert_eq!(
        (&groups[1]["ready"], &groups[1]["backlog"]),
        (&json!(0), &json!(500))
    );
    assert_eq!(
        (&groups[1]["paused"], &groups[1]["configured"]),
        (&json!(true), &json!(true))
    );
    let table = run(&["stats"]).await.stdout;
    assert!(
        table.contains("general") && table.contains("b (paused)"),
        "{table}"
    );
    let columns = "topic,topic_state,group,group_state";
    let csv = run(&["stats", "--output", "csv", "--columns", columns]).await;
    let expected = format!("{columns}\nt,,a,\nt,,b,paused\n");
    assert_eq!(csv.stdout, expected);
    let page = run(&[
        "messages", "list", "t", "--state", "backlog", "--group", "b", "--limit", "5",
    ]);
    let page = page.await.stdout;
    assert!(
        page.matches("backlog").count() == 5 && page.contains("more: --cursor"),
        "{page}"
    );

    let drain = run(&["groups", "drain", "t", "b"]).await;
    assert_eq!(
        drain.stdout,
        "t/b is draining: 500 backlog\nit is paused: draining continues when it is resumed\n\
         no consumer reads it: start one to drain it\n"
    );
    assert!(
        drain
            .stderr
            .contains("t/b is still in the topic's settings"),
        "{drain:?}"
    );
    let last = run(&["groups", "drain", "t", "a"]).await;
    assert_eq!(last.code, Some(0));
    let waits =
        "t has no other group that gets messages: due messages wait until a group is added or kept";
    assert!(last.stderr.contains(waits), "{last:?}");
    assert_eq!(
        run(&["groups", "keep", "t", "a"]).await.stdout,
        "t/a is kept\n"
    );
    // A message that becomes due while it retires does not go to it.
    send_due(&running, &topic, 1).await;
    assert_eq!(list().await[1]["retiring"], "drain");
    assert_eq!(
        run(&["groups", "keep", "t", "b"]).await.stdout,
        "t/b is kept\n"
    );
    send_due(&running, &topic, 1).await;
    assert_eq!(list().await[1]["backlog"], 501);

    let asked = run(&["groups", "drop", "t", "b"]).await;
    assert_eq!(asked.code, Some(2), "{asked:?}");
    assert_eq!(list().await[1]["backlog"], 501);
    let dropped = run(&["groups", "drop", "t", "b", "--yes"]).await;
    assert_eq!(dropped.stdout, "t/b is removed, dropped 501 messages\n");
    assert_eq!(list().await.as_array().unwrap().len(), 1);
    let unknown = run(&["groups", "drop", "t", "b", "--yes"]).await;
    assert_eq!(unknown.code, Some(1));
    assert!(unknown.stderr.contains("no group b, only a"), "{unknown:?}");
    assert_eq!(stats_of(running.broker(), &topic, "b").await, None);
    let stats = running.broker().stats(&topic).await.unwrap();
    assert_eq!(stats.counters["dropped"], 501);
    // The other group's messages are whole.
    ack_all(&running, &topic, &group("a"), 502).await;
    for shard in 0..2 {
        assert_eq!(stored(&server, "cli", shard).await, 0);
    }
}

#[tokio::test]
async fn the_command_line_says_why_a_message_has_not_run() {
    let server = Server::start();
    let keys = [("topics.t.groups", "a,b"), ("topics.t.max_ready", "1")];
    let running = Running::start(&config(&server, "cli", &keys)).await;
    let topic = running.topic("t").await;
    let broker = running.broker();
    broker.pause_group(&topic, &group("b"), true).await.unwrap();
    for name in ["k1", "k2", "n1"] {
        let mut message = relay::message(name, ms(0));
        message.options = Options {
            key: name.strip_prefix('k').map(|_| "key".parse().unwrap()),
            ..Options::default()
        };
        send(broker, &topic, message).await;
    }
    wait_for(broker, &topic, State::Waiting, 0, SOON).await;
    let run = async |arguments: &[&str]| lisa_manager(&server, arguments).run(SOON).await.stdout;
    let json = async |arguments: &[&str]| {
        let arguments = [arguments, &["--output", "json"]].concat();
        serde_json::from_str::<Value>(&run(&arguments).await).unwrap()
    };
    let parked = json(&["messages", "list", "t", "--state", "parked", "--group", "a"]).await;
    let parked = parked["messages"].as_array().unwrap();
    assert_eq!((parked.len(), &parked[0]["id"]), (1, &json!("k2")));
    let due = json(&["messages", "show", "t", "k2"]).await["due_at"].clone();
    assert_eq!(due, parked[0]["due_at"]);
    let k2 = run(&["messages", "show", "t", "k2"]).await;
    assert!(
        k2.contains("parked: behind k1 of the same ordering key"),
        "{k2}"
    );
    let n1 = run(&["messages", "show", "t", "n1"]).await;
    let full = "backlog: the window is full: 1 ready or in flight; 0 before it";
    assert!(
        n1.contains(full) && n1.contains("backlog: held back; the group is paused"),
        "{n1}"
    );
    let k1 = json(&["messages", "show", "t", "k1"]).await;
    assert_eq!(
        k1["groups"][0],
        json!({ "group": "a", "state": "ready", "why": "ready, no consumer has read it yet; 0 before it" })
    );
    let k1 = run(&["messages", "show", "t", "k1"]).await;
    assert!(!k1.contains("ready: ready"), "{k1}");
}

#[tokio::test]
async fn groups_are_paused_drained_kept_and_dropped_over_http() {
    let server = Server::start();
    add_group(&server, "http", "a,b").await;
    let served = Served::start(&server, "http", &[("topics.t.groups", "a"), NEVER]).await;
    let (api, broker) = (&served.api, &served.broker);
    let topic = broker.topic(&"t".parse().unwrap()).await.unwrap();
    let counted = api.get_json("/v1/stats").await["topics"][0]["groups"].clone();
    assert_eq!(
        (&counted[0]["unconfigured"], &counted[1]["unconfigured"]),
        (&Value::Null, &json!(true))
    );
    let table = lisa_manager(&server, &["stats"])
        .env("LISA_NAMESPACE", "http")
        .run(SOON)
        .await;
    assert!(table.stdout.contains("b (not configured)"), "{table:?}");
    api.call(
        reqwest::Method::POST,
        "/v1/jobs/statistics/run",
        &Value::Null,
    )
    .await
    .expect(200);
    let metrics = api.get("/metrics").await.expect(200).body;
    for line in [
        r#"lisa_topic_unconfigured{topic="t",group="a"} 0"#,
        r#"lisa_topic_unconfigured{topic="t",group="b"} 1"#,
    ] {
        assert!(
            metrics.lines().any(|found| found == line),
            "{line}\n{metrics}"
        );
    }
    let shown = api.get_json("/v1/topics/t").await["groups"].clone();
    assert_eq!(
        (&shown[0]["group"], &shown[0]["configured"]),
        (&json!("a"), &json!(true))
    );
    assert_eq!(
        (&shown[1]["group"], &shown[1]["configured"]),
        (&json!("b"), &json!(false))
    );

    let post = async |path: &str| api.call(reqwest::Method::POST, path, &Value::Null).await;
    let base = "/v1/topics/t/groups/b";
    let paused = post(&format!("{base}/pause")).await.expect(200).json();
    assert_eq!(
        paused,
        json!({ "topic": "t", "group": "b", "paused": true, "changed": true })
    );
    send(broker, &topic, relay::message("m1", ms(0))).await;
    eventually(SOON, async || match stats_of(broker, &topic, "b").await {
        Some(counts) if counts.backlog == 1 => Ok(()),
        other => Err(format!("{other:?}")),
    })
    .await;
    let message = api.get_json("/v1/topics/t/messages/m1").await;
    assert_eq!(
        (&message["id"], &message["payload"]),
        (&json!("m1"), &json!("payload of m1"))
    );
    assert_eq!(
        message["groups"][1]["why"],
        "held back; the group is paused"
    );
    let unknown = api
        .get("/v1/topics/t/messages/nix")
        .await
        .expect(404)
        .json();
    assert_eq!(unknown["code"], "not_found");
    api.get("/v1/topics/t/messages/n!x").await.expect(422);
    post(&format!("{base}/resume")).await.expect(200);
    eventually(SOON, async || match stats_of(broker, &topic, "b").await {
        Some(counts) if counts.ready == 1 => Ok(()),
        other => Err(format!("{other:?}")),
    })
    .await;

    let retired = |retiring: Value, changed: bool| json!({ "topic": "t", "group": "b", "retiring": retiring, "changed": changed, "left": 1 });
    let drain = post(&format!("{base}/drain")).await.expect(202).json();
    assert_eq!(drain, retired(json!("drain"), true));
    let drain = post(&format!("{base}/drain")).await.expect(202).json();
    assert_eq!(drain, retired(json!("drain"), false));
    let last = post("/v1/topics/t/groups/a/drain").await.expect(202).json();
    assert_eq!(last["messages_wait"], true);
    let keep = post("/v1/topics/t/groups/a/keep").await.expect(200).json();
    assert_eq!(keep["messages_wait"], Value::Null);
    let keep = post(&format!("{base}/keep")).await.expect(200).json();
    assert_eq!(keep, retired(Value::Null, true));
    let dropped = post(&format!("{base}/drop")).await.expect(202).json();
    assert_eq!(dropped, retired(json!("drop"), true));
    // The call did not leave it to the job.
    assert_eq!(stats_of(broker, &topic, "b").await, None);
    for verb in ["pause", "resume", "drain", "drop", "keep"] {
        let unknown = post(&format!("{base}/{verb}")).await.expect(404).json();
        assert_eq!(unknown["detail"], "topic t has no group b, only a");
    }
    let paths = api.get_json("/openapi.json").await["paths"].clone();
    assert!(paths["/v1/topics/{topic}/groups/{group}/drop"]["post"].is_object());
    assert!(paths["/v1/topics/{topic}/messages/{id}"]["get"].is_object());
    served.end().await;
}

#[tokio::test]
async fn a_manager_warns_once_of_a_group_that_its_file_does_not_name() {
    let server = Server::start();
    add_group(&server, "cli", "a,b,c").await;
    let running = Running::start(&config(&server, "cli", &[("topics.t.groups", "a,c")])).await;
    let topic = running.topic("t").await;
    running
        .broker()
        .join(&topic, &group("instance-1"))
        .await
        .unwrap();
    let port = free_port();
    let listen = format!("127.0.0.1:{port}");
    let start = async || {
        let launch = lisa_manager(&server, &["run", "--listen", &listen]);
        let mut process = launch.env("LISA_TOPICS__T__GROUPS", "a,c").start();
        let api = Api::new(port);
        eventually(SOON, async || match api.try_get("/readyz").await {
            Some(reply) if reply.status == 200 => Ok(()),
            other => Err(format!("{other:?}")),
        })
        .await;
        process.sigterm();
        process.wait_exit(SOON).await;
        process.stderr()
    };
    let log = start().await;
    assert_eq!(log.matches("does not name").count(), 1, "{log}");
    for command in [
        "lisa-manager groups drain t b",
        "lisa-manager groups drop t b",
    ] {
        assert!(log.contains(command), "{log}");
    }
    // The manager that retires it knows of it.
    let drain = Some(Retirement::Drain);
    running
        .broker()
        .retire(&topic, &group("b"), drain)
        .await
        .unwrap();
    let log = start().await;
    assert_eq!(log.matches("does not name").count(), 0, "{log}");
}

#[tokio::test]
async fn a_drained_group_is_removed_once_its_consumers_have_finished() {
    let server = Server::start();
    let keys = [("topics.t.groups", "a,b"), NEVER];
    let running = Running::start(&config(&server, "drain", &keys)).await;
    let topic = running.topic("t").await;
    running.holds(1).await;
    send_due(&running, &topic, 3).await;
    let (broker, b) = (running.broker(), group("b"));
    broker
        .retire(&topic, &b, Some(Retirement::Drain))
        .await
        .unwrap();
    send_due(&running, &topic, 1).await;
    assert_eq!(running.job("clean").await["groups"], 0);
    let left = stats_of(broker, &topic, "b").await.unwrap();
    assert_eq!((left.ready, left.retiring), (3, Some(Retirement::Drain)));
    ack_all(&running, &topic, &b, 3).await;
    let report = running.job("clean").await;
    assert_eq!(
        (&report["groups"], &report["dropped"]),
        (&json!(1), &json!(0))
    );
    assert_eq!(stats_of(broker, &topic, "b").await, None);
    // Its acknowledged messages still count, and the other group has all four.
    assert_eq!(broker.stats(&topic).await.unwrap().counters["acked"], 3);
    ack_all(&running, &topic, &group("a"), 4).await;
    assert_eq!(stored(&server, "drain", 0).await, 0);
}

#[tokio::test]
async fn a_group_of_an_instance_that_fell_silent_vanishes_with_what_it_had() {
    let server = Server::start();
    let keys = [("topics.t.instance_ttl", "5s"), NEVER];
    let running = Running::start(&config(&server, "instance", &keys)).await;
    let topic = running.topic("t").await;
    let broker = running.broker();
    let (alive, silent) = (group("instance-1"), group("instance-2"));
    broker.join(&topic, &silent).await.unwrap();
    send_due(&running, &topic, 250).await;
    let counts = stats_of(broker, &topic, "instance-2").await.unwrap();
    assert_eq!((counts.ready, counts.instance), (250, true));
    eventually(SOON, async || {
        broker.join(&topic, &alive).await.unwrap();
        running.job("clean").await;
        match stats_of(broker, &topic, "instance-2").await {
            None => Ok(()),
            Some(counts) => Err(format!("{counts:?}")),
        }
    })
    .await;
    assert!(stats_of(broker, &topic, "instance-1").await.is_some());
    assert_eq!(broker.stats(&topic).await.unwrap().counters["dropped"], 250);
    assert_eq!(stored(&server, "instance", 0).await, 250);
    ack_all(&running, &topic, &group("default"), 250).await;
    assert_eq!(stored(&server, "instance", 0).await, 0);
}

/// Simulates a process that was killed while it renewed the leases of one shard after the other.
#[tokio::test]
async fn a_group_of_an_instance_that_is_left_on_one_shard_vanishes_there_too() {
    let server = Server::start();
    let keys = [
        ("topics.t.instance_ttl", "5s"),
        ("topics.t.shards", "2"),
        NEVER,
    ];
    let settings = config(&server, "left", &keys);
    let silent = group("instance-1");
    let groups = async |shard: u16| -> String {
        let mut ask = cmd("HGET");
        let ask = ask.arg(format!("left:v1:{{t:{shard}}}:conf")).arg("groups");
        ask.query_async(&mut server.connection().await)
            .await
            .unwrap()
    };
    let gone_from = async |running: &Running, shard: u16| {
        eventually(SOON, async || {
            running.job("clean").await;
            match groups(shard).await {
                names if names == "default" => Ok(()),
                names => Err(names),
            }
        })
        .await;
    };
    let first = Running::start(&settings).await;
    let topic = first.topic("t").await;
    first.broker().join(&topic, &silent).await.unwrap();
    let renew = async |ms: i64| {
        let mut renew = cmd("HINCRBY");
        renew.arg("left:v1:{t:1}:conf").arg("instance:instance-1");
        let connection = &mut server.connection().await;
        let _: u64 = renew.arg(ms).query_async(connection).await.unwrap();
    };
    renew(3_600_000).await;
    gone_from(&first, 0).await;
    assert_eq!(groups(1).await, "default instance-1");
    // Another manager has never seen the group, and reads the settings of the first shard.
    let second = Running::start(&settings).await;
    assert!(second.topic("t").await.groups().contains(&silent));
    first.runtime.shutdown.end();
    renew(-3_600_000).await;
    gone_from(&second, 1).await;
}

#[tokio::test]
async fn metrics_say_what_is_paused_retiring_stored_and_counted() {
    let server = Server::start();
    let keys = [
        ("topics.t.groups", "a,b"),
        ("topics.t.max_bytes", "1MiB"),
        NEVER,
    ];
    let running = Running::start(&config(&server, "metrics", &keys)).await;
    let topic = running.topic("t").await;
    running.holds(1).await;
    let broker = running.broker();
    broker.pause_group(&topic, &group("b"), true).await.unwrap();
    send(broker, &topic, relay::message("m1", ms(0))).await;
    send(broker, &topic, relay::message("m1", ms(0))).await;
    wait_for(broker, &topic, State::Waiting, 0, SOON).await;
    let metrics = async || {
        running.job("statistics").await;
        running.runtime.metrics.encode()
    };
    let has = |text: &str, lines: &[&str]| {
        for line in lines {
            assert!(text.lines().any(|found| found == *line), "{line}\n{text}");
        }
    };
    // So that whole milliseconds have passed since both became due.
    eventually(SOON, async || {
        let age = broker.stats(&topic).await.unwrap().overdue_ms;
        (age > 1).then_some(()).ok_or(age)
    })
    .await;
    let text = metrics().await;
    for gauge in [
        r#"oldest_due_age_seconds{topic="t",group=""}"#,
        r#"oldest_due_age_seconds{topic="t",group="a"}"#,
        r#"oldest_ready_age_seconds{topic="t",group="a"}"#,
        r#"oldest_due_age_seconds{topic="t",group="b"}"#,
    ] {
        let line = text
            .lines()
            .find_map(|line| line.strip_prefix(&format!("lisa_topic_{gauge} ")));
        let age: f64 = line.expect(gauge).parse().unwrap();
        assert!(age > 0.001, "{gauge} {age}");
    }
    let bytes = broker.stats(&topic).await.unwrap().bytes;
    assert!(bytes > "payload of m1".len() as u64);
    has(
        &metrics().await,
        &[
            r#"lisa_topic_messages{topic="t",group="b",state="backlog"} 1"#,
            r#"lisa_topic_messages{topic="t",group="b",state="parked"} 0"#,
            r#"lisa_topic_paused{topic="t",group=""} 0"#,
            r#"lisa_topic_paused{topic="t",group="a"} 0"#,
            r#"lisa_topic_paused{topic="t",group="b"} 1"#,
            r#"lisa_topic_retiring{topic="t",group="b"} 0"#,
            r#"lisa_topic_unconfigured{topic="t",group="b"} 0"#,
            r#"lisa_topic_stored{topic="t"} 1"#,
            r#"lisa_topic_consumers{topic="t",group="a"} 0"#,
            r#"lisa_topic_oldest_ready_age_seconds{topic="t",group="b"} 0.0"#,
            &format!(r#"lisa_topic_bytes{{topic="t"}} {bytes}"#),
            r#"lisa_topic_events_total{topic="t",event="accepted"} 1"#,
            r#"lisa_topic_events_total{topic="t",event="duplicates"} 1"#,
            r#"lisa_topic_events_total{topic="t",event="merged"} 0"#,
        ],
    );
    broker
        .retire(&topic, &group("b"), Some(Retirement::Drop))
        .await
        .unwrap();
    has(
        &metrics().await,
        &[r#"lisa_topic_retiring{topic="t",group="b"} 1"#],
    );
    running.job("clean").await;
    let text = metrics().await;
    has(
        &text,
        &[r#"lisa_topic_events_total{topic="t",event="dropped"} 1"#],
    );
    assert!(!text.contains(r#"group="b""#), "{text}");
}
