//! The listeners of the real programs with TLS: certificates, their renewal, clients that have certificates, and clients
//! that do not end their handshake.

mod files;
mod tools;

use files::{CERTIFICATE, Here, TOKENS};
use lisa_tests::tls::Authority;
use lisa_tests::{Api, Binary, SOON, Stopwatch, eventually, free_port};
use reqwest::Method;
use serde_json::json;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::time::timeout;

/// The begin of a handshake whose rest does not come.
const HALF: &[u8] = b"\x16\x03\x01\x02\x00\x01";
/// The listener's time limit for a handshake, and the extra time on a busy machine.
const HANDSHAKE: Duration = Duration::from_secs(10);
const SLACK: Duration = Duration::from_secs(4);

#[tokio::test]
async fn every_listener_of_every_role_speaks_tls_only() {
    let here = Here::new();
    let [dashboard, consumer, gateway] = [free_port(), free_port(), free_port()];
    let rest = format!(
        r#"
        [manager.dashboard]
        listen = "127.0.0.1:{dashboard}"
        [consumer]
        listen = "127.0.0.1:{consumer}"
        [consumer.gateway]
        listen = "127.0.0.1:{gateway}"
        sqs = true
        sqs_group = "g"
        "#
    );
    let combined = here
        .start(Binary::Manager, &["run", "--with-producer"], &rest)
        .await;
    let _consumer = here.launch(Binary::Consumer, &["run"], combined.port, &rest);
    let _producer = here.start(Binary::Producer, &["run"], "").await;
    here.ready(consumer).await;
    let stranger = Authority::new();
    for port in [combined.port, dashboard, consumer, gateway, _producer.port] {
        for path in ["/healthz", "/readyz", "/metrics"] {
            here.api(port).get(path).await.expect(200);
        }
        let plain = Api::new(port).get("/healthz").await.expect(400);
        assert!(plain.body.contains("use https://"), "{plain:?}");
        assert_eq!(plain.header("connection"), "close");
        let refused = Api::over_tls(port, &stranger, None)
            .refused("/healthz")
            .await;
        assert!(refused.contains("UnknownIssuer"), "{refused}");
    }
    // The URL of a queue is that of its listener.
    let url = here.api(gateway).request(Method::POST, "/");
    let url = url
        .header("x-amz-target", "AmazonSQS.GetQueueUrl")
        .header("content-type", "application/x-amz-json-1.0")
        .body(json!({"QueueName": "t"}).to_string());
    let text = url.send().await.unwrap().text().await.unwrap();
    assert!(
        text.contains(&format!("https://127.0.0.1:{gateway}/")),
        "{text}"
    );
}

#[tokio::test]
async fn a_certificate_is_renewed_while_requests_run_and_none_fails() {
    let here = Here::new();
    let role = here.start(Binary::Producer, &["run"], "").await;
    let (ended, sent) = (
        Arc::new(AtomicBool::new(false)),
        Arc::new(AtomicU64::new(0)),
    );
    let send = async |api: &Api| {
        api.send("t", "x", &[("Lisa-Delay", "1h")])
            .await
            .expect(202);
        sent.fetch_add(1, Ordering::Relaxed);
    };
    let until_ended = async |each: bool| {
        let mut api = here.api(role.port);
        while !ended.load(Ordering::Relaxed) {
            if each {
                api = here.api(role.port);
            }
            send(&api).await;
        }
    };
    let renewals = async {
        for (year, expires) in [(2040, "2208988800"), (2050, "2524608000")] {
            here.put(CERTIFICATE, &here.authority.server_until(year));
            let before = sent.load(Ordering::Relaxed);
            let metric = format!("lisa_http_certificate_expiry_timestamp_seconds{{}} {expires}\n");
            eventually(SOON, async || {
                let metrics = role.api.get("/metrics").await.expect(200).body;
                metrics.contains(&metric).then_some(()).ok_or(metrics)
            })
            .await;
            eventually(SOON, async || match sent.load(Ordering::Relaxed) {
                now if now > before + 20 => Ok(()),
                now => Err(format!("{now} sent, {before} before")),
            })
            .await;
        }
        ended.store(true, Ordering::Relaxed);
    };
    tokio::join!(until_ended(false), until_ended(true), renewals);
    assert_eq!(
        role.process
            .stderr()
            .matches("using a new certificate")
            .count(),
        2
    );
}

#[tokio::test]
async fn an_unusable_new_certificate_is_reported_and_the_old_one_stays() {
    let here = Here::new();
    let role = here.start(Binary::Producer, &["run"], "").await;
    let reasons = async |text: &str| {
        eventually(SOON, async || {
            let body = role.api.get("/readyz").await.expect(200).body;
            match body.contains(text) && (!text.is_empty() || body.contains("[]")) {
                true => Ok(()),
                false => Err(body),
            }
        })
        .await;
    };
    let stranger = Authority::new().server();
    std::fs::write(here.path("server.key"), &stranger.key).unwrap();
    reasons("the previous certificate stays in use").await;
    std::fs::write(here.path("server.pem"), "no PEM").unwrap();
    reasons("no certificates").await;
    // Each problem is in the log once, and new connections still work.
    here.api(role.port).get("/healthz").await.expect(200);
    let log = role.process.stderr();
    assert_eq!(log.matches("stays in use").count(), 2, "{log}");
    here.put(CERTIFICATE, &here.authority.server_until(2040));
    reasons("").await;
}

#[tokio::test]
async fn an_expired_certificate_is_a_warning_and_clients_refuse_it() {
    let here = Here::new();
    here.put(CERTIFICATE, &here.authority.server_until(2021));
    let port = free_port();
    let process = here.launch(Binary::Producer, &["run"], port, "");
    eventually(SOON, async || {
        match TcpStream::connect(("127.0.0.1", port)).await {
            Ok(_) => Ok(()),
            Err(error) => Err(error.to_string()),
        }
    })
    .await;
    let refused = here.api(port).refused("/readyz").await;
    assert!(refused.contains("Expired"), "{refused}");
    let warning = "expired at 2021-01-01T00:00:00.000Z";
    assert!(process.stderr().contains(warning), "{}", process.stderr());
    // It recovers without a restart.
    here.put(CERTIFICATE, &here.authority.server_until(2040));
    here.ready(port).await;
}

#[tokio::test]
async fn a_client_certificate_is_a_token_and_one_of_another_authority_is_refused() {
    let here = Here::new();
    let clients = Authority::new();
    here.write("clients.pem", clients.pem());
    let rest = format!(
        "http.tls.client_ca_file = {:?}\n{TOKENS}",
        here.path("clients.pem")
    );
    let role = here
        .start_with(Binary::Manager, &["run", "--with-producer"], &rest)
        .await;
    let api = |identity| Api::over_tls(role.port, &here.authority, identity);
    let (orders, reports) = (
        clients.client_named("orders.internal"),
        clients.client_named("reports.internal"),
    );
    let nobody = clients.client_named("nobody.internal");
    api(Some(&orders))
        .send("t", "x", &[("Lisa-Id", "a"), ("Lisa-Delay", "1h")])
        .await
        .expect(202);
    api(Some(&orders)).get("/v1/stats").await.expect(403);
    api(Some(&reports)).get("/v1/stats").await.expect(200);
    api(Some(&reports)).send("t", "x", &[]).await.expect(403);
    api(Some(&nobody)).get("/v1/stats").await.expect(401);
    // Without a certificate: health checks, and bearer tokens.
    api(None).get("/v1/stats").await.expect(401);
    api(None).get("/healthz").await.expect(200);
    api(None)
        .token("read-token")
        .get("/v1/stats")
        .await
        .expect(200);
    let strange = Authority::new().client_named("orders.internal");
    let refused = api(Some(&strange)).refused("/v1/stats").await;
    assert!(refused.contains("UnknownCA"), "{refused}");
    let expired = clients.expired_client();
    let refused = api(Some(&expired)).refused("/v1/stats").await;
    assert!(refused.contains("CertificateExpired"), "{refused}");
}

#[tokio::test]
async fn a_hundred_stalled_handshakes_hold_nobody_up_and_end() {
    let here = Here::new();
    let role = here.start(Binary::Producer, &["run"], "").await;
    let watch = Stopwatch::start();
    let mut stalled = Vec::new();
    for turn in 0..100 {
        let mut stream = TcpStream::connect(("127.0.0.1", role.port)).await.unwrap();
        stream
            .write_all(&HALF[..turn % (HALF.len() + 1)])
            .await
            .unwrap();
        stalled.push(stream);
    }
    for _ in 0..20 {
        here.api(role.port)
            .send("t", "x", &[("Lisa-Delay", "1h")])
            .await
            .expect(202);
    }
    let served = watch.elapsed();
    assert!(served <= watch.limit(Duration::ZERO, SLACK), "{served:?}");
    for mut stream in stalled {
        let limit = watch
            .limit(HANDSHAKE, SLACK)
            .saturating_sub(watch.elapsed());
        let mut rest = Vec::new();
        let ended = timeout(limit.max(SLACK), stream.read_to_end(&mut rest)).await;
        assert!(ended.is_ok(), "open after {:?}", watch.elapsed());
    }
}

#[tokio::test]
async fn a_stalled_handshake_holds_the_only_slot_for_its_time_limit_only() {
    let here = Here::new();
    let rest = "http.max_connections = 1\n";
    let port = free_port();
    let process = here.launch_with(Binary::Producer, &["run"], port, rest);
    // A kept connection would hold the slot itself.
    let ask = async || {
        here.api(port)
            .request(Method::GET, "/readyz")
            .header("connection", "close")
    };
    eventually(SOON, async || match ask().await.send().await {
        Ok(reply) if reply.status() == 200 => Ok(()),
        other => Err(format!("{other:?} {}", process.stderr())),
    })
    .await;
    let watch = Stopwatch::start();
    let mut stalled = TcpStream::connect(("127.0.0.1", port)).await.unwrap();
    stalled.write_all(HALF).await.unwrap();
    let answered = ask().await.send().await.unwrap();
    assert_eq!(answered.status(), 200);
    let (took, limit) = (watch.elapsed(), watch.limit(HANDSHAKE, SLACK));
    assert!(took <= limit, "{took:?}, more than {limit:?}");
}
