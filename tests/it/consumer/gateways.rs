//! The programs of a test of pulls, and requests to them.

use super::*;
use lisa_tests::Api;
use lisa_tests::http::Reply;
use reqwest::Method;
use serde_json::{Value, json};

/// Two clients of a gateway, by their tokens `abc` and `def`.
pub(super) const TWO_CLIENTS: &str = "\
    [[auth.tokens]]\nname = \"one\"\nscopes = [\"receive\"]\n\
    sha256 = \"ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad\"\n\
    [[auth.tokens]]\nname = \"other\"\nscopes = [\"receive\"]\n\
    sha256 = \"cb8379ac2098aa165029e3938a51da0bcecfc008fd6795f401178647f96c5b34\"\n";

/// The programs of a test, on a private server.
pub(super) struct Site {
    pub(super) server: Server,
    _manager: Process,
    pub(super) manager: Api,
    pub(super) gateways: Vec<(Process, Api)>,
    pub(super) more: String,
}

impl Site {
    /// Starts the programs. `topics` and `more` are TOML, the latter for the gateways.
    pub(super) async fn start(topics: &str, more: &str) -> Self {
        let server = Server::start();
        let port = lisa_tests::free_port();
        let config = format!(
            "redis.url = \"{}\"\nmanager.listen = \"127.0.0.1:{port}\"\n{topics}",
            server.socket_url()
        );
        let manager = Binary::Manager.with(["run", "--with-producer"]);
        let manager = manager.config(&config).start();
        let api = Api::new(port);
        ready(&api).await;
        let mut site = Self {
            server,
            _manager: manager,
            manager: api,
            gateways: Vec::new(),
            more: more.to_owned(),
        };
        for _ in 0..2 {
            let gateway = site.gateway().await;
            site.gateways.push(gateway);
        }
        site
    }

    pub(super) async fn gateway(&self) -> (Process, Api) {
        let (port, other) = (lisa_tests::free_port(), lisa_tests::free_port());
        let config = format!(
            "redis.url = \"{}\"\nconsumer.listen = \"127.0.0.1:{other}\"\n\
             consumer.gateway.listen = \"127.0.0.1:{port}\"\n{}",
            self.server.socket_url(),
            self.more
        );
        let process = Binary::Consumer.with(["run"]).config(&config);
        let process = process.env("LISA_LOG", "trace").start();
        let api = Api::new(port);
        ready(&api).await;
        (process, api)
    }

    pub(super) fn api(&self, gateway: usize) -> &Api {
        &self.gateways[gateway].1
    }

    pub(super) async fn send(&self, topic: &str, headers: &[(&str, &str)], payload: &str) {
        let sent = self.manager.send(topic, payload, headers).await;
        sent.expect(202);
    }

    pub(super) async fn stats(&self, topic: &str) -> Value {
        let stats = self.manager.get_json("/v1/stats").await;
        let topics = stats["topics"].as_array().expect("topics").iter();
        let mut found = topics.filter(|stats| stats["topic"] == topic);
        found.next().expect("the topic").clone()
    }

    pub(super) async fn assert_drained(&self, topic: &str) {
        eventually(SOON, async || match self.stats(topic).await {
            stats if stats["counters"]["accepted"] == stats["counters"]["acked"] => Ok(()),
            stats => Err(stats.to_string()),
        })
        .await;
        assert_eq!(self.stats(topic).await["conservation_error"], 0);
    }

    pub(super) async fn redis<T: redis::FromRedisValue>(&self, command: &[&str]) -> T {
        let mut cmd = cmd(command[0]);
        cmd.arg(&command[1..]);
        let mut connection = self.server.connection().await;
        cmd.query_async(&mut connection).await.expect("a reply")
    }
}

async fn ready(api: &Api) {
    eventually(SOON, async || match api.try_get("/readyz").await {
        Some(reply) if reply.status == 200 => Ok(()),
        reply => Err(format!("{reply:?}")),
    })
    .await;
}

pub(super) async fn post(api: &Api, path: &str, body: Value) -> Reply {
    api.call(Method::POST, path, &body).await
}

/// Pulls from the default group until there is a message.
pub(super) async fn pull(api: &Api, topic: &str, body: Value) -> Vec<Value> {
    let path = format!("/v1/topics/{topic}/groups/default/pull");
    let begun = Instant::now();
    loop {
        let reply = post(api, &path, body.clone()).await.expect(200).json();
        match reply["deliveries"].as_array() {
            Some(all) if !all.is_empty() => return all.clone(),
            _ => assert!(begun.elapsed() < SOON, "nothing to pull"),
        }
    }
}

pub(super) async fn pull_one(api: &Api, topic: &str, lease: &str) -> Value {
    let body = json!({"wait": "10s", "lease": lease});
    pull(api, topic, body).await.remove(0)
}

/// Checks the number of pulls that wait at a gateway.
pub(super) async fn waiting(api: &Api, count: u64) -> Result<(), u64> {
    let metrics = api.get("/metrics").await.body;
    let lines = metrics.lines();
    let gauges = lines.filter(|line| line.starts_with("lisa_pulls_waiting{"));
    let values = gauges.filter_map(|line| line.rsplit(' ').next()?.parse::<u64>().ok());
    match values.sum() {
        waiting if waiting == count => Ok(()),
        waiting => Err(waiting),
    }
}

pub(super) fn route(delivery: &Value, verb: &str) -> String {
    let token = delivery["token"].as_str().expect("a token");
    format!("/v1/deliveries/{token}/{verb}")
}
