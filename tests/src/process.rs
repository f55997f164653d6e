//! Lisa's real binaries as child processes: started with arguments, environment and a config file, watched, and killed
//! in all the ways that an operator or a machine can.
//!
//! The binaries are brought up to date by one `cargo build` per test process (a fraction of a second when nothing
//! changed; a stale binary would test yesterday's code). `LISA_TEST_BIN_DIR` names a directory to take them from
//! instead.

use crate::eventually;
use crate::ward::Ward;
use rustix::process::Signal;
use std::ffi::OsString;
use std::fs::File;
use std::io::{BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::process::{ChildStdout, Command, ExitStatus, Stdio};
use std::sync::OnceLock;
use std::time::Duration;
use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};
use tokio::time::{Instant, timeout, timeout_at};

/// The number of bytes at the end of stderr that a failing test prints.
const STDERR_SHOWN: usize = 64 * 1024;

/// One of the three programs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Binary {
    /// `lisa-producer`
    Producer,
    /// `lisa-manager`
    Manager,
    /// `lisa-consumer`
    Consumer,
}

impl Binary {
    /// The name of the program, and of its package.
    pub fn name(self) -> &'static str {
        match self {
            Self::Producer => "lisa-producer",
            Self::Manager => "lisa-manager",
            Self::Consumer => "lisa-consumer",
        }
    }

    /// The path of the built program.
    ///
    /// # Panics
    /// Panics if the build fails; the message has the compiler's errors.
    pub fn path(self) -> PathBuf {
        static DIRECTORY: OnceLock<PathBuf> = OnceLock::new();
        DIRECTORY.get_or_init(build).join(self.name())
    }

    /// Prepares a process of it with these arguments.
    pub fn with<A: Into<OsString>>(self, arguments: impl IntoIterator<Item = A>) -> Launch {
        Launch::new(self.path(), arguments)
    }
}

/// Builds the three programs with the profile of this test executable, and returns where they are.
fn build() -> PathBuf {
    if let Some(directory) = std::env::var_os("LISA_TEST_BIN_DIR") {
        return PathBuf::from(directory);
    }
    // <target dir>/<profile>/deps/<this executable>
    let this = std::env::current_exe().expect("this executable has a path");
    let (Some(directory), Some(target)) = (this.ancestors().nth(2), this.ancestors().nth(3)) else {
        panic!("{} is not in a target directory", this.display());
    };
    let profile = match directory.file_name().and_then(|name| name.to_str()) {
        Some("debug") | None => "dev",
        Some(profile) => profile,
    };
    let output = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()))
        .args([
            "build",
            "--quiet",
            "--bins",
            "--examples",
            "--profile",
            profile,
        ])
        .args([
            "--features",
            "lisa-producer/brokers,lisa-consumer/cli,lisa-consumer/brokers,lisa-manager/brokers,lisa-manager/keda,lisa-manager/test-util",
        ])
        .args([
            "-p",
            "lisa-producer",
            "-p",
            "lisa-manager",
            "-p",
            "lisa-consumer",
        ])
        .arg("--target-dir")
        .arg(target)
        .current_dir(Path::new(env!("CARGO_MANIFEST_DIR")))
        .stdin(Stdio::null())
        .output()
        .unwrap_or_else(|error| panic!("cargo did not start: {error}"));
    if !output.status.success() {
        panic!(
            "the programs do not build:\n{}",
            String::from_utf8_lossy(&output.stderr)
        );
    }
    directory.to_owned()
}

/// A process to be started: one of the [binaries](Binary::with), or any other program.
#[derive(Debug)]
pub struct Launch {
    name: String,
    ward: Ward,
    command: Command,
    stdin: Vec<u8>,
    log: Option<Stdio>,
}

impl Launch {
    /// Prepares a process of any program. Its working directory is a new, empty one; of the environment it gets all but
    /// the `LISA_` variables.
    pub fn new<A: Into<OsString>>(
        program: impl Into<PathBuf>,
        arguments: impl IntoIterator<Item = A>,
    ) -> Self {
        let program = program.into();
        let name = program
            .file_name()
            .unwrap_or_default()
            .to_string_lossy()
            .into_owned();
        let ward = Ward::new(&name);
        let mut command = Command::new(program);
        for (variable, _) in std::env::vars_os() {
            // What the developer's shell configures must not reach the program.
            if variable.to_string_lossy().starts_with("LISA_") {
                command.env_remove(variable);
            }
        }
        command
            .env("RUST_BACKTRACE", "1")
            .env("NO_COLOR", "1")
            .current_dir(ward.dir())
            .args(arguments.into_iter().map(Into::into));
        Self {
            name,
            ward,
            command,
            stdin: Vec::new(),
            log: None,
        }
    }

    /// Adds `--config` with a TOML file of this text.
    pub fn config(self, toml: &str) -> Self {
        self.config_file("lisa.toml", toml)
    }

    /// Adds `--config` with a file of this name and text; the ending of the name says its format.
    pub fn config_file(mut self, name: &str, text: &str) -> Self {
        let path = self.ward.dir().join(name);
        std::fs::write(&path, text)
            .unwrap_or_else(|error| panic!("write {}: {error}", path.display()));
        self.command.arg("--config").arg(path);
        self
    }

    /// Sets an environment variable.
    pub fn env(mut self, name: &str, value: &str) -> Self {
        self.command.env(name, value);
        self
    }

    /// Sets the standard input, which is empty by default.
    pub fn stdin(mut self, text: impl Into<Vec<u8>>) -> Self {
        self.stdin = text.into();
        self
    }

    /// Sets where its standard error goes, instead of to the file that [`Process::stderr`] reads.
    pub fn log_to(mut self, log: impl Into<Stdio>) -> Self {
        self.log = Some(log.into());
        self
    }

    /// Starts it.
    pub fn start(mut self) -> Process {
        let errors = self.ward.dir().join("stderr");
        let file = File::create(&errors)
            .unwrap_or_else(|error| panic!("create {}: {error}", errors.display()));
        self.command
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(self.log.unwrap_or_else(|| file.into()));
        let child = self.ward.spawn(&mut self.command);
        let (sender, lines) = unbounded_channel();
        let (stdin, stdout) = (child.stdin.take(), child.stdout.take());
        std::thread::spawn(move || forward_lines(stdout, &sender));
        let input = self.stdin;
        // The input may be more than a pipe holds; a program may decide not to read all of it.
        std::thread::spawn(move || stdin.map(|mut pipe| pipe.write_all(&input)));
        Process {
            name: self.name,
            ward: self.ward,
            lines,
            errors,
        }
    }

    /// Starts it and waits for its end: for verbs such as `send` and `stats`.
    ///
    /// # Panics
    /// Panics if it has not ended within `call_timeout`.
    pub async fn run(self, call_timeout: Duration) -> Finished {
        let mut process = self.start();
        let status = process.wait_exit(call_timeout).await;
        let lines = process.lines_to_end(call_timeout).await;
        Finished {
            code: status.code(),
            stdout: lines.iter().map(|line| format!("{line}\n")).collect(),
            stderr: process.stderr(),
        }
    }
}

fn forward_lines(stdout: Option<ChildStdout>, lines: &UnboundedSender<String>) {
    let Some(stdout) = stdout else { return };
    for line in BufReader::new(stdout).split(b'\n') {
        let Ok(line) = line else { return };
        if lines
            .send(String::from_utf8_lossy(&line).into_owned())
            .is_err()
        {
            return;
        }
    }
}

/// The output and exit status of a program that has ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Finished {
    /// The exit code; `None` after a signal.
    pub code: Option<i32>,
    /// Its whole standard output.
    pub stdout: String,
    /// Its whole standard error.
    pub stderr: String,
}

/// A running program. Dropping it kills it with its process group; in a failing test it prints its stderr first.
#[derive(Debug)]
pub struct Process {
    name: String,
    ward: Ward,
    lines: UnboundedReceiver<String>,
    errors: PathBuf,
}

impl Process {
    /// The pid while it runs.
    pub fn pid(&self) -> Option<u32> {
        self.ward.pid()
    }

    /// Its memory in KiB: `VmRSS` for now, or `VmHWM` for the peak.
    ///
    /// # Panics
    /// Panics if it does not run.
    pub fn memory(&self, what: &str) -> u64 {
        let pid = self.pid().expect("it runs");
        let status = std::fs::read_to_string(format!("/proc/{pid}/status")).expect("a status");
        let line = status.lines().find_map(|line| line.strip_prefix(what));
        let digits = line.expect(what).trim_start_matches(':').trim();
        digits.trim_end_matches(" kB").parse().expect(what)
    }

    /// Its working directory, with its config file; removed when it is dropped.
    pub fn dir(&self) -> &Path {
        self.ward.dir()
    }

    /// Returns the next line of its standard output.
    ///
    /// # Panics
    /// Panics if no line comes within `call_timeout`, or the program has closed its output.
    #[track_caller]
    pub fn next_line(&mut self, call_timeout: Duration) -> impl Future<Output = String> {
        let caller = std::panic::Location::caller();
        async move {
            match timeout(call_timeout, self.lines.recv()).await {
                Ok(Some(line)) => line,
                Ok(None) => panic!("{caller}: {} closed its output", self.name),
                Err(_) => panic!(
                    "{caller}: {} printed no line within {call_timeout:?}",
                    self.name
                ),
            }
        }
    }

    /// Returns the lines of its standard output that no call has returned yet, without waiting. What it has just
    /// written may not be among them; after its exit, [`lines_to_end`](Self::lines_to_end) has them all.
    pub fn lines(&mut self) -> Vec<String> {
        std::iter::from_fn(|| self.lines.try_recv().ok()).collect()
    }

    /// Waits until it has closed its standard output, and returns the lines that no call has returned yet.
    ///
    /// # Panics
    /// Panics if the output is still open after `call_timeout`; the message has the lines.
    pub async fn lines_to_end(&mut self, call_timeout: Duration) -> Vec<String> {
        let deadline = Instant::now() + call_timeout;
        let mut lines = Vec::new();
        loop {
            match timeout_at(deadline, self.lines.recv()).await {
                Ok(Some(line)) => lines.push(line),
                Ok(None) => return lines,
                Err(_) => panic!("{} keeps its output open: {lines:?}", self.name),
            }
        }
    }

    /// Its standard error so far.
    pub fn stderr(&self) -> String {
        let bytes = std::fs::read(&self.errors).unwrap_or_default();
        String::from_utf8_lossy(&bytes).into_owned()
    }

    /// Returns whether it has exited.
    pub fn has_exited(&mut self) -> bool {
        self.ward.poll().is_some()
    }

    /// Returns its exit status, if it has exited.
    pub fn exit_status(&mut self) -> Option<ExitStatus> {
        self.ward.poll()
    }

    /// Waits until it has exited.
    ///
    /// # Panics
    /// Panics if it is still running after `call_timeout`.
    #[track_caller]
    pub fn wait_exit(&mut self, call_timeout: Duration) -> impl Future<Output = ExitStatus> {
        let name = self.name.clone();
        eventually(call_timeout, async move || {
            self.ward.poll().ok_or(format!("{name} still runs"))
        })
    }

    /// Kills it as a crash would: SIGKILL to it and its process group, and waits until it has gone.
    pub fn kill9(&mut self) {
        self.ward.kill();
    }

    /// Asks it to shut down: SIGTERM.
    pub fn sigterm(&mut self) {
        self.ward.signal(Signal::TERM);
    }

    /// Sends SIGHUP: its terminal is gone.
    pub fn sighup(&mut self) {
        self.ward.signal(Signal::HUP);
    }

    /// Freezes it: SIGSTOP.
    pub fn stop(&mut self) {
        self.ward.freeze();
    }

    /// Resumes a frozen process: SIGCONT.
    pub fn cont(&mut self) {
        self.ward.signal(Signal::CONT);
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        if std::thread::panicking() {
            let all = self.stderr();
            let shown = all.ceil_char_boundary(all.len().saturating_sub(STDERR_SHOWN));
            eprintln!("--- stderr of {} ---\n{}---", self.name, &all[shown..]);
        }
    }
}
