//! Pulls over HTTP, from the real programs: a manager with a producer, and two gateways.

use super::gateways::{Site, TWO_CLIENTS, post, pull, pull_one, route, waiting};
use super::*;
use lisa_tests::Api;
use reqwest::Method;
use serde_json::{Value, json};
use std::collections::BTreeMap;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

#[tokio::test(flavor = "multi_thread")]
async fn any_gateway_settles_what_another_handed_out() {
    let site = Site::start("[topics.t]\nretry = { base = \"1ms\" }", "").await;
    let (here, there) = (site.api(0), site.api(1));
    site.send("t", &[("Lisa-Header-color", "red")], "one").await;
    let one = pull_one(here, "t", "60s").await;
    assert_eq!(
        (&one["payload"], &one["attempt"]),
        (&json!("one"), &json!(1))
    );
    assert_eq!(
        (&one["headers"]["color"], &one["max_attempts"]),
        (&json!("red"), &json!(16))
    );
    let failed = json!({"after": "0s", "error": "no\nluck"});
    let retried = post(there, &route(&one, "retry"), failed).await.expect(200);
    assert_eq!(retried.json()["outcome"], "retry");
    let again = pull_one(there, "t", "60s").await;
    assert_eq!((&again["id"], &again["attempt"]), (&one["id"], &json!(2)));
    // The first delivery is over, whatever its holder says.
    for verb in ["ack", "retry", "reject", "extend"] {
        let stale = post(here, &route(&one, verb), json!({})).await.expect(409);
        assert_eq!(stale.json()["code"], "stale");
    }
    let deferred = post(here, &route(&again, "defer"), json!({"after": "0s"})).await;
    assert_eq!(deferred.expect(200).json()["outcome"], "deferred");
    let third = pull_one(here, "t", "60s").await;
    assert_eq!(third["attempt"], 2, "a deferral is not counted");
    for bad in [
        json!({}),
        json!({"after": "1s", "until": "2026-11-21T09:30:00Z"}),
    ] {
        post(here, &route(&third, "defer"), bad).await.expect(422);
    }
    post(here, &route(&third, "reject"), json!({"error": "broken"}))
        .await
        .expect(200);
    let garbage = "/v1/topics/t/messages?state=garbage&group=default";
    let garbage = site.manager.get_json(garbage).await;
    assert_eq!(garbage["messages"][0]["error"], "broken", "{garbage}");
    site.send("t", &[], "two").await;
    let two = pull_one(there, "t", "60s").await;
    post(here, &route(&two, "ack"), json!({})).await.expect(200);
    assert_eq!(site.stats("t").await["conservation_error"], 0);
    let tokens = [&one, &again, &third, &two].map(|delivery| delivery["token"].as_str().unwrap());
    for (process, _) in &site.gateways {
        let log = process.stderr();
        assert!(
            !tokens.iter().any(|token| log.contains(token)),
            "a token in the log"
        );
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_batch_is_an_array_or_lines_and_has_a_result_for_each() {
    let site = Site::start("[topics.t]", "").await;
    for n in 0..6 {
        site.send("t", &[], &n.to_string()).await;
    }
    let mut all = Vec::new();
    while all.len() < 6 {
        all.extend(pull(site.api(0), "t", json!({"max": 200, "wait": "10s"})).await);
    }
    let token = |n: usize| all[n]["token"].clone();
    let leases = json!([{"token": token(0), "lease": "1h"}, {"token": token(1), "lease": "0s"}, {"token": "x"}]);
    let extended = post(site.api(1), "/v1/deliveries:extend", leases)
        .await
        .expect(200)
        .json();
    assert_eq!(extended[0]["outcome"], "extended");
    assert_eq!(extended[1]["error"]["code"], "invalid");
    assert_eq!(extended[2]["error"]["code"], "invalid_delivery_token");
    let outcomes = json!([
        {"token": token(0), "ack": true},
        {"token": token(0), "reject": {}},
        {"token": token(1), "ack": true, "reject": {}},
        {"token": token(1), "retry": {"error": "x"}},
        {"token": token(2), "defer": {"after": "1h"}},
        {"token": token(3), "reject": {"error": "broken"}},
    ]);
    // A byte order mark before an array or lines is left out.
    let request = site.api(1).request(Method::POST, "/v1/deliveries:settle");
    let request = request.header("Content-Type", "application/json");
    let request = request.body(format!("\u{feff}{outcomes}"));
    let reply = request.send().await.unwrap().text().await.unwrap();
    let settled: Value = serde_json::from_str(&reply).unwrap();
    let outcome = |n: usize| {
        settled[n]["outcome"]
            .as_str()
            .unwrap_or_default()
            .to_owned()
    };
    assert_eq!(
        [0, 3, 4, 5].map(outcome),
        ["acked", "retry", "deferred", "garbage"]
    );
    assert_eq!(settled[1]["error"]["code"], "stale", "{settled}");
    assert_eq!(settled[2]["error"]["code"], "invalid");
    let lines = format!(
        "\u{feff}{}\n\nnot json\n{}\n",
        json!({"token": token(4), "ack": true}),
        json!({"token": token(5), "ack": true})
    );
    let request = site.api(0).request(Method::POST, "/v1/deliveries:settle");
    let request = request
        .header("Content-Type", "application/x-ndjson")
        .body(lines);
    let reply = request.send().await.unwrap().text().await.unwrap();
    let results: Vec<Value> = reply
        .lines()
        .map(|line| serde_json::from_str(line).unwrap())
        .collect();
    assert_eq!(results.len(), 3);
    assert_eq!(
        (&results[0]["outcome"], &results[2]["outcome"]),
        (&json!("acked"), &json!("acked"))
    );
    assert_eq!(results[1]["error"]["code"], "invalid");
    assert_eq!(site.stats("t").await["conservation_error"], 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_lease_holds_although_its_gateway_was_killed_and_then_ends_with_one_attempt() {
    let topics = "[topics.t]\nlease = \"1s\"\nretry = { base = \"1ms\" }\n[topics.long]\nlease = \"1h\"\nretry = { base = \"1ms\" }";
    let mut site = Site::start(topics, "").await;
    site.send("t", &[], "held").await;
    let held = pull_one(site.api(0), "t", "10m").await;
    site.send("t", &[], "dropped").await;
    site.send("long", &[], "dropped").await;
    let short = pull_one(site.api(0), "long", "1s").await;
    let dropped = pull_one(site.api(0), "t", "1s").await;
    site.gateways[0].0.kill9();
    // Each of these ends a lease of the topic, and more, after the one before.
    for attempt in 2..5 {
        let again = pull_one(site.api(1), "t", "1s").await;
        assert_eq!(
            (&again["id"], &again["attempt"]),
            (&dropped["id"], &json!(attempt))
        );
        if attempt == 4 {
            post(site.api(1), &route(&again, "ack"), json!({}))
                .await
                .expect(200);
        }
    }
    let tries: BTreeMap<String, String> = site
        .redis(&["HGETALL", "lisa:v1:{t:0}:attempts:default"])
        .await;
    assert_eq!(
        tries,
        BTreeMap::new(),
        "neither attempts nor crashes of what is held"
    );
    post(site.api(1), &route(&held, "ack"), json!({}))
        .await
        .expect(200);
    // Shorter than the lease of the topic, which had nothing in flight before.
    let again = pull_one(site.api(1), "long", "60s").await;
    assert_eq!((&again["id"], &again["attempt"]), (&short["id"], &json!(2)));
    let tries: BTreeMap<String, String> = site
        .redis(&["HGETALL", "lisa:v1:{long:0}:attempts:default"])
        .await;
    let id = short["id"].as_str().unwrap();
    let (last, _) = tries[id].split_once('\0').unwrap();
    assert_eq!(last, "1 0 not settled before its lease ended");
    post(site.api(1), &route(&short, "ack"), json!({}))
        .await
        .expect(409);
    post(site.api(1), &route(&again, "ack"), json!({}))
        .await
        .expect(200);
    site.assert_drained("t").await;
    site.assert_drained("long").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn many_long_polls_share_one_reader_for_each_group() {
    let topics = "[topics.a]\n[topics.b]\n[topics.c]";
    let site = Site::start(topics, "").await;
    let clients = |wanted: &'static str| {
        let site = &site;
        async move {
            let list: String = site.redis(&["CLIENT", "LIST"]).await;
            list.lines().filter(|line| line.contains(wanted)).count()
        }
    };
    let mut polls = tokio::task::JoinSet::new();
    for n in 0..90 {
        let (api, topic) = (site.api(0).clone(), ["a", "b", "c"][n % 3]);
        polls.spawn(async move { pull_one(&api, topic, "60s").await });
    }
    eventually(SOON, async || waiting(site.api(0), 90).await).await;
    assert_eq!(clients("cmd=xreadgroup").await, 3);
    for n in 0..90 {
        site.send(["a", "b", "c"][n % 3], &[], "x").await;
    }
    while let Some(delivery) = polls.join_next().await {
        let delivery = delivery.expect("a delivery");
        post(site.api(1), &route(&delivery, "ack"), json!({}))
            .await
            .expect(200);
    }
    for topic in ["a", "b", "c"] {
        site.assert_drained(topic).await;
    }
    // Nobody waits, so nothing is read.
    eventually(SOON, async || match clients("flags=b").await {
        0 => Ok(()),
        blocked => Err(blocked),
    })
    .await;
    site.send("a", &[], "ready").await;
    assert_eq!(site.stats("a").await["groups"][0]["in_flight"], 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn clients_that_vanish_lose_no_message() {
    let site = Site::start("[topics.t]\nretry = { base = \"1ms\" }", "").await;
    let path = "/v1/topics/t/groups/default/pull";
    for n in 0..40_u64 {
        let api = site.api(0).clone();
        let poll =
            tokio::spawn(
                async move { post(&api, path, json!({"wait": "30s", "lease": "1s"})).await },
            );
        if n % 4 == 0 {
            tokio::time::sleep(ms(20)).await;
        }
        site.send("t", &[], &n.to_string()).await;
        tokio::time::sleep(ms(n % 5)).await;
        poll.abort();
    }
    let mut acked = 0;
    while acked < 40 {
        let delivery = pull_one(site.api(1), "t", "60s").await;
        post(site.api(1), &route(&delivery, "ack"), json!({}))
            .await
            .expect(200);
        acked += 1;
    }
    site.assert_drained("t").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_pull_whose_client_closes_its_side_ends_at_once_and_takes_nothing() {
    let site = Site::start("[topics.t]", "").await;
    let mut halves = Vec::new();
    for _ in 0..20 {
        let mut stream = TcpStream::connect(site.api(0).address())
            .await
            .expect("connected");
        let body = r#"{"wait": "30s"}"#;
        let request = format!(
            "POST /v1/topics/t/groups/default/pull HTTP/1.1\r\nhost: x\r\ncontent-length: {}\r\n\r\n{body}",
            body.len()
        );
        stream.write_all(request.as_bytes()).await.expect("sent");
        halves.push(stream);
    }
    eventually(SOON, async || waiting(site.api(0), 20).await).await;
    for (n, stream) in halves.iter_mut().enumerate() {
        // The start of a further request, which nobody waits for either.
        stream.write_all(&b"G"[..n % 2]).await.expect("sent");
        stream.shutdown().await.expect("half closed");
    }
    eventually(SOON, async || waiting(site.api(0), 0).await).await;
    site.send("t", &[], "x").await;
    let delivery = pull_one(site.api(1), "t", "60s").await;
    assert_eq!(delivery["attempt"], 1);
    for mut stream in halves {
        let mut answer = Vec::new();
        // A reset, if something was left unread.
        let _ = stream.read_to_end(&mut answer).await;
        assert!(answer.is_empty(), "{}", String::from_utf8_lossy(&answer));
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn order_pause_scope_and_bounds_hold_for_pulls() {
    // SHA-256 of "abc" and of "def".
    let auth = "[[auth.tokens]]\nname = \"worker\"\nscopes = [\"receive\"]\n\
        sha256 = \"ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad\"\n\
        [[auth.tokens]]\nname = \"app\"\nscopes = [\"send\"]\n\
        sha256 = \"cb8379ac2098aa165029e3938a51da0bcecfc008fd6795f401178647f96c5b34\"\n";
    let more = format!("consumer.gateway.max_waiting = 1\n{auth}");
    let site = Site::start("[topics.t]", &more).await;
    let path = "/v1/topics/t/groups/default/pull";
    let (nobody, worker) = (site.api(0).clone(), site.api(0).clone().token("abc"));
    post(&nobody, path, json!({})).await.expect(401);
    post(&site.api(0).clone().token("def"), path, json!({}))
        .await
        .expect(403);
    for n in 0..3 {
        site.send("t", &[("Lisa-Key", "k")], &n.to_string()).await;
    }
    for n in 0..3 {
        let all = pull(&worker, "t", json!({"max": 10, "wait": "10s"})).await;
        let payloads: Vec<_> = all
            .iter()
            .map(|delivery| delivery["payload"].clone())
            .collect();
        assert_eq!(payloads, [n.to_string()], "one message of a key at a time");
        if n == 0 {
            let pause = "/v1/topics/t/groups/default/pause";
            post(&site.manager, pause, json!({})).await.expect(200);
        }
        // The token of a delivery is enough.
        post(&nobody, &route(&all[0], "ack"), json!({}))
            .await
            .expect(200);
        if n == 0 {
            let none = post(&worker, path, json!({})).await.expect(200).json();
            assert_eq!(none["deliveries"], json!([]), "the group is paused");
            let resume = "/v1/topics/t/groups/default/resume";
            post(&site.manager, resume, json!({})).await.expect(200);
        }
    }
    let other = worker.clone();
    let poll = tokio::spawn(async move { post(&other, path, json!({"wait": "30s"})).await });
    eventually(SOON, async || waiting(&nobody, 1).await).await;
    let refused = post(&worker, path, json!({})).await.expect(503);
    assert!(refused.body.contains("max_waiting"), "{refused:?}");
    site.send("t", &[], "last").await;
    let last = poll.await.unwrap().expect(200).json();
    post(&nobody, &route(&last["deliveries"][0], "ack"), json!({}))
        .await
        .expect(200);
    let raw = worker
        .request(Method::POST, path)
        .header("Accept", "application/octet-stream");
    assert_eq!(raw.send().await.unwrap().status(), 204);
    site.send(
        "t",
        &[("Lisa-Header-color", "red"), ("Content-Type", "text/x")],
        "raw",
    )
    .await;
    let raw = async || {
        let raw = worker
            .request(Method::POST, path)
            .header("Accept", "application/octet-stream");
        let raw = raw.body(r#"{"wait": "10s"}"#).send().await.unwrap();
        if raw.status() == 200 {
            Ok(raw)
        } else {
            Err(raw.status())
        }
    };
    let raw = eventually(SOON, raw).await;
    let header = |name: &str| raw.headers()[name].to_str().unwrap().to_owned();
    assert_eq!(
        ["lisa-header-color", "content-type", "lisa-attempt"].map(header),
        ["red", "text/x", "1"]
    );
    let ack = format!("/v1/deliveries/{}/ack", header("lisa-token"));
    assert_eq!(raw.text().await.unwrap(), "raw");
    post(&nobody, &ack, json!({})).await.expect(200);
    site.assert_drained("t").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn one_client_cannot_take_all_places_to_wait() {
    let more = format!("consumer.gateway.max_waiting = 4\n{TWO_CLIENTS}");
    let site = Site::start("[topics.t]", &more).await;
    let path = "/v1/topics/t/groups/default/pull";
    let [one, other] = ["abc", "def"].map(|token| site.api(0).clone().token(token));
    let wait = |api: &Api| {
        let api = api.clone();
        tokio::spawn(async move { post(&api, path, json!({"wait": "30s"})).await })
    };
    let mut waits: Vec<_> = (0..3).map(|_| wait(&one)).collect();
    eventually(SOON, async || waiting(site.api(0), 3).await).await;
    post(&one, path, json!({"wait": "30s"})).await.expect(503);
    waits.push(wait(&other));
    eventually(SOON, async || waiting(site.api(0), 4).await).await;
    for n in 0..4 {
        site.send("t", &[], &n.to_string()).await;
    }
    for wait in waits {
        let pulled = wait.await.unwrap().expect(200).json();
        assert_eq!(pulled["deliveries"].as_array().map(Vec::len), Some(1));
    }
}

/// Workers pull from two gateways, one of which is killed again and again.
async fn all_are_acknowledged(count: usize, kills: usize) {
    let topics = "[topics.t]\nretry = { base = \"1ms\" }\nlease = \"2s\"";
    let mut site = Site::start(topics, "").await;
    let messages: Vec<Value> = (0..count)
        .map(|n| json!({"payload": n, "id": format!("m{n}")}))
        .collect();
    for part in messages.chunks(500) {
        site.manager.batch("t", part).await;
    }
    let acked = Arc::new(std::sync::Mutex::new(BTreeMap::<String, usize>::new()));
    let apis = Arc::new(std::sync::Mutex::new([0, 1].map(|n| site.api(n).clone())));
    let stop = CancellationToken::new();
    let mut workers = tokio::task::JoinSet::new();
    for worker in 0..4 {
        let (acked, apis, stop) = (acked.clone(), apis.clone(), stop.clone());
        workers.spawn(async move {
            for turn in worker.. {
                if stop.is_cancelled() {
                    return;
                }
                let api = apis.lock().unwrap()[turn % 2].clone();
                let pull = api.request(Method::POST, "/v1/topics/t/groups/default/pull");
                let pull = pull.body(r#"{"max": 20, "wait": "1s"}"#).send();
                // Its gateway may be dead.
                let Ok(reply) = pull.await else { continue };
                let Ok(reply) = reply.json::<Value>().await else {
                    continue;
                };
                for delivery in reply["deliveries"].as_array().into_iter().flatten() {
                    let ack = || {
                        let api = apis.lock().unwrap()[1].clone();
                        api.request(Method::POST, &route(delivery, "ack")).send()
                    };
                    if ack().await.is_ok_and(|reply| reply.status() == 200) {
                        let id = delivery["id"].as_str().unwrap().to_owned();
                        *acked.lock().unwrap().entry(id).or_default() += 1;
                    }
                }
            }
        });
    }
    for kill in 1..=kills {
        let enough = count * kill / (kills + 1);
        eventually(SOON * 5, async || match acked.lock().unwrap().len() {
            some if some >= enough => Ok(()),
            some => Err(some),
        })
        .await;
        site.gateways[0].0.kill9();
        let gateway = site.gateway().await;
        apis.lock().unwrap()[0] = gateway.1.clone();
        site.gateways[0] = gateway;
    }
    eventually(SOON * 15, async || match acked.lock().unwrap().len() {
        all if all == count => Ok(()),
        some => Err(some),
    })
    .await;
    stop.cancel();
    workers.join_all().await;
    let twice: Vec<_> = acked
        .lock()
        .unwrap()
        .values()
        .filter(|times| **times > 1)
        .copied()
        .collect();
    assert_eq!(twice, [] as [usize; 0], "acknowledged twice");
    site.assert_drained("t").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn each_message_is_acknowledged_once_although_gateways_are_killed() {
    all_are_acknowledged(2_000, 3).await;
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "takes minutes"]
async fn each_of_many_messages_is_acknowledged_once_although_gateways_are_killed() {
    all_are_acknowledged(20_000, 20).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn workers_that_pull_are_listed_with_their_gateway() {
    let site = Site::start("[topics.t]", "").await;
    for name in ["w-1", "w-2", "w-1"] {
        post(
            site.api(0),
            "/v1/topics/t/groups/default/pull",
            json!({ "consumer": name }),
        )
        .await
        .expect(200);
    }
    eventually(SOON, async || {
        let workers = site.manager.get_json("/v1/workers").await;
        let consumers = workers["groups"][0]["consumers"].as_array().unwrap();
        match &consumers[..] {
            [gateway] if gateway["pullers"] == json!(["w-1", "w-2"]) => Ok(()),
            _ => Err(format!("{workers:#}")),
        }
    })
    .await;
    let roles = site.manager.get_json("/v1/workers").await["workers"].clone();
    let gateways = roles.as_array().unwrap().iter();
    assert_eq!(
        gateways
            .filter(|worker| worker["role"] == "gateway")
            .count(),
        2
    );
}

/// The token of an ended delivery is still genuine.
#[tokio::test(flavor = "multi_thread")]
async fn an_ended_delivery_holds_no_connection_and_no_memory() {
    // SHA-256 of "abc".
    let more = "http.body_timeout = \"1s\"\n[[auth.tokens]]\nname = \"worker\"\nscopes = [\"receive\"]\n\
        sha256 = \"ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad\"\n";
    let site = Site::start("[topics.t]", more).await;
    site.send("t", &[], "one").await;
    let api = site.api(0);
    let ended = pull_one(&api.clone().token("abc"), "t", "60s").await;
    post(api, &route(&ended, "ack"), json!({}))
        .await
        .expect(200);

    let mut stream = TcpStream::connect(api.address()).await.expect("connected");
    let head = "POST /v1/deliveries:settle HTTP/1.1\r\nhost: x\r\ncontent-type: application/x-ndjson\r\n\
        transfer-encoding: chunked\r\n\r\n";
    let line = format!("{}\n", json!({"token": ended["token"], "ack": true}));
    let first = format!("{head}{:x}\r\n{line}\r\n", line.len());
    stream.write_all(first.as_bytes()).await.expect("sent");
    let (mut read, mut write) = stream.into_split();
    let dripping = tokio::spawn(async move {
        while write.write_all(b"3\r\n{}\n\r\n").await.is_ok() {
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
    });
    let mut answer = Vec::new();
    let read = tokio::time::timeout(SOON, read.read_to_end(&mut answer)).await;
    dripping.abort();
    let answer = String::from_utf8_lossy(&answer);
    assert!(read.is_ok(), "still open: {answer}");
    assert!(
        answer.contains("stale") && answer.contains("not received in time"),
        "{answer}"
    );

    let mut items = vec![json!({"token": ended["token"], "ack": true})];
    items.resize(1_000, json!({"x".repeat(4_000): 0}));
    let reply = post(api, "/v1/deliveries:settle", json!(items)).await;
    let length = reply.expect(200).body.len();
    assert!(length < 512 * 1_000, "{length} bytes");
}

/// While Redis is idle, it ends a call that blocks for a few milliseconds up to 100 ms late.
#[tokio::test(flavor = "multi_thread")]
async fn shards_that_share_a_pull_are_read_without_waiting_for_redis() {
    let site = Site::start("[topics.t]\nshards = 8", "").await;
    let api = site.api(0);
    let rounds = 10;
    let begun = Instant::now();
    for _ in 0..rounds {
        site.stats("t").await;
    }
    // The counts of a topic take as many reads.
    let spare = begun.elapsed() * 3 + Duration::from_secs(2);
    let begun = Instant::now();
    for _ in 0..rounds {
        let path = "/v1/topics/t/groups/default/pull";
        let reply = post(api, path, json!({"wait": "0s"})).await.expect(200);
        assert_eq!(reply.json(), json!({"deliveries": []}));
    }
    let took = begun.elapsed();
    assert!(took < spare, "{rounds} empty pulls took {took:?}");
    let mut took = Duration::ZERO;
    for n in 0..rounds {
        let send = async {
            eventually(SOON, || waiting(api, 1)).await;
            site.send("t", &[], &n.to_string()).await;
            Instant::now()
        };
        let (pulled, sent) = tokio::join!(pull_one(api, "t", "60s"), send);
        took += sent.elapsed();
        post(api, &route(&pulled, "ack"), json!({}))
            .await
            .expect(200);
    }
    // An idle shard rests for 50 ms at most.
    let most = spare + rounds * Duration::from_millis(50);
    assert!(took < most, "{rounds} pulls took {took:?}");
}
