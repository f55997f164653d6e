//! The counters of a consumer, for its own report.

use std::ops::AddAssign;
use std::sync::atomic::{AtomicU64, Ordering};

use lisa_core::state::Settled;

/// The counts of what a consumer did since its start.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct RunReport {
    /// Deliveries that were acknowledged.
    pub acked: u64,
    /// Deliveries that failed and are retried.
    pub retried: u64,
    /// Deliveries that come again without counting as an attempt, including those handed back at shutdown.
    pub deferred: u64,
    /// Deliveries whose message moved to garbage (dead letters).
    pub garbage: u64,
    /// Deliveries whose message had expired and was dropped.
    pub expired: u64,
    /// Deliveries whose payload was missing.
    pub lost: u64,
    /// Deliveries that lost their lease: another delivery of the message counts.
    pub stale: u64,
    /// Deliveries that ended but could not be settled in Redis. Their messages are delivered again after the lease.
    pub unsettled: u64,
    /// Handlers that ran into their timeout.
    pub timed_out: u64,
    /// Handlers that panicked.
    pub panicked: u64,
    /// Messages in garbage whose hook was acknowledged.
    pub garbage_hooks: u64,
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
        self.garbage_hooks += more.garbage_hooks;
    }
}

/// The live counters behind a [`RunReport`].
#[derive(Debug, Default)]
pub struct Counters {
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
    garbage_hooks: AtomicU64,
}

impl Counters {
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

    pub(crate) fn garbage_hooks(&self) {
        self.garbage_hooks.fetch_add(1, Ordering::Relaxed);
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
            garbage_hooks: read(&self.garbage_hooks),
        }
    }
}
