//! Waiting for a condition instead of sleeping.

use std::fmt::Display;
use std::future::Future;
use std::panic::Location;
use std::time::Duration;
use tokio::time::{Instant, sleep, timeout_at};

const FIRST_PAUSE: Duration = Duration::from_millis(1);
const LONGEST_PAUSE: Duration = Duration::from_millis(50);

/// The time limit for what normally takes a moment. It is not a promise: only a failing test waits this long, so the limit
/// is generous enough for a busy machine. To check a promise about time, use a [`Stopwatch`](crate::Stopwatch).
pub const SOON: Duration = Duration::from_secs(120);

/// Calls `probe` until it answers `Ok`, and returns that value. The probe's `Err` is the state seen: what a reader
/// needs to understand why the condition does not hold.
///
/// Pauses grow from 1 ms to 50 ms. A probe that hangs counts as not holding when the time is over.
///
/// # Panics
/// Panics after `timeout`, with the caller's location and the last state.
#[track_caller]
pub fn eventually<T, E, P>(timeout: Duration, mut probe: P) -> impl Future<Output = T>
where
    P: AsyncFnMut() -> Result<T, E>,
    E: Display,
{
    let caller = Location::caller();
    async move {
        let deadline = Instant::now() + timeout;
        let mut last = String::from("nothing: the first probe did not answer");
        let mut pause = FIRST_PAUSE;
        loop {
            match timeout_at(deadline, probe()).await {
                Ok(Ok(value)) => return value,
                Ok(Err(state)) => last = state.to_string(),
                Err(_) => last.push_str("\n(a later probe hung)"),
            }
            if Instant::now() + pause >= deadline {
                panic!("{caller}: not within {timeout:?}; last seen:\n{last}");
            }
            sleep(pause).await;
            pause = (pause * 2).min(LONGEST_PAUSE);
        }
    }
}
