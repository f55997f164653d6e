//! Programs reload their configuration on SIGHUP, and when a file that it names changes.

use lisa_tests::relay::ms;
use lisa_tests::{Answer, Api, Binary, Process, SOON, Server, Webhook, eventually, free_port};
use redis::cmd;
use reqwest::Method;
use serde_json::{Value, json};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpStream, UnixDatagram};
use tokio::time::timeout;

/// A program with a configuration file that tests rewrite.
struct Program {
    process: Process,
    api: Api,
}

impl Program {
    /// Starts `run` of a program; `text` has the keys besides the address. Waits until it is ready.
    async fn start(binary: Binary, server: &Server, text: &str) -> Self {
        let port = free_port();
        let process = binary.with(["run"]);
        let process = process.config(&with_address(binary, port, server, text));
        let program = Self {
            process: process.start(),
            api: Api::new(port),
        };
        program.until_ready().await;
        program
    }

    fn write(&self, binary: Binary, server: &Server, text: &str) {
        let port = self.api.address().rsplit(':').next().unwrap();
        let text = with_address(binary, port.parse().unwrap(), server, text);
        replace(&self.process.dir().join("lisa.toml"), &text);
    }

    /// Rewrites the file and sends SIGHUP. Waits until `result` is counted once more.
    async fn reload(&mut self, binary: Binary, server: &Server, text: &str, result: &str) {
        let before = self.reloads(result).await;
        self.write(binary, server, text);
        self.process.sighup();
        self.until_reloads(result, before + 1).await;
    }

    async fn until_ready(&self) {
        eventually(SOON, async || match self.api.try_get("/readyz").await {
            Some(reply) if reply.status == 200 => Ok(()),
            reply => Err(format!("{reply:?}\n{}", self.process.stderr())),
        })
        .await;
    }

    /// The number of reloads with this result.
    async fn reloads(&self, result: &str) -> u64 {
        let start = format!("lisa_config_reloads_total{{result=\"{result}\"}}");
        self.metric(&start).await
    }

    /// The sum of the values of all series that start like this.
    async fn metric(&self, start: &str) -> u64 {
        let scraped = self.api.get("/metrics").await.expect(200).body;
        let series = scraped.lines().filter(|line| line.starts_with(start));
        let values = series.filter_map(|line| line.rsplit(' ').next());
        values.map(|value| value.parse::<u64>().unwrap()).sum()
    }

    async fn until_reloads(&self, result: &str, count: u64) {
        eventually(SOON, async || match self.reloads(result).await {
            now if now == count => Ok(()),
            now => Err(format!("{now} {result}:\n{}", self.process.stderr())),
        })
        .await;
    }

    async fn end(mut self) {
        self.process.sigterm();
        let status = self.process.wait_exit(SOON).await;
        assert_eq!(status.code(), Some(0), "{}", self.process.stderr());
    }
}

fn with_address(binary: Binary, port: u16, server: &Server, text: &str) -> String {
    let role = binary.name().trim_start_matches("lisa-");
    let url = server.url();
    // Keys of the root come first.
    format!("redis.url = \"{url}\"\n{role}.listen = \"127.0.0.1:{port}\"\n{text}\n")
}

/// Replaces a file as editors and container platforms do.
fn replace(path: &Path, text: &str) {
    let new = path.with_extension("new");
    std::fs::write(&new, text).unwrap();
    std::fs::rename(new, path).unwrap();
}

/// Sends messages one by one until it is stopped, and counts those that are not accepted.
struct Load {
    stop: Arc<AtomicBool>,
    sent: Arc<AtomicU64>,
    sending: tokio::task::JoinHandle<Vec<String>>,
}

impl Load {
    fn start(api: &Api, topic: &'static str) -> Self {
        let (stop, sent) = (
            Arc::new(AtomicBool::new(false)),
            Arc::new(AtomicU64::new(0)),
        );
        let (api, until, count) = (api.clone(), stop.clone(), sent.clone());
        let sending = tokio::spawn(async move {
            let mut failed = Vec::new();
            while !until.load(Ordering::Relaxed) {
                let path = format!("/v1/topics/{topic}/messages");
                let request = api.request(Method::POST, &path).body("payload");
                match request.send().await {
                    Ok(reply) if reply.status() == 202 => {
                        count.fetch_add(1, Ordering::Relaxed);
                    }
                    Ok(reply) => failed.push(reply.status().to_string()),
                    Err(error) => failed.push(format!("{error:?}")),
                }
            }
            failed
        });
        Self {
            stop,
            sent,
            sending,
        }
    }

    /// Waits until so many more are sent.
    async fn go_on(&self, more: u64) {
        let goal = self.sent.load(Ordering::Relaxed) + more;
        eventually(SOON, async || match self.sent.load(Ordering::Relaxed) {
            now if now >= goal || self.sending.is_finished() => Ok(()),
            now => Err(now),
        })
        .await;
    }

    /// Returns how many were accepted, after checking that none was not.
    async fn end(self) -> u64 {
        self.stop.store(true, Ordering::Relaxed);
        assert_eq!(self.sending.await.unwrap(), Vec::<String>::new());
        self.sent.load(Ordering::Relaxed)
    }
}

/// The number of connections of managers to Redis.
async fn connections(server: &Server) -> usize {
    let mut list = cmd("CLIENT");
    let list = list.arg("LIST");
    let list: String = list
        .query_async(&mut server.connection().await)
        .await
        .unwrap();
    list.matches("name=lisa-manager").count()
}

/// SHA-256 of `abc` and of `shop-token`.
const ABC: &str = "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad";
const SHOP: &str = "88cc4600551e64b7cb97dd7f63ebad405255e5d17bdd71ee9fe1ed5cc20d0b3b";

fn tokens(hashes: &[(&str, &str)]) -> String {
    let token = |(name, sha256): &(&str, &str)| {
        format!(
            "[[auth.tokens]]\nname = \"{name}\"\nsha256 = \"{sha256}\"\nscopes = [\"send\", \"read\"]\n"
        )
    };
    hashes.iter().map(token).collect()
}

#[tokio::test]
async fn a_reload_applies_tokens_and_topics_while_requests_go_on() {
    let server = Server::start();
    let old = format!("topics.t.lease = \"30s\"\n{}", tokens(&[("a", ABC)]));
    let both = format!(
        "topics.t.lease = \"45s\"\ntopics.u = {{}}\n{}",
        tokens(&[("a", ABC), ("b", SHOP)])
    );
    let new = format!("topics.t.lease = \"45s\"\n{}", tokens(&[("b", SHOP)]));
    let binary = Binary::Manager;
    let port = free_port();
    let process = binary.with(["run", "--with-producer"]);
    let process = process.config(&with_address(binary, port, &server, &old));
    let mut program = Program {
        process: process.start(),
        api: Api::new(port).token("abc"),
    };
    program.until_ready().await;
    let load = Load::start(&program.api, "t");
    load.go_on(20).await;
    let at_start = connections(&server).await;
    program.reload(binary, &server, &both, "applied").await;
    load.go_on(20).await;
    let topics = program.api.get_json("/v1/topics").await;
    let settings = topics["topics"].as_array().unwrap().iter();
    let leases: Vec<&Value> = settings.map(|topic| &topic["settings"]["lease"]).collect();
    assert_eq!(leases, [&json!("45s"), &json!("30s")], "{topics:#}");
    // The second token is known, so clients can change to it.
    let renewed = Api::new(port).token("shop-token");
    renewed.get("/v1/topics").await.expect(200);
    // Counters go on.
    let counted = program.metric("lisa_messages_sent_total").await;
    let sent = load.end().await;
    assert!(counted > 20 && counted <= sent, "{counted} of {sent}");
    program.reload(binary, &server, &new, "applied").await;
    program.api.get("/v1/topics").await.expect(401);
    renewed.get("/v1/topics").await.expect(200);
    // The earlier starts have ended with their connections, and one manager is left.
    for _ in 0..3 {
        program.reload(binary, &server, &both, "applied").await;
        program.reload(binary, &server, &new, "applied").await;
    }
    eventually(SOON, async || match connections(&server).await {
        left if left <= at_start => Ok(()),
        left => Err(format!("{left} connections, {at_start} at the start")),
    })
    .await;
    let managers = async || match renewed.get_json("/v1/stats").await["managers"].as_u64() {
        Some(1) => Ok(()),
        managers => Err(format!("{managers:?} managers")),
    };
    eventually(SOON, managers).await;
    let unchanged = program.reloads("unchanged").await;
    program.process.sighup();
    program.until_reloads("unchanged", unchanged + 1).await;
    program.end().await;
}

#[tokio::test]
async fn a_password_that_changes_in_its_file_needs_no_restart() {
    let server = Server::builder().acl("app on >first ~* &* +@all").start();
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("password");
    replace(&file, "first\n");
    let text = format!(
        "redis.username = \"app\"\nredis.password_file = \"{}\"\ntopics.t = {{}}",
        file.display()
    );
    let program = Program::start(Binary::Producer, &server, &text).await;
    let load = Load::start(&program.api, "t");
    load.go_on(10).await;
    let mut redis = server.connection().await;
    let mut acl = async |rule: &str| {
        let mut set = cmd("ACL");
        set.arg(&["SETUSER", "app", rule]);
        set.query_async::<()>(&mut redis).await.unwrap();
    };
    acl(">second").await;
    replace(&file, "second\n");
    program.until_reloads("applied", 1).await;
    acl("<first").await;
    load.go_on(10).await;
    load.end().await;
    // A password that Redis refuses: the connections stay, and the reason shows.
    replace(&file, "third\n");
    eventually(SOON, async || {
        match program.api.get("/readyz").await.expect(200) {
            reply
                if reply
                    .body
                    .contains("the new configuration is not in effect") =>
            {
                Ok(())
            }
            reply => Err(reply.body),
        }
    })
    .await;
    program.api.send("t", "x", &[]).await.expect(202);
    acl(">third").await;
    // The file did not change again, so SIGHUP asks for another try.
    let mut program = program;
    program.process.sighup();
    program.until_reloads("applied", 2).await;
    let ready = program.api.get("/readyz").await.expect(200);
    assert!(!ready.body.contains("not in effect"), "{ready:?}");
    // Another password does not make a wrong configuration good.
    program
        .reload(Binary::Producer, &server, "= =", "failed")
        .await;
    acl(">fourth").await;
    replace(&file, "fourth\n");
    program.until_reloads("applied", 3).await;
    let ready = program.api.get("/readyz").await.expect(200);
    assert!(ready.body.contains("not in effect"), "{ready:?}");
    program.end().await;
}

#[tokio::test]
async fn a_wrong_configuration_changes_nothing_and_shows() {
    let server = Server::start();
    let good = "topics.t.lease = \"30s\"";
    let mut program = Program::start(Binary::Producer, &server, good).await;
    let wrong = [
        "topics.t.lease = \"soon\"",
        "topics.t.leese = \"30s\"",
        "= =",
    ];
    for (earlier, wrong) in wrong.into_iter().enumerate() {
        program
            .reload(Binary::Producer, &server, wrong, "failed")
            .await;
        let ready = program.api.get("/readyz").await.expect(200);
        assert!(ready.body.contains("not in effect"), "{ready:?}");
        let log = program.process.stderr();
        assert_eq!(log.matches("not in effect").count(), earlier + 1, "{log}");
        program.api.send("t", "x", &[]).await.expect(202);
    }
    // An address that is in use.
    let taken = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let address = taken.local_addr().unwrap();
    let text = with_address(Binary::Producer, address.port(), &server, good);
    replace(&program.process.dir().join("lisa.toml"), &text);
    let failed = program.reloads("failed").await;
    program.process.sighup();
    program.until_reloads("failed", failed + 1).await;
    let ready = program.api.get("/readyz").await.expect(200);
    assert!(ready.body.contains("cannot listen on"), "{ready:?}");
    program
        .reload(Binary::Producer, &server, good, "unchanged")
        .await;
    let ready = program.api.get("/readyz").await.expect(200);
    assert_eq!(ready.json()["reasons"], json!([]));
    program.end().await;
}

#[tokio::test]
async fn a_listener_moves_to_its_new_address() {
    let mut server = Server::start();
    let text = "topics.t = {}";
    let mut program = Program::start(Binary::Producer, &server, text).await;
    let before = program.api.clone();
    program.api = Api::new(free_port());
    program.write(Binary::Producer, &server, text);
    // While the new start waits for Redis, clients of the new address wait: its certificate is not in use yet.
    server.pause();
    program.process.sighup();
    let connect = async || TcpStream::connect(program.api.address()).await;
    let mut early = eventually(SOON, connect).await;
    early
        .write_all(b"GET /healthz HTTP/1.0\r\n\r\n")
        .await
        .unwrap();
    let mut answer = String::new();
    let no_answer = timeout(ms(500), early.read_to_string(&mut answer)).await;
    assert!(no_answer.is_err(), "{answer}");
    server.resume();
    early.read_to_string(&mut answer).await.unwrap();
    assert!(answer.starts_with("HTTP/1.0 200 "), "{answer}");
    program.until_ready().await;
    program.api.send("t", "x", &[]).await.expect(202);
    eventually(SOON, async || {
        match TcpStream::connect(before.address()).await {
            Ok(_) => Err("still open"),
            Err(_) => Ok(()),
        }
    })
    .await;
    program.end().await;
}

/// A subscription of all messages of `t` with this webhook.
fn subscription(target: &Webhook, group: &str) -> String {
    let url = target.url();
    format!(
        "[[consumer.subscriptions]]\ntopic = \"t\"\ngroup = \"{group}\"\nsink = {{ type = \"http\", url = \"{url}\", allow_private = true }}"
    )
}

#[tokio::test(flavor = "multi_thread")]
async fn a_consumer_changes_its_sink_and_each_message_is_delivered_once() {
    let server = Server::start();
    let manager = Program::start(Binary::Manager, &server, "topics.t = {}").await;
    let producer = Program::start(Binary::Producer, &server, "").await;
    for group in ["default", "{instance}"] {
        let slow = |_: &_| Answer::status(200).after(ms(100));
        let (first, second) = (
            Webhook::answering(slow).await,
            Webhook::answering(slow).await,
        );
        let old = subscription(&first, group);
        let mut consumer = Program::start(Binary::Consumer, &server, &old).await;
        let messages = vec![json!({ "payload": "x" }); 300];
        producer.api.batch("t", &messages).await;
        let counts = || (first.count(), second.count());
        let begun = async || match counts() {
            (0, _) => Err("no delivery"),
            _ => Ok(()),
        };
        eventually(SOON, begun).await;
        let new = subscription(&second, group);
        consumer
            .reload(Binary::Consumer, &server, &new, "applied")
            .await;
        let delivered = async || match counts() {
            (first, second) if first + second >= 300 => Ok(()),
            counts => Err(format!("{counts:?}")),
        };
        eventually(SOON, delivered).await;
        consumer.end().await;
        let (of_first, of_second) = counts();
        assert_eq!(of_first + of_second, 300, "{group}: {of_first}");
        assert!(of_second > 0, "{group}");
    }
    producer.end().await;
    manager.end().await;
}

#[tokio::test]
async fn systemd_learns_of_a_reload() {
    let server = Server::start();
    let dir = tempfile::tempdir().unwrap();
    let socket = UnixDatagram::bind(dir.path().join("notify")).unwrap();
    let listen = format!("127.0.0.1:{}", free_port());
    let path = dir.path().join("notify");
    let process = Binary::Producer.with(["run", "--listen", &listen]);
    let process = process
        .config(&format!("redis.url = \"{}\"", server.url()))
        .env("NOTIFY_SOCKET", path.to_str().unwrap());
    let mut process = process.start();
    let next = async |text: &str| {
        let mut buffer = [0; 4096];
        loop {
            let length = timeout(SOON, socket.recv(&mut buffer)).await.expect(text);
            let message = String::from_utf8_lossy(&buffer[..length.unwrap()]).into_owned();
            if message.contains(text) {
                return message;
            }
        }
    };
    next("READY=1").await;
    process.sighup();
    let reloading = next("RELOADING=1").await;
    assert!(reloading.contains("MONOTONIC_USEC="), "{reloading}");
    next("READY=1").await;
    process.sigterm();
    next("STOPPING=1").await;
    assert_eq!(process.wait_exit(SOON).await.code(), Some(0));
}
