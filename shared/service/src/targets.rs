//! The targets of sinks: the hosts and addresses that are allowed, and the rules for `Retry-After` and for a target that is
//! unavailable.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::time::Duration;

use lisa_core::names::words;

words!(
    /// The outcome of a delivery whose webhook responds with `Retry-After`.
    #[derive(Default)]
    RetryAfter, "retry_after", {
        /// Retries it at that time, counted as an attempt.
        #[default]
        Retry = "retry",
        /// Defers it until then, not counted as an attempt.
        Defer = "defer",
    }
);

words!(
    /// The outcome of a delivery whose target is unavailable: it cannot be reached, or blocks all deliveries.
    Away, "rule for an unavailable target", {
        /// Delivers it again later, not counted as an attempt. In the meantime, only probes are read.
        Defer = "defer",
        /// Retries it, counted as an attempt.
        Retry = "retry",
    }
);

/// The default of [`TargetSettings::max_away`].
pub const DEFAULT_MAX_AWAY: Duration = Duration::from_hours(7 * 24);

/// The rule for a target that is unavailable.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TargetSettings {
    /// The outcome of a delivery whose target is unavailable.
    pub away: Away,
    /// The duration of an outage after which deliveries count as attempts, although `away` is [`Away::Defer`]. Measured
    /// from the first failure that this process saw.
    pub max_away: Duration,
}

impl TargetSettings {
    /// Creates a rule with the default of `max_away`.
    pub const fn new(away: Away) -> Self {
        Self {
            away,
            max_away: DEFAULT_MAX_AWAY,
        }
    }
}

#[cfg(feature = "process")]
pub(crate) use keys::{deferred, retried};

#[cfg(feature = "process")]
mod keys {
    //! Reads the rule of a sink.

    use std::time::Duration;

    use lisa_core::fields::{Any, Field, Reader as _, within};

    use super::{Away, DEFAULT_MAX_AWAY, TargetSettings};
    use crate::config::table::Table;

    /// Reads the rule of a webhook whose server is unavailable.
    pub(crate) fn retried(table: &mut Table<'_>, _: &str) -> Option<TargetSettings> {
        Some(target(table, Away::Retry))
    }

    /// Reads the rule of a message broker that is unavailable.
    pub(crate) fn deferred(table: &mut Table<'_>, _: &str) -> Option<TargetSettings> {
        Some(target(table, Away::Defer))
    }

    fn target(table: &mut Table<'_>, away: Away) -> TargetSettings {
        let away = Field::new(
            "away",
            away,
            "The outcome of a delivery whose target is unavailable. `defer` counts no attempt, `retry` does.",
        );
        let max_away = Field::new(
            "max_away",
            DEFAULT_MAX_AWAY,
            "With `away = \"defer\"`: the duration of an outage after which deliveries count as attempts.",
        );
        let year = Duration::from_hours(365 * 24);
        TargetSettings {
            away: table.read(away, Any),
            max_away: table.read(max_away, within(Duration::from_secs(1)..=year)),
        }
    }
}

/// Returns the error for a webhook's host outside the public internet: an address in any notation, or a name of this
/// machine. Other names are not resolved. `host` is the host of a parsed URL.
pub fn special_host(host: &str) -> Option<String> {
    let name = host.trim_end_matches('.');
    let kind = if name == "localhost" || name.ends_with(".localhost") {
        "a name of this machine"
    } else {
        special_address(host.trim_matches(['[', ']']).parse().ok()?)?
    };
    Some(format!(
        "{host} is {kind}: refused unless allow_private = true"
    ))
}

/// Returns the kind of an address outside the public internet, or `None` for a public one.
pub fn special_address(address: IpAddr) -> Option<&'static str> {
    match address {
        IpAddr::V4(v4) => kind_of_v4(v4),
        IpAddr::V6(v6) => kind_of_v6(v6),
    }
}

/// The special-purpose networks of IANA for IPv4, and one public address from which clouds serve secrets.
const V4: &[([u8; 4], u32, &str)] = &[
    ([0, 0, 0, 0], 8, "an address of this network"),
    ([10, 0, 0, 0], 8, "a private address"),
    ([100, 64, 0, 0], 10, "a carrier-grade NAT address"),
    ([127, 0, 0, 0], 8, "a loopback address"),
    ([168, 63, 129, 16], 32, "a cloud's host address"),
    ([169, 254, 0, 0], 16, "a link-local address"),
    ([172, 16, 0, 0], 12, "a private address"),
    ([192, 0, 0, 0], 24, "a protocol assignment"),
    ([192, 0, 2, 0], 24, "a documentation address"),
    ([192, 88, 99, 0], 24, "a 6to4 relay address"),
    ([192, 168, 0, 0], 16, "a private address"),
    ([198, 18, 0, 0], 15, "a benchmark address"),
    ([198, 51, 100, 0], 24, "a documentation address"),
    ([203, 0, 113, 0], 24, "a documentation address"),
    ([224, 0, 0, 0], 4, "a multicast address"),
    ([240, 0, 0, 0], 4, "a reserved address"),
];

/// The same for IPv6. Networks that embed IPv4 addresses are refused completely: their routing is unknown here.
const V6: &[([u16; 8], u32, &str)] = &[
    ([0, 0, 0, 0, 0, 0, 0, 0], 128, "the unspecified address"),
    ([0, 0, 0, 0, 0, 0, 0, 1], 128, "the loopback address"),
    ([0, 0, 0, 0, 0, 0, 0, 0], 96, "an IPv4-compatible address"),
    ([0, 0, 0, 0, 0, 0xffff, 0, 0], 96, "an IPv4-mapped address"),
    ([0x64, 0xff9b, 0, 0, 0, 0, 0, 0], 32, "a NAT64 address"),
    ([0x2001, 0, 0, 0, 0, 0, 0, 0], 32, "a Teredo address"),
    ([0x2001, 0, 0, 0, 0, 0, 0, 0], 23, "a protocol assignment"),
    (
        [0x2001, 0xdb8, 0, 0, 0, 0, 0, 0],
        32,
        "a documentation address",
    ),
    ([0x2002, 0, 0, 0, 0, 0, 0, 0], 16, "a 6to4 address"),
    ([0x3fff, 0, 0, 0, 0, 0, 0, 0], 20, "a documentation address"),
    ([0xfc00, 0, 0, 0, 0, 0, 0, 0], 7, "a private address"),
    ([0xfe80, 0, 0, 0, 0, 0, 0, 0], 10, "a link-local address"),
    ([0xff00, 0, 0, 0, 0, 0, 0, 0], 8, "a multicast address"),
];

fn kind_of_v4(address: Ipv4Addr) -> Option<&'static str> {
    let within = |network: [u8; 4], length: u32| {
        (u32::from(address) ^ u32::from_be_bytes(network)) >> (32 - length) == 0
    };
    V4.iter()
        .find(|&&(network, length, _)| within(network, length))
        .map(|&(_, _, kind)| kind)
}

fn kind_of_v6(address: Ipv6Addr) -> Option<&'static str> {
    let within = |network: [u16; 8], length: u32| {
        (u128::from(address) ^ u128::from(Ipv6Addr::from(network))) >> (128 - length) == 0
    };
    // Global unicast addresses all start with the bits 001; the rest is reserved.
    V6.iter()
        .find(|&&(network, length, _)| within(network, length))
        .map(|&(_, _, kind)| kind)
        .or_else(|| (!within([0x2000, 0, 0, 0, 0, 0, 0, 0], 3)).then_some("a reserved address"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn refused(address: &str) -> bool {
        special_address(address.parse().expect(address)).is_some()
    }

    #[test]
    fn addresses_outside_the_public_internet_are_refused_to_their_last() {
        for address in [
            "0.0.0.0",
            "0.255.255.255",
            "10.0.0.0",
            "10.255.255.255",
            "100.64.0.0",
            "100.127.255.255",
            "127.0.0.1",
            "127.255.255.255",
            "168.63.129.16",
            "169.254.0.0",
            "169.254.169.254",
            "172.16.0.0",
            "172.31.255.255",
            "192.0.0.8",
            "192.0.2.1",
            "192.88.99.1",
            "192.168.0.0",
            "192.168.255.255",
            "198.18.0.0",
            "198.19.255.255",
            "198.51.100.7",
            "203.0.113.7",
            "224.0.0.1",
            "239.255.255.255",
            "240.0.0.1",
            "255.255.255.255",
            "::",
            "::1",
            "::7f00:1",
            "::8.8.8.8",
            "::ffff:127.0.0.1",
            "::ffff:8.8.8.8",
            "::ffff:0:7f00:1",
            "64:ff9b::7f00:1",
            "64:ff9b::808:808",
            "64:ff9b:1::1",
            "100::1",
            "2001::1",
            "2001:0:5ef5:79fd::1",
            "2001:2::1",
            "2001:10::1",
            "2001:1ff:ffff::1",
            "2001:db8::1",
            "2002:7f00:1::",
            "2002:808:808::1",
            "3fff::1",
            "3fff:fff::1",
            "4000::1",
            "5f00::1",
            "fc00::1",
            "fd00:ec2::254",
            "fe80::1",
            "febf::1",
            "fec0::1",
            "ff02::1",
            "1fff::1",
        ] {
            assert!(refused(address), "{address}");
        }
    }

    #[test]
    fn their_public_neighbours_are_not() {
        for address in [
            "1.1.1.1",
            "9.255.255.255",
            "11.0.0.0",
            "100.63.255.255",
            "100.128.0.0",
            "126.255.255.255",
            "128.0.0.1",
            "168.63.129.15",
            "169.253.255.255",
            "169.255.0.0",
            "172.15.255.255",
            "172.32.0.0",
            "192.0.1.0",
            "192.0.3.0",
            "192.167.255.255",
            "192.169.0.0",
            "198.17.255.255",
            "198.20.0.0",
            "203.0.114.0",
            "223.255.255.255",
            "2000::1",
            "2001:200::1",
            "2001:4860:4860::8888",
            "2001:db7::1",
            "2001:db9::1",
            "2003::1",
            "2606:4700::1111",
            "2a00:1450::1",
            "3ffe::1",
            "3fff:1000::1",
        ] {
            assert!(!refused(address), "{address}");
        }
    }
}
