//! The manager as a whole: exactness, shares, jobs, healing, HTTP interface and command line.
//!
//! What single scripts do is tested in `scripts`; here real managers run on the real clock.

use lisa_manager::{Manager, combined};
use lisa_shared::broker::{Broker, Read, TopicHandle, Verdict};
use lisa_shared::config::{Config, LoadOptions};
use lisa_shared::message::{MessageId, NewMessage};
use lisa_shared::role::Runtime;
use lisa_shared::shutdown::Shutdown;
use lisa_shared::state::State;
use lisa_tests::relay::{self, WORKER, ms};
use lisa_tests::{Api, Binary, Launch, Server, eventually, free_port};
use redis::cmd;
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

const SOON: Duration = Duration::from_secs(10);
/// For programs: they start slowly on a busy machine.
const PATIENCE: Duration = Duration::from_secs(60);

/// A configuration of these keys, on a namespace of a server.
fn config(server: &Server, namespace: &str, keys: &[(&str, &str)]) -> Config {
    let url = server.socket_url();
    let own = [("redis.url", url.as_str()), ("namespace", namespace)];
    let keys = own.iter().chain(keys);
    let overrides: BTreeMap<_, _> = keys
        .map(|(key, value)| ((*key).to_owned(), (*value).to_owned()))
        .collect();
    let options = LoadOptions {
        overrides,
        ..LoadOptions::default()
    };
    Config::load(options).unwrap()
}

/// A manager in this process. Dropping it is a crash: it does not leave.
struct Running {
    runtime: Runtime,
    manager: Manager,
}

impl Running {
    async fn start(config: &Config) -> Self {
        let shutdown = Shutdown::manual(SOON);
        let runtime = Runtime::with_shutdown("manager", config.clone(), shutdown).unwrap();
        let manager = Manager::of(&runtime);
        manager.declare().await.unwrap();
        manager.start(&runtime.supervisor);
        Self { runtime, manager }
    }

    fn broker(&self) -> &Broker {
        &self.runtime.broker
    }

    async fn topic(&self, name: &str) -> Arc<TopicHandle> {
        self.broker().topic(&name.parse().unwrap()).await.unwrap()
    }

    /// Waits until it holds this many shards, at least.
    async fn holds(&self, shards: usize) {
        eventually(SOON, async || {
            let held = self.manager.shares().now().held.len();
            if held >= shards {
                Ok(())
            } else {
                Err(format!("holds {held} of {shards} shards"))
            }
        })
        .await;
    }

    /// Runs a job and gives its report.
    async fn job(&self, name: &str) -> Value {
        let run = self.manager.schedule().run_now(name).await.unwrap();
        assert!(run.ok, "{run:?}");
        run.report.unwrap()
    }
}

fn after(delay: Duration) -> NewMessage {
    NewMessage {
        when: delay.into(),
        ..NewMessage::new("payload")
    }
}

async fn send(broker: &Broker, topic: &TopicHandle, message: NewMessage) -> MessageId {
    let id = message.id.clone();
    let shard = topic.shard_of(&id);
    broker.send(topic, shard, &[message]).await.unwrap();
    id
}

/// Reads from the first shard until there are `count` messages.
async fn read(broker: &Broker, topic: &TopicHandle, count: usize) -> Vec<Read> {
    let mut reader = broker.link().reader().await.unwrap();
    let shard = topic.shards().next().unwrap();
    let deadline = Instant::now() + SOON;
    let mut all = Vec::new();
    while all.len() < count {
        let left = count - all.len();
        let block = Duration::from_millis(200);
        let read = broker
            .read(&mut reader, topic, shard, WORKER, left, block)
            .await;
        all.extend(read.unwrap());
        assert!(Instant::now() < deadline, "read {} of {count}", all.len());
    }
    all
}

/// When Redis made the entry, minus the due time, in ms.
fn lateness(read: &Read) -> i64 {
    let entry = read.attempt.entry.to_string();
    let at: i64 = entry.split('-').next().unwrap().parse().unwrap();
    at - i64::try_from(read.attempt.due.get()).unwrap()
}

async fn wait_for(
    broker: &Broker,
    topic: &TopicHandle,
    state: State,
    count: usize,
    within: Duration,
) {
    eventually(within, async || {
        let found = broker
            .list(topic, state, None, 1000)
            .await
            .unwrap()
            .items
            .len();
        if found == count {
            Ok(())
        } else {
            let stats = broker.stats(topic).await.unwrap();
            Err(format!("{found} of {count} are {state}: {stats:?}"))
        }
    })
    .await;
}

#[tokio::test]
async fn messages_become_ready_when_they_are_due_and_never_before() {
    let server = Server::start();
    let config = config(&server, "exact", &[("topics.t.shards", "1")]);
    let running = Running::start(&config).await;
    let topic = running.topic("t").await;
    running.holds(1).await;
    for index in 0..200 {
        send(
            running.broker(),
            &topic,
            after(ms(200 + (index * 37) % 600)),
        )
        .await;
    }
    let read = read(running.broker(), &topic, 200).await;
    let mut late: Vec<_> = read.iter().map(lateness).collect();
    late.sort_unstable();
    println!(
        "lateness p50 {} p95 {} max {} ms",
        late[100], late[190], late[199]
    );
    assert!(late[0] >= 0, "{late:?}");
    // Generous, since CI machines are small and busy; a polling mover would have a median of half a second.
    assert!(late[100] < 50 && late[199] < 500, "{late:?}");
}

#[tokio::test]
async fn a_mover_that_sleeps_is_woken_by_a_message_that_is_due_earlier() {
    let server = Server::start();
    let config = config(&server, "wake", &[("topics.t.shards", "1")]);
    let running = Running::start(&config).await;
    let topic = running.topic("t").await;
    running.holds(1).await;
    send(running.broker(), &topic, after(Duration::from_secs(3600))).await;
    let mut late = Vec::new();
    for _ in 0..10 {
        send(running.broker(), &topic, after(ms(20))).await;
        late.extend(read(running.broker(), &topic, 1).await.iter().map(lateness));
    }
    late.sort_unstable();
    println!("lateness {late:?} ms");
    // Without wakes it would be close to a second.
    assert!(late[5] < 100, "{late:?}");
}

#[tokio::test]
async fn the_shards_of_a_killed_manager_are_taken_within_two_seconds() {
    let server = Server::start();
    let keys = [
        ("topics.t.shards", "16"),
        ("manager.jobs.sweep", "0 0 0 1 1 *"),
    ];
    let config = config(&server, "takeover", &keys);
    let (one, two) = (Running::start(&config).await, Running::start(&config).await);
    eventually(SOON, async || {
        let held = [&one, &two].map(|running| running.manager.shares().now().held.len());
        if held[0] > 0 && held[1] > 0 && held[0] + held[1] == 16 {
            Ok(())
        } else {
            Err(format!("{held:?}"))
        }
    })
    .await;
    let topic = two.topic("t").await;
    drop(one);
    let killed = Instant::now();
    for _ in 0..100 {
        send(two.broker(), &topic, after(ms(50))).await;
    }
    wait_for(two.broker(), &topic, State::Waiting, 0, SOON).await;
    println!("taken after {:?}", killed.elapsed());
    assert!(
        killed.elapsed() < Duration::from_millis(2500),
        "{:?}",
        killed.elapsed()
    );
    wait_for(two.broker(), &topic, State::Ready, 100, SOON).await;
}

#[tokio::test]
async fn a_manager_that_is_shut_down_leaves_at_once() {
    let server = Server::start();
    let config = config(&server, "leave", &[("topics.t.shards", "4")]);
    let (one, two) = (Running::start(&config).await, Running::start(&config).await);
    eventually(SOON, async || {
        let managers = two.manager.shares().now().managers.len();
        if managers == 2 { Ok(()) } else { Err(managers) }
    })
    .await;
    one.runtime.shutdown.begin();
    one.runtime.supervisor.join().await.unwrap();
    let alive = two
        .broker()
        .beat("observer", Duration::from_millis(1))
        .await
        .unwrap();
    assert!(!alive.managers.contains(&one.manager.name().to_owned()));
}

#[tokio::test]
async fn five_idle_managers_cost_redis_little_more_than_one() {
    let server = Server::start();
    let keys = [
        ("topics.a.shards", "8"),
        ("topics.b.shards", "8"),
        ("manager.jobs.sweep", "0 0 0 1 1 *"),
        ("manager.jobs.clean", "0 0 0 1 1 *"),
    ];
    let config = config(&server, "idle", &keys);
    let mut connection = server.connection().await;
    let mut commands = async || {
        let info: String = cmd("INFO")
            .arg("stats")
            .query_async(&mut connection)
            .await
            .unwrap();
        let line = info
            .lines()
            .find_map(|line| line.strip_prefix("total_commands_processed:"));
        line.unwrap().trim().parse::<u64>().unwrap()
    };
    let mut running = vec![Running::start(&config).await];
    running[0].holds(16).await;
    let mut rate = async || {
        // A rate needs time: this is a measurement, not a wait for a condition.
        let before = commands().await;
        tokio::time::sleep(Duration::from_secs(3)).await;
        commands().await - before
    };
    let one = rate().await;
    for _ in 1..5 {
        running.push(Running::start(&config).await);
    }
    eventually(SOON, async || {
        let managers: Vec<_> = running
            .iter()
            .map(|one| one.manager.shares().now().managers.len())
            .collect();
        if managers == [5; 5] {
            Ok(())
        } else {
            Err(format!("{managers:?}"))
        }
    })
    .await;
    let five = rate().await;
    println!("commands in 3 s: one manager {one}, five {five}");
    assert!(five < one * 2, "one manager {one}, five {five}");
}

#[tokio::test]
async fn a_delivery_past_its_lease_comes_again_and_then_goes_to_garbage() {
    let server = Server::start();
    let keys = [
        ("topics.t.lease", "1s"),
        ("topics.t.max_attempts", "2"),
        ("topics.t.retry.base", "50ms"),
    ];
    let config = config(&server, "reclaim", &keys);
    let running = Running::start(&config).await;
    let topic = running.topic("t").await;
    send(running.broker(), &topic, NewMessage::new("x")).await;
    for attempt in 1..=2 {
        let read = read(running.broker(), &topic, 1).await;
        assert_eq!(read[0].attempt.number, attempt);
        // Started, by a handler that dies.
        let entry = read[0].attempt.entry;
        let shard = topic.shards().next().unwrap();
        let held = running
            .broker()
            .renew(&topic, shard, WORKER, &[entry])
            .await;
        assert_eq!(held.unwrap(), [entry]);
    }
    wait_for(running.broker(), &topic, State::Garbage, 1, SOON).await;
    let text = running.runtime.metrics.encode();
    for to in ["retry", "garbage"] {
        let line = format!(r#"lisa_reclaimed_total{{topic="t",group="default",to="{to}"}} 1"#);
        assert!(text.contains(&line), "{line}\n{text}");
    }
    let report = running.job("statistics").await;
    assert_eq!(report, json!({ "topics": 1, "conservation_error": 0 }));
    let text = running.runtime.metrics.encode();
    assert!(
        text.contains(r#"lisa_topic_messages{topic="t",group="default",state="garbage"} 1"#),
        "{text}"
    );
}

#[tokio::test]
async fn clean_recovers_what_nobody_holds_and_purges_old_garbage() {
    let server = Server::start();
    let keys = [("topics.t.garbage.max_age", "1s")];
    let config = config(&server, "clean", &keys);
    let running = Running::start(&config).await;
    let topic = running.topic("t").await;
    running.holds(1).await;
    let id = send(running.broker(), &topic, NewMessage::new("x")).await;
    read(running.broker(), &topic, 1).await;
    let stream = format!("clean:v1:{{t:0}}:ready:{}", topic.group());
    let mut connection = server.connection().await;
    let held: u64 = cmd("XGROUP")
        .arg(&["DELCONSUMER", &stream, topic.group().as_str(), WORKER])
        .query_async(&mut connection)
        .await
        .unwrap();
    assert_eq!(held, 1);
    assert_eq!(running.job("clean").await["shards"], 1);
    let again = read(running.broker(), &topic, 1).await;
    assert_eq!(again[0].id.as_ref(), Some(&id));
    reject(running.broker(), &topic, &again[0]).await;
    wait_for(running.broker(), &topic, State::Garbage, 1, SOON).await;
    eventually(SOON, async || {
        match running.job("clean").await["purged"].as_u64() {
            Some(1) => Ok(()),
            purged => Err(format!("{purged:?}")),
        }
    })
    .await;
    let stats = running.broker().stats(&topic).await.unwrap();
    assert_eq!((stats.groups[0].garbage, stats.conservation_error), (0, 0));
}

#[tokio::test]
async fn a_wiped_redis_is_healed_within_five_seconds() {
    let server = Server::start();
    let config = config(&server, "wiped", &[("topics.t.shards", "2")]);
    let running = Running::start(&config).await;
    running.holds(2).await;
    let mut connection = server.connection().await;
    let _: () = cmd("FLUSHALL").query_async(&mut connection).await.unwrap();
    let fresh = Broker::new(
        relay::link(&server).await,
        config.namespace.clone(),
        SOON,
        None,
    );
    let topic = eventually(Duration::from_secs(5), async || {
        match fresh.refresh().await {
            Ok(topics) if topics.len() == 1 => Ok(topics[0].clone()),
            seen => Err(format!("{seen:?}")),
        }
    })
    .await;
    for _ in 0..20 {
        send(&fresh, &topic, after(ms(100))).await;
    }
    wait_for(&fresh, &topic, State::Ready, 20, Duration::from_secs(5)).await;
}

#[tokio::test]
async fn a_paused_topic_holds_its_messages_and_goes_on_at_once_when_resumed() {
    let server = Server::start();
    let config = config(&server, "paused", &[("topics.t.shards", "1")]);
    let running = Running::start(&config).await;
    let topic = running.topic("t").await;
    running.holds(1).await;
    assert!(running.broker().pause(&topic, true).await.unwrap());
    for _ in 0..3 {
        send(running.broker(), &topic, after(ms(10))).await;
    }
    // Twice over everything that would move it.
    running.job("sweep").await;
    wait_for(running.broker(), &topic, State::Waiting, 3, SOON).await;
    running.job("sweep").await;
    wait_for(running.broker(), &topic, State::Waiting, 3, SOON).await;
    let resumed = Instant::now();
    assert!(running.broker().pause(&topic, false).await.unwrap());
    wait_for(running.broker(), &topic, State::Ready, 3, SOON).await;
    assert!(resumed.elapsed() < ms(900), "{:?}", resumed.elapsed());
}

#[tokio::test]
async fn a_manager_survives_a_restart_of_redis_without_its_data() {
    let mut server = Server::start();
    let config = config(&server, "restart", &[("topics.t.shards", "1")]);
    let running = Running::start(&config).await;
    let topic = running.topic("t").await;
    running.holds(1).await;
    server.stop();
    eventually(SOON, async || {
        if running.runtime.link.is_up() {
            Err("up")
        } else {
            Ok(())
        }
    })
    .await;
    server.restart();
    eventually(SOON, async || {
        if running.runtime.link.is_up() {
            Ok(())
        } else {
            Err("down")
        }
    })
    .await;
    send(running.broker(), &topic, after(ms(100))).await;
    wait_for(
        running.broker(),
        &topic,
        State::Ready,
        1,
        Duration::from_secs(5),
    )
    .await;
    eventually(SOON, async || {
        let tasks = running.runtime.supervisor.health();
        if tasks.is_green() {
            Ok(())
        } else {
            Err(format!("{:?}", tasks.tasks()))
        }
    })
    .await;
}

/// Gives a delivery up.
async fn reject(broker: &Broker, topic: &TopicHandle, read: &Read) {
    let verdict = Verdict::Reject {
        error: "no such order".to_owned(),
    };
    let shard = topic.shards().next().unwrap();
    let settlement = relay::settlement(read, verdict);
    broker.settle(topic, shard, &[settlement]).await.unwrap();
}

/// Puts a message into garbage.
async fn give_up(broker: &Broker, topic: &TopicHandle, id: &str) {
    send(broker, topic, relay::message(id, ms(0))).await;
    let read = read(broker, topic, 1).await;
    reject(broker, topic, &read[0]).await;
}

#[tokio::test]
async fn operators_see_and_do_everything_over_http() {
    let server = Server::start();
    let port = free_port();
    let listen = format!("127.0.0.1:{port}");
    let keys = [
        ("manager.listen", listen.as_str()),
        ("topics.orders.groups", "billing"),
    ];
    let config = config(&server, "http", &keys);
    let shutdown = Shutdown::manual(SOON);
    let runtime = Runtime::with_shutdown("manager+producer", config, shutdown.clone()).unwrap();
    let broker = runtime.broker.clone();
    let run = tokio::spawn(combined::run(runtime, true));
    let api = Api::new(port);
    eventually(SOON, async || match api.try_get("/readyz").await {
        Some(reply) if reply.status == 200 => Ok(()),
        other => Err(format!("{other:?}")),
    })
    .await;

    api.send("orders", "one", &[("Lisa-Delay", "1h"), ("Lisa-Id", "m1")])
        .await
        .expect(202);
    let stats = api.get_json("/v1/stats").await;
    let topic = &stats["topics"][0];
    assert_eq!(
        (&topic["topic"], &topic["waiting"]),
        (&json!("orders"), &json!(1))
    );
    let group = json!({ "group": "billing", "backlog": 0, "parked": 0, "ready": 0, "in_flight": 0, "retry": 0, "garbage": 0 });
    assert_eq!(topic["groups"], json!([group]));
    assert_eq!(
        (&topic["counters"]["accepted"], &topic["conservation_error"]),
        (&json!(1), &json!(0))
    );
    assert_eq!(
        api.get_json("/v1/topics").await["topics"][0]["settings"]["shards"],
        1
    );
    assert_eq!(
        api.get_json("/v1/topics/orders").await["stats"]["waiting"],
        1
    );
    let page = api
        .get_json("/v1/topics/orders/messages?state=waiting&group=billing&limit=5")
        .await;
    assert_eq!(
        (&page["messages"][0]["id"], &page["next"]),
        (&json!("m1"), &Value::Null)
    );

    let orders = broker.topic(&"orders".parse().unwrap()).await.unwrap();
    for id in ["g1", "g2", "g3"] {
        give_up(&broker, &orders, id).await;
    }
    let garbage = api
        .get_json("/v1/topics/orders/messages?state=garbage&limit=2")
        .await;
    assert_eq!(garbage["messages"][0]["reason"], "rejected");
    let rest = format!(
        "/v1/topics/orders/messages?state=garbage&cursor={}",
        garbage["next"].as_str().unwrap()
    );
    assert_eq!(
        api.get_json(&rest).await["messages"]
            .as_array()
            .unwrap()
            .len(),
        1
    );
    let post = async |path: &str, body: Value| api.call(reqwest::Method::POST, path, &body).await;
    let base = "/v1/topics/orders/groups/billing/garbage";
    let swept = post(&format!("{base}/requeue"), json!({ "ids": ["g1", "nix"] }))
        .await
        .expect(200)
        .json();
    assert_eq!(swept, json!({ "found": 1, "done": 1, "dry_run": false }));
    let swept = post(
        &format!("{base}/purge"),
        json!({ "all": true, "dry_run": true }),
    )
    .await
    .expect(200)
    .json();
    assert_eq!(swept, json!({ "found": 2, "done": 0, "dry_run": true }));
    let swept = post(&format!("{base}/purge"), json!({ "all": true }))
        .await
        .expect(200)
        .json();
    assert_eq!(swept["done"], 2);
    post(&format!("{base}/purge"), json!({})).await.expect(422);
    post(
        "/v1/topics/orders/groups/nix/garbage/purge",
        json!({ "all": true }),
    )
    .await
    .expect(404);

    let paused = post("/v1/topics/orders/pause", Value::Null)
        .await
        .expect(200)
        .json();
    assert_eq!(
        paused,
        json!({ "topic": "orders", "paused": true, "changed": true })
    );
    assert_eq!(
        api.get_json("/v1/topics/orders").await["stats"]["paused"],
        true
    );
    post("/v1/topics/orders/resume", Value::Null)
        .await
        .expect(200);
    post("/v1/topics/nix/pause", Value::Null).await.expect(404);
    assert_eq!(
        api.get_json("/v1/jobs").await["jobs"]
            .as_array()
            .unwrap()
            .len(),
        4
    );
    assert_eq!(
        post("/v1/jobs/clean/run", Value::Null)
            .await
            .expect(200)
            .json()["ok"],
        true
    );
    post("/v1/jobs/nix/run", Value::Null).await.expect(404);
    let workers = api.get_json("/v1/workers").await;
    assert_eq!(workers["managers"].as_array().unwrap().len(), 1);
    assert_eq!(workers["groups"][0]["consumers"][0]["name"], WORKER);
    let paths = api.get_json("/openapi.json").await["paths"].clone();
    let messages = &paths["/v1/topics/{topic}/messages"];
    assert!(
        messages["get"].is_object() && messages["post"].is_object(),
        "{messages}"
    );
    shutdown.begin();
    run.await.unwrap().unwrap();
}

#[tokio::test]
async fn routes_want_a_token_with_their_scope() {
    // Of the texts "reader" and "operator".
    let tokens = r#"[
        {"name": "r", "sha256": "3d0941964aa3ebdcb00ccef58b1bb399f9f898465e9886d5aec7f31090a0fb30", "scopes": ["read"]},
        {"name": "o", "sha256": "06e55b633481f7bb072957eabcf110c972e86691c3cfedabe088024bffe42f23", "scopes": ["operate"]}
    ]"#;
    let server = Server::start();
    let port = free_port();
    let listen = format!("127.0.0.1:{port}");
    let keys = [
        ("manager.listen", listen.as_str()),
        ("auth.tokens", tokens),
        ("topics.t.shards", "1"),
    ];
    let shutdown = Shutdown::manual(SOON);
    let config = config(&server, "scopes", &keys);
    let runtime = Runtime::with_shutdown("manager", config, shutdown.clone()).unwrap();
    let run = tokio::spawn(combined::run(runtime, false));
    let open = Api::new(port);
    eventually(SOON, async || match open.try_get("/readyz").await {
        Some(reply) if reply.status == 200 => Ok(()),
        other => Err(format!("{other:?}")),
    })
    .await;
    let (reader, operator) = (
        Api::new(port).token("reader"),
        Api::new(port).token("operator"),
    );
    open.get("/v1/stats").await.expect(401);
    reader.get("/v1/stats").await.expect(200);
    operator.get("/v1/stats").await.expect(403);
    let pause = async |api: &Api| {
        api.call(reqwest::Method::POST, "/v1/topics/t/pause", &Value::Null)
            .await
    };
    pause(&reader).await.expect(403);
    pause(&operator).await.expect(200);
    open.get("/metrics").await.expect(200);
    shutdown.begin();
    run.await.unwrap().unwrap();
}

/// A process of `lisa-manager` on a server; the namespace is `cli`.
fn lisa_manager(server: &Server, arguments: &[&str]) -> Launch {
    Binary::Manager
        .with(arguments.iter().copied())
        .env("LISA_REDIS__URL", &server.socket_url())
        .env("LISA_NAMESPACE", "cli")
}

#[tokio::test]
async fn the_command_line_shows_and_handles_garbage() {
    let server = Server::start();
    let config = config(&server, "cli", &[("topics.orders.shards", "1")]);
    let running = Running::start(&config).await;
    let topic = running.topic("orders").await;
    for id in ["g1", "g2", "g3"] {
        give_up(running.broker(), &topic, id).await;
    }
    let run = async |arguments: &[&str]| lisa_manager(&server, arguments).run(PATIENCE).await;
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
    let all = run(&["garbage", "purge", "orders", "--all"]).await;
    assert_eq!(all.code, Some(2), "{all:?}");
    assert_eq!(run(&["garbage", "purge", "orders"]).await.code, Some(2));
    let dry = run(&["garbage", "purge", "orders", "--all", "--dry-run"]).await;
    assert_eq!(dry.stdout, "would purge 3\n");
    assert_eq!(
        run(&["garbage", "requeue", "orders", "g1"]).await.stdout,
        "requeued 1\n"
    );
    assert_eq!(
        run(&["garbage", "requeue", "orders", "g1"]).await.code,
        Some(1)
    );
    assert_eq!(
        run(&["garbage", "purge", "orders", "--all", "--yes"])
            .await
            .stdout,
        "purged 2\n"
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
async fn a_verb_gives_up_with_69_and_a_bad_configuration_is_78() {
    let mut server = Server::start();
    server.stop();
    Binary::Manager.path();
    let begun = Instant::now();
    let away = lisa_manager(&server, &["stats", "--timeout", "1s"])
        .run(PATIENCE)
        .await;
    assert_eq!(away.code, Some(69), "{away:?}");
    assert!(begun.elapsed() < PATIENCE / 2);
    let bad =
        lisa_manager(&server, &["config", "check"]).config("[manager]\nlisten = 5\nfrob = 1\n");
    let bad = bad.run(PATIENCE).await;
    assert_eq!(bad.code, Some(78));
    assert!(
        bad.stderr.contains("manager.listen") && bad.stderr.contains("manager.frob"),
        "{bad:?}"
    );
    let cluster = Binary::Manager
        .with(["run", "--redis-url", "redis+cluster://h:1"])
        .run(PATIENCE)
        .await;
    assert_eq!(cluster.code, Some(78), "{cluster:?}");
    assert!(cluster.stderr.contains("not supported yet"), "{cluster:?}");
    let good = lisa_manager(&server, &["config", "show"])
        .run(PATIENCE)
        .await;
    assert!(
        good.code == Some(0) && good.stdout.contains("namespace = \"cli\""),
        "{good:?}"
    );
}

#[tokio::test]
async fn run_refuses_a_wrong_password_an_evicting_server_and_other_shards() {
    let port = free_port().to_string();
    let listen = format!("127.0.0.1:{port}");
    let run = ["run", "--listen", &listen];
    let locked = Server::builder().password("sesame").start();
    let url = format!("redis://:wrong@127.0.0.1:{}", locked.port());
    let refused = lisa_manager(&locked, &run)
        .env("LISA_REDIS__URL", &url)
        .run(PATIENCE)
        .await;
    assert_eq!(refused.code, Some(78), "{refused:?}");
    let evicting = Server::builder()
        .config("maxmemory-policy", "allkeys-lru")
        .start();
    let refused = lisa_manager(&evicting, &run).run(PATIENCE).await;
    assert_eq!(refused.code, Some(78), "{refused:?}");
    assert!(
        refused.stderr.contains("maxmemory-policy is allkeys-lru"),
        "{refused:?}"
    );
    let server = Server::start();
    let four = config(&server, "cli", &[("topics.t.shards", "4")]);
    Running::start(&four).await;
    let refused = lisa_manager(&server, &run)
        .env("LISA_TOPICS__T__SHARDS", "2")
        .run(PATIENCE)
        .await;
    assert_eq!(refused.code, Some(78), "{refused:?}");
    assert!(
        refused.stderr.contains("shards 4") && refused.stderr.contains("says 2"),
        "{refused:?}"
    );
}

#[tokio::test]
async fn run_waits_for_redis_and_ends_well_at_sigterm() {
    let mut server = Server::start();
    server.stop();
    let port = free_port();
    let listen = format!("127.0.0.1:{port}");
    let launch = lisa_manager(&server, &["run", "--listen", &listen]);
    let mut process = launch.env("LISA_TOPICS__T__SHARDS", "1").start();
    let api = Api::new(port);
    let ready = async |wanted: u16| {
        eventually(PATIENCE, async || match api.try_get("/readyz").await {
            Some(reply) if reply.status == wanted => Ok(()),
            other => Err(format!("{other:?}")),
        })
        .await;
    };
    ready(503).await;
    server.restart();
    ready(200).await;
    process.sigterm();
    assert_eq!(process.wait_exit(PATIENCE).await.code(), Some(0));
    server.stop();
    let mut process = lisa_manager(&server, &["run", "--listen", &listen]).start();
    ready(503).await;
    process.sigterm();
    assert_eq!(process.wait_exit(PATIENCE).await.code(), Some(0));
}
