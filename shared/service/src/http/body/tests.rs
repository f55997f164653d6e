//! Tests of reading bodies.

use std::convert::Infallible;
use std::time::Duration;

use futures_util::{FutureExt, StreamExt, stream};

use super::memory::{OF_CLIENTS, OF_STRANGERS};
use super::*;
use crate::http::client::{self, Client};

fn soon() -> BodyLimits {
    BodyLimits::new(Duration::from_secs(5))
}

fn at_once() -> BodyLimits {
    BodyLimits::new(Duration::from_millis(10))
}

/// Returns a body of unknown length that arrives in these pieces.
fn pieces(pieces: &'static [&'static str]) -> Body {
    Body::from_stream(stream::iter(pieces).map(|piece| Ok::<_, Infallible>(*piece)))
}

fn stalled() -> Body {
    let first = stream::iter([Ok::<_, Infallible>("{\"a\":")]);
    Body::from_stream(first.chain(stream::pending()))
}

async fn all(mut lines: Lines) -> Vec<Result<String, String>> {
    let mut found = Vec::new();
    while let Some(line) = lines.next().await {
        found.push(match line {
            Ok(line) => Ok(String::from_utf8(line.to_vec()).unwrap()),
            Err(error) => Err(error.to_string()),
        });
    }
    found
}

#[tokio::test]
async fn a_body_up_to_the_limit_is_read_whole() {
    for limit in [6, 7] {
        let read = read_limited(pieces(&["ab", "", "cd", "ef"]), limit, &soon()).await;
        assert_eq!(read.unwrap(), "abcdef");
    }
    assert_eq!(read_limited(Body::empty(), 0, &soon()).await.unwrap(), "");
}

#[tokio::test]
async fn a_body_over_the_limit_is_refused_declared_or_not() {
    let declared = read_limited(Body::from("abcdef"), 5, &soon()).await;
    let text = "body of at least 6 bytes: must be at most 5";
    assert_eq!(declared.unwrap_err().to_string(), text);
    let found = read_limited(pieces(&["ab", "cd", "ef"]), 5, &soon()).await;
    assert_eq!(found.unwrap_err().to_string(), text);
}

#[tokio::test]
async fn a_slow_body_is_a_timeout() {
    let read = read_limited(stalled(), 100, &at_once()).await;
    let problem = Problem::from(read.unwrap_err());
    assert_eq!(problem.code(), ProblemCode::Timeout);
    let mut lines = Lines::new(stalled(), 100, &at_once());
    assert!(matches!(lines.next().await, Some(Err(BodyError::Timeout))));
    assert!(lines.next().await.is_none());
}

#[tokio::test(start_paused = true)]
async fn lines_of_a_stranger_have_the_time_of_one_until_one_takes_effect() {
    let limits = BodyLimits::new(Duration::from_secs(30));
    let every_20_s = || {
        Body::from_stream(stream::repeat(()).then(async |()| {
            tokio::time::sleep(Duration::from_secs(20)).await;
            Ok::<_, Infallible>("x\n")
        }))
    };
    let mut lines = Lines::new(every_20_s(), 5, &limits);
    assert_eq!(lines.next().await.unwrap().unwrap(), "x");
    let late = lines.next().await;
    assert!(matches!(late, Some(Err(BodyError::Timeout))), "{late:?}");
    let mut lines = Lines::new(every_20_s(), 5, &limits);
    for _ in 0..5 {
        assert_eq!(lines.next().await.unwrap().unwrap(), "x");
        lines.took_effect();
    }
}

/// Reads as a client with a token does.
fn admitted<F: Future>(read: F) -> impl Future<Output = F::Output> {
    client::Admitted::new(false, None).scope(read)
}

#[tokio::test]
async fn a_stranger_has_less_memory_until_its_body_admits_it() {
    let limits = soon();
    let pieces = |mib: usize| {
        let piece = Bytes::from_static(&[b'x'; 1024 * 1024]);
        Body::from_stream(stream::iter(vec![piece; mib]).map(Ok::<_, Infallible>))
    };
    let most = 64 * 1024 * 1024;
    let stranger = read_limited(pieces(20), most, &limits).await;
    let crowded = stranger.unwrap_err().to_string();
    assert!(crowded.contains("from this client"), "{crowded}");
    let admits = |begun: &[u8]| begun.len() >= 2 * 1024 * 1024;
    let (bytes, reserved) = read_admitting(pieces(20), most, most, &limits, admits)
        .await
        .unwrap();
    assert_eq!(bytes.len(), 20 * 1024 * 1024);
    assert_eq!(limits.strangers.free(), OF_STRANGERS.all);
    assert!(limits.clients.free() <= OF_CLIENTS.all - 19 * 1024 * 1024);
    drop(reserved);
    assert_eq!(limits.clients.free(), OF_CLIENTS.all);
    let mib = 1024 * 1024;
    let refused = read_admitting(pieces(20), most, mib, &limits, |_| false).await;
    assert!(matches!(refused, Err(BodyError::Stranger { limit }) if limit == mib));
}

#[tokio::test]
async fn strangers_do_not_take_the_memory_of_an_address_that_was_admitted_lately() {
    let limits = soon();
    let of = |last: u8| Client::Address([10, 0, 0, last].into());
    let begin = async |last| of(last).scope(async { limits.begin() }).await;
    let mut admitted = begin(1).await;
    admitted.admit(Client::Token("t".into())).unwrap();
    drop(admitted);
    let mut strangers = [begin(2).await, begin(3).await];
    for stranger in &mut strangers {
        stranger.grow(OF_STRANGERS.all / 2).unwrap();
    }
    let mib = 1024 * 1024;
    assert!(begin(4).await.grow(mib).is_err());
    let mut again = begin(1).await;
    assert!(again.is_of_stranger());
    again.grow(mib).unwrap();
}

/// Returns a body of `kib` KiB without a line break, which then stalls.
fn endless(kib: usize) -> Body {
    let pieces = (0..kib).map(|_| Ok::<_, Infallible>(Bytes::from_static(&[b'x'; 1024])));
    Body::from_stream(stream::iter(pieces).chain(stream::pending()))
}

#[tokio::test]
async fn a_reservation_lasts_until_it_is_dropped() {
    const LARGE: usize = 200 * 1024;
    let half = "x".repeat(LARGE / 2);
    let body = || {
        let pieces = [half.clone(), half.clone()].map(Ok::<_, Infallible>);
        Body::from_stream(stream::iter(pieces))
    };
    let limits = BodyLimits::with_room(Duration::from_secs(5), LARGE, LARGE);
    let read = || admitted(read_reserved(body(), LARGE, &limits));
    let (bytes, reserved) = read().await.unwrap();
    assert_eq!(bytes.len(), LARGE);
    let crowded = read().await;
    assert!(matches!(crowded, Err(BodyError::Crowded(_))), "{crowded:?}");
    drop(reserved);
    assert_eq!(read().await.unwrap().0, bytes);
}

#[tokio::test]
async fn large_bodies_share_their_memory_and_small_ones_take_none() {
    const KIB: usize = 1024;
    const LARGE: usize = 1000 * KIB;
    let limits = BodyLimits::with_room(Duration::from_secs(5), 836 * KIB, 836 * KIB);
    let mut under_way = Vec::new();
    for number in 0..8 {
        let (limits, body) = (limits.clone(), endless(264));
        under_way.push(Box::pin(admitted(async move {
            match number % 2 {
                0 => read_limited(body, LARGE, &limits).await.map(drop),
                _ => match Lines::new(body, LARGE, &limits).next().await {
                    Some(line) => line.map(drop),
                    None => Ok(()),
                },
            }
        })));
    }
    let mut crowded = 0;
    under_way.retain_mut(|read| match read.as_mut().now_or_never() {
        None => true,
        Some(ended) => {
            assert!(matches!(ended, Err(BodyError::Crowded(_))));
            crowded += 1;
            false
        }
    });
    assert_eq!(
        (under_way.len(), crowded),
        (3, 5),
        "318 and 200 KiB in turn, of 836"
    );
    let small = pieces(&["ab", "cd"]);
    assert_eq!(read_limited(small, 4, &limits).await.unwrap(), "abcd");
    let problem = Problem::from(BodyError::Crowded(Shortage::OfAll));
    assert_eq!(problem.code(), ProblemCode::Unavailable);
    drop(under_way);
    assert_eq!(limits.clients.free(), 836 * KIB);
}

#[tokio::test]
async fn lines_do_not_care_how_the_body_is_cut() {
    let body = pieces(&["o", "ne\ntw", "o\r\n", "\n\r\n", "three\nfour", "\r"]);
    let expected: Vec<_> = ["one", "two", "three", "four"]
        .map(|l| Ok(l.to_owned()))
        .into();
    assert_eq!(all(Lines::new(body, 5, &soon())).await, expected);
    assert!(
        all(Lines::new(pieces(&["\n\n"]), 5, &soon()))
            .await
            .is_empty()
    );
}

#[tokio::test]
async fn a_long_line_is_reported_and_the_next_one_read() {
    let body = pieces(&[
        "12345\n12345\r\n123456\n",
        "123",
        "456789",
        "0\nok\n1234567",
    ]);
    let long = |line| Err(format!("line {line} is longer than 5 bytes"));
    let fits = || Ok("12345".to_owned());
    let expected = [
        fits(),
        fits(),
        long(3),
        long(4),
        Ok("ok".to_owned()),
        long(6),
    ];
    assert_eq!(all(Lines::new(body, 5, &soon())).await, expected);
}

#[tokio::test]
async fn a_byte_order_mark_is_left_out_only_at_the_head() {
    let read = async |text: &[&'static str]| {
        let text: &'static [&'static str] = text.to_vec().leak();
        all(Lines::new(pieces(text), 9, &soon())).await
    };
    let lines = |lines: &[&str]| -> Vec<_> {
        let lines = lines.iter().map(|line| Ok((*line).to_owned()));
        lines.collect()
    };
    assert_eq!(read(&["\u{feff}{}\n{}"]).await, lines(&["{}", "{}"]));
    assert_eq!(
        read(&["\u{feff}\r\n\u{feff}{}"]).await,
        lines(&["\u{feff}{}"])
    );
    assert_eq!(read(&["\u{feff}"]).await, lines(&[]));
    assert_eq!(without_bom("\u{feff}\u{feff}".into()), "\u{feff}");
}

#[tokio::test]
async fn line_numbers_count_empty_lines() {
    let mut lines = Lines::new(pieces(&["a\n\nb"]), 5, &soon());
    lines.next().await.unwrap().unwrap();
    assert_eq!(lines.number(), 1);
    lines.next().await.unwrap().unwrap();
    assert_eq!(lines.number(), 3);
    assert!(lines.next().await.is_none());
}
