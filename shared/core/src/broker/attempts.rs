//! The last failed attempts of a message, which its errors carry behind them. `scripts/lib/attempts.lua` writes them.

use serde::{Deserialize, Deserializer, Serialize, Serializer, de};

use crate::broker::pull::{SHORT_LEASES, granted_by};
use crate::names::words;
use crate::time::UnixMs;

/// The byte before each attempt.
const BEFORE: char = '\0';

words!(
    /// The end of a failed attempt.
    FailedOutcome, "outcome", {
        /// Its handler failed or timed out.
        Failed = "failed",
        /// Its handler rejected the message.
        Rejected = "rejected",
        /// Its lease ended: the process that held it died, or did not renew the lease.
        LeaseExpired = "lease_expired",
    }
);

/// A failed attempt of a message. The last five are kept for each group, also after a requeue, until the
/// message leaves the group.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct FailedAttempt {
    /// The end of the attempt.
    #[serde(serialize_with = "as_text", deserialize_with = "from_text")]
    #[cfg_attr(feature = "openapi", schema(value_type = String))]
    pub at: UnixMs,
    /// The way it ended.
    pub outcome: FailedOutcome,
    /// The consumer that held the message; absent if unknown, as for a pull with a short lease.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub consumer: Option<String>,
    /// Its error, shortened to 200 bytes.
    pub error: String,
}

fn as_text<S: Serializer>(at: &UnixMs, to: S) -> Result<S::Ok, S::Error> {
    to.collect_str(at)
}

fn from_text<'de, D: Deserializer<'de>>(from: D) -> Result<UnixMs, D::Error> {
    String::deserialize(from)?
        .parse()
        .map_err(de::Error::custom)
}

impl FailedAttempt {
    /// Reads `<ms> <outcome>\t<consumer>\t<error>`; `None` if it is not an attempt of this version.
    pub(super) fn read(text: &str) -> Option<Self> {
        let (at, rest) = text.split_once(' ')?;
        let mut parts = rest.splitn(3, '\t');
        let outcome = parts.next()?.parse().ok()?;
        let consumer = parts.next()?;
        Some(Self {
            at: UnixMs::new(at.parse().ok()?),
            outcome,
            consumer: Some(consumer)
                .filter(|name| !name.is_empty() && *name != SHORT_LEASES)
                .map(|name| granted_by(name).to_owned()),
            error: parts.next()?.to_owned(),
        })
    }
}

/// Returns an error as stored without the attempts behind it.
pub(super) fn error_in(stored: &str) -> &str {
    stored.split(BEFORE).next().unwrap_or_default()
}

/// Returns the attempts behind an error as stored, newest first.
pub(super) fn attempts_in(stored: &str) -> Vec<FailedAttempt> {
    let records = stored.split(BEFORE).skip(1);
    records.filter_map(FailedAttempt::read).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_attempts_of_an_error_are_read_and_unknown_ones_are_skipped() {
        let stored = "rejected 2 no\0\
            20 rejected\tw-1\tno: tab\there\0\
            15 frozen\tw-1\tnew\0\
            12 lease_expired\tw-2-leases\tover\0\
            10 lease_expired\tshort-leases\tthe lease of a pull ran out\0\
            odd";
        assert_eq!(error_in(stored), "rejected 2 no");
        let attempt = |at, outcome, consumer: Option<&str>, error: &str| FailedAttempt {
            at: UnixMs::new(at),
            outcome,
            consumer: consumer.map(str::to_owned),
            error: error.to_owned(),
        };
        let expired = "the lease of a pull ran out";
        assert_eq!(
            attempts_in(stored),
            [
                attempt(20, FailedOutcome::Rejected, Some("w-1"), "no: tab\there"),
                attempt(12, FailedOutcome::LeaseExpired, Some("w-2"), "over"),
                attempt(10, FailedOutcome::LeaseExpired, None, expired),
            ]
        );
        assert_eq!((error_in("plain"), attempts_in("plain")), ("plain", vec![]));
    }
}
