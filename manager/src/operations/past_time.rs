//! An end of a range of times in the past: an instant, or how long ago it was.

use std::fmt;
use std::str::FromStr;
use std::time::SystemTime;

use lisa_core::text_value;
use lisa_core::time::{UnixMs, parse_duration};

/// An instant, which operators can also specify as a duration before now, by the clock of the process that reads it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct PastTime(pub(crate) UnixMs);

text_value! {
    PastTime, "time", "RFC 3339, or a duration before now";
}

impl FromStr for PastTime {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let text = text.trim();
        let before_now = || {
            let ago = parse_duration(text).ok()?;
            SystemTime::now().checked_sub(ago).map(UnixMs::from)
        };
        let instant = text.parse().ok().or_else(before_now);
        instant.map(Self).ok_or_else(|| {
            "expected a time such as 2026-11-21T09:30:00Z, or a duration before now such as 24h"
                .to_owned()
        })
    }
}

impl fmt::Display for PastTime {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_time_is_an_instant_or_how_long_ago_it_was() {
        let read = |text: &str| text.parse::<PastTime>();
        let at = "2026-11-21T09:30:00.000Z";
        assert_eq!(read(at).unwrap().to_string(), at);
        let now = UnixMs::from(SystemTime::now()).get();
        let ago = now - read(" 24h").unwrap().0.get();
        assert!((86_390_000..=86_400_000).contains(&ago), "{ago}");
        for wrong in ["", "yesterday", "24", "-24h", "24h ago"] {
            assert!(read(wrong).unwrap_err().contains("such as 24h"), "{wrong}");
        }
    }
}
