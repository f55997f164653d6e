//! The address of a running manager, as given on the command line.

use std::net::{IpAddr, SocketAddr};
use std::str::FromStr;
use std::{fmt, io};

use axum::http::uri::Authority;
use tokio::net::TcpStream;

/// The environment variable that holds the token for a manager that requires one.
pub(crate) const TOKEN: &str = "LISA_TOKEN";

/// The address of a manager: `host:port` or `http://host:port`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct ManagerAddress {
    /// A name or an IP address, without brackets.
    host: String,
    port: u16,
}

impl FromStr for ManagerAddress {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        const EXPECTED: &str =
            "expected host:port or http://host:port, such as lisa-manager:7812 or [::1]:7812";
        if text.starts_with("https://") {
            return Err("https is not supported: use http on a private network".to_owned());
        }
        let (rest, default) = match text.strip_prefix("http://") {
            Some(rest) => (rest.strip_suffix('/').unwrap_or(rest), Some(80)),
            None => (text, None),
        };
        if !rest.contains("://") && rest.contains(['/', '?', '#']) {
            return Err(format!("a path is not supported: {EXPECTED}"));
        }
        if rest.contains('@') {
            return Err(format!(
                "user and password are not supported: put a token into {TOKEN}"
            ));
        }
        let authority: Authority = rest.parse().map_err(|_| EXPECTED.to_owned())?;
        let host = authority.host();
        let bare = host
            .strip_prefix('[')
            .and_then(|host| host.strip_suffix(']'));
        let port = match authority.as_str().strip_prefix(host) {
            Some("") => default,
            Some(port) => port.strip_prefix(':').and_then(|port| port.parse().ok()),
            None => None,
        };
        match port {
            Some(port) if port > 0 && !host.is_empty() => Ok(Self {
                host: bare.unwrap_or(host).to_owned(),
                port,
            }),
            _ => Err(EXPECTED.to_owned()),
        }
    }
}

impl From<SocketAddr> for ManagerAddress {
    fn from(listener: SocketAddr) -> Self {
        Self {
            host: listener.ip().to_string(),
            port: listener.port(),
        }
    }
}

impl fmt::Display for ManagerAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { host, port } = self;
        if host.contains(':') {
            write!(f, "[{host}]:{port}")
        } else {
            write!(f, "{host}:{port}")
        }
    }
}

impl ManagerAddress {
    /// Returns the name or IP address of the host, without brackets.
    pub(crate) fn host(&self) -> &str {
        &self.host
    }

    /// Connects to any of the host's addresses. An unspecified address (`0.0.0.0`, `::`) stands for this machine.
    pub(crate) async fn connect(&self) -> io::Result<TcpStream> {
        let host = match self.host.parse() {
            Ok(IpAddr::V4(ip)) if ip.is_unspecified() => "127.0.0.1",
            Ok(IpAddr::V6(ip)) if ip.is_unspecified() => "::1",
            _ => &self.host,
        };
        TcpStream::connect((host, self.port)).await
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_manager_is_named_by_host_and_port_or_by_a_url() {
        for (text, shown) in [
            ("127.0.0.1:7812", "127.0.0.1:7812"),
            ("localhost:7812", "localhost:7812"),
            ("lisa.internal.example.com:1", "lisa.internal.example.com:1"),
            ("[::1]:7812", "[::1]:7812"),
            ("http://lisa-manager:7812", "lisa-manager:7812"),
            ("http://lisa-manager:7812/", "lisa-manager:7812"),
            ("http://lisa-manager", "lisa-manager:80"),
            ("http://[::1]", "[::1]:80"),
        ] {
            let manager: Result<ManagerAddress, _> = text.parse();
            assert_eq!(manager.unwrap().to_string(), shown, "{text}");
        }
        for (text, why) in [
            ("", "expected host:port"),
            ("lisa-manager", "expected host:port"),
            ("lisa-manager:", "expected host:port"),
            ("lisa-manager:0", "expected host:port"),
            ("lisa-manager:70000", "expected host:port"),
            (":7812", "expected host:port"),
            ("http://", "expected host:port"),
            ("::1:7812", "expected host:port"),
            ("lisa manager:7812", "expected host:port"),
            ("redis://lisa-manager:7812", "expected host:port"),
            ("http://lisa-manager:7812/lisa", "a path is not supported"),
            ("http://me:secret@lisa-manager:7812", "LISA_TOKEN"),
            ("https://lisa-manager:7812", "https is not supported"),
        ] {
            let refused = text.parse::<ManagerAddress>().unwrap_err();
            assert!(refused.contains(why), "{text}: {refused}");
        }
    }
}
