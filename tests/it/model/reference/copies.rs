//! The path of a copy: into its group when it is due, behind its key, through the gates, onto the stream; and its end.

use super::{CopyState, Delivery, Group, Holder, Holders, InGarbage, Message, Meta, Reference};
use lisa_core::message::MessageId;
use lisa_core::state::End;
use lisa_core::topic::{OnExpired, OnGarbage, OnLate};
use std::cmp::Reverse;

/// The reason why a copy is no longer worth delivering.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Lapse {
    /// Its ttl is over.
    Ttl,
    /// Its ttl will be over by its next attempt.
    Before,
    /// The attempt would start too late.
    Late,
}

/// The state of a message over all groups.
pub(super) enum Where {
    Unknown,
    Waiting,
    /// Some group has it on its stream.
    InFlight,
    /// Nowhere but in garbage.
    Garbage,
    /// In backlog, parked or retry of these groups; `in_garbage` returns whether others have it in garbage.
    Held {
        groups: Vec<usize>,
        in_garbage: bool,
    },
}

impl Reference {
    pub(super) fn message(&self, id: &MessageId) -> &Message {
        &self.messages[id]
    }

    /// Returns the time from which a message is not worth delivering to a group.
    pub(super) fn lapse_of(&self, g: usize, id: &MessageId) -> u64 {
        self.message(id).lapse_in(&self.groups[g].name)
    }

    pub(super) fn message_mut(&mut self, id: &MessageId) -> &mut Message {
        self.messages.get_mut(id).expect("a message that is owed")
    }

    /// Returns whether only the pump may put the group's messages on the stream.
    pub(super) fn is_gated(&self, g: usize) -> bool {
        let window = self.rules.max_ready.or(self.window);
        self.paused || self.groups[g].paused || window.is_some() || self.rules.interval.is_some()
    }

    /// The only entrance of a copy that became due: behind the holder of its key, or on its way. One of several that were taken
    /// together gives the key up: what comes again of them does so one by one, in order.
    pub(super) fn offer(&mut self, g: usize, id: &MessageId, due: Option<u64>) {
        let key = self.message(id).key();
        if !key.is_empty() {
            let own = Holders::One(id.clone());
            let holders = self.groups[g].holders.entry(key.clone());
            if *holders.or_insert(own.clone()) != own {
                self.groups[g].states.insert(id.clone(), CopyState::Parked);
                self.release(g, id, &key);
                return;
            }
        }
        self.state(g, id, due);
    }

    /// Moves a copy that only the gates can hold back to the state where it belongs.
    fn state(&mut self, g: usize, id: &MessageId, due: Option<u64>) {
        if !self.is_gated(g) && self.call.budget > 0 {
            self.emit(g, id, due);
            return;
        }
        let message = self.message_mut(id);
        let due = message.due;
        // A backlog's order needs a due time, which only meta keeps.
        message.meta.get_or_insert_with(|| Meta {
            due,
            ..Meta::default()
        });
        self.groups[g].states.insert(id.clone(), CopyState::Backlog);
    }

    /// Puts a copy on the stream, unless it has lapsed. `due` is the time of a retry that goes straight out. An attempt keeps
    /// its due time, however often and however late it is delivered.
    pub(super) fn emit(&mut self, g: usize, id: &MessageId, due: Option<u64>) -> bool {
        let now = self.call.now;
        self.call.budget -= 1;
        let tries = self.groups[g].tries.get(id).cloned();
        let message = self.message(id);
        let tries = tries.unwrap_or_default();
        // The clock may have stepped back since a requeue.
        let own_due = tries.due.map(|due| due.min(now));
        let due = own_due.or(due).unwrap_or(message.due);
        let too_late = self.rules.max_lateness.map(|most| due + most);
        let by_ttl = message.lapse_in(&self.groups[g].name);
        let lapses = too_late.into_iter().chain([by_ttl]).min().unwrap_or(by_ttl);
        if lapses <= now {
            let why = if by_ttl <= now {
                Lapse::Ttl
            } else {
                Lapse::Late
            };
            self.lapse(g, id, tries.attempts, why, &tries.error);
            return false;
        }
        self.unmerge(id);
        let group = &mut self.groups[g];
        group.states.insert(id.clone(), CopyState::Stream);
        group.stream.push(Delivery {
            id: id.clone(),
            attempt: tries.attempts + 1,
            due,
            crashes: tries.crashes,
            expires: (lapses < u64::MAX).then_some(lapses),
            released: (self.rules.interval.is_some() && due < now).then_some(now),
            entry: None,
            holder: Holder::Ready,
        });
        true
    }

    /// Admits what the gates have room for, the most important first.
    pub(super) fn pump(&mut self, g: usize) {
        if self.paused || self.groups[g].paused || self.picks(g, 1).is_empty() {
            return;
        }
        let now = self.call.now;
        let mut tokens = Tokens::of(self, g);
        let window = self.rules.max_ready.or(self.window);
        loop {
            let stream = self.groups[g].stream.len() as u64;
            let room = window.map_or(u64::MAX, |most| most.saturating_sub(stream));
            let room = room.min(self.call.budget.max(0) as u64).min(tokens.left());
            let picks = self.picks(g, room as usize);
            if picks.is_empty() {
                break;
            }
            for id in picks {
                if self.emit(g, &id, None) {
                    tokens.take();
                }
            }
        }
        if !self.picks(g, 1).is_empty() {
            if self.call.budget <= 0 {
                self.look_at(now);
            } else if tokens.is_out() {
                self.look_at(tokens.next());
            }
        }
        if let Some(tat) = tokens.spent() {
            self.groups[g].tat = Some(tat);
        }
    }

    /// Refunds to the group's rate a delivery that no handler used, except the part that has become free by itself
    /// since the rate let it go.
    pub(super) fn refund(&mut self, g: usize, released: u64) {
        let Tokens { interval, tat, .. } = Tokens::of(self, g);
        let (now, since) = (self.call.now as f64, self.call.now as f64 - released as f64);
        let rest = interval.map(|interval| interval - since);
        if let Some(rest) = rest.filter(|rest| tat > now && *rest > 0.0) {
            self.groups[g].tat = Some(kept((tat - rest).max(now)));
        }
    }

    /// Returns at most `count` messages that go next: by priority, then due time, then arrival.
    fn picks(&self, g: usize, count: usize) -> Vec<MessageId> {
        let backlog = self.groups[g].states.iter();
        let backlog = backlog.filter(|(_, state)| **state == CopyState::Backlog);
        let rank = |id: &MessageId| {
            let meta = self.message(id).meta.clone().unwrap_or_default();
            (Reverse(meta.priority), meta.due, meta.arrival, id.clone())
        };
        let mut ranks: Vec<_> = backlog.map(|(id, _)| rank(id)).collect();
        ranks.sort();
        ranks.into_iter().take(count).map(|(.., id)| id).collect()
    }

    /// The only exit of a message from its key: after the last one that holds it, the next one follows. Only a holder has a key to
    /// release.
    pub(super) fn release(&mut self, g: usize, id: &MessageId, key: &str) {
        let holders = self.groups[g].holders.get(key);
        let Some(holders) = holders.filter(|holders| holders.all().contains(id)) else {
            return;
        };
        if let Some(others) = holders.without(id) {
            self.groups[g].holders.insert(key.to_owned(), others);
            return;
        }
        match self.parked(g, key, 1).pop() {
            None => {
                self.groups[g].holders.remove(key);
            }
            Some(next) => {
                let holders = &mut self.groups[g].holders;
                holders.insert(key.to_owned(), Holders::One(next.clone()));
                self.state(g, &next, None);
            }
        }
    }

    /// Returns the first parked messages of a key, in order.
    pub(super) fn parked(&self, g: usize, key: &str, count: usize) -> Vec<MessageId> {
        let parked = self.groups[g].states.iter();
        let parked = parked
            .filter(|(id, state)| **state == CopyState::Parked && self.message(id).key() == key);
        let rank = |id: &MessageId| {
            let message = self.message(id);
            (message.due, message.arrival(), id.clone())
        };
        let mut parked: Vec<_> = parked.map(|(id, _)| rank(id)).collect();
        parked.sort();
        parked.into_iter().take(count).map(|(.., id)| id).collect()
    }

    /// Ends a copy that is not worth delivering any more, as the topic says. Returns whether it was dropped.
    pub(super) fn lapse(
        &mut self,
        g: usize,
        id: &MessageId,
        attempts: u32,
        why: Lapse,
        last_error: &str,
    ) -> bool {
        let expired = self.rules.on_expired == OnExpired::Drop;
        let (drop, mut error) = match why {
            Lapse::Ttl => (expired, "its ttl is over".to_owned()),
            Lapse::Before => (expired, "it expires before its next attempt".to_owned()),
            Lapse::Late => (
                self.rules.on_late == OnLate::Drop,
                "it is too late".to_owned(),
            ),
        };
        if !last_error.is_empty() && !last_error.starts_with('\0') {
            error += ": ";
        }
        error += last_error;
        if drop {
            let key = self.message(id).key();
            self.unmerge(id);
            self.end_copy(g, id, "expired", Some(End::Purged));
            self.release(g, id, &key);
        } else {
            self.count_in(g, "lapsed", 1);
            self.move_to_garbage(g, id, "expired", attempts, error);
        }
        drop
    }

    /// Puts a copy into garbage.
    pub(super) fn move_to_garbage(
        &mut self,
        g: usize,
        id: &MessageId,
        reason: &'static str,
        attempts: u32,
        error: String,
    ) {
        let in_garbage = InGarbage {
            time: self.call.now,
            reason,
            attempts,
            error,
        };
        let group = &mut self.groups[g];
        group
            .states
            .insert(id.clone(), CopyState::Garbage(in_garbage));
        group.tries.remove(id);
        self.unmerge(id);
        if self.rules.on_garbage == OnGarbage::Continue {
            let key = self.message(id).key();
            self.release(g, id, &key);
        }
    }

    /// Ends a copy; with the last one the message is gone.
    pub(super) fn end_copy(&mut self, g: usize, id: &MessageId, what: &str, end: Option<End>) {
        self.count_in(g, what, 1);
        let group = &mut self.groups[g];
        group.tries.remove(id);
        group.states.remove(id);
        let message = self.message_mut(id);
        message.owed -= 1;
        if message.owed == 0 {
            self.forget(id);
            if let Some(end) = end {
                self.entomb(id, end);
            }
        }
    }

    pub(super) fn forget(&mut self, id: &MessageId) {
        self.unmerge(id);
        let message = self.messages.remove(id).expect("a message that is owed");
        let bytes = message.meta.map_or(0, |meta| meta.bytes);
        self.count("bytes", -(bytes as i64));
    }

    /// Ends the merging: a later message of this merge key is a new one.
    pub(super) fn unmerge(&mut self, id: &MessageId) {
        self.merge.retain(|_, indexed| indexed != id);
    }

    pub(super) fn find(&self, id: &MessageId) -> Where {
        let Some(message) = self.messages.get(id) else {
            return Where::Unknown;
        };
        if message.waiting {
            return Where::Waiting;
        } else if message.record.is_none() {
            return Where::Unknown;
        }
        let at = |g: &Group| g.states.get(id).cloned();
        let states: Vec<_> = self.groups.iter().map(at).collect();
        if states.contains(&Some(CopyState::Stream)) {
            return Where::InFlight;
        }
        let is_in_garbage =
            |state: &Option<CopyState>| matches!(state, Some(CopyState::Garbage(_)));
        let held = |g: &usize| states[*g].is_some() && !is_in_garbage(&states[*g]);
        let groups: Vec<_> = self.all_groups().filter(held).collect();
        if groups.is_empty() {
            return Where::Garbage;
        }
        let in_garbage = states.iter().any(is_in_garbage);
        Where::Held { groups, in_garbage }
    }

    /// Takes a copy out of backlog, parked or retry; its key goes to the next.
    pub(super) fn take_out(&mut self, g: usize, id: &MessageId) {
        let key = self.message(id).key();
        self.groups[g].states.remove(id);
        self.release(g, id, &key);
    }

    /// Puts a message whose copies were taken out of `groups` among the waiting; it gets a new arrival.
    pub(super) fn wait_again(&mut self, id: &MessageId, due: u64, groups: &[usize]) {
        for g in groups {
            self.count_in(*g, "moved", -1);
        }
        if !groups.is_empty() {
            self.count("moved", -1);
        }
        let message = self.message_mut(id);
        message.due = due;
        message.waiting = true;
        (message.owed, message.fanned_out) = (0, false);
        if message.meta.is_some() {
            self.arrive_again(id);
        }
        self.look_at(due);
    }

    /// Updates the due time and the arrival in meta.
    pub(super) fn arrive_again(&mut self, id: &MessageId) {
        let arrival = self.arrive();
        let message = self.message_mut(id);
        let due = message.due;
        if let Some(meta) = &mut message.meta {
            (meta.arrival, meta.due) = (arrival, due);
        }
    }
}

/// The messages that a group's rate admits in one call: one per interval, and `burst` at once after a rest.
struct Tokens {
    interval: Option<f64>,
    burst: f64,
    /// The time at which the rate would be at rest.
    tat: f64,
    /// True if the noted time is later than this rate allows.
    is_other: bool,
    spare: f64,
    taken: f64,
}

impl Tokens {
    fn of(reference: &Reference, g: usize) -> Self {
        let (now, burst) = (reference.call.now as f64, reference.rules.burst);
        let interval = reference.rules.interval;
        // A delay that another rate or a clock that stepped back has left lasts no longer than this rate can cause.
        let noted = reference.groups[g].tat.unwrap_or(now);
        let most = interval.map_or(f64::INFINITY, |interval| now + burst * interval);
        let tat = noted.max(now).min(most);
        let spare = interval.map_or(f64::INFINITY, |interval| {
            ((now + burst * interval - tat) / interval + 0.001).floor()
        });
        Self {
            interval,
            burst,
            tat,
            is_other: noted > most,
            spare,
            taken: 0.0,
        }
    }

    fn is_out(&self) -> bool {
        self.taken >= self.spare
    }

    fn left(&self) -> u64 {
        (self.spare - self.taken).max(0.0) as u64
    }

    fn take(&mut self) {
        self.taken += 1.0;
    }

    /// Returns the time at which the next one is available.
    fn next(&self) -> u64 {
        let interval = self.interval.unwrap_or(0.0);
        let at = self.tat + self.taken * interval - (self.burst - 1.0) * interval;
        at.ceil() as u64
    }

    /// Returns the time to note, if it differs from the one noted.
    fn spent(&self) -> Option<f64> {
        let tat = self.tat + self.taken * self.interval?;
        (self.taken > 0.0 || self.is_other).then_some(kept(tat))
    }
}

/// A time as Redis keeps it, in thousandths.
fn kept(tat: f64) -> f64 {
    format!("{tat:.3}").parse().expect("a number")
}
