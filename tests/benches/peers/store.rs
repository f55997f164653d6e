//! The server that a peer keeps its messages in: a fresh private Redis, or a fresh beanstalkd.

use std::cell::RefCell;
use std::io::{BufRead, BufReader};
use std::net::TcpStream;
use std::process::{Child, ChildStdin, Command, Stdio};
use std::time::{Duration, Instant};

use lisa_tests::Server;

/// Starts a beanstalkd that ends with its standard input, and prints its pid.
const BEANSTALKD: &str =
    r#"beanstalkd -l 127.0.0.1 -p "$1" >/dev/null 2>&1 & echo $!; read -r _; kill $!"#;

/// A private running server, empty at start, stopped when dropped.
pub(crate) enum Store {
    /// A Redis with the settings of Lisa's own tests, and a connection to query it.
    Redis(Box<Server>, RefCell<redis::Connection>),
    /// A beanstalkd with its defaults: nothing is written to disk.
    Beanstalkd(Beanstalkd),
}

impl Store {
    /// Starts a Redis.
    pub(crate) fn redis() -> Result<Self, String> {
        let server = Server::builder().cluster(false).start();
        let connection =
            redis::Client::open(server.url()).and_then(|client| client.get_connection());
        let connection = connection.map_err(|error| error.to_string())?;
        Ok(Self::Redis(Box::new(server), RefCell::new(connection)))
    }

    /// Starts a beanstalkd.
    pub(crate) fn beanstalkd() -> Result<Self, String> {
        Beanstalkd::start().map(Self::Beanstalkd)
    }

    /// Host and port.
    pub(crate) fn address(&self) -> String {
        let port = match self {
            Self::Redis(server, _) => server.port(),
            Self::Beanstalkd(server) => server.port,
        };
        format!("127.0.0.1:{port}")
    }

    /// CPU seconds of the thread that serves.
    pub(crate) fn cpu(&self) -> Result<f64, String> {
        match self {
            Self::Redis(_, connection) => {
                let info = info(connection, "cpu")?;
                Ok(field(&info, "used_cpu_sys_main_thread")?
                    + field(&info, "used_cpu_user_main_thread")?)
            }
            Self::Beanstalkd(server) => server.cpu(),
        }
    }

    /// Returns the number of commands served, including those that scripts call; `None` for beanstalkd, which does not
    /// report it.
    pub(crate) fn commands(&self) -> Result<Option<f64>, String> {
        match self {
            Self::Redis(_, connection) => {
                field(&info(connection, "stats")?, "total_commands_processed").map(Some)
            }
            Self::Beanstalkd(_) => Ok(None),
        }
    }
}

fn info(connection: &RefCell<redis::Connection>, section: &str) -> Result<String, String> {
    let mut info = redis::cmd("INFO");
    info.arg(section)
        .query(&mut *connection.borrow_mut())
        .map_err(|error| error.to_string())
}

fn field(info: &str, name: &str) -> Result<f64, String> {
    info.lines()
        .find_map(|line| line.strip_prefix(name)?.strip_prefix(':'))
        .and_then(|value| value.trim().parse().ok())
        .ok_or_else(|| format!("INFO has no {name}"))
}

/// A running beanstalkd.
pub(crate) struct Beanstalkd {
    port: u16,
    pid: u32,
    shell: Child,
    input: Option<ChildStdin>,
}

impl Beanstalkd {
    fn start() -> Result<Self, String> {
        let port = lisa_tests::free_port();
        let mut shell = Command::new("/bin/sh")
            .args(["-c", BEANSTALKD, "beanstalkd", &port.to_string()])
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
            pid: pid.trim().parse().map_err(|_| "no pid")?,
            shell,
            input,
        };
        let deadline = Instant::now() + Duration::from_secs(5);
        while TcpStream::connect(("127.0.0.1", port)).is_err() {
            if Instant::now() > deadline {
                return Err("beanstalkd does not listen".to_owned());
            }
            std::thread::sleep(Duration::from_millis(5));
        }
        Ok(server)
    }

    fn cpu(&self) -> Result<f64, String> {
        let path = format!("/proc/{}/schedstat", self.pid);
        let text = std::fs::read_to_string(&path).map_err(|error| format!("{path}: {error}"))?;
        let nanoseconds = text.split(' ').next().and_then(|word| word.parse().ok());
        nanoseconds
            .map(|on_cpu: f64| on_cpu / 1e9)
            .ok_or_else(|| format!("{path} is not readable"))
    }
}

impl Drop for Beanstalkd {
    fn drop(&mut self) {
        self.input = None;
        let _ = self.shell.wait();
    }
}
