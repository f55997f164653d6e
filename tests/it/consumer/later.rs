//! Webhooks that are completed later at a gateway, with the real programs.

use super::gateways::{Site, post};
use super::*;
use axum::extract::State;
use axum::http::{HeaderMap, StatusCode};
use axum::response::{IntoResponse, Response};
use lisa_tests::Api;
use serde_json::json;
use std::collections::BTreeMap;

const COMPLETE_URL: &str = "https://gateway.example/lisa";

/// A request that the receiver got.
#[derive(Debug)]
struct Request {
    headers: HeaderMap,
    payload: String,
}

impl Request {
    fn header(&self, name: &str) -> &str {
        let value = self.headers.get(name).expect("the header");
        value.to_str().expect("text")
    }

    /// Returns its token, after a check of the other headers.
    fn token(&self) -> &str {
        let token = self.header("lisa-delivery");
        let url = format!("{COMPLETE_URL}/v1/deliveries/{token}");
        assert_eq!(self.header("lisa-complete-url"), url);
        token
    }

    fn fence(&self) -> u64 {
        self.header("lisa-fence").parse().expect("a number")
    }

    async fn settle(&self, api: &Api, verb: &str) -> u16 {
        let path = format!("/v1/deliveries/{}/{verb}", self.token());
        post(api, &path, json!({})).await.status
    }
}

/// A receiver of webhooks. A payload `later 30m` is completed later, `hang` is never answered, and others are acked.
struct Receiver {
    url: String,
    requests: mpsc::UnboundedReceiver<Request>,
}

impl Receiver {
    async fn start() -> Self {
        let (sender, requests) = mpsc::unbounded_channel();
        let app = axum::Router::new().fallback(receive).with_state(sender);
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await;
        let listener = listener.expect("a port");
        let url = format!("http://{}/hook", listener.local_addr().expect("an address"));
        tokio::spawn(axum::serve(listener, app).into_future());
        Self { url, requests }
    }

    async fn next(&mut self) -> Request {
        let next = tokio::time::timeout(SOON, self.requests.recv()).await;
        next.expect("a request in time").expect("a request")
    }

    async fn take(&mut self, count: usize) -> Vec<Request> {
        let mut all = Vec::with_capacity(count);
        while all.len() < count {
            all.push(self.next().await);
        }
        all
    }
}

async fn receive(
    State(requests): State<mpsc::UnboundedSender<Request>>,
    headers: HeaderMap,
    payload: String,
) -> Response {
    let _ = requests.send(Request {
        headers,
        payload: payload.clone(),
    });
    match payload.strip_prefix("later ") {
        Some(time) => (
            StatusCode::ACCEPTED,
            [("lisa-complete-later", time.to_owned())],
        )
            .into_response(),
        None if payload == "hang" => std::future::pending().await,
        None => StatusCode::OK.into_response(),
    }
}

/// Starts the programs, one of which posts deliveries to a receiver. `more` is added to its subscription.
async fn site(topic: &str, more: &str) -> (Site, Receiver, Process) {
    let receiver = Receiver::start().await;
    let mut site = Site::start(&format!("[topics.t]\n{topic}"), "").await;
    site.more = format!(
        "[[consumer.subscriptions]]\ntopic = \"t\"\ngroup = \"default\"\n{more}\n\
         sink = {{ type = \"http\", url = \"{}\", allow_private = true, complete_url = \"{COMPLETE_URL}/\"{} }}\n",
        receiver.url,
        if more.contains("concurrency = 1") {
            ", max_later = 5"
        } else {
            ""
        }
    );
    let (consumer, _) = site.gateway().await;
    (site, receiver, consumer)
}

/// Waits until this many deliveries have a lease of their own.
async fn leased(site: &Site, count: usize) {
    eventually(SOON, async || {
        let all: Vec<(String, String, u64, u64)> = site
            .redis(&[
                "XPENDING",
                "lisa:v1:{t:0}:ready:default",
                "default",
                "-",
                "+",
                "2000",
            ])
            .await;
        match all.iter().filter(|pending| pending.3 > 2).count() {
            leased if leased == count => Ok(()),
            _ => Err(format!("{all:?}")),
        }
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_webhook_is_completed_later_although_its_consumer_was_killed() {
    let (site, mut receiver, mut consumer) = site("", "").await;
    site.send("t", &[], "later 30m").await;
    let request = receiver.next().await;
    leased(&site, 1).await;
    consumer.kill9();
    assert_eq!(request.settle(site.api(0), "extend").await, 200);
    assert_eq!(request.settle(site.api(1), "ack").await, 200);
    assert_eq!(request.settle(site.api(0), "ack").await, 409);
    site.assert_drained("t").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn what_is_not_completed_in_time_is_one_attempt_and_its_fence_is_older() {
    let (site, mut receiver, _consumer) = site("retry = { base = \"1ms\" }", "").await;
    site.send("t", &[], "later 1s").await;
    let first = receiver.next().await;
    let second = receiver.next().await;
    assert_eq!(
        (first.header("lisa-attempt"), second.header("lisa-attempt")),
        ("1", "2")
    );
    assert_eq!(first.header("webhook-id"), second.header("webhook-id"));
    assert!(first.fence() < second.fence(), "{first:?} {second:?}");
    let tries: BTreeMap<String, String> = site
        .redis(&["HGETALL", "lisa:v1:{t:0}:attempts:default"])
        .await;
    let tries = &tries[second.header("webhook-id")];
    let error = "1 0 not settled before its lease ended\0";
    assert!(tries.starts_with(error), "{tries}");
    leased(&site, 1).await;
    assert_eq!(first.settle(site.api(0), "ack").await, 409);
    assert_eq!(second.settle(site.api(0), "ack").await, 200);
    site.assert_drained("t").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn deliveries_that_are_completed_later_hold_back_neither_others_nor_reclaim() {
    let (site, mut receiver, mut consumer) = site("lease = \"2s\"", "concurrency = 4").await;
    let later: Vec<_> = (0..1_000)
        .map(|_| json!({"payload_text": "later 1h"}))
        .collect();
    site.manager.batch("t", &later).await;
    let later = receiver.take(1_000).await;
    leased(&site, 1_000).await;
    site.send("t", &[], "quick").await;
    assert_eq!(receiver.next().await.payload, "quick");
    // A kill before the ack reaches Redis would deliver it again.
    eventually(SOON, async || {
        let left: usize = site.redis(&["XLEN", "lisa:v1:{t:0}:ready:default"]).await;
        match left {
            1_000 => Ok(()),
            _ => Err(format!("{left} on the stream")),
        }
    })
    .await;
    site.send("t", &[], "hang").await;
    assert_eq!(receiver.next().await.payload, "hang");
    consumer.kill9();
    let _other = site.gateway().await;
    assert_eq!(receiver.next().await.payload, "hang", "reclaimed");
    let mut acked = 0;
    for part in later.chunks(200) {
        let lines: Vec<_> = part
            .iter()
            .map(|request| json!({"token": request.token(), "ack": true}))
            .collect();
        let reply = post(site.api(0), "/v1/deliveries:settle", json!(lines)).await;
        acked += reply.expect(200).body.matches("acked").count();
    }
    assert_eq!(acked, 1_000, "none was delivered again");
}

#[tokio::test(flavor = "multi_thread")]
async fn beyond_max_later_deliveries_keep_their_place_until_others_end() {
    let (site, mut receiver, _consumer) = site("", "concurrency = 1").await;
    let later: Vec<_> = (0..20)
        .map(|_| json!({"payload_text": "later 1h"}))
        .collect();
    site.manager.batch("t", &later).await;
    // Five, and one that keeps the only place under the concurrency.
    let first = receiver.take(6).await;
    leased(&site, 6).await;
    for request in &first[..3] {
        assert_eq!(request.settle(site.api(0), "ack").await, 200);
    }
    receiver.take(3).await;
    leased(&site, 6).await;
    assert!(receiver.requests.is_empty(), "20 were ready");
}
