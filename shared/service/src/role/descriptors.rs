//! Raises the limit of open files as far as a role may need, and derives the limit of connections from it.
//!
//! Programs of the `command` sink inherit the limit of open files, and some programs close or poll every possible
//! descriptor. So it is not raised to a hard limit of a million.

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

/// The number of descriptors reserved for Redis, webhooks, commands and files.
const OTHERS: u64 = 128;

/// The limit that suffices for any role unless its listener may have more connections.
const ENOUGH: u64 = 65_536;

/// Raises the soft limit of open files to the number that a role with this many connections may need, and logs that. The
/// usual 1,024 is too low.
pub(super) fn raise(connections: usize) {
    let limit = getrlimit(Resource::Nofile);
    let Some(to) = raised(limit.current, limit.maximum, connections) else {
        return;
    };
    let raised = Rlimit {
        current: Some(to),
        maximum: limit.maximum,
    };
    let from = limit.current;
    match setrlimit(Resource::Nofile, raised) {
        Ok(()) => tracing::info!(from, to, "raised the limit of open files"),
        Err(error) => tracing::warn!(from, to, %error, "cannot raise the limit of open files"),
    }
}

/// Returns the soft limit to set, if the current one is too low and the hard one allows more.
fn raised(current: Option<u64>, maximum: Option<u64>, connections: usize) -> Option<u64> {
    let current = current?;
    let wanted = (connections as u64).saturating_add(OTHERS).max(ENOUGH);
    let to = wanted.min(maximum.unwrap_or(u64::MAX));
    (to > current).then_some(to)
}

/// Returns the number of connections that a listener can have. If the limit of open files is too low for `wanted`, logs a
/// warning and returns a lower number.
pub(super) fn connections(wanted: usize) -> usize {
    let limit = getrlimit(Resource::Nofile).current;
    let fitting = fitting(wanted, limit);
    if fitting < wanted {
        tracing::warn!(
            max_connections = fitting,
            configured = wanted,
            open_files = limit,
            "http.max_connections lowered: raise the limit of open files (ulimit -Hn, LimitNOFILE=)"
        );
    }
    fitting
}

fn fitting(wanted: usize, limit: Option<u64>) -> usize {
    let Some(limit) = limit else {
        return wanted;
    };
    let room = limit - OTHERS.min(limit / 2);
    wanted
        .min(usize::try_from(room).unwrap_or(usize::MAX))
        .max(1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_limit_that_commands_inherit_is_raised_no_further_than_needed() {
        let hard = Some(1_073_741_816);
        assert_eq!(raised(Some(1024), hard, 10_000), Some(65_536));
        assert_eq!(raised(Some(1024), None, 10_000), Some(65_536));
        assert_eq!(raised(Some(1024), hard, 1_000_000), Some(1_000_128));
        assert_eq!(raised(Some(1024), Some(4096), 10_000), Some(4096));
        assert_eq!(raised(Some(4096), Some(4096), 10_000), None);
        assert_eq!(raised(Some(200_000), hard, 10_000), None, "never lowered");
        assert_eq!(raised(None, None, 10_000), None);
    }

    #[test]
    fn connections_leave_descriptors_to_redis_and_files() {
        assert_eq!(fitting(10_000, None), 10_000);
        assert_eq!(fitting(10_000, Some(1_048_576)), 10_000);
        assert_eq!(fitting(10_000, Some(1024)), 896);
        assert_eq!(fitting(10_000, Some(100)), 50);
        assert_eq!(fitting(10, Some(1024)), 10);
        assert_eq!(fitting(10, Some(1)), 1);
    }
}
