//! The charges for crashes, simulated on the reference in virtual time: processes that die one after the other,
//! messages that kill them, and turns as a consumer assigns them to suspects. It does not use Redis; other tests check
//! that scripts and consumers do the same.

use super::reference::{CopyState, Holder, InGarbage, Mark, Reference, Rules};
use lisa_core::broker::{Settlement, Verdict};
use lisa_core::message::{EntryId, MessageId};
use lisa_core::time::When;
use lisa_core::topic::TopicSettings;
use lisa_tests::relay::{id, message, ms};
use std::collections::BTreeMap;

const STEP: u64 = 50;
const LEASE: u64 = 30_000;
const RESTART: u64 = 1_000;
const HANDLER_TIMEOUT: u64 = 300_000;
/// Longer than any of these simulations.
const END: u64 = 24 * 3_600_000;

/// A handler's work on a message, in ms.
#[derive(Clone, Copy)]
struct Work {
    takes: u64,
    kills_after: Option<u64>,
}

struct Running {
    id: MessageId,
    entry: EntryId,
    begun: u64,
    /// The end of the turn, for a suspect that holds it.
    turn_ends: Option<u64>,
}

/// One subscription of a process that is started again each time it dies.
struct Play {
    reference: Reference,
    clock: u64,
    entries: u64,
    works: BTreeMap<MessageId, Work>,
    concurrency: usize,
    starts_at: u64,
    running: Vec<Running>,
    /// The time at which the last postponed suspect comes back.
    last_return: u64,
    /// The times at which the leases of a dead process end.
    overdue: Vec<(u64, String)>,
    deaths: u32,
    acked_at: BTreeMap<MessageId, u64>,
    put_off: u32,
}

impl Play {
    fn new(concurrency: usize) -> Self {
        let settings = TopicSettings::default();
        Self {
            reference: Reference::new(Rules::of(&settings), &["default".to_owned()]),
            clock: 1_000_000,
            entries: 0,
            works: BTreeMap::new(),
            concurrency,
            starts_at: 0,
            running: Vec::new(),
            last_return: 0,
            overdue: Vec::new(),
            deaths: 0,
            acked_at: BTreeMap::new(),
            put_off: 0,
        }
    }

    fn send(&mut self, name: &str, max_attempts: u32, work: Work) {
        let mut message = message(name, When::NOW);
        message.record.caller_id = false;
        message.record.max_attempts = Some(max_attempts);
        self.works.insert(message.id.clone(), work);
        self.reference.send(self.clock, &[message]);
    }

    fn process(&self) -> String {
        format!("process {}", self.deaths)
    }

    fn step(&mut self) {
        self.clock += STEP;
        self.reclaim();
        self.reference.move_due(self.clock, 200, ms(1000));
        for delivery in &mut self.reference.groups[0].stream {
            if delivery.entry.is_none() {
                self.entries += 1;
                delivery.entry = Some(EntryId::new(self.entries, 0));
            }
        }
        if self.clock >= self.starts_at {
            self.handle();
        }
        if self.clock >= self.starts_at {
            self.read();
        }
    }

    fn reclaim(&mut self) {
        let clock = self.clock;
        for (_, process) in self.overdue.extract_if(.., |(at, _)| *at <= clock) {
            for delivery in &mut self.reference.groups[0].stream {
                if let Holder::Held { consumer, aged, .. } = &mut delivery.holder {
                    *aged |= *consumer == process;
                }
            }
            self.reference.reclaim(clock, 0);
        }
    }

    /// Handlers run on, end, or kill the process.
    fn handle(&mut self) {
        let clock = self.clock;
        let mut running = std::mem::take(&mut self.running);
        let ran = |one: &Running| clock - one.begun;
        let kills = |one: &Running| {
            let kills_after = self.works[&one.id].kills_after;
            kills_after.is_some_and(|after| ran(one) >= after)
        };
        if running.iter().any(kills) {
            return self.die();
        }
        for one in running.extract_if(.., |one| ran(one) >= self.works[&one.id].takes) {
            self.acked_at.insert(one.id.clone(), clock);
            let ack = settlement(one.entry, one.id, Verdict::Ack);
            self.reference.settle(clock, 0, &[ack]);
        }
        for one in &mut running {
            if one.turn_ends.take_if(|end| *end <= clock).is_some() {
                self.mark(one.entry, false);
            }
        }
        self.running = running;
    }

    fn read(&mut self) {
        let (clock, process) = (self.clock, self.process());
        // As one without a turn holds no permit, there may be more to read.
        loop {
            let free = self.concurrency - self.running.len();
            let read = self.reference.read(0, &process, free);
            if read.is_empty() {
                return;
            }
            for delivery in read {
                let (id, entry) = (delivery.id, delivery.entry.expect("a known entry"));
                let is_suspect = delivery.crashes >= 2;
                if is_suspect && self.running.iter().any(|one| one.turn_ends.is_some()) {
                    self.last_return = (self.last_return + 20).max(clock + 1000);
                    let when = When::After(ms(self.last_return - clock));
                    let back = settlement(entry, id, Verdict::HandBack { when });
                    self.reference.settle(clock, 0, &[back]);
                    self.put_off += 1;
                    continue;
                }
                let turn = 10_000 << delivery.crashes.saturating_sub(2).min(20);
                if is_suspect {
                    self.mark(entry, true);
                }
                self.running.push(Running {
                    id,
                    entry,
                    begun: clock,
                    turn_ends: is_suspect.then_some(clock + turn.min(HANDLER_TIMEOUT)),
                });
            }
        }
    }

    fn mark(&mut self, entry: EntryId, mark: bool) {
        let group = &mut self.reference.groups[0];
        let state = group.find(entry).expect("what runs is on the stream");
        if let Holder::Held { mark: kept, .. } = &mut group.stream[state].holder {
            *kept = if mark { Mark::Suspect } else { Mark::None };
        }
    }

    fn die(&mut self) {
        self.overdue.push((self.clock + LEASE, self.process()));
        self.running.clear();
        self.starts_at = self.clock + RESTART;
        self.deaths += 1;
    }

    /// Continues until every message has reached its end; returns how long that took.
    fn finish(&mut self) -> u64 {
        let begun = self.clock;
        while self.reference.messages.len() > self.garbage().len() {
            assert!(self.clock < END, "it does not end");
            self.step();
        }
        self.clock - begun
    }

    fn garbage(&self) -> BTreeMap<&str, &InGarbage> {
        let states = self.reference.groups[0].states.iter();
        let garbage = states.filter_map(|(id, state)| match state {
            CopyState::Garbage(in_garbage) => Some((id.as_str(), in_garbage)),
            _ => None,
        });
        garbage.collect()
    }

    /// Returns the number of attempts that crashes have cost a message so far.
    fn charged(&self, name: &str) -> u32 {
        let tries = self.reference.groups[0].tries.get(&id(name));
        tries.map_or(0, |tries| tries.attempts)
    }
}

fn settlement(entry: EntryId, id: MessageId, verdict: Verdict) -> Settlement {
    Settlement {
        entry,
        id,
        caller_id: false,
        max_attempts: u32::MAX,
        verdict,
    }
}

fn takes(takes: u64) -> Work {
    Work {
        takes,
        kills_after: None,
    }
}

fn kills_after(after: u64) -> Work {
    Work {
        takes: u64::MAX,
        kills_after: Some(after),
    }
}

/// One poisonous message among 999; returns the number of crashes until it is in garbage.
fn crashes_of(poison: Work, max_attempts: u32) -> u32 {
    let mut play = Play::new(100);
    for n in 0..999 {
        if n == 150 {
            play.send("poison", max_attempts, poison);
        }
        play.send(&format!("good-{n}"), max_attempts, takes(200));
    }
    play.finish();
    let garbage = play.garbage();
    assert_eq!(garbage.keys().collect::<Vec<_>>(), [&"poison"]);
    assert_eq!(garbage["poison"].attempts, max_attempts);
    assert_eq!(play.acked_at.len(), 999);
    play.deaths
}

#[test]
fn one_poisonous_message_costs_its_attempts_and_two_crashes() {
    for max_attempts in [1, 3, 16] {
        assert_eq!(crashes_of(kills_after(100), max_attempts), max_attempts + 2);
    }
}

#[test]
fn a_message_that_kills_late_costs_one_more_crash_for_each_time_its_turn_doubles() {
    for (seconds, more) in [(9, 0), (15, 1), (35, 2), (150, 4), (290, 5)] {
        assert_eq!(crashes_of(kills_after(seconds * 1000), 3), 3 + 2 + more);
    }
}

#[test]
fn one_kill_costs_a_lease_and_the_time_of_one_handler_however_many_are_in_flight() {
    let mut play = Play::new(100);
    for n in 0..100 {
        play.send(&format!("m{n}"), 3, takes(60_000));
    }
    play.step();
    play.die();
    let took = play.finish();
    assert!(took <= LEASE + 60_000 + RESTART + 3 * STEP, "{took} ms");
    assert_eq!((play.deaths, play.put_off), (1, 0));
    assert_eq!(play.garbage().len(), 0);
}

#[test]
fn a_host_that_kills_every_minute_slows_suspects_and_nothing_else() {
    let mut play = Play::new(50);
    let mut sent_at = BTreeMap::new();
    for second in 0..1200 {
        let (quick, long) = (format!("quick-{second}"), format!("long-{second}"));
        sent_at.insert(quick.clone(), play.clock);
        play.send(&quick, 16, takes(100));
        if second % 20 == 0 {
            play.send(&long, 16, takes(40_000));
        }
        for _ in 0..1000 / STEP {
            play.step();
        }
        if second % 60 == 59 {
            play.die();
        }
    }
    assert!(play.put_off > 0, "some were suspects");
    play.finish();
    assert_eq!(play.garbage().len(), 0);
    for (name, sent_at) in sent_at {
        let took = play.acked_at[&id(&name)] - sent_at;
        // In flight at one kill at most; and a restart is in the way.
        let most = LEASE + 2 * RESTART + 100 + 5 * STEP;
        assert!(took <= most, "{name} took {took} ms");
    }
}

#[test]
fn of_several_fresh_poisons_an_innocent_suspect_pays_one_attempt_a_crash_in_its_turn() {
    let mut play = Play::new(10);
    play.send("innocent", 16, takes(120_000));
    let (mut paid, mut in_turn) = (0, 0);
    for n in 0..12 {
        play.send(&format!("poison-{n}"), 2, kills_after(100));
        for _ in 0..5000 / STEP {
            let has_turn = |one: &Running| one.id == id("innocent") && one.turn_ends.is_some();
            let has_turn = play.running.iter().any(has_turn);
            let deaths = play.deaths;
            play.step();
            in_turn += u32::from(has_turn && play.deaths > deaths);
        }
        paid = play.charged("innocent").max(paid);
    }
    play.finish();
    assert!(paid <= in_turn && in_turn < play.deaths, "{paid} {in_turn}");
    let garbage: Vec<_> = play.garbage().into_keys().collect();
    assert_eq!(garbage.len(), 12);
    assert!(play.acked_at.contains_key(&id("innocent")));
}
