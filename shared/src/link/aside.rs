//! Connections beside the one that a link keeps, for replies that may be large: on a slow network they take seconds, and
//! on the usual connection everything else would wait behind them.
//!
//! One is opened with its first request and belongs to the usual connection: where that one is replaced, so is this one.
//! Nothing watches over it; a request that fails closes it.

use redis::aio::MultiplexedConnection;
use tokio::sync::Mutex;

use super::LinkError;
use super::keeper::{Live, Node};

/// Names one of the connections beside the usual one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Aside {
    /// For replies that are expected to be small: they do not wait behind large ones.
    Small,
    /// For replies that may be large.
    Large,
}

/// The connections beside one connection.
#[derive(Default)]
pub(super) struct Asides([Mutex<Slot>; 2]);

/// One of them, and how often one was opened in its place.
#[derive(Default)]
struct Slot {
    conn: Option<MultiplexedConnection>,
    opened: u64,
}

impl Live {
    /// Gives a connection beside this one and its number; opens it where there is none.
    pub(super) async fn aside(
        &self,
        which: Aside,
        node: &Node,
    ) -> Result<(MultiplexedConnection, u64), LinkError> {
        let mut slot = self.asides.slot(which).lock().await;
        let conn = match &slot.conn {
            Some(conn) => conn.clone(),
            None => {
                let conn = node.opener.open().await?.conn;
                slot.conn = Some(conn.clone());
                slot.opened += 1;
                conn
            }
        };
        Ok((conn, slot.opened))
    }

    /// Closes a connection beside this one, unless another one was opened meanwhile.
    pub(super) async fn close_aside(&self, which: Aside, number: u64) {
        let mut slot = self.asides.slot(which).lock().await;
        if slot.opened == number {
            slot.conn = None;
        }
    }
}

impl Asides {
    fn slot(&self, which: Aside) -> &Mutex<Slot> {
        match which {
            Aside::Small => &self.0[0],
            Aside::Large => &self.0[1],
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use redis::{Value, cmd};

    use super::super::testing::{Answer, Fake, SOON, quick_link, say};
    use super::*;

    #[tokio::test]
    async fn a_reply_that_does_not_come_in_time_closes_its_own_connection_and_no_other() {
        // The greeting of the link is the first connection; the second one, of the large replies, never answers.
        let fake = Fake::start(|connection, words| match words[0].as_str() {
            "HMGET" if connection == 2 => Some(Answer::Keep),
            "HMGET" | "GET" => say("+fine"),
            _ => None,
        })
        .await;
        let link = quick_link(fake.url.clone());
        let fetch = cmd("HMGET");
        let large = link.any().aside(Aside::Large);
        let late = large.call(&fetch, SOON).await.unwrap_err();
        assert!(late.is_late && late.is_retryable(), "{late}");
        assert_eq!(fake.count_of("HMGET"), 1, "not repeated by itself");
        assert!(link.is_up());
        let fine = Value::SimpleString("fine".to_owned());
        assert_eq!(link.any().call(&cmd("GET"), SOON).await.unwrap(), fine);
        assert_eq!(fake.connections(), 2);
        assert_eq!(large.call(&fetch, SOON).await.unwrap(), fine);
        let small = link.any().aside(Aside::Small);
        assert_eq!(small.call(&fetch, SOON).await.unwrap(), fine);
        assert_eq!(large.call(&fetch, SOON).await.unwrap(), fine);
        assert_eq!(fake.connections(), 4, "one for each kind, kept");
    }

    #[tokio::test]
    async fn a_connection_beside_that_was_cut_is_opened_again_within_the_call() {
        let fake = Fake::start(|connection, words| match words[0].as_str() {
            "HMGET" if connection == 2 => Some(Answer::Close),
            "HMGET" => say("+fine"),
            _ => None,
        })
        .await;
        let link = quick_link(fake.url.clone());
        link.wait_up(Duration::from_secs(20)).await.unwrap();
        let small = link.any().aside(Aside::Small);
        small.call(&cmd("HMGET"), SOON).await.unwrap();
        assert_eq!(fake.connections(), 3, "the usual one stayed");
    }
}
