//! What the scripts need of a shard before they can look at anything: that its keys have their types, and its `conf` the
//! fields that every declaration writes.
//!
//! A field is put back only where it can be told: from the settings on the same shard, or from another shard of the same
//! topic that has them. A key of another type was made by somebody else, and is left to people.

use std::collections::{BTreeMap, BTreeSet};

use redis::{Pipeline, Value};

use super::super::deliver::{command, text};
use super::super::place::Place;
use super::super::registry::flat;
use super::super::run::Tries;
use super::super::{Broker, BrokerError};
use super::{Checkup, Finding, Outcome};
use crate::keys::{Key, LAYOUT, ShardKeys};
use crate::link::LinkErrorKind;
use crate::scripts::{self, DeclareMode, DeclareReply, Fault};
use crate::topic::{Group, Shard, Topic, TopicSettings};

/// What an operator can do about settings that nothing tells.
const DECLARE: &str = "no shard tells them: restart a manager whose configuration has the topic, with its present number of \
                       shards";

/// What comes before that where the first shard may have said more than its settings.
const RESHARDED: &str = "if the topic was ever resharded, first put into this conf where its shards begin now (HSET … next N)";

/// What the `conf` of a shard says.
struct Conf {
    /// As it stands there; empty if it is missing.
    epoch: String,
    settings: Option<Written>,
    groups: Option<Vec<Group>>,
    /// Whether there is nothing at all.
    is_gone: bool,
    /// Whether it is one of shards that followed others.
    is_later: bool,
    /// Whether it is being given up.
    is_closed: bool,
    /// What is wrong with it.
    ails: Vec<String>,
}

/// Settings as they are written, with what only later versions know, and as they are read.
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
        let mut ails = Vec::new();
        let mut ail = |name: &str, is_right: bool| {
            if !is_right {
                let how = if fields.contains_key(name) {
                    "is wrong"
                } else {
                    "is missing"
                };
                ails.push(format!("{name} {how}"));
            }
        };
        let settings = field("settings").and_then(Written::read);
        let groups: Option<Vec<Group>> = field("groups").and_then(|names| {
            let names = names.split_whitespace();
            names.map(|name| name.parse().ok()).collect()
        });
        ail(
            "epoch",
            field("epoch").is_some_and(|epoch| epoch.parse::<u64>().is_ok()),
        );
        let layout = LAYOUT.to_string();
        ail("layout", field("layout") == Some(&layout));
        ail("settings", settings.is_some());
        ail("groups", groups.is_some());
        ail("class", matches!(field("class"), Some("plain" | "full")));
        if let Some(Written { settings, .. }) = &settings {
            let shards = settings.shards.to_string();
            ail("shards", field("shards") == Some(&shards));
            if settings.needs_full_class() {
                ail("features", field("features").is_some());
            }
            for (name, value) in settings.rules() {
                ail(name, field(name) == Some(&value));
            }
        } else {
            ail("shards", fields.contains_key("shards"));
        }
        if fields.is_empty() {
            ails = vec!["all of it is missing".to_owned()];
        }
        Self {
            epoch: field("epoch").unwrap_or_default().to_owned(),
            settings,
            groups,
            is_gone: fields.is_empty(),
            is_later: fields.contains_key("previous"),
            is_closed: fields.contains_key("closed"),
            ails,
        }
    }
}

/// What was seen of a topic at one time.
#[derive(Default)]
struct Frame {
    place: Place,
    shards: u16,
    confs: BTreeMap<Shard, Conf>,
    /// Whether there are shards behind these.
    is_followed: bool,
    /// Keys of another type than they should have, by shard, with that type.
    strangers: BTreeMap<Shard, Vec<(String, &'static str)>>,
}

impl Broker {
    /// Looks at the keys and the `conf` of each shard, and mends the latter if told so and if it can be told what was there.
    /// `shards` is how many there are if the first one does not tell. Gives the shards of which the rest cannot be examined.
    pub(super) async fn look_at_settings(
        &self,
        topic: &Topic,
        shards: u16,
        mend: bool,
        checkup: &mut Checkup,
    ) -> Result<BTreeSet<Shard>, BrokerError> {
        let mut tries = Tries::of(topic);
        let frame = loop {
            let frame = self.frame(topic, shards).await?;
            // A topic that gets other shards meanwhile has those of before no more.
            if self.place_of(topic).await? == frame.place {
                break frame;
            }
            tries.next().await?;
        };
        let mut unsound = BTreeSet::new();
        for (shard, strangers) in &frame.strangers {
            unsound.insert(*shard);
            for (key, kind) in strangers {
                checkup.add(about(*shard, Fault::Type, Outcome::Found, format!(
                    "{key} is no {kind}: move it away (RENAME) and look again; the rest of the shard was not looked at"
                )));
            }
        }
        for (shard, conf) in &frame.confs {
            if conf.ails.is_empty() {
                continue;
            }
            let ails = conf.ails.join(", ");
            let Some(origin) = frame.origin(*shard, conf) else {
                unsound.insert(*shard);
                let mut seen = format!("of its conf {ails}; {DECLARE}");
                if shard.get() == 0 && frame.place == Place::default() {
                    seen = format!("{seen}; {RESHARDED}");
                }
                checkup.add(about(*shard, Fault::Settings, Outcome::Found, seen));
                continue;
            };
            let from = origin.shard;
            let seen = format!("of its conf {ails}; shard {from} tells what it was");
            if mend && self.mend_conf(topic, *shard, conf, &origin).await? {
                checkup.add(about(*shard, Fault::Settings, Outcome::Mended, seen));
            } else {
                unsound.insert(*shard);
                checkup.add(about(*shard, Fault::Settings, Outcome::Found, seen));
            }
        }
        Ok(unsound)
    }

    /// Where the shards of a topic are, as far as its first shard can be read.
    async fn place_of(&self, topic: &Topic) -> Result<Place, BrokerError> {
        match self.follow(topic).await {
            Err(BrokerError::Link(error)) if error.kind == LinkErrorKind::WrongType => {
                Ok(Place::default())
            }
            place => place,
        }
    }

    async fn frame(&self, topic: &Topic, shards: u16) -> Result<Frame, BrokerError> {
        let mut frame = Frame {
            place: self.place_of(topic).await?,
            shards,
            ..Frame::default()
        };
        let open = frame.place.old.end;
        // The first of those that stay tells how many there are.
        let first = ShardKeys::new(&self.inner.namespace, topic, Shard::new(open), &[]);
        let first = self.read_conf(&first.conf).await?;
        let first = first.and_then(|fields| Conf::read(&fields).settings);
        if let Some(first) = first {
            frame.shards = first.settings.shards;
        }
        for shard in (frame.place.old.start..open + frame.shards).map(Shard::new) {
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

    /// All fields of a `conf`; none if it is no hash.
    async fn read_conf(&self, key: &Key) -> Result<Option<BTreeMap<String, String>>, BrokerError> {
        let reply = match self.call(key, &command("HGETALL", key)).await {
            Err(error) if error.kind == LinkErrorKind::WrongType => return Ok(None),
            reply => flat(reply?),
        };
        let Value::Array(values) = reply else {
            return Err(BrokerError::Reply {
                what: "HGETALL",
                error: scripts::unexpected("fields and values", &reply),
            });
        };
        // What is no text is no field of ours.
        let pairs = values.chunks_exact(2);
        let pairs = pairs.filter_map(|pair| Some((text(&pair[0]).ok()?, text(&pair[1]).ok()?)));
        Ok(Some(
            pairs
                .map(|(field, value)| (field.to_owned(), value.to_owned()))
                .collect(),
        ))
    }

    /// The keys of a shard that have another type than they should, and which that is.
    async fn strangers(
        &self,
        keys: &ShardKeys,
    ) -> Result<Vec<(String, &'static str)>, BrokerError> {
        let mut all = Pipeline::new();
        let typed = typed(keys);
        for (key, _, probe) in &typed {
            all.add_command(command(probe, key));
        }
        let server = self.inner.link.at(&keys.conf);
        match server.pipeline(&all, self.inner.patience).await {
            Err(error) if error.kind == LinkErrorKind::WrongType => {}
            other => return other.map(|_| Vec::new()).map_err(BrokerError::from),
        }
        let mut strangers = Vec::new();
        for (key, kind, probe) in typed {
            match self.call(key, &command(probe, key)).await {
                Err(error) if error.kind == LinkErrorKind::WrongType => {
                    strangers.push((key.as_str().to_owned(), kind));
                }
                other => drop(other?),
            }
        }
        Ok(strangers)
    }

    /// Writes the `conf` of a shard anew, unless its settings were changed since. Says whether it did.
    async fn mend_conf(
        &self,
        topic: &Topic,
        shard: Shard,
        conf: &Conf,
        origin: &Origin<'_>,
    ) -> Result<bool, BrokerError> {
        let (Written { text, settings }, groups) = (origin.settings, origin.groups);
        let keys = ShardKeys::new(&self.inner.namespace, topic, shard, groups);
        let call = scripts::Declare {
            mode: DeclareMode::Mend { seen: &conf.epoch },
            groups,
            settings,
            text,
        };
        let reply = self.run(&keys, &call).await?;
        match reply.map_err(|_| BrokerError::UnknownTopic(topic.clone()))? {
            DeclareReply::Declared {
                changed: true,
                epoch,
                ..
            } => {
                // Those who know the topic read it again.
                self.register(topic, settings.shards, epoch).await?;
                Ok(true)
            }
            _ => Ok(false),
        }
    }
}

/// What the `conf` of a shard should say, and which shard tells it.
struct Origin<'a> {
    shard: Shard,
    settings: &'a Written,
    groups: &'a [Group],
}

impl Frame {
    fn origin<'a>(&'a self, shard: Shard, conf: &'a Conf) -> Option<Origin<'a>> {
        let own = (conf.settings.as_ref(), conf.groups.as_deref());
        let of = |shard, other: &'a Conf| {
            Some(Origin {
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

    /// Whether all shards that there are belong to the topic as it is. While it is resharded, and where it is not known
    /// from where on it has its shards, another one may be of another kind.
    fn is_settled(&self) -> bool {
        let is_like = |conf: &Conf| {
            conf.is_gone || conf.is_later == (self.place.old.end > 0) && !conf.is_closed
        };
        // One that is no hash may have said where they are.
        let is_known = self.confs.len() == usize::from(self.shards);
        let is_at_rest = self.place.old.is_empty() && !self.is_followed;
        is_known && is_at_rest && self.confs.values().all(is_like)
    }
}

/// The keys of a shard less its `conf`, with the type that each has, and a command that is refused for others.
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
        (&keys.leaving, HASH),
    ];
    for group in &keys.groups {
        typed.extend([
            (&group.ready, STREAM),
            (&group.retry, ZSET),
            (&group.attempts, HASH),
            (&group.backlog, ZSET),
            (&group.lane, ZSET),
            (&group.holder, HASH),
            (&group.garbage, ZSET),
            (&group.dead, HASH),
            (&group.notices, ZSET),
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
