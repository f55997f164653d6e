//! The connection against real servers: restarts, passwords, blocking reads, subscriptions, checks.

use std::time::Duration;

use redis::{Value, cmd};
use tokio::time::timeout;

use super::super::preflight::{self, Level, Needs, Permission};
use super::super::testing::{SOON, Server, connection_with, is_down, quick_connection, status};
use super::super::{
    Connection, ConnectionError, ConnectionErrorKind, ConnectionSettings, ConnectionStatus, Script,
    StreamEntry,
};
use crate::secret::Secret;

const BLOCK: Duration = Duration::from_secs(10);

fn ok() -> Value {
    Value::Okay
}

#[tokio::test]
async fn requests_survive_a_killed_and_restarted_server() {
    let mut server = Server::start(&[]);
    let connection = quick_connection(server.url());
    assert_eq!(
        connection
            .any()
            .call(cmd("SET").arg("k").arg(1), SOON)
            .await
            .unwrap(),
        ok()
    );
    server.kill();
    status(&connection, is_down).await;
    let (cmd, asking) = (cmd("SET").arg("k").arg(2).clone(), connection.clone());
    let call = tokio::spawn(async move { asking.any().call(&cmd, SOON).await });
    server.restart();
    assert_eq!(call.await.unwrap().unwrap(), ok());
    assert!(connection.is_up());
}

#[tokio::test]
async fn a_stopped_server_shows_as_down_and_requests_finish_when_it_goes_on() {
    let server = Server::start(&[]);
    let connection = quick_connection(server.url());
    connection.wait_up(SOON).await.unwrap();
    server.signal("STOP");
    status(&connection, is_down).await;
    let error = connection
        .any()
        .call(&cmd("DBSIZE"), Duration::from_millis(50))
        .await
        .unwrap_err();
    assert_eq!(
        (error.kind, error.maybe_applied),
        (ConnectionErrorKind::Unavailable, false)
    );
    let asking = connection.clone();
    let call = tokio::spawn(async move { asking.any().call(&cmd("DBSIZE"), SOON).await });
    server.signal("CONT");
    assert_eq!(call.await.unwrap().unwrap(), Value::Int(0));
    assert!(connection.is_up());
}

#[tokio::test]
async fn a_wrong_password_is_fatal_and_heals_by_itself_once_it_is_right() {
    let server = Server::start(&[]);
    let admin = quick_connection(server.url());
    admin
        .any()
        .call(
            cmd("ACL")
                .arg("SETUSER")
                .arg("app")
                .arg(&["on", ">old", "~*", "+@all"]),
            SOON,
        )
        .await
        .unwrap();
    let connection = connection_with(ConnectionSettings {
        username: Some("app".to_owned()),
        password: Some(Secret::new("new")),
        ..ConnectionSettings::new(server.url())
    });
    let error = connection.wait_up(SOON).await.unwrap_err();
    assert_eq!(
        (error.kind, error.code.as_deref()),
        (ConnectionErrorKind::Denied, Some("WRONGPASS"))
    );
    assert!(error.is_fatal());
    let call = connection
        .any()
        .call(&cmd("DBSIZE"), SOON)
        .await
        .unwrap_err();
    assert_eq!(
        (call.kind, call.maybe_applied),
        (ConnectionErrorKind::Denied, false)
    );
    admin
        .any()
        .call(cmd("ACL").arg("SETUSER").arg("app").arg(">new"), SOON)
        .await
        .unwrap();
    status(&connection, |status| *status == ConnectionStatus::Up).await;
    assert_eq!(
        connection.any().call(&cmd("DBSIZE"), SOON).await.unwrap(),
        Value::Int(0)
    );
}

#[tokio::test]
async fn a_missing_password_a_missing_permission_and_a_missing_database_are_fatal() {
    let server = Server::start(&["--requirepass", "secret"]);
    let ConnectionStatus::Down { code, fatal, .. } =
        status(&quick_connection(server.url()), is_down).await
    else {
        unreachable!()
    };
    assert_eq!((code.as_deref(), fatal), (Some("NOAUTH"), true));
    let path = server.url().to_string().replace("?db=0", "");
    let admin = quick_connection(format!("{path}?pass=secret").parse().unwrap());
    admin
        .any()
        .call(
            cmd("ACL")
                .arg("SETUSER")
                .arg("app")
                .arg(&["on", ">x", "~*", "+get"]),
            SOON,
        )
        .await
        .unwrap();
    let limited = quick_connection(format!("{path}?user=app&pass=x").parse().unwrap());
    assert_eq!(
        limited.wait_up(SOON).await.unwrap_err().code.as_deref(),
        Some("NOPERM")
    );
    let nowhere = quick_connection(format!("{path}?pass=secret&db=77").parse().unwrap());
    assert_eq!(
        nowhere.wait_up(SOON).await.unwrap_err().kind,
        ConnectionErrorKind::Invalid
    );
}

#[tokio::test]
async fn a_script_survives_a_script_flush_and_gets_its_bytes_unchanged() {
    let server = Server::start(&[]);
    let connection = quick_connection(server.url());
    let script = Script::new("echo", "return {KEYS[1], ARGV[1], #ARGV}");
    let key = b"k\r\n\0\xff".to_vec();
    for _ in 0..2 {
        let reply = connection
            .eval(&script.call(&[&key]).arg(b"").arg(b"\xfe"), SOON)
            .await
            .unwrap();
        let expected = [
            Value::BulkString(key.clone()),
            Value::BulkString(Vec::new()),
            Value::Int(2),
        ];
        assert_eq!(reply, Value::Array(expected.to_vec()));
        connection
            .any()
            .call(cmd("SCRIPT").arg("FLUSH"), SOON)
            .await
            .unwrap();
    }
    let broken = Script::new("broken", "this is not Lua");
    let none: [&str; 0] = [];
    let error = connection
        .eval(&broken.call(&none), SOON)
        .await
        .unwrap_err();
    assert_eq!(
        (error.kind, error.what.as_str()),
        (ConnectionErrorKind::Script, "broken")
    );
}

#[tokio::test]
async fn a_script_that_failed_after_a_write_is_reported_as_maybe_applied() {
    let server = Server::start(&[]);
    let connection = quick_connection(server.url());
    let script = Script::new(
        "half",
        "redis.call('SET', KEYS[1], 1) return redis.call('HGET', KEYS[1], 'f')",
    );
    let error = connection
        .eval(&script.call(&["k"]), SOON)
        .await
        .unwrap_err();
    assert_eq!(
        (error.kind, error.maybe_applied),
        (ConnectionErrorKind::WrongType, true),
        "{error}"
    );
}

async fn group(connection: &Connection) {
    connection
        .any()
        .call(
            cmd("XGROUP").arg(&["CREATE", "s", "g", "0", "MKSTREAM"]),
            SOON,
        )
        .await
        .unwrap();
}

fn read_one() -> redis::Cmd {
    cmd("XREADGROUP")
        .arg(&[
            "GROUP", "g", "c", "COUNT", "1", "BLOCK", "10000", "STREAMS", "s", ">",
        ])
        .clone()
}

async fn blocked(connection: &Connection, count: &str) {
    let wanted = format!("blocked_clients:{count}\r\n");
    let asked = timeout(SOON, async {
        loop {
            if let Value::BulkString(info) = connection
                .any()
                .call(cmd("INFO").arg("clients"), SOON)
                .await
                .unwrap()
                && String::from_utf8_lossy(&info).contains(&wanted)
            {
                return;
            }
            tokio::task::yield_now().await;
        }
    });
    asked
        .await
        .expect("the number of blocked clients is reached");
}

#[tokio::test]
async fn a_dropped_blocking_read_leaves_nothing_pending_and_its_reader_closed() {
    let server = Server::start(&[]);
    let connection = quick_connection(server.url());
    group(&connection).await;
    let mut reader = connection.any().reader().await.unwrap();
    let read = read_one();
    tokio::select! {
        _ = reader.read(&read, BLOCK) => panic!("nothing is there to read"),
        () = blocked(&connection, "1") => {}
    }
    blocked(&connection, "0").await;
    connection
        .any()
        .call(cmd("XADD").arg(&["s", "*", "f", "v"]), SOON)
        .await
        .unwrap();
    let pending = connection
        .any()
        .call(cmd("XPENDING").arg(&["s", "g"]), SOON)
        .await
        .unwrap();
    assert!(
        matches!(pending, Value::Array(ref summary) if summary[0] == Value::Int(0)),
        "{pending:?}"
    );
    assert!(!reader.is_open());
    assert_eq!(
        reader.call(&cmd("PING")).await.unwrap_err().kind,
        ConnectionErrorKind::Unavailable
    );
}

#[tokio::test]
async fn a_reader_outwaits_the_response_timeout_and_serves_follow_ups() {
    let server = Server::start(&[]);
    let connection = quick_connection(server.url());
    group(&connection).await;
    let mut reader = connection.any().reader().await.unwrap();
    let (adder, read) = (connection.clone(), read_one());
    let add = async {
        blocked(&adder, "1").await;
        // Another reader passes the time: longer than the response timeout of this connection (300 ms).
        let wait = cmd("BLPOP").arg("nothing").arg("0.4").clone();
        let mut other = adder.any().reader().await.unwrap();
        assert_eq!(other.read(&wait, BLOCK).await.unwrap(), Value::Nil);
        adder
            .any()
            .call(cmd("XADD").arg(&["s", "*", "f", "v"]), SOON)
            .await
            .unwrap();
    };
    let (got, ()) = tokio::join!(reader.read(&read, BLOCK), add);
    assert!(matches!(got.unwrap(), Value::Array(streams) if streams.len() == 1));
    assert_eq!(reader.call(&cmd("DBSIZE")).await.unwrap(), Value::Int(1));
}

#[tokio::test]
async fn a_reader_of_a_vanished_stream_reports_the_lost_group_and_closes() {
    let server = Server::start(&[]);
    let connection = quick_connection(server.url());
    group(&connection).await;
    let mut reader = connection.any().reader().await.unwrap();
    let read = read_one();
    let vanish = async {
        blocked(&connection, "1").await;
        connection
            .any()
            .call(cmd("DEL").arg("s"), SOON)
            .await
            .unwrap();
    };
    let (got, ()) = tokio::join!(reader.read(&read, BLOCK), vanish);
    assert_eq!(got.unwrap_err().kind, ConnectionErrorKind::NoGroup);
    assert!(!reader.is_open());
    let error = connection
        .any()
        .reader()
        .await
        .unwrap()
        .read(&read, BLOCK)
        .await
        .unwrap_err();
    assert_eq!(
        (error.kind, error.code.as_deref()),
        (ConnectionErrorKind::NoGroup, Some("NOGROUP"))
    );
}

async fn wakes_arrive_again_after_a_restart(args: &[&str]) {
    let mut server = Server::start(args);
    let connection = quick_connection(server.url());
    if !args.is_empty() {
        connection
            .any()
            .call(cmd("CLUSTER").arg(&["ADDSLOTSRANGE", "0", "16383"]), SOON)
            .await
            .unwrap();
    }
    let mut subscriber = connection.subscriber();
    subscriber.ssubscribe("{a:0}:wake");
    subscriber.ssubscribe("{b:1}:wake");
    for round in 0..2 {
        timeout(SOON, subscriber.subscribed()).await.unwrap();
        for channel in ["{a:0}:wake", "{b:1}:wake"] {
            // Any number of missed wakes counts as one.
            let missed = timeout(SOON, subscriber.next()).await.unwrap();
            assert_eq!(missed.as_deref(), Some(channel), "round {round}");
        }
        for channel in ["{a:0}:wake", "{b:1}:wake"] {
            let heard = connection
                .any()
                .call(cmd("SPUBLISH").arg(channel).arg("now"), SOON)
                .await
                .unwrap();
            assert_eq!(heard, Value::Int(1), "round {round}");
            assert_eq!(
                timeout(SOON, subscriber.next()).await.unwrap().as_deref(),
                Some(channel)
            );
        }
        if round == 0 {
            server.kill();
            timeout(
                SOON,
                subscriber
                    .confirmed
                    .wait_for(|confirmed| confirmed.is_empty()),
            )
            .await
            .unwrap()
            .unwrap();
            server.restart();
        }
    }
}

#[tokio::test]
async fn a_subscriber_survives_a_restart() {
    wakes_arrive_again_after_a_restart(&[]).await;
}

#[tokio::test]
async fn a_subscriber_survives_a_restart_of_a_cluster_node() {
    wakes_arrive_again_after_a_restart(&["--cluster-enabled", "yes"]).await;
}

#[tokio::test]
async fn entries_are_appended_together_and_one_that_fails_affects_no_other() {
    let server = Server::start(&[]);
    let connection = quick_connection(server.url());
    let set = cmd("SET").arg("text").arg(1).take();
    connection.any().call(&set, SOON).await.unwrap();
    let large = vec![b'x'; 200_000];
    let payloads = [&large[..], b"a", &large, b"b", &large];
    let streams = ["s", "text", "s", "s", "s"];
    let entries = streams
        .iter()
        .zip(payloads)
        .enumerate()
        .map(|(n, (stream, payload))| {
            let fields = [("payload", payload)];
            (StreamEntry::new((*stream).to_owned(), None, fields), n)
        });
    let done = std::cell::RefCell::new(Vec::new());
    let note = |n: usize, result: Result<(), ConnectionError>| {
        done.borrow_mut()
            .push((n, result.map_err(|error| error.kind)));
    };
    connection.append(entries.collect(), SOON, note).await;
    let mut done = done.into_inner();
    done.sort_by_key(|(n, _)| *n);
    let expected: Vec<_> = (0..5)
        .map(|n| match n {
            1 => (1, Err(ConnectionErrorKind::WrongType)),
            n => (n, Ok(())),
        })
        .collect();
    assert_eq!(done, expected);
    let length = connection.any().call(cmd("XLEN").arg("s"), SOON).await;
    assert_eq!(length.unwrap(), Value::Int(4));
}

/// A command without arguments.
fn bare(command: &str) -> Permission {
    Permission {
        command: command.to_owned(),
        args: Vec::new(),
    }
}

#[tokio::test]
async fn a_good_server_gives_no_reason_to_refuse() {
    let server = Server::start(&["--appendonly", "yes", "--stream-node-max-entries", "20"]);
    let connection = quick_connection(server.url());
    connection.wait_up(SOON).await.unwrap();
    let needs = Needs {
        commands: vec!["xautoclaim".to_owned(), "xgroup|create".to_owned()],
        permissions: vec![Permission {
            command: "xadd".to_owned(),
            args: vec!["s".into(), "*".into(), "f".into(), "v".into()],
        }],
        niceties: vec![(bare("role"), "x")],
        append_only: true,
        allow_eviction: false,
    };
    assert_eq!(
        preflight::check(&connection, &needs, SOON).await.unwrap(),
        []
    );
    let skew = connection.clock().skew().unwrap();
    assert!(
        skew.abs() < jiff::SignedDuration::from_millis(500),
        "{skew:?}"
    );
}

#[tokio::test]
async fn a_server_that_will_soon_refuse_connections_is_found() {
    let server = Server::start(&["--appendonly", "yes", "--maxclients", "10"]);
    let mut connections = Vec::new();
    let mut found = Vec::new();
    for _ in 0..9 {
        let connection = quick_connection(server.url());
        connection.wait_up(SOON).await.unwrap();
        let needs = Needs::default();
        let checked = preflight::check_settings(&connection, &needs, SOON).await;
        found.push(checked.unwrap().pop().map(|finding| finding.what));
        connections.push(connection);
    }
    let expected = "more than 80 % of maxclients (10) are in use";
    assert_eq!(found[4], None);
    assert_eq!(found[8].as_deref(), Some(expected));
}

#[tokio::test]
async fn all_problems_of_a_server_are_found_in_one_check() {
    let server = Server::start(&["--maxmemory-policy", "allkeys-lru"]);
    let admin = quick_connection(server.url());
    let rules = [
        "on", "nopass", "~lisa:*", "+@all", "-xadd", "-config", "-role",
    ];
    admin
        .any()
        .call(cmd("ACL").arg("SETUSER").arg("app").arg(&rules), SOON)
        .await
        .unwrap();
    let path = server.url().to_string().replace("?db=0", "");
    let connection = quick_connection(format!("{path}?user=app&pass=x").parse().unwrap());
    let permission = |command: &str, key: &str| Permission {
        command: command.into(),
        args: vec![key.into(), "m".into()],
    };
    let needs = Needs {
        commands: vec!["get".to_owned(), "nosuch".to_owned()],
        permissions: vec![
            permission("zscore", "lisa:x"),
            permission("zscore", "other"),
            permission("xadd", "lisa:x"),
            // Reported once, as a missing command.
            permission("NoSuch", "lisa:x"),
        ],
        niceties: vec![(bare("role"), "it finds masters")],
        append_only: false,
        allow_eviction: true,
    };
    let found = preflight::check(&connection, &needs, SOON).await.unwrap();
    let seen: Vec<(Level, bool)> = [
        "nosuch",
        "allkeys-lru",
        "append-only",
        "zscore other",
        "xadd lisa:x",
        "may not run role: ",
    ]
    .iter()
    .map(|part| {
        found
            .iter()
            .find(|finding| finding.what.contains(part))
            .map(|finding| finding.level)
    })
    .map(|level| (level.unwrap_or(Level::Note), level.is_some()))
    .collect();
    assert_eq!(
        seen,
        [
            (Level::Refuse, true),
            (Level::Warn, true),
            (Level::Warn, true),
            (Level::Refuse, true),
            (Level::Refuse, true),
            (Level::Warn, true),
        ],
        "{found:#?}"
    );
    assert_eq!(found.len(), 6, "{found:#?}");
    assert!(
        found
            .iter()
            .any(|found| found.advice.ends_with("it finds masters"))
    );
}

#[tokio::test]
async fn a_default_user_that_could_not_load_what_scripts_wrote_is_refused() {
    let server = Server::start(&["--appendonly", "yes"]);
    let connection = quick_connection(server.url());
    let rules = ["on", "nopass", "~*", "&*", "+@all"];
    let set = async |user: &str, rules: &[&str], connection: &super::super::Connection| {
        let mut acl = cmd("ACL");
        acl.arg("SETUSER").arg(user).arg(rules);
        connection.any().call(&acl, SOON).await.unwrap();
    };
    set("app", &rules, &connection).await;
    let path = server.url().to_string().replace("?db=0", "");
    let app = quick_connection(format!("{path}?user=app&pass=x").parse().unwrap());
    let needs = Needs {
        permissions: vec![Permission {
            command: "hset".into(),
            args: ["lisa:v1:{t:0}:conf", "f", "v"].map(String::from).into(),
        }],
        append_only: true,
        ..Needs::default()
    };
    let refused = async || {
        let found = preflight::check(&app, &needs, SOON).await.unwrap();
        let refused = found.into_iter().find(|found| found.level == Level::Refuse);
        refused.map(|found| found.what)
    };
    assert_eq!(refused().await, None);
    set("default", &["off", "-@all"], &app).await;
    let what = refused().await.expect("a reason to refuse");
    assert!(what.contains("default user may not write"), "{what}");
    set("default", &["off", "~*", "&*", "+@all"], &app).await;
    assert_eq!(refused().await, None);
}
