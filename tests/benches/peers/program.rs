//! A peer's program as a process, and the conversation with it; see `protocol`.

use std::io::{BufRead, BufReader, Write};
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::time::{Duration, Instant};

use crate::store::Cpu;

/// The time limit for a program to prepare or to end.
const PATIENCE: Duration = Duration::from_secs(30);

/// A running program; killed when dropped.
pub(crate) struct Program {
    cpu: Cpu,
    child: Child,
    input: Option<ChildStdin>,
    lines: Receiver<String>,
}

impl Program {
    /// Starts it and waits until it is prepared.
    pub(crate) fn start(mut command: Command) -> Result<Self, String> {
        let mut child = command
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .map_err(|error| format!("start {:?}: {error}", command.get_program()))?;
        let input = child.stdin.take();
        let output = child.stdout.take().ok_or("no standard output")?;
        let (sender, lines) = channel();
        std::thread::spawn(move || {
            for line in BufReader::new(output).lines().map_while(Result::ok) {
                if sender.send(line).is_err() {
                    break;
                }
            }
        });
        let mut program = Self {
            cpu: Cpu::of(child.id()),
            child,
            input,
            lines,
        };
        program.expect("ready", Instant::now() + PATIENCE)?;
        Ok(program)
    }

    /// CPU seconds of the program so far.
    pub(crate) fn cpu(&self) -> Result<f64, String> {
        self.cpu.seconds()
    }

    /// Lets it begin.
    pub(crate) fn go(&mut self) -> Result<(), String> {
        let input = self.input.as_mut().ok_or("it was ended")?;
        writeln!(input, "go").map_err(|error| format!("it has gone: {error}"))
    }

    /// Waits until everything is sent; returns the seconds it took.
    pub(crate) fn sent(&mut self, deadline: Instant) -> Result<f64, String> {
        let seconds = self.expect("sent", deadline)?;
        seconds.parse().map_err(|_| format!("sent {seconds:?}"))
    }

    /// Returns the newest count of handled messages and the Unix time of the last one, in ms, if it has changed.
    pub(crate) fn handled(&mut self) -> Result<Option<(usize, f64)>, String> {
        let mut news = None;
        while let Ok(line) = self.lines.try_recv() {
            let mut words = line.split(' ').skip(1);
            let count = words.next().and_then(|word| word.parse().ok());
            let at = words.next().and_then(|word| word.parse().ok());
            news = count.zip(at);
            if !line.starts_with("handled ") || news.is_none() {
                return Err(format!("it said {line:?}"));
            }
        }
        match self.child.try_wait() {
            Ok(Some(status)) => Err(format!("it ended with {status}")),
            _ => Ok(news),
        }
    }

    /// Ends a worker; returns how late each message was, in ms.
    pub(crate) fn late(mut self) -> Result<Vec<i64>, String> {
        self.input = None;
        let deadline = Instant::now() + PATIENCE;
        loop {
            let line = self.line(deadline)?;
            if let Some(late) = line.strip_prefix("late") {
                return late
                    .split_whitespace()
                    .map(|ms| ms.parse().map_err(|_| format!("late {ms:?}")))
                    .collect();
            }
        }
    }

    fn expect(&mut self, word: &str, deadline: Instant) -> Result<String, String> {
        let line = self.line(deadline)?;
        match line.strip_prefix(word) {
            Some(rest) => Ok(rest.trim().to_owned()),
            None => Err(format!("it said {line:?} and not {word:?}")),
        }
    }

    fn line(&mut self, deadline: Instant) -> Result<String, String> {
        let call_timeout = deadline.saturating_duration_since(Instant::now());
        self.lines
            .recv_timeout(call_timeout)
            .map_err(|why| match why {
                RecvTimeoutError::Timeout => "it said nothing in time".to_owned(),
                RecvTimeoutError::Disconnected => match self.child.wait() {
                    Ok(status) => format!("it ended with {status}"),
                    Err(error) => error.to_string(),
                },
            })
    }
}

impl Drop for Program {
    fn drop(&mut self) {
        self.input = None;
        let deadline = Instant::now() + Duration::from_secs(2);
        while Instant::now() < deadline {
            if let Ok(Some(_)) = self.child.try_wait() {
                return;
            }
            std::thread::sleep(Duration::from_millis(5));
        }
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
