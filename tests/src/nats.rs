//! Private NATS servers with JetStream as child processes, each in its own directory, and the faults that a server can
//! have.

use crate::packages;
use crate::port::{free_port, loopback};
use crate::ward::Ward;
use async_nats::{Client, ConnectOptions, jetstream};
use rustix::process::Signal;
use std::fs::File;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

/// The longest wait for a server to serve, or to end: generous, since CI machines are small and busy.
const PATIENCE: Duration = Duration::from_secs(60);

/// The settings of a server to be started; made by [`Nats::builder`].
#[derive(Clone, Debug, Default)]
pub struct NatsBuilder {
    user: Option<(String, String)>,
    token: Option<String>,
    lines: Vec<String>,
}

impl NatsBuilder {
    /// Requires this user and password from clients.
    pub fn user(mut self, name: &str, password: &str) -> Self {
        self.user = Some((name.to_owned(), password.to_owned()));
        self.config(&format!(
            "authorization {{ user: {name:?}, password: {password:?} }}"
        ))
    }

    /// Requires this token from clients.
    pub fn token(mut self, token: &str) -> Self {
        self.token = Some(token.to_owned());
        self.config(&format!("authorization {{ token: {token:?} }}"))
    }

    /// Adds a line to the configuration, such as `max_payload: 1024`.
    pub fn config(mut self, line: &str) -> Self {
        self.lines.push(line.to_owned());
        self
    }

    /// Starts the server and waits until it serves; `None` if it cannot be fetched; the test must then end.
    ///
    /// # Panics
    /// Panics if it does not start; the message has the server's log.
    pub async fn start(self) -> Option<Nats> {
        let program = packages::program("nats")?;
        let mut server = Nats {
            ward: Ward::new("nats"),
            program,
            settings: self,
            port: 0,
        };
        for _ in 0..5 {
            server.port = free_port();
            server.write_config();
            match server.launch().await {
                Ok(()) => return Some(server),
                // Another process took the port between the question and the bind: ask again.
                Err(_) if server.log().contains("address already in use") => {}
                Err(why) => server.give_up(&why),
            }
        }
        server.give_up("its port was taken five times");
    }
}

/// A running private server, ended by pid when dropped.
#[derive(Debug)]
pub struct Nats {
    ward: Ward,
    program: PathBuf,
    settings: NatsBuilder,
    port: u16,
}

impl Nats {
    /// Builds a private server that admits every client.
    pub fn builder() -> NatsBuilder {
        NatsBuilder::default()
    }

    /// Starts a private server with the defaults; `None` if it cannot be fetched; the test must then end.
    pub async fn start() -> Option<Self> {
        Self::builder().start().await
    }

    /// The URL without user and password: `nats://127.0.0.1:PORT`.
    pub fn url(&self) -> String {
        format!("nats://{}", loopback(self.port))
    }

    /// The TCP port, on 127.0.0.1; the same after a restart.
    pub fn port(&self) -> u16 {
        self.port
    }

    /// Connects with the user or token of the settings.
    ///
    /// # Panics
    /// Panics if the server does not accept.
    pub async fn client(&self) -> Client {
        self.try_client()
            .await
            .unwrap_or_else(|error| panic!("no connection to {}: {error}", self.url()))
    }

    async fn try_client(&self) -> Result<Client, async_nats::ConnectError> {
        let mut options = ConnectOptions::new();
        if let Some((user, password)) = self.settings.user.clone() {
            options = options.user_and_password(user, password);
        }
        if let Some(token) = self.settings.token.clone() {
            options = options.token(token);
        }
        options.connect(self.url()).await
    }

    /// Connects as [`Nats::client`], for JetStream.
    pub async fn jetstream(&self) -> jetstream::Context {
        jetstream::new(self.client().await)
    }

    /// Stops it as an administrator would: SIGTERM, and waits until it has ended.
    pub fn stop(&mut self) {
        self.ward.signal(Signal::TERM);
        self.ward.signal(Signal::CONT); // a paused one would never see the first
        if self.ward.pid().is_some() && self.ward.wait(PATIENCE).is_none() {
            self.give_up("it did not stop");
        }
    }

    /// Kills it as a crash would: SIGKILL, and waits until it has ended.
    pub fn kill(&mut self) {
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

    /// Starts it again on the same directory and port, after [stopping](Nats::stop) it if it still runs.
    ///
    /// # Panics
    /// Panics if it does not start; the message has the server's log.
    pub async fn restart(&mut self) {
        self.stop();
        if let Err(why) = self.launch().await {
            self.give_up(&why);
        }
    }

    /// Its log since it was started.
    pub fn log(&self) -> String {
        std::fs::read_to_string(self.dir().join("log")).unwrap_or_default()
    }

    /// The directory with its configuration, log and data.
    pub fn dir(&self) -> &Path {
        self.ward.dir()
    }

    fn write_config(&self) {
        let mut lines = vec![
            format!("listen: {:?}", loopback(self.port).to_string()),
            format!(
                "jetstream {{ store_dir: {:?} }}",
                self.dir().join("data").display().to_string()
            ),
        ];
        lines.extend(self.settings.lines.iter().cloned());
        let path = self.dir().join("nats.conf");
        std::fs::write(&path, lines.join("\n") + "\n")
            .unwrap_or_else(|error| panic!("write {}: {error}", path.display()));
    }

    async fn launch(&mut self) -> Result<(), String> {
        let log = File::create(self.dir().join("log")).map_err(|error| error.to_string())?;
        let errors = log.try_clone().map_err(|error| error.to_string())?;
        let mut command = Command::new(&self.program);
        command
            .arg("--config")
            .arg(self.dir().join("nats.conf"))
            .stdin(Stdio::null())
            .stdout(log)
            .stderr(errors);
        self.ward.spawn(&mut command);
        let deadline = Instant::now() + PATIENCE;
        loop {
            // It listens only after it has read the data of JetStream.
            let state = match self.try_client().await {
                Ok(_) => return Ok(()),
                Err(error) => error.to_string(),
            };
            if let Some(status) = self.ward.poll() {
                return Err(format!("it ended with {status}"));
            }
            if Instant::now() > deadline {
                return Err(format!("it did not answer within {PATIENCE:?}: {state}"));
            }
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    }

    #[track_caller]
    fn give_up(&self, why: &str) -> ! {
        panic!("NATS on port {} failed: {why}\n{}", self.port, self.log());
    }
}
