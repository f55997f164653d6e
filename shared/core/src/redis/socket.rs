//! Opens sockets to any server: TCP with TLS or without, or a unix socket, with the options that Lisa needs.
//!
//! The client library could open them too, but it would not bound the replies of the server.

use std::net::SocketAddr;
use std::ops::{Deref, DerefMut};
use std::sync::Arc;
use std::time::Duration;

use futures_util::future::select_ok;
use redis::aio::MultiplexedConnection;
use redis::io::tcp::socket2::{SockRef, TcpKeepalive};
use redis::{
    AsyncConnectionConfig, Cmd, ConnectionAddr, ErrorKind, ProtocolVersion, RedisConnectionInfo,
    RedisError, Value,
};
use rustls::ClientConfig;
use rustls::pki_types::ServerName;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpStream, UnixStream, lookup_host};
use tokio_rustls::TlsConnector;
use tokio_util::task::AbortOnDropHandle;

use super::address::CONNECT;
use super::replies::{Bounded, Greeting};
use super::{ConnectionError, ConnectionErrorKind, TlsSettings};
use crate::task;
use crate::tls::{ClientCertificate, client_config};

/// The time after which the system probes a silent connection.
const KEEPALIVE_IDLE: Duration = Duration::from_secs(15);

/// The time between two probes.
const KEEPALIVE_INTERVAL: Duration = Duration::from_secs(5);

/// The probes without a response after which a connection ends.
const KEEPALIVE_PROBES: u32 = 3;

/// The time after which a connection ends whose server acknowledges nothing that was sent.
const USER_TIMEOUT: Duration = Duration::from_secs(20);

/// A socket to a server. It closes when its last clone is dropped, even if the server still owes a reply.
#[derive(Clone)]
pub(super) struct Socket {
    conn: MultiplexedConnection,
    greeting: Greeting,
    _driver: Arc<AbortOnDropHandle<()>>,
}

impl Deref for Socket {
    type Target = MultiplexedConnection;

    fn deref(&self) -> &MultiplexedConnection {
        &self.conn
    }
}

impl DerefMut for Socket {
    fn deref_mut(&mut self) -> &mut MultiplexedConnection {
        &mut self.conn
    }
}

impl Socket {
    /// Sends a request of a handshake. If the server refused the connection, returns what it said before it closed.
    pub(super) async fn ask(&mut self, cmd: &Cmd) -> Result<Value, RedisError> {
        let reply = self.conn.send_packed_command(cmd).await;
        reply
            .and_then(Value::extract_error)
            .map_err(|error| self.greeting.explain(error))
    }
}

impl Greeting {
    /// Returns the error that the server sent without being asked, in place of an error of the socket.
    fn explain(&self, error: RedisError) -> RedisError {
        if error.code().is_some() {
            return error;
        }
        let said = self.take().and_then(|line| {
            let value = redis::parse_redis_value(&line).ok()?;
            value.extract_error().err()
        });
        said.unwrap_or(error)
    }
}

/// Opens sockets.
#[derive(Clone)]
pub(super) struct Dialer {
    /// `None` without TLS.
    tls: Option<Arc<ClientConfig>>,
    max_reply: usize,
}

impl Dialer {
    /// Reads the certificates if `uses_tls`. A reply may take `max_reply` bytes.
    pub(super) fn new(
        uses_tls: bool,
        tls: &TlsSettings,
        max_reply: usize,
    ) -> Result<Self, ConnectionError> {
        let invalid =
            |detail: String| ConnectionError::local(ConnectionErrorKind::Invalid, CONNECT, detail);
        let client = match (&tls.client_cert, &tls.client_key) {
            (Some(cert), Some(key)) => Some(ClientCertificate { cert, key }),
            (None, None) => None,
            _ => {
                let detail = "a client certificate and its key must be set together";
                return Err(invalid(detail.to_owned()));
            }
        };
        let config = || client_config(tls.ca_file.as_deref(), client).map_err(invalid);
        let tls = uses_tls.then(config).transpose()?;
        Ok(Self { tls, max_reply })
    }

    /// Connects, without a time limit. With RESP3, logs in.
    pub(super) async fn open(
        &self,
        addr: &ConnectionAddr,
        login: &RedisConnectionInfo,
        config: AsyncConnectionConfig,
    ) -> Result<Socket, RedisError> {
        let stream = self.connect(addr).await?;
        let has_pushes = login.protocol() == ProtocolVersion::RESP3;
        let stream = Bounded::new(stream, self.max_reply, has_pushes);
        let greeting = stream.greeting();
        let (conn, driver) = MultiplexedConnection::new_with_config(login, stream, config)
            .await
            .map_err(|error| greeting.explain(error))?;
        Ok(Socket {
            conn,
            greeting,
            _driver: Arc::new(task::owned(driver)),
        })
    }

    async fn connect(&self, addr: &ConnectionAddr) -> Result<Box<dyn Stream>, RedisError> {
        let (host, port) = match addr {
            ConnectionAddr::Tcp(host, port) | ConnectionAddr::TcpTls { host, port, .. } => {
                (host.as_str(), *port)
            }
            ConnectionAddr::Unix(path) => return Ok(Box::new(UnixStream::connect(path).await?)),
            _ => return Err((ErrorKind::InvalidClientConfig, "unknown kind of address").into()),
        };
        let addresses: Vec<SocketAddr> = lookup_host((host, port)).await?.collect();
        if addresses.is_empty() {
            return Err((ErrorKind::Io, "the host name has no address").into());
        }
        // The first that answers wins: one of the addresses may be unreachable.
        let connects = addresses.into_iter().map(|address| {
            Box::pin(async move {
                let stream = TcpStream::connect(address).await?;
                stream.set_nodelay(true)?;
                let socket = SockRef::from(&stream);
                let keepalive = TcpKeepalive::new()
                    .with_time(KEEPALIVE_IDLE)
                    .with_interval(KEEPALIVE_INTERVAL)
                    .with_retries(KEEPALIVE_PROBES);
                socket.set_tcp_keepalive(&keepalive)?;
                #[cfg(target_os = "linux")]
                socket.set_tcp_user_timeout(Some(USER_TIMEOUT))?;
                let Some(tls) = &self.tls else {
                    return Ok(Box::new(stream) as Box<dyn Stream>);
                };
                let name = ServerName::try_from(host.to_owned())?;
                let stream = TlsConnector::from(tls.clone()).connect(name, stream);
                Ok::<_, RedisError>(Box::new(stream.await?) as Box<dyn Stream>)
            })
        });
        Ok(select_ok(connects).await?.0)
    }
}

/// A stream to a server.
trait Stream: AsyncRead + AsyncWrite + Unpin + Send {}

impl<S: AsyncRead + AsyncWrite + Unpin + Send> Stream for S {}
