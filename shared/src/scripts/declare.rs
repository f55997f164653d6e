//! See `declare.lua`.

use super::{Args, Operation, Reply, UnexpectedReply, group_keys, script, unexpected};
use crate::keys::GroupKeys;
use crate::topic::Group;

/// Registers one shard of a topic.
pub(crate) struct Declare<'a> {
    /// Whether settings that are there already are replaced.
    pub(crate) update: bool,
    pub(crate) shards: u16,
    pub(crate) group: &'a Group,
    pub(crate) settings: &'a str,
}

/// What holds now.
#[derive(Debug)]
pub(crate) enum DeclareReply {
    /// The epoch and the settings.
    Declared {
        changed: bool,
        epoch: u64,
        settings: String,
    },
    /// The topic has another number of shards.
    Shards(u16),
    /// The topic has another group.
    Group(String),
}

impl Operation for Declare<'_> {
    type Place = GroupKeys;
    type Reply = DeclareReply;
    const KEYS: &'static [super::KeyOf<GroupKeys>] = group_keys!(conf ready);
    const ARGS: &'static [&'static str] = &["mode", "shards", "group", "settings"];
    script!("declare");

    fn args<'a>(&'a self, args: &mut Args<'a>) {
        args.text(if self.update { "update" } else { "create" });
        args.number(self.shards);
        args.text(self.group.as_str());
        args.text(self.settings);
    }

    fn parse(&self, reply: &mut Reply) -> Result<Self::Reply, UnexpectedReply> {
        let changed = match reply.text()?.as_str() {
            "shards" => return Ok(DeclareReply::Shards(reply.number()?)),
            "group" => return Ok(DeclareReply::Group(reply.text()?)),
            "created" | "updated" => true,
            "kept" => false,
            other => return Err(unexpected("an outcome", &other)),
        };
        Ok(DeclareReply::Declared {
            changed,
            epoch: reply.number()?,
            settings: reply.text()?,
        })
    }
}
