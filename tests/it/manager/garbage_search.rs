//! Garbage is searched by error, ordering key and reason: over HTTP, on the command line, and on its page.

use lisa_core::broker::Verdict;
use lisa_core::message::{Options, PreparedMessage};
use lisa_tests::relay::{self, ms};
use lisa_tests::{SOON, Server};
use serde_json::{Value, json};

use super::operators::lisa_manager;
use super::read;
use super::served::Served;

/// Customers, each with one message in ten.
const CUSTOMERS: usize = 10;

async fn start(server: &Server) -> Served {
    let keys = [("topics.orders.shards", "1")];
    Served::start(server, "cli", &keys).await
}

/// Puts messages into garbage: the nth is of customer n % 10, and its error says whether n is even.
async fn fill(manager: &Served, count: usize) {
    let broker = &manager.broker;
    let topic = broker.topic(&"orders".parse().unwrap()).await.unwrap();
    let (shard, group) = (topic.first_shard(), &topic.groups()[0]);
    let message = |n: usize| PreparedMessage {
        options: Options {
            key: Some(format!("customer-{}", n % CUSTOMERS).parse().unwrap()),
            ..Options::default()
        },
        ..relay::message(&format!("m{n:03}"), ms(0))
    };
    let sent: Vec<_> = (0..count).map(message).collect();
    for batch in sent.chunks(100) {
        broker.send(&topic, shard, batch).await.unwrap();
    }
    for _ in (0..count).step_by(CUSTOMERS) {
        // The next message of a customer becomes ready once the previous one is in garbage.
        let reads = read(broker, &topic, CUSTOMERS).await;
        let settlements = reads.iter().map(|read| {
            let n: usize = read.id.as_ref().unwrap().as_str()[1..].parse().unwrap();
            let parity = if n.is_multiple_of(2) { "even" } else { "odd" };
            let error = format!("HTTP {n}: {parity}");
            relay::settlement(read, Verdict::Reject { error })
        });
        let settlements: Vec<_> = settlements.collect();
        let settled = broker.settle(&topic, shard, group, &settlements);
        settled.await.unwrap();
    }
}

fn ids(page: &Value) -> Vec<String> {
    let messages = page["messages"].as_array().unwrap().iter();
    messages
        .map(|message| message["id"].as_str().unwrap().to_owned())
        .collect()
}

/// The ids of the messages for which `is_wanted`, sorted.
fn expected(count: usize, is_wanted: impl Fn(usize) -> bool) -> Vec<String> {
    let wanted = (0..count).filter(|n| is_wanted(*n));
    wanted.map(|n| format!("m{n:03}")).collect()
}

#[tokio::test]
async fn each_match_is_on_one_page_of_any_size() {
    const COUNT: usize = 610;
    let server = Server::start();
    let manager = start(&server).await;
    fill(&manager, COUNT).await;
    let path = "/v1/topics/orders/messages?state=garbage";
    for (filter, wanted) in [
        ("key=customer-7", expected(COUNT, |n| n % CUSTOMERS == 7)),
        ("error=HTTP+*+odd", expected(COUNT, |n| n % 2 == 1)),
        ("error=odd&key=customer-6", Vec::new()),
        (
            "error=even&key=customer-6",
            expected(COUNT, |n| n % CUSTOMERS == 6),
        ),
        ("reason=rejected", expected(COUNT, |_| true)),
        ("reason=expired", Vec::new()),
    ] {
        for (order, limit) in [
            ("oldest", 7),
            ("newest", 50),
            ("newest", 200),
            ("oldest", 1000),
        ] {
            let (mut found, mut looked_at) = (Vec::new(), 0);
            let mut cursor = String::new();
            loop {
                let page = format!("{path}&{filter}&order={order}&limit={limit}{cursor}");
                let page = manager.api.get_json(&page).await;
                assert!(ids(&page).len() <= limit, "{filter}: {page:#}");
                found.extend(ids(&page));
                looked_at += page["looked_at"].as_u64().unwrap();
                match page["next"].as_str() {
                    Some(next) => cursor = format!("&cursor={next}"),
                    None => break,
                }
            }
            found.sort_unstable();
            assert_eq!(found, wanted, "{filter}, {order}, {limit}");
            assert_eq!(looked_at, COUNT as u64, "{filter}, {order}, {limit}");
        }
    }
    manager.end().await;
}

#[tokio::test]
async fn a_page_examines_a_bounded_number_of_messages() {
    let server = Server::start();
    let manager = start(&server).await;
    // More than a page examines, without records: only their places in garbage are read.
    let key = |what: &str| format!("cli:v1:{{orders:0}}:{what}:default");
    let mut fill = redis::pipe();
    for n in 0..5500 {
        let id = format!("g{n}");
        fill.zadd(key("garbage"), &id, n + 1);
        fill.hset(key("garbage_info"), &id, "rejected 1 no");
    }
    let client = redis::Client::open(server.url()).unwrap();
    let mut connection = client.get_multiplexed_async_connection().await.unwrap();
    let _: () = fill.query_async(&mut connection).await.unwrap();
    let path = "/v1/topics/orders/messages?state=garbage&error=yes";
    let page = manager.api.get_json(path).await;
    assert_eq!((&page["looked_at"], ids(&page).len()), (&json!(5000), 0));
    let next = page["next"].as_str().expect("more");
    let page = manager.api.get_json(&format!("{path}&cursor={next}")).await;
    assert_eq!(
        (&page["looked_at"], &page["next"]),
        (&json!(500), &Value::Null)
    );
    manager.end().await;
}

#[tokio::test]
async fn a_filter_that_cannot_be_used_names_its_field() {
    let server = Server::start();
    let manager = start(&server).await;
    let path = "/v1/topics/orders/messages";
    for (query, field) in [
        ("error=x", "error"),
        ("state=retry&reason=expired", "reason"),
        ("state=garbage&reason=bored", "reason"),
        ("state=garbage&error=*", "error"),
        ("state=garbage&key=", "key"),
        ("state=garbage&error=x&from=today", "from"),
        (
            "state=garbage&from=2026-11-21T09:30:00Z&to=2026-11-21T09:30:00Z",
            "from",
        ),
        ("state=retry&key=k", "key"),
    ] {
        let refused = manager
            .api
            .get(&format!("{path}?{query}"))
            .await
            .expect(422)
            .json();
        assert_eq!(refused["errors"][0]["field"], field, "{query}: {refused:#}");
    }
    manager.end().await;
}

#[tokio::test]
async fn the_failed_messages_of_a_customer_are_found_and_requeued() {
    let server = Server::start();
    let manager = start(&server).await;
    fill(&manager, 50).await;
    let verb = async |arguments: &[&str]| lisa_manager(&server, arguments).run(SOON).await;
    let listed = verb(&[
        "garbage",
        "list",
        "orders",
        "--key",
        "customer-7",
        "--newest",
    ])
    .await;
    assert_eq!(listed.code, Some(0), "{listed:?}");
    for id in ["m047", "m037", "m027", "m017", "m007"] {
        assert!(listed.stdout.contains(id), "{listed:?}");
    }
    assert_eq!(listed.stdout.matches("customer-7").count(), 5, "{listed:?}");
    assert!(listed.stdout.contains("examined 50 messages"), "{listed:?}");

    // The page shows the keys, finds nothing else, and asks for a requeue of these alone.
    let page = async |path: &str| manager.api.get(path).await.expect(200).body;
    let all = page("/topics/orders/garbage").await;
    assert!(
        all.contains("customer-6") && all.contains("customer-7"),
        "{all}"
    );
    let found = page("/topics/orders/garbage?key=customer-7").await;
    assert!(!found.contains("customer-6"), "{found}");
    assert!(
        found.contains("5 of 50 messages that were examined"),
        "{found}"
    );
    let nothing = page("/topics/orders/garbage?key=customer-77").await;
    assert!(nothing.contains("None of the 50 messages"), "{nothing}");
    let ask = page("/topics/orders/groups/default/garbage/requeue?key=customer-7").await;
    assert!(ask.contains("Requeue 5 messages"), "{ask}");
    assert!(ask.contains("--key=customer-7"), "{ask}");
    let early = "key=customer-7&to=2020-01-01T00:00:00Z";
    let nothing = page(&format!("/topics/orders/garbage?{early}")).await;
    assert!(nothing.contains("No messages match"), "{nothing}");
    let ask = format!("/topics/orders/groups/default/garbage/requeue?{early}");
    let ask = page(&ask).await;
    let hidden = r#"name="to" value="2020-01-01T00:00:00.000Z""#;
    assert!(ask.contains(hidden), "{ask}");
    let nowhere = page("/find?q=customer-7").await;
    let link = "/topics/orders/garbage?group=default&amp;key=customer-7";
    assert!(nowhere.contains(link), "{nowhere}");

    let requeue = [
        "garbage",
        "requeue",
        "orders",
        "--key",
        "customer-7",
        "--yes",
    ];
    assert_eq!(verb(&requeue).await.stdout, "requeued 5 messages\n");
    let left = manager
        .api
        .get_json("/v1/topics/orders/messages?state=garbage")
        .await;
    let mut left = ids(&left);
    left.sort_unstable();
    assert_eq!(left, expected(50, |n| n % CUSTOMERS != 7));
    manager.end().await;
}
