//! See `repair.lua`.

use crate::scripts::doctor::examine::{Seen, Suspect, Tails, spell};
use crate::scripts::general::{General, general_script};
use crate::scripts::{Args, Reply, UnexpectedReply, expect};

/// Repairs what is wrong with one message.
pub(crate) struct Repair<'a> {
    pub(crate) tails: &'a Tails,
    pub(crate) item: &'a Suspect,
}

impl General for Repair<'_> {
    type Reply = Vec<Seen>;
    const OF_A_GROUP: bool = false;
    const ARGS: &'static [&'static str] = &["tails", "id", "hints"];
    general_script!("repair", "streams", "states");

    fn args<'a>(&'a self, args: &mut Args<'a>) {
        args.number(spell(self.tails));
        args.bytes(self.item.id.clone());
        for hint in &self.item.hints {
            args.bytes(hint.clone());
        }
    }

    fn parse(&self, reply: &mut Reply) -> Result<Self::Reply, UnexpectedReply> {
        expect(reply, "repaired")?;
        Seen::read_all(reply)
    }
}
