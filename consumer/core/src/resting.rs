//! The pauses between two reads of an idle shard that takes turns with others.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use tokio::time::timeout;

/// The shortest pause.
const PAUSE: Duration = Duration::from_millis(50);
/// The pause is at least this long for each shard that rests.
const PAUSE_OF_EACH: Duration = Duration::from_millis(1);

/// The shards of a process that rest.
#[derive(Debug, Default)]
pub struct Resting(AtomicUsize);

/// A shard that rests. Dropping it ends the rest.
struct Rest<'a>(&'a AtomicUsize);

impl Drop for Rest<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

/// Returns the pause of each shard while this many rest: at least 50 ms, and so long that together they make at most 1,000 reads a second.
pub fn rest_pause(resting: usize) -> Duration {
    let resting = u32::try_from(resting).unwrap_or(u32::MAX);
    PAUSE.max(PAUSE_OF_EACH.saturating_mul(resting))
}

impl Resting {
    /// Rests for the [`rest_pause`] that follows from the number of resting shards of the process. Ends early once `until` completes.
    ///
    /// # Cancel safety
    /// Safe: the rest ends.
    pub async fn rest(&self, until: impl Future<Output = ()>) {
        let resting = self.0.fetch_add(1, Ordering::Relaxed) + 1;
        let _rest = Rest(&self.0);
        let _ = timeout(rest_pause(resting), until).await;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_that_rest_make_at_most_a_thousand_reads_a_second() {
        for (resting, expected) in [(1, 50), (50, 50), (51, 51), (1000, 1000)] {
            assert_eq!(rest_pause(resting), Duration::from_millis(expected));
        }
    }
}
