//! The examination of one shard: walks its structures for suspects, then judges and repairs each.

use std::collections::{BTreeMap, BTreeSet, HashSet};

use super::pace::Pace;
use super::streams::Streams;
use super::{Checkup, Examination, Finding, Outcome};
use crate::broker::{Broker, BrokerError, TopicHandle};
use crate::scripts::{Examine, Fault, General, Recount, Repair, Structure, Suspect, Walk};
use crate::topic::Shard;

/// The number of suspects that one call judges if there is one group. More groups mean more states to check, so fewer
/// suspects.
const BATCH: usize = 20;
/// The number of elements in a page that need a full check, if there is one group. For records, their size counts, too.
const PAGE: u64 = 30;
/// The number of elements in a page if only those whose message is gone need a closer look.
const QUICK_PAGE: u64 = 60;
/// The size of the first page of records, from which their average size is learned.
const FIRST_PAGE: u64 = 20;
/// The number of bytes that Redis should read for a page.
const PAGE_BYTES: u64 = 256 * 1024;
/// The number of times that a message is examined if a stream has grown too much or a repair revealed another fault.
const ROUNDS: usize = 4;

/// The structures of a shard whose elements point to messages. The messages themselves are in `payload`.
const OF_SHARD: [&str; 5] = ["waiting", "meta", "left", "merge", "index"];
/// The structures of a group whose elements point to messages.
const OF_GROUP: [&str; 8] = [
    "retry",
    "backlog",
    "parked",
    "garbage",
    "attempts",
    "garbage_info",
    "garbage_hook",
    "holder",
];

/// The examination of one shard.
pub(super) struct ShardCheck<'a> {
    broker: &'a Broker,
    topic: &'a TopicHandle,
    shard: Shard,
    how: Examination,
    checkup: &'a mut Checkup,
    pace: &'a Pace,
    streams: Streams,
    /// The states in which messages were seen that are not stored, or whose `meta` does not point there.
    hints: BTreeMap<Vec<u8>, BTreeSet<Vec<u8>>>,
    judged: HashSet<Vec<u8>>,
    /// Suspects that can be restored only after all duplicates are resolved: until then, the sums do not show where they
    /// are missing.
    homeless: Vec<Suspect>,
}

impl<'a> ShardCheck<'a> {
    pub(super) fn new(
        broker: &'a Broker,
        topic: &'a TopicHandle,
        shard: Shard,
        how: Examination,
        checkup: &'a mut Checkup,
        pace: &'a Pace,
    ) -> Self {
        Self {
            broker,
            topic,
            shard,
            how,
            checkup,
            pace,
            streams: Streams::default(),
            hints: BTreeMap::new(),
            judged: HashSet::new(),
            homeless: Vec::new(),
        }
    }

    pub(super) async fn run(mut self) -> Result<(), BrokerError> {
        let keys = self.topic.keys(self.shard)?;
        self.streams.read(self.broker, keys, self.pace).await?;
        for group in &keys.groups {
            for entry in self.streams.hollow(self.broker, group, self.pace).await? {
                let hint = format!("pending:{} {entry}", group.name);
                self.hint(Vec::new(), hint.into_bytes());
            }
        }
        for what in OF_SHARD {
            self.walk(&Structure::Shard(what)).await?;
        }
        for group in &keys.groups {
            for what in OF_GROUP {
                self.walk(&Structure::Group(what, &group.name)).await?;
            }
        }
        self.walk(&Structure::Shard("payload")).await?;
        let on_streams = self.streams.ids().map(<[u8]>::to_vec);
        let rest: BTreeSet<Vec<u8>> = on_streams
            .chain(self.hints.keys().cloned())
            .filter(|id| !self.judged.contains(id))
            .collect();
        self.judge(rest.into_iter().collect()).await?;
        for item in std::mem::take(&mut self.homeless) {
            self.repair(&item).await?;
        }
        self.look_at_consumers().await?;
        self.recount().await
    }

    /// Makes one call at the pace of the examination.
    async fn call<G: General>(&self, call: &G) -> Result<G::Reply, BrokerError> {
        let called = self.broker.general(self.topic, self.shard, None, call);
        self.pace.of(called).await
    }

    fn hint(&mut self, id: Vec<u8>, hint: Vec<u8>) {
        self.hints.entry(id).or_default().insert(hint);
    }

    /// Walks one structure. Elements of `payload` are judged page by page. Others are collected first, since only the
    /// payload shows what is known of a message as a whole.
    async fn walk(&mut self, what: &Structure<'_>) -> Result<(), BrokerError> {
        let is_payload = matches!(what, Structure::Shard("payload"));
        let groups = self.topic.keys(self.shard)?.groups.len().max(1) as u64;
        let is_quick = match what {
            Structure::Shard(what) => matches!(*what, "waiting" | "meta" | "left"),
            Structure::Group(what, _) => {
                matches!(*what, "retry" | "backlog" | "garbage" | "attempts")
            }
        };
        let most = if is_quick {
            QUICK_PAGE
        } else {
            (PAGE / groups).max(1)
        };
        let mut count = if is_payload {
            FIRST_PAGE.min(most)
        } else {
            most
        };
        let mut cursor = "0".to_owned();
        loop {
            let call = Walk {
                what,
                cursor: &cursor,
                count,
            };
            let page = self.call(&call).await?;
            if is_payload {
                self.checkup.messages += page.seen;
                let ids = page.suspects.into_iter().map(|(id, _)| id).collect();
                self.judge(ids).await?;
            } else {
                for (id, hint) in page.suspects {
                    self.hint(id, hint);
                }
            }
            match page.next {
                Some(next) => cursor = next,
                None => return Ok(()),
            }
            let fitting = page.seen.max(1) * PAGE_BYTES / page.bytes.max(1);
            count = fitting.clamp(1, (count * 2).min(most));
        }
    }

    fn suspect(&self, id: Vec<u8>) -> Suspect {
        let hints = self.hints.get(&id).into_iter().flatten().cloned();
        Suspect {
            hints: hints.chain(self.streams.hints(&id)).collect(),
            id,
        }
    }

    /// Judges messages, and repairs them if that is requested.
    async fn judge(&mut self, mut ids: Vec<Vec<u8>>) -> Result<(), BrokerError> {
        ids.retain(|id| self.judged.insert(id.clone()));
        let batch = (BATCH / self.topic.keys(self.shard)?.groups.len().max(1)).max(1);
        for _ in 0..ROUNDS {
            let mut unclear = BTreeSet::new();
            for batch in ids.chunks(batch) {
                let items: Vec<_> = batch.iter().map(|id| self.suspect(id.clone())).collect();
                let call = Examine {
                    tails: &self.streams.tails,
                    items: &items,
                };
                let seen = self.call(&call).await?;
                let (mut ill, mut homeless) = (BTreeSet::new(), BTreeSet::new());
                for seen in seen {
                    match seen.fault {
                        None => drop(unclear.insert(seen.id)),
                        Some(_) if !self.how.repair => {
                            self.checkup.add_seen(self.shard, seen, Outcome::Found);
                        }
                        Some(Fault::Orphan | Fault::Left) => drop(homeless.insert(seen.id)),
                        Some(_) => drop(ill.insert(seen.id)),
                    }
                }
                for item in items {
                    if homeless.contains(&item.id) {
                        self.homeless.push(item);
                    } else if ill.contains(&item.id) {
                        self.repair(&item).await?;
                    }
                }
            }
            if unclear.is_empty() {
                return Ok(());
            }
            ids = unclear.into_iter().collect();
            self.read_on().await?;
        }
        self.checkup.unclear += ids.len() as u64;
        Ok(())
    }

    /// Repairs one message, including faults that a repair reveals.
    async fn repair(&mut self, item: &Suspect) -> Result<(), BrokerError> {
        for round in 1..=ROUNDS {
            let item = Suspect {
                id: item.id.clone(),
                hints: item
                    .hints
                    .iter()
                    .cloned()
                    .chain(self.streams.hints(&item.id))
                    .collect::<BTreeSet<_>>()
                    .into_iter()
                    .collect(),
            };
            let call = Repair {
                tails: &self.streams.tails,
                item: &item,
            };
            let seen = self.call(&call).await?;
            if seen.is_empty() {
                return Ok(());
            }
            for seen in seen {
                if seen.fault.is_none() {
                    self.checkup.unclear += u64::from(round == ROUNDS);
                    self.read_on().await?;
                } else if round == ROUNDS {
                    self.checkup.add_seen(self.shard, seen, Outcome::Found);
                } else {
                    self.checkup.add_seen(self.shard, seen, Outcome::Repaired);
                }
            }
        }
        Ok(())
    }

    async fn read_on(&mut self) -> Result<(), BrokerError> {
        let keys = self.topic.keys(self.shard)?;
        self.streams.read(self.broker, keys, self.pace).await
    }

    async fn look_at_consumers(&mut self) -> Result<(), BrokerError> {
        for keys in &self.topic.keys(self.shard)?.groups {
            let group = &keys.name;
            let consumers = self.broker.consumers(self.topic, self.shard, group).await?;
            for consumer in consumers {
                if consumer.idle <= self.how.consumer_idle {
                    continue;
                }
                let idle = crate::time::format_duration(consumer.idle);
                let (outcome, seen) = if consumer.pending > 0 {
                    let held = consumer.pending;
                    let seen = format!("idle for {idle}; reclaim will recover the {held} it holds");
                    (Outcome::Said, seen)
                } else if !self.how.repair {
                    let seen = format!("idle for {idle} and holds nothing");
                    (Outcome::Found, seen)
                } else {
                    let dropped = self
                        .broker
                        .drop_consumer(self.topic, self.shard, group, &consumer.name)
                        .await?;
                    if !dropped {
                        continue;
                    }
                    (Outcome::Repaired, format!("idle for {idle}; removed"))
                };
                self.checkup.add(Finding {
                    fault: Fault::Consumer,
                    shard: self.shard,
                    group: group.to_string(),
                    id: consumer.name,
                    seen,
                    outcome,
                });
            }
        }
        Ok(())
    }

    /// Compares the counters. This comes last because each repair keeps the sums or brings them closer.
    async fn recount(&mut self) -> Result<(), BrokerError> {
        let repair = self.how.repair && self.checkup.unclear == 0;
        let call = Recount { repair };
        let seen = self.call(&call).await?;
        let outcome = if repair {
            Outcome::Repaired
        } else {
            Outcome::Found
        };
        for seen in seen {
            self.checkup.add_seen(self.shard, seen, outcome);
        }
        Ok(())
    }
}
