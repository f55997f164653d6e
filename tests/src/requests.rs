//! A TCP proxy on loopback that knows where a request and a reply of Redis begin and end. It can answer a request
//! itself, replace its reply, or hold it before or behind the server. The test decides for each request.
//!
//! Its companion [`FaultProxy`](crate::FaultProxy) breaks connections and does not look into the bytes.

use crate::port::{free_port, loopback};
use crate::runtime;
use std::collections::VecDeque;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;
use tokio::time::timeout;
use tokio_util::sync::{CancellationToken, DropGuard};

/// The outcome of one request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Fate {
    /// It passes, and so does its reply.
    Pass,
    /// The server never sees it; these bytes are its reply.
    Answer(String),
    /// It passes; these bytes take the place of its reply.
    Replace(String),
    /// The server never sees it, and nothing else of its connection passes any more.
    HoldRequest,
    /// It passes, but not its reply, and nothing else of its connection does any more. An empty reply (nil) passes: a
    /// read that found nothing is not worth holding.
    HoldReply,
}

/// A request as a test sees it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Request {
    /// The command and its arguments.
    pub words: Vec<Vec<u8>>,
}

impl Request {
    /// The command, in capitals.
    pub fn command(&self) -> String {
        self.word(0).to_uppercase()
    }

    /// A word as text; empty where there are fewer.
    pub fn word(&self, index: usize) -> String {
        let word = self.words.get(index).map(Vec::as_slice).unwrap_or_default();
        String::from_utf8_lossy(word).into_owned()
    }
}

type Judge = dyn Fn(&Request) -> Fate + Send + Sync;

/// A running proxy; dropping it closes its connections and its port.
#[derive(Debug)]
pub struct RequestProxy {
    port: u16,
    held: watch::Receiver<Option<Request>>,
    _running: DropGuard,
}

impl RequestProxy {
    /// Starts a proxy before the loopback port `upstream`. `judge` is asked about each request once, on each connection
    /// in their order.
    pub async fn start(
        upstream: u16,
        judge: impl Fn(&Request) -> Fate + Send + Sync + 'static,
    ) -> Self {
        let (port, listener) = loop {
            let port = free_port();
            let bound = runtime::handle()
                .spawn(TcpListener::bind(loopback(port)))
                .await;
            if let Ok(Ok(listener)) = bound {
                break (port, listener);
            }
        };
        let (hold, held) = watch::channel(None);
        let running = CancellationToken::new();
        let serve = serve(listener, upstream, Arc::new(judge), hold, running.clone());
        runtime::handle().spawn(running.clone().run_until_cancelled_owned(serve));
        Self {
            port,
            held,
            _running: running.drop_guard(),
        }
    }

    /// The loopback port that clients connect to.
    pub fn port(&self) -> u16 {
        self.port
    }

    /// The first request that is held, if any is.
    pub fn holds(&self) -> Option<Request> {
        self.held.borrow().clone()
    }

    /// Waits until a request is held. `None` when none is within `call_timeout`.
    pub async fn held(&self, call_timeout: Duration) -> Option<Request> {
        let mut held = self.held.clone();
        match timeout(call_timeout, held.wait_for(Option::is_some)).await {
            Ok(Ok(held)) => held.clone(),
            _ => None,
        }
    }
}

async fn serve(
    listener: TcpListener,
    upstream: u16,
    judge: Arc<Judge>,
    hold: watch::Sender<Option<Request>>,
    running: CancellationToken,
) {
    while let Ok((client, _)) = listener.accept().await {
        let carry = carry(client, loopback(upstream), judge.clone(), hold.clone());
        let running = running.clone();
        runtime::handle().spawn(async move { running.run_until_cancelled(carry).await });
    }
}

/// Carries one connection until either side closes it.
async fn carry(
    mut client: TcpStream,
    upstream: SocketAddr,
    judge: Arc<Judge>,
    hold: watch::Sender<Option<Request>>,
) {
    let Ok(mut server) = TcpStream::connect(upstream).await else {
        return;
    };
    let _ = client.set_nodelay(true);
    let _ = server.set_nodelay(true);
    let (mut requests, mut replies) = (Vec::new(), Vec::new());
    // The fates of the requests without a reply yet, in their order.
    let mut open: VecDeque<(Fate, Request)> = VecDeque::new();
    let mut is_held = false;
    loop {
        tokio::select! {
            read = client.read_buf(&mut requests) => if !matches!(read, Ok(1..)) { return },
            read = server.read_buf(&mut replies) => if !matches!(read, Ok(1..)) { return },
        }
        let mut to_server = Vec::new();
        while let Some((request, length)) = (!is_held).then(|| parse(&requests)).flatten() {
            let fate = judge(&request);
            match fate {
                Fate::HoldRequest => {
                    is_held = true;
                    note(&hold, &request);
                }
                Fate::Answer(_) => {}
                Fate::Pass | Fate::Replace(_) | Fate::HoldReply => {
                    to_server.extend_from_slice(&requests[..length]);
                }
            }
            requests.drain(..length);
            open.push_back((fate, request));
        }
        if !to_server.is_empty() && server.write_all(&to_server).await.is_err() {
            return;
        }
        let mut to_client = Vec::new();
        loop {
            match open.front() {
                Some((Fate::HoldRequest, _)) => break,
                Some((Fate::Answer(answer), _)) => {
                    to_client.extend_from_slice(answer.as_bytes());
                    open.pop_front();
                    continue;
                }
                _ => {}
            }
            let Some(length) = reply_length(&replies) else {
                break;
            };
            let reply = &replies[..length];
            // A message that the server pushes by itself is no reply.
            let answers = (reply[0] != b'>').then(|| open.front()).flatten();
            match answers {
                Some((Fate::HoldReply, request)) if !is_nil(reply) => {
                    is_held = true;
                    note(&hold, request);
                    break;
                }
                Some((Fate::Replace(other), _)) => to_client.extend_from_slice(other.as_bytes()),
                _ => to_client.extend_from_slice(reply),
            }
            if answers.is_some() {
                open.pop_front();
            }
            replies.drain(..length);
        }
        if !to_client.is_empty() && client.write_all(&to_client).await.is_err() {
            return;
        }
    }
}

fn note(hold: &watch::Sender<Option<Request>>, request: &Request) {
    hold.send_if_modified(|held| {
        let is_first = held.is_none();
        held.get_or_insert_with(|| request.clone());
        is_first
    });
}

/// Reads a request, an array of bulk strings, and returns it with its length. `None` while it is not complete.
///
/// # Panics
/// Panics if it is not a request: clients speak no other form.
fn parse(bytes: &[u8]) -> Option<(Request, usize)> {
    let (count, mut at) = number(bytes, b'*')?;
    let mut words = Vec::new();
    for _ in 0..count {
        let (length, begin) = number(bytes.get(at..)?, b'$')?;
        let begin = at + begin;
        let length = usize::try_from(length).expect("a length");
        words.push(bytes.get(begin..begin + length)?.to_vec());
        at = begin + length + 2;
    }
    (at <= bytes.len()).then_some((Request { words }, at))
}

/// Reads `*3\r\n`: the number, and where the next line begins.
fn number(bytes: &[u8], kind: u8) -> Option<(i64, usize)> {
    let end = line_end(bytes)?;
    assert_eq!(bytes[0], kind, "{:?}", String::from_utf8_lossy(bytes));
    let text = std::str::from_utf8(&bytes[1..end - 2]).expect("a number");
    Some((text.parse().expect("a number"), end))
}

fn line_end(bytes: &[u8]) -> Option<usize> {
    let end = bytes.windows(2).position(|pair| pair == b"\r\n")?;
    Some(end + 2)
}

fn is_nil(reply: &[u8]) -> bool {
    [b"*-1\r\n".as_slice(), b"$-1\r\n", b"_\r\n"].contains(&reply)
}

/// The length of the reply that the bytes begin with, in either protocol; `None` while it is not complete.
fn reply_length(bytes: &[u8]) -> Option<usize> {
    let mut at = line_end(bytes)?;
    let kind = bytes[0];
    let items = match kind {
        b'$' | b'!' | b'=' => {
            let (length, _) = number(bytes, kind)?;
            // -1 is nil: nothing follows.
            let body = usize::try_from(length).map_or(0, |length| length + 2);
            return (at + body <= bytes.len()).then_some(at + body);
        }
        b'*' | b'~' | b'>' => number(bytes, kind)?.0.max(0),
        b'%' => number(bytes, kind)?.0 * 2,
        _ => 0,
    };
    for _ in 0..items {
        at += reply_length(bytes.get(at..)?)?;
    }
    Some(at)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_request_is_read_only_when_all_of_it_is_there() {
        let bytes = b"*2\r\n$3\r\nGET\r\n$4\r\na\r\nb\r\n*1\r\n";
        for end in 0..bytes.len() - 4 {
            assert_eq!(parse(&bytes[..end]), None, "{end}");
        }
        let (request, length) = parse(bytes).unwrap();
        assert_eq!(
            (request.command(), request.word(1)),
            ("GET".to_owned(), "a\r\nb".to_owned())
        );
        assert_eq!(length, bytes.len() - 4);
    }

    #[test]
    fn a_reply_of_any_form_has_its_length() {
        for reply in [
            "+OK\r\n",
            "-ERR no\r\n",
            ":1\r\n",
            "$-1\r\n",
            "*-1\r\n",
            "_\r\n",
            "$0\r\n\r\n",
            "*0\r\n",
            "*3\r\n$2\r\nab\r\n*2\r\n:1\r\n*-1\r\n$4\r\n\r\n\r\n\r\n",
            "%1\r\n+a\r\n>2\r\n+b\r\n,1.5\r\n",
        ] {
            let more = format!("{reply}+");
            assert_eq!(
                reply_length(more.as_bytes()),
                Some(reply.len()),
                "{reply:?}"
            );
            for end in 0..reply.len() {
                assert_eq!(reply_length(&reply.as_bytes()[..end]), None, "{reply:?}");
            }
        }
    }
}
