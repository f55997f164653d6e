//! Permissions over HTTP.

use super::Deployment;
use super::bad_input::{BATCH, MESSAGES, SETTINGS, refused};
use super::deployment::TOPIC;
use lisa_tests::http::Reply;
use reqwest::Method;

/// The tokens are `send-token` and `read-token`.
const TOKENS: &str = r#"
[[auth.tokens]]
name = "shop"
sha256 = "85db1657a3d9476cdd07babfbd470539a1dc03a213f6b496d3ae0e1a3bfd995c"
scopes = ["send"]
[[auth.tokens]]
name = "eyes"
sha256 = "0328587016f9e316b9c31c94f944a2c453e1494a564062b5eab68039c75b58bf"
scopes = ["read"]
"#;

#[tokio::test]
async fn a_token_is_asked_for_and_opens_only_what_its_scopes_say() {
    let here = Deployment::start(SETTINGS).await.with(TOKENS);
    let mut relay = here.combined().await;
    let stranger = relay.api.clone();
    let liar = relay.api.clone().token("wrong-token");
    let shop = relay.api.clone().token("send-token");
    let eyes = relay.api.clone().token("read-token");
    let message = "/v1/topics/orders/messages/order-7";
    let sent = shop
        .send(TOPIC, "x", &[("Lisa-Id", "order-7"), ("Lisa-Delay", "1h")])
        .await;
    sent.expect(202);
    for (what, api, status, code) in [
        ("no token", &stranger, 401, "unauthorized"),
        ("a wrong token", &liar, 401, "unauthorized"),
        ("a token to read", &eyes, 403, "forbidden"),
    ] {
        for (method, path) in [
            (Method::POST, MESSAGES),
            (Method::POST, BATCH),
            (Method::DELETE, message),
            (Method::PATCH, message),
            (Method::POST, "/v1/topics/orders/pause"),
            (
                Method::POST,
                "/v1/topics/orders/groups/billing/garbage/purge",
            ),
        ] {
            let what = format!("{what}, {method} {path}");
            refused(&what, api.request(method, path), status, code).await;
        }
    }
    for path in ["/v1/stats", message, MESSAGES] {
        refused(
            "no token",
            stranger.request(Method::GET, path),
            401,
            "unauthorized",
        )
        .await;
        refused(
            "a token to send",
            shop.request(Method::GET, path),
            403,
            "forbidden",
        )
        .await;
        eyes.get(path).await.expect(200);
    }
    let open: Vec<Reply> = vec![
        stranger.get("/healthz").await,
        stranger.get("/metrics").await,
    ];
    assert!(open.iter().all(|reply| reply.status == 200), "{open:?}");
    let stats = here.stats().await;
    assert_eq!(Deployment::counter(&stats, "accepted"), 1, "{stats:#}");
    assert_eq!(Deployment::count(&stats, "waiting"), 1, "{stats:#}");
    assert_eq!(stats["paused"], false);
    relay.stop().await;
    here.conserved().await;
}
