//! The expected contents of one shard after each call, in plain maps: a second implementation of the rules in
//! docs/internals/lifecycle.md. It talks to no server; Redis chooses entry ids, and the reference learns them.
//!
//! A plain topic is the case without features; only send and move differ by class, as a plain one takes shorter paths.

mod copies;
mod late;
mod moving;
mod removal;
mod rules;
mod send;
mod settle;
mod verbs;

pub(super) use removal::Refused;
pub(super) use rules::Rules;

use lisa_core::broker::{Removal, Retirement};
use lisa_core::message::{EntryId, MessageId, Record};
use lisa_core::state::{End, Ended};
use lisa_tests::snapshot::Text;
use std::collections::{BTreeMap, BTreeSet};

/// The suffix of the name of a consumer that only holds deliveries with a lease of their own.
pub(super) const HOLDS_LEASES: &str = "-leases";

/// The fields that Redis keeps for a message that uses a feature.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Meta {
    /// 0 if it got its meta only when it became due for a gated group.
    pub(super) arrival: u64,
    pub(super) due: u64,
    pub(super) priority: i32,
    /// ms after the due time; negative: minus an instant; 0: none.
    pub(super) ttl: i64,
    /// The latest time to which merging may postpone it; 0 for no limit.
    pub(super) cap: u64,
    /// The bytes of its record, where the stored bytes are limited.
    pub(super) bytes: u64,
    pub(super) key: String,
    pub(super) merge: String,
    /// The groups in which it does not expire any more, each between two blanks.
    pub(super) exempt: String,
    /// True if a later send took its state: its end is remembered.
    pub(super) survivor: bool,
}

impl Meta {
    /// Returns whether more than its due time decides when it goes.
    pub(super) fn is_ranked(&self) -> bool {
        self.priority != 0 || !self.merge.is_empty()
    }
}

/// A message that some group still owes, or all.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Message {
    /// None if it was lost.
    pub(super) record: Option<Record>,
    pub(super) due: u64,
    pub(super) waiting: bool,
    pub(super) meta: Option<Meta>,
    /// The groups that owe it, once it became due.
    pub(super) owed: u32,
    /// True if it became due for several groups.
    pub(super) fanned_out: bool,
    /// True if it is in the index of ordering keys.
    pub(super) indexed: bool,
}

impl Message {
    /// Returns the time from which it is not worth delivering.
    pub(super) fn lapse(&self) -> u64 {
        match self.meta.as_ref().map_or(0, |meta| meta.ttl) {
            0 => u64::MAX,
            ttl if ttl > 0 => self.due + ttl.unsigned_abs(),
            instant => instant.unsigned_abs(),
        }
    }

    /// Returns the time from which it is not worth delivering to a group.
    pub(super) fn lapse_in(&self, group: &str) -> u64 {
        let mut exempt = self.meta.iter().flat_map(|meta| meta.exempt.split(' '));
        if exempt.any(|other| other == group) {
            return u64::MAX;
        }
        self.lapse()
    }

    pub(super) fn key(&self) -> String {
        self.meta
            .as_ref()
            .map_or_else(String::new, |m| m.key.clone())
    }

    /// Returns the key that orders messages of one due time: those without an arrival come first, by id.
    pub(super) fn arrival(&self) -> u64 {
        self.meta.as_ref().map_or(0, |meta| meta.arrival)
    }
}

/// The state of a group's copy of a message that became due.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum CopyState {
    Backlog,
    Parked,
    Stream,
    Retry(u64),
    Garbage(InGarbage),
}

/// The holder of an entry of the stream.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Holder {
    /// No consumer yet: it is ready.
    Ready,
    /// A consumer, in flight.
    Held {
        consumer: String,
        mark: Mark,
        aged: bool,
    },
    /// No consumer any more: it was removed by force.
    Unheld,
}

/// The meaning of the delivery count of an entry in flight.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum Mark {
    #[default]
    None,
    /// A suspect on trial.
    Suspect,
    /// A pulled delivery, and the end of its lease.
    Pulled(u64),
}

impl Mark {
    pub(super) fn count(self) -> u64 {
        match self {
            Self::None => 1,
            Self::Suspect => 2,
            Self::Pulled(end) => end,
        }
    }
}

/// An entry of the stream.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Delivery {
    pub(super) id: MessageId,
    pub(super) attempt: u32,
    pub(super) due: u64,
    pub(super) crashes: u32,
    pub(super) expires: Option<u64>,
    /// The time at which the group's rate let it go, if it was due before.
    pub(super) released: Option<u64>,
    pub(super) entry: Option<EntryId>,
    pub(super) holder: Holder,
}

/// A message in garbage.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct InGarbage {
    pub(super) time: u64,
    pub(super) reason: &'static str,
    pub(super) attempts: u32,
    pub(super) error: String,
}

/// Attempts made, crashes since the last attempt that ended by itself, and the last error. Also the due time of the next
/// attempt, if it is neither the message's due time nor the time in `retry`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Tries {
    pub(super) attempts: u32,
    pub(super) crashes: u32,
    pub(super) error: String,
    pub(super) due: Option<u64>,
}

impl Tries {
    /// Returns whether nothing of it needs to be kept.
    pub(super) fn is_empty(&self) -> bool {
        self.attempts == 0 && self.crashes == 0 && self.error.is_empty() && self.due.is_none()
    }
}

/// The messages of an ordering key that are not parked.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Holders {
    One(MessageId),
    /// Those that are left of several that a pull took together.
    Together(Vec<MessageId>),
}

impl Holders {
    pub(super) fn all(&self) -> &[MessageId] {
        match self {
            Self::One(id) => std::slice::from_ref(id),
            Self::Together(ids) => ids,
        }
    }

    /// Returns the others, `None` if there are none.
    fn without(&self, id: &MessageId) -> Option<Self> {
        let others: Vec<_> = self.all().iter().filter(|other| *other != id).collect();
        let others: Vec<_> = others.into_iter().cloned().collect();
        (!others.is_empty()).then_some(Self::Together(others))
    }
}

/// One group.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct Group {
    pub(super) name: String,
    pub(super) paused: bool,
    pub(super) retiring: Option<Retirement>,
    /// The end of the lease, for a group of one instance.
    pub(super) lease: Option<u64>,
    pub(super) states: BTreeMap<MessageId, CopyState>,
    pub(super) stream: Vec<Delivery>,
    pub(super) tries: BTreeMap<MessageId, Tries>,
    /// Ordering key to what of it is not parked.
    pub(super) holders: BTreeMap<String, Holders>,
    /// The time at which the rate would be at rest.
    pub(super) tat: Option<f64>,
    pub(super) consumers: BTreeSet<String>,
    pub(super) last_delivered: Option<EntryId>,
}

impl Group {
    fn named(name: &str) -> Self {
        Self {
            name: name.to_owned(),
            ..Self::default()
        }
    }

    pub(super) fn retry_at(&self, id: &MessageId) -> Option<u64> {
        match self.states.get(id) {
            Some(CopyState::Retry(time)) => Some(*time),
            _ => None,
        }
    }

    pub(super) fn in_garbage(&self, id: &MessageId) -> Option<&InGarbage> {
        match self.states.get(id) {
            Some(CopyState::Garbage(in_garbage)) => Some(in_garbage),
            _ => None,
        }
    }

    pub(super) fn count(&self, which: impl Fn(&CopyState) -> bool) -> usize {
        self.states.values().filter(|state| which(state)).count()
    }

    /// Removes what is ready, after reading it.
    fn set_ready_aside(&mut self) -> Vec<Delivery> {
        let ready = self.stream.extract_if(.., |d| d.holder == Holder::Ready);
        let ready: Vec<_> = ready.collect();
        if let Some(last) = ready.last() {
            self.last_delivered = last.entry;
        }
        ready
    }

    /// The position of an entry.
    pub(super) fn find(&self, entry: EntryId) -> Option<usize> {
        self.stream.iter().position(|d| d.entry == Some(entry))
    }
}

/// One shard.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Reference {
    pub(super) rules: Rules,
    pub(super) general: bool,
    pub(super) epoch: u64,
    /// The way in which the topic is being removed.
    pub(super) removal: Option<Removal>,
    /// True if the shard was removed with its topic. Then it has nothing, and of its fields, only the epoch counts.
    pub(super) is_gone: bool,
    /// The window that a message brought along.
    pub(super) window: Option<u64>,
    pub(super) paused: bool,
    pub(super) groups: Vec<Group>,
    pub(super) messages: BTreeMap<MessageId, Message>,
    /// Ordering key and merge key to the message that can still be merged into.
    pub(super) merge: BTreeMap<(String, String), MessageId>,
    /// Time and code.
    pub(super) tomb: BTreeMap<MessageId, (u64, End)>,
    /// A merged id to the message that it was merged into, as long as it has a tombstone.
    pub(super) into: BTreeMap<MessageId, MessageId>,
    /// The fields of each failed attempt, the oldest first.
    pub(super) failures: Vec<BTreeMap<Text, Text>>,
    pub(super) counters: BTreeMap<String, i64>,
    pub(super) arrivals: u64,
    pub(super) last_time: Option<u64>,
    pub(super) alarm: Option<u64>,
    call: Call,
}

/// State that a call keeps until its end.
#[derive(Clone, Debug, Default, PartialEq)]
struct Call {
    now: u64,
    /// Entries it may still write; the limit cuts a chain of lapsed messages.
    budget: i64,
    /// The time at which the mover next has something to do.
    earliest: Option<u64>,
}

impl Reference {
    pub(super) fn new(rules: Rules, groups: &[String]) -> Self {
        Self {
            general: rules.needs_general,
            epoch: 1,
            rules,
            removal: None,
            is_gone: false,
            window: None,
            paused: false,
            groups: groups.iter().map(|name| Group::named(name)).collect(),
            messages: BTreeMap::new(),
            merge: BTreeMap::new(),
            tomb: BTreeMap::new(),
            into: BTreeMap::new(),
            failures: Vec::new(),
            counters: BTreeMap::new(),
            arrivals: 0,
            last_time: None,
            alarm: None,
            call: Call::default(),
        }
    }

    /// The scripts' time when the clock says `clock`: held for a step back of up to a second.
    pub(super) fn now(&self, clock: u64) -> u64 {
        match self.last_time {
            Some(last) if clock < last && last - clock <= 1000 => last,
            _ => clock,
        }
    }

    /// Begins a call that may write `budget` entries.
    fn begin(&mut self, clock: u64, budget: usize) -> u64 {
        let now = self.now(clock);
        self.call = Call {
            now,
            budget: budget as i64,
            earliest: None,
        };
        now
    }

    /// Ends a call: messages with room in `groups` continue, and the mover is notified of its work.
    fn finish(&mut self, groups: impl IntoIterator<Item = usize>) {
        for group in groups {
            self.pump(group);
        }
        self.lift_window();
        if !self.paused {
            self.wake(self.call.earliest);
        }
    }

    /// The window that ranked messages brought goes with the last of them.
    fn lift_window(&mut self) {
        let is_ranked = |message: &Message| message.meta.as_ref().is_some_and(Meta::is_ranked);
        if self.window.is_some() && !self.messages.values().any(is_ranked) {
            self.window = None;
            self.look_at(self.call.now);
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

    fn look_at(&mut self, time: u64) {
        self.call.earliest = self.call.earliest.into_iter().chain([time]).min();
    }

    fn count(&mut self, what: &str, by: i64) {
        *self.counters.entry(what.to_owned()).or_default() += by;
    }

    fn count_in(&mut self, g: usize, what: &str, by: i64) {
        let name = format!("{what}:{}", self.groups[g].name);
        self.count(&name, by);
    }

    fn arrive(&mut self) -> u64 {
        self.arrivals += 1;
        self.arrivals
    }

    fn entomb(&mut self, id: &MessageId, end: End) {
        self.tomb.insert(id.clone(), (self.call.now, end));
    }

    pub(super) fn end(&self, id: &MessageId) -> Option<End> {
        self.tomb.get(id).map(|(_, end)| *end)
    }

    /// Returns how a missing message ended, and its survivor if it has one.
    pub(super) fn ended(&self, id: &MessageId) -> Option<Ended> {
        let how = self.end(id)?;
        let into = self.into.get(id).filter(|_| how == End::Merged);
        Some(Ended {
            how,
            into: into.cloned(),
        })
    }

    /// The state of a group, unless it is gone.
    pub(super) fn place_of(&self, name: &lisa_core::topic::Group) -> Option<usize> {
        let names = self.groups.iter().map(|group| &group.name[..]);
        names.into_iter().position(|other| other == name.as_str())
    }

    /// The groups that are there, by state.
    pub(super) fn names(&self) -> Vec<(usize, lisa_core::topic::Group)> {
        let names = self.groups.iter().map(|group| group.name.parse());
        names
            .map(|name| name.expect("a group"))
            .enumerate()
            .collect()
    }

    fn all_groups(&self) -> std::ops::Range<usize> {
        0..self.groups.len()
    }

    /// Delivers up to `count` ready entries of a group to a consumer.
    pub(super) fn read(&mut self, g: usize, consumer: &str, count: usize) -> Vec<Delivery> {
        let group = &mut self.groups[g];
        let ready = group
            .stream
            .iter_mut()
            .filter(|d| d.holder == Holder::Ready);
        let mut read = Vec::new();
        for delivery in ready.take(count) {
            delivery.holder = Holder::Held {
                consumer: consumer.to_owned(),
                mark: Mark::None,
                aged: false,
            };
            read.push(delivery.clone());
        }
        if let Some(last) = read.last() {
            group.last_delivered = last.entry;
            group.consumers.insert(consumer.to_owned());
        }
        read
    }

    /// Delivers parked messages to the consumer that has just read `items`, their holders: up to `most` in all, and `each` of a
    /// key. Returns how many of `items` it keeps, and the new deliveries.
    pub(super) fn take_parked(
        &mut self,
        clock: u64,
        g: usize,
        consumer: &str,
        items: &[Delivery],
        (most, each): (usize, usize),
    ) -> (usize, Vec<Delivery>) {
        let group = &self.groups[g];
        let is_ready = |d: &Delivery| d.holder == Holder::Ready;
        let has_parked = group.count(|state| *state == CopyState::Parked) > 0;
        let ready = group.stream.iter().filter(|d| is_ready(d)).count();
        if !has_parked || self.is_gated(g) || ready > 16 {
            return (items.len(), Vec::new());
        }
        self.begin(clock, most);
        let (mut kept, mut sent) = (0, 0);
        let mut aside: Option<Vec<_>> = None;
        for item in items {
            if kept + sent >= most {
                break;
            }
            kept += 1;
            let room = (most - kept - sent).min(each - 1);
            let room = room.min(usize::try_from(self.call.budget).unwrap_or(0));
            let key = self.message(&item.id).key();
            let group = &self.groups[g];
            let is_lead = group.holders.get(&key) == Some(&Holders::One(item.id.clone()));
            let is_there = group.stream.iter().any(|d| d.entry == item.entry);
            if key.is_empty() || !is_lead || !is_there {
                continue;
            }
            let mut together = vec![item.id.clone()];
            let behind = self.parked(g, &key, room);
            if !behind.is_empty() {
                let group = &mut self.groups[g];
                aside.get_or_insert_with(|| group.set_ready_aside());
            }
            for id in behind {
                if self.emit(g, &id, None) {
                    together.push(id);
                }
            }
            if together.len() > 1 {
                sent += together.len() - 1;
                let holders = &mut self.groups[g].holders;
                holders.insert(key, Holders::Together(together));
            }
        }
        let first = self.groups[g].stream.len() - sent;
        let mut taken: Vec<_> = self.groups[g].stream[first..].to_vec();
        for item in &items[kept..] {
            let stream = &mut self.groups[g].stream;
            if let Some(place) = stream.iter().position(|d| d.entry == item.entry) {
                let delivery = stream.remove(place);
                self.emit(g, &delivery.id, Some(delivery.due));
            }
        }
        for delivery in aside.into_iter().flatten() {
            self.emit(g, &delivery.id, Some(delivery.due));
        }
        self.finish([g]);
        for delivery in &mut taken {
            delivery.holder = Holder::Held {
                consumer: consumer.to_owned(),
                mark: Mark::None,
                aged: false,
            };
        }
        for delivery in &mut self.groups[g].stream {
            if let Some(taken) = taken.iter().find(|taken| taken.id == delivery.id) {
                delivery.holder = taken.holder.clone();
            }
        }
        (kept, taken)
    }

    /// All times at which something becomes due, is not worth delivering any more, or may be forgotten.
    pub(super) fn times(&self) -> Vec<u64> {
        let waiting = self.messages.values().filter(|message| message.waiting);
        let lapses = self.messages.values().map(Message::lapse);
        let kept = self.tomb.values();
        let kept = kept.map(|(time, _)| time + self.rules.dedup_window);
        let mut times: Vec<_> = waiting.map(|message| message.due).chain(kept).collect();
        times.extend(lapses.filter(|lapse| *lapse < u64::MAX));
        for group in &self.groups {
            times.extend(group.states.keys().filter_map(|id| group.retry_at(id)));
        }
        times
    }

    /// Returns whether the latest call left some of its follow-up work to the next one.
    pub(super) fn is_cut(&self) -> bool {
        self.call.now > 0 && self.call.budget <= 0
    }

    /// Everything but counters and clocks: what a repeated call must leave alone.
    pub(super) fn states(&self) -> Self {
        let mut states = Self {
            counters: BTreeMap::new(),
            last_time: None,
            alarm: None,
            general: false,
            window: None,
            call: Call::default(),
            ..self.clone()
        };
        for group in &mut states.groups {
            group.tat = None;
        }
        states
    }
}

/// A record as Redis keeps it.
pub(super) fn encoded(record: &Record) -> Vec<u8> {
    let mut bytes = Vec::new();
    record.encode(&mut bytes);
    bytes
}
