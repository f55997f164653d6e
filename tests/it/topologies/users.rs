//! Roles that log in as the users of the documentation: each can do its work and nothing else.

use super::SOON;
use crate::faults::log::Log;
use crate::faults::role::{Role as Embedded, config_of};
use crate::scenarios::deployment::{Deployment, GROUP, Role, STDOUT, TOPIC};
use crate::scenarios::lines;
use futures_util::StreamExt;
use futures_util::stream;
use lisa_core::durability::Durability;
use lisa_core::topic::TopicSettings;
use lisa_tests::{
    Aof, Binary, Cluster, Process, Sentinels, Server, Site, User, eventually, free_port,
};
use redis::{Client, RedisResult, cmd};
use reqwest::Method;
use serde_json::json;
use std::sync::Arc;
use std::time::Instant;

/// Commands that a role can do without: they serve readable names, a quick end, and checks at start.
const NICETIES: [&str; 7] = [
    "acl|dryrun",
    "acl|whoami",
    "client|id",
    "client|setname",
    "client|unblock",
    "info",
    "ping",
];
/// The number of processes that start at a time.
const ABREAST: usize = 4;

/// The program and the arguments for the user of each role.
fn roles() -> [(&'static str, Binary, &'static [&'static str]); 4] {
    [
        ("lisa-producer", Binary::Producer, &["run"]),
        ("lisa-manager", Binary::Manager, &["run"]),
        ("lisa-consumer", Binary::Consumer, &["run"]),
        (
            "lisa-manager-producer",
            Binary::Manager,
            &["run", "--with-producer"],
        ),
    ]
}

/// Starts a role as some user.
fn start(
    server: &Server,
    user: &str,
    password: &str,
    role: (Binary, &[&str]),
    namespace: &str,
) -> Process {
    let config = format!(
        r#"
        namespace = "{namespace}"
        [redis]
        url = "{}"
        username = "{user}"
        password = "{password}"
        [producer]
        listen = "127.0.0.1:{port}"
        [manager]
        listen = "127.0.0.1:{port}"
        [consumer]
        listen = "127.0.0.1:{port}"
        [[consumer.subscriptions]]
        topic = "t"
        group = "default"
        sink = {{ type = "stdout" }}
        [topics.t]
        "#,
        server.url(),
        port = free_port()
    );
    role.0.with(role.1.iter().copied()).config(&config).start()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn without_any_one_of_its_commands_a_role_refuses_to_start_and_names_it() {
    let server = Server::builder().cluster(false).role_users().start();
    let mut admin = server.connection().await;
    let mut cases = Vec::new();
    for (name, binary, arguments) in roles() {
        let user = User::named(name);
        for command in user
            .commands()
            .filter(|command| !NICETIES.contains(command))
        {
            // A separate user, so that several can be tried at a time.
            let lacking = format!("{name}-{}", cases.len());
            let mut set = cmd("ACL");
            set.arg("SETUSER").arg(&lacking);
            set.arg(user.rules.split(' ').collect::<Vec<_>>());
            set.arg(format!("-{command}"));
            let () = set.query_async(&mut admin).await.unwrap();
            cases.push((lacking, user.password(), (binary, arguments), command));
        }
    }
    assert!(cases.len() > 100, "{} cases", cases.len());
    let tried = stream::iter(&cases).map(async |(user, password, role, command)| {
        let mut process = start(&server, user, password, *role, "lisa");
        let code = process.wait_exit(SOON).await.code();
        let said = process.stderr().to_lowercase();
        let word = command.split('|').next().unwrap_or(command);
        assert_eq!(code, Some(78), "{user} without {command}: {said}");
        assert!(said.contains(word), "{user} without {command}: {said}");
    });
    tried.buffer_unordered(ABREAST).collect::<()>().await;
    println!("{} refused", cases.len());
}

/// Redis would refuse the wait of a send only after the message is stored, so the producer checks for it at start.
#[tokio::test]
async fn a_producer_without_what_its_topics_durability_needs_refuses_to_start_and_says_it_once() {
    let server = Server::builder()
        .cluster(false)
        .aof(Aof::EverySec)
        .role_users()
        .start();
    add_users(&server, &["+command|info"]).await;
    let user = User::named("lisa-producer");
    for (durability, command) in [("replicas:1", "wait"), ("aof", "waitaof")] {
        let config = format!(
            "[redis]\nurl = '{}'\nusername = '{}'\npassword = '{}'\n\
             [producer]\nlisten = '127.0.0.1:0'\n[topics.t]\ndurability = '{durability}'\n",
            server.url(),
            user.name,
            user.password(),
        );
        let ended = Binary::Producer.with(["run"]).config(&config).run(SOON);
        let ended = ended.await;
        assert_eq!(ended.code, Some(78), "{ended:?}");
        let said = ended.stderr.to_lowercase();
        let lines: Vec<_> = said.lines().filter(|line| line.contains(command)).collect();
        assert_eq!(lines.len(), 1, "{said}");
    }
}

#[tokio::test]
async fn keys_outside_of_the_namespace_are_nobodys() {
    let server = Server::builder().cluster(false).role_users().start();
    for user in User::all() {
        let url = format!(
            "redis://{}:{}@127.0.0.1:{}",
            user.name,
            user.password(),
            server.port()
        );
        let client = Client::open(url).unwrap();
        let mut connection = client.get_multiplexed_async_connection().await.unwrap();
        let mut ask = async |words: &[&str]| -> RedisResult<redis::Value> {
            cmd(words[0])
                .arg(&words[1..])
                .query_async(&mut connection)
                .await
        };
        ask(&["HGET", "lisa:v1:{registry}:topics", "t"])
            .await
            .unwrap();
        for denied in [
            &["HGET", "other:v1:{registry}:topics", "t"][..],
            &["SPUBLISH", "other:v1:{t:0}:wake", "x"],
            &["FLUSHALL"],
            &["CONFIG", "GET", "requirepass"],
            &["ACL", "SETUSER", user.name, "+@all"],
        ] {
            let refused = ask(denied).await.unwrap_err();
            assert_eq!(refused.code(), Some("NOPERM"), "{} {denied:?}", user.name);
        }
    }
    for (name, binary, arguments) in roles() {
        let password = User::named(name).password();
        let mut process = start(&server, name, password, (binary, arguments), "other");
        let code = process.wait_exit(SOON).await.code();
        assert_eq!(code, Some(78), "{name}: {}", process.stderr());
        assert!(
            process.stderr().contains("other:v1:"),
            "{}",
            process.stderr()
        );
    }
}

/// Redis loads its append-only file as the default user, which the page takes out of use but leaves its rights.
#[tokio::test]
async fn what_scripts_wrote_is_still_there_when_a_redis_with_these_users_was_killed() {
    let server = Server::builder()
        .cluster(false)
        .aof(Aof::Always)
        .role_users();
    let mut here = Deployment::on(Site::One(Box::new(server.start())), "");
    let relay = here.combined().await;
    for _ in 0..10 {
        relay
            .api
            .send(TOPIC, "x", &[("Lisa-Delay", "1h")])
            .await
            .expect(202);
    }
    here.server().kill9();
    here.server().restart();
    let stats = here.settled(&[("waiting", 10)]).await;
    assert_eq!(Deployment::counter(&stats, "accepted"), 10, "{stats:#}");
    here.conserved().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_consumer_that_sends_callbacks_needs_what_the_page_says_besides() {
    let server = Server::builder().cluster(false).role_users().start();
    let mut here = Deployment::on(Site::One(Box::new(server)), "max_attempts = 1")
        .with("[topics.done]\n[topics.failed]");
    let relay = here.combined().await;
    let keys = "success_topic = \"done\"\ngarbage_topic = \"failed\"\n";
    let fails = "sink = { type = \"command\", command = [\"/bin/sh\", \"-c\", \"grep -q good\"] }";
    let consumer = [keys, fails].concat();
    let mut refused = here.launch(Binary::Consumer, &["run"], &consumer);
    let code = refused.process.wait_exit(SOON).await.code();
    let said = refused.process.stderr();
    assert_eq!(code, Some(78), "{said}");
    assert!(said.to_lowercase().contains("zmscore"), "{said}");

    let besides = User::besides("for a consumer with success_topic");
    add_users(here.server(), &besides).await;
    let consumer = here.consumer(&consumer).await;
    let key = ("Lisa-Key", "k");
    for payload in ["good", "bad"] {
        relay.api.send(TOPIC, payload, &[key]).await.expect(202);
    }
    for topic in ["done", "failed"] {
        eventually(SOON, async || {
            let stats = relay.api.get(&format!("/v1/topics/{topic}")).await;
            match stats.body.contains("\"accepted\":1") {
                true => Ok(()),
                false => Err(format!("{}\n{}", stats.body, consumer.process.stderr())),
            }
        })
        .await;
    }
    let metrics = consumer.api.get("/metrics").await.body;
    for outcome in ["success", "garbage"] {
        let line = format!(
            "lisa_callbacks_total{{topic=\"{TOPIC}\",group=\"{GROUP}\",outcome=\"{outcome}\",result=\"sent\"}} 1"
        );
        assert!(metrics.contains(&line), "{line}\n{metrics}");
    }
    here.conserved().await;
}

/// Creates the users of the roles on a server, with these additional rights.
async fn add_users(server: &Server, besides: &[&str]) {
    for user in User::all() {
        let mut set = cmd("ACL");
        set.arg("SETUSER").arg(user.name);
        set.arg(user.rules.split(' ').collect::<Vec<_>>())
            .arg(besides);
        let () = set
            .query_async(&mut server.connection().await)
            .await
            .unwrap();
    }
}

/// Starts all roles as their users, and lets messages pass before and after an event.
async fn pass(
    access: &[(&'static str, String)],
    durability: Durability,
    between: impl Future<Output = ()>,
) {
    let role = |user: &str| {
        let user = User::named(user);
        let login = [
            ("redis.username", user.name),
            ("redis.password", user.password()),
        ];
        let login = login.map(|(key, value)| (key, value.to_owned()));
        let mut config = config_of(&[access, &login].concat(), "lisa", &[]);
        let settings = TopicSettings {
            shards: 6,
            durability,
            ..TopicSettings::default()
        };
        config.topics.insert("t".parse().unwrap(), settings);
        config
    };
    let log = Arc::new(Log::default());
    let manager = Embedded::manager(&role("lisa-manager")).await;
    let (producer, sends) = Embedded::producer(&role("lisa-producer")).await;
    let consumer = Embedded::consumer(&role("lisa-consumer"), &["t"], &log).await;
    let deliver = async |wanted: usize| {
        for number in 0..50 {
            sends.send("t", &number).await.unwrap();
        }
        eventually(SOON, async || match log.count() {
            count if count == wanted => Ok(()),
            count => Err(format!("{count} of {wanted} delivered")),
        })
        .await;
    };
    deliver(50).await;
    between.await;
    deliver(100).await;
    for role in [consumer, producer, manager] {
        role.stop().await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_users_need_what_the_page_says_besides_on_a_cluster_and_under_sentinels() {
    let cluster = Cluster::start(Aof::Off).await;
    let rights = [
        User::besides("on a cluster"),
        User::besides("for durability = \"replicas:N\""),
    ];
    for node in cluster.nodes() {
        add_users(node, &rights.concat()).await;
    }
    // While a slot moves, clients that block on its streams are redirected.
    let move_slot = async {
        let slot = cluster.slot_of("{t:0}").await;
        let to = (cluster.master_of(slot).await + 1) % 3;
        cluster.begin_move(slot, to).await;
        while cluster.move_keys(slot, to, 100).await > 0 {}
        let asked = async || {
            let mut counts = 0;
            for node in cluster.nodes() {
                counts += node.calls("asking").await;
            }
            if counts > 0 {
                Ok(())
            } else {
                Err("nobody was sent on")
            }
        };
        eventually(SOON, asked).await;
        cluster.end_move(slot, to).await;
    };
    let access = cluster.access();
    pass(&access, Durability::Replicas(1), move_slot).await;
    for node in cluster.nodes() {
        assert_eq!(node.denials().await, Vec::<String>::new());
    }

    let sentinels = Sentinels::start(Aof::Off).await;
    for server in sentinels.servers() {
        add_users(server, &User::besides("under sentinels")).await;
    }
    let access = sentinels.access();
    pass(&access, Durability::Memory, async {}).await;
    for server in sentinels.servers() {
        assert_eq!(server.denials().await, Vec::<String>::new());
    }
}

/// Uses every feature for which a role has scripts; [`Deployment::conserved`] checks the log of refusals.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn with_its_user_every_role_and_every_verb_does_all_its_work() {
    let server = Server::builder().cluster(false).role_users().start();
    let settings = "lease = \"1s\"\nmax_attempts = 2\nmax_messages = 1000\nrate = \"500/s\"\n\
        retry = { kind = \"fixed\", delay = \"10ms\", jitter = 0.0 }";
    let here = Deployment::on(Site::One(Box::new(server)), settings).groups(&[GROUP, "audit"]);
    let relay = here.combined().await;
    let (producer, _manager) = (here.producer().await, here.manager().await);
    let failing = "sink = { type = \"command\", command = [\"/bin/false\"] }";
    let mut doomed = here.consumer(failing).await;
    let here = here.reader("audit");
    let mut audit = here.consumer(STDOUT).await;

    let hour = ("Lisa-Delay", "1h");
    for (number, headers) in [
        &[("Lisa-Key", "k"), ("Lisa-Delay", "50ms")][..],
        &[("Lisa-Key", "k"), ("Lisa-Priority", "7")],
        &[("Lisa-Merge-Key", "m"), ("Lisa-Delay", "200ms")],
        &[("Lisa-Merge-Key", "m"), ("Lisa-Delay", "200ms")],
        &[("Lisa-Priority", "-3"), ("Lisa-Ttl", "10m")],
        &[("Lisa-Id", "cancelled"), hour],
        &[("Lisa-Id", "rescheduled"), hour],
        &[("Lisa-Id", "replaced"), hour],
        &[("Lisa-Id", "replaced"), ("Lisa-Replace", "true"), hour],
        &[("Lisa-Id", "forwarded"), hour],
    ]
    .into_iter()
    .enumerate()
    {
        let api = if number % 2 == 0 {
            &producer.api
        } else {
            &relay.api
        };
        let sent = api.send(TOPIC, "x", headers).await;
        assert!([200, 202].contains(&sent.status), "{headers:?}: {sent:?}");
    }
    let verbs: [(Binary, &[&str]); 8] = [
        (Binary::Producer, &["send", TOPIC, "x", "--delay", "1h"]),
        (Binary::Producer, &["cancel", TOPIC, "cancelled"]),
        (
            Binary::Producer,
            &["reschedule", TOPIC, "rescheduled", "--delay", "10ms"],
        ),
        (Binary::Producer, &["deliver-now", TOPIC, "forwarded"]),
        (
            Binary::Manager,
            &["messages", "list", TOPIC, "--state", "waiting"],
        ),
        (Binary::Manager, &["messages", "show", TOPIC, "replaced"]),
        (Binary::Manager, &["topics"]),
        (Binary::Manager, &["groups", "list", TOPIC]),
    ];
    let verb = async |(binary, words): (Binary, &[&str])| {
        let done = here.verb(binary, words).await;
        assert_eq!(done.code, Some(0), "{words:?}: {done:?}");
    };
    for words in verbs {
        verb(words).await;
    }
    // Each of the seven due messages is delivered in one group and moved to garbage in the other.
    lines(&mut audit, 6, SOON).await;
    let garbage = here.settled(&[("ready", 0), ("in_flight", 0), ("retry", 0), ("parked", 0)]);
    let garbage = Deployment::count(&garbage.await, "garbage");
    assert!(garbage >= 5, "{garbage} in garbage");
    doomed.stop().await;
    let garbage = ["garbage", "list", TOPIC, "--group", GROUP];
    let requeue = [
        "garbage", "requeue", TOPIC, "--group", GROUP, "--all", "--yes",
    ];
    for words in [
        &garbage[..],
        &requeue,
        &["pause", TOPIC, "--group", GROUP],
        &["resume", TOPIC, "--group", GROUP],
        &["pause", TOPIC],
        &["resume", TOPIC],
        &["doctor", TOPIC],
    ] {
        verb((Binary::Manager, words)).await;
    }
    let retire = ["groups", "drop", TOPIC, GROUP, "--yes"];
    verb((Binary::Manager, &retire)).await;
    let examined = format!("/v1/topics/{TOPIC}/doctor");
    for path in ["/v1/stats", examined.as_str()] {
        relay.api.get(path).await.expect(200);
    }
    let resume = format!("/v1/topics/{TOPIC}/resume");
    relay
        .api
        .call(Method::POST, &resume, &json!({}))
        .await
        .expect(200);
    audit.stop().await;
    here.conserved().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_password_taken_away_stops_a_role_and_given_back_heals_it() {
    let mut here = Deployment::on(
        Site::One(Box::new(
            Server::builder().cluster(false).role_users().start(),
        )),
        "",
    );
    let roles = [
        here.producer().await,
        here.manager().await,
        here.consumer(STDOUT).await,
    ];
    let names = ["lisa-producer", "lisa-manager", "lisa-consumer"];
    let mut admin = here.server().connection().await;
    let mut change = async |rule: &str| {
        for name in names {
            let mut set = cmd("ACL");
            set.arg("SETUSER").arg(name).arg(rule);
            let () = set.query_async(&mut admin).await.unwrap();
            let mut kill = cmd("CLIENT");
            kill.arg("KILL").arg("USER").arg(name);
            let _: u32 = kill.query_async(&mut admin).await.unwrap();
        }
    };
    let all_say = async |roles: &[Role], status: u16| {
        for role in roles {
            eventually(SOON, async || role.answers("/readyz", status).await).await;
        }
    };
    // A second one changes nothing for clients that have the first.
    change(">new").await;
    all_say(&roles, 200).await;
    change(&format!("<{}", User::named(names[0]).password())).await;
    all_say(&roles, 503).await;
    for role in &roles {
        role.api.get("/healthz").await.expect(200);
    }
    for name in names {
        let mut set = cmd("ACL");
        set.arg("SETUSER")
            .arg(name)
            .arg(format!(">{}", User::named(name).password()));
        let () = set
            .query_async(&mut here.server().connection().await)
            .await
            .unwrap();
    }
    let back = Instant::now();
    all_say(&roles, 200).await;
    println!("all ready {:?} after the password was back", back.elapsed());
    let [producer, _manager, mut consumer] = roles;
    producer.api.send(TOPIC, "x", &[]).await.expect(202);
    lines(&mut consumer, 1, SOON).await;
    for role in [producer, consumer] {
        let text = role.process.stderr();
        assert!(
            !text.contains("change-me"),
            "it tells the password:\n{text}"
        );
    }
}
