//! The address of a running manager, as given on the command line.

use std::fmt;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::str::FromStr;

use lisa_service::config::HttpConfig;
use url::{Host, Url};

/// The base URL of a manager's HTTP interface, possibly with a path that a proxy adds.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct ManagerUrl(Url);

impl FromStr for ManagerUrl {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        const EXPECTED: &str = "expected host:port or a URL, such as lisa-manager:7812 or https://lisa.example.com/lisa";
        let url = match text.contains("://") {
            true => text.to_owned(),
            false if text.contains(':') => format!("http://{text}"),
            false => return Err(EXPECTED.to_owned()),
        };
        let url: Url = url
            .parse()
            .map_err(|error| format!("{error}: {EXPECTED}"))?;
        if !matches!(url.scheme(), "http" | "https") {
            return Err(format!("the scheme must be http or https: {EXPECTED}"));
        }
        if !url.username().is_empty() || url.password().is_some() {
            return Err(
                "user and password are not supported: put a token into a file for --token-file"
                    .to_owned(),
            );
        }
        if url.query().is_some() || url.fragment().is_some() {
            return Err(format!("a query is not supported: {EXPECTED}"));
        }
        if url.port() == Some(0) {
            return Err(EXPECTED.to_owned());
        }
        Ok(Self(url))
    }
}

impl fmt::Display for ManagerUrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.0.as_str().trim_end_matches('/'))
    }
}

impl ManagerUrl {
    /// Returns the URL of a configured listener. An unspecified address (`0.0.0.0`, `::`) stands for this machine.
    pub(crate) fn of_listener(listener: SocketAddr, http: &HttpConfig) -> Self {
        let ip = match listener.ip() {
            IpAddr::V4(ip) if ip.is_unspecified() => Ipv4Addr::LOCALHOST.into(),
            IpAddr::V6(ip) if ip.is_unspecified() => Ipv6Addr::LOCALHOST.into(),
            ip => ip,
        };
        let url = http.url(SocketAddr::new(ip, listener.port()));
        Self(url.parse().expect("a scheme and an address are a URL"))
    }

    /// Returns the base of the routes in this process.
    pub(crate) fn in_process() -> Self {
        Self("http://localhost".parse().expect("a constant"))
    }

    /// Returns whether the connection is encrypted.
    pub(crate) fn is_https(&self) -> bool {
        self.0.scheme() == "https"
    }

    /// Returns the name or IP address of the host.
    pub(crate) fn host(&self) -> Host<&str> {
        self.0.host().expect("http requires a host")
    }

    /// Returns the URL of a route below `/v1`. Each part of the path is escaped.
    pub(crate) fn route(&self, path: &[&str]) -> Url {
        let mut url = self.0.clone();
        if let Ok(mut segments) = url.path_segments_mut() {
            segments.pop_if_empty().push("v1").extend(path);
        }
        url
    }
}

#[cfg(test)]
mod tests {
    use lisa_service::config::Config;

    use super::*;

    #[test]
    fn a_manager_is_named_by_host_and_port_or_by_a_url() {
        for (text, shown) in [
            ("127.0.0.1:7812", "http://127.0.0.1:7812"),
            ("localhost:7812", "http://localhost:7812"),
            ("[::1]:7812", "http://[::1]:7812"),
            ("http://lisa-manager:7812/", "http://lisa-manager:7812"),
            ("http://lisa-manager", "http://lisa-manager"),
            (
                "https://lisa.example.com/lisa/",
                "https://lisa.example.com/lisa",
            ),
        ] {
            let manager: Result<ManagerUrl, _> = text.parse();
            assert_eq!(manager.unwrap().to_string(), shown, "{text}");
        }
        for (text, why) in [
            ("", "expected host:port"),
            ("lisa-manager", "expected host:port"),
            ("lisa-manager:0", "expected host:port"),
            ("lisa-manager:70000", "invalid port"),
            (":7812", "empty host"),
            ("http://", "empty host"),
            ("::1:7812", "expected host:port"),
            ("lisa manager:7812", "expected host:port"),
            ("redis://lisa-manager:7812", "must be http or https"),
            ("http://me:secret@lisa-manager:7812", "--token-file"),
            ("https://lisa-manager:7812/?a", "a query"),
        ] {
            let refused = text.parse::<ManagerUrl>().unwrap_err();
            assert!(refused.contains(why), "{text}: {refused}");
        }
    }

    #[test]
    fn a_listener_on_every_address_is_asked_on_this_machine() {
        for (listener, shown) in [
            ("0.0.0.0:7812", "http://127.0.0.1:7812"),
            ("[::]:7812", "http://[::1]:7812"),
            ("10.0.0.1:7812", "http://10.0.0.1:7812"),
            ("[2001:db8::1]:80", "http://[2001:db8::1]"),
        ] {
            let http = Config::default().http;
            let manager = ManagerUrl::of_listener(listener.parse().unwrap(), &http);
            assert_eq!(manager.to_string(), shown);
        }
    }

    #[test]
    fn a_route_stands_below_the_base_and_each_part_is_escaped() {
        let base: ManagerUrl = "https://h/lisa".parse().unwrap();
        let route = base.route(&["topics", "orders", "messages", "a/b?c"]);
        let expected = "https://h/lisa/v1/topics/orders/messages/a%2Fb%3Fc";
        assert_eq!(route.as_str(), expected);
        let bare: ManagerUrl = "h:1".parse().unwrap();
        assert_eq!(bare.route(&["jobs"]).as_str(), "http://h:1/v1/jobs");
    }
}
