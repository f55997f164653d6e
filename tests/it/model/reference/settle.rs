//! The end of deliveries: settled, or reclaimed when their lease is over.

use super::copies::Lapse;
use super::{CopyState, Delivery, Holder, Mark, Reference, Tries};
use lisa_core::broker::{ReclaimReport, SHORT_LEASES, Settlement, Verdict};
use lisa_core::message::MessageId;
use lisa_core::state::{End, Settled};
use lisa_core::time::{UnixMs, When, millis};

impl Reference {
    /// Acks come first, then the others, each in their order.
    pub(in super::super) fn settle(
        &mut self,
        clock: u64,
        g: usize,
        settlements: &[Settlement],
    ) -> Vec<Settled> {
        let mut outcomes = vec![Settled::Stale; settlements.len()];
        let is_ack = |settlement: &Settlement| settlement.verdict == Verdict::Ack;
        // The reader may ack an entry that it read and that is still on the stream, even if its pending mark is gone.
        let mine = |s: &Settlement| is_ack(s) && self.groups[g].find(s.entry).is_some();
        let acked: Vec<_> = settlements.iter().map(mine).collect();
        let count = acked.iter().filter(|mine| **mine).count();
        if count > 0 {
            self.begin(clock, count + 20);
            // An entry that left the stream makes room for all that follows.
            let gone = |d: &Delivery| {
                let ours = |(s, mine): (&Settlement, &bool)| *mine && d.entry == Some(s.entry);
                settlements.iter().zip(&acked).any(ours)
            };
            self.groups[g].stream.retain(|d| !gone(d));
            for ((settlement, outcome), _) in (settlements.iter().zip(&mut outcomes))
                .zip(&acked)
                .filter(|(_, mine)| **mine)
            {
                let id = &settlement.id;
                let message = self.message(id);
                let survivor = message.meta.as_ref().is_some_and(|meta| meta.survivor);
                let (key, kept) = (message.key(), settlement.caller_id || survivor);
                self.end_copy(g, id, "acked", kept.then_some(End::Acked));
                self.release(g, id, &key);
                *outcome = Settled::Acked;
            }
            self.finish([g]);
        }
        if settlements.iter().any(|settlement| !is_ack(settlement)) {
            self.begin(clock, 20);
            for (settlement, outcome) in settlements.iter().zip(&mut outcomes) {
                if !is_ack(settlement) {
                    *outcome = self.settle_one(g, settlement);
                }
            }
            self.finish([g]);
        }
        outcomes
    }

    fn settle_one(&mut self, g: usize, settlement: &Settlement) -> Settled {
        let tries = self.groups[g].tries.get(&settlement.id);
        let attempt = tries.map_or(0, |tries| tries.attempts) + 1;
        let held = |d: &Delivery| d.entry == Some(settlement.entry);
        let delivery = self.groups[g].stream.iter().find(|d| held(d)).cloned();
        let settled = self.end_one(g, settlement);
        let (outcome, error) = match &settlement.verdict {
            Verdict::Retry { error, .. } => ("failed", error),
            Verdict::Reject { error } => ("rejected", error),
            _ => return settled,
        };
        if let Some(Holder::Held { consumer, .. }) = delivery.map(|delivery| delivery.holder) {
            let record = line(self.call.now, outcome, &consumer, error);
            self.fail(g, &settlement.id, attempt, record, settled);
        }
        settled
    }

    fn end_one(&mut self, g: usize, settlement: &Settlement) -> Settled {
        let now = self.call.now;
        let id = &settlement.id;
        let held = |d: &Delivery| matches!(d.holder, Holder::Held { .. });
        let state = self.groups[g].find(settlement.entry);
        let Some(state) = state.filter(|state| held(&self.groups[g].stream[*state])) else {
            return Settled::Stale;
        };
        let delivery = self.groups[g].stream.remove(state);
        let tries = self.groups[g].tries.get(id).cloned().unwrap_or_default();
        let attempts = tries.attempts;
        if self.message(id).record.is_none() {
            return self.lose(g, id);
        }
        let over = self.lapse_of(g, id) <= now;
        let why = if over { Lapse::Ttl } else { Lapse::Late };
        let record = |outcome: &str, error: &str| {
            let Holder::Held { consumer, .. } = &delivery.holder else {
                unreachable!("only held deliveries are settled");
            };
            recorded(&tries.error, now, outcome, consumer, error)
        };
        let (when, counted, crashes) = match &settlement.verdict {
            Verdict::Reject { error } => {
                let error = record("rejected", error);
                self.count_in(g, "rejected", 1);
                self.move_to_garbage(g, id, "rejected", attempts + 1, error);
                return Settled::Garbage;
            }
            Verdict::Retry { error, .. } if attempts + 1 >= settlement.max_attempts => {
                let error = record("failed", error);
                self.count_in(g, "exhausted", 1);
                self.move_to_garbage(g, id, "exhausted", attempts + 1, error);
                return Settled::Garbage;
            }
            // Its handler ended, so the crashes that it was suspected of are forgotten.
            Verdict::Retry { when, error } => (*when, Some(record("failed", error)), 0),
            Verdict::Defer { when } => (*when, None, 0),
            Verdict::HandBack { when } => {
                self.refund(g, delivery.released.unwrap_or(delivery.due));
                (*when, None, tries.crashes)
            }
            Verdict::Expired if over || self.rules.max_lateness.is_some() => {
                let dropped = self.lapse(g, id, attempts, why, &tries.error);
                return lapsed(dropped);
            }
            // The verdict came too early, or the payload is there after all.
            Verdict::Expired | Verdict::Lost | Verdict::Ack => (When::NOW, None, tries.crashes),
        };
        let tries = Tries {
            attempts: attempts + u32::from(counted.is_some()),
            crashes,
            error: counted.clone().unwrap_or(tries.error),
            due: None,
        };
        let at = when.due(UnixMs::new(now)).get();
        // A retry and a deferral have a due time of their own. Otherwise the same attempt comes again.
        let is_new = matches!(
            settlement.verdict,
            Verdict::Retry { .. } | Verdict::Defer { .. }
        );
        let due = (!is_new).then_some(delivery.due);
        if let Some(lapsed) = self.come_again(g, id, at, due, tries) {
            return lapsed;
        }
        let at = UnixMs::new(at);
        if counted.is_some() {
            self.count_in(g, "retried", 1);
            return Settled::Retry { at };
        }
        self.count_in(g, "deferred", 1);
        Settled::Deferred { at }
    }

    /// Appends a failed attempt to the failures, unless its payload is gone.
    fn fail(&mut self, g: usize, id: &MessageId, attempt: u32, record: String, settled: Settled) {
        let time = match settled {
            Settled::Lost | Settled::Stale => return,
            Settled::Retry { at } => at.get(),
            _ => self.call.now,
        };
        let fields = [
            ("i", id.as_str()),
            ("g", &self.groups[g].name),
            ("n", &attempt.to_string()),
            ("r", &record),
            ("o", settled.as_str()),
            ("t", &time.to_string()),
        ];
        let fields = fields.map(|(name, value)| (name.into(), value.into()));
        self.failures.push(fields.into());
    }

    /// Lets a copy come again, its key kept, unless it would have lapsed by then: then returns how that ended. `due` is the
    /// due time of its attempt, if that remains.
    fn come_again(
        &mut self,
        g: usize,
        id: &MessageId,
        at: u64,
        due: Option<u64>,
        mut tries: Tries,
    ) -> Option<Settled> {
        let lapse = self.lapse_of(g, id);
        if at >= lapse {
            let why = if lapse <= self.call.now {
                Lapse::Ttl
            } else {
                Lapse::Before
            };
            let dropped = self.lapse(g, id, tries.attempts, why, &tries.error);
            return Some(lapsed(dropped));
        }
        // What comes again at once takes its old place by its due time. Otherwise the due time is kept beside the pause.
        let now = self.call.now;
        let due = due.map(|due| due.min(now));
        tries.due = due.filter(|_| at > now);
        let time = due.filter(|_| at <= now).unwrap_or(at);
        let group = &mut self.groups[g];
        group.tries.remove(id);
        if !tries.is_empty() {
            group.tries.insert(id.clone(), tries);
        }
        group.states.insert(id.clone(), CopyState::Retry(time));
        self.look_at(at);
        None
    }

    /// Ends a copy whose payload is gone.
    pub(super) fn lose(&mut self, g: usize, id: &MessageId) -> Settled {
        let key = self.message(id).key();
        self.end_copy(g, id, "lost", None);
        self.release(g, id, &key);
        Settled::Lost
    }

    pub(in super::super) fn reclaim(&mut self, clock: u64, g: usize) -> ReclaimReport {
        let now = self.begin(clock, 20);
        let mut report = ReclaimReport::default();
        let aged = |d: &&Delivery| matches!(d.holder, Holder::Held { aged: true, .. });
        let mut overdue: Vec<_> = self.groups[g].stream.iter().filter(aged).cloned().collect();
        if overdue.is_empty() {
            return report;
        }
        // The lease of a pulled delivery ends at its own time, however long nobody renewed it.
        overdue.retain(|delivery| {
            let is_held = matches!(delivery.holder, Holder::Held { mark: Mark::Pulled(end), .. } if end > now);
            report.held += u64::from(is_held);
            !is_held
        });
        // Those with a short lease come first.
        let is_short = |d: &Delivery| matches!(&d.holder, Holder::Held { consumer, .. } if consumer == SHORT_LEASES);
        overdue.sort_by_key(|delivery| !is_short(delivery));
        for delivery in overdue {
            self.groups[g].stream.retain(|d| d.entry != delivery.entry);
            match self.reclaim_one(now, g, &delivery) {
                Settled::Garbage => report.garbage += 1,
                Settled::Expired => report.expired += 1,
                Settled::Lost => report.lost += 1,
                _ => report.retry += 1,
            }
        }
        self.finish([g]);
        report
    }

    fn reclaim_one(&mut self, now: u64, g: usize, delivery: &Delivery) -> Settled {
        let id = &delivery.id;
        let (Holder::Held { consumer, mark, .. }, Some(record)) =
            (&delivery.holder, &self.message(id).record)
        else {
            return self.lose(g, id);
        };
        let max_attempts = record.max_attempts.unwrap_or(self.rules.max_attempts);
        let policy = record.retry.as_ref().unwrap_or(&self.rules.retry);
        let mut tries = self.groups[g].tries.get(id).cloned().unwrap_or_default();
        let attempt = tries.attempts + 1;
        // Only a marked or pulled one is charged; all others come again at once, however many processes died with them.
        let is_charged = *mark != Mark::None;
        let mut delay = 0;
        if is_charged {
            tries.attempts += 1;
            delay = millis(policy.delay(delivery.attempt, 0.0));
        }
        // The gateway is not the process that runs a pulled message.
        let is_pulled = matches!(mark, Mark::Pulled(_));
        tries.crashes += u32::from(!is_pulled);
        let error = match is_pulled {
            true => "not settled before its lease ended".to_owned(),
            false => format!("the lease of {consumer} ran out"),
        };
        let line = line(now, "lease_expired", consumer, &error);
        tries.error = recorded(&tries.error, now, "lease_expired", consumer, &error);
        self.count_in(g, "reclaimed", 1);
        let settled = if is_charged && tries.attempts >= max_attempts {
            self.count_in(g, "exhausted", 1);
            self.move_to_garbage(g, id, "exhausted", tries.attempts, tries.error);
            Settled::Garbage
        } else {
            let at = now + delay;
            let again = Settled::Retry {
                at: UnixMs::new(at),
            };
            let due = (!is_charged).then_some(delivery.due);
            self.come_again(g, id, at, due, tries).unwrap_or(again)
        };
        self.fail(g, id, attempt, line, settled);
        settled
    }
}

/// Returns an error with the last five failed attempts behind it, this one first.
fn recorded(before: &str, now: u64, outcome: &str, consumer: &str, error: &str) -> String {
    let earlier = before.split('\0').skip(1).take(4).map(str::to_owned);
    let all: Vec<String> = [error.to_owned(), line(now, outcome, consumer, error)]
        .into_iter()
        .chain(earlier)
        .collect();
    all.join("\0")
}

/// Returns the line of a failed attempt.
fn line(now: u64, outcome: &str, consumer: &str, error: &str) -> String {
    format!("{now} {outcome}\t{consumer}\t{error}")
}

fn lapsed(dropped: bool) -> Settled {
    if dropped {
        Settled::Expired
    } else {
        Settled::Garbage
    }
}
