//! Each row of the error table, met on a connection.

use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::time::Duration;

use redis::{Value, cmd};

use super::super::errors::{Action, CODES, ConnectionErrorKind, TEXTS};
use super::super::testing::{Answer, Fake, SOON, is_down, quick_connection, say, status};
use super::super::{ConnectionStatus, Script};

/// A server that answers the first GET with an error and all later ones with OK.
async fn stumbling(error: String) -> Fake {
    let asked = AtomicU32::new(0);
    Fake::start(move |_, words| match words[0].as_str() {
        "GET" if asked.fetch_add(1, Ordering::SeqCst) == 0 => say(&error),
        _ => None,
    })
    .await
}

#[tokio::test]
async fn every_code_of_the_table_is_retried_rebuilt_or_returned_as_it_says() {
    let codes = CODES
        .iter()
        .map(|row| (format!("-{} text", row.0), row.1, row.2));
    let texts = TEXTS
        .iter()
        .map(|row| (format!("-ERR {} text", row.0), row.1, row.2));
    for (error, action, kind) in codes.chain(texts) {
        let fake = stumbling(error.clone()).await;
        let connection = quick_connection(fake.url.clone());
        let got = connection.any().call(cmd("GET").arg("k"), SOON).await;
        match action {
            Action::Retry => {
                assert_eq!(got.unwrap(), Value::Okay, "{error}");
                assert_eq!(
                    (fake.connections(), fake.count_of("GET")),
                    (1, 2),
                    "{error}"
                );
            }
            Action::Rebuild => {
                assert_eq!(got.unwrap(), Value::Okay, "{error}");
                assert_eq!(
                    (fake.connections(), fake.count_of("GET")),
                    (2, 2),
                    "{error}"
                );
            }
            Action::Redirect => {
                let got = got.unwrap_err();
                assert_eq!(got.kind, ConnectionErrorKind::NotSupported, "{error}");
                assert_eq!(fake.count_of("GET"), 1, "{error}");
            }
            Action::RebuildSlowly | Action::GiveUp | Action::LoadScript => {
                let got = got.unwrap_err();
                assert_eq!((got.kind, got.maybe_applied), (kind, false), "{error}");
                assert_eq!(got.what, "GET");
                assert_eq!(fake.count_of("GET"), 1, "{error}");
            }
        }
    }
}

#[tokio::test]
async fn a_code_that_never_ends_is_reported_at_the_deadline_as_not_applied() {
    let fake = Fake::start(|_, words| {
        (words[0] == "GET").then(|| Answer::Say("-LOADING wait\r\n".into()))
    })
    .await;
    let connection = quick_connection(fake.url.clone());
    let error = connection
        .any()
        .call(cmd("GET").arg("k"), Duration::from_millis(1500))
        .await
        .unwrap_err();
    assert_eq!(
        (error.kind, error.code.as_deref()),
        (ConnectionErrorKind::Unavailable, Some("LOADING"))
    );
    assert!(error.is_retryable() && !error.maybe_applied);
    assert!(fake.count_of("GET") >= 2);
}

#[tokio::test]
async fn an_error_among_the_replies_of_a_pipeline_is_an_error_of_the_pipeline() {
    let fake = Fake::start(|_, words| {
        (words[0] == "GET").then(|| Answer::Say("*1\r\n-WRONGTYPE no\r\n".into()))
    })
    .await;
    let connection = quick_connection(fake.url.clone());
    let mut pipeline = redis::pipe();
    pipeline.cmd("SET").arg("k").arg(1).cmd("GET").arg("k");
    let error = connection
        .any()
        .pipeline(&pipeline, SOON)
        .await
        .unwrap_err();
    assert_eq!(
        (error.kind, error.maybe_applied),
        (ConnectionErrorKind::WrongType, true)
    );
    assert_eq!(
        connection
            .any()
            .pipeline(&redis::pipe(), SOON)
            .await
            .unwrap(),
        []
    );
}

#[tokio::test]
async fn a_lost_reply_is_asked_for_again_on_a_new_connection() {
    let fake = Fake::start(|connection, words| {
        (words[0] == "GET" && connection == 1).then_some(Answer::Close)
    })
    .await;
    let connection = quick_connection(fake.url.clone());
    assert_eq!(
        connection
            .any()
            .call(cmd("GET").arg("k"), SOON)
            .await
            .unwrap(),
        Value::Okay
    );
    assert_eq!(fake.connections(), 2);
}

#[tokio::test]
async fn a_request_whose_replies_are_always_lost_may_have_been_applied() {
    let fake = Fake::start(|_, words| (words[0] == "GET").then_some(Answer::Close)).await;
    let connection = quick_connection(fake.url.clone());
    let error = connection
        .any()
        .call(cmd("GET").arg("k"), Duration::from_millis(500))
        .await
        .unwrap_err();
    assert_eq!(
        (error.kind, error.maybe_applied),
        (ConnectionErrorKind::Unavailable, true)
    );
}

#[tokio::test]
async fn a_request_that_never_met_a_connection_was_surely_not_applied() {
    let nobody = std::net::TcpListener::bind("127.0.0.1:0")
        .unwrap()
        .local_addr()
        .unwrap();
    let connection = quick_connection(format!("redis://{nobody}").parse().unwrap());
    let error = connection
        .any()
        .call(cmd("GET").arg("k"), Duration::from_millis(300))
        .await
        .unwrap_err();
    assert_eq!(
        (error.kind, error.maybe_applied),
        (ConnectionErrorKind::Unavailable, false)
    );
    assert_eq!(error.what, "GET");
    assert!(error.detail.contains("refused"), "{error}");
    let waited = connection
        .wait_up(Duration::from_millis(10))
        .await
        .unwrap_err();
    assert_eq!(waited.kind, ConnectionErrorKind::Unavailable);
}

#[tokio::test]
async fn a_black_holed_connection_is_replaced_after_two_timeouts_and_shows_as_down() {
    // The first connection answers until the first GET; the second never answers.
    let swallowed = AtomicBool::new(false);
    let fake = Fake::start(move |connection, words| {
        if connection == 1 && words[0] == "GET" {
            swallowed.store(true, Ordering::SeqCst);
        }
        let mute = connection == 2 || connection == 1 && swallowed.load(Ordering::SeqCst);
        mute.then_some(Answer::Keep)
    })
    .await;
    let connection = quick_connection(fake.url.clone());
    connection.wait_up(SOON).await.unwrap();
    let (cmd, asking) = (cmd("GET").arg("k").clone(), connection.clone());
    let call = tokio::spawn(async move { asking.any().call(&cmd, SOON).await });
    status(&connection, is_down).await;
    assert_eq!(call.await.unwrap().unwrap(), Value::Okay);
    assert_eq!(fake.connections(), 3);
    assert!(connection.is_up());
}

#[tokio::test]
async fn an_idle_connection_notices_a_silent_server() {
    let mute = AtomicU32::new(0);
    let fake = Fake::start(move |_, words| {
        (words[0] == "TIME" && mute.fetch_add(1, Ordering::SeqCst) > 0).then_some(Answer::Keep)
    })
    .await;
    let connection = quick_connection(fake.url.clone());
    connection.wait_up(SOON).await.unwrap();
    status(&connection, is_down).await;
}

#[tokio::test]
async fn a_busy_server_keeps_its_connection_but_shows_as_down_until_it_answers() {
    let asked = AtomicU32::new(0);
    let fake = Fake::start(move |_, words| match words[0].as_str() {
        "TIME" if (1..3).contains(&asked.fetch_add(1, Ordering::SeqCst)) => say("-BUSY script"),
        _ => None,
    })
    .await;
    let connection = quick_connection(fake.url.clone());
    connection.wait_up(SOON).await.unwrap();
    let ConnectionStatus::Down { code, fatal, .. } = status(&connection, is_down).await else {
        unreachable!()
    };
    assert_eq!((code.as_deref(), fatal), (Some("BUSY"), false));
    status(&connection, |status| *status == ConnectionStatus::Up).await;
    assert_eq!(fake.connections(), 1);
}

#[tokio::test]
async fn a_script_is_loaded_where_it_is_unknown_and_sent_again() {
    let script = Script::new("one", "return 1");
    let known = AtomicU32::new(0);
    let fake = Fake::start(move |_, words| match words[0].as_str() {
        "EVALSHA" if known.load(Ordering::SeqCst) == 0 => say("-NOSCRIPT No matching script."),
        "EVALSHA" => say(":1"),
        "SCRIPT" => {
            known.store(1, Ordering::SeqCst);
            say("$1\r\nx")
        }
        _ => None,
    })
    .await;
    let connection = quick_connection(fake.url.clone());
    assert_eq!(
        connection
            .eval(&script.call(&["k"]).arg("a"), SOON)
            .await
            .unwrap(),
        Value::Int(1)
    );
    assert_eq!((fake.count_of("EVALSHA"), fake.count_of("SCRIPT")), (2, 1));
}

#[tokio::test]
async fn a_closed_connection_fails_immediately() {
    let fake = Fake::start(|_, _| None).await;
    let closed = tokio_util::sync::CancellationToken::new();
    let connection = super::super::Connection::new(
        super::super::ConnectionSettings::new(fake.url.clone()),
        &closed,
    )
    .unwrap();
    connection.wait_up(SOON).await.unwrap();
    closed.cancel();
    status(&connection, is_down).await;
    let error = connection.any().call(&cmd("GET"), SOON).await.unwrap_err();
    assert_eq!(
        (error.kind, error.maybe_applied),
        (ConnectionErrorKind::Unavailable, false)
    );
    assert_eq!(connection.subscriber().next().await, None);
}
