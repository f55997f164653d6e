//! Opens one connection to Redis: address, TLS, socket options, password, database, name.
//!
//! One try each; who wants more tries comes again. Nothing here knows which connection is in use.

use std::path::Path;
use std::time::{Duration, Instant};

use redis::aio::MultiplexedConnection;
use redis::io::tcp::{TcpSettings, socket2::TcpKeepalive};
use redis::{
    AsyncConnectionConfig, Client, ClientTlsConfig, Cmd, ConnectionAddr, ConnectionInfo,
    IntoConnectionInfo, ProtocolVersion, PushInfo, RedisConnectionInfo, RedisError,
    TlsCertificates, Value, cmd,
};
use tokio::sync::mpsc;
use tokio::time::timeout;

use super::errors::{Action, classify};
use super::{LinkError, LinkErrorKind, LinkSettings, Place, RedisUrl, TlsSettings};
use crate::secret::Secret;

const CONNECT: &str = "connect";
const KEEPALIVE_IDLE: Duration = Duration::from_secs(15);
const KEEPALIVE_INTERVAL: Duration = Duration::from_secs(5);
const KEEPALIVE_PROBES: u32 = 3;
const USER_TIMEOUT: Duration = Duration::from_secs(20);

/// Opens connections with fixed settings.
#[derive(Debug)]
pub(super) struct Opener {
    client: Client,
    push_client: Client,
    url: RedisUrl,
    username: Option<String>,
    password: Option<Secret>,
    db: u32,
    client_name: String,
    connect_timeout: Duration,
}

/// One reply to `TIME` and when it was asked.
#[derive(Clone, Copy, Debug)]
pub(super) struct TimeSample {
    pub(super) sent: Instant,
    pub(super) received: Instant,
    pub(super) redis_us: i64,
}

impl Opener {
    pub(super) fn new(settings: &LinkSettings) -> Result<Self, LinkError> {
        let username = settings
            .username
            .clone()
            .or_else(|| settings.url.username().map(str::to_owned));
        let password = settings
            .password
            .clone()
            .or_else(|| settings.url.password().cloned());
        let db = settings.url.db();
        let addr = match settings.url.place() {
            Place::Tcp {
                host,
                port,
                tls: false,
            } => ConnectionAddr::Tcp(host.clone(), *port),
            Place::Tcp {
                host,
                port,
                tls: true,
            } => ConnectionAddr::TcpTls {
                host: host.clone(),
                port: *port,
                insecure: false,
                tls_params: None,
            },
            Place::Unix(path) => ConnectionAddr::Unix(path.clone()),
            Place::Sentinel { .. } => return Err(not_yet("redis+sentinel://")),
            Place::Cluster { .. } => return Err(not_yet("redis+cluster://")),
        };
        // Without push, user and database are set in the handshake below: redis-rs would hide the code of a refusal.
        let plain = RedisConnectionInfo::default().set_protocol(ProtocolVersion::RESP2);
        let mut push = RedisConnectionInfo::default().set_protocol(ProtocolVersion::RESP3);
        if let Some(password) = &password {
            push = push
                .set_username(username.as_deref().unwrap_or("default"))
                .set_password(password.expose());
        }
        Ok(Self {
            client: open_client(&addr, plain, &settings.tls)?,
            push_client: open_client(&addr, push, &settings.tls)?,
            url: settings.url.clone(),
            username,
            password,
            db,
            client_name: settings.client_name.clone(),
            connect_timeout: settings.connect_timeout,
        })
    }

    pub(super) fn connect_timeout(&self) -> Duration {
        self.connect_timeout
    }

    /// Opens a connection that speaks RESP2, is known to serve us, and has told its time.
    pub(super) async fn open(&self) -> Result<(MultiplexedConnection, TimeSample), LinkError> {
        let tried = timeout(self.connect_timeout, async {
            let mut conn = self
                .client
                .get_multiplexed_async_connection_with_config(&unlimited())
                .await?;
            self.greet(&mut conn).await?;
            let sample = sample_time(&mut conn).await?;
            Ok((conn, sample))
        });
        match tried.await {
            Ok(opened) => opened.map_err(|error| self.failed(error)),
            Err(_) => Err(self.no_answer()),
        }
    }

    /// Opens a connection that speaks RESP3 and hands what the server pushes to `pushes`.
    pub(super) async fn open_push(
        &self,
        pushes: mpsc::UnboundedSender<PushInfo>,
    ) -> Result<MultiplexedConnection, LinkError> {
        let config = unlimited().set_push_sender(pushes);
        match timeout(
            self.connect_timeout,
            self.push_client
                .get_multiplexed_async_connection_with_config(&config),
        )
        .await
        {
            Ok(opened) => opened.map_err(|error| self.failed(error)),
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
        // A nicety for CLIENT LIST: a user who may not set it can still work.
        let named = ask(conn, cmd("CLIENT").arg("SETNAME").arg(&self.client_name)).await;
        named.map(drop).or_else(tolerate)?;
        // TIME is answered even while loading; PING is not.
        ask(conn, &cmd("PING")).await.map(drop).or_else(tolerate)
    }

    fn failed(&self, error: RedisError) -> LinkError {
        let error = LinkError::from_redis(CONNECT, error);
        LinkError {
            detail: format!("{}: {}", self.url, error.detail),
            // Opening a connection sends nothing that changes data.
            maybe_applied: false,
            ..error
        }
    }

    fn no_answer(&self) -> LinkError {
        let detail = format!("{}: no answer within {:?}", self.url, self.connect_timeout);
        LinkError::local(LinkErrorKind::Unavailable, CONNECT, detail)
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

async fn ask(conn: &mut MultiplexedConnection, cmd: &Cmd) -> Result<Value, RedisError> {
    conn.send_packed_command(cmd).await?.extract_error()
}

/// Lets a connection live whose greeting met an error that concerns only some requests (a permission, a full disk).
fn tolerate(error: RedisError) -> Result<(), RedisError> {
    let verdict = classify(&error);
    let serves = verdict.action == Action::GiveUp || error.code() == Some("MISCONF");
    if serves { Ok(()) } else { Err(error) }
}

/// Time limits are ours: redis-rs gives up reads after 500 ms by default, which loses what they fetch.
fn unlimited() -> AsyncConnectionConfig {
    AsyncConnectionConfig::new()
        .set_connection_timeout(None)
        .set_response_timeout(None)
}

fn not_yet(scheme: &str) -> LinkError {
    let detail = format!(
        "{scheme} addresses are not supported yet; name one server by redis://, rediss:// or unix://"
    );
    LinkError::local(LinkErrorKind::NotSupported, CONNECT, detail)
}

fn open_client(
    addr: &ConnectionAddr,
    redis: RedisConnectionInfo,
    tls: &TlsSettings,
) -> Result<Client, LinkError> {
    let invalid =
        |error: RedisError| LinkError::local(LinkErrorKind::Invalid, CONNECT, error.to_string());
    let keepalive = TcpKeepalive::new()
        .with_time(KEEPALIVE_IDLE)
        .with_interval(KEEPALIVE_INTERVAL)
        .with_retries(KEEPALIVE_PROBES);
    let tcp = TcpSettings::default()
        .set_nodelay(true)
        .set_keepalive(keepalive)
        .set_user_timeout(USER_TIMEOUT);
    let info: ConnectionInfo = addr.clone().into_connection_info().map_err(invalid)?;
    let info = info.set_tcp_settings(tcp).set_redis_settings(redis);
    if !matches!(addr, ConnectionAddr::TcpTls { .. }) {
        return Client::open(info).map_err(invalid);
    }
    // redis-rs takes the provider from the process; a second installation is refused and harmless.
    let _ = rustls::crypto::ring::default_provider().install_default();
    if *tls == TlsSettings::default() {
        return Client::open(info).map_err(invalid);
    }
    let client_tls = match (&tls.client_cert, &tls.client_key) {
        (Some(cert), Some(key)) => Some(ClientTlsConfig {
            client_cert: read(cert)?,
            client_key: read(key)?,
        }),
        (None, None) => None,
        _ => {
            let detail = "a client certificate and its key belong together";
            return Err(LinkError::local(LinkErrorKind::Invalid, CONNECT, detail));
        }
    };
    let root_cert = tls.ca_file.as_deref().map(read).transpose()?;
    Client::build_with_tls(
        info,
        TlsCertificates {
            client_tls,
            root_cert,
        },
    )
    .map_err(invalid)
}

fn read(path: &Path) -> Result<Vec<u8>, LinkError> {
    std::fs::read(path).map_err(|error| {
        LinkError::local(
            LinkErrorKind::Invalid,
            CONNECT,
            format!("reading {}: {error}", path.display()),
        )
    })
}
