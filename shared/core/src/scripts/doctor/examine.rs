//! See `examine.lua`.

use std::collections::BTreeMap;

use crate::message::EntryId;
use crate::names::words;
use crate::scripts::{Reply, UnexpectedReply, operation, unexpected};
use crate::topic::Group;

/// Finds what is wrong with messages: at most 100.
pub(crate) struct Examine<'a> {
    pub(crate) tails: &'a Tails,
    pub(crate) items: &'a [Suspect],
}

/// A message that may have a fault.
#[derive(Clone, Debug)]
pub(crate) struct Suspect {
    pub(crate) id: Vec<u8>,
    /// The spots where a walk saw it.
    pub(crate) hints: Vec<Vec<u8>>,
}

/// The last entry walked of each group's stream; `None` for an empty stream.
pub(crate) type Tails = BTreeMap<Group, Option<EntryId>>;

/// Formats the tails as an argument.
pub(in crate::scripts) fn spell(tails: &Tails) -> String {
    let spelled = tails.iter().map(|(group, tail)| match tail {
        Some(entry) => format!("{group} {entry}"),
        None => format!("{group} -"),
    });
    spelled.collect::<Vec<_>>().join(" ")
}

words!(
    /// A kind of damage in a topic. Each is explained in `docs/operate/repair.md`.
    Fault, "fault", {
        /// A stored message that is in no state.
        Orphan = "orphan",
        /// A state of a message that is not stored.
        Ghost = "ghost",
        /// A message in two states of a group, or waiting and in a group.
        Twice = "twice",
        /// A stored message whose `left` does not match the groups that owe a delivery.
        Left = "left",
        /// Remains of a message that is neither stored nor in any state.
        Leftover = "leftover",
        /// A state with a member that does not match the message's `meta`.
        Member = "member",
        /// An ordering key whose messages are stuck, or whose message does not hold it.
        Key = "key",
        /// A merge key that points at no message, or at one with another merge key.
        Merge = "merge",
        /// An entry of the index of ordering keys that points at no message, or at one with another key.
        Index = "index",
        /// Garbage without its `garbage_info`, or the reverse.
        Garbage = "garbage",
        /// A delivery that no consumer holds, or a held one that is not on the stream.
        Entry = "entry",
        /// A consumer that is gone.
        Consumer = "consumer",
        /// Counters that do not match the messages in the shard.
        Counters = "counters",
        /// A plain topic that holds what needs the general scripts.
        Class = "class",
        /// Settings of a shard that are missing or unreadable, or a topic that the registry does not list.
        Settings = "settings",
        /// A key of the wrong Redis type: something other than Lisa wrote it.
        Type = "type",
    }
);

/// A finding about one message, or about a shard as a whole.
#[derive(Debug)]
pub(crate) struct Seen {
    /// Empty for a fault of the shard.
    pub(crate) id: Vec<u8>,
    /// `None` if a stream has grown too much for an answer.
    pub(crate) fault: Option<Fault>,
    /// Empty for a fault in what the groups share.
    pub(crate) group: String,
    pub(crate) text: String,
}

impl Seen {
    pub(in crate::scripts) fn read(reply: &mut Reply) -> Result<Self, UnexpectedReply> {
        let (id, code) = (reply.bytes()?, reply.text()?);
        let fault = match code.as_str() {
            "behind" => None,
            code => Some(
                code.parse()
                    .map_err(|_| unexpected("the code of a fault", &code))?,
            ),
        };
        Ok(Self {
            id,
            fault,
            group: reply.text()?,
            // It may contain a member, which may be any bytes.
            text: reply.lossy()?,
        })
    }
}

operation! {
    "examine" + "streams" + "states" on general shard: Examine<'_>, |call, args, reply|
    args {
        tails: args.number(spell(call.tails)),
        items: for item in call.items {
            args.bytes(&item.id);
            args.number(item.hints.len());
            for hint in &item.hints {
                args.bytes(hint);
            }
        },
    }
    reply Vec<Seen> { "examined" => reply.rest(Seen::read) }
}
