//! The work of producers, consumers and operators in a random run, and the invariants of each answer.

use std::time::Duration;

use lisa_core::broker::{Settlement, Verdict};
use lisa_core::message::{Expiry, MessageId, PreparedMessage};
use lisa_core::state::{CancelOutcome, RescheduleOutcome, SendOutcome, Settled, State};
use lisa_core::time::When;
use lisa_core::topic::Group;
use lisa_tests::relay::{self, message, ms, nameless};

use super::{Held, Run, Sent};

const IDLE: Duration = Duration::from_secs(5);

impl Run {
    pub(super) async fn send(&mut self) {
        self.number += 1;
        let name = format!("m-{}", self.number);
        let delay = ms(self.rng.u64(..6000));
        let mut new: PreparedMessage = match self.rng.bool() {
            true => message(&name, delay),
            false => nameless(&name, delay),
        };
        if self.rng.bool() {
            new.options.key = Some(format!("k-{}", self.rng.u8(..5)).parse().unwrap());
        } else if self.rng.u8(..3) == 0 {
            new.options.merge_key = Some(format!("g-{}", self.rng.u8(..3)).parse().unwrap());
        }
        if self.rng.u8(..5) == 0 {
            new.options.priority = self.rng.i32(-3..3);
        }
        if self.rng.u8(..8) == 0 {
            new.options.expiry = Some(Expiry::After(Duration::from_secs(86_400)));
        }
        let broker = if self.rng.bool() {
            self.other.clone()
        } else {
            self.broker().clone()
        };
        let topic = broker.known(self.name()).unwrap();
        let shard = topic.shard_of_message(&new);
        let key = new.options.key.as_ref().map(ToString::to_string);
        let repeats = if self.rng.u8(..6) == 0 { 2 } else { 1 };
        for repeat in 0..repeats {
            let messages = std::slice::from_ref(&new);
            let sent = self.meanwhile(broker.send(&topic, shard, messages)).await;
            let sent = sent.unwrap().remove(0);
            self.log
                .push(format!("send {name} {key:?} {shard}: {:?}", sent.outcome));
            match sent.outcome {
                SendOutcome::Waiting | SendOutcome::Ready => {
                    assert_eq!(repeat, 0, "{name} was stored twice");
                    let due = sent.due.unwrap();
                    let number = self.number;
                    let (key, is_fixed) = (key.clone(), new.options.merge_key.is_none());
                    self.sent.insert(
                        sent.id,
                        Sent {
                            key,
                            due,
                            number,
                            is_fixed,
                        },
                    );
                }
                // One that was merged away, and repeated, is known as well.
                SendOutcome::Merged | SendOutcome::Duplicate => {
                    assert!(
                        self.sent.contains_key(&sent.id) || repeat == 1,
                        "{name} with {}",
                        sent.id
                    );
                    if let (SendOutcome::Merged, Some(due)) = (sent.outcome, sent.due) {
                        self.sent.get_mut(&sent.id).unwrap().due = due;
                    }
                }
                other => panic!("{name}: {other:?}"),
            }
            // A repeat often comes later.
            if self.rng.bool() {
                self.migrate_out().await;
            }
        }
    }

    pub(super) async fn moves(&mut self) {
        self.pass(300);
        for shard in self.topic().shards() {
            self.broker()
                .move_due(&self.topic(), shard, 50, IDLE)
                .await
                .unwrap();
        }
    }

    pub(super) async fn read(&mut self) {
        let topic = self.topic();
        // A read of an empty stream takes its time.
        let mut streams = Vec::new();
        for shard in topic.shards() {
            for group in topic.groups() {
                let mut length = redis::cmd("XLEN");
                let stream = self.relay.short_key(shard.get(), &format!("ready:{group}"));
                length.arg(format!("{}:{stream}", self.broker().namespace()));
                let length: u64 = self.relay.command(&length).await;
                streams.extend((length > 0).then(|| (shard, group.clone())));
            }
        }
        if streams.is_empty() {
            return;
        }
        let (shard, group) = streams.swap_remove(self.rng.usize(..streams.len()));
        let mut reader = match self.reader.take() {
            Some(reader) if reader.is_open() => reader,
            _ => self.broker().connection().any().reader().await.unwrap(),
        };
        let count = self.rng.usize(1..6);
        let reads = self
            .broker()
            .read(
                &mut reader,
                &topic,
                shard,
                &group,
                relay::WORKER,
                count,
                ms(1),
            )
            .await;
        self.reader = Some(reader);
        for read in reads.unwrap() {
            let id = read.id.clone().unwrap();
            self.log.push(format!(
                "read {group} {id} {} on {shard}",
                read.attempt.number
            ));
            self.begin(&group, &id);
            self.held.push(Held {
                shard,
                group: group.clone(),
                read,
            });
        }
    }

    /// Checks a delivery: not early, of a message that has not ended, with no other of its key running or skipped.
    fn begin(&mut self, group: &Group, id: &MessageId) {
        let sent = &self.sent[id];
        assert!(sent.due <= self.relay.now(), "{id} is early");
        let done = (group.clone(), id.clone());
        let has_ended = self.ended.contains(id) && !self.in_garbage.contains(&done);
        assert!(!has_ended, "{id} has ended");
        assert!(!self.acked.contains_key(&done), "{id} was acknowledged");
        let is_first = self.begun.insert(done);
        let Some(key) = &sent.key else { return };
        let same = |held: &&Held| {
            let other = held.read.id.as_ref().unwrap();
            held.group == *group && self.sent[other].key.as_ref() == Some(key)
        };
        assert!(
            !self.held.iter().any(|held| same(&held)),
            "{id} beside another of {key}"
        );
        if !is_first || !sent.is_fixed {
            return;
        }
        for (other, before) in &self.sent {
            let earlier = before.number < sent.number && before.due <= sent.due && before.is_fixed;
            if earlier && before.key.as_ref() == Some(key) && !self.ended.contains(other) {
                let begun = self.begun.contains(&(group.clone(), other.clone()));
                assert!(begun, "{id} came before {other} of {key}");
            }
        }
    }

    pub(super) async fn settle(&mut self) {
        if self.held.is_empty() {
            return;
        }
        let held = self.held.swap_remove(self.rng.usize(..self.held.len()));
        let error = "it failed".to_owned();
        let after = ms(self.rng.u64(..3000));
        let verdict = match self.rng.u8(..10) {
            0..6 => Verdict::Ack,
            6..8 => Verdict::Retry {
                when: after.into(),
                error,
            },
            8 => Verdict::Defer { when: after.into() },
            _ => Verdict::Reject { error },
        };
        self.end(held, verdict).await;
    }

    pub(super) async fn end(&mut self, held: Held, verdict: Verdict) {
        let id = held.read.id.clone().unwrap();
        let settlement: Settlement = relay::settlement(&held.read, verdict);
        let (topic, shard, group) = (self.topic(), held.shard, &held.group);
        let settled = self
            .broker()
            .settle(&topic, shard, group, &[settlement])
            .await
            .unwrap();
        self.log.push(format!("settle {group} {id}: {settled:?}"));
        match settled[0] {
            Settled::Acked => {
                *self.acked.entry((held.group, id)).or_default() += 1;
            }
            Settled::Garbage => _ = self.in_garbage.insert((held.group, id)),
            Settled::Retry { .. } | Settled::Deferred { .. } => {}
            ref other => panic!("{id}: {other:?}"),
        }
    }

    /// Cancels, or moves to another time, a message without a key.
    pub(super) async fn change(&mut self) {
        let keyless = self.sent.iter().filter(|(_, sent)| sent.key.is_none());
        let ids: Vec<MessageId> = keyless.map(|(id, _)| id.clone()).collect();
        if ids.is_empty() {
            return;
        }
        let id = ids[self.rng.usize(..ids.len())].clone();
        let broker = if self.rng.bool() {
            self.other.clone()
        } else {
            self.broker().clone()
        };
        let topic = broker.known(self.name()).unwrap();
        if self.rng.bool() {
            let cancelled = self
                .meanwhile(broker.cancel(&topic, &id, None))
                .await
                .unwrap();
            self.log.push(format!("cancel {id}: {cancelled:?}"));
            match cancelled {
                CancelOutcome::Cancelled { .. } => _ = self.ended.insert(id),
                CancelOutcome::Unknown { .. } => assert!(self.is_over(&id), "{id} is not found"),
                _ => {}
            }
        } else {
            let when = When::from(ms(self.rng.u64(..3000)));
            let outcome = broker.reschedule(&topic, &id, None, when);
            let outcome = self.meanwhile(outcome).await.unwrap();
            self.log.push(format!("reschedule {id}: {outcome:?}"));
            match outcome {
                RescheduleOutcome::Rescheduled { due } => {
                    let sent = self.sent.get_mut(&id).unwrap();
                    (sent.due, sent.is_fixed) = (due, false);
                }
                RescheduleOutcome::Unknown { .. } => {
                    assert!(self.is_over(&id), "{id} is not found")
                }
                _ => {}
            }
        }
    }

    /// Awaits a call that may wait for a message that is being migrated, while managers continue.
    async fn meanwhile<T>(&mut self, call: impl Future<Output = T>) -> T {
        tokio::pin!(call);
        loop {
            tokio::select! {
                done = &mut call => return done,
                () = tokio::time::sleep(ms(20)) => self.migrate_out().await,
            }
        }
    }

    /// Returns whether a message was acknowledged in all groups, or cancelled.
    fn is_over(&self, id: &MessageId) -> bool {
        let groups = self.relay.topic().groups();
        let acked = |group: &Group| self.acked.contains_key(&(group.clone(), id.clone()));
        self.ended.contains(id) || groups.iter().all(acked)
    }

    pub(super) async fn requeue(&mut self) {
        let topic = self.topic();
        for group in topic.groups() {
            let broker = self.broker().clone();
            let page = broker
                .list(&topic, group, State::Garbage, None, 50)
                .await
                .unwrap();
            // Messages of a key come again where others of the key were meanwhile.
            let seen: Vec<_> = page
                .items
                .into_iter()
                .map(|item| (item.id, item.garbage_at.expect("in garbage")))
                .collect();
            let count = broker.requeue(&topic, group, &seen);
            let count = self.meanwhile(count).await.unwrap();
            self.log
                .push(format!("requeue {group}: {count} of {}", seen.len()));
        }
    }
}
