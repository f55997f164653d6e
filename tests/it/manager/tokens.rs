//! Tokens that are created, changed, rotated and removed by call, and the processes that follow.

use super::SOON;
use super::operators::lisa_manager;
use super::served::Served;
use futures_util::future::join_all;
use lisa_tests::http::{Reply, reply};
use lisa_tests::sqs::hex;
use lisa_tests::{Api, Binary, Process, Server, Snapshot, eventually, free_port};
use reqwest::Method;
use serde_json::{Value, json};
use sha2::{Digest, Sha256};
use std::time::Duration;

const NEW: (&str, &str) = ("If-None-Match", "*");
const ANY: (&str, &str) = ("", "");
/// A configured token that may change tokens and read; its text is its name.
const ADMIN: &str = "admin";

/// Configured tokens whose texts are their names, as JSON.
fn tokens(tokens: &[(&str, &[&str], Value)]) -> String {
    let of = |(name, scopes, more): &(&str, &[&str], Value)| {
        let sha256 = hex(&Sha256::digest(name));
        let mut token = json!({ "name": name, "sha256": sha256, "scopes": scopes });
        let more = more.as_object().into_iter().flatten();
        for (key, value) in more {
            token[key] = value.clone();
        }
        token
    };
    Value::from_iter(tokens.iter().map(of)).to_string()
}

fn admin() -> String {
    tokens(&[(ADMIN, &["tokens", "read", "operate"], Value::Null)])
}

/// A manager with a producer, the topics `shop-a` and `bank`, and the token of the administrator.
async fn served(server: &Server) -> Served {
    let mut served = served_with(server, "by-call", &admin()).await;
    served.api = served.api.token(ADMIN);
    served
}

async fn served_with(server: &Server, namespace: &str, tokens: &str) -> Served {
    let keys = [
        ("topics.shop-a.lease", "1m"),
        ("topics.bank.lease", "1m"),
        ("auth.tokens", tokens),
    ];
    let keys = if tokens.is_empty() {
        &keys[..2]
    } else {
        &keys[..]
    };
    Served::with(server, namespace, keys, true).await
}

async fn call(
    api: &Api,
    method: Method,
    token: &str,
    (header, value): (&str, &str),
    body: Value,
) -> Reply {
    let request = api.request(method, &format!("/v1/tokens/{token}"));
    let request = match body {
        Value::Null => request,
        body => request.json(&body),
    };
    let request = match header {
        "" => request,
        header => request.header(header, value),
    };
    reply(request).await
}

async fn put(api: &Api, token: &str, body: Value) -> Reply {
    call(api, Method::PUT, token, ANY, body).await
}

/// Creates a token, and returns its secret.
async fn create(api: &Api, token: &str, body: Value) -> String {
    let created = call(api, Method::PUT, token, NEW, body).await.expect(201);
    assert_eq!(created.header("Cache-Control"), "no-store");
    created.json()["secret"].as_str().unwrap().to_owned()
}

async fn rotate(api: &Api, token: &str, step: &str) -> Reply {
    let path = format!("{token}/rotate");
    call(api, Method::POST, &path, ANY, json!({ "step": step })).await
}

async fn remove(api: &Api, token: &str) {
    let removed = call(api, Method::DELETE, token, ANY, Value::Null).await;
    removed.expect(204);
}

/// Waits until a request with this token has this status.
async fn status(api: &Api, secret: &str, (method, path): (Method, &str), expected: u16) -> Reply {
    let api = api.clone().token(secret);
    eventually(SOON, async || {
        let reply = api.call(method.clone(), path, &json!({})).await;
        match reply.status == expected {
            true => Ok(reply),
            false => Err(format!("{method} {path}: {reply:?}")),
        }
    })
    .await
}

const LIST: (Method, &str) = (Method::GET, "/v1/topics");

#[tokio::test]
async fn each_process_follows_the_creation_the_change_and_the_removal_of_a_token() {
    let server = Server::start();
    let manager = served(&server).await;
    let config = |port: u16| {
        let hash = hex(&Sha256::digest(ADMIN));
        let gateway = free_port();
        format!(
            "namespace = 'by-call'\nredis.url = '{}'\nproducer.listen = '127.0.0.1:{port}'\n\
             consumer.listen = '127.0.0.1:{}'\nconsumer.gateway.listen = '127.0.0.1:{gateway}'\n\
             [[auth.tokens]]\nname = '{ADMIN}'\nsha256 = '{hash}'\nscopes = ['tokens']\n",
            server.socket_url(),
            free_port()
        )
        .replace(&gateway.to_string(), &(port).to_string())
    };
    let start = async |binary: Binary| -> (Process, Api) {
        let port = free_port();
        let process = binary.with(["run"]).config(&config(port)).start();
        let api = Api::new(port);
        eventually(SOON, async || match api.try_get("/openapi.json").await {
            Some(reply) if reply.status == 200 => Ok(()),
            other => Err(format!("{other:?}")),
        })
        .await;
        (process, api)
    };
    let body = json!({ "scopes": ["send", "receive", "read"], "topics": ["shop-*"] });
    // Before the processes start, and while they run.
    let early = create(&manager.api, "early", body.clone()).await;
    let (_producer, producer) = start(Binary::Producer).await;
    let (_consumer, gateway) = start(Binary::Consumer).await;
    let send = (Method::POST, "/v1/topics/shop-a/messages");
    let pull = (Method::POST, "/v1/topics/shop-a/groups/default/pull");
    let places = [(&producer, send, 202), (&gateway, pull, 200)];
    for (api, route, ok) in &places {
        let api = (*api).clone().token(&early);
        let first = api.call(route.0.clone(), route.1, &json!({})).await;
        first.expect(*ok);
    }
    let secret = create(&manager.api, "team", body.clone()).await;
    let places = [places.as_slice(), &[(&manager.api, LIST, 200)]].concat();
    for (api, route, ok) in &places {
        status(api, &secret, route.clone(), *ok).await;
    }
    let list = manager
        .api
        .clone()
        .token(&secret)
        .get_json("/v1/topics")
        .await;
    assert!(!list.to_string().contains("bank"), "{list}");
    let changed = json!({ "scopes": ["send", "receive", "read"], "topics": ["bank"] });
    put(&manager.api, "team", changed).await.expect(200);
    for (api, route, ok) in &places {
        let expected = if *ok == 200 && route == &LIST {
            200
        } else {
            403
        };
        status(api, &secret, route.clone(), expected).await;
    }
    remove(&manager.api, "team").await;
    for (api, route, _) in &places {
        let refused = status(api, &secret, route.clone(), 401).await;
        assert!(refused.body.contains("send a valid token"), "{refused:?}");
    }
    // It is another one, although the name is the same.
    let again = create(&manager.api, "team", body).await;
    for (api, route, ok) in &places {
        status(api, &again, route.clone(), *ok).await;
        status(api, &secret, route.clone(), 401).await;
    }
    manager.end().await;
}

#[tokio::test]
async fn a_rotation_accepts_both_secrets_until_it_is_finished_or_cancelled() {
    let server = Server::start();
    let served = served(&server).await;
    let api = &served.api;
    let first = create(api, "team", json!({ "scopes": ["read"] })).await;
    status(api, &first, LIST, 200).await;
    let begun = rotate(api, "team", "begin").await.expect(200);
    assert_eq!(begun.header("Cache-Control"), "no-store");
    let second = begun.json()["secret"].as_str().unwrap().to_owned();
    assert_eq!(begun.json()["is_rotating"], true);
    status(api, &second, LIST, 200).await;
    status(api, &first, LIST, 200).await;
    let twice = rotate(api, "team", "begin").await.expect(409);
    assert_eq!(twice.json()["code"], "busy");
    // Its permissions can change meanwhile.
    let changed = put(api, "team", json!({ "scopes": ["read", "operate"] })).await;
    assert_eq!(changed.expect(200).json()["is_rotating"], true);
    for _ in 0..2 {
        let finished = rotate(api, "team", "finish").await.expect(200).json();
        assert_eq!(
            (&finished["is_rotating"], &finished["secret"]),
            (&json!(false), &Value::Null)
        );
    }
    status(api, &first, LIST, 401).await;
    status(api, &second, LIST, 200).await;
    let begun = rotate(api, "team", "begin").await.expect(200).json();
    let third = begun["secret"].as_str().unwrap();
    status(api, third, LIST, 200).await;
    rotate(api, "team", "cancel").await.expect(200);
    status(api, third, LIST, 401).await;
    status(api, &second, LIST, 200).await;
    let cancelled = rotate(api, "team", "cancel").await.expect(200);
    let etag = cancelled.header("ETag").to_owned();
    let stale = (Method::POST, "team/rotate", ("If-Match", "\"1\""));
    let refused = call(api, stale.0, stale.1, stale.2, json!({})).await;
    refused.expect(412);
    let matching = ("If-Match", etag.as_str());
    let begun = call(api, Method::POST, "team/rotate", matching, Value::Null).await;
    assert!(begun.expect(200).json()["secret"].is_string());
    rotate(api, "nix", "begin").await.expect(404);
    served.end().await;
}

#[tokio::test]
async fn a_token_expires_without_a_call() {
    let server = Server::start();
    let served = served(&server).await;
    let soon = jiff::Timestamp::now() + Duration::from_secs(6);
    let body = json!({ "scopes": ["read"], "expires": soon.to_string() });
    let secret = create(&served.api, "team", body).await;
    status(&served.api, &secret, LIST, 200).await;
    let expired = status(&served.api, &secret, LIST, 401).await;
    assert!(
        expired.body.contains("the token has expired"),
        "{expired:?}"
    );
    let shown = served.api.get_json("/v1/tokens/team").await;
    assert_eq!(shown["has_expired"], true, "{shown}");
    // Another time, and it is accepted again.
    let later = json!({ "scopes": ["read"], "expires": "2999-01-01T00:00:00Z" });
    put(&served.api, "team", later).await.expect(200);
    status(&served.api, &secret, LIST, 200).await;
    served.end().await;
}

#[tokio::test]
async fn a_token_of_the_file_takes_precedence_over_a_stored_one_of_its_name() {
    let server = Server::start();
    let served = served(&server).await;
    let secret = create(&served.api, "team", json!({ "scopes": ["read"] })).await;
    let both = tokens(&[
        (ADMIN, &["tokens", "read"], Value::Null),
        ("team", &["read"], json!({ "topics": ["shop-*"] })),
    ]);
    let other = served_with(&server, "by-call", &both).await;
    let api = other.api.clone().token(ADMIN);
    status(&api, &secret, LIST, 401).await;
    status(&api, "team", LIST, 200).await;
    let shown = api.get_json("/v1/tokens/team").await;
    assert_eq!(
        (
            &shown["declared_in_file"],
            &shown["hides_stored"],
            &shown["topics"]
        ),
        (&json!(true), &json!(true), &json!(["shop-*"]))
    );
    let body = json!({ "scopes": ["read"] });
    for token in ["team", ADMIN] {
        let refused = put(&api, token, body.clone()).await.expect(409);
        assert_eq!(refused.json()["code"], "declared_in_file");
        let why = format!("the managers' configuration declares token {token}");
        assert!(refused.body.contains(&why), "{refused:?}");
        rotate(&api, token, "begin").await.expect(409);
    }
    let configured = call(&api, Method::DELETE, ADMIN, ANY, Value::Null).await;
    configured.expect(409);
    // Otherwise, it would be accepted again once it is no longer in the file.
    remove(&api, "team").await;
    status(&served.api, &secret, LIST, 401).await;
    let shown = api.get_json("/v1/tokens/team").await;
    assert_eq!(shown["hides_stored"], Value::Null);
    call(&api, Method::DELETE, "team", ANY, Value::Null)
        .await
        .expect(409);
    for served in [served, other] {
        served.end().await;
    }
}

#[tokio::test]
async fn only_an_unlimited_token_with_the_scope_tokens_opens_the_routes() {
    let server = Server::start();
    let limit = json!({ "topics": ["*"] });
    let all = tokens(&[
        (ADMIN, &["tokens"], Value::Null),
        (
            "ops",
            &["send", "read", "operate", "receive", "payload"],
            Value::Null,
        ),
        ("limited", &["tokens", "operate", "read"], limit),
        ("groups", &["tokens"], json!({ "groups": ["*"] })),
        ("schedules", &["tokens"], json!({ "schedules": ["*"] })),
    ]);
    let served = served_with(&server, "by-call", &all).await;
    let admin = served.api.clone().token(ADMIN);
    create(&admin, "team", json!({ "scopes": ["read"] })).await;
    for name in ["ops", "limited", "groups", "schedules"] {
        let api = served.api.clone().token(name);
        for (method, path, body) in [
            (Method::GET, "", Value::Null),
            (Method::GET, "/team", Value::Null),
            (Method::PUT, "/team", json!({ "scopes": ["tokens"] })),
            (Method::PUT, "/new", json!({ "scopes": ["tokens"] })),
            (Method::POST, "/team/rotate", json!({})),
            (Method::DELETE, "/team", Value::Null),
        ] {
            let path = format!("/v1/tokens{path}");
            let refused = api.call(method.clone(), &path, &body).await;
            assert_eq!(refused.status, 403, "{name}: {method} {path}: {refused:?}");
        }
    }
    // The administrator may give what it lacks itself.
    let body = json!({ "scopes": ["tokens", "operate"] });
    let secret = create(&admin, "second", body).await;
    status(&served.api, &secret, (Method::GET, "/v1/tokens"), 200).await;
    served.end().await;
}

#[tokio::test]
async fn a_secret_is_shown_once_and_is_neither_stored_nor_logged() {
    let server = Server::start();
    let port = free_port();
    let config = format!(
        "namespace = 'by-call'\nredis.url = '{}'\nmanager.listen = '127.0.0.1:{port}'\n[[auth.tokens]]\nname = '{ADMIN}'\n\
         sha256 = '{}'\nscopes = ['tokens', 'read']\n",
        server.socket_url(),
        hex(&Sha256::digest(ADMIN))
    );
    let process = Binary::Manager.with(["run"]).config(&config).start();
    let api = Api::new(port).token(ADMIN);
    eventually(SOON, async || match api.try_get("/readyz").await {
        Some(reply) if reply.status == 200 => Ok(()),
        other => Err(format!("{other:?}")),
    })
    .await;
    let body =
        json!({ "scopes": ["read"], "topics": ["shop-*"], "expires": "2999-01-01T00:00:00Z" });
    let first = create(&api, "team", body.clone()).await;
    assert!(first.starts_with("lisa_") && first.len() == 48, "{first}");
    let begun = rotate(&api, "team", "begin").await.expect(200).json();
    let second = begun["secret"].as_str().unwrap().to_owned();
    assert_ne!(first, second);
    status(&api, &second, LIST, 200).await;
    let hashes = [&first, &second].map(|secret| hex(&Sha256::digest(secret)));
    // A repeated request changes nothing, and shows nothing.
    let repeated = put(&api, "team", body).await.expect(200).body;
    let mut shown = vec![repeated];
    for path in ["/v1/tokens", "/v1/tokens/team", "/v1/audit"] {
        shown.push(api.get(path).await.expect(200).body);
    }
    shown.push(process.stderr());
    let mut connection = server.connection().await;
    let stored = Snapshot::take(&mut connection, "by-call").await.unwrap();
    let stored = stored.to_string();
    assert!(hashes.iter().all(|hash| stored.contains(hash)), "{stored}");
    for text in shown.iter().chain([&stored]) {
        for secret in [&first, &second] {
            assert!(!text.contains(secret.as_str()), "{text}");
            assert!(!text.contains(secret.trim_start_matches("lisa_")), "{text}");
        }
    }
    for text in &shown {
        assert!(!hashes.iter().any(|hash| text.contains(hash)), "{text}");
    }
    let audit = api.get_json("/v1/audit").await;
    let entries = audit["entries"].as_array().unwrap().iter();
    let entries: Vec<_> = entries
        .map(|entry| {
            let text = |key: &str| entry[key].as_str().unwrap_or_default().to_owned();
            [
                text("who"),
                text("action"),
                text("details"),
                text("outcome"),
            ]
            .join(": ")
        })
        .collect();
    let permissions = "team, read, topics shop-*, expires 2999-01-01T00:00:00.000Z";
    let expected = [
        format!("{ADMIN}: change_token: {permissions}: unchanged"),
        format!("{ADMIN}: rotate_token: team, begin: done"),
        format!("{ADMIN}: create_token: {permissions}: done"),
    ];
    assert_eq!(entries, expected);
    let token = api.get_json("/v1/tokens/team").await;
    assert_eq!(token["created_by"], ADMIN);
}

#[tokio::test]
async fn of_changes_at_one_version_exactly_one_succeeds() {
    let server = Server::start();
    let served = served(&server).await;
    let api = &served.api;
    let creations =
        (0..8).map(|_| call(api, Method::PUT, "team", NEW, json!({ "scopes": ["read"] })));
    let replies = join_all(creations).await;
    let secrets = replies
        .iter()
        .filter(|reply| reply.json()["secret"].is_string());
    assert_eq!(secrets.count(), 1, "{replies:?}");
    let etag = api.get("/v1/tokens/team").await.header("ETag").to_owned();
    let changes = (0..8).map(|number| {
        let body = json!({ "scopes": ["read"], "topics": [format!("t{number}")] });
        call(api, Method::PUT, "team", ("If-Match", &etag), body)
    });
    let replies = join_all(changes).await;
    let count = |status| {
        replies
            .iter()
            .filter(|reply| reply.status == status)
            .count()
    };
    assert_eq!((count(200), count(412)), (1, 7), "{replies:?}");
    let rotations = (0..8).map(|_| rotate(api, "team", "begin"));
    let replies = join_all(rotations).await;
    let count = |status| {
        replies
            .iter()
            .filter(|reply| reply.status == status)
            .count()
    };
    assert_eq!((count(200), count(409)), (1, 7), "{replies:?}");
    let removals = (0..4).map(|_| call(api, Method::DELETE, "team", ANY, Value::Null));
    let replies = join_all(removals).await;
    let count = |status| {
        replies
            .iter()
            .filter(|reply| reply.status == status)
            .count()
    };
    assert_eq!((count(204), count(404)), (1, 3), "{replies:?}");
    served.end().await;
}

#[tokio::test]
async fn bad_requests_are_refused_with_the_field_that_is_wrong() {
    let server = Server::start();
    let served = served(&server).await;
    let api = &served.api;
    for (body, field) in [
        (json!({}), "scopes"),
        (json!({ "scopes": ["admin"] }), "scopes"),
        (json!({ "scopes": [] }), "scopes"),
        (json!({ "scopes": ["send"], "topics": [] }), "topics"),
        (json!({ "scopes": ["send"], "groups": "none" }), "groups"),
        (json!({ "scopes": ["send"], "token": "secret-1" }), "token"),
        (
            json!({ "scopes": ["send"], "sha256": "secret-1" }),
            "sha256",
        ),
        (
            json!({ "scopes": ["send"], "aws_secret_file": "/x" }),
            "aws_secret_file",
        ),
    ] {
        let refused = put(api, "team", body.clone()).await.expect(422);
        assert_eq!(refused.json()["errors"][0]["field"], field, "{body}");
        assert!(!refused.body.contains("secret-1"), "{refused:?}");
    }
    let body = json!({ "scopes": ["send"] });
    let long = "x".repeat(65);
    for name in ["a.b", "%20", "a%2Fb", &long] {
        put(api, name, body.clone()).await.expect(422);
    }
    let many: Vec<_> = (0..1000)
        .map(|n| format!("a-topic-with-a-name-{n}"))
        .collect();
    let large = json!({ "scopes": ["send"], "topics": many });
    let refused = put(api, "team", large).await.expect(422);
    assert!(
        refused.body.contains("must be at most 16384"),
        "{refused:?}"
    );
    rotate(api, "team", "restart").await.expect(422);
    let both = call(api, Method::PUT, "team", ("If-Match", "3"), body.clone()).await;
    both.expect(422);
    let missing = ("If-Match", "\"3\"");
    call(api, Method::PUT, "team", missing, body.clone())
        .await
        .expect(412);
    create(api, "team", body).await;
    let exists = call(api, Method::PUT, "team", NEW, json!({ "scopes": ["read"] })).await;
    exists.expect(412);
    api.get("/v1/tokens/nix").await.expect(404);
    api.get("/v1/tokens?limit=0").await.expect(422);
    served.end().await;
}

#[tokio::test]
async fn a_token_has_the_hash_that_the_caller_chose() {
    let server = Server::start();
    let served = served(&server).await;
    let api = &served.api;
    let hash = |text: &str| hex(&Sha256::digest(text));
    let body = |hash: String| json!({ "scopes": ["read"], "sha256": hash });
    let created = put(api, "team", body(hash("own"))).await.expect(201);
    assert_eq!(created.json()["secret"], Value::Null);
    status(api, "own", LIST, 200).await;
    let mut next = body(hash("next").to_uppercase());
    next["previous_sha256"] = hash("own").into();
    put(api, "team", next).await.expect(200);
    status(api, "next", LIST, 200).await;
    status(api, "own", LIST, 200).await;
    // Without one, it keeps both.
    put(api, "team", json!({ "scopes": ["read", "operate"] }))
        .await
        .expect(200);
    put(api, "team", body(hash("next"))).await.expect(200);
    status(api, "own", LIST, 401).await;
    status(api, "next", LIST, 200).await;
    // The text of a configured token is that of the configured one.
    let same = json!({ "scopes": ["read"], "sha256": hash(ADMIN), "topics": ["bank"] });
    put(api, "same", same).await.expect(201);
    let other = create(api, "other", json!({ "scopes": ["read"] })).await;
    status(api, &other, LIST, 200).await;
    api.get("/v1/tokens").await.expect(200);
    served.end().await;
}

#[tokio::test]
async fn tokens_are_listed_in_pages_with_those_of_the_file_and_those_that_are_damaged() {
    let server = Server::start();
    let served = served(&server).await;
    let api = &served.api;
    for name in ["b", "Team", "c"] {
        create(api, name, json!({ "scopes": ["read"] })).await;
    }
    let key = "by-call:v1:{registry}:tokens";
    let mut damage = redis::cmd("HSET");
    damage.arg(key).arg("d").arg("7 {\"scopes\": [\"read\"]}");
    damage
        .exec_async(&mut server.connection().await)
        .await
        .unwrap();
    let mut seen = Vec::new();
    let mut path = "/v1/tokens?limit=2".to_owned();
    loop {
        let page = api.get_json(&path).await;
        for token in page["tokens"].as_array().unwrap() {
            seen.push(token["token"].as_str().unwrap().to_owned());
        }
        for token in page["damaged"].as_array().into_iter().flatten() {
            assert!(
                token["error"].as_str().unwrap().contains("missing"),
                "{page}"
            );
            seen.push(format!("{} is damaged", token["token"].as_str().unwrap()));
        }
        match page["next"].as_str() {
            Some(next) => path = format!("/v1/tokens?limit=2&cursor={next}"),
            None => break,
        }
    }
    assert_eq!(seen, ["Team", ADMIN, "b", "c", "d is damaged"]);
    let some = api.get_json("/v1/tokens?prefix=b").await;
    assert_eq!(some["tokens"].as_array().unwrap().len(), 1);
    assert!(
        api.get("/v1/tokens/d")
            .await
            .expect(500)
            .body
            .contains("cannot be read")
    );
    // It can be replaced and removed.
    put(api, "d", json!({ "scopes": ["read"] }))
        .await
        .expect(200);
    remove(api, "d").await;
    served.end().await;
}

#[tokio::test]
async fn without_a_configured_token_none_is_stored_and_stored_ones_do_not_count() {
    let server = Server::start();
    let guarded = served(&server).await;
    create(&guarded.api, "team", json!({ "scopes": ["read"] })).await;
    let open = served_with(&server, "by-call", "").await;
    open.api.get("/v1/topics").await.expect(200);
    let anybody = open.api.clone().token("whatever");
    anybody.get("/v1/topics").await.expect(200);
    let refused = put(&open.api, "new", json!({ "scopes": ["read"] }))
        .await
        .expect(422);
    assert!(
        refused.body.contains("add one to auth.tokens"),
        "{refused:?}"
    );
    // What was stored can be seen and removed.
    let list = open.api.get_json("/v1/tokens").await;
    assert_eq!(list["tokens"][0]["token"], "team");
    remove(&open.api, "team").await;
    for served in [guarded, open] {
        served.end().await;
    }
}

/// Neither an outage nor a restart of Redis brings back a token that was removed.
#[tokio::test]
async fn while_redis_is_unavailable_a_process_knows_what_it_knew() {
    let mut server = Server::builder().aof(lisa_tests::Aof::Always).start();
    let served = served(&server).await;
    let secret = create(&served.api, "team", json!({ "scopes": ["read"] })).await;
    let revoked = create(&served.api, "revoked", json!({ "scopes": ["read"] })).await;
    for secret in [&secret, &revoked] {
        status(&served.api, secret, LIST, 200).await;
    }
    remove(&served.api, "revoked").await;
    status(&served.api, &revoked, LIST, 401).await;
    server.kill9();
    let jobs = (Method::GET, "/v1/topics");
    // Redis does not answer, or the request is served from memory; the token is known.
    let known = served
        .api
        .clone()
        .token(&secret)
        .call(jobs.0.clone(), jobs.1, &json!({}))
        .await;
    assert_ne!(known.status, 401, "{known:?}");
    status(&served.api, &revoked, jobs.clone(), 401).await;
    server.restart();
    status(&served.api, &secret, LIST, 200).await;
    status(&served.api, &revoked, LIST, 401).await;
    // A registry that is lost has no token.
    let mut lose = redis::cmd("DEL");
    lose.arg("by-call:v1:{registry}:tokens");
    lose.exec_async(&mut server.connection().await)
        .await
        .unwrap();
    status(&served.api, &secret, LIST, 401).await;
    served.end().await;
}

#[tokio::test]
async fn a_session_of_the_dashboard_ends_with_its_token() {
    let server = Server::start();
    let served = served(&server).await;
    let secret = create(&served.api, "anna", json!({ "scopes": ["read"] })).await;
    status(&served.api, &secret, LIST, 200).await;
    let client = reqwest::Client::builder();
    let client = client.redirect(reqwest::redirect::Policy::none());
    let client = client.build().unwrap();
    let login = async |secret: &str| {
        let login = client.post(format!("{}/login", served.url));
        let login = login.header("Content-Type", "application/x-www-form-urlencoded");
        login.body(format!("token={secret}")).send().await.unwrap()
    };
    let entered = login(&secret).await;
    let cookie = entered.headers()["set-cookie"].to_str().unwrap();
    let cookie = cookie.split(';').next().unwrap().to_owned();
    let open = async || {
        let page = client.get(format!("{}/topics/shop-a", served.url));
        page.header("Cookie", &cookie)
            .send()
            .await
            .unwrap()
            .status()
    };
    assert_eq!(open().await, 200);
    remove(&served.api, "anna").await;
    eventually(SOON, async || match open().await {
        status if status != 200 => Ok(()),
        status => Err(status),
    })
    .await;
    assert!(!login(&secret).await.headers().contains_key("set-cookie"));
    served.end().await;
}

#[tokio::test]
async fn the_command_line_creates_shows_rotates_and_removes_a_token() {
    let server = Server::start();
    let served = served_with(&server, "cli", &admin()).await;
    let through = async |arguments: &[&str]| {
        let all = [&["--url", &served.url], arguments].concat();
        let run = lisa_manager(&server, &all).env("LISA_TOKEN", ADMIN);
        run.run(SOON).await
    };
    let created = through(&["tokens", "put", "team", "scopes=send,read", "topics=shop-*"]).await;
    assert_eq!(created.code, Some(0), "{created:?}");
    let secret = created.stdout.trim();
    assert!(secret.starts_with("lisa_") && !secret.contains(char::is_whitespace));
    assert!(created.stderr.contains("team is created"), "{created:?}");
    let expected = (Method::GET, "/v1/topics/shop-a");
    status(&served.api, secret, expected, 200).await;
    let list = through(&["tokens"]).await.stdout;
    for part in ["TOKEN", "admin", "team", "send, read", "shop-*", "run time"] {
        assert!(list.contains(part), "{list}");
    }
    let changed = through(&["tokens", "put", "team", "scopes=read"]).await;
    assert_eq!(changed.stdout, "team is changed\n");
    let same = through(&["tokens", "put", "team", "scopes=read"]).await;
    assert_eq!(same.stdout, "team has these permissions already\n");
    let shown = through(&["tokens", "show", "team"]).await.stdout;
    assert!(
        shown.contains("scopes       read\ntopics       shop-*\n"),
        "{shown}"
    );
    let rotated = through(&["tokens", "rotate", "team"]).await;
    let second = rotated.stdout.trim();
    status(&served.api, second, (Method::GET, "/v1/topics/shop-a"), 200).await;
    let list = through(&["tokens", "list", "--prefix", "t"]).await.stdout;
    assert!(
        list.contains("rotating") && !list.contains("admin"),
        "{list}"
    );
    let finished = through(&["tokens", "rotate", "team", "--finish"]).await;
    assert_eq!(finished.stdout, "team has only its new secret\n");
    let json = through(&["--output", "json", "tokens", "rotate", "team"])
        .await
        .stdout;
    let json: Value = serde_json::from_str(&json).unwrap();
    assert!(json["secret"].is_string());
    let file = through(&["tokens", "put", "admin", "scopes=read"]).await;
    assert!(
        file.code == Some(1) && file.stderr.contains("declares token admin"),
        "{file:?}"
    );
    let removed = through(&["tokens", "remove", "team"]).await;
    assert_eq!(removed.stdout, "team is removed\n");
    let none = through(&["tokens", "show", "team"]).await;
    assert!(
        none.code == Some(1) && none.stderr.contains("there is no token"),
        "{none:?}"
    );
    let wrong = through(&["tokens", "put", "team", "scopes=all"]).await;
    assert!(
        wrong.code == Some(2) && wrong.stderr.contains("scopes"),
        "{wrong:?}"
    );
    // On Redis, with the managers' configuration.
    let config = format!(
        "[[auth.tokens]]\nname = 'admin'\nsha256 = '{}'\nscopes = ['tokens']\n",
        hex(&Sha256::digest(ADMIN))
    );
    let here = lisa_manager(&server, &["tokens", "put", "ops", "scopes=read"]);
    let here = here.config(&config).run(SOON).await;
    status(&served.api, here.stdout.trim(), LIST, 200).await;
    let without = lisa_manager(&server, &["tokens", "remove", "ops"]);
    assert_eq!(without.run(SOON).await.code, Some(2));
    served.end().await;
}
