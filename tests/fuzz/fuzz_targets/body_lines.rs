//! The lines of a body: the same however the network cuts it, and never longer than allowed.

#![no_main]

use std::cell::LazyCell;
use std::convert::Infallible;
use std::time::Duration;

use axum::body::Body;
use bytes::Bytes;
use futures_util::stream;
use libfuzzer_sys::fuzz_target;
use lisa_service::http::body::{BodyError, BodyLimits, Lines, read_limited};
use tokio::runtime::{Builder, Runtime};

const PATIENCE: Duration = Duration::from_secs(60);

thread_local! {
    static RUNTIME: LazyCell<Runtime> =
        LazyCell::new(|| Builder::new_current_thread().enable_time().build().expect("a runtime"));
}

fn cut(bytes: &[u8], at: usize) -> Body {
    let pieces: Vec<_> = bytes
        .chunks(at)
        .map(|piece| Ok::<_, Infallible>(Bytes::copy_from_slice(piece)))
        .collect();
    Body::from_stream(stream::iter(pieces))
}

/// Returns the lines of the body by their number, with `None` for one that is too long.
fn expected(bytes: &[u8], longest: usize) -> Vec<(u64, Option<Vec<u8>>)> {
    let lines = bytes.split(|&byte| byte == b'\n').enumerate();
    let lines =
        lines.map(|(index, line)| (index as u64 + 1, line.strip_suffix(b"\r").unwrap_or(line)));
    lines
        .filter(|(_, line)| !line.is_empty())
        .map(|(number, line)| (number, (line.len() <= longest).then(|| line.to_vec())))
        .collect()
}

async fn found(body: Body, longest: usize) -> Vec<(u64, Option<Vec<u8>>)> {
    let mut lines = Lines::new(body, longest, &BodyLimits::new(PATIENCE));
    let mut found = Vec::new();
    while let Some(line) = lines.next().await {
        match line {
            Ok(line) => found.push((lines.number(), Some(line.to_vec()))),
            Err(BodyError::LineTooLong { line, limit }) => {
                assert_eq!((line, limit), (lines.number(), longest));
                found.push((line, None));
            }
            Err(other) => panic!("{other}"),
        }
    }
    found
}

fuzz_target!(|input: (u8, u8, &[u8])| {
    let (at, longest, bytes) = input;
    let (at, longest) = (usize::from(at).max(1), usize::from(longest));
    RUNTIME.with(|runtime| {
        runtime.block_on(async {
            assert_eq!(
                found(cut(bytes, at), longest).await,
                expected(bytes, longest)
            );
            match read_limited(cut(bytes, at), longest, &BodyLimits::new(PATIENCE)).await {
                Ok(whole) => assert!(whole == bytes && bytes.len() <= longest),
                Err(BodyError::TooLarge { size, limit }) => {
                    assert!(limit == longest && size > longest && bytes.len() >= size)
                }
                Err(other) => panic!("{other}"),
            }
        });
    });
});
