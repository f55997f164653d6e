//! See `recount.lua`.

use crate::scripts::doctor::examine::Seen;
use crate::scripts::operation;

/// Compares the counters of a shard with the messages in it.
pub(crate) struct Recount {
    /// True to correct the counters.
    pub(crate) repair: bool,
}

operation! {
    "recount" + "streams" + "states" on general shard: Recount, |call, args, reply|
    args { repair: args.flag(call.repair) }
    reply Vec<Seen> { "recounted" => reply.rest(Seen::read) }
}
