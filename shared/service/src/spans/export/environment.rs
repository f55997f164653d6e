//! The standard variables of OpenTelemetry that decide whether and how spans are exported. The libraries read the others.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::time::Duration;

/// The only protocol.
const PROTOCOL: &str = "http/protobuf";
/// The time limit of an export, as the specification has it.
const TIMEOUT: Duration = Duration::from_secs(10);
/// The largest number of spans that may wait for the exporter.
const MAX_QUEUE: usize = 100_000;

/// The variables of the environment that start with `OTEL_`. An empty one counts as unset, as the specification says.
pub(super) struct Environment(BTreeMap<String, String>);

impl Environment {
    pub(super) fn of_process() -> Self {
        let all = std::env::vars_os();
        Self::new(all.filter_map(|(name, value)| {
            Some((name.into_string().ok()?, value.into_string().ok()?))
        }))
    }

    pub(super) fn new(variables: impl IntoIterator<Item = (String, String)>) -> Self {
        let ours = |(name, value): &(String, String)| {
            name.starts_with("OTEL_") && !value.trim().is_empty()
        };
        Self(variables.into_iter().filter(ours).collect())
    }

    pub(super) fn get(&self, name: &str) -> Option<&str> {
        self.0.get(name).map(|value| value.trim())
    }

    /// Returns a variable of the exporter: that of traces, or else that of all signals.
    fn exporter(&self, name: &str) -> Option<(String, &str)> {
        ["TRACES_", ""].iter().find_map(|signal| {
            let name = format!("OTEL_EXPORTER_OTLP_{signal}{name}");
            let value = self.get(&name)?;
            Some((name, value))
        })
    }

    /// Returns the URL to send traces to; `None` if spans are not to be exported.
    ///
    /// # Errors
    /// Returns the reason why they cannot be.
    pub(super) fn endpoint(&self) -> Result<Option<String>, String> {
        let is_disabled = |value: &str| value.eq_ignore_ascii_case("true");
        if self.get("OTEL_SDK_DISABLED").is_some_and(is_disabled) {
            return Ok(None);
        }
        match self.get("OTEL_TRACES_EXPORTER") {
            None | Some("otlp") => {}
            Some("none") => return Ok(None),
            Some(other) => {
                return Err(format!(
                    "OTEL_TRACES_EXPORTER is {other}, must be otlp or none"
                ));
            }
        }
        let Some((name, endpoint)) = self.exporter("ENDPOINT") else {
            return Ok(None);
        };
        let endpoint = match (name.contains("TRACES"), endpoint.split_once('?')) {
            (true, _) => endpoint.to_owned(),
            (false, None) => format!("{}/v1/traces", endpoint.trim_end_matches('/')),
            (false, Some((path, query))) => {
                format!("{}/v1/traces?{query}", path.trim_end_matches('/'))
            }
        };
        match self.exporter("PROTOCOL") {
            Some((name, protocol)) if protocol != PROTOCOL => {
                Err(format!("{name} is {protocol}, must be {PROTOCOL}"))
            }
            _ => Ok(Some(endpoint)),
        }
    }

    /// Returns the time limit of an export.
    ///
    /// # Errors
    /// It is not a number of milliseconds.
    pub(super) fn timeout(&self) -> Result<Duration, String> {
        let Some((name, value)) = self.exporter("TIMEOUT") else {
            return Ok(TIMEOUT);
        };
        let ms = value.parse().ok().filter(|ms: &u64| *ms > 0);
        let ms =
            ms.ok_or_else(|| format!("{name} is {value}, must be a number of milliseconds"))?;
        Ok(Duration::from_millis(ms))
    }

    /// Checks the size of the queue, which the libraries reserve at the start.
    ///
    /// # Errors
    /// It would take too much memory.
    pub(super) fn check_queue(&self) -> Result<(), String> {
        let name = "OTEL_BSP_MAX_QUEUE_SIZE";
        let Some(value) = self.get(name) else {
            return Ok(());
        };
        match value.parse::<usize>() {
            Ok(1..=MAX_QUEUE) => Ok(()),
            _ => Err(format!(
                "{name} is {value}, must be a number from 1 to {MAX_QUEUE}"
            )),
        }
    }

    /// Returns the file with the certificates to trust, in place of the system's.
    pub(super) fn certificate(&self) -> Option<PathBuf> {
        self.exporter("CERTIFICATE").map(|(_, path)| path.into())
    }
}
