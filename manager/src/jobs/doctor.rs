//! Notices that Redis failed over or was restored, and examines the topics then: what was lost with it is found at once.
//!
//! A manager that starts knows of nothing before; it only learns how things are. Exactly one manager examines a topic: the
//! one that holds its first shard.

use lisa_shared::broker::{Checkup, Examination, Fault, Outcome, Signs};
use lisa_shared::config::DoctorMode;
use lisa_shared::metrics::Metrics;
use serde::Serialize;
use tokio::sync::Mutex;

use super::{Damage, JobError, Tools};

/// Findings of a topic that are logged one by one.
const TOLD: usize = 10;

/// What one run did.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub(crate) struct Report {
    /// Why the topics were examined, if they were.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) reason: Option<String>,
    /// Topics examined.
    pub(crate) topics: u64,
    /// Faults that were found and not mended.
    pub(crate) found: u64,
    /// Faults that were mended.
    pub(crate) mended: u64,
}

pub(crate) struct Doctor {
    tools: Tools,
    mode: DoctorMode,
    seen: Mutex<Seen>,
}

#[derive(Default)]
struct Seen {
    signs: Option<Signs>,
    /// Why the topics must be examined; until they all were.
    reason: Option<String>,
}

impl Doctor {
    pub(crate) fn new(tools: Tools, mode: DoctorMode) -> Self {
        Self {
            tools,
            mode,
            seen: Mutex::default(),
        }
    }

    /// Compares the signs of Redis with those of the run before, and examines the topics if there is a reason.
    ///
    /// # Errors
    /// Redis could not be asked, or a topic is damaged: the next run begins with all topics again.
    pub(crate) async fn run_once(&self) -> Result<Report, JobError> {
        if self.mode == DoctorMode::Off {
            return Ok(Report::default());
        }
        let mut seen = self.seen.lock().await;
        let share = self.tools.shares.now();
        let shards = share.held.iter();
        let shards: Vec<_> = shards
            .map(|held| (held.topic.clone(), held.shard))
            .collect();
        let signs = self.tools.broker.signs(&shards).await?;
        let before = seen.signs.replace(signs.clone());
        if let Some(reason) = before.and_then(|before| signs.suspicion(&before)) {
            tracing::warn!(
                reason,
                "what redis holds may have gone back: examining the topics"
            );
            seen.reason = Some(reason);
        }
        let mut report = Report {
            reason: seen.reason.clone(),
            ..Report::default()
        };
        if seen.reason.is_none() {
            return Ok(report);
        }
        let mut damage = Damage::default();
        for held in share.held.iter().filter(|held| held.is_first()) {
            let how = Examination::of(&held.topic, self.mode == DoctorMode::Repair);
            let examined = self.tools.broker.examine(&held.topic, how);
            // A long one must not hold up the end of the process; each mend is whole.
            let Some(examined) = self.tools.draining.run_until_cancelled(examined).await else {
                return damage.report(report);
            };
            let Some(checkup) = damage.beside(held.topic.name(), examined)? else {
                continue;
            };
            report.topics += 1;
            report.found += checkup.count(Outcome::Found);
            report.mended += checkup.count(Outcome::Mended);
            export(&self.tools.metrics, &checkup);
            tell(&checkup);
        }
        seen.reason = None;
        damage.report(report)
    }
}

/// Exports what an examination left: 0 of each fault that it did not find.
fn export(metrics: &Metrics, checkup: &Checkup) {
    for fault in Fault::ALL {
        let outcomes = checkup.counts.get(fault);
        let left = outcomes.and_then(|counts| counts.get(&Outcome::Found));
        metrics.doctor_findings(
            checkup.topic.as_str(),
            fault.as_str(),
            left.copied().unwrap_or(0),
        );
    }
}

fn tell(checkup: &Checkup) {
    let topic = &checkup.topic;
    for finding in checkup.findings.iter().take(TOLD) {
        tracing::warn!(
            %topic,
            shard = %finding.shard,
            group = finding.group,
            id = finding.id,
            fault = %finding.fault,
            outcome = %finding.outcome,
            "{}: {}", finding.fault.meaning(), finding.seen
        );
    }
    for hint in &checkup.hints {
        tracing::warn!(%topic, group = hint.group, "nobody reads the messages: {}", hint.seen);
    }
    tracing::info!(
        %topic,
        messages = checkup.messages,
        found = checkup.count(Outcome::Found),
        mended = checkup.count(Outcome::Mended),
        unclear = checkup.unclear,
        "the topic was examined"
    );
}
