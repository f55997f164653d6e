//! Repeats the checks of Redis while a role runs: another server may take over, or an operator may change a setting.

use std::time::Duration;

use tokio::time::{Instant, sleep};

use super::Readiness;
use crate::metrics::Metrics;
use lisa_core::redis::preflight::{self, About, Finding, Level, Needs};
use lisa_core::redis::{Connection, ConnectionError};

/// The interval between checks for a new connection.
const LOOK_EVERY: Duration = Duration::from_secs(1);
/// The interval between checks of the settings of a server that stays connected.
const SETTINGS_EVERY: Duration = Duration::from_secs(60);
/// The name of the readiness condition.
const REASON: &str = "checks";

/// The repeated checks of a role.
#[derive(Clone)]
pub(super) struct Recheck {
    pub(super) connection: Connection,
    pub(super) needs: Needs,
    pub(super) metrics: Metrics,
    pub(super) readiness: Readiness,
    /// The timeout of each request.
    pub(super) deadline: Duration,
}

impl Recheck {
    /// Runs all checks for each new connection, and the checks of settings and memory once a minute. `found` holds the findings of the
    /// last run.
    ///
    /// # Cancel safety
    /// Safe: it only reads.
    pub(super) async fn keep(self, mut found: Vec<Finding>) {
        self.read_memory().await;
        let mut connections = self.connection.connections();
        let mut checked = Instant::now();
        loop {
            sleep(LOOK_EVERY).await;
            let now = self.connection.connections();
            if !self.connection.is_up()
                || (now == connections && checked.elapsed() < SETTINGS_EVERY)
            {
                continue;
            }
            match self.run(now != connections, &found).await {
                Ok(next) => {
                    self.update(&found, &next);
                    self.read_memory().await;
                    found = next;
                    (connections, checked) = (now, Instant::now());
                }
                // Retried as soon as the connection reports that Redis is back.
                Err(error) => tracing::debug!(%error, "cannot repeat the checks of Redis"),
            }
        }
    }

    /// Refreshes the gauges of the memory of Redis.
    async fn read_memory(&self) {
        match preflight::memory(&self.connection, self.deadline).await {
            Ok(Some(memory)) => self.metrics.redis_memory(memory.used, memory.limit),
            Ok(None) => {}
            Err(error) => tracing::debug!(%error, "cannot read the memory of Redis"),
        }
    }

    async fn run(&self, all: bool, before: &[Finding]) -> Result<Vec<Finding>, ConnectionError> {
        if all {
            return preflight::check(&self.connection, &self.needs, self.deadline).await;
        }
        let mut found =
            preflight::check_settings(&self.connection, &self.needs, self.deadline).await?;
        let others = before
            .iter()
            .filter(|finding| matches!(finding.about, About::Server | About::Clock));
        found.extend(others.cloned());
        Ok(found)
    }

    /// Logs the changes. The role is not ready as long as a finding would keep it from starting.
    fn update(&self, before: &[Finding], now: &[Finding]) {
        for finding in now.iter().filter(|finding| !is_among(finding, before)) {
            log(finding);
        }
        for finding in before.iter().filter(|finding| !is_among(finding, now)) {
            tracing::info!("resolved: {}", finding.what);
        }
        self.metrics.redis_evicts(evicts(now));
        let refused = now.iter().filter(|finding| finding.level == Level::Refuse);
        let refused: Vec<&str> = refused.map(|finding| &*finding.what).collect();
        if refused.is_empty() {
            self.readiness.met(REASON);
        } else {
            self.readiness.wait_for(REASON, refused.join("; "));
        }
    }
}

fn is_among(finding: &Finding, others: &[Finding]) -> bool {
    let is_same = |other: &Finding| match finding.about {
        About::Clock => other.about == About::Clock,
        _ => (other.level, &other.what) == (finding.level, &finding.what),
    };
    others.iter().any(is_same)
}

/// Returns whether the server may delete messages to free memory.
pub(super) fn evicts(found: &[Finding]) -> bool {
    found.iter().any(|finding| finding.about == About::Eviction)
}

/// Logs a finding at its level.
pub(super) fn log(finding: &Finding) {
    let (what, advice) = (&finding.what, &finding.advice);
    match finding.level {
        Level::Note => tracing::info!(advice, "{what}"),
        Level::Warn => tracing::warn!(advice, "{what}"),
        Level::Refuse => tracing::error!(advice, "{what}"),
    }
}
