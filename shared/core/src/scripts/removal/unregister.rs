//! See `unregister.lua`.

use crate::scripts::operation;
use crate::topic::Topic;

/// Takes a removed topic out of the registry.
pub(crate) struct Unregister<'a> {
    pub(crate) topic: &'a Topic,
    pub(crate) epoch: u64,
}

operation! {
    "unregister" on registry(topics snapshot): Unregister<'_>, |call, args, reply|
    args {
        topic: args.text(call.topic.as_str()),
        epoch: args.number(call.epoch),
    }
    /// True if this call removed it.
    reply bool {
        "unregistered" => Ok(true),
        "same" => Ok(false),
    }
}
