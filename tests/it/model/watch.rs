//! The promises about each new entry of a stream, independent of the reference: not early, not expired, not while
//! paused, within window and rate, and in order within a key.

use super::reference::{CopyState, Delivery, Group, Message, Reference};
use lisa_core::message::MessageId;
use std::collections::{BTreeMap, BTreeSet};

/// A shard and a group.
type Which = (usize, String);

/// The entries seen so far.
#[derive(Default)]
pub(super) struct Watch {
    /// The times at which each group got entries, without those that were handed back.
    times: BTreeMap<Which, Vec<(u64, MessageId)>>,
    /// The messages that a group had an entry of, or in garbage: the order of their next attempts is not promised.
    begun: BTreeSet<(Which, MessageId)>,
}

impl Watch {
    /// Looks at the entries that came in the last call, those whose ids are not known yet.
    pub(super) fn look(
        &mut self,
        shard: usize,
        reference: &Reference,
        clock: u64,
    ) -> Result<(), String> {
        let now = reference.now(clock);
        self.begun
            .retain(|((of, _), id)| *of != shard || reference.messages.contains_key(id));
        for group in &reference.groups {
            let which = (shard, group.name.clone());
            let in_garbage = group
                .states
                .keys()
                .filter(|id| group.in_garbage(id).is_some());
            self.begun
                .extend(in_garbage.map(|id| (which.clone(), id.clone())));
            for delivery in group.stream.iter().filter(|d| d.entry.is_none()) {
                let message = &reference.messages[&delivery.id];
                let seen = self.times.entry(which.clone()).or_default();
                seen.push((now, delivery.id.clone()));
                let wrong = is_wrong(reference, group, message, delivery, now)
                    .or_else(|| too_fast(reference, seen));
                let first = self.begun.insert((which.clone(), delivery.id.clone()));
                let is_new = |id: &MessageId| !self.begun.contains(&(which.clone(), id.clone()));
                let wrong = wrong.or_else(|| {
                    let overtaken =
                        first.then(|| overtaken(reference, group, delivery, is_new))??;
                    Some(format!("before {overtaken} of its key"))
                });
                if let Some(wrong) = wrong {
                    return Err(format!(
                        "{} got {} at {now} {wrong}",
                        group.name, delivery.id
                    ));
                }
            }
        }
        Ok(())
    }

    /// A consumer handed back the entry of a message that a group got last.
    pub(super) fn handed_back(&mut self, shard: usize, group: &str, id: &MessageId) {
        let times = self.times.get_mut(&(shard, group.to_owned()));
        if let Some(times) = times
            && let Some(last) = times.iter().rposition(|(_, other)| other == id)
        {
            times.remove(last);
        }
    }

    /// The rate has changed.
    pub(super) fn forget_times(&mut self) {
        self.times.clear();
    }

    /// A group that is gone may come again, with a fresh rate.
    pub(super) fn forget(&mut self, group: &str) {
        self.times.retain(|(_, name), _| name != group);
        self.begun.retain(|((_, name), _)| name != group);
    }
}

fn is_wrong(
    reference: &Reference,
    group: &Group,
    message: &Message,
    delivery: &Delivery,
    now: u64,
) -> Option<String> {
    let window = reference.rules.max_ready.or(reference.window);
    let length = group.stream.len() as u64;
    let of_message = message.meta.as_ref().map_or(0, |meta| meta.due);
    if delivery.due > now || of_message > now {
        return Some(format!(
            "early: it is due at {of_message} and {}",
            delivery.due
        ));
    } else if message.lapse_in(&group.name) <= now
        || delivery.expires.is_some_and(|expires| expires <= now)
    {
        return Some("too late".to_owned());
    } else if reference.paused || group.paused {
        return Some("while paused".to_owned());
    }
    let over = window.filter(|most| length > *most);
    over.map(|most| format!("into a window of {most} that has {length}"))
}

/// Returns whether more than the burst came in some span that ends now, and more than its length allows.
fn too_fast(reference: &Reference, times: &[(u64, MessageId)]) -> Option<String> {
    let (interval, (now, _)) = (reference.rules.interval?, times.last()?);
    for (more, (from, _)) in times.iter().rev().enumerate() {
        let allowed = reference.rules.burst + now.saturating_sub(*from) as f64 / interval;
        let came = more as f64 + 1.0;
        if came > allowed + 0.01 {
            return Some(format!("as number {came} since {from}"));
        }
    }
    None
}

/// A message of the same key that should have come before: due earlier, or arrived earlier, and not begun.
fn overtaken(
    reference: &Reference,
    group: &Group,
    delivery: &Delivery,
    is_new: impl Fn(&MessageId) -> bool,
) -> Option<MessageId> {
    let message = &reference.messages[&delivery.id];
    let key = message.key();
    let rank = |message: &Message| (message.due, message.arrival());
    let is_before = |(id, other): &(&MessageId, &Message)| {
        let parked = group.states.get(id) == Some(&CopyState::Parked);
        (other.waiting && group.retiring.is_none() || parked)
            && other.key() == key
            && is_new(id)
            && rank(other) < rank(message)
    };
    let mut others = reference.messages.iter().filter(is_before);
    others
        .next()
        .map(|(id, _)| id.clone())
        .filter(|_| !key.is_empty())
}
