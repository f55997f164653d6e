//! See `recount.lua`.

use crate::scripts::doctor::examine::Seen;
use crate::scripts::general::{General, general_script};
use crate::scripts::{Args, Reply, UnexpectedReply, expect};

/// Compares the counters of a shard with the messages in it.
pub(crate) struct Recount {
    /// True to correct the counters.
    pub(crate) repair: bool,
}

impl General for Recount {
    type Reply = Vec<Seen>;
    const OF_A_GROUP: bool = false;
    const ARGS: &'static [&'static str] = &["repair"];
    general_script!("recount", "streams", "states");

    fn args<'a>(&'a self, args: &mut Args<'a>) {
        args.flag(self.repair);
    }

    fn parse(&self, reply: &mut Reply) -> Result<Self::Reply, UnexpectedReply> {
        expect(reply, "recounted")?;
        Seen::read_all(reply)
    }
}
