//! Sessions: what they may do, and their end.

use super::*;
use lisa_tests::{Fate, RequestProxy};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

#[tokio::test(flavor = "multi_thread")]
async fn a_session_has_the_scopes_of_its_token_and_a_forged_one_has_none() {
    let site = Site::start(TOKENS).await;
    let pages = [
        "/",
        "/topics/t",
        "/garbage",
        "/system",
        "/topics/t/messages",
    ];
    let like_open_ones = ["/topics/t/messages/login", "/topics/choices"];
    for path in pages.into_iter().chain(like_open_ones) {
        let response = site.ask(Method::GET, path, "", "").await;
        assert_eq!(response.status(), 303, "{path}");
        assert!(
            response.headers()[LOCATION]
                .to_str()
                .unwrap()
                .starts_with("/login")
        );
    }
    let (_, page) = site.get("/login", "").await;
    assert!(!page.contains("Log out"), "nobody has logged in: {page}");
    let (status, none) = site.log_in("wrong").await;
    assert!(status == 403 && none.is_empty(), "{status} {none}");
    let (status, anna) = site.log_in("abc").await;
    assert_eq!(status, 303, "{anna}");
    let (_, reader) = site.log_in("def").await;
    for path in pages {
        assert_eq!(site.get(path, &anna).await.0, 200, "{path}");
        assert_eq!(site.get(path, &reader).await.0, 200, "{path}");
    }
    for action in [
        "/topics/t/pause",
        "/topics/t/groups/default/pause",
        "/system/jobs/clean",
        "/topics/t/groups/default/garbage/requeue",
    ] {
        assert_eq!(site.post(action, &reader, "").await, 403, "{action}");
        assert_eq!(
            site.post(action, "", "").await,
            303,
            "{action}: to the login"
        );
    }
    let forged = format!("{}x", anna);
    assert_eq!(site.ask(Method::GET, "/", &forged, "").await.status(), 303);
    assert_eq!(site.post("/topics/t/pause", &forged, "").await, 303);
    let api = site.api.clone().token("abc");
    assert_eq!(api.get_json("/v1/topics/t").await["stats"]["paused"], false);
    assert_eq!(site.post("/topics/t/pause", &anna, "").await, 303);
    assert_eq!(api.get_json("/v1/topics/t").await["stats"]["paused"], true);
    let audit = api.get_json("/v1/audit").await;
    assert_eq!(audit["entries"][0]["who"], "anna");
    // The pages of a session do not open the HTTP interface.
    let response = site.ask(Method::GET, "/v1/stats", &anna, "").await;
    assert_eq!(response.status(), 401);
    api.send(
        "t",
        "secret text",
        &[("Lisa-Id", "m"), ("Lisa-Delay", "1h")],
    )
    .await
    .expect(202);
    let of = |cookie: String| {
        let site = &site;
        async move { site.get("/topics/t/messages/m", &cookie).await.1 }
    };
    assert!(of(anna.clone()).await.contains("secret text"));
    assert!(!of(reader.clone()).await.contains("secret text"));
    assert_eq!(
        site.ask(Method::GET, "/topics/t/messages/m/payload", &reader, "")
            .await
            .status(),
        403
    );
}

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
