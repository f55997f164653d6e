//! A temporary directory and the one child process that lives in it, with a watchdog over both. The kind of child does
//! not matter.
//!
//! The watchdog is a shell that waits on a pipe from this process. The pipe closes if the ward is dropped, if the test
//! process ends with the ward in a static, or if it is killed. Then the watchdog ends the child and removes the
//! directory. (The parent-death signal of Linux does not fit: it is tied to the thread that spawned, and a test's
//! thread ends with it.)

use rustix::process::{
    Pid, Signal, WaitId, WaitIdOptions, kill_process, kill_process_group, waitid,
};
use std::io::Write;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

/// Reads lines: a pid is the child to watch from now on, an empty line is none.
const WATCHDOG: &str = r#"
child=
while read -r line; do child=$line; done
[ -z "$child" ] || kill -s KILL -- "-$child"
rm -rf -- "$1"
"#;

/// A temporary directory with at most one running child process.
#[derive(Debug)]
pub(crate) struct Ward {
    dir: PathBuf,
    watchdog: Child,
    line: Option<ChildStdin>,
    child: Option<Child>,
    exited: Option<ExitStatus>,
}

impl Ward {
    /// Makes the directory, its name beginning with `stem`, and starts the watchdog.
    pub(crate) fn new(stem: &str) -> Self {
        // Not the system's temporary directory where that is long: the path of a unix socket is below 108 bytes.
        let parent = std::env::temp_dir();
        let parent = if parent.as_os_str().len() > 60 {
            Path::new("/tmp")
        } else {
            parent.as_path()
        };
        let dir = tempfile::Builder::new()
            .prefix(&format!("lisa-{stem}-"))
            .tempdir_in(parent)
            .unwrap_or_else(|error| {
                panic!("no temporary directory in {}: {error}", parent.display())
            })
            .keep();
        let mut watchdog = Command::new("/bin/sh")
            .args(["-c", WATCHDOG, "watchdog"])
            .arg(&dir)
            .stdin(Stdio::piped())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .process_group(0) // the terminal's Ctrl-C must not end it before us
            .spawn()
            .unwrap_or_else(|error| panic!("the watchdog shell did not start: {error}"));
        let line = watchdog.stdin.take();
        Self {
            dir,
            watchdog,
            line,
            child: None,
            exited: None,
        }
    }

    /// The directory; gone when the ward is.
    pub(crate) fn dir(&self) -> &Path {
        &self.dir
    }

    /// Starts `command` as the child, in its own process group. An earlier child must have exited.
    pub(crate) fn spawn(&mut self, command: &mut Command) -> &mut Child {
        assert!(self.pid().is_none(), "the earlier child still runs");
        let child = command
            .process_group(0)
            .spawn()
            .unwrap_or_else(|error| panic!("{:?} did not start: {error}", command.get_program()));
        self.watch(&child.id().to_string());
        self.exited = None;
        self.child.insert(child)
    }

    /// The pid of the running child; `None` when there is none or it has exited and was noticed.
    pub(crate) fn pid(&self) -> Option<u32> {
        self.child.as_ref().map(Child::id)
    }

    /// Sends a signal to the child. A child that is gone gets none, so a reused pid is never hit.
    pub(crate) fn signal(&mut self, signal: Signal) {
        if let Some(child) = &self.child {
            kill_process(Pid::from_child(child), signal)
                .unwrap_or_else(|error| panic!("signal {signal:?} to {}: {error}", child.id()));
        }
    }

    /// Freezes the child, and waits until each of its threads has stopped.
    pub(crate) fn freeze(&mut self) {
        self.signal(Signal::STOP);
        if let Some(child) = &self.child {
            let stopped = WaitIdOptions::STOPPED | WaitIdOptions::EXITED | WaitIdOptions::NOWAIT;
            waitid(WaitId::Pid(Pid::from_child(child)), stopped)
                .unwrap_or_else(|error| panic!("wait for {} to stop: {error}", child.id()));
        }
    }

    /// Returns the exit status if the latest child has exited.
    pub(crate) fn poll(&mut self) -> Option<ExitStatus> {
        if let Some(child) = &mut self.child {
            self.exited = child
                .try_wait()
                .expect("a child of this process can be waited for");
            if self.exited.is_some() {
                self.child = None;
                self.watch("");
            }
        }
        self.exited
    }

    /// Waits for the child to exit, blocking this thread; `None` if it has not within `timeout`.
    pub(crate) fn wait(&mut self, timeout: Duration) -> Option<ExitStatus> {
        let deadline = Instant::now() + timeout;
        loop {
            if let Some(status) = self.poll() {
                return Some(status);
            }
            if self.child.is_none() || Instant::now() >= deadline {
                return None;
            }
            std::thread::sleep(Duration::from_millis(2));
        }
    }

    /// Ends the child and its process group by SIGKILL, and waits until it is gone.
    pub(crate) fn kill(&mut self) {
        if let Some(child) = &self.child {
            // It fails only if the child has exited and left no process in its group.
            let _ = kill_process_group(Pid::from_child(child), Signal::KILL);
            self.wait(Duration::from_secs(10));
        }
    }

    fn watch(&mut self, pid: &str) {
        if let Some(line) = &mut self.line {
            writeln!(line, "{pid}").expect("the watchdog reads");
        }
    }
}

impl Drop for Ward {
    fn drop(&mut self) {
        self.kill();
        self.line = None;
        let _ = self.watchdog.wait();
    }
}
