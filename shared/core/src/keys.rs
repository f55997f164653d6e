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

/// The keys of one shard of a topic and of all its groups, spelled once.
#[derive(Clone, Debug)]
pub(crate) struct ShardKeys {
    pub(crate) conf: Key,
    pub(crate) stats: Key,
    pub(crate) waiting: Key,
    pub(crate) payload: Key,
    pub(crate) meta: Key,
    pub(crate) merge: Key,
    pub(crate) left: Key,
    pub(crate) tomb: Key,
    /// The survivor of each merged message.
    pub(crate) into: Key,
    /// Messages by ordering key, on topics with `key_index`.
    pub(crate) bykey: Key,
    /// Messages in transit to another shard, while the topic is being resharded.
    pub(crate) in_transit: Key,
    /// On the first shard: samples of the topic's counts, one a minute and one a quarter hour.
    pub(crate) series: Key,
    pub(crate) series15: Key,
    /// On the first shard: the topic's deliveries by lateness.
    pub(crate) observed: Key,
    /// The newest failed attempts of all groups.
    pub(crate) failures: Key,
    /// The channel that wakes the shard's mover. It is not a key, but must share the hash tag.
    pub(crate) wake: Key,
    /// The names of the groups, separated by spaces.
    pub(crate) group_names: Box<str>,
    /// The keys of the groups, in the order of the names.
    pub(crate) groups: Vec<GroupKeys>,
}

/// The keys of one group on one shard.
#[derive(Clone, Debug)]
pub(crate) struct GroupKeys {
    pub(crate) name: Group,
    pub(crate) ready: Key,
    pub(crate) retry: Key,
    pub(crate) attempts: Key,
    pub(crate) backlog: Key,
    pub(crate) parked: Key,
    pub(crate) holder: Key,
    pub(crate) garbage: Key,
    pub(crate) garbage_info: Key,
    pub(crate) garbage_hook: Key,
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
            let spell = |what: &str| spell(&format!("{what}:{group}"));
            GroupKeys {
                name: group.clone(),
                ready: spell("ready"),
                retry: spell("retry"),
                attempts: spell("attempts"),
                backlog: spell("backlog"),
                parked: spell("parked"),
                holder: spell("holder"),
                garbage: spell("garbage"),
                garbage_info: spell("garbage_info"),
                garbage_hook: spell("garbage_hook"),
            }
        };
        let names: Vec<&str> = groups.iter().map(Group::as_str).collect();
        Self {
            conf: spell("conf"),
            stats: spell("stats"),
            waiting: spell("waiting"),
            payload: spell("payload"),
            meta: spell("meta"),
            merge: spell("merge"),
            left: spell("left"),
            tomb: spell("tomb"),
            into: spell("into"),
            bykey: spell("bykey"),
            in_transit: spell("in_transit"),
            series: spell("series"),
            series15: spell("series15"),
            observed: spell("observed"),
            failures: spell("failures"),
            wake: spell("wake"),
            group_names: names.join(" ").into(),
            groups: groups.iter().map(of_group).collect(),
        }
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

/// The keys of a namespace's registry.
#[derive(Clone, Debug)]
pub(crate) struct RegistryKeys {
    pub(crate) topics: Key,
    pub(crate) managers: Key,
    /// The times up to which schedules have fired.
    pub(crate) schedules: Key,
    /// The key that signs the tokens of pulled deliveries.
    pub(crate) token_key: Key,
    /// The newest counts of each topic.
    pub(crate) snapshot: Key,
    /// The actions of operators.
    pub(crate) audit: Key,
    /// The sessions of dashboards that were ended.
    pub(crate) ended_sessions: Key,
    /// The reports of running processes.
    pub(crate) workers: Key,
    /// The jobs that requeue or purge garbage.
    pub(crate) garbage_jobs: Key,
    /// Samples of the sums of all topics, one a minute and one a quarter hour.
    pub(crate) series: Key,
    pub(crate) series15: Key,
    /// The deliveries of all topics by lateness.
    pub(crate) observed: Key,
}

impl RegistryKeys {
    pub(crate) fn new(namespace: &Namespace) -> Self {
        // No topic can have this tag: the tag of a topic contains a colon.
        let spell = |what: &str| Key(format!("{namespace}:v1:{{registry}}:{what}").into());
        Self {
            topics: spell("topics"),
            managers: spell("managers"),
            schedules: spell("schedules"),
            token_key: spell("token_key"),
            snapshot: spell("snapshot"),
            audit: spell("audit"),
            ended_sessions: spell("ended_sessions"),
            workers: spell("workers"),
            garbage_jobs: spell("garbage_jobs"),
            series: spell("series"),
            series15: spell("series15"),
            observed: spell("observed"),
        }
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
