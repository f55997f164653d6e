//! The cookies of a request, and those of sessions.

use axum::http::header::{COOKIE, HOST, ORIGIN};
use axum::http::{HeaderMap, HeaderValue};

use super::session::LONGEST;

/// Returns the value of the first cookie of a name, percent-decoded.
pub(super) fn cookie(headers: &HeaderMap, name: &str) -> Option<String> {
    cookies(headers, name).next()
}

/// Returns the values of all cookies of a name, percent-decoded.
pub(super) fn cookies(headers: &HeaderMap, name: &str) -> impl Iterator<Item = String> {
    let lines = headers
        .get_all(COOKIE)
        .iter()
        .filter_map(|line| line.to_str().ok());
    let pairs = lines
        .flat_map(|line| line.split(';'))
        .filter_map(|pair| pair.trim().split_once('='));
    pairs
        .filter(move |(key, _)| *key == name)
        .filter_map(|(_, value)| {
            let value = value.replace('+', "%2B");
            let (key, _) = url::form_urlencoded::parse(value.as_bytes()).next()?;
            Some(key.into_owned())
        })
}

/// Returns the names that a session's cookie may have: secure ones first, then that of this port, because cookies of all
/// ports of a host are mixed.
pub(super) fn session_names(headers: &HeaderMap) -> [String; 2] {
    let host = headers.get(HOST).and_then(|host| host.to_str().ok());
    let port = host
        .and_then(|host| host.rsplit_once(':'))
        .map_or("80", |(_, port)| port);
    let port: u16 = port.parse().unwrap_or(80);
    ["__Host-lisa".to_owned(), format!("lisa-{port}")]
}

/// Returns the line that sets a session's cookie.
pub(super) fn session_cookie(name: &str, value: &str) -> String {
    let secure = if name.starts_with("__Host-") {
        " Secure;"
    } else {
        ""
    };
    let age = LONGEST.as_secs();
    format!("{name}={value}; Path=/; Max-Age={age}; HttpOnly;{secure} SameSite=Lax")
}

/// Returns the name for a new session: a secure one if the connection has TLS (`is_secure`), or if the browser posts from a
/// page over HTTPS, through a proxy.
pub(super) fn new_session_name(headers: &HeaderMap, is_secure: bool) -> String {
    let origin = headers.get(ORIGIN).map(HeaderValue::as_bytes);
    let is_secure = is_secure || origin.is_some_and(|origin| origin.starts_with(b"https://"));
    let [secure, plain] = session_names(headers);
    if is_secure { secure } else { plain }
}
