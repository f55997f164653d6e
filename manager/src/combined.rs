//! `run`: a manager as a process of its own, or together with a producer behind one listener.
//!
//! Both roles share link, configuration, supervisor and shutdown; neither knows of the other.

use std::net::SocketAddr;

use axum::routing::get;
use axum::{Json, Router};
use lisa_producer::{Producer, ProducerOptions};
use lisa_shared::http::Reads;
use lisa_shared::role::{Runtime, StartError};

use crate::Manager;

/// What the process runs, as its metrics and its connections to Redis say it.
#[must_use]
pub fn role(with_producer: bool) -> &'static str {
    if with_producer {
        "manager+producer"
    } else {
        "manager"
    }
}

/// Runs a manager to its end, with a producer's HTTP interface beside its own if asked for.
///
/// # Errors
/// [`StartError`].
///
/// # Cancel safety
/// Dropping the future aborts all tasks.
pub async fn run(runtime: Runtime, with_producer: bool) -> Result<(), StartError> {
    let producer = with_producer.then(|| {
        let options = ProducerOptions {
            metrics: Some(runtime.metrics.clone()),
            ..ProducerOptions::default()
        };
        Producer::with_options(runtime.broker.clone(), options)
    });
    run_beside(runtime, producer, async |_, _| Ok(())).await
}

/// Runs a manager to its end; `begin` starts what runs beside it, given the listener's address.
///
/// # Errors
/// [`StartError`].
pub(crate) async fn run_beside<F>(
    runtime: Runtime,
    producer: Option<Producer>,
    begin: F,
) -> Result<(), StartError>
where
    F: AsyncFnOnce(&Runtime, SocketAddr) -> Result<(), StartError>,
{
    let manager = Manager::of(&runtime);
    runtime.broker.expect_topics(runtime.config.topics.keys());
    let router = router(&runtime, &manager, producer);
    runtime
        .readiness
        .wait_for("topics", "the topics are not declared yet");
    let address = runtime
        .listen(runtime.config.manager.listen, router)
        .await?;
    runtime
        .run(async move |runtime| {
            manager.declare().await?;
            manager.start(&runtime.supervisor);
            begin(runtime, address).await?;
            runtime.readiness.met("topics");
            Ok(())
        })
        .await
}

/// Gives the routes of a manager and, if there is one, of a producer, with one description of both.
pub fn router(runtime: &Runtime, manager: &Manager, producer: Option<Producer>) -> Router {
    // One set for all routes of the process.
    let reads = Reads::default();
    let (mut router, mut description) = manager.api(&runtime.tokens, &reads);
    let (others, of_others) = match producer {
        Some(producer) => {
            let within = runtime.config.http.body_timeout;
            lisa_producer::api::routes(producer, &runtime.tokens, within, &reads)
        }
        None => manager.message_api(&runtime.tokens, &reads),
    };
    router = router.merge(others);
    description.merge(of_others);
    let description = lisa_producer::api::complete(&description, &runtime.tokens);
    // Open to everyone.
    router.route("/openapi.json", get(async move || Json(description)))
}
