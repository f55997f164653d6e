//! The expected contents of Redis for a reference, key by key, and the expected results of lookups.

use super::reference::{
    CopyState, Delivery, Group, HOLDS_LEASES, Holder, Holders, Message, Meta, Reference, encoded,
};
use lisa_core::broker::{Details, FailedAttempt, Found, GroupCopy, ListedMessage, SHORT_LEASES};
use lisa_core::message::MessageId;
use lisa_core::state::{End, State};
use lisa_core::time::UnixMs;
use lisa_tests::snapshot::{self, Content, Pending, Stream, Text};
use std::collections::BTreeMap;

impl Reference {
    /// The contents of the shard's keys by their last part, `conf` aside. An empty one is no key.
    pub(super) fn keys(&self) -> Vec<(String, Content)> {
        let stored = self.messages.iter();
        let waiting = stored.clone().filter(|(_, message)| message.waiting);
        let waiting = waiting.map(|(id, message)| (member(id, message), message.due as f64));
        let payload = stored.clone().filter_map(|(id, message)| {
            let record = message.record.as_ref()?;
            Some((text(id), Text(encoded(record))))
        });
        let meta = stored.clone().filter_map(|(id, message)| {
            let meta = message.meta.as_ref()?;
            Some((text(id), packed(meta)))
        });
        let left = stored.filter(|(_, message)| message.fanned_out);
        let left = left.map(|(id, message)| (text(id), text(message.owed)));
        let merge = self.merge.iter();
        let merge = merge.map(|((key, merge), id)| (text(format!("{key}\0{merge}")), text(id)));
        let tombstone = |(id, (time, end)): (&MessageId, &(u64, End))| {
            (text(id), (time * 4 + code(*end)) as f64)
        };
        let indexed = self.messages.iter().filter(|(_, m)| m.indexed);
        let indexed = indexed.map(|(id, m)| (text(format!("{}\0{id}", m.key())), 0.0));
        let into = self.into.iter();
        let into = into.map(|(id, survivor)| (text(id), text(survivor)));
        let mut keys = vec![
            ("into".to_owned(), Content::Hash(into.collect())),
            ("bykey".to_owned(), Content::Zset(indexed.collect())),
            ("stats".to_owned(), Content::Hash(self.stats())),
            ("waiting".to_owned(), Content::Zset(waiting.collect())),
            ("payload".to_owned(), Content::Hash(payload.collect())),
            ("meta".to_owned(), Content::Hash(meta.collect())),
            ("left".to_owned(), Content::Hash(left.collect())),
            ("merge".to_owned(), Content::Hash(merge.collect())),
            (
                "tomb".to_owned(),
                Content::Zset(self.tomb.iter().map(tombstone).collect()),
            ),
        ];
        for group in &self.groups {
            keys.extend(self.group_keys(group));
        }
        let is_there = |(_, content): &(String, Content)| match content {
            Content::Hash(fields) => !fields.is_empty(),
            Content::Zset(members) => !members.is_empty(),
            _ => true,
        };
        keys.into_iter().filter(is_there).collect()
    }

    fn group_keys(&self, group: &Group) -> Vec<(String, Content)> {
        let (mut retry, mut backlog, mut parked) =
            (BTreeMap::new(), BTreeMap::new(), BTreeMap::new());
        let (mut garbage, mut info) = (BTreeMap::new(), BTreeMap::new());
        for (id, state) in &group.states {
            let message = &self.messages[id];
            let meta = message.meta.clone().unwrap_or_default();
            let ranked = format!("{:014}{:012}{id}", meta.due, meta.arrival);
            match state {
                CopyState::Stream => {}
                CopyState::Backlog => {
                    backlog.insert(text(ranked), 0.0 - f64::from(meta.priority));
                }
                CopyState::Parked => {
                    parked.insert(text(format!("{}\0{ranked}", meta.key)), 0.0);
                }
                CopyState::Retry(time) => {
                    retry.insert(member(id, message), *time as f64);
                }
                CopyState::Garbage(in_garbage) => {
                    garbage.insert(text(id), in_garbage.time as f64);
                    let (reason, attempts, error) =
                        (in_garbage.reason, in_garbage.attempts, &in_garbage.error);
                    info.insert(text(id), text(format!("{reason} {attempts} {error}")));
                }
            }
        }
        let attempts = group.tries.iter().map(|(id, tries)| {
            let (attempts, crashes, error) = (tries.attempts, tries.crashes, &tries.error);
            let due = tries.due.map(|due| format!("@{due}")).unwrap_or_default();
            (text(id), text(format!("{attempts} {crashes}{due} {error}")))
        });
        let holders = group.holders.iter();
        let holders = holders.map(|(key, holders)| (text(key), text(holding(holders))));
        [
            ("retry", Content::Zset(retry)),
            ("backlog", Content::Zset(backlog)),
            ("parked", Content::Zset(parked)),
            ("garbage", Content::Zset(garbage)),
            ("garbage_info", Content::Hash(info)),
            ("attempts", Content::Hash(attempts.collect())),
            ("holder", Content::Hash(holders.collect())),
            ("ready", Content::Stream(ready(group))),
        ]
        .map(|(what, content)| (format!("{what}:{}", group.name), content))
        .into()
    }

    fn stats(&self) -> BTreeMap<Text, Text> {
        let counters = self.counters.iter().filter(|(_, count)| **count != 0);
        let mut stats: BTreeMap<Text, Text> = counters
            .map(|(name, count)| (text(name), text(count)))
            .collect();
        let arrivals = Some(self.arrivals).filter(|arrivals| *arrivals > 0);
        let ranked = self.messages.values().filter(|message| {
            let meta = message.meta.as_ref();
            meta.is_some_and(Meta::is_ranked)
        });
        let ranked = Some(ranked.count() as u64).filter(|ranked| *ranked > 0);
        let times = [
            ("ranked", ranked),
            ("last_time", self.last_time),
            ("alarm", self.alarm),
            ("seq", arrivals),
        ];
        for (name, time) in times {
            stats.extend(time.map(|time| (text(name), text(time))));
        }
        for group in &self.groups {
            let name = format!("tat:{}", group.name);
            stats.extend(
                group
                    .tat
                    .map(|tat| (text(&name), text(format!("{tat:.3}")))),
            );
        }
        stats
    }
}

impl Reference {
    pub(super) fn lookup(&self, id: &MessageId) -> Found {
        let end = self.ended(id);
        let message = match self.messages.get(id) {
            Some(message) if message.waiting || message.record.is_some() => message,
            _ => return Found::Unknown { end },
        };
        let names = self.names().into_iter();
        let copies: Vec<_> = names
            .map(|(g, group)| GroupCopy {
                listed: listed(&self.groups[g], id, message),
                is_done: listed(&self.groups[g], id, message).is_none(),
                attempts: attempts(&self.groups[g], id, message),
                group,
                why: String::new(),
                holder: None,
            })
            .collect();
        let meta = message.meta.clone().unwrap_or_default();
        let text = |text: String| Some(text).filter(|text| !text.is_empty());
        let due = (message.waiting || message.meta.is_some()).then_some(message.due);
        let lapses = self.groups.iter().map(|g| message.lapse_in(&g.name));
        let lapse = lapses.min().unwrap_or(message.lapse());
        let expires = Some(lapse).filter(|lapse| *lapse < u64::MAX);
        let first = copies.iter().find_map(|copy| copy.listed.clone());
        let due_at = Some(UnixMs::new(message.due));
        let waiting = ListedMessage::new(id.clone(), State::Waiting, due_at, 1);
        Found::Stored {
            listed: ListedMessage {
                key: meta.key.parse().ok(),
                // Without a group it can only wait for one.
                ..first.unwrap_or(waiting)
            },
            record: message
                .record
                .as_ref()
                .map(encoded)
                .unwrap_or_default()
                .into(),
            details: Box::new(Details {
                due: due.map(UnixMs::new),
                expires: expires.map(UnixMs::new),
                priority: meta.priority,
                merge_key: text(meta.merge),
                copies,
            }),
        }
    }
}

fn error_in(stored: &str) -> String {
    stored.split('\0').next().unwrap_or_default().to_owned()
}

/// The failed attempts of a message that a group has not finished.
fn attempts(group: &Group, id: &MessageId, message: &Message) -> Vec<FailedAttempt> {
    if listed(group, id, message).is_none() {
        return Vec::new();
    }
    let stored = match group.states.get(id) {
        Some(CopyState::Garbage(in_garbage)) => &in_garbage.error,
        _ => match group.tries.get(id) {
            Some(tries) => &tries.error,
            None => return Vec::new(),
        },
    };
    let read = |record: &str| {
        let (at, rest) = record.split_once(' ').expect("a time");
        let [outcome, consumer, error] = rest.split('\t').collect::<Vec<_>>()[..] else {
            panic!("{record:?}");
        };
        FailedAttempt {
            at: UnixMs::new(at.parse().expect("ms")),
            outcome: outcome.parse().expect("an outcome"),
            consumer: Some(granted_by(consumer)).filter(|name| name != SHORT_LEASES),
            error: error.to_owned(),
        }
    };
    stored.split('\0').skip(1).map(read).collect()
}

/// The process that a holder of a delivery with a lease of its own is named for.
fn granted_by(holder: &str) -> String {
    match holder {
        SHORT_LEASES => holder,
        _ => holder.strip_suffix(HOLDS_LEASES).unwrap_or(holder),
    }
    .to_owned()
}

fn listed(group: &Group, id: &MessageId, message: &Message) -> Option<ListedMessage> {
    let tries = group.tries.get(id).cloned().unwrap_or_default();
    let text = |error: &str| Some(error_in(error)).filter(|error| !error.is_empty());
    let listed = |state, time: u64, attempt| ListedMessage {
        error: text(&tries.error),
        ..ListedMessage::new(id.clone(), state, Some(UnixMs::new(time)), attempt)
    };
    let next = tries.attempts + 1;
    if message.waiting {
        return Some(listed(State::Waiting, message.due, next));
    }
    Some(match group.states.get(id)? {
        CopyState::Backlog => listed(State::Backlog, 0, next),
        CopyState::Parked => listed(State::Parked, 0, next),
        CopyState::Retry(time) => listed(State::Retry, *time, next),
        CopyState::Garbage(in_garbage) => ListedMessage {
            reason: Some(in_garbage.reason.parse().expect("a reason")),
            error: text(&in_garbage.error),
            ..listed(State::Garbage, in_garbage.time, in_garbage.attempts)
        },
        CopyState::Stream => {
            let delivery = group.stream.iter().find(|delivery| delivery.id == *id)?;
            let (state, holder) = match &delivery.holder {
                Holder::Held { consumer, .. } => (State::InFlight, Some(granted_by(consumer))),
                _ => (State::Ready, None),
            };
            ListedMessage {
                consumer: holder,
                ..listed(state, delivery.due, delivery.attempt)
            }
        }
    })
}

/// Returns the lookup result without the explanation in words, and without a time where a state has none of its own.
pub(super) fn without_reasons(mut found: Found) -> Found {
    if let Found::Stored {
        listed, details, ..
    } = &mut found
    {
        let copies = details.copies.iter_mut();
        let listings = copies.filter_map(|copy| {
            copy.why.clear();
            copy.holder = None;
            copy.listed.as_mut()
        });
        for listed in listings.chain([listed]) {
            if matches!(listed.state, State::Backlog | State::Parked) {
                listed.due_at = Some(UnixMs::new(0));
            }
        }
    }
    found
}

/// A member of `waiting` and `retry`.
fn member(id: &MessageId, message: &Message) -> Text {
    match message.arrival() {
        0 => text(id),
        arrival => text(format!("~{arrival:012}{id}")),
    }
}

fn packed(meta: &Meta) -> Text {
    let Meta {
        arrival,
        due,
        priority,
        ttl,
        cap,
        bytes,
        key,
        merge,
        exempt,
        survivor,
    } = meta;
    let mut packed = Vec::new();
    let unsigned = [*arrival, *due, *cap, *bytes].map(|number| number as i64);
    for number in [
        unsigned[0],
        unsigned[1],
        (*priority).into(),
        *ttl,
        unsigned[2],
        unsigned[3],
    ] {
        pack_number(number, &mut packed);
    }
    for key in [key, merge] {
        pack_text(key.as_bytes(), &mut packed);
    }
    if !exempt.is_empty() || *survivor {
        pack_text(exempt.as_bytes(), &mut packed);
    }
    packed.extend(survivor.then_some(1));
    Text(packed)
}

/// MessagePack: the shortest form of a whole number.
fn pack_number(number: i64, to: &mut Vec<u8>) {
    let (mark, bytes) = match number {
        -0x20..=0x7f => (None, 1),
        0x80..=0xff => (Some(0xcc), 1),
        0x100..=0xffff => (Some(0xcd), 2),
        0x1_0000..=0xffff_ffff => (Some(0xce), 4),
        0x1_0000_0000.. => (Some(0xcf), 8),
        -0x80..=-0x21 => (Some(0xd0), 1),
        -0x8000..=-0x81 => (Some(0xd1), 2),
        -0x8000_0000..=-0x8001 => (Some(0xd2), 4),
        _ => (Some(0xd3), 8),
    };
    to.extend(mark);
    to.extend(&number.to_be_bytes()[8 - bytes..]);
}

fn pack_text(text: &[u8], to: &mut Vec<u8>) {
    match text.len() {
        length @ 0..32 => to.push(0xa0 | length as u8),
        length @ 32..256 => to.extend([0xd9, length as u8]),
        length => {
            to.push(0xda);
            to.extend((length as u16).to_be_bytes());
        }
    }
    to.extend(text);
}

fn holding(holders: &Holders) -> String {
    match holders {
        Holders::One(id) => id.to_string(),
        Holders::Together(ids) => ids
            .iter()
            .fold(" ".to_owned(), |text, id| text + id.as_str() + " "),
    }
}

fn ready(group: &Group) -> Stream {
    let mut pending = BTreeMap::new();
    for delivery in &group.stream {
        if let (Holder::Held { consumer, mark, .. }, Some(entry)) =
            (&delivery.holder, delivery.entry)
        {
            let consumer = text(consumer);
            let deliveries = mark.count();
            pending.insert(
                entry.to_string(),
                Pending {
                    consumer,
                    deliveries,
                },
            );
        }
    }
    let last = group.last_delivered;
    let of_redis = snapshot::Group {
        last_delivered: last.map_or("0-0".to_owned(), |entry| entry.to_string()),
        consumers: group.consumers.iter().map(text).collect(),
        pending,
    };
    Stream {
        entries: group.stream.iter().map(entry).collect(),
        groups: [(text(&group.name), of_redis)].into(),
    }
}

fn entry(delivery: &Delivery) -> (String, BTreeMap<Text, Text>) {
    let mut fields: BTreeMap<Text, Text> = [
        (text("i"), text(&delivery.id)),
        (text("d"), text(delivery.due)),
    ]
    .into();
    if delivery.attempt > 1 {
        fields.insert(text("a"), text(delivery.attempt));
    }
    if delivery.crashes > 0 {
        fields.insert(text("c"), text(delivery.crashes));
    }
    fields.extend(delivery.expires.map(|expires| (text("x"), text(expires))));
    fields.extend((delivery.released).map(|released| (text("r"), text(released))));
    let entry = delivery.entry.map(|entry| entry.to_string());
    (entry.unwrap_or_default(), fields)
}

fn code(end: End) -> u64 {
    match end {
        End::Acked => 0,
        End::Cancelled => 1,
        End::Merged => 2,
        End::Purged => 3,
    }
}

fn text(from: impl ToString) -> Text {
    Text::from(from.to_string().as_str())
}
