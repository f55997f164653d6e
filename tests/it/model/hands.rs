//! Steps that use no script: reading, renewing, and the effects of time and damage.

use super::reference::{Delivery, HOLDS_LEASES, Holder, Mark, encoded};
use super::run::{Run, Stop, same};
use super::steps::CONSUMERS;
use lisa_core::broker::{Read, SHORT_LEASES};
use lisa_core::message::{EntryId, MessageId};
use lisa_core::redis::Extra;
use lisa_tests::relay::ms;
use redis::cmd;

impl Run {
    /// Reads on every shard in every group, takes up to `each` parked messages of the keys that were read, and fetches all.
    pub(super) async fn read(
        &mut self,
        consumer: &str,
        count: usize,
        each: usize,
    ) -> Result<(), Stop> {
        let topic = self.topic().await?;
        let broker = self.broker();
        let clock = self.relay.now().get();
        for (shard, reference) in topic.shards().zip(&mut self.shards) {
            for (g, group) in reference.names() {
                let expected = reference.read(g, consumer, count);
                if expected.is_empty() {
                    continue;
                }
                let mut reader = match self.reader.take() {
                    Some(reader) => reader,
                    None => broker.connection().any().reader().await.expect("a reader"),
                };
                let read = broker.read(&mut reader, &topic, shard, &group, consumer, count, BLOCK);
                let read = read.await?;
                self.reader = Some(reader);
                let got: Vec<_> = read.iter().map(fields_of).collect();
                let expected_fields: Vec<_> = expected.iter().map(fields).collect();
                same("read", got, expected_fields)?;
                let (mut read, mut expected) = (read, expected);
                if each > 0 {
                    let items = expected.iter().map(|d| (d.id.clone(), d.entry));
                    let items: Vec<_> =
                        items.filter_map(|(id, entry)| Some((id, entry?))).collect();
                    let taken = broker
                        .take_parked(&topic, shard, &group, consumer, &items, count, each)
                        .await?;
                    let (kept, more) =
                        reference.take_parked(clock, g, consumer, &expected, (count, each));
                    let index = usize::from(shard.get());
                    let watched = self.watch.look(index, reference, clock);
                    watched.map_err(Stop::Violation)?;
                    same("kept", taken.kept, kept)?;
                    expected.truncate(kept);
                    read.truncate(kept);
                    let ids: Vec<_> = taken.more.iter().map(|(id, _)| id).collect();
                    same("taken", ids, more.iter().map(|d| &d.id).collect())?;
                    let of_group = &mut reference.groups[g];
                    for (mut delivery, (id, attempt)) in more.into_iter().zip(taken.more) {
                        delivery.entry = Some(attempt.entry);
                        of_group.last_delivered = delivery.entry;
                        let mut stream = of_group.stream.iter_mut();
                        if let Some(there) = stream.find(|there| there.id == id) {
                            there.entry = delivery.entry;
                        }
                        let one = Read {
                            id: Some(id),
                            attempt,
                        };
                        same("taken", fields_of(&one), fields(&delivery))?;
                        expected.push(delivery);
                        read.push(one);
                    }
                }
                let ids: Vec<_> = expected.iter().map(|d| d.id.clone()).collect();
                let records = broker.records(&topic, shard, &ids, Extra::Small).await?;
                let record = |id: &MessageId| reference.messages[id].record.clone();
                let stored = ids.iter().map(record);
                let stored: Vec<_> = stored
                    .map(|record| record.map(|record| encoded(&record).into()))
                    .collect();
                same("records", records, stored)?;
                for (id, read) in ids.into_iter().zip(read) {
                    let record = record(&id).unwrap_or_default();
                    let delivered = (usize::from(shard.get()), group.clone(), id);
                    let past = self.past.entry(delivered).or_default();
                    past.push((read.attempt.entry, record));
                }
            }
        }
        Ok(())
    }

    /// Renews the leases of the held deliveries of these ids, and sets or removes the mark.
    pub(super) async fn renew(&mut self, ids: &[String], mark: Option<bool>) -> Result<(), Stop> {
        let topic = self.topic().await?;
        let broker = self.broker();
        for (shard, reference) in topic.shards().zip(&mut self.shards) {
            for (g, group) in reference.names() {
                for name in CONSUMERS {
                    let mut entries = Vec::new();
                    for delivery in &mut reference.groups[g].stream {
                        let chosen = ids.iter().any(|id| id == delivery.id.as_str());
                        let Holder::Held {
                            consumer,
                            mark: kept,
                            aged,
                        } = &mut delivery.holder
                        else {
                            continue;
                        };
                        if chosen && consumer == name {
                            *kept = match mark {
                                Some(true) => Mark::Suspect,
                                Some(false) => Mark::None,
                                None => *kept,
                            };
                            *aged = false;
                            entries.extend(delivery.entry);
                        }
                    }
                    let held = match mark {
                        Some(true) => broker.renew(&topic, shard, &group, name, &entries).await,
                        Some(false) => broker.unmark(&topic, shard, &group, name, &entries).await,
                        None => broker.keep(&topic, shard, &group, name, &entries).await,
                    };
                    same("renew", held?, entries)?;
                }
            }
        }
        Ok(())
    }

    /// Sets a lease of their own for the held deliveries of these ids, as if they had been pulled.
    pub(super) async fn lease(
        &mut self,
        ids: &[String],
        consumer: &str,
        lease: u64,
    ) -> Result<(), Stop> {
        let topic = self.topic().await?;
        let broker = self.broker();
        let end = self.relay.now().plus(ms(lease)).get();
        let is_short = ms(lease) < topic.settings().lease;
        let holder = match is_short {
            true => SHORT_LEASES.to_owned(),
            false => format!("{consumer}{HOLDS_LEASES}"),
        };
        for (shard, reference) in topic.shards().zip(&mut self.shards) {
            for (g, group) in reference.names() {
                let of_group = &mut reference.groups[g];
                let mut entries = Vec::new();
                for delivery in &mut of_group.stream {
                    let chosen = ids.iter().any(|id| id == delivery.id.as_str());
                    if chosen && matches!(delivery.holder, Holder::Held { .. }) {
                        delivery.holder = Holder::Held {
                            consumer: holder.clone(),
                            mark: Mark::Pulled(end),
                            aged: false,
                        };
                        entries.extend(delivery.entry);
                    }
                }
                if entries.is_empty() {
                    continue;
                }
                of_group.consumers.insert(holder.clone());
                let leased = broker.lease(&topic, shard, &group, consumer, &entries, ms(lease));
                same("lease", leased.await?.held, entries)?;
            }
        }
        Ok(())
    }

    /// Makes the deliveries of these ids belong to consumers that died long ago.
    pub(super) fn age(&mut self, ids: &[String]) {
        let groups = self.shards.iter_mut().flat_map(|shard| &mut shard.groups);
        for delivery in groups.flat_map(|group| &mut group.stream) {
            let chosen = ids.iter().any(|id| id == delivery.id.as_str());
            if let (Holder::Held { aged, .. }, true) = (&mut delivery.holder, chosen) {
                *aged = true;
            }
        }
    }

    pub(super) async fn lose_payload(&mut self, id: &MessageId) {
        for shard in 0..self.shards.len() {
            let message = self.shards[shard].messages.get_mut(id);
            if message.and_then(|message| message.record.take()).is_some() {
                let mut delete = cmd("HDEL");
                delete.arg(self.full_key(shard, "payload")).arg(id.as_str());
                let () = self.relay.command(&delete).await;
            }
        }
    }

    pub(super) async fn remove_consumer(&mut self, name: &str) {
        for shard in 0..self.shards.len() {
            for (g, group) in self.shards[shard].names() {
                let of_group = &mut self.shards[shard].groups[g];
                for delivery in &mut of_group.stream {
                    if matches!(&delivery.holder, Holder::Held { consumer, .. } if consumer == name)
                    {
                        delivery.holder = Holder::Unheld;
                    }
                }
                of_group.consumers.remove(name);
                let mut remove = cmd("XGROUP");
                remove.arg("DELCONSUMER");
                remove.arg(self.full_key(shard, &format!("ready:{group}")));
                let _: u64 = self
                    .relay
                    .command(remove.arg(group.as_str()).arg(name))
                    .await;
            }
        }
    }

    /// Sets the idle time of every delivery to that of the reference, all in one step.
    pub(super) async fn set_idle(&self) {
        for (shard, reference) in self.shards.iter().enumerate() {
            for group in &reference.groups {
                for delivery in &group.stream {
                    let (Holder::Held { consumer, aged, .. }, Some(entry)) =
                        (&delivery.holder, delivery.entry)
                    else {
                        continue;
                    };
                    let mut claim = cmd("XCLAIM");
                    claim.arg(self.full_key(shard, &format!("ready:{}", group.name)));
                    claim.arg(&group.name).arg(consumer).arg(0);
                    claim.arg(entry.to_string()).arg("IDLE");
                    claim.arg(if *aged { 60_000 } else { 0 }).arg("JUSTID");
                    let _: Vec<String> = self.relay.command(&claim).await;
                    self.relay.clock_past(entry).await;
                }
            }
        }
    }

    fn full_key(&self, shard: usize, what: &str) -> String {
        let namespace = self.relay.broker().namespace();
        format!("{namespace}:{}", self.relay.short_key(shard as u16, what))
    }
}

/// The time that a read waits on an empty stream.
const BLOCK: std::time::Duration = ms(1);

type Fields = (
    Option<MessageId>,
    Option<EntryId>,
    u32,
    u64,
    u32,
    Option<u64>,
);

fn fields_of(read: &Read) -> Fields {
    let attempt = &read.attempt;
    let (due, expires) = (attempt.due.get(), attempt.expires.map(|at| at.get()));
    let entry = Some(attempt.entry);
    (
        read.id.clone(),
        entry,
        attempt.number,
        due,
        attempt.crashes,
        expires,
    )
}

fn fields(delivery: &Delivery) -> Fields {
    let Delivery {
        id,
        attempt,
        due,
        crashes,
        expires,
        entry,
        ..
    } = delivery;
    (Some(id.clone()), *entry, *attempt, *due, *crashes, *expires)
}
