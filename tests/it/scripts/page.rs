//! page: lists messages in the order of their times.

use lisa_core::broker::{BrokerError, Page, TimeRange, Verdict};
use lisa_core::message::{Options, PreparedMessage};
use lisa_core::state::State;
use lisa_core::time::UnixMs;
use lisa_tests::relay::{self, START, message, ms, retry};
use lisa_tests::{Relay, Server};
use redis::cmd;

/// The oldest first, and the newest first.
const ORDERS: [bool; 2] = [false, true];

async fn page(
    relay: &Relay,
    state: State,
    range: TimeRange,
    cursor: Option<&str>,
    limit: usize,
) -> Page {
    let group = relay.group();
    let page = relay
        .broker()
        .list_within(relay.topic(), group, state, range, cursor, limit);
    page.await.expect("a page")
}

fn ids(page: &Page) -> String {
    let ids = page.items.iter().map(|listed| listed.id.as_str());
    ids.collect::<Vec<_>>().join(" ")
}

/// Lists all pages of a range.
async fn all(relay: &Relay, state: State, range: TimeRange, limit: usize) -> String {
    let (mut cursor, mut found): (Option<String>, Vec<String>) = (None, Vec::new());
    loop {
        let page = page(relay, state, range, cursor.as_deref(), limit).await;
        assert!(page.items.len() <= limit);
        if !page.items.is_empty() {
            found.push(ids(&page));
        }
        cursor = page.next;
        if cursor.is_none() {
            return found.join(" ");
        }
    }
}

fn range(from: Option<u64>, to: Option<u64>, newest_first: bool) -> TimeRange {
    let time = |after: u64| UnixMs::new(START + after);
    TimeRange {
        from: from.map(time),
        to: to.map(time),
        newest_first,
    }
}

#[tokio::test]
async fn pages_of_any_size_list_each_message_once_in_both_orders() {
    let relay = Relay::start("page").await;
    // Several have the same time. Upper-case letters come before lower-case ones, whatever the locale.
    let sent = [("a", 5), ("B", 5), ("c", 5), ("d", 5), ("e", 1), ("f", 9)];
    let sent = sent.map(|(id, due)| message(id, ms(due)));
    relay.send(&sent).await;
    for limit in [1, 2, 3, 5, 6, 7] {
        let found = async |range| all(&relay, State::Waiting, range, limit).await;
        assert_eq!(
            found(range(None, None, false)).await,
            "e B a c d f",
            "{limit}"
        );
        assert_eq!(
            found(range(None, None, true)).await,
            "f d c a B e",
            "{limit}"
        );
        assert_eq!(
            found(range(Some(5), Some(9), false)).await,
            "B a c d",
            "{limit}"
        );
        assert_eq!(
            found(range(Some(5), Some(9), true)).await,
            "d c a B",
            "{limit}"
        );
        assert_eq!(found(range(Some(2), Some(5), true)).await, "", "{limit}");
        assert_eq!(found(range(Some(9), None, false)).await, "f", "{limit}");
        assert_eq!(found(range(Some(9), Some(1), false)).await, "", "{limit}");
    }
}

#[tokio::test]
async fn messages_that_come_and_go_between_pages_neither_hide_nor_repeat_others() {
    for newest_first in ORDERS {
        let relay = Relay::start("page").await;
        let range = range(None, None, newest_first);
        let sent: Vec<_> = (10..20).map(|n| message(&format!("m{n}"), ms(5))).collect();
        relay.send(&sent).await;
        let first = page(&relay, State::Waiting, range, None, 4).await;
        let (expected, rest) = match newest_first {
            false => ("m10 m11 m12 m13", "m14 m15 m16 m17 m18 m19 z"),
            true => ("m19 m18 m17 m16", "m15 m14 m13 m12 m11 m10 a"),
        };
        assert_eq!(ids(&first), expected);
        // The last one of the page leaves, and so does one before it; two come, one on each side.
        for gone in [1, 3] {
            let id = &first.items[gone].id;
            relay
                .broker()
                .cancel(relay.topic(), id, None)
                .await
                .unwrap();
        }
        relay
            .send(&[message("a", ms(5)), message("z", ms(5))])
            .await;
        let next = page(&relay, State::Waiting, range, first.next.as_deref(), 100).await;
        assert_eq!((ids(&next).as_str(), next.next), (rest, None));
    }
}

#[tokio::test]
async fn a_message_that_moves_to_another_time_does_not_move_the_next_page() {
    let relay = Relay::start("page").await;
    let sent = [("a", 1), ("b", 2), ("c", 3), ("d", 4)].map(|(id, due)| message(id, ms(due)));
    relay.send(&sent).await;
    let first = page(&relay, State::Waiting, TimeRange::default(), None, 2).await;
    assert_eq!(ids(&first), "a b");
    let zset = relay.key("waiting");
    let _: u64 = relay
        .command(cmd("ZADD").arg(&zset).arg(START + 99).arg("b"))
        .await;
    let cursor = first.next.as_deref();
    let next = page(&relay, State::Waiting, TimeRange::default(), cursor, 9).await;
    assert_eq!(ids(&next), "c d b");
}

#[tokio::test]
async fn messages_with_options_are_listed_by_time_and_arrival() {
    let relay = Relay::start("page").await;
    let with_key = |id: &str, due: u64| PreparedMessage {
        options: Options {
            key: Some("k".parse().unwrap()),
            ..Options::default()
        },
        ..message(id, ms(due))
    };
    relay.send(&[with_key("z", 5)]).await;
    relay.send(&[with_key("y", 5), with_key("x", 3)]).await;
    relay.send(&[message("a", ms(5))]).await;
    assert_eq!(
        all(&relay, State::Waiting, range(None, None, false), 1).await,
        "x a z y"
    );
    assert_eq!(
        all(&relay, State::Waiting, range(None, None, true), 1).await,
        "y z a x"
    );
}

#[tokio::test]
async fn retry_and_garbage_are_listed_by_time_with_their_details() {
    let relay = Relay::start("page").await;
    for (step, id) in ["a", "b", "c"].into_iter().enumerate() {
        relay.put_in_garbage(id).await;
        relay.step(10);
        let held = relay.hold(&format!("r{step}")).await;
        relay.settle(&held, retry(ms(100))).await;
    }
    for limit in [1, 2, 5] {
        for newest_first in ORDERS {
            let range = range(None, None, newest_first);
            let (garbage, retry) = match newest_first {
                false => ("a b c", "r0 r1 r2"),
                true => ("c b a", "r2 r1 r0"),
            };
            assert_eq!(all(&relay, State::Garbage, range, limit).await, garbage);
            assert_eq!(all(&relay, State::Retry, range, limit).await, retry);
        }
    }
    let newest = page(&relay, State::Garbage, range(None, None, true), None, 1).await;
    assert!(newest.items[0].reason.is_some());
    let newest = page(&relay, State::Retry, range(None, None, true), None, 1).await;
    assert_eq!(newest.items[0].error.as_deref(), Some("it failed"));
    assert_eq!(newest.items[0].attempt, 2);
}

#[tokio::test]
async fn messages_of_each_state_are_listed_with_their_ordering_keys() {
    let relay = Relay::start("page").await;
    let keyed = |id: &str, key: &str, due: u64| PreparedMessage {
        options: Options {
            key: Some(key.parse().unwrap()),
            ..Options::default()
        },
        ..message(id, ms(due))
    };
    let keys = async |state: State| {
        let page = page(&relay, state, TimeRange::default(), None, 9).await;
        let keys = page.items.iter();
        keys.map(|listed| {
            let key = listed.key.as_ref().map_or("none", |key| key.as_str());
            format!("{} of {key}", listed.id)
        })
        .collect::<Vec<_>>()
        .join(", ")
    };
    relay.send(&[message("m", ms(9))]).await;
    assert_eq!(keys(State::Waiting).await, "m of none");
    relay.send(&[keyed("a", "k", 0), keyed("b", "k", 1)]).await;
    relay.send(&[keyed("c", "l", 2), keyed("w", "k", 9)]).await;
    relay.step(5);
    relay.move_due(200).await;
    assert_eq!(keys(State::Waiting).await, "m of none, w of k");
    assert_eq!(keys(State::Ready).await, "a of k, c of l");
    assert_eq!(keys(State::Parked).await, "b of k");
    let read = relay.read_one().await;
    assert_eq!(keys(State::InFlight).await, "a of k");
    relay.settle(&read, retry(ms(100))).await;
    assert_eq!(keys(State::Retry).await, "a of k");
    let read = relay.read_one().await;
    let error = "no".to_owned();
    relay.settle(&read, Verdict::Reject { error }).await;
    assert_eq!(keys(State::Garbage).await, "c of l");
    // Malformed options hide no message.
    let meta = relay.key("meta");
    let _: u64 = relay
        .command(cmd("HSET").arg(&meta).arg("w").arg("x"))
        .await;
    assert_eq!(keys(State::Waiting).await, "m of none, w of none");
}

#[tokio::test]
async fn a_cursor_that_no_page_returned_is_refused_and_never_an_error_of_redis() {
    let relay = Relay::start("page").await;
    let largest = u64::MAX;
    let positions = [
        format!("{largest}-{largest}"),
        format!("{largest}-0"),
        "0-0".to_owned(),
        largest.to_string(),
        i64::MAX.to_string(),
        format!("{largest}:a"),
        "x:a".to_owned(),
        "5".to_owned(),
        "5-5".to_owned(),
        "5:a".to_owned(),
    ];
    let texts = positions.map(|position| format!("0:{position}"));
    let texts = texts.iter().map(String::as_str).chain(["", "0", "x:5:a"]);
    for text in texts {
        let mut taken = Vec::new();
        for &state in State::ALL {
            let (topic, group) = (relay.topic(), relay.group());
            match relay
                .broker()
                .list(topic, group, state, Some(text), 10)
                .await
            {
                Ok(page) => {
                    assert_eq!(page.items, []);
                    taken.push(state);
                }
                Err(error) => {
                    let is_about_the_cursor = matches!(error, BrokerError::Cursor(_));
                    assert!(is_about_the_cursor, "{text:?} {state}: {error}");
                }
            }
        }
        // Each text is at most the position of a kind of list.
        assert!(taken.len() <= 3, "{text:?}: {taken:?}");
    }
}

#[tokio::test]
async fn a_long_page_is_read_in_calls_of_200_messages() {
    let server = Server::start();
    let connection = relay::connection(&server).await;
    let relay = Relay::on(&server, &connection, "long", relay::settings()).await;
    let sent: Vec<_> = (0..450)
        .map(|n| message(&format!("m{n:03}"), ms(n / 3 + 1)))
        .collect();
    for part in sent.chunks(150) {
        relay.send(part).await;
    }
    let calls = async || -> usize {
        let info: String = relay.command(cmd("INFO").arg("commandstats")).await;
        let (_, row) = info.split_once("cmdstat_evalsha:calls=").expect("a row");
        row.split(',')
            .next()
            .expect("a number")
            .parse()
            .expect("a number")
    };
    let mut expected: Vec<_> = sent.iter().map(|sent| sent.id.as_str()).collect();
    // The first call of a script loads it.
    page(&relay, State::Waiting, range(None, None, false), None, 1).await;
    for newest_first in ORDERS {
        let range = range(None, None, newest_first);
        for (limit, of_page) in [(1000, 3), (450, 3), (400, 2), (7, 1)] {
            let before = calls().await;
            let found = page(&relay, State::Waiting, range, None, limit).await;
            assert_eq!(calls().await - before, of_page, "{limit}");
            let most = limit.min(expected.len());
            assert_eq!(ids(&found), expected[..most].join(" "), "{limit}");
            let all = all(&relay, State::Waiting, range, limit).await;
            assert_eq!(all, expected.join(" "), "{limit}");
        }
        expected.reverse();
    }
}
