//! Each route of each description, with each token.

use super::Victim;
use lisa_tests::{Api, Binary};
use reqwest::Method;
use serde_json::Value;

/// The texts of the tokens are `send-token`, `read-token`, `operate-token` and `tokens-token`.
pub(super) const TOKENS: &str = r#"
[[auth.tokens]]
name = "shop"
sha256 = "85db1657a3d9476cdd07babfbd470539a1dc03a213f6b496d3ae0e1a3bfd995c"
scopes = ["send"]
[[auth.tokens]]
name = "eyes"
sha256 = "0328587016f9e316b9c31c94f944a2c453e1494a564062b5eab68039c75b58bf"
scopes = ["read"]
[[auth.tokens]]
name = "hands"
sha256 = "2de8e6cbdda43d8f8c4f33e79b7296ad4159d03cf42dbdf39c1e48ba6547fc61"
scopes = ["operate"]
[[auth.tokens]]
name = "head"
sha256 = "894c8feb2093947aa1bab277ab47663532cd33e13a3b03b2f46c83f3173f7580"
scopes = ["tokens"]
"#;

/// The only route for every token, whatever its scopes and limits: it shows that token.
pub(super) const OWN: &str = "/v1/token";

/// Returns the scope that a route requires. Reading needs one scope; changing messages another. Any other change, or
/// keeping Redis busy, needs the third. Tokens have one of their own.
pub(super) fn scope(method: &Method, path: &str) -> &'static str {
    match method {
        _ if path.starts_with("/v1/tokens") => "tokens",
        _ if path.ends_with("/doctor") => "operate",
        &Method::GET => "read",
        _ if path.contains("/messages") => "send",
        _ => "operate",
    }
}

/// Every route that the description names, with the parts of its path filled in.
pub(super) fn routes(description: &Value) -> Vec<(Method, String)> {
    routes_of(description, &[])
}

/// Likewise, with some parts filled in differently.
pub(super) fn routes_of(description: &Value, parts: &[(&str, &str)]) -> Vec<(Method, String)> {
    let paths = description["paths"].as_object().expect("paths");
    let mut routes = Vec::new();
    for (path, item) in paths {
        let usual = [
            ("{topic}", "t"),
            ("{group}", "g"),
            ("{id}", "a"),
            ("{name}", "reclaim"),
            ("{schedule}", "s"),
            ("{token}", "MQ"),
        ];
        let parts = parts.iter().chain(&usual);
        let filled = parts.fold(path.clone(), |path, (part, value)| {
            path.replace(part, value)
        });
        assert!(
            !filled.contains('{'),
            "a part of {path} is new to this test"
        );
        for method in item.as_object().expect("methods").keys() {
            let method = method.to_uppercase().parse().expect("a method");
            routes.push((method, filled.clone()));
        }
    }
    routes
}

async fn status(api: &Api, method: &Method, path: &str, authorization: &[&str]) -> u16 {
    let mut request = api.request(method.clone(), path).body("{}");
    for value in authorization {
        request = request.header("Authorization", *value);
    }
    request.send().await.expect("an answer").status().as_u16()
}

#[tokio::test]
async fn every_route_of_every_description_asks_for_exactly_one_scope() {
    for (binary, arguments, least) in [
        (Binary::Producer, &["run"][..], 6),
        (Binary::Manager, &["run"], 19),
        (Binary::Manager, &["run", "--with-producer"], 24),
    ] {
        let victim = Victim::start(binary, arguments, TOKENS).await;
        let description = victim.api.get_json("/openapi.json").await;
        let routes = routes(&description);
        assert!(routes.len() >= least, "{arguments:?}: {routes:?}");
        for (method, path) in &routes {
            for given in ["send", "read", "operate", "tokens"] {
                let value = format!("Bearer {given}-token");
                let seen = status(&victim.api, method, path, &[&value]).await;
                let allowed = path == OWN || given == scope(method, path);
                assert_eq!(seen != 403, allowed, "{method} {path} with {given}: {seen}");
                assert_ne!(seen, 401, "{method} {path} with {given}");
            }
            let right = format!("Bearer {}-token", scope(method, path));
            for wrong in [
                &[][..],
                &["Bearer wrong-token"],
                &["Bearer "],
                &["Bearer"],
                &["Basic c2VuZC10b2tlbg=="],
                &[&right[..right.len() - 1]],
                &[&format!("{right}x")],
                &[&format!("{right} {right}")],
                &[&right.to_uppercase()],
                &[&right, &right],
                &[right.trim_start_matches("Bearer ")],
            ] {
                let seen = status(&victim.api, method, path, wrong).await;
                assert_eq!(seen, 401, "{method} {path} with {wrong:?}");
            }
            if method == Method::GET {
                let seen = status(&victim.api, &Method::HEAD, path, &[]).await;
                assert_eq!(seen, 401, "HEAD {path}");
            }
            let query = format!("{path}?token=send-token&access_token=read-token");
            assert_eq!(
                status(&victim.api, method, &query, &[]).await,
                401,
                "{query}"
            );
        }
    }
}

/// A stranger sees neither topics, nor messages, nor what a topic accepts.
#[tokio::test]
async fn without_a_token_all_answers_are_alike() {
    let victim = Victim::start(Binary::Manager, &["run", "--with-producer"], TOKENS).await;
    let api = &victim.api;
    let known = api.clone().token("send-token");
    known
        .send("t", "x", &[("Lisa-Id", "a"), ("Lisa-Delay", "1h")])
        .await
        .expect(202);
    let first = api.get("/v1/topics/t/messages/a").await;
    for path in [
        "/v1/topics/t/messages/b",
        "/v1/topics/nosuch/messages/a",
        "/v1/topics/NOT%00/messages/a.b",
        "/v1/topics/nosuch",
        "/v1/stats",
    ] {
        let other = api.get(path).await;
        assert_eq!(
            (other.status, &other.body),
            (first.status, &first.body),
            "{path}"
        );
    }
    let large = api
        .send("t", vec![b'x'; 100_000], &[("Lisa-Dealy", "?")])
        .await;
    assert_eq!((large.status, &large.body), (first.status, &first.body));
}
