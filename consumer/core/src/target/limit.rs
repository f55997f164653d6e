//! The number of deliveries of a subscription that may run at a time: as many as the target accepts, up to the
//! subscription's concurrency.
//!
//! Additive increase, multiplicative decrease. A window is as many answers as deliveries may run at a time. After a window
//! without a refusal in which all permits were once in use, the limit grows by one. Until the first refusal, it doubles
//! instead, and it also doubles after each second in which all permits were in use.
//! The first refusal of a window lowers it by a twentieth immediately, because a target that refuses fast would otherwise
//! refuse many more. A window in which more than a quarter is refused lowers it by that share, at most to one half.

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::time::Instant;

/// The first limit of a subscription. Equal to the default concurrency, so that most subscriptions start at their maximum.
const FIRST: usize = 16;
/// The time since the last raise after which the limit doubles if all permits are in use. Only until the first refusal.
pub(super) const SLOW: Duration = Duration::from_secs(1);
/// The share of refusals in a window above which the limit falls by their share: 1/4.
const MANY: usize = 4;

#[derive(Debug)]
pub(super) struct Limit {
    permits: Arc<Semaphore>,
    concurrency: usize,
    limit: usize,
    /// The number of permits that are still to be removed from the semaphore.
    debt: usize,
    /// True until the first refusal, at the start and after each outage: the limit doubles.
    is_starting: bool,
    /// The time at which the limit was last raised.
    raised_at: Instant,
    window: Window,
}

#[derive(Debug, Default)]
struct Window {
    answers: usize,
    refusals: usize,
    /// True if all permits were in use at some answer.
    is_full: bool,
}

impl Limit {
    pub(super) fn new(concurrency: usize) -> Self {
        let limit = concurrency.min(FIRST);
        Self {
            permits: Arc::new(Semaphore::new(limit)),
            concurrency,
            limit,
            debt: 0,
            is_starting: true,
            raised_at: Instant::now(),
            window: Window::default(),
        }
    }

    /// Returns the semaphore whose permits allow deliveries to run.
    pub(super) fn permits(&self) -> Arc<Semaphore> {
        self.permits.clone()
    }

    pub(super) fn get(&self) -> usize {
        self.limit
    }

    /// Records a delivery that the target accepted.
    pub(super) fn accepted(&mut self) {
        self.answered(0);
    }

    /// Records a delivery that the target refused because it is overloaded, or did not answer in time.
    pub(super) fn refused(&mut self) {
        if self.window.refusals == 0 {
            self.set(self.limit - self.limit.div_ceil(20).min(self.limit - 1));
        }
        self.is_starting = false;
        self.answered(1);
    }

    /// Doubles the limit if the target has refused nothing yet and all permits are in use [`SLOW`] after the last raise.
    /// Slow deliveries are no sign that the target has reached its capacity.
    pub(super) fn waited(&mut self, now: Instant) {
        let is_free = self.permits.available_permits() > 0;
        if self.is_starting && !is_free && now - self.raised_at >= SLOW {
            self.set((self.limit * 2).min(self.concurrency));
        }
    }

    /// Doubles the limit again until the next refusal. Called when the target has recovered from an outage.
    pub(super) fn restart(&mut self) {
        self.is_starting = true;
        self.window = Window::default();
    }

    /// Removes permits from those just acquired until the debt is paid.
    pub(super) fn collect(&mut self, permits: &mut OwnedSemaphorePermit) {
        let paid = self.debt.min(permits.num_permits());
        if let Some(paid) = permits.split(paid) {
            self.debt -= paid.num_permits();
            paid.forget();
        }
    }

    fn answered(&mut self, refusals: usize) {
        self.window.answers += 1;
        self.window.refusals += refusals;
        self.window.is_full |= self.permits.available_permits() == 0;
        if self.window.answers < self.limit {
            return;
        }
        let window = std::mem::take(&mut self.window);
        if window.refusals * MANY > window.answers {
            let kept = self.limit * (window.answers - window.refusals) / window.answers;
            self.set(kept.max(self.limit / 2).max(1));
        } else if window.refusals == 0 && window.is_full {
            let raised = if self.is_starting {
                self.limit * 2
            } else {
                self.limit + 1
            };
            self.set(raised.min(self.concurrency));
        }
    }

    fn set(&mut self, limit: usize) {
        if limit < self.limit {
            self.debt += self.limit - limit;
            self.debt -= self.permits.forget_permits(self.debt);
        } else {
            self.raised_at = Instant::now();
            let more = limit - self.limit;
            let less_debt = more.min(self.debt);
            self.debt -= less_debt;
            self.permits.add_permits(more - less_debt);
        }
        self.limit = limit;
    }
}

#[cfg(test)]
mod tests {
    use std::collections::VecDeque;

    use super::*;

    /// Runs deliveries to a target that accepts `capacity` at a time, each for the same time, and refuses others immediately.
    /// Returns, after a warm-up, the accepted deliveries as a share of the target's capacity, and the refusals as a share of
    /// all answers.
    fn against(capacity: usize, concurrency: usize) -> (f64, f64) {
        let mut limit = Limit::new(concurrency);
        let permits = limit.permits();
        let mut running = VecDeque::new();
        let (mut accepted, mut refused, mut rounds) = (0, 0, 0);
        // Deliveries that are accepted end in turn, and one round is the time of one delivery divided by the capacity.
        for round in 0..capacity * 400 {
            if round == capacity * 100 {
                (accepted, refused, rounds) = (0, 0, 0);
            }
            rounds += 1;
            while let Ok(mut permit) = permits.clone().try_acquire_owned() {
                limit.collect(&mut permit);
                if permit.num_permits() == 0 {
                    continue;
                }
                if running.len() < capacity {
                    running.push_back((round + capacity, permit));
                } else {
                    refused += 1;
                    limit.refused();
                    // The answer takes a little time, and the permit is free only after it.
                    drop(permit);
                    break;
                }
            }
            while running.front().is_some_and(|(end, _)| *end <= round) {
                let (_, permit) = running.pop_front().expect("checked");
                accepted += 1;
                limit.accepted();
                drop(permit);
            }
        }
        let answers = f64::from(accepted + refused);
        (
            f64::from(accepted) / rounds as f64,
            f64::from(refused) / answers,
        )
    }

    #[test]
    fn it_finds_what_the_target_takes_and_stays_there() {
        for (capacity, concurrency) in [(50, 500), (50, 60), (20, 10_000), (500, 2000)] {
            let (goodput, refusals) = against(capacity, concurrency);
            assert!(
                goodput >= 0.9,
                "{capacity} of {concurrency}: goodput {goodput}"
            );
            assert!(
                refusals <= 0.05,
                "{capacity} of {concurrency}: refusals {refusals}"
            );
        }
    }

    #[test]
    fn without_refusals_it_reaches_the_concurrency_and_never_exceeds_it() {
        let mut limit = Limit::new(500);
        let permits = limit.permits();
        let mut answers = 0;
        while limit.get() < 500 {
            let held: Vec<_> =
                std::iter::from_fn(|| permits.clone().try_acquire_owned().ok()).collect();
            limit.accepted();
            answers += 1;
            drop(held);
        }
        assert!(answers < 1500, "{answers}");
        for _ in 0..2000 {
            let _held = permits.clone().try_acquire_many_owned(500).unwrap();
            limit.accepted();
        }
        assert_eq!((limit.get(), permits.available_permits()), (500, 500));
    }

    #[test]
    fn a_heavy_overload_lowers_it_fast_but_never_to_zero() {
        let mut limit = Limit::new(16);
        let permits = limit.permits();
        for _ in 0..60 {
            limit.refused();
        }
        assert_eq!((limit.get(), permits.available_permits()), (1, 1));
        limit.refused();
        assert_eq!(limit.get(), 1);
    }

    #[test]
    fn an_unused_limit_does_not_grow() {
        let mut limit = Limit::new(500);
        for _ in 0..1000 {
            limit.accepted();
        }
        assert_eq!(limit.get(), FIRST);
    }

    #[test]
    fn a_lowered_limit_takes_permits_back_when_they_are_acquired_again() {
        let mut limit = Limit::new(16);
        let permits = limit.permits();
        let held = permits.clone().try_acquire_many_owned(16).unwrap();
        for _ in 0..16 {
            limit.refused();
        }
        let lowered = limit.get();
        assert!(lowered < 16);
        drop(held);
        let mut all = permits.clone().try_acquire_many_owned(16).unwrap();
        limit.collect(&mut all);
        assert_eq!(all.num_permits(), lowered);
        drop(all);
        assert_eq!(permits.available_permits(), lowered);
    }

    #[test]
    fn deliveries_that_take_long_raise_it_until_the_first_refusal() {
        let mut limit = Limit::new(100);
        let (permits, now) = (limit.permits(), Instant::now());
        limit.waited(now + SLOW);
        assert_eq!(limit.get(), FIRST, "permits are free");
        let mut held = Vec::new();
        let mut hold = || {
            let free = u32::try_from(permits.available_permits()).unwrap();
            held.extend(permits.clone().try_acquire_many_owned(free));
        };
        hold();
        limit.waited(now);
        assert_eq!(limit.get(), FIRST, "too soon");
        for expected in [32, 64, 100, 100] {
            limit.waited(Instant::now() + SLOW);
            assert_eq!(limit.get(), expected);
            hold();
        }
        limit.refused();
        let lowered = limit.get();
        limit.waited(Instant::now() + SLOW);
        assert_eq!(limit.get(), lowered);
    }
}
