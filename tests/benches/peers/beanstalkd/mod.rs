//! beanstalkd, by a client that pipelines: bulk puts 500 jobs a write; a worker asks for up to 500 jobs with one write
//! and deletes them with the next, on two connections. Its delays are whole seconds.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::time::{Duration, Instant};

use crate::protocol::{self, CALLERS, Mode, Plan, Tally};

const BATCH: usize = 500;
const WINDOW: usize = 500;
const CONNECTIONS: usize = 2;

/// Runs as the program of this peer.
pub(crate) fn run(address: &str, mode: &Mode) {
    match mode {
        Mode::Send(plan) => send(address, *plan),
        Mode::Work => work(address),
    }
}

fn send(address: &str, plan: Plan) {
    if plan.rate == 0 && !plan.bulk {
        let connections: Vec<_> = (0..CALLERS).map(|_| Connection::open(address)).collect();
        protocol::await_go();
        let start = Instant::now();
        std::thread::scope(|scope| {
            for mut connection in connections {
                scope.spawn(move || {
                    for _ in 0..plan.n / CALLERS {
                        connection.put(1, plan.delay);
                    }
                });
            }
        });
        return protocol::sent(start);
    }
    let mut connection = Connection::open(address);
    protocol::await_go();
    let start = Instant::now();
    let size = match plan.rate {
        0 => BATCH,
        rate => (rate / 100).max(1),
    };
    for out in (0..plan.n).step_by(size) {
        if plan.rate > 0 {
            let at = protocol::due_out(start, out, plan.rate);
            std::thread::sleep(at.saturating_duration_since(Instant::now()));
        }
        connection.put(size.min(plan.n - out), plan.delay);
    }
    protocol::sent(start);
}

fn work(address: &str) {
    let tally = Tally::default();
    let connections: Vec<_> = (0..CONNECTIONS)
        .map(|_| Connection::open(address))
        .collect();
    protocol::await_go();
    tally.watch();
    std::thread::scope(|scope| {
        for mut connection in connections {
            let tally = tally.clone();
            scope.spawn(move || connection.work(&tally));
        }
    });
}

struct Connection {
    replies: BufReader<TcpStream>,
    out: Vec<u8>,
}

impl Connection {
    fn open(address: &str) -> Self {
        let stream = TcpStream::connect(address).expect("beanstalkd listens");
        stream.set_nodelay(true).expect("a socket");
        Self {
            replies: BufReader::with_capacity(1 << 16, stream),
            out: Vec::new(),
        }
    }

    fn put(&mut self, size: usize, delay: Duration) {
        for _ in 0..size {
            let message = protocol::message(delay);
            let (delay, bytes) = (delay.as_secs(), message.len());
            write!(self.out, "put 0 {delay} 60 {bytes}\r\n{message}\r\n").expect("memory");
        }
        self.flush();
        for _ in 0..size {
            let reply = self.reply();
            assert!(reply.starts_with("INSERTED"), "{reply}");
        }
    }

    /// A round is one write: it deletes the jobs of the last round, waits for a job, and takes the others that are
    /// ready. The deletions come first, so none waits for a job.
    fn work(&mut self, tally: &Tally) {
        let (mut window, mut taken) = (WINDOW, 0);
        let mut message = Vec::new();
        loop {
            self.out.extend_from_slice(b"reserve\r\n");
            for _ in 1..window {
                self.out.extend_from_slice(b"reserve-with-timeout 0\r\n");
            }
            self.flush();
            for _ in 0..taken {
                let reply = self.reply();
                assert_eq!(reply, "DELETED");
            }
            taken = 0;
            for _ in 0..window {
                let reply = self.reply();
                let Some(job) = reply.strip_prefix("RESERVED ") else {
                    assert_eq!(reply, "TIMED_OUT");
                    continue;
                };
                let (id, bytes) = job.split_once(' ').expect("an id and a length");
                message.resize(bytes.parse::<usize>().expect("a length") + 2, 0);
                self.replies.read_exact(&mut message).expect("a body");
                tally.handle(&message);
                write!(self.out, "delete {id}\r\n").expect("memory");
                taken += 1;
            }
            window = (2 * taken).clamp(1, WINDOW);
        }
    }

    fn flush(&mut self) {
        let stream = self.replies.get_mut();
        stream.write_all(&self.out).expect("beanstalkd reads");
        self.out.clear();
    }

    fn reply(&mut self) -> String {
        let mut line = String::new();
        self.replies.read_line(&mut line).expect("a reply");
        assert!(!line.is_empty(), "beanstalkd has gone");
        line.truncate(line.trim_end().len());
        line
    }
}
