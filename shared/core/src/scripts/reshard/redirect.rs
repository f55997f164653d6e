//! See `redirect.lua`.

use crate::scripts::operation;

/// Points processes that look for a topic at its first shard to newer shards. Returns the shard to ask next.
pub(crate) struct Redirect {
    /// The shard to ask next.
    pub(crate) next: u16,
    /// True to restore a topic that is gone. If another process has restored it, nothing changes.
    pub(crate) restores: bool,
}

operation! {
    "redirect" on shard(conf): Redirect, |call, args, reply|
    args { next: args.number(call.next), restores: args.flag(call.restores) }
    reply u16 { "redirected" => reply.number() }
}
