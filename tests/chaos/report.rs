//! The results of a run, as tables.

use crate::faults::{CRASH, FLUSHALL, KINDS};
use crate::judge::Verdict;
use crate::witness::{self, STALL};
use std::collections::BTreeMap;
use std::fmt::Write;
use std::time::Duration;

/// The record of one kind of fault.
#[derive(Clone, Debug, Default)]
pub(crate) struct Injected {
    pub(crate) times: u64,
    /// The time in ms from the end of the fault until all messages flowed again, for faults that were alone.
    pub(crate) recoveries: Vec<u64>,
}

/// The injected faults, by kind.
#[derive(Clone, Debug, Default)]
pub(crate) struct Faults {
    pub(crate) by_kind: BTreeMap<&'static str, Injected>,
    /// The number of times that topics were resharded.
    pub(crate) resharded: u64,
    /// The number of these that ended.
    pub(crate) ended: u64,
    /// Kinds that cannot be injected here, and why.
    pub(crate) skipped: Vec<(&'static str, String)>,
}

impl Faults {
    pub(crate) fn total(&self) -> u64 {
        let injected = self.by_kind.iter().filter(|(kind, _)| **kind != STALL);
        injected.map(|(_, injected)| injected.times).sum()
    }

    /// Records one, and how long the recovery from it took if that is known.
    pub(crate) fn note(&mut self, kind: &'static str, recovery: Option<u64>) {
        let injected = self.by_kind.entry(kind).or_default();
        injected.times += 1;
        injected.recoveries.extend(recovery);
    }
}

/// The whole report.
pub(crate) fn markdown(
    facts: &[(String, String)],
    faults: &Faults,
    verdict: &Verdict,
    violations: &[String],
) -> String {
    let mut text = "# What Lisa withstands\n\n".to_owned();
    for (name, value) in facts {
        let _ = writeln!(text, "- {name}: {value}");
    }
    text += "\nHow to read it: [testing](../../shared/docs/internals/testing.md).\n\n";
    text += "| | |\n|---|---:|\n";
    let rows: [(&str, u64); 24] = [
        ("messages sent", verdict.sent),
        ("accepted", verdict.accepted),
        ("of unknown fate to their senders", verdict.unknown),
        ("refused: nothing was stored", verdict.refused),
        ("merged into others", verdict.merged),
        ("cancelled", verdict.cancelled),
        ("rescheduled", verdict.rescheduled),
        ("accepted and handled", verdict.done),
        ("broadcast, and heard by a process", verdict.heard),
        ("times of a schedule that came", verdict.ticks),
        ("in garbage, as planned", verdict.garbage),
        ("gone with FLUSHALL", verdict.forgiven),
        ("runs of a handler", verdict.attempts),
        (
            "duplicates, explained",
            verdict.duplicates - verdict.unexplained,
        ),
        ("faults", faults.total()),
        ("reshardings begun", faults.resharded),
        ("ended before everything was deleted", faults.ended),
        ("**lost**", verdict.lost),
        ("**early**", verdict.early),
        ("**with another due time**", verdict.misdated),
        ("**out of order**", verdict.disordered),
        ("**duplicates without a reason**", verdict.unexplained),
        ("**in garbage without a plan**", verdict.given_up),
        (
            "**delivered though cancelled or refused**",
            verdict.uncalled,
        ),
    ];
    for (what, count) in rows {
        let _ = writeln!(text, "| {what} | {} |", grouped(count));
    }
    let _ = writeln!(
        text,
        "| **violations of any kind** | {} |",
        violations.len()
    );
    text += "\n| fault | is | times | recovery median, ms | max, ms | duplicates it explains |\n|---|---|---:|---:|---:|---:|\n";
    let known = KINDS.iter().map(|kind| (kind.name, kind.what));
    let others = [
        (CRASH, "a poisonous message killed its consumer"),
        (FLUSHALL, "everything is deleted"),
        (STALL, witness::WHAT),
    ];
    for (name, what) in known.chain(others) {
        let explained = verdict.explained_by.get(name).copied().unwrap_or(0);
        match faults.by_kind.get(name) {
            Some(injected) => {
                let (median, max) = spread(&injected.recoveries);
                let times = injected.times;
                let _ = writeln!(
                    text,
                    "| {name} | {what} | {times} | {median} | {max} | {explained} |"
                );
            }
            None => {
                let skipped = faults.skipped.iter().find(|(kind, _)| *kind == name);
                let why = skipped.map_or("not wanted", |(_, why)| why);
                let _ = writeln!(text, "| {name} | {what} | – | {why} | | |");
            }
        }
    }
    text
}

/// Median and maximum.
fn spread(values: &[u64]) -> (String, String) {
    let mut sorted = values.to_vec();
    sorted.sort_unstable();
    match sorted.last() {
        Some(max) => (grouped(sorted[sorted.len() / 2]), grouped(*max)),
        None => ("–".to_owned(), "–".to_owned()),
    }
}

/// A number with a comma every three digits.
fn grouped(number: u64) -> String {
    let digits = number.to_string();
    let mut text = String::new();
    for (place, digit) in digits.chars().enumerate() {
        if place > 0 && (digits.len() - place).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    text
}

/// A time in readable form.
pub(crate) fn lasted(time: Duration) -> String {
    let seconds = time.as_secs();
    format!("{} min {} s", seconds / 60, seconds % 60)
}
