//! Handshakes, certificates of clients, and clients that do not speak TLS.

use tokio_rustls::rustls::pki_types::CertificateDer;

use super::wire::Duplex;
use super::*;

const ASK: &str = "GET /healthz HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n";
/// The begin of a handshake whose rest does not come: 512 bytes are announced.
const HALF: &[u8] = b"\x16\x03\x01\x02\x00\x01";

fn slots(max_connections: usize, header_timeout: Duration) -> HttpLimits {
    HttpLimits {
        max_connections,
        header_timeout,
        ..HttpLimits::default()
    }
}

async fn ask(stream: &mut (impl Duplex + ?Sized), request: &str) -> std::io::Result<String> {
    stream.write_all(request.as_bytes()).await?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer).await?;
    Ok(answer)
}

#[tokio::test]
async fn plain_http_is_answered_with_a_sentence() {
    let server = Over::Tls.start(HttpLimits::default()).await;
    let body = "x".repeat(100_000);
    for request in [
        ASK.to_owned(),
        // The connection ends although the client wants to keep it.
        "GET /send HTTP/1.1\r\nhost: x\r\nauthorization: Bearer abc\r\n\r\n".to_owned(),
        format!("POST /echo HTTP/1.1\r\nhost: x\r\ncontent-length: 100000\r\n\r\n{body}"),
    ] {
        let mut plain: Wire = Box::new(TcpStream::connect(server.socket.address()).await.unwrap());
        plain.write_all(request.as_bytes()).await.unwrap();
        let answer = rest(&mut plain).await;
        assert_problem(&answer, 400, "malformed");
        assert!(answer.contains("use https://"), "{answer}");
    }
}

#[tokio::test]
async fn the_end_of_a_response_is_authenticated_and_the_protocol_agreed() {
    let server = Over::Tls.start(HttpLimits::default()).await;
    let mut stream = server.client.handshake().await.unwrap();
    assert_eq!(stream.get_ref().1.alpn_protocol(), Some(&b"http/1.1"[..]));
    // Without the message of TLS that ends the stream, this would be an error.
    let answer = ask(&mut stream, ASK).await.unwrap();
    assert!(answer.starts_with("HTTP/1.1 200 "), "{answer}");
}

#[tokio::test]
async fn a_client_that_closes_tcp_alone_gets_its_answer() {
    let server = Over::Tls.start(HttpLimits::default()).await;
    let mut stream = server.client.handshake().await.unwrap();
    let request = b"GET /slow HTTP/1.1\r\nhost: x\r\n\r\n";
    stream.write_all(request).await.unwrap();
    server.arrived.notified().await;
    // Without a message of TLS.
    rustix::net::shutdown(stream.get_ref().0, rustix::net::Shutdown::Write).unwrap();
    server.go_on.notify_one();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).await.unwrap();
    assert!(answer.ends_with("done"), "{answer}");
}

#[tokio::test]
async fn a_handshake_that_does_not_end_holds_a_slot_for_a_moment_only() {
    let server = Over::Tls.start(slots(1, FAIR * 4)).await;
    for begin in [&b""[..], HALF] {
        let mut stalled = TcpStream::connect(server.socket.address()).await.unwrap();
        stalled.write_all(begin).await.unwrap();
        assert!(server.get("/healthz").await.starts_with("HTTP/1.1 200 "));
    }
    // One byte at a time does not extend it.
    let mut slow = TcpStream::connect(server.socket.address()).await.unwrap();
    slow.write_all(HALF).await.unwrap();
    tokio::spawn(async move {
        while slow.write_all(b"\0").await.is_ok() {
            tokio::time::sleep(FAIR / 10).await;
        }
    });
    assert!(server.get("/healthz").await.starts_with("HTTP/1.1 200 "));
}

#[tokio::test]
async fn stalled_handshakes_do_not_delay_others() {
    let server = Over::Tls.start(slots(101, PATIENCE * 10)).await;
    let mut stalled = Vec::new();
    for _ in 0..100 {
        let mut stream = TcpStream::connect(server.socket.address()).await.unwrap();
        stream.write_all(HALF).await.unwrap();
        stalled.push(stream);
    }
    for _ in 0..10 {
        assert!(server.get("/healthz").await.starts_with("HTTP/1.1 200 "));
    }
    server.shutdown.begin();
    let ended = timeout(PATIENCE, server.serving).await;
    ended
        .expect("handshakes end with the shutdown")
        .unwrap()
        .unwrap();
}

#[tokio::test]
async fn a_certificate_of_a_client_is_a_token() {
    let identities = Identities::new();
    let server = identities.start(HttpLimits::default()).await;
    let address = server.socket.address();
    for name in ["orders.internal", "reports.internal", "nobody.internal"] {
        identities.write(name, identities.params(name));
    }
    let mut both = identities.params("orders.internal");
    let reports = "reports.internal".try_into().unwrap();
    both.subject_alt_names
        .push(rcgen::SanType::DnsName(reports));
    identities.write("both", both);
    let get = async |name: Option<&str>, path: &str, more: &str| {
        let mut stream = identities.client(address, name).handshake().await.unwrap();
        let request = format!("GET {path} HTTP/1.1\r\nhost: x\r\nconnection: close\r\n{more}\r\n");
        let answer = ask(&mut stream, &request).await.unwrap();
        answer["HTTP/1.1 ".len()..][..3].to_owned()
    };
    let bearer = "authorization: Bearer abc\r\n";
    let wrong = "authorization: Bearer abd\r\n";
    for (name, path, more, status) in [
        (Some("orders.internal"), "/send", "", "200"),
        (Some("orders.internal"), "/read", "", "403"),
        (Some("reports.internal"), "/read", "", "200"),
        (Some("both"), "/send", "", "200"),
        (Some("both"), "/read", "", "200"),
        (Some("nobody.internal"), "/send", "", "401"),
        (None, "/send", "", "401"),
        // The header decides if there is one.
        (None, "/send", bearer, "200"),
        (Some("nobody.internal"), "/send", bearer, "200"),
        (Some("orders.internal"), "/send", wrong, "401"),
    ] {
        let answer = get(name, path, more).await;
        assert_eq!(answer, status, "{name:?} {path} {more}");
    }
    let stranger = Identities::new();
    stranger.write("orders.internal", stranger.params("orders.internal"));
    for end in [".pem", ".key"] {
        let file = format!("orders.internal{end}");
        std::fs::copy(
            stranger.path(&file),
            identities.path(&format!("stranger{end}")),
        )
        .unwrap();
    }
    let mut stream = identities
        .client(address, Some("stranger"))
        .handshake()
        .await
        .unwrap();
    let refused = ask(&mut stream, ASK).await.unwrap_err().to_string();
    assert!(refused.contains("UnknownCA"), "{refused}");
}

#[tokio::test]
async fn a_page_of_another_site_cannot_use_the_certificate_of_a_browser() {
    let identities = Identities::new();
    let server = identities.start(HttpLimits::default()).await;
    identities.write("orders.internal", identities.params("orders.internal"));
    let client = identities.client(server.socket.address(), Some("orders.internal"));
    let post = "POST /deposit HTTP/1.1\r\nhost: lisa.internal\r\nconnection: close\r\ncontent-length: 0\r\n";
    for (more, status) in [
        ("", 200),
        ("sec-fetch-site: same-origin\r\n", 200),
        ("sec-fetch-site: cross-site\r\n", 403),
        ("origin: https://evil.example\r\n", 403),
        // No page of another site has the token.
        (
            "sec-fetch-site: cross-site\r\nauthorization: Bearer abc\r\n",
            200,
        ),
    ] {
        let mut stream = client.handshake().await.unwrap();
        let answer = ask(&mut stream, &format!("{post}{more}\r\n"))
            .await
            .unwrap();
        let expected = format!("HTTP/1.1 {status} ");
        assert!(answer.starts_with(&expected), "{more}: {answer}");
    }
}

#[tokio::test]
async fn a_new_certificate_is_for_new_connections_and_a_new_authority_for_all() {
    let identities = Identities::new();
    identities.write("orders.internal", identities.params("orders.internal"));
    let tls = identities.tls();
    let client = |address| identities.client(address, Some("orders.internal"));
    let server = Server::start(HttpLimits::default(), tls.clone(), client).await;
    let own = |stream: &tokio_rustls::client::TlsStream<TcpStream>| {
        let chain = stream.get_ref().1.peer_certificates().unwrap();
        CertificateDer::into_owned(chain[0].clone())
    };
    let mut old = server.client.handshake().await.unwrap();
    let send = b"GET /send HTTP/1.1\r\nhost: x\r\n\r\n";
    let mut status = async || {
        old.write_all(send).await.unwrap();
        let mut answer = String::new();
        // The answer has no body, or a problem.
        while !answer.ends_with("in") && !answer.ends_with('}') {
            let mut buffer = [0; 4096];
            let read = old.read(&mut buffer).await.unwrap();
            answer.push_str(std::str::from_utf8(&buffer[..read]).unwrap());
        }
        answer["HTTP/1.1 ".len()..][..3].to_owned()
    };
    assert_eq!(status().await, "200");
    let before = own(&server.client.handshake().await.unwrap());
    identities.write("server", identities.params("lisa.internal"));
    tls.set(Some(&identities.files())).unwrap();
    let after = own(&server.client.handshake().await.unwrap());
    assert_ne!(before, after);
    assert_eq!(status().await, "200");
    // The connection stays, but its client is unknown.
    let stranger = Identities::new();
    std::fs::copy(stranger.path("ca.pem"), identities.path("other.pem")).unwrap();
    let files = crate::config::ListenerTls {
        client_ca_file: Some(identities.path("other.pem")),
        ..identities.files()
    };
    tls.set(Some(&files)).unwrap();
    assert_eq!(status().await, "401");
    tls.set(Some(&identities.files())).unwrap();
    assert_eq!(status().await, "200");
}
