//! Bounds what each client of the HTTP interface has under way, so that one client's sends do not delay those of others.
//!
//! Redis executes calls in the order of their arrival. Without a bound, one client could put seconds of work in front of every
//! other send.

#[cfg(feature = "http")]
use std::time::Duration;

#[cfg(feature = "http")]
use lisa_service::http::client::{Admitted, Client, admit_send};
#[cfg(feature = "http")]
pub(crate) use lisa_service::http::share::Share;
#[cfg(feature = "http")]
use lisa_service::http::share::{Shares, Shortage};

use crate::error::SendError;

/// The most bytes of sends that are under way for one client, unless a single message is larger: about 3,500 small messages,
/// for which Redis takes 10 ms.
#[cfg(feature = "http")]
const OF_ONE: usize = 2 * 1024 * 1024;
/// The most bytes for all clients of a process.
#[cfg(feature = "http")]
const OF_ALL: usize = 64 * 1024 * 1024;
/// The longest wait of a send for those of the same client.
#[cfg(feature = "http")]
const WAIT: Duration = Duration::from_secs(10);

/// Admits the sends of clients. Those of programs that use the library are always admitted.
#[derive(Debug)]
pub(crate) struct Admission {
    #[cfg(feature = "http")]
    sends: Shares,
}

#[cfg(feature = "http")]
impl Admission {
    pub(crate) fn new() -> Self {
        Self {
            sends: Shares::new(OF_ALL, OF_ONE),
        }
    }

    /// Counts a message against the quota of its client's token.
    ///
    /// # Errors
    /// [`SendError::OverQuota`]: the message must not be sent.
    pub(crate) fn count() -> Result<(), SendError> {
        admit_send().map_err(|per_second| SendError::OverQuota { per_second })
    }

    /// Waits until this many bytes of the client whose request is being answered may be sent. They count until the share is
    /// dropped. Do not call it while holding a share.
    ///
    /// # Errors
    /// [`SendError::Busy`]: other sends of the client, or of all clients, have taken too long.
    pub(crate) async fn share(&self, bytes: usize) -> Result<Option<Share>, SendError> {
        if Admitted::current().is_none() {
            return Ok(None);
        }
        let mut share = self.sends.begin(Client::current());
        match share.add_within(bytes.min(OF_ONE), WAIT).await {
            Ok(()) => Ok(Some(share)),
            Err(Shortage::OfClient) => Err(SendError::Busy { limit: OF_ONE }),
            Err(Shortage::OfAll) => Err(SendError::Busy { limit: OF_ALL }),
        }
    }
}

#[cfg(not(feature = "http"))]
pub(crate) type Share = ();

#[cfg(not(feature = "http"))]
impl Admission {
    pub(crate) const fn new() -> Self {
        Self {}
    }

    pub(crate) const fn count() -> Result<(), SendError> {
        Ok(())
    }

    pub(crate) async fn share(&self, _bytes: usize) -> Result<Option<Share>, SendError> {
        Ok(None)
    }
}

#[cfg(all(test, feature = "http"))]
mod tests {
    use super::*;

    fn client(token: &str) -> Admitted {
        Admitted::new(true, Some(token.into()))
    }

    #[tokio::test(start_paused = true)]
    async fn a_client_waits_for_its_own_sends_and_for_those_of_no_other() {
        let admission = Admission::new();
        let share = async |token: &str, bytes| {
            let share = client(token).scope(admission.share(bytes));
            share.await.map(|share| share.expect("a client"))
        };
        let begun = tokio::time::Instant::now();
        let first = share("a", OF_ONE - 1).await.unwrap();
        let second = share("a", 1).await.unwrap();
        share("b", 2 * OF_ONE).await.unwrap();
        assert!(begun.elapsed().is_zero(), "nobody waited");
        assert!(matches!(share("a", 1).await, Err(SendError::Busy { .. })));
        assert_eq!(begun.elapsed().as_secs(), WAIT.as_secs());
        let (third, ()) = tokio::join!(share("a", 2), async {
            tokio::time::sleep(WAIT / 2).await;
            drop((first, second));
        });
        third.unwrap();
    }

    #[tokio::test]
    async fn programs_that_use_the_library_have_no_share() {
        let admission = Admission::new();
        assert!(admission.share(2 * OF_ONE).await.unwrap().is_none());
    }
}
