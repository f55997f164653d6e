//! A listening address that is bound once at the start and can be bound again after a crash.
//!
//! Only binds; [`super::serve()`] handles connections.

use std::io;
use std::net::SocketAddr;

use lisa_core::sync::Mutex;
use tokio::net::{TcpListener, TcpSocket};

/// The connections that may wait in the operating system's queue, as far as `net.core.somaxconn` permits. Beyond it, a client
/// waits a second or more for its next try, for example when all workers connect again.
const BACKLOG: u32 = 4096;

/// The address of a supervised listener: a port in use is an error at start, not a restart loop.
#[derive(Debug)]
pub struct Socket {
    address: SocketAddr,
    first: Mutex<Option<TcpListener>>,
}

impl Socket {
    /// Binds the address. Port 0 picks a free port, which later binds keep.
    ///
    /// # Errors
    /// The address is in use, does not belong to this host, or is not permitted.
    pub async fn bind(address: SocketAddr) -> io::Result<Self> {
        let listener = listen(address)?;
        Ok(Self {
            address: listener.local_addr()?,
            first: Mutex::new(Some(listener)),
        })
    }

    /// Returns the address, with the actual port.
    #[must_use]
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Returns the listener: the one of [`Socket::bind`] for the first caller, a new one for each later caller.
    ///
    /// # Errors
    /// The address cannot be bound again.
    pub async fn listener(&self) -> io::Result<TcpListener> {
        let first = self.first.lock().take();
        match first {
            Some(listener) => Ok(listener),
            None => listen(self.address),
        }
    }
}

fn listen(address: SocketAddr) -> io::Result<TcpListener> {
    let socket = match address {
        SocketAddr::V4(_) => TcpSocket::new_v4()?,
        SocketAddr::V6(_) => TcpSocket::new_v6()?,
    };
    socket.set_reuseaddr(true)?;
    socket.bind(address)?;
    socket.listen(BACKLOG)
}
