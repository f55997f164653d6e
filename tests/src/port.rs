//! Free loopback ports for servers that must keep theirs over a restart.

use std::collections::HashSet;
use std::net::{Ipv4Addr, SocketAddr, TcpListener};
use std::sync::Mutex;

/// Returns a loopback TCP port that nobody listens on now.
///
/// It lies below the range that the kernel takes message ports from: while a stopped server or a refusing proxy is away,
/// no stray connection can be given its port. This process gets each port once; nothing keeps others from it, so who
/// binds it late must be ready to ask again.
pub fn free_port() -> u16 {
    static GIVEN: Mutex<Option<HashSet<u16>>> = Mutex::new(None);
    let mut given = GIVEN
        .lock()
        .expect("nothing panics while it holds the ports");
    let given = given.get_or_insert_default();
    for _ in 0..1000 {
        let port = fastrand::u16(12_000..32_000);
        if given.insert(port) && TcpListener::bind(loopback(port)).is_ok() {
            return port;
        }
    }
    panic!("no free loopback port found in 1000 tries");
}

/// Returns the loopback address with `port`.
pub(crate) fn loopback(port: u16) -> SocketAddr {
    SocketAddr::from((Ipv4Addr::LOCALHOST, port))
}
