//! The only place where a key is spelled. Layout v1: `<namespace>:v1:{<topic>:<shard>}:<what>`.
//!
//! All keys of a shard share one hash tag, so they live on one node of a cluster, and every script
//! gets each key that it touches by name. What the keys hold is in docs/keyspace.md.

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
    /// Gives the text.
    pub(crate) fn as_str(&self) -> &str {
        &self.0
    }
}

/// The keys of one shard of a topic and of its group, spelled once.
#[derive(Clone, Debug)]
pub(crate) struct ShardKeys {
    pub(crate) conf: Key,
    pub(crate) stats: Key,
    pub(crate) waiting: Key,
    pub(crate) payload: Key,
    pub(crate) tomb: Key,
    /// The channel on which a shard's mover is woken; not a key, but it must share the hash tag.
    pub(crate) wake: Key,
    pub(crate) ready: Key,
    pub(crate) retry: Key,
    pub(crate) attempts: Key,
    pub(crate) garbage: Key,
    pub(crate) dead: Key,
    pub(crate) notices: Key,
}

impl ShardKeys {
    pub(crate) fn new(namespace: &Namespace, topic: &Topic, shard: Shard, group: &Group) -> Self {
        let of_shard =
            |what: &str| Key(format!("{namespace}:v1:{{{topic}:{shard}}}:{what}").into());
        let of_group = |what: &str| of_shard(&format!("{what}:{group}"));
        Self {
            conf: of_shard("conf"),
            stats: of_shard("stats"),
            waiting: of_shard("waiting"),
            payload: of_shard("payload"),
            tomb: of_shard("tomb"),
            wake: of_shard("wake"),
            ready: of_group("ready"),
            retry: of_group("retry"),
            attempts: of_group("attempts"),
            garbage: of_group("garbage"),
            dead: of_group("dead"),
            notices: of_group("notices"),
        }
    }

    /// The key that holds a topic's settings, for who does not know its groups yet.
    pub(crate) fn conf(namespace: &Namespace, topic: &Topic) -> Key {
        Key(format!("{namespace}:v1:{{{topic}:0}}:conf").into())
    }
}

/// The keys of a namespace's registry.
#[derive(Clone, Debug)]
pub(crate) struct RegistryKeys {
    pub(crate) topics: Key,
    pub(crate) managers: Key,
}

impl RegistryKeys {
    pub(crate) fn new(namespace: &Namespace) -> Self {
        // Topics cannot have this tag: theirs has a colon.
        let spell = |what: &str| Key(format!("{namespace}:v1:{{registry}}:{what}").into());
        Self {
            topics: spell("topics"),
            managers: spell("managers"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_layout_is_v1() {
        let topic: Topic = "orders".parse().expect("valid");
        let group: Group = "billing".parse().expect("valid");
        let keys = ShardKeys::new(&Namespace::default(), &topic, Shard::new(3), &group);
        assert_eq!(keys.waiting.as_str(), "lisa:v1:{orders:3}:waiting");
        assert_eq!(keys.ready.as_str(), "lisa:v1:{orders:3}:ready:billing");
        let registry = RegistryKeys::new(&Namespace::default());
        assert_eq!(registry.topics.as_str(), "lisa:v1:{registry}:topics");
    }
}
