//! Sends the requests of the exporter, and logs each outage of the collector once.

use std::time::Duration;

use async_trait::async_trait;
use lisa_core::causes::with_causes;
use lisa_core::outage::Outage;
use lisa_core::small_file::{self, MAX_PEM_BYTES};
use lisa_core::sync::Mutex;
use lisa_core::task;
use opentelemetry_http::{Bytes, HttpClient, HttpError, Request, Response};
use reqwest::{Certificate, redirect};
use tokio::runtime::{Handle, Runtime};

use super::environment::Environment;

/// The time limit for connecting.
const CONNECT_WITHIN: Duration = Duration::from_secs(2);

#[derive(Debug)]
pub(super) struct Client {
    http: reqwest::Client,
    runtime: Workers,
    outage: Mutex<Outage>,
}

/// A runtime with a thread of its own, so that a collector whose answers never end delays only the export.
#[derive(Debug)]
struct Workers {
    handle: Handle,
    runtime: Option<Runtime>,
}

impl Workers {
    fn start() -> Result<Self, String> {
        let mut builder = tokio::runtime::Builder::new_multi_thread();
        let builder = builder.worker_threads(1).thread_name("lisa-spans");
        let runtime = builder.enable_all().build();
        let runtime = runtime.map_err(|error| format!("cannot start a thread: {error}"))?;
        Ok(Self {
            handle: runtime.handle().clone(),
            runtime: Some(runtime),
        })
    }
}

impl Drop for Workers {
    fn drop(&mut self) {
        if let Some(runtime) = self.runtime.take() {
            runtime.shutdown_background();
        }
    }
}

/// The reason why an export failed, with its causes.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
struct Failed(String);

impl Client {
    pub(super) fn new(endpoint: &str, environment: &Environment) -> Result<Self, String> {
        let timeout = environment.timeout()?;
        // The crypto provider is per process, and the first one wins.
        let _ = rustls::crypto::ring::default_provider().install_default();
        let mut builder = reqwest::Client::builder()
            .user_agent(concat!("Lisa/", env!("CARGO_PKG_VERSION")))
            .redirect(redirect::Policy::none())
            .no_proxy()
            .connect_timeout(CONNECT_WITHIN.min(timeout))
            .timeout(timeout);
        if !endpoint.starts_with("https:") {
            // A small container without root certificates can still use http.
            builder = builder.tls_certs_only([]);
        } else if let Some(path) = environment.certificate() {
            let refused = |why: &dyn std::fmt::Display| format!("{}: {why}", path.display());
            let pem = small_file::read(&path, MAX_PEM_BYTES).map_err(|error| refused(&error))?;
            let certificates = Certificate::from_pem_bundle(&pem);
            builder = builder.tls_certs_only(certificates.map_err(|error| refused(&error))?);
        }
        Ok(Self {
            http: builder.build().map_err(|error| with_causes(&error))?,
            runtime: Workers::start()?,
            outage: Mutex::new(Outage::new("export spans")),
        })
    }
}

#[async_trait]
impl HttpClient for Client {
    /// Sends on a runtime, which the client needs and the exporter's thread does not have.
    async fn send_bytes(&self, request: Request<Bytes>) -> Result<Response<Bytes>, HttpError> {
        let http = self.http.clone();
        let sent = {
            let _runtime = self.runtime.handle.enter();
            task::owned(async move { http.send_bytes(request).await })
        };
        let answer = sent.await.unwrap_or_else(|ended| Err(ended.into()));
        // The URL may contain secrets.
        let answer = answer.map_err(|error| match error.downcast::<reqwest::Error>() {
            Ok(error) => error.without_url().into(),
            Err(other) => other,
        });
        let failure = match &answer {
            Ok(response) if response.status().is_success() => None,
            Ok(response) => Some(format!("the collector answered {}", response.status())),
            Err(error) => Some(with_causes(error.as_ref())),
        };
        let mut outage = self.outage.lock();
        match failure {
            None => outage.recovered(),
            Some(why) => drop(outage.failed(&Failed(why))),
        }
        answer
    }
}
