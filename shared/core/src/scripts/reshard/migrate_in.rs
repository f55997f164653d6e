//! See `migrate_in.lua`.

use std::ops::Range;

use crate::scripts::general::{General, general_script};
use crate::scripts::reshard::migrate_out::Bundle;
use crate::scripts::{Args, Reply, UnexpectedReply, expect};
use crate::time::UnixMs;
use crate::topic::Shard;

/// Puts messages of a retiring shard into this one.
pub(crate) struct MigrateIn<'a> {
    /// The shard's `max_ready` while a message has a priority or a merge key, if the topic sets none.
    pub(crate) default_max_ready: u64,
    /// The retiring shards.
    pub(crate) old: Range<u16>,
    /// The retiring shard that the messages come from.
    pub(crate) from: Shard,
    /// Its batch, 0 for none.
    pub(crate) batch: u64,
    /// The number of arrivals of that shard.
    pub(crate) arrivals: u64,
    /// The low watermark of that shard: nothing due before it will come from there; `None` if nothing will.
    pub(crate) watermark: Option<UnixMs>,
    /// The time up to which each group's rate is used up there, as [`MigrateOut`](crate::scripts::MigrateOut) returns it.
    pub(crate) tats: &'a str,
    /// At most 50.
    pub(crate) bundles: &'a [Bundle],
}

impl General for MigrateIn<'_> {
    /// The ids that must go back.
    type Reply = Vec<String>;
    const OF_A_GROUP: bool = false;
    const ARGS: &'static [&'static str] = &[
        "ready",
        "old",
        "from",
        "batch",
        "arrivals",
        "watermark",
        "tats",
        "items",
    ];
    general_script!("migrate_in", "bundles");

    fn args<'a>(&'a self, args: &mut Args<'a>) {
        args.number(self.default_max_ready);
        args.number(format_args!("{} {}", self.old.start, self.old.end - 1));
        args.number(self.from);
        args.number(self.batch);
        args.number(self.arrivals);
        match self.watermark {
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
