//! See `note_fires.lua`.

use crate::scripts::operation;
use crate::time::{UnixMs, shorten_to};
use crate::topic::ScheduleName;

/// The longest error that is stored, in characters.
const ERROR: usize = 200;

/// Records the times up to which schedules have fired.
pub(crate) struct NoteFires<'a> {
    pub(crate) fires: &'a [Fired<'a>],
}

/// The progress of a schedule, to be recorded.
#[derive(Clone, Debug)]
pub struct Fired<'a> {
    /// The schedule.
    pub schedule: &'a ScheduleName,
    /// The definition to which a recorded time must belong. One of another does not count.
    pub of: FiredOf<'a>,
    /// The time up to which it has fired; `None` only asks.
    pub until: Option<UnixMs>,
    /// The times that were missed since it fired last.
    pub missed: MissedTimes,
    /// The error of a send that failed; empty without one.
    pub error: String,
    /// When a stored schedule is to be taken next; `None` leaves it as it is.
    pub take: Option<UnixMs>,
}

/// The definition by which a schedule has fired.
#[derive(Clone, Copy, Debug)]
pub enum FiredOf<'a> {
    /// The rule that defines its times, if a configuration declares it.
    Rule(&'a str),
    /// The version of its definition, if it is stored. Nothing is recorded for one that was changed or removed meanwhile.
    Version(u64),
}

/// Times of a schedule for which no message was sent.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct MissedTimes {
    /// The number of times.
    pub count: u64,
    /// The newest of them; the epoch if there is none.
    pub newest: UnixMs,
}

/// The progress of a schedule, as it is recorded.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Progress {
    /// The time up to which it has fired; `None` if it has not begun.
    pub done: Option<UnixMs>,
    /// True if it is paused.
    pub is_paused: bool,
}

impl<'a> Fired<'a> {
    /// Asks for the progress of a schedule.
    pub fn ask(schedule: &'a ScheduleName, of: FiredOf<'a>) -> Self {
        Self {
            schedule,
            of,
            until: None,
            missed: MissedTimes::default(),
            error: String::new(),
            take: None,
        }
    }
}

operation! {
    "note_fires" on registry(schedules fires paused_schedules schedule_faults): NoteFires<'_>, |call, args, reply|
    args {
        fires: for fired in call.fires {
            args.text(fired.schedule.as_str());
            match fired.of {
                FiredOf::Rule(rule) => {
                    args.text(rule);
                    args.text("");
                }
                FiredOf::Version(version) => {
                    args.text("");
                    args.number(version);
                }
            }
            args.number(fired.until.unwrap_or_default().get());
            args.number(fired.missed.count);
            args.number(fired.missed.newest.get());
            args.text(&shorten_to(&fired.error, ERROR));
            args.number(fired.take.unwrap_or_default().get());
        },
    }
    /// The progress of each schedule.
    reply Vec<Progress> {
        "noted" => reply.rest(|reply| {
            Ok(Progress {
                done: Some(UnixMs::new(reply.number()?)).filter(|at| at.get() > 0),
                is_paused: reply.flag()?,
            })
        }),
    }
}
