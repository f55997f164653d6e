//! What a consumer counts: for its own report, and for the metrics of its process.

use std::ops::AddAssign;
use std::sync::atomic::{AtomicU64, Ordering};

use lisa_shared::state::Settled;

/// What a consumer did from its start to its end.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct RunReport {
    /// Done.
    pub acked: u64,
    /// Failed, to come again.
    pub retried: u64,
    /// To come again, uncounted; what was handed back at the end is among them.
    pub deferred: u64,
    /// Given up.
    pub garbage: u64,
    /// Not worth delivering any more, and dropped.
    pub expired: u64,
    /// Found without payload.
    pub lost: u64,
    /// Lease lost: another delivery of the message counts.
    pub stale: u64,
    /// Ended, but Redis could not be told; they come again after their lease.
    pub unsettled: u64,
    /// Handlers that ran into their time-out.
    pub timed_out: u64,
    /// Handlers that panicked.
    pub panicked: u64,
    /// Messages in garbage whose hook is done.
    pub noticed: u64,
}

impl AddAssign for RunReport {
    fn add_assign(&mut self, more: Self) {
        self.acked += more.acked;
        self.retried += more.retried;
        self.deferred += more.deferred;
        self.garbage += more.garbage;
        self.expired += more.expired;
        self.lost += more.lost;
        self.stale += more.stale;
        self.unsettled += more.unsettled;
        self.timed_out += more.timed_out;
        self.panicked += more.panicked;
        self.noticed += more.noticed;
    }
}

/// A [`RunReport`] in the making.
#[derive(Debug, Default)]
pub(crate) struct Tally {
    acked: AtomicU64,
    retried: AtomicU64,
    deferred: AtomicU64,
    garbage: AtomicU64,
    expired: AtomicU64,
    lost: AtomicU64,
    stale: AtomicU64,
    unsettled: AtomicU64,
    timed_out: AtomicU64,
    panicked: AtomicU64,
    noticed: AtomicU64,
}

impl Tally {
    pub(crate) fn settled(&self, settled: Settled) {
        let counter = match settled {
            Settled::Acked => &self.acked,
            Settled::Retry { .. } => &self.retried,
            Settled::Deferred { .. } => &self.deferred,
            Settled::Garbage => &self.garbage,
            Settled::Expired => &self.expired,
            Settled::Lost => &self.lost,
            Settled::Stale => &self.stale,
        };
        counter.fetch_add(1, Ordering::Relaxed);
    }

    pub(crate) fn unsettled(&self, count: usize) {
        self.unsettled.fetch_add(count as u64, Ordering::Relaxed);
    }

    pub(crate) fn timed_out(&self) {
        self.timed_out.fetch_add(1, Ordering::Relaxed);
    }

    pub(crate) fn panicked(&self) {
        self.panicked.fetch_add(1, Ordering::Relaxed);
    }

    pub(crate) fn noticed(&self) {
        self.noticed.fetch_add(1, Ordering::Relaxed);
    }

    pub(crate) fn report(&self) -> RunReport {
        let read = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        RunReport {
            acked: read(&self.acked),
            retried: read(&self.retried),
            deferred: read(&self.deferred),
            garbage: read(&self.garbage),
            expired: read(&self.expired),
            lost: read(&self.lost),
            stale: read(&self.stale),
            unsettled: read(&self.unsettled),
            timed_out: read(&self.timed_out),
            panicked: read(&self.panicked),
            noticed: read(&self.noticed),
        }
    }
}
