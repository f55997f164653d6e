//! See `lookup.lua`.

use super::cancel::end;
use super::{Args, Operation, Reply, UnexpectedReply, group_keys, script, unexpected};
use crate::keys::GroupKeys;
use crate::message::MessageId;
use crate::state::{End, State};
use crate::time::UnixMs;

/// Finds one message.
pub(crate) struct Lookup<'a> {
    pub(crate) id: &'a MessageId,
}

/// Where a message is.
#[derive(Debug)]
pub(crate) enum LookupReply {
    Found {
        /// `None` on the stream: ready or in flight.
        state: Option<State>,
        /// When it is due, tried again, or was given up; nothing on the stream.
        time: UnixMs,
        attempts: u32,
        /// `<reason> <attempts> <error>` of a message in garbage, else the last error.
        dead: String,
        record: Vec<u8>,
    },
    Unknown {
        end: Option<End>,
    },
}

impl Operation for Lookup<'_> {
    type Place = GroupKeys;
    type Reply = LookupReply;
    const KEYS: &'static [super::KeyOf<GroupKeys>] =
        group_keys!(waiting payload retry attempts garbage dead tomb);
    const ARGS: &'static [&'static str] = &["id"];
    script!("lookup");

    fn args<'a>(&'a self, args: &mut Args<'a>) {
        args.text(self.id.as_str());
    }

    fn parse(&self, reply: &mut Reply) -> Result<Self::Reply, UnexpectedReply> {
        let state = match reply.text()?.as_str() {
            "unknown" => return Ok(LookupReply::Unknown { end: end(reply)? }),
            "waiting" => Some(State::Waiting),
            "retry" => Some(State::Retry),
            "garbage" => Some(State::Garbage),
            "stream" => None,
            other => return Err(unexpected("a place", &other)),
        };
        Ok(LookupReply::Found {
            state,
            time: UnixMs::new(reply.number()?),
            attempts: reply.number()?,
            dead: String::from_utf8_lossy(&reply.bytes()?).into_owned(),
            record: reply.bytes()?,
        })
    }
}
