//! The binary: its output, the deliveries it returns, and the input it refuses.

use super::*;
use lisa_tests::{Launch, Site};
use serde_json::{Value, json};
use std::ffi::OsString;

/// Runs the binary on a relay's topic with five handlers at once; `sink` and `more` are TOML.
fn binary(relay: &Relay, server: &Server, sink: &str, more: &str) -> Process {
    let config = format!(
        r#"
        namespace = "{}"
        redis.url = "{}"
        consumer.listen = "127.0.0.1:{}"
        consumer.subscriptions = [{{ topic = "t", group = "default", concurrency = 5, sink = {sink} }}]
        {more}
        "#,
        relay.broker().namespace(),
        server.socket_url(),
        lisa_tests::free_port(),
    );
    Binary::Consumer.with(["run"]).config(&config).start()
}

#[tokio::test(flavor = "multi_thread")]
async fn the_binary_prints_messages_and_ends_with_0_when_it_is_told_to() {
    let relay = relay("binary").await;
    let mut process = binary(&relay, Server::shared(), r#"{ type = "stdout" }"#, "");
    relay.send(&[message("a", When::NOW)]).await;
    let line = process.next_line(SOON).await;
    assert!(
        line.contains(r#""id":"a""#) && line.contains(r#""payload":"payload of a""#),
        "{line}"
    );
    process.sigterm();
    assert_eq!(process.wait_exit(SOON).await.code(), Some(0));
    assert_eq!(process.lines_to_end(SOON).await, Vec::<String>::new());
    relay.assert_drained().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn the_binary_hands_back_what_hangs_at_the_end_of_the_grace() {
    let relay = relay("binary-hangs").await;
    let sink = r#"{ type = "command", command = ["/bin/sleep", "1000"] }"#;
    let mut process = binary(
        &relay,
        Server::shared(),
        sink,
        r#"shutdown.grace = "100ms""#,
    );
    relay.send(&numbered(8)).await;
    let five = async || match relay.stats().await.groups.remove(0) {
        group if group.in_flight == 5 => Ok(()),
        group => Err(format!("{group:?}")),
    };
    eventually(SOON, five).await;
    process.sigterm();
    assert_eq!(process.wait_exit(SOON).await.code(), Some(0));
    let group = relay.stats().await.groups.remove(0);
    assert_eq!((group.ready, group.in_flight, group.retry), (3, 0, 5));
    assert!(relay.hash("attempts:default").await.is_empty());
    relay.assert_conserved().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_command_reads_its_whole_payload_although_the_consumer_was_killed() {
    let relay = relay("binary-killed").await;
    let folder = tempfile::tempdir().unwrap();
    let [started, go, read] = ["started", "go", "read"].map(|name| folder.path().join(name));
    let script = format!(
        "touch {started}; while [ -e {started} ] && [ ! -e {} ]; do sleep 0.01; done; echo $(wc -c) of $LISA_PAYLOAD_BYTES > {read}.new; mv {read}.new {read}",
        go.display(),
        started = started.display(),
        read = read.display(),
    );
    let sink = format!(r#"{{ type = "command", command = ["/bin/sh", "-c", {script:?}] }}"#);
    let mut process = binary(&relay, Server::shared(), &sink, "");
    let mut large = message("a", When::NOW);
    large.record.payload = vec![b'p'; 200_000].into();
    relay.send(&[large]).await;
    let there = async |path: &std::path::Path| match path.exists() {
        true => Ok(()),
        false => Err(format!("no {}", path.display())),
    };
    eventually(SOON, || there(&started)).await;
    process.kill9();
    process.wait_exit(SOON).await;
    std::fs::write(go, "").unwrap();
    eventually(SOON, || there(&read)).await;
    assert_eq!(std::fs::read_to_string(read).unwrap(), "200000 of 200000\n");
}

#[tokio::test(flavor = "multi_thread")]
async fn the_binary_refuses_to_run_without_subscriptions() {
    let finished = Binary::Consumer.with(["run"]).run(SOON).await;
    assert_eq!(finished.code, Some(78), "{}", finished.stderr);
    assert!(
        finished.stderr.contains("consumer.subscriptions"),
        "{}",
        finished.stderr
    );
    assert_eq!(finished.stdout, "");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_consumer_of_an_unknown_topic_is_not_ready_and_says_what_it_waits_for() {
    let relay = relay("unknown").await;
    let consumer = Consumer::builder(relay.broker().clone())
        .topic("order", delivery_fn(|_, _| async {}))
        .topic("t", delivery_fn(|_, _| async {}));
    let running = Running::start(consumer.build().unwrap());
    let waits = async |expected: &[&str]| {
        eventually(SOON, async || match running.consumer.waiting() {
            waiting if waiting == expected => Ok(()),
            waiting => Err(format!("{waiting:?}")),
        })
        .await;
    };
    waits(&["waiting for topic order, which is not registered"]).await;
    let (similar, settings) = ("ordre".parse().unwrap(), settings());
    let declared = relay.broker().declare(&similar, &settings, Declare::Create);
    declared.await.unwrap();
    waits(&["waiting for topic order, which is not registered; did you mean \"ordre\"?"]).await;

    let port = lisa_tests::free_port();
    let config = format!(
        r#"
        namespace = "{}"
        redis.url = "{}"
        consumer.listen = "127.0.0.1:{port}"
        consumer.subscriptions = [{{ topic = "order", group = "default", sink = {{ type = "stdout" }} }}]
        "#,
        relay.broker().namespace(),
        Server::shared().socket_url(),
    );
    let _process = Binary::Consumer.with(["run"]).config(&config).start();
    let api = lisa_tests::Api::new(port);
    let readyz = async |status: u16, text: &str| {
        eventually(SOON, async || match api.try_get("/readyz").await {
            Some(reply) if reply.status == status && reply.body.contains(text) => Ok(()),
            other => Err(format!("{other:?}")),
        })
        .await;
    };
    readyz(503, "waiting for topic order").await;

    let order = "order".parse().unwrap();
    let declared = relay.broker().declare(&order, &settings, Declare::Create);
    declared.await.unwrap();
    waits(&[]).await;
    readyz(200, "").await;
    running.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn printing_a_topic_takes_nothing_from_a_group_unless_one_is_named() {
    let relay = relay("printing").await;
    let config = format!(
        "namespace = \"{}\"\nredis.url = \"{}\"\n",
        relay.broker().namespace(),
        Server::shared().socket_url(),
    );
    let run = |more: &[&str]| {
        let listen = format!("127.0.0.1:{}", lisa_tests::free_port());
        let words = ["run", "--topic", "t", "--listen", &listen];
        let words: Vec<String> = words
            .iter()
            .chain(more)
            .map(|&word| word.to_owned())
            .collect();
        Binary::Consumer.with(words).config(&config)
    };
    // Another consumer reads the group.
    relay.hold("held").await;
    let mut alone = run(&[]).start();
    let instances = async || {
        relay.broker().refresh().await.unwrap();
        let topic = relay.broker().known(relay.topic().name()).unwrap();
        match topic.groups().len() {
            2 => Ok(()),
            groups => Err(groups),
        }
    };
    eventually(SOON, instances).await;
    relay.send(&[message("a", When::NOW)]).await;
    // With two groups the mover delivers it to each of them.
    relay.move_due(50).await;
    let line = alone.next_line(SOON).await;
    assert!(line.contains(r#""max_attempts":3"#), "{line}");
    let of_default = async || {
        let stats = relay.stats().await;
        let group = stats
            .groups
            .iter()
            .find(|group| group.group.as_str() == "default");
        group.map(|group| group.ready)
    };
    assert_eq!(of_default().await, Some(1));
    let mut named = run(&["--group", "default"]).start();
    assert!(named.next_line(SOON).await.contains(r#""id":"a""#));
    let log = named.stderr();
    assert!(log.contains("other consumers read this group"), "{log}");
    // Killed and started again, as by a supervisor: Redis still knows its predecessor.
    named.kill9();
    named.wait_exit(SOON).await;
    relay.send(&[message("b", When::NOW)]).await;
    relay.move_due(50).await;
    let mut named = run(&["--group", "default", "--yes"]).start();
    assert!(named.next_line(SOON).await.contains(r#""id":"b""#));
    let log = named.stderr();
    assert!(!log.contains("other consumers"), "{log}");
    for mut process in [alone, named] {
        process.sigterm();
        assert_eq!(process.wait_exit(SOON).await.code(), Some(0));
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn printing_a_shared_group_waits_for_redis_instead_of_ending() {
    let (port, redis) = (lisa_tests::free_port(), lisa_tests::free_port());
    let listen = format!("127.0.0.1:{port}");
    let words = ["run", "--topic", "t", "--group", "g", "--listen", &listen];
    let config = format!("redis.url = \"redis://127.0.0.1:{redis}\"\n");
    let mut process = Binary::Consumer.with(words).config(&config).start();
    let api = lisa_tests::Api::new(port);
    eventually(SOON, async || {
        let log = process.stderr();
        match api.try_get("/readyz").await {
            Some(reply) if reply.status == 503 && log.contains("Redis unavailable") => Ok(()),
            other => Err(format!("{other:?} {log}")),
        }
    })
    .await;
    process.sigterm();
    assert_eq!(process.wait_exit(SOON).await.code(), Some(0));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_sink_that_can_never_work_ends_the_start_with_78_and_takes_no_message() {
    let relay = relay("never").await;
    relay.send(&[message("a", When::NOW)]).await;
    for (sink, why) in [
        (
            r#"{ type = "http", url = "http://127.0.0.1:9/" }"#,
            "allow_private",
        ),
        (
            r#"{ type = "http", url = "http://localhost:9/" }"#,
            "allow_private",
        ),
        (
            r#"{ type = "command", command = ["/nonexistent/tool"] }"#,
            "no such program",
        ),
        (
            r#"{ type = "command", command = ["/etc/passwd"] }"#,
            "not executable",
        ),
    ] {
        let mut process = binary(&relay, Server::shared(), sink, "");
        assert_eq!(process.wait_exit(SOON).await.code(), Some(78), "{sink}");
        let log = process.stderr();
        let is_told = log.contains(why) && log.contains("consumer.subscriptions[0].sink");
        assert!(is_told, "{log}");
    }
    let group = relay.stats().await.groups.remove(0);
    assert_eq!((group.ready, group.garbage), (1, 0));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_failed_attempt_that_is_retried_is_logged_with_its_message_and_its_error() {
    let relay = relay("binary-fails").await;
    let sink = r#"{ type = "command", command = ["/bin/sh", "-c", "echo no stock >&2; exit 1"] }"#;
    let process = binary(&relay, Server::shared(), sink, "");
    relay.send(&[message("a", When::NOW)]).await;
    let line = || {
        let log = process.stderr();
        let mut lines = log.lines();
        let line = lines.find(|line| line.contains("attempt failed; retrying"));
        line.map(str::to_owned).ok_or(log)
    };
    let line = eventually(SOON, async || line()).await;
    let line: Value = serde_json::from_str(&line).unwrap();
    let expected =
        json!({"level": "WARN", "topic": "t", "group": "default", "id": "a", "attempt": 1});
    for (name, value) in expected.as_object().unwrap() {
        assert_eq!(&line[name], value, "{line}");
    }
    assert!(
        line["error"].as_str().unwrap().contains("no stock"),
        "{line}"
    );
    assert!(
        line["retry_in"].is_string() && line["omitted"].is_null(),
        "{line}"
    );
}

/// The configuration of a consumer of a relay that runs this shell script for each delivery.
fn running(relay: &Relay, script: &str) -> String {
    format!(
        r#"
        namespace = "{}"
        redis.url = "{}"
        consumer.listen = "127.0.0.1:{}"
        [[consumer.subscriptions]]
        topic = "t"
        group = "default"
        sink = {{ type = "command", command = ["/bin/sh", "-c", {script:?}] }}
        "#,
        relay.broker().namespace(),
        Server::shared().socket_url(),
        lisa_tests::free_port(),
    )
}

async fn acked(relay: &Relay, count: i64) {
    eventually(SOON, async || match relay.stats().await.counters {
        counters if counters.get("acked") == Some(&count) => Ok(()),
        counters => Err(format!("{counters:?}")),
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_program_cannot_read_the_environment_of_its_consumer() {
    let relay = relay("binary-environ").await;
    let folder = tempfile::tempdir().unwrap();
    let out = folder.path().join("out");
    let program = Binary::Consumer.path();
    // With one of these capabilities, a process may read any other. Root in a container usually has none of them.
    let launch = match rustix::process::geteuid().is_root() {
        true => {
            let words = [
                "--bounding-set=-sys_ptrace,-perfmon,-sys_admin".into(),
                program.into(),
                "run".into(),
            ];
            Launch::new("setpriv", words as [OsString; 3])
        }
        false => Launch::new(program, ["run"]),
    };
    let script = format!("cat /proc/$PPID/environ > {}; exit 0", out.display());
    let launch = launch.config(&running(&relay, &script));
    let mut process = launch.env("SECRET", "of the consumer").start();
    relay.send(&[message("a", When::NOW)]).await;
    acked(&relay, 1).await;
    assert_eq!(std::fs::read_to_string(out).unwrap(), "");
    process.sigterm();
    assert_eq!(process.wait_exit(SOON).await.code(), Some(0));
    relay.assert_drained().await;
}

/// The ids of the children of a process, including zombies.
fn children(of: u32) -> Vec<u32> {
    let child = |entry: std::io::Result<std::fs::DirEntry>| {
        let pid: u32 = entry.ok()?.file_name().to_str()?.parse().ok()?;
        let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
        let parent = stat.rsplit_once(") ")?.1.split(' ').nth(1)?;
        (parent == of.to_string()).then_some(pid)
    };
    std::fs::read_dir("/proc")
        .unwrap()
        .filter_map(child)
        .collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn as_pid_1_a_consumer_reaps_what_its_programs_leave_behind() {
    let own_pids = ["--pid", "--fork", "--kill-child"];
    let tried = std::process::Command::new("unshare")
        .args(own_pids)
        .arg("true")
        .output();
    if !tried.is_ok_and(|output| output.status.success()) {
        return Site::leave_out("needs unshare, and the right to start a process as PID 1");
    }
    let relay = relay("binary-init").await;
    let folder = tempfile::tempdir().unwrap();
    let go = folder.path().join("go");
    let script = format!(
        "while [ ! -e {} ]; do sleep 0.01; done & exit 0",
        go.display()
    );
    let words = own_pids.map(OsString::from).into_iter();
    let words = words.chain([Binary::Consumer.path().into(), "run".into()]);
    let launch = Launch::new("unshare", words).config(&running(&relay, &script));
    let mut process = launch.start();
    let child = async || children(process.pid().unwrap()).pop().ok_or("none");
    let init = eventually(SOON, child).await;
    relay.send(&numbered(8)).await;
    acked(&relay, 8).await;
    let has = async |count: usize| {
        eventually(SOON, async || match children(init) {
            children if children.len() == count => Ok(()),
            children => Err(format!("{children:?}")),
        })
        .await;
    };
    // The consumer itself is one.
    has(9).await;
    std::fs::write(go, "").unwrap();
    has(1).await;
    let init = rustix::process::Pid::from_raw(init.try_into().unwrap()).unwrap();
    rustix::process::kill_process(init, rustix::process::Signal::TERM).unwrap();
    assert_eq!(process.wait_exit(SOON).await.code(), Some(0));
    relay.assert_drained().await;
}
