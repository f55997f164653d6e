//! Free loopback ports for servers that must keep theirs over a restart.

use std::collections::HashSet;
use std::net::{Ipv4Addr, SocketAddr, TcpListener};
use std::ops::Range;
use std::sync::Mutex;

/// Returns a loopback TCP port without a listener.
///
/// The port lies below the range of the kernel's ephemeral ports. While a stopped server or a refusing proxy is down,
/// no stray connection can take its port. This process gets each port once, and of the tests that cargo-nextest runs at
/// the same time, each has a range of its own. Other processes may take it, so a caller that binds it late must be ready
/// to ask again.
pub fn free_port() -> u16 {
    static GIVEN: Mutex<Option<HashSet<u16>>> = Mutex::new(None);
    let mut given = GIVEN
        .lock()
        .expect("nothing panics while it holds the ports");
    let given = given.get_or_insert_default();
    let range = range();
    for _ in 0..1000 {
        let port = fastrand::u16(range.clone());
        if given.insert(port) && TcpListener::bind(loopback(port)).is_ok() {
            return port;
        }
    }
    panic!("no free loopback port found in 1000 tries");
}

/// Returns the range of this test: a part of all ports by its slot in the runner.
fn range() -> Range<u16> {
    const ALL: Range<u16> = 12_000..32_000;
    const PART: u16 = 300;
    let slot = std::env::var("NEXTEST_TEST_GLOBAL_SLOT").ok();
    match slot.and_then(|slot| slot.parse::<u16>().ok()) {
        Some(slot) => {
            let start = ALL.start + slot % (ALL.len() as u16 / PART) * PART;
            start..start + PART
        }
        None => ALL,
    }
}

/// Returns the loopback address with `port`.
pub(crate) fn loopback(port: u16) -> SocketAddr {
    SocketAddr::from((Ipv4Addr::LOCALHOST, port))
}
