//! A listening address that is taken once, early, and can be taken again after a crash.
//!
//! Binds only; connections are the business of [`super::serve()`].

use std::io;
use std::net::SocketAddr;
use std::sync::{Mutex, PoisonError};

use tokio::net::TcpListener;

/// The address of a supervised listener: a port in use is an error at start, not a restart loop.
#[derive(Debug)]
pub struct Socket {
    address: SocketAddr,
    first: Mutex<Option<TcpListener>>,
}

impl Socket {
    /// Takes the address; port 0 picks a free one, which later binds keep.
    ///
    /// # Errors
    /// The address is in use, not ours, or not allowed.
    pub async fn bind(address: SocketAddr) -> io::Result<Self> {
        let listener = TcpListener::bind(address).await?;
        Ok(Self {
            address: listener.local_addr()?,
            first: Mutex::new(Some(listener)),
        })
    }

    /// The address, with the real port.
    #[must_use]
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// The listener: the one of [`Socket::bind`] for the first caller, a new one for each later run.
    ///
    /// # Errors
    /// The address could not be taken again.
    pub async fn listener(&self) -> io::Result<TcpListener> {
        let first = self
            .first
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .take();
        match first {
            Some(listener) => Ok(listener),
            None => TcpListener::bind(self.address).await,
        }
    }
}
