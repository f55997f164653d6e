//! A manager in this process with an HTTP interface.

use super::{SOON, config};
use lisa_core::broker::{Broker, TopicHandle};
use lisa_manager::combined;
use lisa_service::role::Runtime;
use lisa_service::shutdown::Shutdown;
use lisa_tests::http::Reply;
use lisa_tests::{Api, Server, eventually, free_port};
use serde_json::Value;
use std::sync::Arc;
use tokio::task::JoinHandle;

pub(super) struct Served {
    pub(super) api: Api,
    pub(super) url: String,
    pub(super) broker: Broker,
    pub(super) shutdown: Shutdown,
    pub(super) run: JoinHandle<()>,
}

impl Served {
    /// Starts a manager with these keys, and waits until it is ready.
    pub(super) async fn start(server: &Server, namespace: &str, keys: &[(&str, &str)]) -> Self {
        Self::with(server, namespace, keys, false).await
    }

    pub(super) async fn with(
        server: &Server,
        namespace: &str,
        keys: &[(&str, &str)],
        with_producer: bool,
    ) -> Self {
        let port = free_port();
        let listen = format!("127.0.0.1:{port}");
        let keys = [&[("manager.listen", listen.as_str())], keys].concat();
        let shutdown = Shutdown::manual(SOON);
        let config = config(server, namespace, &keys);
        let runtime = Runtime::with_shutdown("manager", config, shutdown.clone()).unwrap();
        let broker = runtime.broker.clone();
        let run = tokio::spawn(async move {
            combined::run(runtime, with_producer).await.unwrap();
        });
        let api = Api::new(port);
        eventually(SOON, async || match api.try_get("/readyz").await {
            Some(reply) if reply.status == 200 => Ok(()),
            other => Err(format!("{other:?}")),
        })
        .await;
        Self {
            api,
            url: format!("http://{listen}"),
            broker,
            shutdown,
            run,
        }
    }

    /// Posts JSON to a path below `/v1/`.
    pub(super) async fn post(&self, path: &str, body: Value) -> Reply {
        let path = format!("/v1/{path}");
        self.api.call(reqwest::Method::POST, &path, &body).await
    }

    /// Returns the topic `orders`.
    pub(super) async fn topic(&self) -> Arc<TopicHandle> {
        self.broker.topic(&"orders".parse().unwrap()).await.unwrap()
    }

    pub(super) async fn end(self) {
        self.shutdown.begin();
        self.run.await.unwrap();
    }
}
