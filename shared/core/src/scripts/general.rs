//! The common part of all general scripts: the keys of a whole shard, the names of its groups, and the index of the group
//! that a call is about. See `lib/copies.lua` and `lib/transitions.lua`.

use super::{Args, KeyOf, Operation, Reply, UnexpectedReply, keys};
use crate::keys::{GroupKeys, Key, ShardKeys};
use crate::redis::Script;

/// The name of a key, and the function that finds it among the keys of a group.
type GroupKeyOf = (&'static str, fn(&GroupKeys) -> &Key);

/// The keys of the shard, which come first.
pub(super) const SHARD: &[KeyOf<ShardKeys>] =
    keys!(conf stats waiting payload meta merge left tomb wake bykey into);

/// The keys of each group, which follow.
pub(super) const GROUP: &[GroupKeyOf] =
    keys!(ready retry attempts backlog parked holder garbage garbage_info garbage_hook);

/// One call of a general script, without the arguments that all of them share.
pub(crate) trait General {
    /// The parsed reply.
    type Reply;
    /// True for calls about one group; that group's index among the topic's groups then precedes [`General::ARGS`].
    const OF_A_GROUP: bool;
    /// The names of its own ARGV in order; the last one may stand for many. A test compares them with the script's header.
    #[cfg_attr(
        not(test),
        expect(dead_code, reason = "documents the order, checked by a test")
    )]
    const ARGS: &'static [&'static str];
    /// Additional keys of the shard, after those of the groups.
    const MORE: &'static [KeyOf<ShardKeys>] = &[];

    /// Returns the script.
    fn script() -> &'static Script;
    /// Appends its own ARGV.
    fn args(&self, args: &mut Args<'_>);
    /// Parses the reply.
    fn parse(&self, reply: &mut Reply) -> Result<Self::Reply, UnexpectedReply>;
}

/// A complete call of a general script.
pub(crate) struct Call<'a, G> {
    pub(crate) now: u64,
    /// The names of the topic's groups, separated by spaces.
    pub(crate) groups: &'a str,
    /// The index of the group among them, from 0; `None` for a call about the whole shard.
    pub(crate) group: Option<usize>,
    pub(crate) general: &'a G,
}

impl<G: General> Operation for Call<'_, G> {
    type Scope = ShardKeys;
    type Reply = G::Reply;
    /// The keys of the shard; [`Call::keys`] appends those of its groups.
    const KEYS: &'static [KeyOf<ShardKeys>] = SHARD;
    const ARGS: &'static [&'static str] = &["now", "groups"];

    fn script() -> &'static Script {
        G::script()
    }

    fn keys(shard: &ShardKeys) -> Vec<&Key> {
        let of_shard = SHARD.iter().map(|(_, key)| key(shard));
        let of_groups = shard
            .groups
            .iter()
            .flat_map(|group| GROUP.iter().map(move |(_, key)| key(group)));
        let more = G::MORE.iter().map(|(_, key)| key(shard));
        of_shard.chain(of_groups).chain(more).collect()
    }

    fn args(&self, args: &mut Args<'_>) {
        args.number(self.now);
        args.text(self.groups);
        if let Some(group) = self.group {
            args.number(group + 1);
        }
        self.general.args(args);
    }

    fn parse(&self, reply: &mut Reply) -> Result<Self::Reply, UnexpectedReply> {
        self.general.parse(reply)
    }
}
