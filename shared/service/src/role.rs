//! The common start and end of every role: configuration, connection, checks, listener, exit code.
//!
//! Does not do the work of a role: each role passes [`Runtime::run`] a function that starts its loops. Verbs of the command
//! line need only [`connect`].

mod changed_files;
mod declare;
mod descriptors;
mod error;
mod listeners;
mod needs;
mod program;
mod readiness;
mod recheck;
mod systemd;
mod tokens;
mod watch;

use std::collections::BTreeMap;
use std::convert::Infallible;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use prometheus_client::registry::Registry;
use tokio::sync::oneshot;
use tokio_util::sync::CancellationToken;

use crate::config::{Config, ConfigError, LoadOptions, Loaded, SinkSecrets};
use crate::http::auth::{TokenSet, check_listener};
use crate::http::tls::Tls;
use crate::http::{CrossSite, HttpLimits, Routes, ops, ops::Hindrances};
use crate::metrics::Metrics;
use crate::shutdown::{Hangup, Shutdown};
use crate::spans::export::Exporter;
use crate::spans::{Spans, caller};
use crate::supervise::{Policy, Supervisor};
use crate::telemetry;
use lisa_core::broker::Broker;
use lisa_core::outage::Outage;
use lisa_core::redis::preflight::{self, Level, Needs};
use lisa_core::redis::{Connection, ConnectionError, ConnectionErrorKind};
use lisa_core::sync::Mutex;
use lisa_core::topic::{Group, Topic};

pub use declare::declare_topics;
pub use error::StartError;
use listeners::{Claims, Listeners, Protocol};
pub use program::Program;
pub use readiness::Readiness;
use recheck::Recheck;

/// The call timeout of a role: the time after which a request to Redis fails.
const CALL_TIMEOUT: Duration = Duration::from_secs(5);

/// The hint for a verb that finds no Redis.
const OTHER_REDIS: &str = "--redis-url, LISA_REDIS_URL or redis.url sets another address";

/// The configuration flags of every command line.
#[derive(Clone, Debug, Default)]
pub struct Flags {
    /// The file; `None` for defaults and environment only.
    pub config: Option<PathBuf>,
    /// Values by key path, for example `redis.url`.
    pub overrides: BTreeMap<String, String>,
    /// The treatment of the secret files of sinks.
    pub sink_secrets: SinkSecrets,
    /// The treatment of the secret files of sources.
    pub source_secrets: SinkSecrets,
    /// The treatment of the secret files of tokens.
    pub aws_secrets: SinkSecrets,
}

impl Flags {
    /// Loads the configuration, for a process that serves listeners or not.
    fn load(&self, listener_files: SinkSecrets) -> Result<Loaded, ConfigError> {
        let (config, overrides) = (self.config.clone(), self.overrides.clone());
        let options = LoadOptions {
            listener_files,
            sink_secrets: self.sink_secrets,
            source_secrets: self.source_secrets,
            aws_secrets: self.aws_secrets,
            ..LoadOptions::from_process(config, overrides)
        };
        Loaded::load(options)
    }
}

/// Loads the configuration, sets up logging and raises the limit of open files: the first step of every role.
///
/// # Errors
/// [`StartError::Config`] with all problems, or [`StartError::Telemetry`].
pub fn prepare(flags: &Flags) -> Result<Loaded, StartError> {
    let on_command_line = flags.overrides.contains_key("redis.url");
    let loaded = flags.load(SinkSecrets::Required)?;
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

/// Loads the configuration and sets up logging for a verb, which by default logs only warnings and errors.
///
/// # Errors
/// As [`prepare`].
pub fn prepare_verb(flags: &Flags) -> Result<Loaded, StartError> {
    let loaded = flags.load(SinkSecrets::Unused)?;
    telemetry::init_quiet(loaded.config.log.format)?;
    // Warnings about keys concern the role that reads them, not a verb.
    for warning in loaded
        .warnings
        .iter()
        .filter(|warning| warning.path.is_empty())
    {
        tracing::warn!("{warning}");
    }
    Ok(loaded)
}

/// Connects for one verb. The wait for Redis, and each later call, times out after `timeout`. Fails immediately if nothing
/// listens at the address of a single server.
///
/// # Errors
/// [`StartError::Unavailable`] if Redis cannot be reached, with how to set its address, or [`StartError::Redis`].
pub async fn connect(config: &Config, timeout: Duration) -> Result<Broker, StartError> {
    let connection = connection(config, "lisa-cli")?;
    let up = connection.wait_reachable(timeout).await;
    up.map_err(|source| match source.kind {
        ConnectionErrorKind::Unavailable => {
            let error = redis_error(config, source);
            StartError::Unavailable(format!("{error}; {OTHER_REDIS}"))
        }
        _ => redis_error(config, source),
    })?;
    Ok(Broker::new(
        connection,
        config.namespace.clone(),
        timeout,
        None,
    ))
}

/// The components of a running role.
#[derive(Debug)]
pub struct Runtime {
    /// The configuration.
    pub config: Config,
    /// The connection to Redis.
    pub connection: Connection,
    /// The operations on Redis; each call times out after 5 s.
    pub broker: Broker,
    /// The metrics.
    pub metrics: Metrics,
    /// The owner of all tasks.
    pub supervisor: Supervisor,
    /// The shutdown of the role.
    pub shutdown: Shutdown,
    /// The readiness of the role.
    pub readiness: Readiness,
    /// The tokens that guard its HTTP interface.
    pub tokens: TokenSet,
    /// The maker of spans, if they are exported.
    pub spans: Option<Spans>,
    needs: Needs,
    process: Arc<Process>,
    claims: Arc<Claims>,
    /// Notified when the loops of the role run.
    started: Option<oneshot::Sender<()>>,
    /// True if the role already runs in this process, with an earlier configuration.
    is_reload: bool,
}

/// The state that the role keeps when it reloads its configuration.
#[derive(Debug)]
struct Process {
    role: String,
    shutdown: Shutdown,
    metrics: Metrics,
    /// The certificate of the listeners.
    tls: Tls,
    listeners: Listeners,
    exporter: Option<Exporter>,
    /// The groups of this process, by topic.
    instances: Mutex<BTreeMap<Topic, Group>>,
    /// The reason why the newest configuration is not in effect.
    rejected: Arc<Mutex<Option<String>>>,
}

impl Process {
    fn new(role: &str, shutdown: Shutdown, config: &Config) -> Result<Arc<Self>, StartError> {
        let process = Self {
            tls: Tls::default(),
            role: role.to_owned(),
            shutdown,
            metrics: Metrics::new(Registry::default(), env!("CARGO_PKG_VERSION"), role),
            listeners: Listeners::default(),
            exporter: Exporter::start(role, config),
            instances: Mutex::default(),
            rejected: Arc::default(),
        };
        process.set_certificate(config)?;
        Ok(Arc::new(process))
    }

    /// Uses the certificate of a configuration for all connections from now on.
    fn set_certificate(&self, config: &Config) -> Result<(), StartError> {
        let set = self.tls.set(config.http.tls.as_ref());
        set.map_err(|error| StartError::Refused(error.to_string()))
    }

    /// Ends what all starts of the role share: the listeners, then the export of their spans. `role` is the end of the role.
    async fn end(&self, role: Result<(), StartError>) -> Result<(), StartError> {
        let ended = match role {
            Ok(()) => self.listeners.join().await.map_err(Into::into),
            Err(error) => Err(error),
        };
        if let Some(exporter) = &self.exporter {
            exporter.flush().await;
        }
        ended
    }
}

impl Runtime {
    /// Creates the components. SIGTERM and SIGINT shut the role down; SIGHUP is logged and ignored. Redis need not be
    /// available yet. Use a [`Program`] for a role that reloads its configuration.
    ///
    /// `role` names the roles of the process, for example `consumer` or `manager+producer`.
    ///
    /// # Errors
    /// The address of Redis or the certificate cannot be used, or signal handlers cannot be installed.
    pub fn start(role: &str, config: Config) -> Result<Self, StartError> {
        let shutdown = Shutdown::of_program(config.shutdown.grace, Hangup::Ignore);
        let shutdown = shutdown.map_err(StartError::Signals)?;
        Self::with_shutdown(role, config, shutdown)
    }

    /// Creates the components of a role inside another program; `shutdown` ends it. Must be called within a Tokio runtime.
    ///
    /// # Errors
    /// The address of Redis or the certificate cannot be used.
    pub fn with_shutdown(
        role: &str,
        config: Config,
        shutdown: Shutdown,
    ) -> Result<Self, StartError> {
        let process = Process::new(role, shutdown.clone(), &config)?;
        Self::of_process(process, config, shutdown)
    }

    fn of_process(
        process: Arc<Process>,
        config: Config,
        shutdown: Shutdown,
    ) -> Result<Self, StartError> {
        let role = process.role.as_str();
        let connection = connection(&config, &format!("lisa-{role}"))?;
        let metrics = process.metrics.clone();
        let broker = Broker::new(
            connection.clone(),
            config.namespace.clone(),
            CALL_TIMEOUT,
            Some(Arc::new(metrics.clone())),
        );
        let supervisor = Supervisor::new(&shutdown).counting(&metrics);
        let readiness = Readiness::new(&connection);
        let rejected = process.rejected.clone();
        readiness.warn_with(move || rejected.lock().iter().cloned().collect());
        readiness.wait_for("checks", "Redis is not checked yet");
        if config.http.tls.is_some() {
            let certificate = process.tls.clone();
            readiness.warn_with(move || certificate.warnings());
            watch::certificate(&supervisor, &process.tls, &metrics, &shutdown);
        }
        let needs = needs::of(role, &config);
        let exporter = process.exporter.as_ref();
        let spans = exporter.map(|exporter| exporter.spans(&config));
        Ok(Self {
            needs,
            tokens: TokenSet::new(config.auth.tokens.clone()).awaiting_stored(),
            config,
            connection,
            broker,
            metrics,
            supervisor,
            shutdown,
            readiness,
            spans,
            process,
            claims: Arc::default(),
            started: None,
            is_reload: false,
        })
    }

    /// Returns the group of this process for a subscription that is for this process alone.
    pub fn instance_group(&self, topic: &Topic) -> Group {
        let mut instances = self.process.instances.lock();
        let group = instances.entry(topic.clone());
        group.or_insert_with(Group::for_instance).clone()
    }

    /// Serves `router` and the operational routes. Returns the address with the actual port.
    ///
    /// # Errors
    /// [`StartError::Listen`], or [`StartError::Refused`] for an address that strangers could reach without a token.
    pub async fn listen(
        &self,
        address: SocketAddr,
        router: Router,
    ) -> Result<SocketAddr, StartError> {
        self.listen_as("http", address, router).await
    }

    /// Does the same for a further listener, whose task has this name.
    ///
    /// # Errors
    /// As [`Runtime::listen`].
    pub async fn listen_as(
        &self,
        task: &str,
        address: SocketAddr,
        router: Router,
    ) -> Result<SocketAddr, StartError> {
        self.check_listener(address)?;
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
        let router = caller::follow(router, self.spans.as_ref()).merge(ops);
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
        let draining = self.shutdown.draining();
        let routes = Routes::new(router, limits, cross_site, &self.metrics, draining);
        self.claim(Protocol::Http1, task, address, routes).await
    }

    /// Serves `router` to clients of HTTP/2 on a further listener, whose task has this name. Adds no operational routes.
    ///
    /// # Errors
    /// As [`Runtime::listen`].
    #[cfg(feature = "http2")]
    pub async fn listen_http2(
        &self,
        task: &str,
        address: SocketAddr,
        router: Router,
    ) -> Result<SocketAddr, StartError> {
        self.check_listener(address)?;
        self.claim(Protocol::Http2, task, address, Routes::unguarded(router))
            .await
    }

    fn check_listener(&self, address: SocketAddr) -> Result<(), StartError> {
        let allow_unauthenticated = self.config.auth.allow_unauthenticated;
        check_listener(address, &self.tokens, allow_unauthenticated).map_err(StartError::Refused)
    }

    async fn claim(
        &self,
        protocol: Protocol,
        task: &str,
        address: SocketAddr,
        routes: Routes,
    ) -> Result<SocketAddr, StartError> {
        let listeners = &self.process.listeners;
        let claim = listeners.claim(
            &self.claims,
            protocol,
            (task, address),
            routes,
            &self.process,
            !self.is_reload,
        );
        let (address, health) = claim.await?;
        self.supervisor.health().include(health);
        Ok(address)
    }

    /// Runs a role to its end: waits for Redis, checks it, calls `start` to start the role's loops, and joins them.
    ///
    /// While Redis is unavailable, the role is not ready and retries. If the shutdown begins first, `start` is not called.
    ///
    /// # Errors
    /// The server must not be used, `start` failed, or a task failed.
    ///
    /// # Cancel safety
    /// Dropping the future aborts all tasks.
    pub async fn run<F>(mut self, start: F) -> Result<(), StartError>
    where
        F: AsyncFnOnce(&Self) -> Result<(), StartError>,
    {
        // Ready only when the listeners are there.
        self.readiness.wait_for("start", "starting");
        let is_program = self.started.is_some();
        if !self.is_reload {
            self.report();
        }
        if self.admit().await? {
            start(&self).await?;
            self.readiness.met("start");
            let started = self.started.take();
            // Without a receiver, it took too long, and the earlier start goes on.
            if let Some(Ok(())) = started.map(|started| started.send(()))
                && self.is_reload
            {
                self.report();
            }
        }
        let joined = self.supervisor.join().await;
        if is_program {
            return Ok(joined?);
        }
        self.process.end(joined.map_err(Into::into)).await
    }

    /// Starts to report the state of the role: to systemd, and in the gauges of the connection.
    fn report(&self) {
        let process = &self.process.shutdown;
        systemd::start(&self.supervisor, &self.readiness, &self.shutdown, process);
        watch::connection(
            &self.supervisor,
            &self.connection,
            &self.metrics,
            &self.shutdown,
        );
    }

    /// Waits for Redis and checks it. Returns false if the shutdown begins first.
    async fn admit(&self) -> Result<bool, StartError> {
        let admitted = async {
            let mut outage = Outage::new("use Redis");
            loop {
                match self.check().await {
                    Ok(()) => {
                        outage.recovered();
                        return Ok(());
                    }
                    Err(error) if error.exit_code() != 69 => return Err(error),
                    // A check takes its time to fail; it needs no pause.
                    Err(error) => {
                        outage.failed(&error);
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
        self.connection.wait_up(CALL_TIMEOUT).await.map_err(error)?;
        let found = preflight::check(&self.connection, &self.needs, CALL_TIMEOUT).await;
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
        self.tokens.read_stored(&self.broker).await?;
        tokens::warn_of_ignored(&self.broker, &self.tokens).await;
        tokens::follow(&self.supervisor, &self.shutdown, &self.broker, &self.tokens);
        self.readiness.met("checks");
        self.recheck(found);
        Ok(())
    }

    /// Repeats the checks from now on, until the shutdown.
    fn recheck(&self, found: Vec<preflight::Finding>) {
        let recheck = Recheck {
            connection: self.connection.clone(),
            needs: self.needs.clone(),
            metrics: self.metrics.clone(),
            readiness: self.readiness.clone(),
            deadline: CALL_TIMEOUT,
        };
        let draining = self.shutdown.draining().clone();
        self.supervisor
            .spawn("checks", Policy::restart(), move |heartbeat| {
                heartbeat.unlimited();
                let (recheck, found, draining) = (recheck.clone(), found.clone(), draining.clone());
                async move {
                    draining.run_until_cancelled(recheck.keep(found)).await;
                    Ok::<(), Infallible>(())
                }
            });
    }
}

/// Runs a program to its end on a runtime of its own. Does not wait for stuck threads, for example in the lookup of a host
/// name that no server knows.
///
/// # Panics
/// The system cannot start the threads of the runtime.
pub fn block_on<T>(program: impl Future<Output = T>) -> T {
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .enable_all()
        .build();
    let runtime = runtime.expect("the system can start the threads of the runtime");
    let ended = runtime.block_on(program);
    runtime.shutdown_background();
    telemetry::flush();
    ended
}

fn connection(config: &Config, client_name: &str) -> Result<Connection, StartError> {
    // The connection ends only with its last clone, because deliveries are still handed back at the shutdown.
    Connection::new(
        config.redis.connection_settings(client_name),
        &CancellationToken::new(),
    )
    .map_err(|source| redis_error(config, source))
}

fn redis_error(config: &Config, source: ConnectionError) -> StartError {
    StartError::Redis {
        address: config.redis.url.to_string(),
        source,
    }
}
