//! The last use of the previous secret of a token, as a process has seen it.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use lisa_core::broker::{Broker, BrokerError, PreviousUse};
use lisa_core::time::UnixMs;
use sha2::{Digest, Sha256};

use super::TokenSet;

/// The time between two reports of uses of the same secret.
const REPORT_EVERY: Duration = Duration::from_secs(60);

/// The last use in this process. It is noted without a call. The first one is reported soon, and later ones at most once a minute.
#[derive(Debug, Default)]
pub(super) struct LastUse {
    /// The time in ms by the clock of this machine; 0 for none.
    used: AtomicU64,
    /// The newest of these times that was reported.
    reported: AtomicU64,
}

impl LastUse {
    pub(super) fn note(&self) {
        self.used.fetch_max(now(), Ordering::Relaxed);
    }

    /// Returns the time of the last use, if it was not reported.
    fn unreported(&self) -> Option<u64> {
        let used = self.used.load(Ordering::Relaxed);
        (used > self.reported.load(Ordering::Relaxed)).then_some(used)
    }

    /// Returns true if the last report was at least a minute before this time, or there was none.
    fn is_due(&self, now: u64) -> bool {
        let reported = self.reported.load(Ordering::Relaxed);
        u128::from(now.saturating_sub(reported)) >= REPORT_EVERY.as_millis()
    }
}

/// Treats all as equal: the uses of a token are no part of its definition.
impl PartialEq for LastUse {
    fn eq(&self, _: &Self) -> bool {
        true
    }
}

impl Eq for LastUse {}

/// Returns a mark of a secret, derived from its hash. The mark reveals neither.
pub(super) fn mark(sha256: &[u8; 32]) -> String {
    let hash: [u8; 32] = Sha256::digest(sha256).into();
    hash.iter()
        .take(8)
        .map(|byte| format!("{byte:02x}"))
        .collect()
}

/// Returns the time by the clock of this machine, in ms.
fn now() -> u64 {
    u64::try_from(jiff::Timestamp::now().as_millisecond()).unwrap_or_default()
}

impl TokenSet {
    /// Reports the uses of previous secrets since their last reports, so that an administrator sees when a rotation can be finished. Unless
    /// `all` is true, skips secrets with a report in the last minute. Costs one command if there are uses to report.
    ///
    /// # Errors
    /// [`BrokerError`]. The next report includes these uses.
    pub async fn report_previous_uses(
        &self,
        broker: &Broker,
        all: bool,
    ) -> Result<(), BrokerError> {
        let stored = self.stored.known();
        let (here, there) = (now(), broker.now());
        let tokens = self.configured.iter().chain(stored.by_name.values());
        let tokens = tokens.filter(|token| all || token.last_use().is_due(here));
        let used = tokens.filter_map(|token| Some((token, token.last_use().unreported()?)));
        let used: Vec<_> = used.collect();
        if used.is_empty() {
            return Ok(());
        }
        let uses = used.iter().filter_map(|(token, at)| {
            let ago = here.saturating_sub(*at);
            let at = UnixMs::new(there.get().saturating_sub(ago));
            Some(PreviousUse {
                token: token.name().to_owned(),
                mark: token.previous_mark()?,
                at,
            })
        });
        broker.note_previous_uses(&uses.collect::<Vec<_>>()).await?;
        for (token, at) in used {
            let reported = &token.last_use().reported;
            reported.fetch_max(at, Ordering::Relaxed);
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::super::{Scope, Token};
    use super::*;

    fn hash(text: &str) -> [u8; 32] {
        Sha256::digest(text).into()
    }

    #[test]
    fn only_the_use_of_a_previous_secret_is_noted() {
        let token = Token::without_secret("app", vec![Scope::Send]).unwrap();
        let set = TokenSet::new(vec![token.with_hashes(hash("new"), Some(hash("old")))]);
        let token = set.by_name("app").unwrap();
        for (presented, scope, expected) in [
            ("new", Scope::Send, false),
            ("other", Scope::Send, false),
            // The secret is used, although the token lacks the scope.
            ("old", Scope::Read, true),
        ] {
            let _ = set.check(presented, scope);
            let is_noted = token.last_use().unreported().is_some();
            assert_eq!(is_noted, expected, "{presented}");
        }
        // The first use is reported at once, and the next one after a minute.
        let (uses, first) = (token.last_use(), now());
        assert!(uses.is_due(first));
        uses.reported.store(first, Ordering::Relaxed);
        assert!(!uses.is_due(first + 59_999) && uses.is_due(first + 60_000));
        let mark = token.previous_mark().unwrap();
        assert_eq!(mark.len(), 16);
        assert_ne!(mark, self::mark(&hash("new")));
    }
}
