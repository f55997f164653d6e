//! The last use of the previous secret of a token.

use super::*;

#[tokio::test]
async fn the_last_use_of_a_previous_secret_is_shown_until_the_rotation_ends() {
    let server = Server::start();
    let all = tokens(&[
        (ADMIN, &["tokens", "read"], Value::Null),
        (
            "filed",
            &["read"],
            json!({ "previous_sha256": hex(&Sha256::digest("filed-before")) }),
        ),
    ]);
    let mut served = served_with(&server, "by-call", &all).await;
    served.api = served.api.token(ADMIN);
    let first = create(&served.api, "app", json!({ "scopes": ["read"] })).await;
    let shown = async |token: &str| {
        let view = served.api.get_json(&format!("/v1/tokens/{token}")).await;
        view["previous_used"].as_str().map(str::to_owned)
    };
    let second = rotate(&served.api, "app", "begin").await.expect(200);
    let second = second.json()["secret"].as_str().unwrap().to_owned();
    for secret in [&*second, "filed"] {
        status(&served.api, secret, LIST, 200).await;
    }
    // Another process reports in its own time, so this one has had the chance to report a use that there was not.
    let used = async |secret: &str, token: &str| {
        status(&served.api, secret, LIST, 200).await;
        eventually(SOON, async || shown(token).await.ok_or("no use is known")).await
    };
    let at = used("filed-before", "filed").await;
    assert!(at.starts_with("20") && at.ends_with('Z'), "{at}");
    assert_eq!(shown("app").await, None);
    served.end().await;
    // A process that ends reports what it has not reported.
    let mut served = served_with(&server, "by-call", &all).await;
    served.api = served.api.token(ADMIN);
    status(&served.api, &first, LIST, 200).await;
    served.end().await;
    let mut served = served_with(&server, "by-call", &all).await;
    served.api = served.api.token(ADMIN);
    let shown = async || {
        let view = served.api.get_json("/v1/tokens/app").await;
        let list = served.api.get_json("/v1/tokens?prefix=app").await;
        // A use may have been reported in between.
        if list["tokens"][0]["previous_used"] == view["previous_used"] {
            assert_eq!(list["tokens"][0], view);
        }
        view["previous_used"].as_str().map(str::to_owned)
    };
    assert!(shown().await.is_some());
    rotate(&served.api, "app", "finish").await.expect(200);
    assert_eq!(shown().await, None);
    // The secret that is now the previous one was not used as such.
    rotate(&served.api, "app", "begin").await.expect(200);
    assert_eq!(shown().await, None);
    status(&served.api, &second, LIST, 200).await;
    let own = served.api.clone().token(&second);
    eventually(SOON, async || shown().await.ok_or("no use is known")).await;
    assert!(own.get_json("/v1/token").await["previous_used"].is_string());
    remove(&served.api, "app").await;
    served.end().await;
}
