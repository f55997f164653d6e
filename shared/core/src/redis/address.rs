//! Building blocks for opening a socket to any server: its address, the kind of its protocol, and hints for errors.

use redis::{
    AsyncConnectionConfig, ConnectionAddr, ErrorKind, ProtocolVersion, RedisConnectionInfo,
    RedisError,
};

use super::RedisUrl;

pub(super) const CONNECT: &str = "connect";

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

/// Returns the login of a socket that speaks RESP2 and does not log in by itself. Without the name of the library, whose
/// reply it ignores, the reply to our first request is the first reply.
pub(super) fn plain() -> RedisConnectionInfo {
    RedisConnectionInfo::default()
        .set_protocol(ProtocolVersion::RESP2)
        .set_skip_set_lib_name()
}
