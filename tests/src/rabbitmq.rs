//! Private RabbitMQ servers as child processes, each with its own directory, cookie, ports and name service of Erlang
//! (epmd), and the faults that a server can have.

use crate::packages;
use crate::port::{free_port, loopback};
use crate::ward::Ward;
use lapin::{Connection, ConnectionProperties};
use rustix::process::Signal;
use std::fs::File;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};
use tokio::sync::OnceCell;

/// The longest wait for a server to serve, or to end: it takes 6 s on an idle machine, and CI machines are small and busy.
const PATIENCE: Duration = Duration::from_secs(180);
/// The node of a server: unique to its epmd.
const NODE: &str = "rabbit@localhost";
/// The distribution of Erlang on loopback only, with the epmd that runs already.
const DISTRIBUTION: &str = "-start_epmd false -kernel inet_dist_use_interface {127,0,0,1}";

/// A running private server, ended when dropped.
///
/// Faults need `&mut`, so the server that [`RabbitMq::shared`] lends to all tests cannot have one.
#[derive(Debug)]
pub struct RabbitMq {
    ward: Ward,
    /// Each server has its own: a common one would outlive them.
    epmd: Ward,
    program: PathBuf,
    port: u16,
    epmd_port: u16,
    distribution_port: u16,
}

impl RabbitMq {
    /// Starts a private server and waits until it serves; `None` if it cannot be fetched; the test must then end.
    ///
    /// # Panics
    /// Panics if it does not start; the message has the server's log.
    pub async fn start() -> Option<Self> {
        let program = packages::program("rabbitmq")?;
        for _ in 0..5 {
            let mut server = Self {
                ward: Ward::new("rabbitmq"),
                epmd: Ward::new("epmd"),
                program: program.clone(),
                port: free_port(),
                epmd_port: free_port(),
                distribution_port: free_port(),
            };
            server.write_config();
            match server.launch().await {
                Ok(()) => return Some(server),
                // Another process took a port between the question and the bind: ask again.
                Err(_) if server.log().contains("eaddrinuse") => {}
                Err(why) => server.give_up(&why),
            }
        }
        panic!("the ports of RabbitMQ were taken five times");
    }

    /// Returns the server that all tests of this process share, each with its own [virtual host](RabbitMq::vhost) or
    /// names; `None` if it cannot be fetched.
    pub async fn shared() -> Option<&'static Self> {
        static SHARED: OnceCell<Option<RabbitMq>> = OnceCell::const_new();
        SHARED.get_or_init(Self::start).await.as_ref()
    }

    /// The URL of the default virtual host, with the user `guest`, who has all permissions.
    pub fn url(&self) -> String {
        format!("{}/%2f", self.base())
    }

    /// Makes a virtual host that no other call in this process makes, and returns its URL.
    pub async fn vhost(&self) -> String {
        static NEXT: AtomicU32 = AtomicU32::new(1);
        let name = format!("vhost-{}", NEXT.fetch_add(1, Ordering::Relaxed));
        self.ctl(&["add_vhost", &name]).await;
        let rights = ["set_permissions", "-p", &name, "guest", ".*", ".*", ".*"];
        self.ctl(&rights).await;
        format!("{}/{name}", self.base())
    }

    /// The TCP port, on 127.0.0.1; the same after a restart.
    pub fn port(&self) -> u16 {
        self.port
    }

    /// Connects to [`RabbitMq::url`].
    ///
    /// # Panics
    /// Panics if the server does not accept.
    pub async fn connection(&self) -> Connection {
        self.try_connection()
            .await
            .unwrap_or_else(|error| panic!("no connection to {}: {error}", self.url()))
    }

    async fn try_connection(&self) -> lapin::Result<Connection> {
        Connection::connect(&self.url(), ConnectionProperties::default()).await
    }

    /// Runs `rabbitmqctl` with these arguments, and returns its output.
    ///
    /// # Panics
    /// Panics if it fails.
    pub async fn ctl(&self, arguments: &[&str]) -> String {
        let mut command = tokio::process::Command::from(self.command("rabbitmqctl"));
        let output = command
            .arg("--quiet")
            .args(arguments)
            .kill_on_drop(true)
            .output()
            .await
            .unwrap_or_else(|error| panic!("rabbitmqctl did not start: {error}"));
        let said = String::from_utf8_lossy(&output.stdout).into_owned();
        assert!(
            output.status.success(),
            "rabbitmqctl {arguments:?} failed: {said}{}",
            String::from_utf8_lossy(&output.stderr)
        );
        said
    }

    /// Raises or ends a memory alarm: while it lasts, connections that publish are blocked.
    pub async fn memory_alarm(&self, on: bool) {
        let share = if on { "0" } else { "0.6" };
        self.ctl(&["set_vm_memory_high_watermark", share]).await;
    }

    /// Writes what was declared to its log file. A kill right after a declaration could lose even a durable queue.
    pub async fn sync(&self) {
        self.ctl(&["eval", "ok = mnesia:sync_log()."]).await;
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

    /// Starts it again on the same directory and ports, after [stopping](RabbitMq::stop) it if it still runs.
    ///
    /// # Panics
    /// Panics if it does not start; the message has the server's log.
    pub async fn restart(&mut self) {
        self.stop();
        if let Err(why) = self.launch().await {
            self.give_up(&why);
        }
    }

    /// Its log so far, and what it printed since it was started.
    pub fn log(&self) -> String {
        let read = |path: PathBuf| std::fs::read_to_string(path).unwrap_or_default();
        let log = self.dir().join("log").join(format!("{NODE}.log"));
        read(log) + &read(self.dir().join("console"))
    }

    /// The directory with its configuration, log and data.
    pub fn dir(&self) -> &Path {
        self.ward.dir()
    }

    fn base(&self) -> String {
        format!("amqp://guest:guest@{}", loopback(self.port))
    }

    fn write_config(&self) {
        // Do not let a full disk of the machine block the tests.
        let config = "disk_free_limit.absolute = 1MB\nvm_memory_high_watermark.relative = 0.6\n";
        for (name, text) in [("rabbitmq.conf", config), ("plugins", "[].\n")] {
            let path = self.dir().join(name);
            std::fs::write(&path, text)
                .unwrap_or_else(|error| panic!("write {}: {error}", path.display()));
        }
    }

    /// Prepares a program of the package, with its environment.
    fn command(&self, program: &str) -> Command {
        let dir = self.dir();
        let erlang = self.erlang().join("bin");
        let path = std::env::var("PATH").unwrap_or_default();
        let mut command = Command::new(self.program.with_file_name(program));
        command
            .env("PATH", format!("{}:{path}", erlang.display()))
            .env("HOME", dir)
            .env("LC_ALL", "C.UTF-8")
            .env("ERL_EPMD_PORT", self.epmd_port.to_string())
            .env("RABBITMQ_NODENAME", NODE)
            .env("RABBITMQ_CTL_ERL_ARGS", DISTRIBUTION)
            .env("RABBITMQ_CTL_DIST_PORT_MIN", "0")
            .env("RABBITMQ_CTL_DIST_PORT_MAX", "0")
            .current_dir(dir)
            .stdin(Stdio::null());
        command
    }

    /// The folder of Erlang, beside that of the server: `usr/lib/rabbitmq/bin/rabbitmq-server`.
    fn erlang(&self) -> PathBuf {
        let lib = self.program.ancestors().nth(3);
        lib.map(|lib| lib.join("erlang"))
            .expect("the program is in a folder of its package")
    }

    async fn launch(&mut self) -> Result<(), String> {
        if self.epmd.poll().is_some() || self.epmd.pid().is_none() {
            let mut epmd = Command::new(self.erlang().join("bin/epmd"));
            epmd.args(["-address", "127.0.0.1", "-port"])
                .arg(self.epmd_port.to_string())
                .stdin(Stdio::null())
                .stdout(Stdio::null())
                .stderr(Stdio::null());
            self.epmd.spawn(&mut epmd);
        }
        let dir = self.dir().to_owned();
        let console = File::create(dir.join("console")).map_err(|error| error.to_string())?;
        let errors = console.try_clone().map_err(|error| error.to_string())?;
        let mut command = self.command("rabbitmq-server");
        command
            .env("RABBITMQ_NODE_IP_ADDRESS", "127.0.0.1")
            .env("RABBITMQ_NODE_PORT", self.port.to_string())
            .env("RABBITMQ_DIST_PORT", self.distribution_port.to_string())
            .env("RABBITMQ_SERVER_ADDITIONAL_ERL_ARGS", DISTRIBUTION)
            .env("RABBITMQ_MNESIA_BASE", dir.join("data"))
            .env("RABBITMQ_LOG_BASE", dir.join("log"))
            .env("RABBITMQ_CONFIG_FILE", dir.join("rabbitmq.conf"))
            .env("RABBITMQ_ENABLED_PLUGINS_FILE", dir.join("plugins"))
            .env("RABBITMQ_PID_FILE", dir.join("pid"))
            // Otherwise its signals would go to a shell.
            .env("RUNNING_UNDER_SYSTEMD", "true")
            .stdout(console)
            .stderr(errors);
        self.ward.spawn(&mut command);
        let deadline = Instant::now() + PATIENCE;
        loop {
            let state = match self.try_connection().await {
                Ok(connection) => {
                    // It serves; a failure to close the connection does not matter.
                    let _ = connection.close(200, "ready".into()).await;
                    return Ok(());
                }
                Err(error) => error.to_string(),
            };
            if let Some(status) = self.ward.poll() {
                return Err(format!("it ended with {status}"));
            }
            if Instant::now() > deadline {
                return Err(format!("it did not answer within {PATIENCE:?}: {state}"));
            }
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    }

    #[track_caller]
    fn give_up(&self, why: &str) -> ! {
        panic!(
            "RabbitMQ on port {} failed: {why}\n{}",
            self.port,
            self.log()
        );
    }
}
