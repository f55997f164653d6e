//! The measurements of a peer, one function per stage, each on a fresh server.

use std::time::{Duration, Instant};

use crate::peers::{Install, Peer};
use crate::program::Program;
use crate::protocol::now_ms;
use crate::store::Store;

/// The time limit of a stage of a peer.
const PATIENCE: Duration = Duration::from_secs(90);
const HOUR: Duration = Duration::from_secs(3600);
/// Messages per second, and their delay, where lateness is measured.
pub(crate) const RATE: usize = 500;
pub(crate) const LATENESS_DELAY: Duration = Duration::from_secs(1);

/// The amount of work.
#[derive(Clone, Copy)]
pub(crate) struct Scale {
    /// The peers' own numbers of messages are divided by this.
    pub(crate) divisor: usize,
    /// The time during which messages are sent where lateness is measured.
    pub(crate) lateness: Duration,
    /// The time during which an idle worker is watched.
    pub(crate) idle: Duration,
}

/// The speed of a stage.
#[derive(Clone, Copy)]
pub(crate) struct Speed {
    /// Messages a second.
    pub(crate) rate: f64,
    /// CPU of the server, µs a message.
    pub(crate) cpu: f64,
    /// CPU of the client, µs a message.
    pub(crate) client: f64,
    /// CPU of the manager with its producer, and of the gateway, µs a message; 0 for other servers.
    pub(crate) programs: [f64; 2],
}

/// CPU seconds.
struct Cpu {
    server: f64,
    client: f64,
    programs: [f64; 2],
}

impl Cpu {
    fn of(store: &Store, clients: &[Program]) -> Result<Self, String> {
        Ok(Self {
            server: store.cpu()?,
            client: clients.iter().map(Program::cpu).sum::<Result<_, _>>()?,
            programs: store.programs_cpu()?,
        })
    }

    /// The speed of `n` messages, from the CPU before and after them.
    fn speed(&self, after: &Self, n: usize, seconds: f64) -> Speed {
        let each = |before: f64, after: f64| (after - before) * 1e6 / n as f64;
        Speed {
            rate: n as f64 / seconds,
            cpu: each(self.server, after.server),
            client: each(self.client, after.client),
            programs: [0, 1].map(|at| each(self.programs[at], after.programs[at])),
        }
    }
}

/// Sends `n` messages that are due in an hour.
pub(crate) fn send(
    peer: &Peer,
    install: &Install,
    bulk: bool,
    scale: Scale,
) -> Result<Speed, String> {
    let n = if bulk { peer.bulk } else { peer.single } / scale.divisor;
    let store = peer.store()?;
    let mut senders = [sender(peer, install, &store, bulk, n, HOUR, 0)?];
    let before = Cpu::of(&store, &senders)?;
    senders[0].go()?;
    let seconds = senders[0].sent(Instant::now() + PATIENCE)?;
    Ok(before.speed(&Cpu::of(&store, &senders)?, n, seconds))
}

/// Handles and settles `n` messages that were due before the worker started.
///
/// The CPU counts from the end of the sending: some servers move what is due without a worker. Without `handlers`, the
/// peer's own number of them runs at once.
pub(crate) fn drain(
    peer: &Peer,
    install: &Install,
    workers: usize,
    handlers: Option<usize>,
    n: usize,
    call_timeout: Duration,
) -> Result<Speed, String> {
    let store = peer.store()?;
    let mut sender = sender(peer, install, &store, peer.bulk > 0, n, peer.least_delay, 0)?;
    sender.go()?;
    sender.sent(Instant::now() + PATIENCE)?;
    let before = Cpu::of(&store, &[])?;
    drop(sender);
    std::thread::sleep(peer.least_delay * 2 + Duration::from_millis(200));
    let mut workers = start(peer, install, &store, workers, handlers)?;
    let ready = Cpu::of(&store, &workers)?;
    let before = Cpu {
        client: ready.client,
        ..before
    };
    let start = now_ms();
    for worker in &mut workers {
        worker.go()?;
    }
    let handled = all_handled(&mut workers, n, call_timeout)?;
    let settled = all_settled(&store)?;
    let seconds = (settled.max(handled) - start) / 1e3;
    Ok(before.speed(&Cpu::of(&store, &workers)?, n, seconds))
}

/// Returns the lateness of each message when it was handled, in ms, by its sender's clock; a negative value is early.
pub(crate) fn lateness(
    peer: &Peer,
    install: &Install,
    workers: usize,
    scale: Scale,
) -> Result<Vec<i64>, String> {
    let store = peer.store()?;
    let n = RATE * scale.lateness.as_secs() as usize;
    let mut workers = start(peer, install, &store, workers, None)?;
    for worker in &mut workers {
        worker.go()?;
    }
    let mut sender = sender(peer, install, &store, true, n, LATENESS_DELAY, RATE)?;
    std::thread::sleep(Duration::from_secs(1));
    sender.go()?;
    sender.sent(Instant::now() + PATIENCE)?;
    all_handled(&mut workers, n, Duration::from_secs(20))?;
    let mut late = Vec::with_capacity(n);
    for worker in workers {
        late.extend(worker.late()?);
    }
    late.sort_unstable();
    Ok(late)
}

/// Commands a second that the server serves while one worker waits; `None` if it does not count them.
pub(crate) fn idle(peer: &Peer, install: &Install, scale: Scale) -> Result<Option<f64>, String> {
    let store = peer.store()?;
    let mut worker = Program::start(install.command(peer, &store.address(), &["work"]))?;
    worker.go()?;
    std::thread::sleep(Duration::from_secs(2));
    let before = store.commands()?;
    std::thread::sleep(scale.idle);
    let after = store.commands()?;
    // Minus the query itself.
    let served = before
        .zip(after)
        .map(|(before, after)| after - before - 1.0);
    Ok(served.map(|commands| commands.max(0.0) / scale.idle.as_secs_f64()))
}

fn sender(
    peer: &Peer,
    install: &Install,
    store: &Store,
    bulk: bool,
    n: usize,
    delay: Duration,
    rate: usize,
) -> Result<Program, String> {
    let how = if bulk { "bulk" } else { "single" };
    let (n, delay, rate) = (
        n.to_string(),
        delay.as_millis().to_string(),
        rate.to_string(),
    );
    let arguments = ["send", how, &n, &delay, &rate];
    Program::start(install.command(peer, &store.address(), &arguments))
}

fn start(
    peer: &Peer,
    install: &Install,
    store: &Store,
    workers: usize,
    handlers: Option<usize>,
) -> Result<Vec<Program>, String> {
    let handlers = handlers.map(|handlers| handlers.to_string());
    let mut arguments = vec!["work"];
    arguments.extend(handlers.as_deref());
    (0..workers)
        .map(|_| Program::start(install.command(peer, &store.address(), &arguments)))
        .collect()
}

/// Waits until the server has no more work after the last handler, since handled messages must also be settled. Returns
/// the Unix time in ms when that was.
fn all_settled(store: &Store) -> Result<f64, String> {
    let (mut end, mut cpu, mut quiet) = (0.0, store.cpu()?, 0);
    while quiet < 20 {
        let asked = Instant::now();
        std::thread::sleep(Duration::from_millis(5));
        let now = store.cpu()?;
        // An idle server needs some, for its own clock and the poll of its workers.
        if now - cpu > asked.elapsed().as_secs_f64() / 4.0 {
            (end, quiet) = (now_ms(), 0);
        } else {
            quiet += 1;
        }
        cpu = now;
    }
    Ok(end)
}

/// Waits until the workers have handled `n` together; returns the Unix time of the last, in ms.
fn all_handled(workers: &mut [Program], n: usize, call_timeout: Duration) -> Result<f64, String> {
    let deadline = Instant::now() + call_timeout;
    let mut seen = vec![(0, 0.0); workers.len()];
    loop {
        for (worker, seen) in workers.iter_mut().zip(&mut seen) {
            if let Some(news) = worker.handled()? {
                *seen = news;
            }
        }
        let handled: usize = seen.iter().map(|(count, _)| count).sum();
        if handled >= n {
            return Ok(seen.iter().map(|(_, at)| *at).fold(0.0, f64::max));
        }
        if Instant::now() > deadline {
            let seconds = call_timeout.as_secs();
            return Err(format!("{handled} of {n} handled in {seconds} s"));
        }
        std::thread::sleep(Duration::from_millis(5));
    }
}
