//! Signatures of Standard Webhooks 1.0.0, scheme `v1`: HMAC-SHA256 over `id.timestamp.body`.
//!
//! The signature covers the bytes of the body, so a body that is not text is signed, too.

use std::fmt;
use std::str::FromStr;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use hmac::{Hmac, KeyInit, Mac};
use sha2::Sha256;

use crate::SinkError;

/// A signing key: `whsec_` and the base64 of 24 to 64 random bytes. `Debug` does not show it.
#[derive(Clone)]
pub(super) struct WebhookSecret(Hmac<Sha256>);

impl WebhookSecret {
    /// Returns the signature of one attempt: `v1,` and the base64 of the HMAC.
    fn sign(&self, id: &str, timestamp: &str, body: &[u8]) -> String {
        let mut mac = self.0.clone();
        for part in [id.as_bytes(), b".", timestamp.as_bytes(), b".", body] {
            mac.update(part);
        }
        format!("v1,{}", STANDARD.encode(mac.finalize().into_bytes()))
    }
}

/// Returns the signatures by all keys, since two are valid while one is rotated; `None` without keys.
pub(super) fn sign(
    secrets: &[WebhookSecret],
    id: &str,
    timestamp: &str,
    body: &[u8],
) -> Option<String> {
    let signatures: Vec<String> = secrets
        .iter()
        .map(|secret| secret.sign(id, timestamp, body))
        .collect();
    (!signatures.is_empty()).then(|| signatures.join(" "))
}

impl FromStr for WebhookSecret {
    type Err = SinkError;

    fn from_str(text: &str) -> Result<Self, SinkError> {
        let key = text
            .strip_prefix("whsec_")
            .and_then(|text| STANDARD.decode(text).ok())
            .ok_or(SinkError::Secret("must be whsec_ followed by base64"))?;
        if !(24..=64).contains(&key.len()) {
            return Err(SinkError::Secret("must be 24 to 64 bytes long"));
        }
        let mac = Hmac::new_from_slice(&key).expect("HMAC takes keys of any length");
        Ok(Self(mac))
    }
}

impl fmt::Debug for WebhookSecret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("***")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECRET: &str = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw";
    const OTHER: &str = "whsec_C2FVsBQIhrscChlQIMV+b5sSYspob7oD/Xh8WbQkMCA=";

    #[test]
    fn signatures_are_those_of_the_reference_library() {
        for (secret, body) in [(SECRET, "{\"a\":1}"), (OTHER, ""), (OTHER, "ä\n")] {
            let reference = standardwebhooks::Webhook::new(secret).unwrap();
            let expected = reference
                .sign("msg-1", 1_700_000_000, body.as_bytes())
                .unwrap();
            let secret: WebhookSecret = secret.parse().unwrap();
            assert_eq!(
                secret.sign("msg-1", "1700000000", body.as_bytes()),
                expected
            );
        }
    }

    #[test]
    fn bytes_that_are_not_text_are_signed() {
        let secret: WebhookSecret = SECRET.parse().unwrap();
        // Computed with openssl dgst -sha256 -hmac over "msg-1.1700000000." ff 00 fe.
        assert_eq!(
            secret.sign("msg-1", "1700000000", b"\xff\0\xfe"),
            "v1,BgZv0PjNAFwQ+YA623+O2parFf5bKJX9/+sTO5KROcA="
        );
    }

    #[test]
    fn each_key_signs_and_no_key_does_not() {
        let secrets: Vec<WebhookSecret> = [SECRET, OTHER].map(|s| s.parse().unwrap()).into();
        let both = sign(&secrets, "i", "1", b"x").unwrap();
        let (first, second) = both.split_once(' ').unwrap();
        assert_eq!(first, secrets[0].sign("i", "1", b"x"));
        assert_eq!(second, secrets[1].sign("i", "1", b"x"));
        assert_eq!(sign(&[], "i", "1", b"x"), None);
    }

    #[test]
    fn a_key_is_24_to_64_bytes_of_base64_and_not_shown() {
        let long = format!("whsec_{}", STANDARD.encode([0; 65]));
        let bare = &SECRET["whsec_".len()..];
        for bad in ["", "whsec_", "whsec_c2hvcnQ=", "whsec_%%%%", bare, &long] {
            assert!(bad.parse::<WebhookSecret>().is_err(), "{bad}");
        }
        let secret: WebhookSecret = SECRET.parse().unwrap();
        assert_eq!(format!("{secret:?}"), "***");
    }
}
