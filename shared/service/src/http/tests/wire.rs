//! Clients of the listener, over TCP and over TLS, and their certificates.

use std::io;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use lisa_core::tls::{ClientCertificate, client_config};
use rcgen::{
    BasicConstraints, CertificateParams, DnType, ExtendedKeyUsagePurpose, IsCa, Issuer, KeyPair,
};
use tempfile::TempDir;
use tokio::io::{AsyncRead, AsyncWrite, copy_bidirectional, duplex};
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;
use tokio_rustls::rustls::pki_types::ServerName;

use super::{HttpLimits, Server};
use crate::config::ListenerTls;
use crate::http::tls::Tls;

/// The layers below HTTP.
#[derive(Clone, Copy, Debug)]
pub(super) enum Over {
    Tcp,
    Tls,
}

impl Over {
    pub(super) async fn start(self, limits: HttpLimits) -> Server {
        match self {
            Self::Tcp => Server::start(limits, Tls::default(), Client::plain).await,
            Self::Tls => Identities::new().start(limits).await,
        }
    }
}

/// A connection as a client sees it, in clear text.
pub(super) type Wire = Box<dyn Duplex>;

pub(super) trait Duplex: AsyncRead + AsyncWrite + Send + Unpin {}

impl<T: AsyncRead + AsyncWrite + Send + Unpin> Duplex for T {}

/// A client of one listener.
#[derive(Clone)]
pub(super) struct Client {
    address: SocketAddr,
    tls: Option<TlsConnector>,
}

impl Client {
    pub(super) fn plain(address: SocketAddr) -> Self {
        Self { address, tls: None }
    }

    /// Connects, and leaves the handshake to a task: it waits for a slot of the listener.
    pub(super) async fn connect(&self) -> io::Result<Wire> {
        let tcp = TcpStream::connect(self.address).await?;
        let Some(tls) = self.tls.clone() else {
            return Ok(Box::new(tcp));
        };
        let (near, mut far) = duplex(4096);
        tokio::spawn(async move {
            let mut stream = tls.connect(name(), tcp).await?;
            copy_bidirectional(&mut far, &mut stream).await
        });
        Ok(Box::new(near))
    }

    /// Connects and performs the handshake.
    pub(super) async fn handshake(&self) -> io::Result<TlsStream<TcpStream>> {
        let tcp = TcpStream::connect(self.address).await?;
        let tls = self.tls.as_ref().expect("a client with TLS");
        tls.connect(name(), tcp).await
    }
}

fn name() -> ServerName<'static> {
    ServerName::try_from("lisa.internal").unwrap()
}

/// An authority, and files with a certificate that it signed for the listener.
pub(super) struct Identities {
    dir: TempDir,
    issuer: Issuer<'static, KeyPair>,
}

impl Identities {
    pub(super) fn new() -> Self {
        let mut params = CertificateParams::default();
        let name = format!("authority {}", fastrand::u64(..));
        params.distinguished_name.push(DnType::CommonName, name);
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        let key = KeyPair::generate().unwrap();
        let cert = params.self_signed(&key).unwrap();
        let identities = Self {
            dir: tempfile::tempdir().unwrap(),
            issuer: Issuer::new(params, key),
        };
        std::fs::write(identities.path("ca.pem"), cert.pem()).unwrap();
        identities.write("server", identities.params("lisa.internal"));
        identities
    }

    pub(super) fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    /// Returns the fields of a certificate for this DNS name, for both sides of a connection.
    pub(super) fn params(&self, name: &str) -> CertificateParams {
        let mut params = CertificateParams::new([name.to_owned()]).unwrap();
        params.extended_key_usages = vec![
            ExtendedKeyUsagePurpose::ServerAuth,
            ExtendedKeyUsagePurpose::ClientAuth,
        ];
        params
    }

    /// Signs a certificate, and writes it and its key.
    pub(super) fn write(&self, name: &str, params: CertificateParams) {
        let key = KeyPair::generate().unwrap();
        let cert = params.signed_by(&key, &self.issuer).unwrap();
        std::fs::write(self.path(&format!("{name}.pem")), cert.pem()).unwrap();
        std::fs::write(self.path(&format!("{name}.key")), key.serialize_pem()).unwrap();
    }

    /// Returns the files of the listener, with certificates of clients from the same authority.
    pub(super) fn files(&self) -> ListenerTls {
        ListenerTls {
            cert_file: self.path("server.pem"),
            key_file: self.path("server.key"),
            client_ca_file: Some(self.path("ca.pem")),
        }
    }

    pub(super) fn tls(&self) -> Tls {
        let tls = Tls::default();
        tls.set(Some(&self.files())).unwrap();
        tls
    }

    /// Returns a client that trusts the authority, and presents the certificate of this name.
    pub(super) fn client(&self, address: SocketAddr, name: Option<&str>) -> Client {
        let files = name.map(|name| [".pem", ".key"].map(|end| self.path(&format!("{name}{end}"))));
        let files = files
            .as_ref()
            .map(|[cert, key]| ClientCertificate { cert, key });
        Client {
            address,
            tls: Some(trusting(&self.path("ca.pem"), files)),
        }
    }

    pub(super) async fn start(&self, limits: HttpLimits) -> Server {
        Server::start(limits, self.tls(), |address| self.client(address, None)).await
    }
}

fn trusting(ca: &Path, client: Option<ClientCertificate<'_>>) -> TlsConnector {
    let config = client_config(Some(ca), client).unwrap();
    let mut config = Arc::unwrap_or_clone(config);
    config.alpn_protocols = vec![b"http/1.1".to_vec()];
    TlsConnector::from(Arc::new(config))
}
