//! The history of a run as it is read back from its file, by message.

use crate::journal;
use crate::plan::{Plan, Topic};
use crate::record::{Changed, Record};
use std::collections::{BTreeMap, HashMap};
use std::fs::File;
use std::io::{BufRead, BufReader};
use std::path::Path;

/// The senders' knowledge of a message at the end.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Sent {
    /// The sender did not finish.
    #[default]
    Begun,
    /// Accepted; the try that was answered had begun then, and the answer came then.
    Accepted {
        begun: u64,
        answered: u64,
    },
    /// It became part of the message of this number; the try that was answered had begun then.
    Merged {
        begun: u64,
        into: u64,
    },
    Unknown,
    Refused,
}

/// One run of a handler.
#[derive(Clone, Debug)]
pub(crate) struct Attempt {
    pub(crate) begun: u64,
    /// The time at which its outcome was reported; `None` if it never was.
    pub(crate) ended: Option<u64>,
    pub(crate) done: bool,
    /// The due time that it received.
    pub(crate) due: u64,
    pub(crate) number: u32,
    /// An index into [`History::processes`].
    pub(crate) process: u16,
}

/// A change that was asked for.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Change {
    pub(crate) asked: u64,
    pub(crate) answered: u64,
    /// The new delay; `None` for a cancel.
    pub(crate) delay: Option<u64>,
    pub(crate) how: Changed,
}

/// All that is known of a message.
#[derive(Clone, Debug)]
pub(crate) struct Message {
    pub(crate) topic: Topic,
    pub(crate) key: Option<u64>,
    pub(crate) plan: Plan,
    /// The earliest due time that its sender wanted.
    pub(crate) earliest: u64,
    pub(crate) sent: Sent,
    /// The due time in its receipt.
    pub(crate) due: Option<u64>,
    pub(crate) change: Option<Change>,
    /// The runs in the order of their beginning.
    pub(crate) attempts: Vec<Attempt>,
    pub(crate) in_garbage: bool,
}

/// Something that disturbed a process, or all.
#[derive(Clone, Debug)]
pub(crate) struct Disturbance {
    pub(crate) from: u64,
    pub(crate) to: u64,
    pub(crate) kind: String,
    /// A process name or [`ALL`](crate::record::ALL).
    pub(crate) process: String,
}

/// The whole history of a run.
#[derive(Debug, Default)]
pub(crate) struct History {
    /// The messages by number; `None` for numbers that were never begun.
    pub(crate) messages: Vec<Option<Message>>,
    pub(crate) processes: Vec<String>,
    pub(crate) disturbances: Vec<Disturbance>,
    /// The times of the recurring message that came: when they began, and where, an index into [`Self::processes`].
    pub(crate) ticks: BTreeMap<u64, Vec<(u64, u16)>>,
    /// The time at which everything had been deleted.
    pub(crate) flushed: Option<u64>,
    /// Lines about a message that was never sent, and lines that cannot be read.
    pub(crate) strange: Vec<String>,
}

impl History {
    /// Reads the file in a log folder.
    ///
    /// # Errors
    /// The file cannot be read.
    pub(crate) fn read(folder: &Path) -> std::io::Result<Self> {
        let mut history = Self::default();
        let mut indices = HashMap::new();
        for line in BufReader::new(File::open(folder.join(journal::FILE))?).lines() {
            let line = line?;
            let known = match journal::parse(&line) {
                Ok((at, record)) => history.add(at, record, &mut indices),
                Err(_) => false,
            };
            if !known {
                history.strange.push(line);
            }
        }
        for message in history.messages.iter_mut().flatten() {
            message.attempts.sort_by_key(|attempt| attempt.begun);
        }
        Ok(history)
    }

    /// Returns whether a message is known that the record speaks of.
    pub(crate) fn add(
        &mut self,
        at: u64,
        record: Record,
        indices: &mut HashMap<String, u16>,
    ) -> bool {
        match record {
            Record::Intend {
                number,
                topic,
                key,
                plan,
                earliest,
            } => {
                let index = number as usize;
                if self.messages.len() <= index {
                    self.messages.resize(index + 1, None);
                }
                self.messages[index] = Some(Message {
                    topic,
                    key,
                    plan,
                    earliest,
                    sent: Sent::Begun,
                    due: None,
                    change: None,
                    attempts: Vec::new(),
                    in_garbage: false,
                });
                true
            }
            Record::Accepted { number, begun, due } => self.with(number, |message| {
                message.sent = Sent::Accepted {
                    begun,
                    answered: at,
                };
                message.due = due;
            }),
            Record::Merged {
                number,
                begun,
                into,
            } => self.with(number, |m| m.sent = Sent::Merged { begun, into }),
            Record::Unknown { number } => self.with(number, |m| m.sent = Sent::Unknown),
            Record::Refused { number } => self.with(number, |m| m.sent = Sent::Refused),
            Record::Cancelled { number, asked, how } => self.with(number, |message| {
                message.change = Some(Change {
                    asked,
                    answered: at,
                    delay: None,
                    how,
                });
            }),
            Record::Moved {
                number,
                asked,
                delay,
                how,
            } => self.with(number, |message| {
                message.change = Some(Change {
                    asked,
                    answered: at,
                    delay: Some(delay),
                    how,
                });
            }),
            Record::Begin {
                number,
                attempt,
                due,
                process,
            } => {
                let process = self.index(process, indices);
                self.with(number, |message| {
                    message.attempts.push(Attempt {
                        begun: at,
                        ended: None,
                        done: false,
                        due,
                        number: attempt,
                        process,
                    });
                })
            }
            Record::End {
                number,
                attempt,
                process,
                done,
            } => {
                let process = self.index(process, indices);
                self.with(number, |message| {
                    let is_it = |of: &&mut Attempt| {
                        of.number == attempt && of.process == process && of.ended.is_none()
                    };
                    if let Some(of) = message.attempts.iter_mut().rev().find(is_it) {
                        of.ended = Some(at);
                        of.done = done;
                    }
                })
            }
            Record::Fault {
                from,
                kind,
                process,
                ..
            } => {
                self.disturbances.push(Disturbance {
                    from,
                    to: at,
                    kind,
                    process,
                });
                true
            }
            Record::Flushed { .. } => {
                self.flushed = Some(at);
                true
            }
            Record::Garbage { number } => self.with(number, |m| m.in_garbage = true),
            Record::Tick { time, process } => {
                let process = self.index(process, indices);
                self.ticks.entry(time).or_default().push((at, process));
                true
            }
        }
    }

    fn with(&mut self, number: u64, change: impl FnOnce(&mut Message)) -> bool {
        match self.messages.get_mut(number as usize) {
            Some(Some(message)) => {
                change(message);
                true
            }
            _ => false,
        }
    }

    fn index(&mut self, process: String, indices: &mut HashMap<String, u16>) -> u16 {
        let next = u16::try_from(self.processes.len()).expect("few processes");
        *indices.entry(process).or_insert_with_key(|process| {
            self.processes.push(process.clone());
            next
        })
    }
}
