//! A foreign key in the place of one of ours.

use super::deployment::{STDOUT, TOPIC};
use super::{Deployment, SOON, lines};
use lisa_tests::{Binary, Snapshot};
use serde_json::json;

/// Runs a command on Redis.
async fn command(here: &Deployment, words: &[&str]) {
    let mut command = redis::cmd(words[0]);
    command.arg(&words[1..]);
    let done = command
        .query_async(&mut here.connection(words[1]).await)
        .await;
    let _: redis::Value = done.unwrap_or_else(|error| panic!("{words:?}: {error}"));
}

/// Returns the data that a send may change: stored data and counters.
fn stored(snapshot: &Snapshot) -> String {
    let keys = ["payload", "ready:billing", "stats", "tomb"];
    let keys = keys.map(|key| format!("v1:{{{TOPIC}:0}}:{key}"));
    let mut stored = keys.map(|key| (snapshot.get(&key).cloned(), key));
    if let Some(lisa_tests::snapshot::Content::Hash(stats)) = &mut stored[2].0 {
        // The mover looks at the clock all the time.
        stats.retain(|name, _| *name == "accepted" || *name == "moved");
    }
    format!("{stored:?}")
}

#[tokio::test]
async fn a_key_of_a_wrong_type_is_a_clear_error_that_stores_nothing_and_heals_when_it_is_gone() {
    let here = Deployment::start("").await;
    let relay = here.combined().await;
    let mut consumer = here.consumer(STDOUT).await;
    let options = [("Lisa-Id", "order-7"), ("Lisa-Delay", "100ms")];
    let line = json!({ "payload": 1, "id": "order-7", "delay": "100ms" });
    let verb = ["send", TOPIC, "x", "--id", "order-7", "--delay", "100ms"];
    for key in ["waiting", "payload", "tomb", "stats"] {
        let key = format!("lisa:v1:{{{TOPIC}:0}}:{key}");
        // None of our keys may be there, or it would be lost: the counters are moved away.
        if key.ends_with("stats") {
            command(&here, &["COPY", &key, "{orders:0}:aside"]).await;
        } else {
            command(&here, &["DEL", &key]).await;
        }
        command(&here, &["SET", &key, "x"]).await;
        let before = stored(&here.snapshot().await);

        let problem = relay
            .api
            .send(TOPIC, "x", &options)
            .await
            .expect(503)
            .json();
        assert_eq!(
            problem["detail"], "Redis refused the request; see the server's log",
            "{key}"
        );
        let results = relay.api.batch(TOPIC, std::slice::from_ref(&line)).await;
        assert_eq!(results[0]["error"]["status"], 503, "{key}: {results:?}");
        let said = here.verb(Binary::Producer, &verb).await;
        assert_eq!(said.code, Some(1), "{key}: {said:?}");
        assert!(said.stderr.contains("WRONGTYPE"), "{key}: {said:?}");
        assert_eq!(before, stored(&here.snapshot().await), "{key}");
        let log = relay.process.stderr();
        assert!(
            log.contains("Redis refused a request") && log.contains("WRONGTYPE"),
            "{log}"
        );

        command(&here, &["DEL", &key]).await;
        if key.ends_with("stats") {
            command(&here, &["RENAME", "{orders:0}:aside", &key]).await;
        }
    }
    relay.api.send(TOPIC, "x", &options).await.expect(202);
    let line = lines(&mut consumer, 1, SOON).await;
    assert_eq!(line[0].id, "order-7");
    let stats = here.drained().await;
    assert_eq!(Deployment::counter(&stats, "accepted"), 1, "{stats:#}");
    here.conserved().await;
}
