//! A role under systemd or in a container: what it tells systemd, and `healthcheck`.

use super::SOON;
use super::operators::lisa_manager;
use lisa_tests::{Answer, Launch, Server, Webhook, eventually, free_port};
use std::path::Path;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, UnixDatagram};
use tokio::time::timeout;

/// The socket on which systemd listens.
struct Systemd(UnixDatagram);

impl Systemd {
    fn at(path: &Path) -> Self {
        Self(UnixDatagram::bind(path).expect("a socket"))
    }

    /// Returns the messages up to the first that contains a text.
    async fn messages_to(&self, text: &str) -> Vec<String> {
        let mut messages = Vec::new();
        let mut buffer = [0; 4096];
        while !messages
            .last()
            .is_some_and(|last: &String| last.contains(text))
        {
            let message = timeout(SOON, self.0.recv(&mut buffer)).await;
            let length = message.unwrap_or_else(|_| panic!("no {text}: {messages:?}"));
            let message = String::from_utf8_lossy(&buffer[..length.expect("a message")]);
            messages.push(message.into_owned());
        }
        messages
    }
}

fn count(messages: &[String], text: &str) -> usize {
    let found = messages.iter().filter(|message| message.contains(text));
    found.count()
}

#[tokio::test]
async fn systemd_learns_what_the_role_waits_for_that_it_is_ready_alive_and_stopping() {
    let dir = tempfile::tempdir().unwrap();
    let socket = dir.path().join("notify");
    let systemd = Systemd::at(&socket);
    let mut server = Server::start();
    server.stop();
    let listen = format!("127.0.0.1:{}", free_port());
    let launch = lisa_manager(&server, &["run", "--listen", &listen])
        .env("NOTIFY_SOCKET", socket.to_str().unwrap())
        .env("WATCHDOG_USEC", "300000");
    let mut process = launch.start();
    let away = systemd.messages_to("STATUS=Redis unavailable").await;
    assert_eq!(count(&away, "READY=1"), 0, "{away:?}");
    server.restart();
    let ready = systemd.messages_to("READY=1").await;
    assert!(ready.last().unwrap().contains("STATUS=ready"), "{ready:?}");
    // It answers as soon as it says that it is ready.
    let health = lisa_manager(&server, &["healthcheck"]).env("LISA_MANAGER__LISTEN", &listen);
    let health = health.run(SOON).await;
    assert_eq!(health.code, Some(0), "{health:?}");
    for _ in 0..3 {
        systemd.messages_to("WATCHDOG=1").await;
    }
    // An outage of Redis shows, and is no reason to end the process.
    server.stop();
    let away = systemd.messages_to("STATUS=Redis unavailable").await;
    assert!(count(&away, "WATCHDOG=1") > 0, "{away:?}");
    systemd.messages_to("WATCHDOG=1").await;
    process.sigterm();
    systemd.messages_to("STOPPING=1").await;
    assert_eq!(process.wait_exit(SOON).await.code(), Some(0));
}

#[tokio::test]
async fn a_role_runs_and_stops_although_nobody_reads_what_it_reports_to_systemd() {
    let server = Server::start();
    let dir = tempfile::tempdir().unwrap();
    let unread = dir.path().join("notify");
    let _systemd = Systemd::at(&unread);
    for socket in [unread.to_str().unwrap(), "/nonexistent/notify"] {
        let listen = format!("127.0.0.1:{}", free_port());
        // A ping each millisecond fills the socket at once.
        let launch = lisa_manager(&server, &["run", "--listen", &listen])
            .env("NOTIFY_SOCKET", socket)
            .env("WATCHDOG_USEC", "3000")
            // Longer than this test waits for the end.
            .env("LISA_SHUTDOWN__GRACE", "5m");
        let mut process = launch.start();
        eventually(SOON, async || healthy(&server, &listen).await).await;
        tokio::time::sleep(std::time::Duration::from_secs(2)).await;
        healthy(&server, &listen).await.expect("healthy");
        process.sigterm();
        assert_eq!(process.wait_exit(SOON).await.code(), Some(0));
    }
}

fn healthcheck(server: &Server, manager: &str) -> Launch {
    lisa_manager(server, &["healthcheck"])
        .env("LISA_MANAGER__LISTEN", manager)
        .env("LISA_PRODUCER__LISTEN", "127.0.0.1:9")
        .env("LISA_CONSUMER__LISTEN", "127.0.0.1:9")
}

async fn healthy(server: &Server, manager: &str) -> Result<(), String> {
    let ended = healthcheck(server, manager).run(SOON).await;
    let is_healthy = ended.code == Some(0) && ended.stdout == "manager: healthy\n";
    is_healthy.then_some(()).ok_or_else(|| format!("{ended:?}"))
}

#[tokio::test]
async fn healthcheck_asks_the_roles_that_run_here() {
    let server = Server::start();
    let listen = format!("127.0.0.1:{}", free_port());
    let none = healthcheck(&server, &listen).run(SOON).await;
    assert_eq!(none.code, Some(1), "{none:?}");
    assert!(none.stderr.contains("no role runs here"), "{none:?}");

    let mut process = lisa_manager(&server, &["run", "--listen", &listen]).start();
    eventually(SOON, async || healthy(&server, &listen).await).await;

    // A process that hangs is not healthy: the time limit is that of the health check.
    process.stop();
    let hangs = healthcheck(&server, &listen).run(SOON).await;
    assert_eq!(hangs.code, Some(1), "{hangs:?}");
    assert!(hangs.stderr.contains("manager: no answer"), "{hangs:?}");
    process.cont();
    process.sigterm();
    assert_eq!(process.wait_exit(SOON).await.code(), Some(0));
}

#[tokio::test]
async fn healthcheck_does_not_wait_for_an_answer_that_never_begins() {
    let server = Server::start();
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
    let address = listener.local_addr().expect("an address").to_string();
    let answer = async {
        let (mut stream, _) = listener.accept().await.expect("a connection");
        let asked = stream.read(&mut [0; 4096]).await.expect("a request");
        assert!(asked > 0);
        let continues = "HTTP/1.1 100 Continue\r\n\r\n".repeat(1000);
        while stream.write_all(continues.as_bytes()).await.is_ok() {}
    };
    let check = healthcheck(&server, &address);
    let (checked, ()) = tokio::join!(check.run(SOON), answer);
    assert_eq!(checked.code, Some(1), "{checked:?}");
    assert!(checked.stderr.contains("manager: no answer"), "{checked:?}");
}

#[tokio::test]
async fn healthcheck_skips_an_address_where_another_program_answers() {
    let server = Server::start();
    let listen = format!("127.0.0.1:{}", free_port());
    // What listens where a producer would, and answers 404 to everything, is no sick producer.
    let other = Webhook::answering(|_| Answer::status(404)).await;
    let url: reqwest::Url = other.url().parse().unwrap();
    let other = format!("127.0.0.1:{}", url.port().unwrap());
    let check = || healthcheck(&server, &listen).env("LISA_PRODUCER__LISTEN", &other);
    let none = check().run(SOON).await;
    assert_eq!(none.code, Some(1), "{none:?}");
    assert!(none.stderr.contains("no role runs here"), "{none:?}");
    let _process = lisa_manager(&server, &["run", "--listen", &listen]).start();
    eventually(SOON, async || {
        let ended = check().run(SOON).await;
        let is_healthy = ended.code == Some(0) && ended.stdout == "manager: healthy\n";
        let names_it = ended
            .stderr
            .contains("producer: another program answers at");
        (is_healthy && names_it)
            .then_some(())
            .ok_or_else(|| format!("{ended:?}"))
    })
    .await;
}
