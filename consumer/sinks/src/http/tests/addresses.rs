//! The addresses that a webhook may be sent to.

use std::net::IpAddr;

use super::*;

#[tokio::test]
async fn private_addresses_are_refused_in_all_spellings_without_a_connection() {
    let mut server = Server::start(OK, Then::Next).await;
    let port = server.address.port();
    for host in [
        "127.0.0.1",
        "localhost",
        "LOCALHOST",
        "localhost.",
        "hooks.localhost",
        "2130706433",
        "0x7f.1",
        "0177.0.0.1",
        "127.1",
        "127.0.0.1.",
        "%31%32%37.0.0.1",
        "１２７.0.0.1",
        "0.0.0.0",
        "[::1]",
        "[::]",
        "[::ffff:127.0.0.1]",
        "[::ffff:7f00:1]",
        "[::127.0.0.1]",
        "[64:ff9b::127.0.0.1]",
        "169.254.169.254",
        "2852039166",
        "0xa9fea9fe",
        "0251.0376.0251.0376",
        "169.254.43518",
        "[::ffff:169.254.169.254]",
        "[64:ff9b::a9fe:a9fe]",
        "[fd00:ec2::254]",
        "[fe80::a9fe:a9fe]",
        "100.64.0.1",
        "10.0.0.1",
    ] {
        // Refused before the first message, so that none is taken.
        let refused = HttpSink::new(HttpSinkSettings {
            allow_private: false,
            ..settings(format!("http://{host}:{port}/"))
        });
        let error = refused.expect_err(host).to_string();
        assert!(
            error.ends_with("refused unless allow_private = true"),
            "{host}: {error}"
        );
    }
    assert!(server.requests.try_recv().is_err());
    let allowed = send(settings(format!("http://localhost:{port}/")), "x").await;
    assert_eq!(allowed, Outcome::Ack);
    assert_eq!(
        server.request().headers["host"],
        format!("localhost:{port}")
    );
}

#[tokio::test]
async fn a_name_that_changes_its_address_is_checked_each_time_and_gains_nothing() {
    /// The answers of an attacker's name servers, one after the other.
    const ANSWERS: [&[&str]; 8] = [
        &["127.0.0.1"],
        &["1.1.1.1", "127.0.0.1"],
        &["169.254.169.254"],
        &["::ffff:127.0.0.1"],
        &["64:ff9b::7f00:1"],
        &["fd00:ec2::254"],
        &["100.64.0.1"],
        &[],
    ];
    static ASKED: AtomicUsize = AtomicUsize::new(0);
    let mut server = Server::start(OK, Then::Next).await;
    let settings = HttpSinkSettings {
        allow_private: false,
        ..settings(format!("http://hook.example:{}/", server.address.port()))
    };
    let rebinding: Lookup = |_| {
        let answer = ANSWERS[ASKED.fetch_add(1, Ordering::Relaxed)];
        let found = answer
            .iter()
            .map(|text| (text.parse::<IpAddr>().unwrap(), 0));
        let found = found.map(SocketAddr::from).collect();
        Box::pin(async { Ok(found) })
    };
    let sink = HttpSink::with_lookup(settings, rebinding).unwrap();
    for (asked, answer) in ANSWERS.iter().enumerate() {
        let outcome = sink.handle(delivery("x"), context()).await;
        let Outcome::Retry { after: None, error } = outcome else {
            panic!("{answer:?}: {outcome:?}");
        };
        let refused = error.ends_with("refused unless allow_private = true");
        assert!(refused || error.ends_with("has no address"), "{error}");
        assert_eq!(
            ASKED.load(Ordering::Relaxed),
            asked + 1,
            "asked once a delivery"
        );
    }
    assert!(server.requests.try_recv().is_err());
}

#[tokio::test]
async fn the_connection_goes_to_the_addresses_that_were_checked() {
    static ASKED: AtomicUsize = AtomicUsize::new(0);
    let server = Server::start(OK, Then::Next).await;
    let settings = settings(format!("http://hook.example:{}/", server.address.port()));
    // Only the first answer leads to the server.
    let rebinding: Lookup = |_| {
        let last = ASKED.fetch_add(1, Ordering::Relaxed) as u8 + 1;
        Box::pin(async move { Ok(vec![SocketAddr::from(([127, 0, 0, last], 0))]) })
    };
    let sink = HttpSink::with_lookup(settings, rebinding).unwrap();
    assert_eq!(sink.handle(delivery("x"), context()).await, Outcome::Ack);
    assert_eq!(ASKED.load(Ordering::Relaxed), 1);
}

#[tokio::test]
async fn a_name_that_does_not_resolve_is_a_retry_that_names_it() {
    for allow_private in [false, true] {
        let error = error_of_retry(HttpSinkSettings {
            allow_private,
            ..settings("http://nothing.invalid/")
        });
        let error = error.await;
        assert!(
            error.starts_with("cannot resolve \"nothing.invalid\": "),
            "{error}"
        );
    }
}
