//! See `change_garbage_job.lua`.

use crate::scripts::operation;

/// Replaces the state of a garbage job.
pub(crate) struct ChangeGarbageJob<'a> {
    pub(crate) id: &'a str,
    /// The state that the caller read; empty for a new job.
    pub(crate) before: &'a str,
    /// The new state; empty removes the job.
    pub(crate) after: &'a str,
    /// The largest number of jobs.
    pub(crate) most: usize,
}

/// The result of a change of a garbage job.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum JobChange {
    /// The job has the new state.
    Changed,
    /// Another process has changed the job since it was read.
    Other,
    /// There are too many jobs.
    Full,
}

operation! {
    "change_garbage_job" on registry(garbage_jobs): ChangeGarbageJob<'_>, |call, args, reply|
    args {
        id: args.text(call.id),
        before: args.text(call.before),
        after: args.text(call.after),
        most: args.number(call.most),
    }
    reply JobChange {
        "stored" => Ok(JobChange::Changed),
        "other" => Ok(JobChange::Other),
        "full" => Ok(JobChange::Full),
    }
}
