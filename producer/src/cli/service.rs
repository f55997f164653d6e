//! The producer as a service: its HTTP interface, from start to drained end.

use lisa_shared::broker::Declare;
use lisa_shared::config::Config;
use lisa_shared::role::{self, Runtime, StartError};

use crate::api;
use crate::producer::{Producer, ProducerOptions};

/// Serves until the shutdown. It listens at once, and is ready when Redis is there and the topics are declared.
pub(super) async fn serve(config: Config) -> Result<(), StartError> {
    let runtime = Runtime::start("producer", config)?;
    runtime
        .readiness
        .wait_for("topics", "the topics are not declared yet");
    runtime.broker.expect_topics(runtime.config.topics.keys());
    let options = ProducerOptions {
        topics: runtime.config.topics.clone(),
        auto_create: None,
        metrics: Some(runtime.metrics.clone()),
    };
    let producer = Producer::with_options(runtime.broker.clone(), options);
    let body_timeout = runtime.config.http.body_timeout;
    let router = api::router(producer.clone(), &runtime.tokens, body_timeout);
    runtime
        .listen(runtime.config.producer.listen, router)
        .await?;
    let shutdown = runtime.shutdown.clone();
    let ended = runtime.run(declare_topics).await;
    // What senders left behind that did not wait for the answer.
    shutdown.now().run_until_cancelled(producer.flush()).await;
    ended
}

/// Declares the topics of the configuration that nobody has declared before.
async fn declare_topics(runtime: &Runtime) -> Result<(), StartError> {
    let (broker, topics) = (&runtime.broker, &runtime.config.topics);
    role::declare_topics(broker, topics, Declare::Create, &runtime.shutdown).await?;
    runtime.readiness.met("topics");
    Ok(())
}
