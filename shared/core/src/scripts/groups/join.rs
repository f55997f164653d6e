//! See `join.lua`.

use crate::scripts::operation;
use crate::topic::Group;

/// Creates the group of one running consumer, or renews its lease.
pub(crate) struct Join<'a> {
    pub(crate) now: u64,
    pub(crate) group: &'a Group,
}

/// The outcome of a join.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Joined {
    /// The group exists; `new` says whether this call created it.
    Member { new: bool, epoch: u64 },
    /// The group was silent for too long and is being removed.
    Retiring,
}

operation! {
    "join" on group(conf ready): Join<'_>, |call, args, reply|
    args { now: args.number(call.now), group: args.text(call.group.as_str()) }
    reply Joined {
        "joined" => Ok(Joined::Member { new: true, epoch: reply.number()? }),
        "heartbeat" => Ok(Joined::Member { new: false, epoch: reply.number()? }),
        "retiring" => Ok(Joined::Retiring),
    }
}
