//! Every script against every error code of Redis: a call that is repeated does its work once; a call that fails did
//! nothing or reports that it may have.
//!
//! [`CONTRACT`] states independently how the connection must treat each code; it does not read the connection's own
//! table.

use super::calls::{Busy, CASES, Case, PLAIN, Verb, plain, two_groups};
use futures_util::StreamExt;
use lisa_core::broker::{Broker, BrokerError};
use lisa_core::redis::ConnectionErrorKind::{
    self, Denied, Full, Invalid, NoGroup, NotSupported, Script, WrongType,
};
use lisa_core::redis::{Connection, ConnectionSettings};
use lisa_tests::snapshot::Text;
use lisa_tests::{Fate, Request, RequestProxy, Server};
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;
use tokio_util::sync::CancellationToken;

/// The required behavior of a call that is answered with an error.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Must {
    /// Do its work all the same: by another request, on another connection, or when the script is loaded.
    Repeat,
    /// Return an error of this kind.
    GiveUp(ConnectionErrorKind),
}
use Must::{GiveUp, Repeat};

/// The errors of Redis, and the required behavior of a call that gets one.
const CONTRACT: [(&str, Must); 32] = [
    ("LOADING Redis is loading the dataset in memory", Repeat),
    ("BUSY Redis is busy running a script", Repeat),
    (
        "TRYAGAIN Multiple keys request during rehashing of slot",
        Repeat,
    ),
    ("CLUSTERDOWN The cluster is down", Repeat),
    ("NOREPLICAS Not enough good replicas to write.", Repeat),
    ("MISCONF Errors writing to the AOF file", Repeat),
    ("MASTERDOWN Connection with MASTER is down", Repeat),
    (
        "READONLY You can't write against a read only replica.",
        Repeat,
    ),
    ("NOAUTH Authentication required.", Repeat),
    ("ERR max number of clients reached", Repeat),
    ("NOSCRIPT No matching script.", Repeat),
    (
        "OOM command not allowed when used memory > 'maxmemory'.",
        GiveUp(Full),
    ),
    ("MOVED 1 127.0.0.1:1", GiveUp(NotSupported)),
    ("ASK 1 127.0.0.1:1", GiveUp(NotSupported)),
    ("UNBLOCKED the stream key no longer exists", GiveUp(NoGroup)),
    ("NOGROUP No such key or consumer group", GiveUp(NoGroup)),
    ("WRONGPASS invalid username-password pair", GiveUp(Denied)),
    ("DENIED Redis is running in protected mode", GiveUp(Denied)),
    ("NOPERM this user has no permissions", GiveUp(Denied)),
    ("NOPROTO unsupported protocol version", GiveUp(NotSupported)),
    (
        "WRONGTYPE Operation against a key of the wrong kind",
        GiveUp(WrongType),
    ),
    ("EXECABORT Transaction discarded", GiveUp(Script)),
    ("CROSSSLOT Keys don't hash to the same slot", GiveUp(Script)),
    (
        "ERR AUTH <password> called without any password configured",
        GiveUp(Denied),
    ),
    ("ERR ACL failure in script", GiveUp(Denied)),
    ("ERR unknown command 'EVALSHA'", GiveUp(NotSupported)),
    ("ERR unknown subcommand 'x'", GiveUp(NotSupported)),
    (
        "ERR Unknown Redis command called from script",
        GiveUp(NotSupported),
    ),
    ("ERR DB index is out of range", GiveUp(Invalid)),
    ("ERR invalid DB index", GiveUp(Invalid)),
    // Unknown codes, so they may come from the middle of a script.
    (
        "ERR value is not an integer or out of range",
        GiveUp(Script),
    ),
    ("LISA_NEWER no code that is known", GiveUp(Script)),
];
/// The number of unknown codes, at the end of the list.
const UNKNOWN: usize = 2;

/// One error for each reaction of the connection: to wait, to reconnect, to load the script, to fail, to reconnect
/// after a while, to report the wrong kind of server.
const WAYS: [&str; 6] = [
    "LOADING",
    "READONLY",
    "NOSCRIPT",
    "OOM",
    "WRONGPASS",
    "MOVED",
];

/// Without `LISA_TEST_LONG=1`, a case is tested with one in this many of the other errors.
const TURNS: usize = 8;
/// The number of calls that are made at a time.
const AT_ONCE: usize = 16;
const PATIENCE: Duration = Duration::from_secs(20);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Raised {
    /// Before the script ran: nothing was done.
    Before,
    /// While it ran, before it wrote anything.
    Inside,
    /// While it ran, as far as its text shows; and it has done everything.
    Behind,
}

impl Raised {
    /// Returns the answer to the first script call.
    fn fate(self, error: &str, request: &Request) -> Fate {
        let sha = request.word(1);
        let inside = format!("-{error} script: {sha}, on @user_script:7.\r\n");
        match self {
            Self::Before => Fate::Answer(format!("-{error}\r\n")),
            Self::Inside => Fate::Answer(inside),
            Self::Behind => Fate::Replace(inside),
        }
    }
}

/// The contents and counters of a shard, without the differences between two topics that had the same calls.
type Kept = (Vec<String>, [BTreeMap<Text, Text>; 4]);

async fn kept(busy: &Busy) -> Kept {
    let stage = &busy.stage;
    let snapshot = stage.snapshot().await;
    let hash = |what| snapshot.hash(&stage.short_key(0, what));
    let mut hashes = ["payload", "meta", "stats", "conf"].map(hash);
    // The time at which the topic was declared.
    for field in ["created", "version"] {
        hashes[3].remove(field.as_bytes());
    }
    (stage.places_in(&snapshot), hashes)
}

async fn begin(case: &Case) -> Busy {
    let is_plain = PLAIN.iter().any(|other| other.what == case.what);
    let busy = if is_plain {
        plain().await
    } else {
        two_groups().await
    };
    case.call.prepare(&busy).await;
    busy
}

/// Returns the answer of a call, as text.
async fn answer(case: &Case, busy: &Busy, broker: &Broker) -> String {
    match case.call.call_by(busy, broker).await {
        Ok(outcome) => outcome,
        Err(error) => format!("{error:?}"),
    }
}

/// The behavior of an undisturbed call, and of the same call after it.
struct Undisturbed {
    answers: [String; 2],
    kept: [Kept; 2],
}

impl Undisturbed {
    async fn of(case: &Case) -> Self {
        let busy = begin(case).await;
        let broker = busy.stage.broker();
        let first = answer(case, &busy, broker).await;
        let after_one = kept(&busy).await;
        let second = answer(case, &busy, broker).await;
        Self {
            answers: [first, second],
            kept: [after_one, kept(&busy).await],
        }
    }
}

/// The error that the next script is to be answered with.
type Next = Option<(&'static str, Raised)>;

/// A broker whose scripts can be answered with an error.
struct Disturbed {
    broker: Broker,
    next: Arc<Mutex<Next>>,
    _proxy: RequestProxy,
}

impl Disturbed {
    async fn of(busy: &Busy) -> Self {
        let next = Arc::new(Mutex::new(None));
        let taken = next.clone();
        let proxy = RequestProxy::start(Server::shared().port(), move |request| {
            let mut next: MutexGuard<'_, Next> = taken.lock().unwrap();
            // The read before a reclaim is not part of it.
            let is_of_heads = request.word(3).ends_with(":payload") && request.word(2) == "1";
            match next.take_if(|_| request.command() == "EVALSHA" && !is_of_heads) {
                Some((error, raised)) => raised.fate(error, request),
                None => Fate::Pass,
            }
        })
        .await;
        let url = format!("redis://127.0.0.1:{}", proxy.port());
        let settings = ConnectionSettings::new(url.parse().unwrap());
        let connection = Connection::new(settings, &CancellationToken::new()).unwrap();
        let stage = &busy.stage;
        let namespace = stage.broker().namespace().clone();
        let broker = Broker::new(connection, namespace, PATIENCE, None);
        broker.set_virtual_now(stage.now());
        broker.topic(stage.topic().name()).await.unwrap();
        Self {
            broker,
            next,
            _proxy: proxy,
        }
    }

    /// Makes a call whose first script gets this answer.
    async fn call(
        &self,
        case: &Case,
        busy: &Busy,
        (error, raised): (&'static str, Raised),
    ) -> Result<String, BrokerError> {
        *self.next.lock().unwrap() = Some((error, raised));
        let outcome = case.call.call_by(busy, &self.broker).await;
        let unused = self.next.lock().unwrap().take();
        assert_eq!(unused, None, "{}: no script was called", case.what);
        outcome
    }
}

/// Asserts that a call failed as it must; `maybe` is whether it may have been applied.
#[track_caller]
fn assert_stopped(
    what: &str,
    outcome: Result<String, BrokerError>,
    kind: ConnectionErrorKind,
    maybe: bool,
) {
    match outcome {
        Err(BrokerError::Connection(error)) => {
            let told = (error.kind, error.maybe_applied);
            assert_eq!(told, (kind, maybe), "{what}: {error}");
        }
        other => panic!("{what}: {other:?}"),
    }
}

/// Checks a call that fails without having been done: the errors one after the other on one topic, then the call by
/// itself.
async fn stops(case: &'static Case) {
    let undisturbed = Undisturbed::of(case).await;
    let busy = begin(case).await;
    let before = busy.stage.snapshot().await;
    let mut disturbed = Disturbed::of(&busy).await;
    for (index, &(error, must)) in CONTRACT.iter().enumerate() {
        let GiveUp(kind) = must else { continue };
        for raised in [Raised::Before, Raised::Inside] {
            let what = format!("{}, {error}, {raised:?}", case.what);
            let outcome = disturbed.call(case, &busy, (error, raised)).await;
            let maybe = raised == Raised::Inside || index >= CONTRACT.len() - UNKNOWN;
            assert_stopped(&what, outcome, kind, maybe);
            let written = before.diff(&busy.stage.snapshot().await);
            assert_eq!(written, "", "{what}");
            if kind == Denied {
                // No call would be repeated for three seconds.
                disturbed = Disturbed::of(&busy).await;
            }
        }
    }
    let outcome = answer(case, &busy, busy.stage.broker()).await;
    assert_eq!(outcome, undisturbed.answers[0], "{}", case.what);
    assert_eq!(kept(&busy).await, undisturbed.kept[0], "{}", case.what);
    busy.stage.assert_whole().await;
}

/// Checks a call that is repeated, or was done although it is answered with an error.
async fn does_it_once(case: &'static Case, raised: Raised, rows: Vec<(&'static str, Must)>) {
    let undisturbed = Undisturbed::of(case).await;
    for (error, must) in rows {
        let what = format!("{}, {error}, {raised:?}", case.what);
        let busy = begin(case).await;
        let disturbed = Disturbed::of(&busy).await;
        let outcome = disturbed.call(case, &busy, (error, raised)).await;
        let calls = match (must, raised) {
            (GiveUp(kind), _) => {
                assert_stopped(&what, outcome, kind, true);
                1
            }
            (Repeat, Raised::Behind) => {
                let outcome = outcome.unwrap_or_else(|error| format!("{error:?}"));
                // The script is called with the same list again; a new call finds nothing to reclaim.
                if !matches!(case.call, Verb::Reclaim) {
                    assert_eq!(outcome, undisturbed.answers[1], "{what}");
                }
                2
            }
            (Repeat, _) => {
                assert_eq!(outcome.unwrap(), undisturbed.answers[0], "{what}");
                1
            }
        };
        assert_eq!(kept(&busy).await, undisturbed.kept[calls - 1], "{what}");
        busy.stage.assert_whole().await;
    }
}

/// Runs the parts of a test, several at a time.
async fn all(parts: impl Iterator<Item = impl Future<Output = ()>>) {
    let parts = futures_util::stream::iter(parts);
    parts.buffer_unordered(AT_ONCE).collect::<()>().await;
}

fn cases() -> impl Iterator<Item = &'static Case> {
    const ALL: [&[Case]; 2] = [&CASES, &PLAIN];
    ALL.into_iter().flatten()
}

/// Returns the errors for the case of this number: all of them, or in a short run one of each way and some others,
/// which differ from case to case.
fn rows(number: usize, matches: impl Fn(Must) -> bool) -> Vec<(&'static str, Must)> {
    let rows = CONTRACT.into_iter().enumerate();
    let taken = rows.filter(|(index, (error, must))| {
        let is_one_way = WAYS.iter().any(|way| error.starts_with(way));
        let is_its_turn = (index + number).is_multiple_of(TURNS);
        matches(*must) && (crate::topologies::is_long() || is_one_way || is_its_turn)
    });
    taken.map(|(_, row)| row).collect()
}

#[tokio::test]
async fn a_script_that_stops_for_an_error_has_done_nothing_and_says_whether_it_knows() {
    all(cases().map(stops)).await;
}

#[tokio::test]
async fn a_script_that_is_repeated_after_an_error_does_its_work_once() {
    let parts = cases().enumerate().map(|(number, case)| {
        let rows = rows(number, |must| must == Repeat);
        does_it_once(case, Raised::Before, rows)
    });
    all(parts).await;
}

#[tokio::test]
async fn an_error_behind_a_script_that_did_its_work_does_not_make_it_do_it_twice() {
    let parts = cases()
        .enumerate()
        .map(|(number, case)| does_it_once(case, Raised::Behind, rows(number, |_| true)));
    all(parts).await;
}

/// The contract is complete: the connection knows no code that is not in it.
#[test]
fn every_row_of_the_table_of_errors_is_in_the_contract() {
    let source = include_str!("../../../shared/core/src/redis/errors.rs");
    let rows: Vec<&str> = source
        .lines()
        .filter_map(|line| line.strip_prefix("    (\"")?.split('"').next())
        .collect();
    assert_eq!(rows.len(), CONTRACT.len() - UNKNOWN, "{rows:?}");
    for row in rows {
        let is_there = CONTRACT.iter().any(|(error, _)| error.contains(row));
        assert!(is_there, "{row}");
    }
}
