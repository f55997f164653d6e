//! See `pause.lua`.

use super::{Args, Operation, Refusal, Reply, UnexpectedReply, keys, script, unexpected};
use crate::keys::ShardKeys;

/// Stops or resumes a topic.
pub(crate) struct Pause {
    pub(crate) paused: bool,
}

impl Operation for Pause {
    type Place = ShardKeys;
    /// Whether this changed anything.
    type Reply = Result<bool, Refusal>;
    const KEYS: &'static [super::KeyOf<ShardKeys>] = keys!(conf stats wake);
    const ARGS: &'static [&'static str] = &["paused"];
    script!("pause");

    fn args<'a>(&'a self, args: &mut Args<'a>) {
        args.flag(self.paused);
    }

    fn parse(&self, reply: &mut Reply) -> Result<Self::Reply, UnexpectedReply> {
        match reply.text()?.as_str() {
            "changed" => Ok(Ok(true)),
            "same" => Ok(Ok(false)),
            "undeclared" => Ok(Err(Refusal::Undeclared)),
            other => Err(unexpected("an outcome", &other)),
        }
    }
}
