//! See `drop_keys.lua`.

use crate::scripts::operation;
use crate::topic::Shard;

/// Removes the keys of a retired shard after all its messages have migrated.
pub(crate) struct DropKeys {
    /// The shard to ask next, which a topic's first shard keeps.
    pub(crate) next: Option<Shard>,
}

operation! {
    "drop_keys" on general shard + series + series15 + observed + failures + purged + in_transit: DropKeys, |call, args, reply|
    args { next: args.optional(call.next) }
    /// True if the shard is gone.
    reply bool { "dropped" => reply.flag() }
}
