//! See `note_fires.lua`.

use crate::scripts::operation;
use crate::time::{UnixMs, shorten_to};
use crate::topic::ScheduleName;

/// The longest error that is stored, in characters.
const ERROR: usize = 200;

/// Records what became of times of schedules.
pub(crate) struct NoteFires<'a> {
    pub(crate) fires: &'a [Fired<'a>],
}

/// The result of a send for a time of a schedule, to be recorded.
#[derive(Clone, Copy, Debug)]
pub struct Fired<'a> {
    /// The schedule.
    pub schedule: &'a ScheduleName,
    /// The definition to which a recorded time must belong. One of another does not count.
    pub of: FiredOf<'a>,
    /// The result of a send; `None` only asks for the progress.
    pub result: Option<FireResult<'a>>,
    /// The times that were missed since it fired last.
    pub missed: MissedTimes,
    /// When a stored schedule is to be taken next; `None` leaves it as it is.
    pub take: Option<UnixMs>,
}

/// The result of a send for a time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FireResult<'a> {
    /// It is sent, or the schedule begins at this time.
    Sent(UnixMs),
    /// It failed with this error, and is tried again.
    Failed(UnixMs, &'a str),
    /// The topic refuses the message with this error. It is not tried again.
    Refused(UnixMs, &'a str),
    /// A message was sent outside its times, which clears its error.
    Ran,
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
            result: None,
            missed: MissedTimes::default(),
            take: None,
        }
    }
}

operation! {
    "note_fires" on registry(schedules schedule_progress fires paused_schedules schedule_faults failing_schedules): NoteFires<'_>,
    |call, args, reply|
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
            let (outcome, time, error) = match fired.result {
                None => ("ask", UnixMs::default(), ""),
                Some(FireResult::Sent(time)) => ("sent", time, ""),
                Some(FireResult::Failed(time, error)) => ("failed", time, error),
                Some(FireResult::Refused(time, error)) => ("refused", time, error),
                Some(FireResult::Ran) => ("ran", UnixMs::default(), ""),
            };
            args.text(outcome);
            args.number(time.get());
            args.text(&shorten_to(error, ERROR));
            args.number(fired.missed.count);
            args.number(fired.missed.newest.get());
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
