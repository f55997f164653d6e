//! The promises for merged messages, broadcast messages and recurring messages.

use super::{AFTERMATH, Case, Verdict, disturbances};
use crate::history::{Attempt, Disturbance, History};
use crate::plan::{EACH_EVERY, LISTENERS, TICK_EVERY};
use crate::pullout::{NO_GROUP, PULL_OUT};
use crate::record::ALL;
use crate::witness::STALL;

/// A listener that is silent for long loses its group. Faults that lasted this many ms may have come one after the
/// other. A machine that was held up for this long in all is such a fault.
const SILENT: u64 = 3000;
/// A listener may hold a message from this many ms before its due time, for clocks, until this many ms after it.
const BEFORE: u64 = 10_000;
const AFTER: u64 = 20_000;
/// After everything was deleted, listeners are back within this many ms, plus the time for which the machine was held
/// up.
const BACK: u64 = 15_000;
/// The time before its due time at which a schedule's message is sent, in ms.
const AHEAD: u64 = 10_000;

/// Returns how long the machine was held up between two times, in ms.
fn held_up(history: &History, from: u64, to: u64) -> u64 {
    let stalls = history
        .disturbances
        .iter()
        .filter(|fault| fault.kind == STALL);
    let within = |stall: &Disturbance| stall.to.min(to).saturating_sub(stall.from.max(from));
    stalls.map(within).sum()
}

/// Returns the time at which listeners and managers are back after everything was deleted.
fn back(history: &History, flushed: u64) -> u64 {
    flushed + BACK + held_up(history, flushed, flushed + 2 * BACK)
}

impl Case<'_> {
    /// Checks that a merged message is delivered as the message that it joined, and not before it joined.
    pub(super) fn lost_with(&mut self, begun: u64, into: u64) {
        if self.history.flushed.is_some_and(|flushed| begun < flushed) {
            self.verdict.forgiven += 1;
            return;
        }
        let standing = self.history.messages.get(into as usize);
        let attempts = standing.into_iter().flatten().flat_map(|m| &m.attempts);
        if !attempts.into_iter().any(|a| a.done && a.begun >= begun) {
            self.verdict.lost += 1;
            self.violation("lost with the message that it joined");
        }
    }

    /// Checks that each listener gets every message that becomes due while it runs. A message that becomes due while no
    /// listener runs goes to the first one that comes.
    pub(super) fn unheard(&mut self, begun: u64) {
        let Some(due) = self.message.due else { return };
        let (history, attempts) = (self.history, &self.message.attempts);
        if let Some(flushed) = history.flushed
            && due >= flushed.saturating_sub(AFTER)
            // Deleted while it waited, or due before all of them are back.
            && (begun < flushed || due < back(history, flushed))
        {
            self.verdict.forgiven += u64::from(attempts.is_empty());
            return;
        }
        let heard = |listener: &str| self.is_done_by(listener);
        let after = due + AFTER + held_up(history, due, due + 2 * AFTER);
        let stalled = held_up(history, due.saturating_sub(BEFORE), after);
        let is_excused = |listener: &str| {
            history.disturbances.iter().any(|fault| {
                let concerns = fault.process == ALL || fault.process == listener;
                let overlaps = fault.from <= after && fault.to + BEFORE >= due;
                let lasted = match &*fault.kind {
                    STALL => stalled,
                    _ => fault.to - fault.from,
                };
                let is_long = fault.kind == PULL_OUT || lasted >= SILENT;
                concerns && overlaps && is_long
            })
        };
        let without = history.disturbances.iter().any(|fault| {
            fault.kind == NO_GROUP && (fault.from + AFTERMATH / 4..fault.to).contains(&due)
        });
        let owed = |listener: &&str| !is_excused(listener) && !heard(listener);
        let is_lost = match without {
            true => !LISTENERS.iter().any(|listener| heard(listener)),
            false => LISTENERS.iter().any(owed),
        };
        let all = LISTENERS.iter().filter(|listener| heard(listener)).count();
        self.verdict.heard += all as u64;
        if is_lost {
            self.verdict.lost += 1;
            self.violation("not heard by each listener");
        }
    }
}

/// Checks that a recurring message comes at each of its times, once. Times may be left out while managers or Redis are
/// unavailable.
pub(super) fn ticks(history: &History, verdict: &mut Verdict) {
    verdict.ticks = history.ticks.len() as u64;
    for (time, came) in &history.ticks {
        if came.iter().any(|(begun, _)| begun < time) {
            verdict.early += 1;
            verdict.violations.push(format!("tick {time} was early"));
        }
        let attempts = came.iter().map(|&(begun, process)| Attempt {
            begun,
            ended: Some(begun),
            done: true,
            due: *time,
            number: 1,
            process,
        });
        let attempts: Vec<Attempt> = attempts.collect();
        for pair in attempts.windows(2) {
            verdict.duplicates += 1;
            if disturbances(history, &pair[0]).next().is_none() {
                verdict.unexplained += 1;
                let text = format!("tick {time} came again without a reason");
                verdict.violations.push(text);
            }
        }
    }
    // The schedule of the times between those of the file is created last.
    let mut times = history.ticks.keys();
    let first = times.find(|time| !time.is_multiple_of(EACH_EVERY));
    let Some((first, (last, _))) = first.zip(history.ticks.last_key_value()) else {
        return;
    };
    let away = |time: u64| {
        let faults = history.disturbances.iter().any(|fault| {
            let concerns = fault.process == ALL || fault.process.starts_with("manager");
            let overlaps = fault.from <= time + AFTERMATH && fault.to + AFTERMATH + AHEAD >= time;
            concerns && overlaps
        });
        faults
            || history.flushed.is_some_and(|flushed| {
                // The schedule that was created at run time is gone.
                let is_gone = time >= flushed && !time.is_multiple_of(EACH_EVERY);
                is_gone || (flushed.saturating_sub(BACK)..back(history, flushed)).contains(&time)
            })
    };
    let mut time = *first;
    while time <= *last {
        if !history.ticks.contains_key(&time) && !away(time) {
            verdict.lost += 1;
            verdict.violations.push(format!("tick {time} did not come"));
        }
        time += TICK_EVERY;
    }
}
