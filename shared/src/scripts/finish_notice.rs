//! See `finish_notice.lua`.

use super::{Args, Operation, Reply, UnexpectedReply, group_keys, script, unexpected};
use crate::keys::GroupKeys;
use crate::message::MessageId;
use crate::time::UnixMs;

/// Forgets notices whose hook is done. At most 200, each with the garbage time that its hook was told.
pub(crate) struct FinishNotice<'a> {
    pub(crate) items: &'a [(MessageId, UnixMs)],
}

impl Operation for FinishNotice<'_> {
    type Place = GroupKeys;
    /// How many were forgotten.
    type Reply = u64;
    const KEYS: &'static [super::KeyOf<GroupKeys>] = group_keys!(garbage notices);
    const ARGS: &'static [&'static str] = &["items"];
    script!("finish_notice");

    fn args<'a>(&'a self, args: &mut Args<'a>) {
        for (id, time) in self.items {
            args.text(id.as_str());
            args.number(time.get());
        }
    }

    fn parse(&self, reply: &mut Reply) -> Result<Self::Reply, UnexpectedReply> {
        match reply.text()?.as_str() {
            "finished" => reply.number(),
            other => Err(unexpected("finished", &other)),
        }
    }
}
