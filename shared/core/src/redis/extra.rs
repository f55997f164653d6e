//! Additional connections, for replies that may be large. On a slow network such a reply takes seconds, and on the
//! active connection all other requests would wait behind it.
//!
//! Each is opened by its first request and belongs to the active connection: when that one is replaced, so is this
//! one. Nothing supervises it; a request that fails on the socket or times out closes it.

use tokio::sync::Mutex;

use super::socket::Socket;

/// An additional connection, by the replies expected on it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Extra {
    /// For replies expected to be small, so that they do not wait behind large ones.
    Small,
    /// For replies that may be large.
    Large,
}

/// The additional connections that belong to one active connection.
#[derive(Default)]
pub(super) struct Extras([Mutex<Slot>; 2]);

/// One additional connection, and how often it was opened.
#[derive(Default)]
pub(super) struct Slot {
    pub(super) conn: Option<Socket>,
    pub(super) opened: u64,
}

impl Extras {
    pub(super) fn slot(&self, which: Extra) -> &Mutex<Slot> {
        match which {
            Extra::Small => &self.0[0],
            Extra::Large => &self.0[1],
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use redis::{Value, cmd};

    use super::super::testing::{Answer, Fake, SOON, quick_connection, say};
    use super::*;

    #[tokio::test]
    async fn a_reply_that_does_not_come_in_time_closes_its_own_connection_and_no_other() {
        // The first socket is that of the active connection. The second, for large replies, never answers.
        let fake = Fake::start(|connection, words| match words[0].as_str() {
            "HMGET" if connection == 2 => Some(Answer::Keep),
            "HMGET" | "GET" => say("+fine"),
            _ => None,
        })
        .await;
        let connection = quick_connection(fake.url.clone());
        let fetch = cmd("HMGET");
        let large = connection.any().extra(Extra::Large);
        let late = large.call(&fetch, SOON).await.unwrap_err();
        assert!(late.is_late && late.is_retryable(), "{late}");
        assert_eq!(fake.count_of("HMGET"), 1, "not retried");
        assert!(connection.is_up());
        let fine = Value::SimpleString("fine".to_owned());
        assert_eq!(
            connection.any().call(&cmd("GET"), SOON).await.unwrap(),
            fine
        );
        assert_eq!(fake.connections(), 2);
        assert_eq!(large.call(&fetch, SOON).await.unwrap(), fine);
        let small = connection.any().extra(Extra::Small);
        assert_eq!(small.call(&fetch, SOON).await.unwrap(), fine);
        assert_eq!(large.call(&fetch, SOON).await.unwrap(), fine);
        assert_eq!(fake.connections(), 4, "one for each kind, kept");
    }

    #[tokio::test]
    async fn an_extra_connection_that_was_cut_is_opened_again_within_the_call() {
        let fake = Fake::start(|connection, words| match words[0].as_str() {
            "HMGET" if connection == 2 => Some(Answer::Close),
            "HMGET" => say("+fine"),
            _ => None,
        })
        .await;
        let connection = quick_connection(fake.url.clone());
        connection.wait_up(Duration::from_secs(20)).await.unwrap();
        let small = connection.any().extra(Extra::Small);
        small.call(&cmd("HMGET"), SOON).await.unwrap();
        assert_eq!(fake.connections(), 3, "the active one stayed");
    }
}
