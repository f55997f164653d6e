//! See `register.lua`.

use crate::scripts::operation;
use crate::topic::Topic;

/// Lists a topic in the registry.
pub(crate) struct Register<'a> {
    pub(crate) topic: &'a Topic,
    pub(crate) shards: u16,
    pub(crate) epoch: u64,
    /// True to keep an entry that is there.
    pub(crate) if_missing: bool,
}

operation! {
    "register" on registry(topics): Register<'_>, |call, args, reply|
    args {
        topic: args.text(call.topic.as_str()),
        entry: args.number(format_args!("{} {}", call.shards, call.epoch)),
        if_missing: args.flag(call.if_missing),
    }
    /// True if the registry has changed.
    reply bool {
        "registered" => Ok(true),
        "same" => Ok(false),
    }
}
