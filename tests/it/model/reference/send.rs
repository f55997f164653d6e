//! Send: a message is stored, merged, refused, or replaces another one.

use super::copies::Where;
use super::{Message, Meta, Reference, encoded};
use lisa_core::broker::{MAX_MERGING_BATCH, MAX_REPLACING_BATCH};
use lisa_core::message::{Expiry, MessageId, PreparedMessage, Record};
use lisa_core::state::{Accepted, Blocked, End, SendOutcome};
use lisa_core::time::{UnixMs, When, millis};
use lisa_core::topic::Merge;

/// The bytes of each remembered id that count against the limit of a topic.
const TOMB_BYTES: u64 = 128;

/// The script that runs.
#[derive(Clone, Copy)]
struct Script {
    is_general: bool,
    /// The window that the messages of the call bring with them.
    window: Option<u64>,
}

/// A message on its way, as the script gets it.
struct Item<'a> {
    id: &'a MessageId,
    when: When,
    record: &'a Record,
    key: String,
    merge: String,
    priority: i32,
    /// Like [`Meta::ttl`]; 0 if the topic's holds.
    ttl: i64,
    replace: Option<&'a MessageId>,
    even_if_cancelled: bool,
}

impl<'a> Item<'a> {
    fn of(message: &'a PreparedMessage) -> Self {
        let options = &message.options;
        let key = options.key.as_ref().map(ToString::to_string);
        let merge = options.merge_key.as_ref().map(ToString::to_string);
        Self {
            id: &message.id,
            when: message.when,
            record: &message.record,
            key: key.unwrap_or_default(),
            merge: merge.unwrap_or_default(),
            priority: options.priority,
            ttl: match options.expiry {
                None => 0,
                Some(Expiry::After(ttl)) => millis(ttl) as i64,
                Some(Expiry::At(at)) => -(at.get() as i64),
            },
            replace: options.replace.as_ref(),
            even_if_cancelled: options.even_if_cancelled,
        }
    }

    fn is_ranked(&self) -> bool {
        self.priority != 0 || !self.merge.is_empty()
    }

    fn is_plain(&self) -> bool {
        !self.uses_features() && self.replace.is_none()
    }

    fn uses_features(&self) -> bool {
        self.is_ranked() || !self.key.is_empty() || self.ttl != 0
    }

    fn scope(&self) -> Option<(String, String)> {
        (!self.merge.is_empty()).then(|| (self.key.clone(), self.merge.clone()))
    }
}

fn accepted(outcome: SendOutcome, id: &MessageId, due: Option<u64>) -> Accepted {
    Accepted {
        id: id.clone(),
        outcome,
        due: due.map(UnixMs::new),
        ended: None,
        blocked: None,
    }
}

impl Reference {
    /// Stores messages. One that is not answered is refused: it is new, and the topic is being removed.
    pub(in super::super) fn send(
        &mut self,
        clock: u64,
        messages: &[PreparedMessage],
    ) -> Vec<Option<Accepted>> {
        if self.is_gone {
            return vec![None; messages.len()];
        }
        let mut items: Vec<_> = messages.iter().map(Item::of).collect();
        // A repeat of the call must not send again what the call itself cancelled.
        let replaced: Vec<_> = items.iter().filter_map(|item| item.replace).collect();
        for item in &mut items {
            item.even_if_cancelled &= !replaced.contains(&item.id);
        }
        // A batch with such an item is sent in parts.
        let most = items.iter().map(|item| match item {
            item if item.replace.is_some() => MAX_REPLACING_BATCH,
            item if !item.merge.is_empty() => MAX_MERGING_BATCH,
            _ => items.len(),
        });
        let most = most.min().unwrap_or(1).max(1);
        let (mut sent, mut least) = (Vec::new(), i64::MAX);
        for items in items.chunks(most) {
            sent.extend(self.send_part(clock, items));
            least = least.min(self.call.budget);
        }
        self.call.budget = least;
        sent
    }

    /// Sends the items of one call of the script.
    fn send_part(&mut self, clock: u64, items: &[Item<'_>]) -> Vec<Option<Accepted>> {
        let now = self.begin(clock, 20);
        let brings_window = items.iter().any(Item::is_ranked) && self.rules.max_ready.is_none();
        let script = Script {
            is_general: self.general || !items.iter().all(Item::is_plain),
            window: brings_window.then_some(self.rules.window),
        };
        if self.general {
            self.window = self.window.or(script.window);
        }
        // All ids are looked up at once.
        let known: Vec<_> = items.iter().map(|item| self.known(item.id)).collect();
        let sent = items
            .iter()
            .zip(known)
            .map(|(item, known)| match self.known_now(item, known) {
                Some(ended) => {
                    self.count("duplicates", 1);
                    let stored = self.messages.get(item.id);
                    let waiting = |m: &&Message| m.waiting;
                    let survivor = self.into.get(item.id);
                    if let (Some(End::Merged), Some(survivor)) = (ended, survivor) {
                        let due = self.messages.get(survivor).filter(waiting);
                        let due = due.map(|m| m.due);
                        return Some(accepted(SendOutcome::Merged, survivor, due));
                    }
                    let due = stored.filter(waiting).map(|m| m.due);
                    Some(Accepted {
                        ended,
                        ..accepted(SendOutcome::Duplicate, item.id, due)
                    })
                }
                None => self.send_one(now, script, item),
            });
        let sent: Vec<_> = sent.collect();
        // An id whose end is no longer remembered is a new one.
        for (item, sent) in items.iter().zip(&sent) {
            let outcome = sent.as_ref().map(|sent| sent.outcome);
            let is_new = matches!(outcome, Some(SendOutcome::Waiting | SendOutcome::Ready));
            if is_new && self.is_stored(item.id) {
                self.tomb.remove(item.id);
                self.into.remove(item.id);
            }
        }
        self.last_time = Some(now);
        let moves = |item: &Item<'_>| !item.merge.is_empty() || item.replace.is_some();
        let moved = items.iter().any(moves);
        self.finish(self.all_groups().filter(|_| moved));
        sent
    }

    fn is_stored(&self, id: &MessageId) -> bool {
        let stored = self.messages.get(id);
        stored.is_some_and(|message| message.record.is_some())
    }

    /// Returns the state of an id before the call, or how the call itself ended its message.
    fn known_now(&self, item: &Item<'_>, before: Option<Option<End>>) -> Option<Option<End>> {
        match before {
            Some(None) if !self.is_stored(item.id) => Some(self.end(item.id)),
            Some(Some(End::Cancelled)) if item.even_if_cancelled => None,
            before => before,
        }
    }

    /// Returns whether an id is stored or remembered; if remembered, also how its message ended.
    fn known(&self, id: &MessageId) -> Option<Option<End>> {
        if self.is_stored(id) {
            return Some(None);
        }
        let (time, end) = self.tomb.get(id)?;
        (*time >= self.oldest_tombstone()).then_some(Some(*end))
    }

    fn send_one(&mut self, now: u64, script: Script, item: &Item<'_>) -> Option<Accepted> {
        let due = item.when.due(UnixMs::new(now)).get();
        if !script.is_general {
            self.store(item, due);
            if due > now || self.paused {
                self.look_at(due);
                return Some(accepted(SendOutcome::Waiting, item.id, Some(due)));
            }
            let message = self.message_mut(item.id);
            (message.waiting, message.owed) = (false, 1);
            self.count("moved", 1);
            self.count_in(0, "moved", 1);
            self.emit_plain(item.id, now);
            return Some(accepted(SendOutcome::Ready, item.id, Some(due)));
        }
        if let Some(old) = item.replace {
            let blocked = match self.find(old) {
                Where::Waiting | Where::Held { .. } => None,
                Where::InFlight => Some(Blocked::InFlight),
                Where::Garbage => Some(Blocked::Garbage),
                Where::Unknown => Some(Blocked::Unknown),
            };
            let ended = self.end(old);
            if blocked == Some(Blocked::Unknown) && ended.is_none() && self.removal.is_some() {
                return None;
            }
            if blocked.is_some() {
                return Some(Accepted {
                    ended,
                    blocked,
                    ..accepted(SendOutcome::ReplaceConflict, item.id, None)
                });
            }
        }
        let replaced = item.replace;
        let target = self.target(now, item).filter(|id| Some(id) != replaced);
        if self.removal.is_some() && replaced.is_none() && target.is_none() {
            return None;
        }
        if let (Some(id), Merge::Reject) = (&target, self.rules.merge) {
            // Nothing is stored, so nothing is replaced.
            self.count("duplicates", 1);
            let due = self.message(id);
            let due = due.waiting.then_some(due.due);
            return Some(accepted(SendOutcome::Duplicate, id, due));
        }
        if self.is_full(item, target.as_ref()) {
            return Some(accepted(SendOutcome::Full, item.id, None));
        }
        // Only what is stored makes the topic general, and a replacement alone does not.
        if !self.general && item.uses_features() {
            self.general = true;
            self.window = self.window.or(script.window);
        }
        if let Some(old) = replaced {
            self.cancel_found(old);
        }
        let Some(id) = target else {
            self.store(item, due);
            self.look_at(due);
            return Some(accepted(SendOutcome::Waiting, item.id, Some(due)));
        };
        if self.rules.merge == Merge::Last {
            self.put_into(&id, item, due);
        }
        self.count("accepted", 1);
        self.count("merged", 1);
        self.entomb(item.id, End::Merged);
        self.into.insert(item.id.clone(), id.clone());
        let due = self.message(&id).due;
        Some(accepted(SendOutcome::Merged, &id, Some(due)))
    }

    /// The message that an item is merged into: no group has begun with it, and it has not lapsed.
    fn target(&self, now: u64, item: &Item<'_>) -> Option<MessageId> {
        let id = self.merge.get(&item.scope()?)?;
        let lapsed = || {
            let message = self.message(id);
            let too_late = self.rules.max_lateness.map(|most| message.due + most);
            message.lapse() <= now || too_late.is_some_and(|time| time <= now)
        };
        let open = matches!(self.find(id), Where::Waiting | Where::Held { .. });
        (open && !lapsed()).then(|| id.clone())
    }

    /// Returns whether an item exceeds the limit; one that changes nothing never does. One that replaces another
    /// message is measured as one that is stored, even if it is merged in the end.
    fn is_full(&self, item: &Item<'_>, target: Option<&MessageId>) -> bool {
        let last = self.rules.merge == Merge::Last;
        let target = target.filter(|_| item.replace.is_none());
        let bytes_of = |id: Option<&MessageId>| {
            let meta = id.and_then(|id| self.message(id).meta.as_ref());
            meta.map_or(0, |meta| meta.bytes)
        };
        // What stays in some garbage is stored on.
        let freed = item.replace.filter(|id| {
            !matches!(
                self.find(id),
                Where::Held {
                    in_garbage: true,
                    ..
                }
            )
        });
        let bytes = self
            .counters
            .get("bytes")
            .copied()
            .unwrap_or(0)
            .unsigned_abs();
        let record = encoded(item.record).len() as u64;
        let (messages, bytes) = match target {
            Some(_) if !last => (0, bytes),
            Some(id) => (0, bytes - bytes_of(Some(id)) + record),
            None => {
                let stored = self.messages.values().filter(|m| m.record.is_some());
                (stored.count() as u64 + 1, bytes + record)
            }
        };
        let messages = messages.saturating_sub(u64::from(freed.is_some()));
        // A merged or replaced message is remembered; for a merged one, also its survivor.
        let ends = match (target, item.replace) {
            (Some(_), _) => 2,
            (None, replaced) => usize::from(replaced.is_some()),
        };
        let tombs = (self.tomb.len() + self.into.len() + ends) as u64;
        let bytes = bytes - bytes_of(freed) + TOMB_BYTES * tombs;
        self.rules.max_messages.is_some_and(|most| messages > most)
            || self.rules.max_bytes.is_some_and(|most| bytes > most)
    }

    fn store(&mut self, item: &Item<'_>, due: u64) {
        let ttl = self.ttl(item);
        let bytes = match self.rules.max_bytes {
            Some(_) => encoded(item.record).len() as u64,
            None => 0,
        };
        let scope = item.scope();
        let uses = bytes > 0 || ttl != 0 || item.is_ranked() || !item.key.is_empty();
        let mut message = Message {
            record: Some(item.record.clone()),
            due,
            waiting: true,
            meta: None,
            owed: 0,
            fanned_out: false,
            indexed: self.rules.key_index && !item.key.is_empty(),
        };
        if uses && self.general {
            let most = self.rules.max_wait.filter(|_| scope.is_some());
            message.meta = Some(Meta {
                arrival: self.arrive(),
                due,
                priority: item.priority,
                ttl,
                cap: most.map_or(0, |most| self.call.now + most),
                bytes,
                key: item.key.clone(),
                merge: item.merge.clone(),
                exempt: String::new(),
                survivor: false,
            });
        }
        if let Some(scope) = scope {
            self.merge.insert(scope, item.id.clone());
        }
        self.count("bytes", bytes as i64);
        self.count("accepted", 1);
        self.messages.insert(item.id.clone(), message);
    }

    fn ttl(&self, item: &Item<'_>) -> i64 {
        match item.ttl {
            0 => self.rules.ttl.map_or(0, |ttl| ttl as i64),
            own => own,
        }
    }

    /// Puts payload and options of a later send into a message that no group has begun with, which waits again.
    fn put_into(&mut self, id: &MessageId, item: &Item<'_>, due: u64) {
        let (now, ttl) = (self.call.now, self.ttl(item));
        let groups = match self.find(id) {
            Where::Held { groups, .. } => groups,
            _ => Vec::new(),
        };
        for g in &groups {
            self.take_out(*g, id);
        }
        let bytes = encoded(item.record).len() as i64;
        let message = self.message_mut(id);
        message.record = Some(item.record.clone());
        let meta = message.meta.as_mut().expect("a merge key is kept in meta");
        (meta.priority, meta.ttl, meta.survivor) = (item.priority, ttl, true);
        let due = match meta.cap {
            0 => due,
            cap => due.min(cap.max(now)),
        };
        let before = std::mem::replace(&mut meta.bytes, bytes as u64);
        if before == 0 {
            meta.bytes = 0;
        } else {
            self.count("bytes", bytes - before as i64);
        }
        self.wait_again(id, due, &groups);
    }
}
