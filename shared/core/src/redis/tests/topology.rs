//! Clusters and sentinels, simulated by fakes: which node is asked, and what follows from its answer.

use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use redis::{Value, cmd};

use super::super::testing::{
    Answer, Fake, SOON, connection_with, is_down, quick_connection, say, status,
};
use super::super::{
    ConnectionErrorKind, ConnectionSettings, ConnectionStatus, Endpoint, RedisUrl, Script,
};
use crate::crc16::slot;

/// The slot map that all fakes of a test share, changed while they run.
type Board = Arc<Mutex<Vec<(u16, u16, u16)>>>;

fn port(fake: &Fake) -> u16 {
    match fake.url.endpoint() {
        Endpoint::Tcp { port, .. } => *port,
        other => panic!("a fake listens on TCP: {other:?}"),
    }
}

/// Returns the reply to `CLUSTER SLOTS` with the ranges of the board; the hosts are left to the asker.
fn slots(board: &Board) -> Option<Answer> {
    let rows = board.lock().unwrap();
    let mut reply = format!("*{}\r\n", rows.len());
    for (first, last, port) in &*rows {
        reply += &format!("*3\r\n:{first}\r\n:{last}\r\n*2\r\n$-1\r\n:{port}\r\n");
    }
    Some(Answer::Say(reply))
}

async fn node(
    board: &Board,
    answer: impl Fn(&[String]) -> Option<Answer> + Send + Sync + 'static,
) -> Fake {
    let board = board.clone();
    Fake::start(move |_, words| match words[0].as_str() {
        "CLUSTER" => slots(&board),
        _ => answer(words),
    })
    .await
}

fn cluster_url(fake: &Fake) -> RedisUrl {
    format!("redis+cluster://127.0.0.1:{}", port(fake))
        .parse()
        .unwrap()
}

#[tokio::test]
async fn each_request_goes_to_the_owner_of_its_slot() {
    let board = Board::default();
    let a = node(&board, |_| None).await;
    let b = node(&board, |_| None).await;
    *board.lock().unwrap() = vec![(0, 8191, port(&a)), (8192, 16_383, port(&b))];
    let connection = quick_connection(cluster_url(&a));
    connection.wait_up(SOON).await.unwrap();
    assert_eq!(connection.servers().len(), 2);
    let script = Script::new("s", "return 1");
    for key in ["{a}1", "{b}1", "{c}1", "{d}1", "{e}1"] {
        let owner = if slot(key.as_bytes()) < 8192 { &a } else { &b };
        let before = (owner.count_of("GET"), owner.count_of("EVALSHA"));
        connection
            .at(key)
            .call(cmd("GET").arg(key), SOON)
            .await
            .unwrap();
        connection
            .eval(&script.call(&[key]).arg("x"), SOON)
            .await
            .unwrap();
        let after = (owner.count_of("GET"), owner.count_of("EVALSHA"));
        assert_eq!(after, (before.0 + 1, before.1 + 1), "{key}");
    }
}

#[tokio::test]
async fn moved_is_followed_immediately_and_remembered() {
    let board = Board::default();
    let b = node(&board, |_| None).await;
    let to = port(&b);
    let a = node(&board, move |words| match words[0].as_str() {
        "GET" => say(&format!("-MOVED {} 127.0.0.1:{to}", slot(b"k"))),
        _ => None,
    })
    .await;
    *board.lock().unwrap() = vec![(0, 16_383, port(&a))];
    let connection = quick_connection(cluster_url(&a));
    connection.wait_up(SOON).await.unwrap();
    // From now on the nodes agree.
    let (here, number) = (port(&a), slot(b"k"));
    *board.lock().unwrap() = vec![
        (0, number - 1, here),
        (number, number, to),
        (number + 1, 16_383, here),
    ];
    for _ in 0..3 {
        let got = connection.at("k").call(cmd("GET").arg("k"), SOON).await;
        assert_eq!(got.unwrap(), Value::Okay);
    }
    assert_eq!((a.count_of("GET"), b.count_of("GET")), (1, 3));
}

#[tokio::test]
async fn ask_is_followed_once_with_asking_before_each_command() {
    let board = Board::default();
    let b = node(&board, |_| None).await;
    let to = port(&b);
    let a = node(&board, move |words| match words[0].as_str() {
        "GET" => say(&format!("-ASK {} 127.0.0.1:{to}", slot(b"k"))),
        _ => None,
    })
    .await;
    *board.lock().unwrap() = vec![(0, 16_382, port(&a)), (16_383, 16_383, to)];
    let connection = quick_connection(cluster_url(&a));
    connection.wait_up(SOON).await.unwrap();
    let get = || {
        let mut get = cmd("GET");
        get.arg("k");
        get
    };
    connection.at("k").call(&get(), SOON).await.unwrap();
    let mut two = redis::Pipeline::new();
    two.add_command(get()).add_command(get());
    let replies = connection.at("k").pipeline(&two, SOON).await.unwrap();
    assert_eq!(replies, [Value::Okay, Value::Okay]);
    assert_eq!((b.count_of("ASKING"), b.count_of("GET")), (3, 3));
    assert_eq!(a.count_of("GET"), 3, "the slot is still its former owner's");
}

#[tokio::test]
async fn the_successor_of_a_dead_node_is_found_while_a_request_waits() {
    let board = Board::default();
    let a = node(&board, |_| None).await;
    let b = node(&board, |_| None).await;
    *board.lock().unwrap() = vec![(0, 8191, port(&a)), (8192, 16_383, port(&b))];
    let connection = quick_connection(cluster_url(&a));
    connection.wait_up(SOON).await.unwrap();
    drop(b);
    status(&connection, is_down).await;
    let asking = connection.clone();
    let call =
        tokio::spawn(async move { asking.at("foo").call(cmd("GET").arg("foo"), SOON).await });
    assert!(slot(b"foo") >= 8192);
    tokio::time::sleep(Duration::from_millis(100)).await;
    *board.lock().unwrap() = vec![(0, 16_383, port(&a))];
    assert_eq!(call.await.unwrap().unwrap(), Value::Okay);
    status(&connection, |status| *status == ConnectionStatus::Up).await;
    assert_eq!(connection.servers().len(), 1);
}

#[tokio::test]
async fn a_cluster_that_lacks_slots_is_not_up_and_reports_it() {
    let board = Board::default();
    let a = node(&board, |_| None).await;
    *board.lock().unwrap() = vec![(0, 99, port(&a))];
    let connection = quick_connection(cluster_url(&a));
    let ConnectionStatus::Down { reason, fatal, .. } = status(&connection, is_down).await else {
        panic!("it is down");
    };
    assert!(reason.contains("100 of 16384") && !fatal, "{reason}");
    let error = connection
        .at("foo")
        .call(cmd("GET").arg("foo"), Duration::from_millis(300))
        .await
        .unwrap_err();
    assert_eq!(
        (error.kind, error.maybe_applied),
        (ConnectionErrorKind::Unavailable, false)
    );
}

#[tokio::test]
async fn a_server_that_is_no_cluster_is_refused_as_one() {
    let single = Fake::start(|_, words| match words[0].as_str() {
        "CLUSTER" => say("-ERR This instance has cluster support disabled"),
        _ => None,
    })
    .await;
    let connection = quick_connection(cluster_url(&single));
    let error = connection.wait_up(SOON).await.unwrap_err();
    assert!(
        error.is_fatal() && error.detail.contains("not a cluster node"),
        "{error}"
    );
}

/// Starts a server with a role: `master` or `slave`.
async fn server(role: &'static str) -> Fake {
    Fake::start(move |_, words| match words[0].as_str() {
        "ROLE" => say(&format!("*1\r\n${}\r\n{role}", role.len())),
        _ => None,
    })
    .await
}

/// Starts a sentinel that names the port in `named`, with the failover number `epoch`.
async fn sentinel(named: &Arc<AtomicU32>, epoch: u64) -> Fake {
    let named = named.clone();
    Fake::start(move |_, words| {
        if words[0] != "SENTINEL" {
            return None;
        }
        let bulk = |text: &str| format!("${}\r\n{text}\r\n", text.len());
        let reply = match words[1].as_str() {
            "MASTER" => format!("*2\r\n{}{}", bulk("config-epoch"), bulk(&epoch.to_string())),
            _ => {
                let port = named.load(Ordering::SeqCst).to_string();
                format!("*2\r\n{}{}", bulk("127.0.0.1"), bulk(&port))
            }
        };
        Some(Answer::Say(reply))
    })
    .await
}

fn sentinel_connection(sentinels: &[&Fake]) -> super::super::Connection {
    let nodes: Vec<String> = sentinels
        .iter()
        .map(|fake| format!("127.0.0.1:{}", port(fake)))
        .collect();
    let url = format!("redis+sentinel://{}/main", nodes.join(","));
    connection_with(ConnectionSettings::new(url.parse().unwrap()))
}

fn naming(fake: &Fake) -> Arc<AtomicU32> {
    Arc::new(AtomicU32::new(u32::from(port(fake))))
}

#[tokio::test]
async fn the_sentinel_of_the_newest_failover_is_believed() {
    let (old, new) = (server("master").await, server("master").await);
    let stale = sentinel(&naming(&old), 4).await;
    let fresh = sentinel(&naming(&new), 5).await;
    let connection = sentinel_connection(&[&stale, &fresh]);
    connection.wait_up(SOON).await.unwrap();
    connection
        .any()
        .call(cmd("GET").arg("k"), SOON)
        .await
        .unwrap();
    assert_eq!((old.count_of("GET"), new.count_of("GET")), (0, 1));
}

#[tokio::test]
async fn a_master_that_was_replaced_is_left_also_by_readers_though_it_still_answers() {
    let (old, new) = (server("master").await, server("master").await);
    let named = naming(&old);
    let sentinel = sentinel(&named, 1).await;
    let connection = sentinel_connection(&[&sentinel]);
    connection.wait_up(SOON).await.unwrap();
    let mut reader = connection.any().reader().await.unwrap();
    reader.call(cmd("GET").arg("k")).await.unwrap();
    named.store(u32::from(port(&new)), Ordering::SeqCst);
    status(&connection, is_down).await;
    connection.wait_up(SOON).await.unwrap();
    assert!(!reader.is_open());
    assert!(reader.call(cmd("GET").arg("k")).await.is_err());
    connection
        .any()
        .call(cmd("GET").arg("k"), SOON)
        .await
        .unwrap();
    assert_eq!((old.count_of("GET"), new.count_of("GET")), (1, 1));
}

#[tokio::test]
async fn a_replica_is_not_taken_for_the_master_that_a_sentinel_calls_it() {
    let replica = server("slave").await;
    let named = naming(&replica);
    let sentinel = sentinel(&named, 1).await;
    let connection = sentinel_connection(&[&sentinel]);
    let ConnectionStatus::Down { reason, .. } = status(&connection, is_down).await else {
        panic!("it is down");
    };
    assert!(reason.contains("not the master yet"), "{reason}");
    let master = server("master").await;
    named.store(u32::from(port(&master)), Ordering::SeqCst);
    connection
        .wait_up(SOON)
        .await
        .unwrap_or_else(|_| panic!("no way to the master"));
}

#[tokio::test]
async fn a_sentinel_that_knows_no_such_master_says_so() {
    let sentinel = Fake::start(|_, words| match words[0].as_str() {
        "SENTINEL" => say("*-1"),
        _ => None,
    })
    .await;
    let connection = sentinel_connection(&[&sentinel]);
    let ConnectionStatus::Down { reason, .. } = status(&connection, is_down).await else {
        panic!("it is down");
    };
    assert!(
        reason.contains("knows no master named \"main\""),
        "{reason}"
    );
}
