//! Checks what the scripts require of a shard: keys of the right types, and a `conf` with the fields that every
//! declaration writes.
//!
//! Restores a field only from a reliable source: the settings on the same shard, or those on another shard of the same
//! topic. A key of another type was made by someone else, and is left for the operator to judge.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use redis::Value;

use super::{Checkup, Finding, Outcome};
use crate::broker::execute::Tries;
use crate::broker::reply::{Fields, command, utf8};
use crate::broker::reshard::shard_map::ShardMap;
use crate::broker::{Broker, BrokerError};
use crate::keys::{Key, LAYOUT, ShardKeys};
use crate::redis::ConnectionErrorKind;
use crate::scripts::{self, DeclareMode, DeclareReply, Fault};
use crate::topic::{Group, Shard, Topic, TopicSettings};

/// The advice about settings that no shard can restore.
const DECLARE: &str = "no shard has valid settings: restart a manager whose configuration has the topic, with its \
                       current number of shards";

/// The advice to follow first, if the first shard may have held more than its settings.
const RESHARDED: &str = "if the topic was ever resharded, first point this conf to its first current shard \
                         (HSET … next N)";

/// The time that a change of the settings takes at most to reach all shards, unless its process was stopped.
const CHANGE_WITHIN: Duration = Duration::from_secs(1);

/// The content of a shard's `conf`.
struct Conf {
    /// The epoch as stored; empty if it is missing.
    epoch: String,
    /// The version of the settings, ms; 0 if it is missing.
    version: u64,
    settings: Option<Written>,
    groups: Option<Vec<Group>>,
    /// True if the `conf` is missing.
    is_gone: bool,
    /// True if the shard succeeded others in a resharding.
    is_later: bool,
    /// True if the shard is retiring.
    is_closed: bool,
    /// Its problems.
    problems: Vec<String>,
}

/// Settings as stored, including fields that only later versions know, and as parsed.
struct Written {
    text: String,
    settings: TopicSettings,
}

impl Written {
    fn read(text: &str) -> Option<Self> {
        let settings: TopicSettings = serde_json::from_str(text).ok()?;
        settings.check().ok()?;
        Some(Self {
            text: text.to_owned(),
            settings,
        })
    }
}

impl Conf {
    fn read(fields: &BTreeMap<String, String>) -> Self {
        let field = |name: &str| fields.get(name).map(String::as_str);
        let mut problems = Vec::new();
        let mut require = |name: &str, is_right: bool| {
            if !is_right {
                let how = if fields.contains_key(name) {
                    "is wrong"
                } else {
                    "is missing"
                };
                problems.push(format!("{name} {how}"));
            }
        };
        let settings = field("settings").and_then(Written::read);
        let groups: Option<Vec<Group>> = field("groups").and_then(|names| {
            let names = names.split_whitespace();
            names.map(|name| name.parse().ok()).collect()
        });
        require(
            "epoch",
            field("epoch").is_some_and(|epoch| epoch.parse::<u64>().is_ok()),
        );
        let layout = LAYOUT.to_string();
        require("layout", field("layout") == Some(&layout));
        require("settings", settings.is_some());
        require("groups", groups.is_some());
        require("class", matches!(field("class"), Some("plain" | "general")));
        if let Some(Written { settings, .. }) = &settings {
            let shards = settings.shards.to_string();
            require("shards", field("shards") == Some(&shards));
            if settings.needs_general() {
                require("features", field("features").is_some());
            }
            for (name, value) in settings.rules() {
                require(name, field(name) == Some(&value));
            }
        } else {
            require("shards", fields.contains_key("shards"));
        }
        if fields.is_empty() {
            problems = vec!["all fields are missing".to_owned()];
        }
        Self {
            epoch: field("epoch").unwrap_or_default().to_owned(),
            version: field("version")
                .and_then(|version| version.parse().ok())
                .unwrap_or_default(),
            settings,
            groups,
            is_gone: fields.is_empty(),
            is_later: fields.contains_key("previous"),
            is_closed: fields.contains_key("closed"),
            problems,
        }
    }
}

/// The `conf`s and mistyped keys of a topic at one time.
#[derive(Default)]
struct Frame {
    map: ShardMap,
    shards: u16,
    confs: BTreeMap<Shard, Conf>,
    /// True if another shard follows these.
    is_followed: bool,
    /// Keys of the wrong type, by shard, each with the type that it should have.
    strangers: BTreeMap<Shard, Vec<(String, &'static str)>>,
}

impl Broker {
    /// Checks the keys and the `conf` of each shard. Repairs the `conf` if `repair` is set and its content can be
    /// restored. `shards` is their number if the first shard does not say it. Returns the shards that cannot be examined
    /// further.
    pub(super) async fn look_at_settings(
        &self,
        topic: &Topic,
        shards: u16,
        repair: bool,
        checkup: &mut Checkup,
    ) -> Result<BTreeSet<Shard>, BrokerError> {
        let mut tries = Tries::of(topic);
        let frame = loop {
            let frame = self.frame(topic, shards).await?;
            // A topic that is resharded in the meantime no longer has its former shards.
            if self.map_of(topic).await? == frame.map {
                break frame;
            }
            tries.next().await?;
        };
        self.look_at_differences(topic, shards, &frame, repair, checkup)
            .await?;
        let mut unsound = BTreeSet::new();
        for (shard, strangers) in &frame.strangers {
            unsound.insert(*shard);
            for (key, kind) in strangers {
                checkup.add(about(
                    *shard,
                    Fault::Type,
                    Outcome::Found,
                    format!(
                        "{key} is not a {kind}: move it away (RENAME), and run the doctor again; \
                     the rest of the shard was not examined"
                    ),
                ));
            }
        }
        for (shard, conf) in &frame.confs {
            if conf.problems.is_empty() {
                continue;
            }
            let problems = conf.problems.join(", ");
            let Some(origin) = frame.origin(*shard, conf) else {
                unsound.insert(*shard);
                let mut seen = format!("conf: {problems}; {DECLARE}");
                if shard.get() == 0 && frame.map == ShardMap::default() {
                    seen = format!("{seen}; {RESHARDED}");
                }
                checkup.add(about(*shard, Fault::Settings, Outcome::Found, seen));
                continue;
            };
            let from = origin.shard;
            let seen = format!("conf: {problems}; shard {from} has valid settings");
            if repair && self.repair_conf(topic, *shard, conf, &origin).await? {
                checkup.add(about(*shard, Fault::Settings, Outcome::Repaired, seen));
            } else {
                unsound.insert(*shard);
                checkup.add(about(*shard, Fault::Settings, Outcome::Found, seen));
            }
        }
        Ok(unsound)
    }

    /// Looks for shards whose settings are not those of the first shard, which decides. A change in progress is not reported.
    async fn look_at_differences(
        &self,
        topic: &Topic,
        shards: u16,
        frame: &Frame,
        repair: bool,
        checkup: &mut Checkup,
    ) -> Result<(), BrokerError> {
        if frame.differing().next().is_none() {
            return Ok(());
        }
        tokio::time::sleep(CHANGE_WITHIN).await;
        let later = self.frame(topic, shards).await?;
        for (shard, conf) in later.differing() {
            let before = frame.confs.get(&shard);
            if before.is_none_or(|before| before.epoch != conf.epoch) {
                continue;
            }
            let first = Shard::new(later.map.old.end);
            let seen = format!("conf: the settings differ from those of shard {first}");
            let origin = later.origin_of_all();
            let outcome = match origin {
                Some(origin) if repair && self.repair_conf(topic, shard, conf, &origin).await? => {
                    Outcome::Repaired
                }
                _ => Outcome::Found,
            };
            checkup.add(about(shard, Fault::Settings, outcome, seen));
        }
        Ok(())
    }

    /// Returns the shard map of a topic, or the default if its first shard is unreadable.
    async fn map_of(&self, topic: &Topic) -> Result<ShardMap, BrokerError> {
        match self.read_shard_map(topic).await {
            Err(BrokerError::Connection(error)) if error.kind == ConnectionErrorKind::WrongType => {
                Ok(ShardMap::default())
            }
            map => map,
        }
    }

    async fn frame(&self, topic: &Topic, shards: u16) -> Result<Frame, BrokerError> {
        let mut frame = Frame {
            map: self.map_of(topic).await?,
            shards,
            ..Frame::default()
        };
        let open = frame.map.old.end;
        // The first shard that is not retiring says how many there are.
        let first = ShardKeys::new(&self.inner.namespace, topic, Shard::new(open), &[]);
        let first = self.read_conf(&first.conf).await?;
        let first = first.and_then(|fields| Conf::read(&fields).settings);
        if let Some(first) = first {
            frame.shards = first.settings.shards;
        }
        for shard in (frame.map.old.start..open + frame.shards).map(Shard::new) {
            let keys = ShardKeys::new(&self.inner.namespace, topic, shard, &[]);
            let Some(fields) = self.read_conf(&keys.conf).await? else {
                let stranger = (keys.conf.as_str().to_owned(), "hash");
                frame.strangers.insert(shard, vec![stranger]);
                continue;
            };
            let conf = Conf::read(&fields);
            let groups = conf.groups.as_deref().unwrap_or_default();
            let keys = ShardKeys::new(&self.inner.namespace, topic, shard, groups);
            let strangers = self.strangers(&keys).await?;
            if !strangers.is_empty() {
                frame.strangers.insert(shard, strangers);
            }
            frame.confs.insert(shard, conf);
        }
        let next = Shard::new(open + frame.shards);
        let next = ShardKeys::new(&self.inner.namespace, topic, next, &[]);
        let next = self.read_conf(&next.conf).await?;
        frame.is_followed = next.is_none_or(|fields| !fields.is_empty());
        Ok(frame)
    }

    /// Reads all fields of a `conf`; `None` if it is not a hash.
    async fn read_conf(&self, key: &Key) -> Result<Option<BTreeMap<String, String>>, BrokerError> {
        let fields: Fields = match self.ask(command("HGETALL", key)).await {
            Err(error) if error.kind() == Some(ConnectionErrorKind::WrongType) => return Ok(None),
            fields => fields?,
        };
        // Fields that are not text are not ours.
        let text = |(field, value)| Some((utf8(field)?, utf8(value)?));
        Ok(Some(fields.into_iter().filter_map(text).collect()))
    }

    /// Returns the keys of a shard that have the wrong type, each with the type that it should have.
    async fn strangers(
        &self,
        keys: &ShardKeys,
    ) -> Result<Vec<(String, &'static str)>, BrokerError> {
        let typed = typed(keys);
        let probes = typed.iter().map(|(key, _, probe)| command(probe, key));
        let server = self.inner.connection.at(&keys.conf);
        match self.ask_all::<Value>(&server, probes.collect()).await {
            Err(error) if error.kind() == Some(ConnectionErrorKind::WrongType) => {}
            other => return other.map(|_| Vec::new()),
        }
        let mut strangers = Vec::new();
        for (key, kind, probe) in typed {
            match self.ask::<Value>(command(probe, key)).await {
                Err(error) if error.kind() == Some(ConnectionErrorKind::WrongType) => {
                    strangers.push((key.as_str().to_owned(), kind));
                }
                other => drop(other?),
            }
        }
        Ok(strangers)
    }

    /// Rewrites the `conf` of a shard unless its settings have changed since. Returns whether it did.
    async fn repair_conf(
        &self,
        topic: &Topic,
        shard: Shard,
        conf: &Conf,
        origin: &Origin<'_>,
    ) -> Result<bool, BrokerError> {
        let (Written { text, settings }, groups) = (origin.settings, origin.groups);
        let keys = ShardKeys::new(&self.inner.namespace, topic, shard, groups);
        let call = scripts::Declare {
            mode: DeclareMode::Repair { seen: &conf.epoch },
            groups,
            settings,
            text,
            version: origin.version,
        };
        let reply = self.run(&keys, &call).await?;
        match reply.map_err(|_| BrokerError::UnknownTopic(topic.clone()))? {
            DeclareReply::Declared(declared) if declared.changed => {
                // Processes that know the topic read it again.
                self.register(topic, settings.shards, declared.epoch)
                    .await?;
                Ok(true)
            }
            _ => Ok(false),
        }
    }
}

/// The settings and groups that the `conf` of a shard should have, and the shard that they come from.
struct Origin<'a> {
    shard: Shard,
    settings: &'a Written,
    groups: &'a [Group],
    /// The version on the first shard, for another one.
    version: Option<u64>,
}

impl Frame {
    /// Returns what the first shard that is not retiring has, if that is sound.
    fn origin_of_all(&self) -> Option<Origin<'_>> {
        let shard = Shard::new(self.map.old.end);
        let conf = self.confs.get(&shard)?;
        let sound = conf.problems.is_empty().then_some(conf)?;
        Some(Origin {
            shard,
            settings: sound.settings.as_ref()?,
            groups: sound.groups.as_deref()?,
            version: Some(sound.version),
        })
    }

    /// Returns the sound shards that are not retiring and have other settings than the first of them.
    fn differing(&self) -> impl Iterator<Item = (Shard, &Conf)> {
        let first = self.origin_of_all();
        let text = first.map(|first| first.settings.text.as_str());
        let others = self.confs.range(Shard::new(self.map.old.end)..);
        others.filter_map(move |(shard, conf)| {
            let own = conf.settings.as_ref()?.text.as_str();
            (conf.problems.is_empty() && own != text?).then_some((*shard, conf))
        })
    }

    fn origin<'a>(&'a self, shard: Shard, conf: &'a Conf) -> Option<Origin<'a>> {
        let own = (conf.settings.as_ref(), conf.groups.as_deref());
        let first = Shard::new(self.map.old.end);
        let version = self.confs.get(&first).map(|first| first.version);
        let version = version.filter(|version| shard > first && *version > 0);
        let of = |shard, other: &'a Conf| {
            Some(Origin {
                version,
                shard,
                settings: own.0.or(other.settings.as_ref())?,
                groups: own.1.or(other.groups.as_deref())?,
            })
        };
        of(shard, conf).or_else(|| {
            let mut others = self.confs.iter().filter(|_| self.is_settled());
            others.find_map(|(from, other)| of(*from, other))
        })
    }

    /// Returns true if all existing shards belong to the topic as it is now. While it is resharded, or if it is unknown
    /// where its shards begin, another shard may be of another generation.
    fn is_settled(&self) -> bool {
        let is_like = |conf: &Conf| {
            conf.is_gone || conf.is_later == (self.map.old.end > 0) && !conf.is_closed
        };
        // A `conf` that is not a hash may have said where they are.
        let is_known = self.confs.len() == usize::from(self.shards);
        let is_at_rest = self.map.old.is_empty() && !self.is_followed;
        is_known && is_at_rest && self.confs.values().all(is_like)
    }
}

/// Returns the keys of a shard except `conf`, each with its type and a command that fails on any other type.
fn typed(keys: &ShardKeys) -> Vec<(&Key, &'static str, &'static str)> {
    const HASH: (&str, &str) = ("hash", "HLEN");
    const ZSET: (&str, &str) = ("sorted set", "ZCARD");
    const STREAM: (&str, &str) = ("stream", "XLEN");
    let mut typed = vec![
        (&keys.stats, HASH),
        (&keys.waiting, ZSET),
        (&keys.payload, HASH),
        (&keys.meta, HASH),
        (&keys.merge, HASH),
        (&keys.left, HASH),
        (&keys.tomb, ZSET),
        (&keys.into, HASH),
        (&keys.bykey, ZSET),
        (&keys.in_transit, HASH),
        (&keys.series, STREAM),
        (&keys.series15, STREAM),
        (&keys.observed, HASH),
        (&keys.failures, STREAM),
    ];
    for group in &keys.groups {
        typed.extend([
            (&group.ready, STREAM),
            (&group.retry, ZSET),
            (&group.attempts, HASH),
            (&group.backlog, ZSET),
            (&group.parked, ZSET),
            (&group.holder, HASH),
            (&group.garbage, ZSET),
            (&group.garbage_info, HASH),
            (&group.garbage_hook, ZSET),
        ]);
    }
    let with_probe = |(key, (kind, probe))| (key, kind, probe);
    typed.into_iter().map(with_probe).collect()
}

fn about(shard: Shard, fault: Fault, outcome: Outcome, seen: String) -> Finding {
    Finding {
        fault,
        shard,
        group: String::new(),
        id: String::new(),
        seen,
        outcome,
    }
}
