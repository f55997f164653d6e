//! The task of a source: takes messages until the shutdown, and reconnects after each failure.

use std::convert::Infallible;
use std::sync::Arc;

use lisa_service::config::{SourceConfig, SourceFrom};
use lisa_service::role::Runtime;
use lisa_service::shutdown::Shutdown;
use lisa_service::supervise::Policy;

#[cfg(feature = "source-amqp")]
use super::amqp;
use super::intake::Intake;
#[cfg(feature = "source-kafka")]
use super::kafka;
#[cfg(feature = "source-nats")]
use super::nats;
use crate::producer::Producer;

/// Starts the task of a source.
pub(super) fn start(config: SourceConfig, runtime: &Runtime, producer: &Producer) {
    let metrics = runtime.metrics.clone();
    let intake = Arc::new(Intake::new(config, producer.sibling(), metrics));
    let (name, shutdown) = (
        format!("source {}", intake.name()),
        runtime.shutdown.clone(),
    );
    let health = intake.clone();
    runtime
        .readiness
        .warn_with(move || health.health().warnings());
    runtime
        .supervisor
        .spawn(name, Policy::restart(), move |heartbeat| {
            heartbeat.unlimited();
            let (intake, shutdown) = (intake.clone(), shutdown.clone());
            async move {
                run(&intake, &shutdown).await;
                Ok::<(), Infallible>(())
            }
        });
}

async fn run(intake: &Intake, shutdown: &Shutdown) {
    let _hold = shutdown.hold();
    let draining = shutdown.draining();
    while !draining.is_cancelled() {
        let ended = match &intake.config().from {
            #[cfg(feature = "source-amqp")]
            SourceFrom::Amqp(settings) => amqp::pull(settings, intake, shutdown).await,
            #[cfg(feature = "source-nats")]
            SourceFrom::Nats(settings) => nats::pull(settings, intake, shutdown).await,
            #[cfg(feature = "source-kafka")]
            SourceFrom::Kafka(settings) => kafka::pull(settings, intake, shutdown).await,
            #[allow(unreachable_patterns, reason = "not with all features")]
            _ => unreachable!("a source without its feature is refused at the start"),
        };
        if let Err(error) = ended {
            let pause = intake.health().failed(error);
            let sleep = tokio::time::sleep(pause);
            draining.run_until_cancelled(sleep).await;
        }
    }
}
