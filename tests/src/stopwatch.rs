//! Time limits that hold on slow and busy machines: the machine is measured while the time runs.

use futures_util::FutureExt;
use std::hint::black_box;
use std::panic::{AssertUnwindSafe, resume_unwind};
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
/// A limit has two parts: timers (leases, back-offs, timeouts), which take the same time everywhere, and work,
/// which takes longer where the machine is slow or others use it. While the machine stands still, neither counts.
#[derive(Debug)]
pub struct Stopwatch {
    begun: Instant,
    probes: Arc<Probes>,
}

/// Runs a test that needs the clock of Redis, such as one of a lease that must not end. It is run again if it fails and
/// the machine was held up for `most` or longer meanwhile, ten times at most.
pub async fn unless_held_up(most: Duration, test: impl AsyncFn()) {
    for round in 1.. {
        let watch = Stopwatch::start();
        let Err(panic) = AssertUnwindSafe(test()).catch_unwind().await else {
            return;
        };
        // A delay of the test may show only in the next probe.
        tokio::time::sleep(2 * PAUSE).await;
        if watch.held_up() < most || round == 10 {
            resume_unwind(panic);
        }
        println!("again: the machine was held up for {:?}", watch.held_up());
    }
}

/// The measurements of the probes so far.
#[derive(Debug, Default)]
struct Probes {
    count: AtomicU64,
    micros: AtomicU64,
    over: AtomicBool,
    /// The total delay of the thread's wake-ups.
    late: AtomicU64,
    /// The longest probe, or the longest such delay.
    longest: AtomicU64,
}

impl Stopwatch {
    /// Starts a thread that measures the machine until the stopwatch is dropped.
    pub fn start() -> Self {
        let probes = Arc::new(Probes::default());
        let measured = probes.clone();
        thread::spawn(move || {
            while !measured.over.load(Ordering::Relaxed) {
                measured.probe();
                measured.sleep();
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

    /// Returns the longest time for which the machine was held up since the start: it stood still, or others used it.
    pub fn held_up(&self) -> Duration {
        Duration::from_micros(self.probes.longest.load(Ordering::Relaxed))
    }

    /// Returns the time limit: this time for timers, plus this time for work, scaled by the speed of the machine.
    pub fn limit(&self, timers: Duration, work: Duration) -> Duration {
        let late = Duration::from_micros(self.probes.late.load(Ordering::Relaxed));
        timers + work.mul_f64(self.slowness()) + late
    }

    /// Asserts that something took no longer than [`limit`](Self::limit).
    ///
    /// # Panics
    /// Panics if it took longer.
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
    /// Panics if more has passed.
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
        self.longest.fetch_max(took, Ordering::Relaxed);
    }

    fn sleep(&self) {
        let begun = Instant::now();
        thread::sleep(PAUSE);
        let late = begun.elapsed().saturating_sub(PAUSE);
        let late = u64::try_from(late.as_micros()).unwrap_or(u64::MAX);
        self.late.fetch_add(late, Ordering::Relaxed);
        self.longest.fetch_max(late, Ordering::Relaxed);
    }
}
