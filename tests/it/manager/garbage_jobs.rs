//! Garbage jobs: requeue and purge by filter, over HTTP and on the command line, stopped, and resumed by another manager.

use lisa_core::broker::Verdict;
use lisa_tests::relay::{self, ms};
use lisa_tests::sqs::hex;
use lisa_tests::{Server, eventually};
use serde_json::{Value, json};
use sha2::{Digest, Sha256};

use super::operators::lisa_manager;
use super::served::Served;
use super::{SOON, read, send};

async fn start(server: &Server, namespace: &str) -> Served {
    Served::start(server, namespace, &[("topics.orders.shards", "1")]).await
}

impl Served {
    async fn start_job(&self, body: Value) -> Value {
        let reply = self
            .post("topics/orders/groups/default/garbage/jobs", body)
            .await;
        reply.expect(202).json()
    }

    /// Waits until a job is in a state, and returns it.
    async fn job(&self, id: &Value, state: &str) -> Value {
        eventually(SOON, async || {
            let jobs = self.api.get_json("/v1/garbage/jobs").await["jobs"].clone();
            let job = jobs.as_array().unwrap().iter().find(|job| job["id"] == *id);
            match job {
                Some(job) if job["state"] == state => Ok(job.clone()),
                _ => Err(format!("{jobs:#}")),
            }
        })
        .await
    }

    async fn in_garbage(&self) -> u64 {
        let topic = self.topic().await;
        self.broker.stats(&topic).await.unwrap().groups[0].garbage
    }
}

/// Puts messages into garbage, the nth with the error `error(n)`.
async fn fill(manager: &Served, count: usize, error: impl Fn(usize) -> String) {
    let topic = manager.topic().await;
    for n in 0..count {
        send(
            &manager.broker,
            &topic,
            relay::message(&format!("m{n}"), ms(0)),
        )
        .await;
    }
    let reads = read(&manager.broker, &topic, count).await;
    let settlements = reads.iter().map(|read| {
        let id = read.id.as_ref().unwrap().as_str();
        let error = error(id[1..].parse().unwrap());
        relay::settlement(read, Verdict::Reject { error })
    });
    let settlements: Vec<_> = settlements.collect();
    let shard = topic.first_shard();
    let settled = manager
        .broker
        .settle(&topic, shard, &topic.groups()[0], &settlements);
    settled.await.unwrap();
}

fn timeout_or_other(n: usize) -> String {
    if n.is_multiple_of(3) {
        format!("timed out after {n} ms: \"shop\"")
    } else {
        format!("no order {n}")
    }
}

/// Returns the fields that a problem names.
fn named(problem: &Value) -> Vec<&str> {
    let errors = problem["errors"].as_array().unwrap().iter();
    errors
        .map(|error| error["field"].as_str().unwrap())
        .collect()
}

#[tokio::test]
async fn a_job_takes_what_matches_and_was_in_garbage_when_it_began() {
    let server = Server::start();
    let manager = start(&server, "jobs").await;
    fill(&manager, 150, timeout_or_other).await;
    let jobs = "topics/orders/groups/default/garbage/jobs";
    let filter = json!({ "verb": "requeue", "error": "timed out after # ms: …", "dry_run": true });
    let counted = manager.post(jobs, filter).await.expect(200).json();
    assert_eq!(
        counted,
        json!({ "found": 50, "looked_at": 150, "is_complete": true })
    );
    assert_eq!(
        manager.api.get_json("/v1/garbage/jobs").await["jobs"],
        json!([])
    );

    let job = manager
        .start_job(json!({ "verb": "requeue", "error": "timed out", "max": 20 }))
        .await;
    assert_eq!(
        (&job["state"], &job["expected"]),
        (&json!("running"), &json!(50))
    );
    let job = manager.job(&job["id"], "done").await;
    assert_eq!(job["done"], 20);
    assert_eq!(manager.in_garbage().await, 130);

    // What fails again has another garbage time.
    let topic = manager.topic().await;
    let again = read(&manager.broker, &topic, 20).await;
    for read in &again {
        super::reject(&manager.broker, &topic, read).await;
    }
    let job = manager
        .start_job(json!({ "verb": "purge", "error": "no order", "reason": "rejected" }))
        .await;
    let job = manager.job(&job["id"], "done").await;
    assert_eq!(
        (&job["done"], &job["looked_at"]),
        (&json!(100), &json!(150))
    );
    assert_eq!(manager.in_garbage().await, 50);
    let expired = json!({ "verb": "purge", "reason": "expired" });
    let job = manager.start_job(expired).await;
    assert_eq!(manager.job(&job["id"], "done").await["done"], 0);

    for (wrong, fields) in [
        (json!({}), &["verb"][..]),
        (json!({ "verb": "drop" }), &["verb"]),
        (json!({ "verb": "purge", "error": "#" }), &["error"]),
        (json!({ "verb": "purge", "from": "today" }), &["from"]),
        (json!({ "verb": "purge", "max": 0 }), &["max"]),
        (json!({ "verb": "purge", "rate": 0 }), &["rate"]),
        (json!({ "verb": "purge", "payload": "x" }), &["payload"]),
        (
            json!({ "verb": 5, "max": "many", "rate": -1, "dry_run": "yes" }),
            &["verb", "dry_run", "max", "rate"],
        ),
        (json!([]), &["body"]),
    ] {
        let problem = manager.post(jobs, wrong).await.expect(422).json();
        assert_eq!(named(&problem), fields, "{problem}");
    }
    let purge = "topics/orders/groups/default/garbage/purge";
    for (wrong, fields) in [
        (json!({}), &["ids"][..]),
        (json!({ "ids": ["m"], "all": true }), &["ids"]),
        (json!({ "ids": [5], "all": true }), &["ids"]),
        (
            json!({ "all": "yes", "dry": true, "ids": ["m"] }),
            &["all", "dry"],
        ),
    ] {
        let problem = manager.post(purge, wrong).await.expect(422).json();
        assert_eq!(named(&problem), fields, "{problem}");
    }
    manager
        .post("garbage/jobs/nix/stop", Value::Null)
        .await
        .expect(404);
    let log = manager.api.get_json("/v1/audit").await["entries"].clone();
    let purge = log
        .as_array()
        .unwrap()
        .iter()
        .find(|entry| entry["action"] == "purge");
    assert!(
        purge.unwrap()["details"]
            .as_str()
            .unwrap()
            .starts_with("job: reason expired"),
        "{log:#}"
    );
    manager.end().await;
}

#[tokio::test]
async fn a_slow_job_is_stopped_and_another_manager_resumes_what_a_killed_one_left() {
    let server = Server::start();
    let first = start(&server, "resumed").await;
    fill(&first, 120, timeout_or_other).await;
    let slow = json!({ "verb": "requeue", "error": "no order", "rate": 1 });
    let job = first.start_job(slow.clone()).await;
    let progress = async |manager: &Served, least: u64| {
        eventually(SOON, async || {
            let jobs = manager.api.get_json("/v1/garbage/jobs").await["jobs"].clone();
            match jobs[0]["done"].as_u64() {
                Some(done) if done >= least => Ok(done),
                _ => Err(format!("{jobs:#}")),
            }
        })
        .await
    };
    progress(&first, 1).await;
    let id = job["id"].as_str().unwrap();
    first
        .post(&format!("garbage/jobs/{id}/stop"), Value::Null)
        .await
        .expect(200);
    let stopped = first.job(&job["id"], "stopped").await;
    let done = stopped["done"].as_u64().unwrap();
    assert!((1..80).contains(&done), "{stopped:#}");
    assert_eq!(first.in_garbage().await, 120 - done);

    let job = first.start_job(slow).await;
    progress(&first, 1).await;
    // A crash: it does not leave.
    first.run.abort();
    let _ = first.run.await;
    drop(first.broker);
    let second = start(&server, "resumed").await;
    let before = progress(&second, 1).await;
    progress(&second, before + 1).await;
    let id = job["id"].as_str().unwrap();
    second
        .post(&format!("garbage/jobs/{id}/stop"), Value::Null)
        .await
        .expect(200);
    let stopped = second.job(&job["id"], "stopped").await;
    let left = second.in_garbage().await;
    assert_eq!(left + done + stopped["done"].as_u64().unwrap(), 120);
    second.end().await;
}

#[tokio::test]
async fn the_command_line_starts_lists_and_stops_jobs() {
    let server = Server::start();
    let manager = start(&server, "cli").await;
    fill(&manager, 9, timeout_or_other).await;
    let verb = async |arguments: &[&str]| lisa_manager(&server, arguments).run(SOON).await;
    let counted = verb(&[
        "garbage",
        "requeue",
        "orders",
        "--error",
        "timed out",
        "--dry-run",
    ])
    .await;
    assert_eq!(counted.stdout, "would requeue 3 messages\n");
    let refused = verb(&["garbage", "requeue", "orders", "--error", "timed out"]).await;
    assert_eq!(refused.code, Some(2), "{refused:?}");
    let done = verb(&[
        "garbage",
        "requeue",
        "orders",
        "--error",
        "timed out",
        "--yes",
    ])
    .await;
    assert_eq!(
        (done.code, done.stdout.as_str()),
        (Some(0), "requeued 3 messages\n"),
        "{done:?}"
    );
    let purge = [
        "garbage", "purge", "orders", "--reason", "rejected", "--max", "4", "--yes",
    ];
    assert_eq!(verb(&purge).await.stdout, "purged 4 messages\n");
    assert_eq!(manager.in_garbage().await, 2);
    let table = verb(&["garbage", "jobs"]).await.stdout;
    assert_eq!(table.matches("done").count(), 2, "{table}");
    let unknown = verb(&["garbage", "stop", "nix"]).await;
    assert_eq!(unknown.code, Some(1), "{unknown:?}");
    manager.end().await;
}

#[tokio::test]
async fn running_and_ended_jobs_are_bounded() {
    let server = Server::start();
    let manager = start(&server, "bounds").await;
    for _ in 0..25 {
        let job = manager.start_job(json!({ "verb": "purge" })).await;
        manager.job(&job["id"], "done").await;
    }
    let jobs = manager.api.get_json("/v1/garbage/jobs").await["jobs"].clone();
    assert_eq!(jobs.as_array().unwrap().len(), 20);
    fill(&manager, 40, timeout_or_other).await;
    let path = "topics/orders/groups/default/garbage/jobs";
    let slow = json!({ "verb": "requeue", "rate": 1 });
    for _ in 0..10 {
        manager.post(path, slow.clone()).await.expect(202);
    }
    let busy = manager.post(path, slow).await.expect(409).json();
    assert_eq!(busy["code"], "busy");
    manager.end().await;
}

/// A team cannot stop the jobs of another one.
#[tokio::test]
async fn a_limited_token_has_half_of_the_running_jobs() {
    let server = Server::start();
    let token = |name: &str, limits: Value| {
        let mut token = json!({ "name": name, "scopes": ["operate", "read"] });
        token["sha256"] = hex(&Sha256::digest(name)).into();
        let more = limits.as_object().unwrap().clone();
        token.as_object_mut().unwrap().extend(more);
        token
    };
    let tokens = json!([
        token("all", json!({})),
        token("team", json!({ "topics": ["ord*"] }))
    ]);
    let tokens = tokens.to_string();
    let keys = [("topics.orders.shards", "1"), ("auth.tokens", &*tokens)];
    let mut manager = Served::start(&server, "half", &keys).await;
    fill(&manager, 40, timeout_or_other).await;
    let slow = json!({ "verb": "requeue", "rate": 1 });
    // The operators have the others.
    for name in ["team", "all"] {
        manager.api = manager.api.token(name);
        for expected in [202, 202, 202, 202, 202, 409] {
            let path = "topics/orders/groups/default/garbage/jobs";
            manager.post(path, slow.clone()).await.expect(expected);
        }
    }
    manager.end().await;
}
