//! TLS of connections to Redis, NATS and webhooks.

use std::path::Path;
use std::sync::Arc;

use rustls::client::WantsClientCert;
use rustls::pki_types::pem::PemObject;
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
    let mut roots = RootCertStore::empty();
    match ca_file {
        Some(path) => {
            for cert in certificates(path)? {
                let added = roots.add(cert);
                added.map_err(|error| format!("bad certificate in {}: {error}", path.display()))?;
            }
        }
        None => {
            let host = rustls_native_certs::load_native_certs();
            let (trusted, _) = roots.add_parsable_certificates(host.certs);
            if let (0, Some(error)) = (trusted, host.errors.first()) {
                return Err(format!("cannot read the certificates of the host: {error}"));
            }
        }
    }
    let config = trusting(roots)?;
    let config = match client {
        None => config.with_no_client_auth(),
        Some(ClientCertificate { cert, key }) => {
            let pem = read(key)?;
            let private = PrivateKeyDer::from_pem_slice(&pem)
                .map_err(|error| format!("no private key in {}: {error}", key.display()))?;
            config
                .with_client_auth_cert(certificates(cert)?, private)
                .map_err(|error| {
                    format!(
                        "cannot use {} with the key in {}: {error}",
                        cert.display(),
                        key.display()
                    )
                })?
        }
    };
    Ok(Arc::new(config))
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
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let config = ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .map_err(|error| error.to_string())?;
    Ok(config.with_root_certificates(roots))
}

fn certificates(path: &Path) -> Result<Vec<CertificateDer<'static>>, String> {
    let pem = read(path)?;
    let found: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(&pem).collect();
    match found {
        Ok(found) if !found.is_empty() => Ok(found),
        Ok(_) => Err(format!("no certificates in {}", path.display())),
        Err(error) => Err(format!("bad certificate in {}: {error}", path.display())),
    }
}

fn read(path: &Path) -> Result<Vec<u8>, String> {
    small_file::read(path, MAX_PEM_BYTES)
        .map_err(|error| format!("cannot read {}: {error}", path.display()))
}
