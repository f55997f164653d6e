//! The manager as operators see it: HTTP interface and command line.

use super::served::Served;
use super::{Running, SOON, config, put_in_garbage, send, wait_for};
use lisa_core::broker::{Broker, NO_MANAGER};
use lisa_core::state::State;
use lisa_tests::relay::{self, ms};
use lisa_tests::{Api, Binary, Launch, Server, eventually, free_port};
use redis::cmd;
use serde_json::{Value, json};

const GARBAGE: &str = "topics/orders/groups/billing/garbage";

/// A manager with a producer, and a message of one hour, `m1`, in the topic `orders` of the group `billing`.
async fn operated(server: &Server) -> Served {
    let keys = [("topics.orders.groups", "billing")];
    let served = Served::with(server, "cli", &keys, true).await;
    let headers = [("Lisa-Delay", "1h"), ("Lisa-Id", "m1")];
    let sent = served.api.send("orders", "one", &headers).await;
    sent.expect(202);
    served
}

/// The same with `g1`, `g2` and `g3` in garbage.
async fn with_garbage(server: &Server) -> Served {
    let served = operated(server).await;
    let orders = served.topic().await;
    for id in ["g1", "g2", "g3"] {
        put_in_garbage(&served.broker, &orders, id).await;
    }
    served
}

#[tokio::test]
async fn stats_count_each_topic_and_group_over_http() {
    let server = Server::start();
    let served = operated(&server).await;
    let api = &served.api;
    let stats = api.get_json("/v1/stats").await;
    assert!(stats["managers"].is_u64(), "{stats:#}");
    let topic = &stats["topics"][0];
    assert_eq!(
        (&topic["topic"], &topic["waiting"]),
        (&json!("orders"), &json!(1))
    );
    let group = json!({ "group": "billing", "backlog": 0, "parked": 0, "ready": 0, "in_flight": 0, "retry": 0, "garbage": 0, "consumers": 0, "oldest_due_age_ms": 0, "oldest_ready_age_ms": 0 });
    assert_eq!(topic["groups"], json!([group]));
    assert_eq!(
        (&topic["counters"]["accepted"], &topic["conservation_error"]),
        (&json!(1), &json!(0))
    );
    let topics = api.get_json("/v1/topics").await;
    assert_eq!(topics["topics"][0]["settings"]["shards"], 1);
    let topic = api.get_json("/v1/topics/orders").await;
    assert_eq!(topic["stats"]["waiting"], 1);
    let keys = api.get_json("/v1/topics/orders/groups/billing/keys").await;
    assert_eq!((&keys["keys"], &keys["next"]), (&json!([]), &Value::Null));
    served.end().await;
}

#[tokio::test]
async fn the_snapshot_counts_the_garbage_of_each_group() {
    let server = Server::start();
    let served = with_garbage(&server).await;
    eventually(SOON, async || {
        let snapshot = served.api.get_json("/v1/stats/snapshot").await;
        match snapshot["topics"][0]["groups"][0]["garbage"].as_u64() {
            Some(3) => Ok(()),
            _ => Err(format!("{snapshot:#}")),
        }
    })
    .await;
    served.end().await;
}

#[tokio::test]
async fn a_forecast_counts_what_is_waiting_once() {
    let server = Server::start();
    let served = operated(&server).await;
    for path in ["/v1/forecast", "/v1/topics/orders/forecast?for=2h&step=1h"] {
        let forecast = served.api.get_json(path).await;
        let waiting = forecast["total"]["waiting"].as_array().unwrap();
        let sum: u64 = waiting.iter().filter_map(Value::as_u64).sum();
        assert_eq!(sum, 1, "{forecast:#}");
    }
    served.end().await;
}

#[tokio::test]
async fn messages_are_listed_by_state_in_pages_and_in_both_orders() {
    let server = Server::start();
    let served = with_garbage(&server).await;
    let list = async |query: &str| {
        let path = format!("/v1/topics/orders/messages?{query}");
        served.api.get_json(&path).await
    };
    let page = list("state=waiting&group=billing&limit=5").await;
    assert_eq!(
        (&page["messages"][0]["id"], &page["next"]),
        (&json!("m1"), &Value::Null)
    );
    let garbage = list("state=garbage&limit=2").await;
    assert_eq!(garbage["messages"][0]["reason"], "rejected");
    let next = garbage["next"].as_str().unwrap();
    let rest = list(&format!("state=garbage&cursor={next}")).await;
    assert_eq!(rest["messages"].as_array().unwrap().len(), 1);
    let newest = list("state=garbage&order=newest&limit=1").await;
    assert_eq!(newest["messages"][0]["id"], "g3");
    served.end().await;
}

#[tokio::test]
async fn the_errors_of_garbage_are_counted() {
    let server = Server::start();
    let served = with_garbage(&server).await;
    let errors = served.api.get_json(&format!("/v1/{GARBAGE}/errors")).await;
    assert_eq!(errors["errors"][0]["count"], 3, "{errors:#}");
    assert_eq!(
        (&errors["newest"], &errors["total"]),
        (&json!(3), &json!(3))
    );
    served.end().await;
}

#[tokio::test]
async fn garbage_is_requeued_by_id_and_purged_whole_unless_it_is_a_dry_run() {
    let server = Server::start();
    let served = with_garbage(&server).await;
    let post = async |action: &str, body: Value| {
        let path = format!("{GARBAGE}/{action}");
        served.post(&path, body).await
    };
    let swept = post("requeue", json!({ "ids": ["g1", "nix"] })).await;
    assert_eq!(
        swept.expect(200).json(),
        json!({ "found": 1, "done": 1, "dry_run": false, "missing": ["nix"] })
    );
    let swept = post("purge", json!({ "all": true, "dry_run": true })).await;
    assert_eq!(
        swept.expect(200).json(),
        json!({ "found": 2, "done": 0, "dry_run": true })
    );
    let swept = post("purge", json!({ "all": true })).await;
    assert_eq!(swept.expect(200).json()["done"], 2);
    post("purge", json!({})).await.expect(422);
    served.end().await;
}

#[tokio::test]
async fn an_unknown_group_is_answered_with_the_groups_there() {
    let server = Server::start();
    let served = operated(&server).await;
    let purge = "topics/orders/groups/nix/garbage/purge";
    let list = "/v1/topics/orders/messages?group=nix";
    for unknown in [
        served.post(purge, json!({ "all": true })).await,
        served.api.get(list).await,
    ] {
        let detail = "topic orders has no group nix, only billing";
        assert_eq!(unknown.expect(404).json()["detail"], detail);
    }
    served.end().await;
}

#[tokio::test]
async fn a_topic_is_paused_and_resumed_over_http() {
    let server = Server::start();
    let served = operated(&server).await;
    let paused = served.post("topics/orders/pause", Value::Null).await;
    assert_eq!(
        paused.expect(200).json(),
        json!({ "topic": "orders", "paused": true, "changed": true })
    );
    let topic = served.api.get_json("/v1/topics/orders").await;
    assert_eq!(topic["stats"]["paused"], true);
    let resumed = served.post("topics/orders/resume", Value::Null).await;
    resumed.expect(200);
    let unknown = served.post("topics/nix/pause", Value::Null).await;
    unknown.expect(404);
    served.end().await;
}

#[tokio::test]
async fn the_doctor_finds_and_repairs_damage_over_http() {
    let server = Server::start();
    let served = operated(&server).await;
    let doctor = async || served.api.get_json("/v1/topics/orders/doctor").await;
    let checkup = doctor().await;
    assert_eq!(
        (&checkup["topic"], &checkup["findings"]),
        (&json!("orders"), &json!([]))
    );
    let mut connection = server.connection().await;
    let mut lose = cmd("DEL");
    lose.arg("cli:v1:{orders:0}:waiting");
    let lost: u64 = lose.query_async(&mut connection).await.unwrap();
    assert_eq!(lost, 1);
    assert_eq!(doctor().await["counts"]["orphan"], json!({ "found": 1 }));
    let repair = async |topic: &str| {
        let path = format!("topics/{topic}/doctor/repair");
        served.post(&path, Value::Null).await
    };
    assert_eq!(
        repair("orders").await.expect(200).json()["counts"],
        json!({ "orphan": { "repaired": 1 } })
    );
    repair("nix").await.expect(404);
    served.end().await;
}

#[tokio::test]
async fn jobs_are_listed_and_run_over_http_and_by_verbs() {
    let server = Server::start();
    let served = operated(&server).await;
    let jobs = served.api.get_json("/v1/jobs").await;
    assert_eq!(jobs["jobs"].as_array().unwrap().len(), 5);
    let run = async |job: &str| {
        let path = format!("jobs/{job}/run");
        served.post(&path, Value::Null).await
    };
    assert_eq!(run("clean").await.expect(200).json()["ok"], true);
    run("nix").await.expect(404);
    let manager = ["--manager", served.api.address()];
    let jobs = verb(&server, &[&["jobs"], &manager[..]].concat()).await;
    assert!(jobs.contains("reclaim") && jobs.contains("CRON"), "{jobs}");
    let run_now = ["jobs", "run", "clean", "--output", "json"];
    let run_now = verb(&server, &[&run_now, &manager[..]].concat()).await;
    let run_now: Value = serde_json::from_str(&run_now).unwrap();
    assert_eq!(run_now["ok"], true, "{run_now}");
    served.end().await;
}

#[tokio::test]
async fn workers_are_listed_over_http_and_by_a_verb() {
    let server = Server::start();
    let served = operated(&server).await;
    let table = verb(&server, &["workers"]).await;
    assert!(
        table.contains("none") && table.contains("manager"),
        "{table}"
    );
    let workers = verb(&server, &["workers", "--output", "json"]).await;
    let workers: Value = serde_json::from_str(&workers).unwrap();
    assert_eq!(workers["managers"].as_array().unwrap().len(), 1);
    assert_eq!(workers["groups"][0]["consumers"], json!([]));
    let workers = served.api.get_json("/v1/workers").await;
    assert_eq!(workers["managers"].as_array().unwrap().len(), 1);
    assert_eq!(workers["groups"][0]["group"], "billing");
    served.end().await;
}

#[tokio::test]
async fn one_openapi_describes_the_routes_of_both_roles() {
    let server = Server::start();
    let served = operated(&server).await;
    let paths = served.api.get_json("/openapi.json").await["paths"].clone();
    let messages = &paths["/v1/topics/{topic}/messages"];
    assert!(
        messages["get"].is_object() && messages["post"].is_object(),
        "{messages}"
    );
    served.end().await;
}

#[tokio::test]
async fn routes_want_a_token_with_their_scope() {
    // Of the texts "reader", "operator" and "sender".
    let tokens = r#"[
        {"name": "r", "sha256": "3d0941964aa3ebdcb00ccef58b1bb399f9f898465e9886d5aec7f31090a0fb30", "scopes": ["read"]},
        {"name": "o", "sha256": "06e55b633481f7bb072957eabcf110c972e86691c3cfedabe088024bffe42f23", "scopes": ["operate"]},
        {"name": "s", "sha256": "0a367b92cf0b037dfd89960ee832d56f7fc151681bb41e53690e776f5786998a", "scopes": ["send"]}
    ]"#;
    let server = Server::start();
    let keys = [
        ("auth.tokens", tokens),
        ("topics.t.shards", "1"),
        ("topics.reports.shards", "1"),
    ];
    let served = Served::with(&server, "scopes", &keys, true).await;
    let open = &served.api;
    let (reader, operator) = (open.clone().token("reader"), open.clone().token("operator"));
    open.get("/v1/stats").await.expect(401);
    reader.get("/v1/stats").await.expect(200);
    operator.get("/v1/stats").await.expect(403);
    let pause = async |api: &Api| {
        api.call(reqwest::Method::POST, "/v1/topics/t/pause", &Value::Null)
            .await
    };
    let refused = pause(&reader).await.expect(403);
    assert!(refused.body.contains("scope `operate`"), "{refused:?}");
    pause(&operator).await.expect(200);
    open.get("/metrics").await.expect(200);
    let sender = open.clone().token("sender");
    let misspelled = "/v1/topics/report/messages";
    let unknown = sender.call(reqwest::Method::POST, misspelled, &Value::Null);
    let unknown = unknown.await.expect(404);
    assert!(!unknown.body.contains("reports"), "{unknown:?}");
    let unknown = reader.get(&format!("{misspelled}/a")).await.expect(404);
    assert!(unknown.body.contains("did you mean"), "{unknown:?}");
    served.end().await;
}

/// A process of `lisa-manager` on a server; the namespace is `cli`.
pub(super) fn lisa_manager(server: &Server, arguments: &[&str]) -> Launch {
    Binary::Manager
        .with(arguments.iter().copied())
        .env("LISA_REDIS__URL", &server.socket_url())
        .env("LISA_NAMESPACE", "cli")
}

/// Runs a verb, which must succeed; returns its output.
async fn verb(server: &Server, arguments: &[&str]) -> String {
    let ended = lisa_manager(server, arguments).run(SOON).await;
    assert_eq!(ended.code, Some(0), "{ended:?}");
    ended.stdout
}

#[tokio::test]
async fn the_command_line_shows_and_handles_garbage() {
    let server = Server::start();
    let config = config(&server, "cli", &[("topics.orders.shards", "1")]);
    let running = Running::start(&config).await;
    let topic = running.topic("orders").await;
    for id in ["g1", "g2", "g3"] {
        put_in_garbage(running.broker(), &topic, id).await;
    }
    let run = async |arguments: &[&str]| lisa_manager(&server, arguments).run(SOON).await;
    let stats = run(&["--output", "json", "stats"]).await;
    let value: Value = serde_json::from_str(&stats.stdout).unwrap();
    assert_eq!(
        (stats.code, &value["topics"][0]["groups"][0]["garbage"]),
        (Some(0), &json!(3))
    );
    let list = run(&["garbage", "list", "orders", "--limit", "2"]).await;
    assert!(
        list.stdout.contains("no such order") && list.stdout.contains("more: --cursor"),
        "{list:?}"
    );
    let show = run(&["messages", "show", "orders", "g1", "--output", "json"]).await;
    let value: Value = serde_json::from_str(&show.stdout).unwrap();
    assert_eq!(
        (&value["state"], &value["payload"]),
        (&json!("garbage"), &json!("payload of g1"))
    );
    assert_eq!(
        run(&["messages", "show", "orders", "nix"]).await.code,
        Some(1)
    );
    let list = run(&[
        "messages", "list", "orders", "--state", "garbage", "--group", "default",
    ]);
    assert!(list.await.stdout.contains("g1"));
    let unknown = run(&["garbage", "requeue", "orders", "g1", "--group", "nix"]).await;
    assert_eq!(unknown.code, Some(1));
    assert!(
        unknown.stderr.contains("no group nix, only default"),
        "{unknown:?}"
    );
    let one = run(&["garbage", "requeue", "orders", "g1", "nix", "--dry-run"]).await;
    assert!(
        one.stderr.contains("not in garbage: 1 of 2 messages: nix"),
        "{one:?}"
    );
    let none = run(&["garbage", "requeue", "orders"]).await;
    assert!(none.stderr.contains("--all"), "{none:?}");
    let waiting = run(&["messages", "list", "orders"]).await;
    assert_eq!(waiting.code, Some(0), "{waiting:?}");
    let all = run(&["garbage", "purge", "orders", "--all"]).await;
    assert_eq!(all.code, Some(2), "{all:?}");
    assert_eq!(run(&["garbage", "purge", "orders"]).await.code, Some(2));
    let dry = run(&["garbage", "purge", "orders", "--all", "--dry-run"]).await;
    assert_eq!(dry.stdout, "would purge 3 messages\n");
    assert_eq!(
        run(&["garbage", "requeue", "orders", "g1"]).await.stdout,
        "requeued 1 message\n"
    );
    assert_eq!(
        run(&["garbage", "requeue", "orders", "g1"]).await.code,
        Some(1)
    );
    assert_eq!(
        run(&["garbage", "purge", "orders", "--all", "--yes"])
            .await
            .stdout,
        "purged 2 messages\n"
    );
    assert_eq!(run(&["pause", "orders"]).await.stdout, "orders is paused\n");
    assert_eq!(
        run(&["resume", "orders"]).await.stdout,
        "orders is running\n"
    );
    assert!(run(&["topics"]).await.stdout.contains("orders"));
    assert_eq!(run(&["pause", "nix"]).await.code, Some(1));
}

#[tokio::test]
async fn a_verb_says_at_once_and_once_that_nobody_listens() {
    let url = format!("redis://127.0.0.1:{}", free_port());
    let verb = Binary::Manager.with(["stats", "--timeout", "10m", "--redis-url", &url]);
    let ended = verb.run(SOON).await;
    assert_eq!(ended.code, Some(69), "{ended:?}");
    assert!(ended.stderr.contains("Connection refused"), "{ended:?}");
    let hint = "; --redis-url, LISA_REDIS_URL or redis.url sets another address";
    assert!(ended.stderr.trim_end().ends_with(hint), "{ended:?}");
    assert_eq!(ended.stderr.lines().count(), 1, "{ended:?}");
    let jobs = Binary::Manager.with(["jobs", "--manager", &url["redis://".len()..]]);
    let ended = jobs.run(SOON).await;
    assert_eq!(ended.code, Some(69), "{ended:?}");
    assert!(ended.stderr.contains("no manager answers"), "{ended:?}");
    let hint = "; --url or LISA_URL sets another address";
    assert!(ended.stderr.trim_end().ends_with(hint), "{ended:?}");
}

#[tokio::test]
async fn stats_groups_and_doctor_say_that_nobody_reads_what_is_due() {
    let server = Server::start();
    let config = config(&server, "cli", &[("topics.orders.groups", "billing")]);
    let running = Running::start(&config).await;
    let topic = running.topic("orders").await;
    let due = lisa_tests::relay::message("m", ms(0));
    send(running.broker(), &topic, due).await;
    wait_for(running.broker(), &topic, State::Ready, 1, SOON).await;
    let age = async || running.broker().stats(&topic).await.unwrap().overdue_ms;
    eventually(SOON, async || {
        (age().await >= 1).then_some(()).ok_or("not yet")
    })
    .await;

    let run = async |arguments: &[&str]| lisa_manager(&server, arguments).run(SOON).await;
    let stats = run(&["stats", "--output", "json"]).await;
    let value: Value = serde_json::from_str(&stats.stdout).unwrap();
    let (topic, group) = (&value["topics"][0], &value["topics"][0]["groups"][0]);
    assert_eq!(group["consumers"], 0, "{value:#}");
    assert_eq!(group["never_read"], true, "{value:#}");
    for age in [
        &topic["overdue_ms"],
        &group["oldest_due_age_ms"],
        &group["oldest_ready_age_ms"],
    ] {
        assert!(age.as_u64() > Some(0), "{value:#}");
    }
    for verb in [&["stats"][..], &["groups", "list"]] {
        let table = run(verb).await.stdout;
        for heading in ["CONSUMERS", "OLDEST READY", "OVERDUE"] {
            assert!(table.contains(heading), "{table}");
        }
    }
    let csv = run(&[
        "stats",
        "--output",
        "csv",
        "--columns",
        "topic,oldest_ready_ms",
    ])
    .await;
    let line = csv.stdout.lines().nth(1).unwrap_or_default();
    let age = line.split_once(',').map(|(_, age)| age.parse::<u64>());
    assert!(matches!(age, Some(Ok(1..))), "{csv:?}");
    let workers = run(&["workers", "--output", "ndjson"]).await.stdout;
    for line in workers.lines() {
        let worker: Value = serde_json::from_str(line).unwrap();
        for field in ["in_flight", "concurrency", "pid", "idle_ms"] {
            let value = &worker[field];
            assert!(value.is_null() || value.is_number(), "{worker}");
        }
    }
    assert!(!workers.is_empty());
    let top = run(&["top", "--once", "--output", "json"]).await;
    assert_eq!(top.code, Some(2), "{top:?}");
    let doctor = run(&["doctor"]).await;
    assert_eq!(doctor.code, Some(0), "a hint is no fault: {doctor:?}");
    assert!(
        doctor.stdout.contains("hint: 1 ready, the oldest for")
            && doctor
                .stdout
                .contains("no consumer has ever read group billing"),
        "{doctor:?}"
    );
}

#[tokio::test]
async fn verbs_say_that_no_manager_is_running_and_that_redis_may_evict() {
    let server = Server::start();
    let config = config(&server, "cli", &[("topics.orders.groups", "billing")]);
    let running = Running::start(&config).await;
    running.runtime.shutdown.begin();
    running.runtime.supervisor.join().await.expect("ended");
    let connection = relay::connection(&server).await;
    let broker = Broker::new(connection, "cli".parse().unwrap(), SOON, None);
    let topic = broker.topic(&"orders".parse().unwrap()).await.unwrap();
    send(&broker, &topic, relay::message("m", ms(1))).await;

    let run = async |arguments: &[&str]| lisa_manager(&server, arguments).run(SOON).await;
    let stats = run(&["stats"]).await;
    assert_eq!(stats.code, Some(0), "{stats:?}");
    assert!(stats.stderr.contains(NO_MANAGER), "{stats:?}");
    let json_of = |text: &str| serde_json::from_str::<Value>(text).unwrap();
    let stats = run(&["stats", "--output", "json"]).await;
    assert_eq!(json_of(&stats.stdout)["managers"], 0);
    let show = run(&["messages", "show", "orders", "m"]).await;
    assert!(show.stdout.contains(NO_MANAGER), "{show:?}");
    let doctor = run(&["doctor"]).await;
    assert_eq!(doctor.code, Some(0), "a hint is no fault: {doctor:?}");
    let hint = format!("hint: {NO_MANAGER}");
    assert!(doctor.stdout.contains(&hint), "{doctor:?}");
    assert!(!doctor.stdout.contains("maxmemory-policy"), "{doctor:?}");

    let mut evict = cmd("CONFIG");
    evict.arg(&["SET", "maxmemory-policy", "allkeys-lru"]);
    let mut connection = server.connection().await;
    let _: () = evict.query_async(&mut connection).await.unwrap();
    broker.heartbeat("manager", SOON).await.unwrap();
    let doctor = run(&["doctor", "--output", "json"]).await;
    assert_eq!(doctor.code, Some(0), "a hint is no fault: {doctor:?}");
    let hints = &json_of(&doctor.stdout)["hints"];
    let seen = hints[0]["seen"].as_str().unwrap_or_default();
    assert!(
        seen.contains("maxmemory-policy is allkeys-lru"),
        "{doctor:?}"
    );
    assert_eq!(hints.as_array().map(Vec::len), Some(1), "{doctor:?}");
}

#[tokio::test]
async fn a_verb_ends_with_69_and_a_bad_configuration_is_78() {
    let mut server = Server::start();
    server.stop();
    Binary::Manager.path();
    let away = lisa_manager(&server, &["stats", "--timeout", "1s"])
        .run(SOON)
        .await;
    assert_eq!(away.code, Some(69), "{away:?}");
    let bad =
        lisa_manager(&server, &["config", "check"]).config("[manager]\nlisten = 5\nfrob = 1\n");
    let bad = bad.run(SOON).await;
    assert_eq!(bad.code, Some(78));
    assert!(
        bad.stderr.contains("manager.listen") && bad.stderr.contains("manager.frob"),
        "{bad:?}"
    );
    let single = Server::builder().cluster(false).start();
    let cluster = Binary::Manager
        .with(["run", "--redis-url", &single.cluster_url()])
        .config("[manager]\nlisten = '127.0.0.1:0'\n")
        .run(SOON)
        .await;
    assert_eq!(cluster.code, Some(78), "{cluster:?}");
    assert!(cluster.stderr.contains("not a cluster node"), "{cluster:?}");
    let good = lisa_manager(&server, &["config", "show"]).run(SOON).await;
    assert!(
        good.code == Some(0) && good.stdout.contains("namespace = \"cli\""),
        "{good:?}"
    );
}
