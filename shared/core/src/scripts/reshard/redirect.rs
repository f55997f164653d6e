//! See `redirect.lua`.

use crate::scripts::operation;

/// Points processes that look for a topic at its first shard to newer shards.
pub(crate) struct Redirect {
    /// The shard to ask next.
    pub(crate) next: u16,
}

operation! {
    "redirect" on shard(conf): Redirect, |call, args, reply|
    args { next: args.number(call.next) }
    reply () { "redirected" => Ok(()) }
}
