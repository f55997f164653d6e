//! See `start_move_task.lua`.

use crate::scripts::operation;

/// Stores a new message move task.
pub(crate) struct StartMoveTask<'a> {
    pub(crate) id: &'a str,
    pub(crate) state: &'a str,
    /// The number of starts that the caller read.
    pub(crate) starts: u64,
}

operation! {
    "start_move_task" on registry(move_tasks): StartMoveTask<'_>, |call, args, reply|
    args {
        id: args.text(call.id),
        state: args.text(call.state),
        starts: args.number(call.starts),
    }
    /// True if it is stored.
    reply bool {
        "started" => Ok(true),
        "other" => Ok(false),
    }
}
