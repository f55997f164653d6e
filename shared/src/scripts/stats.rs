//! See `stats.lua`.

use std::collections::BTreeMap;

use super::{Args, Operation, Refusal, Reply, UnexpectedReply, group_keys, refusal, script};
use crate::keys::GroupKeys;
use crate::time::UnixMs;
use crate::topic::Group;

/// Counts a shard's messages by state.
pub(crate) struct Stats<'a> {
    pub(crate) now: u64,
    pub(crate) group: &'a Group,
}

/// One instant of a shard.
#[derive(Debug)]
pub(crate) struct StatsReply {
    pub(crate) now: UnixMs,
    pub(crate) paused: bool,
    pub(crate) waiting: u64,
    pub(crate) next_due: Option<UnixMs>,
    /// Ready and in flight.
    pub(crate) stream: u64,
    pub(crate) in_flight: u64,
    pub(crate) retry: u64,
    pub(crate) garbage: u64,
    /// `acked:<group>` and the like.
    pub(crate) counters: BTreeMap<String, i64>,
}

impl Operation for Stats<'_> {
    type Place = GroupKeys;
    type Reply = Result<StatsReply, Refusal>;
    const KEYS: &'static [super::KeyOf<GroupKeys>] =
        group_keys!(conf stats waiting ready retry garbage);
    const ARGS: &'static [&'static str] = &["now", "group"];
    script!("stats");

    fn args<'a>(&'a self, args: &mut Args<'a>) {
        args.number(self.now);
        args.text(self.group.as_str());
    }

    fn parse(&self, reply: &mut Reply) -> Result<Self::Reply, UnexpectedReply> {
        if let Some(refusal) = refusal(&reply.text()?, "stats")? {
            return Ok(Err(refusal));
        }
        let mut stats = StatsReply {
            now: UnixMs::new(reply.number()?),
            paused: reply.flag()?,
            waiting: reply.number()?,
            next_due: u64::try_from(reply.number::<i64>()?).ok().map(UnixMs::new),
            stream: reply.number()?,
            in_flight: reply.number()?,
            retry: reply.number()?,
            garbage: reply.number()?,
            counters: BTreeMap::new(),
        };
        while !reply.is_empty() {
            let name = reply.text()?;
            stats.counters.insert(name, reply.number()?);
        }
        Ok(Ok(stats))
    }
}
