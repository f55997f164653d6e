//! See `lookup.lua`.

use super::cancel::end;
use super::general::{General, general_script};
use super::{Args, Reply, UnexpectedReply, unexpected};
use crate::message::MessageId;
use crate::state::{Ended, State};
use crate::time::UnixMs;

/// Finds one message.
pub(crate) struct Lookup<'a> {
    pub(crate) id: &'a MessageId,
}

/// Where a message is.
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
    /// How many groups still owe it, if it is past waiting.
    pub(crate) owed: usize,
    pub(crate) copies: Vec<Copy>,
}

/// A message in one group.
#[derive(Debug)]
pub(crate) struct Copy {
    /// `None`: on the stream, ready or in flight, or ended.
    pub(crate) state: Option<State>,
    /// When it is due, tried again, or was given up.
    pub(crate) time: Option<UnixMs>,
    pub(crate) attempts: u32,
    /// `<reason> <attempts> <error>` in garbage, else the last error.
    pub(crate) text: String,
    /// The message that its ordering key waits for.
    pub(crate) holder: String,
    /// Whether that was given up, and the key stands still.
    pub(crate) is_blocked: bool,
    /// How many go before it in the backlog.
    pub(crate) before: u64,
    /// The length of the group's stream.
    pub(crate) stream: u64,
    /// Whether that fills the group's window.
    pub(crate) window_is_full: bool,
    /// When the rate lets the next one through, if not now.
    pub(crate) free_at: Option<UnixMs>,
    pub(crate) paused: bool,
}

impl General for Lookup<'_> {
    type Reply = LookupReply;
    const OF_A_GROUP: bool = false;
    const ARGS: &'static [&'static str] = &["id"];
    general_script!("lookup");

    fn args<'a>(&'a self, args: &mut Args<'a>) {
        args.text(self.id.as_str());
    }

    fn parse(&self, reply: &mut Reply) -> Result<Self::Reply, UnexpectedReply> {
        match reply.text()?.as_str() {
            "unknown" => return Ok(LookupReply::Unknown { end: end(reply)? }),
            "stored" => {}
            other => return Err(unexpected("stored", &other)),
        }
        let lossy = |bytes: Vec<u8>| String::from_utf8_lossy(&bytes).into_owned();
        let mut stored = Stored {
            now: UnixMs::new(reply.number()?),
            due: optional_time(reply)?,
            expires: optional_time(reply)?,
            priority: reply.number()?,
            key: lossy(reply.bytes()?),
            merge_key: lossy(reply.bytes()?),
            record: reply.bytes()?,
            paused: reply.flag()?,
            owed: reply.number()?,
            copies: Vec::new(),
        };
        while !reply.is_empty() {
            stored.copies.push(Copy {
                state: match reply.text()?.as_str() {
                    "stream" => None,
                    place => Some(place.parse().map_err(|_| unexpected("a place", &place))?),
                },
                time: optional_time(reply)?,
                attempts: reply.number()?,
                text: lossy(reply.bytes()?),
                holder: lossy(reply.bytes()?),
                is_blocked: reply.flag()?,
                before: reply.number()?,
                stream: reply.number()?,
                window_is_full: reply.flag()?,
                free_at: optional_time(reply)?,
                paused: reply.flag()?,
            });
        }
        Ok(LookupReply::Stored(stored))
    }
}

/// Reads a time; none is 0 or less.
fn optional_time(reply: &mut Reply) -> Result<Option<UnixMs>, UnexpectedReply> {
    let number = reply.number::<i64>()?;
    Ok(u64::try_from(number)
        .ok()
        .filter(|ms| *ms > 0)
        .map(UnixMs::new))
}
