//! Certificates for tests: private authorities, and the certificates that they sign. This module opens no connections.

use rcgen::{
    BasicConstraints, CertificateParams, DnType, ExtendedKeyUsagePurpose, IsCa, Issuer, KeyPair,
    KeyUsagePurpose, SanType, date_time_ymd,
};
use std::path::PathBuf;
use tempfile::TempDir;

/// The reason why making a certificate cannot fail: nothing in it comes from outside.
const GOOD: &str = "the fields of the certificate are good";

/// Signs certificates.
#[derive(Debug)]
pub struct Authority {
    pem: String,
    issuer: Issuer<'static, KeyPair>,
}

/// A certificate with its key, both as PEM.
#[derive(Clone, Debug)]
pub struct Identity {
    /// The certificate.
    pub cert: String,
    /// Its private key.
    pub key: String,
}

impl Authority {
    /// Makes an authority.
    pub fn new() -> Self {
        let mut params = named(&format!("authority {}", fastrand::u64(..)));
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        params.key_usages = vec![KeyUsagePurpose::KeyCertSign];
        let key = KeyPair::generate().expect(GOOD);
        let cert = params.self_signed(&key).expect(GOOD);
        Self {
            pem: cert.pem(),
            issuer: Issuer::new(params, key),
        }
    }

    /// Its own certificate, as PEM.
    pub fn pem(&self) -> &str {
        &self.pem
    }

    /// Makes the certificate of a server on `127.0.0.1`.
    pub fn server(&self) -> Identity {
        self.sign(server())
    }

    /// Makes the certificate of a server on `127.0.0.1` that expires at the begin of this year.
    pub fn server_until(&self, year: i32) -> Identity {
        let mut params = server();
        params.not_before = date_time_ymd(2020, 1, 1);
        params.not_after = date_time_ymd(year, 1, 1);
        self.sign(params)
    }

    /// Makes the certificate of a client.
    pub fn client(&self) -> Identity {
        self.sign(client())
    }

    /// Makes the certificate of a client with this DNS name.
    pub fn client_named(&self, name: &str) -> Identity {
        let name = name.try_into().expect(GOOD);
        let mut params = client();
        params.subject_alt_names.push(SanType::DnsName(name));
        self.sign(params)
    }

    /// Makes the certificate of a client that was good for a year, long ago.
    pub fn expired_client(&self) -> Identity {
        let mut params = client();
        params.not_before = date_time_ymd(2020, 1, 1);
        params.not_after = date_time_ymd(2021, 1, 1);
        self.sign(params)
    }

    fn sign(&self, params: CertificateParams) -> Identity {
        let key = KeyPair::generate().expect(GOOD);
        let cert = params.signed_by(&key, &self.issuer).expect(GOOD);
        Identity {
            cert: cert.pem(),
            key: key.serialize_pem(),
        }
    }
}

impl Default for Authority {
    fn default() -> Self {
        Self::new()
    }
}

fn named(name: &str) -> CertificateParams {
    let mut params = CertificateParams::default();
    params.distinguished_name.push(DnType::CommonName, name);
    params
}

fn server() -> CertificateParams {
    let mut params = CertificateParams::new(["127.0.0.1".to_owned()]).expect(GOOD);
    // Nodes of a cluster and replicas are clients of each other.
    params.extended_key_usages = vec![
        ExtendedKeyUsagePurpose::ServerAuth,
        ExtendedKeyUsagePurpose::ClientAuth,
    ];
    params
}

fn client() -> CertificateParams {
    let mut params = named("client of a test");
    params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ClientAuth];
    params
}

/// An authority, and the PEM files of a server and a client of it, in a temporary directory.
#[derive(Debug)]
pub struct Files {
    dir: TempDir,
    authority: Authority,
}

impl Files {
    /// Makes an authority, and writes its certificate, a server's and a client's.
    ///
    /// # Panics
    /// Panics if there is no directory to write into.
    pub fn write() -> Self {
        let files = Self {
            dir: TempDir::with_prefix("lisa-tls-").expect("a temporary directory"),
            authority: Authority::new(),
        };
        put(files.ca(), files.authority.pem());
        let server = files.authority.server();
        put(files.server_cert(), &server.cert);
        put(files.server_key(), &server.key);
        files.set_client(&files.authority.client());
        files
    }

    /// Returns the settings with which a role is trusted: key paths and values.
    pub fn access(&self) -> [(&'static str, String); 3] {
        let text = |path: PathBuf| path.display().to_string();
        [
            ("redis.tls.ca_file", text(self.ca())),
            ("redis.tls.client_cert", text(self.client_cert())),
            ("redis.tls.client_key", text(self.client_key())),
        ]
    }

    /// Returns the authority that signed all of them.
    pub fn authority(&self) -> &Authority {
        &self.authority
    }

    /// Replaces the client's certificate and key.
    ///
    /// # Panics
    /// Panics if the directory cannot be written.
    pub fn set_client(&self, client: &Identity) {
        put(self.client_cert(), &client.cert);
        put(self.client_key(), &client.key);
    }

    /// The file of the authority's certificate.
    pub fn ca(&self) -> PathBuf {
        self.dir.path().join("ca.pem")
    }

    /// The file of the server's certificate.
    pub fn server_cert(&self) -> PathBuf {
        self.dir.path().join("server.pem")
    }

    /// The file of the server's key.
    pub fn server_key(&self) -> PathBuf {
        self.dir.path().join("server.key")
    }

    /// The file of the client's certificate.
    pub fn client_cert(&self) -> PathBuf {
        self.dir.path().join("client.pem")
    }

    /// The file of the client's key.
    pub fn client_key(&self) -> PathBuf {
        self.dir.path().join("client.key")
    }
}

fn put(path: PathBuf, pem: &str) {
    std::fs::write(&path, pem).unwrap_or_else(|error| panic!("write {}: {error}", path.display()));
}
