//! The circuit breaker of a target: stops reading while the target is unavailable or fails, and lets single probes through.
//!
//! Closed: all deliveries run. Open: none runs until the next probe is due; its answer closes the breaker or keeps it open.
//! The pause between probes is a sixteenth of the outage so far. So the end of a short outage is noticed soon, and a long
//! outage costs few requests: about 50 for two minutes, about 400 for a day of failures.

use std::fmt;
use std::time::Duration;

use lisa_core::time::format_duration;
use tokio::time::Instant;

/// The number of failures in a row that opens the breaker if they span at least [`FAILING_FOR`].
const FAILURES: u32 = 5;
/// The time since the first of the failures in a row after which [`FAILURES`] of them open the breaker.
const FAILING_FOR: Duration = Duration::from_secs(10);
/// The number of failures in a row that opens the breaker immediately.
const MANY_FAILURES: u32 = 50;
/// The shortest pause between two probes.
const SHORTEST_PAUSE: Duration = Duration::from_secs(1);
/// The longest pause between two probes of a target that fails. Each costs an attempt of a message.
const LONGEST_PAUSE: Duration = Duration::from_mins(5);
/// The longest pause between two probes of a target that is unavailable or gone. They cost no attempt.
const LONGEST_AWAY: Duration = Duration::from_secs(30);
/// The divisor of the outage so far that yields the pause: one sixteenth.
const PART_OF_OUTAGE: u32 = 16;

/// The reason why the breaker is open.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Cause {
    /// No connection, or all publishers are blocked.
    Away,
    /// Errors and timeouts.
    Failing,
    /// The target accepts no deliveries any more.
    Gone,
}

impl fmt::Display for Cause {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Away => "unavailable",
            Self::Failing => "failing",
            Self::Gone => "gone",
        })
    }
}

/// The terms on which a delivery may run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Admitted {
    /// Together with any number of others.
    Run,
    /// Alone, as a probe.
    Probe,
}

/// The effect of an answer on the breaker.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Change {
    None,
    Opened { cause: Cause, error: String },
    Reopened,
    Closed { outage: Duration },
}

#[derive(Debug, Default)]
pub(super) struct Breaker {
    /// The number of failures since the last success, and the time of the first one.
    failures: u32,
    failing_since: Option<Instant>,
    open: Option<Open>,
}

#[derive(Debug)]
struct Open {
    cause: Cause,
    error: String,
    since: Instant,
    probe: Probe,
}

/// The next probe, of which there is one at a time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Probe {
    /// Due at this time.
    At(Instant),
    /// A message is being read for it.
    Reserved,
    Running,
}

impl Breaker {
    /// Records an answer that is not a failure.
    pub(super) fn works(&mut self) -> Change {
        self.failures = 0;
        self.failing_since = None;
        match self.open.take() {
            Some(open) => Change::Closed {
                outage: open.since.elapsed(),
            },
            None => Change::None,
        }
    }

    /// Records a failure. While the breaker is open and a probe runs, sets the time of the next one.
    pub(super) fn fails(&mut self, now: Instant, cause: Cause, error: &str) -> Change {
        let since = *self.failing_since.get_or_insert(now);
        self.failures = self.failures.saturating_add(1);
        if let Some(open) = &mut self.open {
            open.cause = cause;
            error.clone_into(&mut open.error);
            if open.probe != Probe::Running {
                return Change::None;
            }
            open.probe = Probe::At(now + pause(cause, now - open.since));
            return Change::Reopened;
        }
        let opens = match cause {
            Cause::Away | Cause::Gone => true,
            Cause::Failing if self.failures < FAILURES => false,
            Cause::Failing => self.failures >= MANY_FAILURES || now - since >= FAILING_FOR,
        };
        if !opens {
            return Change::None;
        }
        self.open = Some(Open {
            cause,
            error: error.to_owned(),
            since,
            probe: Probe::At(now + pause(cause, now - since)),
        });
        Change::Opened {
            cause,
            error: error.to_owned(),
        }
    }

    /// Records the end of a delivery that ran as a probe. Without an answer, the next probe is due immediately.
    pub(super) fn probe_ended(&mut self, now: Instant) -> Change {
        self.renew(Probe::Running, now)
    }

    /// Reserves the probe that is due for a message that is about to be read. Returns false if none is due.
    pub(super) fn reserve(&mut self, now: Instant) -> bool {
        match &mut self.open {
            Some(open) if matches!(open.probe, Probe::At(at) if at <= now) => {
                open.probe = Probe::Reserved;
                true
            }
            _ => false,
        }
    }

    /// Ends a reservation for which no message was read.
    pub(super) fn release(&mut self, now: Instant) -> Change {
        self.renew(Probe::Reserved, now)
    }

    /// Makes the next probe due immediately, if the current one is in this state.
    fn renew(&mut self, state: Probe, now: Instant) -> Change {
        match &mut self.open {
            Some(open) if open.probe == state => {
                open.probe = Probe::At(now);
                Change::Reopened
            }
            _ => Change::None,
        }
    }

    /// Admits a delivery if one may run now. While the breaker is open, that is one that is due or reserved as the probe.
    pub(super) fn admit(&mut self, now: Instant) -> Option<Admitted> {
        let Some(open) = &mut self.open else {
            return Some(Admitted::Run);
        };
        match open.probe {
            Probe::At(at) if at > now => return None,
            Probe::Running => return None,
            Probe::At(_) | Probe::Reserved => open.probe = Probe::Running,
        }
        Some(Admitted::Probe)
    }

    pub(super) fn is_open(&self) -> bool {
        self.open.is_some()
    }

    /// Returns the time of the next probe, if the breaker is open and no probe is reserved or running.
    pub(super) fn probe_at(&self) -> Option<Instant> {
        match self.open.as_ref()?.probe {
            Probe::At(at) => Some(at),
            Probe::Reserved | Probe::Running => None,
        }
    }

    /// Returns the time since the first failure of this outage; zero while the breaker is closed.
    pub(super) fn outage(&self, now: Instant) -> Duration {
        let since = self.open.as_ref().map(|open| open.since);
        since.map_or(Duration::ZERO, |since| now.saturating_duration_since(since))
    }

    pub(super) fn is_away(&self) -> bool {
        self.open
            .as_ref()
            .is_some_and(|open| open.cause != Cause::Failing)
    }

    /// Returns a warning for operators while the breaker is open.
    pub(super) fn warning(&self, now: Instant) -> Option<String> {
        let open = self.open.as_ref()?;
        let seconds = |time: Duration| format_duration(Duration::from_secs(time.as_secs()));
        let (cause, outage) = (open.cause, seconds(self.outage(now)));
        Some(format!("target {cause} for {outage}: {}", open.error))
    }
}

/// Returns the pause before the next probe, shortened by up to a tenth at random, so that processes do not probe together.
fn pause(cause: Cause, outage: Duration) -> Duration {
    let longest = match cause {
        Cause::Away | Cause::Gone => LONGEST_AWAY,
        Cause::Failing => LONGEST_PAUSE,
    };
    let pause = (outage / PART_OF_OUTAGE).clamp(SHORTEST_PAUSE, longest);
    pause.mul_f64(fastrand::f64().mul_add(0.1, 0.9))
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    fn failing(breaker: &mut Breaker, now: Instant) -> Change {
        breaker.fails(now, Cause::Failing, "503")
    }

    #[test]
    fn five_failures_open_it_only_without_a_success_for_ten_seconds() {
        let (mut breaker, start) = (Breaker::default(), Instant::now());
        for _ in 0..10 {
            assert_eq!(failing(&mut breaker, start), Change::None);
        }
        assert_eq!(breaker.works(), Change::None);
        for second in 0..4 {
            assert_eq!(
                failing(&mut breaker, start + 3 * second * SECOND),
                Change::None
            );
        }
        let opened = failing(&mut breaker, start + 10 * SECOND);
        assert!(matches!(opened, Change::Opened { .. }), "{opened:?}");
    }

    #[test]
    fn fifty_failures_in_a_row_or_no_connection_open_it_immediately() {
        let (mut breaker, start) = (Breaker::default(), Instant::now());
        for _ in 1..MANY_FAILURES {
            assert_eq!(failing(&mut breaker, start), Change::None);
        }
        assert!(matches!(
            failing(&mut breaker, start),
            Change::Opened { .. }
        ));
        for cause in [Cause::Away, Cause::Gone] {
            let mut breaker = Breaker::default();
            let opened = breaker.fails(start, cause, "refused");
            assert!(matches!(opened, Change::Opened { .. }), "{opened:?}");
            assert!(breaker.is_away());
        }
    }

    #[test]
    fn while_it_is_open_one_probe_runs_and_its_answer_decides() {
        let (mut breaker, start) = (Breaker::default(), Instant::now());
        breaker.fails(start, Cause::Away, "refused");
        assert_eq!(breaker.admit(start), None);
        let later = start + SECOND;
        assert_eq!(breaker.admit(later), Some(Admitted::Probe));
        assert_eq!(breaker.admit(later), None, "one at a time");
        assert_eq!(
            breaker.fails(later, Cause::Away, "refused"),
            Change::Reopened
        );
        assert_eq!(
            breaker.fails(later, Cause::Away, "refused"),
            Change::None,
            "of an earlier delivery"
        );
        assert_eq!(breaker.admit(later + 2 * SECOND), Some(Admitted::Probe));
        assert_eq!(
            breaker.probe_ended(later + 2 * SECOND),
            Change::Reopened,
            "without an answer"
        );
        assert_eq!(breaker.admit(later + 4 * SECOND), Some(Admitted::Probe));
        assert!(matches!(breaker.works(), Change::Closed { .. }));
        assert_eq!(breaker.admit(later), Some(Admitted::Run));
    }

    #[test]
    fn probes_are_few_and_the_end_of_an_outage_is_noticed_soon() {
        let probes = |cause, outage: Duration| {
            let (mut breaker, start) = (Breaker::default(), Instant::now());
            for _ in 0..MANY_FAILURES {
                breaker.fails(start, cause, "503");
            }
            let (mut now, mut probes) = (start, 0);
            while now < start + outage {
                now = breaker.probe_at().expect("open");
                assert_eq!(breaker.admit(now), Some(Admitted::Probe));
                breaker.fails(now, cause, "503");
                probes += 1;
            }
            (probes, now - start - outage)
        };
        let (count, late) = probes(Cause::Failing, 120 * SECOND);
        assert!((30..=70).contains(&count), "{count}");
        assert!(late < 8 * SECOND, "{late:?}");
        let (count, late) = probes(Cause::Failing, Duration::from_hours(24));
        assert!(count < 450, "{count}");
        assert!(late <= LONGEST_PAUSE, "{late:?}");
        let (_, late) = probes(Cause::Away, Duration::from_hours(24));
        assert!(late <= LONGEST_AWAY, "{late:?}");
    }
}
