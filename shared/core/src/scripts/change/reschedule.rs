//! See `reschedule.lua`.

use crate::message::MessageId;
use crate::scripts::change::cancel::end;
use crate::scripts::general::{General, general_script};
use crate::scripts::{Args, Reply, UnexpectedReply, unexpected};
use crate::state::RescheduleOutcome;
use crate::time::{UnixMs, When};

/// Changes the due time of a message that has no copy on a stream or in garbage.
pub(crate) struct Reschedule<'a> {
    pub(crate) id: &'a MessageId,
    pub(crate) when: When,
}

impl General for Reschedule<'_> {
    type Reply = RescheduleOutcome;
    const OF_A_GROUP: bool = false;
    const ARGS: &'static [&'static str] = &["id", "when"];
    general_script!("reschedule");

    fn args<'a>(&'a self, args: &mut Args<'a>) {
        args.text(self.id.as_str());
        args.number(self.when.to_arg());
    }

    fn parse(&self, reply: &mut Reply) -> Result<Self::Reply, UnexpectedReply> {
        match reply.text()?.as_str() {
            "rescheduled" => Ok(RescheduleOutcome::Rescheduled {
                due: UnixMs::new(reply.number()?),
            }),
            "in_flight" => Ok(RescheduleOutcome::InFlight),
            "garbage" => Ok(RescheduleOutcome::Garbage),
            "unknown" => Ok(RescheduleOutcome::Unknown { end: end(reply)? }),
            other => Err(unexpected("an outcome", &other)),
        }
    }
}
