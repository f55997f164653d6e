//! Looks for changes of the stored tokens. A request with a token that this process does not know waits for the next look, so that a new
//! secret is accepted as soon as it is stored.

use std::sync::Arc;
use std::time::Duration;

use lisa_core::broker::Broker;
use tokio::sync::{Notify, watch};
use tokio::time::{sleep, timeout};

use super::TokenSet;

/// The interval at which a process looks. Each look costs one command that reads one number.
const EVERY: Duration = Duration::from_secs(2);
/// The shortest time between two looks, however many requests have unknown tokens.
const PAUSE: Duration = Duration::from_millis(100);
/// The longest time that such a request waits.
const WAIT: Duration = Duration::from_secs(3);

/// The looks of a process. Cheap to clone; all clones are about the same looks.
#[derive(Clone, Debug, Default)]
pub(super) struct Looks {
    wanted: Arc<Notify>,
    /// Those that have begun and ended.
    numbers: watch::Sender<Numbers>,
}

#[derive(Clone, Copy, Debug, Default)]
struct Numbers {
    begun: u64,
    ended: u64,
    /// True while the process looks.
    is_looking: bool,
}

impl TokenSet {
    /// Looks for changes of the stored tokens, after an interval or when a request has an unknown token.
    pub async fn look_again(&self, broker: &Broker) {
        let numbers = &self.looks.numbers;
        numbers.send_modify(|numbers| numbers.is_looking = true);
        let wanted = async {
            sleep(PAUSE).await;
            self.looks.wanted.notified().await;
        };
        let _ = timeout(EVERY, wanted).await;
        numbers.send_modify(|numbers| numbers.begun += 1);
        // Other tasks report that Redis is unavailable.
        if let Err(error) = self.read_stored(broker).await {
            tracing::debug!(%error, "cannot read the stored tokens; retrying");
        }
        numbers.send_modify(|numbers| numbers.ended = numbers.begun);
    }

    /// Makes requests with unknown tokens wait no longer, because the process shuts down.
    pub fn end_looks(&self) {
        let numbers = &self.looks.numbers;
        numbers.send_modify(|numbers| numbers.is_looking = false);
    }

    /// Waits up to 3 s for a look that begins after this call. Returns false if none has ended by then, and at once if this process
    /// does not look.
    pub(super) async fn await_look(&self) -> bool {
        let mut numbers = self.looks.numbers.subscribe();
        let begun = numbers.borrow().begun;
        self.looks.wanted.notify_one();
        let has_ended = |numbers: &Numbers| numbers.ended > begun || !numbers.is_looking;
        let looked = timeout(WAIT, numbers.wait_for(has_ended)).await;
        matches!(looked, Ok(Ok(numbers)) if numbers.ended > begun)
    }
}
