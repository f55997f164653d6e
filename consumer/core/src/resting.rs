//! The pauses between two reads of an idle shard, while shards compete for permits.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use tokio::time::timeout;

/// The pause, unless many shards rest.
const PAUSE: Duration = Duration::from_millis(50);
/// The part of the pause for each shard that rests.
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

/// Returns the pause of each of so many shards that rest: 50 ms, or more, so that together they make at most 1,000 reads a second.
pub fn pause(resting: usize) -> Duration {
    let resting = u32::try_from(resting).unwrap_or(u32::MAX);
    PAUSE.max(PAUSE_OF_EACH.saturating_mul(resting))
}

impl Resting {
    /// Rests for the [`pause`] of the shards of the process that rest. Ends early once `until` completes.
    ///
    /// # Cancel safety
    /// Safe: the rest ends.
    pub async fn rest(&self, until: impl Future<Output = ()>) {
        let resting = self.0.fetch_add(1, Ordering::Relaxed) + 1;
        let _rest = Rest(&self.0);
        let _ = timeout(pause(resting), until).await;
    }
}
