//! A record of handler runs: which message of which key ran when, and whether it was acknowledged.
//!
//! A payload names its message: the key, a space, and a number.

use lisa_producer::{NewMessage, Producer, SendOutcome};
use lisa_tests::{SOON, eventually};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, MutexGuard};
use tokio::time::Instant;

/// One run of a handler.
struct Run {
    key: String,
    number: usize,
    began: Instant,
    ended: Option<Instant>,
    acked: bool,
}

/// All runs in the order of their beginnings. Clones share them.
#[derive(Clone, Default)]
pub(super) struct Journal {
    runs: Arc<Mutex<Vec<Run>>>,
}

/// A message of a key.
pub(super) fn message(key: &str, number: usize) -> NewMessage {
    NewMessage::new(format!("{key} {number}")).key(key)
}

/// Sends messages that must all be stored to wait; returns their due times, ms.
pub(super) async fn send_all(
    producer: &Producer,
    topic: &str,
    messages: Vec<NewMessage>,
) -> Vec<u64> {
    let receipts = producer.send_batch(topic, messages).await.unwrap();
    let due = receipts.into_iter().map(|receipt| {
        let receipt = receipt.unwrap();
        assert_eq!(receipt.outcome, SendOutcome::Waiting, "{receipt:?}");
        receipt.due.expect("waiting has a due time").get()
    });
    due.collect()
}

impl Journal {
    fn runs(&self) -> MutexGuard<'_, Vec<Run>> {
        self.runs.lock().unwrap()
    }

    /// Notes that a run begins; returns its number.
    pub(super) fn begin(&self, payload: &[u8]) -> usize {
        let text = std::str::from_utf8(payload).expect("a name");
        let (key, number) = text.split_once(' ').expect("a key and a number");
        let mut runs = self.runs();
        runs.push(Run {
            key: key.to_owned(),
            number: number.parse().expect("a number"),
            began: Instant::now(),
            ended: None,
            acked: false,
        });
        runs.len() - 1
    }

    /// Notes that a run ends.
    pub(super) fn end(&self, run: usize, acked: bool) {
        let run = &mut self.runs()[run];
        run.ended = Some(Instant::now());
        run.acked = acked;
    }

    /// Returns the number of messages with an acknowledged run.
    pub(super) fn acked(&self) -> usize {
        let runs = self.runs();
        let acked = runs.iter().filter(|run| run.acked);
        let acked: BTreeSet<_> = acked.map(|run| (&run.key, run.number)).collect();
        acked.len()
    }

    /// Waits until this many messages have an acknowledged run.
    #[track_caller]
    pub(super) fn acks(&self, wanted: usize) -> impl Future<Output = ()> {
        eventually(SOON, async move || match self.acked() {
            count if count == wanted => Ok(()),
            count => Err(format!("{count} of {wanted} acknowledged")),
        })
    }

    /// Returns the number of runs.
    pub(super) fn count(&self) -> usize {
        self.runs().len()
    }

    /// Returns the number of runs after an acknowledged one of the same message.
    pub(super) fn repeats(&self) -> usize {
        let mut acked = BTreeSet::new();
        let runs = self.runs();
        let again = runs.iter().filter(|run| {
            let name = (&run.key, run.number);
            let again = acked.contains(&name);
            if run.acked {
                acked.insert(name);
            }
            again
        });
        again.count()
    }

    /// The messages of a key as they ran, one for each run.
    pub(super) fn runs_of(&self, key: &str) -> Vec<usize> {
        let runs = self.runs();
        let of_key = runs.iter().filter(|run| run.key == key);
        of_key.map(|run| run.number).collect()
    }

    /// The messages of a key in the order in which they ran. Several runs in a row count as one.
    pub(super) fn order(&self, key: &str) -> Vec<usize> {
        let mut numbers = self.runs_of(key);
        numbers.dedup();
        numbers
    }

    /// The runs that began before an earlier one of their key had ended.
    pub(super) fn overlaps(&self) -> Vec<String> {
        let mut latest: BTreeMap<&str, &Run> = BTreeMap::new();
        let runs = self.runs();
        let mut overlaps = Vec::new();
        for run in runs.iter() {
            if let Some(before) = latest.insert(&run.key, run)
                && before.ended.is_none_or(|ended| ended > run.began)
            {
                overlaps.push(format!("{} {} and {}", run.key, before.number, run.number));
            }
        }
        overlaps
    }
}
