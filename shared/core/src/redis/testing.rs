//! Servers for the tests of the connection: a private redis-server, and a fake server with the answers that a test
//! wants.
//!
//! For tests only; the fake speaks just enough RESP for a handshake.

use std::io::{BufRead, BufReader};
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio_util::sync::{CancellationToken, DropGuard};

use super::node::Pace;
use super::{Connection, ConnectionSettings, ConnectionStatus, RedisUrl};

pub(super) const SOON: Duration = Duration::from_secs(20);

/// A private redis-server on a unix socket, killed on drop.
pub(super) struct Server {
    child: Child,
    dir: PathBuf,
    args: Vec<String>,
}

impl Server {
    pub(super) fn start(args: &[&str]) -> Self {
        static COUNT: AtomicU32 = AtomicU32::new(0);
        let number = COUNT.fetch_add(1, Ordering::Relaxed);
        let dir =
            std::env::temp_dir().join(format!("lisa-connection-{}-{number}", std::process::id()));
        std::fs::create_dir_all(&dir).unwrap();
        let args: Vec<String> = args.iter().map(|&arg| arg.to_owned()).collect();
        let child = spawn(&dir, &args);
        Self { child, dir, args }
    }

    pub(super) fn url(&self) -> RedisUrl {
        RedisUrl::unix(self.dir.join("redis.sock"))
    }

    /// Sends a signal by name: `STOP` makes a server that accepts connections and answers nothing.
    pub(super) fn signal(&self, name: &str) {
        let pid = self.child.id().to_string();
        assert!(
            Command::new("kill")
                .args(["-s", name, &pid])
                .status()
                .unwrap()
                .success()
        );
    }

    pub(super) fn kill(&mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }

    pub(super) fn restart(&mut self) {
        self.child = spawn(&self.dir, &self.args);
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
        let _ = std::fs::remove_dir_all(&self.dir);
    }
}

/// Starts redis-server and returns when it reports that it accepts connections.
fn spawn(dir: &PathBuf, args: &[String]) -> Child {
    // A cluster node requires a TCP port; the others listen on their unix socket only.
    let port = if args.iter().any(|arg| arg == "--cluster-enabled") {
        free_port()
    } else {
        0
    };
    let mut child = Command::new("redis-server")
        .current_dir(dir)
        .args([
            "--port",
            &port.to_string(),
            "--bind",
            "127.0.0.1",
            "--unixsocket",
            "redis.sock",
        ])
        .args(["--save", "", "--appendonly", "no"])
        .args(args)
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut log = BufReader::new(child.stdout.take().unwrap());
    let mut seen = String::new();
    while !seen.contains("The server is now ready to accept connections at") {
        assert_ne!(
            log.read_line(&mut seen).unwrap(),
            0,
            "redis-server ended: {seen}"
        );
    }
    // Read the rest of the log, so that the server never waits for it.
    std::thread::spawn(move || std::io::copy(&mut log, &mut std::io::sink()));
    child
}

/// Finds a free port below those of ephemeral connections, which could take it before the server does. Its cluster bus port,
/// 10,000 higher, is valid, too.
fn free_port() -> u16 {
    let ports = std::iter::repeat_with(|| fastrand::u16(12_000..22_000));
    let mut free = ports.filter(|port| std::net::TcpListener::bind(("127.0.0.1", *port)).is_ok());
    free.next().expect("the ports never end")
}

/// The reaction of the fake server to one request.
pub(super) enum Answer {
    Say(String),
    Keep,
    Close,
}

/// A server on loopback that answers each request by a function of the connection number (from 1) and the words.
pub(super) struct Fake {
    pub(super) url: RedisUrl,
    pub(super) connections: Arc<AtomicU32>,
    pub(super) requests: Arc<Mutex<Vec<String>>>,
    _closer: DropGuard,
}

impl Fake {
    /// Starts a fake server. It answers the handshake (`AUTH`, `CLIENT`, `PING`, `TIME`) unless the function does.
    pub(super) async fn start<F>(answer: F) -> Self
    where
        F: Fn(u32, &[String]) -> Option<Answer> + Send + Sync + 'static,
    {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("redis://{}", listener.local_addr().unwrap())
            .parse()
            .unwrap();
        let connections = Arc::new(AtomicU32::new(0));
        let requests = Arc::new(Mutex::new(Vec::new()));
        let closer = CancellationToken::new();
        let (count, log, closed, answer) = (
            connections.clone(),
            requests.clone(),
            closer.clone(),
            Arc::new(answer),
        );
        tokio::spawn(closer.clone().run_until_cancelled_owned(async move {
            while let Ok((socket, _)) = listener.accept().await {
                let number = count.fetch_add(1, Ordering::SeqCst) + 1;
                let serving = serve(socket, number, answer.clone(), log.clone());
                tokio::spawn(closed.clone().run_until_cancelled_owned(serving));
            }
        }));
        Self {
            url,
            connections,
            requests,
            _closer: closer.drop_guard(),
        }
    }

    pub(super) fn connections(&self) -> u32 {
        self.connections.load(Ordering::SeqCst)
    }

    pub(super) fn count_of(&self, word: &str) -> usize {
        self.requests
            .lock()
            .unwrap()
            .iter()
            .filter(|request| request.as_str() == word)
            .count()
    }
}

async fn serve<F>(mut socket: TcpStream, number: u32, answer: Arc<F>, log: Arc<Mutex<Vec<String>>>)
where
    F: Fn(u32, &[String]) -> Option<Answer>,
{
    let mut bytes = Vec::new();
    loop {
        while let Some((words, used)) = parse(&bytes) {
            bytes.drain(..used);
            log.lock().unwrap().push(words[0].clone());
            let reply = match answer(number, &words).unwrap_or_else(|| handshake(&words)) {
                Answer::Say(reply) => reply,
                Answer::Keep => continue,
                Answer::Close => return,
            };
            if socket.write_all(reply.as_bytes()).await.is_err() {
                return;
            }
        }
        if !matches!(socket.read_buf(&mut bytes).await, Ok(count) if count > 0) {
            return;
        }
    }
}

fn handshake(words: &[String]) -> Answer {
    Answer::Say(match words[0].as_str() {
        "TIME" => "*2\r\n$10\r\n1700000000\r\n$1\r\n0\r\n".to_owned(),
        _ => "+OK\r\n".to_owned(),
    })
}

/// Parses one whole request at the start of `bytes` and returns its length; `None` if it has not all arrived.
fn parse(bytes: &[u8]) -> Option<(Vec<String>, usize)> {
    let mut at = 0;
    let mut number = |mark: u8| -> Option<(usize, usize)> {
        let end = at + bytes[at..].windows(2).position(|pair| pair == b"\r\n")?;
        assert_eq!(bytes[at], mark);
        let value = std::str::from_utf8(&bytes[at + 1..end])
            .unwrap()
            .parse()
            .unwrap();
        at = end + 2;
        if mark == b'$' {
            at += value + 2;
        }
        (at <= bytes.len()).then_some((value, at))
    };
    let (count, _) = number(b'*')?;
    let mut words = Vec::new();
    let mut used = 0;
    for _ in 0..count {
        let (length, end) = number(b'$')?;
        words.push(String::from_utf8_lossy(&bytes[end - 2 - length..end - 2]).into_owned());
        used = end;
    }
    Some((words, used))
}

pub(super) fn say(text: &str) -> Option<Answer> {
    Some(Answer::Say(format!("{text}\r\n")))
}

/// Returns a connection that samples often and times out early, so that tests need not wait.
pub(super) fn quick_connection(url: RedisUrl) -> Connection {
    let settings = ConnectionSettings {
        response_timeout: Duration::from_millis(300),
        ..ConnectionSettings::new(url)
    };
    connection_with(settings)
}

pub(super) fn connection_with(settings: ConnectionSettings) -> Connection {
    let pace = Pace {
        up: Duration::from_millis(200),
        down: Duration::from_millis(100),
    };
    Connection::start(settings, &CancellationToken::new(), pace).unwrap()
}

/// Waits until the status is as wanted and returns it.
pub(super) async fn status(
    connection: &Connection,
    wanted: impl Fn(&ConnectionStatus) -> bool,
) -> ConnectionStatus {
    let mut status = connection.status();
    match tokio::time::timeout(SOON, status.wait_for(|status| wanted(status))).await {
        Ok(found) => found.unwrap().clone(),
        Err(_) => panic!(
            "the status stays {:?}",
            connection.status().borrow().clone()
        ),
    }
}

pub(super) fn is_down(status: &ConnectionStatus) -> bool {
    matches!(status, ConnectionStatus::Down { .. })
}
