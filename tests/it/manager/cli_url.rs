//! The command line over `--url`: the same results as in its own process, and clear errors.

use super::operators::lisa_manager;
use super::served::Served;
use super::{SOON, config, put_in_garbage, send};
use lisa_core::broker::Broker;
use lisa_service::shutdown::Shutdown;
use lisa_tests::process::Finished;
use lisa_tests::relay::{message, ms};
use lisa_tests::{Answer, Binary, Launch, Server, Webhook, eventually, free_port};
use serde_json::{Value, json};
use std::time::Duration;
use tokio::task::JoinHandle;

/// Tokens with the texts "reader" (read) and "operator" (read and operate).
const TOKENS: &str = r#"[
    {"name": "r", "sha256": "3d0941964aa3ebdcb00ccef58b1bb399f9f898465e9886d5aec7f31090a0fb30", "scopes": ["read"]},
    {"name": "o", "sha256": "06e55b633481f7bb072957eabcf110c972e86691c3cfedabe088024bffe42f23", "scopes": ["read", "operate"]}
]"#;

/// A manager, and both ways to it.
struct Both {
    server: Server,
    url: String,
    broker: Broker,
    tokens: tempfile::TempDir,
    shutdown: Shutdown,
    run: JoinHandle<()>,
}

impl Both {
    async fn start(with_producer: bool) -> Self {
        let server = Server::start();
        let keys = [
            ("auth.tokens", TOKENS),
            ("topics.orders.groups", r#"["billing", "search"]"#),
            ("topics.keyed.key_index", "true"),
            ("manager.jobs.sweep", "* * * * * *"),
        ];
        let served = Served::with(&server, "cli", &keys, with_producer).await;
        let tokens = tempfile::tempdir().unwrap();
        for token in ["reader", "operator", "stranger"] {
            std::fs::write(tokens.path().join(token), format!("{token}\n")).unwrap();
        }
        Self {
            server,
            url: served.url,
            broker: served.broker,
            tokens,
            shutdown: served.shutdown,
            run: served.run,
        }
    }

    async fn end(self) {
        self.shutdown.begin();
        self.run.await.unwrap();
    }

    async fn over_redis(&self, verb: &[&str]) -> Finished {
        lisa_manager(&self.server, verb).run(SOON).await
    }

    /// Prepares a verb that has no access to Redis.
    fn launch(&self, token: &str, verb: &[&str]) -> Launch {
        Binary::Manager
            .with(verb.iter().copied())
            .env("LISA_URL", &self.url)
            .env("LISA_TOKEN_FILE", &self.token_file(token))
    }

    fn token_file(&self, token: &str) -> String {
        self.tokens.path().join(token).display().to_string()
    }

    async fn over_url(&self, verb: &[&str]) -> Finished {
        self.launch("operator", verb).run(SOON).await
    }

    /// Checks that a verb that changes nothing ends alike over both ways, as soon as nothing else changes in between.
    async fn assert_alike(&self, verb: &[&str]) {
        let formats = [&["--output", "json"][..], &[]];
        for format in formats {
            let verb = [verb, format].concat();
            eventually(SOON, async || {
                let (redis, url) = (self.over_redis(&verb).await, self.over_url(&verb).await);
                let (redis, url) = (timeless(redis), timeless(url));
                match redis == url {
                    true => Ok(()),
                    false => Err(format!(
                        "{verb:?}\nover Redis: {redis:#?}\nover HTTP: {url:#?}"
                    )),
                }
            })
            .await;
        }
    }
}

/// Removes ages, the times that depend on the time of the call, and hints about the local configuration.
fn timeless(mut ended: Finished) -> Finished {
    fn clear(value: &mut Value) {
        match value {
            Value::Array(values) => values.iter_mut().for_each(clear),
            Value::Object(fields) => {
                for (name, value) in fields {
                    match name.as_str() {
                        "from" | "to" | "read_at" | "as_of" => *value = Value::Null,
                        "idle_ms" | "overdue_ms" | "oldest_due_ms" => *value = Value::Null,
                        name if name.ends_with("age_ms") => {
                            *value = Value::Null;
                        }
                        _ => clear(value),
                    }
                }
            }
            Value::String(text) if text.contains(' ') => *text = without_times(text),
            _ => {}
        }
    }
    // Times, and ages such as "1m 2s ago", are words that begin with a digit. Ids here do not.
    fn without_times(text: &str) -> String {
        let words = text.split_whitespace();
        let words = words.map(|word| match word.trim_end_matches(',').parse::<u64>() {
            Err(_) if word.starts_with(|first: char| first.is_ascii_digit()) => "TIME",
            _ => word,
        });
        words.collect::<Vec<_>>().join(" ")
    }
    if ended.code == Some(0) {
        ended.stderr.clear();
    }
    if let Ok(mut json) = serde_json::from_str(&ended.stdout) {
        clear(&mut json);
        ended.stdout = json.to_string();
    } else {
        ended.stdout = without_times(&ended.stdout);
    }
    ended
}

#[tokio::test]
async fn a_verb_has_the_same_result_over_url() {
    for with_producer in [false, true] {
        let both = Both::start(with_producer).await;
        let orders = both.broker.topic(&"orders".parse().unwrap()).await.unwrap();
        for id in ["g1", "g2"] {
            put_in_garbage(&both.broker, &orders, id).await;
        }
        let mut keyed = message("m-1", ms(3_600_000));
        keyed.options.key = Some("k".parse().unwrap());
        keyed.options.priority = 3;
        let topic = both.broker.topic(&"keyed".parse().unwrap()).await.unwrap();
        send(&both.broker, &topic, keyed).await;
        let verbs: &[&[&str]] = if with_producer {
            // A producer has a route of its own for one message.
            &[
                &["messages", "show", "orders", "g1"],
                &["messages", "show", "keyed", "m-1", "--key", "k"],
                &["messages", "show", "orders", "nix"],
            ]
        } else {
            &[
                &["stats"],
                &["forecast", "keyed", "--for", "2h", "--step", "1h"],
                &["history", "orders", "--for", "9999h"],
                &["keys", "orders"],
                &["top", "--once"],
                &["check", "--topic", "nix"],
                &["messages", "list", "keyed", "--key", "k"],
                &["messages", "list", "orders", "--key", "k"],
                &["messages", "list", "orders", "--state", "retry"],
                &["messages", "show", "keyed", "nix"],
                &["messages", "show", "order", "nix"],
                &["explain", "keyed", "m-1"],
                &[
                    "garbage", "list", "orders", "--group", "billing", "--error", "no", "--newest",
                ],
                &["garbage", "stop", "nix"],
                &[
                    "garbage",
                    "purge",
                    "orders",
                    "--group",
                    "billing",
                    "--dry-run",
                    "--error",
                    "*",
                ],
                &["groups", "drain", "orders", "nix"],
                &["doctor", "order"],
                &["workers"],
                &["schedules"],
                &["pause", "nix"],
            ]
        };
        for verb in verbs {
            both.assert_alike(verb).await;
        }
        both.end().await;
    }
}

#[tokio::test]
async fn a_tail_prints_the_same_events_over_url() {
    let both = Both::start(false).await;
    let orders = both.broker.topic(&"orders".parse().unwrap()).await.unwrap();
    put_in_garbage(&both.broker, &orders, "g1").await;
    let verb = ["tail", "orders", "--since", "10m"];
    let redis = lisa_manager(&both.server, &verb).start();
    let url = both.launch("reader", &verb).start();
    let mut tails = [redis, url];
    // The kept failure: both have begun.
    let mut printed = [vec![], vec![]];
    for (tail, lines) in tails.iter_mut().zip(&mut printed) {
        lines.push(tail.next_line(SOON).await);
    }
    for id in ["m1", "m2"] {
        send(&both.broker, &orders, message(id, ms(0))).await;
    }
    for (tail, lines) in tails.iter_mut().zip(&mut printed) {
        // Of each message, in two groups.
        for _ in 0..4 {
            lines.push(tail.next_line(SOON).await);
        }
        lines[1..].sort();
    }
    let [redis, url] = printed;
    assert_eq!(redis, url);
    assert!(redis[0].contains(r#""event":"garbage""#), "{redis:?}");
    let unknown = both.over_url(&["tail", "ordres"]).await;
    assert_eq!(unknown.code, Some(1), "{unknown:?}");
    assert!(unknown.stderr.contains("did you mean"), "{unknown:?}");
    both.end().await;
}

#[tokio::test]
async fn an_operator_changes_everything_over_url() {
    let both = Both::start(false).await;
    let orders = both.broker.topic(&"orders".parse().unwrap()).await.unwrap();
    for id in ["g1", "g2", "g3"] {
        put_in_garbage(&both.broker, &orders, id).await;
    }
    let done = async |verb: &[&str]| -> Value {
        let verb = [verb, &["--output", "json"]].concat();
        let ended = both.over_url(&verb).await;
        assert_eq!(ended.code, Some(0), "{verb:?}: {ended:?}");
        serde_json::from_str(&ended.stdout).unwrap()
    };
    let paused = json!({ "topic": "orders", "paused": true, "changed": true });
    assert_eq!(done(&["pause", "orders"]).await, paused);
    let running = json!({ "topic": "orders", "paused": false, "changed": true });
    assert_eq!(done(&["resume", "orders"]).await, running);
    let search = done(&["pause", "orders", "--group", "search"]).await;
    assert_eq!(
        (&search["group"], &search["paused"]),
        (&json!("search"), &json!(true))
    );
    let billing = ["orders", "--group", "billing"];
    let requeued = done(&[&["garbage", "requeue"], &billing[..], &["g1"]].concat()).await;
    assert_eq!(requeued, json!({ "found": 1, "done": 1, "dry_run": false }));
    let job = ["--error", "no such", "--rate", "1000", "--yes"];
    let purged = done(&[&["garbage", "purge"], &billing[..], &job].concat()).await;
    assert_eq!(
        (&purged["state"], &purged["done"]),
        (&json!("done"), &json!(2))
    );
    let id = purged["id"].as_str().unwrap();
    assert_eq!(done(&["garbage", "stop", id]).await["state"], "done");
    let drained = done(&["groups", "drain", "orders", "search"]).await;
    assert_eq!(drained["retiring"], "drain");
    assert_eq!(
        done(&["groups", "keep", "orders", "search"]).await["retiring"],
        Value::Null
    );
    let dropped = done(&["groups", "drop", "orders", "search", "--yes"]).await;
    // The messages of search that were put in the backlog by the pause, and those of before.
    assert!(dropped["dropped"].is_u64(), "{dropped}");
    both.broker.refresh().await.unwrap();
    let orders = both.broker.topic(&"orders".parse().unwrap()).await.unwrap();
    assert_eq!(orders.groups().len(), 1);
    assert_eq!(
        done(&["doctor", "--repair", "--yes"]).await["healthy"],
        true
    );
    assert_eq!(done(&["jobs", "run", "clean"]).await["ok"], true);
    assert_eq!(done(&["jobs"]).await["jobs"].as_array().unwrap().len(), 5);
    let audit = done(&["audit", "--limit", "1"]).await;
    let (entry, expected) = (&audit["entries"][0], json!("run_job"));
    assert_eq!(
        (&entry["via"], &entry["who"], &entry["action"]),
        (&json!("http"), &json!("o"), &expected)
    );
    both.end().await;
}

#[tokio::test]
async fn what_is_refused_over_url_names_the_cause_and_the_remedy() {
    let both = Both::start(false).await;
    let (url, operator) = (both.url.as_str(), both.token_file("operator"));
    let refused = async |launch: Launch, code: i32, parts: &[&str]| {
        let ended = launch.run(SOON).await;
        assert_eq!(ended.code, Some(code), "{ended:?}");
        for part in parts {
            assert!(ended.stderr.contains(part), "{part}: {ended:?}");
        }
        assert!(ended.stdout.is_empty(), "{ended:?}");
    };
    let plain = |arguments: &[&str]| Binary::Manager.with(arguments.iter().copied());
    let unknown = [
        "401 Unauthorized",
        "does not know the token in",
        "stranger",
        "scope read",
    ];
    refused(both.launch("stranger", &["stats"]), 1, &unknown).await;
    let forbidden = ["403 Forbidden", "reader lacks the scope `operate`"];
    refused(both.launch("reader", &["pause", "orders"]), 1, &forbidden).await;
    let none = ["requires a token", "scope operate", "--token-file"];
    refused(plain(&["pause", "orders", "--url", url]), 1, &none).await;
    let nowhere = format!("http://127.0.0.1:{}", free_port());
    let unreachable = ["no manager answers at", "Connection refused"];
    refused(plain(&["--url", &nowhere, "stats"]), 69, &unreachable).await;
    // The kernel accepts the connection, and nobody reads it.
    let silent = std::net::TcpListener::bind("127.0.0.1:0").expect("a port");
    let silent_url = format!("http://{}", silent.local_addr().expect("an address"));
    let stats = ["--url", &silent_url, "stats", "--timeout", "200ms"];
    refused(plain(&stats), 69, &["did not respond within 200ms"]).await;
    let scheme = ["the scheme must be http or https"];
    refused(
        plain(&["stats", "--url", "redis://127.0.0.1:1"]),
        2,
        &scheme,
    )
    .await;
    let reshard = ["topics", "reshard", "orders", "--shards", "2"];
    refused(
        both.launch("operator", &reshard),
        2,
        &["topics reshard does not work through a manager"],
    )
    .await;
    let run = plain(&["run", "--url", url]);
    refused(run, 2, &["run does not work through a manager"]).await;
    let send = both.launch("operator", &["send", "orders", "x"]);
    refused(send, 2, &["does not work through a manager"]).await;
    let two = plain(&["--redis-url", "redis://127.0.0.1:1", "stats", "--url", url]);
    refused(two, 2, &["--url cannot be combined with --redis-url"]).await;
    let missing = ["cannot read the token in", "nix"];
    refused(
        plain(&["stats", "--url", url, "--token-file", "nix"]),
        78,
        &missing,
    )
    .await;
    let alone = plain(&["stats", "--token-file", &operator]);
    refused(alone, 2, &["--token-file requires --url"]).await;
    // An option that names a Redis counts more than the environment.
    let redis = both.launch(
        "operator",
        &["stats", "--redis-url", &both.server.socket_url()],
    );
    let ended = redis.run(Duration::from_secs(60)).await;
    assert_eq!(ended.code, Some(0), "{ended:?}");
    both.end().await;
}

#[tokio::test]
async fn a_manager_has_the_verbs_of_a_producer_under_any_name() {
    let server = Server::start();
    let config = config(&server, "cli", &[("topics.orders.shards", "1")]);
    let running = super::Running::start(&config).await;
    let sent = lisa_manager(
        &server,
        &["send", "orders", "x", "--id", "m1", "--delay", "1h"],
    );
    let sent = sent.run(SOON).await;
    assert_eq!(sent.code, Some(0), "{sent:?}");
    assert!(sent.stdout.starts_with("m1: waiting"), "{sent:?}");
    let cancelled = lisa_manager(&server, &["cancel", "orders", "m1"])
        .run(SOON)
        .await;
    assert_eq!(cancelled.stdout, "m1: cancelled\n", "{cancelled:?}");
    let ended = lisa_manager(&server, &["deliver-now", "orders", "m1"])
        .run(SOON)
        .await;
    assert_eq!(ended.code, Some(1), "{ended:?}");
    let nix = lisa_manager(&server, &["send", "order", "x"])
        .run(SOON)
        .await;
    assert!(nix.stderr.contains("did you mean \"orders\"?"), "{nix:?}");
    let directory = tempfile::tempdir().unwrap();
    let link = directory.path().join("lisa");
    std::os::unix::fs::symlink(Binary::Manager.path(), &link).unwrap();
    for (verb, usage) in [
        (&["--help"][..], "Usage: lisa [OPTIONS] <COMMAND>"),
        (
            &["cancel", "--help"],
            "Usage: lisa cancel [OPTIONS] <TOPIC>",
        ),
    ] {
        let help = Launch::new(&link, verb.iter().copied()).run(SOON).await;
        assert!(help.stdout.contains(usage), "{help:?}");
    }
    drop(running);
}

/// Runs a verb against a server that only claims to be a manager.
async fn against(answer: Answer, verb: &str) -> Finished {
    let server = Webhook::start([answer]).await;
    let url = server.url().replace("/hook", "");
    let launch = Binary::Manager.with(["--url", &url, verb]);
    launch.run(SOON).await
}

#[tokio::test]
async fn what_a_manager_answers_stays_on_its_line() {
    let forged = "no\nlisa-manager: done\u{1b}[2J";
    for problem in [
        json!({"code": "conflict", "detail": forged}),
        json!({"code": "invalid", "errors": [{"field": forged, "detail": forged}]}),
        json!({"code": "host_not_allowed", "detail": forged}),
    ] {
        let answer = Answer::status(409).body(problem.to_string());
        let done = against(answer, "stats").await;
        assert_eq!(done.stderr.lines().count(), 1, "{}", done.stderr);
        assert!(!done.stderr.contains('\u{1b}'), "{}", done.stderr);
        assert!(done.stderr.contains("no\\nlisa"), "{}", done.stderr);
    }
}

#[tokio::test]
async fn an_answer_of_too_many_values_is_not_parsed() {
    let many = format!("[{}0]", "0,".repeat(1_000_000));
    let done = against(Answer::status(200).body(many), "stats").await;
    assert_eq!(done.code, Some(1), "{done:?}");
    assert!(done.stderr.contains("more than 500000 values"), "{done:?}");
    let long = json!({"code": "conflict", "detail": "x".repeat(100_000)});
    let done = against(Answer::status(409).body(long.to_string()), "stats").await;
    assert!(done.stderr.contains("larger than 64 KiB"), "{done:?}");
}
