//! `healthcheck`: asks the roles on this machine whether they are healthy, for the health check of a container.

use std::error::Error;
use std::io;
use std::time::Duration;

use futures_util::future::join_all;
use lisa_service::cli::remark;
use lisa_service::config::Config;
use reqwest::Response;
use reqwest::redirect::Policy;
use serde_json::Value;
use tokio::time::timeout;

use super::print;
use crate::cli::error::CliError;
use crate::cli::manager_url::ManagerUrl;

/// The time limit for an answer: less than the 5 s that containers usually give a health check.
const LIMIT: Duration = Duration::from_secs(3);

/// The largest answer that is read.
const LARGEST: usize = 1024 * 1024;

/// Checks each configured listener. Skips those that refuse the connection, or where another program answers: these roles run
/// elsewhere.
///
/// # Errors
/// A role is not healthy or does not answer in time, or no role runs here.
pub(crate) async fn healthcheck(config: &Config) -> Result<(), CliError> {
    let roles = [
        ("producer", config.producer.listen),
        ("manager", config.manager.listen),
        ("consumer", config.consumer.listen),
    ];
    let listeners =
        roles.map(|(role, listen)| (role, ManagerUrl::of_listener(listen, &config.http)));
    // The builder requires a provider, although no request may use TLS.
    let _ = rustls::crypto::ring::default_provider().install_default();
    let http = reqwest::Client::builder()
        .tls_certs_only([])
        // The certificate has the names that other machines use. The request has no secret, and goes to this machine.
        .tls_danger_accept_invalid_certs(true)
        .redirect(Policy::none())
        .no_proxy()
        .build()
        .map_err(|error| CliError::Failed(format!("cannot set up the HTTP client: {error}")))?;
    let asked = listeners.clone().map(|(role, listener)| {
        let http = http.clone();
        async move {
            // The limit of the client does not interrupt an answer that never lets it rest.
            let health = timeout(LIMIT, health(&http, role, &listener)).await;
            let late = |_| Some(Err(format!("no answer within {LIMIT:?}")));
            Some((role, health.unwrap_or_else(late)?))
        }
    });
    let answers: Vec<_> = join_all(asked).await.into_iter().flatten().collect();
    let lines = |is_ok: bool| {
        let some = answers
            .iter()
            .filter(move |(_, health)| health.is_ok() == is_ok);
        let some = some.map(|(role, health)| match health {
            Ok(text) | Err(text) => format!("{role}: {text}"),
        });
        some.collect::<Vec<_>>().join("; ")
    };
    match (answers.is_empty(), lines(false)) {
        (true, _) => {
            let addresses = listeners.map(|(role, listener)| format!("{role} at {listener}"));
            let addresses = addresses.join(", ");
            Err(CliError::Failed(format!("no role runs here: {addresses}")))
        }
        (false, sick) if sick.is_empty() => Ok(print(&lines(true))?),
        (false, sick) => Err(CliError::Failed(sick)),
    }
}

/// Asks a listener whether its role is healthy. Returns `None` if the role does not run here.
async fn health(
    http: &reqwest::Client,
    role: &str,
    listener: &ManagerUrl,
) -> Option<Result<String, String>> {
    let answer = match http.get(format!("{listener}/healthz")).send().await {
        Ok(answer) => answer,
        Err(error) if refuses(&error) => return None,
        Err(error) => return Some(Err(format!("cannot ask {listener}: {error}"))),
    };
    let status = answer.status();
    match is_of_lisa(answer).await {
        true if status.is_success() => Some(Ok("healthy".to_owned())),
        true => Some(Err(format!("{listener}/healthz answers {status}"))),
        false => {
            remark(format_args!(
                "{role}: another program answers at {listener}"
            ));
            None
        }
    }
}

/// Returns whether nothing listens at an address.
fn refuses(error: &reqwest::Error) -> bool {
    let mut cause = error.source();
    while let Some(error) = cause {
        let error_of_system = error.downcast_ref::<io::Error>();
        if error_of_system.is_some_and(|error| error.kind() == io::ErrorKind::ConnectionRefused) {
            return true;
        }
        cause = error.source();
    }
    false
}

/// Returns whether an answer is the health of a role, or a problem that a listener of Lisa reports instead.
async fn is_of_lisa(mut answer: Response) -> bool {
    let mut body = Vec::new();
    while let Ok(Some(piece)) = answer.chunk().await
        && body.len() < LARGEST
    {
        body.extend_from_slice(&piece);
    }
    let body: Value = serde_json::from_slice(&body).unwrap_or_default();
    body["status"].is_string() || body["code"].is_string()
}
