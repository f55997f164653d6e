//! Bounds the lines and messages of a NATS server.
//!
//! The client library collects a line or a message until it is complete, whatever size the server announces. It also opens
//! its sockets itself. So it connects to a loopback port of this process. A [`Bridge`] connects that to the server, follows
//! the frames without collecting them, and ends the connection at one that is too large. The bridge terminates TLS. Only the
//! client knows the name that a connection must send; the bridge replaces it, and adds the user of the URL.

use std::future::pending;
use std::net::{Ipv4Addr, SocketAddr};
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::time::Duration;

use lisa_core::percent;
use lisa_core::sync::Mutex;
use lisa_core::task;
use lisa_core::tls::client_config;
use serde_json::Value;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinSet;
use tokio::time::{sleep, timeout};
use tokio_rustls::TlsConnector;
use tokio_rustls::rustls::pki_types::ServerName;
use tokio_util::task::AbortOnDropHandle;
use url::Url;

use super::NatsConnection;

/// The largest size of a line, in bytes. Only `INFO` has more than 4 KiB: it names the servers of the cluster.
const MAX_LINE: usize = 64 * 1024;
/// The number of pings after which a server that reads no reply is disconnected. The client keeps each reply in memory.
const MAX_PINGS: u64 = 1000;
const BUFFER: usize = 16 * 1024;
const DEFAULT_PORT: u16 = 4222;
/// The pause after an error of the listener, such as too many open files.
const PAUSE: Duration = Duration::from_millis(100);
/// The most connections at a time. The client has one, or two for a moment.
const MAX_OPEN: usize = 16;

/// Connects a client of this process to the first server that answers. It ends when it is dropped.
pub(super) struct Bridge {
    address: SocketAddr,
    secret: String,
    failure: Failure,
    _task: AbortOnDropHandle<()>,
}

/// The reason why the last connection failed or ended.
#[derive(Clone, Default)]
pub(super) struct Failure(Arc<Mutex<Option<String>>>);

impl Failure {
    pub(super) fn take(&self) -> Option<String> {
        self.0.lock().take()
    }
}

impl Bridge {
    /// Starts to listen on loopback. A message may have `max_message` bytes. The server's tools show `name`.
    pub(super) async fn start(
        settings: &NatsConnection,
        name: &str,
        max_message: u64,
    ) -> Result<Self, String> {
        let listen = async {
            let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await?;
            Ok::<_, std::io::Error>((listener.local_addr()?, listener))
        };
        let listening = listen.await;
        let (address, listener) =
            listening.map_err(|error| format!("cannot listen on loopback: {error}"))?;
        let mut random = [0; 16];
        getrandom::fill(&mut random).map_err(|error| format!("no random bytes: {error}"))?;
        let secret = format!("{:032x}", u128::from_ne_bytes(random));
        let failure = Failure::default();
        let servers = settings.urls.iter().map(|url| Server::parse(url.expose()));
        let links = Links {
            servers: servers.collect::<Result<_, _>>()?,
            ca_file: settings.ca_file.clone(),
            connect_timeout: settings.connect_timeout,
            max_message,
            secret: secret.clone(),
            name: name.to_owned(),
            failure: failure.clone(),
            next: AtomicUsize::new(0),
        };
        Ok(Self {
            address,
            secret,
            failure,
            _task: task::owned(links.serve(listener)),
        })
    }

    /// Returns the URL for the client.
    pub(super) fn url(&self) -> String {
        format!("nats://{}", self.address)
    }

    /// Returns the name that the client must use.
    pub(super) fn secret(&self) -> &str {
        &self.secret
    }

    pub(super) fn failure(&self) -> Failure {
        self.failure.clone()
    }
}

struct Server {
    host: String,
    port: u16,
    tls: bool,
    login: Option<(String, String)>,
}

impl Server {
    fn parse(url: &str) -> Result<Self, String> {
        // The error could repeat a password.
        let url = Url::parse(url).map_err(|_| "invalid URL of a server".to_owned())?;
        let host = url.host_str().unwrap_or_default();
        let decode = |text| percent::decode(text).ok_or("invalid percent-encoding in a URL");
        let login = match (url.username(), url.password()) {
            ("", _) | (_, None) => None,
            (user, Some(password)) => Some((decode(user)?, decode(password)?)),
        };
        Ok(Self {
            host: host.trim_matches(['[', ']']).to_owned(),
            port: url.port().unwrap_or(DEFAULT_PORT),
            tls: url.scheme() == "tls",
            login,
        })
    }
}

trait Stream: AsyncRead + AsyncWrite + Unpin + Send {}

impl<S: AsyncRead + AsyncWrite + Unpin + Send> Stream for S {}

/// A connection to a server that has sent its `INFO`.
struct Opened {
    stream: Box<dyn Stream>,
    /// The line for the client.
    info: Vec<u8>,
    /// The bytes that the server sent after it.
    rest: Vec<u8>,
}

/// The settings of all connections.
struct Links {
    servers: Vec<Server>,
    ca_file: Option<PathBuf>,
    connect_timeout: Duration,
    max_message: u64,
    secret: String,
    name: String,
    failure: Failure,
    /// The number of the server for the next connection.
    next: AtomicUsize,
}

impl Links {
    /// Serves the connections of the client. Another program on this machine may connect, too, and say nothing. So some
    /// are served at a time.
    async fn serve(self, listener: TcpListener) {
        let links = Arc::new(self);
        let mut open = JoinSet::new();
        loop {
            while open.len() >= MAX_OPEN {
                open.join_next().await;
            }
            let Ok((mut client, _)) = listener.accept().await else {
                sleep(PAUSE).await;
                continue;
            };
            let links = links.clone();
            open.spawn(async move {
                links.failure.take();
                // Before the client sees the end of its connection.
                if let Err(reason) = links.link(&mut client).await {
                    *links.failure.0.lock() = Some(reason);
                }
            });
        }
    }

    /// Connects the client to the first server that answers. The next connection begins with the one after that.
    async fn link(&self, client: &mut TcpStream) -> Result<(), String> {
        let mut failed = Vec::new();
        for _ in 0..self.servers.len() {
            let next = self.next.fetch_add(1, Ordering::Relaxed) % self.servers.len();
            let server = &self.servers[next];
            let shown = format!("{}:{}", server.host, server.port);
            match timeout(self.connect_timeout, self.open(server)).await {
                Ok(Ok(opened)) => {
                    let ended = self.pass(client, opened, server).await;
                    return ended.map_err(|reason| {
                        tracing::warn!(server = shown, reason, "connection to NATS ended");
                        format!("{shown}: {reason}")
                    });
                }
                Ok(Err(reason)) => failed.push(format!("{shown}: {reason}")),
                Err(_) => failed.push(format!(
                    "{shown}: no answer within {:?}",
                    self.connect_timeout
                )),
            }
        }
        Err(failed.join("; "))
    }

    async fn open(&self, server: &Server) -> Result<Opened, String> {
        let connected = TcpStream::connect((server.host.as_str(), server.port)).await;
        let mut stream = connected.map_err(|error| error.to_string())?;
        stream
            .set_nodelay(true)
            .map_err(|error| error.to_string())?;
        let (line, rest) = read_line(&mut stream).await?;
        let info = line.strip_prefix(b"INFO ");
        let info = info.and_then(|info| serde_json::from_slice::<Value>(info).ok());
        let Some(Value::Object(mut info)) = info else {
            return Err("not a NATS server: it did not send INFO first".to_owned());
        };
        let asks_for_tls = info.get("tls_required") == Some(&Value::Bool(true));
        let stream: Box<dyn Stream> = match server.tls || asks_for_tls {
            true => {
                if !rest.is_empty() {
                    return Err("the server sent data before the TLS handshake".to_owned());
                }
                let config = client_config(self.ca_file.as_deref(), None)?;
                let name = ServerName::try_from(server.host.clone());
                let name = name.map_err(|error| error.to_string())?;
                let secured = TlsConnector::from(config).connect(name, stream).await;
                Box::new(secured.map_err(|error| format!("TLS: {error}"))?)
            }
            false => Box::new(stream),
        };
        // For the client, this process is the server.
        info.insert("tls_required".to_owned(), false.into());
        info.insert("tls_available".to_owned(), false.into());
        info.remove("connect_urls");
        let info = format!("INFO {}\r\n", Value::Object(info)).into_bytes();
        Ok(Opened { stream, info, rest })
    }

    /// Passes on what both sides send, until one of them ends. An error is one of the server.
    async fn pass(
        &self,
        client: &mut TcpStream,
        opened: Opened,
        server: &Server,
    ) -> Result<(), String> {
        // The client sees the end of its connection, and needs no reason.
        let Ok(()) = client.set_nodelay(true) else {
            return Ok(());
        };
        let Ok(()) = client.write_all(&opened.info).await else {
            return Ok(());
        };
        let said = timeout(self.connect_timeout, read_line(client)).await;
        let Some((connect, more)) = said
            .ok()
            .and_then(Result::ok)
            .and_then(|(line, more)| Some((self.connect(&line, server)?, more)))
        else {
            return Ok(());
        };
        let (mut from_server, mut to_server) = tokio::io::split(opened.stream);
        let (mut from_client, mut to_client) = client.split();
        let pings = AtomicU64::new(0);
        let up = async {
            to_server.write_all(&connect).await?;
            to_server.write_all(&more).await?;
            let mut buffer = vec![0; BUFFER];
            loop {
                to_server.flush().await?;
                pings.store(0, Ordering::Relaxed);
                let Ok(count @ 1..) = from_client.read(&mut buffer).await else {
                    return to_server.shutdown().await;
                };
                to_server.write_all(&buffer[..count]).await?;
            }
        };
        let down = async {
            let mut frames = Frames::new(self.max_message);
            frames.read(&opened.rest)?;
            let mut sent = to_client.write_all(&opened.rest).await;
            let mut buffer = vec![0; BUFFER];
            while sent.is_ok() {
                let count = match from_server.read(&mut buffer).await {
                    Ok(count @ 1..) => count,
                    _ => return Ok(()),
                };
                let more = frames.read(&buffer[..count])?;
                if pings.fetch_add(more, Ordering::Relaxed) + more > MAX_PINGS {
                    return Err(format!("{MAX_PINGS} pings without reading a reply"));
                }
                sent = to_client.write_all(&buffer[..count]).await;
            }
            Ok(())
        };
        let client_ended = async {
            let sent: std::io::Result<()> = up.await;
            if sent.is_err() {
                // The server may have sent the reason why it does not read.
                pending::<()>().await;
            }
        };
        tokio::select! {
            () = client_ended => Ok(()),
            ended = down => ended,
        }
    }

    /// Returns the `CONNECT` for the server; `None` if it is not from our client.
    fn connect(&self, line: &[u8], server: &Server) -> Option<Vec<u8>> {
        let mut connect: Value = serde_json::from_slice(line.strip_prefix(b"CONNECT ")?).ok()?;
        let fields = connect.as_object_mut()?;
        if fields.get("name")?.as_str()? != self.secret {
            return None;
        }
        fields.insert("name".to_owned(), self.name.as_str().into());
        if let Some((user, password)) = &server.login {
            fields.insert("user".to_owned(), user.as_str().into());
            fields.insert("pass".to_owned(), password.as_str().into());
        }
        Some(format!("CONNECT {connect}\r\n").into_bytes())
    }
}

/// Reads a line. Returns it without its line break, and the bytes after it.
async fn read_line(stream: &mut TcpStream) -> Result<(Vec<u8>, Vec<u8>), String> {
    let (mut bytes, mut searched) = (Vec::new(), 0_usize);
    loop {
        // Only what is new, and the byte before it: a server may send single bytes.
        let from = searched.saturating_sub(1);
        searched = bytes.len();
        if let Some(end) = bytes[from..].windows(2).position(|pair| pair == b"\r\n") {
            let end = from + end;
            let rest = bytes.split_off(end + 2);
            bytes.truncate(end);
            return Ok((bytes, rest));
        }
        if bytes.len() > MAX_LINE {
            return Err(format!("a line of more than {MAX_LINE} bytes"));
        }
        match stream.read_buf(&mut bytes).await {
            Ok(0) => return Err("the server closed the connection".to_owned()),
            Ok(_) => {}
            Err(error) => return Err(error.to_string()),
        }
    }
}

/// Follows the frames that a server sends.
struct Frames {
    max_message: u64,
    line: Vec<u8>,
    /// The number of bytes of the current message that have not arrived.
    skip: u64,
}

impl Frames {
    fn new(max_message: u64) -> Self {
        Self {
            max_message,
            line: Vec::new(),
            skip: 0,
        }
    }

    /// Follows the next bytes. Returns the number of pings.
    fn read(&mut self, mut bytes: &[u8]) -> Result<u64, String> {
        let mut pings = 0;
        while !bytes.is_empty() {
            if self.skip > 0 {
                let count = self.skip.min(bytes.len() as u64);
                self.skip -= count;
                bytes = &bytes[count as usize..];
                continue;
            }
            let end = bytes.iter().position(|byte| *byte == b'\n');
            let (part, rest) = bytes.split_at(end.map_or(bytes.len(), |end| end + 1));
            bytes = rest;
            if self.line.len() + part.len() > MAX_LINE {
                return Err(format!("a line of more than {MAX_LINE} bytes"));
            }
            self.line.extend_from_slice(part);
            if !self.line.ends_with(b"\r\n") {
                continue;
            }
            let line = std::mem::take(&mut self.line);
            if line.starts_with(b"MSG ") || line.starts_with(b"HMSG ") {
                self.skip = self.message(&line)?;
            }
            pings += u64::from(line.starts_with(b"PING"));
        }
        Ok(pings)
    }

    /// Returns the number of bytes after the line of a message.
    fn message(&self, line: &[u8]) -> Result<u64, String> {
        let size = std::str::from_utf8(line)
            .ok()
            .and_then(|line| line.split_whitespace().next_back()?.parse::<u64>().ok())
            .ok_or("a message without a size")?;
        if size > self.max_message {
            let most = self.max_message;
            return Err(format!("a message of {size} bytes, more than {most}"));
        }
        // A line break ends it.
        Ok(size + 2)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn frames_are_followed_wherever_they_are_cut() {
        let text = b"INFO {}\r\nPING\r\nMSG a.b 1 6\r\nPING\r\n\r\nHMSG a 1 r 12 14\r\nNATS/1.0\r\n\r\nhi\r\n+OK\r\nPING\r\n";
        for size in 1..=text.len() {
            let mut frames = Frames::new(14);
            let pings = text.chunks(size).map(|part| frames.read(part).unwrap());
            assert_eq!(pings.sum::<u64>(), 2, "in parts of {size}");
            assert_eq!((frames.skip, frames.line.len()), (0, 0));
        }
    }

    #[test]
    fn a_frame_that_is_too_large_is_refused_by_what_it_announces() {
        let endless = vec![b'x'; MAX_LINE + 1];
        let texts: [&[u8]; 5] = [
            b"MSG a 1 15\r\n",
            b"HMSG a 1 12 18446744073709551615\r\n",
            b"MSG a 1 x\r\n",
            b"MSG a 1 -1\r\n",
            &endless,
        ];
        for text in texts {
            assert!(Frames::new(14).read(text).is_err());
        }
    }

    #[tokio::test]
    async fn a_connection_that_says_nothing_does_not_hold_up_the_client() {
        let server = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let settings = NatsConnection {
            urls: vec![format!("nats://{}", server.local_addr().unwrap()).into()],
            token: None,
            creds_file: None,
            ca_file: None,
            connect_timeout: Duration::from_mins(10),
        };
        let bridge = Bridge::start(&settings, "test", 1).await.unwrap();
        let mut held = Vec::new();
        for _ in 0..2 {
            let mut silent = TcpStream::connect(bridge.address).await.unwrap();
            let (mut accepted, _) = server.accept().await.unwrap();
            for byte in b"INFO {}\r\n" {
                accepted.write_all(&[*byte]).await.unwrap();
            }
            let (info, rest) = read_line(&mut silent).await.unwrap();
            assert!(info.starts_with(b"INFO {") && rest.is_empty());
            held.push((silent, accepted));
        }
    }

    #[test]
    fn the_user_of_a_url_is_decoded() {
        let server = Server::parse("tls://ann:p%40ss@[::1]:7").unwrap();
        assert_eq!(
            (server.host.as_str(), server.port, server.tls),
            ("::1", 7, true)
        );
        assert_eq!(server.login, Some(("ann".to_owned(), "p@ss".to_owned())));
        let server = Server::parse("nats://host").unwrap();
        assert_eq!((server.port, server.tls, server.login), (4222, false, None));
    }
}
