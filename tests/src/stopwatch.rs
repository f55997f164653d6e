//! Time limits that hold on slow and busy machines: the machine is measured while the time runs.

use std::hint::black_box;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

/// The steps of one probe. A probe is longer than a time slice, so that it also waits when others use the machine.
const STEPS: u64 = if cfg!(debug_assertions) {
    800_000
} else {
    8_000_000
};
/// The time of one probe on the machine that the limits are meant for.
const PROBE: Duration = Duration::from_millis(8);
/// The pause between two probes: measuring takes about a tenth of one core.
const PAUSE: Duration = Duration::from_millis(80);

/// Counts the time since its start and measures how fast the machine is meanwhile.
///
/// A limit has two parts: timers (leases, back-offs, time-outs), which take the same time everywhere, and work,
/// which takes longer where the machine is slow or others use it.
#[derive(Debug)]
pub struct Stopwatch {
    begun: Instant,
    probes: Arc<Probes>,
}

/// What the probes took so far.
#[derive(Debug, Default)]
struct Probes {
    count: AtomicU64,
    micros: AtomicU64,
    over: AtomicBool,
}

impl Stopwatch {
    /// Starts a thread that measures the machine until the stopwatch is dropped.
    pub fn start() -> Self {
        let probes = Arc::new(Probes::default());
        let measured = probes.clone();
        thread::spawn(move || {
            while !measured.over.load(Ordering::Relaxed) {
                measured.probe();
                thread::sleep(PAUSE);
            }
        });
        Self {
            begun: Instant::now(),
            probes,
        }
    }

    /// Returns the time since the start.
    pub fn elapsed(&self) -> Duration {
        self.begun.elapsed()
    }

    /// Returns how many times slower than meant the machine has been since the start; never below 1.
    pub fn slowness(&self) -> f64 {
        if self.probes.count.load(Ordering::Relaxed) == 0 {
            self.probes.probe();
        }
        let count = self.probes.count.load(Ordering::Relaxed);
        let took = Duration::from_micros(self.probes.micros.load(Ordering::Relaxed));
        (took.as_secs_f64() / (PROBE.as_secs_f64() * count as f64)).max(1.0)
    }

    /// Returns the limit of something that takes so long for its timers, and so long for work where the machine is as
    /// fast as meant.
    pub fn limit(&self, timers: Duration, work: Duration) -> Duration {
        timers + work.mul_f64(self.slowness())
    }

    /// Asserts that something took no longer than [`limit`](Self::limit).
    ///
    /// # Panics
    /// When it took longer.
    #[track_caller]
    pub fn assert_took(&self, took: Duration, timers: Duration, work: Duration) {
        let limit = self.limit(timers, work);
        let slowness = self.slowness();
        assert!(
            took <= limit,
            "took {took:?}, more than {limit:?} on a machine that is {slowness:.1} times slower than meant"
        );
    }

    /// Asserts that no more time than [`limit`](Self::limit) has passed since the start.
    ///
    /// # Panics
    /// When more has passed.
    #[track_caller]
    pub fn assert_within(&self, timers: Duration, work: Duration) {
        self.assert_took(self.elapsed(), timers, work);
    }
}

impl Drop for Stopwatch {
    fn drop(&mut self) {
        self.probes.over.store(true, Ordering::Relaxed);
    }
}

impl Probes {
    fn probe(&self) {
        let begun = Instant::now();
        let mut sum = 0_u64;
        for step in 0..STEPS {
            sum = black_box(sum.wrapping_mul(31).wrapping_add(step));
        }
        black_box(sum);
        let took = u64::try_from(begun.elapsed().as_micros()).unwrap_or(u64::MAX);
        self.micros.fetch_add(took, Ordering::Relaxed);
        self.count.fetch_add(1, Ordering::Relaxed);
    }
}
