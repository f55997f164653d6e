//! What all general scripts have in common: the keys of a whole shard, the names of its groups, and
//! the place of the group that a call is about. See `_copies.lua`.

use super::{Args, KeyOf, Operation, Reply, UnexpectedReply, keys};
use crate::keys::{GroupKeys, Key, ShardKeys};
use crate::link::Script;

/// How a key is found among those of a group.
type GroupKeyOf = (&'static str, fn(&GroupKeys) -> &Key);

/// The keys of a shard, which come first.
pub(super) const SHARD: &[KeyOf<ShardKeys>] =
    keys!(conf stats waiting payload meta merge left tomb wake bykey into);

/// The keys that follow for each group.
pub(super) const GROUP: &[GroupKeyOf] =
    keys!(ready retry attempts backlog lane holder garbage dead notices);

/// One call of a general script, less what every such call names.
pub(crate) trait General {
    /// What it answers.
    type Reply;
    /// Whether the call is about one group; its number among the topic's groups stands before [`General::ARGS`].
    const OF_A_GROUP: bool;
    /// The names of its own ARGV in order; the last one may stand for many. Compared with the header by a test.
    #[cfg_attr(
        not(test),
        expect(dead_code, reason = "documents the order, checked by a test")
    )]
    const ARGS: &'static [&'static str];
    /// The keys of the shard that it gets besides, behind those of the groups.
    const MORE: &'static [KeyOf<ShardKeys>] = &[];

    /// The script.
    fn script() -> &'static Script;
    /// Appends its own ARGV.
    fn args<'a>(&'a self, args: &mut Args<'a>);
    /// Reads the reply.
    fn parse(&self, reply: &mut Reply) -> Result<Self::Reply, UnexpectedReply>;
}

/// Defines `fn script()` of a general script over the Lua file of that name, behind what it shares with others.
macro_rules! general_script {
    ($name:literal $(, $shared:literal)*) => {
        fn script() -> &'static $crate::link::Script {
            static SCRIPT: std::sync::LazyLock<$crate::link::Script> =
                std::sync::LazyLock::new(|| {
                    $crate::scripts::assemble(
                        $name,
                        &[
                            $crate::scripts::lua!("_prelude.lua"),
                            $crate::scripts::lua!("_copies.lua"),
                            $($crate::scripts::lua!($shared),)*
                        ],
                        $crate::scripts::lua!(concat!($name, ".lua")),
                    )
                });
            &SCRIPT
        }
    };
}
pub(crate) use general_script;

/// A general call, complete.
pub(crate) struct Call<'a, G> {
    pub(crate) now: u64,
    /// The names of the topic's groups, separated by spaces.
    pub(crate) groups: &'a str,
    /// The place of the group among them, from 0; `None` for a call about the whole shard.
    pub(crate) group: Option<usize>,
    pub(crate) general: &'a G,
}

impl<G: General> Operation for Call<'_, G> {
    type Place = ShardKeys;
    type Reply = G::Reply;
    /// Those of the shard; [`Call::keys`] appends those of its groups.
    const KEYS: &'static [KeyOf<ShardKeys>] = SHARD;
    const ARGS: &'static [&'static str] = &["now", "groups"];

    fn script() -> &'static Script {
        G::script()
    }

    fn keys(place: &ShardKeys) -> Vec<&Key> {
        let of_shard = SHARD.iter().map(|(_, key)| key(place));
        let of_groups = place
            .groups
            .iter()
            .flat_map(|group| GROUP.iter().map(move |(_, key)| key(group)));
        let more = G::MORE.iter().map(|(_, key)| key(place));
        of_shard.chain(of_groups).chain(more).collect()
    }

    fn args<'a>(&'a self, args: &mut Args<'a>) {
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
