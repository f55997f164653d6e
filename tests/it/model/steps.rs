//! Random steps. A step names ids, not positions, so that what is left still makes sense when others are dropped.

use fastrand::Rng;

/// Ids that steps choose from: few, so that they meet again and again. Those with `c` are the caller's own.
const IDS: u32 = 20;
/// Consumers that steps choose from.
pub(super) const CONSUMERS: [&str; 2] = ["ada", "bob"];

/// One thing that happens, and whether it happens twice.
#[derive(Clone, Debug)]
pub(super) struct Step {
    pub(super) what: What,
    pub(super) twice: bool,
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
    Read {
        consumer: usize,
        count: usize,
    },
    /// Settles the newest delivery of each id, or one before it, which must be stale.
    Settle {
        items: Vec<(String, Ending)>,
        stale: bool,
    },
    Renew(Vec<String>),
    /// The consumers of these ids died long ago.
    Age(Vec<String>),
    Reclaim,
    LosePayload(String),
    /// XGROUP DELCONSUMER by somebody's hand.
    RemoveConsumer(usize),
    DropConsumer(usize),
    Cancel(String),
    Reschedule(String, Time),
    Requeue {
        ids: Vec<String>,
        outdated: bool,
    },
    Purge {
        ids: Vec<String>,
        outdated: bool,
    },
    PurgeOld,
    Clean,
    Pause(bool),
    Clock(i64),
    /// To the next due time, or 1 ms before it.
    ClockToDue {
        before: bool,
    },
    FlushScripts,
    Lookup(String),
}

/// One message of a send.
#[derive(Clone, Debug)]
pub(super) struct Sent {
    pub(super) id: String,
    pub(super) time: Time,
    pub(super) max_attempts: Option<u32>,
    /// Makes the payload differ from that of any other send.
    pub(super) nonce: u32,
}

/// How a delivery ends.
#[derive(Clone, Copy, Debug)]
pub(super) enum Ending {
    Ack,
    Retry(Time),
    Defer(Time),
    Reject,
    Lost,
}

/// Makes `count` steps.
pub(super) fn steps(seed: u64, count: usize) -> Vec<Step> {
    let mut rng = Rng::with_seed(seed);
    (0..count)
        .map(|_| Step {
            what: what(&mut rng),
            twice: rng.u8(0..100) < 30,
        })
        .collect()
}

fn what(rng: &mut Rng) -> What {
    match rng.u32(0..1000) {
        0..180 => What::Send(sent(rng)),
        180..340 => What::Move { batch: batch(rng) },
        340..480 => What::Read {
            consumer: rng.usize(0..CONSUMERS.len()),
            count: rng.usize(1..8),
        },
        480..640 => What::Settle {
            items: ids(rng).into_iter().map(|id| (id, ending(rng))).collect(),
            stale: rng.u8(0..4) == 0,
        },
        640..665 => What::Renew(ids(rng)),
        665..705 => What::Age(ids(rng)),
        705..755 => What::Reclaim,
        755..763 => What::LosePayload(id(rng)),
        763..771 => What::RemoveConsumer(rng.usize(0..CONSUMERS.len())),
        771..779 => What::DropConsumer(rng.usize(0..CONSUMERS.len())),
        779..809 => What::Cancel(id(rng)),
        809..839 => What::Reschedule(id(rng), time(rng)),
        839..869 => What::Requeue {
            ids: ids(rng),
            outdated: rng.u8(0..5) == 0,
        },
        869..884 => What::Purge {
            ids: ids(rng),
            outdated: rng.u8(0..5) == 0,
        },
        884..892 => What::PurgeOld,
        892..912 => What::Clean,
        // A relay that is paused for long tests little.
        912..918 => What::Pause(true),
        918..930 => What::Pause(false),
        930..940 => What::Clock(rng.i64(0..6)),
        940..950 => What::Clock(rng.i64(0..3000)),
        950..955 => What::Clock(rng.i64(3000..70_000)),
        955..959 => What::Clock(-rng.i64(1..=1000)),
        959..961 => What::Clock(-rng.i64(1001..8000)),
        961..987 => What::ClockToDue { before: rng.bool() },
        987..990 => What::FlushScripts,
        _ => What::Lookup(id(rng)),
    }
}

fn id(rng: &mut Rng) -> String {
    format!("{}{}", if rng.bool() { 'c' } else { 'g' }, rng.u32(0..IDS))
}

/// One to many ids, none twice.
fn ids(rng: &mut Rng) -> Vec<String> {
    let most = if rng.u8(0..4) == 0 { 30 } else { 4 };
    let mut ids: Vec<_> = (0..rng.u32(1..most)).map(|_| id(rng)).collect();
    ids.sort();
    ids.dedup();
    rng.shuffle(&mut ids);
    ids
}

fn sent(rng: &mut Rng) -> Vec<Sent> {
    let ids = ids(rng);
    let one = |id| Sent {
        id,
        time: time(rng),
        max_attempts: (rng.u8(0..3) == 0).then(|| rng.u32(1..5)),
        nonce: rng.u32(..),
    };
    ids.into_iter().map(one).collect()
}

fn batch(rng: &mut Rng) -> u16 {
    match rng.u8(0..4) {
        0 => 500,
        1 => 1,
        _ => rng.u16(1..8),
    }
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

fn ending(rng: &mut Rng) -> Ending {
    match rng.u8(0..10) {
        0..4 => Ending::Ack,
        4..7 => Ending::Retry(time(rng)),
        7 => Ending::Defer(time(rng)),
        8 => Ending::Reject,
        _ => Ending::Lost,
    }
}
