//! See `put_schedule.lua`.

use crate::scripts::operation;
use crate::topic::{OverScheduleQuota, ScheduleName, ScheduleQuota};

/// Creates a schedule, or replaces its definition.
pub(crate) struct PutSchedule<'a> {
    pub(crate) schedule: &'a ScheduleName,
    pub(crate) definition: &'a str,
    /// A text that changes whenever its times do.
    pub(crate) rule: &'a str,
    /// The version that it must have, 0 if it must not exist; `None` for any.
    pub(crate) at: Option<u64>,
    /// The largest number of schedules.
    pub(crate) most: usize,
    /// The quota of the caller.
    pub(crate) quota: Option<&'a ScheduleQuota>,
}

/// The result of a change of a schedule.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SchedulePut {
    /// It has the definition, and a new version.
    Put {
        /// The new version.
        version: u64,
        /// True if it did not exist.
        created: bool,
    },
    /// It has had this definition already, at this version.
    Unchanged(u64),
    /// It is at another version, 0 if it does not exist.
    Other(u64),
    /// There are too many schedules.
    Full,
    /// The caller has too many schedules.
    OverQuota(OverScheduleQuota),
}

operation! {
    "put_schedule" on registry(
        schedule_definitions schedule_names fires schedule_progress paused_schedules schedule_faults failing_schedules
    ): PutSchedule<'_>,
    |call, args, reply|
    args {
        schedule: args.text(call.schedule.as_str()),
        definition: args.text(call.definition),
        rule: args.text(call.rule),
        at: args.optional(call.at),
        most: args.number(call.most),
        max_own: args.optional(call.quota.map(ScheduleQuota::max_schedules)),
        own: for (from, to) in call.quota.into_iter().flat_map(ScheduleQuota::ranges) {
            args.text(&from);
            args.text(&to);
        },
    }
    reply SchedulePut {
        "put" => Ok(SchedulePut::Put {
            version: reply.number()?,
            created: reply.number::<u64>()? == 0,
        }),
        "unchanged" => Ok(SchedulePut::Unchanged(reply.number()?)),
        "other" => Ok(SchedulePut::Other(reply.number()?)),
        "full" => Ok(SchedulePut::Full),
        "over" => Ok(SchedulePut::OverQuota(OverScheduleQuota {
            max_schedules: call.quota.map_or(0, ScheduleQuota::max_schedules),
            schedules: reply.number()?,
        })),
    }
}
