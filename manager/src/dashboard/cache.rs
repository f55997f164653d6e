//! Readings shared by all viewers: one query at a time, kept for a moment, and shown with their age if Redis does not answer.

use std::collections::HashMap;
use std::hash::Hash;
use std::sync::Arc;
use std::time::Duration;

use lisa_core::sync::Mutex as SyncMutex;
use lisa_service::http::Reads;
use lisa_service::http::auth::Reach;
use lisa_service::http::client::{Admitted, Client, reach, reaches_named};
use lisa_service::http::share::Shares;
use tokio::sync::Mutex;
use tokio::time::{Instant, timeout_at};

/// The longest time that a page waits for one reading: a page that waits for one is there within 2 s.
const WITHIN: Duration = Duration::from_millis(1800);
/// The longest time for which a failure is the answer: pages are live again soon after Redis is.
const RETRY: Duration = Duration::from_secs(2);

/// The limits of the queries of all pages. Cheap to clone.
#[derive(Clone, Debug)]
pub(super) struct Queries {
    /// The limits of queries of single viewers.
    own: Reads,
    /// The slots of readings shared by all viewers. They limit themselves, so they do not count toward any viewer's share.
    of_all: Shares,
}

impl Queries {
    /// Creates the limits: `most` concurrent queries of single viewers, at most half of them of one viewer, and `most` shared
    /// readings.
    pub(super) fn new(most: usize) -> Self {
        Self {
            own: Reads::of_pages(most, WITHIN),
            of_all: Shares::new(most, most),
        }
    }

    /// Runs a read of the current viewer in a slot and in time.
    ///
    /// # Errors
    /// The error of the read, or that it took too long.
    pub(super) async fn run<T, E: std::fmt::Display>(
        &self,
        read: impl Future<Output = Result<T, E>>,
    ) -> Result<T, String> {
        let begun = Instant::now();
        let slot = self.own.begin(Client::current()).await;
        let _slot = slot.map_err(|problem| problem.detail().to_owned())?;
        let waited = begun.elapsed();
        in_time(begun + WITHIN, read).await.map_err(|error| {
            let is_late = error == LATE && waited > WITHIN / 2;
            if is_late { BUSY.to_owned() } else { error }
        })
    }

    /// Runs a read for all viewers in a slot and in time. It is not limited to what the first viewer reaches: its result is
    /// filtered for each viewer.
    async fn run_for_all<T, E: std::fmt::Display>(
        &self,
        read: impl Future<Output = Result<T, E>>,
    ) -> Result<T, String> {
        let until = Instant::now() + WITHIN;
        let mut slot = self.of_all.begin(Client::Unknown);
        let has_slot = slot.add(1, until).await;
        has_slot.map_err(|_| "too many concurrent queries")?;
        in_time(until, Admitted::new(true, None).scope(read)).await
    }
}

async fn in_time<T, E: std::fmt::Display>(
    until: Instant,
    read: impl Future<Output = Result<T, E>>,
) -> Result<T, String> {
    match timeout_at(until, read).await {
        Ok(read) => read.map_err(|error| error.to_string()),
        Err(_) => Err(LATE.to_owned()),
    }
}

const LATE: &str = "Redis did not answer in time";
const BUSY: &str = "the queries of this viewer take too much time; reload later";

/// A value that was read, maybe a while ago.
#[derive(Clone, Debug)]
pub(super) struct Reading<T> {
    /// The last value; `None` if there never was one.
    pub(super) value: Option<Arc<T>>,
    /// The age of the value.
    pub(super) age: Duration,
    /// The error of the last attempt, if it failed.
    pub(super) error: Option<String>,
}

/// A reading takes at most one part in so many of the time.
const SHARE: u32 = 20;

#[derive(Debug)]
struct Slot<T> {
    value: Option<(Instant, Arc<T>)>,
    tried: Option<Instant>,
    /// The time until which the last attempt is fresh.
    fresh_for: Duration,
    error: Option<String>,
}

impl<T> Slot<T> {
    fn reading(&self) -> Reading<T> {
        let value = self.value.as_ref();
        Reading {
            age: value.map_or(Duration::ZERO, |(at, _)| at.elapsed()),
            value: value.map(|(_, value)| value.clone()),
            error: self.error.clone(),
        }
    }
}

/// One reading, refreshed by the first viewer after it has expired while the others wait.
#[derive(Debug)]
pub(super) struct Cached<T> {
    fresh_for: Duration,
    slot: Mutex<Slot<T>>,
}

impl<T> Cached<T> {
    pub(super) fn new(fresh_for: Duration) -> Self {
        Self {
            fresh_for,
            slot: Mutex::new(Slot {
                value: None,
                tried: None,
                fresh_for,
                error: None,
            }),
        }
    }

    /// Returns the reading, after `read` if the last attempt is too old. A failed attempt counts, too.
    pub(super) async fn get<E: std::fmt::Display>(
        &self,
        queries: &Queries,
        read: impl AsyncFnOnce() -> Result<T, E>,
    ) -> Reading<T> {
        let mut slot = self.slot.lock().await;
        let is_fresh = slot.tried.is_some_and(|at| at.elapsed() < slot.fresh_for);
        if !is_fresh {
            let begun = Instant::now();
            match queries.run_for_all(read()).await {
                Ok(value) => {
                    slot.value = Some((Instant::now(), Arc::new(value)));
                    slot.error = None;
                    // What takes long is read less often.
                    slot.fresh_for = self.fresh_for.max(begun.elapsed() * SHARE);
                }
                Err(error) => {
                    slot.error = Some(error);
                    slot.fresh_for = self.fresh_for.min(RETRY);
                }
            }
            slot.tried = Some(Instant::now());
        }
        slot.reading()
    }

    /// Returns the last reading without a new attempt, because another one has just failed with this error.
    pub(super) async fn last(&self, error: String) -> Reading<T> {
        let slot = self.slot.lock().await;
        Reading {
            error: Some(error),
            ..slot.reading()
        }
    }

    /// Makes the next viewer read, after an action.
    pub(super) async fn expire(&self) {
        self.slot.lock().await.tried = None;
    }
}

/// Readings by key, of which a bounded number is kept.
#[derive(Debug)]
pub(super) struct CachedBy<K, T> {
    fresh_for: Duration,
    most: usize,
    all: SyncMutex<HashMap<K, Arc<Cached<T>>>>,
}

impl<K: Hash + Eq, T> CachedBy<K, T> {
    pub(super) fn new(most: usize, fresh_for: Duration) -> Self {
        Self {
            fresh_for,
            most,
            all: SyncMutex::default(),
        }
    }

    /// Returns the slot of a key. Forgets all others if there are too many.
    pub(super) fn of(&self, key: K) -> Arc<Cached<T>> {
        let mut all = self.all.lock();
        if all.len() >= self.most && !all.contains_key(&key) {
            all.clear();
        }
        let new = || Arc::new(Cached::new(self.fresh_for));
        all.entry(key).or_insert_with(new).clone()
    }
}

/// The parts of one reading that viewers with some limits see, by limits. Each is made once, until there is a newer reading.
#[derive(Debug)]
pub(super) struct PartsOf<K, T> {
    most: usize,
    kept: SyncMutex<Parts<K, T>>,
}

#[derive(Debug)]
struct Parts<K, T> {
    /// The reading of which these are parts.
    whole: Option<Arc<T>>,
    by_key: HashMap<K, Arc<T>>,
}

impl<K: Hash + Eq, T> PartsOf<K, T> {
    pub(super) fn new(most: usize) -> Self {
        Self {
            most,
            kept: SyncMutex::new(Parts {
                whole: None,
                by_key: HashMap::new(),
            }),
        }
    }

    /// Returns the part of a key. Forgets the parts of an older reading, and all others if there are too many.
    pub(super) fn of(&self, reading: &Arc<T>, key: K, make: impl FnOnce(&T) -> T) -> Arc<T> {
        let mut kept = self.kept.lock();
        let Parts { whole, by_key } = &mut *kept;
        let is_same = whole.as_ref().is_some_and(|of| Arc::ptr_eq(of, reading));
        if !is_same || (by_key.len() >= self.most && !by_key.contains_key(&key)) {
            by_key.clear();
            *whole = Some(reading.clone());
        }
        let part = by_key.entry(key);
        part.or_insert_with(|| Arc::new(make(reading))).clone()
    }
}

impl<T> Reading<T> {
    /// Returns the part of a shared reading that the viewer reaches. It is made without a call to Redis, once for all viewers with the
    /// same limits.
    pub(super) fn reached(
        self,
        parts: &PartsOf<Arc<Reach>, T>,
        within: impl Fn(&T, &Reach) -> T,
    ) -> Self {
        if reaches_named(None) {
            return self;
        }
        let reach = reach();
        let of = |whole: Arc<T>| parts.of(&whole, reach.clone(), |whole| within(whole, &reach));
        Self {
            value: self.value.map(of),
            // The text may name a topic.
            error: self.error.map(|_| "they could not be read".to_owned()),
            ..self
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicU32, Ordering};

    use futures_util::future::join_all;

    use super::*;

    #[tokio::test]
    async fn many_viewers_make_one_query_and_a_failure_keeps_the_last_value() {
        let queries = Queries::new(1);
        let cached = Cached::new(Duration::from_hours(1));
        let reads = AtomicU32::new(0);
        let read = || async { Ok::<_, String>(reads.fetch_add(1, Ordering::SeqCst)) };
        let viewers = (0..20).map(|_| cached.get(&queries, async || read().await));
        let all = join_all(viewers).await;
        assert!(
            all.iter()
                .all(|reading| reading.value.as_deref() == Some(&0))
        );
        cached.expire().await;
        let failed = cached.get(&queries, async || Err::<u32, _>("gone")).await;
        assert_eq!(failed.value.as_deref(), Some(&0));
        assert_eq!(failed.error.as_deref(), Some("gone"));
        let again = cached.get(&queries, async || read().await).await;
        assert_eq!(again.error.as_deref(), Some("gone"), "not asked at once");
    }

    #[tokio::test(start_paused = true)]
    async fn a_slow_reading_is_kept_for_longer_but_a_failure_only_for_a_moment() {
        let queries = Queries::new(1);
        let cached = Cached::new(Duration::from_secs(30));
        let slow = async || {
            tokio::time::sleep(WITHIN - Duration::from_millis(1)).await;
            Ok::<_, String>(1)
        };
        let hangs = async || std::future::pending::<Result<u32, String>>().await;
        assert_eq!(cached.get(&queries, slow).await.error, None);
        tokio::time::advance(WITHIN * (SHARE - 1)).await;
        assert_eq!(cached.get(&queries, hangs).await.error, None, "kept");
        cached.expire().await;
        let begun = Instant::now();
        let failed = cached.get(&queries, hangs).await;
        assert!(failed.error.is_some() && failed.value.is_some());
        assert!(begun.elapsed() < Duration::from_secs(2));
        tokio::time::advance(RETRY).await;
        let again = cached.get(&queries, slow).await;
        assert!(again.error.is_none() && again.age.is_zero(), "{again:?}");
    }

    #[tokio::test(start_paused = true)]
    async fn a_reading_for_all_needs_no_slot_of_the_viewer_who_comes_first() {
        let queries = Queries::new(2);
        let cached = Cached::new(Duration::from_secs(30));
        let viewer = Admitted::new(true, Some("app".into()));
        let own = queries.run(std::future::pending::<Result<(), String>>());
        let of_all = cached.get(&queries, async || Ok::<_, String>(1));
        let reading = viewer.scope(async {
            tokio::select! {
                biased;
                _ = own => panic!("it never ends in time"),
                reading = of_all => reading,
            }
        });
        let reading = reading.await;
        assert_eq!((reading.value.as_deref(), reading.error), (Some(&1), None));
    }

    #[tokio::test(start_paused = true)]
    async fn a_viewer_has_half_of_the_queries_and_a_quarter_of_the_time() {
        let queries = Queries::new(4);
        let viewer = |name: &str| Admitted::new(true, Some(name.into()));
        let running = AtomicU32::new(0);
        let slow = || {
            queries.run(async {
                running.fetch_add(1, Ordering::SeqCst);
                tokio::time::sleep(WITHIN / 4).await;
                running.fetch_sub(1, Ordering::SeqCst);
                Ok::<_, String>(())
            })
        };
        let many = viewer("app").scope(async { join_all((0..4).map(|_| slow())).await });
        let other = async {
            tokio::task::yield_now().await;
            let answers = async || Ok::<_, String>(running.load(Ordering::SeqCst));
            viewer("other").scope(queries.run(answers())).await
        };
        let (many, other) = tokio::join!(many, other);
        assert!(many.iter().all(Result::is_ok), "{many:?}");
        assert_eq!(other, Ok(2), "the other two wait");

        let begun = Instant::now();
        let mut busy = Duration::ZERO;
        while begun.elapsed() < Duration::from_secs(100) {
            let read = async {
                let time = Duration::from_millis(50);
                tokio::time::sleep(time).await;
                busy += time;
                Ok::<_, String>(())
            };
            viewer("app").scope(queries.run(read)).await.unwrap();
        }
        assert!(busy < Duration::from_secs(29), "{busy:?}");
    }

    #[test]
    fn a_part_is_made_once_for_each_reading_and_few_are_kept() {
        let parts: PartsOf<u32, u32> = PartsOf::new(2);
        let (one, two) = (Arc::new(10), Arc::new(20));
        let made = AtomicU32::new(0);
        let part = |reading: &Arc<u32>, key: u32| {
            let part = parts.of(reading, key, |reading| {
                made.fetch_add(1, Ordering::SeqCst);
                reading + key
            });
            (*part, made.load(Ordering::SeqCst))
        };
        assert_eq!(part(&one, 1), (11, 1));
        assert_eq!(part(&one, 2), (12, 2));
        assert_eq!(part(&one, 1), (11, 2));
        assert_eq!(part(&two, 1), (21, 3));
        for key in 0..100 {
            part(&two, key);
        }
        assert!(parts.kept.lock().by_key.len() <= 2);
    }

    #[test]
    fn the_number_of_readings_is_bounded() {
        let cached: CachedBy<u32, u32> = CachedBy::new(3, Duration::ZERO);
        for key in 0..100 {
            cached.of(key);
        }
        assert!(cached.all.lock().len() <= 3);
    }
}
