//! Tokens that are created, changed, rotated and removed by call, and the processes that follow.

mod interfaces;
mod previous;
mod quota;
mod refused;
mod stored;

use super::SOON;
use super::served::Served;
use lisa_tests::http::{Reply, reply};
use lisa_tests::sqs::hex;
use lisa_tests::{
    Api, Binary, Fate, Process, RequestProxy, Server, Snapshot, eventually, free_port,
};
use reqwest::Method;
use serde_json::{Value, json};
use sha2::{Digest, Sha256};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
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
        // A process that has just started may not know yet, and says so.
        eventually(SOON, async || {
            let reply = api.call(route.0.clone(), route.1, &json!({})).await;
            assert_ne!(reply.status, 401, "{reply:?}");
            match reply.status == *ok {
                true => Ok(()),
                false => Err(format!("{reply:?}")),
            }
        })
        .await;
    }
    let secret = create(&manager.api, "team", body.clone()).await;
    let places = [places.as_slice(), &[(&manager.api, LIST, 200)]].concat();
    // Otherwise, a rotation would end the workers that take the new secret.
    let accepted_at_once = async |secret: &str| {
        for (api, route, ok) in &places {
            let api = (*api).clone().token(secret);
            let reply = api.call(route.0.clone(), route.1, &json!({})).await;
            reply.expect(*ok);
        }
    };
    accepted_at_once(&secret).await;
    let rotated = rotate(&manager.api, "team", "begin").await.expect(200);
    accepted_at_once(rotated.json()["secret"].as_str().unwrap()).await;
    rotate(&manager.api, "team", "cancel").await.expect(200);
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

/// The connection is cut after the change, and the repeated call finds its own record.
#[tokio::test(flavor = "multi_thread")]
async fn a_secret_is_returned_although_the_reply_to_the_change_was_lost() {
    let server = Server::builder().cluster(false).start();
    let lose = Arc::new(AtomicBool::new(false));
    let lost = lose.clone();
    let proxy = RequestProxy::start(server.port(), move |request| {
        let is_change = request.command() == "EVALSHA" && request.word(3).ends_with(":tokens");
        match is_change && lost.swap(false, Ordering::Relaxed) {
            true => Fate::Replace("*2\r\n$5\r\nother\r\n$1\r\n1\r\n".into()),
            false => Fate::Pass,
        }
    })
    .await;
    let url = format!("redis://127.0.0.1:{}", proxy.port());
    let keys = [("auth.tokens", &*admin()), ("redis.url", &*url)];
    let mut served = Served::with(&server, "by-call", &keys, true).await;
    served.api = served.api.token(ADMIN);
    lose.store(true, Ordering::Relaxed);
    let first = create(&served.api, "team", json!({ "scopes": ["read"] })).await;
    status(&served.api, &first, LIST, 200).await;
    lose.store(true, Ordering::Relaxed);
    let begun = rotate(&served.api, "team", "begin").await.expect(200);
    let second = begun.json()["secret"].as_str().unwrap().to_owned();
    assert!(!lose.load(Ordering::Relaxed));
    for secret in [&first, &second] {
        status(&served.api, secret, LIST, 200).await;
    }
    served.end().await;
}

/// Otherwise, a client that uses its secret at once would get 401, which clients take for final.
#[tokio::test]
async fn the_manager_that_answers_has_applied_the_change() {
    let server = Server::start();
    let served = served(&server).await;
    let api = &served.api;
    let answers = async |secret: &str| {
        let api = api.clone().token(secret);
        api.call(LIST.0, LIST.1, &json!({})).await.status
    };
    for round in 0..3 {
        let name = format!("team-{round}");
        let first = create(api, &name, json!({ "scopes": ["read"] })).await;
        assert_eq!(answers(&first).await, 200);
        let body = json!({ "scopes": ["send"] });
        put(api, &name, body).await.expect(200);
        assert_eq!(answers(&first).await, 403);
        let body = json!({ "scopes": ["read"] });
        put(api, &name, body).await.expect(200);
        let begun = rotate(api, &name, "begin").await.expect(200).json();
        let second = begun["secret"].as_str().unwrap();
        assert_eq!((answers(&first).await, answers(second).await), (200, 200));
        rotate(api, &name, "finish").await.expect(200);
        assert_eq!((answers(&first).await, answers(second).await), (401, 200));
        remove(api, &name).await;
        assert_eq!(answers(second).await, 401);
    }
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
    // Its other fields can change, but the only time in the past that is accepted is the one that it has.
    let mut other = json!({ "scopes": ["read", "send"], "expires": shown["expires"] });
    put(&served.api, "team", other.clone()).await.expect(200);
    other["expires"] = "2020-01-01T00:00:00Z".into();
    let refused = put(&served.api, "team", other).await.expect(422);
    assert!(
        refused.body.contains("expires: is in the past"),
        "{refused:?}"
    );
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
