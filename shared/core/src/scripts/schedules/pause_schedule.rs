//! See `pause_schedule.lua`.

use crate::scripts::operation;
use crate::topic::ScheduleName;

/// Pauses or resumes a schedule.
pub(crate) struct PauseSchedule<'a> {
    pub(crate) schedule: &'a ScheduleName,
    pub(crate) paused: bool,
    /// True if a configuration declares it.
    pub(crate) is_declared: bool,
}

operation! {
    "pause_schedule" on registry(
        schedule_definitions fires schedules schedule_progress paused_schedules schedule_faults failing_schedules
        resumed_schedules
    ): PauseSchedule<'_>,
    |call, args, reply|
    args {
        schedule: args.text(call.schedule.as_str()),
        how: args.text(if call.paused { "pause" } else { "resume" }),
        declared: args.flag(call.is_declared),
    }
    /// True if that changed anything; `None` if there is no such schedule.
    reply Option<bool> {
        "done" => Ok(Some(reply.flag()?)),
        "absent" => Ok(None),
    }
}
