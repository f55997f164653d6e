//! The options of the command line.

use std::path::PathBuf;
use std::time::Duration;

/// The flags of `make chaos`.
#[derive(Clone, Debug)]
pub(crate) struct Options {
    /// The seed of messages, faults, their order, targets and lengths.
    pub(crate) seed: u64,
    /// The minimum number of messages to send.
    pub(crate) messages: u64,
    /// The time in which they are sent, if the faults do not need more.
    pub(crate) minutes: f64,
    /// The minimum number of faults to inject.
    pub(crate) faults: usize,
    /// The kinds of faults to inject; all if empty.
    pub(crate) only: Vec<String>,
    /// Print the kinds of faults and end.
    pub(crate) list: bool,
    /// The short form.
    pub(crate) quick: bool,
    /// Write the result to `tests/chaos/results.md`.
    pub(crate) save: bool,
    /// The folder of a run whose history is judged again, and nothing else.
    pub(crate) judge: Option<PathBuf>,
}

/// The message for any other flags.
const USAGE: &str = "flags: --seed N, --messages N, --minutes N, --faults N, --only kind,kind, --list, --quick, --save, --judge FOLDER";

impl Options {
    /// Reads the arguments after the program's name.
    ///
    /// # Errors
    /// Returns an error that names the unknown flag and the allowed ones.
    pub(crate) fn parse(arguments: impl Iterator<Item = String>) -> Result<Self, String> {
        let arguments: Vec<String> = arguments.collect();
        let quick = arguments.iter().any(|argument| argument == "--quick");
        let (messages, minutes, faults) = if quick {
            (24_000, 1.3, 32)
        } else {
            (1_000_000, 36.0, 600)
        };
        let mut options = Self {
            seed: fastrand::u64(1..1_000_000),
            messages,
            minutes,
            faults,
            only: Vec::new(),
            list: false,
            quick,
            save: false,
            judge: None,
        };
        let mut arguments = arguments.into_iter();
        while let Some(flag) = arguments.next() {
            let mut value = || {
                let value = arguments.next();
                value.ok_or_else(|| format!("{flag} what? {USAGE}"))
            };
            match flag.as_str() {
                "--quick" => {}
                "--list" => options.list = true,
                "--save" => options.save = true,
                "--judge" => options.judge = Some(value()?.into()),
                "--seed" => options.seed = number(&flag, &value()?)?,
                "--messages" => options.messages = number(&flag, &value()?)?,
                "--minutes" => options.minutes = number(&flag, &value()?)?,
                "--faults" => options.faults = number(&flag, &value()?)?,
                "--only" => options.only.extend(value()?.split(',').map(str::to_owned)),
                _ => return Err(format!("{flag:?} is no flag; {USAGE}")),
            }
        }
        if options.messages == 0 || !(0.05..=1440.0).contains(&options.minutes) {
            return Err("--messages must be at least 1, and --minutes 0.05 to 1440".to_owned());
        }
        Ok(options)
    }

    /// Messages a second.
    pub(crate) fn rate(&self) -> f64 {
        self.messages as f64 / (self.minutes * 60.0)
    }

    /// The longest delay of a message, in ms: the short form has no time to wait for long ones at its end.
    pub(crate) fn longest_delay(&self) -> u64 {
        if self.quick { 8_000 } else { 20_000 }
    }

    /// Returns the time in which the remaining messages are delivered after the senders stop: delays, retries, timeouts
    /// and leases included.
    pub(crate) fn drain(&self) -> Duration {
        Duration::from_secs(if self.quick { 60 } else { 180 })
    }

    /// The command that repeats the run.
    pub(crate) fn command(&self) -> String {
        let mut flags = format!("--seed {}", self.seed);
        if self.quick {
            flags += " --quick";
        }
        let (messages, minutes, faults) = (self.messages, self.minutes, self.faults);
        flags += &format!(" --messages {messages} --minutes {minutes} --faults {faults}");
        if !self.only.is_empty() {
            flags += &format!(" --only {}", self.only.join(","));
        }
        format!("make chaos ARGS=\"{flags}\"")
    }
}

fn number<T: std::str::FromStr>(flag: &str, text: &str) -> Result<T, String> {
    text.parse()
        .map_err(|_| format!("{flag} {text:?}: not such a number; {USAGE}"))
}
