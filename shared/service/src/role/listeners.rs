//! The listeners of a process. They and their connections stay when the role reloads its configuration.

use std::fmt;
use std::net::SocketAddr;
use std::sync::Arc;

use lisa_core::sync::Mutex;
use tokio_util::sync::CancellationToken;

use super::{Process, StartError};
use crate::http::{self, Routes, Socket};
use crate::shutdown::Shutdown;
use crate::supervise::{Health, Policy, Supervisor, SupervisorError};

/// All listeners of a process, including those that are closing.
#[derive(Debug, Default)]
pub(super) struct Listeners(Mutex<Vec<Arc<Listener>>>);

/// The protocol of a listener.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Protocol {
    Http1,
    #[cfg(feature = "http2")]
    Http2,
}

/// One listener, which serves until the end of the process or until it is closed.
struct Listener {
    /// The address that the configuration has, with port 0 for any free port.
    configured: SocketAddr,
    /// The address with the actual port.
    address: SocketAddr,
    protocol: Protocol,
    routes: Routes,
    /// Cancelled when it begins to accept connections.
    serves: CancellationToken,
    shutdown: Shutdown,
    supervisor: Supervisor,
}

/// The listeners of one configuration, each with the routes that it serves once this configuration is in effect.
#[derive(Debug, Default)]
pub(super) struct Claims(Mutex<Vec<(Arc<Listener>, Routes)>>);

impl Listeners {
    /// Claims the open listener at this address, or opens it. Listeners serve these routes from [`Listeners::switch`] on; a new one
    /// also if `serves_now`. Returns its actual address and the state of its task.
    ///
    /// # Errors
    /// The address cannot be bound.
    pub(super) async fn claim(
        &self,
        claims: &Claims,
        protocol: Protocol,
        (task, address): (&str, SocketAddr),
        routes: Routes,
        process: &Process,
        serves_now: bool,
    ) -> Result<(SocketAddr, Health), StartError> {
        let listener = match self.open_at(address, protocol, claims) {
            Some(listener) => listener,
            None => {
                let bound = Socket::bind(address).await;
                let socket = bound.map_err(|source| StartError::Listen { address, source })?;
                let listener = Listener::start(task, address, socket, protocol, &routes, process);
                let listener = Arc::new(listener);
                self.0.lock().push(listener.clone());
                if serves_now {
                    listener.serves.cancel();
                }
                listener
            }
        };
        let found = (listener.address, listener.supervisor.health());
        claims.0.lock().push((listener, routes));
        Ok(found)
    }

    /// Returns the open listener at an address, unless it is claimed already.
    fn open_at(
        &self,
        address: SocketAddr,
        protocol: Protocol,
        claims: &Claims,
    ) -> Option<Arc<Listener>> {
        let claims = claims.0.lock();
        let is_claimed = |one: &Arc<Listener>| claims.iter().any(|(of, _)| Arc::ptr_eq(of, one));
        let all = self.0.lock();
        let mut found = all.iter().filter(|one| {
            (one.configured, one.protocol) == (address, protocol)
                && !one.shutdown.draining().is_cancelled()
                && !is_claimed(one)
        });
        found.next().cloned()
    }

    /// Lets the claimed listeners serve their new routes, and closes all others.
    pub(super) fn switch(&self, claims: &Claims) {
        for (listener, routes) in claims.0.lock().iter() {
            listener.routes.replace(routes);
            listener.serves.cancel();
        }
        self.close(|one| !claims.has(one));
    }

    /// Closes the listeners that only `claims` uses, not `current`: those of a configuration that failed to start.
    pub(super) fn abandon(&self, claims: &Claims, current: &Claims) {
        self.close(|one| claims.has(one) && !current.has(one));
    }

    fn close(&self, closes: impl Fn(&Arc<Listener>) -> bool) {
        // A listener whose time to close is over has no connections left.
        let mut all = self.0.lock();
        all.retain(|one| !one.shutdown.now().is_cancelled());
        for listener in all.iter().filter(|one| closes(one)) {
            if !listener.shutdown.draining().is_cancelled() {
                tracing::info!(address = %listener.address, "listener closed");
            }
            listener.shutdown.begin();
        }
    }

    /// Waits for the end of all listeners, which comes with the end of the process.
    ///
    /// # Errors
    /// As [`Supervisor::join`].
    pub(super) async fn join(&self) -> Result<(), SupervisorError> {
        let all = self.0.lock().clone();
        for listener in all {
            listener.supervisor.join().await?;
        }
        Ok(())
    }
}

impl Claims {
    fn has(&self, listener: &Arc<Listener>) -> bool {
        let claims = self.0.lock();
        claims.iter().any(|(one, _)| Arc::ptr_eq(one, listener))
    }
}

impl Listener {
    fn start(
        task: &str,
        configured: SocketAddr,
        socket: Socket,
        protocol: Protocol,
        routes: &Routes,
        process: &Process,
    ) -> Self {
        let shutdown = process.shutdown.of_listener();
        let supervisor = Supervisor::new(&shutdown).counting(&process.metrics);
        let address = socket.address();
        let (socket, until) = (Arc::new(socket), shutdown.clone());
        // A copy, because `switch` replaces the routes of a listener.
        let routes = routes.separate();
        let served = routes.clone();
        let (tls, metrics) = (process.tls.clone(), process.metrics.clone());
        let serves = CancellationToken::new();
        let begin = serves.clone();
        supervisor.spawn(task, Policy::restart(), move |heartbeat| {
            heartbeat.unlimited();
            let (socket, routes) = (socket.clone(), served.clone());
            let (tls, metrics, until) = (tls.clone(), metrics.clone(), until.clone());
            let begin = begin.clone();
            async move {
                // Until then, the certificate of its configuration is not in use.
                let begun = begin.cancelled();
                if until.draining().run_until_cancelled(begun).await.is_none() {
                    return Ok(());
                }
                tracing::info!(%address, tls = tls.is_on(), "listening");
                let listener = socket.listener().await?;
                match protocol {
                    Protocol::Http1 => http::serve(listener, routes, &tls, &metrics, &until).await,
                    #[cfg(feature = "http2")]
                    Protocol::Http2 => {
                        http::serve_http2(listener, routes, &tls, &metrics, &until).await
                    }
                }
            }
        });
        Self {
            configured,
            address,
            protocol,
            routes,
            serves,
            shutdown,
            supervisor,
        }
    }
}

impl fmt::Debug for Listener {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut listener = f.debug_struct("Listener");
        listener
            .field("address", &self.address)
            .finish_non_exhaustive()
    }
}
