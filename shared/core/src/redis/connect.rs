//! Opens one socket to Redis: address, TLS, socket options, password, database, name.
//!
//! Each call is one attempt; the callers retry. Nothing here knows which connection is active.

use std::time::{Duration, Instant};

use redis::{
    ConnectionAddr, ProtocolVersion, PushInfo, RedisConnectionInfo, RedisError, Value, cmd,
};
use tokio::sync::mpsc;
use tokio::time::timeout;

use super::address::{Address, CONNECT, NO_TLS_THERE, hint_of, node_url, plain, tcp, unlimited};
use super::errors::{Action, classify};
use super::sentinel::Sentinels;
use super::socket::{Dialer, Socket};
use super::{ConnectionError, ConnectionErrorKind, ConnectionSettings, Endpoint, RedisUrl};
use crate::secret::Secret;

/// Opens sockets to one server, or to the current master of a sentinel group.
pub(super) struct Opener {
    target: Target,
    dialer: Dialer,
    /// The login of sockets that receive pushes. The others log in with requests: the library would hide the code of a
    /// refusal.
    push: RedisConnectionInfo,
    /// For errors and logs.
    url: RedisUrl,
    username: Option<String>,
    password: Option<Secret>,
    db: u32,
    client_name: String,
    connect_timeout: Duration,
}

enum Target {
    Server(ConnectionAddr),
    Master { sentinels: Sentinels, tls: bool },
}

/// A working socket.
pub(super) struct Opened {
    pub(super) conn: Socket,
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
        let mut push = RedisConnectionInfo::default()
            .set_protocol(ProtocolVersion::RESP3)
            .set_skip_set_lib_name();
        if let Some(password) = &password {
            push = push
                .set_username(username.as_deref().unwrap_or("default"))
                .set_password(password.expose());
        }
        let uses_tls = tls_of(&settings.url) == Some(true);
        let dialer = Dialer::new(uses_tls, &settings.tls, settings.max_reply)?;
        let target = match settings.url.endpoint() {
            Endpoint::Tcp { host, port, tls } => Target::Server(tcp((host.clone(), *port), *tls)),
            Endpoint::Unix(path) => Target::Server(ConnectionAddr::Unix(path.clone())),
            Endpoint::Sentinel { nodes, master, tls } => Target::Master {
                sentinels: Sentinels::new(settings, &dialer, nodes, master, *tls),
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
            dialer,
            push,
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

    /// Opens a socket that speaks RESP2. By then the server has accepted the handshake and reported its time.
    pub(super) async fn open(&self) -> Result<Opened, ConnectionError> {
        self.within_limit(async {
            let (server, master) = self.server().await?;
            let mut conn = self
                .dialer
                .open(&server, &plain(), unlimited())
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
    ) -> Result<Socket, ConnectionError> {
        let config = unlimited().set_push_sender(pushes);
        self.within_limit(async {
            let (server, master) = self.server().await?;
            self.dialer
                .open(&server, &self.push, config)
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

    async fn server(&self) -> Result<(ConnectionAddr, Option<Address>), ConnectionError> {
        match &self.target {
            Target::Server(addr) => Ok((addr.clone(), None)),
            Target::Master { sentinels, tls } => {
                let master = sentinels.master().await?;
                Ok((tcp(master.clone(), *tls), Some(master)))
            }
        }
    }

    /// Checks that the server is the master. Sentinels may name a server that is no longer, or not yet, a master:
    /// <https://redis.io/docs/latest/develop/reference/sentinel-clients/>.
    async fn check_role(&self, conn: &mut Socket, master: &Address) -> Result<(), ConnectionError> {
        let role = match conn.ask(&cmd("ROLE")).await {
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
    async fn explain(&self, conn: &mut Socket, failed: ConnectionError) -> ConnectionError {
        let Endpoint::Tcp { host, port, tls } = self.url.endpoint() else {
            return failed;
        };
        if failed.kind != ConnectionErrorKind::NotSupported {
            return failed;
        }
        let Ok(Value::Array(role)) = conn.ask(&cmd("ROLE")).await else {
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

    async fn greet(&self, conn: &mut Socket) -> Result<(), RedisError> {
        if let Some(password) = &self.password {
            let mut auth = cmd("AUTH");
            if let Some(username) = &self.username {
                auth.arg(username);
            }
            conn.ask(auth.arg(password.expose())).await?;
        }
        if self.db != 0 {
            conn.ask(cmd("SELECT").arg(self.db)).await?;
        }
        // Only for CLIENT LIST: a user without this permission can still work.
        let named = conn
            .ask(cmd("CLIENT").arg("SETNAME").arg(&self.client_name))
            .await;
        named.map(drop).or_else(tolerate)?;
        // TIME is answered even while loading; PING is not.
        conn.ask(&cmd("PING")).await.map(drop).or_else(tolerate)
    }

    /// Creates the error for a failed handshake. If sentinels named the server, it names the server and not the
    /// sentinels.
    fn failed(&self, master: Option<&Address>, error: RedisError) -> ConnectionError {
        let hint = tls_of(&self.url).and_then(|tls| hint_of(tls, &error));
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
        let hint = match tls_of(&self.url) {
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
pub(super) async fn sample_time(conn: &mut Socket) -> Result<TimeSample, RedisError> {
    let sent = Instant::now();
    let reply = conn.ask(&cmd("TIME")).await?;
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

/// Returns whether a server of this address is reached with TLS; `None` for a unix socket.
fn tls_of(url: &RedisUrl) -> Option<bool> {
    match url.endpoint() {
        Endpoint::Tcp { tls, .. }
        | Endpoint::Sentinel { tls, .. }
        | Endpoint::Cluster { tls, .. } => Some(*tls),
        Endpoint::Unix(_) => None,
    }
}
