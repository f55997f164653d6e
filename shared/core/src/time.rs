//! Instants and durations, in whole milliseconds on Redis's clock.
//!
//! Redis's clock is the only clock. A client specifies a delay or an instant ([`When`]); the scripts turn it into a due time
//! ([`UnixMs`]). Nothing here reads a clock.

use std::fmt;
use std::str::FromStr;
use std::time::Duration;

use serde::{Deserialize, Serialize};

/// The shortest time that Redis's clock distinguishes.
pub const MILLISECOND: Duration = Duration::from_millis(1);
/// A day of 24 hours.
pub const DAY: Duration = Duration::from_hours(24);
/// Seven days.
pub const WEEK: Duration = Duration::from_hours(7 * 24);
/// The longest delay that a topic may allow: ten years. Scores stay far below 2^53 and are therefore exact.
pub const LONGEST_DELAY: Duration = Duration::from_hours(3653 * 24);

/// An instant: milliseconds since 1970-01-01 UTC on Redis's clock. Exact up to 2^53.
#[derive(
    Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Default, Serialize, Deserialize,
)]
#[serde(transparent)]
pub struct UnixMs(u64);

impl UnixMs {
    /// Creates an instant from milliseconds since the epoch.
    pub const fn new(ms: u64) -> Self {
        Self(ms)
    }

    /// Returns the milliseconds since the epoch.
    pub const fn get(self) -> u64 {
        self.0
    }

    /// Adds a duration, rounded down to whole milliseconds; saturates.
    pub fn plus(self, duration: Duration) -> Self {
        Self(self.0.saturating_add(millis(duration)))
    }

    /// Returns the duration since `earlier`; zero if `earlier` is not earlier.
    pub fn since(self, earlier: Self) -> Duration {
        Duration::from_millis(self.0.saturating_sub(earlier.0))
    }
}

/// RFC 3339 in UTC with exactly three fractional digits: `2026-11-21T09:30:00.250Z`.
impl fmt::Display for UnixMs {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:.3}", jiff::Timestamp::from(*self))
    }
}

impl From<UnixMs> for jiff::Timestamp {
    fn from(at: UnixMs) -> Self {
        i64::try_from(at.0)
            .ok()
            .and_then(|ms| Self::from_millisecond(ms).ok())
            .unwrap_or(Self::MAX)
    }
}

/// An instant before 1970 becomes 1970: the past is due immediately either way. Fractions of a millisecond are rounded up,
/// so that nothing is ever early.
impl From<jiff::Timestamp> for UnixMs {
    fn from(at: jiff::Timestamp) -> Self {
        let nanos = at.as_nanosecond().max(0);
        Self(u64::try_from((nanos + 999_999) / 1_000_000).unwrap_or(u64::MAX))
    }
}

impl From<std::time::SystemTime> for UnixMs {
    fn from(at: std::time::SystemTime) -> Self {
        let nanos = at
            .duration_since(std::time::UNIX_EPOCH)
            .unwrap_or_default()
            .as_nanos();
        Self(u64::try_from(nanos.div_ceil(1_000_000)).unwrap_or(u64::MAX))
    }
}

/// Parses RFC 3339 with an offset, the format of `Lisa-Deliver-At`.
impl FromStr for UnixMs {
    type Err = InvalidTime;

    fn from_str(text: &str) -> Result<Self, InvalidTime> {
        text.parse::<jiff::Timestamp>()
            .map(Self::from)
            .map_err(|_| InvalidTime::Instant(shorten(text)))
    }
}

/// The delivery time of a message, as its sender specifies it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum When {
    /// This long after Redis accepts the message.
    After(Duration),
    /// At this instant; one in the past means now.
    At(UnixMs),
}

impl When {
    /// Due immediately.
    pub const NOW: Self = Self::After(Duration::ZERO);

    /// Returns the number that scripts read: a delay in ms, or the negative of an instant.
    pub(crate) fn to_arg(self) -> i64 {
        match self {
            Self::After(delay) => i64::try_from(millis(delay)).unwrap_or(i64::MAX),
            Self::At(at) => -i64::try_from(at.get()).unwrap_or(i64::MAX).max(1),
        }
    }

    /// Returns the due time that the scripts compute for a call at `now`.
    pub fn due(self, now: UnixMs) -> UnixMs {
        match self {
            Self::After(delay) => now.plus(delay),
            Self::At(at) => at.max(now),
        }
    }

    /// Rejects a time more than `limit` ahead of `now`.
    ///
    /// # Errors
    /// Returns [`InvalidTime::TooFar`] with the limit.
    pub fn check(self, now: UnixMs, limit: Duration) -> Result<(), InvalidTime> {
        if self.due(now).since(now) > limit {
            return Err(InvalidTime::TooFar { limit });
        }
        Ok(())
    }
}

impl Default for When {
    fn default() -> Self {
        Self::NOW
    }
}

impl From<Duration> for When {
    fn from(delay: Duration) -> Self {
        Self::After(delay)
    }
}

impl From<UnixMs> for When {
    fn from(at: UnixMs) -> Self {
        Self::At(at)
    }
}

impl From<jiff::Timestamp> for When {
    fn from(at: jiff::Timestamp) -> Self {
        Self::At(at.into())
    }
}

impl From<std::time::SystemTime> for When {
    fn from(at: std::time::SystemTime) -> Self {
        Self::At(at.into())
    }
}

/// The units of a duration, exactly as they are written.
const UNITS: [&str; 5] = ["ms", "s", "m", "h", "d"];

/// Parses a duration of numbers with units: `250ms`, `30s`, `1h 30m`, `14d`. Rejects a bare number, because its unit is
/// unclear, and any unit but ms, s, m, h and d: `5M` could be months.
///
/// # Errors
/// Returns [`InvalidTime::TooLong`] for more than [`LONGEST_DELAY`], and [`InvalidTime::Duration`] for any other text.
pub fn parse_duration(text: &str) -> Result<Duration, InvalidTime> {
    use humantime::DurationError::NumberOverflow;
    // humantime accepts more units, and "0" without one.
    let mut units = text
        .split(|c: char| c.is_ascii_digit() || c == ' ')
        .filter(|unit| !unit.is_empty())
        .peekable();
    if units.peek().is_none() || !units.all(|unit| UNITS.contains(&unit)) {
        return Err(InvalidTime::Duration(shorten(text)));
    }
    match humantime::parse_duration(text.trim()) {
        Ok(duration) if duration <= LONGEST_DELAY => Ok(duration),
        Ok(_) | Err(NumberOverflow) => Err(InvalidTime::TooLong(shorten(text))),
        Err(_) => Err(InvalidTime::Duration(shorten(text))),
    }
}

/// Formats a duration so that [`parse_duration`] can read it: `1h30m`. Rounds down to whole milliseconds. Days are the largest
/// unit, because a month or year has no fixed length.
pub fn format_duration(duration: Duration) -> String {
    let mut rest = millis(duration);
    if rest == 0 {
        return "0s".to_owned();
    }
    let mut text = String::new();
    for (unit, ms) in [
        ("d", 86_400_000),
        ("h", 3_600_000),
        ("m", 60_000),
        ("s", 1000),
        ("ms", 1),
    ] {
        if rest >= ms {
            text += &format!("{}{unit}", rest / ms);
            rest %= ms;
        }
    }
    text
}

/// Formats an age for display: whole seconds from one second on, else milliseconds.
pub fn format_age(ms: u64) -> String {
    let whole = if ms < 1000 { ms } else { ms - ms % 1000 };
    format_duration(Duration::from_millis(whole))
}

/// Returns whole milliseconds, rounded down; saturates.
pub fn millis(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)
}

/// The error for a text that is not a valid time.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum InvalidTime {
    /// Not a duration with a unit.
    #[error(
        "{0:?} is not a duration: write a number with one of the units ms, s, m, h and d, like 250ms, 30s, 5m, 2h or 14d (at \
         most {longest})",
        longest = format_duration(LONGEST_DELAY)
    )]
    Duration(String),
    /// A duration above [`LONGEST_DELAY`].
    #[error("{0:?} is too long: the longest duration is {longest}", longest = format_duration(LONGEST_DELAY))]
    TooLong(String),
    /// Not an instant.
    #[error("{0:?} is not an instant: write RFC 3339 with an offset, like 2026-11-21T09:30:00Z")]
    Instant(String),
    /// Farther ahead than the topic allows.
    #[error("must be at most {} ahead, the max_delay of the topic", format_duration(*limit))]
    TooFar {
        /// The topic's `max_delay`.
        limit: Duration,
    },
}

/// Shortens a caller's text that an error repeats to 64 characters.
pub fn shorten(text: &str) -> String {
    shorten_to(text, 64)
}

/// Shortens a text to this many characters, and marks a cut with `…`.
pub fn shorten_to(text: &str, longest: usize) -> String {
    let mut short: String = text.chars().take(longest).collect();
    if short.len() < text.len() {
        short.push('…');
    }
    short
}

/// Serde support for durations as text with units.
pub mod duration_text {
    use std::time::Duration;

    use serde::{Deserialize, Deserializer, Serializer, de::Error};

    /// Writes `30s`.
    pub fn serialize<S: Serializer>(duration: &Duration, to: S) -> Result<S::Ok, S::Error> {
        to.serialize_str(&super::format_duration(*duration))
    }

    /// Reads `30s`.
    pub fn deserialize<'de, D: Deserializer<'de>>(from: D) -> Result<Duration, D::Error> {
        let text = String::deserialize(from)?;
        super::parse_duration(&text).map_err(D::Error::custom)
    }
}

/// Serde support for optional durations: as [`duration_text`], or null.
pub mod optional_duration_text {
    use std::time::Duration;

    use serde::{Deserialize, Deserializer, Serialize, Serializer, de::Error};

    /// Writes `30s`, or null.
    pub fn serialize<S: Serializer>(duration: &Option<Duration>, to: S) -> Result<S::Ok, S::Error> {
        duration.map(super::format_duration).serialize(to)
    }

    /// Reads `30s`, or null.
    pub fn deserialize<'de, D: Deserializer<'de>>(from: D) -> Result<Option<Duration>, D::Error> {
        let text = Option::<String>::deserialize(from)?;
        let duration = text.map(|text| super::parse_duration(&text)).transpose();
        duration.map_err(D::Error::custom)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_instant_is_written_with_three_digits_and_read_back() {
        let at = UnixMs::new(1_700_000_000_007);
        assert_eq!(at.to_string(), "2023-11-14T22:13:20.007Z");
        assert_eq!(at.to_string().parse(), Ok(at));
        assert_eq!("2023-11-14T23:13:20.0061+01:00".parse(), Ok(at));
    }

    #[test]
    fn a_duration_has_a_number_and_one_of_five_units() {
        for text in [
            "90", "0", "", " ", "-1s", "1e3s", "∞", "s", "5M", "10S", "1H", "1D", "250MS", "2w",
            "1month", "1y", "500us", "5ns", "1.5h", "5min", "10sec", "2hours", "7days", "1h30",
            "1h\t30m", "５m",
        ] {
            let invalid = InvalidTime::Duration(text.into());
            assert_eq!(parse_duration(text), Err(invalid), "{text}");
        }
        let error = parse_duration("5M").unwrap_err().to_string();
        assert!(
            error.contains("one of the units ms, s, m, h and d"),
            "{error}"
        );
        assert_eq!(parse_duration(" 1h 30m "), Ok(Duration::from_secs(5400)));
        assert_eq!(parse_duration("0s"), Ok(Duration::ZERO));
    }

    #[test]
    fn a_duration_that_is_too_long_is_answered_with_the_longest() {
        for text in ["3654d", "100000d", "99999999999999999999d"] {
            let error = parse_duration(text).unwrap_err();
            let expected = format!("{text:?} is too long: the longest duration is 3653d");
            assert_eq!(error.to_string(), expected);
        }
        assert_eq!(parse_duration("3653d"), Ok(LONGEST_DELAY));
    }

    #[test]
    fn a_written_duration_is_read_back() {
        let day = 86_400_000;
        for (ms, text) in [
            (0, "0s"),
            (250, "250ms"),
            (5_400_000, "1h30m"),
            (365 * day, "365d"),
        ] {
            let duration = Duration::from_millis(ms);
            assert_eq!(format_duration(duration), text);
            assert_eq!(parse_duration(text), Ok(duration));
        }
        let odd = format_duration(Duration::from_micros(1_500));
        assert_eq!(
            (&odd[..], parse_duration(&odd)),
            ("1ms", Ok(Duration::from_millis(1)))
        );
    }

    #[test]
    fn a_past_instant_is_due_now() {
        let now = UnixMs::new(5_000);
        assert_eq!(When::At(UnixMs::new(1_000)).due(now), now);
        assert_eq!(When::At(UnixMs::new(0)).to_arg(), -1);
        assert!(
            When::After(Duration::from_secs(2))
                .check(now, Duration::from_secs(1))
                .is_err()
        );
    }
}
