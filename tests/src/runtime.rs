//! One background runtime for the harness's own servers (proxies, webhook targets). A test that blocks its own runtime,
//! or ends it, does not stall them.

use std::sync::OnceLock;
use tokio::runtime::{Builder, Handle, Runtime};

/// Returns the handle of the harness runtime, starting its one thread at the first call.
pub(crate) fn handle() -> &'static Handle {
    static RUNTIME: OnceLock<Runtime> = OnceLock::new();
    RUNTIME
        .get_or_init(|| {
            Builder::new_multi_thread()
                .worker_threads(1)
                .thread_name("harness")
                .enable_all()
                .build()
                .expect("the harness runtime starts")
        })
        .handle()
}
