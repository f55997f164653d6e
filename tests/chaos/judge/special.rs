//! What holds of a merged message, and of one that recurs.

use super::{AFTERMATH, Case, Verdict, disturbances};
use crate::history::{Attempt, History};
use crate::plan::SCHEDULE;
use crate::record::ALL;

/// After everything was deleted, the schedule is back within this, ms.
const BACK: u64 = 15_000;
/// So long before its time a schedule is sent, ms.
const AHEAD: u64 = 10_000;

impl Case<'_> {
    /// What was merged is delivered as the message that it joined, and not before it joined.
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
}

/// A recurring message comes at each of its times, once. Times may be left out while managers or Redis are away.
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
    let known = history
        .ticks
        .first_key_value()
        .zip(history.ticks.last_key_value());
    let Some(((first, _), (last, _))) = known else {
        return;
    };
    let away = |time: u64| {
        let faults = history.disturbances.iter().any(|fault| {
            let concerns = fault.process == ALL || fault.process.starts_with("manager");
            let overlaps = fault.from <= time + AFTERMATH && fault.to + AFTERMATH + AHEAD >= time;
            concerns && overlaps
        });
        faults
            || history
                .flushed
                .is_some_and(|flushed| flushed.abs_diff(time) < BACK)
    };
    let mut time = *first;
    while time <= *last {
        if !history.ticks.contains_key(&time) && !away(time) {
            verdict.lost += 1;
            verdict.violations.push(format!("tick {time} did not come"));
        }
        time += SCHEDULE.1;
    }
}
