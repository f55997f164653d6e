//! A process that is killed with many messages in flight, none of which is at fault: the cost to each other, and to
//! another topic of the same process.

use super::deployment::TOPIC;
use super::{Deployment, SOON, lines};
use lisa_tests::eventually;
use serde_json::{Value, json};
use std::path::Path;

const HELD: usize = 10;
const FAST: &str = "fast";

/// Returns the number of handlers that have begun, over all processes.
fn begun(file: &Path) -> usize {
    std::fs::read_to_string(file).map_or(0, |text| text.lines().count())
}

async fn begin(file: &Path, count: usize) {
    eventually(SOON, async || match begun(file) {
        begun if begun == count => Ok(()),
        other => Err(format!("{other} handlers of {count} have begun")),
    })
    .await;
}

#[tokio::test]
async fn what_a_killed_process_held_runs_side_by_side_and_holds_up_no_other_topic() {
    let here = Deployment::start("lease = \"1s\"").await;
    let here = here.with(&format!("[topics.{FAST}]\ngroups = [\"fast\"]"));
    let relay = here.combined().await;
    let dir = tempfile::tempdir().unwrap();
    let (started, go) = (dir.path().join("started"), dir.path().join("go"));
    // A minute at most, as it outlives its killed parent.
    let script = format!(
        "echo $LISA_ID >> {}; for n in $(seq 600); do [ -e {} ] && exit 0; sleep 0.1; done; exit 1",
        started.display(),
        go.display()
    );
    let sinks = format!(
        "concurrency = {HELD}\nsink = {{ type = \"command\", command = [\"/bin/sh\", \"-c\", {script:?}] }}
        [[consumer.subscriptions]]\ntopic = \"{FAST}\"\ngroup = \"fast\"\nsink = {{ type = \"stdout\" }}"
    );
    let slow: Vec<Value> = (0..HELD).map(|n| json!({ "payload": n })).collect();
    relay.api.batch(TOPIC, &slow).await;
    let fast: Vec<Value> = (0..3).map(|n| json!({ "payload": n })).collect();

    let mut consumer = here.consumer(&sinks).await;
    begin(&started, HELD).await;
    consumer.process.kill9();

    // The first time, all come again together. None has an end yet, so they cannot have waited for one another.
    let mut consumer = here.consumer(&sinks).await;
    begin(&started, 2 * HELD).await;
    relay.api.batch(FAST, &fast).await;
    lines(&mut consumer, 3, SOON).await;
    consumer.process.kill9();

    // The second time they are suspects: one begins, the others wait. Other topics are not affected.
    let mut consumer = here.consumer(&sinks).await;
    here.settled(&[("in_flight", 1), ("retry", HELD as u64 - 1)])
        .await;
    begin(&started, 2 * HELD + 1).await;
    relay.api.batch(FAST, &fast).await;
    lines(&mut consumer, 3, SOON).await;
    eventually(SOON, async || {
        let reply = consumer.api.try_get("/readyz").await;
        let reply = reply.ok_or_else(|| "no answer".to_owned())?;
        match (reply.status, reply.body.contains("suspected")) {
            (200, true) => Ok(()),
            _ => Err(format!("{} {}", reply.status, reply.body)),
        }
    })
    .await;
    let gauge = format!(r#"lisa_suspects{{topic="{TOPIC}",group="billing",state="running"}} 1"#);
    eventually(SOON, async || {
        let reply = consumer.api.try_get("/metrics").await;
        let text = reply.map(|reply| reply.body).unwrap_or_default();
        text.contains(&gauge).then_some(()).ok_or(text)
    })
    .await;

    std::fs::write(&go, "").unwrap();
    let stats = here.drained().await;
    assert_eq!(Deployment::counter(&stats, "acked"), HELD as i64);
    assert_eq!(Deployment::count(&stats, "garbage"), 0, "{stats:#}");
    consumer.stop().await;
    here.conserved().await;
}
