//! Repeats the checks of Redis while a role runs: another server may have taken over, or an operator changed a setting.

use std::time::Duration;

use tokio::time::{Instant, sleep};

use super::Readiness;
use crate::link::checks::{self, About, Finding, Level, Needs};
use crate::link::{Link, LinkError};
use crate::metrics::Metrics;

/// How often a new connection is looked for.
const LOOK_EVERY: Duration = Duration::from_secs(1);
/// How often the settings of a server that stays connected are read.
const SETTINGS_EVERY: Duration = Duration::from_secs(60);
/// The name of the reason in `/readyz`.
const REASON: &str = "checks";

/// The checks of a role, to be repeated.
#[derive(Clone)]
pub(super) struct Recheck {
    pub(super) link: Link,
    pub(super) needs: Needs,
    pub(super) metrics: Metrics,
    pub(super) readiness: Readiness,
    /// The limit of each request.
    pub(super) deadline: Duration,
}

impl Recheck {
    /// Runs all checks for each new connection, and those of settings once a minute; `found` is what the last run found.
    ///
    /// # Cancel safety
    /// Safe: it only reads.
    pub(super) async fn keep(self, mut found: Vec<Finding>) {
        let mut connections = self.link.connections();
        let mut checked = Instant::now();
        loop {
            sleep(LOOK_EVERY).await;
            let now = self.link.connections();
            if !self.link.is_up() || (now == connections && checked.elapsed() < SETTINGS_EVERY) {
                continue;
            }
            match self.run(now != connections, &found).await {
                Ok(next) => {
                    self.take_in(&found, &next);
                    found = next;
                    (connections, checked) = (now, Instant::now());
                }
                // Retried at once when Redis is back, which the link reports.
                Err(error) => tracing::debug!(%error, "cannot repeat the checks of redis"),
            }
        }
    }

    async fn run(&self, all: bool, before: &[Finding]) -> Result<Vec<Finding>, LinkError> {
        if all {
            return checks::check(&self.link, &self.needs, self.deadline).await;
        }
        let mut found = checks::check_settings(&self.link, &self.needs, self.deadline).await?;
        let others = before
            .iter()
            .filter(|finding| matches!(finding.about, About::Server | About::Clock));
        found.extend(others.cloned());
        Ok(found)
    }

    /// Logs what changed, and shows what a starting role would refuse.
    fn take_in(&self, before: &[Finding], now: &[Finding]) {
        for finding in now.iter().filter(|finding| !is_among(finding, before)) {
            log(finding);
        }
        for finding in before.iter().filter(|finding| !is_among(finding, now)) {
            tracing::info!("no longer: {}", finding.what);
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

/// Says whether the server may delete messages to make room.
pub(super) fn evicts(found: &[Finding]) -> bool {
    found.iter().any(|finding| finding.about == About::Eviction)
}

/// Logs a finding by its level.
pub(super) fn log(finding: &Finding) {
    let (what, advice) = (&finding.what, &finding.advice);
    match finding.level {
        Level::Note => tracing::info!(advice, "{what}"),
        Level::Warn => tracing::warn!(advice, "{what}"),
        Level::Refuse => tracing::error!(advice, "{what}"),
    }
}
