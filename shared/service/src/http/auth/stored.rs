//! The tokens that were created by call, as this process knows them.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

use lisa_core::broker::{AllTokens, Broker, BrokerError};
use lisa_core::sync::RwLock;
use tokio::sync::Mutex;

use super::{Token, TokenRecord, TokenSet};

/// The stored tokens. Cheap to clone; all clones know the same.
#[derive(Clone, Debug, Default)]
pub(super) struct StoredTokens {
    known: Arc<RwLock<Arc<Known>>>,
    /// Locked while the tokens are read, so that no older read replaces a newer one.
    reading: Arc<Mutex<()>>,
}

/// The stored tokens of one version.
#[derive(Debug)]
pub(super) struct Known {
    /// False until the tokens are read for the first time.
    pub(super) is_read: bool,
    pub(super) version: u64,
    /// By each of their hashes. A look-up costs the same for any number of tokens. Its time may depend on the hash, which reveals
    /// nothing: nobody can choose a text by its hash.
    pub(super) by_hash: HashMap<[u8; 32], Arc<Token>>,
    pub(super) by_name: BTreeMap<Box<str>, Arc<Token>>,
    pub(super) has_limited: bool,
}

impl Default for Known {
    fn default() -> Self {
        Self {
            is_read: true,
            version: 0,
            by_hash: HashMap::new(),
            by_name: BTreeMap::new(),
            has_limited: false,
        }
    }
}

impl StoredTokens {
    /// Forgets all tokens, until they are read.
    pub(super) fn forget(&self) {
        *self.known.write() = Arc::new(Known {
            is_read: false,
            ..Known::default()
        });
    }

    pub(super) fn known(&self) -> Arc<Known> {
        self.known.read().clone()
    }

    /// Replaces all tokens. Leaves out those that cannot be read, and those with the name of a configured one.
    pub(super) fn replace(&self, all: &AllTokens, is_configured: impl Fn(&str) -> bool) {
        let before = self.known();
        let mut known = Known {
            version: all.version,
            ..Known::default()
        };
        for stored in &all.tokens {
            let name = stored.name.as_str();
            if is_configured(name) {
                tracing::warn!(
                    token = name,
                    "the configuration has a token of this name: the stored one is not accepted"
                );
                continue;
            }
            let record = TokenRecord::parse(&stored.record);
            let token = record.and_then(|record| record.token(name).ok_or("no scope".to_owned()));
            let token = match token {
                Ok(token) => {
                    let before = before.by_name.get(name);
                    Arc::new(token.continuing(before.map(|before| &**before)))
                }
                Err(error) => {
                    tracing::error!(token = name, error, "cannot read stored token");
                    continue;
                }
            };
            known.has_limited |= token.reach().is_limited();
            for hash in token.hashes() {
                // The first one by name, so that all processes choose the same.
                known.by_hash.entry(*hash).or_insert_with(|| token.clone());
            }
            known.by_name.insert(name.into(), token);
        }
        *self.known.write() = Arc::new(known);
    }
}

impl TokenSet {
    /// Reads the stored tokens if they have changed. Costs one command, and another one if they have.
    ///
    /// # Errors
    /// [`BrokerError`]. The tokens that are known stay.
    ///
    /// # Cancel safety
    /// Dropping the future leaves the tokens that are known.
    pub async fn read_stored(&self, broker: &Broker) -> Result<(), BrokerError> {
        if self.is_empty() {
            return Ok(());
        }
        let _reading = self.stored.reading.lock().await;
        let (known, version) = (self.version(), broker.tokens_version().await?);
        if version == known && self.are_read() {
            return Ok(());
        }
        let all = match version {
            0 => AllTokens::default(),
            _ => broker.tokens().await?,
        };
        if all.version < known {
            tracing::warn!(
                "Redis has lost changes of tokens, as after a failover or a restore: check them with `lisa-manager tokens list`"
            );
        }
        self.follow(&all);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use axum::response::IntoResponse;
    use lisa_core::broker::StoredToken;
    use lisa_core::time::UnixMs;
    use sha2::{Digest, Sha256};

    use super::super::{Denied, NewToken, Scope, TokenHash, TokenSet};
    use super::*;

    /// Returns a stored token whose text is `text`.
    fn stored(name: &str, text: &str, quota: u32) -> StoredToken {
        let body =
            serde_json::json!({ "scopes": ["send"], "topics": ["t"], "sends_per_second": quota });
        let new = NewToken::from_fields(body.as_object().unwrap()).unwrap();
        let record = TokenRecord {
            definition: new.definition,
            sha256: TokenHash::of(text),
            previous_sha256: None,
            created: UnixMs::new(1),
            created_by: String::new(),
        };
        StoredToken {
            name: name.parse().unwrap(),
            version: 1,
            record: record.text().unwrap(),
        }
    }

    fn configured(name: &str) -> Token {
        let token = Token::without_secret(name, vec![Scope::Send]).unwrap();
        let hash: [u8; 32] = Sha256::digest(name).into();
        token.with_hashes(hash, None)
    }

    #[test]
    fn stored_tokens_count_beside_configured_ones_and_only_then() {
        let damaged = StoredToken {
            name: "damaged".parse().unwrap(),
            version: 1,
            record: "{}".to_owned(),
        };
        let all = AllTokens {
            version: 7,
            tokens: vec![
                stored("app", "same as b", 1),
                stored("b", "same as b", 1),
                damaged,
                stored("file", "secret", 1),
                stored("other", "file", 1),
            ],
        };
        let open = TokenSet::default();
        open.follow(&all);
        assert!(open.find("same as b").is_none() && open.by_name("app").is_none());
        assert!(!open.has_limited());
        let set = TokenSet::new(vec![configured("file")]);
        let clone = set.clone();
        assert!(!set.has_limited());
        set.follow(&all);
        assert_eq!((clone.version(), clone.has_limited()), (7, true));
        let name = |text: &str| clone.find(text).map(|token| token.name().to_owned());
        assert_eq!(name("same as b").as_deref(), Some("app"));
        assert_eq!(name("file").as_deref(), Some("file"));
        assert_eq!(clone.check("secret", Scope::Send), Err(Denied::Unknown));
        assert!(clone.by_name("b").is_some() && clone.by_name("damaged").is_none());
        // It has no secret with which a request could be signed.
        assert!(clone.named("app").is_none() && clone.named("file").is_some());
        set.follow(&AllTokens::default());
        assert_eq!((name("same as b"), clone.version()), (None, 0));
        assert_eq!(clone.check("same as b", Scope::Send), Err(Denied::Unknown));
        // A client must not take a process that is new for one that does not know its token.
        let new = set.awaiting_stored();
        assert_eq!(new.check("same as b", Scope::Send), Err(Denied::Unread));
        assert!(new.check("file", Scope::Send).is_ok());
        assert_eq!(Denied::Unread.into_response().status(), 503);
        new.follow(&AllTokens::default());
        assert_eq!(new.check("same as b", Scope::Send), Err(Denied::Unknown));
    }

    #[test]
    fn a_quota_that_is_used_up_stays_so_unless_it_changes() {
        let set = TokenSet::new(vec![configured("file")]);
        let follow = |quota| {
            set.follow(&AllTokens {
                version: 1,
                tokens: vec![stored("app", "text", quota)],
            });
            let token = set.by_name("app").unwrap();
            token.quota().unwrap().admit()
        };
        assert_eq!([follow(1), follow(1), follow(2)], [true, false, true]);
    }
}
