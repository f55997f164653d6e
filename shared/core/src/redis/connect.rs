//! Opens one socket to Redis: address, TLS, socket options, password, database, name.
//!
//! Each call is one attempt; the callers retry. Nothing here knows which connection is active.

use std::time::{Duration, Instant};

use redis::aio::MultiplexedConnection;
use redis::{
    Client, ConnectionAddr, ProtocolVersion, PushInfo, RedisConnectionInfo, RedisError, Value, cmd,
};
use tokio::sync::mpsc;
use tokio::time::timeout;

use super::address::{
    Address, CONNECT, NO_TLS_THERE, ask, hint_of, node_url, open_client, plain_client, tcp,
    unlimited,
};
use super::errors::{Action, classify};
use super::sentinel::Sentinels;
use super::{
    ConnectionError, ConnectionErrorKind, ConnectionSettings, Endpoint, RedisUrl, TlsSettings,
};
use crate::secret::Secret;

/// Opens sockets to one server, or to the current master of a sentinel group.
pub(super) struct Opener {
    target: Target,
    connector: Connector,
    /// For errors and logs.
    url: RedisUrl,
    username: Option<String>,
    password: Option<Secret>,
    db: u32,
    client_name: String,
    connect_timeout: Duration,
}

enum Target {
    Server(Box<Clients>),
    Master { sentinels: Sentinels, tls: bool },
}

/// The handshake depends on the kind of socket: see [`Connector::clients`].
#[derive(Clone)]
struct Clients {
    plain: Client,
    push: Client,
}

/// The settings shared by all sockets of a connection.
struct Connector {
    /// Login for sockets that receive pushes.
    push: RedisConnectionInfo,
    tls: TlsSettings,
}

/// A working socket.
pub(super) struct Opened {
    pub(super) conn: MultiplexedConnection,
    pub(super) sample: TimeSample,
    /// The master it leads to, if sentinels named one.
    pub(super) master: Option<Address>,
}

/// One reply to `TIME`, with the times of request and reply.
#[derive(Clone, Copy, Debug)]
pub(super) struct TimeSample {
    pub(super) sent: Instant,
    pub(super) received: Instant,
    pub(super) redis_us: i64,
}

impl Opener {
    pub(super) fn new(settings: &ConnectionSettings) -> Result<Self, ConnectionError> {
        let username = settings
            .username
            .clone()
            .or_else(|| settings.url.username().map(str::to_owned));
        let password = settings
            .password
            .clone()
            .or_else(|| settings.url.password().cloned());
        let connector = Connector::new(username.as_deref(), password.as_ref(), &settings.tls);
        let target = match settings.url.endpoint() {
            Endpoint::Tcp { host, port, tls } => Target::Server(Box::new(
                connector.clients(&tcp((host.clone(), *port), *tls))?,
            )),
            Endpoint::Unix(path) => Target::Server(Box::new(
                connector.clients(&ConnectionAddr::Unix(path.clone()))?,
            )),
            Endpoint::Sentinel { nodes, master, tls } => Target::Master {
                sentinels: Sentinels::new(settings, nodes, master, *tls)?,
                tls: *tls,
            },
            Endpoint::Cluster { .. } => {
                let detail = "a cluster has no single server";
                return Err(ConnectionError::local(
                    ConnectionErrorKind::Invalid,
                    CONNECT,
                    detail,
                ));
            }
        };
        Ok(Self {
            target,
            connector,
            url: settings.url.clone(),
            username,
            password,
            db: settings.url.db(),
            client_name: settings.client_name.clone(),
            connect_timeout: settings.connect_timeout,
        })
    }

    /// Returns the address, which hides its password when printed.
    pub(super) fn url(&self) -> &RedisUrl {
        &self.url
    }

    /// Returns whether it connects with TLS; `None` for a unix socket.
    fn tls(&self) -> Option<bool> {
        match self.url.endpoint() {
            Endpoint::Tcp { tls, .. }
            | Endpoint::Sentinel { tls, .. }
            | Endpoint::Cluster { tls, .. } => Some(*tls),
            Endpoint::Unix(_) => None,
        }
    }

    /// Opens a socket that speaks RESP2. By then the server has accepted the handshake and reported its time.
    pub(super) async fn open(&self) -> Result<Opened, ConnectionError> {
        self.within_limit(async {
            let (clients, master) = self.clients().await?;
            let mut conn = clients
                .plain
                .get_multiplexed_async_connection_with_config(&unlimited())
                .await
                .map_err(|error| self.failed(master.as_ref(), error))?;
            let greeted = async {
                self.greet(&mut conn).await?;
                sample_time(&mut conn).await
            };
            let sample = match greeted.await {
                Ok(sample) => sample,
                Err(error) => {
                    let failed = self.failed(master.as_ref(), error);
                    return Err(self.explain(&mut conn, failed).await);
                }
            };
            if let Some(master) = &master {
                self.check_role(&mut conn, master).await?;
            }
            Ok(Opened {
                conn,
                sample,
                master,
            })
        })
        .await
    }

    /// Opens a socket that speaks RESP3 and forwards the server's pushes to `pushes`.
    pub(super) async fn open_push(
        &self,
        pushes: mpsc::UnboundedSender<PushInfo>,
    ) -> Result<MultiplexedConnection, ConnectionError> {
        let config = unlimited().set_push_sender(pushes);
        self.within_limit(async {
            let (clients, master) = self.clients().await?;
            clients
                .push
                .get_multiplexed_async_connection_with_config(&config)
                .await
                .map_err(|error| self.failed(master.as_ref(), error))
        })
        .await
    }

    /// Completes when sentinels name another master than this one; never without sentinels.
    pub(super) async fn master_changed(&self, from: Option<&Address>) -> Address {
        match (&self.target, from) {
            (Target::Master { sentinels, .. }, Some(from)) => sentinels.changed(from).await,
            _ => std::future::pending().await,
        }
    }

    async fn clients(&self) -> Result<(Clients, Option<Address>), ConnectionError> {
        match &self.target {
            Target::Server(clients) => Ok((Clients::clone(clients), None)),
            Target::Master { sentinels, tls } => {
                let master = sentinels.master().await?;
                let clients = self.connector.clients(&tcp(master.clone(), *tls))?;
                Ok((clients, Some(master)))
            }
        }
    }

    /// Checks that the server is the master. Sentinels may name a server that is no longer, or not yet, a master:
    /// <https://redis.io/docs/latest/develop/reference/sentinel-clients/>.
    async fn check_role(
        &self,
        conn: &mut MultiplexedConnection,
        master: &Address,
    ) -> Result<(), ConnectionError> {
        let role = match ask(conn, &cmd("ROLE")).await {
            Ok(Value::Array(role)) => role.into_iter().next(),
            Ok(_) => None,
            // Optional for a user without this permission: a replica rejects every write.
            Err(error) => {
                return tolerate(error).map_err(|error| self.failed(Some(master), error));
            }
        };
        match role {
            Some(Value::BulkString(role)) if role == b"master" => Ok(()),
            _ => {
                let (host, port) = master;
                let detail = format!("{}: {host}:{port} is not the master yet", self.url);
                Err(ConnectionError::local(
                    ConnectionErrorKind::Unavailable,
                    CONNECT,
                    detail,
                ))
            }
        }
    }

    /// Explains a missing command if the server is a sentinel, with the address that the user may have meant.
    async fn explain(
        &self,
        conn: &mut MultiplexedConnection,
        failed: ConnectionError,
    ) -> ConnectionError {
        let Endpoint::Tcp { host, port, tls } = self.url.endpoint() else {
            return failed;
        };
        if failed.kind != ConnectionErrorKind::NotSupported {
            return failed;
        }
        let Ok(Value::Array(role)) = ask(conn, &cmd("ROLE")).await else {
            return failed;
        };
        let mut role = role.into_iter();
        if !matches!(role.next(), Some(Value::BulkString(name)) if name == b"sentinel") {
            return failed;
        }
        let names: Vec<String> = role
            .next()
            .and_then(|names| redis::from_redis_value(names).ok())
            .unwrap_or_default();
        let name = match &names[..] {
            [name] => name,
            _ => "<master name>",
        };
        let meant = node_url("+sentinel", host, *port, *tls);
        ConnectionError {
            detail: format!(
                "{}: this is a sentinel, not the server it watches; use {meant}/{name}",
                self.url
            ),
            ..failed
        }
    }

    async fn within_limit<T>(
        &self,
        tried: impl Future<Output = Result<T, ConnectionError>>,
    ) -> Result<T, ConnectionError> {
        match timeout(self.connect_timeout, tried).await {
            Ok(opened) => opened,
            Err(_) => Err(self.no_answer()),
        }
    }

    async fn greet(&self, conn: &mut MultiplexedConnection) -> Result<(), RedisError> {
        if let Some(password) = &self.password {
            let mut auth = cmd("AUTH");
            if let Some(username) = &self.username {
                auth.arg(username);
            }
            ask(conn, auth.arg(password.expose())).await?;
        }
        if self.db != 0 {
            ask(conn, cmd("SELECT").arg(self.db)).await?;
        }
        // Only for CLIENT LIST: a user without this permission can still work.
        let named = ask(conn, cmd("CLIENT").arg("SETNAME").arg(&self.client_name)).await;
        named.map(drop).or_else(tolerate)?;
        // TIME is answered even while loading; PING is not.
        ask(conn, &cmd("PING")).await.map(drop).or_else(tolerate)
    }

    /// Creates the error for a failed handshake. If sentinels named the server, it names the server and not the
    /// sentinels.
    fn failed(&self, master: Option<&Address>, error: RedisError) -> ConnectionError {
        let hint = self.tls().and_then(|tls| hint_of(tls, &error));
        let error = ConnectionError::from_redis(CONNECT, error);
        let named = master.map_or_else(String::new, |(host, port)| {
            format!(" master {host}:{port}:")
        });
        ConnectionError {
            detail: format!(
                "{}:{named} {}{}",
                self.url,
                error.detail,
                hint.unwrap_or_default()
            ),
            // Opening a socket sends nothing that changes data.
            maybe_applied: false,
            ..error
        }
    }

    fn no_answer(&self) -> ConnectionError {
        let hint = match self.tls() {
            Some(true) => NO_TLS_THERE,
            _ => "",
        };
        let detail = format!(
            "{}: no answer within {:?}{hint}",
            self.url, self.connect_timeout
        );
        ConnectionError::local(ConnectionErrorKind::Unavailable, CONNECT, detail)
    }
}

/// Asks Redis for its time.
pub(super) async fn sample_time(
    conn: &mut MultiplexedConnection,
) -> Result<TimeSample, RedisError> {
    let sent = Instant::now();
    let reply = ask(conn, &cmd("TIME")).await?;
    let received = Instant::now();
    let (seconds, micros): (i64, i64) = redis::from_redis_value(reply)?;
    Ok(TimeSample {
        sent,
        received,
        redis_us: seconds.saturating_mul(1_000_000).saturating_add(micros),
    })
}

/// Tolerates a handshake error that concerns only some requests (a missing permission, a full disk).
fn tolerate(error: RedisError) -> Result<(), RedisError> {
    let verdict = classify(&error);
    let serves = verdict.action == Action::GiveUp || error.code() == Some("MISCONF");
    if serves { Ok(()) } else { Err(error) }
}

impl Connector {
    fn new(username: Option<&str>, password: Option<&Secret>, tls: &TlsSettings) -> Self {
        let mut push = RedisConnectionInfo::default().set_protocol(ProtocolVersion::RESP3);
        if let Some(password) = password {
            push = push
                .set_username(username.unwrap_or("default"))
                .set_password(password.expose());
        }
        Self {
            push,
            tls: tls.clone(),
        }
    }

    /// Without push, the handshake sets user and database: redis-rs would hide the code of a refusal.
    fn clients(&self, addr: &ConnectionAddr) -> Result<Clients, ConnectionError> {
        Ok(Clients {
            plain: plain_client(addr, &self.tls)?,
            push: open_client(addr, self.push.clone(), &self.tls)?,
        })
    }
}
