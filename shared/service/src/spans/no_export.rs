//! A build without the feature `otel` exports no spans, and says so if somebody expects them.

use super::Spans;
use crate::config::Config;

/// The exporter. No value exists.
#[derive(Debug)]
pub(crate) enum Exporter {}

impl Exporter {
    pub(crate) fn start(_: &str, _: &Config) -> Option<Self> {
        for name in [
            "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT",
            "OTEL_EXPORTER_OTLP_ENDPOINT",
        ] {
            if std::env::var_os(name).is_some_and(|value| !value.is_empty()) {
                tracing::warn!(
                    "{name} is ignored: this program was built without the feature `otel`"
                );
                break;
            }
        }
        None
    }

    pub(crate) fn spans(&self, _: &Config) -> Spans {
        match *self {}
    }

    pub(crate) async fn flush(&self) {
        match *self {}
    }
}
