//! Refuses requests that a page of another site may have made a browser send (CSRF, DNS rebinding).
//!
//! Any page can make its visitor's browser send requests to this machine or network. It cannot read the responses, unless
//! its host name resolves to this listener (DNS rebinding). Browsers report the origin of a request in headers that no page
//! can forge. Programs send none of these headers and pass. If tokens are configured, nothing is checked here: the routes
//! require a token, which no page of another site has. The exception are requests that a client certificate admits, because
//! a browser presents it by itself.

use std::fmt;
use std::net::{Ipv4Addr, Ipv6Addr};
use std::str::FromStr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use axum::extract::Request;
use axum::http::header::{HOST, HeaderName, ORIGIN, USER_AGENT};
use axum::http::{HeaderMap, HeaderValue, Method};

use super::auth::TokenSet;
use super::guard::{SQS_ROUTES, names_action};
use super::ops;
use super::problem::{Problem, ProblemCode};
use super::tls;

const SEC_FETCH_SITE: HeaderName = HeaderName::from_static("sec-fetch-site");

/// The longest host name in DNS, in bytes.
const MAX_NAME: usize = 253;

/// A host name that requests may be sent to, in lower case and without a port.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HostName(String);

/// The text is not a host name.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("expected a host name without scheme and port, like lisa.example.com")]
pub struct InvalidHostName;

impl FromStr for HostName {
    type Err = InvalidHostName;

    fn from_str(text: &str) -> Result<Self, InvalidHostName> {
        let name = text.strip_suffix('.').unwrap_or(text);
        let is_name = is_name(name) && name.split('.').all(|label| !label.is_empty());
        if is_name {
            Ok(Self(name.to_ascii_lowercase()))
        } else {
            Err(InvalidHostName)
        }
    }
}

impl fmt::Display for HostName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// The origin of a page: scheme, host and port. `Display` omits the default port of the scheme.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Origin {
    is_secure: bool,
    host: String,
    port: u16,
}

/// The text is not the origin of a page.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("expected an origin with scheme, host and optional port, like https://lisa.example.com")]
pub struct InvalidOrigin;

impl FromStr for Origin {
    type Err = InvalidOrigin;

    fn from_str(text: &str) -> Result<Self, InvalidOrigin> {
        let (scheme, authority) = text.split_once("://").ok_or(InvalidOrigin)?;
        let is_secure = scheme.eq_ignore_ascii_case("https");
        if !is_secure && !scheme.eq_ignore_ascii_case("http") {
            return Err(InvalidOrigin);
        }
        let (host, port) = host_and_port(authority).ok_or(InvalidOrigin)?;
        Ok(Self {
            is_secure,
            host: host.to_ascii_lowercase(),
            port: port.unwrap_or(default_port(is_secure)),
        })
    }
}

impl fmt::Display for Origin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let scheme = if self.is_secure { "https" } else { "http" };
        write!(f, "{scheme}://{}", self.host)?;
        if self.port == default_port(self.is_secure) {
            return Ok(());
        }
        write!(f, ":{}", self.port)
    }
}

impl Origin {
    /// Returns whether the origin has the host and port of `authority`. The scheme matters only for the default port: a
    /// proxy may have terminated TLS.
    fn is_of(&self, authority: &str) -> bool {
        host_and_port(authority).is_some_and(|(host, port)| {
            self.host.eq_ignore_ascii_case(host)
                && self.port == port.unwrap_or(default_port(self.is_secure))
        })
    }
}

const fn default_port(is_secure: bool) -> u16 {
    if is_secure { 443 } else { 80 }
}

/// The cross-site rule of one listener. Cheap to clone.
#[derive(Clone, Debug, Default)]
pub struct CrossSite {
    has_tokens: bool,
    hosts: Arc<[HostName]>,
    origins: Arc<[Origin]>,
    /// True once a refused request has been logged.
    is_logged: Arc<AtomicBool>,
}

impl CrossSite {
    /// Creates the rule. `hosts` are names of this listener in addition to those that no stranger's page can have. `origins`
    /// are pages that may make changes although `Host` differs from their origin, for example behind a proxy.
    #[must_use]
    pub fn new(tokens: &TokenSet, hosts: Vec<HostName>, origins: Vec<Origin>) -> Self {
        Self {
            has_tokens: !tokens.is_empty(),
            hosts: hosts.into(),
            origins: origins.into(),
            is_logged: Arc::default(),
        }
    }

    /// Returns the problem if a request to `route` is refused.
    pub(super) fn refusal(&self, request: &Request, route: &str) -> Option<Problem> {
        if self.has_tokens && tls::client(request).is_none() {
            return None;
        }
        let headers = request.headers();
        let host = match headers.get(HOST).map(HeaderValue::to_str) {
            Some(Ok(host)) => Some(host),
            _ => None,
        };
        let target = request.uri().authority().map(|target| target.as_str());
        // A target with an authority overrides Host. Both must fit, because a proxy in between may use the other one.
        let hosts_fit = host.is_some_and(|host| self.is_own_host(host))
            && target.is_none_or(|target| self.is_own_host(target));
        let problem = if !self.has_tokens && !hosts_fit && !ops::PROBES.contains(&route) {
            Problem::new(
                ProblemCode::HostNotAllowed,
                "host not allowed: without tokens, Host must be localhost, an IP address, a name without a dot, or one of \
                 auth.allowed_hosts",
            )
        } else if is_guarded(request, route)
            && (is_of_silent_browser(request) || !self.is_own_page(headers, target.or(host)))
        {
            Problem::new(
                ProblemCode::CrossSite,
                "pages of other origins may not use this route; see auth.allowed_origins",
            )
        } else {
            return None;
        };
        if !self.is_logged.swap(true, Ordering::Relaxed) {
            tracing::warn!(
                reason = problem.detail(),
                "refused a request; further refusals are only counted"
            );
        }
        Some(problem)
    }

    /// Returns whether a request that makes a change comes from a program, from a page of this listener, or from an allowed
    /// origin. For routes whose credentials a browser sends by itself, which are checked even if tokens are configured.
    #[must_use]
    pub fn allows_change(&self, request: &Request) -> bool {
        let host = request.headers().get(HOST).map(HeaderValue::to_str);
        let host = host.and_then(Result::ok);
        let target = request.uri().authority().map(|target| target.as_str());
        self.is_own_page(request.headers(), target.or(host))
    }

    /// Returns whether an allowed origin says that this host is reached over HTTPS, through a proxy that terminates TLS.
    #[must_use]
    pub fn is_secure(&self, host: &str) -> bool {
        let mut secure = self.origins.iter().filter(|origin| origin.is_secure);
        secure.any(|origin| origin.is_of(host))
    }

    /// Returns whether `authority` is a name of this listener that no stranger's name server can resolve to it.
    fn is_own_host(&self, authority: &str) -> bool {
        let Some((host, _)) = host_and_port(authority) else {
            return false;
        };
        let bare = host.strip_suffix('.').unwrap_or(host);
        is_address(host)
            || !host.contains('.')
            || bare.eq_ignore_ascii_case("localhost")
            || (self.hosts.iter()).any(|own| own.0.eq_ignore_ascii_case(bare))
    }

    /// Returns whether a request comes from a program, from a page of this listener at `authority`, or from an allowed
    /// origin.
    fn is_own_page(&self, headers: &HeaderMap, authority: Option<&str>) -> bool {
        if headers.contains_key(SEC_FETCH_SITE) {
            let site = only(headers, &SEC_FETCH_SITE);
            return site.is_some_and(|site| site == "same-origin" || site == "none");
        }
        if !headers.contains_key(ORIGIN) {
            return true;
        }
        let origin = only(headers, &ORIGIN).and_then(|origin| origin.to_str().ok());
        // `null`, sent for a sandboxed page or a file, is not an origin.
        let Some(origin) = origin.and_then(|origin| origin.parse::<Origin>().ok()) else {
            return false;
        };
        self.origins.contains(&origin) || authority.is_some_and(|authority| origin.is_of(authority))
    }
}

/// The route on which even a `GET` starts something: an examination, which keeps Redis busy.
const EXAMINATION: &str = "/v1/topics/{topic}/doctor";

/// Returns whether a request may change or start something.
fn is_guarded(request: &Request, route: &str) -> bool {
    match *request.method() {
        Method::OPTIONS => false,
        // An action of SQS makes a change with any method.
        Method::GET | Method::HEAD => {
            route == EXAMINATION || SQS_ROUTES.contains(&route) && names_action(request.uri())
        }
        _ => true,
    }
}

/// Returns whether a browser has sent a request without a word of the page that caused it, as for an image. It does so if the
/// listener is neither on loopback nor served over HTTPS. Every browser begins this header so, and no page can change it.
fn is_of_silent_browser(request: &Request) -> bool {
    let headers = request.headers();
    let is_silent = !headers.contains_key(SEC_FETCH_SITE) && !headers.contains_key(ORIGIN);
    let agent = headers.get(USER_AGENT).map(HeaderValue::as_bytes);
    let is_browser = agent.is_some_and(|agent| agent.starts_with(b"Mozilla/"));
    matches!(*request.method(), Method::GET | Method::HEAD) && is_silent && is_browser
}

/// Returns the value of a header that occurs exactly once.
fn only<'h>(headers: &'h HeaderMap, name: &HeaderName) -> Option<&'h HeaderValue> {
    let mut values = headers.get_all(name).iter();
    let value = values.next()?;
    values.next().is_none().then_some(value)
}

/// Splits `host`, `host:port`, `[::1]` or `[::1]:port`. `None` if the host is neither an address nor a name.
fn host_and_port(authority: &str) -> Option<(&str, Option<u16>)> {
    let end = match authority.strip_prefix('[') {
        Some(_) => authority.find(']')? + 1,
        None => authority.find(':').unwrap_or(authority.len()),
    };
    let (host, rest) = authority.split_at(end);
    let port = match rest.strip_prefix(':') {
        None if rest.is_empty() => None,
        Some(digits) if digits.bytes().all(|byte| byte.is_ascii_digit()) => {
            Some(digits.parse().ok()?)
        }
        _ => return None,
    };
    (is_address(host) || is_name(host)).then_some((host, port))
}

/// Returns whether a host is an IP address as written in URLs.
fn is_address(host: &str) -> bool {
    let v6 = host
        .strip_prefix('[')
        .and_then(|host| host.strip_suffix(']'));
    v6.map_or_else(
        || host.parse::<Ipv4Addr>().is_ok(),
        |v6| v6.parse::<Ipv6Addr>().is_ok(),
    )
}

fn is_name(host: &str) -> bool {
    let is_of_name = |byte: u8| byte.is_ascii_alphanumeric() || b"-_.".contains(&byte);
    (1..=MAX_NAME).contains(&host.len()) && host.bytes().all(is_of_name)
}

#[cfg(test)]
mod tests;
