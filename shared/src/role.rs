//! What the start and the end of every role have in common: configuration, link, checks, listener, exit code.
//!
//! Knows no role's work. A role gives [`Runtime::run`] a function that starts its loops, and verbs of the command line
//! need [`connect`] only.

use std::collections::BTreeMap;
use std::io;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use axum::Router;
use prometheus_client::registry::Registry;
use tokio_util::sync::CancellationToken;

use crate::broker::{Broker, BrokerError};
use crate::config::{Config, ConfigError, LoadOptions, Loaded};
use crate::http::auth::{TokenSet, check_listener};
use crate::http::{self, HttpLimits, Socket, ops};
use crate::link::checks::{self, Level, Needs};
use crate::link::{Link, LinkError, LinkErrorKind, LinkStatus};
use crate::metrics::Metrics;
use crate::permissions;
use crate::shutdown::Shutdown;
use crate::supervise::{Policy, Supervisor, SupervisorError};
use crate::telemetry::{self, TelemetryError};

/// How long a role keeps at one request to Redis before it gives an error to whoever waits.
const PATIENCE: Duration = Duration::from_secs(5);
/// How often the gauges of the link are refreshed.
const WATCH_EVERY: Duration = Duration::from_secs(1);

/// What every command line says about the configuration.
#[derive(Clone, Debug, Default)]
pub struct Flags {
    /// The file; without, defaults and environment only.
    pub config: Option<PathBuf>,
    /// Key path, e.g. `redis.url`, to value.
    pub overrides: BTreeMap<String, String>,
}

/// Why a role or a verb cannot go on.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum StartError {
    /// The configuration has mistakes.
    #[error("{0}")]
    Config(#[from] ConfigError),
    /// The logs cannot be set up.
    #[error(transparent)]
    Telemetry(#[from] TelemetryError),
    /// The configuration is well-formed, but cannot be used.
    #[error("{0}")]
    Refused(String),
    /// There is no Redis that this process could start.
    #[error("{0}")]
    Unavailable(String),
    /// Redis was not reached in time, or refuses us.
    #[error("cannot use redis at {address}: {source}")]
    Redis {
        /// Its address, password hidden.
        address: String,
        /// Why.
        source: LinkError,
    },
    /// The address of the listener cannot be taken.
    #[error("cannot listen on {address}: {source}")]
    Listen {
        /// The address.
        address: SocketAddr,
        /// Why.
        source: io::Error,
    },
    /// The handlers of the signals cannot be installed.
    #[error("cannot handle signals: {0}")]
    Signals(#[source] io::Error),
    /// Redis was asked, in vain.
    #[error(transparent)]
    Broker(#[from] BrokerError),
    /// A task fell, or did not end.
    #[error(transparent)]
    Supervisor(#[from] SupervisorError),
}

impl StartError {
    /// Gives the exit code of the process: 69 Redis unavailable, 78 configuration, else 1.
    #[must_use]
    pub fn exit_code(&self) -> u8 {
        match self {
            Self::Config(_) | Self::Telemetry(_) | Self::Refused(_) => 78,
            Self::Unavailable(_) => 69,
            Self::Redis { source, .. } => code_of_link(source),
            Self::Broker(BrokerError::Link(error)) => code_of_link(error),
            Self::Broker(BrokerError::Fixed { .. } | BrokerError::Class(_)) => 78,
            Self::Broker(_) | Self::Listen { .. } | Self::Signals(_) | Self::Supervisor(_) => 1,
        }
    }
}

fn code_of_link(error: &LinkError) -> u8 {
    match error.kind {
        LinkErrorKind::Unavailable => 69,
        LinkErrorKind::Denied | LinkErrorKind::Invalid | LinkErrorKind::NotSupported => 78,
        _ => 1,
    }
}

/// Loads the configuration and sets up the logs: the first step of every `run`.
///
/// # Errors
/// [`StartError::Config`] with all mistakes, or [`StartError::Telemetry`].
pub fn prepare(flags: Flags) -> Result<Loaded, StartError> {
    let loaded = Loaded::load(LoadOptions::from_process(flags.config, flags.overrides))?;
    telemetry::init(loaded.config.log.format)?;
    Ok(loaded)
}

/// Does the same for a verb, whose user wants its result and hears of troubles only.
///
/// # Errors
/// As [`prepare`].
pub fn prepare_verb(flags: Flags) -> Result<Loaded, StartError> {
    let loaded = Loaded::load(LoadOptions::from_process(flags.config, flags.overrides))?;
    telemetry::init_quiet(loaded.config.log.format)?;
    Ok(loaded)
}

/// Connects for one verb; waiting for Redis, and each call after that, gives up after `timeout`.
///
/// # Errors
/// [`StartError::Redis`].
pub async fn connect(config: &Config, timeout: Duration) -> Result<Broker, StartError> {
    let link = link(config, "lisa-cli")?;
    let up = link.wait_up(timeout).await;
    up.map_err(|source| redis_error(config, source))?;
    Ok(Broker::new(link, config.namespace.clone(), timeout, None))
}

/// The state that a role tells `/readyz`: Redis answers, and nothing is left to be done. A cheap clone.
#[derive(Clone, Debug)]
pub struct Readiness {
    link: Link,
    awaited: Arc<Mutex<BTreeMap<&'static str, String>>>,
}

impl Readiness {
    fn new(link: &Link) -> Self {
        Self {
            link: link.clone(),
            awaited: Arc::default(),
        }
    }

    /// Holds the role not ready, for this reason, until [`Readiness::met`] is called with the same name.
    pub fn wait_for(&self, name: &'static str, reason: impl Into<String>) {
        self.awaited().insert(name, reason.into());
    }

    /// Says that this is done.
    pub fn met(&self, name: &str) {
        self.awaited().remove(name);
    }

    /// Gives the reasons why the role is not ready; none when it is.
    #[must_use]
    pub fn reasons(&self) -> Vec<String> {
        let status = match &*self.link.status().borrow() {
            LinkStatus::Up => None,
            LinkStatus::Connecting => Some("redis: connecting".to_owned()),
            LinkStatus::Down { reason, .. } => Some(format!("redis: {reason}")),
        };
        status
            .into_iter()
            .chain(self.awaited().values().cloned())
            .collect()
    }

    fn awaited(&self) -> std::sync::MutexGuard<'_, BTreeMap<&'static str, String>> {
        self.awaited.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The pieces of a running role.
#[derive(Debug)]
pub struct Runtime {
    /// The configuration.
    pub config: Config,
    /// The link to Redis.
    pub link: Link,
    /// What may be asked of Redis; gives up after 5 s.
    pub broker: Broker,
    /// The metrics.
    pub metrics: Metrics,
    /// Owner of all tasks.
    pub supervisor: Supervisor,
    /// The end of the role.
    pub shutdown: Shutdown,
    /// Whether it can serve.
    pub readiness: Readiness,
    /// The tokens that guard its HTTP interface.
    pub tokens: TokenSet,
    needs: Needs,
}

impl Runtime {
    /// Makes the pieces, ended by SIGTERM and SIGINT. Redis need not be there yet.
    ///
    /// `role` is what the process runs, for example `consumer` or `manager+producer`.
    ///
    /// # Errors
    /// An address of Redis that cannot be used, or signals that cannot be handled.
    pub fn start(role: &str, config: Config) -> Result<Self, StartError> {
        let shutdown = Shutdown::on_signals(config.shutdown.grace).map_err(StartError::Signals)?;
        Self::with_shutdown(role, config, shutdown)
    }

    /// Makes the pieces for a role inside another program, ended by `shutdown`. Call it inside a Tokio runtime.
    ///
    /// # Errors
    /// An address of Redis that cannot be used.
    pub fn with_shutdown(
        role: &str,
        config: Config,
        shutdown: Shutdown,
    ) -> Result<Self, StartError> {
        let link = link(&config, &format!("lisa-{role}"))?;
        let metrics = Metrics::new(Registry::default(), env!("CARGO_PKG_VERSION"), role);
        let broker = Broker::new(
            link.clone(),
            config.namespace.clone(),
            PATIENCE,
            Some(metrics.clone()),
        );
        let supervisor = Supervisor::new(&shutdown);
        watch(&supervisor, &link, &metrics, &shutdown);
        let readiness = Readiness::new(&link);
        readiness.wait_for("checks", "the server is not checked yet");
        let needs = Needs {
            permissions: permissions::of_roles(role, &config.namespace),
            allow_eviction: config.redis.allow_eviction,
            ..Needs::default()
        };
        Ok(Self {
            needs,
            tokens: TokenSet::new(config.auth.tokens.clone()),
            config,
            link,
            broker,
            metrics,
            supervisor,
            shutdown,
            readiness,
        })
    }

    /// Serves `router` and the operators' routes; gives the address with the real port.
    ///
    /// # Errors
    /// [`StartError::Listen`], or [`StartError::Refused`] for an address that strangers reach without a token.
    pub async fn listen(
        &self,
        address: SocketAddr,
        router: Router,
    ) -> Result<SocketAddr, StartError> {
        check_listener(
            address,
            &self.tokens,
            self.config.auth.allow_unauthenticated,
        )
        .map_err(StartError::Refused)?;
        let bound = Socket::bind(address).await;
        let socket = Arc::new(bound.map_err(|source| StartError::Listen { address, source })?);
        let address = socket.address();
        let readiness = self.readiness.clone();
        let ops = ops::router(
            self.supervisor.health(),
            Arc::new(move || readiness.reasons()),
            self.metrics.clone(),
            self.shutdown.clone(),
        );
        let router = router.merge(ops);
        let limits = HttpLimits {
            max_connections: self.config.http.max_connections,
            ..HttpLimits::default()
        };
        let (metrics, shutdown) = (self.metrics.clone(), self.shutdown.clone());
        self.supervisor
            .spawn("http", Policy::restart(), move |beat| {
                beat.unlimited();
                let (socket, router) = (socket.clone(), router.clone());
                let (metrics, shutdown) = (metrics.clone(), shutdown.clone());
                async move {
                    let listener = socket.listener().await?;
                    http::serve(listener, router, limits, &metrics, &shutdown).await
                }
            });
        tracing::info!(%address, "listening");
        Ok(address)
    }

    /// Runs a role to its end: waits for Redis, checks it, lets `start` begin the role's loops, and joins them.
    ///
    /// While Redis is away it keeps trying, not ready. `start` is not called when the shutdown begins before.
    ///
    /// # Errors
    /// A server that must not be used, what `start` gave, or the task that failed.
    ///
    /// # Cancel safety
    /// Dropping the future aborts all tasks.
    pub async fn run<F>(self, start: F) -> Result<(), StartError>
    where
        F: AsyncFnOnce(&Self) -> Result<(), StartError>,
    {
        if self.admit().await? {
            start(&self).await?;
        }
        Ok(self.supervisor.join().await?)
    }

    /// Waits for Redis and checks it; false if the shutdown began first.
    async fn admit(&self) -> Result<bool, StartError> {
        let admitted = async {
            let mut logged = false;
            loop {
                match self.check().await {
                    Ok(()) => return Ok(()),
                    Err(error) if error.exit_code() != 69 => return Err(error),
                    Err(error) => {
                        if !std::mem::replace(&mut logged, true) {
                            tracing::warn!(%error, "redis is away: not ready, trying on");
                        }
                    }
                }
            }
        };
        tokio::select! {
            admitted = admitted => admitted.map(|()| true),
            () = self.shutdown.draining().cancelled() => Ok(false),
        }
    }

    async fn check(&self) -> Result<(), StartError> {
        let error = |source| redis_error(&self.config, source);
        self.link.wait_up(PATIENCE).await.map_err(error)?;
        let mut refused = Vec::new();
        for finding in checks::check(&self.link, &self.needs, PATIENCE)
            .await
            .map_err(error)?
        {
            let (what, advice) = (finding.what, finding.advice);
            match finding.level {
                Level::Note => tracing::info!(advice, "{what}"),
                Level::Warn => tracing::warn!(advice, "{what}"),
                Level::Refuse => refused.push(format!("{what}: {advice}")),
            }
        }
        if refused.is_empty() {
            self.readiness.met("checks");
            return Ok(());
        }
        Err(StartError::Refused(refused.join("\n")))
    }
}

fn link(config: &Config, client_name: &str) -> Result<Link, StartError> {
    // The link ends with its last clone: it must still serve what is handed back at shutdown.
    Link::new(
        config.redis.link_settings(client_name),
        &CancellationToken::new(),
    )
    .map_err(|source| redis_error(config, source))
}

fn redis_error(config: &Config, source: LinkError) -> StartError {
    StartError::Redis {
        address: config.redis.url.to_string(),
        source,
    }
}

/// Keeps the gauges of the link fresh.
fn watch(supervisor: &Supervisor, link: &Link, metrics: &Metrics, shutdown: &Shutdown) {
    let (link, metrics, shutdown) = (link.clone(), metrics.clone(), shutdown.clone());
    supervisor.spawn("link", Policy::restart(), move |beat| {
        let (link, metrics, shutdown) = (link.clone(), metrics.clone(), shutdown.clone());
        async move {
            let mut status = link.status();
            while !shutdown.draining().is_cancelled() {
                metrics.redis_up(link.is_up());
                if let Some(skew) = link.clock().skew() {
                    metrics.clock_skew(-skew.as_secs_f64());
                }
                beat.ok();
                tokio::select! {
                    _ = status.changed() => {}
                    () = tokio::time::sleep(WATCH_EVERY) => {}
                    () = shutdown.draining().cancelled() => {}
                }
            }
            Ok::<(), io::Error>(())
        }
    });
}
