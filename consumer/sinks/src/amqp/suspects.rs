//! The messages that may have made the server close the channel.
//!
//! The server reports why it closed the channel, but not because of which message, and all messages in flight fail with that
//! reason. So no attempt is counted for any of them. Each is published alone the next time: if the channel is closed again,
//! that message is the cause.

use std::collections::HashSet;

use lisa_core::message::MessageId;
use lisa_core::sync::Mutex;
use tokio::sync::{Semaphore, SemaphorePermit};

/// The largest number of suspects. When it is reached, all are forgotten. A forgotten message can become a suspect again.
const MAX_SUSPECTS: usize = 20_000;
/// The number of permits, which exceeds the number of concurrent deliveries. A suspect takes all of them.
const TURNS: u32 = 1 << 24;

/// The suspects of a sink, and the order in which its messages are published.
pub(super) struct Suspects {
    ids: Mutex<HashSet<MessageId>>,
    turns: Semaphore,
}

impl Default for Suspects {
    fn default() -> Self {
        Self {
            ids: Mutex::default(),
            turns: Semaphore::new(TURNS as usize),
        }
    }
}

impl Suspects {
    pub(super) fn add(&self, id: &MessageId) {
        let mut ids = self.ids.lock();
        if ids.len() >= MAX_SUSPECTS {
            ids.clear();
        }
        ids.insert(id.clone());
    }

    pub(super) fn remove(&self, id: &MessageId) {
        self.ids.lock().remove(id);
    }

    /// Waits until the message may be published: alone if it is a suspect, otherwise together with others. The turn ends
    /// when the permit is dropped. Turns are granted in the order of the calls.
    ///
    /// # Cancel safety
    /// If the future is dropped, the message loses its place in the order.
    pub(super) async fn turn(&self, id: &MessageId) -> SemaphorePermit<'_> {
        let alone = self.ids.lock().contains(id);
        let turns = self.turns.acquire_many(if alone { TURNS } else { 1 });
        turns.await.expect("the semaphore is never closed")
    }
}

#[cfg(test)]
mod tests {
    use futures_util::FutureExt;

    use super::*;

    fn id(n: usize) -> MessageId {
        format!("m-{n}").parse().unwrap()
    }

    #[tokio::test]
    async fn a_suspect_has_its_turn_alone_and_before_later_messages() {
        let suspects = Suspects::default();
        suspects.add(&id(0));
        let (first, second) = (suspects.turn(&id(1)).await, suspects.turn(&id(2)).await);
        let suspect = id(0);
        let mut alone = Box::pin(suspects.turn(&suspect));
        assert!(alone.as_mut().now_or_never().is_none());
        let third = id(3);
        let mut later = Box::pin(suspects.turn(&third));
        assert!(later.as_mut().now_or_never().is_none());
        drop((first, second));
        let alone = alone.await;
        assert!(later.as_mut().now_or_never().is_none());
        drop(alone);
        let _later = later.await;
        suspects.remove(&suspect);
        assert!(suspects.turn(&suspect).now_or_never().is_some());
    }

    #[test]
    fn the_number_of_suspects_is_bounded() {
        let suspects = Suspects::default();
        (0..3 * MAX_SUSPECTS).for_each(|n| suspects.add(&id(n)));
        assert!(suspects.ids.lock().len() <= MAX_SUSPECTS);
        assert!(suspects.ids.lock().contains(&id(3 * MAX_SUSPECTS - 1)));
    }
}
