//! See `hide.lua`.

use std::time::Duration;

use crate::message::MessageId;
use crate::scripts::operation;
use crate::time::millis;

/// Postpones a message whose delivery has ended without its consumer.
pub(crate) struct Hide<'a> {
    pub(crate) id: &'a MessageId,
    pub(crate) delay: Duration,
}

/// The outcome of [`Broker::hide`](crate::broker::Broker::hide).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Hidden {
    /// It is postponed, or due already.
    Hidden,
    /// It is waiting: it was rescheduled, or sent again under the same id.
    Waiting,
    /// It is not stored.
    Unknown,
    /// The group has delivered it again, has it in garbage, or has too many other messages ready before it; or a caller chose its
    /// id.
    Held,
}

operation! {
    "hide" + "streams" + "visible" on general group: Hide<'_>, |call, args, reply|
    args { id: args.text(call.id.as_str()), delay: args.number(millis(call.delay)) }
    reply Hidden {
        "hidden" => Ok(Hidden::Hidden),
        "waiting" => Ok(Hidden::Waiting),
        "unknown" => Ok(Hidden::Unknown),
        "held" => Ok(Hidden::Held),
    }
}
