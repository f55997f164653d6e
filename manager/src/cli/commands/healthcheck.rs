//! `healthcheck`: asks the roles on this machine whether they are healthy, for the health check of a container.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::time::Duration;

use futures_util::future::join_all;
use lisa_service::config::Config;
use reqwest::redirect::Policy;

use super::print;
use crate::cli::error::CliError;

/// The time limit for an answer: less than the 5 s that containers usually give a health check.
const LIMIT: Duration = Duration::from_secs(3);

/// Checks each configured listener. Skips those that refuse the connection: these roles run elsewhere.
///
/// # Errors
/// A role is not healthy or does not answer in time, or no role runs here.
pub(crate) async fn healthcheck(config: &Config) -> Result<(), CliError> {
    let roles = [
        ("producer", config.producer.listen),
        ("manager", config.manager.listen),
        ("consumer", config.consumer.listen),
    ];
    // The builder requires a provider, although no request uses TLS.
    let _ = rustls::crypto::ring::default_provider().install_default();
    let http = reqwest::Client::builder()
        .tls_certs_only([])
        .redirect(Policy::none())
        .no_proxy()
        .timeout(LIMIT)
        .build()
        .map_err(|error| CliError::Failed(format!("cannot set up the HTTP client: {error}")))?;
    let asked = roles.map(|(role, listen)| {
        let (http, address) = (http.clone(), reachable(listen));
        async move {
            let health = match http.get(format!("http://{address}/healthz")).send().await {
                Ok(answer) if answer.status().is_success() => Ok("healthy".to_owned()),
                Ok(answer) => Err(format!("{address}/healthz answers {}", answer.status())),
                Err(error) if error.is_connect() => return None,
                Err(error) if error.is_timeout() => Err(format!("no answer within {LIMIT:?}")),
                Err(error) => Err(format!("cannot ask {address}: {error}")),
            };
            Some((role, health))
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
            let addresses = roles.map(|(role, listen)| format!("{role} at {}", reachable(listen)));
            let addresses = addresses.join(", ");
            Err(CliError::Failed(format!("no role runs here: {addresses}")))
        }
        (false, sick) if sick.is_empty() => Ok(print(&lines(true))?),
        (false, sick) => Err(CliError::Failed(sick)),
    }
}

/// Returns the address of a listener as seen from its own machine.
fn reachable(listen: SocketAddr) -> SocketAddr {
    let ip: IpAddr = match listen.ip() {
        IpAddr::V4(ip) if ip.is_unspecified() => Ipv4Addr::LOCALHOST.into(),
        IpAddr::V6(ip) if ip.is_unspecified() => Ipv6Addr::LOCALHOST.into(),
        ip => ip,
    };
    SocketAddr::new(ip, listen.port())
}
