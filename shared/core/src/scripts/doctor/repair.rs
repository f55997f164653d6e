//! See `repair.lua`.

use crate::scripts::doctor::examine::{Seen, Suspect, Tails, spell};
use crate::scripts::operation;

/// Repairs what is wrong with one message.
pub(crate) struct Repair<'a> {
    pub(crate) tails: &'a Tails,
    pub(crate) item: &'a Suspect,
}

operation! {
    "repair" + "streams" + "states" on general shard: Repair<'_>, |call, args, reply|
    args {
        tails: args.number(spell(call.tails)),
        id: args.bytes(&call.item.id),
        hints: for hint in &call.item.hints { args.bytes(hint) },
    }
    reply Vec<Seen> { "repaired" => reply.rest(Seen::read) }
}
