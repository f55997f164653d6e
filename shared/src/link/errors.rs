//! What each failure of Redis means: the one table that says repeat, rebuild the connection, or give up.
//!
//! It judges; it neither waits nor repeats. Every other module asks [`classify`] and spells no error code itself.

use std::time::Duration;

use redis::{ErrorKind, RedisError, Value};

/// What the link does about a failure.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Action {
    /// Send the same request again on the same connection after a short pause.
    Retry,
    /// Replace the connection, then send the request again.
    Rebuild,
    /// Replace the connection, but slowly: the server refuses us and only an operator can change that.
    RebuildSlowly,
    /// Load the script and send the request again.
    LoadScript,
    /// Ask the node of the cluster that the reply names.
    Redirect,
    /// Hand the failure to the caller at once.
    GiveUp,
}

/// What a failure means to the caller.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LinkErrorKind {
    /// Redis cannot be reached or cannot serve now: I/O, time-out, loading, busy, no master, disk full.
    Unavailable,
    /// Redis refuses this user: no or wrong password, or a missing permission.
    Denied,
    /// Redis is at its memory limit.
    Full,
    /// The stream or its consumer group is gone.
    NoGroup,
    /// A key holds another type than expected.
    WrongType,
    /// The server lacks the command, or this kind of deployment is not supported.
    NotSupported,
    /// The settings cannot work: a bad address, an unreadable certificate, a database that does not exist.
    Invalid,
    /// Any other error reply: a broken invariant of a script or a wrong command.
    Script,
}

/// The judgement about one failure.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Verdict {
    /// What to do.
    pub action: Action,
    /// What it means.
    pub kind: LinkErrorKind,
    /// Whether Redis surely turned the request away before it changed anything.
    pub refused: bool,
}

use Action::{GiveUp, LoadScript, Rebuild, RebuildSlowly, Redirect, Retry};
use LinkErrorKind::{Denied, Full, Invalid, NoGroup, NotSupported, Script, Unavailable, WrongType};

/// Replies known by their code.
pub(crate) const CODES: &[(&str, Action, LinkErrorKind)] = &[
    ("LOADING", Retry, Unavailable),
    ("BUSY", Retry, Unavailable),
    ("TRYAGAIN", Retry, Unavailable),
    ("CLUSTERDOWN", Retry, Unavailable),
    ("NOREPLICAS", Retry, Unavailable),
    ("MISCONF", Retry, Unavailable),
    ("MASTERDOWN", Rebuild, Unavailable),
    ("READONLY", Rebuild, Unavailable),
    // Waiting would only hide a full Redis from the sender, who must slow down.
    ("OOM", GiveUp, Full),
    // With one address given, the link makes NotSupported of them.
    ("MOVED", Redirect, Unavailable),
    ("ASK", Redirect, Unavailable),
    // Redis 7.0 says UNBLOCKED where later versions say NOGROUP: the stream went away under a blocked read.
    ("UNBLOCKED", GiveUp, NoGroup),
    ("NOGROUP", GiveUp, NoGroup),
    ("NOAUTH", Rebuild, Denied),
    ("WRONGPASS", RebuildSlowly, Denied),
    ("DENIED", RebuildSlowly, Denied),
    // Permissions change on a live connection, so a new one would not help.
    ("NOPERM", GiveUp, Denied),
    ("NOSCRIPT", LoadScript, Script),
    ("NOPROTO", GiveUp, NotSupported),
    ("WRONGTYPE", GiveUp, WrongType),
    ("EXECABORT", GiveUp, Script),
    ("CROSSSLOT", GiveUp, Script),
];

/// Replies with the code `ERR`, known only by a part of their text.
pub(crate) const TEXTS: &[(&str, Action, LinkErrorKind)] = &[
    ("max number of clients", Rebuild, Unavailable),
    ("without any password configured", RebuildSlowly, Denied),
    ("ACL failure in script", GiveUp, Denied),
    ("unknown command", GiveUp, NotSupported),
    ("unknown subcommand", GiveUp, NotSupported),
    ("Unknown Redis command", GiveUp, NotSupported),
    ("DB index is out of range", GiveUp, Invalid),
    ("invalid DB index", GiveUp, Invalid),
];

/// Judges one failure.
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
        // A reply we do not know may come from the middle of a script.
        return Verdict {
            action: GiveUp,
            kind: Script,
            refused: false,
        };
    };
    // Redis names the script in an error raised while it ran; by then it may have written something.
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

/// Reports a failed request to Redis.
#[derive(Clone, Debug, thiserror::Error)]
#[error("{what}: {detail}")]
pub struct LinkError {
    /// What it means to the caller.
    pub kind: LinkErrorKind,
    /// Error code of Redis (`OOM`, `NOGROUP`, a code of our own scripts, ..), if it answered.
    pub code: Option<String>,
    /// Name of the command or script.
    pub what: String,
    /// What went wrong, for people.
    pub detail: String,
    /// Whether some try may have changed something: false only if none can have.
    pub maybe_applied: bool,
    /// Whether the last try ended because its reply did not come whole within the response time-out.
    pub is_late: bool,
    /// Failure reported by the client library.
    #[source]
    pub source: Option<Box<RedisError>>,
}

impl LinkError {
    /// Reports a failure that happened on this side of the connection.
    pub(crate) fn local(
        kind: LinkErrorKind,
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

    /// Reports a reply that did not come whole in time.
    pub(crate) fn late(what: impl Into<String>, limit: Duration) -> Self {
        let detail = format!("no answer within {limit:?}");
        Self {
            maybe_applied: true,
            is_late: true,
            ..Self::local(LinkErrorKind::Unavailable, what, detail)
        }
    }

    /// Reports a failure that the client library gave, judged by the table.
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

    /// Reports a redirection by a server that was named by its own address.
    pub(crate) fn of_a_cluster(self) -> Self {
        Self {
            kind: NotSupported,
            detail: format!(
                "{}: the server is a node of a cluster, name it by redis+cluster://",
                self.detail
            ),
            ..self
        }
    }

    /// Gives the code if the table knows it, else `other`; `io` without an answer. For labels of metrics.
    pub fn known_code(&self) -> &'static str {
        let Some(code) = &self.code else {
            return "io";
        };
        let known = CODES.iter().find(|row| row.0 == code);
        known.map_or("other", |row| row.0)
    }

    /// Says whether the keys of the request are on two nodes of a cluster, as their slot is being moved.
    pub(crate) fn is_slot_moving(&self) -> bool {
        self.code.as_deref() == Some("TRYAGAIN")
    }

    /// Says whether the same request may succeed later without anybody changing the request.
    pub fn is_retryable(&self) -> bool {
        match self.kind {
            Unavailable | Full => true,
            Denied | NoGroup | WrongType | NotSupported | Invalid | Script => false,
        }
    }

    /// Says whether only an operator can mend it, so that a starting process should stop.
    pub fn is_fatal(&self) -> bool {
        matches!(self.kind, Denied | NotSupported | Invalid)
    }
}

/// Turns an error reply anywhere in a value into an error: RESP2 nests them in arrays.
///
/// Without errors, the usual case, the value is handed on without being rebuilt.
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
            let error = LinkError::local(LinkErrorKind::Script, "send", "");
            let code = code.map(str::to_owned);
            LinkError { code, ..error }.known_code()
        };
        assert_eq!(label(None), "io");
        assert_eq!(label(Some("OOM")), "OOM");
        assert_eq!(label(Some("any-thing")), "other");
    }

    #[test]
    fn no_code_stands_twice_in_the_table() {
        for (place, row) in CODES.iter().enumerate() {
            assert!(
                CODES[place + 1..].iter().all(|other| other.0 != row.0),
                "{}",
                row.0
            );
        }
    }
}
