//! Runs the producer as a service with its HTTP interface, from start to graceful shutdown.

use lisa_core::broker::Declare;
use lisa_service::role::{self, Runtime, StartError};

use crate::http;
use crate::producer::{Producer, ProducerOptions};
use crate::sources::Sources;

/// Serves until the shutdown of the runtime. It listens immediately, and is ready when Redis is available and the topics are declared.
pub(super) async fn serve(runtime: Runtime) -> Result<(), StartError> {
    let sources = Sources::of(&runtime)?;
    runtime
        .readiness
        .wait_for("topics", "the topics are not declared yet");
    runtime.broker.expect_topics(runtime.config.topics.keys());
    let options = ProducerOptions {
        topics: runtime.config.topics.clone(),
        auto_create: None,
        metrics: Some(runtime.metrics.clone()),
        spans: runtime.spans.clone(),
    };
    let producer = Producer::with_options(runtime.broker.clone(), options);
    let body_timeout = runtime.config.http.body_timeout;
    let router = http::router(producer.clone(), &runtime.tokens, body_timeout);
    runtime
        .listen(runtime.config.producer.listen, router)
        .await?;
    let shutdown = runtime.shutdown.clone();
    let sender = producer.clone();
    let start = async move |runtime: &Runtime| {
        declare_topics(runtime).await?;
        sources.start(runtime, &sender);
        Ok(())
    };
    let ended = runtime.run(start).await;
    // Sends whose callers did not wait for the answer.
    shutdown.now().run_until_cancelled(producer.flush()).await;
    ended
}

/// Declares the configured topics that do not exist yet.
async fn declare_topics(runtime: &Runtime) -> Result<(), StartError> {
    let (broker, topics) = (&runtime.broker, &runtime.config.topics);
    role::declare_topics(broker, topics, Declare::Create, &runtime.shutdown).await?;
    runtime.readiness.met("topics");
    Ok(())
}
