//! The checks of a run's history: Lisa must keep her promises.

mod due;
mod special;
#[cfg(test)]
mod tests;

use crate::faults;
use crate::history::{Attempt, Change, Disturbance, History, Message, Sent};
use crate::plan::{READERS, Topic};
use crate::record::{ALL, Changed};
use std::collections::BTreeMap;

/// A process is still disturbed for this long after the end of a fault: leases run out, connections are dropped.
const AFTERMATH: u64 = 4000;
/// A delivery is read, and its outcome settled, within this many ms of its handler's beginning and end.
const AROUND: u64 = 4000;

/// An answer that took this many ms may be that of a call whose first reply was lost.
const LOST_REPLY: u64 = 500;

/// The outcome of a run.
#[derive(Debug, Default)]
pub(crate) struct Verdict {
    pub(crate) sent: u64,
    pub(crate) accepted: u64,
    pub(crate) unknown: u64,
    pub(crate) refused: u64,
    /// Sends that joined another message.
    pub(crate) merged: u64,
    /// Times of the schedule that came.
    pub(crate) ticks: u64,
    /// Messages that a listener got, of those that each must get.
    pub(crate) heard: u64,
    pub(crate) cancelled: u64,
    pub(crate) rescheduled: u64,
    /// Accepted messages whose handler did its work.
    pub(crate) done: u64,
    /// Messages in garbage that belong there.
    pub(crate) garbage: u64,
    /// Accepted before everything was deleted, and not delivered.
    pub(crate) forgiven: u64,
    pub(crate) attempts: u64,
    /// Attempts after one that had done the work.
    pub(crate) duplicates: u64,
    pub(crate) unexplained: u64,
    /// The number of these that each kind of fault explains; one may have several reasons.
    pub(crate) explained_by: BTreeMap<String, u64>,
    pub(crate) lost: u64,
    pub(crate) early: u64,
    /// Attempts that received another due time than they had.
    pub(crate) misdated: u64,
    pub(crate) disordered: u64,
    /// Messages that went to garbage although they could have succeeded.
    pub(crate) given_up: u64,
    /// Delivered although cancelled, or although nothing had been stored.
    pub(crate) uncalled: u64,
    /// All of these, in words.
    pub(crate) violations: Vec<String>,
}

/// Judges a run.
pub(crate) fn judge(history: &History) -> Verdict {
    let mut verdict = Verdict::default();
    for line in &history.strange {
        verdict.violations.push(format!("strange: {line}"));
    }
    let mut keys: BTreeMap<u64, Vec<(usize, &Message)>> = BTreeMap::new();
    for (number, message) in history.messages.iter().enumerate() {
        let Some(message) = message else { continue };
        let mut case = Case {
            number,
            message,
            history,
            verdict: &mut verdict,
        };
        case.count();
        case.lost();
        case.early();
        case.misdated();
        case.uncalled();
        case.duplicates();
        if let Some(key) = message.key {
            keys.entry(key).or_default().push((number, message));
        }
    }
    special::ticks(history, &mut verdict);
    for messages in keys.values_mut() {
        order(history, messages, &mut verdict);
    }
    verdict
}

struct Case<'a> {
    number: usize,
    message: &'a Message,
    history: &'a History,
    verdict: &'a mut Verdict,
}

impl Case<'_> {
    fn violation(&mut self, what: &str) {
        let (number, message) = (self.number, self.message);
        let text = format!("{what}: m{number} {message:?}");
        self.verdict.violations.push(text);
    }

    fn count(&mut self) {
        let is_done = self.is_done();
        let (message, verdict) = (self.message, &mut *self.verdict);
        verdict.sent += 1;
        match message.sent {
            Sent::Accepted { .. } => verdict.accepted += 1,
            Sent::Merged { .. } => verdict.merged += 1,
            Sent::Unknown | Sent::Begun => verdict.unknown += 1,
            Sent::Refused => verdict.refused += 1,
        }
        verdict.attempts += message.attempts.len() as u64;
        let is_accepted = matches!(message.sent, Sent::Accepted { .. });
        verdict.done += u64::from(is_accepted && is_done);
        if let Some(change) = message.change
            && matches!(change.how, Changed::Done(_))
        {
            match change.delay {
                None => verdict.cancelled += 1,
                Some(_) => verdict.rescheduled += 1,
            }
        }
        if message.in_garbage {
            if message.plan.is_hopeless() {
                verdict.garbage += 1;
            } else {
                verdict.given_up += 1;
                self.violation("in garbage");
            }
        }
    }

    fn is_done(&self) -> bool {
        self.message.attempts.iter().any(|attempt| attempt.done)
    }

    fn is_done_by(&self, process: &str) -> bool {
        let processes = &self.history.processes;
        let is_its = |attempt: &&Attempt| processes[usize::from(attempt.process)] == process;
        let mut attempts = self.message.attempts.iter().filter(is_its);
        attempts.any(|attempt| attempt.done)
    }

    /// Checks that an accepted message is delivered to each group, or visible in garbage.
    fn lost(&mut self) {
        let message = self.message;
        let begun = match message.sent {
            Sent::Accepted { begun, .. } if message.topic == Topic::Radio => {
                return self.unheard(begun);
            }
            Sent::Accepted { begun, .. } => begun,
            Sent::Merged { begun, into } => return self.lost_with(begun, into),
            Sent::Begun | Sent::Unknown | Sent::Refused => return,
        };
        let kept = match (message.topic, message.plan.is_hopeless()) {
            (Topic::Twice, true) => self.is_done_by(READERS[0]) && message.in_garbage,
            (Topic::Twice, false) => READERS.iter().all(|reader| self.is_done_by(reader)),
            (_, true) => message.in_garbage,
            (_, false) => self.is_done(),
        };
        let may_be_cancelled = message.change.is_some_and(|change| {
            change.delay.is_none() && matches!(change.how, Changed::Done(_) | Changed::Unknown)
        });
        if kept || may_be_cancelled {
            return;
        }
        if self.history.flushed.is_some_and(|flushed| begun < flushed) {
            self.verdict.forgiven += 1;
            return;
        }
        self.verdict.lost += 1;
        self.violation("lost");
    }

    /// Checks that no handler starts before the due time that it received, nor before the one that the sender wanted.
    fn early(&mut self) {
        let message = self.message;
        let mut earliest = message.earliest;
        let receipt_is_early = message.due.is_some_and(|due| due < earliest);
        let moved = message.change.filter(|change| change.delay.is_some());
        // A change whose reply was lost is requested again, and may then be too late because it was done.
        let may_be_done = |change: &Change| {
            change.how != Changed::Late || change.answered > change.asked + LOST_REPLY
        };
        if let Some(change) = moved.filter(may_be_done) {
            earliest = earliest.min(change.asked + change.delay.unwrap_or(0));
        }
        let is_early = |attempt: &Attempt| {
            let after_the_move = moved.is_some_and(|change| {
                let due = change.asked + change.delay.unwrap_or(0);
                matches!(change.how, Changed::Done(_))
                    && attempt.begun > change.answered
                    && attempt.begun < due
                    && !self.is_disturbed(attempt)
            });
            attempt.begun < attempt.due || attempt.begun < earliest || after_the_move
        };
        let attempts = message.attempts.iter().filter(|attempt| is_early(attempt));
        let early = attempts.count() as u64 + u64::from(receipt_is_early);
        if early > 0 {
            self.verdict.early += early;
            self.violation("early");
        }
    }

    /// Checks that no message is delivered that was cancelled or never stored.
    fn uncalled(&mut self) {
        let message = self.message;
        let cancelled = message
            .change
            .filter(|change| change.delay.is_none() && matches!(change.how, Changed::Done(_)));
        // A frozen process may continue with what it held before.
        let is_uncalled = |attempt: &Attempt| {
            let after = cancelled.is_some_and(|change| attempt.begun > change.answered);
            after && !self.is_disturbed(attempt)
        };
        let attempts = message.attempts.iter();
        let mut uncalled = attempts.filter(|attempt| is_uncalled(attempt)).count() as u64;
        if message.sent == Sent::Refused {
            uncalled += message.attempts.len() as u64;
        }
        if uncalled > 0 {
            self.verdict.uncalled += uncalled;
            self.violation("uncalled for");
        }
    }

    /// A message whose work was done comes again only if the process that did it was disturbed about then.
    fn duplicates(&mut self) {
        let mut done: Vec<&Attempt> = Vec::new();
        for attempt in &self.message.attempts {
            // Each reader has its own copy.
            let is_copy = |before: &&&Attempt| {
                !self.message.topic.has_copies() || before.process == attempt.process
            };
            let before: Vec<&Attempt> = done.iter().filter(is_copy).copied().collect();
            if !before.is_empty() {
                self.verdict.duplicates += 1;
                let mut kinds: Vec<&str> = before
                    .iter()
                    .flat_map(|attempt| disturbances(self.history, attempt))
                    .map(|disturbance| &*disturbance.kind)
                    .collect();
                kinds.sort_unstable();
                kinds.dedup();
                for &kind in &kinds {
                    let explained = self.verdict.explained_by.entry(kind.to_owned());
                    *explained.or_default() += 1;
                }
                if kinds.is_empty() {
                    self.verdict.unexplained += 1;
                    self.violation("again without a reason");
                }
            }
            if attempt.done {
                done.push(attempt);
            }
        }
    }

    fn is_disturbed(&self, attempt: &Attempt) -> bool {
        disturbances(self.history, attempt).next().is_some()
    }
}

/// Returns the disturbances that explain why an attempt's outcome did not reach Redis in time.
fn disturbances<'a>(
    history: &'a History,
    attempt: &Attempt,
) -> impl Iterator<Item = &'a Disturbance> {
    let process = &history.processes[usize::from(attempt.process)];
    let from = attempt.begun.saturating_sub(AROUND);
    let to = attempt.ended.unwrap_or(attempt.begun) + AROUND;
    history.disturbances.iter().filter(move |disturbance| {
        let concerns = disturbance.process == ALL || disturbance.process == *process;
        let overlaps = disturbance.from <= to && disturbance.to + AFTERMATH >= from;
        concerns && overlaps && faults::repeats(&disturbance.kind)
    })
}

/// Messages of one key: each begins only when all that were due before it, and known by then, have ended; and no two
/// are handled at once.
fn order(history: &History, messages: &mut [(usize, &Message)], verdict: &mut Verdict) {
    // Messages that were moved, cancelled or have no receipt have no known position.
    let mut placed: Vec<(usize, &Message, u64, u64)> = messages
        .iter()
        .filter_map(|&(number, message)| match (message.sent, message.due) {
            (Sent::Accepted { answered, .. }, Some(due)) if message.change.is_none() => {
                Some((number, message, due, answered))
            }
            _ => None,
        })
        .collect();
    placed.sort_by_key(|&(_, _, due, _)| due);
    for (place, &(number, message, due, _)) in placed.iter().enumerate() {
        let Some(first) = message.attempts.first() else {
            continue;
        };
        for &(earlier, before, due_before, answered) in &placed[..place] {
            let is_forgotten = history.flushed.is_some_and(|flushed| answered < flushed);
            if due_before >= due || answered >= due || before.plan.is_hopeless() || is_forgotten {
                continue;
            }
            let done = before.attempts.iter().filter(|attempt| attempt.done);
            let Some(done) = done.filter_map(|attempt| attempt.ended).min() else {
                continue;
            };
            if done > first.begun {
                verdict.disordered += 1;
                let text = format!(
                    "m{number} began at {} before m{earlier} of its key was done at {done}: {message:?} after {before:?}",
                    first.begun
                );
                verdict.violations.push(text);
            }
        }
    }
    overlaps(history, messages, verdict);
}

fn overlaps(history: &History, messages: &[(usize, &Message)], verdict: &mut Verdict) {
    let mut attempts: Vec<(usize, &Attempt)> = messages
        .iter()
        .flat_map(|&(number, message)| {
            message
                .attempts
                .iter()
                .map(move |attempt| (number, attempt))
        })
        .collect();
    // Of two that began in the same ms, the one that ended in it came first.
    attempts.sort_by_key(|(_, attempt)| (attempt.begun, attempt.ended.unwrap_or(u64::MAX)));
    for pair in attempts.windows(2) {
        let [(earlier, before), (number, after)] = pair else {
            continue;
        };
        let is_forgotten = history
            .flushed
            .is_some_and(|flushed| before.begun < flushed);
        let overlap = before.ended.is_some_and(|ended| ended > after.begun) && !is_forgotten;
        if earlier != number && overlap && disturbances(history, before).next().is_none() {
            verdict.disordered += 1;
            let text =
                format!("m{number} began while m{earlier} of its key ran: {after:?}, {before:?}");
            verdict.violations.push(text);
        }
    }
}
