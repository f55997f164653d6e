//! Many connections that say little or nothing.

use super::Victim;
use super::victim::open_files;
use futures_util::future::join_all;
use lisa_tests::Stopwatch;
use std::time::Duration;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::time::timeout;

/// Half of a head; the rest never comes.
const HALF: &[u8] = b"POST /v1/topics/t/messages HTTP/1.1\r\nhost: x\r\nlisa-delay: 1h\r\nx-a:";
/// The listener's time limit for a head, and the extra time on a busy machine.
const HEAD: Duration = Duration::from_secs(10);
const SLACK: Duration = Duration::from_secs(4);
/// Descriptors that the test and the victim need in addition to the crowd.
const SPARE: usize = 200;

/// Waits until the victim has closed all connections; `drip` is written to each now and then.
async fn closed(crowd: Vec<TcpStream>, drip: &[u8]) {
    join_all(crowd.into_iter().map(|stream| async move {
        let (mut read, mut write) = stream.into_split();
        let mut rest = Vec::new();
        let ended = read.read_to_end(&mut rest);
        let dripping = async {
            let mut open = true;
            while open {
                tokio::time::sleep(Duration::from_millis(500)).await;
                open = write.write_all(drip).await.is_ok();
            }
            std::future::pending::<()>().await;
        };
        tokio::select! {
            _ = ended => (),
            () = dripping => (),
        }
    }))
    .await;
}

#[tokio::test]
async fn a_thousand_half_sent_heads_hold_nobody_up() {
    open_files(20_000);
    let victim = Victim::producer().await;
    let before = victim.memory("VmRSS");
    let mut crowd = victim.crowd(1000, HALF).await;
    for _ in 0..3 {
        for stream in &mut crowd {
            let _ = stream.write_all(b"y").await;
        }
        victim.serves().await;
    }
    let grown = victim.memory("VmRSS") - before;
    assert!(grown < 40 * 1024, "grew by {grown} KiB");
    println!("1000 half-sent heads: {grown} KiB");
}

/// The most that heads can take: each connection keeps back the end of a head of the largest size that is buffered.
#[tokio::test]
async fn the_memory_of_heads_is_bounded_for_each_connection() {
    open_files(20_000);
    let victim = Victim::producer().await;
    let before = victim.memory("VmRSS");
    let head = [HALF, &[b'y'; 60 * 1024]].concat();
    let crowd = victim.crowd(200, &head).await;
    victim.serves().await;
    let grown = victim.memory("VmRSS") - before;
    assert!(grown / 200 < 200, "grew by {grown} KiB");
    println!("200 heads of 60 KiB: {grown} KiB");
    drop(crowd);
    victim.serves().await;
}

#[tokio::test]
async fn ten_thousand_silent_connections_hold_nobody_up() {
    // The limit of connections is 10000; beyond it, clients wait for those that are closed first.
    let count = open_files(20_000).saturating_sub(SPARE).min(9_900);
    let victim = Victim::producer().await;
    let before = victim.memory("VmRSS");
    let crowd = victim.crowd(count, b"").await;
    for _ in 0..3 {
        victim.serves().await;
    }
    let grown = victim.memory("VmRSS") - before;
    let each = grown * 1024 / count as u64;
    assert!(each < 16 * 1024, "{each} bytes for each of {count}");
    println!("{count} silent connections: {grown} KiB, {each} bytes each");
    drop(crowd);
}

/// Too long for the daily tests: `make hostile`.
#[tokio::test]
#[ignore = "takes a minute"]
async fn crowds_are_gone_after_the_time_for_a_head_however_they_drip() {
    let count = open_files(25_000).saturating_sub(SPARE).min(12_000);
    let victim = Victim::producer().await;
    let mut left = Vec::new();
    for (what, bytes, drip, count) in [
        ("silent", &b""[..], &b""[..], count),
        ("dripping", HALF, b"y", 1000),
        ("silent once more", b"", b"", count),
    ] {
        let opened = Stopwatch::start();
        let crowd = victim.crowd(count, bytes).await;
        let call_timeout = opened.limit(HEAD + opened.elapsed(), SLACK);
        // Those beyond the limit get their time when they are let in, after the first have gone.
        let call_timeout = if count > 10_000 {
            call_timeout + HEAD
        } else {
            call_timeout
        };
        let gone = timeout(call_timeout, closed(crowd, drip)).await;
        assert!(gone.is_ok(), "{what}: still open after {call_timeout:?}");
        victim.serves().await;
        left.push(victim.memory("VmRSS"));
    }
    println!("after each crowd: {left:?} KiB");
    // The allocator keeps the memory of a crowd for the next one; a leak would be there twice.
    assert!(left[2] < left[0] * 2, "each crowd takes more: {left:?} KiB");
}
