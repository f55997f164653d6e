//! The tokens that were created by call, as this process knows them.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

use lisa_core::broker::AllTokens;
use lisa_core::sync::RwLock;

use super::{Token, TokenRecord};

/// The stored tokens. Cheap to clone; all clones know the same.
#[derive(Clone, Debug, Default)]
pub(super) struct StoredTokens(Arc<RwLock<Arc<Known>>>);

/// The stored tokens of one version.
#[derive(Debug, Default)]
pub(super) struct Known {
    pub(super) version: u64,
    /// By each of their hashes. A look-up costs the same for any number of tokens. Its time may depend on the hash, which reveals
    /// nothing: nobody can choose a text by its hash.
    pub(super) by_hash: HashMap<[u8; 32], Arc<Token>>,
    pub(super) by_name: BTreeMap<Box<str>, Arc<Token>>,
    pub(super) has_limited: bool,
}

impl StoredTokens {
    pub(super) fn known(&self) -> Arc<Known> {
        self.0.read().clone()
    }

    /// Replaces all tokens. Leaves out those that cannot be read, and those with the name of a configured one.
    pub(super) fn replace(&self, all: &AllTokens, is_configured: impl Fn(&str) -> bool) {
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
                Ok(token) => Arc::new(token),
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
        *self.0.write() = Arc::new(known);
    }
}
