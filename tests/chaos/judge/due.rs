//! An attempt has one due time, however often it is delivered, and the first attempt has that of the receipt.

use super::Case;
use crate::faults;
use crate::history::{Attempt, Sent};
use crate::plan::Topic;

impl Case<'_> {
    /// Checks that each attempt received the due time that it had.
    pub(super) fn misdated(&mut self) {
        let message = self.message;
        // A requeue begins again, with attempt 1.
        if message.change.is_some() || message.plan.is_hopeless() {
            return;
        }
        let flushed = self.history.flushed;
        let is_after_flush = |time: u64| flushed.is_some_and(|flushed| time >= flushed);
        let receipt = match message.sent {
            // A merge may move a message to a later time.
            Sent::Accepted { answered, .. } if message.topic != Topic::Lines => {
                message.due.map(|due| (due, is_after_flush(answered)))
            }
            _ => None,
        };
        let is_misdated = |index: usize, attempt: &Attempt| {
            let after = is_after_flush(attempt.begun);
            let is_same = |before: &&Attempt| {
                let is_copy = !message.topic.has_copies() || before.process == attempt.process;
                before.number == attempt.number && is_copy && is_after_flush(before.begun) == after
            };
            let before = message.attempts[..index].iter().find(is_same);
            let due = match before {
                Some(before) => Some(before.due),
                None => receipt
                    .filter(|(_, answered_after)| attempt.number == 1 && *answered_after == after)
                    .map(|(due, _)| due),
            };
            due.is_some_and(|due| due != attempt.due) && !self.is_repaired(attempt.due)
        };
        let attempts = message.attempts.iter().enumerate();
        let misdated = attempts
            .filter(|(index, attempt)| is_misdated(*index, attempt))
            .count();
        if misdated > 0 {
            self.verdict.misdated += misdated as u64;
            self.violation("with another due time");
        }
    }

    /// Returns true if the doctor may have set this due time: it lies within a fault whose damage the doctor repairs.
    fn is_repaired(&self, due: u64) -> bool {
        let mut disturbances = self.history.disturbances.iter();
        disturbances.any(|disturbance| {
            faults::is_repaired(&disturbance.kind)
                && (disturbance.from..=disturbance.to).contains(&due)
        })
    }
}
