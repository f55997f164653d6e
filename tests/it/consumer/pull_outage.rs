//! Pulls while Redis does not answer.

use super::gateways::{Site, post, pull_one, route};
use super::*;
use serde_json::json;

/// Redis is frozen, so a request that it must answer ends as unavailable.
#[tokio::test(flavor = "multi_thread")]
async fn a_forged_token_is_refused_without_a_call_of_redis() {
    let mut site = Site::start("[topics.t]", "").await;
    site.send("t", &[], "one").await;
    let one = pull_one(site.api(0), "t", "60s").await;
    site.server.pause();
    let token = one["token"].as_str().unwrap().to_owned();
    let api = site.api(0).clone();
    for at in (0..token.len()).step_by(7) {
        let mut altered = token.clone().into_bytes();
        altered[at] = if altered[at] == b'A' { b'B' } else { b'A' };
        let altered = String::from_utf8(altered).unwrap();
        let path = format!("/v1/deliveries/{altered}/ack");
        let refused = post(&api, &path, json!({})).await.expect(401);
        assert_eq!(refused.json()["code"], "invalid_delivery_token");
        let line = json!([{"token": altered, "ack": true}]);
        let refused = post(&api, "/v1/deliveries:settle", line).await.expect(200);
        assert_eq!(refused.json()[0]["error"]["code"], "invalid_delivery_token");
    }
    post(&api, &route(&one, "ack"), json!({})).await.expect(503);
    site.server.resume();
    // The call may have reached Redis before.
    let ack = async || match post(&api, &route(&one, "ack"), json!({})).await.status {
        200 | 409 => Ok(()),
        other => Err(other),
    };
    eventually(SOON, ack).await;
    site.assert_drained("t").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_pull_that_does_not_wait_says_that_redis_does_not_answer() {
    let mut site = Site::start("[topics.t]", "").await;
    let api = site.api(0).clone();
    let pull = async || post(&api, "/v1/topics/t/groups/default/pull", json!({})).await;
    assert_eq!(pull().await.expect(200).json()["deliveries"], json!([]));
    site.server.pause();
    assert_eq!(pull().await.expect(503).json()["code"], "unavailable");
    site.server.resume();
    eventually(SOON, async || match pull().await.status {
        200 => Ok(()),
        other => Err(other),
    })
    .await;
}
