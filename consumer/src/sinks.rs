//! The handlers of the binary: where `lisa-consumer` sends what it reads.
//!
//! Each sink is a [`Handler`] like one that an application writes, and may be embedded like
//! one. A sink says how one attempt ended; how often and when it is tried again is the consumer's and the topic's
//! business. What a sink did is repeated if the process dies before the outcome is settled.

pub mod command;
pub mod http;
pub mod stdout;

pub use command::CommandSink;
pub use http::{HttpSink, HttpSinkSettings, WebhookSecret};
pub use stdout::StdoutSink;

use lisa_shared::config::SinkConfig;

use crate::handler::Handler;

/// Why a sink cannot be made of its settings.
#[derive(Debug, thiserror::Error)]
pub enum SinkError {
    /// The address of a webhook cannot be used. The address is not repeated: it may hold a token.
    #[error("the url of the http sink {0}")]
    Url(String),
    /// A signing key is not one.
    #[error("the secret of the http sink {0}")]
    Secret(&'static str),
    /// The HTTP client cannot be set up, for instance for want of root certificates.
    #[error("cannot set up the http client")]
    Client(#[source] reqwest::Error),
    /// There is no program to run.
    #[error("the command of the command sink is empty")]
    EmptyCommand,
    /// The program is not there, or cannot be run.
    #[error("the command sink cannot run {program:?}: {why}")]
    NoProgram {
        /// As configured.
        program: String,
        /// What is wrong with it.
        why: &'static str,
    },
    /// The thread that writes cannot be started.
    #[error("cannot start the thread that writes to stdout")]
    Thread(#[source] std::io::Error),
}

/// Makes the sink that a subscription asks for.
///
/// # Errors
/// [`SinkError`] for settings that no sink can be made of.
pub fn build(config: &SinkConfig) -> Result<Box<dyn Handler>, SinkError> {
    Ok(match config {
        SinkConfig::Stdout => Box::new(StdoutSink::new(std::io::stdout())?),
        SinkConfig::Http {
            url,
            secrets,
            timeout,
            allow_private,
            retry_after,
        } => Box::new(HttpSink::new(HttpSinkSettings {
            url: url.expose().to_owned(),
            secrets: secrets
                .iter()
                .map(|secret| secret.expose().parse())
                .collect::<Result<_, _>>()?,
            timeout: *timeout,
            allow_private: *allow_private,
            retry_after: *retry_after,
        })?),
        SinkConfig::Command { command } => Box::new(CommandSink::new(command.clone())?),
    })
}

/// Makes foreign bytes fit for an error text: up to `limit` characters on one line, without anything that could steer
/// a terminal or turn the direction of the text.
fn printable(bytes: &[u8], limit: usize) -> String {
    let text = String::from_utf8_lossy(bytes);
    let steers = |c: char| {
        c.is_control()
            || matches!(c, '\u{200e}'..='\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2066}'..='\u{2069}')
    };
    let line: String = text
        .trim()
        .chars()
        .take(limit)
        .map(|c| if steers(c) { ' ' } else { c })
        .collect();
    line.trim().to_owned()
}

/// Joins an error and its causes on one line.
fn chain(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut source = error.source();
    while let Some(cause) = source {
        text.push_str(": ");
        text.push_str(&cause.to_string());
        source = cause.source();
    }
    text
}

#[cfg(test)]
pub(crate) mod tests {
    use bytes::Bytes;
    use lisa_shared::message::{EntryId, Headers};
    use lisa_shared::time::UnixMs;
    use tokio::time::{Duration, Instant};
    use tokio_util::sync::CancellationToken;

    use super::*;
    use crate::handler::{Context, Delivery};

    /// A second attempt of a message, 5 ms late.
    pub(crate) fn delivery(payload: impl Into<Bytes>) -> Delivery {
        Delivery {
            topic: "orders".parse().unwrap(),
            group: "billing".parse().unwrap(),
            id: "order-7".parse().unwrap(),
            entry: EntryId::new(1_700_000_000_001, 0),
            attempt: 2,
            max_attempts: 16,
            due_at: UnixMs::new(1_700_000_000_000),
            delivered_at: UnixMs::new(1_700_000_000_005),
            late: false,
            last_error: None,
            headers: Headers::default(),
            payload: payload.into(),
        }
    }

    pub(super) fn context() -> Context {
        Context::new(
            2,
            Instant::now() + Duration::from_secs(300),
            CancellationToken::new(),
            CancellationToken::new(),
        )
    }

    #[test]
    fn foreign_text_becomes_one_short_line() {
        assert_eq!(
            printable(b" \x1b[31mred\r\nline\xff \n", 100),
            "[31mred  line\u{fffd}"
        );
        assert_eq!(printable("ab\u{202e}c".as_bytes(), 100), "ab c");
        assert_eq!(printable("ääää".as_bytes(), 3), "äää");
        assert_eq!(printable(b"", 3), "");
    }

    #[test]
    fn each_kind_of_sink_is_built_and_a_useless_one_is_refused() {
        let http = |secret: &str| SinkConfig::Http {
            url: "https://example.com/hook".into(),
            secrets: vec![secret.into()],
            timeout: std::time::Duration::from_secs(30),
            allow_private: false,
            retry_after: lisa_shared::config::RetryAfter::Retry,
        };
        let command = |words: &[&str]| SinkConfig::Command {
            command: words.iter().map(|&word| word.to_owned()).collect(),
        };
        for good in [SinkConfig::Stdout, command(&["true"])] {
            assert!(build(&good).is_ok(), "{good:?}");
        }
        let refused = build(&http("whsec_short")).err();
        assert!(matches!(refused, Some(SinkError::Secret(_))), "{refused:?}");
        let refused = build(&command(&[])).err();
        assert!(
            matches!(refused, Some(SinkError::EmptyCommand)),
            "{refused:?}"
        );
    }
}
