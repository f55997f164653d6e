//! Follows the tokens that were created by call, and reports the uses of previous secrets, in a process with configured tokens.

use std::convert::Infallible;
use std::time::Duration;

use tokio::time::timeout;

use crate::http::auth::TokenSet;
use crate::shutdown::Shutdown;
use crate::supervise::{Policy, Supervisor};
use lisa_core::broker::{Broker, BrokerError};

/// The longest time for the last report at a shutdown.
const LAST_REPORT: Duration = Duration::from_secs(1);

/// Logs a warning if there are stored tokens and no configured one, without which they do not count.
pub(super) async fn warn_of_ignored(broker: &Broker, tokens: &TokenSet) {
    if !tokens.is_empty() {
        return;
    }
    let stored = async {
        match broker.tokens_version().await? {
            0 => Ok::<_, BrokerError>(0),
            _ => Ok(broker.tokens().await?.tokens.len()),
        }
    };
    match stored.await {
        Ok(0) => {}
        Ok(count) => {
            let noun = if count == 1 { "token" } else { "tokens" };
            tracing::warn!(
                "Redis has {count} stored {noun}, which this process does not check because its configuration has none: every \
                 route is open"
            );
        }
        // It would not use them.
        Err(error) => tracing::debug!(%error, "cannot read the stored tokens"),
    }
}

/// Starts the task that follows the stored tokens, and reports the uses of previous secrets, until the shutdown begins.
pub(super) fn follow(
    supervisor: &Supervisor,
    shutdown: &Shutdown,
    broker: &Broker,
    tokens: &TokenSet,
) {
    if tokens.is_empty() {
        return;
    }
    let (broker, tokens) = (broker.clone(), tokens.clone());
    let draining = shutdown.draining().clone();
    supervisor.spawn("tokens", Policy::restart(), move |heartbeat| {
        heartbeat.unlimited();
        let (broker, tokens, draining) = (broker.clone(), tokens.clone(), draining.clone());
        async move {
            let following = async {
                loop {
                    tokens.look_again(&broker).await;
                    report(&broker, &tokens, false).await;
                }
            };
            draining.run_until_cancelled::<_>(following).await;
            tokens.end_looks();
            let _ = timeout(LAST_REPORT, report(&broker, &tokens, true)).await;
            Ok::<(), Infallible>(())
        }
    });
}

async fn report(broker: &Broker, tokens: &TokenSet, all: bool) {
    if let Err(error) = tokens.report_previous_uses(broker, all).await {
        tracing::debug!(%error, "cannot report the use of a previous secret; retrying");
    }
}
