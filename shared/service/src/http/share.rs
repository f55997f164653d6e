//! Divides a limited resource among clients, so that no client can take all of it.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use axum::body::Bytes;
use lisa_core::sync::Mutex;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::time::{Instant, timeout_at};

use super::client::Client;

/// The units of a resource that clients share. Cheap to clone; clones share the units.
#[derive(Clone, Debug)]
pub struct Shares(Arc<Units>);

#[derive(Debug)]
struct Units {
    all: Arc<Semaphore>,
    total: usize,
    share: usize,
    /// The clients that hold units or wait for some.
    clients: Mutex<HashMap<Client, Requests>>,
}

/// The requests of one client that hold units or wait for some.
#[derive(Debug)]
struct Requests {
    count: usize,
    permits: Arc<Semaphore>,
}

/// The reason why a request gets no units.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Shortage {
    /// The client holds its share.
    OfClient,
    /// All clients together hold all units.
    OfAll,
}

impl Shares {
    /// Creates a resource of `units`, of which one client holds at most `share`.
    #[must_use]
    pub fn new(units: usize, share: usize) -> Self {
        Self(Arc::new(Units {
            all: Arc::new(Semaphore::new(units)),
            total: units,
            share,
            clients: Mutex::default(),
        }))
    }

    /// Returns the number of all units.
    #[must_use]
    pub fn all(&self) -> usize {
        self.0.total
    }

    /// Returns the most units that one client can hold.
    #[must_use]
    pub fn of_one(&self) -> usize {
        self.0.share
    }

    /// Returns the number of units that nobody holds.
    #[must_use]
    pub fn free(&self) -> usize {
        self.0.all.available_permits()
    }

    /// Begins a request of a client. It holds no units yet.
    #[must_use]
    pub fn begin(&self, client: Client) -> Share {
        let permits = {
            let mut clients = self.0.clients.lock();
            let requests = clients.entry(client.clone()).or_insert_with(|| Requests {
                count: 0,
                permits: Arc::new(Semaphore::new(self.0.share)),
            });
            requests.count += 1;
            requests.permits.clone()
        };
        Share {
            units: self.0.clone(),
            client,
            permits,
            held: None,
        }
    }
}

/// Bytes with the share that they hold.
struct Held {
    bytes: Bytes,
    _share: Share,
}

impl AsRef<[u8]> for Held {
    fn as_ref(&self) -> &[u8] {
        &self.bytes
    }
}

/// The units that one request holds. Dropping it returns them.
#[derive(Debug)]
pub struct Share {
    units: Arc<Units>,
    client: Client,
    permits: Arc<Semaphore>,
    /// The same number of the client's share and of all units.
    held: Option<[OwnedSemaphorePermit; 2]>,
}

impl Share {
    /// Returns the client.
    #[must_use]
    pub fn client(&self) -> Client {
        self.client.clone()
    }

    /// Returns the number of units that the request holds.
    #[must_use]
    pub fn held(&self) -> usize {
        self.held.as_ref().map_or(0, |[own, _]| own.num_permits())
    }

    /// Returns the number of units that all requests of the client hold.
    #[must_use]
    pub fn held_by_client(&self) -> usize {
        self.units.share - self.permits.available_permits()
    }

    /// Adds units at once.
    ///
    /// # Errors
    /// There are not enough.
    pub fn try_add(&mut self, units: usize) -> Result<(), Shortage> {
        let more = u32::try_from(units).map_err(|_| Shortage::OfClient)?;
        let own = self.permits.clone().try_acquire_many_owned(more);
        let own = own.map_err(|_| Shortage::OfClient)?;
        let all = self.units.all.clone().try_acquire_many_owned(more);
        self.keep([own, all.map_err(|_| Shortage::OfAll)?]);
        Ok(())
    }

    /// Adds units, and waits for them until `until`. The client's share comes first, so that the excess requests of one
    /// client do not wait in the others' queue.
    ///
    /// # Errors
    /// There are not enough in time.
    ///
    /// # Cancel safety
    /// Safe: no units are added.
    pub async fn add(&mut self, units: usize, until: Instant) -> Result<(), Shortage> {
        let more = u32::try_from(units).map_err(|_| Shortage::OfClient)?;
        let own = self.permits.clone().acquire_many_owned(more);
        let Ok(Ok(own)) = timeout_at(until, own).await else {
            return Err(Shortage::OfClient);
        };
        let all = self.units.all.clone().acquire_many_owned(more);
        let Ok(Ok(all)) = timeout_at(until, all).await else {
            return Err(Shortage::OfAll);
        };
        self.keep([own, all]);
        Ok(())
    }

    /// Adds units like [`Share::add`], within this time.
    ///
    /// # Errors
    /// There are not enough in time.
    pub async fn add_within(&mut self, units: usize, within: Duration) -> Result<(), Shortage> {
        self.add(units, Instant::now() + within).await
    }

    /// Returns bytes that hold the units until their last copy is gone, as when a connection has written them.
    #[must_use]
    pub fn hold(self, bytes: Bytes) -> Bytes {
        Bytes::from_owner(Held {
            bytes,
            _share: self,
        })
    }

    /// Returns all units.
    pub fn clear(&mut self) {
        self.held = None;
    }

    /// Releases the units in excess of `units`.
    pub fn shrink_to(&mut self, units: usize) {
        let excess = self.held().saturating_sub(units);
        for permits in self.held.iter_mut().flatten() {
            drop(permits.split(excess));
        }
    }

    fn keep(&mut self, more: [OwnedSemaphorePermit; 2]) {
        match &mut self.held {
            Some(held) => held
                .iter_mut()
                .zip(more)
                .for_each(|(held, more)| held.merge(more)),
            None => self.held = Some(more),
        }
    }
}

impl Drop for Share {
    fn drop(&mut self) {
        self.held = None;
        let mut clients = self.units.clients.lock();
        if let Some(requests) = clients.get_mut(&self.client) {
            requests.count -= 1;
            if requests.count == 0 {
                clients.remove(&self.client);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn address(last: u8) -> Client {
        Client::Address([10, 0, 0, last].into())
    }

    #[tokio::test]
    async fn a_client_takes_its_share_and_leaves_the_rest_to_others() {
        let shares = Shares::new(10, 6);
        let [mut one, mut again, mut other] = [1, 1, 2].map(|last| shares.begin(address(last)));
        assert_eq!(one.try_add(4), Ok(()));
        assert_eq!(again.try_add(3), Err(Shortage::OfClient));
        assert_eq!(again.try_add(2), Ok(()));
        assert_eq!(other.try_add(5), Err(Shortage::OfAll));
        assert_eq!(other.try_add(4), Ok(()));
        assert_eq!((one.held(), other.held(), shares.free()), (4, 4, 0));
        let brief = Duration::from_millis(1);
        assert_eq!(again.add_within(1, brief).await, Err(Shortage::OfClient));
        drop(one);
        assert_eq!(again.add_within(4, brief).await, Ok(()));
        assert_eq!(other.add_within(1, brief).await, Err(Shortage::OfAll));
        again.shrink_to(3);
        assert_eq!((again.held(), shares.free()), (3, 3));
        again.shrink_to(4);
        assert_eq!(again.held(), 3);
        again.clear();
        other.clear();
        assert_eq!((again.held(), shares.free()), (0, 10));
        drop((again, other));
        assert!(shares.0.clients.lock().is_empty());
    }
}
