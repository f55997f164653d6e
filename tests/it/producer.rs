//! The producer on a real Redis: its library, its HTTP interface, its command line.

mod batches;
mod cli;
mod durability;
mod http;
mod library;
mod refusals;

use lisa_core::broker::{Broker, Declare, TopicHandle};
use lisa_core::redis::{Connection, ConnectionSettings};
use lisa_core::topic::TopicSettings;
use lisa_producer::{Producer, ProducerOptions};
use lisa_service::config::{Config, LoadOptions};
use lisa_service::role::Runtime;
use lisa_service::shutdown::Shutdown;
use lisa_tests::{Api, SOON, Server};
use std::sync::Arc;
use std::time::Duration;
use tokio_util::sync::CancellationToken;

const HOUR: Duration = Duration::from_secs(3600);
const GRACE: Duration = Duration::from_secs(5);

/// Returns a broker with its own connection, which stops after `call_timeout`.
async fn broker(url: &str, namespace: &str, call_timeout: Duration) -> Broker {
    let settings = ConnectionSettings {
        response_timeout: call_timeout,
        ..ConnectionSettings::new(url.parse().expect("a redis address"))
    };
    let connection = Connection::new(settings, &CancellationToken::new()).expect("a connection");
    connection.wait_up(SOON).await.expect("redis answers");
    Broker::new(
        connection,
        namespace.parse().expect("a namespace"),
        call_timeout,
        None,
    )
}

/// A producer on the shared server, with a declared topic `t`.
async fn producer(stem: &str, settings: TopicSettings) -> (Producer, Broker, Arc<TopicHandle>) {
    let server = Server::shared();
    let broker = broker(&server.socket_url(), &server.namespace(stem), SOON).await;
    let topic = declare(&broker, &settings).await;
    (Producer::new(broker.clone()), broker, topic)
}

async fn declare(broker: &Broker, settings: &TopicSettings) -> Arc<TopicHandle> {
    let topic = "t".parse().expect("a topic");
    let declared = broker.declare(&topic, settings, Declare::Create).await;
    declared.expect("declared")
}

/// The producer's HTTP interface in this process.
struct Service {
    api: Api,
    broker: Broker,
    _runtime: Runtime,
}

impl Service {
    /// Serves on a free port; `lines` are of the configuration.
    async fn start(url: &str, namespace: &str, lines: &str) -> Self {
        let dir = tempfile::tempdir().expect("a directory");
        let file = dir.path().join("lisa.toml");
        let text = format!("namespace = \"{namespace}\"\nredis.url = \"{url}\"\n{lines}");
        std::fs::write(&file, text).expect("written");
        let options = LoadOptions {
            file: Some(file),
            ..LoadOptions::default()
        };
        let config = Config::load(options).expect("a configuration");
        let shutdown = Shutdown::manual(GRACE);
        let runtime = Runtime::with_shutdown("producer", config, shutdown).expect("a role");
        let options = ProducerOptions {
            topics: runtime.config.topics.clone(),
            metrics: Some(runtime.metrics.clone()),
            ..ProducerOptions::default()
        };
        let producer = Producer::with_options(runtime.broker.clone(), options);
        let body_timeout = runtime.config.http.body_timeout;
        let router = lisa_producer::http::router(producer, &runtime.tokens, body_timeout);
        let address = runtime
            .listen("127.0.0.1:0".parse().expect("an address"), router)
            .await;
        Self {
            api: Api::new(address.expect("listening").port()),
            broker: runtime.broker.clone(),
            _runtime: runtime,
        }
    }

    /// Serves a topic `t` on the shared server.
    async fn shared(stem: &str, lines: &str) -> Self {
        let server = Server::shared();
        let lines = format!("{lines}\n[topics.t]\nmax_payload = \"1KiB\"\nmax_delay = \"1d\"\n");
        Self::start(&server.socket_url(), &server.namespace(stem), &lines).await
    }
}
