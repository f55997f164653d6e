//! Accepts connections, and continues after errors that are not the listener's own.

use std::io;
use std::net::SocketAddr;
use std::time::Duration;

use lisa_core::outage::Outage;
use tokio::net::{TcpListener, TcpStream};
use tokio::time::sleep;

/// The pause after an accept that failed for lack of file descriptors or memory.
const PAUSE: Duration = Duration::from_millis(200);

/// A listener, and its outage while the process has no file descriptors or memory for connections.
pub(super) struct Acceptor {
    listener: TcpListener,
    outage: Outage,
}

impl Acceptor {
    pub(super) fn new(listener: TcpListener) -> Self {
        Self {
            listener,
            outage: Outage::new("accept connections"),
        }
    }

    /// Accepts the next connection. Pauses and repeats while the process or the host lacks file descriptors or memory.
    ///
    /// # Errors
    /// The listener itself failed.
    ///
    /// # Cancel safety
    /// Safe: no connection is lost.
    pub(super) async fn accept(&mut self) -> io::Result<(TcpStream, SocketAddr)> {
        loop {
            match self.listener.accept().await {
                Ok(accepted) => {
                    self.outage.recovered();
                    return Ok(accepted);
                }
                Err(error) if of_one_connection(&error) => {}
                Err(error) if is_shortage(&error) => {
                    self.outage.failed(&error);
                    sleep(PAUSE).await;
                }
                Err(error) => return Err(error),
            }
        }
    }
}

/// Returns whether the error is of one client, which disconnected between its SYN and our accept.
fn of_one_connection(error: &io::Error) -> bool {
    use io::ErrorKind as K;
    matches!(
        error.kind(),
        K::ConnectionAborted | K::ConnectionReset | K::ConnectionRefused | K::Interrupted
    )
}

/// Returns whether the process or the host ran out of descriptors or memory: ENFILE, EMFILE, ENOBUFS, ENOMEM.
fn is_shortage(error: &io::Error) -> bool {
    matches!(error.raw_os_error(), Some(23 | 24 | 105 | 12))
}
