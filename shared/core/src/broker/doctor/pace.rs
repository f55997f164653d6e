//! The pace of an examination: it rests between calls, so that it takes a bounded share of Redis's time.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use tokio::time::{Instant, sleep};

/// The shortest sleep. Shorter rests are added up first, since timers have a resolution of a millisecond.
const SHORTEST: Duration = Duration::from_millis(5);
/// The longest duration of a call that counts. Calls are sized to keep Redis busy for about 1 ms at most; the rest is
/// waiting.
const LONGEST_CALL: Duration = Duration::from_millis(10);

/// The rest factor, and the rest still owed, in microseconds.
#[derive(Debug)]
pub(super) struct Pace {
    rest: u32,
    owed: AtomicU64,
}

impl Pace {
    /// Creates a pace that rests `rest` times as long as the calls take.
    pub(super) fn new(rest: u32) -> Self {
        Self {
            rest,
            owed: AtomicU64::new(0),
        }
    }

    /// Makes one call, then rests.
    pub(super) async fn of<T>(&self, call: impl Future<Output = T>) -> T {
        let begun = Instant::now();
        let answer = call.await;
        let rest = begun.elapsed().min(LONGEST_CALL) * self.rest;
        let rest = u64::try_from(rest.as_micros()).unwrap_or(u64::MAX);
        let owed = Duration::from_micros(self.owed.fetch_add(rest, Ordering::Relaxed) + rest);
        if owed >= SHORTEST {
            self.owed.store(0, Ordering::Relaxed);
            sleep(owed).await;
        }
        answer
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn calls_take_a_quarter_of_the_time_at_most() {
        let (pace, begun) = (Pace::new(3), Instant::now());
        let mut calls = Duration::ZERO;
        for ms in 1..=5 {
            let call = async {
                let begun = Instant::now();
                sleep(Duration::from_millis(ms)).await;
                begun.elapsed()
            };
            calls += pace.of(call).await.min(LONGEST_CALL);
        }
        let all = begun.elapsed() + SHORTEST;
        assert!(all >= calls * 4, "{calls:?} of {all:?}");
    }
}
