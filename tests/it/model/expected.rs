//! What a reference stands for in Redis, key by key, and what a lookup must find.

use super::reference::{Buried, Delivery, Holder, Reference, encoded};
use lisa_shared::broker::{DeadLetter, Found, Listed};
use lisa_shared::message::MessageId;
use lisa_shared::state::{End, GarbageReason, State};
use lisa_shared::time::UnixMs;
use lisa_tests::snapshot::{Content, Group, Pending, Stream, Text};
use std::collections::BTreeMap;

impl Reference {
    /// The contents of the shard's keys by their last part, `conf` but for its pause flag aside. An empty one is no key.
    pub(super) fn keys(&self) -> Vec<(&'static str, Content)> {
        let zset = |members: &BTreeMap<MessageId, u64>| {
            let members = members.iter().map(|(id, time)| (text(id), *time as f64));
            Content::Zset(members.collect())
        };
        let buried = |(id, buried): (&MessageId, &Buried)| (text(id), buried.time as f64);
        let tombstone = |(id, (time, end)): (&MessageId, &(u64, End))| {
            (text(id), (time * 4 + code(*end)) as f64)
        };
        let attempts = |(id, tries): (&MessageId, &(u32, u32, String))| {
            let (attempts, crashes, error) = tries;
            (text(id), text(format!("{attempts} {crashes} {error}")))
        };
        let dead = |(id, buried): (&MessageId, &Buried)| {
            let Buried {
                reason,
                attempts,
                error,
                ..
            } = buried;
            (text(id), text(format!("{reason} {attempts} {error}")))
        };
        let payload = self.payload.iter();
        let payload = payload.map(|(id, record)| (text(id), Text(encoded(record))));
        let keys = [
            ("stats", Content::Hash(self.stats())),
            ("waiting", zset(&self.waiting)),
            ("payload", Content::Hash(payload.collect())),
            (
                "tomb",
                Content::Zset(self.tomb.iter().map(tombstone).collect()),
            ),
            ("retry:default", zset(&self.retry)),
            (
                "attempts:default",
                Content::Hash(self.attempts.iter().map(attempts).collect()),
            ),
            (
                "garbage:default",
                Content::Zset(self.garbage.iter().map(buried).collect()),
            ),
            (
                "dead:default",
                Content::Hash(self.garbage.iter().map(dead).collect()),
            ),
            ("ready:default", Content::Stream(self.ready())),
        ];
        let is_there = |(_, content): &(_, Content)| match content {
            Content::Hash(fields) => !fields.is_empty(),
            Content::Zset(members) => !members.is_empty(),
            _ => true,
        };
        keys.into_iter().filter(is_there).collect()
    }

    fn stats(&self) -> BTreeMap<Text, Text> {
        let counters = self.counters.iter();
        let mut stats: BTreeMap<Text, Text> = counters
            .map(|(name, count)| (text(name), text(count)))
            .collect();
        for (name, time) in [("last_time", self.last_time), ("alarm", self.alarm)] {
            if let Some(time) = time {
                stats.insert(text(name), text(time));
            }
        }
        stats
    }

    fn ready(&self) -> Stream {
        let mut pending = BTreeMap::new();
        for delivery in &self.stream {
            if let (
                Holder::Held {
                    consumer, started, ..
                },
                Some(entry),
            ) = (&delivery.holder, delivery.entry)
            {
                let consumer = text(consumer);
                let deliveries = if *started { 2 } else { 1 };
                pending.insert(
                    entry.to_string(),
                    Pending {
                        consumer,
                        deliveries,
                    },
                );
            }
        }
        let last = self.last_delivered;
        let group = Group {
            last_delivered: last.map_or("0-0".to_owned(), |entry| entry.to_string()),
            consumers: self.consumers.iter().map(text).collect(),
            pending,
        };
        Stream {
            entries: self.stream.iter().map(entry).collect(),
            groups: [(text("default"), group)].into(),
        }
    }
}

impl Reference {
    pub(super) fn lookup(&self, id: &MessageId) -> Found {
        let record = self.payload.get(id).map(encoded);
        let tries = self.attempts.get(id);
        let attempts = tries.map_or(0, |(attempts, ..)| *attempts);
        let last_error = tries.map(|(.., error)| error.clone());
        let listed = |state, time: u64, attempt, consumer| Listed {
            id: id.clone(),
            state,
            time: UnixMs::new(time),
            attempt,
            consumer,
            last_error: last_error.clone().filter(|error| !error.is_empty()),
            dead: None,
        };
        let listed = if let Some(due) = self.waiting.get(id) {
            listed(State::Waiting, *due, 1, None)
        } else if let Some(due) = self.retry.get(id) {
            listed(State::Retry, *due, attempts + 1, None)
        } else if let Some(buried) = self.garbage.get(id) {
            let reason: GarbageReason = buried.reason.parse().expect("a reason");
            Listed {
                dead: Some(DeadLetter {
                    reason,
                    attempts: buried.attempts,
                    error: buried.error.clone(),
                }),
                ..listed(State::Garbage, buried.time, buried.attempts, None)
            }
        } else if let (Some(delivery), true) = (self.on_stream(id), record.is_some()) {
            match &delivery.holder {
                Holder::Held { consumer, .. } => {
                    let holder = Some(consumer.clone());
                    listed(State::InFlight, delivery.due, delivery.attempt, holder)
                }
                _ => listed(State::Ready, delivery.due, delivery.attempt, None),
            }
        } else {
            let end = self.tomb.get(id).map(|(_, end)| *end);
            return Found::Unknown { end };
        };
        let record = record.unwrap_or_default().into();
        Found::Stored {
            listed,
            record,
            details: Box::default(),
        }
    }
}

fn entry(delivery: &Delivery) -> (String, BTreeMap<Text, Text>) {
    let mut fields: BTreeMap<Text, Text> = [
        (text("i"), text(&delivery.id)),
        (text("a"), text(delivery.attempt)),
        (text("d"), text(delivery.due)),
    ]
    .into();
    if delivery.crashes > 0 {
        fields.insert(text("c"), text(delivery.crashes));
    }
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
