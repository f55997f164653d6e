//! Addresses that lead to something else than they say: the error says what is there, and what to write.

use std::time::Duration;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpListener;

use super::super::testing::{Fake, is_down, link_with, say, status};
use super::super::{LinkSettings, LinkStatus, Place};

/// What a link to this address meets, and whether a starting process stops at it.
async fn met(url: String) -> (String, bool) {
    let link = link_with(LinkSettings {
        connect_timeout: Duration::from_millis(300),
        ..LinkSettings::new(url.parse().unwrap())
    });
    match status(&link, is_down).await {
        LinkStatus::Down { reason, fatal, .. } => (reason, fatal),
        other => unreachable!("{other:?}"),
    }
}

/// The host and the port of a fake.
fn address(fake: &Fake) -> String {
    match fake.url.place() {
        Place::Tcp { host, port, .. } => format!("{host}:{port}"),
        other => panic!("a fake listens on TCP: {other:?}"),
    }
}

#[tokio::test]
async fn a_sentinel_by_the_address_of_a_server() {
    for (masters, name) in [
        ("*1\r\n$4\r\nmain", "main"),
        ("*2\r\n$1\r\na\r\n$1\r\nb", "<name of the master>"),
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
            "a sentinel answers there and not the server it watches: write redis+sentinel://{there}/{name}"
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
        "sentinel {there}: a server answers there and not a sentinel: write redis://{there}, or \
         redis+cluster://{there} for a node of a cluster"
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
        let (reason, fatal) = met(url).await;
        assert!(!fatal);
        let expected = "its address begins with redis and not rediss";
        assert!(reason.contains(expected), "{reason}");
    }
}

/// Redis closes; others send an alert of TLS first.
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
            let expected = "its address begins with rediss and not redis";
            assert!(reason.contains(expected), "{reason}");
        }
        serving.abort();
    }
}
