//! The spans of a delivery: that of its handler, and that of its settlement.

use lisa_core::broker::Settlement;
use lisa_service::spans::{Messages, Span};

use crate::delivery::Delivery;
use crate::outcome::Outcome;
use crate::worker::lease::End;
use crate::worker::state::ShardWorker;

/// Starts the span of a delivery, if there are spans.
pub(super) fn process(worker: &ShardWorker, delivery: &Delivery) -> Option<Span> {
    let spans = worker.process.spans.as_ref()?;
    Some(spans.process(&worker.common(), &delivery.for_spans()))
}

/// Starts the span of a settlement, if that of its delivery is recorded.
pub(super) fn settle(
    worker: &ShardWorker,
    settlement: &Settlement,
    process: Option<&Span>,
) -> Option<Span> {
    let spans = worker.process.spans.as_ref()?;
    let process = process.filter(|process| process.is_sampled())?;
    let (name, id) = (
        settlement.verdict.operation(),
        Messages::One(&settlement.id),
    );
    Some(spans.settle(&worker.common(), name, id, Some(process)))
}

/// Returns the error that the span of a delivery records.
pub(super) fn error(end: &End<Outcome>) -> Option<&'static str> {
    match end {
        End::Well(Outcome::Ack | Outcome::Defer { .. } | Outcome::Later { .. }) => None,
        End::Well(Outcome::Retry { .. }) => Some("retry"),
        End::Well(Outcome::Reject { .. }) => Some("reject"),
        End::Well(Outcome::Pause { .. }) => Some("pause"),
        End::Stopped => Some("stopped"),
        End::LeaseLost => Some("lease_lost"),
    }
}
