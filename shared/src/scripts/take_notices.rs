//! See `take_notices.lua`.

use std::time::Duration;

use super::{Args, Operation, Reply, UnexpectedReply, group_keys, script, unexpected};
use crate::keys::GroupKeys;
use crate::message::MessageId;
use crate::time::{UnixMs, millis};
use crate::topic::Group;

/// Hands out messages in garbage whose hook is due. At most 100.
pub(crate) struct TakeNotices<'a> {
    pub(crate) now: u64,
    pub(crate) group: &'a Group,
    pub(crate) batch: u16,
    pub(crate) lease: Duration,
}

/// What was handed out.
pub(crate) struct TakenNotices {
    pub(crate) more: bool,
    pub(crate) notices: Vec<TakenNotice>,
}

/// One message in garbage.
pub(crate) struct TakenNotice {
    pub(crate) id: MessageId,
    /// When it was given up.
    pub(crate) time: UnixMs,
    /// `<reason> <attempts> <error>`.
    pub(crate) dead: String,
}

impl Operation for TakeNotices<'_> {
    type Place = GroupKeys;
    /// `None` if the group's notices are not enabled.
    type Reply = Option<TakenNotices>;
    const KEYS: &'static [super::KeyOf<GroupKeys>] = group_keys!(conf stats garbage dead notices);
    const ARGS: &'static [&'static str] = &["now", "group", "batch", "lease"];
    script!("take_notices");

    fn args<'a>(&'a self, args: &mut Args<'a>) {
        args.number(self.now);
        args.text(self.group.as_str());
        args.number(self.batch);
        args.number(millis(self.lease));
    }

    fn parse(&self, reply: &mut Reply) -> Result<Self::Reply, UnexpectedReply> {
        match reply.text()?.as_str() {
            "taken" => {}
            "disabled" => return Ok(None),
            other => return Err(unexpected("an outcome", &other)),
        }
        let more = reply.flag()?;
        let mut notices = Vec::new();
        while !reply.is_empty() {
            let id = reply.text()?;
            notices.push(TakenNotice {
                id: id.parse().map_err(|_| unexpected("a message id", &id))?,
                time: UnixMs::new(reply.number()?),
                dead: String::from_utf8_lossy(&reply.bytes()?).into_owned(),
            });
        }
        Ok(Some(TakenNotices { more, notices }))
    }
}
