//! The example programs: each does what its first lines promise, with a manager on a private Redis.

use std::time::Duration;

use lisa_tests::{Api, Binary, Launch, Process, SOON, Server, eventually, free_port};
use reqwest::Method;
use serde_json::Value;

struct Relay {
    server: Server,
    _manager: Process,
}

impl Relay {
    fn start() -> Self {
        let server = Server::start();
        let manager = format!("127.0.0.1:{}", free_port());
        let manager = Binary::Manager
            .with(["run", "--listen", &manager])
            .env("LISA_REDIS_URL", &server.url())
            .start();
        Self {
            server,
            _manager: manager,
        }
    }

    fn example(&self, name: &str) -> Launch {
        let programs = Binary::Manager.path();
        let program = programs.with_file_name("examples").join(name);
        Launch::new(program, [""; 0]).env("REDIS_URL", &self.server.url())
    }

    /// Runs an example to its end and returns the lines it printed.
    async fn run(&self, name: &str) -> Vec<String> {
        let done = self.example(name).run(SOON).await;
        assert_eq!(done.code, Some(0), "{name}: {}", done.stderr);
        done.stdout.lines().map(str::to_owned).collect()
    }
}

#[tokio::test]
async fn send_stores_once_and_cancels() {
    let printed = Relay::start().run("send").await;
    let expected = [
        "order-7-reminder: waiting",
        "sent again: duplicate",
        "it is waiting",
        "cancelled",
    ];
    assert_eq!(printed, expected);
}

#[tokio::test]
async fn handle_gets_what_was_sent_with_the_context_of_its_delivery() {
    let relay = Relay::start();
    let mut handle = relay.example("handle").start();
    let producer = lisa_producer::Producer::connect(&relay.server.url()).await;
    let producer = producer.expect("connected");
    let settings = lisa_producer::TopicSettings::default();
    let declared = producer.declare("reminders", &settings).await;
    declared.expect("declared");
    let reminder = serde_json::json!({"order": 9});
    let sent = producer.send("reminders", &reminder).id("o9").await;
    sent.expect("sent");
    assert_eq!(
        handle.next_line(SOON).await,
        "order 9 (o9, attempt 1 of 16)"
    );
}

#[tokio::test]
async fn ordering_stores_all_steps_of_a_key() {
    let printed = Relay::start().run("ordering").await;
    let steps: Vec<_> = printed
        .iter()
        .filter_map(|line| line.split(':').next())
        .collect();
    assert_eq!(steps, ["reserve", "charge", "ship"]);
}

#[tokio::test]
async fn debounce_makes_one_message_of_five_sends() {
    let printed = Relay::start().run("debounce").await;
    assert_eq!(printed[0], "version 1: waiting");
    assert!(
        printed[1..].iter().all(|line| line.ends_with(": merged")),
        "{printed:?}"
    );
    assert_eq!(printed.len(), 5);
}

#[tokio::test]
async fn dead_letters_runs_its_hook_for_rejected_messages() {
    let relay = Relay::start();
    let mut hooked = relay.example("dead_letters").start();
    let producer = lisa_producer::Producer::connect(&relay.server.url()).await;
    let producer = producer.expect("connected");
    let settings = lisa_producer::TopicSettings::default();
    let declared = producer.declare("charges", &settings).await;
    declared.expect("declared");
    // No hook runs for messages that went to garbage before a consumer with a hook registered, so send until one runs.
    let line = eventually(SOON, async || {
        for order in [2, 3] {
            let sent = producer.send("charges", &order).await;
            sent.map_err(|error| error.to_string())?;
        }
        tokio::time::sleep(Duration::from_millis(500)).await;
        hooked
            .lines()
            .into_iter()
            .next()
            .ok_or("no line".to_owned())
    });
    let line = line.await;
    assert!(
        line.ends_with(" is in garbage: rejected: order 3 was never paid"),
        "{line}"
    );
}

#[tokio::test]
async fn an_axum_application_sends_for_each_request() {
    let relay = Relay::start();
    let mut app = relay
        .example("axum_app")
        .env("LISTEN", "127.0.0.1:0")
        .start();
    let line = app.next_line(SOON).await;
    let address = line.strip_prefix("listening on ").expect("an address");
    let port = address
        .rsplit(':')
        .next()
        .and_then(|port| port.parse().ok());
    let api = Api::new(port.expect("a port"));
    let answer = api.call(Method::POST, "/orders/7", &Value::Null).await;
    assert_eq!(answer.expect(201).body, "order-7-reminder\n");
}

#[tokio::test]
async fn a_whole_relay_fits_in_one_program() {
    let relay = Relay::start();
    assert_eq!(relay.run("relay").await, ["time for tea"]);
}

#[tokio::test]
async fn recurring_sends_a_message_each_second() {
    let relay = Relay::start();
    let mut recurring = relay.example("recurring").start();
    assert_eq!(
        recurring.next_line(SOON).await,
        "sending a message every second"
    );
    let stats = async || {
        let stats = Binary::Manager.with(["stats", "--output", "json"]);
        let stats = stats
            .env("LISA_REDIS_URL", &relay.server.url())
            .run(SOON)
            .await;
        let stats: serde_json::Value = serde_json::from_str(&stats.stdout).unwrap_or_default();
        let moved = stats["topics"][0]["counters"]["moved"].as_u64();
        match moved.unwrap_or(0) {
            0 | 1 => Err(stats.to_string()),
            moved => Ok(moved),
        }
    };
    eventually(SOON, stats).await;
}

#[tokio::test]
async fn testing_needs_nothing_but_a_redis_server() {
    let programs = Binary::Manager.path();
    let program = programs.with_file_name("examples").join("testing");
    let done = Launch::new(program, [""; 0]).run(SOON).await;
    assert_eq!(done.code, Some(0), "{}", done.stderr);
    assert_eq!(
        done.stdout,
        "a second early: 0 delivered\non time: 1 delivered\n"
    );
}
