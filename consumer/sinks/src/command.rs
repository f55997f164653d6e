//! The `command` sink: runs a program for each delivery.
//!
//! The payload is the program's standard input: a file without a name. It is complete before the program starts, so the
//! end of the consumer cannot truncate it. The metadata is in the environment: `LISA_TOPIC`, `LISA_GROUP`, `LISA_ID`,
//! `LISA_ATTEMPT`, `LISA_MAX_ATTEMPTS`, `LISA_DUE_AT`, `LISA_DELIVERED_AT` (both RFC 3339), `LISA_FENCE` (see
//! [`Delivery::fence`]), `LISA_LATE` (1 if it is late), `LISA_PAYLOAD_BYTES`, `LISA_HEADER_<NAME>` (upper case, `_` for `-`) and `LISA_CALLBACK_<NAME>` (the facts of a
//! callback). Of the consumer's environment, the program gets only the variables in [`PASSED`] and those that the
//! configuration names. It runs in the working directory of the consumer. There is no shell unless the command names one.
//!
//! Exit code 0 is an ack, 65 (`EX_DATAERR`) a reject, and any other end a retry. The error of a reject or retry ends with
//! the last part of standard error. Standard output is discarded.
//!
//! A program that is missing when the sink is created is an error. If it goes missing later, its deliveries are deferred
//! without counting as attempts. Processes that the program leaves behind when it exits keep running. Those that leave its
//! process group escape the kill.

use std::fs::File;
use std::io::ErrorKind::{ArgumentListTooLong, NotFound, PermissionDenied};
use std::io::{self, Error, Seek, Write};
use std::process::{ExitStatus, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant};

use async_trait::async_trait;
use bytes::Bytes;
use lisa_consumer_core::{Context, Delivery, Handler, Outcome};
use lisa_core::message::Headers;
use lisa_core::sync::Mutex;
pub use lisa_service::command::CommandSinkSettings;
use lisa_service::command::{check_program, check_variable};
use rustix::process::{Pid, Signal, kill_process_group};
use tokio::io::{AsyncRead, AsyncReadExt};
use tokio::process::{Child, Command};
use tokio::task::spawn_blocking;
use tokio::time::timeout;

use super::{SinkError, printable};

/// The environment variables of the consumer that every program gets. Any other may hold a secret.
pub const PASSED: [&str; 11] = [
    "PATH",
    "HOME",
    "USER",
    "LOGNAME",
    "SHELL",
    "LANG",
    "LC_ALL",
    "TZ",
    "TMPDIR",
    "SSL_CERT_FILE",
    "SSL_CERT_DIR",
];

/// The size of a message's headers, in bytes, up to which they are not to blame for an environment that is too large: half
/// of what Linux guarantees for arguments and environment together.
const HEADERS_ALLOWED: usize = 64 * 1024;

/// The exit code of a reject: the data is invalid (`EX_DATAERR` of sysexits.h).
const REJECT: i32 = 65;

/// The number of bytes that are kept of the end of standard error.
const STDERR_TAIL: usize = 1024;

/// The time that standard error may stay open after the command ends. A process that it left behind may hold it open.
const STDERR_GRACE: Duration = Duration::from_millis(100);

/// The pause before a delivery whose program is missing comes again; also the shortest interval between logs of that.
const LOOK_AGAIN: Duration = Duration::from_secs(10);

/// Runs a program for each delivery.
#[derive(Clone, Debug)]
pub struct CommandSink {
    program: String,
    arguments: Vec<String>,
    /// The names of the variables that the program gets in addition to [`PASSED`].
    environment: Vec<String>,
    /// The time of the last log about a program that cannot run or a payload that cannot be written.
    logged: Arc<Mutex<Option<Instant>>>,
}

impl CommandSink {
    /// Creates the sink. Its program is looked up in PATH.
    ///
    /// # Errors
    /// [`SinkError::EmptyCommand`] without a program, [`SinkError::NoProgram`] if it is missing or not executable,
    /// [`SinkError::Environment`] for a variable whose name is invalid or starts with `LISA_`.
    pub fn new(settings: CommandSinkSettings) -> Result<Self, SinkError> {
        let mut words = settings.command.into_iter();
        let program = words.next().filter(|program| !program.is_empty());
        let program = program.ok_or(SinkError::EmptyCommand)?;
        if let Err(why) = check_program(&program) {
            return Err(SinkError::NoProgram { program, why });
        }
        for name in &settings.environment {
            check_variable(name).map_err(|why| SinkError::Environment {
                name: name.clone(),
                why,
            })?;
        }
        Ok(Self {
            program,
            arguments: words.collect(),
            environment: settings.environment,
            logged: Arc::default(),
        })
    }

    /// Defers a delivery whose program is missing, for example while it is replaced: the message is not at fault.
    fn missing(&self, error: &Error) -> Outcome {
        if self.is_time_to_log() {
            tracing::error!(program = self.program, %error, "cannot run a command; retrying its deliveries in 10 s");
        }
        Outcome::defer(LOOK_AGAIN)
    }

    /// Defers a delivery whose payload cannot be written: the folder is at fault, not the message.
    fn cannot_write(&self, error: &Error) -> Outcome {
        if self.is_time_to_log() {
            let folder = std::env::temp_dir();
            tracing::error!(
                program = self.program, ?folder, %error,
                "cannot write a payload to a temporary file; retrying the deliveries in 10 s"
            );
        }
        Outcome::defer(LOOK_AGAIN)
    }

    fn is_time_to_log(&self) -> bool {
        let mut logged = self.logged.lock();
        let is_time = logged.is_none_or(|at| at.elapsed() >= LOOK_AGAIN);
        if is_time {
            *logged = Some(Instant::now());
        }
        is_time
    }

    fn command(&self, delivery: &Delivery, context: &Context, input: File) -> Command {
        let mut command = Command::new(&self.program);
        command
            .args(&self.arguments)
            .stdin(Stdio::from(input))
            .stdout(Stdio::null())
            .stderr(Stdio::piped())
            .process_group(0);
        command.env_clear();
        let named = self.environment.iter().map(String::as_str);
        for name in PASSED.into_iter().chain(named) {
            if let Some(value) = std::env::var_os(name) {
                command.env(name, value);
            }
        }
        command
            .env("LISA_TOPIC", delivery.topic.as_str())
            .env("LISA_GROUP", delivery.group.as_str())
            .env("LISA_ID", delivery.id.as_str())
            .env("LISA_ATTEMPT", delivery.attempt.to_string())
            .env("LISA_MAX_ATTEMPTS", delivery.max_attempts.to_string())
            .env("LISA_DUE_AT", delivery.due_at.to_string())
            .env("LISA_DELIVERED_AT", delivery.delivered_at.to_string())
            .env("LISA_FENCE", delivery.fence().to_string())
            .env("LISA_PAYLOAD_BYTES", delivery.payload.len().to_string());
        if delivery.late {
            command.env("LISA_LATE", "1");
        }
        for (name, value) in context.headers_to_pass_on(delivery) {
            let variable = name.to_ascii_uppercase().replace('-', "_");
            command.env(
                match Headers::is_reserved(&name) {
                    true => variable,
                    false => format!("LISA_HEADER_{variable}"),
                },
                &*value,
            );
        }
        command
    }
}

/// # Cancel safety
/// Dropping the future kills the command and all of its process group with SIGKILL.
#[async_trait]
impl Handler for CommandSink {
    async fn handle(&self, delivery: Delivery, context: Context) -> Outcome {
        let input = match input(delivery.payload.clone()).await {
            Ok(input) => input,
            Err(error) => return self.cannot_write(&error),
        };
        let cannot_run = |error| Outcome::retry(format!("cannot run {:?}: {error}", self.program));
        let child = match self.command(&delivery, &context, input).spawn() {
            Ok(child) => child,
            Err(error) if matches!(error.kind(), NotFound | PermissionDenied) => {
                return self.missing(&error);
            }
            Err(error) if error.kind() == ArgumentListTooLong => {
                let size = header_size(&delivery);
                if size > HEADERS_ALLOWED {
                    return Outcome::reject(format!(
                        "{size} bytes of headers do not fit into the environment of {:?}: {error}",
                        self.program
                    ));
                }
                return self.missing(&error);
            }
            Err(error) => return cannot_run(error),
        };
        let mut running = Running::new(child);
        let stderr = running.child.stderr.take();
        let mut tail = Vec::new();
        let status = {
            let mut listen = std::pin::pin!(async {
                if let Some(stderr) = stderr {
                    keep_tail(stderr, &mut tail).await;
                }
            });
            tokio::select! {
                status = running.wait() => {
                    let _ = timeout(STDERR_GRACE, listen).await;
                    status
                }
                () = &mut listen => running.wait().await,
            }
        };
        match status {
            Ok(status) => outcome(status, &tail),
            Err(error) => cannot_run(error),
        }
    }
}

fn header_size(delivery: &Delivery) -> usize {
    let headers = delivery.headers.iter();
    headers.map(|(name, value)| name.len() + value.len()).sum()
}

/// Writes a payload to a file without a name, positioned at its start.
async fn input(payload: Bytes) -> io::Result<File> {
    let written = spawn_blocking(move || {
        let mut file = tempfile::tempfile()?;
        file.write_all(&payload)?;
        file.rewind()?;
        Ok(file)
    });
    written.await.map_err(Error::other)?
}

/// Reads to the end, and keeps the last [`STDERR_TAIL`] bytes in `tail`.
async fn keep_tail(mut from: impl AsyncRead + Unpin, tail: &mut Vec<u8>) {
    let mut chunk = [0; 4096];
    while let Ok(read @ 1..) = from.read(&mut chunk).await {
        tail.extend_from_slice(&chunk[..read]);
        tail.drain(..tail.len().saturating_sub(STDERR_TAIL));
    }
}

fn outcome(status: ExitStatus, stderr: &[u8]) -> Outcome {
    // "exit status: 3" or "signal: 9 (SIGKILL)".
    let mut error = format!("the command ended with {status}");
    let stderr = printable(stderr, STDERR_TAIL);
    if !stderr.is_empty() {
        error.push_str(": ");
        error.push_str(&stderr);
    }
    match status.code() {
        Some(0) => Outcome::Ack,
        Some(REJECT) => Outcome::reject(error),
        Some(_) | None => Outcome::retry(error),
    }
}

/// A running command. Dropping this kills its process group unless the command has ended.
struct Running {
    child: Child,
    /// The process group; `None` once the command was reaped, since its ID may then belong to another process.
    group: Option<Pid>,
}

impl Running {
    fn new(child: Child) -> Self {
        let group = child
            .id()
            .and_then(|id| i32::try_from(id).ok())
            .and_then(Pid::from_raw);
        Self { child, group }
    }

    async fn wait(&mut self) -> std::io::Result<ExitStatus> {
        let status = self.child.wait().await;
        // No await between the two: a drop there could kill an unrelated process group.
        self.group = None;
        status
    }
}

/// Kills the process group. The runtime reaps a child that is dropped before it was waited for.
impl Drop for Running {
    fn drop(&mut self) {
        if let Some(group) = self.group
            && let Err(error) = kill_process_group(group, Signal::KILL)
        {
            tracing::warn!(%error, "cannot kill the process group of a command");
        }
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::MetadataExt;
    use std::path::Path;

    use super::*;
    use crate::tests::{context, delivery};

    fn sink(command: &[&str], environment: &[&str]) -> Result<CommandSink, SinkError> {
        let owned = |words: &[&str]| words.iter().map(|&word| word.to_owned()).collect();
        CommandSink::new(CommandSinkSettings {
            command: owned(command),
            environment: owned(environment),
        })
    }

    fn shell(script: &str) -> CommandSink {
        sink(&["sh", "-c", script], &[]).unwrap()
    }

    async fn run(script: &str) -> Outcome {
        shell(script)
            .handle(delivery("the payload"), context())
            .await
    }

    async fn error_of_retry(script: &str) -> String {
        match run(script).await {
            Outcome::Retry { after: None, error } => error,
            other => panic!("{other:?}"),
        }
    }

    #[tokio::test]
    async fn the_exit_code_is_the_outcome() {
        assert_eq!(run("exit 0").await, Outcome::Ack);
        assert_eq!(
            run("echo bad data >&2; exit 65").await,
            Outcome::reject("the command ended with exit status: 65: bad data")
        );
        assert_eq!(
            error_of_retry("echo no luck >&2; exit 3").await,
            "the command ended with exit status: 3: no luck"
        );
        assert_eq!(
            error_of_retry("kill -9 $$").await,
            "the command ended with signal: 9 (SIGKILL)"
        );
    }

    #[tokio::test]
    async fn payload_and_metadata_reach_the_command() {
        let mut delivery = delivery(&b"\xff\0 bytes"[..]);
        let headers = Arc::make_mut(&mut delivery.headers);
        headers.insert("Content-Type", "text/plain; $(x)").unwrap();
        headers.insert_any("lisa-callback-id", "order-6").unwrap();
        let directory = tempfile::tempdir().unwrap();
        let out = directory.path().join("out");
        let script = format!("{{ cat; env | grep ^LISA_ | sort; }} > {}", out.display());
        assert_eq!(
            shell(&script).handle(delivery, context()).await,
            Outcome::Ack
        );
        let expected = b"\xff\0 bytesLISA_ATTEMPT=2\n\
            LISA_CALLBACK_ID=order-6\n\
            LISA_DELIVERED_AT=2023-11-14T22:13:20.005Z\n\
            LISA_DUE_AT=2023-11-14T22:13:20.000Z\n\
            LISA_FENCE=1782579200001048576\n\
            LISA_GROUP=billing\n\
            LISA_HEADER_CONTENT_TYPE=text/plain; $(x)\n\
            LISA_ID=order-7\n\
            LISA_MAX_ATTEMPTS=16\n\
            LISA_PAYLOAD_BYTES=8\n\
            LISA_TOPIC=orders\n";
        assert_eq!(
            String::from_utf8_lossy(&std::fs::read(out).unwrap()),
            String::from_utf8_lossy(expected)
        );
    }

    #[tokio::test]
    async fn only_common_and_named_variables_reach_the_command() {
        let directory = tempfile::tempdir().unwrap();
        let out = directory.path().join("out");
        let names = |sink: CommandSink| {
            let out = out.clone();
            async move {
                assert_eq!(sink.handle(delivery("x"), context()).await, Outcome::Ack);
                let text = std::fs::read_to_string(out).unwrap();
                let names = text
                    .lines()
                    .filter_map(|line| Some(line.split_once('=')?.0));
                names.map(str::to_owned).collect::<Vec<_>>()
            }
        };
        let script = format!("env > {}", out.display());
        // Set by the shell itself.
        let of_shell = ["PWD", "OLDPWD", "SHLVL", "_"];
        for name in names(shell(&script)).await {
            let is_known = PASSED.contains(&name.as_str()) || of_shell.contains(&name.as_str());
            assert!(is_known || name.starts_with("LISA_"), "{name}");
        }
        // Cargo sets it for tests.
        let secret = "CARGO_MANIFEST_DIR";
        let named = sink(&["sh", "-c", &script], &[secret, "NOT_SET_ANYWHERE"]);
        let passed = names(named.unwrap()).await;
        assert!(passed.contains(&secret.to_owned()), "{passed:?}");
        assert!(!passed.contains(&"NOT_SET_ANYWHERE".to_owned()));
        for name in ["", "A=b", "LISA_REDIS_URL"] {
            let refused = sink(&["sh"], &[name]).expect_err(name).to_string();
            assert!(refused.contains("environment"), "{refused}");
        }
    }

    /// A delivery with as many headers as a message may have, each as long as it may be.
    fn with_most_headers() -> Delivery {
        let mut delivery = delivery("x");
        let headers = Arc::make_mut(&mut delivery.headers);
        for number in 0..lisa_core::message::MAX_HEADERS {
            let name = format!("{number:0>64}");
            headers.insert(&name, &"v".repeat(4096)).unwrap();
        }
        delivery
    }

    #[tokio::test]
    async fn the_most_and_longest_headers_fit_into_the_environment() {
        let delivery = with_most_headers();
        assert_eq!(header_size(&delivery), 64 * (64 + 4096));
        let sink = shell("[ $(env | grep -c ^LISA_HEADER_) = 64 ]");
        assert_eq!(sink.handle(delivery, context()).await, Outcome::Ack);
    }

    #[tokio::test]
    async fn headers_that_the_system_cannot_pass_are_rejected_and_other_causes_defer() {
        // An argument of this length is refused like an environment without room.
        let sink = shell(&"x".repeat(200_000));
        let outcome = sink.handle(with_most_headers(), context()).await;
        let Outcome::Reject { error } = outcome else {
            panic!("{outcome:?}");
        };
        let expected = "266240 bytes of headers do not fit into the environment of \"sh\": ";
        assert!(error.starts_with(expected), "{error}");
        let outcome = sink.handle(delivery("x"), context()).await;
        assert_eq!(outcome, Outcome::defer(LOOK_AGAIN));
    }

    #[tokio::test]
    async fn the_payload_is_a_whole_file_before_the_program_starts() {
        for size in [0, 1 << 20] {
            let input = input(vec![b'p'; size].into()).await.unwrap();
            assert_eq!(input.metadata().unwrap().len(), size as u64);
            assert_eq!((&input).stream_position().unwrap(), 0);
            // A file without a name disappears with the program.
            assert_eq!(input.metadata().unwrap().nlink(), 0);
            let sink =
                shell("[ -f /proc/self/fd/0 ] && [ \"$(wc -c)\" = \"$LISA_PAYLOAD_BYTES\" ]");
            let outcome = sink.handle(delivery(vec![b'p'; size]), context()).await;
            assert_eq!(outcome, Outcome::Ack, "{size}");
        }
    }

    #[tokio::test]
    async fn only_a_late_delivery_is_called_late() {
        for (late, code) in [(true, "1"), (false, "none")] {
            let delivery = Delivery {
                late,
                ..delivery("x")
            };
            let sink = shell(&format!("[ \"${{LISA_LATE-none}}\" = {code} ]"));
            assert_eq!(sink.handle(delivery, context()).await, Outcome::Ack);
        }
    }

    #[tokio::test]
    async fn a_command_may_ignore_its_input_and_write_much_to_stderr() {
        let sink =
            shell("exec <&-; head -c 300000 /dev/zero | tr '\\0' x >&2; echo end >&2; exit 1");
        let outcome = sink.handle(delivery(vec![b'p'; 1 << 20]), context()).await;
        let Outcome::Retry { error, .. } = outcome else {
            panic!("{outcome:?}");
        };
        assert!(error.ends_with("xend"), "{error}");
        assert!(error.len() < STDERR_TAIL + 100, "{}", error.len());
        let ignoring = shell("exit 0");
        let outcome = ignoring.handle(delivery(vec![b'p'; 1 << 20]), context());
        assert_eq!(outcome.await, Outcome::Ack);
    }

    #[tokio::test]
    async fn a_command_that_leaves_a_process_behind_does_not_hang() {
        let directory = tempfile::tempdir().unwrap();
        let file = directory.path().join("pid");
        // The one left behind holds the pipe of standard error.
        let script = format!("sleep 600 <&0 & echo $! > {}; exit 0", file.display());
        let run = shell(&script);
        let outcome = timeout(
            Duration::from_secs(20),
            run.handle(delivery(vec![b'p'; 1 << 20]), context()),
        );
        assert_eq!(outcome.await, Ok(Outcome::Ack));
        let left: i32 = std::fs::read_to_string(file)
            .unwrap()
            .trim()
            .parse()
            .unwrap();
        rustix::process::kill_process(Pid::from_raw(left).unwrap(), Signal::KILL).unwrap();
    }

    #[test]
    fn a_program_that_cannot_run_is_refused_before_the_first_message() {
        let refused = |program: &str| {
            let made = sink(&[program], &[]);
            made.expect_err(program).to_string()
        };
        let missing = "command sink: cannot run \"/nonexistent/tool\": no such program";
        assert_eq!(refused("/nonexistent/tool"), missing);
        assert!(refused("no-such-program-anywhere").ends_with("no such program"));
        assert!(refused("/etc").ends_with("no such program"));
        assert!(refused("/etc/passwd").ends_with("not executable"));
        assert!(matches!(sink(&[], &[]), Err(SinkError::EmptyCommand)));
    }

    #[tokio::test]
    async fn a_program_that_goes_missing_defers_its_deliveries_uncounted() {
        let directory = tempfile::tempdir().unwrap();
        let program = directory.path().join("tool");
        std::os::unix::fs::symlink("/bin/true", &program).unwrap();
        let sink = sink(&[program.to_str().unwrap()], &[]).unwrap();
        assert_eq!(sink.handle(delivery("x"), context()).await, Outcome::Ack);
        std::fs::remove_file(program).unwrap();
        assert_eq!(
            sink.handle(delivery("x"), context()).await,
            Outcome::defer(LOOK_AGAIN)
        );
    }

    /// Returns the state letter of a process, `None` if it no longer exists.
    fn state(pid: &str) -> Option<char> {
        let stat = std::fs::read_to_string(Path::new("/proc").join(pid).join("stat")).ok()?;
        stat.rsplit_once(") ")?.1.chars().next()
    }

    async fn until(mut condition: impl FnMut() -> bool) {
        let waited = async {
            while !condition() {
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
        };
        timeout(Duration::from_secs(20), waited)
            .await
            .expect("in time");
    }

    #[tokio::test]
    async fn a_command_that_hangs_is_killed_with_its_children_and_reaped() {
        let directory = tempfile::tempdir().unwrap();
        let file = directory.path().join("pids");
        let script = format!(
            "trap '' TERM INT HUP; sleep 600 & echo $$ $! > {0}.new; mv {0}.new {0}; wait",
            file.display()
        );
        let sink = shell(&script);
        let hanging = tokio::spawn(async move { sink.handle(delivery("x"), context()).await });
        until(|| file.exists()).await;
        let pids = std::fs::read_to_string(&file).unwrap();
        let (leader, child) = pids.trim().split_once(' ').unwrap();
        assert!(state(leader).is_some() && state(child).is_some());

        hanging.abort();
        assert!(hanging.await.unwrap_err().is_cancelled());
        until(|| state(leader).is_none()).await;
        // Another process inherits the child and reaps it, so a zombie is enough here.
        until(|| matches!(state(child), None | Some('Z'))).await;
    }
}
