//! The whole keyspace of one namespace as a value that can be compared, printed and queried. It treats all keys alike
//! and knows no key of Lisa; other modules check how keys must fit together.

use redis::aio::ConnectionLike;
use redis::{FromRedisValue, ParsingError, RedisResult, Value, from_redis_value};
use std::borrow::Borrow;
use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

/// Reads all keys in one step, so that no other client's write falls between two of them. It declares no keys and has
/// no `#!lua` line on purpose: only then may it touch several slots of a cluster node.
const READ: &str = r"
local all = {}
for _, key in ipairs(redis.call('KEYS', ARGV[1] .. ':*')) do
  local kind = redis.call('TYPE', key).ok
  local value
  if kind == 'string' then value = redis.call('GET', key)
  elseif kind == 'hash' then value = redis.call('HGETALL', key)
  elseif kind == 'zset' then value = redis.call('ZRANGE', key, 0, -1, 'WITHSCORES')
  elseif kind == 'set' then value = redis.call('SMEMBERS', key)
  elseif kind == 'list' then value = redis.call('LRANGE', key, 0, -1)
  elseif kind == 'stream' then
    local groups = {}
    for _, info in ipairs(redis.call('XINFO', 'GROUPS', key)) do
      local field = {}
      for i = 1, #info, 2 do field[info[i]] = info[i + 1] end
      local consumers = {}
      for _, consumer in ipairs(redis.call('XINFO', 'CONSUMERS', key, field.name)) do
        consumers[#consumers + 1] = consumer[2]
      end
      local pending = redis.call('XPENDING', key, field.name, '-', '+', '1000000000')
      groups[#groups + 1] = { field.name, field['last-delivered-id'], consumers, pending }
    end
    value = { redis.call('XRANGE', key, '-', '+'), groups }
  end
  all[#all + 1] = { key, kind, value }
end
return all
";

/// Bytes as Redis holds them; printed as text with escapes.
#[derive(Clone, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Text(pub Vec<u8>);

impl fmt::Display for Text {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.0.escape_ascii())
    }
}

impl fmt::Debug for Text {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "\"{self}\"")
    }
}

impl From<&str> for Text {
    fn from(text: &str) -> Self {
        Self(text.as_bytes().to_vec())
    }
}

impl PartialEq<str> for Text {
    fn eq(&self, other: &str) -> bool {
        self.0 == other.as_bytes()
    }
}

impl PartialEq<&str> for Text {
    fn eq(&self, other: &&str) -> bool {
        self.0 == other.as_bytes()
    }
}

/// Allows lookups in a map of texts with `"field".as_bytes()`.
impl Borrow<[u8]> for Text {
    fn borrow(&self) -> &[u8] {
        &self.0
    }
}

impl FromRedisValue for Text {
    fn from_redis_value(value: Value) -> Result<Self, ParsingError> {
        match value {
            Value::BulkString(bytes) => Ok(Self(bytes)),
            other => Ok(Self(String::from_redis_value(other)?.into_bytes())),
        }
    }
}

/// The contents of one key.
#[derive(Clone, Debug, PartialEq)]
pub enum Content {
    /// A string.
    String(Text),
    /// A hash.
    Hash(BTreeMap<Text, Text>),
    /// A sorted set: member to score.
    Zset(BTreeMap<Text, f64>),
    /// A set.
    Set(BTreeSet<Text>),
    /// A list, from its left end.
    List(Vec<Text>),
    /// A stream.
    Stream(Stream),
}

/// A stream with its consumer groups.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Stream {
    /// The entries in order: entry id, then fields and values.
    pub entries: Vec<(String, BTreeMap<Text, Text>)>,
    /// The consumer groups by name.
    pub groups: BTreeMap<Text, Group>,
}

/// A consumer group of a stream.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Group {
    /// The entry id up to which entries were delivered.
    pub last_delivered: String,
    /// The consumers it knows.
    pub consumers: BTreeSet<Text>,
    /// The entries that are delivered and not acknowledged, by id. Idle times are left out: they differ from one
    /// snapshot to the next.
    pub pending: BTreeMap<String, Pending>,
}

/// A delivered, not yet acknowledged entry.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Pending {
    /// The consumer that holds it.
    pub consumer: Text,
    /// The delivery count in Redis.
    pub deliveries: u64,
}

/// The keyspace of a namespace at one moment. Keys stand without the namespace, so that two namespaces can be compared.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Snapshot {
    keys: BTreeMap<String, Content>,
}

impl Snapshot {
    /// Reads all keys that begin with `<namespace>:`, atomically and in one call; meant for the small keyspaces of
    /// tests, since the server does nothing else meanwhile. Of a cluster of several nodes it sees the node that is
    /// asked.
    ///
    /// # Errors
    /// Returns an error of the server or the connection, or for a key of unknown type.
    pub async fn take(connection: &mut impl ConnectionLike, namespace: &str) -> RedisResult<Self> {
        let mut eval = redis::cmd("EVAL");
        eval.arg(READ).arg(0).arg(namespace);
        let rows: Vec<(Text, String, Value)> = eval.query_async(connection).await?;
        let mut keys = BTreeMap::new();
        for (key, kind, value) in rows {
            let key = key.to_string();
            let name = key[namespace.len() + 1..].to_owned();
            keys.insert(name, Content::read(&kind, value)?);
        }
        Ok(Self { keys })
    }

    /// Adds the keys of another part of the same namespace.
    pub fn extend(&mut self, other: Self) {
        self.keys.extend(other.keys);
    }

    /// All keys and contents, by key.
    pub fn iter(&self) -> impl Iterator<Item = (&str, &Content)> {
        self.keys
            .iter()
            .map(|(key, content)| (key.as_str(), content))
    }

    /// Returns the contents of `key` (without the namespace).
    pub fn get(&self, key: &str) -> Option<&Content> {
        self.keys.get(key)
    }

    /// The hash at `key`; an empty one if the key does not exist.
    ///
    /// # Panics
    /// Panics if it holds another type; likewise the two below.
    pub fn hash(&self, key: &str) -> BTreeMap<Text, Text> {
        match self.get(key) {
            None => BTreeMap::new(),
            Some(Content::Hash(fields)) => fields.clone(),
            Some(other) => panic!("{key} is no hash: {other:?}"),
        }
    }

    /// The sorted set at `key`; an empty one if the key does not exist.
    pub fn zset(&self, key: &str) -> BTreeMap<Text, f64> {
        match self.get(key) {
            None => BTreeMap::new(),
            Some(Content::Zset(members)) => members.clone(),
            Some(other) => panic!("{key} is no sorted set: {other:?}"),
        }
    }

    /// The stream at `key`; an empty one if the key does not exist.
    pub fn stream(&self, key: &str) -> Stream {
        match self.get(key) {
            None => Stream::default(),
            Some(Content::Stream(stream)) => stream.clone(),
            Some(other) => panic!("{key} is no stream: {other:?}"),
        }
    }

    /// Returns the part whose keys begin with `prefix`.
    pub fn below(mut self, prefix: &str) -> Self {
        self.keys.retain(|key, _| key.starts_with(prefix));
        self
    }

    /// Returns the differences from `self` to `later`: a line for each field, member or entry that was removed (`-`) or
    /// added (`+`); empty if there is none.
    pub fn diff(&self, later: &Self) -> String {
        let (before, after) = (self.lines(), later.lines());
        let gone = before
            .difference(&after)
            .map(|(key, line)| (key, line, '-'));
        let came = after
            .difference(&before)
            .map(|(key, line)| (key, line, '+'));
        let mut all: Vec<_> = gone.chain(came).collect();
        all.sort();
        all.iter()
            .map(|(key, line, sign)| format!("{sign} {key}  {line}\n"))
            .collect()
    }

    fn lines(&self) -> BTreeSet<(String, String)> {
        let all = self.iter().flat_map(|(key, content)| {
            let lines = content.lines();
            lines.into_iter().map(|line| (key.to_owned(), line))
        });
        all.collect()
    }
}

/// An expectation of a test: keys without the namespace, and their contents.
impl FromIterator<(String, Content)> for Snapshot {
    fn from_iter<I: IntoIterator<Item = (String, Content)>>(keys: I) -> Self {
        let keys = keys.into_iter().collect();
        Self { keys }
    }
}

impl fmt::Display for Snapshot {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (key, content) in self.iter() {
            writeln!(f, "{key}")?;
            for line in content.lines() {
                writeln!(f, "    {line}")?;
            }
        }
        Ok(())
    }
}

impl Content {
    fn read(kind: &str, value: Value) -> Result<Self, ParsingError> {
        Ok(match kind {
            "string" => Self::String(from_redis_value(value)?),
            "hash" => Self::Hash(from_redis_value(value)?),
            "zset" => Self::Zset(from_redis_value(value)?),
            "set" => Self::Set(from_redis_value(value)?),
            "list" => Self::List(from_redis_value(value)?),
            "stream" => Self::Stream(Stream::read(value)?),
            other => return Err(format!("a key of type {other}").into()),
        })
    }

    /// Returns its content as text, one line per part.
    fn lines(&self) -> Vec<String> {
        match self {
            Self::String(text) => vec![format!("= {text}")],
            Self::Hash(fields) => fields
                .iter()
                .map(|(field, value)| format!("{field} = {value}"))
                .collect(),
            Self::Zset(members) => members
                .iter()
                .map(|(member, score)| format!("{member} @ {score}"))
                .collect(),
            Self::Set(members) => members.iter().map(Text::to_string).collect(),
            Self::List(items) => items
                .iter()
                .enumerate()
                .map(|(place, item)| format!("{place}: {item}"))
                .collect(),
            Self::Stream(stream) => stream.lines(),
        }
    }
}

impl Stream {
    fn read(value: Value) -> Result<Self, ParsingError> {
        type RawEntry = (String, BTreeMap<Text, Text>);
        type RawPending = (String, Text, u64, u64);
        type RawGroup = (Text, String, BTreeSet<Text>, Vec<RawPending>);
        let (entries, raw_groups): (Vec<RawEntry>, Vec<RawGroup>) = from_redis_value(value)?;
        let mut groups = BTreeMap::new();
        for (name, last_delivered, consumers, raw_pending) in raw_groups {
            let mut pending = BTreeMap::new();
            for (entry, consumer, _idle_ms, deliveries) in raw_pending {
                pending.insert(
                    entry,
                    Pending {
                        consumer,
                        deliveries,
                    },
                );
            }
            groups.insert(
                name,
                Group {
                    last_delivered,
                    consumers,
                    pending,
                },
            );
        }
        Ok(Self { entries, groups })
    }

    fn lines(&self) -> Vec<String> {
        let mut lines = Vec::new();
        for (entry, fields) in &self.entries {
            let fields: Vec<_> = fields
                .iter()
                .map(|(field, value)| format!("{field}={value}"))
                .collect();
            lines.push(format!("entry {entry} {}", fields.join(" ")));
        }
        for (name, group) in &self.groups {
            let consumers: Vec<_> = group.consumers.iter().map(Text::to_string).collect();
            lines.push(format!(
                "group {name} after {} with [{}]",
                group.last_delivered,
                consumers.join(", ")
            ));
            for (
                entry,
                Pending {
                    consumer,
                    deliveries,
                },
            ) in &group.pending
            {
                lines.push(format!(
                    "group {name} holds {entry} by {consumer}, delivered {deliveries}"
                ));
            }
        }
        lines
    }
}
