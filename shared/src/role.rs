//! What the start and the end of every role have in common: configuration, link, checks, listener, exit code.
//!
//! Knows no role's work. A role gives [`Runtime::run`] a function that starts its loops, and verbs of the command line
//! need [`connect`] only.

mod declare;
mod descriptors;
mod error;
mod readiness;
mod recheck;

use std::collections::{BTreeMap, BTreeSet};
use std::convert::Infallible;
use std::io;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use prometheus_client::registry::Registry;
use tokio_util::sync::CancellationToken;

use crate::broker::Broker;
use crate::config::{Config, LoadOptions, Loaded, SinkSecrets};
use crate::durability::Durability;
use crate::http::auth::{TokenSet, check_listener};
use crate::http::{self, CrossSite, HttpLimits, Socket, ops, ops::Hindrances};
use crate::link::checks::{self, Level, Needs};
use crate::link::{Link, LinkError, LinkErrorKind, LinkStatus, Place};
use crate::metrics::Metrics;
use crate::permissions;
use crate::shutdown::{Hangup, Shutdown};
use crate::supervise::{Policy, Supervisor};
use crate::telemetry;

pub use declare::declare_topics;
pub use error::StartError;
pub use readiness::Readiness;
use recheck::Recheck;

/// How long a role keeps at one request to Redis before it gives an error to whoever waits.
const PATIENCE: Duration = Duration::from_secs(5);
/// The words of the system where nobody listens at an address, or no socket has its path.
const NOBODY_LISTENS: [&str; 2] = ["Connection refused", "No such file or directory"];
/// How often the gauges of the link are refreshed.
const WATCH_EVERY: Duration = Duration::from_secs(1);

/// What every command line says about the configuration.
#[derive(Clone, Debug, Default)]
pub struct Flags {
    /// The file; without, defaults and environment only.
    pub config: Option<PathBuf>,
    /// Key path, e.g. `redis.url`, to value.
    pub overrides: BTreeMap<String, String>,
    /// What becomes of the secret files of sinks.
    pub sink_secrets: SinkSecrets,
}

impl Flags {
    fn load(self) -> Result<Loaded, StartError> {
        let options = LoadOptions {
            sink_secrets: self.sink_secrets,
            ..LoadOptions::from_process(self.config, self.overrides)
        };
        Ok(Loaded::load(options)?)
    }
}

/// Loads the configuration, sets up the logs and raises the limit of open files: the first step of every `run`.
///
/// # Errors
/// [`StartError::Config`] with all mistakes, or [`StartError::Telemetry`].
pub fn prepare(flags: Flags) -> Result<Loaded, StartError> {
    let on_command_line = flags.overrides.contains_key("redis.url");
    let loaded = flags.load()?;
    telemetry::init(loaded.config.log.format)?;
    if on_command_line && loaded.config.redis.url.password().is_some() {
        tracing::warn!(
            "the password in --redis-url is visible to every user of this host (ps): \
             use LISA_REDIS__PASSWORD_FILE, LISA_REDIS__PASSWORD or redis.password_file"
        );
    }
    descriptors::raise(loaded.config.http.max_connections);
    for warning in &loaded.warnings {
        tracing::warn!("{warning}");
    }
    Ok(loaded)
}

/// Does the same for a verb, whose user wants its result and hears of troubles only.
///
/// # Errors
/// As [`prepare`].
pub fn prepare_verb(flags: Flags) -> Result<Loaded, StartError> {
    let loaded = flags.load()?;
    telemetry::init_quiet(loaded.config.log.format)?;
    // Those of keys are for who runs the role that reads them.
    for warning in loaded
        .warnings
        .iter()
        .filter(|warning| warning.path.is_empty())
    {
        tracing::warn!("{warning}");
    }
    Ok(loaded)
}

/// Connects for one verb; waiting for Redis, and each call after that, gives up after `timeout`. A connection that is refused at
/// once is not waited for: nobody listens there.
///
/// # Errors
/// [`StartError::Redis`].
pub async fn connect(config: &Config, timeout: Duration) -> Result<Broker, StartError> {
    let link = link(config, "lisa-cli")?;
    let is_alone = matches!(config.redis.url.place(), Place::Tcp { .. } | Place::Unix(_));
    let up = tokio::select! {
        up = link.wait_up(timeout) => up,
        reason = refused(&link), if is_alone => {
            Err(LinkError::local(LinkErrorKind::Unavailable, "wait for redis", reason))
        }
    };
    up.map_err(|source| redis_error(config, source))?;
    Ok(Broker::new(link, config.namespace.clone(), timeout, None))
}

/// Waits until the system refuses a connection because nobody listens there; gives the reason.
async fn refused(link: &Link) -> String {
    let is_refused = |status: &LinkStatus| match status {
        LinkStatus::Down { reason, .. } => {
            NOBODY_LISTENS.iter().any(|words| reason.contains(words))
        }
        _ => false,
    };
    let mut status = link.status();
    let reason = match status.wait_for(is_refused).await.as_deref() {
        Ok(LinkStatus::Down { reason, .. }) => Some(reason.clone()),
        _ => None,
    };
    match reason {
        Some(reason) => reason,
        None => std::future::pending().await,
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
    /// Makes the pieces, ended by SIGTERM and SIGINT; SIGHUP is logged and ignored. Redis need not be there yet.
    ///
    /// `role` is what the process runs, for example `consumer` or `manager+producer`.
    ///
    /// # Errors
    /// An address of Redis that cannot be used, or signals that cannot be handled.
    pub fn start(role: &str, config: Config) -> Result<Self, StartError> {
        let shutdown = Shutdown::of_program(config.shutdown.grace, Hangup::Ignore);
        let shutdown = shutdown.map_err(StartError::Signals)?;
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
        let supervisor = Supervisor::new(&shutdown).counting(&metrics);
        watch(&supervisor, &link, &metrics, &shutdown);
        let readiness = Readiness::new(&link);
        readiness.wait_for("checks", "the server is not checked yet");
        // Also of a manager, whose file decides for the producers.
        let durabilities: BTreeSet<Durability> = config
            .topics
            .values()
            .map(|topic| topic.durability)
            .collect();
        let aof = durabilities.contains(&Durability::Aof);
        let is_producer = role.split('+').any(|role| role == "producer");
        let needs = Needs {
            commands: aof.then(|| "waitaof".to_owned()).into_iter().collect(),
            permissions: permissions::of_roles(role, &config.namespace)
                .into_iter()
                .chain(
                    durabilities
                        .into_iter()
                        .filter(|_| is_producer)
                        .filter_map(permissions::of_durability),
                )
                .collect(),
            niceties: permissions::of_place(config.redis.url.place())
                .into_iter()
                .collect(),
            append_only: aof,
            allow_eviction: config.redis.allow_eviction,
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
            Arc::new(move || Hindrances {
                not_ready: readiness.reasons(),
                warnings: readiness.warnings(),
            }),
            self.metrics.clone(),
            self.shutdown.clone(),
            ops::Errors::at(address, &self.tokens),
        );
        let router = router.merge(ops);
        let limits = HttpLimits {
            max_connections: descriptors::connections(self.config.http.max_connections),
            ..HttpLimits::default()
        };
        let auth = &self.config.auth;
        let cross_site = CrossSite::new(
            &self.tokens,
            auth.allowed_hosts.clone(),
            auth.allowed_origins.clone(),
        );
        let (metrics, shutdown) = (self.metrics.clone(), self.shutdown.clone());
        self.supervisor
            .spawn("http", Policy::restart(), move |beat| {
                beat.unlimited();
                let (socket, router) = (socket.clone(), router.clone());
                let (metrics, shutdown) = (metrics.clone(), shutdown.clone());
                let cross_site = cross_site.clone();
                async move {
                    let listener = socket.listener().await?;
                    http::serve(listener, router, limits, cross_site, &metrics, &shutdown).await
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
                            tracing::warn!(%error, "Redis unavailable; not ready, retrying");
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
        let found = checks::check(&self.link, &self.needs, PATIENCE).await;
        let found = found.map_err(error)?;
        self.metrics.redis_evicts(recheck::evicts(&found));
        let mut refused = Vec::new();
        for finding in &found {
            if finding.level == Level::Refuse {
                refused.push(format!("{}: {}", finding.what, finding.advice));
            } else {
                recheck::log(finding);
            }
        }
        if !refused.is_empty() {
            return Err(StartError::Refused(refused.join("\n")));
        }
        self.readiness.met("checks");
        self.recheck(found);
        Ok(())
    }

    /// Repeats the checks from now on, until the shutdown.
    fn recheck(&self, found: Vec<checks::Finding>) {
        let recheck = Recheck {
            link: self.link.clone(),
            needs: self.needs.clone(),
            metrics: self.metrics.clone(),
            readiness: self.readiness.clone(),
            deadline: PATIENCE,
        };
        let draining = self.shutdown.draining().clone();
        self.supervisor
            .spawn("checks", Policy::restart(), move |beat| {
                beat.unlimited();
                let (recheck, found, draining) = (recheck.clone(), found.clone(), draining.clone());
                async move {
                    draining.run_until_cancelled(recheck.keep(found)).await;
                    Ok::<(), Infallible>(())
                }
            });
    }
}

/// Runs a program to its end on a runtime of its own. Threads that are stuck, for example in the look-up of a name that
/// no server knows, are not waited for.
///
/// # Panics
/// The system refuses the threads of the runtime.
pub fn block_on<T>(program: impl Future<Output = T>) -> T {
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .enable_all()
        .build();
    let runtime = runtime.expect("the system gives the runtime its threads");
    let ended = runtime.block_on(program);
    runtime.shutdown_background();
    ended
}

/// Makes a name that no other process has, and that tells an operator where to look: host, process, chance.
#[must_use]
pub fn process_name() -> String {
    let host = std::fs::read_to_string("/proc/sys/kernel/hostname").unwrap_or_default();
    let host: String = host
        .trim()
        .chars()
        .filter(|c| c.is_ascii_alphanumeric() || "._-".contains(*c))
        .take(64)
        .collect();
    let host = if host.is_empty() { "host" } else { &host };
    format!("{host}-{}-{:08x}", std::process::id(), fastrand::u32(..))
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
