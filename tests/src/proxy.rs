//! A TCP proxy on loopback that stands between a role and a server and misbehaves on request. It does not look into the
//! bytes: what it counts are bytes and connections.

use crate::port::{free_port, loopback};
use crate::runtime;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::tcp::{ReadHalf, WriteHalf};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{Mutex, watch};
use tokio::time::sleep;
use tokio_util::sync::{CancellationToken, DropGuard};

/// The proxy's treatment of connections and bytes, existing and future ones alike.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mode {
    /// Everything passes.
    Pass,
    /// A partition: connections are accepted and kept open, nothing is read, nothing is answered. Bytes under way
    /// continue when the mode changes, as in TCP when a network heals.
    BlackHole,
    /// Refuses connections, and resets the open ones.
    Refuse,
    /// Each connection passes this many more bytes towards the server, and is reset when one more comes. With 0 the
    /// next request is lost.
    CutRequestsAfter(usize),
    /// Each connection passes this many more bytes towards the client, and is reset when one more comes. With 0 the
    /// next request is carried out, and its reply is lost.
    CutRepliesAfter(usize),
    /// Each chunk waits this long before it passes, in either direction: a round trip costs twice this.
    Delay(Duration),
    /// All connections together pass this many bytes per second in each direction, in turns: a slow network.
    Rate(u32),
    /// Requests pass, replies vanish. When the mode changes, the connections are reset: no network would continue with
    /// the reply after a lost one, and a reply that the proxy has yet to read is lost, too.
    SwallowReplies,
}

/// The mode, with a number that grows at each change so that a byte limit counts from the change.
#[derive(Clone, Copy, Debug)]
struct Setting {
    mode: Mode,
    change: usize,
    /// The number of times that all open connections were cut.
    cuts: usize,
}

/// The most bytes that pass at once in [`Mode::Rate`].
const CHUNK: usize = 8 * 1024;

/// The two directions of a slow network: a chunk passes when those before it in line have passed.
#[derive(Debug, Default)]
struct Network {
    requests: Mutex<()>,
    replies: Mutex<()>,
}

#[derive(Debug, Default)]
struct Counters {
    accepted: AtomicUsize,
    open: AtomicUsize,
}

/// A running proxy; dropping it closes its connections and its port.
#[derive(Debug)]
pub struct FaultProxy {
    port: u16,
    setting: watch::Sender<Setting>,
    /// The last change that the listener has acted on.
    applied: watch::Receiver<usize>,
    counters: Arc<Counters>,
    _running: DropGuard,
}

impl FaultProxy {
    /// Starts a proxy before the loopback port `upstream`, in mode [`Mode::Pass`].
    pub async fn start(upstream: u16) -> Self {
        let (port, listener) = loop {
            let port = free_port();
            let bound = runtime::handle()
                .spawn(TcpListener::bind(loopback(port)))
                .await;
            if let Ok(Ok(listener)) = bound {
                break (port, listener);
            }
        };
        let (setting, settings) = watch::channel(Setting {
            mode: Mode::Pass,
            change: 0,
            cuts: 0,
        });
        let (applied_sender, applied) = watch::channel(0);
        let counters = Arc::new(Counters::default());
        let running = CancellationToken::new();
        let door = Door {
            port,
            upstream: loopback(upstream),
            counters: counters.clone(),
            network: Arc::default(),
            settings,
            applied: applied_sender,
            running: running.clone(),
        };
        runtime::handle().spawn(
            running
                .clone()
                .run_until_cancelled_owned(door.serve(listener)),
        );
        Self {
            port,
            setting,
            applied,
            counters,
            _running: running.drop_guard(),
        }
    }

    /// The loopback port that clients connect to; [`Server::url_through`](crate::Server::url_through) makes it a URL.
    pub fn port(&self) -> u16 {
        self.port
    }

    /// Changes the mode. When this returns, no byte read from now on passes by the old one, and the new one applies to
    /// each new connection.
    pub async fn set(&self, mode: Mode) {
        self.change(|setting| {
            if setting.mode == Mode::SwallowReplies && mode != Mode::SwallowReplies {
                setting.cuts += 1;
            }
            setting.mode = mode;
        })
        .await;
    }

    /// Resets all present connections; the mode stays.
    pub async fn cut(&self) {
        self.change(|setting| setting.cuts += 1).await;
    }

    /// Returns the number of connections accepted so far.
    pub fn accepted(&self) -> usize {
        self.counters.accepted.load(Ordering::SeqCst)
    }

    /// Returns the number of connections open now.
    pub fn open(&self) -> usize {
        self.counters.open.load(Ordering::SeqCst)
    }

    async fn change(&self, apply: impl FnOnce(&mut Setting)) {
        self.setting.send_modify(|setting| {
            apply(setting);
            setting.change += 1;
        });
        let change = self.setting.borrow().change;
        let mut applied = self.applied.clone();
        let reached = applied.wait_for(|done| *done >= change).await;
        reached.expect("the proxy runs as long as its handle");
    }
}

/// The listening side.
struct Door {
    port: u16,
    upstream: SocketAddr,
    counters: Arc<Counters>,
    network: Arc<Network>,
    settings: watch::Receiver<Setting>,
    applied: watch::Sender<usize>,
    running: CancellationToken,
}

impl Door {
    async fn serve(mut self, listener: TcpListener) {
        let mut listener = Some(listener);
        loop {
            let Setting { mode, change, .. } = *self.settings.borrow_and_update();
            if mode == Mode::Refuse {
                listener = None;
            } else if listener.is_none() {
                let bound = TcpListener::bind(loopback(self.port)).await;
                listener = Some(bound.expect("the proxy's port is free again"));
            }
            self.applied.send_replace(change);
            let accept = async {
                match &listener {
                    Some(listener) => listener.accept().await,
                    None => std::future::pending().await,
                }
            };
            tokio::select! {
                biased;
                changed = self.settings.changed() => if changed.is_err() { return },
                accepted = accept => if let Ok((client, _)) = accepted { self.admit(client) },
            }
        }
    }

    fn admit(&self, client: TcpStream) {
        let counters = self.counters.clone();
        counters.accepted.fetch_add(1, Ordering::SeqCst);
        counters.open.fetch_add(1, Ordering::SeqCst);
        let (network, settings) = (self.network.clone(), self.settings.clone());
        let carry = relay(client, self.upstream, network, settings);
        let running = self.running.clone();
        runtime::handle().spawn(async move {
            running.run_until_cancelled(carry).await;
            counters.open.fetch_sub(1, Ordering::SeqCst);
        });
    }
}

/// Carries one connection to its end. The client sees a reset if the proxy ended it, a close if the server did.
async fn relay(
    mut client: TcpStream,
    upstream: SocketAddr,
    network: Arc<Network>,
    mut settings: watch::Receiver<Setting>,
) {
    let cuts = settings.borrow().cuts;
    let mut cut = settings.clone();
    let carry = async {
        // Even the connect waits: behind a partition the server would not see it.
        let open = settings
            .wait_for(|setting| setting.mode != Mode::BlackHole)
            .await
            .is_ok();
        if !open {
            return End::Reset;
        }
        let Ok(mut server) = TcpStream::connect(upstream).await else {
            return End::Reset;
        };
        let _ = client.set_nodelay(true);
        let _ = server.set_nodelay(true);
        let (from_client, to_client) = client.split();
        let (from_server, to_server) = server.split();
        tokio::select! {
            end = pump(Direction::Requests, from_client, to_server, &network, settings.clone()) => end,
            end = pump(Direction::Replies, from_server, to_client, &network, settings.clone()) => end,
        }
    };
    let end = tokio::select! {
        biased; // nothing passes after a cut
        _ = cut.wait_for(|setting| setting.cuts != cuts || setting.mode == Mode::Refuse) => End::Reset,
        end = carry => end,
    };
    if end == End::Reset {
        let _ = client.set_zero_linger();
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Direction {
    Requests,
    Replies,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum End {
    Closed,
    Reset,
}

/// Carries one direction of a connection until one side closes or the mode ends it.
async fn pump(
    direction: Direction,
    mut from: ReadHalf<'_>,
    mut to: WriteHalf<'_>,
    network: &Network,
    mut settings: watch::Receiver<Setting>,
) -> End {
    let mut held = Vec::with_capacity(64 * 1024);
    let mut passed = 0;
    let mut counted = settings.borrow().change;
    loop {
        let Setting { mode, change, .. } = *settings.borrow_and_update();
        if change != counted {
            (counted, passed) = (change, 0);
        }
        if mode == Mode::BlackHole {
            if settings.changed().await.is_err() {
                return End::Reset;
            }
            continue;
        }
        if held.is_empty() {
            tokio::select! {
                biased;
                changed = settings.changed() => if changed.is_err() { return End::Reset },
                read = from.read_buf(&mut held) => if !matches!(read, Ok(1..)) { return End::Closed },
            }
            continue; // the mode may have changed while it read
        }
        let room = match (mode, direction) {
            (Mode::CutRequestsAfter(limit), Direction::Requests)
            | (Mode::CutRepliesAfter(limit), Direction::Replies) => limit - passed,
            (Mode::SwallowReplies, Direction::Replies) => {
                held.clear();
                continue;
            }
            (Mode::Delay(pause), _) => tokio::select! {
                _ = settings.changed() => continue,
                () = sleep(pause) => held.len(),
            },
            (Mode::Rate(rate), direction) => {
                let chunk = held.len().min(CHUNK);
                let line = match direction {
                    Direction::Requests => &network.requests,
                    Direction::Replies => &network.replies,
                };
                let turn = line.lock().await;
                sleep(Duration::from_secs(chunk as u64) / rate).await;
                drop(turn);
                if to.write_all(&held[..chunk]).await.is_err() {
                    return End::Closed;
                }
                held.drain(..chunk);
                continue;
            }
            _ => held.len(),
        };
        let chunk = room.min(held.len());
        if to.write_all(&held[..chunk]).await.is_err() {
            return End::Closed;
        }
        if chunk < held.len() {
            return End::Reset;
        }
        passed += chunk;
        held.clear();
    }
}
