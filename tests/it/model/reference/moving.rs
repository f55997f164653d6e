//! Move: what became due, waiting and retry merged by time.

use super::{CopyState, Delivery, Holder, Holders, Reference};
use lisa_core::broker::Moved;
use lisa_core::message::MessageId;
use lisa_core::time::millis;
use std::time::Duration;

/// The due messages, in the order in which they are moved.
#[derive(PartialEq, Eq, PartialOrd, Ord)]
struct Due {
    time: u64,
    /// 0 for a message without options.
    arrival: u64,
    /// 0 for the waiting, then one more than the group.
    list: usize,
    id: MessageId,
}

impl Reference {
    pub(in super::super) fn move_due(&mut self, clock: u64, batch: u16, idle: Duration) -> Moved {
        // A full topic moves less at once.
        let most = if self.general { 100 } else { 200 };
        let batch = usize::from(batch).min(most);
        let now = self.begin(clock, batch + 20);
        if self.paused {
            return Moved::Paused;
        }
        let active: Vec<_> = (self.all_groups())
            .filter(|g| self.groups[*g].retiring.is_none())
            .collect();
        // A waiting message costs an entry for each group.
        let cost = |due: &Due| if due.list == 0 { active.len() } else { 1 };
        let mut used = 0;
        let mut taken = Vec::new();
        for due in self.timed() {
            if due.time > now || used >= batch {
                break;
            }
            used += cost(&due);
            taken.push(due);
        }
        for due in &taken {
            match due.list {
                0 => self.message_mut(&due.id).waiting = false,
                list => drop(self.groups[list - 1].states.remove(&due.id)),
            }
        }
        for Due { time, list, id, .. } in taken {
            match (list, self.general) {
                (0, true) => self.promote(&id, time, &active),
                (0, false) => {
                    self.message_mut(&id).owed = 1;
                    self.count("moved", 1);
                    self.count_in(0, "moved", 1);
                    self.emit_plain(&id, time);
                }
                (list, true) => self.again(list - 1, &id, time),
                (_, false) => self.emit_plain(&id, time),
            }
        }
        for g in self.all_groups() {
            self.pump(g);
        }
        self.lift_window();
        self.last_time = Some(now);
        if used >= batch {
            self.alarm = Some(0);
            let (count, pause) = (used as u64, Duration::ZERO);
            return Moved::Moved { count, pause };
        }
        let next = self.timed().first().map(|due| due.time);
        let times = [Some(now + millis(idle)), next, self.call.earliest];
        let look = times.into_iter().flatten().min().unwrap_or(now);
        self.alarm = Some(look);
        Moved::Moved {
            count: used as u64,
            pause: Duration::from_millis(look - now),
        }
    }

    /// Returns the messages that wait for a time at which this mover would take them, earliest first.
    fn timed(&self) -> Vec<Due> {
        let mut all = Vec::new();
        let mut add = |time, list, id: &MessageId| {
            all.push(Due {
                time,
                list,
                arrival: self.message(id).arrival(),
                id: id.clone(),
            });
        };
        // While every group is closed, all messages stay among the waiting.
        let is_open = |group: &super::Group| !group.paused && group.retiring.is_none();
        if self.groups.iter().any(is_open) {
            for (id, message) in self.messages.iter().filter(|(_, m)| m.waiting) {
                add(message.due, 0, id);
            }
        }
        for (g, group) in self.groups.iter().enumerate().filter(|(_, g)| !g.paused) {
            for (id, state) in &group.states {
                if let CopyState::Retry(time) = state {
                    add(*time, g + 1, id);
                }
            }
        }
        all.sort();
        all
    }

    /// Copies a message that became due to every group that gets new ones.
    fn promote(&mut self, id: &MessageId, time: u64, active: &[usize]) {
        self.count("moved", 1);
        let message = self.message_mut(id);
        message.owed = active.len() as u32;
        message.fanned_out = active.len() > 1;
        for g in active {
            self.count_in(*g, "moved", 1);
            self.offer(*g, id, Some(time));
        }
    }

    /// Moves on a copy that comes again at `time`. If it does not go straight out, a due time that its message does not have
    /// is kept. One of several holders does not, even if no other one is left.
    fn again(&mut self, g: usize, id: &MessageId, time: u64) {
        let tries = self.groups[g].tries.get(id);
        let due = tries.and_then(|tries| tries.due).unwrap_or(time);
        let message = self.message_mut(id);
        if message.meta.is_none() {
            message.due = due;
        }
        let (is_own, key) = (due == message.due, message.key());
        let is_shut = self.is_gated(g) || self.call.budget <= 0;
        let group = &mut self.groups[g];
        let own = Holders::One(id.clone());
        let is_taken = group.holders.get(&key).is_some_and(|other| *other != own);
        if (is_shut || is_taken) && !is_own {
            group.tries.entry(id.clone()).or_default().due = Some(due);
        }
        self.offer(g, id, Some(due));
    }

    /// The short path of a plain topic.
    pub(super) fn emit_plain(&mut self, id: &MessageId, due: u64) {
        let group = &mut self.groups[0];
        let tries = group.tries.get(id).cloned().unwrap_or_default();
        group.states.insert(id.clone(), CopyState::Stream);
        group.stream.push(Delivery {
            id: id.clone(),
            attempt: tries.attempts + 1,
            due: tries.due.unwrap_or(due),
            crashes: tries.crashes,
            expires: None,
            released: None,
            entry: None,
            holder: Holder::Ready,
        });
    }
}
