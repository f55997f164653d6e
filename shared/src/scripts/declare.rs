//! See `declare.lua`.

use super::{Args, KeyOf, Operation, Reply, UnexpectedReply, keys, script, unexpected};
use crate::keys::{Key, ShardKeys};
use crate::topic::{Group, TopicSettings};

/// Registers one shard of a topic.
pub(crate) struct Declare<'a> {
    /// What it does with what is there already.
    pub(crate) mode: DeclareMode<'a>,
    /// In the order of the place's groups.
    pub(crate) groups: &'a [Group],
    pub(crate) settings: &'a TopicSettings,
    /// The settings as JSON.
    pub(crate) text: &'a str,
}

/// What a declaration does with settings that are there already.
pub(crate) enum DeclareMode<'a> {
    /// Keeps them.
    Create,
    /// Replaces them.
    Update,
    /// Writes them anew where this epoch, or a text that is none, still stands with them.
    Mend { seen: &'a str },
}

/// What holds now.
#[derive(Debug)]
pub(crate) enum DeclareReply {
    /// The epoch, the settings, and all groups.
    Declared {
        changed: bool,
        epoch: u64,
        settings: String,
        groups: String,
    },
    /// The topic has another number of shards.
    Shards(u16),
    /// Its keys have another layout.
    Layout(u64),
}

impl Operation for Declare<'_> {
    type Place = ShardKeys;
    type Reply = DeclareReply;
    /// And `ready` of each group.
    const KEYS: &'static [KeyOf<ShardKeys>] = keys!(conf);
    const ARGS: &'static [&'static str] = &[
        "mode", "shards", "groups", "settings", "full", "seen", "rules",
    ];
    script!("declare");

    fn keys(place: &ShardKeys) -> Vec<&Key> {
        let ready = place.groups.iter().map(|group| &group.ready);
        std::iter::once(&place.conf).chain(ready).collect()
    }

    fn args<'a>(&'a self, args: &mut Args<'a>) {
        let names: Vec<&str> = self.groups.iter().map(Group::as_str).collect();
        let (mode, seen) = match self.mode {
            DeclareMode::Create => ("create", ""),
            DeclareMode::Update => ("update", ""),
            DeclareMode::Mend { seen } => ("mend", seen),
        };
        args.text(mode);
        args.number(self.settings.shards);
        args.bytes(names.join(" ").into_bytes());
        args.text(self.text);
        args.flag(self.settings.needs_full_class());
        args.text(seen);
        for (field, value) in self.settings.rules() {
            args.text(field);
            args.bytes(value.into_bytes());
        }
    }

    fn parse(&self, reply: &mut Reply) -> Result<Self::Reply, UnexpectedReply> {
        let changed = match reply.text()?.as_str() {
            "shards" => return Ok(DeclareReply::Shards(reply.number()?)),
            "layout" => return Ok(DeclareReply::Layout(reply.number()?)),
            "created" | "updated" => true,
            "kept" => false,
            other => return Err(unexpected("an outcome", &other)),
        };
        Ok(DeclareReply::Declared {
            changed,
            epoch: reply.number()?,
            settings: reply.text()?,
            groups: reply.text()?,
        })
    }
}
