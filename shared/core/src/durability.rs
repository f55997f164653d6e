//! The durability that a message must reach before its sender gets the confirmation.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

use crate::names::InvalidName;

/// The durability that a send waits for. Written `memory`, `aof` or `replicas:N`.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize,
)]
#[serde(try_from = "String", into = "String")]
pub enum Durability {
    /// Redis has it in memory; the settings of Redis decide what a crash of Redis loses.
    #[default]
    Memory,
    /// It is on the disk of the server, by `WAITAOF`: Redis 7.2 or newer, or Valkey, with `appendonly yes`.
    Aof,
    /// This many replicas have it in memory, by `WAIT`. 1 to [`Durability::MAX_REPLICAS`].
    Replicas(u8),
}

impl Durability {
    /// The most replicas that a send can wait for.
    pub const MAX_REPLICAS: u8 = 16;
}

impl fmt::Display for Durability {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Memory => f.write_str("memory"),
            Self::Aof => f.write_str("aof"),
            Self::Replicas(count) => write!(f, "replicas:{count}"),
        }
    }
}

impl FromStr for Durability {
    type Err = InvalidName;

    fn from_str(text: &str) -> Result<Self, InvalidName> {
        let replicas = || {
            let count = text.strip_prefix("replicas:")?;
            let plain = count.bytes().all(|byte| byte.is_ascii_digit());
            let count = count.parse().ok().filter(|_| plain)?;
            (1..=Self::MAX_REPLICAS).contains(&count).then_some(count)
        };
        match text {
            "memory" => Ok(Self::Memory),
            "aof" => Ok(Self::Aof),
            _ => replicas().map(Self::Replicas).ok_or_else(|| {
                let rule = "memory, aof or replicas:N with N from 1 to 16";
                InvalidName::new("durability", rule, text)
            }),
        }
    }
}

crate::text_value!(
    Durability, "string", "memory, aof, or replicas:N with N from 1 to 16";);

impl TryFrom<String> for Durability {
    type Error = InvalidName;

    fn try_from(text: String) -> Result<Self, InvalidName> {
        text.parse()
    }
}

impl From<Durability> for String {
    fn from(durability: Durability) -> Self {
        durability.to_string()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_prints_as_it_is_written_and_nothing_else_is_taken() {
        for text in ["memory", "aof", "replicas:1", "replicas:16"] {
            assert_eq!(text.parse::<Durability>().unwrap().to_string(), text);
        }
        for text in [
            "",
            "AOF",
            "replicas",
            "replicas:",
            "replicas:0",
            "replicas:17",
            "replicas:+1",
        ] {
            let error = text.parse::<Durability>().unwrap_err().to_string();
            assert!(error.contains("memory, aof or replicas:N"), "{error}");
        }
    }
}
