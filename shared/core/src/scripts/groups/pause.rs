//! See `pause.lua`.

use crate::scripts::general::{General, general_script};
use crate::scripts::{Args, Reply, UnexpectedReply, unexpected};

/// Pauses or resumes a topic.
pub(crate) struct Pause {
    pub(crate) paused: bool,
}

/// Pauses or resumes one group of a topic.
pub(crate) struct PauseGroup {
    pub(crate) paused: bool,
}

impl General for Pause {
    /// True if this changed anything.
    type Reply = bool;
    const OF_A_GROUP: bool = false;
    const ARGS: &'static [&'static str] = &["group", "paused"];
    general_script!("pause");

    fn args<'a>(&'a self, args: &mut Args<'a>) {
        args.number(0);
        args.flag(self.paused);
    }

    fn parse(&self, reply: &mut Reply) -> Result<Self::Reply, UnexpectedReply> {
        changed(reply)
    }
}

impl General for PauseGroup {
    /// True if this changed anything.
    type Reply = bool;
    const OF_A_GROUP: bool = true;
    const ARGS: &'static [&'static str] = &["paused"];

    fn script() -> &'static crate::redis::Script {
        Pause::script()
    }

    fn args<'a>(&'a self, args: &mut Args<'a>) {
        args.flag(self.paused);
    }

    fn parse(&self, reply: &mut Reply) -> Result<Self::Reply, UnexpectedReply> {
        changed(reply)
    }
}

fn changed(reply: &mut Reply) -> Result<bool, UnexpectedReply> {
    match reply.text()?.as_str() {
        "done" => Ok(true),
        "same" => Ok(false),
        other => Err(unexpected("an outcome", &other)),
    }
}
