//! Notices that Redis failed over or was restored, and examines the topics then: what was lost with it is found at once.
//!
//! A manager that starts knows of nothing before; it only learns how things are. Exactly one manager examines a topic: the
//! one that holds its first shard.

use std::collections::BTreeSet;

use lisa_shared::broker::{Checkup, Examination, Fault, Outcome, Signs};
use lisa_shared::config::DoctorMode;
use lisa_shared::metrics::Metrics;
use lisa_shared::topic::Topic;
use serde::Serialize;
use tokio::sync::Mutex;

use super::round::Round;
use super::{JobError, Tools};

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
    signs: Signs,
    /// The topics with gauges.
    exported: BTreeSet<Topic>,
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
    /// A topic is damaged; or a server did not answer: the next run begins with all topics again.
    pub(crate) async fn run_once(&self) -> Result<Report, JobError> {
        if self.mode == DoctorMode::Off {
            return Ok(Report::default());
        }
        let mut seen = self.seen.lock().await;
        self.forget_gone(&mut seen.exported);
        let share = self.tools.shares.now();
        let mut round = Round::new("doctor", &self.tools);
        let mut signs = Signs::default();
        for held in &share.held {
            let read = self
                .tools
                .broker
                .read_signs(&mut signs, &held.topic, held.shard);
            if round.of_shard(held, read).await.is_none() {
                signs.keep(held.topic.name(), held.shard, &seen.signs);
            }
        }
        let before = std::mem::replace(&mut seen.signs, signs);
        if let Some(reason) = seen.signs.suspicion(&before) {
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
        let turn = self.tools.examining.lock();
        let Some(_turn) = self.tools.draining.run_until_cancelled(turn).await else {
            return round.report(report);
        };
        for held in share.held.iter().filter(|held| held.is_first()) {
            let how = Examination::of(&held.topic, self.mode == DoctorMode::Repair);
            // Boxed: an examination is large.
            let examined = Box::pin(self.tools.broker.examine(&held.topic, how));
            let examined = round.of_topic(&held.topic, examined);
            // A long one must not hold up the end of the process; each mend is whole.
            let examined = self.tools.draining.run_until_cancelled(examined).await;
            let Some(checkup) = examined.flatten() else {
                continue;
            };
            report.topics += 1;
            report.found += checkup.count(Outcome::Found);
            report.mended += checkup.count(Outcome::Mended);
            export(&self.tools.metrics, &checkup);
            seen.exported.insert(checkup.topic.clone());
            tell(&checkup);
        }
        if round.is_complete() && !self.tools.is_draining() {
            seen.reason = None;
        }
        round.report(report)
    }

    /// Drops the gauges of topics that this process serves no longer.
    fn forget_gone(&self, exported: &mut BTreeSet<Topic>) {
        exported.retain(|topic| {
            let is_known = self.tools.broker.known(topic).is_some();
            if !is_known {
                for fault in Fault::ALL {
                    let metrics = &self.tools.metrics;
                    metrics.forget_doctor_findings(topic.as_str(), fault.as_str());
                }
            }
            is_known
        });
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
