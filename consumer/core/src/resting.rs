//! The pauses between two reads of an idle shard, while shards compete for permits.

use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use tokio::time::timeout;

/// The pause, unless many shards of the process rest.
const PAUSE: Duration = Duration::from_millis(50);
/// The part of the pause for each shard of the process that rests.
const PAUSE_OF_EACH: Duration = Duration::from_millis(1);

/// The shards of a process that rest.
#[derive(Debug, Default)]
pub struct Resting(AtomicU32);

/// A shard that rests. Dropping it ends the rest.
struct Rest<'a>(&'a AtomicU32);

impl Drop for Rest<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

impl Resting {
    /// Rests for 50 ms, or for longer if many shards of the process rest, so that all of them together make at most 1,000 reads a second.
    /// Ends early once `until` completes.
    ///
    /// # Cancel safety
    /// Safe: the rest ends.
    pub async fn rest(&self, until: impl Future<Output = ()>) {
        let resting = self.0.fetch_add(1, Ordering::Relaxed) + 1;
        let _rest = Rest(&self.0);
        let pause = PAUSE.max(PAUSE_OF_EACH.saturating_mul(resting));
        let _ = timeout(pause, until).await;
    }
}
