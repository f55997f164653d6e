//! A webhook target on loopback that sends the answers that a test sets, and records the requests.

use crate::port::loopback;
use crate::runtime;
use axum::body::{Body, Bytes, to_bytes};
use axum::http::{HeaderMap, Method, Request, Response, StatusCode};
use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::TokioIo;
use std::collections::VecDeque;
use std::io;
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::{Duration, SystemTime};
use tokio::net::TcpListener;
use tokio_util::sync::{CancellationToken, DropGuard};

/// The target's reaction to one request.
#[derive(Clone, Debug)]
pub struct Answer {
    status: u16,
    headers: Vec<(String, String)>,
    body: Vec<u8>,
    delay: Duration,
    manner: Manner,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Manner {
    Reply,
    Hang,
    Cut,
}

impl Answer {
    /// Answers with this status and an empty body.
    pub fn status(status: u16) -> Self {
        Self {
            status,
            headers: Vec::new(),
            body: Vec::new(),
            delay: Duration::ZERO,
            manner: Manner::Reply,
        }
    }

    /// Reads the request and never answers.
    pub fn hang() -> Self {
        Self {
            manner: Manner::Hang,
            ..Self::status(200)
        }
    }

    /// Reads the request and closes the connection without an answer.
    pub fn cut() -> Self {
        Self {
            manner: Manner::Cut,
            ..Self::status(200)
        }
    }

    /// Adds a header.
    pub fn header(mut self, name: &str, value: &str) -> Self {
        self.headers.push((name.to_owned(), value.to_owned()));
        self
    }

    /// Sets the body.
    pub fn body(mut self, body: impl Into<Vec<u8>>) -> Self {
        self.body = body.into();
        self
    }

    /// Waits this long before it answers, or cuts.
    pub fn after(mut self, delay: Duration) -> Self {
        self.delay = delay;
        self
    }
}

/// A request as it came.
#[derive(Clone, Debug)]
pub struct Recorded {
    /// The method.
    pub method: Method,
    /// Path and query.
    pub path: String,
    /// All headers.
    pub headers: HeaderMap,
    /// The body.
    pub body: Bytes,
    /// The time at which its last byte arrived, on the host's clock.
    pub at: SystemTime,
}

impl Recorded {
    /// The value of a header; empty if it is missing or no text.
    pub fn header(&self, name: &str) -> &str {
        let value = self.headers.get(name).and_then(|value| value.to_str().ok());
        value.unwrap_or_default()
    }
}

type Mind = Box<dyn FnMut(&Recorded) -> Answer + Send>;

struct Script {
    answers: VecDeque<Answer>,
    mind: Mind,
    requests: Vec<Recorded>,
}

/// A running target; dropping it closes its port and its connections.
pub struct Webhook {
    port: u16,
    script: Arc<Mutex<Script>>,
    _running: DropGuard,
}

impl Webhook {
    /// Starts a target that sends these answers one after the other, in the order of the requests, and 200 from then
    /// on.
    pub async fn start(answers: impl IntoIterator<Item = Answer>) -> Self {
        let hook = Self::answering(|_| Answer::status(200)).await;
        hook.then(answers);
        hook
    }

    /// Starts a target that answers each request as `mind` says; it is called for one request at a time.
    pub async fn answering(mind: impl FnMut(&Recorded) -> Answer + Send + 'static) -> Self {
        let bind = runtime::handle().spawn(TcpListener::bind(loopback(0)));
        let listener = bind.await.expect("the harness runtime runs");
        let listener = listener.expect("a loopback port is free");
        let port = listener
            .local_addr()
            .expect("a bound listener has an address")
            .port();
        let script = Arc::new(Mutex::new(Script {
            answers: VecDeque::new(),
            mind: Box::new(mind),
            requests: Vec::new(),
        }));
        let running = CancellationToken::new();
        let serve = serve(listener, script.clone(), running.clone());
        runtime::handle().spawn(running.clone().run_until_cancelled_owned(serve));
        Self {
            port,
            script,
            _running: running.drop_guard(),
        }
    }

    /// The URL of the target: `http://127.0.0.1:PORT/hook`. Every other path is answered alike.
    pub fn url(&self) -> String {
        format!("http://{}/hook", loopback(self.port))
    }

    /// Adds answers after those not yet sent.
    pub fn then(&self, answers: impl IntoIterator<Item = Answer>) {
        lock(&self.script).answers.extend(answers);
    }

    /// The requests so far, in the order of their arrival.
    pub fn requests(&self) -> Vec<Recorded> {
        lock(&self.script).requests.clone()
    }

    /// Returns the number of requests that have arrived.
    pub fn count(&self) -> usize {
        lock(&self.script).requests.len()
    }
}

fn lock(script: &Mutex<Script>) -> MutexGuard<'_, Script> {
    script
        .lock()
        .expect("nothing panics while it holds the script")
}

async fn serve(listener: TcpListener, script: Arc<Mutex<Script>>, running: CancellationToken) {
    loop {
        let Ok((stream, _)) = listener.accept().await else {
            continue;
        };
        let script = script.clone();
        let answer = service_fn(move |request| answer(request, script.clone()));
        let connection = http1::Builder::new().serve_connection(TokioIo::new(stream), answer);
        runtime::handle().spawn(running.clone().run_until_cancelled_owned(connection));
    }
}

/// An error makes hyper close the connection without an answer.
async fn answer(
    request: Request<Incoming>,
    script: Arc<Mutex<Script>>,
) -> io::Result<Response<Body>> {
    let (head, body) = request.into_parts();
    let body = to_bytes(Body::new(body), usize::MAX)
        .await
        .map_err(io::Error::other)?;
    let answer = {
        let request = Recorded {
            method: head.method,
            path: head.uri.to_string(),
            headers: head.headers,
            body,
            at: SystemTime::now(),
        };
        let mut script = lock(&script);
        let answer = match script.answers.pop_front() {
            Some(answer) => answer,
            None => (script.mind)(&request),
        };
        script.requests.push(request);
        answer
    };
    tokio::time::sleep(answer.delay).await;
    match answer.manner {
        Manner::Reply => {}
        Manner::Hang => std::future::pending().await,
        Manner::Cut => return Err(io::Error::other("cut as the test asks")),
    }
    let status = StatusCode::from_u16(answer.status).map_err(io::Error::other)?;
    let mut response = Response::builder().status(status);
    for (name, value) in &answer.headers {
        response = response.header(name, value);
    }
    response
        .body(Body::from(answer.body))
        .map_err(io::Error::other)
}
