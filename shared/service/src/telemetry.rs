//! Logging of a process: `tracing` to stderr, as text or JSON, including panics. A log that cannot be written stops nothing.
//!
//! Sets the global subscriber, so only `main` may call it; libraries only emit events. Metrics are in [`crate::metrics`].

mod writer;

use std::backtrace::{Backtrace, BacktraceStatus};
use std::io::{self, IsTerminal};
use std::panic::{self, PanicHookInfo};
use std::thread;

use lisa_core::names::words;
use tracing_subscriber::EnvFilter;
use tracing_subscriber::filter::ParseError;
use tracing_subscriber::util::SubscriberInitExt;

use crate::panics::panic_text;
pub use writer::flush;
pub(crate) use writer::lost_lines;

/// The environment variables of the log filter. The first one that is set and not empty wins.
const FILTER_VARIABLES: [&str; 2] = ["LISA_LOG", "RUST_LOG"];
const DEFAULT_FILTER: &str = "tokio_cron_scheduler=warn,info";
/// Precedes each filter. Lisa logs what happens to a broker itself; its clients log whole messages and passwords. The
/// library for HTTP/2 warns of each client that breaks its rules. A filter that names them shows their events.
const ALWAYS: &str = "async_nats=off,lapin=off,h2=error,";
/// The filter of commands that print their result to stdout: only warnings, and of the Redis connection only errors. A
/// command prints the error of a failed request itself.
const QUIET_FILTER: &str = "lisa_core::redis=error,lisa_service::http::failure=off,warn";

words!(
    /// The format of log lines.
    #[derive(Default)]
    LogFormat, "log format", {
        /// Text when stderr is a terminal, JSON otherwise.
        #[default]
        Auto = "auto",
        /// One JSON object per line.
        Json = "json",
        /// One line of text per event; colored on a terminal unless `NO_COLOR` is set and not empty.
        Pretty = "pretty",
    }
);

/// The reason why logging could not be set up.
#[derive(Debug, thiserror::Error)]
pub enum TelemetryError {
    /// The filter in an environment variable cannot be parsed.
    #[error("cannot parse the log filter in {variable}")]
    Filter {
        /// The variable's name.
        variable: &'static str,
        /// The parse error.
        source: ParseError,
    },
    /// A subscriber is already set; it stays in effect.
    #[error("logging is already set up")]
    AlreadySet,
}

/// Sets up logging to stderr, filtered by `LISA_LOG`, else `RUST_LOG`, else at level info.
///
/// # Errors
/// The filter is invalid, or logging is already set up; then nothing changes.
pub fn init(format: LogFormat) -> Result<(), TelemetryError> {
    init_with(format, DEFAULT_FILTER)
}

/// Sets up logging like [`init`], but with level warn as the default, for commands that print a result and exit.
///
/// # Errors
/// As [`init`].
pub fn init_quiet(format: LogFormat) -> Result<(), TelemetryError> {
    init_with(format, QUIET_FILTER)
}

fn init_with(format: LogFormat, default: &'static str) -> Result<(), TelemetryError> {
    let filter = filter(|name| std::env::var(name).ok(), default)?;
    let terminal = io::stderr().is_terminal();
    let colors = terminal && std::env::var_os("NO_COLOR").is_none_or(|value| value.is_empty());
    let base = tracing_subscriber::fmt()
        .with_env_filter(filter)
        // By default an error of the writer is printed to stderr, which panics if that fails, too.
        .log_internal_errors(false)
        .with_writer(writer::writer());
    let set = if as_json(format, terminal) {
        base.json().flatten_event(true).finish().try_init()
    } else {
        base.compact().with_ansi(colors).finish().try_init()
    };
    set.map_err(|_| TelemetryError::AlreadySet)?;
    panic::set_hook(Box::new(log_panic));
    Ok(())
}

/// Logs a panic. The hook of the standard library writes to stderr directly, so it waits as long as stderr blocks.
fn log_panic(panic: &PanicHookInfo<'_>) {
    let backtrace = Backtrace::capture();
    let backtrace = (backtrace.status() == BacktraceStatus::Captured).then_some(backtrace);
    let this = thread::current();
    tracing::error!(
        thread = this.name(),
        at = panic.location().map(tracing::field::display),
        backtrace = backtrace.map(tracing::field::display),
        "{}",
        panic_text(panic.payload())
    );
    // A panic of this thread may end the process.
    if this.name() == Some("main") {
        flush();
    }
}

fn as_json(format: LogFormat, terminal: bool) -> bool {
    match format {
        LogFormat::Auto => !terminal,
        LogFormat::Json => true,
        LogFormat::Pretty => false,
    }
}

fn filter(
    variable: impl Fn(&'static str) -> Option<String>,
    default: &'static str,
) -> Result<EnvFilter, TelemetryError> {
    for name in FILTER_VARIABLES {
        if let Some(text) = variable(name).filter(|text| !text.trim().is_empty()) {
            return EnvFilter::try_new(format!("{ALWAYS}{text}")).map_err(|source| {
                TelemetryError::Filter {
                    variable: name,
                    source,
                }
            });
        }
    }
    Ok(EnvFilter::new(format!("{ALWAYS}{default}")))
}

#[cfg(test)]
mod tests {
    use std::sync::{Arc, Mutex};

    use super::*;

    #[test]
    fn a_panic_is_one_line_of_the_log_with_its_location() {
        #[derive(Clone, Default)]
        struct Lines(Arc<Mutex<Vec<u8>>>);
        impl io::Write for Lines {
            fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
                self.0.lock().unwrap().write(bytes)
            }
            fn flush(&mut self) -> io::Result<()> {
                Ok(())
            }
        }
        let lines = Lines::default();
        let written = lines.clone();
        let log = tracing_subscriber::fmt()
            .json()
            .flatten_event(true)
            .with_writer(move || written.clone());
        tracing::subscriber::with_default(log.finish(), || {
            let before = panic::take_hook();
            panic::set_hook(Box::new(log_panic));
            let caught = panic::catch_unwind(|| panic!("boom"));
            panic::set_hook(before);
            caught.unwrap_err();
        });
        let text = String::from_utf8(lines.0.lock().unwrap().clone()).unwrap();
        let line: serde_json::Value = serde_json::from_str(&text).unwrap();
        assert_eq!(line["level"], "ERROR");
        assert_eq!(line["message"], "panicked: boom");
        assert!(
            line["at"].as_str().unwrap().contains("telemetry.rs:"),
            "{line}"
        );
    }

    #[test]
    fn auto_is_text_on_a_terminal_and_json_elsewhere() {
        assert!(!as_json(LogFormat::Auto, true));
        assert!(as_json(LogFormat::Auto, false));
        assert!(as_json(LogFormat::Json, true));
        assert!(!as_json(LogFormat::Pretty, false));
    }

    #[test]
    fn the_own_variable_wins_over_the_common_one() {
        let shown = |variable: &dyn Fn(&str) -> Option<String>| {
            let filter = filter(variable, DEFAULT_FILTER).unwrap().to_string();
            let mut directives: Vec<_> = filter.split(',').map(str::to_owned).collect();
            directives.sort();
            directives.join(" ")
        };
        let both = |name: &str| Some(if name == "LISA_LOG" { "warn" } else { "debug" }.to_owned());
        assert_eq!(shown(&both), "async_nats=off h2=error lapin=off warn");
        let common = |name: &str| (name == "RUST_LOG").then(|| "debug,lapin=info".to_owned());
        assert_eq!(shown(&common), "async_nats=off debug h2=error lapin=info");
        let neither = |_: &str| None;
        let default = "async_nats=off h2=error info lapin=off tokio_cron_scheduler=warn";
        assert_eq!(shown(&neither), default);
    }

    #[test]
    fn a_bad_filter_names_its_variable() {
        let error = filter(
            |name| (name == "LISA_LOG").then(|| "lisa=loud".to_owned()),
            "info",
        );
        assert!(error.unwrap_err().to_string().contains("LISA_LOG"));
    }

    #[test]
    fn a_second_set_up_is_an_error_not_a_panic() {
        let first = init(LogFormat::Json);
        assert!(first.is_ok() || matches!(first, Err(TelemetryError::AlreadySet)));
        assert!(matches!(
            init(LogFormat::Pretty),
            Err(TelemetryError::AlreadySet)
        ));
    }
}
