//! Limits routes that only read: the time of a read, the number of concurrent reads, and each client's share of them.
//!
//! A client may read for a quarter of the time: after a while, its reads wait until it has rested for three times as long as
//! at least one of them ran. A server runs one call at a time, so it works no longer than that for these reads.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use axum::extract::{Request, State};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};
use lisa_core::sync::Mutex;
use tokio::time::{Instant, sleep_until, timeout_at};

use super::client::{Client, topic_quota};
use super::problem::{Problem, ProblemCode};
use super::share::{Share, Shares, Shortage};
use super::unread::Unread;

/// The longest wait for a slot, and the longest time of the read after it.
const READ_WITHIN: Duration = Duration::from_secs(2);
/// The rest that a client owes for its reads, as a multiple of the time during which at least one of them ran.
const REST: u32 = 3;
/// The rest that a client may owe and still begin a read: that for 2 s of reads.
const FREE_REST: Duration = Duration::from_secs(6);
/// The most rest beyond that, which must not outlast the wait for a slot: slow reads are not the fault of their client alone.
const LONGEST_REST: Duration = Duration::from_millis(1500);
/// The number of clients at which idle ones are forgotten.
const MANY_CLIENTS: usize = 256;
/// The number of concurrent reads of a process.
const CONCURRENT_READS: usize = 32;
/// The share of one client.
const SHARE: usize = 8;
/// The number of concurrent reads of statistics, in addition to the others.
const CONCURRENT_STATISTICS: usize = 4;
/// The share of one client.
const SHARE_OF_STATISTICS: usize = 2;
/// The number of reads of a process that wait for something to happen.
const CONCURRENT_WAITS: usize = 16;
/// The share of one client.
const SHARE_OF_WAITS: usize = 4;
/// The longest time of a read that waits for up to 20 s.
const WAIT_WITHIN: Duration = Duration::from_secs(25);

/// The limits of routes that only read. Cheap to clone; clones share the limits. A process has one set for all its routes.
#[derive(Clone, Debug)]
pub struct Reads {
    slots: Shares,
    within: Duration,
    /// The name of the calls, in problems.
    what: &'static str,
    clocks: Clocks,
    unread: Unread,
}

impl Default for Reads {
    fn default() -> Self {
        Self::new(CONCURRENT_READS, SHARE, READ_WITHIN)
    }
}

impl Reads {
    fn new(slots: usize, share: usize, within: Duration) -> Self {
        Self {
            slots: Shares::new(slots, share),
            within,
            what: "reads",
            clocks: Clocks::default(),
            unread: Unread::default(),
        }
    }

    /// Creates the limits of statistics. They are separate, so that other reads cannot delay what operators need to see.
    #[must_use]
    pub fn of_statistics() -> Self {
        Self::new(CONCURRENT_STATISTICS, SHARE_OF_STATISTICS, READ_WITHIN)
    }

    /// Creates the limits of the queries of pages. A query waits at most `within` for a slot. One viewer can take half of the
    /// `most` slots.
    #[must_use]
    pub fn of_pages(most: usize, within: Duration) -> Self {
        Self {
            what: "queries",
            ..Self::new(most, most.div_ceil(2), within)
        }
    }

    /// Creates the limits of changes that search all shards for their message, which costs as much as a lookup.
    #[must_use]
    pub fn of_searches() -> Self {
        Self {
            what: "searches",
            ..Self::default()
        }
    }

    /// Creates the limits of reads that wait for up to 20 s. Use them with [`Reads::bound_waits`].
    #[must_use]
    pub fn of_waits() -> Self {
        Self::new(CONCURRENT_WAITS, SHARE_OF_WAITS, WAIT_WITHIN)
    }

    /// Answers a read in time. Apply it to routes with [`axum::middleware::from_fn_with_state`], inside the layer that
    /// requires a token.
    ///
    /// If Redis does not answer, the problem is `unavailable`, never `indeterminate`: a read leaves nothing half done.
    pub async fn bound(State(reads): State<Self>, request: Request, next: Next) -> Response {
        let client = Client::of(&request);
        match reads.begin(client.clone()).await {
            Ok(slot) => {
                let response = answer_within(slot.began + reads.within, request, next).await;
                reads.unread.hold(client, response).await
            }
            Err(problem) => problem.into_response(),
        }
    }

    /// Returns the memory for large responses to these reads.
    #[must_use]
    pub fn unread(&self) -> &Unread {
        &self.unread
    }

    /// Runs a read of the current client in a slot and in time.
    ///
    /// # Errors
    /// The problem `unavailable`: there was no slot in time, or no answer.
    pub async fn run<T>(&self, read: impl Future<Output = T>) -> Result<T, Problem> {
        let slot = self.begin(Client::current()).await?;
        let read = timeout_at(slot.began + self.within, read).await;
        read.map_err(|_| Problem::new(ProblemCode::Unavailable, LATE))
    }

    /// Begins a read of this client. Waits for a slot, and until the client has rested.
    ///
    /// # Errors
    /// The problem `unavailable`: that took too long.
    pub async fn begin(&self, client: Client) -> Result<ReadSlot, Problem> {
        let until = Instant::now() + self.within;
        let what = self.what;
        let detail = loop {
            let mut slot = self.slots.begin(client.clone());
            match slot.add(1, until).await {
                Ok(()) => {}
                Err(Shortage::OfClient) => {
                    break format!("too many concurrent {what} of this client");
                }
                Err(Shortage::OfAll) => break format!("too many concurrent {what}"),
            }
            let now = Instant::now();
            let Some(rest) = self.rest(&slot, now) else {
                let (began, clocks) = (now, self.clocks.clone());
                return Ok(ReadSlot {
                    slot,
                    began,
                    clocks,
                });
            };
            if now >= until {
                break format!("the {what} of this client take too much time; retry later");
            }
            // Meanwhile, others can use the slot.
            drop(slot);
            sleep_until(until.min(now + rest)).await;
        };
        Err(Problem::new(ProblemCode::Unavailable, detail))
    }

    /// Begins a change of a topic by the current client, because the check of its quota reads the other topics that it reaches. Returns
    /// `None` if it has no quota.
    ///
    /// # Errors
    /// Those of [`Reads::begin`].
    pub async fn begin_with_quota(&self) -> Result<Option<ReadSlot>, Problem> {
        match topic_quota() {
            Some(_) => self.begin(Client::current()).await.map(Some),
            None => Ok(None),
        }
    }

    /// Begins a read in this slot, or returns the time for which its client must rest first.
    fn rest(&self, slot: &Share, now: Instant) -> Option<Duration> {
        let mut clocks = self.clocks.lock();
        if clocks.len() >= MANY_CLIENTS {
            clocks.retain(|_, clock| !clock.is_idle(now));
        }
        let clock = clocks.entry(slot.client());
        let clock = clock.or_insert_with(|| Clock::new(now));
        clock.advance(now);
        let rest = clock.rest.saturating_sub(FREE_REST);
        if rest.is_zero() {
            clock.running += 1;
            return None;
        }
        Some(rest)
    }

    /// Does what [`Reads::bound`] does for a read that waits, but refuses at once what exceeds the limits: a slot is free only
    /// when a wait ends.
    pub async fn bound_waits(State(reads): State<Self>, request: Request, next: Next) -> Response {
        let mut slot = reads.slots.begin(Client::of(&request));
        match slot.try_add(1) {
            Ok(()) => answer_within(Instant::now() + reads.within, request, next).await,
            Err(Shortage::OfClient) => {
                unavailable("too many requests of this client wait; retry later")
            }
            Err(Shortage::OfAll) => unavailable("too many requests wait; retry later"),
        }
    }
}

/// A read that runs. Dropping it ends it.
#[derive(Debug)]
pub struct ReadSlot {
    slot: Share,
    began: Instant,
    clocks: Clocks,
}

impl Drop for ReadSlot {
    fn drop(&mut self) {
        let mut clocks = self.clocks.lock();
        if let Some(clock) = clocks.get_mut(&self.slot.client()) {
            clock.advance(Instant::now());
            clock.running -= 1;
        }
    }
}

type Clocks = Arc<Mutex<HashMap<Client, Clock>>>;

/// The time that the reads of one client took recently.
#[derive(Debug)]
struct Clock {
    running: usize,
    /// Grows while any read runs, and shrinks while none does.
    rest: Duration,
    at: Instant,
}

impl Clock {
    fn new(now: Instant) -> Self {
        Self {
            running: 0,
            rest: Duration::ZERO,
            at: now,
        }
    }

    fn advance(&mut self, now: Instant) {
        let passed = now.saturating_duration_since(self.at);
        self.at = now;
        self.rest = match self.running {
            0 => self.rest.saturating_sub(passed),
            _ => (self.rest + passed * REST).min(FREE_REST + LONGEST_REST),
        };
    }

    fn is_idle(&mut self, now: Instant) -> bool {
        self.advance(now);
        self.running == 0 && self.rest.is_zero()
    }
}

async fn answer_within(until: Instant, request: Request, next: Next) -> Response {
    match timeout_at(until, next.run(request)).await {
        Ok(response) if response.extensions().get() == Some(&ProblemCode::Indeterminate) => {
            unavailable("Redis did not answer")
        }
        Ok(response) => response,
        Err(_) => unavailable(LATE),
    }
}

const LATE: &str = "Redis did not answer in time";

fn unavailable(detail: &str) -> Response {
    Problem::new(ProblemCode::Unavailable, detail).into_response()
}

#[cfg(test)]
mod tests {
    use std::net::{IpAddr, SocketAddr};
    use std::pin::pin;
    use std::sync::Arc;

    use axum::Router;
    use axum::body::{Body, to_bytes};
    use axum::extract::ConnectInfo;
    use axum::middleware::from_fn_with_state;
    use axum::routing::get;
    use futures_util::future::join_all;
    use futures_util::poll;
    use tokio::sync::Notify;
    use tokio::task::JoinHandle;
    use tokio::time::sleep;
    use tower::ServiceExt;

    use super::*;
    use crate::http::auth::{Scope, Token, TokenSet};

    #[tokio::test]
    async fn a_client_has_a_share_of_the_waits_and_an_excess_one_is_refused_at_once() {
        let reads = Reads::of_waits();
        let release = Arc::new(Notify::new());
        let held = release.clone();
        let wait = move || {
            let held = held.clone();
            async move { held.notified().await }
        };
        let router = Router::new()
            .route("/", get(wait))
            .layer(from_fn_with_state(reads.clone(), Reads::bound_waits));
        let from = |client: usize| from(&format!("10.0.0.{client}:1"), "/");
        let wait_as = |client| tokio::spawn(answer(router.clone(), from(client)));
        let mut waits: Vec<JoinHandle<_>> = (0..CONCURRENT_WAITS)
            .map(|n| wait_as(n / SHARE_OF_WAITS))
            .collect();
        while reads.slots.free() > 0 {
            tokio::task::yield_now().await;
        }
        let (status, _, body) = answer(router.clone(), from(0)).await;
        assert!(status == 503 && body.contains("of this client"), "{body}");
        let (status, _, body) = answer(router.clone(), from(9)).await;
        assert!(status == 503 && !body.contains("of this client"), "{body}");
        waits.pop().unwrap().abort();
        while reads.slots.free() == 0 {
            tokio::task::yield_now().await;
        }
        let last = wait_as(9);
        while reads.slots.free() > 0 {
            tokio::task::yield_now().await;
        }
        release.notify_waiters();
        assert_eq!(last.await.unwrap().0, 200);
        for wait in waits {
            assert_eq!(wait.await.unwrap().0, 200);
        }
    }

    /// Returns the status of a route's answer, whether it has `Retry-After`, and the body.
    async fn answer(router: Router, request: Request) -> (u16, bool, String) {
        let response = router.oneshot(request).await.unwrap();
        let (parts, body) = response.into_parts();
        let body = to_bytes(body, 10_000).await.unwrap();
        let comes_back = parts.headers.contains_key("retry-after");
        let body = String::from_utf8(body.to_vec()).unwrap();
        (parts.status.as_u16(), comes_back, body)
    }

    async fn ask(router: &Router, path: &str) -> (u16, bool, String) {
        let request = Request::get(path).body(Body::empty()).unwrap();
        answer(router.clone(), request).await
    }

    /// Returns a request from this address.
    fn from(peer: &str, path: &str) -> Request {
        let peer: SocketAddr = peer.parse().unwrap();
        let request = Request::get(path).extension(ConnectInfo(peer));
        request.body(Body::empty()).unwrap()
    }

    fn reads(slots: usize, share: usize) -> Reads {
        Reads::new(slots, share, Duration::from_millis(20))
    }

    fn router(reads: &Reads, go_on: Arc<Notify>) -> Router {
        let lost = || async { Problem::new(ProblemCode::Indeterminate, "repeat it") };
        let slow = async move || {
            go_on.notified().await;
            "done"
        };
        Router::new()
            .route("/lost", get(lost))
            .route("/slow", get(slow))
            .route("/quick", get(async || "done"))
            .route_layer(from_fn_with_state(reads.clone(), Reads::bound))
    }

    /// Starts a read that keeps its slot until it is aborted, and waits until it has the slot.
    async fn occupy(reads: &Reads, request: Request) -> JoinHandle<(u16, bool, String)> {
        let patient = Reads {
            within: Duration::from_secs(60),
            ..reads.clone()
        };
        let free = reads.slots.free();
        let read = tokio::spawn(answer(router(&patient, Arc::default()), request));
        while reads.slots.free() == free {
            tokio::task::yield_now().await;
        }
        read
    }

    #[tokio::test]
    async fn a_read_that_redis_does_not_answer_is_unavailable_and_never_indeterminate() {
        let router = router(&reads(1, 1), Arc::default());
        for path in ["/lost", "/slow"] {
            let (status, comes_back, body) = ask(&router, path).await;
            assert_eq!((status, comes_back), (503, true), "{path}");
            assert!(body.contains(r#""code":"unavailable""#), "{body}");
        }
    }

    #[tokio::test]
    async fn more_reads_than_may_run_wait_for_their_turn_and_are_refused_in_time() {
        let go_on = Arc::new(Notify::new());
        let mut reads = reads(1, 1);
        let busy = router(&reads, go_on.clone());
        let held = occupy(&reads, from("10.0.0.9:1", "/slow")).await;
        let (status, comes_back, body) = ask(&busy, "/slow").await;
        assert_eq!((status, comes_back), (503, true));
        assert!(body.contains("too many concurrent reads"), "{body}");
        held.abort();
        held.await.unwrap_err();
        go_on.notify_one();
        reads.within = READ_WITHIN;
        let (status, ..) = ask(&router(&reads, go_on), "/slow").await;
        assert_eq!(status, 200);
        assert_eq!(reads.slots.free(), 1);
    }

    #[tokio::test(start_paused = true)]
    async fn a_client_reads_for_a_quarter_of_the_time_however_many_reads_it_has() {
        for concurrent in [1, 2, 8] {
            let reads = Reads::new(32, 8, READ_WITHIN);
            let began = Instant::now();
            let busy = Mutex::new(Vec::new());
            let reader = async || {
                while began.elapsed() < Duration::from_secs(100) {
                    let slot = reads.begin(Client::Unknown).await.unwrap();
                    let from = slot.began;
                    sleep(Duration::from_millis(50)).await;
                    drop(slot);
                    busy.lock().push((from, Instant::now()));
                }
            };
            join_all((0..concurrent).map(|_| reader())).await;
            // The time during which at least one read ran.
            let (mut total, mut end) = (Duration::ZERO, began);
            let mut busy = busy.lock().clone();
            busy.sort();
            for (from, to) in busy {
                total += to.saturating_duration_since(from.max(end));
                end = end.max(to);
            }
            let seconds = total.as_secs_f64();
            assert!((24.0..29.0).contains(&seconds), "{concurrent}: {seconds}");
            // Another client does not wait for it.
            let asked = Instant::now();
            let other = Client::Address([10, 0, 0, 1].into());
            drop(reads.begin(other).await.unwrap());
            assert_eq!(asked.elapsed(), Duration::ZERO);
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_client_that_rests_holds_no_slot() {
        let reads = Reads::new(1, 1, READ_WITHIN);
        let slot = reads.begin(Client::Unknown).await.unwrap();
        sleep(FREE_REST).await;
        drop(slot);
        let mut resting = pin!(reads.begin(Client::Unknown));
        assert!(poll!(&mut resting).is_pending());
        assert_eq!(reads.slots.free(), 1);
        assert!(resting.await.is_ok());
    }

    #[tokio::test(start_paused = true)]
    async fn a_read_after_slow_ones_waits_less_than_the_time_for_a_slot() {
        let reads = Reads::default();
        for _ in 0..20 {
            let slot = reads.begin(Client::Unknown).await.unwrap();
            sleep(READ_WITHIN).await;
            drop(slot);
        }
    }

    #[tokio::test(start_paused = true)]
    async fn the_clocks_of_idle_clients_are_forgotten() {
        let reads = Reads::default();
        for number in 0..1000_u32 {
            let client = Client::Address(IpAddr::V4(number.into()));
            drop(reads.begin(client).await.unwrap());
        }
        let kept = reads.clocks.lock().len();
        assert!(kept <= MANY_CLIENTS, "{kept}");
    }

    #[tokio::test]
    async fn one_client_cannot_take_the_turns_of_the_others() {
        let reads = reads(4, 1);
        // Two listeners' routes, one set: all parts of a process share it.
        let [one, other] = [0, 1].map(|_| router(&reads, Arc::default()));
        let held = [
            occupy(&reads, from("10.0.0.1:1", "/slow")).await,
            occupy(&reads, from("[2001:db8:0:1::1]:1", "/slow")).await,
        ];
        for (peer, is_answered) in [
            ("10.0.0.1:2", false),
            ("[::ffff:10.0.0.1]:3", false),
            ("10.0.0.2:1", true),
            ("[2001:db8:0:1:ffff::7]:2", false),
            ("[2001:db8:0:2::1]:1", true),
        ] {
            for router in [&one, &other] {
                let (status, comes_back, body) = answer(router.clone(), from(peer, "/quick")).await;
                if is_answered {
                    assert_eq!((status, &body[..]), (200, "done"), "{peer}");
                } else {
                    assert_eq!((status, comes_back), (503, true), "{peer}");
                    assert!(body.contains("reads of this client"), "{body}");
                }
            }
        }
        for read in held {
            read.abort();
            read.await.unwrap_err();
        }
        assert_eq!(reads.slots.free(), 4);
    }

    #[tokio::test]
    async fn the_reads_of_a_token_are_one_clients_wherever_they_come_from() {
        // SHA-256 of the names.
        let abc = "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad";
        let other = "d9298a10d1b0735837dc4bd85dac641b0f3cef27a47e5d53a54f2f3f5b2fcffa";
        let tokens = [("abc", abc), ("other", other)]
            .map(|(name, hash)| Token::new(name, hash, vec![Scope::Read]).unwrap());
        let tokens = TokenSet::new(tokens.to_vec());
        let reads = reads(4, 1);
        let with_token = |router: Router| router.route_layer(tokens.require(Scope::Read));
        let from = |peer: &str, token: &str| {
            let mut request = from(peer, "/quick");
            let value = format!("Bearer {token}").parse().unwrap();
            request.headers_mut().insert("authorization", value);
            request
        };
        let router = with_token(router(&reads, Arc::default()));
        let mut held = reads.slots.begin(Client::Token("abc".into()));
        held.try_add(1).unwrap();
        let (status, ..) = answer(router.clone(), from("10.0.0.2:1", "abc")).await;
        assert_eq!(status, 503);
        let (status, ..) = answer(router, from("10.0.0.1:1", "other")).await;
        assert_eq!(status, 200);
    }
}
