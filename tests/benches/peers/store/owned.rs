//! A server program that a shell starts, and stops when the shell's standard input ends, even if this process is killed.

use std::fs;
use std::io::{BufRead, BufReader};
use std::net::TcpStream;
use std::path::Path;
use std::process::{Child, ChildStdin, Command, Stdio};
use std::time::{Duration, Instant};

use super::cpu::Cpu;
use crate::lisa::TOPIC;

/// Takes the port.
const BEANSTALKD: &str =
    r#"beanstalkd -l 127.0.0.1 -p "$1" >/dev/null 2>&1 & echo $!; read -r _; kill $!"#;

/// Takes the port, an empty directory and the folder of the programs. PostgreSQL refuses to run as root.
const POSTGRES: &str = r#"
cd "$2" || exit
as=
if [ "$(id -u)" -eq 0 ]; then
  chown postgres . && as='setpriv --reuid=postgres --regid=postgres --clear-groups' || exit
fi
$as "$3/initdb" -D data -U bench -A trust -E UTF8 --no-locale --no-sync >log 2>&1 || exit
$as "$3/postgres" -D data -p "$1" -c listen_addresses=127.0.0.1 -c unix_socket_directories= \
  -c fsync=off -c synchronous_commit=off -c full_page_writes=off -c shared_buffers=512MB -c max_wal_size=4GB >>log 2>&1 &
echo $!
read -r _
kill -s QUIT $!
wait
"#;

/// Take the port, the directory of the configuration and this program: see `main`.
const MANAGER: &str = r#"
LISA_LOG=error "$3" --bench program manager run --with-producer --config "$2/lisa.toml" --listen "127.0.0.1:$1" >&2 &
echo $!; read -r _; kill $!; wait"#;
const GATEWAY: &str = r#"
LISA_LOG=error LISA_CONSUMER__GATEWAY__LISTEN="127.0.0.1:$1" \
  "$3" --bench program consumer run --config "$2/lisa.toml" --listen 127.0.0.1:0 >&2 &
echo $!; read -r _; kill $!; wait"#;

/// A running server.
pub(crate) struct Owned {
    pub(crate) port: u16,
    pub(crate) cpu: Cpu,
    shell: Child,
    input: Option<ChildStdin>,
    /// Removed after the server has ended.
    _dir: Option<tempfile::TempDir>,
}

impl Owned {
    /// Starts a beanstalkd.
    pub(crate) fn beanstalkd() -> Result<Self, String> {
        Self::start(BEANSTALKD, None, Path::new(""))
    }

    /// Starts a PostgreSQL with the user and superuser `bench`, without password.
    pub(crate) fn postgres() -> Result<Self, String> {
        let dir = tempfile::Builder::new().prefix("lisa-postgres-").tempdir();
        let dir = dir.map_err(|error| error.to_string())?;
        Self::start(POSTGRES, Some(dir), &postgres_programs()?)
    }

    /// Starts a manager with a producer, and a gateway, for one topic with default settings.
    pub(crate) fn lisa(redis: &str) -> Result<(Self, Self), String> {
        let text =
            format!("redis.url = \"redis://{redis}\"\n[topics.{TOPIC}]\n[consumer.gateway]\n");
        let this = std::env::current_exe().map_err(|error| error.to_string())?;
        let run = |script| {
            let dir = tempfile::Builder::new().prefix("lisa-bench-").tempdir();
            let dir = dir.map_err(|error| error.to_string())?;
            fs::write(dir.path().join("lisa.toml"), &text).map_err(|error| error.to_string())?;
            Self::start(script, Some(dir), &this)
        };
        Ok((run(MANAGER)?, run(GATEWAY)?))
    }

    fn start(
        script: &str,
        dir: Option<tempfile::TempDir>,
        programs: &Path,
    ) -> Result<Self, String> {
        let port = lisa_tests::free_port();
        let mut shell = Command::new("/bin/sh")
            .args(["-c", script, "server", &port.to_string()])
            .arg(dir.as_ref().map_or(Path::new(""), |dir| dir.path()))
            .arg(programs)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .map_err(|error| error.to_string())?;
        let input = shell.stdin.take();
        let mut pid = String::new();
        let output = shell.stdout.take().ok_or("no standard output")?;
        BufReader::new(output)
            .read_line(&mut pid)
            .map_err(|error| error.to_string())?;
        let server = Self {
            port,
            cpu: Cpu::of(pid.trim().parse().map_err(|_| "the server did not start")?),
            shell,
            input,
            _dir: dir,
        };
        let deadline = Instant::now() + Duration::from_secs(10);
        while TcpStream::connect(("127.0.0.1", port)).is_err() {
            if Instant::now() > deadline {
                return Err("the server does not listen".to_owned());
            }
            std::thread::sleep(Duration::from_millis(5));
        }
        Ok(server)
    }
}

impl Drop for Owned {
    fn drop(&mut self) {
        self.input = None;
        let _ = self.shell.wait();
    }
}

/// Returns the folder of the newest PostgreSQL of the machine, where Debian's packages put it.
pub(crate) fn postgres_programs() -> Result<std::path::PathBuf, String> {
    let versions = std::fs::read_dir("/usr/lib/postgresql");
    let versions = versions.into_iter().flatten().flatten();
    versions
        .map(|version| version.path().join("bin"))
        .filter(|folder| folder.join("postgres").exists())
        .max_by_key(|folder| {
            let version = folder.parent().and_then(Path::file_name);
            version.and_then(|version| version.to_string_lossy().parse::<u32>().ok())
        })
        .ok_or_else(|| "no PostgreSQL in /usr/lib/postgresql".to_owned())
}
