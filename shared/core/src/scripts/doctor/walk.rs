//! See `walk.lua`.

use std::fmt;

use crate::scripts::general::{General, general_script};
use crate::scripts::{Args, Reply, UnexpectedReply, expect};
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

impl General for Walk<'_> {
    type Reply = Walked;
    const OF_A_GROUP: bool = false;
    const ARGS: &'static [&'static str] = &["what", "cursor", "count"];
    general_script!("walk", "streams", "states");

    fn args<'a>(&'a self, args: &mut Args<'a>) {
        args.number(self.what);
        args.text(self.cursor);
        args.number(self.count);
    }

    fn parse(&self, reply: &mut Reply) -> Result<Self::Reply, UnexpectedReply> {
        expect(reply, "walked")?;
        let next = reply.text()?;
        let mut walked = Walked {
            next: Some(next).filter(|next| next != "0"),
            seen: reply.number()?,
            bytes: reply.number()?,
            suspects: Vec::new(),
        };
        while !reply.is_empty() {
            walked.suspects.push((reply.bytes()?, reply.bytes()?));
        }
        Ok(walked)
    }
}
