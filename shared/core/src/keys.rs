//! Spells all Redis keys; no other module does. Layout v1: `<namespace>:v1:{<topic>:<shard>}:<what>`.
//!
//! All keys of a shard share one hash tag, so they live on one node of a cluster. Every script gets each key that it uses by
//! name. The contents of the keys are described in docs/internals/keyspace.md.

use crate::topic::{Group, Namespace, Shard, Topic};

/// A key of Redis.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Key(Box<str>);

impl AsRef<[u8]> for Key {
    fn as_ref(&self) -> &[u8] {
        self.0.as_bytes()
    }
}

impl Key {
    /// Returns the text.
    pub(crate) fn as_str(&self) -> &str {
        &self.0
    }
}

/// Declares keys, whose names are those of the fields, and further fields after a `+`.
macro_rules! keys {
    (
        $(#[$attribute:meta])* struct $struct:ident {
            $($(#[$doc:meta])* $key:ident,)+
            $(+ $(#[$further_doc:meta])* $further:ident: $type:ty,)*
        }
    ) => {
        $(#[$attribute])*
        #[derive(Clone, Debug)]
        pub(crate) struct $struct {
            $($(#[$doc])* pub(crate) $key: Key,)+
            $($(#[$further_doc])* pub(crate) $further: $type,)*
        }

        impl $struct {
            fn spell(spell: impl Fn(&str) -> Key, $($further: $type),*) -> Self {
                Self {
                    $($key: spell(stringify!($key)),)+
                    $($further,)*
                }
            }
        }
    };
}

keys! {
    /// The keys of one shard of a topic and of all its groups, spelled once.
    struct ShardKeys {
        conf,
        stats,
        waiting,
        payload,
        meta,
        merge,
        left,
        tomb,
        /// The survivor of each merged message.
        into,
        /// Messages by ordering key, on topics with `key_index`.
        bykey,
        /// Messages in transit to another shard, while the topic is being resharded.
        in_transit,
        /// On the first shard: samples of the topic's counts, one a minute and one a quarter hour.
        series,
        series15,
        /// On the first shard: the topic's deliveries by lateness.
        observed,
        /// The newest failed attempts of all groups.
        failures,
        /// On the first shard: a note that an SQS client has purged the topic, which expires.
        purged,
        /// The channel that wakes the shard's mover. It is not a key, but must share the hash tag.
        wake,
        + /// The names of the groups, separated by spaces.
        group_names: Box<str>,
        + /// The keys of the groups, in the order of the names.
        groups: Vec<GroupKeys>,
    }
}

keys! {
    /// The keys of one group on one shard.
    struct GroupKeys {
        ready,
        retry,
        attempts,
        backlog,
        parked,
        holder,
        garbage,
        garbage_info,
        garbage_hook,
        + name: Group,
    }
}

/// The keys of one group and of its shard.
#[derive(Clone, Copy, Debug)]
pub(crate) struct GroupView<'a> {
    pub(crate) shard: &'a ShardKeys,
    pub(crate) group: &'a GroupKeys,
}

/// The scope of an operation's keys: the registry, a shard with all its groups, or a group with its shard.
pub(crate) trait KeyScope: 'static {
    /// The keys of the scope.
    type Keys<'k>;
}

impl KeyScope for RegistryKeys {
    type Keys<'k> = Self;
}

impl KeyScope for ShardKeys {
    type Keys<'k> = Self;
}

impl KeyScope for GroupKeys {
    type Keys<'k> = GroupView<'k>;
}

impl ShardKeys {
    pub(crate) fn new(
        namespace: &Namespace,
        topic: &Topic,
        shard: Shard,
        groups: &[Group],
    ) -> Self {
        let spell = |what: &str| Key(format!("{namespace}:v1:{{{topic}:{shard}}}:{what}").into());
        let of_group = |group: &Group| {
            GroupKeys::spell(|what| spell(&format!("{what}:{group}")), group.clone())
        };
        let names: Vec<&str> = groups.iter().map(Group::as_str).collect();
        Self::spell(
            spell,
            names.join(" ").into(),
            groups.iter().map(of_group).collect(),
        )
    }

    /// Returns the view of one of the shard's groups.
    pub(crate) fn view<'k>(&'k self, group: &'k GroupKeys) -> GroupView<'k> {
        GroupView { shard: self, group }
    }

    /// Returns the view of the shard's only group; `None` if it has none or several.
    pub(crate) fn only_group(&self) -> Option<GroupView<'_>> {
        match &self.groups[..] {
            [group] => Some(self.view(group)),
            _ => None,
        }
    }

    /// Returns the view of the group of that name.
    pub(crate) fn group(&self, name: &Group) -> Option<GroupView<'_>> {
        let group = self.groups.iter().find(|keys| keys.name == *name)?;
        Some(self.view(group))
    }

    /// Returns the index of a group.
    pub(crate) fn index(&self, group: &Group) -> Option<usize> {
        self.groups.iter().position(|keys| keys.name == *group)
    }
}

keys! {
    /// The keys of a namespace's registry.
    struct RegistryKeys {
        topics,
        /// The channel that wakes managers for a new topic: not a key.
        wake,
        /// The limits of topics that calls are about to declare.
        topic_claims,
        managers,
        /// The times up to which the schedules of configurations have fired.
        schedules,
        /// The same for those that were created at run time.
        schedule_progress,
        /// The definitions of the schedules that were created at run time.
        schedule_definitions,
        /// Their names in order.
        schedule_names,
        /// The times at which managers take them.
        fires,
        /// The schedules that are paused.
        paused_schedules,
        /// The last resumes of schedules, and the times up to which they had fired before.
        resumed_schedules,
        /// The times that schedules missed, and the errors of their last sends.
        schedule_faults,
        /// The schedules whose last send failed, except those that are paused.
        failing_schedules,
        /// The key that signs the tokens of pulled deliveries.
        token_key,
        /// The newest counts of each topic.
        snapshot,
        /// The actions of operators.
        audit,
        /// The sessions of dashboards that were ended.
        ended_sessions,
        /// The tokens that were created by call, without their texts.
        tokens,
        /// The last uses of previous secrets of tokens.
        previous_uses,
        /// The reports of running processes.
        workers,
        /// The jobs that requeue or purge garbage.
        garbage_jobs,
        move_tasks,
        /// Samples of the sums of all topics, one a minute and one a quarter hour.
        series,
        series15,
        /// The deliveries of all topics by lateness.
        observed,
    }
}

impl RegistryKeys {
    pub(crate) fn new(namespace: &Namespace) -> Self {
        // No topic can have this tag: the tag of a topic contains a colon.
        let spell = |what: &str| Key(format!("{namespace}:v1:{{registry}}:{what}").into());
        Self::spell(spell)
    }
}

/// The layout of the keys and of their values; each shard records it in its `conf`.
pub(crate) const LAYOUT: u64 = 1;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_layout_is_v1() {
        let topic: Topic = "orders".parse().expect("valid");
        let groups = ["billing", "search"].map(|group| group.parse().expect("valid"));
        let keys = ShardKeys::new(&Namespace::default(), &topic, Shard::new(3), &groups);
        assert_eq!(keys.waiting.as_str(), "lisa:v1:{orders:3}:waiting");
        let ready = |index| groups.get(index).and_then(|name| keys.group(name));
        let ready = |index| ready(index).expect("a group").group.ready.as_str();
        assert_eq!(ready(0), "lisa:v1:{orders:3}:ready:billing");
        assert_eq!(ready(1), "lisa:v1:{orders:3}:ready:search");
        assert!(keys.only_group().is_none());
        let registry = RegistryKeys::new(&Namespace::default());
        assert_eq!(registry.topics.as_str(), "lisa:v1:{registry}:topics");
    }
}
