//! The verbs of users and operators, and the manager's cleaning.

use super::copies::Where;
use super::{CopyState, Holder, Reference, Rules, Tries, encoded};
use lisa_core::broker::{Membership, Removed, Retired, Retirement};
use lisa_core::message::MessageId;
use lisa_core::state::{CancelOutcome, End, RescheduleOutcome};
use lisa_core::time::{UnixMs, When};

impl Reference {
    pub(in super::super) fn cancel(&mut self, clock: u64, id: &MessageId) -> CancelOutcome {
        self.begin(clock, 20);
        match self.find(id) {
            Where::InFlight => return CancelOutcome::InFlight,
            // A repeat, perhaps of one that some group has in garbage.
            Where::Garbage | Where::Unknown if self.end(id) == Some(End::Cancelled) => {
                return CancelOutcome::Cancelled {
                    record: None,
                    in_garbage: self.in_garbage(id),
                };
            }
            Where::Garbage => return CancelOutcome::Garbage,
            Where::Unknown => {
                return CancelOutcome::Unknown {
                    end: self.ended(id),
                };
            }
            Where::Waiting | Where::Held { .. } => {}
        }
        let record = self.message(id).record.as_ref().map(encoded);
        let in_garbage = self.in_garbage(id);
        self.cancel_found(id);
        self.finish(self.all_groups());
        CancelOutcome::Cancelled {
            record: Some(record.unwrap_or_default().into()),
            in_garbage,
        }
    }

    /// The groups in whose garbage a message is.
    fn in_garbage(&self, id: &MessageId) -> Vec<lisa_core::topic::Group> {
        let groups = self.groups.iter().filter(|g| g.in_garbage(id).is_some());
        groups.map(|g| g.name.parse().expect("a group")).collect()
    }

    /// Cancels copies that no group has on its stream; copies in garbage stay.
    pub(super) fn cancel_found(&mut self, id: &MessageId) {
        if let Where::Held { groups, .. } = self.find(id) {
            for g in groups {
                self.take_out(g, id);
                self.end_copy(g, id, "cancelled", None);
            }
        } else {
            self.count("cancelled", 1);
            self.forget(id);
        }
        self.entomb(id, End::Cancelled);
    }

    pub(in super::super) fn reschedule(
        &mut self,
        clock: u64,
        id: &MessageId,
        when: When,
    ) -> RescheduleOutcome {
        let now = self.begin(clock, 20);
        let due = when.due(UnixMs::new(now)).get();
        match self.find(id) {
            Where::Unknown => {
                return RescheduleOutcome::Unknown {
                    end: self.ended(id),
                };
            }
            Where::InFlight => return RescheduleOutcome::InFlight,
            Where::Garbage
            | Where::Held {
                in_garbage: true, ..
            } => return RescheduleOutcome::Garbage,
            Where::Waiting => {
                if self.message(id).due != due {
                    self.wait_again(id, due, &[]);
                }
            }
            Where::Held { groups, .. } => self.postpone(id, due, &groups),
        }
        self.finish(self.all_groups());
        let due = UnixMs::new(due);
        RescheduleOutcome::Rescheduled { due }
    }

    /// A message that no group has begun waits again for all of them. Otherwise each group that owes it has its own
    /// next attempt, even if one of them would not get it again.
    fn postpone(&mut self, id: &MessageId, due: u64, groups: &[usize]) {
        let begun = |g: &usize| {
            let group = &self.groups[*g];
            group.retry_at(id).is_some() || group.tries.contains_key(id)
        };
        let gets_new = |g: &usize| self.groups[*g].retiring.is_none();
        let all_owe = self
            .all_groups()
            .filter(gets_new)
            .eq(groups.iter().copied());
        let again = groups.iter().any(begun) || !all_owe;
        for g in groups {
            self.take_out(*g, id);
        }
        if !again {
            self.wait_again(id, due, groups);
            return;
        }
        self.message_mut(id).due = due;
        if self.message(id).arrival() > 0 {
            self.arrive_again(id);
        } else if let Some(meta) = &mut self.message_mut(id).meta {
            meta.due = due;
        }
        for g in groups {
            self.retry_later(*g, id, due);
        }
    }

    /// Puts a copy into retry, with this due time for its next attempt.
    pub(super) fn retry_later(&mut self, g: usize, id: &MessageId, due: u64) {
        let group = &mut self.groups[g];
        if let Some(tries) = group.tries.get_mut(id) {
            tries.due = None;
        }
        group.tries.retain(|_, tries| !tries.is_empty());
        group.states.insert(id.clone(), CopyState::Retry(due));
        self.look_at(due);
    }

    /// Returns whether a message has been in a group's garbage since that time.
    fn is_in_garbage(&self, g: usize, id: &MessageId, since: UnixMs) -> bool {
        let in_garbage = self.groups[g].in_garbage(id);
        in_garbage.is_some_and(|in_garbage| in_garbage.time == since.get())
    }

    pub(in super::super) fn requeue(
        &mut self,
        clock: u64,
        g: usize,
        seen: &[(MessageId, UnixMs)],
    ) -> u64 {
        let now = self.begin(clock, 20);
        let mut requeued = 0;
        for (id, since) in seen {
            if !self.is_in_garbage(g, id, *since) {
                continue;
            } else if self.message(id).record.is_none() {
                self.lose(g, id);
                continue;
            }
            let name = self.groups[g].name.clone();
            let in_garbage = self.groups[g].in_garbage(id);
            let error = in_garbage.expect("it is in garbage").error.clone();
            let expires = self.message(id).lapse_in(&name) < u64::MAX;
            if let (true, Some(meta)) = (expires, &mut self.message_mut(id).meta) {
                meta.exempt += &format!(" {name} ");
            }
            let message = self.message(id);
            let (is_keyed, due) = (!message.key().is_empty(), message.due);
            // Messages of one key come in their old order.
            let time = if is_keyed { due } else { now };
            let tries = Tries {
                error,
                due: is_keyed.then_some(now),
                ..Tries::default()
            };
            if !tries.is_empty() {
                self.groups[g].tries.insert(id.clone(), tries);
            }
            self.groups[g]
                .states
                .insert(id.clone(), CopyState::Retry(time));
            self.count_in(g, "requeued", 1);
            self.look_at(now);
            requeued += 1;
        }
        self.finish([g]);
        requeued
    }

    pub(in super::super) fn purge(
        &mut self,
        clock: u64,
        g: usize,
        seen: &[(MessageId, UnixMs)],
    ) -> u64 {
        self.begin(clock, 20);
        let mut purged = 0;
        for (id, since) in seen {
            if self.is_in_garbage(g, id, *since) {
                let key = self.message(id).key();
                self.end_copy(g, id, "purged", Some(End::Purged));
                self.release(g, id, &key);
                purged += 1;
            }
        }
        self.finish([g]);
        purged
    }

    /// Drops garbage that is older than its retention; here the clock is not held.
    pub(in super::super) fn purge_old(&mut self, clock: u64, g: usize) -> u64 {
        let oldest = clock.saturating_sub(self.rules.max_age);
        let mut old = Vec::new();
        for (id, state) in &self.groups[g].states {
            if let CopyState::Garbage(in_garbage) = state {
                old.push((in_garbage.time, id.clone()));
            }
        }
        old.sort();
        let old: Vec<_> = (old.into_iter())
            .filter(|(time, _)| *time < oldest)
            .map(|(time, id)| (id, UnixMs::new(time)))
            .collect();
        if old.is_empty() {
            return 0;
        }
        self.purge(clock, g, &old)
    }

    pub(in super::super) fn clean(&mut self, clock: u64, g: usize) {
        let now = self.begin(clock, 20);
        let group = &mut self.groups[g];
        if group.lease.is_some_and(|end| end < now) && group.retiring.is_none() {
            group.retiring = Some(Retirement::Drop);
            self.general = true;
        }
        let uses_nothing = self.uses_nothing();
        let mut unheld = Vec::new();
        self.groups[g].stream.retain(|delivery| {
            if delivery.holder == Holder::Unheld {
                unheld.push((delivery.id.clone(), delivery.due.min(now)));
            }
            delivery.holder != Holder::Unheld
        });
        for (id, due) in unheld {
            if self.message(&id).record.is_some() {
                self.groups[g].states.insert(id, CopyState::Retry(due));
                self.count_in(g, "recovered", 1);
                self.look_at(now);
            } else {
                self.lose(g, &id);
            }
        }
        self.finish(self.all_groups());
        if self.general && uses_nothing {
            self.general = false;
        }
    }

    /// Forgets the ends that are older than the dedup window, and returns their number.
    pub(in super::super) fn forget_ends(&mut self, clock: u64) -> u64 {
        self.begin(clock, 0);
        let (before, oldest) = (self.tomb.len(), self.oldest_tombstone());
        self.tomb.retain(|_, (time, _)| *time >= oldest);
        self.into.retain(|id, _| self.tomb.contains_key(id));
        (before - self.tomb.len()) as u64
    }

    pub(super) fn oldest_tombstone(&self) -> u64 {
        self.call.now - self.rules.dedup_window
    }

    /// Returns whether a plain topic would do.
    fn uses_nothing(&self) -> bool {
        let [group] = &self.groups[..] else {
            return false;
        };
        !self.rules.needs_general
            && self.removal.is_none()
            && self
                .messages
                .values()
                .all(|m| m.meta.is_none() && !m.fanned_out)
            && self.merge.is_empty()
            && group.count(|state| matches!(state, CopyState::Backlog | CopyState::Parked)) == 0
            && group.holders.is_empty()
            && !group.paused
            && group.retiring.is_none()
    }

    pub(in super::super) fn pause(&mut self, paused: bool) -> bool {
        let changed = self.paused != paused;
        self.paused = paused;
        if changed && !paused {
            self.alarm = Some(0);
        }
        changed
    }

    pub(in super::super) fn pause_group(&mut self, g: usize, paused: bool) -> bool {
        let changed = self.groups[g].paused != paused;
        self.groups[g].paused = paused;
        // Messages that become due for a paused group gather in its backlog, which a plain topic does not have.
        self.general |= changed && paused;
        if changed && !paused {
            self.alarm = Some(0);
        }
        changed
    }

    /// Creates the removed groups again, and changes the rules if there are others.
    pub(in super::super) fn declare(&mut self, names: &[String], rules: Option<&Rules>) {
        let there = self.groups.len();
        for name in names {
            if self.groups.iter().all(|group| group.name != *name) {
                self.groups.push(super::Group::named(name));
            }
        }
        // In the same order on all shards, whichever group came first.
        self.groups.sort_by(|a, b| a.name.cmp(&b.name));
        if let Some(rules) = rules {
            self.rules = rules.clone();
        }
        if self.groups.len() > there || rules.is_some() {
            self.epoch += 1;
            self.general |= self.rules.needs_general || self.groups.len() != 1;
        }
    }

    /// Creates the group of one instance, or renews its lease; one that retires is not joined again.
    pub(in super::super) fn join(&mut self, clock: u64, name: &str) -> Membership {
        let state = self.groups.iter().position(|group| group.name == name);
        let g = match state {
            Some(g) if self.groups[g].retiring.is_some() => return Membership::Lapsed,
            Some(g) => g,
            None => {
                self.declare(&[name.to_owned()], None);
                self.general = true;
                let mut names = self.groups.iter();
                let joined = names.position(|group| group.name == name);
                joined.expect("it joined")
            }
        };
        self.groups[g].lease = Some(clock + self.rules.instance_ttl);
        Membership::Member
    }

    /// Closes a group to new messages, or opens it again. Without an open group, due messages wait for one.
    pub(in super::super) fn retire(&mut self, g: usize, how: Option<Retirement>) -> Retired {
        if self.groups[g].retiring == how {
            return Retired::Same;
        }
        self.general |= how.is_some();
        self.groups[g].retiring = how;
        Retired::Done
    }

    /// Returns whether a group can be removed now.
    pub(in super::super) fn is_over(&self, g: usize) -> bool {
        match self.groups[g].retiring {
            None => false,
            Some(Retirement::Drain) => self.groups[g].states.is_empty(),
            Some(Retirement::Drop) => true,
        }
    }

    /// Returns whether a retiring group is gone after this many messages are dropped.
    pub(in super::super) fn ends_with(&self, g: usize, batch: u16) -> bool {
        self.is_over(g) && self.groups[g].states.len() <= usize::from(batch)
    }

    /// Returns the messages of a group in the order in which they are dropped: parked ones first.
    fn to_drop(&self, g: usize) -> Vec<MessageId> {
        let group = &self.groups[g];
        let entry = |id: &MessageId| group.stream.iter().position(|delivery| delivery.id == *id);
        let rank = |id: &MessageId, state: &CopyState| {
            let message = self.message(id);
            let meta = message.meta.clone().unwrap_or_default();
            let position = format!("{:014}{:012}{id}", meta.due, meta.arrival);
            match state {
                CopyState::Parked => (0, 0, format!("{}\0{position}", meta.key)),
                CopyState::Retry(time) if meta.arrival > 0 => {
                    (1, *time as i64, format!("~{:012}{id}", meta.arrival))
                }
                CopyState::Retry(time) => (1, *time as i64, id.to_string()),
                CopyState::Backlog => (2, -i64::from(meta.priority), position),
                CopyState::Stream => (3, entry(id).unwrap_or_default() as i64, String::new()),
                CopyState::Garbage(in_garbage) => (4, in_garbage.time as i64, id.to_string()),
            }
        };
        let states = group.states.iter();
        let mut ranks: Vec<_> = states
            .map(|(id, state)| (rank(id, state), id.clone()))
            .collect();
        ranks.sort();
        ranks.into_iter().map(|(_, id)| id).collect()
    }

    /// Removes a retiring group; first drops some of its messages, if they are to be dropped.
    pub(in super::super) fn remove_group(&mut self, clock: u64, g: usize, batch: u16) -> Removed {
        self.begin(clock, 20);
        if !self.is_over(g) {
            return Removed::Kept;
        }
        let ends = self.ends_with(g, batch);
        let mut ids = self.to_drop(g);
        ids.truncate(batch.into());
        for id in &ids {
            let key = self.message(id).key();
            let is_parked = self.groups[g].states[id] == CopyState::Parked;
            self.groups[g].stream.retain(|delivery| delivery.id != *id);
            self.end_copy(g, id, "dropped", None);
            if !is_parked {
                self.release(g, id, &key);
            }
        }
        self.lift_window();
        if !ends {
            return Removed::More {
                dropped: ids.len() as u64,
            };
        }
        let name = self.groups.remove(g).name;
        self.epoch += 1;
        let suffix = format!(":{name}");
        for (what, by) in std::mem::take(&mut self.counters) {
            // Its counters are kept for all groups that are gone.
            match what.strip_suffix(&suffix) {
                Some(what) => self.count(&format!("{what}:-"), by),
                None => self.count(&what, by),
            }
        }
        Removed::Gone {
            dropped: ids.len() as u64,
            epoch: self.epoch,
        }
    }
}
