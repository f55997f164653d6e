//! Detects loops over Redis that are stuck.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use super::Connection;
use crate::time::millis;

/// The last progress of a loop, for a watchdog.
///
/// A loop that waits for Redis is not stuck, and restarting it would not help. So silence counts only while Redis
/// answers others, even before the connection considers a silent server gone.
#[derive(Debug)]
pub struct Progress {
    started: Instant,
    last_ms: AtomicU64,
}

impl Default for Progress {
    /// Counts as progress made just now.
    fn default() -> Self {
        Self {
            started: Instant::now(),
            last_ms: AtomicU64::new(0),
        }
    }
}

impl Progress {
    /// Records that the loop made progress, or that Redis reported that it cannot.
    pub fn made(&self) {
        self.last_ms
            .store(millis(self.started.elapsed()), Ordering::Relaxed);
    }

    /// Returns whether the loop was silent for `limit` and Redis answered something after that. A Redis that was
    /// silent too is probed, so call this again, for example every half second. While the connection is down, this
    /// counts as progress.
    pub fn is_stuck(&self, connection: &Connection, limit: Duration) -> bool {
        if !connection.is_up() {
            self.made();
            return false;
        }
        let last = Duration::from_millis(self.last_ms.load(Ordering::Relaxed));
        let end = self.started + last + limit;
        Instant::now() > end && connection.heard_since(end)
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::sync::atomic::AtomicBool;

    use tokio_util::sync::CancellationToken;

    use super::super::ConnectionSettings;
    use super::super::testing::{Answer, Fake, SOON, is_down, status};
    use super::*;

    const LIMIT: Duration = Duration::from_millis(100);
    /// Interval between two checks of a loop.
    const LOOK_EVERY: Duration = Duration::from_millis(20);

    /// A connection at its usual pace, and a switch that silences its server.
    async fn connection() -> (Connection, Arc<AtomicBool>, Fake) {
        let mute = Arc::new(AtomicBool::new(false));
        let silenced = mute.clone();
        let fake =
            Fake::start(move |_, _| silenced.load(Ordering::SeqCst).then_some(Answer::Keep)).await;
        let connection = Connection::new(
            ConnectionSettings::new(fake.url.clone()),
            &CancellationToken::new(),
        );
        let connection = connection.unwrap();
        connection.wait_up(SOON).await.unwrap();
        (connection, mute, fake)
    }

    #[tokio::test]
    async fn a_loop_without_progress_is_stuck_where_redis_answers_others() {
        let (connection, _, _fake) = connection().await;
        let progress = Progress::default();
        assert!(!progress.is_stuck(&connection, LIMIT));
        let begun = Instant::now();
        // There are no other requests: the connection itself must probe.
        while !progress.is_stuck(&connection, LIMIT) {
            assert!(begun.elapsed() < SOON);
            tokio::time::sleep(LOOK_EVERY).await;
        }
        assert!(begun.elapsed() >= LIMIT - Duration::from_millis(1));
        progress.made();
        assert!(!progress.is_stuck(&connection, LIMIT));
    }

    #[tokio::test]
    async fn a_loop_is_not_stuck_while_redis_is_silent_and_the_connection_notices_soon() {
        let (connection, mute, _fake) = connection().await;
        let progress = Progress::default();
        mute.store(true, Ordering::SeqCst);
        let begun = Instant::now();
        while connection.is_up() {
            assert!(!progress.is_stuck(&connection, LIMIT));
            tokio::time::sleep(LOOK_EVERY).await;
        }
        // Without the probe it would take 5 s or more.
        assert!(
            begun.elapsed() < Duration::from_secs(4),
            "{:?}",
            begun.elapsed()
        );
        assert!(!progress.is_stuck(&connection, Duration::ZERO));
        mute.store(false, Ordering::SeqCst);
        status(&connection, |status| !is_down(status)).await;
        assert!(!progress.is_stuck(&connection, SOON));
    }
}
