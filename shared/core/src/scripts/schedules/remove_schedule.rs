//! See `remove_schedule.lua`.

use crate::scripts::operation;
use crate::topic::ScheduleName;

/// Removes a schedule.
pub(crate) struct RemoveSchedule<'a> {
    pub(crate) schedule: &'a ScheduleName,
    /// The version that it must have; `None` for any.
    pub(crate) at: Option<u64>,
}

/// The result of the removal of a schedule.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ScheduleRemoved {
    /// It is removed.
    Removed,
    /// There is none.
    Absent,
    /// It is at another version.
    Other(u64),
}

operation! {
    "remove_schedule" on registry(
        schedule_definitions schedule_names fires schedule_progress paused_schedules schedule_faults failing_schedules
        resumed_schedules
    ): RemoveSchedule<'_>,
    |call, args, reply|
    args {
        schedule: args.text(call.schedule.as_str()),
        at: args.optional(call.at),
    }
    reply ScheduleRemoved {
        "removed" => Ok(ScheduleRemoved::Removed),
        "absent" => Ok(ScheduleRemoved::Absent),
        "other" => Ok(ScheduleRemoved::Other(reply.number()?)),
    }
}
