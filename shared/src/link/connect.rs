//! Opens one connection to Redis: address, TLS, socket options, password, database, name.
//!
//! One try each; who wants more tries comes again. Nothing here knows which connection is in use.

use std::path::Path;
use std::time::{Duration, Instant};

use redis::aio::MultiplexedConnection;
use redis::io::tcp::{TcpSettings, socket2::TcpKeepalive};
use redis::{
    AsyncConnectionConfig, Client, ClientTlsConfig, Cmd, ConnectionAddr, ConnectionInfo, ErrorKind,
    IntoConnectionInfo, ProtocolVersion, PushInfo, RedisConnectionInfo, RedisError,
    TlsCertificates, Value, cmd,
};
use tokio::sync::mpsc;
use tokio::time::timeout;

use super::errors::{Action, classify};
use super::sentinel::Sentinels;
use super::{LinkError, LinkErrorKind, LinkSettings, Place, RedisUrl, TlsSettings};
use crate::secret::Secret;
use crate::small_file::{self, MAX_PEM_BYTES};

pub(super) const CONNECT: &str = "connect";
const KEEPALIVE_IDLE: Duration = Duration::from_secs(15);
const KEEPALIVE_INTERVAL: Duration = Duration::from_secs(5);
const KEEPALIVE_PROBES: u32 = 3;
const USER_TIMEOUT: Duration = Duration::from_secs(20);

/// A host and a TCP port.
pub(super) type Address = (String, u16);

/// Opens connections to one server, or to whichever server is the master just then.
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

/// How a server is greeted depends on who listens: see [`Connector::clients`].
#[derive(Clone)]
struct Clients {
    plain: Client,
    push: Client,
}

/// What all connections of a link have in common.
struct Connector {
    /// Login for connections that take pushes.
    push: RedisConnectionInfo,
    tls: TlsSettings,
}

/// A connection that works.
pub(super) struct Opened {
    pub(super) conn: MultiplexedConnection,
    pub(super) sample: TimeSample,
    /// The master it leads to, where sentinels named one.
    pub(super) master: Option<Address>,
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
        let connector = Connector::new(username.as_deref(), password.as_ref(), &settings.tls);
        let target = match settings.url.place() {
            Place::Tcp { host, port, tls } => Target::Server(Box::new(
                connector.clients(&tcp((host.clone(), *port), *tls))?,
            )),
            Place::Unix(path) => Target::Server(Box::new(
                connector.clients(&ConnectionAddr::Unix(path.clone()))?,
            )),
            Place::Sentinel { nodes, master, tls } => Target::Master {
                sentinels: Sentinels::new(settings, nodes, master, *tls)?,
                tls: *tls,
            },
            Place::Cluster { .. } => {
                let detail = "a cluster has no single server";
                return Err(LinkError::local(LinkErrorKind::Invalid, CONNECT, detail));
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

    /// The address, without a password.
    pub(super) fn url(&self) -> &RedisUrl {
        &self.url
    }

    /// Whether it connects by TLS; none behind a socket.
    fn tls(&self) -> Option<bool> {
        match self.url.place() {
            Place::Tcp { tls, .. } | Place::Sentinel { tls, .. } | Place::Cluster { tls, .. } => {
                Some(*tls)
            }
            Place::Unix(_) => None,
        }
    }

    /// Opens a connection that speaks RESP2, is known to serve us, and has told its time.
    pub(super) async fn open(&self) -> Result<Opened, LinkError> {
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
                    return Err(self.told_apart(&mut conn, failed).await);
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

    /// Opens a connection that speaks RESP3 and hands what the server pushes to `pushes`.
    pub(super) async fn open_push(
        &self,
        pushes: mpsc::UnboundedSender<PushInfo>,
    ) -> Result<MultiplexedConnection, LinkError> {
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

    /// Ends when sentinels name another master than this one; without sentinels never.
    pub(super) async fn master_changed(&self, from: Option<&Address>) -> Address {
        match (&self.target, from) {
            (Target::Master { sentinels, .. }, Some(from)) => sentinels.changed(from).await,
            _ => std::future::pending().await,
        }
    }

    async fn clients(&self) -> Result<(Clients, Option<Address>), LinkError> {
        match &self.target {
            Target::Server(clients) => Ok((Clients::clone(clients), None)),
            Target::Master { sentinels, tls } => {
                let master = sentinels.master().await?;
                let clients = self.connector.clients(&tcp(master.clone(), *tls))?;
                Ok((clients, Some(master)))
            }
        }
    }

    /// Sentinels may name a server that is not a master any more, or not yet:
    /// <https://redis.io/docs/latest/develop/reference/sentinel-clients/>.
    async fn check_role(
        &self,
        conn: &mut MultiplexedConnection,
        master: &Address,
    ) -> Result<(), LinkError> {
        let role = match ask(conn, &cmd("ROLE")).await {
            Ok(Value::Array(role)) => role.into_iter().next(),
            Ok(_) => None,
            // Only a nicety for a user who may not ask: a replica refuses every write.
            Err(error) => {
                return tolerate(error).map_err(|error| self.failed(Some(master), error));
            }
        };
        match role {
            Some(Value::BulkString(role)) if role == b"master" => Ok(()),
            _ => {
                let (host, port) = master;
                let detail = format!("{}: {host}:{port} is not the master yet", self.url);
                Err(LinkError::local(
                    LinkErrorKind::Unavailable,
                    CONNECT,
                    detail,
                ))
            }
        }
    }

    /// Says so where the server that lacks a command is a sentinel, with the address that the user may have meant.
    async fn told_apart(&self, conn: &mut MultiplexedConnection, failed: LinkError) -> LinkError {
        let Place::Tcp { host, port, tls } = self.url.place() else {
            return failed;
        };
        if failed.kind != LinkErrorKind::NotSupported {
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
            _ => "<name of the master>",
        };
        let meant = node_url("+sentinel", host, *port, *tls);
        LinkError {
            detail: format!(
                "{}: a sentinel answers there and not the server it watches: write {meant}/{name}",
                self.url
            ),
            ..failed
        }
    }

    async fn within_limit<T>(
        &self,
        tried: impl Future<Output = Result<T, LinkError>>,
    ) -> Result<T, LinkError> {
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
        // A nicety for CLIENT LIST: a user who may not set it can still work.
        let named = ask(conn, cmd("CLIENT").arg("SETNAME").arg(&self.client_name)).await;
        named.map(drop).or_else(tolerate)?;
        // TIME is answered even while loading; PING is not.
        ask(conn, &cmd("PING")).await.map(drop).or_else(tolerate)
    }

    /// Reports what a server met us with: where sentinels named it, the server and not they.
    fn failed(&self, master: Option<&Address>, error: RedisError) -> LinkError {
        let hint = self.tls().and_then(|tls| hint_of(tls, &error));
        let error = LinkError::from_redis(CONNECT, error);
        let named = master.map_or_else(String::new, |(host, port)| {
            format!(" master {host}:{port}:")
        });
        LinkError {
            detail: format!(
                "{}:{named} {}{}",
                self.url,
                error.detail,
                hint.unwrap_or_default()
            ),
            // Opening a connection sends nothing that changes data.
            maybe_applied: false,
            ..error
        }
    }

    fn no_answer(&self) -> LinkError {
        let hint = match self.tls() {
            Some(true) => NO_TLS_THERE,
            _ => "",
        };
        let detail = format!(
            "{}: no answer within {:?}{hint}",
            self.url, self.connect_timeout
        );
        LinkError::local(LinkErrorKind::Unavailable, CONNECT, detail)
    }
}

/// For a server that does not answer a greeting by TLS.
pub(super) const NO_TLS_THERE: &str =
    " (a server without TLS does not answer either: its address begins with redis and not rediss)";
/// For a server that ends a connection before it said a word, or says something that is not RESP.
const TLS_THERE: &str =
    " (a server with TLS does that, too: its address begins with rediss and not redis)";

/// What a connection that failed in its greeting may be about, besides what the error says.
pub(super) fn hint_of(tls: bool, error: &RedisError) -> Option<&'static str> {
    let ended = error.is_connection_dropped() && !error.is_connection_refusal();
    (!tls && (ended || error.kind() == ErrorKind::Parse)).then_some(TLS_THERE)
}

/// An address as a user may have meant it, without a user or a path; `kind` is what follows `redis` in the scheme.
pub(super) fn node_url(kind: &str, host: &str, port: u16, tls: bool) -> String {
    let server = RedisUrl::tcp(host, port, false).to_string();
    let node = server.trim_start_matches("redis://").trim_end_matches("/0");
    format!("redis{}{kind}://{node}", if tls { "s" } else { "" })
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

pub(super) async fn ask(conn: &mut MultiplexedConnection, cmd: &Cmd) -> Result<Value, RedisError> {
    conn.send_packed_command(cmd).await?.extract_error()
}

/// Lets a connection live whose greeting met an error that concerns only some requests (a permission, a full disk).
fn tolerate(error: RedisError) -> Result<(), RedisError> {
    let verdict = classify(&error);
    let serves = verdict.action == Action::GiveUp || error.code() == Some("MISCONF");
    if serves { Ok(()) } else { Err(error) }
}

/// Time limits are ours: redis-rs gives up reads after 500 ms by default, which loses what they fetch.
pub(super) fn unlimited() -> AsyncConnectionConfig {
    AsyncConnectionConfig::new()
        .set_connection_timeout(None)
        .set_response_timeout(None)
}

pub(super) fn tcp((host, port): Address, tls: bool) -> ConnectionAddr {
    if tls {
        ConnectionAddr::TcpTls {
            host,
            port,
            insecure: false,
            tls_params: None,
        }
    } else {
        ConnectionAddr::Tcp(host, port)
    }
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

    /// Without push, user and database are set in the greeting: redis-rs would hide the code of a refusal.
    fn clients(&self, addr: &ConnectionAddr) -> Result<Clients, LinkError> {
        Ok(Clients {
            plain: plain_client(addr, &self.tls)?,
            push: open_client(addr, self.push.clone(), &self.tls)?,
        })
    }
}

/// Makes a client that speaks RESP2 and does not log in by itself.
pub(super) fn plain_client(addr: &ConnectionAddr, tls: &TlsSettings) -> Result<Client, LinkError> {
    let plain = RedisConnectionInfo::default().set_protocol(ProtocolVersion::RESP2);
    open_client(addr, plain, tls)
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
    let root_cert = tls.ca_file.as_deref().map(read_authorities).transpose()?;
    Client::build_with_tls(
        info,
        TlsCertificates {
            client_tls,
            root_cert,
        },
    )
    .map_err(invalid)
}

/// The client library takes a file without any certificate, and then trusts nobody.
fn read_authorities(path: &Path) -> Result<Vec<u8>, LinkError> {
    const BEGIN: &[u8] = b"-----BEGIN CERTIFICATE-----";
    let text = read(path)?;
    if text.windows(BEGIN.len()).any(|part| part == BEGIN) {
        return Ok(text);
    }
    let detail = format!("no certificate in {}", path.display());
    Err(LinkError::local(LinkErrorKind::Invalid, CONNECT, detail))
}

fn read(path: &Path) -> Result<Vec<u8>, LinkError> {
    small_file::read(path, MAX_PEM_BYTES).map_err(|error| {
        LinkError::local(
            LinkErrorKind::Invalid,
            CONNECT,
            format!("reading {}: {error}", path.display()),
        )
    })
}
