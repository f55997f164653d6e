//! The pauses between the tries of a loop.

use std::time::Duration;

/// The longest pause before the first retry.
const FIRST_PAUSE: Duration = Duration::from_millis(50);

/// Exponential backoff: pauses that double from 50 ms to a maximum. Full jitter keeps processes from retrying in
/// step.
#[derive(Debug)]
pub(crate) struct Backoff {
    ceiling: Duration,
    longest: Duration,
}

impl Backoff {
    pub(crate) fn up_to(longest: Duration) -> Self {
        Self {
            ceiling: FIRST_PAUSE,
            longest,
        }
    }

    /// Returns the next pause: from 50 ms (from zero the first time) to the ceiling reached.
    pub(crate) fn next_pause(&mut self) -> Duration {
        let floor = if self.ceiling == FIRST_PAUSE {
            Duration::ZERO
        } else {
            FIRST_PAUSE
        };
        let pause = floor + (self.ceiling - floor).mul_f64(fastrand::f64());
        self.ceiling = (self.ceiling * 2).min(self.longest);
        pause
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LONGEST_PAUSE: Duration = Duration::from_secs(1);

    #[test]
    fn pauses_grow_to_their_bounds_and_no_further() {
        for _ in 0..200 {
            let mut backoff = Backoff::up_to(LONGEST_PAUSE);
            assert!(backoff.next_pause() <= FIRST_PAUSE);
            for _ in 0..20 {
                let pause = backoff.next_pause();
                assert!((FIRST_PAUSE..=LONGEST_PAUSE).contains(&pause), "{pause:?}");
            }
        }
    }
}
