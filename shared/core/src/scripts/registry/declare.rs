//! See `declare.lua`.

use crate::keys::{Key, ShardKeys};
use crate::scripts::{Args, KeyOf, Operation, Reply, UnexpectedReply, keys, script, unexpected};
use crate::time::UnixMs;
use crate::topic::{Group, TopicSettings};

/// Registers one shard of a topic.
pub(crate) struct Declare<'a> {
    /// The treatment of existing settings.
    pub(crate) mode: DeclareMode<'a>,
    /// In the order of the groups of [`ShardKeys`].
    pub(crate) groups: &'a [Group],
    pub(crate) settings: &'a TopicSettings,
    /// The settings as JSON.
    pub(crate) text: &'a str,
    /// The version of the settings on the first shard, ms; `None` for the first shard itself.
    pub(crate) version: Option<u64>,
}

/// The treatment of existing settings by a declaration.
pub(crate) enum DeclareMode<'a> {
    /// Keeps them.
    Create,
    /// Replaces them if the shard's epoch is still `seen`. `None` accepts any epoch. A missing shard has the epoch 0.
    Update { seen: Option<u64> },
    /// Rewrites them if the shard's epoch is still `seen`, which may be empty or not a number.
    Repair { seen: &'a str },
}

/// The reply to a declaration.
#[derive(Debug)]
pub(crate) enum DeclareReply {
    /// The shard is declared.
    Declared(Declared),
    /// The topic has this other number of shards.
    Shards(u16),
    /// Its keys have this other layout.
    Layout(u64),
    /// It has this other epoch, and other settings than the new ones.
    Epoch(u64),
    /// New shards, of this number, are being created: no settings are replaced until they are in use.
    Resharding(u16),
    /// It would have this number of groups, which are too many.
    Full(usize),
    /// The topic is on other shards.
    Redirected,
    /// The topic was removed, or is being removed.
    Removed { is_over: bool },
}

/// The state of a shard after a declaration.
#[derive(Debug)]
pub(crate) struct Declared {
    pub(crate) changed: bool,
    pub(crate) epoch: u64,
    /// The settings as JSON.
    pub(crate) settings: String,
    /// All groups, separated by spaces.
    pub(crate) groups: String,
    /// The version of the settings, ms.
    pub(crate) version: u64,
    /// The time at which the topic was created, if it is known.
    pub(crate) created: Option<UnixMs>,
}

impl Operation for Declare<'_> {
    type Scope = ShardKeys;
    type Reply = DeclareReply;
    /// [`Declare::keys`] appends `ready` of each group.
    const KEYS: &'static [KeyOf<ShardKeys>] = keys!(conf);
    const ARGS: &'static [&'static str] = &[
        "mode",
        "shards",
        "groups",
        "settings",
        "needs_general",
        "seen",
        "version",
        "rules",
    ];
    script!("declare");

    fn keys(shard: &ShardKeys) -> Vec<&Key> {
        let ready = shard.groups.iter().map(|group| &group.ready);
        std::iter::once(&shard.conf).chain(ready).collect()
    }

    fn args(&self, args: &mut Args<'_>) {
        let names: Vec<&str> = self.groups.iter().map(Group::as_str).collect();
        let (mode, seen) = match self.mode {
            DeclareMode::Create => ("create", String::new()),
            DeclareMode::Update { seen } => {
                let seen = seen.map(|seen| seen.to_string());
                ("update", seen.unwrap_or_default())
            }
            DeclareMode::Repair { seen } => ("repair", seen.to_owned()),
        };
        args.text(mode);
        args.number(self.settings.shards);
        args.text(&names.join(" "));
        args.text(self.text);
        args.flag(self.settings.needs_general());
        args.text(&seen);
        let version = self.version.map(|version| version.to_string());
        args.text(&version.unwrap_or_default());
        for (field, value) in self.settings.rules() {
            args.text(field);
            args.text(&value);
        }
    }

    fn parse(&self, reply: &mut Reply) -> Result<Self::Reply, UnexpectedReply> {
        let changed = match reply.text()?.as_str() {
            "shards" => return Ok(DeclareReply::Shards(reply.number()?)),
            "layout" => return Ok(DeclareReply::Layout(reply.number()?)),
            "epoch" => return Ok(DeclareReply::Epoch(reply.number()?)),
            "resharding" => return Ok(DeclareReply::Resharding(reply.number()?)),
            "full" => return Ok(DeclareReply::Full(reply.number()?)),
            "removed" => {
                let is_over = reply.flag()?;
                return Ok(DeclareReply::Removed { is_over });
            }
            "redirected" => return Ok(DeclareReply::Redirected),
            "created" | "updated" => true,
            "kept" => false,
            other => return Err(unexpected("an outcome", &other)),
        };
        Ok(DeclareReply::Declared(Declared {
            changed,
            epoch: reply.number()?,
            settings: reply.text()?,
            groups: reply.text()?,
            version: reply.number()?,
            created: Some(UnixMs::new(reply.number()?)).filter(|at| at.get() > 0),
        }))
    }
}
