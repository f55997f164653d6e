//! Access by Authorization header, and tokens as they are configured.

#![no_main]

use std::cell::RefCell;
use std::collections::HashMap;
use std::convert::Infallible;
use std::sync::LazyLock;

use axum::body::{Body, Bytes, to_bytes};
use axum::extract::Request;
use axum::http::header::AUTHORIZATION;
use axum::http::{HeaderValue, StatusCode};
use axum::response::Response;
use futures_util::FutureExt;
use libfuzzer_sys::fuzz_target;
use lisa_fuzz::is_bounded;
use lisa_service::http::auth::{Scope, Token, TokenSet};
use tower::{Layer, ServiceExt, service_fn};

/// SHA-256 of "abc".
const ABC: &str = "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad";

static TOKENS: LazyLock<TokenSet> = LazyLock::new(|| {
    TokenSet::new(vec![
        Token::new("app", ABC, vec![Scope::Send]).expect("a token"),
    ])
});

thread_local! {
    /// The body of the first answer of each status.
    static SAID: RefCell<HashMap<StatusCode, Bytes>> = RefCell::default();
}

/// Returns the expected status, computed in another way.
fn expected(values: &[HeaderValue], scope: Scope) -> StatusCode {
    let [value] = values else {
        return StatusCode::UNAUTHORIZED;
    };
    let bytes = value.as_bytes();
    let (scheme, token) = bytes.split_at(bytes.len().min(7));
    let right = scheme.eq_ignore_ascii_case(b"bearer ")
        && token.trim_ascii() == b"abc"
        && value.to_str().is_ok();
    match (right, scope) {
        (false, _) => StatusCode::UNAUTHORIZED,
        (true, Scope::Send) => StatusCode::OK,
        (true, _) => StatusCode::FORBIDDEN,
    }
}

fuzz_target!(|input: &[u8]| {
    let values: Vec<_> = input
        .split(|&byte| byte == b'\n')
        .filter_map(|line| HeaderValue::from_bytes(line).ok())
        .collect();
    for scope in [Scope::Send, Scope::Read] {
        let mut request = Request::new(Body::empty());
        for value in &values {
            request.headers_mut().append(AUTHORIZATION, value.clone());
        }
        let open = service_fn(async |_: Request| Ok::<_, Infallible>(Response::new(Body::empty())));
        let guarded = TOKENS.require(scope).layer(open);
        let answer = guarded
            .oneshot(request)
            .now_or_never()
            .expect("nothing to wait for");
        let answer = answer.expect("an answer");
        let status = answer.status();
        assert_eq!(status, expected(&values, scope), "{values:?}");
        let body = to_bytes(answer.into_body(), 1 << 16).now_or_never();
        let body = body.expect("nothing to wait for").expect("a body");
        // A refusal is the same for every client, so it reveals nothing of the presented token.
        let first =
            SAID.with_borrow_mut(|said| said.entry(status).or_insert_with(|| body.clone()).clone());
        assert_eq!(body, first);
    }
    let Ok(text) = std::str::from_utf8(input) else {
        return;
    };
    let (name, hash) = text.split_once('\n').unwrap_or((text, ABC));
    match Token::new(name, hash, vec![Scope::Read]) {
        Ok(token) => {
            let hash = hash.to_ascii_lowercase();
            assert!(!format!("{token:?}").replace(name, "").contains(&hash));
        }
        Err(error) => is_bounded(error),
    }
});
