//! Redis addresses as users write them.
//!
//! Parses and prints them; resolves and connects nothing. Neither printed addresses nor errors contain a password.

use std::fmt;
use std::net::Ipv6Addr;
use std::path::{Path, PathBuf};
use std::str::FromStr;

use serde::{Deserialize, Serialize, Serializer};

use crate::percent;
use crate::secret::Secret;
use crate::time::shorten_to;

const DEFAULT_PORT: u16 = 6379;
const DEFAULT_SENTINEL_PORT: u16 = 26379;
/// All schemes, for errors.
const SCHEMES: &str = "redis://, rediss://, unix://, redis+sentinel://, rediss+sentinel://, redis+cluster:// or \
                       rediss+cluster://";

/// The address of Redis: `redis://[user:password@]host[:port][/db]`, `unix:///path[?db=n]`,
/// `redis+sentinel://h1:p,h2:p/master[/db]` or `redis+cluster://h1:p,h2:p`; with TLS `rediss://`,
/// `rediss+sentinel://`, `rediss+cluster://`.
///
/// User, password and names are percent-decoded. Databases are numbered from 0.
#[derive(Clone, PartialEq, Eq, Deserialize)]
#[serde(try_from = "String")]
pub struct RedisUrl {
    endpoint: Endpoint,
    username: Option<String>,
    password: Option<Secret>,
    db: u32,
}

/// The kinds of address a [`RedisUrl`] can name.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Endpoint {
    /// One server over TCP, with TLS or without.
    Tcp {
        /// Host name or IP address, without brackets.
        host: String,
        /// TCP port.
        port: u16,
        /// True if the connection is encrypted (`rediss`).
        tls: bool,
    },
    /// One server behind a unix socket.
    Unix(PathBuf),
    /// A master watched by sentinels.
    Sentinel {
        /// Sentinels as host and port.
        nodes: Vec<(String, u16)>,
        /// Name of the master group.
        master: String,
        /// True if connections to sentinels and servers are encrypted (`rediss+sentinel`).
        tls: bool,
    },
    /// A Redis Cluster, entered through any of these nodes.
    Cluster {
        /// Nodes as host and port.
        nodes: Vec<(String, u16)>,
        /// True if connections are encrypted (`rediss+cluster`).
        tls: bool,
    },
}

/// The reason why a Redis address is invalid; never contains a password.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("invalid Redis URL: {0}")]
pub struct InvalidRedisUrl(String);

impl RedisUrl {
    /// Returns the endpoint.
    pub fn endpoint(&self) -> &Endpoint {
        &self.endpoint
    }

    /// Returns the user named in the address.
    pub fn username(&self) -> Option<&str> {
        self.username.as_deref()
    }

    /// Returns the password named in the address.
    pub fn password(&self) -> Option<&Secret> {
        self.password.as_ref()
    }

    /// Returns the number of the database, 0 if none is named.
    pub fn db(&self) -> u32 {
        self.db
    }

    /// Returns the address of one server over TCP, database 0.
    pub(super) fn tcp(host: &str, port: u16, tls: bool) -> Self {
        Self {
            endpoint: Endpoint::Tcp {
                host: host.to_owned(),
                port,
                tls,
            },
            username: None,
            password: None,
            db: 0,
        }
    }

    /// Returns the address of a unix socket, database 0.
    pub fn unix(path: impl AsRef<Path>) -> Self {
        Self {
            endpoint: Endpoint::Unix(path.as_ref().to_path_buf()),
            username: None,
            password: None,
            db: 0,
        }
    }
}

impl FromStr for RedisUrl {
    type Err = InvalidRedisUrl;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let (scheme, rest) = text
            .split_once("://")
            .ok_or_else(|| bad(format!("expected {SCHEMES}")))?;
        match scheme {
            "redis" | "redis+sentinel" | "redis+cluster" => parse_network(scheme, false, rest),
            "rediss" => parse_network("redis", true, rest),
            "rediss+sentinel" => parse_network("redis+sentinel", true, rest),
            "rediss+cluster" => parse_network("redis+cluster", true, rest),
            "unix" => parse_unix(rest),
            other if is_scheme(other) => {
                Err(bad(format!("unknown scheme {other:?}: expected {SCHEMES}")))
            }
            // Something else precedes the colon, perhaps a password.
            _ => Err(bad(format!(
                "the text before :// is not a scheme: expected {SCHEMES}"
            ))),
        }
    }
}

impl TryFrom<String> for RedisUrl {
    type Error = InvalidRedisUrl;

    fn try_from(text: String) -> Result<Self, Self::Error> {
        text.parse()
    }
}

fn bad(what: impl Into<String>) -> InvalidRedisUrl {
    // The text may contain a part of the address, whose length is unlimited.
    InvalidRedisUrl(shorten_to(&what.into(), 256))
}

fn is_scheme(text: &str) -> bool {
    text.bytes()
        .all(|byte| byte.is_ascii_alphanumeric() || b"+-.".contains(&byte))
}

fn parse_network(scheme: &str, tls: bool, rest: &str) -> Result<RedisUrl, InvalidRedisUrl> {
    // The last @ ends the user part: an unescaped @ in a password must not end up in the host.
    let (user, rest) = rest
        .rsplit_once('@')
        .map_or((None, rest), |(user, rest)| (Some(user), rest));
    if rest.contains(['?', '#']) {
        return Err(bad("this scheme takes no options after ? or #"));
    }
    let (hosts, path) = rest.split_once('/').unwrap_or((rest, ""));
    let (username, password) = user.map(parse_user).transpose()?.unwrap_or_default();
    let default_port = if scheme == "redis+sentinel" {
        DEFAULT_SENTINEL_PORT
    } else {
        DEFAULT_PORT
    };
    let mut nodes = hosts
        .split(',')
        .map(|node| parse_node(node, default_port))
        .collect::<Result<Vec<_>, _>>()?;
    let (endpoint, db) = match scheme {
        "redis+cluster" => {
            if !matches!(path, "" | "0") {
                return Err(bad("a cluster has only database 0"));
            }
            (Endpoint::Cluster { nodes, tls }, 0)
        }
        "redis+sentinel" => {
            let (master, db) = path.split_once('/').unwrap_or((path, ""));
            let master = decode(master)?;
            if master.is_empty() {
                return Err(bad(
                    "missing master name: redis+sentinel://host:port/master",
                ));
            }
            (Endpoint::Sentinel { nodes, master, tls }, parse_db(db)?)
        }
        _ => {
            if nodes.len() != 1 {
                return Err(bad(
                    "several hosts require redis+sentinel:// or redis+cluster://",
                ));
            }
            let (host, port) = nodes.swap_remove(0);
            (Endpoint::Tcp { host, port, tls }, parse_db(path)?)
        }
    };
    Ok(RedisUrl {
        endpoint,
        username,
        password,
        db,
    })
}

fn parse_unix(rest: &str) -> Result<RedisUrl, InvalidRedisUrl> {
    let (path, query) = rest.split_once('?').unwrap_or((rest, ""));
    let path = decode(path)?;
    if !path.starts_with('/') {
        return Err(bad("a unix socket requires an absolute path: unix:///path"));
    }
    let mut url = RedisUrl::unix(path);
    for pair in query.split('&').filter(|pair| !pair.is_empty()) {
        let (name, value) = pair.split_once('=').unwrap_or((pair, ""));
        match name {
            "db" => url.db = parse_db(value)?,
            "user" => url.username = Some(decode(value)?),
            "pass" => url.password = Some(Secret::new(decode(value)?)),
            other => {
                return Err(bad(format!(
                    "unknown option {other:?}: expected db, user or pass"
                )));
            }
        }
    }
    Ok(url)
}

fn parse_user(text: &str) -> Result<(Option<String>, Option<Secret>), InvalidRedisUrl> {
    let (user, password) = match text.split_once(':') {
        Some((user, password)) => (user, Some(Secret::new(decode(password)?))),
        None => (text, None),
    };
    let user = decode(user)?;
    Ok(((!user.is_empty()).then_some(user), password))
}

fn parse_node(text: &str, default_port: u16) -> Result<(String, u16), InvalidRedisUrl> {
    let (host, port) = match text.strip_prefix('[') {
        Some(rest) => {
            let (host, rest) = rest
                .split_once(']')
                .ok_or_else(|| bad("the address lacks a closing bracket"))?;
            let port = rest.strip_prefix(':');
            if host.parse::<Ipv6Addr>().is_err() || port.is_none() && !rest.is_empty() {
                return Err(bad("expected [IPv6 address] or [IPv6 address]:port"));
            }
            (host, port)
        }
        None => text
            .rsplit_once(':')
            .map_or((text, None), |(host, port)| (host, Some(port))),
    };
    if host.is_empty() || (host.contains(':') && !text.starts_with('[')) {
        return Err(bad("expected host or host:port (IPv6 in brackets)"));
    }
    let port = match port {
        None => default_port,
        Some(port) => match port.parse() {
            Ok(port) if port != 0 => port,
            _ => {
                return Err(bad(format!(
                    "the port after {host:?} must be a number from 1 to 65535"
                )));
            }
        },
    };
    Ok((decode(host)?, port))
}

fn parse_db(text: &str) -> Result<u32, InvalidRedisUrl> {
    if text.is_empty() {
        return Ok(0);
    }
    // Not repeated: after a wrong separator, a password may be part of it.
    text.parse()
        .map_err(|_| bad("the database must be a number"))
}

fn decode(text: &str) -> Result<String, InvalidRedisUrl> {
    percent::decode(text).ok_or_else(|| {
        bad("% must be followed by two hexadecimal digits, and the result must be UTF-8")
    })
}

crate::text_value!(
    RedisUrl, "string", "`redis://`, `unix://`, `redis+sentinel://`, `redis+cluster://`; with TLS `rediss…`";
);

impl fmt::Display for RedisUrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let user = match (&self.username, &self.password) {
            (None, None) => String::new(),
            (user, None) => format!("{}@", user.as_deref().unwrap_or_default()),
            (user, Some(hidden)) => format!("{}:{hidden}@", user.as_deref().unwrap_or_default()),
        };
        let scheme = |tls: &bool| if *tls { "rediss" } else { "redis" };
        match &self.endpoint {
            Endpoint::Tcp { host, port, tls } => {
                let scheme = scheme(tls);
                write!(f, "{scheme}://{user}{}/{}", Node(host, *port), self.db)
            }
            Endpoint::Unix(path) => write!(f, "unix://{}?db={}", path.display(), self.db),
            Endpoint::Sentinel { nodes, master, tls } => {
                let (scheme, nodes) = (scheme(tls), join(nodes));
                write!(f, "{scheme}+sentinel://{user}{nodes}/{master}/{}", self.db)
            }
            Endpoint::Cluster { nodes, tls } => {
                write!(f, "{}+cluster://{user}{}", scheme(tls), join(nodes))
            }
        }
    }
}

impl fmt::Debug for RedisUrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// Serializes as it prints: with the password hidden.
impl Serialize for RedisUrl {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

struct Node<'a>(&'a str, u16);

impl fmt::Display for Node<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.0.contains(':') {
            write!(f, "[{}]:{}", self.0, self.1)
        } else {
            write!(f, "{}:{}", self.0, self.1)
        }
    }
}

fn join(nodes: &[(String, u16)]) -> String {
    nodes
        .iter()
        .map(|(host, port)| Node(host, *port).to_string())
        .collect::<Vec<_>>()
        .join(",")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn url(text: &str) -> RedisUrl {
        text.parse().unwrap()
    }

    #[test]
    fn every_documented_form_parses_and_prints_without_its_password() {
        for (text, shown) in [
            ("redis://h", "redis://h:6379/0"),
            ("redis://ann:p%40ss@h:1/2", "redis://ann:***@h:1/2"),
            ("redis://:p@s@h", "redis://:***@h:6379/0"),
            ("rediss://[::1]:7000", "rediss://[::1]:7000/0"),
            (
                "unix:///run/a%20b.sock?db=3&pass=x",
                "unix:///run/a b.sock?db=3",
            ),
            (
                "redis+sentinel://a:1,b/main",
                "redis+sentinel://a:1,b:26379/main/0",
            ),
            ("redis+cluster://a,b:2", "redis+cluster://a:6379,b:2"),
            ("rediss+cluster://a", "rediss+cluster://a:6379"),
            ("rediss+sentinel://a/m", "rediss+sentinel://a:26379/m/0"),
        ] {
            assert_eq!(url(text).to_string(), shown);
            assert_eq!(format!("{:?}", url(text)), shown);
        }
        assert_eq!(
            url("redis://ann:p%40ss@h").password().unwrap().expose(),
            "p@ss"
        );
        assert_eq!(url("redis://:p@s@h").password().unwrap().expose(), "p@s");
        assert_eq!(url("redis://ann@h").username(), Some("ann"));
    }

    #[test]
    fn a_wrong_address_is_refused_without_repeating_the_password() {
        for text in [
            "h:6379",
            "http://h",
            "redis://",
            "redis://h:0",
            "redis://h:x",
            "redis://h/x",
            "redis://h/0?a=b",
            "redis://a,b",
            "redis://:%zz@h",
            "redis://::1",
            "redis://[::1",
            "redis://[::1]x",
            "redis://[[]:1",
            "redis://[host]",
            "unix://rel",
            "unix:///s?x=1",
            "redis+sentinel://a:1",
            "redis+cluster://a/3",
            "redis://u:hunter2@h:x",
            "unix:///s?db=2?pass=hunter2",
            "redis://h/2?pass=hunter2",
        ] {
            let error = text.parse::<RedisUrl>().unwrap_err();
            assert!(!error.to_string().contains("hunter2"), "{error}");
        }
    }

    #[test]
    fn an_unknown_scheme_is_named_with_all_that_are_known() {
        let schemes = [
            "redis",
            "rediss",
            "unix",
            "redis+sentinel",
            "rediss+sentinel",
            "redis+cluster",
            "rediss+cluster",
        ];
        for text in ["http://h", "sentinel://h", "valkey", "a b://h"] {
            let error = text.parse::<RedisUrl>().unwrap_err().to_string();
            for scheme in schemes {
                assert!(error.contains(&format!(" {scheme}://")), "{error}");
            }
        }
        let error = "http://h".parse::<RedisUrl>().unwrap_err().to_string();
        assert!(error.contains("unknown scheme \"http\""), "{error}");
        for scheme in schemes {
            let text = format!("{scheme}:///");
            let error = text.parse::<RedisUrl>();
            assert!(
                !error.is_err_and(|error| error.to_string().contains("expected redis")),
                "{text}"
            );
        }
    }

    #[test]
    fn a_password_before_a_misplaced_scheme_is_not_repeated() {
        let error = "ann:t0p@redis://h".parse::<RedisUrl>().unwrap_err();
        assert!(!error.to_string().contains("t0p"), "{error}");
    }

    #[test]
    fn an_error_repeats_no_more_than_the_beginning_of_a_part() {
        let text = format!("unix:///s?{}=1", "x".repeat(10_000));
        let error = text.parse::<RedisUrl>().unwrap_err().to_string();
        assert!(
            error.contains("option \"xxx") && error.len() < 400,
            "{error}"
        );
    }
}
