//! The audit log: who did what, over HTTP and on the command line.

use lisa_core::broker::AuditEntry;
use lisa_tests::{Api, Server, eventually, relay};
use redis::cmd;
use serde_json::{Value, json};

use super::operators::lisa_manager;
use super::served::Served;
use super::{SOON, put_in_garbage};

/// The SHA-256 of the texts "reader" and "operator".
const TOKENS: &str = r#"[
    {"name": "dana", "sha256": "3d0941964aa3ebdcb00ccef58b1bb399f9f898465e9886d5aec7f31090a0fb30", "scopes": ["read"]},
    {"name": "omar", "sha256": "06e55b633481f7bb072957eabcf110c972e86691c3cfedabe088024bffe42f23", "scopes": ["operate"]}
]"#;

#[tokio::test]
async fn each_action_of_an_operator_is_recorded_with_its_author_and_outcome() {
    let server = Server::start();
    let keys = [("auth.tokens", TOKENS), ("topics.orders.groups", "billing")];
    let served = Served::start(&server, "audit", &keys).await;
    let [dana, omar] = ["reader", "operator"].map(|token| served.api.clone().token(token));
    eventually(SOON, async || match dana.try_get("/v1/topics").await {
        Some(reply) if reply.status == 200 && reply.json()["topics"][0].is_object() => Ok(()),
        other => Err(format!("{other:?}")),
    })
    .await;
    let post = async |api: &Api, path: &str, body: Value| {
        let path = format!("/v1/{path}");
        api.call(reqwest::Method::POST, &path, &body).await
    };

    // Refused before anything is tried: not recorded.
    post(&dana, "topics/orders/pause", Value::Null)
        .await
        .expect(403);
    post(&omar, "topics/nix/pause", Value::Null)
        .await
        .expect(404);
    post(&omar, "jobs/nix/run", Value::Null).await.expect(404);
    omar.get("/v1/audit").await.expect(403);
    assert_eq!(dana.get_json("/v1/audit").await["entries"], json!([]));

    post(&omar, "topics/orders/pause", Value::Null)
        .await
        .expect(200);
    post(&omar, "topics/orders/pause", Value::Null)
        .await
        .expect(200);
    let orders = served.topic().await;
    let group = "topics/orders/groups/billing";
    post(&omar, "topics/orders/resume", Value::Null)
        .await
        .expect(200);
    for id in ["g1", "g2"] {
        put_in_garbage(&served.broker, &orders, id).await;
    }
    let dry_run = json!({ "all": true, "dry_run": true });
    post(&omar, &format!("{group}/garbage/purge"), dry_run)
        .await
        .expect(200);
    let one = json!({ "ids": ["g1"] });
    post(&omar, &format!("{group}/garbage/requeue"), one)
        .await
        .expect(200);
    post(
        &omar,
        &format!("{group}/garbage/purge"),
        json!({ "all": true }),
    )
    .await
    .expect(200);
    post(&omar, &format!("{group}/drain"), Value::Null)
        .await
        .expect(202);
    post(&omar, &format!("{group}/keep"), Value::Null)
        .await
        .expect(200);
    post(&omar, "topics/orders/doctor/repair", Value::Null)
        .await
        .expect(200);
    post(&omar, "jobs/clean/run", Value::Null).await.expect(200);
    let verb = async |arguments: &[&str]| {
        let launch = lisa_manager(&server, arguments)
            .env("LISA_NAMESPACE", "audit")
            .env("SUDO_USER", "alice");
        let ended = launch.run(SOON).await;
        assert_eq!(ended.code, Some(0), "{ended:?}");
        ended.stdout
    };
    verb(&["pause", "orders", "--group", "billing"]).await;
    verb(&["garbage", "requeue", "orders", "--all", "--yes"]).await;
    verb(&["topics", "reshard", "orders", "--shards", "2", "--no-wait"]).await;

    let page = dana.get_json("/v1/audit").await;
    let seen: Vec<String> = page["entries"]
        .as_array()
        .unwrap()
        .iter()
        .rev()
        .map(|entry| {
            let text = |name: &str| entry[name].as_str().unwrap_or("-").to_owned();
            [
                "via", "who", "action", "topic", "group", "details", "outcome",
            ]
            .map(text)
            .join(" ")
        })
        .collect();
    assert_eq!(
        seen,
        [
            "http omar pause orders - - done",
            "http omar pause orders - - unchanged",
            "http omar resume orders - - done",
            "http omar requeue orders billing g1 1 of 1",
            "http omar purge orders billing all 1 of 1",
            "http omar drain orders billing - done; it has 1 message",
            "http omar keep orders billing - done; it has 1 message",
            "http omar repair orders - - 0 faults repaired, 0 left",
            "http omar run_job - - clean done",
            "cli alice pause orders billing - done",
            "cli alice requeue orders billing all 0 of 0",
            "cli alice reshard orders - 2 shards done",
        ]
    );
    assert_eq!(page["next"], Value::Null);
    let first = dana.get_json("/v1/audit?limit=5").await;
    let next = first["next"].as_str().unwrap();
    let rest = dana.get_json(&format!("/v1/audit?cursor={next}")).await;
    let both = [&first["entries"], &rest["entries"]].map(|page| page.as_array().unwrap().len());
    assert_eq!(both, [5, 7]);
    for wrong in [
        "limit=0",
        "limit=1001",
        "cursor=yesterday",
        "cursor=0-0",
        "page=2",
    ] {
        dana.get(&format!("/v1/audit?{wrong}")).await.expect(422);
    }
    let table = verb(&["audit", "--limit", "1"]).await;
    assert!(
        table.contains("alice") && table.contains("more: --cursor "),
        "{table}"
    );
    served.end().await;
}

#[tokio::test]
async fn the_audit_log_is_bounded() {
    let relay = relay::Relay::start("audit").await;
    let entry = AuditEntry {
        action: "purge".to_owned(),
        details: "d".repeat(10_000),
        ..AuditEntry::default()
    };
    for _ in 0..1300 {
        relay.broker().audit(&entry).await.unwrap();
    }
    let key = format!("{}:v1:{{registry}}:audit", relay.broker().namespace());
    let length: usize = relay.command(cmd("XLEN").arg(key)).await;
    assert!((1000..1200).contains(&length), "{length}");
    let log = relay.broker().audit_log(None, 5000).await.unwrap();
    assert_eq!(log.len(), 1000);
    assert!(
        log.iter()
            .all(|audited| audited.entry.details.chars().count() == 201)
    );
}
