//! Settling and pulling in one request.

use super::gateways::{Site, post, pull, pull_one, route};
use lisa_tests::Api;
use lisa_tests::http::Reply;
use serde_json::{Value, json};

const ROUTE: &str = "/v1/topics/t/groups/default/settle-and-pull";

fn acks<'a>(deliveries: impl IntoIterator<Item = &'a Value>) -> Value {
    let ack = |delivery: &Value| json!({"token": delivery["token"], "ack": true});
    deliveries.into_iter().map(ack).collect()
}

async fn ack_and_pull(api: &Api, query: &str, deliveries: &[Value]) -> Reply {
    post(api, &format!("{ROUTE}{query}"), acks(deliveries)).await
}

#[tokio::test(flavor = "multi_thread")]
async fn it_pulls_what_the_settlements_before_it_freed() {
    let site = Site::start("[topics.t]", "").await;
    let key = [("Lisa-Key", "k")];
    for n in 0..3 {
        site.send("t", &key, &n.to_string()).await;
    }
    let mut held = pull_one(site.api(0), "t", "60s").await;
    for n in 1..3 {
        let query = "?max=200&lease=1h&consumer=w";
        let reply = ack_and_pull(site.api(n % 2), query, &[held]).await;
        let reply = reply.expect(200).json();
        assert_eq!(reply["results"][0]["outcome"], "acked", "{reply}");
        let next = reply["deliveries"].as_array().expect("deliveries");
        assert_eq!(next.len(), 1, "{reply}");
        held = next[0].clone();
        assert_eq!(
            (&held["payload"], &held["attempt"]),
            (&json!(n.to_string()), &json!(1))
        );
    }
    let last = ack_and_pull(site.api(0), "", &[held]).await;
    let empty = json!({"results": [{"outcome": "acked"}], "deliveries": []});
    assert_eq!(last.expect(200).json(), empty);
    site.assert_drained("t").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn each_outcome_has_its_result_and_only_a_batch_is_pulled() {
    let site = Site::start("[topics.t]\n[topics.u]", "").await;
    let api = site.api(0);
    site.send("u", &[], "of another topic").await;
    let other = pull_one(api, "u", "60s").await;
    for n in 0..5 {
        site.send("t", &[], &n.to_string()).await;
    }
    let outcomes = json!([
        {"token": other["token"], "defer": {"after": "1h"}},
        {"token": other["token"], "ack": true},
        {"token": "x", "ack": true},
        {"token": other["token"], "ack": false},
        7,
    ]);
    let reply = post(api, &format!("{ROUTE}?max=2"), outcomes).await;
    let reply = reply.expect(200).json();
    assert_eq!(reply["results"][0]["outcome"], "deferred", "{reply}");
    let codes = [1, 2, 3, 4].map(|n| reply["results"][n]["error"]["code"].clone());
    let expected = ["stale", "invalid_delivery_token", "invalid", "invalid"];
    assert_eq!(codes, expected, "{reply}");
    // An empty array only pulls.
    let rest = post(api, &format!("{ROUTE}?max=2"), json!([])).await;
    let rest = rest.expect(200).json();
    assert_eq!(rest["results"], json!([]));
    let mut all = Vec::new();
    for reply in [&reply, &rest] {
        let deliveries = reply["deliveries"].as_array().expect("deliveries");
        assert!(deliveries.len() <= 2, "{reply}");
        all.extend(deliveries.iter().cloned());
    }
    while all.len() < 5 {
        all.extend(pull(api, "t", json!({"max": 200, "wait": "10s"})).await);
    }
    let settled = post(api, "/v1/deliveries:settle", acks(&all)).await;
    assert_eq!(settled.expect(200).body.matches("acked").count(), 5);
    site.assert_drained("t").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_wrong_request_settles_nothing() {
    let site = Site::start("[topics.t]", "").await;
    let api = site.api(0);
    site.send("t", &[], "one").await;
    let held = pull_one(api, "t", "60s").await;
    let item = json!({"token": held["token"], "ack": true});
    let wrong = [
        ("?max=0", json!([item]), 422),
        ("?max=201", json!([item]), 422),
        ("?lease=soon", json!([item]), 422),
        ("?wait=1s", json!([item]), 422),
        ("?strange=1", json!([item]), 422),
        ("", item.clone(), 422),
        ("", json!(vec![item.clone(); 1_001]), 413),
    ];
    for (query, body, status) in wrong {
        let reply = post(api, &format!("{ROUTE}{query}"), body).await;
        assert_eq!(reply.status, status, "{query}: {}", reply.body);
    }
    for path in [
        "/v1/topics/none/groups/default/settle-and-pull",
        "/v1/topics/t/groups/none/settle-and-pull",
    ] {
        post(api, path, json!([item])).await.expect(404);
    }
    post(api, &route(&held, "ack"), json!({})).await.expect(200);
    site.assert_drained("t").await;
}

/// The pull is of a topic whose stream was replaced from outside.
#[tokio::test(flavor = "multi_thread")]
async fn a_pull_that_fails_does_not_hide_the_results() {
    let site = Site::start("[topics.t]\n[topics.u]", "").await;
    let api = site.api(0);
    site.send("u", &[], "one").await;
    let held = pull_one(api, "u", "60s").await;
    site.send("t", &[], "two").await;
    let two = pull_one(api, "t", "60s").await;
    post(api, &route(&two, "ack"), json!({})).await.expect(200);
    for shard in 0..16 {
        let stream = format!("lisa:v1:{{t:{shard}}}:ready:default");
        let _: u64 = site.redis(&["DEL", &stream]).await;
        let _: () = site.redis(&["SET", &stream, "not a stream"]).await;
    }
    let reply = ack_and_pull(api, "", &[held]).await;
    let empty = json!({"results": [{"outcome": "acked"}], "deliveries": []});
    assert_eq!(reply.expect(200).json(), empty);
    let pull = post(
        api,
        "/v1/topics/t/groups/default/pull",
        json!({"wait": "1s"}),
    )
    .await;
    pull.expect(503);
    site.assert_drained("u").await;
}
