//! A program under attack, and raw connections to it.

use super::SOON;
use lisa_tests::{Api, Binary, Launch, Process, Server, Stopwatch, eventually, free_port};
use rustix::process::{Resource, getrlimit, setrlimit};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::time::timeout;

use std::net::{Ipv4Addr, SocketAddr};
use std::time::Duration;

/// The time limit of an answer to a well-behaved client.
const SERVED_WITHIN: Duration = Duration::from_secs(1);

/// The path to which a well-behaved client sends.
pub(super) const MESSAGES: &str = "/v1/topics/t/messages";

/// A program under attack, in its own namespace of the shared server. Its topic is `t`, its group `g`.
pub(super) struct Victim {
    pub(super) process: Process,
    pub(super) api: Api,
    pub(super) port: u16,
    pub(super) namespace: String,
}

/// The answer on a connection.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Answer {
    pub(super) status: u16,
    pub(super) head: String,
    pub(super) body: String,
}

impl Victim {
    /// Starts a producer.
    pub(super) async fn producer() -> Self {
        Self::start(Binary::Producer, &["run"], "").await
    }

    /// Starts a manager that is a producer, too: all routes on one listener.
    pub(super) async fn combined() -> Self {
        Self::start(Binary::Manager, &["run", "--with-producer"], "").await
    }

    /// Starts a program with further tables of the configuration, and waits until it is ready.
    pub(super) async fn start(binary: Binary, arguments: &[&str], tables: &str) -> Self {
        Self::launch(binary.with(arguments.iter().copied()), tables).await
    }

    /// Like [`Victim::start`], with its own environment.
    pub(super) async fn launch(launch: Launch, tables: &str) -> Self {
        let server = Server::shared();
        let (url, namespace) = (server.url(), server.namespace("hostile"));
        let port = free_port();
        let config = format!(
            r#"
            namespace = "{namespace}"
            redis.url = "{url}"
            producer.listen = "127.0.0.1:{port}"
            manager.listen = "127.0.0.1:{port}"
            consumer.listen = "127.0.0.1:{port}"
            http.body_timeout = "1s"
            [topics.t]
            groups = ["g"]
            max_payload = "64KiB"
            {tables}
            "#
        );
        let victim = Self {
            process: launch.config(&config).start(),
            api: Api::new(port),
            port,
            namespace,
        };
        eventually(SOON, async || match victim.api.try_get("/readyz").await {
            Some(reply) if reply.status == 200 => Ok(()),
            other => Err(format!("{other:?}")),
        })
        .await;
        victim
    }

    pub(super) fn address(&self) -> SocketAddr {
        (Ipv4Addr::LOCALHOST, self.port).into()
    }

    pub(super) async fn connect(&self) -> TcpStream {
        let connected = timeout(SOON, TcpStream::connect(self.address())).await;
        connected.expect("accepted in time").expect("connected")
    }

    /// Opens connections, each of which has sent these bytes. The victim may have closed some of them already.
    pub(super) async fn crowd(&self, count: usize, bytes: &[u8]) -> Vec<TcpStream> {
        let mut crowd = Vec::with_capacity(count);
        for _ in 0..count {
            let mut stream = self.connect().await;
            if !bytes.is_empty() {
                let _ = stream.write_all(bytes).await;
            }
            crowd.push(stream);
        }
        crowd
    }

    /// Sends bytes on their own connection, and returns the answers until the victim closes or is silent for a while.
    /// The way it closes does not matter.
    pub(super) async fn say(&self, bytes: &[u8]) -> Vec<Answer> {
        let (mut read, mut write) = self.connect().await.into_split();
        let sent = async {
            let _ = write.write_all(bytes).await;
        };
        let heard = async {
            let mut all = Vec::new();
            let mut quiet = Duration::from_secs(2);
            while let Ok(Ok(1..)) = timeout(quiet, read.read_buf(&mut all)).await {
                quiet = Duration::from_millis(150);
            }
            all
        };
        let ((), all) = tokio::join!(sent, heard);
        Answer::all(&all)
    }

    /// Checks that a well-behaved client with its own connection sends a message and is answered in time. Returns the
    /// time it took.
    #[track_caller]
    pub(super) fn serves(&self) -> impl Future<Output = Duration> {
        let caller = std::panic::Location::caller();
        let api = Api::new(self.port);
        async move {
            let watch = Stopwatch::start();
            let sent = timeout(SOON, api.send("t", "x", &[("Lisa-Delay", "1h")])).await;
            let took = watch.elapsed();
            let sent = sent.unwrap_or_else(|_| panic!("{caller}: no answer"));
            sent.expect(202);
            let limit = watch.limit(Duration::ZERO, SERVED_WITHIN);
            assert!(took <= limit, "{caller}: {took:?}, more than {limit:?}");
            took
        }
    }

    /// Returns its memory in KiB: `VmRSS` for now, or `VmHWM` for the peak.
    pub(super) fn memory(&self, what: &str) -> u64 {
        self.process.memory(what)
    }

    /// Makes `VmHWM` the peak from now on.
    pub(super) fn forget_peak(&self) {
        let pid = self.process.pid().expect("it runs");
        std::fs::write(format!("/proc/{pid}/clear_refs"), "5").expect("allowed");
    }

    /// Returns the number of messages it has accepted.
    pub(super) async fn accepted(&self) -> u64 {
        let metrics = self.api.get("/metrics").await.expect(200).body;
        let sent = metrics
            .lines()
            .filter(|line| line.starts_with("lisa_messages_sent_total"));
        let counts = sent.filter_map(|line| line.rsplit_once(' ')?.1.parse::<u64>().ok());
        counts.sum()
    }
}

impl Answer {
    /// Reads the answers that stand one behind the other; one that is cut off does not count.
    fn all(bytes: &[u8]) -> Vec<Self> {
        let text = String::from_utf8_lossy(bytes);
        let mut rest = &*text;
        let mut answers = Vec::new();
        while let Some((head, behind)) = rest.split_once("\r\n\r\n") {
            let status = head
                .split(' ')
                .nth(1)
                .filter(|_| head.starts_with("HTTP/1."));
            let status = status.and_then(|status| status.parse().ok());
            let status = status.unwrap_or_else(|| panic!("no answer: {text}"));
            let lengths = head
                .lines()
                .filter_map(|line| line.strip_prefix("content-length: "));
            let length = lengths
                .map(|text| text.parse().expect("a length"))
                .next()
                .unwrap_or(0);
            let Some((body, behind)) = behind.split_at_checked(length) else {
                break;
            };
            answers.push(Self {
                status,
                head: head.to_owned(),
                body: body.to_owned(),
            });
            rest = behind;
        }
        answers
    }

    /// Returns whether the client is at fault, by the status.
    pub(super) fn refuses(&self) -> bool {
        (400..500).contains(&self.status)
    }
}

/// Lets this process and its children open as many files as the machine allows, up to `wanted`; returns the number.
pub(super) fn open_files(wanted: u64) -> usize {
    let mut limit = getrlimit(Resource::Nofile);
    let allowed = limit.maximum.map_or(wanted, |maximum| maximum.min(wanted));
    if limit.current.is_some_and(|current| current < allowed) {
        limit.current = Some(allowed);
        setrlimit(Resource::Nofile, limit).expect("the soft limit goes up to the hard one");
    }
    usize::try_from(allowed).expect("few enough")
}
