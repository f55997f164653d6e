//! See `walk.lua`.

use std::fmt;

use crate::scripts::operation;
use crate::topic::Group;

/// A structure that is walked page by page.
#[derive(Clone, Debug)]
pub(crate) enum Structure<'a> {
    /// A structure of the shard.
    Shard(&'static str),
    /// A structure of a group.
    Group(&'static str, &'a Group),
}

impl fmt::Display for Structure<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Shard(what) => f.write_str(what),
            Self::Group(what, group) => write!(f, "{what}:{group}"),
        }
    }
}

/// Looks through a page of one structure.
pub(crate) struct Walk<'a> {
    pub(crate) what: &'a Structure<'a>,
    /// The cursor of the page; `0` for the first.
    pub(crate) cursor: &'a str,
    /// About how many to look at, 1 to 200.
    pub(crate) count: u64,
}

/// The result of one page.
#[derive(Debug)]
pub(crate) struct Walked {
    /// The cursor of the next page; `None` at the end.
    pub(crate) next: Option<String>,
    pub(crate) seen: u64,
    /// The bytes that Redis read for it.
    pub(crate) bytes: u64,
    /// Ids of messages that may have a fault, each with a hint at what led to it; the hint may be empty.
    pub(crate) suspects: Vec<(Vec<u8>, Vec<u8>)>,
}

operation! {
    "walk" + "streams" + "states" on general shard: Walk<'_>, |call, args, reply|
    args {
        what: args.number(call.what),
        cursor: args.text(call.cursor),
        count: args.number(call.count),
    }
    reply Walked {
        "walked" => {
            let next = reply.text()?;
            Ok(Walked {
                next: Some(next).filter(|next| next != "0"),
                seen: reply.number()?,
                bytes: reply.number()?,
                suspects: reply.rest(|reply| Ok((reply.bytes()?, reply.bytes()?)))?,
            })
        },
    }
}
