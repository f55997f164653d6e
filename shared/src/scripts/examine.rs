//! See `examine.lua`.

use std::collections::BTreeMap;
use std::fmt;
use std::str::FromStr;

use serde::Serialize;

use super::general::{General, general_script};
use super::{Args, Reply, UnexpectedReply, expect, unexpected};
use crate::message::EntryId;
use crate::state::words;
use crate::topic::{Group, InvalidName};

/// Says what is wrong with messages. At most 100.
pub(crate) struct Examine<'a> {
    pub(crate) tails: &'a Tails,
    pub(crate) items: &'a [Suspect],
}

/// A message of which something may be wrong.
#[derive(Clone, Debug)]
pub(crate) struct Suspect {
    pub(crate) id: Vec<u8>,
    /// Where it was seen.
    pub(crate) hints: Vec<Vec<u8>>,
}

/// How far the stream of each group was walked; `None` for one that was empty.
pub(crate) type Tails = BTreeMap<Group, Option<EntryId>>;

/// Spells the tails.
pub(super) fn spell(tails: &Tails) -> String {
    let spelled = tails.iter().map(|(group, tail)| match tail {
        Some(entry) => format!("{group} {entry}"),
        None => format!("{group} -"),
    });
    spelled.collect::<Vec<_>>().join(" ")
}

words!(
    /// What can be wrong in a topic. Each is explained in `docs/doctor.md`.
    Fault, "fault", {
        /// A stored message without a place.
        Orphan = "orphan",
        /// A place of a message that is not stored.
        Ghost = "ghost",
        /// A message in two places of a group, or waiting and in a group.
        Twice = "twice",
        /// A stored message of which other groups owe a delivery than `left` says, or another number of them.
        Left = "left",
        /// What belonged to a message that is neither stored nor in any place.
        Leftover = "leftover",
        /// A place by a name under which the message is not looked for.
        Member = "member",
        /// An ordering key whose messages nobody lets go on.
        Key = "key",
        /// A merge key that points at no message.
        Merge = "merge",
        /// An entry of the index of ordering keys that points at no message.
        Index = "index",
        /// Garbage without its record, or the reverse.
        Garbage = "garbage",
        /// A delivery that nobody holds, or one that is held and not there.
        Entry = "entry",
        /// A consumer that has gone.
        Consumer = "consumer",
        /// Counters that do not agree with what is there.
        Counters = "counters",
        /// A plain topic that holds what needs the general scripts.
        Class = "class",
        /// Settings of a shard that are missing or cannot be read, or a topic that the registry does not list.
        Settings = "settings",
        /// A key of another type than ours.
        Type = "type",
    }
);

/// What was seen of one message, or of a shard as a whole.
#[derive(Debug)]
pub(crate) struct Seen {
    /// Empty for a fault of the shard.
    pub(crate) id: Vec<u8>,
    /// `None`: a stream has grown by too much for an answer.
    pub(crate) fault: Option<Fault>,
    /// Empty for what the groups share.
    pub(crate) group: String,
    pub(crate) text: String,
}

impl Seen {
    pub(super) fn read_all(reply: &mut Reply) -> Result<Vec<Self>, UnexpectedReply> {
        let mut all = Vec::new();
        while !reply.is_empty() {
            let (id, code) = (reply.bytes()?, reply.text()?);
            let fault = match code.as_str() {
                "behind" => None,
                code => Some(
                    code.parse()
                        .map_err(|_| unexpected("the code of a fault", &code))?,
                ),
            };
            all.push(Self {
                id,
                fault,
                group: reply.text()?,
                // It may have a member in it, which may be any bytes.
                text: String::from_utf8_lossy(&reply.bytes()?).into_owned(),
            });
        }
        Ok(all)
    }
}

impl General for Examine<'_> {
    type Reply = Vec<Seen>;
    const OF_A_GROUP: bool = false;
    const ARGS: &'static [&'static str] = &["tails", "items"];
    general_script!("examine", "_streams.lua", "_places.lua");

    fn args<'a>(&'a self, args: &mut Args<'a>) {
        args.number(spell(self.tails));
        for item in self.items {
            args.bytes(item.id.clone());
            args.number(item.hints.len());
            for hint in &item.hints {
                args.bytes(hint.clone());
            }
        }
    }

    fn parse(&self, reply: &mut Reply) -> Result<Self::Reply, UnexpectedReply> {
        expect(reply, "examined")?;
        Seen::read_all(reply)
    }
}
