//! See `ack_late.lua`.

use crate::message::MessageId;
use crate::scripts::operation;

/// Acknowledges a message whose delivery has ended without its consumer.
pub(crate) struct AckLate<'a> {
    pub(crate) id: &'a MessageId,
}

/// The outcome of a late acknowledgement.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LateAck {
    /// It is acknowledged.
    Acked,
    /// It is waiting: it was sent again under the same id.
    Waiting,
    /// It is not stored.
    Unknown,
    /// The group has delivered it again, has it in garbage, or has too many other messages ready before it; or a caller chose its
    /// id.
    Held,
}

operation! {
    "ack_late" + "streams" + "visible" on general group: AckLate<'_>, |call, args, reply|
    args { id: args.text(call.id.as_str()) }
    reply LateAck {
        "acked" => Ok(LateAck::Acked),
        "waiting" => Ok(LateAck::Waiting),
        "unknown" => Ok(LateAck::Unknown),
        "held" => Ok(LateAck::Held),
    }
}
