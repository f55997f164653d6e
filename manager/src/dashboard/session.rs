//! Login by token. A session is a signed cookie that names a token. It ends when that token is removed or replaced, or with a
//! logout: Redis has a list of ended sessions.

use std::collections::HashMap;
use std::net::IpAddr;
use std::path::Path;
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use hmac::{Hmac, KeyInit as _, Mac as _};
use lisa_core::small_file;
use lisa_core::sync::Mutex;
use lisa_core::time::UnixMs;
use lisa_service::http::auth::{Reach, Scope, Token, TokenSet};
use lisa_service::http::client::Admitted;
use sha2::{Digest as _, Sha256};

/// The time without a request after which a session ends.
const IDLE: Duration = Duration::from_hours(12);
/// The time after its login at which a session ends.
pub(super) const LONGEST: Duration = Duration::from_hours(7 * 24);
/// The age from which a cookie is replaced by a newer one.
const RENEW_AFTER: Duration = Duration::from_hours(1);
/// The failed logins of one address in one [`WINDOW`] after which more are refused.
const MOST_FAILURES: u32 = 10;
const WINDOW: Duration = Duration::from_mins(1);
/// The addresses whose failures are remembered.
const MOST_ADDRESSES: usize = 10_000;
/// The size of a key.
const KEY_BYTES: usize = 32;
/// The largest file with a key.
const MAX_KEY_BYTES: u64 = 64 * 1024;

/// The person or program that looks at a page.
#[derive(Clone, Debug)]
pub(super) enum Viewer {
    /// No tokens are configured: everybody on this machine may do everything.
    Anybody,
    /// Tokens are configured, and the request has no session.
    Stranger,
    /// A session of this token.
    Session(Arc<Token>),
}

impl Viewer {
    /// Returns true if the viewer has the scope.
    pub(super) fn can(&self, scope: Scope) -> bool {
        match self {
            Self::Anybody => true,
            Self::Stranger => false,
            Self::Session(token) => token.has(scope),
        }
    }

    /// Returns what the viewer reaches.
    pub(super) fn reach(&self) -> Arc<Reach> {
        match self {
            Self::Anybody | Self::Stranger => Arc::default(),
            Self::Session(token) => token.reach().clone(),
        }
    }

    /// Returns the viewer as a client whose request is answered. A stranger is none.
    pub(super) fn admitted(&self) -> Option<Admitted> {
        match self {
            Self::Anybody => Some(Token::admitted(None)),
            Self::Stranger => None,
            Self::Session(token) => Some(Token::admitted(Some(token))),
        }
    }

    /// Runs a read that is limited to what the viewer reaches.
    pub(super) async fn scope<F: Future>(&self, read: F) -> F::Output {
        match self.admitted() {
            Some(viewer) => viewer.scope(read).await,
            None => read.await,
        }
    }

    /// Returns the name of the token; `None` without a session.
    pub(super) fn name(&self) -> Option<&str> {
        match self {
            Self::Anybody | Self::Stranger => None,
            Self::Session(token) => Some(token.name()),
        }
    }
}

/// A session with a valid cookie. It may have been ended by a logout.
#[derive(Debug)]
pub(super) struct Session {
    pub(super) viewer: Viewer,
    pub(super) id: SessionId,
    /// The value of the cookie to set instead, if this one has aged.
    pub(super) renewed: Option<String>,
}

/// The identity of a session. It stays the same when the cookie is renewed.
#[derive(Clone, Debug)]
pub(super) struct SessionId {
    pub(super) token: String,
    number: String,
    begun: UnixMs,
}

impl SessionId {
    /// Its name in the list of ended sessions.
    pub(super) fn one(&self) -> String {
        format!("{}/{}", self.token, self.number)
    }

    /// The name there of all sessions of its token.
    pub(super) fn all(&self) -> String {
        format!("{}/all", self.token)
    }

    /// Returns true if this session was ended, or all of its token since it began.
    pub(super) fn has_ended(&self, ended: &HashMap<String, UnixMs>) -> bool {
        ended.contains_key(&self.one())
            || ended.get(&self.all()).is_some_and(|at| self.begun <= *at)
    }
}

/// Makes and checks sessions. Cheap to clone.
#[derive(Clone)]
pub(super) struct Sessions {
    tokens: TokenSet,
    key: Arc<[u8]>,
    failures: Arc<Mutex<HashMap<IpAddr, (Instant, u32)>>>,
}

impl std::fmt::Debug for Sessions {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let sessions = f.debug_struct("Sessions");
        { sessions }
            .field("tokens", &self.tokens)
            .finish_non_exhaustive()
    }
}

/// The key of sessions cannot be used.
#[derive(Debug, thiserror::Error)]
pub(crate) enum KeyError {
    /// The file cannot be read.
    #[error("manager.dashboard.session_key_file: cannot read {path}: {error}")]
    Unreadable {
        /// The path.
        path: String,
        /// The reason.
        error: std::io::Error,
    },
    /// The file is too short to be a key.
    #[error(
        "manager.dashboard.session_key_file: {path} has {bytes} bytes, at least {KEY_BYTES} are required"
    )]
    Short {
        /// The path.
        path: String,
        /// Its size.
        bytes: usize,
    },
    /// The system has no random numbers.
    #[error("cannot create a key for sessions of the dashboard: {0}")]
    Random(getrandom::Error),
}

/// Returns the random key of this process, with which sessions outlive a reload of the configuration.
fn process_key() -> Result<Vec<u8>, getrandom::Error> {
    static KEY: OnceLock<Vec<u8>> = OnceLock::new();
    let mut key = vec![0; KEY_BYTES];
    getrandom::fill(&mut key)?;
    Ok(KEY.get_or_init(|| key).clone())
}

impl Sessions {
    /// Creates sessions with the key in this file, or with a random one that ends with the process.
    pub(super) fn new(tokens: &TokenSet, key_file: Option<&Path>) -> Result<Self, KeyError> {
        let key = match key_file {
            Some(file) => {
                let path = || file.display().to_string();
                let read = small_file::read(file, MAX_KEY_BYTES);
                let key = read.map_err(|error| KeyError::Unreadable {
                    path: path(),
                    error,
                })?;
                let bytes = key.len();
                if bytes < KEY_BYTES {
                    return Err(KeyError::Short {
                        path: path(),
                        bytes,
                    });
                }
                key
            }
            None => process_key().map_err(KeyError::Random)?,
        };
        Ok(Self {
            tokens: tokens.clone(),
            key: key.into(),
            failures: Arc::default(),
        })
    }

    /// Returns the tokens that are accepted.
    pub(super) fn tokens(&self) -> &TokenSet {
        &self.tokens
    }

    /// Returns true if there is a login.
    pub(super) fn are_required(&self) -> bool {
        !self.tokens.is_empty()
    }

    /// Logs in with a token. Returns the value of the cookie; `None` if there is no such token.
    pub(super) fn log_in(&self, presented: &str, now: UnixMs) -> Option<String> {
        let token = self.tokens.find(presented)?;
        let hash: [u8; 32] = Sha256::digest(presented).into();
        let id = format!("{:016x}", fastrand::u64(..));
        Some(self.sign(&token, &hash, now, now, &id))
    }

    /// Returns the session of a cookie. `None` if it is forged or too old, or its token has changed.
    pub(super) fn check(&self, cookie: &str, now: UnixMs) -> Option<Session> {
        let (text, signature) = cookie.rsplit_once('.')?;
        let mut parts = text.split('.');
        let name = URL_SAFE_NO_PAD.decode(parts.next()?).ok()?;
        let token = self.tokens.by_name(std::str::from_utf8(&name).ok()?)?;
        let begun = UnixMs::new(parts.next()?.parse().ok()?);
        let issued = UnixMs::new(parts.next()?.parse().ok()?);
        let id = parts.next()?;
        let signature = URL_SAFE_NO_PAD.decode(signature).ok()?;
        let mut hashes = token.hashes();
        let hash = hashes.find(|hash| self.mac(hash, text).verify_slice(&signature).is_ok())?;
        if now.since(issued) > IDLE || now.since(begun) > LONGEST {
            return None;
        }
        token.note_use(hash);
        let has_aged = now.since(issued) > RENEW_AFTER;
        Some(Session {
            viewer: Viewer::Session(token.clone()),
            id: SessionId {
                token: token.name().to_owned(),
                number: id.to_owned(),
                begun,
            },
            renewed: has_aged.then(|| self.sign(&token, hash, begun, now, id)),
        })
    }

    fn sign(
        &self,
        token: &Token,
        hash: &[u8; 32],
        begun: UnixMs,
        issued: UnixMs,
        id: &str,
    ) -> String {
        let name = URL_SAFE_NO_PAD.encode(token.name());
        let text = format!("{name}.{}.{}.{id}", begun.get(), issued.get());
        let signature = self.mac(hash, &text).finalize().into_bytes();
        format!("{text}.{}", URL_SAFE_NO_PAD.encode(signature))
    }

    /// The hash of the text with which a session began is part of what is signed. So it ends when the token no longer has that text.
    fn mac(&self, hash: &[u8; 32], text: &str) -> Hmac<Sha256> {
        let mac = Hmac::<Sha256>::new_from_slice(&self.key);
        let mut mac = mac.expect("a key of any length");
        mac.update(b"lisa dashboard session 1\0");
        mac.update(hash);
        mac.update(text.as_bytes());
        mac
    }

    /// Returns true if an address has failed too often lately.
    pub(super) fn is_locked_out(&self, peer: IpAddr) -> bool {
        let failures = self.failures.lock();
        failures
            .get(&peer)
            .is_some_and(|(since, count)| since.elapsed() < WINDOW && *count >= MOST_FAILURES)
    }

    /// Counts a failed login.
    pub(super) fn failed(&self, peer: IpAddr) {
        let mut failures = self.failures.lock();
        if failures.len() >= MOST_ADDRESSES {
            failures.retain(|_, (since, _)| since.elapsed() < WINDOW);
            if failures.len() >= MOST_ADDRESSES {
                failures.clear();
            }
        }
        let entry = failures.entry(peer).or_insert((Instant::now(), 0));
        if entry.0.elapsed() >= WINDOW {
            *entry = (Instant::now(), 0);
        }
        entry.1 += 1;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const NOW: UnixMs = UnixMs::new(1_700_000_000_000);

    /// Returns tokens of one name each, whose text is the name; `hash` replaces all hashes.
    fn sessions(hash: Option<&str>) -> Sessions {
        const ABC: &str = "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad";
        let token = Token::new("öps", hash.unwrap_or(ABC), vec![Scope::Read]);
        Sessions {
            key: (*b"key").into(),
            ..Sessions::new(&TokenSet::new(vec![token.unwrap()]), None).unwrap()
        }
    }

    #[test]
    fn a_session_has_the_scopes_of_its_token_and_ends_with_it() {
        let sessions = sessions(None);
        assert_eq!(sessions.log_in("abd", NOW), None);
        let cookie = sessions.log_in("abc", NOW).unwrap();
        let session = sessions.check(&cookie, NOW).unwrap();
        assert_eq!(session.viewer.name(), Some("öps"));
        assert!(session.viewer.can(Scope::Read) && !session.viewer.can(Scope::Operate));
        assert_eq!(session.renewed, None);
        let other = super::tests::sessions(Some(&"0".repeat(64)));
        assert!(
            other.check(&cookie, NOW).is_none(),
            "the token was replaced"
        );
        let mut forged = cookie.clone();
        forged.insert(cookie.find('.').unwrap() + 1, '9');
        for cookie in ["", ".", "a.b", &forged, &cookie[..cookie.len() - 1]] {
            assert!(sessions.check(cookie, NOW).is_none(), "{cookie}");
        }
    }

    #[test]
    fn a_session_ends_with_the_text_of_its_token() {
        let hash = |text: &str| {
            let bytes = Sha256::digest(text);
            bytes
                .iter()
                .fold(String::new(), |hash, byte| format!("{hash}{byte:02x}"))
        };
        let with = |previous: Option<&str>| {
            let token = Token::new("ops", &hash("new"), vec![Scope::Read]).unwrap();
            let token = match previous {
                Some(previous) => token.with_previous(&hash(previous)).unwrap(),
                None => token,
            };
            Sessions {
                key: (*b"key").into(),
                ..Sessions::new(&TokenSet::new(vec![token]), None).unwrap()
            }
        };
        let (before, after) = (with(Some("old")), with(None));
        let [old, new] = ["old", "new"].map(|text| before.log_in(text, NOW).unwrap());
        let later = UnixMs::new(NOW.get() + 7_200_000);
        let renewed = before.check(&old, later).unwrap().renewed.unwrap();
        assert!(after.check(&new, NOW).is_some());
        for cookie in [old, renewed] {
            assert!(before.check(&cookie, later).is_some());
            assert!(after.check(&cookie, later).is_none());
        }
    }

    #[test]
    fn a_session_slides_and_ends_after_a_week_at_the_latest() {
        let sessions = sessions(None);
        let cookie = sessions.log_in("abc", NOW).unwrap();
        let begun = NOW;
        let hours = |hours: u64| UnixMs::new(begun.get() + hours * 3_600_000);
        assert!(sessions.check(&cookie, hours(13)).is_none());
        let mut cookie = cookie;
        for hour in (11..168).step_by(11) {
            let session = sessions.check(&cookie, hours(hour)).unwrap();
            cookie = session.renewed.expect("it has aged");
        }
        assert!(sessions.check(&cookie, hours(169)).is_none());
    }

    #[test]
    fn a_session_ends_with_its_logout_and_all_of_a_token_with_theirs() {
        let sessions = sessions(None);
        let in_a_while = UnixMs::new(NOW.get() + 7_200_000);
        let cookie = sessions.log_in("abc", NOW).unwrap();
        let renewed = sessions.check(&cookie, in_a_while).unwrap().renewed;
        let of = |cookie: &str| sessions.check(cookie, in_a_while).unwrap().id;
        let (one, other) = (
            of(&renewed.unwrap()),
            of(&sessions.log_in("abc", NOW).unwrap()),
        );
        let ended = HashMap::from([(of(&cookie).one(), NOW)]);
        assert!(one.has_ended(&ended) && !other.has_ended(&ended));
        let ended = HashMap::from([(one.all(), NOW)]);
        assert!(one.has_ended(&ended) && other.has_ended(&ended));
        let later = SessionId {
            begun: in_a_while,
            ..other
        };
        assert!(!later.has_ended(&ended));
    }

    #[test]
    fn an_address_that_fails_too_often_is_locked_out_alone() {
        let sessions = sessions(None);
        let [one, other]: [IpAddr; 2] = ["10.0.0.1", "10.0.0.2"].map(|ip| ip.parse().unwrap());
        for _ in 0..MOST_FAILURES {
            assert!(!sessions.is_locked_out(one));
            sessions.failed(one);
        }
        assert!(sessions.is_locked_out(one) && !sessions.is_locked_out(other));
    }

    #[test]
    fn a_key_of_a_file_must_be_long_enough() {
        let tokens = TokenSet::default();
        let file = std::env::temp_dir().join(format!("lisa-key-{}", std::process::id()));
        std::fs::write(&file, "short").unwrap();
        let error = Sessions::new(&tokens, Some(&file)).unwrap_err().to_string();
        assert!(error.contains("has 5 bytes, at least 32"), "{error}");
        std::fs::write(&file, "x".repeat(32)).unwrap();
        assert!(Sessions::new(&tokens, Some(&file)).is_ok());
        std::fs::remove_file(&file).unwrap();
        let error = Sessions::new(&tokens, Some(&file)).unwrap_err().to_string();
        assert!(error.contains("cannot read"), "{error}");
    }
}
