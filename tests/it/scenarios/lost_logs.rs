//! Roles whose log cannot be written continue, through every event that they would log.

use super::deployment::{GROUP, TOPIC, user};
use super::targets::shows;
use super::{Deployment, Role, SOON};
use lisa_tests::lost_log::{LostLog, blocked, closed, full, nonblocking};
use lisa_tests::{Answer, Api, Binary, Site, Topology, Webhook, eventually, free_port};
use serde_json::Value;
use std::io::PipeReader;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

const RETRY: &str =
    "retry = { kind = \"fixed\", delay = \"50ms\" }\nmax_attempts = 100\nlease = \"5s\"";
/// A payload that the webhook refuses for good.
const BAD: &str = "bad";

/// Starts a role with such a log, and waits until it is ready.
async fn role(
    here: &Deployment,
    binary: Binary,
    arguments: &[&str],
    sink: &str,
    log: LostLog,
) -> (Role, Option<PipeReader>) {
    let port = free_port();
    let (log, reader) = log();
    let launch = binary.with(arguments.iter().copied()).log_to(log);
    let mut role = Role {
        process: launch
            .config(&here.config(user(binary, arguments), port, sink))
            .start(),
        api: Api::new(port),
    };
    role.ready().await;
    (role, reader)
}

async fn counter(role: &Role, name: &str) -> i64 {
    let metrics = role.api.get("/metrics").await.body;
    let line = metrics.lines().find(|line| line.starts_with(name));
    let value = line.and_then(|line| line.rsplit_once(' ')?.1.parse().ok());
    value.unwrap_or_else(|| panic!("no {name} in {metrics}"))
}

/// Lets roles with such a log work, while what happens to them would be logged. Returns the number of lost lines.
async fn nothing_stops(log: LostLog) -> i64 {
    if Site::lacks(Topology::is_one_server, "restarts the only server") {
        return 1;
    }
    let works = Arc::new(AtomicBool::new(true));
    let seen = works.clone();
    let hook = Webhook::answering(move |request| match seen.load(Ordering::Relaxed) {
        _ if request.body == BAD => Answer::status(422),
        true => Answer::status(200),
        false => Answer::status(503),
    })
    .await;
    let mut here = Deployment::durable(RETRY).await;
    let sink = format!(
        "sink = {{ type = \"http\", url = \"{}\", allow_private = true }}",
        hook.url()
    );
    let combined = ["run", "--with-producer"];
    let (relay, _pipe) = role(&here, Binary::Manager, &combined, &sink, log).await;
    let (consumer, _other_pipe) = role(&here, Binary::Consumer, &["run"], &sink, log).await;
    let mut sent = 0;
    let mut send = async |count: i64| {
        sent += count;
        for _ in 0..count {
            relay.api.send(TOPIC, "good", &[]).await.expect(202);
        }
        sent
    };
    let acked = async |here: &Deployment, wanted: i64| {
        eventually(SOON, async || {
            match Deployment::counter(&here.stats().await, "acked") {
                acked if acked == wanted => Ok(()),
                acked => Err(format!("{acked} of {wanted} acknowledged")),
            }
        })
        .await;
    };

    // A message goes to garbage.
    relay.api.send(TOPIC, BAD, &[]).await.expect(202);
    acked(&here, send(10).await).await;
    eventually(SOON, async || {
        match Deployment::count(&here.stats().await, "garbage") {
            1 => Ok(()),
            garbage => Err(garbage),
        }
    })
    .await;

    // The webhook is unavailable for a while.
    works.store(false, Ordering::Relaxed);
    let wanted = send(20).await;
    shows(&consumer, "lisa_sink_open", 1).await;
    works.store(true, Ordering::Relaxed);
    acked(&here, wanted).await;

    // Another manager joins and leaves.
    let (mut second, _third_pipe) = role(&here, Binary::Manager, &["run"], &sink, log).await;
    acked(&here, send(10).await).await;
    second.process.sigterm();
    assert_eq!(second.process.wait_exit(SOON).await.code(), Some(0));

    // Redis restarts.
    here.site.server().restart();
    for role in [&relay, &consumer] {
        eventually(SOON, async || match role.api.get("/readyz").await {
            ready if ready.status == 200 => Ok(()),
            not => Err(not.body),
        })
        .await;
    }
    acked(&here, send(10).await).await;

    let mut lost = 0;
    for role in [&relay, &consumer] {
        role.api.get("/healthz").await.expect(200);
        lost += counter(role, "lisa_log_lines_lost_total").await;
        assert_eq!(panics(role).await, Vec::<String>::new());
    }
    let workers: Value = relay.api.get_json("/v1/workers").await;
    assert_eq!(workers["shards_held"], 1, "{workers} of {TOPIC}/{GROUP}");
    here.conserved().await;
    for mut role in [consumer, relay] {
        role.process.sigterm();
        assert_eq!(role.process.wait_exit(SOON).await.code(), Some(0));
    }
    lost
}

/// Returns the lines of panics.
async fn panics(role: &Role) -> Vec<String> {
    let metrics = role.api.get("/metrics").await.body;
    let lines = metrics
        .lines()
        .filter(|line| line.starts_with("lisa_panics_total{"));
    lines.map(str::to_owned).collect()
}

#[tokio::test]
async fn a_log_on_a_full_disk_stops_nothing() {
    assert!(nothing_stops(full).await > 0);
}

#[tokio::test]
async fn a_log_whose_reader_has_gone_stops_nothing() {
    assert!(nothing_stops(closed).await > 0);
}

#[tokio::test]
async fn a_log_that_takes_nothing_more_stops_nothing() {
    assert!(nothing_stops(nonblocking).await > 0);
}

#[tokio::test]
async fn a_log_that_blocks_stops_nothing() {
    // The lines wait.
    assert_eq!(nothing_stops(blocked).await, 0);
}

#[tokio::test]
async fn a_verb_without_stderr_has_the_exit_code_of_its_result() {
    let here = Deployment::start("").await;
    for log in [full as LostLog, closed, nonblocking] {
        let config = here.config(
            user(Binary::Manager, &["pause"]),
            free_port(),
            "sink = { type = \"stdout\" }",
        );
        let unknown = ["pause", "nothing"];
        let (log, _pipe) = log();
        let ended = Binary::Manager.with(unknown).log_to(log).config(&config);
        let expected = Binary::Manager.with(unknown).config(&config);
        assert_eq!(ended.run(SOON).await.code, expected.run(SOON).await.code);
    }
}
