//! The connection of a sink: opened by the first delivery that needs it, and reopened after it has ended.

use std::sync::Arc;

use tokio::sync::Mutex;
use tokio::time::Instant;

/// A connection that all deliveries of a sink share. Deliveries that wait for it share one attempt to open it.
pub(super) struct Link<T> {
    state: Mutex<State<T>>,
}

struct State<T> {
    open: Option<Arc<T>>,
    /// The time and the error of the last failed attempt to open it.
    failed: Option<(Instant, String)>,
}

impl<T> Default for Link<T> {
    fn default() -> Self {
        Self {
            state: Mutex::new(State {
                open: None,
                failed: None,
            }),
        }
    }
}

impl<T> Link<T> {
    /// Returns the connection if it is usable, or opens one.
    pub(super) async fn get(
        &self,
        is_usable: impl Fn(&T) -> bool,
        open: impl AsyncFnOnce() -> Result<T, String>,
    ) -> Result<Arc<T>, String> {
        let since = Instant::now();
        let mut state = self.state.lock().await;
        if let Some(open) = state.open.as_ref().filter(|open| is_usable(open)) {
            return Ok(open.clone());
        }
        state.open = None;
        if let Some((at, error)) = &state.failed
            && *at >= since
        {
            return Err(error.clone());
        }
        match open().await {
            Ok(open) => Ok(state.open.insert(Arc::new(open)).clone()),
            Err(error) => {
                state.failed = Some((Instant::now(), error.clone()));
                Err(error)
            }
        }
    }

    /// Stops using a connection that does not answer: the next delivery opens another one.
    #[cfg(any(feature = "amqp", test))]
    pub(super) async fn drop_silent(&self, silent: &Arc<T>) {
        let mut state = self.state.lock().await;
        state.open.take_if(|open| Arc::ptr_eq(open, silent));
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};

    use futures_util::future::join_all;

    use super::*;

    #[tokio::test]
    async fn deliveries_that_wait_share_one_failed_try() {
        let (link, tries) = (Link::<()>::default(), AtomicUsize::new(0));
        let open = async || {
            tries.fetch_add(1, Ordering::Relaxed);
            tokio::task::yield_now().await;
            Err("refused".to_owned())
        };
        let all = join_all((0..100).map(|_| link.get(|()| true, open))).await;
        assert!(
            all.iter()
                .all(|result| result.as_ref().is_err_and(|error| error == "refused"))
        );
        assert_eq!(tries.load(Ordering::Relaxed), 1);
        assert!(link.get(|()| true, open).await.is_err());
        assert_eq!(
            tries.load(Ordering::Relaxed),
            2,
            "a later delivery tries again"
        );
    }

    #[tokio::test]
    async fn a_connection_is_used_until_it_is_not_usable_or_silent() {
        let (link, opened) = (Link::<usize>::default(), AtomicUsize::new(0));
        let open = async || Ok(opened.fetch_add(1, Ordering::Relaxed));
        let first = link.get(|_| true, open).await.unwrap();
        assert_eq!((*first, *link.get(|_| true, open).await.unwrap()), (0, 0));
        assert_eq!(*link.get(|_| false, open).await.unwrap(), 1);
        link.drop_silent(&first).await;
        let second = link.get(|_| true, open).await.unwrap();
        assert_eq!(*second, 1, "the silent one was replaced before");
        link.drop_silent(&second).await;
        assert_eq!(*link.get(|_| true, open).await.unwrap(), 2);
    }
}
