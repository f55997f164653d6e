//! Building blocks for opening a socket to any server: its address, a client with TLS and socket options, one
//! request.

use super::{ConnectionError, ConnectionErrorKind, RedisUrl, TlsSettings};
use crate::small_file::{self, MAX_PEM_BYTES};
use redis::aio::MultiplexedConnection;
use redis::io::tcp::{TcpSettings, socket2::TcpKeepalive};
use redis::{
    AsyncConnectionConfig, Client, ClientTlsConfig, Cmd, ConnectionAddr, ConnectionInfo, ErrorKind,
    IntoConnectionInfo, ProtocolVersion, RedisConnectionInfo, RedisError, TlsCertificates, Value,
};
use std::path::Path;
use std::time::Duration;

pub(super) const CONNECT: &str = "connect";

const KEEPALIVE_IDLE: Duration = Duration::from_secs(15);

const KEEPALIVE_INTERVAL: Duration = Duration::from_secs(5);

const KEEPALIVE_PROBES: u32 = 3;

const USER_TIMEOUT: Duration = Duration::from_secs(20);

/// A host and a TCP port.
pub(super) type Address = (String, u16);

/// Hint about a server that does not answer a TLS handshake.
pub(super) const NO_TLS_THERE: &str =
    " (a server without TLS does not answer either: its address starts with redis, not rediss)";
/// Hint about a server that closes a socket before it replied, or that replies with something other than RESP.
const TLS_THERE: &str =
    " (a server with TLS does that too: its address starts with rediss, not redis)";

/// Returns a possible explanation of a failed handshake, in addition to the error.
pub(super) fn hint_of(tls: bool, error: &RedisError) -> Option<&'static str> {
    let ended = error.is_connection_dropped() && !error.is_connection_refusal();
    (!tls && (ended || error.kind() == ErrorKind::Parse)).then_some(TLS_THERE)
}

/// Returns the address that a user may have meant, without user and path. `kind` is what follows `redis` or `rediss`
/// in the scheme.
pub(super) fn node_url(kind: &str, host: &str, port: u16, tls: bool) -> String {
    let server = RedisUrl::tcp(host, port, false).to_string();
    let node = server.trim_start_matches("redis://").trim_end_matches("/0");
    format!("redis{}{kind}://{node}", if tls { "s" } else { "" })
}

pub(super) async fn ask(conn: &mut MultiplexedConnection, cmd: &Cmd) -> Result<Value, RedisError> {
    conn.send_packed_command(cmd).await?.extract_error()
}

/// Returns a configuration without time limits, since we set our own.
/// By default redis-rs abandons a read after 500 ms, which loses what it fetches.
pub(super) fn unlimited() -> AsyncConnectionConfig {
    AsyncConnectionConfig::new()
        .set_connection_timeout(None)
        .set_response_timeout(None)
}

pub(super) fn tcp((host, port): Address, tls: bool) -> ConnectionAddr {
    if tls {
        ConnectionAddr::TcpTls {
            host,
            port,
            insecure: false,
            tls_params: None,
        }
    } else {
        ConnectionAddr::Tcp(host, port)
    }
}

/// Creates a client that speaks RESP2 and does not log in by itself.
pub(super) fn plain_client(
    addr: &ConnectionAddr,
    tls: &TlsSettings,
) -> Result<Client, ConnectionError> {
    let plain = RedisConnectionInfo::default().set_protocol(ProtocolVersion::RESP2);
    open_client(addr, plain, tls)
}

pub(super) fn open_client(
    addr: &ConnectionAddr,
    redis: RedisConnectionInfo,
    tls: &TlsSettings,
) -> Result<Client, ConnectionError> {
    let invalid = |error: RedisError| {
        ConnectionError::local(ConnectionErrorKind::Invalid, CONNECT, error.to_string())
    };
    let keepalive = TcpKeepalive::new()
        .with_time(KEEPALIVE_IDLE)
        .with_interval(KEEPALIVE_INTERVAL)
        .with_retries(KEEPALIVE_PROBES);
    let tcp = TcpSettings::default()
        .set_nodelay(true)
        .set_keepalive(keepalive)
        .set_user_timeout(USER_TIMEOUT);
    let info: ConnectionInfo = addr.clone().into_connection_info().map_err(invalid)?;
    let info = info.set_tcp_settings(tcp).set_redis_settings(redis);
    if !matches!(addr, ConnectionAddr::TcpTls { .. }) {
        return Client::open(info).map_err(invalid);
    }
    // redis-rs takes the provider from the process. A second installation is rejected, which is harmless.
    let _ = rustls::crypto::ring::default_provider().install_default();
    if *tls == TlsSettings::default() {
        return Client::open(info).map_err(invalid);
    }
    let client_tls = match (&tls.client_cert, &tls.client_key) {
        (Some(cert), Some(key)) => Some(ClientTlsConfig {
            client_cert: read(cert)?,
            client_key: read(key)?,
        }),
        (None, None) => None,
        _ => {
            let detail = "a client certificate and its key must be set together";
            return Err(ConnectionError::local(
                ConnectionErrorKind::Invalid,
                CONNECT,
                detail,
            ));
        }
    };
    let root_cert = tls.ca_file.as_deref().map(read_authorities).transpose()?;
    Client::build_with_tls(
        info,
        TlsCertificates {
            client_tls,
            root_cert,
        },
    )
    .map_err(invalid)
}

/// Reads certificate authorities. The client library would accept a file without a certificate, and then trust none.
fn read_authorities(path: &Path) -> Result<Vec<u8>, ConnectionError> {
    const BEGIN: &[u8] = b"-----BEGIN CERTIFICATE-----";
    let text = read(path)?;
    if text.windows(BEGIN.len()).any(|part| part == BEGIN) {
        return Ok(text);
    }
    let detail = format!("no certificate in {}", path.display());
    Err(ConnectionError::local(
        ConnectionErrorKind::Invalid,
        CONNECT,
        detail,
    ))
}

fn read(path: &Path) -> Result<Vec<u8>, ConnectionError> {
    small_file::read(path, MAX_PEM_BYTES).map_err(|error| {
        ConnectionError::local(
            ConnectionErrorKind::Invalid,
            CONNECT,
            format!("cannot read {}: {error}", path.display()),
        )
    })
}
