//! Runs a manager as a process, alone or together with a producer behind one listener.
//!
//! Both roles share the connection, configuration, supervisor and shutdown. Neither knows of the other.

use std::net::SocketAddr;

use axum::Router;
use axum::extract::Request;
use axum::middleware::{Next, from_fn};
use axum::response::IntoResponse;
use lisa_consumer::gateway::Gateway;
use lisa_producer::sources::Sources;
use lisa_producer::{Producer, ProducerOptions};
use lisa_service::http::{Reads, names_action};
use lisa_service::role::{Runtime, StartError};
use tower::ServiceExt;
use utoipa::openapi::OpenApi;

use crate::Manager;

/// Returns the role of the process, as shown in its metrics and in the names of its connections to Redis.
#[must_use]
pub fn role(with_producer: bool) -> &'static str {
    if with_producer {
        "manager+producer"
    } else {
        "manager"
    }
}

/// Runs a manager to its end, optionally with a producer: its HTTP interface next to the manager's own, and its sources.
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
            spans: runtime.spans.clone(),
            ..ProducerOptions::default()
        };
        Producer::with_options(runtime.broker.clone(), options)
    });
    run_with(runtime, producer, None, async |_, _| Ok(())).await
}

/// Runs a manager to its end, optionally with a producer and a gateway. `begin` receives the listener's address, and starts whatever runs in addition.
///
/// # Errors
/// [`StartError`].
pub(crate) async fn run_with<F>(
    runtime: Runtime,
    producer: Option<Producer>,
    gateway: Option<Gateway>,
    begin: F,
) -> Result<(), StartError>
where
    F: AsyncFnOnce(&Runtime, SocketAddr) -> Result<(), StartError>,
{
    let manager = Manager::of(&runtime);
    let sources = match &producer {
        Some(producer) => Some((Sources::of(&runtime)?, producer.clone())),
        None => None,
    };
    runtime.broker.expect_topics(runtime.config.topics.keys());
    let has_producer = producer.is_some();
    let of_gateway = gateway.as_ref().map(|it| it.routes(&runtime.tokens));
    let sqs = of_gateway.as_ref().map(|(routes, _)| routes.clone());
    let sqs = sqs.filter(|_| gateway.as_ref().is_some_and(Gateway::serves_sqs));
    let mut router = router_with(&runtime, &manager, producer, of_gateway);
    let dashboard = &runtime.config.manager.dashboard;
    if dashboard.enabled {
        let pages = manager.dashboard(&runtime.tokens, has_producer)?;
        match dashboard.listen {
            Some(address) => {
                runtime.listen_as("dashboard", address, pages).await?;
            }
            None => {
                let pages = match sqs {
                    Some(sqs) => behind_sqs(pages, sqs),
                    None => pages,
                };
                router = router.merge(pages);
            }
        }
    }
    match runtime.config.manager.keda {
        #[cfg(feature = "keda")]
        Some(config) => {
            crate::keda::listen(&runtime, config).await?;
        }
        #[cfg(not(feature = "keda"))]
        Some(_) => {
            let why = "manager.keda: built without the feature `keda`";
            return Err(StartError::Refused(why.to_owned()));
        }
        None => {}
    }
    runtime
        .readiness
        .wait_for("topics", "topics not declared yet");
    let address = runtime
        .listen(runtime.config.manager.listen, router)
        .await?;
    runtime
        .run(async move |runtime| {
            manager.declare().await?;
            manager.start(&runtime.supervisor);
            let jobs = manager.schedule().clone();
            runtime.readiness.warn_with(move || jobs.warnings());
            if let Some(gateway) = gateway {
                gateway.start(&runtime.supervisor);
                let draining = runtime.shutdown.draining();
                draining.run_until_cancelled(gateway.ready()).await;
            }
            begin(runtime, address).await?;
            if let Some((sources, producer)) = sources {
                sources.start(runtime, &producer);
            }
            runtime.readiness.met("topics");
            Ok(())
        })
        .await
}

/// Returns the routes of a manager and, if there is one, of a producer, with one OpenAPI description of both.
pub fn router(runtime: &Runtime, manager: &Manager, producer: Option<Producer>) -> Router {
    router_with(runtime, manager, producer, None)
}

/// Leaves requests of SQS clients to their routes. They share `GET /` with the dashboard, and name an action there.
fn behind_sqs(pages: Router, sqs: Router) -> Router {
    pages.route_layer(from_fn(move |request: Request, next: Next| {
        let sqs = sqs.clone();
        async move {
            match request.uri().path() == "/" && names_action(request.uri()) {
                true => sqs.oneshot(request).await.into_response(),
                false => next.run(request).await,
            }
        }
    }))
}

fn router_with(
    runtime: &Runtime,
    manager: &Manager,
    producer: Option<Producer>,
    gateway: Option<(Router, OpenApi)>,
) -> Router {
    // All routes of the process share these limits.
    let reads = Reads::default();
    let (mut router, mut description) = manager.api(&runtime.tokens, &reads);
    let (others, of_others) = match producer {
        Some(producer) => {
            let within = runtime.config.http.body_timeout;
            lisa_producer::http::routes(producer, &runtime.tokens, within, &reads)
        }
        None => manager.message_api(&runtime.tokens, &reads),
    };
    router = router.merge(others);
    description.merge(of_others);
    if let Some((routes, of_gateway)) = gateway {
        router = router.merge(routes);
        description.merge(of_gateway);
    }
    lisa_service::http::with_description(router, &description, &runtime.tokens)
}
