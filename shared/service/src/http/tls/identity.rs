//! The certificate, the key and the authorities of the listeners, as read from their files.

use std::fmt;
use std::path::Path;
use std::str::FromStr;
use std::sync::Arc;
use std::time::Duration;

use lisa_core::small_file::{self, MAX_PEM_BYTES};
use lisa_core::time::UnixMs;
use lisa_core::tls::{authorities, certificates, private_key, provider, unfit};
use sha2::{Digest, Sha256};
use tokio_rustls::rustls::client::verify_server_cert_signed_by_trust_anchor;
use tokio_rustls::rustls::pki_types::{CertificateDer, DnsName, UnixTime};
use tokio_rustls::rustls::server::danger::ClientCertVerifier;
use tokio_rustls::rustls::server::{
    NoServerSessionStorage, ParsedCertificate, WebPkiClientVerifier,
};
use tokio_rustls::rustls::{CertificateError, Error, RootCertStore, ServerConfig};

use crate::config::ListenerTls;

/// The protocols that listeners speak, as TLS names them.
const HTTP_1_1: &[u8] = b"http/1.1";
#[cfg(feature = "http2")]
const HTTP_2: &[u8] = b"h2";

/// The reason why the files of `[http.tls]` are not usable.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("http.tls.{key}: {reason}")]
pub struct TlsError {
    /// The key below `http.tls`.
    pub key: &'static str,
    /// The problem, with the path of the file.
    pub reason: String,
}

/// The identity of the listeners, and their rule for certificates of clients.
#[derive(Clone, Debug)]
pub struct Identity {
    pub(super) config: Arc<ServerConfig>,
    /// The same for HTTP/2.
    #[cfg(feature = "http2")]
    pub(super) http2: Arc<ServerConfig>,
    pub(super) clients: Option<Arc<dyn ClientCertVerifier>>,
    not_before: u64,
    not_after: u64,
}

impl Identity {
    /// Reads the files, and checks that they belong together.
    ///
    /// # Errors
    /// A file cannot be read, has no usable contents, or does not belong to the others.
    pub fn read(files: &ListenerTls) -> Result<Self, TlsError> {
        let error = |key, reason| TlsError { key, reason };
        let of_cert = |reason| error("cert_file", reason);
        let of_clients = |reason| error("client_ca_file", reason);
        let chain = certificates(&files.cert_file).map_err(of_cert)?;
        let key = private_key(&files.key_file).map_err(|reason| error("key_file", reason))?;
        let (mut not_before, mut not_after) = (0, u64::MAX);
        for cert in &chain {
            let (begins, ends) = validity(cert).map_err(|error| {
                let path = files.cert_file.display();
                of_cert(format!("bad certificate in {path}: {error}"))
            })?;
            not_before = not_before.max(begins);
            not_after = not_after.min(ends);
        }
        let clients = match &files.client_ca_file {
            Some(path) => {
                let trusted = Arc::new(authorities(path).map_err(of_clients)?);
                let rule = WebPkiClientVerifier::builder_with_provider(trusted, provider());
                // Without a certificate, a client needs a token: health checks have neither.
                let rule = rule.allow_unauthenticated().build();
                Some(rule.map_err(|error| of_clients(error.to_string()))?)
            }
            None => None,
        };
        let config = ServerConfig::builder_with_provider(provider())
            .with_safe_default_protocol_versions()
            .map_err(|error| of_cert(error.to_string()))?;
        let config = match clients.clone() {
            Some(clients) => config.with_client_cert_verifier(clients),
            None => config.with_no_client_auth(),
        };
        let mut config = config.with_single_cert(chain, key).map_err(|error| {
            let reason = unfit(&files.cert_file, &files.key_file, &error);
            TlsError {
                key: "key_file",
                reason,
            }
        })?;
        config.alpn_protocols = vec![HTTP_1_1.to_vec()];
        if clients.is_some() {
            // A resumed session would skip the check of the client's certificate.
            config.session_storage = Arc::new(NoServerSessionStorage {});
            config.send_tls13_tickets = 0;
        }
        Ok(Self {
            #[cfg(feature = "http2")]
            http2: {
                let mut http2 = config.clone();
                http2.alpn_protocols = vec![HTTP_2.to_vec()];
                Arc::new(http2)
            },
            config: Arc::new(config),
            clients,
            not_before,
            not_after,
        })
    }

    /// Returns the earliest time at which a certificate of the chain expires, in seconds since the epoch.
    #[must_use]
    pub fn not_after(&self) -> u64 {
        self.not_after
    }

    pub(super) fn not_after_text(&self) -> String {
        time(self.not_after)
    }

    /// Returns a sentence if a certificate in this file has expired or is not valid yet. Clients refuse it.
    #[must_use]
    pub fn out_of_date(&self, file: &Path) -> Option<String> {
        let (now, file) = (now().as_secs(), file.display());
        if now > self.not_after {
            let at = time(self.not_after);
            Some(format!("a certificate in {file} expired at {at}"))
        } else if now < self.not_before {
            let at = time(self.not_before);
            Some(format!("a certificate in {file} is valid only from {at}"))
        } else {
            None
        }
    }
}

fn time(seconds: u64) -> String {
    UnixMs::new(seconds.saturating_mul(1000)).to_string()
}

/// Returns the current time on this host's clock, which decides about certificates.
pub(super) fn now() -> UnixTime {
    UnixTime::now()
}

/// Returns the times, in seconds since the epoch, from which and until which a certificate is valid.
fn validity(cert: &CertificateDer<'_>) -> Result<(u64, u64), Error> {
    let begins = match at(cert, 0)? {
        CertificateError::NotValidYetContext { not_before, .. } => not_before.as_secs(),
        _ => 0,
    };
    Ok((begins, not_after(cert)?))
}

/// Returns the time until which a certificate is valid, in seconds since the epoch.
pub(super) fn not_after(cert: &CertificateDer<'_>) -> Result<u64, Error> {
    match at(cert, u64::MAX)? {
        CertificateError::ExpiredContext { not_after, .. } => Ok(not_after.as_secs()),
        other => Err(other.into()),
    }
}

/// Returns the first error that the verifier finds in a certificate at this time. The verifier checks the time before anything that
/// depends on other certificates, and reports the limit of validity that was missed.
fn at(cert: &CertificateDer<'_>, seconds: u64) -> Result<CertificateError, Error> {
    let cert = ParsedCertificate::try_from(cert)?;
    let time = UnixTime::since_unix_epoch(Duration::from_secs(seconds));
    let nobody = RootCertStore::empty();
    let algorithms = provider().signature_verification_algorithms.all;
    match verify_server_cert_signed_by_trust_anchor(&cert, &nobody, &[], time, algorithms) {
        Err(Error::InvalidCertificate(complaint)) => Ok(complaint),
        Err(error) => Err(error),
        Ok(()) => Ok(CertificateError::UnknownIssuer),
    }
}

/// The contents of the files at one time, or the reason why there are none.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Stamp([u8; 32]);

impl Stamp {
    /// Reads the files. They are small, and the time of a change may not show in the metadata of a file.
    pub(super) fn of(files: &ListenerTls) -> Self {
        let mut hash = Sha256::new();
        let paths = [&files.cert_file, &files.key_file];
        for path in paths.into_iter().chain(&files.client_ca_file) {
            match small_file::read(path, MAX_PEM_BYTES) {
                Ok(bytes) => hash.update(Sha256::digest(bytes)),
                Err(error) => hash.update(Sha256::digest(error.to_string())),
            }
        }
        Self(hash.finalize().into())
    }
}

/// The DNS name in the certificate of a client, in lower case.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ClientName(DnsName<'static>);

/// The text is not a DNS name.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("expected a DNS name without wildcard, like orders.internal")]
pub struct InvalidClientName;

impl ClientName {
    pub(super) fn dns(&self) -> &DnsName<'static> {
        &self.0
    }
}

impl FromStr for ClientName {
    type Err = InvalidClientName;

    fn from_str(text: &str) -> Result<Self, InvalidClientName> {
        let text = text.strip_suffix('.').unwrap_or(text);
        let name = DnsName::try_from(text.to_ascii_lowercase());
        name.map(Self).map_err(|_| InvalidClientName)
    }
}

impl fmt::Display for ClientName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.0.as_ref())
    }
}
