//! The one place where every part reports what happened: written to a file at once, and counted for progress.

use crate::plan::Topic;
use crate::record::{Record, now};
use crate::witness::STALL;
use std::collections::BTreeMap;
use std::fs::File;
use std::io::{BufWriter, Write};
use std::path::Path;
use std::sync::{Mutex, MutexGuard};

/// The file of the history in the log folder: a line is a time in ms and a record.
pub(crate) const FILE: &str = "history.log";

/// The history as it is written.
#[derive(Debug)]
pub(crate) struct Journal {
    state: Mutex<State>,
}

#[derive(Debug)]
struct State {
    file: BufWriter<File>,
    counts: Counts,
    /// The state of each message, by number.
    messages: Vec<Known>,
    /// The latest due time among the delivered messages, by topic.
    delivered_due: BTreeMap<&'static str, u64>,
    /// The start of the latest accepted send, by producer.
    accepted_by: BTreeMap<String, u64>,
    violations: Vec<String>,
}

#[derive(Clone, Copy, Debug, Default)]
struct Known {
    topic: Option<Topic>,
    done: bool,
}

/// The counts so far.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Counts {
    pub(crate) accepted: u64,
    pub(crate) unknown: u64,
    pub(crate) refused: u64,
    /// Messages whose handler did its work.
    pub(crate) done: u64,
    /// Deliveries of a message whose handler had done its work already.
    pub(crate) again: u64,
    pub(crate) faults: u64,
}

impl Journal {
    /// Begins a history in this folder.
    pub(crate) fn create(folder: &Path) -> std::io::Result<Self> {
        let file = BufWriter::with_capacity(1 << 16, File::create(folder.join(FILE))?);
        Ok(Self {
            state: Mutex::new(State {
                file,
                counts: Counts::default(),
                messages: Vec::new(),
                delivered_due: BTreeMap::new(),
                accepted_by: BTreeMap::new(),
                violations: Vec::new(),
            }),
        })
    }

    /// Writes what just happened.
    pub(crate) fn note(&self, record: &Record) {
        self.note_at(now(), record);
    }

    /// Writes what happened then.
    pub(crate) fn note_at(&self, at: u64, record: &Record) {
        let mut state = self.state();
        let line = writeln!(state.file, "{at} {record}");
        line.expect("the history can be written");
        state.count(record);
    }

    /// Writes a line that a process printed, `<time> <record>`.
    pub(crate) fn note_line(&self, line: &str) {
        match parse(line) {
            Ok((at, record)) => self.note_at(at, &record),
            Err(why) => self.violation(format!("a process printed {line:?}: {why}")),
        }
    }

    /// Notes that this producer accepted a send which had begun then.
    pub(crate) fn accepted_by(&self, producer: &str, begun: u64) {
        let mut state = self.state();
        let latest = state.accepted_by.entry(producer.to_owned()).or_default();
        *latest = begun.max(*latest);
    }

    /// Returns the busy topics that have not delivered a message that was due after `from`, and the producers, of
    /// these, that have not accepted a send since.
    pub(crate) fn silent_since(&self, from: u64, producers: &[&'static str]) -> Vec<&'static str> {
        let state = self.state();
        let reached = |latest: Option<&u64>| latest.is_some_and(|latest| *latest >= from);
        let topics = Topic::BUSY.iter().map(|topic| topic.name());
        let topics = topics.filter(|topic| !reached(state.delivered_due.get(topic)));
        let producers = producers.iter().copied();
        let producers = producers.filter(|producer| !reached(state.accepted_by.get(*producer)));
        topics.chain(producers).collect()
    }

    /// Records a violation that concerns no single message.
    pub(crate) fn violation(&self, what: String) {
        eprintln!("violation: {what}");
        self.state().violations.push(what);
    }

    /// The violations so far.
    pub(crate) fn violations(&self) -> Vec<String> {
        self.state().violations.clone()
    }

    pub(crate) fn counts(&self) -> Counts {
        self.state().counts
    }

    /// Flushes the file.
    pub(crate) fn flush(&self) {
        let flushed = self.state().file.flush();
        flushed.expect("the history can be written");
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state
            .lock()
            .expect("no writer of the history panicked")
    }
}

impl State {
    fn known(&mut self, number: u64) -> &mut Known {
        let index = number as usize;
        if self.messages.len() <= index {
            self.messages.resize(index + 1, Known::default());
        }
        &mut self.messages[index]
    }

    fn count(&mut self, record: &Record) {
        match record {
            Record::Intend { number, topic, .. } => self.known(*number).topic = Some(*topic),
            Record::Accepted { .. } | Record::Merged { .. } => self.counts.accepted += 1,
            Record::Unknown { .. } => self.counts.unknown += 1,
            Record::Refused { .. } => self.counts.refused += 1,
            Record::Begin { number, due, .. } => {
                let known = *self.known(*number);
                // Each reader has its own copy.
                let is_copy = known.topic.is_some_and(Topic::has_copies);
                self.counts.again += u64::from(known.done && !is_copy);
                if let Some(topic) = known.topic {
                    let latest = self.delivered_due.entry(topic.name()).or_default();
                    *latest = (*latest).max(*due);
                }
            }
            Record::End { number, done, .. } if *done => {
                let before = std::mem::replace(&mut self.known(*number).done, true);
                self.counts.done += u64::from(!before);
            }
            Record::Fault { kind, .. } if kind != STALL => self.counts.faults += 1,
            _ => {}
        }
    }
}

/// Reads a line of the history.
pub(crate) fn parse(line: &str) -> Result<(u64, Record), String> {
    let (at, record) = line.split_once(' ').ok_or("no time")?;
    let at = at.parse().map_err(|_| format!("no time: {at:?}"))?;
    Ok((at, record.parse()?))
}
