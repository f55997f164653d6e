//! Pages of other sites, in the browser of a user who can reach a listener. Their requests are those that Chromium
//! sends.

use super::Victim;
use super::tokens::{TOKENS, routes};
use lisa_tests::http::Reply;
use lisa_tests::{Binary, Server};
use reqwest::Method;
use serde_json::Value;

const FORM: &str = "application/x-www-form-urlencoded";
const TEXT: &str = "text/plain;charset=UTF-8";
const PAUSE: &str = "/v1/topics/t/pause";

/// The head of a request that a page makes a browser send.
struct Head {
    what: &'static str,
    host: Option<&'static str>,
    lines: &'static [(&'static str, &'static str)],
}

/// The requests that pages of other origins can send without a preflight, which no listener answers.
const FOREIGN: [Head; 7] = [
    Head {
        what: "fetch with no-cors",
        host: None,
        lines: &[
            ("Content-Type", TEXT),
            ("Origin", "http://evil.example"),
            ("Referer", "http://evil.example/"),
            ("Sec-Fetch-Site", "cross-site"),
            ("Sec-Fetch-Mode", "no-cors"),
            ("Sec-Fetch-Dest", "empty"),
        ],
    },
    Head {
        what: "fetch from another port of the same host",
        host: None,
        lines: &[
            ("Content-Type", TEXT),
            ("Origin", "http://127.0.0.1:1"),
            ("Sec-Fetch-Site", "same-site"),
            ("Sec-Fetch-Mode", "no-cors"),
            ("Sec-Fetch-Dest", "empty"),
        ],
    },
    Head {
        what: "a form",
        host: None,
        lines: &[
            ("Content-Type", FORM),
            ("Origin", "http://evil.example"),
            ("Upgrade-Insecure-Requests", "1"),
            ("Sec-Fetch-Site", "cross-site"),
            ("Sec-Fetch-Mode", "navigate"),
            ("Sec-Fetch-User", "?1"),
            ("Sec-Fetch-Dest", "document"),
        ],
    },
    Head {
        what: "a form in a sandbox",
        host: None,
        lines: &[
            ("Content-Type", FORM),
            ("Origin", "null"),
            ("Sec-Fetch-Site", "cross-site"),
            ("Sec-Fetch-Mode", "navigate"),
            ("Sec-Fetch-Dest", "iframe"),
        ],
    },
    Head {
        what: "a form in a browser that names no site",
        host: None,
        lines: &[("Content-Type", FORM), ("Origin", "http://evil.example")],
    },
    Head {
        what: "a sandbox in a browser that names no site",
        host: None,
        lines: &[("Content-Type", TEXT), ("Origin", "null")],
    },
    Head {
        what: "a beacon",
        host: None,
        lines: &[
            ("Content-Type", TEXT),
            ("Origin", "https://evil.example"),
            ("Sec-Fetch-Site", "cross-site"),
            ("Sec-Fetch-Mode", "no-cors"),
            ("Sec-Fetch-Dest", "empty"),
            ("Sec-Fetch-Storage-Access", "none"),
        ],
    },
];

/// Pages whose host name resolves to the listener: their browser takes them for the listener's own.
const REBOUND: [Head; 3] = [
    Head {
        what: "a rebound name",
        host: Some("evil.example:7812"),
        lines: &[
            ("Content-Type", "application/json"),
            ("Origin", "http://evil.example:7812"),
        ],
    },
    Head {
        what: "a rebound name that counts as secure",
        host: Some("EVIL.example."),
        lines: &[
            ("Content-Type", "application/json"),
            ("Sec-Fetch-Site", "same-origin"),
            ("Sec-Fetch-Mode", "cors"),
            ("Sec-Fetch-Dest", "empty"),
        ],
    },
    Head {
        what: "a rebound name that looks like ours",
        host: Some("127.0.0.1.evil.example"),
        lines: &[("Sec-Fetch-Site", "none")],
    },
];

/// The requests that `<img>` on a page of another site makes a browser send.
const IMAGES: [Head; 2] = [
    Head {
        what: "an image on another site",
        host: None,
        lines: &[
            ("Accept", "image/avif,image/webp,*/*;q=0.8"),
            ("Sec-Fetch-Site", "cross-site"),
            ("Sec-Fetch-Mode", "no-cors"),
            ("Sec-Fetch-Dest", "image"),
        ],
    },
    Head {
        what: "an image on another port of the same host",
        host: None,
        lines: &[
            ("Accept", "image/avif,image/webp,*/*;q=0.8"),
            ("Sec-Fetch-Site", "same-site"),
            ("Sec-Fetch-Mode", "no-cors"),
            ("Sec-Fetch-Dest", "image"),
        ],
    },
];

async fn ask(victim: &Victim, method: &Method, path: &str, head: &Head) -> Reply {
    let mut request = victim.api.request(method.clone(), path);
    if let Some(host) = head.host {
        request = request.header("Host", host);
    }
    for (name, value) in head.lines {
        request = request.header(*name, *value);
    }
    if *method != Method::GET {
        request = request.body("{}");
    }
    let response = request.send().await.expect("an answer");
    let reply = Reply {
        status: response.status().as_u16(),
        headers: response.headers().clone(),
        body: response.text().await.expect("a body"),
    };
    let names = reply.headers.keys();
    let mut grants = names.filter(|name| name.as_str().starts_with("access-control-"));
    assert_eq!(grants.next(), None, "{method} {path}: {reply:?}");
    assert_eq!(reply.header("x-content-type-options"), "nosniff", "{path}");
    reply
}

#[track_caller]
fn refused(reply: &Reply, code: &str, about: &str) {
    assert_eq!(reply.status, 403, "{about}: {reply:?}");
    assert_eq!(reply.header("content-type"), "application/problem+json");
    assert_eq!(reply.json()["code"], code, "{about}");
}

/// Returns the state of the topic and its messages, as a manager reports it; the times change by themselves.
async fn state(victim: &Victim) -> Value {
    let mut topic = victim.api.get_json("/v1/topics/t").await;
    topic["stats"]["overdue_ms"].take();
    topic
}

#[tokio::test]
async fn no_page_of_another_site_changes_anything_on_any_route() {
    let redis = Server::shared().url();
    for (binary, arguments, least) in [
        (Binary::Producer, &["run"][..], 5),
        (Binary::Manager, &["run"], 11),
        (Binary::Manager, &["run", "--with-producer"], 16),
        (Binary::Manager, &["dev", "--redis-url", &redis], 24),
    ] {
        let victim = Victim::start(binary, arguments, "").await;
        let description = victim.api.get_json("/openapi.json").await;
        let mut changing = routes(&description);
        changing.retain(|(method, _)| method != Method::GET);
        assert!(changing.len() >= least, "{arguments:?}: {changing:?}");
        let has_manager = binary == Binary::Manager;
        let before = match has_manager {
            true => state(&victim).await,
            false => Value::Null,
        };
        for (method, path) in &changing {
            for head in &FOREIGN {
                let about = format!("{method} {path}, {}", head.what);
                refused(
                    &ask(&victim, method, path, head).await,
                    "cross_site",
                    &about,
                );
            }
            for head in &REBOUND {
                let about = format!("{method} {path}, {}", head.what);
                let reply = ask(&victim, method, path, head).await;
                refused(&reply, "host_not_allowed", &about);
            }
            let preflight = Head {
                what: "a preflight",
                host: None,
                lines: &[
                    ("Origin", "http://evil.example"),
                    ("Access-Control-Request-Method", "POST"),
                    ("Access-Control-Request-Headers", "content-type"),
                    ("Sec-Fetch-Site", "cross-site"),
                    ("Sec-Fetch-Mode", "cors"),
                ],
            };
            let reply = ask(&victim, &Method::OPTIONS, path, &preflight).await;
            assert_eq!(reply.status, 405, "{path}: {reply:?}");
        }
        assert_eq!(victim.accepted().await, 0);
        if has_manager {
            assert_eq!(state(&victim).await, before);
        }
    }
}

#[tokio::test]
async fn a_rebound_name_reads_nothing_but_the_probes() {
    let consumer = &["run", "--topic", "t", "--group", "g"][..];
    for (binary, arguments) in [
        (Binary::Producer, &["run"][..]),
        (Binary::Manager, &["run", "--with-producer"]),
        (Binary::Consumer, consumer),
    ] {
        let victim = Victim::start(binary, arguments, "").await;
        let mut paths = vec!["/metrics".to_owned(), "/openapi.json".to_owned()];
        if binary != Binary::Consumer {
            let description = victim.api.get_json("/openapi.json").await;
            let described = routes(&description).into_iter();
            paths.extend(
                described
                    .filter(|(method, _)| method == Method::GET)
                    .map(|(_, path)| path),
            );
        }
        for head in &REBOUND {
            for path in &paths {
                for method in [Method::GET, Method::HEAD] {
                    let reply = ask(&victim, &method, path, head).await;
                    assert_eq!(
                        reply.status, 403,
                        "{method} {path}, {}: {reply:?}",
                        head.what
                    );
                }
            }
            for probe in ["/healthz", "/readyz"] {
                let reply = ask(&victim, &Method::GET, probe, head).await;
                assert_eq!(reply.status, 200, "{probe}, {}", head.what);
            }
        }
        // Requests whose answer a page cannot see, and that start nothing, are answered.
        assert_eq!(
            ask(&victim, &Method::GET, "/metrics", &IMAGES[0])
                .await
                .status,
            200
        );
        let posted = ask(&victim, &Method::POST, "/metrics", &FOREIGN[0]).await;
        refused(&posted, "cross_site", "POST /metrics");
    }
}

#[tokio::test]
async fn an_image_of_another_site_starts_no_examination() {
    let victim = Victim::start(Binary::Manager, &["run", "--with-producer"], "").await;
    let examination = "/v1/topics/t/doctor";
    for image in &IMAGES {
        let reply = ask(&victim, &Method::HEAD, examination, image).await;
        assert_eq!(reply.status, 403, "{}", image.what);
        let reply = ask(&victim, &Method::GET, examination, image).await;
        refused(&reply, "cross_site", examination);
        let reply = ask(&victim, &Method::GET, "/v1/stats", image).await;
        assert_eq!(reply.status, 200, "{}", image.what);
    }
    victim.api.get(examination).await.expect(200);
}

#[tokio::test]
async fn own_pages_programs_and_what_is_allowed_expressly_pass() {
    let tables = r#"
        [auth]
        allowed_hosts = ["lisa.example.com"]
        allowed_origins = ["https://board.example.com"]
    "#;
    let victim = Victim::start(Binary::Manager, &["run"], tables).await;
    for (host, lines) in [
        (None, &[][..]),
        (
            None,
            &[
                ("Sec-Fetch-Site", "same-origin"),
                ("Origin", "http://localhost:1"),
            ],
        ),
        (None, &[("Sec-Fetch-Site", "none")]),
        (None, &[("Origin", "https://board.example.com")]),
        (Some("lisa.example.com:7812"), &[]),
        (
            Some("lisa.example.com"),
            &[("Origin", "https://lisa.example.com")],
        ),
        (Some("lisa-manager:7812"), &[]),
    ] {
        let head = Head {
            what: "an own page",
            host,
            lines,
        };
        let reply = ask(&victim, &Method::POST, PAUSE, &head).await;
        assert_eq!(reply.status, 200, "{host:?} {lines:?}: {reply:?}");
    }
}

#[tokio::test]
async fn with_tokens_a_page_is_asked_for_one_and_a_program_that_has_it_passes() {
    let victim = Victim::start(Binary::Manager, &["run", "--with-producer"], TOKENS).await;
    let description = victim.api.get_json("/openapi.json").await;
    for (method, path) in &routes(&description) {
        for head in FOREIGN.iter().chain(&REBOUND) {
            let reply = ask(&victim, method, path, head).await;
            assert_eq!(
                reply.status, 401,
                "{method} {path}, {}: {reply:?}",
                head.what
            );
        }
    }
    let operator = victim.api.clone().token("operate-token");
    let request = operator.request(Method::POST, PAUSE);
    let request = request
        .header("Host", "lisa.example.com")
        .header("Origin", "http://evil.example")
        .header("Sec-Fetch-Site", "cross-site");
    assert_eq!(request.send().await.expect("an answer").status(), 200);
}
