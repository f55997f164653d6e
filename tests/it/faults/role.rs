//! A role in this process, with its own runtime.

use super::log::Log;
use lisa_consumer::{Consumer, Context, Delivery, delivery_fn};
use lisa_core::broker::{Broker, TopicHandle};
use lisa_manager::Manager;
use lisa_producer::Producer;
use lisa_service::config::{Config, LoadOptions};
use lisa_service::role::{Readiness, Runtime, StartError};
use lisa_service::shutdown::Shutdown;
use lisa_service::supervise::Health;
use lisa_tests::SOON;
use lisa_tests::eventually;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;
use tokio::task::JoinHandle;

type Run = JoinHandle<Result<(), StartError>>;

/// A configuration of these keys, on a namespace of a server at `url`.
pub(crate) fn config(url: &str, namespace: &str, keys: &[(&str, &str)]) -> Config {
    config_of(&[("redis.url", url.to_owned())], namespace, keys)
}

/// Returns a configuration of these keys, in a namespace of the Redis that `access` describes.
pub(crate) fn config_of(
    access: &[(&str, String)],
    namespace: &str,
    keys: &[(&str, &str)],
) -> Config {
    let access = access.iter().map(|(key, value)| (*key, value.as_str()));
    let keys = access
        .chain([("namespace", namespace)])
        .chain(keys.iter().copied());
    let overrides: BTreeMap<_, _> = keys
        .map(|(key, value)| (key.to_owned(), value.to_owned()))
        .collect();
    let options = LoadOptions {
        overrides,
        ..LoadOptions::default()
    };
    Config::load(options).unwrap()
}

/// One running role.
pub(crate) struct Role {
    pub(crate) name: &'static str,
    pub(crate) broker: Broker,
    pub(crate) health: Health,
    pub(crate) readiness: Readiness,
    shutdown: Shutdown,
    run: Run,
}

impl Role {
    /// Starts a manager, and waits until it is ready; likewise the others.
    pub(crate) async fn manager(config: &Config) -> Self {
        let (runtime, role) = Self::prepare("manager", config);
        let run = tokio::spawn(runtime.run(async |runtime| {
            let manager = Manager::of(runtime);
            manager.declare().await?;
            manager.start(&runtime.supervisor);
            Ok(())
        }));
        role(run).ready().await
    }

    pub(crate) async fn producer(config: &Config) -> (Self, Producer) {
        let (runtime, role) = Self::prepare("producer", config);
        let producer = Producer::new(runtime.broker.clone());
        let run = tokio::spawn(runtime.run(async |_| Ok(())));
        (role(run).ready().await, producer)
    }

    /// Starts a consumer that reports each delivery to `log`.
    pub(crate) async fn consumer(config: &Config, topics: &[&str], log: &Arc<Log>) -> Self {
        let log = log.clone();
        Self::consumer_of(config, topics, move |delivery| log.delivered(delivery)).await
    }

    /// A consumer that shows each delivery to `see` and acknowledges it.
    pub(crate) async fn consumer_of(
        config: &Config,
        topics: &[&str],
        see: impl Fn(&Delivery) + Clone + Send + Sync + 'static,
    ) -> Self {
        let (runtime, role) = Self::prepare("consumer", config);
        let mut consumer = Consumer::builder(runtime.broker.clone());
        for topic in topics {
            let see = see.clone();
            let handler = delivery_fn(move |delivery: Delivery, _: Context| {
                see(&delivery);
                async {}
            });
            consumer = consumer.topic(*topic, handler);
        }
        let consumer = consumer.build().unwrap();
        let run = tokio::spawn(runtime.run(async move |runtime| {
            consumer.start(&runtime.supervisor, &runtime.shutdown);
            Ok(())
        }));
        role(run).ready().await
    }

    /// Builds the parts, and makes them a role once they run.
    fn prepare(name: &'static str, config: &Config) -> (Runtime, impl FnOnce(Run) -> Self) {
        let shutdown = Shutdown::manual(SOON);
        let runtime = Runtime::with_shutdown(name, config.clone(), shutdown.clone()).unwrap();
        let broker = runtime.broker.clone();
        let health = runtime.supervisor.health();
        let readiness = runtime.readiness.clone();
        let role = move |run| Self {
            name,
            broker,
            health,
            readiness,
            shutdown,
            run,
        };
        (runtime, role)
    }

    async fn ready(self) -> Self {
        eventually(SOON, async || match self.reasons() {
            reasons if reasons.is_empty() => Ok(()),
            reasons => Err(format!("{}: {reasons:?}", self.name)),
        })
        .await;
        self
    }

    /// Returns the reasons why it is not ready.
    pub(crate) fn reasons(&self) -> Vec<String> {
        self.readiness.reasons()
    }

    /// Returns the number of live managers.
    pub(crate) async fn managers(&self) -> usize {
        let observed = self.broker.heartbeat("observer", Duration::ZERO).await;
        observed.unwrap().managers.len()
    }

    /// A topic as this role knows it.
    pub(crate) async fn topic(&self, name: &str) -> Arc<TopicHandle> {
        self.broker.topic(&name.parse().unwrap()).await.unwrap()
    }

    /// Ends it as an operator would.
    pub(crate) async fn stop(self) {
        self.shutdown.begin();
        let ended = self.run.await.expect("no panic");
        ended.unwrap_or_else(|error| panic!("{}: {error}", self.name));
    }
}
