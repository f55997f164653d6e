//! Tokens that were created by call: a record for each, in one hash of the namespace.
//!
//! A record is a text of the caller, which this does not read. It never has the text of a token, only hashes.

use std::collections::BTreeMap;

use crate::broker::reply::command;
use crate::broker::{Broker, BrokerError};
use crate::names::TokenName;
use crate::scripts::{ChangeToken, TokenChange};
use crate::time::UnixMs;

/// The largest number of tokens that are stored.
pub const MAX_TOKENS: usize = 1000;
/// The largest size of a record in bytes.
pub const MAX_TOKEN_RECORD: usize = 16 * 1024;
/// The field of the hash with its version.
const VERSION: &str = ":version";

/// A token as Redis keeps it.
#[derive(Clone, PartialEq, Eq)]
pub struct StoredToken {
    /// Its name.
    pub name: TokenName,
    /// The version of its record.
    pub version: u64,
    /// Its record.
    pub record: String,
}

impl std::fmt::Debug for StoredToken {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let token = &mut f.debug_struct("StoredToken");
        let token = token.field("name", &self.name);
        token
            .field("version", &self.version)
            .finish_non_exhaustive()
    }
}

/// All stored tokens, as one read of the hash found them.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct AllTokens {
    /// The version of the hash, which grows with each change; 0 if nothing was ever stored.
    pub version: u64,
    /// The tokens by name.
    pub tokens: Vec<StoredToken>,
}

/// The last use of the previous secret of a token, as processes report it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PreviousUse {
    /// The name of the token, configured or stored.
    pub token: String,
    /// A mark of the secret, chosen by the caller, because the name may have had other previous secrets.
    pub mark: String,
    /// The time.
    pub at: UnixMs,
}

impl Broker {
    /// Returns the version of the stored tokens, which grows with each change. Costs one command.
    ///
    /// # Errors
    /// [`BrokerError`].
    pub async fn tokens_version(&self) -> Result<u64, BrokerError> {
        let read = command("HMGET", &self.inner.registry.tokens).arg(VERSION);
        let [version]: [Option<u64>; 1] = self.ask(read).await?;
        Ok(version.unwrap_or_default())
    }

    /// Returns all stored tokens. Costs one command, whose reply grows with them.
    ///
    /// # Errors
    /// [`BrokerError`].
    pub async fn tokens(&self) -> Result<AllTokens, BrokerError> {
        let mut all = AllTokens::default();
        for (name, value) in self.fields(&self.inner.registry.tokens).await? {
            if name == VERSION {
                all.version = value.parse().unwrap_or_default();
            } else if let Ok(name) = name.parse() {
                all.tokens.push(parse(name, &value));
            }
        }
        all.tokens
            .sort_unstable_by(|one, other| one.name.cmp(&other.name));
        Ok(all)
    }

    /// Returns a stored token; `None` if there is none.
    ///
    /// # Errors
    /// [`BrokerError`].
    pub async fn token(&self, name: &TokenName) -> Result<Option<StoredToken>, BrokerError> {
        let read = command("HMGET", &self.inner.registry.tokens).arg(name.as_str());
        let [value]: [Option<String>; 1] = self.ask(read).await?;
        Ok(value.map(|value| parse(name.clone(), &value)))
    }

    /// Stores a record of a token, or removes the token if there is none. `at` is the version that the caller read, 0 if the token
    /// does not exist. At most [`MAX_TOKENS`] are stored.
    ///
    /// # Errors
    /// [`BrokerError`].
    pub async fn change_token(
        &self,
        token: &TokenName,
        record: Option<&str>,
        at: u64,
    ) -> Result<TokenChange, BrokerError> {
        let change = ChangeToken {
            token,
            record: record.unwrap_or_default(),
            at,
            most: MAX_TOKENS,
        };
        self.run_on_registry(&change).await
    }

    /// Records uses of previous secrets. Replaces those recorded for these tokens: a late report can replace a time by an earlier one.
    ///
    /// # Errors
    /// [`BrokerError`].
    pub async fn note_previous_uses(&self, uses: &[PreviousUse]) -> Result<(), BrokerError> {
        let write = command("HSET", &self.inner.registry.previous_uses);
        let write = uses
            .iter()
            .fold(write, |write, PreviousUse { token, mark, at }| {
                write.arg(token).arg(format!("{} {mark}", at.get()))
            });
        self.ask::<u64>(write).await.map(|_| ())
    }

    /// Returns the recorded uses, by the names of their tokens.
    ///
    /// # Errors
    /// [`BrokerError`].
    pub async fn previous_uses(&self) -> Result<BTreeMap<String, PreviousUse>, BrokerError> {
        let fields = self.fields(&self.inner.registry.previous_uses).await?;
        let uses = fields.into_iter().filter_map(|(token, value)| {
            let (at, mark) = value.split_once(' ')?;
            let (at, mark) = (UnixMs::new(at.parse().ok()?), mark.to_owned());
            Some((token.clone(), PreviousUse { token, mark, at }))
        });
        Ok(uses.collect())
    }

    /// Forgets the use of the previous secret of a token.
    ///
    /// # Errors
    /// [`BrokerError`].
    pub async fn forget_previous_use(&self, token: &TokenName) -> Result<(), BrokerError> {
        let forget = command("HDEL", &self.inner.registry.previous_uses).arg(token.as_str());
        self.ask::<u64>(forget).await.map(|_| ())
    }
}

/// Parses `<version> <record>`. A damaged value has version 0, and a record that nobody can read.
fn parse(name: TokenName, value: &str) -> StoredToken {
    let parsed = value.split_once(' ');
    let parsed = parsed.and_then(|(version, record)| Some((version.parse().ok()?, record)));
    let (version, record) = parsed.unwrap_or_default();
    StoredToken {
        name,
        version,
        record: record.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_damaged_value_has_no_record_and_nothing_shows_one() {
        let name: TokenName = "app".parse().unwrap();
        let token = parse(name.clone(), r#"7 {"sha256": "abc"}"#);
        assert_eq!((token.version, &*token.record), (7, r#"{"sha256": "abc"}"#));
        assert!(!format!("{token:?}").contains("abc"));
        for damaged in ["", "7", "x {}"] {
            let token = parse(name.clone(), damaged);
            assert_eq!((token.version, &*token.record), (0, ""));
        }
    }
}
