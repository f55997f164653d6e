//! Starts that cannot succeed: wrong configuration, no Redis, a wrong password.

use super::deployment::{STDOUT, TOPIC};
use super::{Deployment, SOON};
use lisa_tests::{Binary, Server, Site, Topology, eventually, free_port};
use std::time::Duration;

const ALL: [Binary; 3] = [Binary::Producer, Binary::Manager, Binary::Consumer];
/// The verb that checks nothing but the way to Redis.
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
        let begun = std::time::Instant::now();
        let arguments = [arguments, &["--timeout", "500ms"]].concat();
        let done = here.verb(binary, &arguments).await;
        assert_eq!(done.code, Some(69), "{arguments:?}: {done:?}");
        assert!(begun.elapsed() < Duration::from_secs(4), "{arguments:?}");
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
                "it tells the password: {done:?}"
            );
        }
        let verb = ["stats", "--redis-url", url];
        let done = Binary::Manager.with(verb).run(SOON).await;
        assert_eq!(done.code, Some(78), "{url}: {done:?}");
    }
    // The right one works, and is told to nobody.
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
