//! Starts the tasks that no supervisor starts. Nothing else calls `tokio::spawn`, so that each task has an owner.

use tokio::task::JoinHandle;
use tokio_util::task::AbortOnDropHandle;

/// Starts a task that is aborted when its handle is dropped.
pub fn owned<T: Send + 'static>(
    task: impl Future<Output = T> + Send + 'static,
) -> AbortOnDropHandle<T> {
    AbortOnDropHandle::new(detached(task))
}

/// Starts a task that continues when its handle is dropped. It must end by itself, for example by a token or a closed queue
/// that it owns.
#[expect(clippy::disallowed_methods, reason = "the place for it")]
pub fn detached<T: Send + 'static>(
    task: impl Future<Output = T> + Send + 'static,
) -> JoinHandle<T> {
    tokio::spawn(task)
}
