//! See `reschedule.lua`.

use super::cancel::end;
use super::{Args, Operation, Reply, UnexpectedReply, group_keys, script, unexpected};
use crate::keys::GroupKeys;
use crate::message::MessageId;
use crate::state::RescheduleOutcome;
use crate::time::{UnixMs, When};

/// Gives a message that is not on the stream another due time.
pub(crate) struct Reschedule<'a> {
    pub(crate) now: u64,
    pub(crate) id: &'a MessageId,
    pub(crate) when: When,
}

impl Operation for Reschedule<'_> {
    type Place = GroupKeys;
    type Reply = RescheduleOutcome;
    const KEYS: &'static [super::KeyOf<GroupKeys>] =
        group_keys!(stats waiting payload retry garbage tomb wake);
    const ARGS: &'static [&'static str] = &["now", "id", "when"];
    script!("reschedule");

    fn args<'a>(&'a self, args: &mut Args<'a>) {
        args.number(self.now);
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
