//! Servers that a sink sends to, and that send endless or unsolicited replies. The consumer stays small, and continues when
//! the server is a good one again.

use super::{SOON, Scene, ids};
use lisa_tests::eventually;
use std::io::{self, ErrorKind};
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio_util::task::AbortOnDropHandle;

/// The memory that a consumer may take for what a server sends, in KiB.
const MOST: u64 = 64 * 1024;
/// The number of floods after which a test ends.
const ENOUGH: usize = 4;
const TIME: &str = "*2\r\n$10\r\n1700000000\r\n$1\r\n0\r\n";
const INFO: &str = concat!(
    r#"INFO {"server_id":"x","server_name":"x","version":"2.10.0","go":"x","host":"x","port":1,"#,
    r#""headers":true,"max_payload":1048576,"proto":1}"#,
    "\r\n"
);

/// The first bytes of a flood, and those that follow without end.
type Flood = (&'static [u8], &'static [u8]);

/// A server that behaves until it gets a message, and then floods its client.
struct Hostile {
    address: SocketAddr,
    floods: Arc<AtomicUsize>,
    /// The most bytes of a flood that went into a connection.
    longest: Arc<AtomicUsize>,
    _task: AbortOnDropHandle<()>,
}

impl Hostile {
    /// Starts with the greeting of the protocol, and the answer to each request. `None` begins the flood.
    async fn start(
        greeting: Option<&'static str>,
        answer: fn(&[u8]) -> Option<&'static str>,
        flood: Flood,
    ) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
        let address = listener.local_addr().expect("an address");
        let (floods, longest) = <(Arc<AtomicUsize>, Arc<AtomicUsize>)>::default();
        let counts = (floods.clone(), longest.clone());
        let task = tokio::spawn(async move {
            while let Ok((socket, _)) = listener.accept().await {
                let (floods, longest) = counts.clone();
                tokio::spawn(async move {
                    if let Ok(length) = serve(socket, greeting, answer, flood).await {
                        longest.fetch_max(length, Ordering::Relaxed);
                        floods.fetch_add(1, Ordering::Relaxed);
                    }
                });
            }
        });
        Self {
            address,
            floods,
            longest,
            _task: AbortOnDropHandle::new(task),
        }
    }

    /// Checks that a consumer with this sink stays small.
    async fn spares(&self, sink: &str) {
        let scene = Scene::start(sink).await;
        let before = scene.consumer.process.memory("VmRSS");
        scene.send(ids(20)).await;
        eventually(SOON, async || match self.floods.load(Ordering::Relaxed) {
            ENOUGH.. => Ok(()),
            count => Err(format!(
                "{count} floods\n{}",
                scene.consumer.process.stderr()
            )),
        })
        .await;
        let grown = scene
            .consumer
            .process
            .memory("VmHWM")
            .saturating_sub(before);
        assert!(grown < MOST, "{grown} KiB more");
        scene.here.conserved().await;
    }
}

/// Floods until the client closes the connection. Returns the length of the flood in bytes.
async fn serve(
    mut socket: TcpStream,
    greeting: Option<&str>,
    answer: fn(&[u8]) -> Option<&'static str>,
    (first, more): Flood,
) -> io::Result<usize> {
    if let Some(greeting) = greeting {
        socket.write_all(greeting.as_bytes()).await?;
        while let Some(answer) = answer(&read(&mut socket).await?) {
            socket.write_all(answer.as_bytes()).await?;
        }
    }
    let more = more.repeat(1 + 64 * 1024 / more.len());
    let mut length = 0;
    let mut flooded = socket.write_all(first).await;
    while flooded.is_ok() {
        length += more.len();
        flooded = socket.write_all(&more).await;
    }
    Ok(length)
}

async fn read(socket: &mut TcpStream) -> io::Result<Vec<u8>> {
    let mut request = Vec::with_capacity(64 * 1024);
    match socket.read_buf(&mut request).await? {
        0 => Err(ErrorKind::UnexpectedEof.into()),
        _ => Ok(request),
    }
}

fn has(request: &[u8], word: &str) -> bool {
    request
        .windows(word.len())
        .any(|part| part == word.as_bytes())
}

fn redis(request: &[u8]) -> Option<&'static str> {
    match request {
        _ if has(request, "XADD") => None,
        _ if has(request, "TIME") => Some(TIME),
        _ => Some("+OK\r\n"),
    }
}

fn nats(request: &[u8]) -> Option<&'static str> {
    match request {
        _ if has(request, "PUB ") => None,
        _ => Some("PONG\r\n"),
    }
}

#[tokio::test]
async fn an_endless_reply_of_redis_ends_its_connection() {
    let floods: [Flood; 4] = [
        (b"$2000000000\r\n", b"x"),
        (b"*100000000\r\n", b":1\r\n"),
        (b"+", b"x"),
        // The second one is unsolicited.
        (b"", b"+OK\r\n"),
    ];
    for flood in floods {
        let server = Hostile::start(Some(""), redis, flood).await;
        let sink = format!(
            r#"{{ type = "redis-stream", url = "redis://{}" }}"#,
            server.address
        );
        server.spares(&sink).await;
    }
}

#[tokio::test]
async fn an_endless_message_of_nats_ends_its_connection() {
    let floods: [Flood; 3] = [
        (b"MSG a 1 2000000000\r\n", b"x"),
        (b"INFO ", b"x"),
        // The client would keep an answer to each.
        (b"", b"PING\r\n"),
    ];
    for flood in floods {
        let server = Hostile::start(Some(INFO), nats, flood).await;
        let sink = format!(r#"{{ type = "nats", url = "nats://{}" }}"#, server.address);
        server.spares(&sink).await;
    }
}

#[tokio::test]
async fn an_endless_greeting_of_nats_ends_its_connection() {
    let server = Hostile::start(None, nats, (b"INFO ", b"x")).await;
    let sink = format!(r#"{{ type = "nats", url = "nats://{}" }}"#, server.address);
    server.spares(&sink).await;
}

#[tokio::test]
async fn an_endless_reply_of_kafka_ends_its_connection() {
    // A reply begins with its length: 80 MB, which librdkafka itself would take.
    let length: &[u8] = &[4, 196, 180, 0];
    let server = Hostile::start(Some(""), |_| None, (length, b"x")).await;
    let sink = format!(r#"{{ type = "kafka", brokers = ["{}"] }}"#, server.address);
    server.spares(&sink).await;
    // Most of it is in the buffers of the sockets.
    let taken = server.longest.load(Ordering::Relaxed);
    assert!(taken < 32 << 20, "{taken} bytes of one reply were taken");
}
