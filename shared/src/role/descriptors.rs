//! The limit of open files: raised as far as the system allows, and what it means for connections.

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

/// Descriptors that connections to a listener leave to Redis, webhooks, commands and files.
const OTHERS: u64 = 128;

/// Raises the soft limit of open files to the hard one, and logs that; the usual 1,024 is less than a listener may need.
pub(super) fn raise() {
    let limit = getrlimit(Resource::Nofile);
    if limit.current == limit.maximum {
        return;
    }
    let raised = Rlimit {
        current: limit.maximum,
        maximum: limit.maximum,
    };
    let (from, to) = (limit.current, limit.maximum);
    match setrlimit(Resource::Nofile, raised) {
        Ok(()) => tracing::info!(from, to, "raised the limit of open files"),
        Err(error) => tracing::warn!(from, to, %error, "cannot raise the limit of open files"),
    }
}

/// Returns how many connections a listener can have, which is less than `wanted` where the limit of open files is low; logs that.
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
    fn connections_leave_descriptors_to_redis_and_files() {
        assert_eq!(fitting(10_000, None), 10_000);
        assert_eq!(fitting(10_000, Some(1_048_576)), 10_000);
        assert_eq!(fitting(10_000, Some(1024)), 896);
        assert_eq!(fitting(10_000, Some(100)), 50);
        assert_eq!(fitting(10, Some(1024)), 10);
        assert_eq!(fitting(10, Some(1)), 1);
    }
}
