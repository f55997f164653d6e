//! See `take_in.lua`.

use std::ops::Range;

use super::general::{General, general_script};
use super::hand_over::Bundle;
use super::{Args, Reply, UnexpectedReply, expect};
use crate::time::UnixMs;
use crate::topic::Shard;

/// Puts messages of another shard into this one.
pub(crate) struct TakeIn<'a> {
    /// `max_ready` of the shard while a message has a priority or a merge key, if there is none.
    pub(crate) default_max_ready: u64,
    /// The shards that are being given up.
    pub(crate) old: Range<u16>,
    /// The one of the messages.
    pub(crate) from: Shard,
    /// Its batch, 0 for none.
    pub(crate) batch: u64,
    /// The number of arrivals there.
    pub(crate) arrivals: u64,
    /// Before it nothing comes from there any more; `None` if nothing ever does.
    pub(crate) horizon: Option<UnixMs>,
    /// How far the rate of each group is used up there, as [`HandOver`](super::HandOver) gives it.
    pub(crate) tats: &'a str,
    /// At most 50.
    pub(crate) bundles: &'a [Bundle],
}

impl General for TakeIn<'_> {
    /// The ids that must go back.
    type Reply = Vec<String>;
    const OF_A_GROUP: bool = false;
    const ARGS: &'static [&'static str] = &[
        "ready", "old", "from", "batch", "arrivals", "horizon", "tats", "items",
    ];
    general_script!("take_in", "_bundles.lua");

    fn args<'a>(&'a self, args: &mut Args<'a>) {
        args.number(self.default_max_ready);
        args.number(format_args!("{} {}", self.old.start, self.old.end - 1));
        args.number(self.from);
        args.number(self.batch);
        args.number(self.arrivals);
        match self.horizon {
            Some(time) => args.number(time.get()),
            None => args.text("-1"),
        }
        args.text(self.tats);
        for bundle in self.bundles {
            args.text(bundle.id.as_str());
            args.bytes(bundle.text.clone());
        }
    }

    fn parse(&self, reply: &mut Reply) -> Result<Self::Reply, UnexpectedReply> {
        expect(reply, "taken")?;
        let mut refused = Vec::new();
        while !reply.is_empty() {
            refused.push(reply.text()?);
        }
        Ok(refused)
    }
}
