//! The protocol between the driver and the peer programs; the Rust programs share this file.
//!
//! A program is started with `ADDRESS send bulk|single N DELAY_MS RATE` or `ADDRESS work [HANDLERS]`. It prepares itself and
//! prints `ready`; the driver answers `go`. A sender sends `N` messages with the delay, in bulk or one a call from
//! several callers, `RATE` a second (0: as fast as it can), and prints `sent SECONDS`. A worker handles what is due and
//! prints `handled COUNT UNIX_MS`, the time of the last one, at most every 20 ms. At the end of its standard input a
//! program ends; a worker first prints `late` and how late each message was, in ms.
//!
//! A message is 100 bytes and begins with the Unix time in ms at which it is due, by the clock of its sender.

use std::io::{BufRead, Write};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

/// Bytes of a message.
pub(crate) const SIZE: usize = 100;
/// The number of callers that send one message each at a time.
pub(crate) const CALLERS: usize = 50;

/// The task of a program.
pub(crate) enum Mode {
    /// Send.
    Send(Plan),
    /// Handle what is due until the end.
    Work,
}

/// The messages to send.
#[derive(Clone, Copy)]
pub(crate) struct Plan {
    /// In bulk, or one message per call.
    pub(crate) bulk: bool,
    /// The number of messages.
    pub(crate) n: usize,
    /// The delay from the call to the due time.
    pub(crate) delay: Duration,
    /// Messages per second, or 0.
    pub(crate) rate: usize,
}

/// Reads the address and the mode.
///
/// # Panics
/// Panics if they are malformed: only the driver starts a program.
pub(crate) fn arguments(mut args: impl Iterator<Item = String>) -> (String, Mode) {
    let address = args.next().expect("an address");
    let rest: Vec<String> = args.collect();
    let number = |index: usize| -> usize { rest[index].parse().expect("a number") };
    let mode = match rest.first().map(String::as_str) {
        Some("send") => Mode::Send(Plan {
            bulk: rest[1] == "bulk",
            n: number(2),
            delay: Duration::from_millis(number(3) as u64),
            rate: number(4),
        }),
        Some("work") => Mode::Work,
        other => panic!("no mode: {other:?}"),
    };
    (address, mode)
}

/// Unix time, ms.
pub(crate) fn now_ms() -> f64 {
    let now = SystemTime::now().duration_since(UNIX_EPOCH);
    now.map_or(0.0, |since| since.as_secs_f64() * 1e3)
}

/// A message that is due after `delay`.
pub(crate) fn message(delay: Duration) -> String {
    let due = now_ms() as u64 + delay.as_millis() as u64;
    format!("{:x<SIZE$}", format!("{due} "))
}

/// The Unix time at which a message is due, ms.
pub(crate) fn due_ms(message: &[u8]) -> i64 {
    let digits = message.iter().take_while(|byte| byte.is_ascii_digit());
    digits.fold(0, |due, byte| due * 10 + i64::from(byte - b'0'))
}

/// Reports that the program is ready, and waits for the driver.
pub(crate) fn await_go() {
    say("ready");
    let _ = std::io::stdin().lock().read_line(&mut String::new());
}

/// Reports how long the sending took, and waits for the end.
pub(crate) fn sent(since: Instant) {
    say(&format!("sent {:.6}", since.elapsed().as_secs_f64()));
    await_end();
}

/// Returns the time at which the next message of a paced sender is to go out.
pub(crate) fn due_out(start: Instant, out: usize, rate: usize) -> Instant {
    start + Duration::from_secs_f64(out as f64 / rate as f64)
}

/// Sends batches of these sizes at the plan's rate, a hundred a second.
pub(crate) async fn send_at_rate(start: Instant, plan: Plan, mut batch: impl AsyncFnMut(usize)) {
    let per_tick = (plan.rate / 100).max(1);
    for out in (0..plan.n).step_by(per_tick) {
        tokio::time::sleep_until(due_out(start, out, plan.rate).into()).await;
        batch(per_tick.min(plan.n - out)).await;
    }
}

/// The messages that the handlers have seen. Cheap to clone.
#[derive(Clone, Default)]
pub(crate) struct Tally(Arc<Mutex<Seen>>);

#[derive(Default)]
struct Seen {
    late: Vec<i64>,
    last: f64,
}

impl Tally {
    /// The whole work of a handler.
    pub(crate) fn handle(&self, message: &[u8]) {
        let now = now_ms();
        let mut seen = self.seen();
        seen.late.push(now as i64 - due_ms(message));
        seen.last = now;
    }

    /// Starts threads that report to the driver, and end the process when the driver says so.
    pub(crate) fn watch(&self) {
        let (teller, ender) = (self.clone(), self.clone());
        std::thread::spawn(move || teller.tell());
        std::thread::spawn(move || {
            await_end();
            let late = ender.seen().late.clone();
            let late: Vec<String> = late.iter().map(ToString::to_string).collect();
            say(&format!("late {}", late.join(" ")));
            std::process::exit(0);
        });
    }

    fn tell(&self) {
        let mut told = 0;
        loop {
            std::thread::sleep(Duration::from_millis(20));
            let (count, last) = {
                let seen = self.seen();
                (seen.late.len(), seen.last)
            };
            if count > told {
                told = count;
                say(&format!("handled {count} {last:.3}"));
            }
        }
    }

    fn seen(&self) -> std::sync::MutexGuard<'_, Seen> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn await_end() {
    let _ = std::io::copy(&mut std::io::stdin().lock(), &mut std::io::sink());
}

fn say(line: &str) {
    let mut out = std::io::stdout().lock();
    // The driver may have gone; then the end of standard input ends this process too.
    let _ = writeln!(out, "{line}").and_then(|()| out.flush());
}
