//! TLS of connections to Redis, NATS, webhooks and managers, and the PEM files of certificates.

use std::path::Path;
use std::sync::Arc;

use rustls::client::WantsClientCert;
use rustls::crypto::CryptoProvider;
use rustls::pki_types::pem::{self, PemObject};
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::{ClientConfig, ConfigBuilder, RootCertStore};

use crate::small_file::{self, MAX_PEM_BYTES};

/// A client certificate and its private key, as PEM files.
#[derive(Clone, Copy, Debug)]
pub struct ClientCertificate<'a> {
    /// The certificate, followed by its chain.
    pub cert: &'a Path,
    /// The private key.
    pub key: &'a Path,
}

/// Reads the certificates of a client. Without `ca_file`, it trusts the certificate authorities of the host.
///
/// # Errors
/// Returns the reason if a file cannot be read or holds no certificate.
pub fn client_config(
    ca_file: Option<&Path>,
    client: Option<ClientCertificate<'_>>,
) -> Result<Arc<ClientConfig>, String> {
    let roots = match ca_file {
        Some(path) => authorities(path)?,
        None => {
            let mut roots = RootCertStore::empty();
            let host = rustls_native_certs::load_native_certs();
            let (trusted, _) = roots.add_parsable_certificates(host.certs);
            if let (0, Some(error)) = (trusted, host.errors.first()) {
                return Err(format!("cannot read the certificates of the host: {error}"));
            }
            roots
        }
    };
    let config = trusting(roots)?;
    let config = match client {
        None => config.with_no_client_auth(),
        Some(ClientCertificate { cert, key }) => config
            .with_client_auth_cert(certificates(cert)?, private_key(key)?)
            .map_err(|error| unfit(cert, key, &error))?,
    };
    Ok(Arc::new(config))
}

/// Returns the reason why a certificate and a key cannot be used together.
pub fn unfit(cert: &Path, key: &Path, error: &rustls::Error) -> String {
    let (cert, key) = (cert.display(), key.display());
    format!("cannot use {cert} with the key in {key}: {error}")
}

/// Returns the settings of a client that trusts no server, for connections that do not use TLS.
///
/// # Errors
/// Returns the reason if the library refuses its own defaults.
pub fn without_authorities() -> Result<Arc<ClientConfig>, String> {
    let config = trusting(RootCertStore::empty())?;
    Ok(Arc::new(config.with_no_client_auth()))
}

fn trusting(roots: RootCertStore) -> Result<ConfigBuilder<ClientConfig, WantsClientCert>, String> {
    let config = ClientConfig::builder_with_provider(provider())
        .with_safe_default_protocol_versions()
        .map_err(|error| error.to_string())?;
    Ok(config.with_root_certificates(roots))
}

/// Returns the cryptography of all connections.
#[must_use]
pub fn provider() -> Arc<CryptoProvider> {
    Arc::new(rustls::crypto::ring::default_provider())
}

/// Reads the certificates of the authorities to trust.
///
/// # Errors
/// Returns the reason if the file cannot be read, or has no certificates or one that is not usable.
pub fn authorities(path: &Path) -> Result<RootCertStore, String> {
    let mut roots = RootCertStore::empty();
    for cert in certificates(path)? {
        let added = roots.add(cert);
        added.map_err(|error| format!("bad certificate in {}: {error}", path.display()))?;
    }
    Ok(roots)
}

/// Reads certificates, in the order of the file.
///
/// # Errors
/// Returns the reason if the file cannot be read or has no certificates.
pub fn certificates(path: &Path) -> Result<Vec<CertificateDer<'static>>, String> {
    let pem = read(path)?;
    let found: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(&pem).collect();
    match found {
        Ok(found) if !found.is_empty() => Ok(found),
        Ok(_) => Err(format!(
            "no certificates in {}: expected PEM blocks with the label CERTIFICATE",
            path.display()
        )),
        Err(error) => Err(format!("bad certificate in {}: {error}", path.display())),
    }
}

/// Reads a private key.
///
/// # Errors
/// Returns the reason if the file cannot be read or has no private key.
pub fn private_key(path: &Path) -> Result<PrivateKeyDer<'static>, String> {
    let pem = read(path)?;
    PrivateKeyDer::from_pem_slice(&pem).map_err(|error| match error {
        pem::Error::NoItemsFound => format!(
            "no private key in {}: expected a PEM block with the label PRIVATE KEY, EC PRIVATE KEY or RSA PRIVATE KEY, which \
             is not encrypted",
            path.display()
        ),
        error => format!("bad private key in {}: {error}", path.display()),
    })
}

fn read(path: &Path) -> Result<Vec<u8>, String> {
    small_file::read(path, MAX_PEM_BYTES)
        .map_err(|error| format!("cannot read {}: {error}", path.display()))
}
