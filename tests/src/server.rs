//! Private Redis or Valkey servers as child processes, each in its own temporary directory, and the faults that a
//! server can have. This module knows nothing of Lisa's keys.
//!
//! The engine is `redis-server` from the PATH, or the program that `LISA_TEST_ENGINE` names. With `LISA_TEST_CLUSTER=1`
//! every server that does not say otherwise is a cluster of one node with all slots.

use crate::port::{free_port, loopback};
use crate::proxy::FaultProxy;
use crate::tls::Files;
use crate::users::User;
use crate::ward::Ward;
use redis::aio::MultiplexedConnection;
use redis::{AsyncConnectionConfig, Client, RedisError, RedisResult, cmd};
use rustix::process::Signal;
use std::collections::BTreeMap;
use std::fs::File;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

/// The longest wait for a server to answer, or to end: generous, since CI machines are small and busy.
const PATIENCE: Duration = Duration::from_secs(30);
/// The harness's own user: it can do everything, regardless of the password or ACL that a test sets.
const HARNESS: &str = "harness";

/// When an append-only file is flushed to disk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Aof {
    /// No append-only file: a restart begins empty.
    Off,
    /// Written to the kernel with each command, to disk once a second.
    EverySec,
    /// On disk before the reply.
    Always,
}

/// The settings of a server to be started; made by [`Server::builder`].
#[derive(Clone, Debug)]
pub struct ServerBuilder {
    aof: Aof,
    cluster: bool,
    engine: Option<String>,
    /// A free one each time it is started, where none is fixed.
    port: Option<u16>,
    tls: Option<Arc<Files>>,
    socket_only: bool,
    role_users: bool,
    password: Option<String>,
    lines: Vec<String>,
    arguments: Vec<String>,
    files: Vec<(&'static str, String)>,
}

impl ServerBuilder {
    /// Sets the append-only file; off by default.
    pub fn aof(mut self, aof: Aof) -> Self {
        self.aof = aof;
        self
    }

    /// Makes it a cluster of one node that serves all slots, or says that it is none.
    pub fn cluster(mut self, cluster: bool) -> Self {
        self.cluster = cluster;
        self
    }

    /// Fixes the TCP port, for servers that know each other's before they run.
    pub(crate) fn port(mut self, port: u16) -> Self {
        self.port = Some(port);
        self
    }

    /// Serves TCP by TLS only, with its own authority, and requires each client to have a certificate of it:
    /// [`Server::tls`] has them. The engine must [have TLS](Server::has_tls).
    pub fn tls(self) -> Self {
        self.tls_with(Some(Arc::new(Files::write())))
    }

    /// Like [`ServerBuilder::tls`] with these files, if any: servers that trust each other share them.
    pub(crate) fn tls_with(mut self, files: Option<Arc<Files>>) -> Self {
        self.tls = files;
        self
    }

    /// Serves its unix socket only.
    pub fn socket_only(mut self) -> Self {
        self.socket_only = true;
        self
    }

    /// Takes this program instead of the process's engine.
    pub fn engine(mut self, path: &str) -> Self {
        self.engine = Some(path.to_owned());
        self
    }

    /// Requires `password` of the default user; [`Server::url`] carries it.
    pub fn password(mut self, password: &str) -> Self {
        self.password = Some(password.to_owned());
        self.config("requirepass", password)
    }

    /// Adds a [user](User) for each role, and refuses connections without one.
    pub fn role_users(mut self) -> Self {
        self.role_users = true;
        for user in User::on_page() {
            self = self.acl(&format!("{} {}", user.name, user.rules));
        }
        self
    }

    /// Adds an ACL user, in the words of `ACL SETUSER`: `"alice on >secret ~lisa:* +@all"`.
    pub fn acl(self, user: &str) -> Self {
        self.config("user", user)
    }

    /// Bounds the memory; `limit` as in `redis.conf`: `"64mb"`.
    pub fn maxmemory(self, limit: &str) -> Self {
        self.config("maxmemory", limit)
    }

    /// Adds a line to the configuration; it wins over the harness's default. Several words are several arguments.
    pub fn config(mut self, name: &str, value: &str) -> Self {
        self.lines.push(format!("{name} {value}"));
        self
    }

    /// Adds a command line argument, such as `--sentinel`.
    pub fn argument(mut self, argument: &str) -> Self {
        self.arguments.push(argument.to_owned());
        self
    }

    /// Puts a file into its directory before it starts.
    pub(crate) fn file(mut self, name: &'static str, text: String) -> Self {
        self.files.push((name, text));
        self
    }

    /// Starts the server, blocking until it answers (40–400 ms on an idle machine).
    ///
    /// # Panics
    /// Panics if it does not start; the message has the server's log.
    pub fn start(self) -> Server {
        let ward = Ward::new("server");
        let mut server = Server {
            socket: ward.dir().join("socket"),
            ward,
            settings: self,
            port: 0,
        };
        for _ in 0..5 {
            server.port = server.settings.port.unwrap_or_else(free_port);
            server.write_config();
            match server.launch() {
                Ok(()) => return server,
                // Another process took the port between the question and the bind: ask again.
                Err(_) if server.log().contains("ddress already in use") => {
                    let _ = std::fs::remove_file(server.log_path());
                }
                Err(why) => server.give_up(&why),
            }
        }
        server.give_up("its port was taken five times");
    }
}

/// A running private server, ended by pid when dropped.
///
/// Faults need `&mut`, so the server that [`Server::shared`] lends to all tests cannot have one.
#[derive(Debug)]
pub struct Server {
    ward: Ward,
    settings: ServerBuilder,
    port: u16,
    socket: PathBuf,
}

impl Server {
    /// Builds a private server, with the defaults: nothing saved, `noeviction`, `stream-node-max-entries 20`.
    pub fn builder() -> ServerBuilder {
        ServerBuilder {
            aof: Aof::Off,
            cluster: std::env::var("LISA_TEST_CLUSTER").is_ok_and(|value| value == "1"),
            engine: None,
            port: None,
            tls: None,
            socket_only: false,
            role_users: false,
            password: None,
            lines: Vec::new(),
            arguments: Vec::new(),
            files: Vec::new(),
        }
    }

    /// Starts a private server with the defaults.
    pub fn start() -> Self {
        Self::builder().start()
    }

    /// Returns whether the engine was built with TLS. An engine with TLS complains of the missing certificate. Another
    /// one complains of something else: of TLS, or of an address that no machine has.
    pub fn has_tls() -> bool {
        let ask = Command::new(engine())
            .args(["--port", "0", "--tls-port", "1", "--bind", "192.0.2.1"])
            .stdin(Stdio::null())
            .output();
        let said = ask.unwrap_or_else(|error| panic!("{} did not start: {error}", engine()));
        let said = [said.stdout, said.stderr].concat();
        String::from_utf8_lossy(&said).contains("Failed to configure TLS")
    }

    /// Returns the server that all tests of this process share, each in its own [namespace](Server::namespace).
    pub fn shared() -> &'static Self {
        static SHARED: OnceLock<Server> = OnceLock::new();
        SHARED.get_or_init(Self::start)
    }

    /// Returns a namespace that no other call in this process returns: `stem`, a dash, a number. The stem is
    /// `[a-z0-9_-]` and at most 24 bytes.
    pub fn namespace(&self, stem: &str) -> String {
        static NEXT: AtomicU32 = AtomicU32::new(1);
        assert!(
            stem.len() <= 24,
            "the stem {stem:?} is too long for a namespace"
        );
        format!("{stem}-{}", NEXT.fetch_add(1, Ordering::Relaxed))
    }

    /// The TCP port, on 127.0.0.1; the same after a restart.
    pub fn port(&self) -> u16 {
        self.port
    }

    /// The pid while it runs.
    pub fn pid(&self) -> Option<u32> {
        self.ward.pid()
    }

    /// Returns whether it has ended, by itself or not.
    pub fn has_exited(&mut self) -> bool {
        self.ward.poll().is_some()
    }

    /// Returns whether it was started as a cluster.
    pub fn is_cluster(&self) -> bool {
        self.settings.cluster
    }

    /// The URL with the password if there is one: `redis://127.0.0.1:PORT`, `rediss://` with TLS, `unix:///path` where
    /// it serves nothing else.
    pub fn url(&self) -> String {
        if self.settings.socket_only {
            return self.socket_url();
        }
        self.url_at(scheme(self.tls()), self.port)
    }

    /// The files of its certificates and of its clients', if it serves TLS.
    pub fn tls(&self) -> Option<&Files> {
        self.settings.tls.as_deref()
    }

    /// Returns the settings with which a role reaches it: key paths and values. With [users for the
    /// roles](ServerBuilder::role_users), it logs in as the harness.
    pub fn access(&self) -> Vec<(&'static str, String)> {
        self.access_as(HARNESS, HARNESS)
    }

    /// Like [`Server::access`], logging in as this user of a role where there is one for each.
    pub fn access_of(&self, user: &str) -> Vec<(&'static str, String)> {
        let user = User::named(user);
        self.access_as(user.name, user.password())
    }

    fn access_as(&self, user: &str, password: &str) -> Vec<(&'static str, String)> {
        let mut keys = access(self.url(), self.tls());
        if self.settings.role_users {
            keys.push(("redis.username", user.to_owned()));
            keys.push(("redis.password", password.to_owned()));
        }
        keys
    }

    /// The URL for a cluster client: `redis+cluster://127.0.0.1:PORT`.
    pub fn cluster_url(&self) -> String {
        self.url_at("redis+cluster", self.port)
    }

    /// The URL over TCP by way of `proxy`.
    pub fn url_through(&self, proxy: &FaultProxy) -> String {
        self.url_at("redis", proxy.port())
    }

    /// The URL over the unix socket, with the password if there is one: `unix:///path`.
    pub fn socket_url(&self) -> String {
        let secret = self.settings.password.as_ref();
        let query = secret
            .map(|password| format!("?pass={password}"))
            .unwrap_or_default();
        format!("unix://{}{query}", self.socket.display())
    }

    /// Connects as the harness's own user, over the unix socket; a reply may take 30 s.
    ///
    /// # Panics
    /// Panics if the server does not accept.
    pub async fn connection(&self) -> MultiplexedConnection {
        let connection = self.try_connection().await;
        connection
            .unwrap_or_else(|error| panic!("no connection to {}: {error}", self.socket.display()))
    }

    /// Connects as [`Server::connection`], once.
    pub(crate) async fn try_connection(&self) -> RedisResult<MultiplexedConnection> {
        let limits = AsyncConnectionConfig::new()
            .set_connection_timeout(Some(PATIENCE))
            .set_response_timeout(Some(PATIENCE));
        let client = self.client();
        client
            .get_multiplexed_async_connection_with_config(&limits)
            .await
    }

    /// Returns how often the server has run a command, which is in lowercase. Runs inside scripts count.
    ///
    /// # Panics
    /// Panics if the server does not answer.
    pub async fn calls(&self, command: &str) -> u64 {
        let mut info = cmd("INFO");
        let stats = info.arg("commandstats");
        let stats: RedisResult<String> = stats.query_async(&mut self.connection().await).await;
        let stats = stats.expect("the statistics");
        let row = format!("cmdstat_{command}:calls=");
        let rest = stats.lines().find_map(|line| line.strip_prefix(&row));
        let calls = rest.and_then(|rest| rest.split(',').next());
        calls.map_or(0, |calls| calls.parse().expect("a number"))
    }

    /// Returns the commands that Redis has refused to users, except `CONFIG GET`, which no role needs.
    pub async fn denials(&self) -> Vec<String> {
        let mut log = cmd("ACL");
        let entries = log.arg("LOG").arg(128);
        let entries = entries.query_async(&mut self.connection().await).await;
        let entries: Vec<BTreeMap<String, redis::Value>> = entries.expect("a log of the ACL");
        let text = |entry: &BTreeMap<String, redis::Value>, name: &str| {
            redis::from_redis_value(entry[name].clone()).unwrap_or_default()
        };
        let told = entries.iter().map(|entry| {
            let words: [String; 4] =
                ["username", "reason", "object", "context"].map(|name| text(entry, name));
            words.join(" ")
        });
        // A wrong password is no lack of a right.
        let needless = [" config|get ", " client|setinfo ", " auth "];
        told.filter(|entry| !needless.iter().any(|part| entry.contains(part)))
            .collect()
    }

    /// Stops it as an administrator would: SIGTERM, and waits until it has gone.
    pub fn stop(&mut self) {
        self.ward.signal(Signal::TERM);
        self.ward.signal(Signal::CONT); // a paused one would never see the first
        if self.ward.pid().is_some() && self.ward.wait(PATIENCE).is_none() {
            self.give_up("it did not stop");
        }
    }

    /// Kills it as a crash would: SIGKILL, and waits until it has gone.
    pub fn kill9(&mut self) {
        self.ward.kill();
    }

    /// Freezes it: it keeps its connections and answers nothing.
    pub fn pause(&mut self) {
        self.ward.freeze();
    }

    /// Resumes a paused server.
    pub fn resume(&mut self) {
        self.ward.signal(Signal::CONT);
    }

    /// Starts it again on the same directory and port, after [stopping](Server::stop) it if it still runs.
    ///
    /// # Panics
    /// Panics if it does not start; the message has the server's log.
    pub fn restart(&mut self) {
        self.stop();
        if let Err(why) = self.launch() {
            self.give_up(&why);
        }
    }

    /// Its log so far.
    pub fn log(&self) -> String {
        std::fs::read_to_string(self.log_path()).unwrap_or_default()
    }

    /// The directory with its configuration, log and data.
    pub fn dir(&self) -> &Path {
        self.ward.dir()
    }

    fn log_path(&self) -> PathBuf {
        self.dir().join("server.log")
    }

    fn config_path(&self) -> PathBuf {
        self.dir().join("server.conf")
    }

    fn url_at(&self, scheme: &str, port: u16) -> String {
        let secret = self.settings.password.as_ref();
        let user = secret
            .map(|password| format!(":{password}@"))
            .unwrap_or_default();
        format!("{scheme}://{user}{}", loopback(port))
    }

    fn client(&self) -> Client {
        let url = format!(
            "unix://{}?user={HARNESS}&pass={HARNESS}",
            self.socket.display()
        );
        Client::open(url).expect("the URL of the socket is valid")
    }

    /// A file and not standard input: sentinels and CONFIG REWRITE need one.
    fn write_config(&self) {
        let (append, fsync) = match self.settings.aof {
            Aof::Off => ("no", "everysec"),
            Aof::EverySec => ("yes", "everysec"),
            Aof::Always => ("yes", "always"),
        };
        let tcp = self.tls().is_none() && !self.settings.socket_only;
        let mut lines = vec![
            "bind 127.0.0.1".to_owned(),
            format!("port {}", if tcp { self.port } else { 0 }),
            format!("unixsocket {}", self.socket.display()),
            "unixsocketperm 700".to_owned(),
            format!("dir {}", self.dir().display()),
            format!("logfile {}", self.log_path().display()),
            "save \"\"".to_owned(),
            format!("appendonly {append}"),
            format!("appendfsync {fsync}"),
            "maxmemory-policy noeviction".to_owned(),
            "stream-node-max-entries 20".to_owned(),
            "enable-debug-command yes".to_owned(),
            format!("user {HARNESS} on >{HARNESS} ~* &* +@all"),
        ];
        if self.settings.cluster {
            lines.push("cluster-enabled yes".to_owned());
            lines.push(format!("cluster-port {}", free_port()));
        }
        if let Some(files) = self.tls() {
            lines.push(format!("tls-port {}", self.port));
            lines.push(format!("tls-cert-file {}", files.server_cert().display()));
            lines.push(format!("tls-key-file {}", files.server_key().display()));
            lines.push(format!("tls-ca-cert-file {}", files.ca().display()));
            lines.push("tls-auth-clients yes".to_owned());
            // Among each other, too.
            lines.push("tls-replication yes".to_owned());
            lines.push("tls-cluster yes".to_owned());
        }
        lines.extend(self.settings.lines.iter().cloned());
        let own = (self.config_path(), lines.join("\n") + "\n");
        let files = self.settings.files.iter();
        let files = files.map(|(name, text)| (self.dir().join(name), text.clone()));
        for (path, text) in files.chain([own]) {
            std::fs::write(&path, text)
                .unwrap_or_else(|error| panic!("write {}: {error}", path.display()));
        }
    }

    fn launch(&mut self) -> Result<(), String> {
        let engine = self.settings.engine.clone().unwrap_or_else(engine);
        // The output before it opens its log, such as a mistake in the configuration.
        let console =
            File::create(self.dir().join("console")).map_err(|error| error.to_string())?;
        let errors = console.try_clone().map_err(|error| error.to_string())?;
        let mut command = Command::new(engine);
        command
            .arg(self.config_path())
            .args(&self.settings.arguments)
            .stdin(Stdio::null())
            .stdout(console)
            .stderr(errors);
        self.ward.spawn(&mut command);
        let deadline = Instant::now() + PATIENCE;
        loop {
            let state = match self.probe() {
                Ok(true) => return Ok(()),
                Ok(false) => "the cluster is not complete yet".to_owned(),
                Err(error) => error.to_string(),
            };
            if let Some(status) = self.ward.poll() {
                return Err(format!("it ended with {status}"));
            }
            if Instant::now() > deadline {
                return Err(format!("it did not answer within {PATIENCE:?}: {state}"));
            }
            std::thread::sleep(Duration::from_millis(5));
        }
    }

    /// Checks once whether it serves; assigns a cluster node its slots.
    fn probe(&self) -> Result<bool, RedisError> {
        let mut connection = self.client().get_connection_with_timeout(PATIENCE)?;
        connection.set_read_timeout(Some(PATIENCE))?;
        // Answers with an error as long as the data are loaded.
        let _: String = cmd("PING").query(&mut connection)?;
        if !self.settings.cluster {
            return Ok(true);
        }
        let info: String = cmd("CLUSTER").arg("INFO").query(&mut connection)?;
        if info.contains("cluster_slots_assigned:0\r") {
            let assign: RedisResult<()> = cmd("CLUSTER")
                .arg("ADDSLOTSRANGE")
                .arg(0)
                .arg(16_383)
                .query(&mut connection);
            assign?;
        }
        Ok(info.contains("cluster_state:ok"))
    }

    #[track_caller]
    fn give_up(&self, why: &str) -> ! {
        let console = std::fs::read_to_string(self.dir().join("console")).unwrap_or_default();
        panic!(
            "the server on port {} failed: {why}\n{console}{}",
            self.port,
            self.log()
        );
    }
}

/// Returns the scheme of the URL of a server with these files.
pub(crate) fn scheme(tls: Option<&Files>) -> &'static str {
    match tls {
        Some(_) => "rediss",
        None => "redis",
    }
}

/// Returns the settings with which a role reaches this URL: key paths and values.
pub(crate) fn access(url: String, tls: Option<&Files>) -> Vec<(&'static str, String)> {
    let trust = tls.map(Files::access).into_iter().flatten();
    [("redis.url", url)].into_iter().chain(trust).collect()
}

/// The program that serves.
fn engine() -> String {
    std::env::var("LISA_TEST_ENGINE").unwrap_or_else(|_| "redis-server".to_owned())
}
