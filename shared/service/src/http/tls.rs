//! TLS of the listeners: handshakes, a certificate that can be replaced while they run, and certificates of clients.
//!
//! The layer is between the stream of a connection, whose time limits apply to the encrypted bytes, and hyper. Nothing here
//! decides what a client may do: a token may have a [`ClientName`], and [`super::auth`] compares it.

mod identity;
mod transport;

use std::io;
use std::sync::Arc;
use std::time::Duration;

use axum::http::header::AUTHORIZATION;
use axum::http::{Extensions, Request};
use futures_util::FutureExt;
use lisa_core::sync::{Mutex, RwLock};
use tokio::io::AsyncWriteExt;
use tokio::net::TcpStream;
use tokio::time::{Instant, sleep_until, timeout};
use tokio_rustls::TlsAcceptor;
use tokio_rustls::rustls::client::verify_server_name;
use tokio_rustls::rustls::pki_types::{CertificateDer, ServerName};
use tokio_rustls::rustls::server::ParsedCertificate;
use tokio_rustls::rustls::server::danger::ClientCertVerifier;
#[cfg(feature = "http2")]
use {tokio_rustls::server::TlsStream, tokio_util::either::Either};

use super::problem::{Problem, ProblemCode};
use super::stream::Stream;
use crate::config::ListenerTls;
use crate::metrics::Metrics;
pub use identity::{ClientName, Identity, InvalidClientName, TlsError};
use identity::{Stamp, not_after, now};
pub(super) use transport::Transport;

/// The interval at which the files are compared with what is in use.
const LOOK_EVERY: Duration = Duration::from_secs(5);
/// The first byte of a handshake of TLS.
const HANDSHAKE: u8 = 22;

/// The TLS of all listeners of a process; none by default. Cheap to clone; clones share it.
///
/// A connection keeps the certificate with which it began. Later connections use that of the last [`Tls::set`].
#[derive(Clone, Debug, Default)]
pub struct Tls(Arc<Shared>);

#[derive(Debug, Default)]
struct Shared {
    current: RwLock<Option<Arc<Current>>>,
    /// The reason why changed files are not in use.
    failed: Mutex<Option<String>>,
}

/// A certificate in use, and the files that it was read from.
#[derive(Debug)]
struct Current {
    files: ListenerTls,
    /// The contents of the files when they were last looked at.
    stamp: Mutex<Stamp>,
    identity: Identity,
}

impl Tls {
    /// Uses these files from now on; without files, plain HTTP.
    ///
    /// # Errors
    /// A file is not usable. Then nothing changes.
    pub fn set(&self, files: Option<&ListenerTls>) -> Result<(), TlsError> {
        let current = match files {
            Some(files) => Some(Arc::new(Current::read(files)?)),
            None => None,
        };
        *self.0.current.write() = current;
        *self.0.failed.lock() = None;
        Ok(())
    }

    /// Returns whether listeners speak TLS.
    #[must_use]
    pub fn is_on(&self) -> bool {
        self.current().is_some()
    }

    /// Returns the problems of the certificate, one sentence each.
    #[must_use]
    pub fn warnings(&self) -> Vec<String> {
        let date = self.current().and_then(|current| {
            let files = &current.files;
            current.identity.out_of_date(&files.cert_file)
        });
        date.into_iter()
            .chain(self.0.failed.lock().clone())
            .collect()
    }

    /// Reads the files again whenever they have changed, and keeps the metric of the certificate up to date. Never ends.
    ///
    /// # Cancel safety
    /// Safe: a certificate is replaced at once or not at all.
    pub async fn renew_when_changed(&self, metrics: &Metrics) {
        let mut next = Instant::now();
        loop {
            let tls = self.clone();
            // A network file system may not answer.
            let renewed = tokio::task::spawn_blocking(move || tls.renew()).await;
            if let Err(error) = renewed {
                tracing::error!(%error, "cannot check the files of the certificate");
            }
            let current = self.current();
            metrics.certificate_expires(current.map(|current| current.identity.not_after()));
            next += LOOK_EVERY;
            sleep_until(next).await;
        }
    }

    /// Reads the files if they have changed. If they are not usable, the previous certificate stays in use.
    fn renew(&self) {
        let Some(current) = self.current() else {
            return;
        };
        let stamp = Stamp::of(&current.files);
        if *current.stamp.lock() == stamp {
            return;
        }
        let failed = match Current::read(&current.files) {
            Ok(renewed) => {
                let mut place = self.0.current.write();
                // Other files may have been set in the meantime.
                if place.as_ref().is_some_and(|now| Arc::ptr_eq(now, &current)) {
                    tracing::info!(
                        file = %renewed.files.cert_file.display(),
                        expires = %renewed.identity.not_after_text(),
                        "using a new certificate"
                    );
                    *place = Some(Arc::new(renewed));
                }
                None
            }
            Err(error) => Some(format!("{error}; the previous certificate stays in use")),
        };
        *current.stamp.lock() = stamp;
        let mut last = self.0.failed.lock();
        if let Some(failed) = failed.as_ref().filter(|_| *last != failed) {
            tracing::warn!("{failed}");
        }
        *last = failed;
    }

    fn current(&self) -> Option<Arc<Current>> {
        self.0.current.read().clone()
    }

    /// Returns the rule for the certificates of clients, if there is one.
    fn clients(&self) -> Option<Arc<dyn ClientCertVerifier>> {
        let current = self.0.current.read();
        current.as_ref()?.identity.clients.clone()
    }

    /// Begins a connection. With TLS, performs the handshake, which must end within the time limit.
    ///
    /// A client that speaks plain HTTP gets a connection on which the guard refuses each request.
    pub(super) async fn secure(
        &self,
        tcp: &TcpStream,
        stream: Stream,
        limit: Duration,
    ) -> io::Result<(Transport, Option<Security>)> {
        let Some(current) = self.current() else {
            return Ok((Transport::Tcp(stream), None));
        };
        let handshake = async {
            let mut first = [0];
            if tcp.peek(&mut first).await? == 1 && first != [HANDSHAKE] {
                return Ok((Transport::Tcp(stream), Some(Security::Refused)));
            }
            let acceptor = TlsAcceptor::from(current.identity.config.clone());
            let stream = match acceptor.accept(stream).into_fallible().await {
                Ok(stream) => stream,
                Err((error, mut stream)) => {
                    // A reset could overtake the alert, which says why.
                    stream.expect_more();
                    let _ = stream.shutdown().await;
                    return Err(error);
                }
            };
            let chain = stream.get_ref().1.peer_certificates();
            let client = chain.and_then(|chain| self.client(chain, &current.identity));
            let stream = Transport::Tls(Box::new(stream));
            Ok((stream, Some(Security::Tls(client.map(Arc::new)))))
        };
        within(limit, handshake).await
    }

    /// Does the same for HTTP/2, of which a client without TLS gets no answer.
    #[cfg(feature = "http2")]
    pub(super) async fn secure_http2(
        &self,
        tcp: TcpStream,
        limit: Duration,
    ) -> io::Result<Either<TcpStream, TlsStream<TcpStream>>> {
        let Some(current) = self.current() else {
            return Ok(Either::Left(tcp));
        };
        let acceptor = TlsAcceptor::from(current.identity.http2.clone());
        within(limit, acceptor.accept(tcp)).await.map(Either::Right)
    }

    fn client(
        &self,
        chain: &[CertificateDer<'static>],
        verified_by: &Identity,
    ) -> Option<ClientCertificate> {
        Some(ClientCertificate {
            chain: chain.to_vec(),
            not_after: not_after(chain.first()?).ok()?,
            tls: self.clone(),
            verified: Mutex::new((verified_by.clients.clone()?, true)),
        })
    }
}

/// Adds a time limit. Not an `async fn`, which would hold the handshake twice in the memory of each connection.
fn within<T>(
    limit: Duration,
    handshake: impl Future<Output = io::Result<T>>,
) -> impl Future<Output = io::Result<T>> {
    let late = |_| Err(io::Error::other("no TLS handshake in time"));
    timeout(limit, handshake).map(move |ended| ended.unwrap_or_else(late))
}

impl Current {
    fn read(files: &ListenerTls) -> Result<Self, TlsError> {
        // Before the files are read, so that those that change meanwhile are read again.
        let stamp = Stamp::of(files);
        Ok(Self {
            identity: Identity::read(files)?,
            files: files.clone(),
            stamp: Mutex::new(stamp),
        })
    }
}

/// The security of the connection of a request: an extension of the request, on a listener with TLS.
#[derive(Clone, Debug)]
pub(super) enum Security {
    /// The client speaks plain HTTP, so each request is refused.
    Refused,
    /// TLS, with the certificate of the client, if it presented one.
    Tls(Option<Arc<ClientCertificate>>),
}

/// Returns whether a request arrived over TLS.
#[must_use]
pub fn is_secure(extensions: &Extensions) -> bool {
    matches!(extensions.get(), Some(Security::Tls(_)))
}

/// Returns the problem of a request over plain HTTP on a listener with TLS.
pub(super) fn refusal(extensions: &Extensions) -> Option<Problem> {
    let is_refused = matches!(extensions.get(), Some(Security::Refused));
    is_refused.then(|| {
        let detail = "this listener speaks TLS: use https:// in place of http://";
        Problem::new(ProblemCode::Malformed, detail)
    })
}

/// Returns the certificate that identifies the client of a request: that of its connection, unless the request has
/// credentials of its own.
pub(super) fn client<B>(request: &Request<B>) -> Option<&ClientCertificate> {
    match request.extensions().get() {
        Some(Security::Tls(client)) if !request.headers().contains_key(AUTHORIZATION) => {
            client.as_deref()
        }
        _ => None,
    }
}

/// The certificate of a client, which was verified in the handshake.
#[derive(Debug)]
pub(super) struct ClientCertificate {
    /// Its own certificate, and those of authorities between it and a trusted one.
    chain: Vec<CertificateDer<'static>>,
    /// The time at which it expires, in seconds since the epoch.
    not_after: u64,
    tls: Tls,
    /// The rule by which it was last verified, and the result.
    verified: Mutex<(Arc<dyn ClientCertVerifier>, bool)>,
}

impl ClientCertificate {
    /// Returns whether the certificate is still valid: a connection may last longer than it, or than the trust in its
    /// authority.
    pub(super) fn is_valid(&self) -> bool {
        let now = now();
        if now.as_secs() > self.not_after {
            return false;
        }
        let Some(clients) = self.tls.clients() else {
            return false;
        };
        let mut verified = self.verified.lock();
        if !Arc::ptr_eq(&verified.0, &clients) {
            let [own, between @ ..] = self.chain.as_slice() else {
                return false;
            };
            let is_valid = clients.verify_client_cert(own, between, now).is_ok();
            *verified = (clients, is_valid);
        }
        verified.1
    }

    /// Returns whether the certificate is for this name.
    pub(super) fn is_for(&self, name: &ClientName) -> bool {
        let own = self.chain.first().map(ParsedCertificate::try_from);
        let Some(Ok(own)) = own else { return false };
        verify_server_name(&own, &ServerName::DnsName(name.dns().borrow())).is_ok()
    }
}

#[cfg(test)]
mod tests;
