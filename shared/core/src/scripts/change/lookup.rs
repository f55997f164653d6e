//! See `lookup.lua`.

use crate::message::MessageId;
use crate::scripts::change::cancel::end;
use crate::scripts::{Reply, UnexpectedReply, operation, unexpected};
use crate::state::{Ended, State};
use crate::time::UnixMs;

/// Finds one message.
pub(crate) struct Lookup<'a> {
    pub(crate) id: &'a MessageId,
}

/// The result of a lookup.
#[derive(Debug)]
pub(crate) enum LookupReply {
    Stored(Stored),
    Unknown { end: Option<Ended> },
}

/// A message, and its copy in each group.
#[derive(Debug)]
pub(crate) struct Stored {
    pub(crate) now: UnixMs,
    pub(crate) due: Option<UnixMs>,
    pub(crate) expires: Option<UnixMs>,
    pub(crate) priority: i32,
    pub(crate) key: String,
    pub(crate) merge_key: String,
    pub(crate) record: Vec<u8>,
    pub(crate) paused: bool,
    /// The number of groups that still owe it, if it is past waiting.
    pub(crate) owed: usize,
    pub(crate) copies: Vec<CopyReply>,
}

/// The copy of a message in one group.
#[derive(Debug)]
pub(crate) struct CopyReply {
    /// `None` if it is on the stream (ready or in flight), or has ended.
    pub(crate) state: Option<State>,
    /// The time at which it is due, will be retried, or was moved to garbage.
    pub(crate) time: Option<UnixMs>,
    pub(crate) attempts: u32,
    /// `<reason> <attempts> <error>` in garbage, else the last error.
    pub(crate) text: String,
    /// The message that holds its ordering key.
    pub(crate) holder: String,
    /// True if the holder is in garbage, which blocks the key.
    pub(crate) is_blocked: bool,
    /// The number of messages before it in the backlog.
    pub(crate) before: u64,
    /// The length of the group's stream.
    pub(crate) stream: u64,
    /// True if that length fills the group's window.
    pub(crate) window_is_full: bool,
    /// The time at which the rate releases the next message, if not now.
    pub(crate) free_at: Option<UnixMs>,
    pub(crate) paused: bool,
}

operation! {
    "lookup" on general shard: Lookup<'_>, |call, args, reply|
    args { id: args.text(call.id.as_str()) }
    reply LookupReply {
        "unknown" => Ok(LookupReply::Unknown { end: end(reply)? }),
        "stored" => Stored::read(reply).map(LookupReply::Stored),
    }
}

impl Stored {
    fn read(reply: &mut Reply) -> Result<Self, UnexpectedReply> {
        Ok(Self {
            now: UnixMs::new(reply.number()?),
            due: optional_time(reply)?,
            expires: optional_time(reply)?,
            priority: reply.number()?,
            key: reply.lossy()?,
            merge_key: reply.lossy()?,
            record: reply.bytes()?,
            paused: reply.flag()?,
            owed: reply.number()?,
            copies: reply.rest(CopyReply::read)?,
        })
    }
}

impl CopyReply {
    fn read(reply: &mut Reply) -> Result<Self, UnexpectedReply> {
        Ok(Self {
            state: match reply.text()?.as_str() {
                "stream" => None,
                state => Some(state.parse().map_err(|_| unexpected("a state", &state))?),
            },
            time: optional_time(reply)?,
            attempts: reply.number()?,
            text: reply.lossy()?,
            holder: reply.lossy()?,
            is_blocked: reply.flag()?,
            before: reply.number()?,
            stream: reply.number()?,
            window_is_full: reply.flag()?,
            free_at: optional_time(reply)?,
            paused: reply.flag()?,
        })
    }
}

/// Reads a time; 0 or less means none.
fn optional_time(reply: &mut Reply) -> Result<Option<UnixMs>, UnexpectedReply> {
    let number = reply.number::<i64>()?;
    Ok(u64::try_from(number)
        .ok()
        .filter(|ms| *ms > 0)
        .map(UnixMs::new))
}
