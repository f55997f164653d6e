//! Bounds the reads that find nothing. Each pull may cost one for each shard, and pulls are cheap for a client.

use std::collections::HashMap;
use std::time::Duration;

use lisa_core::sync::Mutex;
use lisa_service::http::client::Client;
use tokio::time::Instant;

/// The time that each of these reads costs a client: it has 5,000 a second.
const EACH: Duration = Duration::from_micros(200);
/// The time that a client may owe.
const BURST: Duration = Duration::from_secs(1);
/// The time that a client which owes more rests: for a moment, its many readers can make few reads.
const REST: Duration = Duration::from_millis(100);
/// The number of clients at which those that owe nothing are forgotten.
const MANY_CLIENTS: usize = 256;

/// The reads of each client that did not block and found nothing.
#[derive(Debug, Default)]
pub(super) struct EmptyReads {
    /// The time up to which each client has used its reads.
    used_until: Mutex<HashMap<Client, Instant>>,
}

impl EmptyReads {
    /// Counts a read of a client.
    pub(super) fn count(&self, client: Client, now: Instant) {
        let mut clients = self.used_until.lock();
        if clients.len() >= MANY_CLIENTS {
            clients.retain(|_, until| *until > now);
        }
        let until = clients.entry(client).or_insert(now);
        *until = (*until).max(now) + EACH;
    }

    /// Returns the time from which a client may read again; `None` if it may do so now.
    pub(super) fn allowed_from(&self, client: &Client, now: Instant) -> Option<Instant> {
        let clients = self.used_until.lock();
        let until = *clients.get(client)?;
        (until > now + BURST).then(|| until - BURST + REST)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_client_has_a_burst_of_empty_reads_and_then_five_thousand_a_second() {
        let reads = EmptyReads::default();
        let (client, other) = (Client::Token("a".into()), Client::Token("b".into()));
        let begun = Instant::now() + Duration::from_secs(3600);
        let used = |now| {
            let mut used = 0;
            while reads.allowed_from(&client, now).is_none() && used < 20_000 {
                reads.count(client.clone(), now);
                used += 1;
            }
            used
        };
        assert_eq!(used(begun), 5001);
        assert_eq!(used(begun), 0);
        let later = reads.allowed_from(&client, begun).unwrap();
        assert_eq!(later - begun, EACH + REST);
        assert_eq!(used(begun + Duration::from_secs(1)), 5000);
        assert_eq!(used(begun + Duration::from_secs(100)), 5001);
        assert_eq!(reads.allowed_from(&other, begun), None);
        for number in 0..1000 {
            let now = begun + Duration::from_secs(1000 + number);
            reads.count(Client::Token(number.to_string().into()), now);
        }
        assert!(reads.used_until.lock().len() <= MANY_CLIENTS);
    }
}
