//! The route of the events of a topic: what it returns, its bounds, and its end.

use super::served::Served;
use super::{SOON, put_in_garbage, send, wait_for};
use futures_util::future::join_all;
use lisa_core::state::State;
use lisa_tests::relay::{message, ms};
use lisa_tests::{Server, eventually};
use serde_json::Value;

const PATH: &str = "/v1/topics/orders/events";

async fn start(server: &Server) -> Served {
    Served::start(
        server,
        "events",
        &[("topics.orders.groups", r#"["billing"]"#)],
    )
    .await
}

impl Served {
    /// Returns the events that follow a cursor, and the next cursor.
    async fn after(&self, cursor: &str, more: &str) -> (Vec<Value>, String) {
        let path = format!("{PATH}?cursor={cursor}{more}");
        let page = self.api.get_json(&path).await;
        let next = page["next"].as_str().unwrap().to_owned();
        (page["events"].as_array().unwrap().clone(), next)
    }

    async fn first(&self, query: &str) -> String {
        let page = self.api.get_json(&format!("{PATH}{query}")).await;
        assert_eq!(page["events"].as_array().unwrap().len(), 0, "{page}");
        page["next"].as_str().unwrap().to_owned()
    }
}

fn kinds(events: &[Value]) -> Vec<&str> {
    events
        .iter()
        .map(|event| event["event"].as_str().unwrap())
        .collect()
}

#[tokio::test]
async fn events_follow_a_cursor_without_payloads_and_what_was_missed_is_counted() {
    let server = Server::start();
    let manager = start(&server).await;
    let topic = manager
        .broker
        .topic(&"orders".parse().unwrap())
        .await
        .unwrap();
    let cursor = manager.first("").await;
    assert_eq!(manager.after(&cursor, "").await, (vec![], cursor.clone()));

    // Settled before it was seen ready.
    put_in_garbage(&manager.broker, &topic, "bad").await;
    let (events, next) = manager.after(&cursor, "").await;
    assert_eq!(kinds(&events), ["missed", "garbage"], "{events:?}");
    assert_eq!(
        (&events[0]["group"], &events[0]["count"]),
        (&"billing".into(), &1.into())
    );
    assert_eq!(
        (&events[1]["id"], &events[1]["outcome"]),
        (&"bad".into(), &"rejected".into())
    );
    // The same cursor has the same events, so that a client may repeat a request.
    assert_eq!(manager.after(&cursor, "").await, (events, next.clone()));
    let (failures, _) = manager.after(&cursor, "&failures=true&group=billing").await;
    assert_eq!(kinds(&failures), ["garbage"], "{failures:?}");

    let mut secret = message("good", ms(0));
    secret.record.payload = "secret".into();
    let waiting = manager.after(&next, "&wait=20s");
    let ready = async {
        send(&manager.broker, &topic, secret).await;
        wait_for(&manager.broker, &topic, State::Ready, 1, SOON).await;
    };
    let ((events, next), ()) = tokio::join!(waiting, ready);
    assert_eq!(
        (kinds(&events), &events[0]["id"]),
        (vec!["ready"], &"good".into())
    );
    assert!(!format!("{events:?}").contains("secret"), "{events:?}");
    assert_eq!(manager.after(&next, "").await.0, [] as [Value; 0]);

    // From a time on, with the failures that are kept.
    for time in ["2026-01-01T00:00:00Z", "24h"] {
        let since = manager.first(&format!("?since={time}&failures=true")).await;
        let (kept, _) = manager.after(&since, "&failures=true").await;
        assert_eq!(
            (kinds(&kept), &kept[0]["id"]),
            (vec!["garbage"], &"bad".into())
        );
    }
    let later = manager.first("?since=2999-01-01T00:00:00Z").await;
    assert_eq!(manager.after(&later, "").await.0, [] as [Value; 0]);

    for (query, field) in [
        ("wait=21s", "wait"),
        ("wait=5", "wait"),
        ("cursor=x", "cursor"),
        ("since=yesterday", "since"),
        ("before=x", "before"),
    ] {
        let problem = manager
            .api
            .get(&format!("{PATH}?{query}"))
            .await
            .expect(422)
            .json();
        assert_eq!(problem["errors"][0]["field"], field, "{problem}");
    }
    manager
        .api
        .get(&format!("{PATH}?group=nobody"))
        .await
        .expect(404);
    manager
        .api
        .get("/v1/topics/nothing/events")
        .await
        .expect(404);
    manager.end().await;
}

#[tokio::test]
async fn a_client_has_four_requests_that_wait_for_events_until_the_shutdown() {
    let server = Server::start();
    let manager = start(&server).await;
    let cursor = manager.first("").await;
    let path = format!("{PATH}?cursor={cursor}&wait=20s");
    let waiting = join_all((0..4).map(|_| manager.api.get(&path)));
    let rest = async {
        let refused = eventually(SOON, async || {
            let reply = manager.api.get(PATH).await;
            match reply.status {
                503 => Ok(reply.json()),
                status => Err(status),
            }
        })
        .await;
        assert_eq!(refused["code"], "unavailable", "{refused}");
        manager.shutdown.begin();
    };
    let (ended, ()) = tokio::join!(waiting, rest);
    for reply in ended {
        assert_eq!(reply.expect(200).json()["events"], Value::Array(vec![]));
    }
    manager.run.await.unwrap();
}

#[tokio::test]
async fn a_topic_of_too_many_streams_is_refused_before_they_are_read() {
    let server = Server::start();
    let keys = [("topics.wide.shards", "300")];
    let manager = Served::start(&server, "wide", &keys).await;
    let path = "/v1/topics/wide/events?failures=true";
    let problem = manager.api.get(path).await.expect(422).json();
    assert_eq!(problem["errors"][0]["field"], "group", "{problem}");
    assert_eq!(server.calls("xinfo|stream").await, 0);
    manager.end().await;
}
