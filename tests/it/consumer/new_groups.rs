//! Groups that one process adds to a topic which others know already.

use super::gateways::{Site, post, pull_one};
use reqwest::Method;
use serde_json::json;

/// A process learns of what others change a heartbeat later.
#[tokio::test(flavor = "multi_thread")]
async fn a_new_group_can_be_pulled_at_once_everywhere() {
    let site = Site::start("[topics.other]", "").await;
    let mut groups = vec!["default".to_owned()];
    let create = json!({ "groups": groups });
    let created = site.manager.call(Method::PUT, "/v1/topics/t", &create);
    created.await.expect(201);
    site.send("t", &[], "x").await;
    pull_one(site.api(0), "t", "60s").await;
    for number in 0..10 {
        groups.push(format!("g{number}"));
        let change = json!({ "groups": groups });
        let changed = site.manager.call(Method::PUT, "/v1/topics/t", &change);
        changed.await.expect(200);
        let path = format!("/v1/topics/t/groups/g{number}/pull");
        let pulled = post(site.api(0), &path, json!({})).await.expect(200);
        assert_eq!(pulled.json(), json!({ "deliveries": [] }));
    }
    let unknown = "/v1/topics/t/groups/nobody/pull";
    post(site.api(0), unknown, json!({})).await.expect(404);
}
