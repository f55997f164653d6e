//! What one shard must hold after each call, in plain maps: the rules of docs/lifecycle.md written a second time. It
//! talks to nobody; entry ids are Redis's to choose and are learnt from it.

use lisa_shared::broker::{Moved, ReclaimReport, Settlement, Verdict};
use lisa_shared::message::{EntryId, MessageId, NewMessage, Record};
use lisa_shared::state::{Accepted, CancelOutcome, End, RescheduleOutcome, SendOutcome, Settled};
use lisa_shared::time::{UnixMs, When, millis};
use lisa_shared::topic::TopicSettings;
use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

/// Who has an entry of the stream.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Holder {
    /// Nobody yet: it is ready.
    Ready,
    /// A consumer, in flight.
    Held {
        consumer: String,
        started: bool,
        aged: bool,
    },
    /// Nobody any more: its consumer was removed by force.
    Unheld,
}

/// An entry of the stream.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Delivery {
    pub(super) id: MessageId,
    pub(super) attempt: u32,
    pub(super) due: u64,
    pub(super) crashes: u32,
    pub(super) entry: Option<EntryId>,
    pub(super) holder: Holder,
}

/// A message in garbage.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Buried {
    pub(super) time: u64,
    pub(super) reason: &'static str,
    pub(super) attempts: u32,
    pub(super) error: String,
}

/// One shard.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct Reference {
    pub(super) paused: bool,
    pub(super) waiting: BTreeMap<MessageId, u64>,
    pub(super) retry: BTreeMap<MessageId, u64>,
    pub(super) garbage: BTreeMap<MessageId, Buried>,
    pub(super) stream: Vec<Delivery>,
    pub(super) payload: BTreeMap<MessageId, Record>,
    /// Attempts and crashes.
    pub(super) attempts: BTreeMap<MessageId, (u32, u32, String)>,
    /// Time and code.
    pub(super) tomb: BTreeMap<MessageId, (u64, End)>,
    pub(super) counters: BTreeMap<String, i64>,
    pub(super) last_time: Option<u64>,
    pub(super) alarm: Option<u64>,
    pub(super) consumers: BTreeSet<String>,
    pub(super) last_delivered: Option<EntryId>,
}

impl Reference {
    /// The scripts' time when the clock says `clock`: held for a step back of up to a second.
    fn now(&self, clock: u64) -> u64 {
        match self.last_time {
            Some(last) if clock < last && last - clock <= 1000 => last,
            _ => clock,
        }
    }

    fn count(&mut self, what: &str, by: usize) {
        if by > 0 {
            *self.counters.entry(what.to_owned()).or_default() += by as i64;
        }
    }

    fn wake(&mut self, due: Option<u64>) {
        if self.paused {
            return;
        }
        if let Some(due) = due.filter(|due| self.alarm.is_none_or(|alarm| *due < alarm)) {
            self.alarm = Some(due);
        }
    }

    fn end(&self, id: &MessageId) -> Option<End> {
        self.tomb.get(id).map(|(_, end)| *end)
    }

    /// The position of an entry.
    pub(super) fn find(&self, entry: EntryId) -> Option<usize> {
        self.stream.iter().position(|d| d.entry == Some(entry))
    }

    pub(super) fn on_stream(&self, id: &MessageId) -> Option<&Delivery> {
        self.stream.iter().find(|delivery| delivery.id == *id)
    }

    pub(super) fn send(&mut self, clock: u64, messages: &[NewMessage]) -> Vec<Accepted> {
        let now = self.now(clock);
        let (mut ready, mut earliest) = (Vec::new(), None);
        let (mut accepted, mut duplicates) = (0, 0);
        let mut outcomes = Vec::new();
        for message in messages {
            let id = &message.id;
            if self.payload.contains_key(id) || self.tomb.contains_key(id) {
                duplicates += 1;
                let due = self.waiting.get(id).map(|due| UnixMs::new(*due));
                let outcome = SendOutcome::Duplicate;
                let ended = self.tomb.get(id).map(|(_, end)| *end);
                let ended = ended.filter(|_| !self.payload.contains_key(id));
                outcomes.push(Accepted {
                    id: id.clone(),
                    outcome,
                    due,
                    ended,
                    blocked: None,
                });
                continue;
            }
            let due = message.when.due(UnixMs::new(now));
            let outcome = if due.get() <= now && !self.paused {
                ready.push(id.clone());
                SendOutcome::Ready
            } else {
                self.waiting.insert(id.clone(), due.get());
                earliest = earliest.into_iter().chain([due.get()]).min();
                SendOutcome::Waiting
            };
            self.payload.insert(id.clone(), message.record.clone());
            accepted += 1;
            let due = Some(due);
            outcomes.push(Accepted {
                id: id.clone(),
                outcome,
                due,
                ended: None,
                blocked: None,
            });
        }
        self.count("accepted", accepted);
        self.count("duplicates", duplicates);
        self.count("moved", ready.len());
        self.count("moved:default", ready.len());
        for id in ready {
            self.emit(id, 1, now, 0);
        }
        self.last_time = Some(now);
        self.wake(earliest.filter(|_| !self.paused));
        outcomes
    }

    fn emit(&mut self, id: MessageId, attempt: u32, due: u64, crashes: u32) {
        self.stream.push(Delivery {
            id,
            attempt,
            due,
            crashes,
            entry: None,
            holder: Holder::Ready,
        });
    }

    pub(super) fn move_due(&mut self, clock: u64, batch: u16, idle: Duration) -> Moved {
        let now = self.now(clock);
        if self.paused {
            return Moved::Paused;
        }
        // Waiting comes before retry where both are due at the same time.
        let waiting = self
            .waiting
            .iter()
            .map(|(id, due)| (*due, false, id.clone()));
        let retry = self.retry.iter().map(|(id, due)| (*due, true, id.clone()));
        let mut due: Vec<_> = waiting
            .chain(retry)
            .filter(|(due, ..)| *due <= now)
            .collect();
        due.sort();
        due.truncate(usize::from(batch));
        let count = due.len();
        for (due, is_retry, id) in due {
            if is_retry {
                self.retry.remove(&id);
                let (attempts, crashes, _) = self.attempts.get(&id).cloned().unwrap_or_default();
                self.emit(id, attempts + 1, due, crashes);
            } else {
                self.waiting.remove(&id);
                self.count("moved", 1);
                self.count("moved:default", 1);
                self.emit(id, 1, due, 0);
            }
        }
        let pause = if count == usize::from(batch) {
            self.alarm = Some(0);
            Duration::ZERO
        } else {
            let next = self.waiting.values().chain(self.retry.values()).min();
            let look = (now + millis(idle)).min(next.copied().unwrap_or(u64::MAX));
            self.alarm = Some(look);
            Duration::from_millis(look - now)
        };
        self.last_time = Some(now);
        Moved::Moved {
            count: count as u64,
            pause,
        }
    }

    /// Gives up to `count` ready entries to a consumer.
    pub(super) fn read(&mut self, consumer: &str, count: usize) -> Vec<Delivery> {
        let ready = self
            .stream
            .iter_mut()
            .filter(|d| d.holder == Holder::Ready)
            .take(count);
        let mut read = Vec::new();
        for delivery in ready {
            delivery.holder = Holder::Held {
                consumer: consumer.to_owned(),
                started: false,
                aged: false,
            };
            read.push(delivery.clone());
        }
        if let Some(last) = read.last() {
            self.last_delivered = last.entry;
            self.consumers.insert(consumer.to_owned());
        }
        read
    }

    /// Acks come first, then the others, each in their order.
    pub(super) fn settle(&mut self, clock: u64, settlements: &[Settlement]) -> Vec<Settled> {
        let mut settled = vec![Settled::Stale; settlements.len()];
        for acks in [true, false] {
            for (settlement, slot) in settlements.iter().zip(&mut settled) {
                if (settlement.verdict == Verdict::Ack) == acks {
                    *slot = self.settle_one(clock, settlement);
                }
            }
        }
        settled
    }

    fn settle_one(&mut self, clock: u64, settlement: &Settlement) -> Settled {
        let now = self.now(clock);
        let id = &settlement.id;
        let Some(place) = self.find(settlement.entry) else {
            return Settled::Stale;
        };
        let held = matches!(self.stream[place].holder, Holder::Held { .. });
        // What was read and is still on the stream is the reader's to ack, even if its pending mark is gone.
        if !held && settlement.verdict != Verdict::Ack {
            return Settled::Stale;
        }
        self.stream.remove(place);
        if settlement.verdict == Verdict::Ack {
            self.payload.remove(id);
            self.attempts.remove(id);
            if settlement.caller_id {
                self.tomb.insert(id.clone(), (now, End::Acked));
            }
            self.count("acked:default", 1);
            return Settled::Acked;
        }
        let (attempts, _, last_error) = self.attempts.remove(id).unwrap_or_default();
        if !self.payload.contains_key(id) {
            self.count("lost:default", 1);
            return Settled::Lost;
        }
        let when = match &settlement.verdict {
            Verdict::Reject { error } => {
                self.bury(id, now, "rejected", attempts + 1, error.clone());
                return Settled::Garbage;
            }
            Verdict::Retry { error, .. } if attempts + 1 >= settlement.max_attempts => {
                self.bury(id, now, "exhausted", attempts + 1, error.clone());
                return Settled::Garbage;
            }
            Verdict::Retry { when, error } => {
                self.attempts
                    .insert(id.clone(), (attempts + 1, 0, error.clone()));
                self.count("retried:default", 1);
                *when
            }
            Verdict::Defer { when } => *when,
            Verdict::Expired => {
                self.bury(id, now, "expired", attempts, last_error);
                return Settled::Garbage;
            }
            Verdict::Ack | Verdict::Lost => When::NOW,
        };
        let at = when.due(UnixMs::new(now));
        self.retry.insert(id.clone(), at.get());
        self.wake(Some(at.get()));
        if matches!(settlement.verdict, Verdict::Retry { .. }) {
            return Settled::Retry { at };
        }
        if attempts > 0 {
            self.attempts.insert(id.clone(), (attempts, 0, last_error));
        }
        self.count("deferred:default", 1);
        Settled::Deferred { at }
    }

    fn bury(
        &mut self,
        id: &MessageId,
        time: u64,
        reason: &'static str,
        attempts: u32,
        error: String,
    ) {
        self.count(&format!("{reason}:default"), 1);
        let buried = Buried {
            time,
            reason,
            attempts,
            error,
        };
        self.garbage.insert(id.clone(), buried);
    }

    pub(super) fn reclaim(&mut self, clock: u64, settings: &TopicSettings) -> ReclaimReport {
        let now = self.now(clock);
        let mut report = ReclaimReport::default();
        let mut overdue = Vec::new();
        self.stream.retain(|delivery| match &delivery.holder {
            Holder::Held {
                aged: true,
                consumer,
                started,
            } if overdue.len() < 100 => {
                overdue.push((delivery.clone(), consumer.clone(), *started));
                false
            }
            _ => true,
        });
        report.more = overdue.len() == 100;
        let mut earliest = None;
        for (delivery, consumer, started) in overdue {
            let id = delivery.id;
            let (mut attempts, crashes, _) = self.attempts.remove(&id).unwrap_or_default();
            let Some(record) = self.payload.get(&id) else {
                self.count("lost:default", 1);
                report.lost += 1;
                continue;
            };
            let max_attempts = record.max_attempts.unwrap_or(settings.max_attempts);
            if started {
                attempts += 1;
            } else if crashes == 0 {
                attempts = (attempts + 1).min(max_attempts - 1);
            }
            self.count("reclaimed:default", 1);
            let error = format!("the lease of {consumer} ran out");
            if attempts >= max_attempts {
                self.bury(&id, now, "exhausted", attempts, error);
                report.garbage += 1;
                continue;
            }
            let delay = match crashes {
                0 => 0,
                _ => millis(settings.retry.delay(delivery.attempt, 0.0)),
            };
            self.attempts
                .insert(id.clone(), (attempts, crashes + 1, error));
            self.retry.insert(id, now + delay);
            earliest = earliest.into_iter().chain([now + delay]).min();
            report.retry += 1;
        }
        self.wake(earliest);
        report
    }

    pub(super) fn cancel(&mut self, clock: u64, id: &MessageId) -> CancelOutcome {
        let now = self.now(clock);
        let counter = if self.waiting.remove(id).is_some() {
            "cancelled"
        } else if self.retry.remove(id).is_some() {
            "cancelled:default"
        } else if self.garbage.contains_key(id) {
            return CancelOutcome::Garbage;
        } else if self.payload.contains_key(id) {
            return CancelOutcome::InFlight;
        } else if self.end(id) == Some(End::Cancelled) {
            return CancelOutcome::Cancelled { record: None };
        } else {
            return CancelOutcome::Unknown { end: self.end(id) };
        };
        self.count(counter, 1);
        self.attempts.remove(id);
        self.tomb.insert(id.clone(), (now, End::Cancelled));
        let record = self.payload.remove(id).map(|record| encoded(&record));
        CancelOutcome::Cancelled {
            record: Some(record.unwrap_or_default().into()),
        }
    }

    pub(super) fn reschedule(
        &mut self,
        clock: u64,
        id: &MessageId,
        when: When,
    ) -> RescheduleOutcome {
        let due = when.due(UnixMs::new(self.now(clock)));
        if let Some(time) = self.waiting.get_mut(id) {
            *time = due.get();
        } else if let Some(time) = self.retry.get_mut(id) {
            *time = due.get();
        } else if self.garbage.contains_key(id) {
            return RescheduleOutcome::Garbage;
        } else if self.payload.contains_key(id) {
            return RescheduleOutcome::InFlight;
        } else {
            return RescheduleOutcome::Unknown { end: self.end(id) };
        }
        self.wake(Some(due.get()));
        RescheduleOutcome::Rescheduled { due }
    }

    /// Takes those of `seen` out of garbage that are there since the time that was seen.
    fn exhume(&mut self, seen: &[(MessageId, UnixMs)]) -> Vec<MessageId> {
        let is_there = |(id, time): &&(MessageId, UnixMs)| {
            let buried = self.garbage.get(id);
            buried.is_some_and(|buried| buried.time == time.get())
        };
        let found: Vec<_> = seen
            .iter()
            .filter(is_there)
            .map(|(id, _)| id.clone())
            .collect();
        for id in &found {
            self.garbage.remove(id);
        }
        found
    }

    pub(super) fn requeue(&mut self, clock: u64, seen: &[(MessageId, UnixMs)]) -> u64 {
        let now = self.now(clock);
        let mut requeued = 0;
        for id in self.exhume(seen) {
            if self.payload.contains_key(&id) {
                self.retry.insert(id, now);
                self.count("requeued:default", 1);
                self.wake(Some(now));
                requeued += 1;
            } else {
                self.count("lost:default", 1);
            }
        }
        requeued
    }

    pub(super) fn purge(&mut self, clock: u64, seen: &[(MessageId, UnixMs)]) -> u64 {
        let now = self.now(clock);
        let purged = self.exhume(seen);
        for id in &purged {
            self.payload.remove(id);
            self.tomb.insert(id.clone(), (now, End::Purged));
        }
        self.count("purged:default", purged.len());
        purged.len() as u64
    }

    /// What garbage holds for longer than `max_age`; here the clock is not held.
    pub(super) fn purge_old(&mut self, clock: u64, max_age: Duration) -> u64 {
        let oldest = clock.saturating_sub(millis(max_age));
        let old = self.garbage.iter().filter(|(_, b)| b.time < oldest);
        let old: Vec<_> = old
            .map(|(id, buried)| (id.clone(), UnixMs::new(buried.time)))
            .collect();
        self.purge(clock, &old)
    }

    pub(super) fn clean(&mut self, clock: u64, window: Duration) {
        let now = self.now(clock);
        self.tomb
            .retain(|_, (time, _)| *time >= now - millis(window));
        let mut unheld = Vec::new();
        self.stream.retain(|delivery| {
            if delivery.holder == Holder::Unheld {
                unheld.push(delivery.id.clone());
            }
            delivery.holder != Holder::Unheld
        });
        for id in unheld {
            if self.payload.contains_key(&id) {
                self.retry.insert(id, now);
                self.count("recovered:default", 1);
                self.wake(Some(now));
            } else {
                self.attempts.remove(&id);
                self.count("lost:default", 1);
            }
        }
    }

    pub(super) fn pause(&mut self, paused: bool) -> bool {
        let changed = self.paused != paused;
        self.paused = paused;
        if changed && !paused {
            self.wake_at_once();
        }
        changed
    }

    fn wake_at_once(&mut self) {
        self.alarm = Some(0);
    }

    /// Everything but counters and clocks: what a repeated call must leave alone.
    pub(super) fn places(&self) -> Self {
        Self {
            counters: BTreeMap::new(),
            last_time: None,
            alarm: None,
            ..self.clone()
        }
    }
}

/// A record as Redis keeps it.
pub(super) fn encoded(record: &Record) -> Vec<u8> {
    let mut bytes = Vec::new();
    record.encode(&mut bytes);
    bytes
}
