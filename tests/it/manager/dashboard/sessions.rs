//! Sessions that were ended by a logout.

use super::*;
use lisa_tests::{Fate, RequestProxy};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

#[tokio::test(flavor = "multi_thread")]
async fn a_logout_ends_what_the_browser_has_and_nothing_else() {
    let site = Site::start(TOKENS).await;
    let (_, anna) = site.log_in("abc").await;
    let (_, reader) = site.log_in("def").await;
    let api = site.api.clone().token("abc");
    assert_eq!(site.post("/topics/t/pause", &anna, "").await, 303);
    // A logout ends the session wherever its cookie is, and no other session of the token.
    let (_, other) = site.log_in("abc").await;
    assert_eq!(site.post("/logout", &anna, "").await, 303);
    for path in ["/topics/t/resume", "/logout"] {
        let response = site.ask(Method::POST, path, &anna, "").await;
        assert_eq!(response.headers()[LOCATION], "/login", "{path}");
    }
    assert_eq!(api.get_json("/v1/topics/t").await["stats"]["paused"], true);
    assert_eq!(site.get("/", &other).await.0, 200);
    // An ended session hides no other one, and a logout ends all that the browser has.
    assert_eq!(site.get("/", &format!("{anna}; {other}")).await.0, 200);
    let (_, more) = site.log_in("abc").await;
    let both = format!("{more}; {reader}");
    assert_eq!(site.post("/logout", &both, "").await, 303);
    for ended in [&more, &reader] {
        assert_eq!(site.get("/", ended).await.0, 303);
    }
    let (_, reader) = site.log_in("def").await;
    let (_, third) = site.log_in("abc").await;
    assert_eq!(site.post("/logout", &third, "sessions=all").await, 303);
    assert_eq!(site.get("/", &other).await.0, 303);
    assert_eq!(site.get("/", &reader).await.0, 200);
    let (_, again) = site.log_in("abc").await;
    assert_eq!(site.get("/", &again).await.0, 200);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_session_changes_nothing_until_redis_says_that_it_was_not_ended() {
    let server = Server::builder().cluster(false).start();
    let is_silent = Arc::new(AtomicBool::new(false));
    let silent = is_silent.clone();
    let proxy = RequestProxy::start(server.port(), move |request| {
        match request.command() == "ZRANGE" && request.word(1).ends_with(":ended_sessions") {
            true if silent.load(Ordering::Relaxed) => Fate::Answer("-ERR not now\r\n".into()),
            _ => Fate::Pass,
        }
    })
    .await;
    let url = format!("redis://127.0.0.1:{}", proxy.port());
    let site = Site::at(server, &url, TOKENS).await;
    let (_, anna) = site.log_in("abc").await;
    is_silent.store(true, Ordering::Relaxed);
    eventually(SOON, async || {
        match site.post("/topics/t/pause", &anna, "").await {
            503 => Ok(()),
            // The list of a second ago still counts.
            status => Err(status),
        }
    })
    .await;
    assert_eq!(site.get("/", &anna).await.0, 200);
    is_silent.store(false, Ordering::Relaxed);
    assert_eq!(site.post("/topics/t/resume", &anna, "").await, 303);
    let api = site.api.clone().token("abc");
    assert_eq!(api.get_json("/v1/topics/t").await["stats"]["paused"], false);
}
