//! See `recount.lua`.

use super::examine::Seen;
use super::general::{General, general_script};
use super::{Args, Reply, UnexpectedReply, expect};

/// Compares the counters of a shard with what is there.
pub(crate) struct Recount {
    /// Whether to correct them.
    pub(crate) mend: bool,
}

impl General for Recount {
    type Reply = Vec<Seen>;
    const OF_A_GROUP: bool = false;
    const ARGS: &'static [&'static str] = &["mend"];
    general_script!("recount", "_streams.lua", "_places.lua");

    fn args<'a>(&'a self, args: &mut Args<'a>) {
        args.flag(self.mend);
    }

    fn parse(&self, reply: &mut Reply) -> Result<Self::Reply, UnexpectedReply> {
        expect(reply, "recounted")?;
        Seen::read_all(reply)
    }
}
