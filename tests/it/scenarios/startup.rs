//! Starts that cannot succeed: wrong configuration, no Redis, a wrong password.

use super::deployment::{STDOUT, TOPIC};
use super::{Deployment, SOON};
use lisa_tests::{Binary, Server, Site, Snapshot, Stopwatch, Topology, eventually, free_port};
use std::time::Duration;

const ALL: [Binary; 3] = [Binary::Producer, Binary::Manager, Binary::Consumer];
/// The verb that checks only the connection to Redis.
const STATS: [&str; 1] = ["stats"];

#[tokio::test]
async fn five_mistakes_in_a_file_are_all_named_before_anything_starts() {
    let mistakes = r#"
        namespace = "Not A Namespace"
        [redis]
        url = "http://127.0.0.1:6379"
        [producer]
        listen = "nowhere"
        [topics.orders]
        lease = "30"
        max_atempts = 5
        "#;
    let named = [
        "namespace",
        "redis.url",
        "producer.listen",
        "topics.orders.lease",
        "topics.orders.max_atempts",
    ];
    let run = |binary: Binary| (binary, vec!["run"]);
    let check = (Binary::Manager, vec!["config", "check"]);
    for (binary, arguments) in ALL.map(run).into_iter().chain([check]) {
        let done = binary.with(arguments).config(mistakes).run(SOON).await;
        assert_eq!(done.code, Some(78), "{done:?}");
        for path in named {
            assert!(
                done.stderr.contains(path),
                "{path} is not named by {done:?}"
            );
        }
        assert_eq!(done.stdout, "", "{done:?}");
    }
    let missing = Binary::Producer
        .with(["run", "--config", "/nowhere.toml"])
        .run(SOON)
        .await;
    assert_eq!(missing.code, Some(78), "{missing:?}");
    let usage = Binary::Producer.with(["sned", TOPIC]).run(SOON).await;
    assert_eq!(usage.code, Some(2), "{usage:?}");
}

#[tokio::test]
async fn without_redis_a_verb_ends_with_69_and_a_role_waits_and_is_not_ready() {
    if Site::lacks(Topology::is_one_server, "stops the only server") {
        return;
    }
    let mut here = Deployment::start("").await;
    here.server().stop();
    for (binary, arguments) in [
        (Binary::Producer, &["send", TOPIC, "x"][..]),
        (Binary::Producer, &["cancel", TOPIC, "order-7"]),
        (Binary::Manager, &STATS),
        (Binary::Manager, &["garbage", "list", TOPIC]),
    ] {
        let watch = Stopwatch::start();
        let arguments = [arguments, &["--timeout", "500ms"]].concat();
        let done = here.verb(binary, &arguments).await;
        assert_eq!(done.code, Some(69), "{arguments:?}: {done:?}");
        watch.assert_within(Duration::from_secs(1), Duration::from_secs(3));
        assert!(done.stderr.contains("redis"), "{done:?}");
    }
    let mut roles = ALL.map(|binary| here.launch(binary, &["run"], STDOUT));
    for role in &mut roles {
        eventually(SOON, async || role.answers("/readyz", 503).await).await;
        role.api.get("/healthz").await.expect(200);
    }
    let refused = roles[0].api.send(TOPIC, "x", &[]).await.expect(503);
    assert_eq!(refused.json()["code"], "unavailable", "{refused:?}");
    assert!(!refused.header("retry-after").is_empty());

    here.server().restart();
    for role in &mut roles {
        role.ready().await;
    }
    roles[0].api.send(TOPIC, "x", &[]).await.expect(202);
    let [_, _, consumer] = &mut roles;
    super::lines(consumer, 1, SOON).await;
    for role in &mut roles {
        role.stop().await;
    }
    here.conserved().await;
}

#[tokio::test]
async fn what_another_version_laid_out_is_refused_at_the_start_and_by_running_roles() {
    let here = Deployment::start("").await;
    let (producer, manager) = (here.producer().await, here.manager().await);
    let hour = [("Lisa-Delay", "1h")];
    producer.api.send(TOPIC, "x", &hour).await.expect(202);
    // As a newer version would leave it, which also notifies the others of a change.
    let set = async |key: String, field: &str, value: &str| {
        let mut connection = here.connection(&key).await;
        let mut cmd = redis::cmd("HSET");
        let set = cmd.arg(&key).arg(field).arg(value);
        let _: u64 = set.query_async(&mut connection).await.unwrap();
    };
    set(format!("lisa:v1:{{{TOPIC}:0}}:conf"), "layout", "2").await;
    let registry = "lisa:v1:{registry}:topics".to_owned();
    set(registry.clone(), TOPIC, "1 99").await;
    set(registry, ":version", "99").await;
    for binary in ALL {
        let mut role = here.launch(binary, &["run"], STDOUT).process;
        let status = role.wait_exit(SOON).await;
        let told = role.stderr();
        assert_eq!(status.code(), Some(78), "{}: {told}", binary.name());
        assert!(told.contains("has layout 2 in Redis"), "{told}");
    }
    let stats = here.verb(Binary::Manager, &STATS).await;
    assert_eq!(stats.code, Some(1), "{stats:?}");
    assert!(stats.stderr.contains("has layout 2"), "{stats:?}");
    eventually(SOON, async || {
        let sent = producer.api.send(TOPIC, "x", &[]).await;
        let told = [&producer, &manager].map(|role| role.process.stderr());
        match sent.status == 503 && told.iter().all(|log| log.contains("has layout 2")) {
            true => Ok(()),
            false => Err(format!("{sent:?}\n{}", told[1])),
        }
    })
    .await;
    // Only the topic: the manager's heartbeats go on.
    let shard = format!("v1:{{{TOPIC}:0}}");
    let before = here.snapshot().await.below(&shard);
    producer.api.send(TOPIC, "x", &[]).await.expect(503);
    let after = here.snapshot().await.below(&shard);
    assert_ne!(before, Snapshot::default());
    assert_eq!(before.diff(&after), "");
    for mut role in [producer, manager] {
        role.stop().await;
    }
}

#[tokio::test]
async fn a_wrong_password_is_a_mistake_in_the_configuration() {
    let server = Server::builder().password("open-sesame").start();
    let wrong = format!("redis://:wrong@127.0.0.1:{}", server.port());
    let bare = format!("redis://127.0.0.1:{}", server.port());
    for url in [&wrong, &bare] {
        for binary in ALL {
            let config = format!(
                "[redis]\nurl = \"{url}\"\n[producer]\nlisten = \"127.0.0.1:{0}\"\n[manager]\nlisten = \"127.0.0.1:{0}\"\n\
                 [consumer]\nlisten = \"127.0.0.1:{0}\"\n[[consumer.subscriptions]]\ntopic = \"orders\"\ngroup = \"default\"\nsink = {{ type = \"stdout\" }}\n\
                 [topics.orders]\n",
                free_port()
            );
            let done = binary.with(["run"]).config(&config).run(SOON).await;
            assert_eq!(
                done.code,
                Some(78),
                "{} with {url}: {done:?}",
                binary.name()
            );
            assert!(
                !done.stderr.contains("wrong@"),
                "it shows the password: {done:?}"
            );
        }
        let verb = ["stats", "--redis-url", url];
        let done = Binary::Manager.with(verb).run(SOON).await;
        assert_eq!(done.code, Some(78), "{url}: {done:?}");
    }
    // The right password works, and appears in no output.
    let here = Deployment::on(Site::One(Box::new(server)), "");
    let mut relay = here.combined().await;
    relay
        .api
        .send(TOPIC, "x", &[("Lisa-Delay", "1h")])
        .await
        .expect(202);
    relay.stop().await;
    assert!(!relay.process.stderr().contains("open-sesame"));
    here.conserved().await;
}

#[tokio::test]
async fn a_secret_file_that_is_no_file_is_refused_and_not_waited_for() {
    let folder = tempfile::tempdir().unwrap();
    let fifo = folder.path().join("fifo");
    let made = std::process::Command::new("mkfifo").arg(&fifo).status();
    assert!(made.unwrap().success());
    for path in [fifo.to_str().unwrap(), "/dev/zero"] {
        let file = format!("[redis]\npassword_file = {path:?}\n");
        let done = Binary::Producer.with(["run"]).config(&file).run(SOON).await;
        assert_eq!(done.code, Some(78), "{done:?}");
        let told = "cannot read the file: not a regular file";
        assert!(
            done.stderr.contains(told) && done.stderr.contains("redis.password_file"),
            "{done:?}"
        );
    }
}

#[tokio::test]
async fn a_password_on_the_command_line_is_warned_of_and_not_repeated() {
    let url = format!("redis://ann:hush@127.0.0.1:{}", free_port());
    let mut role = Binary::Producer
        .with(["run", "--redis-url", &url])
        .config(&format!(
            "[producer]\nlisten = \"127.0.0.1:{}\"\n",
            free_port()
        ))
        .start();
    eventually(SOON, async || {
        let log = role.stderr();
        match log.contains("LISA_REDIS__PASSWORD_FILE") && log.contains("ps") {
            true => Ok(()),
            false => Err(log),
        }
    })
    .await;
    role.sigterm();
    role.wait_exit(SOON).await;
    assert!(!role.stderr().contains("hush"));
}
