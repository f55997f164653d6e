//! Whether a loop that lives on Redis is stuck.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use super::Link;
use crate::time::millis;

/// When a loop last got on, for whoever watches over it.
///
/// A loop that waits for Redis is not stuck, and starting it anew would not help. So silence counts only while Redis
/// answers others, also before the link takes a server that says nothing for gone.
#[derive(Debug)]
pub struct Progress {
    started: Instant,
    last_ms: AtomicU64,
}

impl Default for Progress {
    /// Progress just made.
    fn default() -> Self {
        Self {
            started: Instant::now(),
            last_ms: AtomicU64::new(0),
        }
    }
}

impl Progress {
    /// Notes that the loop got on, or was told by Redis that it cannot.
    pub fn made(&self) {
        self.last_ms
            .store(millis(self.started.elapsed()), Ordering::Relaxed);
    }

    /// Says whether the loop was silent for `limit` and Redis answered something after that. A Redis that was silent, too,
    /// is asked whether it is there, so ask again: each half second, say. While the link is down, this counts as progress.
    pub fn is_stuck(&self, link: &Link, limit: Duration) -> bool {
        if !link.is_up() {
            self.made();
            return false;
        }
        let last = Duration::from_millis(self.last_ms.load(Ordering::Relaxed));
        let end = self.started + last + limit;
        Instant::now() > end && link.heard_since(end)
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::sync::atomic::AtomicBool;

    use tokio_util::sync::CancellationToken;

    use super::super::LinkSettings;
    use super::super::testing::{Answer, Fake, SOON, is_down, status};
    use super::*;

    const LIMIT: Duration = Duration::from_millis(100);
    /// How often a loop is looked at, and how often it must be found stuck or not.
    const LOOK_EVERY: Duration = Duration::from_millis(20);

    /// A link at its usual pace, and whether its server is to be mute.
    async fn link() -> (Link, Arc<AtomicBool>, Fake) {
        let mute = Arc::new(AtomicBool::new(false));
        let said = mute.clone();
        let fake =
            Fake::start(move |_, _| said.load(Ordering::SeqCst).then_some(Answer::Keep)).await;
        let link = Link::new(
            LinkSettings::new(fake.url.clone()),
            &CancellationToken::new(),
        );
        let link = link.unwrap();
        link.wait_up(SOON).await.unwrap();
        (link, mute, fake)
    }

    #[tokio::test]
    async fn a_loop_without_progress_is_stuck_where_redis_answers_others() {
        let (link, _, _fake) = link().await;
        let progress = Progress::default();
        assert!(!progress.is_stuck(&link, LIMIT));
        let begun = Instant::now();
        // Nobody else asks anything: the link itself must.
        while !progress.is_stuck(&link, LIMIT) {
            assert!(begun.elapsed() < SOON);
            tokio::time::sleep(LOOK_EVERY).await;
        }
        assert!(begun.elapsed() >= LIMIT - Duration::from_millis(1));
        progress.made();
        assert!(!progress.is_stuck(&link, LIMIT));
    }

    #[tokio::test]
    async fn a_loop_is_not_stuck_while_redis_says_nothing_and_the_link_finds_out_at_once() {
        let (link, mute, _fake) = link().await;
        let progress = Progress::default();
        mute.store(true, Ordering::SeqCst);
        let begun = Instant::now();
        while link.is_up() {
            assert!(!progress.is_stuck(&link, LIMIT));
            tokio::time::sleep(LOOK_EVERY).await;
        }
        // Without the question it would take from 5 s on.
        assert!(
            begun.elapsed() < Duration::from_secs(4),
            "{:?}",
            begun.elapsed()
        );
        assert!(!progress.is_stuck(&link, Duration::ZERO));
        mute.store(false, Ordering::SeqCst);
        status(&link, |status| !is_down(status)).await;
        assert!(!progress.is_stuck(&link, SOON));
    }
}
