//! Detects that Redis failed over or was restored, and then examines the topics, so that damage is found immediately.
//!
//! The first run after a start has nothing to compare with, and only records the signs. Exactly one manager examines a
//! topic: the one that holds its first shard.

use std::collections::BTreeMap;

use lisa_core::broker::{Checkup, Examination, Fault, Outcome, Signs};
use lisa_core::topic::Topic;
use lisa_service::config::DoctorMode;
use lisa_service::metrics::Findings;
use serde::Serialize;
use tokio::sync::Mutex;
use utoipa::ToSchema;

use super::round::Round;
use super::{JobError, Tools};

/// The number of findings of a topic that are logged one by one.
const LOGGED: usize = 10;

/// The report of one run.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, ToSchema)]
#[schema(as = DoctorReport)]
pub(crate) struct Report {
    /// The reason for examining the topics, if they were examined.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) reason: Option<String>,
    /// Topics examined.
    pub(crate) topics: u64,
    /// Faults that were found and not repaired.
    pub(crate) found: u64,
    /// Faults that were repaired.
    pub(crate) repaired: u64,
}

pub(crate) struct Doctor {
    tools: Tools,
    mode: DoctorMode,
    seen: Mutex<Seen>,
}

#[derive(Default)]
struct Seen {
    signs: Signs,
    /// The faults that a scrape shows, by topic.
    exported: BTreeMap<Topic, Findings>,
    /// The reason for examining the topics, until all of them were examined.
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

    /// Compares the signs of Redis with those of the previous run, and examines the topics if there is a reason.
    ///
    /// # Errors
    /// A topic is damaged; or a server did not answer, and the next run examines all topics again.
    pub(crate) async fn run_once(&self) -> Result<Report, JobError> {
        if self.mode == DoctorMode::Off {
            return Ok(Report::default());
        }
        let mut seen = self.seen.lock().await;
        let is_known = |topic: &Topic| self.tools.broker.known(topic).is_some();
        seen.exported.retain(|topic, _| is_known(topic));
        self.tools.metrics.doctor_findings(seen.exported.clone());
        let assignment = self.tools.assignments.now();
        let mut round = Round::new("doctor", &self.tools);
        let mut signs = Signs::default();
        for assigned in &assignment.shards {
            let read = self
                .tools
                .broker
                .read_signs(&mut signs, &assigned.topic, assigned.shard);
            if round.of_shard(assigned, read).await.is_none() {
                signs.keep(assigned.topic.name(), assigned.shard, &seen.signs);
            }
        }
        let before = std::mem::replace(&mut seen.signs, signs);
        if let Some(reason) = seen.signs.suspicion(&before) {
            tracing::warn!(
                reason,
                "data in Redis may have gone back in time; examining the topics"
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
        let lock = self.tools.examinations.lock();
        let Some(_lock) = self.tools.draining.run_until_cancelled(lock).await else {
            return round.report(report);
        };
        for assigned in assignment
            .shards
            .iter()
            .filter(|assigned| assigned.is_first())
        {
            let how = Examination::of(&assigned.topic, self.mode == DoctorMode::Repair);
            // Boxed because the future is large.
            let examined = Box::pin(self.tools.broker.examine(&assigned.topic, how));
            let examined = round.of_topic(&assigned.topic, examined);
            // A long examination must not delay the end of the process. Each repair is atomic.
            let examined = self.tools.draining.run_until_cancelled(examined).await;
            let Some(checkup) = examined.flatten() else {
                continue;
            };
            report.topics += 1;
            report.found += checkup.count(Outcome::Found);
            report.repaired += checkup.count(Outcome::Repaired);
            let left = unrepaired(&checkup);
            self.tools.examinations.note(&self.tools.broker, &checkup);
            seen.exported.insert(checkup.topic.clone(), left);
            log(&checkup);
        }
        self.tools.metrics.doctor_findings(seen.exported.clone());
        if round.is_complete() && !self.tools.is_draining() {
            seen.reason = None;
        }
        round.report(report)
    }
}

/// Returns the number of faults of each kind that an examination left unrepaired, 0 included.
fn unrepaired(checkup: &Checkup) -> Findings {
    let left = |fault: &Fault| {
        let left = checkup
            .counts
            .get(fault)
            .and_then(|counts| counts.get(&Outcome::Found));
        (fault.as_str(), left.copied().unwrap_or(0))
    };
    Fault::ALL.iter().map(left).collect()
}

fn log(checkup: &Checkup) {
    let topic = &checkup.topic;
    for finding in checkup.findings.iter().take(LOGGED) {
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
        tracing::warn!(%topic, group = hint.group, "no consumer reads the messages: {}", hint.seen);
    }
    tracing::info!(
        %topic,
        messages = checkup.messages,
        found = checkup.count(Outcome::Found),
        repaired = checkup.count(Outcome::Repaired),
        unclear = checkup.unclear,
        "topic examined"
    );
}
