//! The meaning of each Redis failure: the one table that says retry, reconnect, or return the error.
//!
//! It only classifies; it neither waits nor retries. Other modules call [`classify`], and name an error code only
//! where they treat it specially.

use std::time::Duration;

use redis::{ErrorKind, RedisError, Value};

/// The reaction of the connection to a failure.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Action {
    /// Send the same request again on the same socket after a short pause.
    Retry,
    /// Replace the socket, then send the request again.
    Rebuild,
    /// Replace the socket, but slowly: the server refuses us, and only an operator can change that.
    RebuildSlowly,
    /// Load the script and send the request again.
    LoadScript,
    /// Ask the cluster node that the reply names.
    Redirect,
    /// Return the failure to the caller immediately.
    GiveUp,
}

/// The meaning of a failure for the caller.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ConnectionErrorKind {
    /// Redis cannot be reached or cannot serve now: I/O error, timeout, loading, busy, no master, disk full.
    Unavailable,
    /// Redis refuses this user: missing or wrong password, or missing permission.
    Denied,
    /// Redis is at its memory limit.
    Full,
    /// The stream or its consumer group no longer exists.
    NoGroup,
    /// A key holds another type than expected.
    WrongType,
    /// The server lacks the command, or this kind of deployment is not supported.
    NotSupported,
    /// The settings cannot work: a bad address, an unreadable certificate, a database that does not exist.
    Invalid,
    /// Any other error reply: a broken invariant of a script, or a wrong command.
    Script,
}

/// The classification of one failure.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Verdict {
    /// The reaction to it.
    pub action: Action,
    /// Its meaning for the caller.
    pub kind: ConnectionErrorKind,
    /// True if Redis certainly rejected the request before it changed anything.
    pub refused: bool,
}

use Action::{GiveUp, LoadScript, Rebuild, RebuildSlowly, Redirect, Retry};
use ConnectionErrorKind::{
    Denied, Full, Invalid, NoGroup, NotSupported, Script, Unavailable, WrongType,
};

/// Replies identified by their code.
pub(crate) const CODES: &[(&str, Action, ConnectionErrorKind)] = &[
    ("LOADING", Retry, Unavailable),
    ("BUSY", Retry, Unavailable),
    ("TRYAGAIN", Retry, Unavailable),
    ("CLUSTERDOWN", Retry, Unavailable),
    ("NOREPLICAS", Retry, Unavailable),
    ("MISCONF", Retry, Unavailable),
    ("MASTERDOWN", Rebuild, Unavailable),
    ("READONLY", Rebuild, Unavailable),
    // Retrying would only hide a full Redis from the sender, which must slow down.
    ("OOM", GiveUp, Full),
    // For the address of a single server, the connection turns these into NotSupported.
    ("MOVED", Redirect, Unavailable),
    ("ASK", Redirect, Unavailable),
    // Redis 7.0 returns UNBLOCKED where later versions return NOGROUP: the stream vanished during a blocked read.
    ("UNBLOCKED", GiveUp, NoGroup),
    ("NOGROUP", GiveUp, NoGroup),
    ("NOAUTH", Rebuild, Denied),
    ("WRONGPASS", RebuildSlowly, Denied),
    ("DENIED", RebuildSlowly, Denied),
    // Permissions change on open sockets, so a new one would not help.
    ("NOPERM", GiveUp, Denied),
    ("NOSCRIPT", LoadScript, Script),
    ("NOPROTO", GiveUp, NotSupported),
    ("WRONGTYPE", GiveUp, WrongType),
    ("EXECABORT", GiveUp, Script),
    ("CROSSSLOT", GiveUp, Script),
];

/// Replies with the code `ERR`, identified by a part of their text.
pub(crate) const TEXTS: &[(&str, Action, ConnectionErrorKind)] = &[
    ("max number of clients", Rebuild, Unavailable),
    ("without any password configured", RebuildSlowly, Denied),
    ("ACL failure in script", GiveUp, Denied),
    ("unknown command", GiveUp, NotSupported),
    ("unknown subcommand", GiveUp, NotSupported),
    ("Unknown Redis command", GiveUp, NotSupported),
    ("DB index is out of range", GiveUp, Invalid),
    ("invalid DB index", GiveUp, Invalid),
];

/// Classifies one failure.
pub fn classify(error: &RedisError) -> Verdict {
    match error.code() {
        Some(code) => classify_reply(code, error.detail().unwrap_or_default()),
        None => classify_local(error),
    }
}

fn classify_reply(code: &str, text: &str) -> Verdict {
    let by_text = TEXTS
        .iter()
        .filter(|row| code == "ERR" && text.contains(row.0));
    let Some(&(_, action, kind)) = CODES
        .iter()
        .filter(|row| row.0 == code)
        .chain(by_text)
        .next()
    else {
        // An unknown reply may come from the middle of a script.
        return Verdict {
            action: GiveUp,
            kind: Script,
            refused: false,
        };
    };
    // Redis names the script in an error raised while it ran; it may have written something by then.
    let in_script = text.contains("script: ") || text.contains("user_script:");
    Verdict {
        action,
        kind,
        refused: !in_script,
    }
}

fn classify_local(error: &RedisError) -> Verdict {
    let (action, kind) = match error.kind() {
        ErrorKind::Io if error.is_timeout() => (Retry, Unavailable),
        ErrorKind::Io | ErrorKind::Parse => (Rebuild, Unavailable),
        ErrorKind::AuthenticationFailed => (RebuildSlowly, Denied),
        ErrorKind::InvalidClientConfig => (GiveUp, Invalid),
        ErrorKind::RESP3NotSupported => (GiveUp, NotSupported),
        _ => (GiveUp, Script),
    };
    Verdict {
        action,
        kind,
        refused: false,
    }
}

/// A failed request to Redis.
#[derive(Clone, Debug, thiserror::Error)]
#[error("{what}: {detail}")]
pub struct ConnectionError {
    /// Its meaning for the caller.
    pub kind: ConnectionErrorKind,
    /// Error code of Redis (`OOM`, `NOGROUP`, a code of our own scripts, ...), if it replied.
    pub code: Option<String>,
    /// Name of the command or script.
    pub what: String,
    /// Human-readable cause.
    pub detail: String,
    /// True if some attempt may have changed something: false only if none can have.
    pub maybe_applied: bool,
    /// True if the last attempt ended because its reply was incomplete at the end of the response timeout.
    pub is_late: bool,
    /// The failure reported by the client library.
    #[source]
    pub source: Option<Box<RedisError>>,
}

impl ConnectionError {
    /// Creates an error for a failure on this side of the connection.
    pub fn local(
        kind: ConnectionErrorKind,
        what: impl Into<String>,
        detail: impl Into<String>,
    ) -> Self {
        Self {
            kind,
            code: None,
            what: what.into(),
            detail: detail.into(),
            maybe_applied: false,
            is_late: false,
            source: None,
        }
    }

    /// Creates an error for a reply that was not complete in time.
    pub(crate) fn late(what: impl Into<String>, limit: Duration) -> Self {
        let detail = format!("no answer within {limit:?}");
        Self {
            maybe_applied: true,
            is_late: true,
            ..Self::local(ConnectionErrorKind::Unavailable, what, detail)
        }
    }

    /// Creates an error for a failure reported by the client library, classified by the table.
    pub(crate) fn from_redis(what: impl Into<String>, error: RedisError) -> Self {
        let verdict = classify(&error);
        Self {
            kind: verdict.kind,
            code: error.code().map(str::to_owned),
            what: what.into(),
            detail: match error.code() {
                Some(code) => format!("{code} {}", error.detail().unwrap_or_default()),
                None => error.to_string(),
            },
            maybe_applied: !verdict.refused,
            is_late: false,
            source: Some(Box::new(error)),
        }
    }

    /// Turns a redirection from a server that was addressed as a single one into `NotSupported`.
    pub(crate) fn of_a_cluster(self) -> Self {
        Self {
            kind: NotSupported,
            detail: format!(
                "{}: the server is a cluster node; use redis+cluster://",
                self.detail
            ),
            ..self
        }
    }

    /// Returns the code if the table contains it, otherwise `other`, or `io` if Redis did not reply. For labels of
    /// metrics.
    pub fn known_code(&self) -> &'static str {
        let Some(code) = &self.code else {
            return "io";
        };
        let known = CODES.iter().find(|row| row.0 == code);
        known.map_or("other", |row| row.0)
    }

    /// Returns whether the keys of the request are on two nodes of a cluster because their slot is being moved.
    pub(crate) fn is_slot_moving(&self) -> bool {
        self.code.as_deref() == Some("TRYAGAIN")
    }

    /// Returns whether `CLIENT UNBLOCK` ended the command. The code alone may also mean that its stream has vanished.
    pub(crate) fn is_unblocked(&self) -> bool {
        self.code.as_deref() == Some("UNBLOCKED") && self.detail.contains("CLIENT UNBLOCK")
    }

    /// Returns whether the same request may succeed later unchanged.
    pub fn is_retryable(&self) -> bool {
        match self.kind {
            Unavailable | Full => true,
            Denied | NoGroup | WrongType | NotSupported | Invalid | Script => false,
        }
    }

    /// Returns whether only an operator can repair it, so that a process that is starting should stop.
    pub fn is_fatal(&self) -> bool {
        matches!(self.kind, Denied | NotSupported | Invalid)
    }
}

/// Turns an error reply anywhere in a value into an error: RESP2 nests them in arrays.
///
/// Without errors, the usual case, the value is returned without being rebuilt.
pub(crate) fn no_error_inside(value: Value) -> Result<Value, RedisError> {
    if has_error(&value) {
        value.extract_error()
    } else {
        Ok(value)
    }
}

fn has_error(value: &Value) -> bool {
    match value {
        Value::ServerError(_) => true,
        Value::Array(items) | Value::Set(items) => items.iter().any(has_error),
        Value::Map(pairs) => pairs
            .iter()
            .any(|(key, value)| has_error(key) || has_error(value)),
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_error_raised_inside_a_script_may_have_been_applied() {
        let text =
            "command not allowed when used memory > 'maxmemory'. script: abc, on @user_script:3.";
        let inside = classify_reply("OOM", text);
        assert_eq!((inside.kind, inside.refused), (Full, false));
        assert!(
            classify_reply("OOM", "command not allowed when used memory > 'maxmemory'.").refused
        );
    }

    #[test]
    fn a_code_of_our_own_scripts_is_a_broken_invariant() {
        assert_eq!(
            classify_reply("LISA_EPOCH", "x"),
            Verdict {
                action: GiveUp,
                kind: Script,
                refused: false
            }
        );
        assert_eq!(
            classify_reply("ERR", "value is not an integer").kind,
            Script
        );
    }

    #[test]
    fn a_code_becomes_a_label_only_if_it_is_known() {
        let label = |code: Option<&str>| {
            let error = ConnectionError::local(ConnectionErrorKind::Script, "send", "");
            let code = code.map(str::to_owned);
            ConnectionError { code, ..error }.known_code()
        };
        assert_eq!(label(None), "io");
        assert_eq!(label(Some("OOM")), "OOM");
        assert_eq!(label(Some("any-thing")), "other");
    }

    #[test]
    fn no_code_stands_twice_in_the_table() {
        for (index, row) in CODES.iter().enumerate() {
            assert!(
                CODES[index + 1..].iter().all(|other| other.0 != row.0),
                "{}",
                row.0
            );
        }
    }
}
