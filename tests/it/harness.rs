//! Tests of the harness itself: each fault does what a test will rely on.

use lisa_tests::snapshot::{Content, Text};
use lisa_tests::{
    Answer, Aof, Api, Binary, FaultProxy, Launch, Mode, SOON, Server, Snapshot, Webhook, eventually,
};
use redis::aio::MultiplexedConnection;
use redis::{AsyncCommands, AsyncConnectionConfig, Client, RedisResult, cmd};
use std::path::Path;
use std::time::Duration;

const SHORT: Duration = Duration::from_millis(250);

/// Connects with a response timeout of [`SHORT`], as a role would with its own.
async fn connect(url: &str) -> RedisResult<MultiplexedConnection> {
    let limits = AsyncConnectionConfig::new()
        .set_connection_timeout(Some(SHORT))
        .set_response_timeout(Some(SHORT));
    Client::open(url)?
        .get_multiplexed_async_connection_with_config(&limits)
        .await
}

/// Connects without a response timeout.
async fn connect_unlimited(url: &str) -> MultiplexedConnection {
    let limits = AsyncConnectionConfig::new().set_response_timeout(None);
    let client = Client::open(url).unwrap();
    let connected = client.get_multiplexed_async_connection_with_config(&limits);
    connected.await.unwrap()
}

async fn connect_patiently(url: &str) -> MultiplexedConnection {
    eventually(SOON, async || connect(url).await).await
}

#[tokio::test]
async fn a_server_answers_over_its_port_and_its_socket() {
    let server = Server::start();
    connect_patiently(&server.url())
        .await
        .set::<_, _, ()>("where", "here")
        .await
        .unwrap();
    let client = Client::open(server.socket_url()).unwrap();
    let mut over_socket = client.get_multiplexed_async_connection().await.unwrap();
    let seen: String = over_socket.get("where").await.unwrap();
    assert_eq!(seen, "here");
}

#[tokio::test]
async fn the_shared_server_is_one_server_and_lends_different_namespaces() {
    let (first, second) = (Server::shared(), Server::shared());
    assert_eq!(first.pid(), second.pid());
    assert_ne!(first.namespace("a"), second.namespace("a"));
}

#[tokio::test]
async fn a_server_with_an_append_only_file_keeps_its_data_over_kill_9() {
    let mut server = Server::builder().aof(Aof::Always).start();
    let port = server.port();
    let mut before = server.connection().await;
    before.set::<_, _, ()>("kept", 1).await.unwrap();
    server.kill9();
    assert_eq!(server.pid(), None);
    server.restart();
    assert_eq!(server.port(), port);
    let kept: i32 = server.connection().await.get("kept").await.unwrap();
    assert_eq!(kept, 1);
}

#[tokio::test]
async fn a_server_without_one_starts_again_empty() {
    let mut server = Server::start();
    server
        .connection()
        .await
        .set::<_, _, ()>("lost", 1)
        .await
        .unwrap();
    server.restart();
    let lost: Option<i32> = server.connection().await.get("lost").await.unwrap();
    assert_eq!(lost, None);
}

#[tokio::test]
async fn a_paused_server_answers_nothing_until_it_is_resumed() {
    let mut server = Server::start();
    let mut connection = connect_patiently(&server.url()).await;
    server.pause();
    let silent: RedisResult<()> = cmd("PING").query_async(&mut connection).await;
    assert!(silent.unwrap_err().is_timeout());
    server.resume();
    eventually(SOON, async || {
        cmd("PING").query_async::<String>(&mut connection).await
    })
    .await;
}

#[tokio::test]
async fn a_dropped_server_leaves_no_process_and_no_directory() {
    let server = Server::start();
    let (pid, dir) = (server.pid().unwrap(), server.dir().to_owned());
    drop(server);
    assert!(!dir.exists());
    assert!(!Path::new(&format!("/proc/{pid}")).exists());
}

#[tokio::test]
async fn a_password_and_an_acl_user_are_asked_for() {
    let server = Server::builder()
        .password("open-sesame")
        .acl("guest on >guest ~guest:* +get")
        .start();
    let port = server.port();
    let mut bare = connect_patiently(&format!("redis://127.0.0.1:{port}")).await;
    let refused: RedisResult<()> = cmd("GET").arg("x").query_async(&mut bare).await;
    assert_eq!(refused.unwrap_err().code(), Some("NOAUTH"));
    let mut owner = connect_patiently(&server.url()).await;
    owner.set::<_, _, ()>("x", 1).await.unwrap();
    let mut guest = connect_patiently(&format!("redis://guest:guest@127.0.0.1:{port}")).await;
    let refused: RedisResult<()> = guest.get("x").await;
    assert_eq!(refused.unwrap_err().code(), Some("NOPERM"));
}

#[tokio::test]
async fn a_full_server_refuses_writes() {
    let server = Server::builder().maxmemory("1").start();
    let refused: RedisResult<()> = server.connection().await.set("x", 1).await;
    assert_eq!(refused.unwrap_err().code(), Some("OOM"));
}

#[tokio::test]
async fn a_cluster_server_serves_all_slots_also_after_a_restart() {
    let mut server = Server::builder().cluster(true).aof(Aof::Always).start();
    for key in ["{a}:1", "{b}:1", "{c}:1"] {
        let mut connection = server.connection().await;
        connection.set::<_, _, ()>(key, 1).await.unwrap();
    }
    server.restart();
    let mut connection = server.connection().await;
    let across: RedisResult<()> = connection.mget(&["{a}:1", "{b}:1"]).await;
    assert_eq!(across.unwrap_err().code(), Some("CROSSSLOT"));
    let kept: i32 = connection.get("{c}:1").await.unwrap();
    assert_eq!(kept, 1);
}

#[tokio::test]
async fn a_snapshot_shows_every_type_of_its_namespace_and_nothing_else() {
    let server = Server::shared();
    let (namespace, other) = (server.namespace("snap"), server.namespace("snap"));
    let mut connection = server.connection().await;
    let key = |what: &str| format!("{namespace}:v1:{{t:0}}:{what}");
    let mut pipe = redis::pipe();
    pipe.hset(key("hash"), "field", b"\x00\xff".as_slice());
    pipe.zadd(key("zset"), "member", 1_700_000_000_123_i64);
    pipe.set(key("string"), "text").sadd(key("set"), "one");
    pipe.rpush(key("list"), "left");
    pipe.xadd(key("stream"), "1-1", &[("id", "m1")]);
    pipe.xadd(key("stream"), "1-2", &[("id", "m2")]);
    pipe.cmd("XGROUP")
        .arg(&["CREATE", &key("stream"), "g", "0"]);
    pipe.cmd("XREADGROUP").arg(&[
        "GROUP",
        "g",
        "c1",
        "COUNT",
        "1",
        "STREAMS",
        &key("stream"),
        ">",
    ]);
    pipe.set(format!("{other}:v1:{{t:0}}:string"), "not mine");
    pipe.query_async::<redis::Value>(&mut connection)
        .await
        .unwrap();

    let snapshot = Snapshot::take(&mut connection, &namespace).await.unwrap();
    assert_eq!(snapshot.iter().count(), 6, "{snapshot}");
    let hash = snapshot.hash("v1:{t:0}:hash");
    assert_eq!(hash["field".as_bytes()], Text(vec![0, 255]));
    let zset = snapshot.zset("v1:{t:0}:zset");
    assert_eq!(zset["member".as_bytes()], 1_700_000_000_123.0);
    assert_eq!(
        snapshot.get("v1:{t:0}:string"),
        Some(&Content::String("text".into()))
    );
    let stream = snapshot.stream("v1:{t:0}:stream");
    assert_eq!(stream.entries.len(), 2);
    let group = &stream.groups["g".as_bytes()];
    assert_eq!(group.last_delivered, "1-1");
    assert_eq!(group.pending["1-1"].consumer, "c1");
    assert_eq!(group.pending["1-1"].deliveries, 1);
    let printed = snapshot.to_string();
    assert!(
        printed.contains("group g holds 1-1 by c1, delivered 1"),
        "{printed}"
    );

    let _: i32 = connection.zrem(key("zset"), "member").await.unwrap();
    let later = Snapshot::take(&mut connection, &namespace).await.unwrap();
    assert_eq!(
        snapshot.diff(&later),
        "- v1:{t:0}:zset  member @ 1700000000123\n"
    );
}

#[tokio::test]
async fn a_black_hole_accepts_and_stays_silent_until_it_heals() {
    let server = Server::start();
    let proxy = FaultProxy::start(server.port()).await;
    let url = server.url_through(&proxy);
    let mut connection = connect_patiently(&url).await;
    proxy.set(Mode::BlackHole).await;
    let accepted = proxy.accepted();
    let silent: RedisResult<()> = cmd("PING").query_async(&mut connection).await;
    assert!(silent.unwrap_err().is_timeout());
    assert!(connect(&url).await.unwrap_err().is_timeout());
    assert!(proxy.accepted() > accepted);
    proxy.set(Mode::Pass).await;
    eventually(SOON, async || {
        cmd("PING").query_async::<String>(&mut connection).await
    })
    .await;
}

#[tokio::test]
async fn a_refusing_proxy_resets_and_lets_nobody_in() {
    let server = Server::start();
    let proxy = FaultProxy::start(server.port()).await;
    let url = server.url_through(&proxy);
    let mut connection = connect_patiently(&url).await;
    proxy.set(Mode::Refuse).await;
    let reset: RedisResult<()> = cmd("PING").query_async(&mut connection).await;
    assert!(reset.unwrap_err().is_connection_dropped());
    assert!(connect(&url).await.unwrap_err().is_connection_refusal());
    eventually(SOON, async || match proxy.open() {
        0 => Ok(()),
        open => Err(format!("{open} are open")),
    })
    .await;
    proxy.set(Mode::Pass).await;
    connect_patiently(&url).await;
}

#[tokio::test]
async fn a_cut_request_is_not_carried_out_and_a_cut_reply_is() {
    let server = Server::start();
    let proxy = FaultProxy::start(server.port()).await;
    let url = server.url_through(&proxy);
    for (mode, carried_out) in [
        (Mode::CutRequestsAfter(0), 0),
        (Mode::CutRequestsAfter(10), 0),
        (Mode::CutRepliesAfter(0), 1),
        (Mode::CutRepliesAfter(1), 2),
        (Mode::SwallowReplies, 3),
    ] {
        proxy.set(Mode::Pass).await;
        let mut connection = connect_patiently(&url).await;
        proxy.set(mode).await;
        let lost: RedisResult<()> = connection.incr("count", 1).await;
        assert!(lost.is_err(), "{mode:?}");
        let mut direct = server.connection().await;
        let count: Option<i32> = direct.get("count").await.unwrap();
        assert_eq!(count.unwrap_or(0), carried_out, "{mode:?}");
    }
}

#[tokio::test]
async fn a_connection_that_missed_a_reply_is_reset_when_replies_pass_again() {
    let server = Server::start();
    let proxy = FaultProxy::start(server.port()).await;
    let mut connection = connect_patiently(&server.url_through(&proxy)).await;
    proxy.set(Mode::SwallowReplies).await;
    let lost: RedisResult<()> = connection.set("x", 1).await;
    assert!(lost.unwrap_err().is_timeout());
    proxy.set(Mode::Pass).await;
    let reset: RedisResult<()> = connection.get("x").await;
    assert!(reset.is_err());
}

#[tokio::test]
async fn a_delayed_round_trip_takes_at_least_twice_the_delay() {
    let server = Server::start();
    let proxy = FaultProxy::start(server.port()).await;
    let mut connection = connect_patiently(&server.url_through(&proxy)).await;
    let pause = Duration::from_millis(20);
    proxy.set(Mode::Delay(pause)).await;
    let begun = std::time::Instant::now();
    let _: RedisResult<()> = cmd("PING").query_async(&mut connection).await;
    assert!(begun.elapsed() >= 2 * pause);
}

#[tokio::test]
async fn a_slow_network_carries_so_much_a_second_over_all_connections() {
    const RATE: u32 = 1024 * 1024;
    let server = Server::start();
    let proxy = FaultProxy::start(server.port()).await;
    let mut direct = server.connection().await;
    let part = vec![b'x'; RATE as usize / 4];
    direct.set::<_, _, ()>("part", part).await.unwrap();
    let (mut a, mut b) = (
        connect_unlimited(&server.url_through(&proxy)).await,
        connect_unlimited(&server.url_through(&proxy)).await,
    );
    proxy.set(Mode::Rate(RATE)).await;
    let begun = std::time::Instant::now();
    let (a, b): (RedisResult<Vec<u8>>, RedisResult<Vec<u8>>) =
        tokio::join!(a.get("part"), b.get("part"));
    assert_eq!(a.unwrap().len() + b.unwrap().len(), RATE as usize / 2);
    let took = begun.elapsed();
    assert!(took >= Duration::from_millis(450), "{took:?}");
}

#[tokio::test]
#[should_panic(expected = "2 of 3 are here")]
async fn eventually_says_what_it_saw_last() {
    eventually(SHORT, async || Err::<(), _>("2 of 3 are here")).await;
}

#[tokio::test]
async fn a_webhook_answers_in_order_and_remembers() {
    let hook = Webhook::start([
        Answer::status(503).header("Retry-After", "7").body("busy"),
        Answer::cut(),
    ])
    .await;
    let port = hook
        .url()
        .split([':', '/'])
        .nth(4)
        .unwrap()
        .parse()
        .unwrap();
    let api = Api::new(port).token("t0k3n");
    let busy = api.send("orders", "one", &[("Lisa-Delay", "30s")]).await;
    assert_eq!((busy.status, busy.header("retry-after")), (503, "7"));
    assert_eq!(busy.body, "busy");
    assert!(api.try_get("/cut").await.is_none());
    api.get("/ok").await.expect(200);
    let seen = hook.requests();
    assert_eq!(seen[0].path, "/v1/topics/orders/messages");
    assert_eq!(seen[0].header("lisa-delay"), "30s");
    assert_eq!(seen[0].header("authorization"), "Bearer t0k3n");
    assert_eq!(&seen[0].body[..], b"one");
    assert_eq!(hook.count(), 3);
}

/// Not a test itself: the process that the next test kills.
#[tokio::test]
#[ignore = "the process that the next test kills"]
async fn victim() {
    let server = Server::shared();
    println!("\n{} {}", server.pid().unwrap(), server.dir().display());
    std::future::pending().await
}

#[tokio::test]
async fn a_killed_test_process_leaves_no_server_and_no_directory() {
    let this = std::env::current_exe().unwrap();
    let mut victim = Launch::new(
        this,
        ["--exact", "harness::victim", "--ignored", "--nocapture"],
    )
    .start();
    let place = loop {
        let line = victim.next_line(SOON).await;
        if line.contains(" /") {
            break line;
        }
    };
    let (pid, dir) = place.split_once(' ').unwrap();
    let process = format!("/proc/{pid}");
    assert!(Path::new(&process).exists() && Path::new(dir).exists());
    victim.kill9();
    eventually(SOON, async || {
        let left = [&process, dir].map(|path| Path::new(path).exists());
        if left == [false, false] {
            Ok(())
        } else {
            Err(format!("{left:?} of {place}"))
        }
    })
    .await;
}

#[tokio::test]
async fn a_program_is_run_with_its_config_environment_and_input() {
    let script = r#"cat "$2"; echo "$GREETING $LISA_NAMESPACE"; cat; echo oops >&2; exit 65"#;
    let finished = Launch::new("/bin/sh", ["-c", script, "sh"])
        .config("namespace = \"x\"\n")
        .env("GREETING", "hello")
        .stdin("typed")
        .run(SOON)
        .await;
    assert_eq!(finished.code, Some(65));
    assert_eq!(finished.stdout, "namespace = \"x\"\nhello \ntyped\n");
    assert_eq!(finished.stderr, "oops\n");
}

#[tokio::test]
async fn a_process_takes_signals_and_its_lines_are_seen_one_by_one() {
    let script = "trap 'echo term; exit 3' TERM; echo up; while :; do read -r line; echo tick; sleep 0.01; done";
    let mut process = Launch::new("/bin/sh", ["-c", script]).start();
    assert_eq!(process.next_line(SOON).await, "up");
    assert_eq!(process.next_line(SOON).await, "tick");
    process.stop();
    let stat = format!("/proc/{}/stat", process.pid().unwrap());
    eventually(SOON, async || {
        let stat = std::fs::read_to_string(&stat).unwrap();
        if stat.contains(") T ") {
            Ok(())
        } else {
            Err(stat)
        }
    })
    .await;
    process.sigterm();
    process.cont();
    assert_eq!(process.wait_exit(SOON).await.code(), Some(3));
    assert_eq!(process.lines_to_end(SOON).await.last().unwrap(), "term");
    assert_eq!(process.pid(), None);
}

#[tokio::test]
async fn a_killed_process_has_no_exit_code() {
    let mut process = Launch::new("/bin/sleep", ["1000"]).start();
    process.kill9();
    assert_eq!(process.wait_exit(SOON).await.code(), None);
}

#[test]
fn the_programs_are_built() {
    for binary in [Binary::Producer, Binary::Manager, Binary::Consumer] {
        assert!(binary.path().is_file(), "{}", binary.path().display());
    }
}
