//! Each page and action of the dashboard with the token of a team that shares a relay with another one.

use super::Victim;
use super::teams::{Teams, tables};
use lisa_manager::testing::dashboard_paths;
use lisa_tests::sqs::hex;
use lisa_tests::{Api, Binary, SOON, eventually};
use reqwest::header::SET_COOKIE;
use reqwest::{Client, Method, redirect};
use serde_json::{Value, json};
use sha2::{Digest, Sha256};
use std::collections::BTreeSet;

/// A name that nothing has.
const NOTHING: &str = "zilch";
/// The messages of the other team, a number that no page shows otherwise, and the start of the sums with it.
const MANY: usize = 1613;
const MANY_SHOWN: &str = "1,61";

/// Pages about several topics or schedules, or about none: a viewer sees its own ones there, and nothing of others.
const FILTERED: [&str; 12] = [
    "/",
    "/find",
    "/garbage",
    "/forecast",
    "/schedules",
    "/new-schedule",
    "/new-topic",
    "/workers",
    "/system",
    "/system/garbage-jobs/{id}/stop",
    "/token",
    "/help",
];

/// Viewers with all scopes: one without limits, a team, and one whose token has limits of groups only, and of schedules only.
fn viewers() -> String {
    let token = |(name, limits): (&str, &str)| {
        let hash = hex(&Sha256::digest(name));
        format!(
            "[[auth.tokens]]\nname = '{name}'\nsha256 = '{hash}'\n\
             scopes = ['read', 'send', 'operate', 'receive', 'payload', 'tokens']\n{limits}\n"
        )
    };
    let viewers = [
        ("boss", ""),
        ("shop", "topics = ['shop-*']\nsends_per_second = 1"),
        ("grouped", "groups = ['default']"),
        ("timed", "schedules = ['shop-*']"),
    ];
    viewers.map(token).concat()
}

/// A manager with the topics, messages, schedules and jobs of two teams.
struct Site {
    teams: Teams,
    client: Client,
}

/// A page: its status, and its text without the time and what is an echo of the request.
#[derive(Debug, PartialEq, Eq)]
struct Shown {
    status: u16,
    text: String,
}

impl Site {
    async fn start() -> Self {
        let tables = tables() + &viewers();
        let victim = Victim::start(Binary::Manager, &["run", "--with-producer"], &tables).await;
        let client = Client::builder().redirect(redirect::Policy::none());
        let site = Self {
            teams: Teams { victim },
            client: client.build().unwrap(),
        };
        site.teams.fill().await;
        let (send, operate) = (site.teams.api("all-send"), site.teams.api("all-operate"));
        let many: Vec<_> = (0..MANY - 2)
            .map(|n| json!({ "id": format!("many-{n}"), "delay": "1h", "payload": "x" }))
            .collect();
        for batch in many.chunks(500) {
            send.batch("bank", batch).await;
        }
        for (topic, secret) in [("bank", "bank-secret"), ("shop-a", "shop-secret")] {
            let id = format!("{topic}-message");
            let key = format!("{topic}-key");
            let headers = [("Lisa-Id", &*id), ("Lisa-Delay", "1h"), ("Lisa-Key", &*key)];
            send.send(topic, secret, &headers).await.expect(202);
            let examine = format!("/v1/topics/{topic}/doctor");
            assert_eq!(operate.get(&examine).await.status, 200);
        }
        // Otherwise, no page could show what a viewer must not see.
        let read = site.teams.api("all-read");
        let counted = format!("\"waiting\":{MANY}");
        eventually(SOON, async || {
            let snapshot = read.get_json("/v1/stats/snapshot").await.to_string();
            match snapshot.contains(&counted) {
                true => Ok(()),
                false => Err(snapshot),
            }
        })
        .await;
        site
    }

    async fn log_in(&self, token: &str) -> String {
        let form = format!("token={token}");
        let response = self.send(Method::POST, "/login", "", &form).await;
        assert_eq!(response.status(), 303, "{token}");
        let set = response.headers()[SET_COOKIE].to_str().unwrap();
        set.split(';').next().unwrap().to_owned()
    }

    async fn send(
        &self,
        method: Method,
        path: &str,
        cookie: &str,
        form: &str,
    ) -> reqwest::Response {
        let api: &Api = &self.teams.victim.api;
        let url = api
            .request(method.clone(), path)
            .build()
            .unwrap()
            .url()
            .clone();
        let request = self.client.request(method, url).header("Cookie", cookie);
        let request = request.header("Content-Type", "application/x-www-form-urlencoded");
        request.body(form.to_owned()).send().await.unwrap()
    }

    /// Returns what a viewer is shown, with `echo` replaced: the names that the request itself has.
    async fn ask(
        &self,
        method: Method,
        path: &str,
        cookie: &str,
        form: &str,
        echo: &[&str],
    ) -> Shown {
        let response = self.send(method, path, cookie, form).await;
        let status = response.status().as_u16();
        let location = response.headers().get("location");
        let location = location.map_or("", |to| to.to_str().unwrap()).to_owned();
        let line = { response.headers().get_all(SET_COOKIE).iter() }
            .filter_map(|set| set.to_str().ok()?.strip_prefix("lisa-line="))
            .collect::<String>();
        let body = response.text().await.unwrap();
        // What is shown of times depends on the second.
        let mut parts = body.split("<time ");
        let first = parts.next().unwrap_or_default().to_owned();
        let body = parts.fold(first, |shown, part| {
            shown + part.split_once("</time>").map_or("", |(_, rest)| rest)
        });
        let text = format!("{location} {line} {body}");
        let text = echo
            .iter()
            .fold(text, |text, name| text.replace(name, "ECHO"));
        Shown { status, text }
    }
}

/// Fills in the parts of a path.
fn filled(path: &str, parts: &[(&str, &str)]) -> String {
    let usual = [
        ("{group}", "default"),
        ("{name}", "reclaim"),
        ("{verb}", "pause"),
        ("{token}", "all-read"),
    ];
    let parts = parts.iter().chain(&usual);
    let filled = parts.fold(path.to_owned(), |path, (part, value)| {
        path.replace(part, value)
    });
    assert!(
        !filled.contains('{'),
        "a part of {path} is new to this test"
    );
    filled
}

/// Everything that a form of any page may name.
fn form(topic: &str, schedule: &str) -> String {
    format!(
        "topic={topic}&schedule={schedule}&cron=0+0+0+1+1+*&version=1&typed={topic}&group=default&payload=x&token=t&scopes.read=true&delay=1h"
    )
}

#[tokio::test(flavor = "multi_thread")]
async fn no_page_shows_or_changes_what_is_of_another_team() {
    let site = Site::start().await;
    let (boss, shop) = (site.log_in("boss").await, site.log_in("shop").await);
    let paths = dashboard_paths();
    assert!(paths.len() > 40, "{paths:?}");
    let jobs = site
        .teams
        .api("all-read")
        .get_json("/v1/garbage/jobs")
        .await;
    let jobs = jobs["jobs"].as_array().unwrap();
    let job = jobs.iter().find(|job| job["topic"] == "bank").expect("one");
    let job = job["id"].as_str().unwrap();
    for path in &paths {
        let id = if path.contains("garbage-jobs") {
            job
        } else {
            "bank-message"
        };
        let other = filled(
            path,
            &[
                ("{topic}", "bank"),
                ("{schedule}", "bank-daily"),
                ("{id}", id),
            ],
        );
        let nothing = filled(
            path,
            &[
                ("{topic}", NOTHING),
                ("{schedule}", NOTHING),
                ("{id}", NOTHING),
            ],
        );
        let is_named = path.contains("{topic}") || path.contains("{schedule}");
        for method in [Method::GET, Method::POST] {
            // Without what it asks for, a form changes nothing.
            let form = form("bank", "bank-daily");
            let echo = [&*form, "bank-daily", "bank-message", "bank", id];
            let shown = site.ask(method.clone(), &other, &shop, &form, &echo).await;
            let about = format!("{method} {other}: {shown:?}");
            let of_none = self::form(NOTHING, NOTHING);
            let echo = [&*of_none, NOTHING];
            let none = site
                .ask(method.clone(), &nothing, &shop, &of_none, &echo)
                .await;
            assert!(!shown.text.contains("bank-secret"), "{about}");
            assert!(!shown.text.contains(MANY_SHOWN), "{about}");
            if is_named || !FILTERED.contains(&path.as_str()) {
                assert!(matches!(shown.status, 403 | 405), "{about}");
                assert!(
                    shown.status == 405 || shown.text.contains("Not allowed"),
                    "{about}"
                );
            }
            // It is as if there was nothing of that name. What is shown of several topics changes with the time: see below.
            assert_eq!(shown.status, none.status, "{about}");
            assert!(shown.status == 200 || shown == none, "{about} {none:?}");
        }
    }
    // Pages about several topics have those of the viewer alone.
    for path in FILTERED.iter().filter(|path| !path.contains('{')) {
        let shown = site.ask(Method::GET, path, &shop, "", &[]).await;
        let about = format!("{path}: {shown:?}");
        assert_eq!(shown.status, 200, "{about}");
        assert!(!shown.text.contains("bank"), "{about}");
        assert!(!shown.text.contains(MANY_SHOWN), "{about}");
        assert!(
            !shown.text.contains("redis"),
            "the address of Redis: {about}"
        );
        assert!(!shown.text.contains("href=\"/tokens\""), "{about}");
    }
    // This test can fail.
    for path in ["/", "/forecast", "/schedules", "/workers", "/system"] {
        let shown = site.ask(Method::GET, path, &boss, "", &[]).await;
        assert!(shown.text.contains("bank"), "{path}");
        // A forecast of one topic does not name it.
        let own = site.ask(Method::GET, path, &shop, "", &[]).await;
        assert!(path == "/forecast" || own.text.contains("shop-a"), "{path}");
    }
    let all = site.ask(Method::GET, "/", &boss, "", &[]).await;
    assert!(all.text.contains(MANY_SHOWN), "{all:?}");
    site.a_search_finds_what_the_viewer_reaches(&shop, &boss)
        .await;
    site.schedules_of_others_stay_theirs(&shop).await;
    // Nothing of the other team has changed.
    let topics = site.teams.api("all-read").get_json("/v1/topics").await;
    let names: Vec<_> = topics["topics"]
        .as_array()
        .unwrap()
        .iter()
        .map(|topic| &topic["topic"])
        .collect();
    assert_eq!(names, ["bank", "bank-2", "shop-a", "t"], "{topics}");
    let stats = site.teams.api("all-read").get_json("/v1/topics/bank").await;
    assert_eq!(stats["stats"]["waiting"], MANY, "{stats}");
    assert_eq!(stats["stats"]["paused"], false, "{stats}");
}

impl Site {
    async fn a_search_finds_what_the_viewer_reaches(&self, shop: &str, boss: &str) {
        for (query, of) in [
            ("/find?q=", "bank"),
            ("/find?q=", "bank-message"),
            ("/find?q=", "bank-key"),
            ("/schedules?prefix=", "bank"),
            ("/forecast?topic=", "bank"),
        ] {
            let shown = self
                .ask(Method::GET, &format!("{query}{of}"), shop, "", &[of])
                .await;
            let nothing = format!("{query}{NOTHING}");
            let none = self.ask(Method::GET, &nothing, shop, "", &[NOTHING]).await;
            assert_eq!(shown, none, "{query}{of}");
            assert!(!shown.text.contains("bank"), "{query}{of}: {shown:?}");
        }
        let echo = ["filter=bank", "value=\"bank\""];
        let shown = self.ask(Method::GET, "/?filter=bank", shop, "", &echo);
        let shown = shown.await;
        assert!(!shown.text.contains("bank"), "{shown:?}");
        for of in ["bank", "bank-message"] {
            let found = self
                .ask(Method::GET, &format!("/find?q={of}"), boss, "", &[])
                .await;
            assert_eq!(found.status, 303, "{of}: {found:?}");
        }
        for of in ["shop-a", "shop-a-message"] {
            let found = self
                .ask(Method::GET, &format!("/find?q={of}"), shop, "", &[])
                .await;
            assert_eq!(found.status, 303, "{of}: {found:?}");
        }
    }

    /// Schedules whose names have the prefix of a team, on topics of another one.
    async fn schedules_of_others_stay_theirs(&self, shop: &str) {
        for name in ["shop-of-bank", "shop-declared"] {
            for path in dashboard_paths()
                .iter()
                .filter(|path| path.contains("{schedule}"))
            {
                let own = filled(path, &[("{schedule}", name)]);
                let none = filled(path, &[("{schedule}", "shop-zilch")]);
                for method in [Method::GET, Method::POST] {
                    let form = form("shop-a", name);
                    let shown = self.ask(method.clone(), &own, shop, &form, &[name]).await;
                    let none = self
                        .ask(method.clone(), &none, shop, &form, &["shop-zilch", name])
                        .await;
                    assert!(!shown.text.contains("bank"), "{method} {own}: {shown:?}");
                    let is_put = method == Method::POST && path.ends_with("/edit");
                    let expected = if is_put { [403, 403] } else { [404, 405] };
                    assert!(
                        expected.contains(&shown.status),
                        "{method} {own}: {shown:?}"
                    );
                    assert!(
                        is_put || shown == none,
                        "{method} {own}: {shown:?} {none:?}"
                    );
                }
            }
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_team_sees_and_operates_its_own_topics() {
    let site = Site::start().await;
    let shop = site.log_in("shop").await;
    for path in [
        "/topics/shop-a",
        "/topics/shop-a/messages",
        "/topics/shop-a/garbage",
        "/topics/shop-a/failures",
        "/topics/shop-a/keys",
        "/topics/shop-a/send",
        "/topics/shop-a/doctor",
        "/topics/shop-a/messages/shop-a-message/cancel",
        "/forecast?topic=shop-a",
        "/schedules/shop-a-daily",
        "/schedules/shop-a-daily/edit",
    ] {
        let shown = site.ask(Method::GET, path, &shop, "", &[]).await;
        assert_eq!(shown.status, 200, "{path}: {shown:?}");
        assert!(!shown.text.contains("bank"), "{path}: {shown:?}");
    }
    let message = "/topics/shop-a/messages/shop-a-message";
    let shown = site.ask(Method::GET, message, &shop, "", &[]).await;
    assert!(shown.text.contains("shop-secret"), "{shown:?}");
    for (path, form, expected) in [
        ("/topics/shop-a/pause", "", 303),
        ("/topics/shop-a/doctor/examine", "", 303),
        ("/new-topic", "topic=shop-b&groups=a", 303),
        ("/new-topic", "topic=bank-3", 403),
        ("/new-topic", "topic=bank", 403),
        (
            "/new-topic",
            "topic=shop-c&garbage=%7B%22topic%22%3A%22bank%22%7D",
            422,
        ),
        (
            "/new-schedule",
            "schedule=shop-x&topic=shop-a&cron=0+0+0+1+1+*",
            303,
        ),
        (
            "/new-schedule",
            "schedule=shop-y&topic=bank&cron=0+0+0+1+1+*",
            403,
        ),
        (
            "/new-schedule",
            "schedule=bank-y&topic=shop-a&cron=0+0+0+1+1+*",
            403,
        ),
        ("/system/jobs/clean", "", 403),
        ("/workers", "", 405),
    ] {
        let shown = site.ask(Method::POST, path, &shop, form, &[]).await;
        let about = format!("{path} {form}: {shown:?}");
        let expected = if path == "/workers" {
            shown.status
        } else {
            expected
        };
        assert_eq!(shown.status, expected, "{about}");
    }
    let workers = site.ask(Method::GET, "/workers", &shop, "", &[]).await;
    assert_eq!(workers.status, 200);
    assert!(workers.text.contains("serves this page"), "{workers:?}");
    // No history of only some topics is recorded, so there is no chart, not even an empty one.
    let overview = site.ask(Method::GET, "/", &shop, "", &[]).await;
    assert!(!overview.text.contains("history-title"), "{overview:?}");
    let shown = site.ask(Method::GET, "/system", &shop, "", &[]).await;
    assert!(shown.text.contains("create_topic"), "{shown:?}");
    assert!(!shown.text.contains("bank"), "{shown:?}");
    // The quota of a token is also that of its session.
    let mut statuses = BTreeSet::new();
    for n in 0..20 {
        let form = format!("payload=x&delay=1h&once=quota-{n}");
        statuses.insert(
            site.ask(Method::POST, "/topics/shop-a/send", &shop, &form, &[])
                .await
                .status,
        );
    }
    assert_eq!(statuses, BTreeSet::from([200, 429]));
}

#[tokio::test(flavor = "multi_thread")]
async fn limits_of_groups_and_schedules_hold_in_the_dashboard() {
    let site = Site::start().await;
    let (grouped, timed) = (site.log_in("grouped").await, site.log_in("timed").await);
    for (who, path, form, expected) in [
        (&grouped, "/topics/bank/groups/default/pause", "", 303),
        (&grouped, "/topics/bank/groups/other/pause", "", 403),
        (&grouped, "/topics/bank/pause", "", 403),
        (
            &grouped,
            "/topics/bank/messages/bank-message/purge",
            "group=default",
            403,
        ),
        (&grouped, "/system/jobs/clean", "", 403),
        (&grouped, "/new-topic", "topic=x", 403),
        (
            &grouped,
            "/new-schedule",
            "schedule=x&topic=bank&cron=0+0+0+1+1+*",
            403,
        ),
        (&grouped, "/new-token", "token=x&scopes.read=true", 403),
        (&timed, "/schedules/shop-of-bank/pause", "", 303),
        (&timed, "/schedules/bank-daily/pause", "", 403),
        (
            &timed,
            "/new-schedule",
            "schedule=bank-z&topic=bank&cron=0+0+0+1+1+*",
            403,
        ),
        (
            &timed,
            "/new-schedule",
            "schedule=shop-z&topic=bank&cron=0+0+0+1+1+*",
            303,
        ),
        (&timed, "/new-token", "token=x&scopes.read=true", 403),
    ] {
        let shown = site.ask(Method::POST, path, who, form, &[]).await;
        assert_eq!(shown.status, expected, "{path} {form}: {shown:?}");
    }
    // Names of schedules that it does not reach are on no page.
    for path in [
        "/schedules",
        "/forecast?for=604800",
        "/forecast?for=604800&topic=bank",
    ] {
        let shown = site.ask(Method::GET, path, &timed, "", &[]).await;
        assert_eq!(shown.status, 200, "{path}: {shown:?}");
        assert!(!shown.text.contains("bank-daily"), "{path}: {shown:?}");
    }
    let shown = site.ask(Method::GET, "/schedules", &timed, "", &[]).await;
    assert!(shown.text.contains("shop-of-bank"), "{shown:?}");
    let tokens = site.teams.api("all-tokens").get_json("/v1/tokens").await;
    let names: Vec<_> = tokens["tokens"]
        .as_array()
        .unwrap()
        .iter()
        .map(|token| &token["token"])
        .collect();
    assert!(!names.contains(&&Value::from("x")), "{tokens}");
}
