//! The token of a delivery: what it takes to settle the delivery, signed so that nobody can alter or invent one.
//!
//! Redis is not asked about a token that is not genuine. A token is a secret: any client with it can settle its delivery, so it
//! is never logged. A client gets one with a pull, or with a webhook that it may complete later.

use std::fmt;
use std::time::Duration;

use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use hmac::{Hmac, KeyInit, Mac};
use lisa_core::broker::{Broker, BrokerError, TopicHandle};
use lisa_core::message::{EntryId, MessageId, Record};
use lisa_core::state::Attempt;
use lisa_core::time::millis;
use lisa_core::topic::{Group, Shard, Topic};
use sha2::Sha256;
use tokio::sync::Mutex;
use tokio::time::Instant;

/// The format of the fields.
const VERSION: &str = "1";
/// The length of the signature: the first half of an HMAC-SHA256.
const SIGNATURE: usize = 16;
/// The length of a key.
const KEY: usize = 32;
/// The interval between confirmations of the key, in case Redis lost it.
pub const CONFIRM_EVERY: Duration = Duration::from_secs(30);

/// The delivery that a token stands for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Claims {
    /// Its topic.
    pub topic: Topic,
    /// Its group.
    pub group: Group,
    /// The shard of its entry.
    pub shard: Shard,
    /// Its entry in the stream of the shard.
    pub entry: EntryId,
    /// Its message.
    pub id: MessageId,
    /// True if the id is the caller's own.
    pub caller_id: bool,
    /// The attempts that the message may have.
    pub max_attempts: u32,
    /// The delay of the next attempt if this one fails, as the retry policy says.
    pub retry_after: Duration,
}

impl Claims {
    /// Returns the claims of a delivery, whose id and record these are.
    pub fn of(
        topic: &TopicHandle,
        group: &Group,
        shard: Shard,
        (id, attempt): (&MessageId, &Attempt),
        record: &Record,
    ) -> Self {
        let settings = topic.settings();
        let policy = record.retry_policy(&settings.retry);
        Self {
            topic: topic.name().clone(),
            group: group.clone(),
            shard,
            entry: attempt.entry,
            id: id.clone(),
            caller_id: record.caller_id,
            max_attempts: record.max_attempts.unwrap_or(settings.max_attempts),
            retry_after: policy.next_delay(attempt.number),
        }
    }

    fn fields(&self) -> String {
        let numbers = (self.max_attempts, millis(self.retry_after));
        let caller_id = u8::from(self.caller_id);
        [
            VERSION,
            self.topic.as_str(),
            self.group.as_str(),
            &self.shard.to_string(),
            &self.entry.to_string(),
            self.id.as_str(),
            &caller_id.to_string(),
            &numbers.0.to_string(),
            &numbers.1.to_string(),
        ]
        .join("\0")
    }

    fn read(fields: &str) -> Option<Self> {
        let mut fields = fields.split('\0');
        let mut next = || fields.next();
        next().filter(|version| *version == VERSION)?;
        let claims = Self {
            topic: next()?.parse().ok()?,
            group: next()?.parse().ok()?,
            shard: Shard::new(next()?.parse().ok()?),
            entry: next()?.parse().ok()?,
            id: next()?.parse().ok()?,
            caller_id: next()? == "1",
            max_attempts: next()?.parse().ok()?,
            retry_after: Duration::from_millis(next()?.parse().ok()?),
        };
        next().is_none().then_some(claims)
    }
}

/// The error of reading the key.
#[derive(Debug, thiserror::Error)]
pub enum KeyError {
    /// The system has no random numbers for a new key.
    #[error("cannot make a key of delivery tokens: no random numbers: {0}")]
    NoRandom(getrandom::Error),
    /// The key in Redis is not one.
    #[error("the key of delivery tokens in Redis is damaged; delete it")]
    Damaged,
    /// Redis failed.
    #[error(transparent)]
    Broker(#[from] BrokerError),
}

/// The key that signs tokens. All processes of a namespace have the same one.
#[derive(Clone, PartialEq, Eq)]
pub struct TokenKey([u8; KEY]);

impl TokenKey {
    /// Reads the key of a namespace from Redis. If there is none, stores `known`, or a new one.
    pub async fn read(broker: &Broker, known: Option<Self>) -> Result<Self, KeyError> {
        let proposed = known.map_or_else(Self::generate, Ok);
        let proposed = proposed.map_err(KeyError::NoRandom)?.to_hex();
        let stored = broker.token_key(&proposed).await?;
        Self::from_hex(&stored).ok_or(KeyError::Damaged)
    }

    fn generate() -> Result<Self, getrandom::Error> {
        let mut key = [0; KEY];
        getrandom::fill(&mut key)?;
        Ok(Self(key))
    }

    /// Reads what [`TokenKey::to_hex`] wrote.
    fn from_hex(text: &str) -> Option<Self> {
        let mut key = [0; KEY];
        if text.len() != 2 * KEY || !text.is_ascii() {
            return None;
        }
        for (index, byte) in key.iter_mut().enumerate() {
            *byte = u8::from_str_radix(text.get(2 * index..2 * index + 2)?, 16).ok()?;
        }
        Some(Self(key))
    }

    fn to_hex(&self) -> String {
        self.0.iter().map(|byte| format!("{byte:02x}")).collect()
    }

    /// Makes the token of a delivery.
    pub fn seal(&self, claims: &Claims) -> String {
        let mut token = claims.fields().into_bytes();
        let signature = self.mac(&token).finalize().into_bytes();
        token.extend_from_slice(&signature[..SIGNATURE]);
        URL_SAFE_NO_PAD.encode(token)
    }

    /// Returns the delivery of a token; `None` if the token was not made with this key, or was altered.
    pub fn open(&self, token: &str) -> Option<Claims> {
        let token = URL_SAFE_NO_PAD.decode(token).ok()?;
        let (fields, signature) = token.split_last_chunk::<SIGNATURE>()?;
        // Compares in constant time.
        let verified = self.mac(fields).verify_truncated_left(signature);
        verified.ok()?;
        Claims::read(str::from_utf8(fields).ok()?)
    }

    fn mac(&self, fields: &[u8]) -> Hmac<Sha256> {
        let mac = Hmac::<Sha256>::new_from_slice(&self.0);
        mac.expect("a key of any length").chain_update(fields)
    }
}

/// The key, read when it is first needed and confirmed from time to time.
#[derive(Default)]
pub struct KeyCache(Mutex<Option<(TokenKey, Instant)>>);

impl KeyCache {
    /// Returns the key. While Redis does not answer, the last one is used.
    pub async fn get(&self, broker: &Broker) -> Result<TokenKey, KeyError> {
        let mut cached = self.0.lock().await;
        let now = Instant::now();
        let known = match &*cached {
            Some((key, read)) if now < *read + CONFIRM_EVERY => return Ok(key.clone()),
            Some((key, _)) => Some(key.clone()),
            None => None,
        };
        let key = match TokenKey::read(broker, known.clone()).await {
            Ok(key) => key,
            Err(error) => known.ok_or(error)?,
        };
        *cached = Some((key.clone(), now));
        Ok(key)
    }
}

impl fmt::Debug for TokenKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("TokenKey(<redacted>)")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn claims() -> Claims {
        Claims {
            topic: "orders".parse().unwrap(),
            group: "billing".parse().unwrap(),
            shard: Shard::new(3),
            entry: EntryId::new(1_700_000_000_000, 7),
            id: "order-7".parse().unwrap(),
            caller_id: true,
            max_attempts: 16,
            retry_after: Duration::from_millis(1234),
        }
    }

    #[test]
    fn a_token_is_read_with_the_same_key_only() {
        let key = TokenKey::generate().unwrap();
        let same = TokenKey::from_hex(&key.to_hex()).unwrap();
        let token = key.seal(&claims());
        assert_eq!(same.open(&token), Some(claims()));
        assert_eq!(TokenKey::generate().unwrap().open(&token), None);
        assert!(!format!("{key:?}").contains(&key.to_hex()));
        for bad in ["", "x", &"g".repeat(64), &"é".repeat(32)] {
            assert_eq!(TokenKey::from_hex(bad), None, "{bad}");
        }
    }

    #[test]
    fn a_token_with_any_bit_changed_or_cut_is_refused() {
        let key = TokenKey::generate().unwrap();
        let token = key.seal(&claims());
        for at in 0..token.len() {
            for bit in 0..8 {
                let mut bytes = token.clone().into_bytes();
                bytes[at] ^= 1 << bit;
                let altered = String::from_utf8_lossy(&bytes);
                assert_eq!(key.open(&altered), None, "{at} {bit}");
            }
            assert_eq!(key.open(&token[..at]), None);
        }
        assert_eq!(key.open(&format!("{token}A")), None);
        assert_eq!(key.open(&format!("{token}=")), None);
    }

    #[test]
    fn a_token_of_another_group_has_another_signature() {
        let key = TokenKey::generate().unwrap();
        let decode = |token: &str| URL_SAFE_NO_PAD.decode(token).unwrap();
        let other = Claims {
            group: "search".parse().unwrap(),
            ..claims()
        };
        let (mine, theirs) = (decode(&key.seal(&claims())), decode(&key.seal(&other)));
        let fields = &theirs[..theirs.len() - SIGNATURE];
        let forged = [fields, &mine[mine.len() - SIGNATURE..]].concat();
        assert_eq!(key.open(&URL_SAFE_NO_PAD.encode(forged)), None);
    }
}
