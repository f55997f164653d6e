//! Producer and manager in one process, from a TOML and from a YAML file.

use super::separate::{P99, relay};
use super::{Deployment, Role, SOON};
use lisa_tests::{Api, Binary, eventually, free_port};

const TOML: &str = r#"
namespace = "lisa"

[redis]
url = "REDIS"

[manager]
listen = "127.0.0.1:MANAGER"

[consumer]
listen = "127.0.0.1:CONSUMER"

[[consumer.subscriptions]]
topic = "orders"
group = "billing"
concurrency = 16
sink = { type = "stdout" }

[topics.orders]
groups = ["billing"]
retry = { base = "2s", max = "5m" }
"#;

const YAML: &str = r#"
namespace: lisa
redis:
  url: REDIS
manager:
  listen: 127.0.0.1:MANAGER
consumer:
  listen: 127.0.0.1:CONSUMER
  subscriptions:
    - topic: orders
      group: billing
      concurrency: 16
      sink:
        type: stdout
topics:
  orders:
    groups: [billing]
    retry:
      base: 2s
      max: 5m
"#;

async fn passes(file: &str, text: &str) {
    let here = Deployment::start("").await;
    let (port, other) = (free_port(), free_port());
    let access = here.site.access();
    let text = text
        .replace("REDIS", &access[0].1)
        .replace("MANAGER", &port.to_string())
        .replace("CONSUMER", &other.to_string());
    let start = |binary: Binary, arguments: &[&str], port| {
        let mut launch = binary.with(arguments.iter().copied());
        for (key, value) in &access[1..] {
            // The settings that are in no file of the test: certificates.
            let name = format!("LISA_{}", key.to_uppercase().replace('.', "__"));
            launch = launch.env(&name, value);
        }
        let process = launch.config_file(file, &text).start();
        let api = Api::new(port);
        Role { process, api }
    };
    let mut combined = start(Binary::Manager, &["run", "--with-producer"], port);
    let mut consumer = start(Binary::Consumer, &["run"], other);
    combined.ready().await;
    consumer.ready().await;

    relay(&combined.api, &mut consumer, 1_000, P99).await;

    let stats = here.drained().await;
    assert_eq!(Deployment::counter(&stats, "acked"), 1_000, "{stats:#}");
    // One listener describes and counts both roles.
    let routes = combined.api.get_json("/openapi.json").await;
    for route in ["/v1/stats", "/v1/topics/{topic}/messages:batch"] {
        assert!(
            routes["paths"][route].is_object(),
            "{route} is not described"
        );
    }
    let paths = routes["paths"].as_object().unwrap().values();
    let operations = paths.flat_map(|path| path.as_object().unwrap().values());
    let mut ids: Vec<&str> = operations
        .filter_map(|operation| operation["operationId"].as_str())
        .collect();
    let count = ids.len();
    ids.sort_unstable();
    ids.dedup();
    assert_eq!(ids.len(), count, "one of {ids:?} is twice there");
    eventually(SOON, async || {
        let gauges = combined.api.get("/metrics").await.body;
        let found = gauges.contains("lisa_conservation_error{topic=\"orders\"} 0");
        if found { Ok(()) } else { Err(gauges) }
    })
    .await;
    consumer.stop().await;
    combined.stop().await;
    here.conserved().await;
}

#[tokio::test]
async fn a_producer_and_manager_in_one_process_relay_from_a_toml_file() {
    passes("combined.toml", TOML).await;
}

#[tokio::test]
async fn a_producer_and_manager_in_one_process_relay_from_the_same_file_in_yaml() {
    passes("combined.yaml", YAML).await;
}
