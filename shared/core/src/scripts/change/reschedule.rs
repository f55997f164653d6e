//! See `reschedule.lua`.

use crate::message::MessageId;
use crate::scripts::change::cancel::end;
use crate::scripts::operation;
use crate::state::RescheduleOutcome;
use crate::time::{UnixMs, When};

/// Changes the due time of a message that has no copy on a stream or in garbage.
pub(crate) struct Reschedule<'a> {
    pub(crate) id: &'a MessageId,
    pub(crate) when: When,
}

operation! {
    "reschedule" on general shard: Reschedule<'_>, |call, args, reply|
    args { id: args.text(call.id.as_str()), when: args.number(call.when.to_arg()) }
    reply RescheduleOutcome {
        "rescheduled" => Ok(RescheduleOutcome::Rescheduled { due: UnixMs::new(reply.number()?) }),
        "in_flight" => Ok(RescheduleOutcome::InFlight),
        "garbage" => Ok(RescheduleOutcome::Garbage),
        "unknown" => Ok(RescheduleOutcome::Unknown { end: end(reply)? }),
    }
}
