//! See `stats.lua`.

use std::collections::BTreeMap;

use crate::scripts::general::{General, general_script};
use crate::scripts::groups::retire::Retirement;
use crate::scripts::{Args, Reply, UnexpectedReply, expect};
use crate::time::UnixMs;

/// Counts a shard's messages by state.
pub(crate) struct Stats {
    /// The number of groups of the topic.
    pub(crate) groups: usize,
}

/// A snapshot of a shard.
#[derive(Debug)]
pub(crate) struct StatsReply {
    pub(crate) now: UnixMs,
    pub(crate) paused: bool,
    /// True if it needs the general scripts.
    pub(crate) general: bool,
    /// Stored messages, each counted once, however many groups owe it.
    pub(crate) payloads: u64,
    pub(crate) waiting: u64,
    pub(crate) tombstones: u64,
    pub(crate) next_due: Option<UnixMs>,
    /// In the order of the topic's groups.
    pub(crate) groups: Vec<GroupCounts>,
    /// `acked:<group>` and the like.
    pub(crate) counters: BTreeMap<String, String>,
}

/// A snapshot of one group of a shard.
#[derive(Debug)]
pub(crate) struct GroupCounts {
    /// Ready and in flight.
    pub(crate) stream: u64,
    pub(crate) in_flight: u64,
    pub(crate) backlog: u64,
    pub(crate) parked: u64,
    pub(crate) retry: u64,
    pub(crate) garbage: u64,
    pub(crate) paused: bool,
    pub(crate) retiring: Option<Retirement>,
    /// True if it belongs to one running consumer.
    pub(crate) instance: bool,
    /// Consumers that reported within the last 30 s.
    pub(crate) consumers: u64,
    /// The due time of the oldest message that is due and not in flight.
    pub(crate) oldest_due: Option<UnixMs>,
    /// The due time of the first ready message.
    pub(crate) oldest_ready: Option<UnixMs>,
}

impl StatsReply {
    /// Returns the number of messages in the shard; a message that became due counts once for each of its groups.
    pub(crate) fn stored(&self) -> u64 {
        let of_group = |counts: &GroupCounts| {
            counts.stream + counts.backlog + counts.parked + counts.retry + counts.garbage
        };
        self.waiting + self.groups.iter().map(of_group).sum::<u64>()
    }
}

impl General for Stats {
    type Reply = StatsReply;
    const OF_A_GROUP: bool = false;
    const ARGS: &'static [&'static str] = &[];
    general_script!("stats");

    fn args<'a>(&'a self, _args: &mut Args<'a>) {}

    fn parse(&self, reply: &mut Reply) -> Result<Self::Reply, UnexpectedReply> {
        expect(reply, "stats")?;
        let mut stats = StatsReply {
            now: UnixMs::new(reply.number()?),
            paused: reply.flag()?,
            general: reply.text()? == "general",
            payloads: reply.number()?,
            waiting: reply.number()?,
            tombstones: reply.number()?,
            next_due: time_or_none(reply)?,
            groups: Vec::with_capacity(self.groups),
            counters: BTreeMap::new(),
        };
        for _ in 0..self.groups {
            stats.groups.push(GroupCounts {
                stream: reply.number()?,
                in_flight: reply.number()?,
                backlog: reply.number()?,
                parked: reply.number()?,
                retry: reply.number()?,
                garbage: reply.number()?,
                paused: reply.flag()?,
                retiring: Retirement::read(reply)?,
                instance: reply.flag()?,
                consumers: reply.number()?,
                oldest_due: time_or_none(reply)?,
                oldest_ready: time_or_none(reply)?,
            });
        }
        while !reply.is_empty() {
            let name = reply.text()?;
            stats.counters.insert(name, reply.text()?);
        }
        Ok(stats)
    }
}

/// Reads a time; a negative number means none.
fn time_or_none(reply: &mut Reply) -> Result<Option<UnixMs>, UnexpectedReply> {
    Ok(u64::try_from(reply.number::<i64>()?).ok().map(UnixMs::new))
}
