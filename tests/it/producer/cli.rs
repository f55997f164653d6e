//! The verbs of the command line, as processes.

use super::SOON;
use lisa_tests::process::Finished;
use lisa_tests::{Binary, FaultProxy, Mode, Server, free_port};
use serde_json::{Value, json};
use std::path::Path;
use std::time::Duration;

/// Runs a verb on a server, in a namespace, with a topic `t`.
async fn run(url: &str, namespace: &str, arguments: &[&str], stdin: &[u8]) -> Finished {
    let config = format!("namespace = \"{namespace}\"\nredis.url = \"{url}\"\n[topics.t]\n");
    let launch = Binary::Producer
        .with(arguments)
        .config(&config)
        .stdin(stdin);
    launch.run(SOON).await
}

fn json_of(finished: &Finished) -> Value {
    serde_json::from_str(&finished.stdout).unwrap_or_else(|_| panic!("{finished:?}"))
}

#[tokio::test]
async fn send_reschedule_and_cancel_do_what_they_say() {
    let server = Server::shared();
    let namespace = server.namespace("cli");
    let verb = async |line: &str, stdin: &str| {
        let words: Vec<&str> = line.split(' ').collect();
        run(&server.url(), &namespace, &words, stdin.as_bytes()).await
    };
    let sent = verb(
        "send t - --id a --delay 1h --header x=y --output json",
        "from stdin",
    )
    .await;
    assert_eq!(sent.code, Some(0), "{sent:?}");
    let receipt = json_of(&sent);
    assert_eq!(
        (&receipt["id"], &receipt["outcome"]),
        (&json!("a"), &json!("waiting"))
    );
    let again = verb("--output json send t other --id a", "").await;
    assert_eq!(
        (again.code, &json_of(&again)["outcome"]),
        (Some(0), &json!("duplicate"))
    );
    let people = verb("send t other --id a", "").await;
    assert!(
        people.stdout.starts_with("a: duplicate, due "),
        "{people:?}"
    );
    let moved = verb("reschedule t a --delay 2h --output json", "").await;
    assert_eq!(json_of(&moved)["outcome"], "rescheduled");
    assert!(json_of(&moved)["due_at"].as_str() > receipt["due_at"].as_str());
    let keyed = verb("reschedule t a --key k --delay 3h --output json", "").await;
    assert!(json_of(&keyed)["due_at"].as_str() > json_of(&moved)["due_at"].as_str());
    let now = verb("deliver-now t a --output json", "").await;
    assert_eq!(json_of(&now)["outcome"], "rescheduled");
    assert!(json_of(&now)["due_at"].as_str() < receipt["due_at"].as_str());
    let cancelled = verb("cancel t a --output json", "").await;
    let expected = json!({
        "id": "a", "topic": "t", "outcome": "cancelled", "headers": { "x": "y" }, "payload": "from stdin",
    });
    assert_eq!((cancelled.code, json_of(&cancelled)), (Some(0), expected));
    let refused = verb("send t x --id a --delay 1h --output json", "").await;
    assert_eq!(
        (refused.code, &json_of(&refused)["ended"]),
        (Some(1), &json!("cancelled"))
    );
    let sent = verb(
        "send t x --id a --delay 1h --even-if-cancelled --output json",
        "",
    )
    .await;
    assert_eq!(
        (sent.code, &json_of(&sent)["outcome"]),
        (Some(0), &json!("waiting"))
    );
    let people = verb("cancel t a", "").await;
    assert_eq!(
        (people.code, people.stdout.as_str()),
        (Some(0), "a: cancelled\n")
    );
    let unknown = verb("cancel t nosuch --output json", "").await;
    assert_eq!(
        (unknown.code, &json_of(&unknown)["outcome"]),
        (Some(1), &json!("unknown"))
    );
    let ready = verb("send t --id empty", "").await;
    assert!(ready.stdout.starts_with("empty: ready"), "{ready:?}");
    let late = verb("cancel t empty", "").await;
    assert_eq!((late.code, late.stdout.as_str()), (Some(1), ""));
    assert!(late.stderr.contains("too late"), "{late:?}");
}

#[tokio::test]
async fn exit_codes_tell_usage_configuration_and_redis_apart() {
    let server = Server::shared();
    let namespace = server.namespace("exit");
    let code = async |url: &str, line: &str| {
        let words: Vec<&str> = line.split(' ').collect();
        let finished = run(url, &namespace, &words, b"").await;
        (finished.code.unwrap(), finished.stderr)
    };
    let url = server.url();
    assert_eq!(code(&url, "send t x --delay 5").await.0, 2);
    assert_eq!(code(&url, "send nosuch x").await.0, 1);
    assert_eq!(code(&url, "send t x --delay 9999h").await.0, 1);
    assert_eq!(code(&url, "send t x --retry {\"delay\":\"5s\"}").await.0, 2);
    let nobody = format!("redis://127.0.0.1:{}", free_port());
    assert_eq!(code(&nobody, "send t x --timeout 300ms").await.0, 69);
    assert_eq!(code("gopher://x", "send t x").await.0, 78);
    assert_eq!(
        code("redis+cluster://127.0.0.1:1/3", "send t x").await.0,
        78
    );
    let away = code("redis+cluster://127.0.0.1:1", "send t x --timeout 300ms");
    assert_eq!(away.await.0, 69);
    let secured = Server::builder().password("secret").start();
    let wrong = format!("redis://:wrong@127.0.0.1:{}", secured.port());
    let (refused, stderr) = code(&wrong, "send t x").await;
    assert_eq!(refused, 78, "{stderr}");
    assert!(!stderr.contains("wrong@"), "{stderr}");
    assert_eq!(code(&wrong, "run").await.0, 78);
}

fn lines(range: std::ops::Range<usize>, payload: &str) -> String {
    range
        .map(|n| format!("{{\"payload\":\"{n}{payload}\",\"delay\":\"1h\"}}\n"))
        .collect()
}

#[tokio::test]
async fn an_import_can_be_repeated_and_says_what_it_refused() {
    let server = Server::shared();
    let namespace = server.namespace("import");
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("jobs.ndjson");
    let text = lines(0..1200, "") + "{\"payload\":1,\"dealy\":\"1h\"}\n\n" + &lines(1200..1201, "");
    std::fs::write(&file, text).unwrap();
    let import = async |more: &[&str]| {
        let mut words = vec!["import", "t", file.to_str().unwrap(), "--output", "json"];
        words.extend(more);
        let finished = run(&server.url(), &namespace, &words, b"").await;
        assert_eq!(finished.code, Some(1), "{finished:?}");
        let mut report = json_of(&finished);
        report.as_object_mut().unwrap().remove("refused_file");
        report
    };
    let report = |accepted: u64, duplicates: u64| json!({ "lines": 1202, "accepted": accepted, "merged": 0, "duplicates": duplicates, "refused": 1 });
    assert_eq!(import(&[]).await, report(1201, 0));
    assert_eq!(import(&[]).await, report(0, 1201));
    assert_eq!(import(&["--as", "another"]).await, report(1201, 0));
    let refused = std::fs::read_to_string(dir.path().join("jobs.ndjson.refused.ndjson")).unwrap();
    assert_eq!(refused.lines().count(), 1);
    let refused: Value = serde_json::from_str(&refused).unwrap();
    assert_eq!(refused["line"], 1201);
    assert_eq!(refused["error"]["code"], "invalid");
    assert_eq!(refused["text"], "{\"payload\":1,\"dealy\":\"1h\"}");
    let piped = run(
        &server.url(),
        &namespace,
        &["import", "t", "-"],
        // A byte order mark is no part of the first line.
        format!("\u{feff}{}", lines(0..3, "")).as_bytes(),
    )
    .await;
    assert_eq!(
        (piped.code, piped.stdout.as_str()),
        (Some(0), "3 lines: 3 accepted, 0 duplicates, 0 refused\n")
    );
    let alike = "{\"payload\":1,\"merge_key\":\"m\",\"delay\":\"1h\"}\n".repeat(3);
    let words = ["import", "t", "-", "--as", "alike"];
    let merged = run(&server.url(), &namespace, &words, alike.as_bytes()).await;
    assert_eq!(
        (merged.code, merged.stdout.as_str()),
        (
            Some(0),
            "3 lines: 3 accepted (2 merged), 0 duplicates, 0 refused\n"
        )
    );
}

#[tokio::test]
async fn an_import_that_redis_breaks_off_says_where_to_go_on() {
    let server = Server::start();
    let proxy = FaultProxy::start(server.port()).await;
    // The third batch is larger than what a connection lets through, so it never arrives.
    proxy.set(Mode::CutRequestsAfter(400 * 1024)).await;
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("jobs.ndjson");
    std::fs::write(
        &file,
        lines(0..400, "") + &lines(400..1000, &"x".repeat(5000)),
    )
    .unwrap();
    let file = file.to_str().unwrap();
    let broken = ["import", "t", file, "--timeout", "1s"];
    let broken = run(&server.url_through(&proxy), "lisa", &broken, b"").await;
    assert_eq!(broken.code, Some(69), "{broken:?}");
    let advice = format!("resume with: lisa-producer import t {file} --from-line 401");
    assert!(broken.stderr.contains(&advice), "{broken:?}");
    let resumed = ["import", "t", file, "--from-line", "401"];
    let resumed = run(&server.url(), "lisa", &resumed, b"").await;
    assert_eq!(
        resumed.stdout,
        "600 lines: 600 accepted, 0 duplicates, 0 refused\n"
    );
    assert!(!Path::new(&format!("{file}.refused.ndjson")).exists());
}

#[tokio::test]
async fn a_service_drains_and_ends_well_when_it_is_told_to_stop() {
    let server = Server::shared();
    let listen = format!("127.0.0.1:{}", free_port());
    let config = format!(
        "redis.url = \"{}\"\nnamespace = \"{}\"",
        server.url(),
        server.namespace("stop")
    );
    let mut process = Binary::Producer
        .with(["run", "--listen", &listen])
        .config(&config)
        .start();
    let api = lisa_tests::Api::new(listen.rsplit_once(':').unwrap().1.parse().unwrap());
    lisa_tests::eventually(SOON, async || match api.try_get("/readyz").await {
        Some(reply) if reply.status == 200 => Ok(()),
        other => Err(format!("{other:?}")),
    })
    .await;
    process.sigterm();
    assert_eq!(
        process.wait_exit(Duration::from_secs(10)).await.code(),
        Some(0)
    );
}
