//! The lines of the history: one for each action or observation, written outside Redis by the process that made it.
//!
//! All times are ms of the host's clock, which is also Redis's. Processes may run under a false clock; a clock that
//! cannot be changed stamps their records (see [`now`]).

use crate::plan::{Plan, Topic};
use std::fmt;
use std::str::FromStr;

/// The outcome of a change that a sender asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Changed {
    /// It was done; `due` is the new due time, if any.
    Done(Option<u64>),
    /// It was refused: too late.
    Late,
    /// No answer came.
    Unknown,
}

/// One line.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Record {
    /// A sender is about to send a message for the first time, due not before `earliest`.
    Intend {
        number: u64,
        topic: Topic,
        key: Option<u64>,
        plan: Plan,
        earliest: u64,
    },
    /// A send was accepted; the try that was answered had begun at `begun`.
    Accepted {
        number: u64,
        begun: u64,
        due: Option<u64>,
    },
    /// A send joined another message; the try that was answered had begun at `begun`.
    Merged { number: u64, begun: u64, into: u64 },
    /// A sender stopped trying, and one of its tries may have stored the message.
    Unknown { number: u64 },
    /// A sender stopped trying, and each reply said that nothing was stored.
    Refused { number: u64 },
    /// A cancel that was asked for at `asked` ended.
    Cancelled {
        number: u64,
        asked: u64,
        how: Changed,
    },
    /// A reschedule that was asked for at `asked`, to `delay` ms from then, ended.
    Moved {
        number: u64,
        asked: u64,
        delay: u64,
        how: Changed,
    },
    /// A handler begins; `due` is the due time that it received.
    Begin {
        number: u64,
        attempt: u32,
        due: u64,
        process: String,
    },
    /// A handler is about to say that its work is done, or that it failed.
    End {
        number: u64,
        attempt: u32,
        process: String,
        done: bool,
    },
    /// Something that disturbs a process, or all of them (`*`), lasted from `from` to the time of the line.
    Fault {
        from: u64,
        kind: String,
        process: String,
        detail: String,
    },
    /// Everything was deleted: what was accepted before is forgiven.
    Flushed { from: u64 },
    /// A message was found in garbage.
    Garbage { number: u64 },
    /// The recurring message of a time, ms, was printed.
    Tick { time: u64, process: String },
}

/// The process named for a fault that hits Redis or the network as a whole.
pub(crate) const ALL: &str = "*";

/// The host's clock, ms.
///
/// It asks the kernel and not the C library, so that libfaketime, under which processes of the harness may run, does
/// not affect it.
pub(crate) fn now() -> u64 {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::Realtime);
    time.tv_sec as u64 * 1000 + time.tv_nsec as u64 / 1_000_000
}

/// A number or nothing, as one word.
struct Maybe(Option<u64>);

impl fmt::Display for Maybe {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            Some(number) => number.fmt(f),
            None => f.write_str("-"),
        }
    }
}

impl fmt::Display for Changed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Done(due) => write!(f, "done {}", Maybe(*due)),
            Self::Late => f.write_str("late"),
            Self::Unknown => f.write_str("unknown"),
        }
    }
}

impl fmt::Display for Record {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Intend {
                number,
                topic,
                key,
                plan,
                earliest,
            } => {
                let (topic, key) = (topic.name(), Maybe(*key));
                write!(f, "intend {number} {topic} {key} {plan} {earliest}")
            }
            Self::Accepted { number, begun, due } => {
                write!(f, "accepted {number} {begun} {}", Maybe(*due))
            }
            Self::Merged {
                number,
                begun,
                into,
            } => write!(f, "merged {number} {begun} {into}"),
            Self::Unknown { number } => write!(f, "unknown {number}"),
            Self::Refused { number } => write!(f, "refused {number}"),
            Self::Cancelled { number, asked, how } => {
                write!(f, "cancelled {number} {asked} {how}")
            }
            Self::Moved {
                number,
                asked,
                delay,
                how,
            } => write!(f, "moved {number} {asked} {delay} {how}"),
            Self::Begin {
                number,
                attempt,
                due,
                process,
            } => write!(f, "begin {number} {attempt} {due} {process}"),
            Self::End {
                number,
                attempt,
                process,
                done,
            } => {
                let how = if *done { "done" } else { "failed" };
                write!(f, "end {number} {attempt} {process} {how}")
            }
            Self::Fault {
                from,
                kind,
                process,
                detail,
            } => write!(f, "fault {from} {kind} {process} {detail}"),
            Self::Flushed { from } => write!(f, "flushed {from}"),
            Self::Garbage { number } => write!(f, "garbage {number}"),
            Self::Tick { time, process } => write!(f, "tick {time} {process}"),
        }
    }
}

/// The words of a line, taken one after the other.
struct Words<'a>(std::str::SplitN<'a, char>);

impl<'a> Words<'a> {
    fn word(&mut self) -> Result<&'a str, String> {
        self.0.next().ok_or_else(|| "a word is missing".to_owned())
    }

    fn parse<T: FromStr>(&mut self) -> Result<T, String> {
        let word = self.word()?;
        word.parse().map_err(|_| format!("not expected: {word:?}"))
    }

    fn maybe(&mut self) -> Result<Option<u64>, String> {
        match self.word()? {
            "-" => Ok(None),
            word => word.parse().map(Some).map_err(|_| format!("{word:?}")),
        }
    }

    fn changed(&mut self) -> Result<Changed, String> {
        Ok(match self.word()? {
            "done" => Changed::Done(self.maybe()?),
            "late" => Changed::Late,
            "unknown" => Changed::Unknown,
            other => return Err(format!("not expected: {other:?}")),
        })
    }
}

/// Reads a line without its time.
impl FromStr for Record {
    type Err = String;

    fn from_str(line: &str) -> Result<Self, String> {
        let mut words = Words(line.splitn(7, ' '));
        Ok(match words.word()? {
            "intend" => Self::Intend {
                number: words.parse()?,
                topic: words.parse()?,
                key: words.maybe()?,
                plan: words.parse()?,
                earliest: words.parse()?,
            },
            "accepted" => Self::Accepted {
                number: words.parse()?,
                begun: words.parse()?,
                due: words.maybe()?,
            },
            "merged" => Self::Merged {
                number: words.parse()?,
                begun: words.parse()?,
                into: words.parse()?,
            },
            "unknown" => Self::Unknown {
                number: words.parse()?,
            },
            "refused" => Self::Refused {
                number: words.parse()?,
            },
            "cancelled" => Self::Cancelled {
                number: words.parse()?,
                asked: words.parse()?,
                how: words.changed()?,
            },
            "moved" => Self::Moved {
                number: words.parse()?,
                asked: words.parse()?,
                delay: words.parse()?,
                how: words.changed()?,
            },
            "begin" => Self::Begin {
                number: words.parse()?,
                attempt: words.parse()?,
                due: words.parse()?,
                process: words.parse()?,
            },
            "end" => Self::End {
                number: words.parse()?,
                attempt: words.parse()?,
                process: words.parse()?,
                done: words.word()? == "done",
            },
            "fault" => Self::Fault {
                from: words.parse()?,
                kind: words.parse()?,
                process: words.parse()?,
                detail: words.0.collect::<Vec<_>>().join(" "),
            },
            "flushed" => Self::Flushed {
                from: words.parse()?,
            },
            "garbage" => Self::Garbage {
                number: words.parse()?,
            },
            "tick" => Self::Tick {
                time: words.parse()?,
                process: words.parse()?,
            },
            other => return Err(format!("no record: {other:?}")),
        })
    }
}
