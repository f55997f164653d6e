//! See `stats.lua`.

use std::collections::BTreeMap;

use crate::scripts::groups::retire::Retirement;
use crate::scripts::{Reply, UnexpectedReply, operation};
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

operation! {
    "stats" + "streams" on general shard: Stats, |call, args, reply|
    args {}
    reply StatsReply {
        "stats" => Ok(StatsReply {
            now: UnixMs::new(reply.number()?),
            paused: reply.flag()?,
            general: reply.text()? == "general",
            payloads: reply.number()?,
            waiting: reply.number()?,
            tombstones: reply.number()?,
            next_due: time_or_none(reply)?,
            groups: (0..call.groups).map(|_| GroupCounts::read(reply)).collect::<Result<_, _>>()?,
            counters: reply.rest(|reply| Ok((reply.text()?, reply.text()?)))?.into_iter().collect(),
        }),
    }
}

impl GroupCounts {
    fn read(reply: &mut Reply) -> Result<Self, UnexpectedReply> {
        Ok(Self {
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
        })
    }
}

/// Reads a time; a negative number means none.
fn time_or_none(reply: &mut Reply) -> Result<Option<UnixMs>, UnexpectedReply> {
    Ok(u64::try_from(reply.number::<i64>()?).ok().map(UnixMs::new))
}
