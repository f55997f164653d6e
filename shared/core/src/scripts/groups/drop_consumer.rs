//! See `drop_consumer.lua`.

use crate::scripts::operation;
use crate::topic::Group;

/// Removes a consumer, unless it holds a message.
pub(crate) struct DropConsumer<'a> {
    pub(crate) group: &'a Group,
    pub(crate) consumer: &'a str,
}

operation! {
    "drop_consumer" on group(ready): DropConsumer<'_>, |call, args, reply|
    args { group: args.text(call.group.as_str()), consumer: args.text(call.consumer) }
    /// True if it is gone now.
    reply bool {
        "dropped" | "unknown" => Ok(true),
        "held" => Ok(false),
    }
}
