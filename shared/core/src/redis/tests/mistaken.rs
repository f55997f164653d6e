//! Addresses that lead to something other than they say: the error names what is there and what to use.

use std::time::Duration;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpListener;

use super::super::testing::{Fake, connection_with, is_down, say, status};
use super::super::{ConnectionSettings, ConnectionStatus, Endpoint};

/// Returns the reason why a connection to this address is down, and whether it is fatal.
async fn met(url: String) -> (String, bool) {
    let connection = connection_with(ConnectionSettings {
        connect_timeout: Duration::from_millis(300),
        ..ConnectionSettings::new(url.parse().unwrap())
    });
    match status(&connection, is_down).await {
        ConnectionStatus::Down { reason, fatal, .. } => (reason, fatal),
        other => unreachable!("{other:?}"),
    }
}

/// Returns the host and the port of a fake.
fn address(fake: &Fake) -> String {
    match fake.url.endpoint() {
        Endpoint::Tcp { host, port, .. } => format!("{host}:{port}"),
        other => panic!("a fake listens on TCP: {other:?}"),
    }
}

#[tokio::test]
async fn a_sentinel_by_the_address_of_a_server() {
    for (masters, name) in [
        ("*1\r\n$4\r\nmain", "main"),
        ("*2\r\n$1\r\na\r\n$1\r\nb", "<master name>"),
    ] {
        let role = format!("*2\r\n$8\r\nsentinel\r\n{masters}");
        let fake = Fake::start(move |_, words| match words[0].as_str() {
            "TIME" => say("-ERR unknown command 'TIME', with args beginning with: "),
            "ROLE" => say(&role),
            _ => None,
        })
        .await;
        let there = address(&fake);
        let (reason, fatal) = met(format!("redis://{there}")).await;
        assert!(fatal);
        let expected = format!(
            "this is a sentinel, not the server it watches; use redis+sentinel://{there}/{name}"
        );
        assert!(reason.ends_with(&expected), "{reason}");
    }
}

#[tokio::test]
async fn a_server_that_lacks_a_command_is_not_called_a_sentinel() {
    let fake = Fake::start(|_, words| match words[0].as_str() {
        "TIME" => say("-ERR unknown command 'TIME', with args beginning with: "),
        "ROLE" => say("*3\r\n$6\r\nmaster\r\n:0\r\n*0"),
        _ => None,
    })
    .await;
    let (reason, fatal) = met(fake.url.to_string()).await;
    assert!(fatal);
    assert!(reason.contains("unknown command 'TIME'"), "{reason}");
}

#[tokio::test]
async fn a_server_by_the_address_of_a_sentinel() {
    let fake = Fake::start(|_, words| match words[0].as_str() {
        "SENTINEL" => say("-ERR unknown command 'SENTINEL', with args beginning with: "),
        _ => None,
    })
    .await;
    let there = address(&fake);
    let (reason, fatal) = met(format!("redis+sentinel://{there}/main")).await;
    assert!(fatal);
    let expected = format!(
        "sentinel {there}: this is a server, not a sentinel; use redis://{there}, or \
         redis+cluster://{there} for a cluster node"
    );
    assert!(reason.ends_with(&expected), "{reason}");
}

#[tokio::test]
async fn a_server_without_tls_by_an_address_with_tls() {
    let mute = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let there = mute.local_addr().unwrap();
    for url in [
        format!("rediss://{there}"),
        format!("rediss+sentinel://{there}/main"),
        format!("rediss+cluster://{there}"),
    ] {
        let expected = "its address starts with redis, not rediss";
        // On a busy machine, the time for all addresses may be over before that of this one.
        for left in (0..20).rev() {
            let (reason, fatal) = met(url.clone()).await;
            assert!(!fatal);
            if reason.contains(expected) {
                break;
            }
            assert!(left > 0, "{reason}");
        }
    }
}

/// Redis closes the socket; other servers send a TLS alert first.
#[tokio::test]
async fn a_server_with_tls_by_an_address_without() {
    const ALERT: &[u8] = &[0x15, 3, 3, 0, 2, 2, 10];
    for alert in [&[], ALERT] {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let there = listener.local_addr().unwrap();
        let serving = tokio::spawn(async move {
            while let Ok((mut socket, _)) = listener.accept().await {
                let _ = socket.read(&mut [0; 1]).await;
                let _ = socket.write_all(alert).await;
            }
        });
        for url in [
            format!("redis://{there}"),
            format!("redis+sentinel://{there}/main"),
            format!("redis+cluster://{there}"),
        ] {
            let (reason, fatal) = met(url).await;
            assert!(!fatal);
            let expected = "its address starts with rediss, not redis";
            assert!(reason.contains(expected), "{reason}");
        }
        serving.abort();
    }
}

/// Redis sends the error as soon as it accepts, and does not wait for a request.
#[tokio::test]
async fn a_server_that_refuses_the_connection_is_quoted() {
    const REFUSALS: [(&str, bool); 2] = [
        ("ERR max number of clients reached", false),
        ("DENIED Redis is running in protected mode", true),
    ];
    let cases = REFUSALS
        .into_iter()
        .flat_map(|refusal| [0, 1].map(|reads| (refusal, reads)));
    for ((refusal, is_fatal), reads) in cases {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let there = listener.local_addr().unwrap();
        let serving = tokio::spawn(async move {
            while let Ok((mut socket, _)) = listener.accept().await {
                let _ = socket.read(&mut vec![0; reads]).await;
                let _ = socket.write_all(format!("-{refusal}\r\n").as_bytes()).await;
            }
        });
        for url in [
            format!("redis://{there}"),
            format!("redis+sentinel://{there}/main"),
            format!("redis+cluster://{there}"),
        ] {
            let (reason, fatal) = met(url).await;
            assert_eq!(fatal, is_fatal, "{reason}");
            assert!(reason.contains(refusal), "{reason}");
            assert!(!reason.contains("TLS"), "{reason}");
        }
        serving.abort();
    }
}
