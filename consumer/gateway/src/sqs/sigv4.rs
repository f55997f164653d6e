//! Verifies requests that are signed in the manner of AWS (Signature Version 4), with the signature in a header.
//!
//! The access key id is the name of a token, and the secret key is in its `aws_secret_file`. The signature covers the method,
//! the path, the signed headers and the body.

use std::fmt::Write;
use std::time::Duration;

use axum::http::header::AUTHORIZATION;
use axum::http::{HeaderMap, Uri};
use bytes::Bytes;
use hmac::{Hmac, KeyInit, Mac};
use lisa_core::time::{UnixMs, shorten};
use lisa_service::http::auth::{Token, TokenSet};
use sha2::{Digest, Sha256};
use tokio::task::spawn_blocking;

use super::protocol::{Kind, SqsError};
use super::query::pairs;

const ALGORITHM: &str = "AWS4-HMAC-SHA256";
/// The largest difference between the clocks of client and gateway.
const MAX_SKEW: Duration = Duration::from_mins(15);
/// The most signed headers.
const MAX_SIGNED: usize = 64;

/// The parts of an `Authorization` header.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Authorization<'a> {
    access_key: &'a str,
    date: &'a str,
    pub(super) region: &'a str,
    service: &'a str,
    signed: Vec<&'a str>,
    signature: [u8; 32],
}

impl<'a> Authorization<'a> {
    /// Reads the header of a request; `None` if there is none.
    pub(super) fn read(headers: &'a HeaderMap) -> Result<Option<Self>, SqsError> {
        let mut values = headers.get_all(AUTHORIZATION).iter();
        let Some(value) = values.next() else {
            return Ok(None);
        };
        if values.next().is_some() {
            return Err(incomplete("several Authorization headers"));
        }
        let text = value.to_str().map_err(|_| incomplete("it is not ASCII"))?;
        let fields = text.strip_prefix(ALGORITHM).ok_or_else(|| {
            incomplete("expected AWS4-HMAC-SHA256 Credential=…, SignedHeaders=…, Signature=…")
        })?;
        let (mut credential, mut signed, mut signature) = (None, None, None);
        for field in fields.split(',') {
            match field.trim().split_once('=') {
                Some(("Credential", value)) => credential = Some(value),
                Some(("SignedHeaders", value)) => signed = Some(value),
                Some(("Signature", value)) => signature = Some(value),
                _ => {}
            }
        }
        let credential = credential.ok_or_else(|| incomplete("it has no Credential"))?;
        let signed = signed.ok_or_else(|| incomplete("it has no SignedHeaders"))?;
        let signature = signature.ok_or_else(|| incomplete("it has no Signature"))?;
        let scope: Vec<&str> = credential.split('/').collect();
        let [access_key, date, region, service, "aws4_request"] = scope[..] else {
            let why = "its Credential is not KEY/DATE/REGION/SERVICE/aws4_request";
            return Err(incomplete(why));
        };
        let signed: Vec<&str> = signed.split(';').collect();
        if signed.len() > MAX_SIGNED || !signed.is_sorted() {
            return Err(incomplete("its SignedHeaders are not sorted, or too many"));
        }
        Ok(Some(Self {
            access_key,
            date,
            region,
            service,
            signed,
            signature: parse_hex(signature)
                .ok_or_else(|| incomplete("its Signature does not have 64 hexadecimal digits"))?,
        }))
    }

    /// Finds the token of a request. Checks everything that does not need the body, so that a stranger's body is not read.
    pub(super) fn token<'t>(
        &self,
        tokens: &'t TokenSet,
        headers: &HeaderMap,
        service: &str,
        now: UnixMs,
    ) -> Result<&'t Token, SqsError> {
        if self.service != service {
            let message = format!("Credential should be scoped to correct service: {service}.");
            return Err(SqsError::new(Kind::SignatureDoesNotMatch, message));
        }
        let date = date(headers)?;
        if !date.starts_with(self.date) || self.date.len() != 8 {
            return Err(incomplete(
                "the date of its Credential is not that of X-Amz-Date",
            ));
        }
        let time = time(date).ok_or_else(|| incomplete("X-Amz-Date is not YYYYMMDDTHHMMSSZ"))?;
        // SDKs that correct their clock know these words.
        let wrong = if now.since(time) > MAX_SKEW {
            Some("Signature expired")
        } else if time.since(now) > MAX_SKEW {
            Some("Signature not yet current")
        } else {
            None
        };
        if let Some(wrong) = wrong {
            let message = format!("{wrong}: {time} is more than 15 minutes from {now}.");
            return Err(SqsError::new(Kind::SignatureDoesNotMatch, message));
        }
        // A header that changes what the request does must not be exchangeable.
        for name in headers.keys().map(|name| name.as_str()) {
            let has_to_be = name == "host" || name.starts_with("x-amz-");
            if has_to_be && !self.signed.contains(&name) {
                return Err(incomplete(&format!("the header {name} is not signed")));
            }
        }
        let token = tokens.named(self.access_key);
        token
            .filter(|token| token.aws_secret().is_some())
            .ok_or_else(|| {
                let message =
                    "The access key id is not the name of a valid token with an aws_secret_file.";
                SqsError::new(Kind::InvalidClientTokenId, message)
            })
    }

    /// Checks the signature of a request whose body has this [hash](hash_of), in constant time.
    pub(super) fn verify(
        &self,
        token: &Token,
        method: &str,
        uri: &Uri,
        headers: &HeaderMap,
        body_hash: &str,
    ) -> Result<(), SqsError> {
        let denied = || {
            let message = "The signature of the request does not match: check the secret key, and that no proxy \
                changes the Host header, the path or the body.";
            SqsError::new(Kind::SignatureDoesNotMatch, message)
        };
        let secret = token.aws_secret().ok_or_else(denied)?;
        let request = self.canonical_request(method, uri, headers, body_hash)?;
        let scope = [self.date, self.region, self.service, "aws4_request"];
        let text = format!(
            "{ALGORITHM}\n{}\n{}\n{}",
            date(headers)?,
            scope.join("/"),
            hex(&Sha256::digest(request))
        );
        let mut key = format!("AWS4{}", secret.expose()).into_bytes();
        for part in scope {
            key = mac(&key, part).finalize().into_bytes().to_vec();
        }
        mac(&key, &text)
            .verify_slice(&self.signature)
            .map_err(|_| denied())
    }

    fn canonical_request(
        &self,
        method: &str,
        uri: &Uri,
        headers: &HeaderMap,
        body_hash: &str,
    ) -> Result<String, SqsError> {
        let (path, query) = (encode(uri.path(), b"/"), encode_query(uri)?);
        let mut text = format!("{method}\n{path}\n{query}\n");
        for name in &self.signed {
            let mut values = headers.get_all(*name).iter().peekable();
            if values.peek().is_none() {
                let name = shorten(name);
                return Err(incomplete(&format!("the signed header {name} is missing")));
            }
            text.push_str(name);
            let mut separator = ':';
            for value in values {
                text.push(separator);
                separator = ',';
                let value = String::from_utf8_lossy(value.as_bytes());
                let words: Vec<&str> = value.split(' ').filter(|word| !word.is_empty()).collect();
                text.push_str(&words.join(" "));
            }
            text.push('\n');
        }
        write!(text, "\n{}\n{body_hash}", self.signed.join(";")).expect("a string takes all");
        Ok(text)
    }
}

/// Returns the hash of a body. Unauthenticated clients can make a gateway hash large ones, so those do not occupy the threads
/// that answer requests.
pub(super) async fn hash_of(body: &Bytes) -> String {
    const LARGE: usize = 64 * 1024;
    if body.len() <= LARGE {
        return hex(&Sha256::digest(body));
    }
    let body = body.clone();
    let hash = spawn_blocking(move || hex(&Sha256::digest(&body)));
    // Ends in an error only if the process ends; no request has an empty hash.
    hash.await.unwrap_or_default()
}

fn incomplete(why: &str) -> SqsError {
    let message = format!("The Authorization header is not usable: {why}.");
    SqsError::new(Kind::IncompleteSignature, message)
}

/// Returns the time of a request, as it was signed.
fn date(headers: &HeaderMap) -> Result<&str, SqsError> {
    let value = headers
        .get("x-amz-date")
        .and_then(|value| value.to_str().ok());
    value.ok_or_else(|| incomplete("the header X-Amz-Date is missing"))
}

/// Reads a time such as `20150830T123600Z`.
fn time(text: &str) -> Option<UnixMs> {
    if text.len() != 16 || !text.is_ascii() {
        return None;
    }
    let part = |from: usize, to: usize| &text[from..to];
    let (date, time) = (
        [part(0, 4), part(4, 6), part(6, 8)].join("-"),
        [part(9, 11), part(11, 13), part(13, 15)].join(":"),
    );
    let text = format!("{date}{}{time}{}", part(8, 9), part(15, 16));
    text.parse().ok()
}

/// Encodes a text, except for letters, digits, `-._~` and `kept`. A path is encoded once more than it is already, as all services
/// but S3 do.
fn encode(text: &str, kept: &[u8]) -> String {
    let mut encoded = String::with_capacity(text.len());
    for byte in text.bytes() {
        if byte.is_ascii_alphanumeric() || b"-._~".contains(&byte) || kept.contains(&byte) {
            encoded.push(char::from(byte));
        } else {
            write!(encoded, "%{byte:02X}").expect("a string takes all");
        }
    }
    encoded
}

/// Returns the parameters of a URL as they are signed: sorted.
fn encode_query(uri: &Uri) -> Result<String, SqsError> {
    let pairs = pairs(uri.query().unwrap_or_default().as_bytes())?;
    let pairs = pairs.iter();
    let pairs = pairs.map(|(name, value)| (encode(name, b""), encode(value, b"")));
    let mut pairs: Vec<_> = pairs.collect();
    pairs.sort_unstable();
    let pairs = pairs.iter().map(|(name, value)| format!("{name}={value}"));
    Ok(pairs.collect::<Vec<_>>().join("&"))
}

fn mac(key: &[u8], text: &str) -> Hmac<Sha256> {
    let mac = Hmac::<Sha256>::new_from_slice(key).expect("a key of any length");
    mac.chain_update(text)
}

/// Returns bytes as hexadecimal digits.
pub(super) fn hex(bytes: &[u8]) -> String {
    bytes.iter().fold(String::new(), |mut text, byte| {
        write!(text, "{byte:02x}").expect("a string takes all");
        text
    })
}

fn parse_hex(text: &str) -> Option<[u8; 32]> {
    let mut bytes = [0; 32];
    if text.len() != 64 || !text.bytes().all(|byte| byte.is_ascii_hexdigit()) {
        return None;
    }
    for (index, byte) in bytes.iter_mut().enumerate() {
        *byte = u8::from_str_radix(&text[2 * index..2 * index + 2], 16).ok()?;
    }
    Some(bytes)
}

#[cfg(test)]
mod tests;
