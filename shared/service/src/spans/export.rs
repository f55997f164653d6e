//! Exports spans by OTLP over HTTP, as the standard variables of the environment say.
//!
//! A collector that is unavailable or slow delays nothing. Ended spans wait in a queue of `OTEL_BSP_MAX_QUEUE_SIZE` (2,048), beyond
//! which they are dropped, and a thread of its own sends them. No mistake in the variables stops a role: it is logged.

mod client;
mod environment;
mod sampler;

use std::time::Duration;

use lisa_core::connect::process_name;
use lisa_core::redis::Endpoint;
use opentelemetry::KeyValue;
use opentelemetry_otlp::{Protocol, SpanExporter, WithExportConfig, WithHttpConfig};
use opentelemetry_sdk::Resource;
use opentelemetry_sdk::resource::{EnvResourceDetector, TelemetryResourceDetector};
use opentelemetry_sdk::trace::SdkTracerProvider;
use url::Url;

use self::client::Client;
use self::environment::Environment;
use super::{SpanOptions, Spans};
use crate::config::Config;

/// The time that the last spans get to reach the collector when a role ends.
const FLUSH: Duration = Duration::from_secs(2);

/// The exporter of a process, which stays when the role reloads its configuration.
#[derive(Debug)]
pub(crate) struct Exporter {
    provider: SdkTracerProvider,
}

impl Exporter {
    /// Starts exporting the spans of a role. Returns `None` if the environment names no endpoint, or has a mistake, which is logged.
    ///
    /// Must be called within a Tokio runtime.
    pub(crate) fn start(role: &str, config: &Config) -> Option<Self> {
        let environment = Environment::of_process();
        match Self::with_environment(role, config, &environment) {
            Ok(started) => started,
            Err(why) => {
                tracing::error!("no spans are exported: {why}");
                None
            }
        }
    }

    fn with_environment(
        role: &str,
        config: &Config,
        environment: &Environment,
    ) -> Result<Option<Self>, String> {
        let Some(endpoint) = environment.endpoint()? else {
            return Ok(None);
        };
        let shown = shown(&endpoint)?;
        environment.check_queue()?;
        let client = Client::new(&endpoint, environment)?;
        let exporter = SpanExporter::builder()
            .with_http()
            .with_protocol(Protocol::HttpBinary)
            .with_endpoint(&endpoint)
            .with_timeout(environment.timeout()?)
            .with_http_client(client)
            .build()
            .map_err(|error| error.to_string())?;
        let mut provider = SdkTracerProvider::builder()
            .with_resource(resource(role, config, environment))
            .with_batch_exporter(exporter);
        if let Some(sampler) = sampler::of(environment) {
            provider = provider.with_sampler(sampler);
        }
        let provider = provider.build();
        tracing::info!(endpoint = %shown, "exporting spans");
        Ok(Some(Self { provider }))
    }

    /// Returns the maker of the spans of a configuration.
    pub(crate) fn spans(&self, config: &Config) -> Spans {
        let options = SpanOptions {
            process: config.otel.process,
            server: server(config.redis.url.endpoint()),
            sampler_reads_attributes: false,
        };
        Spans::new(&self.provider, options)
    }

    /// Sends the spans that are left, within [`FLUSH`].
    pub(crate) async fn flush(&self) {
        let provider = self.provider.clone();
        let shutdown = move || provider.shutdown_with_timeout(FLUSH);
        let ended = tokio::task::spawn_blocking(shutdown).await;
        if !matches!(ended, Ok(Ok(()))) {
            tracing::warn!("the last spans were not exported");
        }
    }
}

/// Checks an endpoint, and returns it without what may be a secret.
fn shown(endpoint: &str) -> Result<Url, String> {
    let url = Url::parse(endpoint).ok();
    let url = url.filter(|url| matches!(url.scheme(), "http" | "https"));
    let mut url = url.ok_or("the endpoint in the environment is not a URL of http or https")?;
    let _ = url.set_username("");
    let _ = url.set_password(None);
    url.set_path("");
    url.set_query(None);
    Ok(url)
}

/// Describes the process. The variables of the environment take precedence.
fn resource(role: &str, config: &Config, environment: &Environment) -> Resource {
    let resource = Resource::builder_empty()
        .with_attributes([
            KeyValue::new("service.name", format!("lisa-{role}")),
            KeyValue::new("service.version", env!("CARGO_PKG_VERSION")),
            KeyValue::new("service.instance.id", process_name()),
            KeyValue::new("lisa.namespace", config.namespace.to_string()),
        ])
        .with_detector(Box::new(TelemetryResourceDetector))
        .with_detector(Box::new(EnvResourceDetector::new()));
    match environment.get("OTEL_SERVICE_NAME") {
        Some(name) => resource.with_service_name(name.to_owned()),
        None => resource,
    }
    .build()
}

/// Returns the address of the server. Sentinels and a cluster have no single one.
fn server(endpoint: &Endpoint) -> Option<(String, Option<u16>)> {
    match endpoint {
        Endpoint::Tcp { host, port, .. } => Some((host.clone(), Some(*port))),
        Endpoint::Unix(path) => Some((path.display().to_string(), None)),
        Endpoint::Sentinel { .. } | Endpoint::Cluster { .. } => None,
    }
}

#[cfg(test)]
mod tests;
