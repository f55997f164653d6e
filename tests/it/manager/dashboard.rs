//! The dashboard of the real program: what each session may do, what other sites may not, and that all text is shown as text.

mod doctor;
mod forecast;
mod history;
mod keys;
mod many_topics;
mod outage;
mod refused;
mod removal;
mod schedules;
mod send;
mod sessions;
mod tokens;

use super::*;
use lisa_tests::{Api, Binary, Process, Server, eventually};
use reqwest::header::{HeaderMap, LOCATION, SET_COOKIE};
use reqwest::{Client, Method, Response, redirect};
use serde_json::json;
use std::collections::BTreeSet;

/// SHA-256 of `abc`, which may do all, of `def`, which may read, and of `ghi`, which may send.
const TOKENS: &str = "[[auth.tokens]]\nname = \"anna\"\nscopes = [\"read\", \"operate\", \"send\", \"payload\", \"receive\"]\n\
    sha256 = \"ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad\"\n\
    [[auth.tokens]]\nname = \"reader\"\nscopes = [\"read\"]\n\
    sha256 = \"cb8379ac2098aa165029e3938a51da0bcecfc008fd6795f401178647f96c5b34\"\n";
const HOSTILE: &str = "<img src=x onerror=alert(1)>\u{202e}";

/// A manager with a producer, and a browser without JavaScript.
struct Site {
    server: Server,
    _process: Process,
    api: Api,
    url: String,
    client: Client,
}

impl Site {
    async fn start(more: &str) -> Self {
        let server = Server::start();
        let url = server.socket_url();
        Self::at(server, &url, more).await
    }

    /// Starts a manager that reaches its server at this URL.
    async fn at(server: Server, redis: &str, more: &str) -> Self {
        let port = lisa_tests::free_port();
        let config = format!(
            "redis.url = \"{redis}\"\nmanager.listen = \"127.0.0.1:{port}\"\n[topics.t]\n{more}"
        );
        let process = Binary::Manager.with(["run", "--with-producer"]);
        let process = process.config(&config).start();
        let api = Api::new(port);
        eventually(SOON, async || match api.try_get("/readyz").await {
            Some(reply) if reply.status == 200 => Ok(()),
            reply => Err(format!("{reply:?}")),
        })
        .await;
        let client = Client::builder().redirect(redirect::Policy::none());
        Self {
            server,
            _process: process,
            api,
            url: format!("http://127.0.0.1:{port}"),
            client: client.build().unwrap(),
        }
    }

    async fn ask(&self, method: Method, path: &str, cookie: &str, form: &str) -> Response {
        let request = self.client.request(method, format!("{}{path}", self.url));
        let request = request
            .header("Cookie", cookie)
            .header("Content-Type", "application/x-www-form-urlencoded")
            .body(form.to_owned());
        request.send().await.unwrap()
    }

    async fn get(&self, path: &str, cookie: &str) -> (u16, String) {
        let response = self.ask(Method::GET, path, cookie, "").await;
        let headers = response.headers();
        assert!(
            headers["content-security-policy"]
                .to_str()
                .unwrap()
                .starts_with("default-src 'none'")
        );
        assert_eq!(headers["x-content-type-options"], "nosniff");
        assert_eq!(headers["cache-control"], "no-store");
        (response.status().as_u16(), response.text().await.unwrap())
    }

    async fn post(&self, path: &str, cookie: &str, form: &str) -> u16 {
        self.ask(Method::POST, path, cookie, form)
            .await
            .status()
            .as_u16()
    }

    async fn log_in(&self, token: &str) -> (u16, String) {
        let form = format!("token={token}&next=%2F");
        let response = self.ask(Method::POST, "/login", "", &form).await;
        (response.status().as_u16(), cookie(response.headers()))
    }

    async fn is_paused(&self) -> bool {
        let stats = self.api.get_json("/v1/topics/t").await;
        stats["stats"]["paused"].as_bool().unwrap()
    }
}

fn cookie(headers: &HeaderMap) -> String {
    let set = headers.get_all(SET_COOKIE).iter();
    let mut pairs = set.filter_map(|line| line.to_str().ok()?.split(';').next());
    pairs
        .find(|pair| !pair.starts_with("lisa-line"))
        .unwrap_or_default()
        .to_owned()
}

/// Returns a page without what its buttons copy, which is exact.
fn without_copies(page: &str) -> String {
    let mut parts = page.split("data-copy=\"");
    let first = parts.next().unwrap_or_default().to_owned();
    parts.fold(first, |shown, part| {
        shown + part.split_once('"').map_or("", |(_, rest)| rest)
    })
}

/// Returns the local links of a page.
fn links(page: &str) -> BTreeSet<String> {
    let parts = page.split("href=\"").skip(1);
    let links = parts.filter_map(|part| part.split('"').next());
    let local = links.filter(|link| link.starts_with('/'));
    local.map(|link| link.replace("&amp;", "&")).collect()
}

/// Returns the local scripts of a page.
fn sources(page: &str) -> BTreeSet<String> {
    let parts = page.split("src=\"").skip(1);
    let sources = parts.filter_map(|part| part.split('"').next());
    sources.map(str::to_owned).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn without_tokens_every_link_answers_and_actions_are_in_the_audit_log() {
    let site = Site::start("").await;
    let headers = [("Lisa-Id", "bad"), ("Lisa-Delay", "1h"), ("x-note", "<b>")];
    site.api.send("t", HOSTILE, &headers).await.expect(202);
    let (mut seen, mut left) = (
        BTreeSet::new(),
        BTreeSet::from(["/".to_owned(), "/topics/t/messages/bad".to_owned()]),
    );
    while let Some(path) = left.pop_first() {
        if !seen.insert(path.clone()) || path.contains("/assets/") {
            continue;
        }
        let (status, page) = site.get(&path, "").await;
        let is_moved = status == 303;
        assert!(
            status == 200 || is_moved || path.ends_with("/payload"),
            "{path}: {status}"
        );
        if path.ends_with("/payload") {
            continue;
        }
        let shown = without_copies(&page);
        assert!(
            !shown.contains("<img src=x") && !shown.contains('\u{202e}'),
            "{path}"
        );
        left.extend(links(&page));
        assert!(seen.len() < 200, "{seen:?}");
    }
    for path in [
        "/forecast",
        "/garbage",
        "/workers",
        "/system",
        "/topics/t",
        "/topics/t/messages/bad/cancel",
        "/topics/t/keys",
        "/topics/t/send",
    ] {
        assert!(
            seen.iter().any(|seen| seen.starts_with(path)),
            "{path} is linked from no page: {seen:?}"
        );
    }
    assert_eq!(site.post("/topics/t/pause", "", "").await, 303);
    assert!(site.is_paused().await);
    assert_eq!(
        site.post("/topics/t/messages/bad/deliver-now", "", "")
            .await,
        303
    );
    let audit = site.api.get_json("/v1/audit").await;
    let actions: Vec<_> = audit["entries"]
        .as_array()
        .unwrap()
        .iter()
        .map(|entry| (&entry["via"], &entry["action"]))
        .collect();
    assert_eq!(
        actions,
        [
            (&json!("dashboard"), &json!("deliver-now")),
            (&json!("dashboard"), &json!("pause"))
        ]
    );
    let response = site.ask(Method::GET, "/nothing-here", "", "").await;
    assert_eq!(response.status(), 404);
}

#[tokio::test(flavor = "multi_thread")]
async fn pages_of_other_sites_change_nothing() {
    let site = Site::start("").await;
    for (name, value) in [
        ("Sec-Fetch-Site", "cross-site"),
        ("Sec-Fetch-Site", "same-site"),
        ("Origin", "http://evil.example"),
        ("Host", "evil.example"),
    ] {
        let request = site.client.post(format!("{}/topics/t/pause", site.url));
        let response = request.header(name, value).send().await.unwrap();
        assert_eq!(response.status(), 403, "{name}: {value}");
    }
    assert!(!site.is_paused().await);
    let request = site.client.post(format!("{}/topics/t/pause", site.url));
    let response = request
        .header("Sec-Fetch-Site", "same-origin")
        .send()
        .await
        .unwrap();
    assert_eq!(response.status(), 303);
    assert!(site.is_paused().await);
    assert_eq!(
        site.ask(Method::GET, "/topics/t/resume", "", "")
            .await
            .status(),
        405
    );
    assert!(site.is_paused().await, "a GET changes nothing");
}

#[tokio::test(flavor = "multi_thread")]
async fn the_errors_in_garbage_are_requeued_together_and_a_purge_asks_for_the_name() {
    let site = Site::start("groups = [\"default\"]\nmax_attempts = 1\n[[consumer.subscriptions]]\ntopic = \"t\"\ngroup = \"default\"\nsink = { type = \"command\", command = [\"false\"] }\n").await;
    let port = lisa_tests::free_port();
    let config = format!(
        "redis.url = \"{}\"\nconsumer.listen = \"127.0.0.1:{port}\"\n[[consumer.subscriptions]]\ntopic = \"t\"\ngroup = \"default\"\nsink = {{ type = \"command\", command = [\"sh\", \"-c\", \"echo order $LISA_PAYLOAD_BYTES failed >&2; exit 65\"] }}\n",
        site.server.socket_url()
    );
    let mut consumer = Binary::Consumer.with(["run"]).config(&config).start();
    for n in 0..3 {
        site.api
            .send("t", "x".repeat(10 + n), &[])
            .await
            .expect(202);
    }
    let garbage = async |wanted: u64| {
        eventually(SOON, async || {
            let stats = site.api.get_json("/v1/topics/t").await;
            match stats["stats"]["groups"][0]["garbage"].as_u64() {
                Some(garbage) if garbage == wanted => Ok(()),
                garbage => Err(format!("{garbage:?}")),
            }
        })
        .await;
    };
    garbage(3).await;
    consumer.kill9();
    let (_, page) = site.get("/topics/t/garbage?group=default", "").await;
    assert!(page.contains("order # failed"), "{page}");
    let ask = links(&page)
        .into_iter()
        .find(|link| link.contains("garbage/requeue?"))
        .unwrap();
    let (status, page) = site.get(&ask, "").await;
    assert!(status == 200 && page.contains("Requeue 3"), "{page}");
    assert!(page.contains("--error="), "{page}");
    assert!(!page.contains("--all"), "commands for one error: {page}");
    let form = ask.split_once('?').unwrap().1;
    assert_eq!(
        site.post("/topics/t/groups/default/garbage/purge", "", "typed=other")
            .await,
        422
    );
    garbage(3).await;
    // A request that is refused before anything is tried is not in the audit log.
    let requeue = "/topics/t/groups/default/garbage/requeue";
    for rate in ["many", "0", "-1"] {
        let form = format!("{form}&rate={rate}");
        let response = site.ask(Method::POST, requeue, "", &form).await;
        assert_eq!(response.status(), 422, "{rate}");
        let page = response.text().await.unwrap();
        assert!(page.contains("is not a whole number from 1 to"), "{page}");
    }
    let form = format!("{form}&rate=50%2Fs");
    assert_eq!(site.post(requeue, "", &form).await, 303);
    let audit = site.api.get_json("/v1/audit").await;
    assert_eq!(audit["entries"].as_array().unwrap().len(), 1, "{audit:#}");
    garbage(0).await;
    // The job records its progress after the messages have left garbage.
    eventually(SOON, async || match site.get("/system", "").await.1 {
        page if page.contains("3 of 3") => Ok(()),
        page => Err(page),
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn the_history_of_a_topic_is_the_same_over_http_and_in_its_charts() {
    let site = Site::start("").await;
    site.api.send("t", "x", &[]).await.expect(202);
    let history = async || site.api.get_json("/v1/topics/t/history?for=10m").await;
    // No minute has ended since the start, but the running one is there, from the first message on.
    let view = history().await;
    assert_eq!(
        (&view["step_ms"], &view["topic"]),
        (&json!(60_000), &json!("t"))
    );
    let steps = view["steps"].as_array().unwrap();
    assert_eq!((steps.len(), &steps[0]["sent"]), (11, &json!(null)));
    assert_eq!(steps[10]["sent"], 1, "{view:#}");
    let running = &steps[10]["messages"];
    let stored = ["ready", "in_flight"].map(|state| running[state].as_u64().unwrap());
    assert_eq!(stored.iter().sum::<u64>(), 1, "{view:#}");
    for (query, allowed) in [
        ("for=0s", "1m to 7d"),
        ("for=8d", "1m to 7d"),
        ("for=x", "for: "),
    ] {
        let path = format!("/v1/topics/t/history?{query}");
        let reply = site.api.get(&path).await.expect(422);
        assert!(reply.body.contains(allowed), "{query}: {}", reply.body);
    }
    let (status, page) = site.get("/topics/t?history=3600", "").await;
    assert!(status == 200 && page.contains("sent: 1 to 1"), "{page}");
    assert!(!page.contains(" style="), "the policy would refuse it");
    let (status, page) = site.get("/topics/t?history=5", "").await;
    assert!(
        status == 422 && page.contains("must be one of 3600"),
        "{page}"
    );

    let off = Site::start("[manager.history]\nenabled = false\n").await;
    let reply = off.api.get("/v1/topics/t/history").await.expect(422);
    assert!(
        reply.body.contains("manager.history.enabled"),
        "{}",
        reply.body
    );
    let (status, page) = off.get("/topics/t", "").await;
    assert!(status == 200 && !page.contains("history-title"), "{page}");
}

#[tokio::test(flavor = "multi_thread")]
async fn the_keys_with_parked_messages_lead_to_what_holds_them() {
    let site = Site::start("").await;
    for key in 0..60 {
        for n in 0..2 {
            let (id, key) = (format!("m-{key:02}-{n}"), format!("<k>{key:02}"));
            site.api
                .send("t", "x", &[("Lisa-Id", &id), ("Lisa-Key", &key)])
                .await
                .expect(202);
        }
    }
    eventually(SOON, async || {
        let stats = site.api.get_json("/v1/topics/t").await;
        match &stats["stats"]["groups"][0]["parked"] {
            parked if *parked == 60 => Ok(()),
            parked => Err(parked.clone()),
        }
    })
    .await;
    let (status, page) = site.get("/topics/t/keys", "").await;
    assert_eq!(status, 200);
    assert!(
        page.contains("/topics/t/messages/m-00-0") && page.contains("&lt;k&gt;00"),
        "{page}"
    );
    assert!(!page.contains("m-55-0"), "{page}");
    let next = links(&page)
        .into_iter()
        .find(|link| link.contains("cursor="))
        .unwrap();
    let (_, page) = site.get(&next, "").await;
    assert!(
        page.contains("m-55-0") && !page.contains("m-00-0"),
        "{page}"
    );
    assert!(page.contains("End of the list"), "{page}");
    let (status, page) = site.get("/topics/t/keys?cursor=x", "").await;
    assert!(status == 422 && page.contains("cursor: "), "{page}");
}

#[tokio::test(flavor = "multi_thread")]
async fn commands_have_the_scheme_and_host_of_the_page() {
    let auth = "[auth]\nallowed_hosts = [\"lisa.example\"]\nallowed_origins = [\"https://lisa.example\"]\n";
    let site = Site::start(auth).await;
    let command = async |host: &str, cookie: &str| {
        let request = site.client.get(format!("{}/topics/t", site.url));
        let request = request.header("Host", host).header("Cookie", cookie);
        // Anybody can send this, and no setting says that a proxy does.
        let request = request.header("X-Forwarded-Proto", "https");
        let page = request.send().await.unwrap().text().await.unwrap();
        let (_, line) = page.split_once("data-copy=\"curl -sS ").unwrap();
        line.split_once('"').unwrap().0.to_owned()
    };
    assert_eq!(
        command("lisa.example", "").await,
        "https://lisa.example/v1/topics/t"
    );
    assert_eq!(
        command("lisa:8443", "__Host-lisa=x").await,
        "https://lisa:8443/v1/topics/t"
    );
    assert_eq!(
        command("lisa:7812", "").await,
        "http://lisa:7812/v1/topics/t"
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn a_page_with_nothing_to_list_has_a_command() {
    let site = Site::start("").await;
    let tail = |words: &str| format!("lisa-manager --url {} tail t {words}", site.url);
    let (all, of_group) = (tail("--failures"), tail("--group default --failures"));
    let empty = [
        ("/garbage", &*all),
        ("/topics/t/garbage", &*of_group),
        ("/topics/t/keys", "Lisa-Key: "),
        ("/topics/t/messages", "Lisa-Delay: "),
        ("/schedules", "lisa-manager config check"),
        ("/workers", "lisa-consumer run"),
    ];
    for (path, command) in empty {
        eventually(SOON, async || {
            let (status, page) = site.get(path, "").await;
            let advice = page.split_once("class=\"empty\"").map(|(_, rest)| rest);
            let boxed = advice.and_then(|rest| rest.split_once("class=\"command"));
            match boxed.is_some_and(|(_, rest)| rest.contains(command)) {
                true => Ok(()),
                false => Err(format!("{path}: {status} {page}")),
            }
        })
        .await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_page_is_packed_for_those_who_take_it() {
    let site = Site::start("").await;
    let (_, plain) = site.get("/help", "").await;
    let request = site.client.get(format!("{}/help", site.url));
    let response = request
        .header("Accept-Encoding", "gzip, br")
        .send()
        .await
        .unwrap();
    assert_eq!(response.headers()["content-encoding"], "gzip");
    assert_eq!(response.headers()["vary"], "accept-encoding");
    let packed = response.bytes().await.unwrap();
    assert!(packed.starts_with(b"\x1f\x8b") && packed.len() * 2 < plain.len());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_file_of_the_pages_is_packed_once_and_has_one_tag() {
    let site = Site::start("").await;
    let (_, page) = site.get("/help", "").await;
    let files = links(&page).into_iter().chain(sources(&page));
    let files: Vec<_> = files.filter(|link| link.contains("/assets/")).collect();
    assert_eq!(files.len(), 5, "{files:?}");
    for file in files {
        let ask = async |encoding: &str, have: &str| {
            let request = site.client.get(format!("{}{file}", site.url));
            let request = request
                .header("Accept-Encoding", encoding)
                .header("If-None-Match", have);
            request.send().await.unwrap()
        };
        let plain = ask("identity", "").await;
        let packed = ask("gzip", "").await;
        assert!(!plain.headers().contains_key("content-encoding"), "{file}");
        assert_eq!(packed.headers()["content-encoding"], "gzip", "{file}");
        let tag = packed.headers()["etag"].to_str().unwrap().to_owned();
        for response in [&plain, &packed] {
            assert_eq!(response.headers()["vary"], "accept-encoding", "{file}");
            assert_eq!(response.headers()["etag"], tag.as_str(), "{file}");
        }
        let (plain, packed) = (plain.bytes().await.unwrap(), packed.bytes().await.unwrap());
        assert!(packed.starts_with(b"\x1f\x8b") && packed.len() < plain.len());
        for encoding in ["identity", "gzip"] {
            assert_eq!(ask(encoding, &tag).await.status(), 304, "{file}");
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn the_first_page_of_a_list_refreshes_and_later_ones_say_why_they_do_not() {
    let site = Site::start("").await;
    for _ in 0..51 {
        site.api
            .send("t", "x", &[("Lisa-Delay", "1h")])
            .await
            .expect(202);
    }
    let (_, page) = site.get("/topics/t/messages?state=waiting", "").await;
    assert!(page.contains("data-live=\"2\"") && page.contains("id=\"messages\""));
    let next = links(&page)
        .into_iter()
        .find(|link| link.contains("cursor="));
    let (_, page) = site.get(&next.expect("a second page"), "").await;
    assert!(page.contains("data-live=\"0\""), "{page}");
    assert!(
        page.contains("Only the first page of a list refreshes"),
        "{page}"
    );
    for path in ["/topics/t/keys", "/topics/t/garbage"] {
        let (_, page) = site.get(path, "").await;
        assert!(page.contains("data-live=\"2\""), "{path}: {page}");
    }
    let next_due = &site.api.get_json("/v1/topics/t").await["stats"]["next_due"];
    let text = next_due.as_str().expect("a time");
    assert!(text.len() == "2026-11-25T20:00:00.000Z".len() && text.ends_with('Z'));
}
