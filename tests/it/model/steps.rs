//! Random steps. A step names ids, not positions, so that the rest still makes sense when other steps are dropped.

use super::mix::Mix;
use fastrand::Rng;
use lisa_core::broker::{Removal, Retirement};

/// Consumers that steps choose from.
pub(super) const CONSUMERS: [&str; 2] = ["ada", "bob"];

/// One thing that happens, and whether it happens twice.
#[derive(Clone, Debug)]
pub(super) struct Step {
    pub(super) what: What,
    pub(super) twice: bool,
    /// True if a process does it that knows the topic as it was when a removal began.
    pub(super) late: bool,
}

/// A time as a step says it, in ms from the virtual now.
#[derive(Clone, Copy, Debug)]
pub(super) enum Time {
    After(u64),
    At(i64),
}

#[derive(Clone, Debug)]
pub(super) enum What {
    Send(Vec<Sent>),
    Move {
        batch: u16,
    },
    /// Reads up to `count`, then takes up to `each` parked messages of each key that was read.
    Read {
        consumer: usize,
        count: usize,
        each: usize,
    },
    /// Settles the newest delivery of each id in a group, or one before it, which must be stale.
    Settle {
        group: usize,
        items: Vec<(String, Ending)>,
        stale: bool,
    },
    /// Renews with the mark of a suspect in its turn, without it, or leaving it as it is.
    Renew(Vec<String>, Option<bool>),
    /// Sets a lease of their own for deliveries, in ms, as a pull does, or an extension.
    Lease {
        ids: Vec<String>,
        consumer: usize,
        lease: u64,
    },
    /// The consumers of these ids died long ago.
    Age(Vec<String>),
    Reclaim,
    LosePayload(String),
    /// XGROUP DELCONSUMER, run by hand.
    RemoveConsumer(usize),
    DropConsumer(usize),
    Cancel(String),
    Reschedule(String, Time),
    Requeue {
        group: usize,
        ids: Vec<String>,
        outdated: bool,
    },
    Purge {
        group: usize,
        ids: Vec<String>,
        outdated: bool,
    },
    PurgeOld,
    Clean,
    Pause(bool),
    PauseGroup(usize, bool),
    Retire(usize, Option<Retirement>),
    /// Drops in batches of this many.
    RemoveGroup(usize, u16),
    /// The instance joins, or renews its lease.
    Join,
    /// Creates the removed groups again, or the removed topic.
    Declare,
    /// The same with other features, those of the mix of this seed.
    Configure(u64),
    /// Begins the removal of the topic: at any epoch, or at the current one or an old one only.
    RemoveTopic(Removal, Option<Seen>),
    /// A manager removes a shard that can go, or all of them, the first one last.
    RemoveShards(Option<u16>),
    /// Changes the number of shards. Only a topic that is being removed, or was, is asked for another number.
    Reshard,
    Clock(i64),
    /// Advances the clock to the next due time, or to 1 ms before it.
    ClockToDue {
        before: bool,
    },
    FlushScripts,
    Lookup(String),
    /// A client acknowledges a delivery that has ended.
    AckLate(usize, String),
    /// A client postpones the message of a delivery that has ended, by this many ms.
    Hide(usize, String, u64),
}

/// The epoch that the caller of a removal has seen.
#[derive(Clone, Copy, Debug)]
pub(super) enum Seen {
    Current,
    Old,
}

/// One message of a send.
#[derive(Clone, Debug)]
pub(super) struct Sent {
    pub(super) id: String,
    pub(super) time: Time,
    pub(super) max_attempts: Option<u32>,
    /// Its own delay after a failure without a report, in ms.
    pub(super) retry: Option<u64>,
    /// Makes the payload differ from that of any other send.
    pub(super) nonce: u32,
    pub(super) key: &'static str,
    pub(super) merge: &'static str,
    pub(super) priority: i32,
    pub(super) ttl: Option<Time>,
    pub(super) replace: Option<String>,
}

/// The end of a delivery.
#[derive(Clone, Copy, Debug)]
pub(super) enum Ending {
    Ack,
    Retry(Time),
    Defer(Time),
    HandBack(Time),
    Reject,
    Expired,
    Lost,
}

/// Rare steps, as numbers that `what` takes, of which each run has a favorite: many bugs depend on two of them that
/// follow each other.
const FAVOURITES: [std::ops::Range<u32>; 12] = [
    // A pull, and what ends its lease.
    640..755,
    665..755,
    763..779,
    779..809,
    809..839,
    839..869,
    839..884,
    892..934,
    934..950,
    961..966,
    // A group that is dropped in part, and kept.
    934..944,
    // Calls that come late.
    986..994,
];

/// Makes `count` steps.
pub(super) fn steps(seed: u64, count: usize, mix: &Mix) -> Vec<Step> {
    let mut rng = Rng::with_seed(seed);
    let favourite = FAVOURITES[rng.usize(0..FAVOURITES.len())].clone();
    let number = |rng: &mut Rng| match rng.u8(0..8) {
        0 => rng.u32(favourite.clone()),
        _ => rng.u32(0..1000),
    };
    (0..count)
        .map(|_| Step {
            what: match mix.removals && rng.u8(0..100) < 15 {
                true => removal(&mut rng, mix),
                false => what(number(&mut rng), &mut rng, mix),
            },
            twice: rng.u8(0..100) < 30,
            late: mix.removals && rng.bool(),
        })
        .collect()
}

/// A step of the end of the topic, or of its return.
fn removal(rng: &mut Rng, mix: &Mix) -> What {
    let shards = mix.settings.shards;
    match rng.u8(0..14) {
        0..4 => {
            // A drain takes long.
            let how = [Removal::Drain, Removal::Force, Removal::Force][rng.usize(0..3)];
            let seen = [None, None, Some(Seen::Current), Some(Seen::Old)];
            What::RemoveTopic(how, seen[rng.usize(0..4)])
        }
        4..9 => What::RemoveShards(rng.bool().then(|| rng.u16(0..shards))),
        9 => What::Reshard,
        _ => What::Declare,
    }
}

fn what(number: u32, rng: &mut Rng, mix: &Mix) -> What {
    match number {
        0..180 => What::Send(sent(rng, mix)),
        180..340 => What::Move { batch: batch(rng) },
        340..480 => What::Read {
            consumer: rng.usize(0..CONSUMERS.len()),
            count: rng.usize(1..8),
            each: [0, 0, 0, 1, 2, 9][rng.usize(0..6)],
        },
        480..640 => What::Settle {
            group: group(rng, mix),
            items: ids(rng, mix)
                .into_iter()
                .map(|id| (id, ending(rng)))
                .collect(),
            stale: rng.u8(0..4) == 0,
        },
        640..650 => What::Lease {
            ids: ids(rng, mix),
            consumer: rng.usize(0..CONSUMERS.len()),
            lease: rng.u64(1..4000),
        },
        650..665 => What::Renew(
            ids(rng, mix),
            [Some(true), Some(true), Some(false), None][rng.usize(0..4)],
        ),
        665..705 => What::Age(ids(rng, mix)),
        705..755 => What::Reclaim,
        755..763 => What::LosePayload(id(rng, mix)),
        763..771 => What::RemoveConsumer(rng.usize(0..CONSUMERS.len())),
        771..779 => What::DropConsumer(rng.usize(0..CONSUMERS.len())),
        779..809 => What::Cancel(id(rng, mix)),
        809..839 => What::Reschedule(id(rng, mix), time(rng)),
        839..869 => What::Requeue {
            group: group(rng, mix),
            ids: ids(rng, mix),
            outdated: rng.u8(0..5) == 0,
        },
        869..884 => What::Purge {
            group: group(rng, mix),
            ids: ids(rng, mix),
            outdated: rng.u8(0..5) == 0,
        },
        884..892 => What::PurgeOld,
        892..912 => What::Clean,
        // A relay that is paused for long tests little.
        912..917 => What::Pause(true),
        917..925 => What::Pause(false),
        925..929 if mix.group_verbs => What::PauseGroup(group(rng, mix), true),
        929..934 if mix.group_verbs => What::PauseGroup(group(rng, mix), false),
        934..939 if mix.group_verbs => What::Retire(group(rng, mix), retiring(rng)),
        939..944 if mix.group_verbs => What::RemoveGroup(group(rng, mix), dropped(rng)),
        944..946 if mix.group_verbs => What::Declare,
        946..950 if mix.group_verbs => What::Join,
        925..941 => What::Clock(rng.i64(0..6)),
        941..950 => What::Clock(rng.i64(0..3000)),
        950..955 => What::Clock(rng.i64(3000..70_000)),
        955..959 => What::Clock(-rng.i64(1..=1000)),
        959..961 if mix.large_steps_back => What::Clock(-rng.i64(1001..8000)),
        961..966 if mix.configures => What::Configure(rng.u64(..)),
        961..984 => What::ClockToDue { before: rng.bool() },
        984..986 => What::FlushScripts,
        986..990 => What::AckLate(group(rng, mix), late_id(rng, mix)),
        990..994 => What::Hide(group(rng, mix), late_id(rng, mix), hidden_for(rng)),
        _ => What::Lookup(id(rng, mix)),
    }
}

fn id(rng: &mut Rng, mix: &Mix) -> String {
    let is_own = rng.bool();
    numbered(is_own, rng, mix)
}

/// The id of a late call, which changes nothing if a caller chose it.
fn late_id(rng: &mut Rng, mix: &Mix) -> String {
    let is_own = rng.u8(0..8) == 0;
    numbered(is_own, rng, mix)
}

fn numbered(is_own: bool, rng: &mut Rng, mix: &Mix) -> String {
    format!("{}{}", if is_own { 'c' } else { 'g' }, rng.u32(0..mix.ids))
}

/// One to many ids, none twice.
fn ids(rng: &mut Rng, mix: &Mix) -> Vec<String> {
    let most = if rng.u8(0..4) == 0 { 30 } else { 4 };
    let mut ids: Vec<_> = (0..rng.u32(1..most)).map(|_| id(rng, mix)).collect();
    ids.sort();
    ids.dedup();
    rng.shuffle(&mut ids);
    ids
}

fn group(rng: &mut Rng, mix: &Mix) -> usize {
    rng.usize(0..mix.groups().len())
}

fn retiring(rng: &mut Rng) -> Option<Retirement> {
    [None, Some(Retirement::Drain), Some(Retirement::Drop)][rng.usize(0..3)]
}

fn sent(rng: &mut Rng, mix: &Mix) -> Vec<Sent> {
    let ids = ids(rng, mix);
    let one = |id| Sent {
        id,
        time: time(rng),
        max_attempts: (rng.u8(0..3) == 0).then(|| rng.u32(1..5)),
        retry: (rng.u8(0..8) == 0).then(|| rng.u64(0..3000)),
        nonce: rng.u32(..),
        key: mix.keys[rng.usize(0..mix.keys.len())],
        merge: mix.merges[rng.usize(0..mix.merges.len())],
        priority: if mix.priorities { rng.i32(-1..3) } else { 0 },
        ttl: (mix.ttls && rng.bool()).then(|| ttl(rng)),
        replace: (mix.replaces && rng.u8(0..5) == 0).then(|| self::id(rng, mix)),
    };
    let mut sent: Vec<_> = ids.into_iter().map(one).collect();
    // What a later one of the same send stores could be replaced only when the send is repeated.
    let mut later = Vec::new();
    for sent in sent.iter_mut().rev() {
        later.push(sent.id.clone());
        sent.replace.take_if(|old| later.contains(old));
    }
    sent
}

fn batch(rng: &mut Rng) -> u16 {
    match rng.u8(0..4) {
        0 => 500,
        1 => 1,
        _ => rng.u16(1..8),
    }
}

/// Mostly few, so that a partly dropped group can still be kept.
fn dropped(rng: &mut Rng) -> u16 {
    if rng.u8(0..4) == 0 { 50 } else { rng.u16(1..4) }
}

fn time(rng: &mut Rng) -> Time {
    match rng.u8(0..8) {
        0 | 1 => Time::After(0),
        2 => Time::After(rng.u64(1..5)),
        3 => Time::After(rng.u64(0..4000)),
        4 => Time::After(rng.u64(4000..60_000)),
        5 => Time::At(-rng.i64(0..10_000)),
        6 => Time::At(rng.i64(0..5)),
        _ => Time::At(rng.i64(0..4000)),
    }
}

fn ttl(rng: &mut Rng) -> Time {
    match rng.u8(0..4) {
        0 => Time::At(rng.i64(-100..4000)),
        1 => Time::After(rng.u64(1..10)),
        _ => Time::After(rng.u64(1..4000)),
    }
}

fn hidden_for(rng: &mut Rng) -> u64 {
    [0, 1, rng.u64(2..4000)][rng.usize(0..3)]
}

fn ending(rng: &mut Rng) -> Ending {
    match rng.u8(0..10) {
        0..4 => Ending::Ack,
        4..7 => Ending::Retry(time(rng)),
        7 if rng.bool() => Ending::Defer(time(rng)),
        7 => Ending::HandBack(time(rng)),
        8 => Ending::Reject,
        _ if rng.bool() => Ending::Expired,
        _ => Ending::Lost,
    }
}
