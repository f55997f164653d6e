//! A configured or stored token.

use std::fmt;
use std::sync::Arc;

use lisa_core::secret::Secret;
use lisa_core::time::UnixMs;
use lisa_core::topic::{ScheduleQuota, TopicQuota};

use super::last_use::{self, LastUse};
use super::{Reach, Scope, SendQuota};
use crate::http::client::Admitted;
use crate::http::tls::ClientName;

/// A configured or stored token.
#[derive(Clone, PartialEq, Eq)]
pub struct Token {
    name: String,
    sha256: Option<[u8; 32]>,
    previous_sha256: Option<[u8; 32]>,
    client_name: Option<ClientName>,
    scopes: Vec<Scope>,
    aws_secret: Option<Secret>,
    expires: Option<UnixMs>,
    reach: Arc<Reach>,
    quota: Option<Arc<SendQuota>>,
    topic_quota: Option<Arc<TopicQuota>>,
    schedule_quota: Option<Arc<ScheduleQuota>>,
    /// The last use of the previous secret in this process.
    last_use: Arc<LastUse>,
}

/// The reason why a configured token is unusable.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub enum TokenError {
    /// The name is empty or longer than 64 characters.
    #[error("a token's name must have 1 to 64 characters")]
    Name,
    /// The hash is not 64 hexadecimal digits.
    #[error("sha256 of token {name} must have 64 hexadecimal digits")]
    Sha256 {
        /// The token's name.
        name: String,
    },
    /// The token has no scope, so it would be useless.
    #[error("token {name} has no scope: expected send, read, operate, receive, payload or tokens")]
    NoScope {
        /// The token's name.
        name: String,
    },
}

impl Token {
    /// Creates a token from the SHA-256 of its secret, in hexadecimal.
    ///
    /// # Errors
    /// The name, the hash or the scopes are unusable.
    pub fn new(
        name: impl Into<String>,
        sha256: &str,
        scopes: Vec<Scope>,
    ) -> Result<Self, TokenError> {
        let name = name.into();
        let Some(sha256) = parse_hex(sha256) else {
            return Err(TokenError::Sha256 { name });
        };
        let token = Self::without_secret(name, scopes)?;
        Ok(Self {
            sha256: Some(sha256),
            ..token
        })
    }

    /// Creates a token that no secret presents, only a client certificate: see [`Token::with_client_name`].
    ///
    /// # Errors
    /// The name or the scopes are unusable.
    pub fn without_secret(name: impl Into<String>, scopes: Vec<Scope>) -> Result<Self, TokenError> {
        let name = name.into();
        if !(1..=64).contains(&name.chars().count()) {
            return Err(TokenError::Name);
        }
        if scopes.is_empty() {
            return Err(TokenError::NoScope { name });
        }
        Ok(Self {
            name,
            sha256: None,
            previous_sha256: None,
            client_name: None,
            scopes,
            aws_secret: None,
            expires: None,
            reach: Arc::default(),
            quota: None,
            topic_quota: None,
            schedule_quota: None,
            last_use: Arc::default(),
        })
    }

    /// Also accepts the secret with this SHA-256, in hexadecimal, while clients change to the new one.
    ///
    /// # Errors
    /// The hash is unusable.
    pub fn with_previous(self, sha256: &str) -> Result<Self, TokenError> {
        let Some(previous) = parse_hex(sha256) else {
            return Err(TokenError::Sha256 { name: self.name });
        };
        Ok(Self {
            previous_sha256: Some(previous),
            ..self
        })
    }

    /// Sets the SHA-256 of the current and of the previous secret.
    #[must_use]
    pub(super) fn with_hashes(self, sha256: [u8; 32], previous: Option<[u8; 32]>) -> Self {
        Self {
            sha256: Some(sha256),
            previous_sha256: previous,
            ..self
        }
    }

    /// Sets the time from which the token is not accepted, by the clock of this machine.
    #[must_use]
    pub fn with_expiry(self, at: Option<UnixMs>) -> Self {
        Self {
            expires: at,
            ..self
        }
    }

    /// Returns the time from which the token is not accepted, if there is one.
    #[must_use]
    pub fn expires(&self) -> Option<UnixMs> {
        self.expires
    }

    /// Returns true if the token is no longer accepted.
    #[must_use]
    pub fn has_expired(&self) -> bool {
        self.expires.is_some_and(is_past)
    }

    /// Limits the token to some topics, groups or schedules.
    #[must_use]
    pub fn with_reach(self, reach: Reach) -> Self {
        Self {
            reach: Arc::new(reach),
            ..self
        }
    }

    /// Limits the messages that the token may send.
    #[must_use]
    pub fn with_quota(self, quota: Option<Arc<SendQuota>>) -> Self {
        Self { quota, ..self }
    }

    /// Returns the limit of the messages that it may send, if there is one.
    #[must_use]
    pub fn quota(&self) -> Option<&Arc<SendQuota>> {
        self.quota.as_ref()
    }

    /// Limits the topics that the token may declare.
    #[must_use]
    pub fn with_topic_quota(self, quota: Option<TopicQuota>) -> Self {
        Self {
            topic_quota: quota.map(Arc::new),
            ..self
        }
    }

    /// Returns the limits of the topics that it may declare, if there are any.
    #[must_use]
    pub fn topic_quota(&self) -> Option<&Arc<TopicQuota>> {
        self.topic_quota.as_ref()
    }

    /// Limits the schedules that the token may create.
    #[must_use]
    pub fn with_schedule_quota(self, quota: Option<ScheduleQuota>) -> Self {
        Self {
            schedule_quota: quota.map(Arc::new),
            ..self
        }
    }

    /// Returns the limit of the schedules that it may create, if there is one.
    #[must_use]
    pub fn schedule_quota(&self) -> Option<&Arc<ScheduleQuota>> {
        self.schedule_quota.as_ref()
    }

    /// Returns what the token reaches.
    #[must_use]
    pub fn reach(&self) -> &Arc<Reach> {
        &self.reach
    }

    /// Sets the name in the client certificates that present this token.
    #[must_use]
    pub fn with_client_name(self, name: Option<ClientName>) -> Self {
        Self {
            client_name: name,
            ..self
        }
    }

    /// Returns the name in the client certificates that present this token.
    #[must_use]
    pub fn client_name(&self) -> Option<&ClientName> {
        self.client_name.as_ref()
    }

    /// Sets the secret key with which clients sign requests in the manner of AWS (SigV4). The name of the token is then their
    /// access key id.
    #[must_use]
    pub fn with_aws_secret(mut self, secret: Secret) -> Self {
        self.aws_secret = Some(secret);
        self
    }

    /// Returns the secret key of signed requests, if there is one.
    #[must_use]
    pub fn aws_secret(&self) -> Option<&Secret> {
        self.aws_secret.as_ref()
    }

    /// Returns true if the token has the scope.
    #[must_use]
    pub fn has(&self, scope: Scope) -> bool {
        self.scopes.contains(&scope)
    }

    /// Returns the scopes.
    #[must_use]
    pub fn scopes(&self) -> &[Scope] {
        &self.scopes
    }

    /// Returns true if there is a previous secret, which is accepted as well.
    #[must_use]
    pub fn has_previous(&self) -> bool {
        self.previous_sha256.is_some()
    }

    /// Notes the use of a secret with this SHA-256, if it is the previous one. Costs no call.
    pub fn note_use(&self, sha256: &[u8; 32]) {
        if self.previous_sha256.as_ref() == Some(sha256) {
            self.last_use.note();
        }
    }

    /// Returns a mark of the previous secret, if there is one. It distinguishes uses of this secret from those of earlier ones.
    #[must_use]
    pub fn previous_mark(&self) -> Option<String> {
        self.previous_sha256.as_ref().map(last_use::mark)
    }

    pub(super) fn last_use(&self) -> &LastUse {
        &self.last_use
    }

    /// Takes over what a token of the same name has used: of its quota, and of its previous secret, each only if it is the same.
    #[must_use]
    pub(super) fn continuing(self, before: Option<&Self>) -> Self {
        let Some(before) = before else {
            return self;
        };
        // A quota that is used up stays so when any token changes.
        let quota = before.quota.clone().filter(|_| before.quota == self.quota);
        let is_same = before.previous_sha256 == self.previous_sha256;
        Self {
            quota: quota.or(self.quota),
            last_use: match is_same {
                true => before.last_use.clone(),
                false => self.last_use,
            },
            ..self
        }
    }

    /// Returns the client with this token; `None` if no tokens are configured.
    #[must_use]
    pub fn admitted(token: Option<&Self>) -> Admitted {
        let Some(token) = token else {
            return Admitted::new(true, None);
        };
        let may_read = token.has(Scope::Read);
        let client = Admitted::new(may_read, Some(token.name().into()));
        let client = client.within(&token.reach);
        let client = client.with_quota(token.quota.as_ref());
        let client = client.with_topic_quota(token.topic_quota.as_ref());
        client.with_schedule_quota(token.schedule_quota.as_ref())
    }

    /// Returns the token's name, as it appears in logs.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Returns the SHA-256 of the token's current and previous secret. Never show them: they authenticate sessions.
    pub fn hashes(&self) -> impl Iterator<Item = &[u8; 32]> {
        self.sha256.iter().chain(&self.previous_sha256)
    }
}

impl fmt::Debug for Token {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Token")
            .field("name", &self.name)
            .field("sha256", &self.sha256.map(|_| "<redacted>"))
            .field("client_name", &self.client_name)
            .field("scopes", &self.scopes)
            .field("aws_secret", &self.aws_secret)
            .field("expires", &self.expires)
            .field("reach", &self.reach)
            .field("quota", &self.quota)
            .field("topic_quota", &self.topic_quota)
            .field("schedule_quota", &self.schedule_quota)
            .finish_non_exhaustive()
    }
}

/// Returns true if a time has come, by the clock of this machine.
pub(super) fn is_past(at: UnixMs) -> bool {
    let now = jiff::Timestamp::now().as_millisecond();
    u64::try_from(now).is_ok_and(|now| at.get() <= now)
}

pub(crate) fn parse_hex(text: &str) -> Option<[u8; 32]> {
    let digits = text.as_bytes();
    if digits.len() != 64 {
        return None;
    }
    let mut bytes = [0; 32];
    for (byte, pair) in bytes.iter_mut().zip(digits.chunks_exact(2)) {
        let high = char::from(pair[0]).to_digit(16)?;
        let low = char::from(pair[1]).to_digit(16)?;
        *byte = u8::try_from(high << 4 | low).ok()?;
    }
    Some(bytes)
}
