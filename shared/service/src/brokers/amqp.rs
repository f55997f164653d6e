//! Connections to RabbitMQ or another AMQP 0-9-1 server.

use std::path::PathBuf;
use std::time::Duration;

use lisa_core::secret::Secret;

use crate::settings::settings;
use crate::targets::TargetSettings;
use crate::template::Template;

/// The default of [`AmqpConnection::connect_timeout`].
pub const DEFAULT_CONNECT_TIMEOUT: Duration = Duration::from_secs(5);
/// The default of [`AmqpSinkSettings::confirm_timeout`].
pub const DEFAULT_CONFIRM_TIMEOUT: Duration = Duration::from_secs(10);

/// The maximum length of the name of an exchange or a queue, and of a routing key, in bytes.
pub const MAX_SHORT_STRING: usize = 255;

settings! {
    /// The settings of a connection.
    #[derive(Clone, Debug, PartialEq, Eq)]
    pub struct AmqpConnection {
        /// The server, as `amqp://user@host:5672/vhost`, or `amqps://` for TLS.
        part url: Secret, by keys::url;
        /// A PEM file of certificates to trust, in addition to the system's.
        file ca_file: Option<PathBuf>;
        /// The time limit for connecting and logging in.
        default connect_timeout: Duration = DEFAULT_CONNECT_TIMEOUT, in super::CONNECT_TIMEOUTS;
    }
}

settings! {
    /// The settings of the `amqp` sink.
    #[derive(Clone, Debug, PartialEq, Eq)]
    pub struct AmqpSinkSettings {
        /// The server.
        nested connection: AmqpConnection;
        /// The exchange to publish to. The default exchange routes to the queue that the routing key names.
        default exchange: String = String::new(), check keys::check_exchange;
        /// The routing key.
        default routing_key: Template = Template::constant("{topic}");
        /// True to retry messages that reach no queue. If false, RabbitMQ drops them and they are lost.
        default mandatory: bool = true;
        /// The time limit for the server's confirm.
        default confirm_timeout: Duration = DEFAULT_CONFIRM_TIMEOUT, in super::DELIVERY_TIMEOUTS;
        /// The rule for a server that is unavailable.
        part target: TargetSettings, by crate::targets::deferred;
    }
}

settings! {
    /// The settings of a source of type `amqp`.
    #[derive(Clone, Debug, PartialEq, Eq)]
    pub struct AmqpSourceSettings {
        /// The server.
        nested connection: AmqpConnection;
        /// The queue to take messages off. It must exist.
        required queue: String, check keys::check_queue;
        /// The maximum number of unacknowledged messages at a time.
        default prefetch: u16 = super::DEFAULT_PREFETCH, in super::PREFETCHES;
    }
}

#[cfg(feature = "process")]
mod keys {
    //! Reads the keys that are more than one value.

    use lisa_core::secret::Secret;
    use url::Url;

    use super::MAX_SHORT_STRING;
    use crate::config::secret_file;
    use crate::config::table::Table;
    use crate::config::values::ServerUrl;

    /// Reads the URL with the password.
    pub(super) fn url(table: &mut Table<'_>, meaning: &'static str) -> Option<Secret> {
        let url = table.required("url", meaning);
        let password = secret_file::password(table);
        let ServerUrl(url) = url?;
        let mut url = check(&url).map_err(|why| table.reject("url", why)).ok()?;
        if let Some(password) = password {
            if url.username().is_empty() {
                table.reject("url", "a password requires a user, as in amqp://user@host");
            }
            // Fails only without a host.
            let _ = url.set_password(Some(password.expose()));
        }
        Some(url.as_str().into())
    }

    fn check(text: &str) -> Result<Url, &'static str> {
        let url =
            Url::parse(text).map_err(|_| "expected a URL, like amqp://user@host:5672/vhost")?;
        if !matches!(url.scheme(), "amqp" | "amqps") {
            return Err("expected a URL that starts with amqp:// or amqps://");
        }
        if url.host_str().is_none_or(str::is_empty) {
            return Err("the host is missing");
        }
        match url.path() {
            "/" => {
                Err("the virtual host is empty; omit the slash for the default one, or write %2f")
            }
            path if path.matches('/').count() > 1 => {
                Err("the virtual host contains a slash; write it as %2f")
            }
            _ => Ok(url),
        }
    }

    pub(super) fn check_exchange(name: &str) -> Result<(), &'static str> {
        match name.len() {
            0..=MAX_SHORT_STRING => Ok(()),
            _ => Err("must be at most 255 bytes long"),
        }
    }

    pub(super) fn check_queue(name: &str) -> Result<(), &'static str> {
        match name.len() {
            1..=MAX_SHORT_STRING => Ok(()),
            _ => Err("must be 1 to 255 bytes"),
        }
    }
}

#[cfg(feature = "amqp")]
pub use client::{Client, connect};

#[cfg(feature = "amqp")]
mod client {
    use std::io;
    use std::net::{Shutdown, TcpStream};
    use std::ops::Deref;
    use std::os::fd::AsFd;
    use std::sync::Arc;
    use std::time::Duration;

    use lapin::tcp::{AsyncTcpStream, OwnedTLSConfig};
    use lapin::uri::{AMQPScheme, AMQPUri};
    use lapin::{Connection, ConnectionProperties, ErrorKind};
    use lisa_core::small_file::{self, MAX_PEM_BYTES};
    use lisa_core::sync::Mutex;
    use tokio::net::lookup_host;
    use tokio::time::timeout;

    use super::AmqpConnection;

    /// The heartbeat interval that the client proposes, in seconds, unless the URL sets one. A connection on which nothing
    /// arrives for two intervals is dead.
    const HEARTBEAT: u16 = 10;
    /// The time limit for the server's reply when a connection is closed.
    const CLOSE_TIMEOUT: Duration = Duration::from_secs(2);

    /// An open connection. Dropping it ends the connection, even if the server does not respond.
    #[derive(Debug)]
    pub struct Client {
        connection: Connection,
        _socket: Socket,
    }

    impl Client {
        /// Closes the connection properly. Waits at most 2 seconds for the server.
        ///
        /// # Cancel safety
        /// If the future is dropped, the connection ends.
        pub async fn close(self) {
            let closing = self.connection.close(200, "OK".into());
            // If it fails, the connection has ended already or ends now.
            let _ = timeout(CLOSE_TIMEOUT, closing).await;
        }
    }

    impl Deref for Client {
        type Target = Connection;

        fn deref(&self) -> &Connection {
            &self.connection
        }
    }

    /// The socket of a connection, or of an attempt to connect. The library runs each in a thread, which ends only when the
    /// socket is closed. So dropping this value shuts the socket down.
    #[derive(Debug, Default)]
    struct Socket {
        state: Arc<Mutex<State>>,
    }

    #[derive(Debug, Default)]
    enum State {
        #[default]
        Unconnected,
        Connected(TcpStream),
        Dropped,
    }

    impl Drop for Socket {
        fn drop(&mut self) {
            let state = std::mem::replace(&mut *self.state.lock(), State::Dropped);
            if let State::Connected(stream) = state {
                // Fails only if the connection has already ended.
                let _ = stream.shutdown(Shutdown::Both);
            }
        }
    }

    /// Keeps a second handle to a socket that has just connected. Fails if the attempt was dropped in the meantime.
    fn keep(state: &Mutex<State>, socket: &impl AsFd) -> io::Result<()> {
        let stream = TcpStream::from(socket.as_fd().try_clone_to_owned()?);
        let mut state = state.lock();
        if matches!(*state, State::Dropped) {
            return Err(io::ErrorKind::TimedOut.into());
        }
        *state = State::Connected(stream);
        Ok(())
    }

    /// Connects. The server's tools show `name`.
    ///
    /// # Errors
    /// Returns the reason, without the URL.
    ///
    /// # Cancel safety
    /// Dropping the future ends the attempt.
    pub async fn connect(settings: &AmqpConnection, name: &str) -> Result<Client, String> {
        let mut uri: AMQPUri = settings.url.expose().parse()?;
        uri.query.heartbeat.get_or_insert(HEARTBEAT);
        let cert_chain = match &settings.ca_file {
            Some(path) => {
                let bytes = small_file::read(path, MAX_PEM_BYTES);
                let pem = bytes.map(|bytes| String::from_utf8_lossy(&bytes).into_owned());
                Some(pem.map_err(|error| format!("cannot read {}: {error}", path.display()))?)
            }
            None => None,
        };
        let (host, port) = (uri.authority.host.clone(), uri.authority.port);
        let tls = OwnedTLSConfig {
            identity: None,
            cert_chain,
        };
        let runtime = lapin::runtime::default_runtime().map_err(|error| error.to_string())?;
        let properties = ConnectionProperties::default().with_connection_name(name.into());
        let limit = settings.connect_timeout;
        let socket = Socket::default();
        let state = socket.state.clone();
        let connecting = Connection::connector(
            uri,
            runtime,
            async move |uri: AMQPUri, runtime| {
                let host = uri.authority.host.as_str();
                let opening = async {
                    let addresses = lookup_host((host, uri.authority.port)).await?;
                    let addresses: Vec<_> = addresses.collect();
                    let stream = AsyncTcpStream::connect(&runtime, addresses).await?;
                    if let AsyncTcpStream::Plain(plain) = &stream {
                        keep(&state, plain.get_ref())?;
                    }
                    match uri.scheme {
                        AMQPScheme::AMQP => Ok(stream),
                        AMQPScheme::AMQPS => stream.into_tls(host, tls.as_ref()).await,
                    }
                };
                // Ends an attempt that was dropped before it had a socket.
                let opened = timeout(2 * limit, opening).await;
                opened
                    .unwrap_or_else(|_| Err(io::ErrorKind::TimedOut.into()))
                    .map_err(lapin::Error::from)
            },
            properties,
        );
        match timeout(limit, connecting).await {
            Ok(Ok(connection)) => Ok(Client {
                connection,
                _socket: socket,
            }),
            Ok(Err(error)) => Err(match error.kind() {
                ErrorKind::IOError(error) => format!("cannot connect to {host}:{port}: {error}"),
                _ => format!("{host}:{port}: {error}"),
            }),
            Err(_) => Err(format!("cannot connect to {host}:{port} within {limit:?}")),
        }
    }
}

#[cfg(all(test, feature = "amqp"))]
mod tests {
    use tokio::io::AsyncReadExt;
    use tokio::net::TcpListener;
    use tokio::time::timeout;

    use super::*;

    #[tokio::test(flavor = "multi_thread")]
    async fn an_attempt_to_connect_to_a_server_that_never_answers_leaves_no_socket() {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let port = listener.local_addr().unwrap().port();
        for scheme in ["amqp", "amqps"] {
            let settings = AmqpConnection {
                url: format!("{scheme}://guest:secret@127.0.0.1:{port}/%2f").into(),
                ca_file: None,
                connect_timeout: Duration::from_millis(200),
            };
            let error = connect(&settings, "test").await.unwrap_err();
            assert!(error.contains("within 200ms"), "{error}");
            let (mut accepted, _) = listener.accept().await.unwrap();
            let mut received = Vec::new();
            let ends = timeout(Duration::from_secs(60), accepted.read_to_end(&mut received));
            assert!(ends.await.is_ok(), "{scheme}: the connection is still open");
        }
    }
}
