//! Each route of each description with the tokens of a team that shares a relay with another one.

use super::Victim;
use super::tokens::{OWN, routes_of, scope};
use lisa_tests::sqs::hex;
use lisa_tests::{Api, Binary, SOON, Server, eventually, free_port};
use reqwest::Method;
use serde_json::{Value, json};
use sha2::{Digest, Sha256};
use std::fmt::Write;

/// The scopes of which each team has a token, `<team>-<scope>`.
const SCOPES: [&str; 6] = ["send", "read", "operate", "receive", "payload", "tokens"];

/// Topics of two teams, and tokens of one of them and of the operators, for each scope.
pub(super) fn tables() -> String {
    let mut tables = String::from(
        "[topics.shop-a]\n[topics.bank]\n[topics.bank-2]\n\
         [schedules.shop-declared]\ntopic = 'bank'\ncron = '0 0 0 1 1 *'\n",
    );
    for (team, keys) in [("all", ""), ("shop", "topics = ['shop-*']")] {
        for scope in SCOPES {
            let name = format!("{team}-{scope}");
            let hash = hex(&Sha256::digest(&name));
            write!(
                tables,
                "[[auth.tokens]]\nname = '{name}'\nsha256 = '{hash}'\nscopes = ['{scope}']\n{keys}\n"
            )
            .unwrap();
        }
    }
    tables
}

pub(super) struct Teams {
    pub(super) victim: Victim,
}

impl Teams {
    async fn start(binary: Binary, arguments: &[&str]) -> Self {
        let victim = Victim::start(binary, arguments, &tables()).await;
        Self { victim }
    }

    pub(super) fn api(&self, token: &str) -> Api {
        self.victim.api.clone().token(token)
    }

    /// Makes something of the other team that each list would show.
    pub(super) async fn fill(&self) {
        let (send, operate) = (self.api("all-send"), self.api("all-operate"));
        for topic in ["bank", "shop-a"] {
            let sent = send.send(topic, "x", &[("Lisa-Delay", "1h")]).await;
            sent.expect(202);
            let schedule = json!({ "topic": topic, "cron": "0 0 0 1 1 *" });
            let path = format!("/v1/schedules/{topic}-daily");
            put(&operate, &path, &schedule).await;
            let job = json!({ "verb": "purge" });
            let path = format!("/v1/topics/{topic}/groups/default/garbage/jobs");
            let (status, body) = call(&operate, &Method::POST, &path, &job).await;
            assert_eq!(status, 202, "{body}");
        }
        // An operator may give a schedule any name.
        let schedule = json!({ "topic": "bank", "cron": "0 0 0 1 1 *" });
        put(&operate, "/v1/schedules/shop-of-bank", &schedule).await;
        self.fail_schedules(&["bank-daily", "shop-of-bank", "shop-a-daily"])
            .await;
        let read = self.api("all-read");
        eventually(SOON, async || {
            let counted = read.get_json("/v1/stats/snapshot").await.to_string();
            match counted.contains("bank") && counted.contains("shop-a") {
                true => Ok(()),
                false => Err(counted),
            }
        })
        .await;
    }
}

impl Teams {
    /// Records a failed last send of each of these schedules.
    async fn fail_schedules(&self, names: &[&str]) {
        let mut connection = Server::shared().connection().await;
        let registry = format!("{}:v1:{{registry}}", self.victim.namespace);
        for name in names {
            let mut both = redis::pipe();
            both.hset(format!("{registry}:schedule_faults"), name, "0 0 1 no");
            both.zadd(format!("{registry}:failing_schedules"), name, 0);
            let _: () = both.query_async(&mut connection).await.unwrap();
        }
    }
}

async fn put(api: &Api, path: &str, body: &Value) {
    let (status, body) = call(api, &Method::PUT, path, body).await;
    assert_eq!(status, 201, "{body}");
}

async fn call(api: &Api, method: &Method, path: &str, body: &Value) -> (u16, String) {
    let reply = api.call(method.clone(), path, body).await;
    (reply.status, reply.body)
}

/// Routes about several topics: a token of a team sees its own ones, and nothing of others.
const LISTS: [&str; 9] = [
    "/v1/topics",
    "/v1/stats",
    "/v1/stats/snapshot",
    "/v1/forecast",
    "/v1/schedules",
    "/v1/audit",
    "/v1/garbage/jobs",
    "/v1/attention",
    "/v1/workers",
];

#[tokio::test]
async fn no_route_shows_or_changes_what_is_of_another_team() {
    for (binary, arguments) in [
        (Binary::Producer, &["run"][..]),
        (Binary::Manager, &["run", "--with-producer"]),
    ] {
        let teams = Teams::start(binary, arguments).await;
        let has_lists = matches!(binary, Binary::Manager);
        if has_lists {
            teams.fill().await;
        }
        let description = teams.api("all-read").get_json("/openapi.json").await;
        let parts = |topic: &'static str, schedule: &'static str| {
            [
                ("{topic}", topic),
                ("{schedule}", schedule),
                ("{group}", "default"),
            ]
        };
        for (method, path) in routes_of(&description, &parts("bank", "bank-daily")) {
            let api = teams.api(&format!("shop-{}", scope(&method, &path)));
            let (status, body) = call(&api, &method, &path, &json!({})).await;
            let about = format!("{method} {path}: {status} {body}");
            if LISTS.contains(&&*path) {
                assert_eq!(status, 200, "{about}");
                assert!(!body.contains("bank"), "{about}");
                assert!(body.contains("shop-a"), "{about}");
                // This test can fail.
                let (_, all) = call(&teams.api("all-read"), &method, &path, &json!({})).await;
                assert!(all.contains("bank"), "{all}");
            } else if path == "/v1/garbage/jobs/a/stop" {
                assert_eq!(status, 404, "{about}");
            } else if path == OWN {
                teams.each_token_sees_itself_alone().await;
            } else {
                assert_eq!(status, 403, "{about}");
                assert!(body.contains("the token is limited to the "), "{about}");
                let instead = body.contains("use /v1/topics/{topic}/history");
                assert_eq!(instead, path == "/v1/history", "{about}");
            }
        }
        for (method, path) in routes_of(&description, &parts("shop-a", "shop-of-bank")) {
            let api = teams.api(&format!("shop-{}", scope(&method, &path)));
            let body = json!({ "topic": "shop-a", "cron": "* * * * * *" });
            let (status, body) = call(&api, &method, &path, &body).await;
            let about = format!("{method} {path}: {status} {body}");
            if path.contains("shop-of-bank") {
                let expected = if method == Method::PUT { 403 } else { 404 };
                // The body of a backfill is checked first.
                assert!(status == expected || path.ends_with("/backfill"), "{about}");
                assert!(!body.contains("bank-"), "{about}");
            } else if path.contains("shop-a") {
                assert_ne!(status, 403, "{about}");
            }
        }
        if has_lists {
            teams.schedules_stay_those_of_their_team().await;
        }
    }
}

impl Teams {
    async fn each_token_sees_itself_alone(&self) {
        for scope in SCOPES {
            let name = format!("shop-{scope}");
            let reply = self.api(&name).get(OWN).await.expect(200);
            let expected = json!({
                "token": &name, "declared_in_file": true, "scopes": [scope], "topics": ["shop-*"], "schedules": ["shop-*"],
                "has_expired": false, "max_topics": 1000, "max_streams": 10_000, "max_schedules": 1000, "is_rotating": false,
                "used": { "topics": 1, "streams": 1, "schedules": 2 },
            });
            // `shop-of-bank` has a name of this team.
            assert_eq!(reply.json(), expected);
        }
    }

    async fn schedules_stay_those_of_their_team(&self) {
        let api = self.api("shop-operate");
        for (method, expected) in [(Method::PUT, 403), (Method::DELETE, 404)] {
            let schedule = json!({ "topic": "shop-a", "cron": "* * * * * *" });
            let (status, body) =
                call(&api, &method, "/v1/schedules/shop-declared", &schedule).await;
            assert_eq!(status, expected, "{method}: {body}");
            assert!(!body.contains("configuration"), "{body}");
        }
        for (name, topic, expected) in [
            ("shop-x", "shop-a", 201),
            ("shop-x", "bank", 403),
            ("bank-x", "shop-a", 403),
            ("bank-daily", "shop-a", 403),
        ] {
            let schedule = json!({ "topic": topic, "cron": "* * * * * *" });
            let path = format!("/v1/schedules/{name}");
            let (status, body) = call(&api, &Method::PUT, &path, &schedule).await;
            assert_eq!(status, expected, "{name} to {topic}: {body}");
        }
        // A page does not say how many entries of others there are.
        let audit = self.api("shop-read").get_json("/v1/audit?limit=1").await;
        assert_eq!(audit["entries"][0]["topic"], "shop-a", "{audit}");
        // Garbage cannot be forwarded to another team.
        for (topic, expected) in [("bank", 422), ("shop-a", 201)] {
            let settings = json!({ "garbage": { "topic": topic } });
            let path = "/v1/topics/shop-new";
            let (status, body) = call(&api, &Method::PUT, path, &settings).await;
            assert_eq!(status, expected, "garbage to {topic}: {body}");
        }
        let job = self.api("all-read").get_json("/v1/garbage/jobs").await;
        let jobs = job["jobs"].as_array().expect("jobs");
        let of_bank = jobs.iter().find(|job| job["topic"] == "bank").expect("one");
        let path = format!("/v1/garbage/jobs/{}/stop", of_bank["id"].as_str().unwrap());
        let (status, body) = call(&api, &Method::POST, &path, &json!({})).await;
        assert_eq!(status, 404, "{body}");
        let (status, _) = call(&self.api("all-operate"), &Method::POST, &path, &json!({})).await;
        assert_eq!(status, 200);
    }
}

#[tokio::test]
async fn metrics_are_for_tokens_without_limits() {
    let teams = Teams::start(Binary::Manager, &["run"]).await;
    for (token, expected) in [("shop-read", 403), ("all-send", 403), ("all-read", 200)] {
        let (status, body) = call(&teams.api(token), &Method::GET, "/metrics", &json!({})).await;
        assert_eq!(status, expected, "{token}: {body}");
    }
    let health = teams.victim.api.try_get("/healthz").await;
    let health = health.expect("an answer").body;
    assert!(
        health.contains("recurring") && !health.contains("bank"),
        "{health}"
    );
    let all = teams.api("all-read").get("/healthz").await.body;
    assert!(all.contains("recurring:bank"), "{all}");
    let stranger = teams
        .victim
        .api
        .try_get("/metrics")
        .await
        .expect("an answer");
    assert_eq!(stranger.status, 401);
}

#[tokio::test]
async fn a_worker_pulls_from_the_topics_and_groups_that_its_token_reaches() {
    let port = free_port();
    let hash = hex(&Sha256::digest("g-receive"));
    let gateway = format!(
        "[consumer.gateway]\nlisten = '127.0.0.1:{port}'\n{}\n[[auth.tokens]]\nname = 'g'\nsha256 = '{hash}'\n\
         scopes = ['receive']\ngroups = ['g*']\n",
        tables()
    );
    let victim = Victim::start(Binary::Consumer, &["run"], &gateway).await;
    // No manager has declared the topics.
    for (token, topic, group, expected) in [
        ("shop-receive", "shop-a", "default", 404),
        ("shop-receive", "bank", "default", 403),
        ("shop-receive", "shop%2Da", "default", 404),
        ("shop-receive", "b%61nk", "default", 403),
        ("shop-receive", "unknown", "default", 403),
        ("shop-receive", "shop-unknown", "default", 404),
        ("g-receive", "bank", "g", 404),
        ("g-receive", "bank", "default", 403),
    ] {
        let api = Api::new(port).token(token);
        for verb in ["pull", "settle-and-pull"] {
            let path = format!("/v1/topics/{topic}/groups/{group}/{verb}");
            let (status, body) = call(&api, &Method::POST, &path, &json!({ "wait": "0s" })).await;
            assert_eq!(status, expected, "{token} {path}: {body}");
        }
    }
    drop(victim);
}

#[tokio::test]
async fn a_limited_token_that_may_read_gets_the_payload_of_what_it_cancels() {
    let both = format!(
        "{}[[auth.tokens]]\nname = 'both'\nsha256 = '{}'\nscopes = ['send', 'read']\ntopics = ['shop-*']\n",
        tables(),
        hex(&Sha256::digest("both"))
    );
    let victim = Victim::start(Binary::Manager, &["run", "--with-producer"], &both).await;
    let teams = Teams { victim };
    let sent = teams
        .api("both")
        .send("shop-a", "hello", &[("Lisa-Delay", "1h")])
        .await;
    let id = sent.expect(202).json()["id"].clone();
    let path = format!("/v1/topics/shop-a/messages/{}", id.as_str().unwrap());
    let cancelled = teams
        .api("both")
        .call(Method::DELETE, &path, &Value::Null)
        .await;
    assert_eq!(cancelled.expect(200).json()["payload"], "hello");
}
