//! See `walk.lua`.

use std::fmt;

use super::general::{General, general_script};
use super::{Args, Reply, UnexpectedReply, expect};
use crate::topic::Group;

/// What is walked page by page.
#[derive(Clone, Debug)]
pub(crate) enum Structure<'a> {
    /// Of the shard.
    Shard(&'static str),
    /// Of a group.
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
    /// Where to go on; `0` for the first page.
    pub(crate) cursor: &'a str,
    /// 1 to 500.
    pub(crate) count: u64,
}

/// What a page held.
#[derive(Debug)]
pub(crate) struct Walked {
    /// Where to go on; the end was reached if not given.
    pub(crate) next: Option<String>,
    pub(crate) seen: u64,
    /// Bytes that Redis read for it.
    pub(crate) bytes: u64,
    /// Ids of which something may be wrong, each with the hint at what led to it, which may be empty.
    pub(crate) suspects: Vec<(Vec<u8>, Vec<u8>)>,
}

impl General for Walk<'_> {
    type Reply = Walked;
    const OF_A_GROUP: bool = false;
    const ARGS: &'static [&'static str] = &["what", "cursor", "count"];
    general_script!("walk", "_streams.lua", "_places.lua");

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
