//! The producer as a service: its HTTP interface, from start to drained end.

use std::time::Duration;

use lisa_shared::broker::Declare;
use lisa_shared::config::Config;
use lisa_shared::role::{Runtime, StartError};

use crate::api;
use crate::producer::{Producer, ProducerOptions};

/// Pause before topics are declared again on a Redis that cannot take them now.
const PAUSE: Duration = Duration::from_secs(1);

/// Serves until the shutdown. It listens at once, and is ready when Redis is there and the topics are declared.
pub(super) async fn serve(config: Config) -> Result<(), StartError> {
    let runtime = Runtime::start("producer", config)?;
    runtime
        .readiness
        .wait_for("topics", "the topics are not declared yet");
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
    let ended = runtime.run(declare_topics).await;
    producer.flush().await;
    ended
}

/// Declares the topics of the configuration that nobody has declared before.
async fn declare_topics(runtime: &Runtime) -> Result<(), StartError> {
    for (topic, settings) in &runtime.config.topics {
        loop {
            let declared = runtime
                .broker
                .declare(topic, settings, Declare::Create)
                .await;
            let error = match declared {
                Ok(_) => break,
                Err(error) if error.is_retryable() => error,
                Err(error) => return Err(error.into()),
            };
            tracing::warn!(%topic, %error, "the topic is not declared: trying on");
            tokio::select! {
                () = tokio::time::sleep(PAUSE) => {}
                () = runtime.shutdown.draining().cancelled() => return Ok(()),
            }
        }
    }
    runtime.readiness.met("topics");
    Ok(())
}
