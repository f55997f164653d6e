//! The memory for bodies: how much of it all clients, one client, and clients that were not admitted have.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use lisa_core::sync::Mutex;
use tokio::time::Instant;

use super::super::client::{self, Client};
use super::super::share::{Share, Shares};
use super::BodyError;

/// The memory for incomplete bodies, in bytes.
pub(super) struct Room {
    pub(super) all: usize,
    of_one: usize,
    /// The first bytes of each body, which do not count. A connection costs about as much anyway, and small bodies are never
    /// refused.
    free: usize,
}

/// The memory for admitted clients of a listener.
pub(super) const OF_CLIENTS: Room = Room {
    all: 256 * 1024 * 1024,
    of_one: 128 * 1024 * 1024,
    free: 64 * 1024,
};
/// The memory for all others, who cannot take that of the clients.
pub(super) const OF_STRANGERS: Room = Room {
    all: 32 * 1024 * 1024,
    of_one: 16 * 1024 * 1024,
    free: 8 * 1024,
};

/// The time for which the address of an admitted client is remembered.
const KNOWN_FOR: Duration = Duration::from_hours(1);
/// The most addresses that are remembered.
const MAX_KNOWN: usize = 4096;

/// The addresses of clients that were admitted recently, by a credential in a body. They have memory of their own for the next
/// body before it is admitted, so that strangers cannot take it.
#[derive(Clone, Debug)]
struct Known {
    until: Arc<Mutex<HashMap<Client, Instant>>>,
    shares: Shares,
}

impl Known {
    fn new() -> Self {
        Self {
            until: Arc::default(),
            shares: Shares::new(OF_STRANGERS.all, OF_STRANGERS.of_one),
        }
    }

    fn has(&self, client: &Client) -> bool {
        let until = self.until.lock().get(client).copied();
        until.is_some_and(|until| Instant::now() < until)
    }

    fn note(&self, client: Client) {
        let now = Instant::now();
        let mut known = self.until.lock();
        if known.len() >= MAX_KNOWN && !known.contains_key(&client) {
            known.retain(|_, until| now < *until);
        }
        if known.len() < MAX_KNOWN || known.contains_key(&client) {
            known.insert(client, now + KNOWN_FOR);
        }
    }
}

/// The limits of the bodies of a listener. Clones share the memory.
#[derive(Clone, Debug)]
pub struct BodyLimits {
    pub(super) within: Duration,
    pub(super) clients: Shares,
    pub(super) strangers: Shares,
    known: Known,
}

impl BodyLimits {
    /// Creates limits. Each body, or each line of one, must arrive `within` this time.
    ///
    /// All incomplete bodies of admitted clients together take at most 256 MiB, and those of one client half of it. The first
    /// 64 KiB of each do not count. Bodies of other clients take at most 32 MiB, beyond 8 KiB each. Clients whose
    /// address was admitted in the last hour by a credential in a body share another 32 MiB.
    #[must_use]
    pub fn new(within: Duration) -> Self {
        Self::with_room(within, OF_CLIENTS.all, OF_CLIENTS.of_one)
    }

    pub(super) fn with_room(within: Duration, all: usize, of_one: usize) -> Self {
        Self {
            within,
            clients: Shares::new(all, of_one),
            strangers: Shares::new(OF_STRANGERS.all, OF_STRANGERS.of_one),
            known: Known::new(),
        }
    }

    /// Returns limits with separate memory for clients that were not admitted yet.
    #[must_use]
    pub fn apart(&self) -> Self {
        Self {
            strangers: Shares::new(OF_STRANGERS.all, OF_STRANGERS.of_one),
            known: Known::new(),
            ..self.clone()
        }
    }

    /// Begins the body of the request being answered.
    pub(super) fn begin(&self) -> Reservation {
        let (is_admitted, client) = (client::is_admitted(), Client::current());
        let (shares, free) = match is_admitted {
            true => (&self.clients, OF_CLIENTS.free),
            false if self.known.has(&client) => (&self.known.shares, OF_STRANGERS.free),
            false => (&self.strangers, OF_STRANGERS.free),
        };
        Reservation {
            share: shares.begin(client),
            free,
            limits: (!is_admitted).then(|| self.clone()),
        }
    }
}

/// The memory reserved for one body. Dropping it ends the reservation.
#[derive(Debug)]
pub struct Reservation {
    share: Share,
    free: usize,
    /// The limits, if the client was not admitted yet.
    limits: Option<BodyLimits>,
}

impl Reservation {
    /// Grows to `bytes`. Does not wait: bodies that hold memory and wait for more could block each other.
    pub(super) fn grow(&mut self, bytes: usize) -> Result<(), BodyError> {
        let missing = bytes.saturating_sub(self.free);
        match missing.saturating_sub(self.share.held()) {
            0 => Ok(()),
            missing => Ok(self.share.try_add(missing)?),
        }
    }

    /// Returns the client.
    pub(super) fn client(&self) -> Client {
        self.share.client()
    }

    /// Returns the memory, and keeps the reservation for what comes next.
    pub(super) fn clear(&mut self) {
        self.share.clear();
    }

    /// Returns true if the client was not admitted yet.
    #[must_use]
    pub fn is_of_stranger(&self) -> bool {
        self.limits.is_some()
    }

    /// Counts the body as that of an admitted client from now on.
    ///
    /// # Errors
    /// There is no memory for it now.
    pub fn admit(&mut self, client: Client) -> Result<(), BodyError> {
        if let Some(limits) = self.limits.take() {
            limits.known.note(self.share.client());
            let share = limits.clients.begin(client);
            let bytes = self.free + std::mem::replace(&mut self.share, share).held();
            self.free = OF_CLIENTS.free;
            self.grow(bytes)?;
        }
        Ok(())
    }
}
