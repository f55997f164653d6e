//! The checks of a running role on its Redis, and the requests that it lets an operator make.

use super::deployment::{STDOUT, TOPIC};
use super::{Deployment, SOON};
use lisa_tests::{Binary, Site, Topology, eventually};
use std::time::Duration;

async fn command(here: &Deployment, words: &[&str]) {
    let mut command = redis::cmd(words[0]);
    command.arg(&words[1..]);
    let mut connection = here.connection("x").await;
    let _: redis::Value = command.query_async(&mut connection).await.unwrap();
}

/// Sets the eviction policy of Redis, and cuts all connections, as a failover to another server would.
async fn policy(here: &Deployment, policy: &str) {
    command(here, &["CONFIG", "SET", "maxmemory-policy", policy]).await;
    command(here, &["CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes"]).await;
}

#[tokio::test]
async fn a_server_that_begins_to_evict_makes_a_role_not_ready_until_it_stops() {
    if Site::lacks(Topology::is_one_server, "changes the only server") {
        return;
    }
    let here = Deployment::start("").await;
    let mut role = here.combined().await;
    let lenient = &["run", "--allow-eviction"];
    let mut lenient = here.launch(Binary::Manager, lenient, STDOUT);
    lenient.ready().await;
    policy(&here, "allkeys-lru").await;
    eventually(SOON, async || {
        let ready = role.api.get("/readyz").await;
        let told = "maxmemory-policy is allkeys-lru";
        match (ready.status, ready.body.contains(told)) {
            (503, true) => Ok(()),
            _ => Err(ready.body),
        }
    })
    .await;
    // A load balancer should stop sending to it; requests that arrive all the same are accepted.
    role.api.send(TOPIC, "x", &[]).await.expect(202);
    for role in [&role, &lenient] {
        eventually(SOON, async || {
            let metrics = role.api.get("/metrics").await.body;
            match metrics.contains("lisa_redis_evicts 1") {
                true => Ok(()),
                false => Err(metrics),
            }
        })
        .await;
    }
    lenient.ready().await;

    policy(&here, "noeviction").await;
    role.ready().await;
    let metrics = role.api.get("/metrics").await.body;
    assert!(metrics.contains("lisa_redis_evicts 0"), "{metrics}");
    let log = role.process.stderr();
    let said = log.matches("maxmemory-policy is allkeys-lru").count();
    // Once at its beginning, once at its end.
    assert_eq!(said, 2, "{log}");
}

#[tokio::test]
async fn one_examination_runs_at_a_time_and_ends_with_the_connection_of_its_client() {
    if Site::lacks(Topology::is_one_server, "freezes the only server") {
        return;
    }
    let mut here = Deployment::start("").await;
    let role = here.combined().await;
    let path = format!("/v1/topics/{TOPIC}/doctor");
    role.api.get(&path).await.expect(200);
    here.server().pause();
    let first = async {
        // A probe of the other side may have come before it, and ends soon.
        loop {
            match role.api.try_get(&path).await {
                Some(reply) if reply.status == 409 => {}
                ended => return ended,
            }
        }
    };
    let busy = eventually(SOON, async || {
        let second = tokio::time::timeout(Duration::from_millis(500), role.api.try_get(&path));
        match second.await {
            Ok(Some(reply)) if reply.status == 409 => Ok(reply),
            other => Err(format!("{other:?}")),
        }
    });
    let busy = tokio::select! {
        ended = first => panic!("{ended:?}"),
        busy = busy => busy,
    };
    assert_eq!(busy.json()["code"], "busy", "{busy:?}");
    // The first one is dropped now. If it continued, it would wait for Redis for five seconds.
    eventually(Duration::from_secs(3), async || {
        let third = tokio::time::timeout(Duration::from_millis(300), role.api.try_get(&path));
        match third.await {
            Err(_) => Ok(()),
            Ok(reply) => Err(format!("{reply:?}")),
        }
    })
    .await;
    here.server().resume();
    eventually(SOON, async || role.answers(&path, 200).await).await;
}
