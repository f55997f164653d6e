//! The outcome of one run of a handler, and the values that stand for one.

use std::fmt;
use std::time::Duration;

use lisa_core::causes::with_causes;
use lisa_core::time::When;

#[cfg(doc)]
use crate::{Context, Handler};

/// The outcome of one run of a handler.
///
/// No outcome delays a message by more than the topic's `max_delay`; a longer delay is shortened to it. An error text is
/// cut to 1 KiB, and its control characters become spaces.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Outcome {
    /// The work is done: the message is removed.
    Ack,
    /// The attempt failed: the message is delivered again, or moves to garbage (dead letters) if this was the last attempt.
    Retry {
        /// The time until the next attempt. `None` means the delay of the retry policy.
        after: Option<Duration>,
        /// The reason, which is stored as the last error of the message.
        error: String,
    },
    /// It is too early: the message is delivered again later. Does not count as an attempt.
    Defer {
        /// The time of the next delivery.
        until: When,
    },
    /// No message of the group can be handled, for example because the receiver is gone for good: the group is paused until
    /// an operator resumes it, and its messages wait. Does not count as an attempt.
    Pause {
        /// The reason, which is logged.
        error: String,
    },
    /// The work goes on elsewhere: the delivery stays in flight for this time, without a handler. A client
    /// with its [token](Context::token) settles it at a gateway. If none does in time, the attempt has failed. The time is kept in
    /// Redis, so the end of this process does not matter. At least 1 s and at most [`MAX_RUN`](crate::MAX_RUN) (7 days); only
    /// for a handler with [`Handler::max_later`].
    Later {
        /// The time to complete the work.
        within: Duration,
    },
    /// The work can never succeed: the message moves to garbage (dead letters) immediately. Counts as an attempt.
    Reject {
        /// The reason, which is stored as the last error of the message.
        error: String,
    },
}

impl Outcome {
    /// Retries after the delay of the message's retry policy, or else the topic's. Counts as an attempt.
    pub fn retry(error: impl fmt::Display) -> Self {
        Self::Retry {
            after: None,
            error: error.to_string(),
        }
    }

    /// Retries after this delay, regardless of the retry policy. Counts as an attempt.
    pub fn retry_after(after: Duration, error: impl fmt::Display) -> Self {
        Self::Retry {
            after: Some(after),
            error: error.to_string(),
        }
    }

    /// Delivers the message again after a [`Duration`] or at a time. Does not count as an attempt.
    pub fn defer(until: impl Into<When>) -> Self {
        Self::Defer {
            until: until.into(),
        }
    }

    /// Pauses the group, and delivers the message again once an operator has resumed it. Does not count as an attempt.
    pub fn pause(error: impl fmt::Display) -> Self {
        Self::Pause {
            error: error.to_string(),
        }
    }

    /// Moves the message to garbage (dead letters) immediately.
    pub fn reject(error: impl fmt::Display) -> Self {
        Self::Reject {
            error: error.to_string(),
        }
    }
}

/// Converts the return value of a handler into an [`Outcome`].
///
/// | value | outcome |
/// |---|---|
/// | `()` | [`Outcome::Ack`] |
/// | [`Outcome`], also as the `Ok` or `Err` of a `Result` | itself |
/// | `Ok(())` | [`Outcome::Ack`] |
/// | `Err` with any other error that implements [`Display`](fmt::Display) | [`Outcome::retry`] |
pub trait IntoOutcome {
    /// Returns the outcome that this value stands for.
    fn into_outcome(self) -> Outcome;
}

impl IntoOutcome for Outcome {
    fn into_outcome(self) -> Outcome {
        self
    }
}

impl IntoOutcome for () {
    fn into_outcome(self) -> Outcome {
        Outcome::Ack
    }
}

impl<T: IntoOutcome> IntoOutcome for Result<T, Outcome> {
    fn into_outcome(self) -> Outcome {
        match self {
            Ok(value) => value.into_outcome(),
            Err(outcome) => outcome,
        }
    }
}

/// Retries after any error that implements [`Display`](fmt::Display): a string, `anyhow::Error`, `Box<dyn Error>` or an
/// error type of your own. The error is formatted with `{:#}`.
impl<T: IntoOutcome, E: fmt::Display> IntoOutcome for Result<T, E> {
    fn into_outcome(self) -> Outcome {
        match self {
            Ok(value) => value.into_outcome(),
            // The alternate form of anyhow and similar types contains the causes.
            Err(error) => Outcome::retry(format_args!("{error:#}")),
        }
    }
}

/// Lets a handler that returns `Result<_, Outcome>` use `?` on any error: the outcome is [`Outcome::retry`]. The text
/// contains the causes of the error.
impl<E: std::error::Error> From<E> for Outcome {
    fn from(error: E) -> Self {
        Self::retry(with_causes(&error))
    }
}
