//! A count of the commands that a server received.

use super::SOON;
use futures_util::StreamExt;
use lisa_tests::{Server, eventually};
use redis::aio::MultiplexedConnection;
use redis::cmd;
use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::sync::{Arc, Mutex};
use tokio_util::task::AbortOnDropHandle;

/// Records every command that a server receives, from clients and from scripts.
pub(super) struct Ledger {
    lines: Arc<Mutex<Vec<String>>>,
    connection: MultiplexedConnection,
    _task: AbortOnDropHandle<()>,
}

/// The commands of a span of time.
#[derive(Default)]
pub(super) struct Page {
    /// The commands that clients sent.
    pub(super) requests: BTreeMap<String, usize>,
    /// The commands that scripts called.
    pub(super) inside: BTreeMap<String, usize>,
    lines: Vec<String>,
}

impl Ledger {
    pub(super) async fn open(server: &Server) -> Self {
        let client = redis::Client::open(server.socket_url()).unwrap();
        let monitor = client.get_async_monitor().await.unwrap();
        let lines = Arc::new(Mutex::new(Vec::new()));
        let written = lines.clone();
        let task = tokio::spawn(async move {
            let mut commands = monitor.into_on_message::<String>();
            while let Some(line) = commands.next().await {
                written.lock().unwrap().push(line);
            }
        });
        Self {
            lines,
            connection: server.connection().await,
            _task: AbortOnDropHandle::new(task),
        }
    }

    /// Starts a new page; returns everything since the last call.
    pub(super) async fn page(&self) -> Page {
        let mark = format!("mark-{}", fastrand::u64(..));
        let echo: String = cmd("ECHO")
            .arg(&mark)
            .query_async(&mut self.connection.clone())
            .await
            .unwrap();
        assert_eq!(echo, mark);
        let end = eventually(SOON, async || {
            let lines = self.lines.lock().unwrap();
            let end = lines.iter().position(|line| line.contains(&mark));
            end.ok_or("the ledger is behind")
        })
        .await;
        let mut lines: Vec<_> = self.lines.lock().unwrap().drain(..=end).collect();
        lines.pop();
        let mut page = Page::default();
        for line in &lines {
            // 1700000000.123456 [0 lua] "HGET" "key"
            let (head, command) = line.split_once("] \"").unwrap();
            let name = command.split('"').next().unwrap_or_default();
            let side = if head.ends_with(" lua") {
                &mut page.inside
            } else {
                &mut page.requests
            };
            *side.entry(name.to_uppercase()).or_default() += 1;
        }
        page.lines = lines;
        page
    }
}

impl Page {
    pub(super) fn requests(&self) -> usize {
        self.requests.values().sum()
    }

    /// Returns the commands that clients sent, except those that maintain a connection: a connection checks the clock
    /// now and then, which is counted at rest.
    pub(super) fn asked(&self) -> BTreeMap<String, usize> {
        let mut asked = self.requests.clone();
        asked.retain(|name, _| !matches!(name.as_str(), "TIME" | "PING"));
        asked
    }

    pub(super) fn inside(&self) -> usize {
        self.inside.values().sum()
    }

    pub(super) fn add(&mut self, other: Self) {
        for (name, count) in other.requests {
            *self.requests.entry(name).or_default() += count;
        }
        for (name, count) in other.inside {
            *self.inside.entry(name).or_default() += count;
        }
        self.lines.extend(other.lines);
    }

    /// Asserts which requests were sent, and that scripts called no more than `inside` commands.
    #[track_caller]
    pub(super) fn costs(&self, requests: &[(&str, usize)], inside: usize) {
        let requests: BTreeMap<_, _> = requests
            .iter()
            .map(|(n, c)| ((*n).to_owned(), *c))
            .collect();
        assert_eq!(self.asked(), requests, "{self}");
        assert!(self.inside() <= inside, "more than {inside}: {self}");
    }

    /// The last parts of the keys of shard 0 that were touched: `waiting`, `retry:default`.
    pub(super) fn keys(&self) -> BTreeSet<String> {
        let words = self.lines.iter().flat_map(|line| line.split('"'));
        let keys = words.filter_map(|word| word.split_once(":v1:{t:0}:"));
        keys.map(|(_, what)| what.to_owned()).collect()
    }
}

impl fmt::Display for Page {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "requests {:?}, inside scripts {:?}",
            self.requests, self.inside
        )
    }
}
