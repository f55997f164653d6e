//! Requests about tokens that are refused.

use futures_util::future::join_all;

use super::*;

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
            json!({ "scopes": ["send"], "expires": "2020-01-01T00:00:00Z" }),
            "expires",
        ),
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
    let config = format!(
        "namespace = 'by-call'\nredis.url = '{}'\nproducer.listen = '127.0.0.1:{}'\n",
        server.socket_url(),
        free_port()
    );
    let process = Binary::Producer.with(["run"]).config(&config).start();
    let warning = "Redis has 1 stored token, which this process does not check";
    eventually(SOON, async || match process.stderr() {
        log if log.contains(warning) => Ok(()),
        log => Err(log),
    })
    .await;
    // What was stored can be seen and removed.
    let list = open.api.get_json("/v1/tokens").await;
    assert_eq!(list["tokens"][0]["token"], "team");
    remove(&open.api, "team").await;
    for served in [guarded, open] {
        served.end().await;
    }
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

/// The metrics name the topics of all teams.
#[tokio::test]
async fn while_a_limited_token_is_stored_the_metrics_require_a_token() {
    let server = Server::start();
    let served = served(&server).await;
    let stranger = async |expected: u16| {
        eventually(SOON, async || {
            let page = reqwest::get(format!("{}/metrics", served.url)).await;
            match page.unwrap().status().as_u16() {
                status if status == expected => Ok(()),
                status => Err(status),
            }
        })
        .await;
    };
    stranger(200).await;
    create(&served.api, "all", json!({ "scopes": ["read"] })).await;
    let limited = json!({ "scopes": ["read"], "topics": ["shop-*"] });
    let limited = create(&served.api, "shop", limited).await;
    stranger(401).await;
    let metrics = (Method::GET, "/metrics");
    status(&served.api, &limited, metrics, 403).await;
    served.api.get("/metrics").await.expect(200);
    remove(&served.api, "shop").await;
    stranger(200).await;
    served.end().await;
}
