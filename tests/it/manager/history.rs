//! The history of topics, and of all topics together, which the job `statistics` writes.

use super::{Running, after, config, send};
use lisa_core::broker::{CONCURRENT_READS, Resolution, Sample};
use lisa_core::time::UnixMs;
use lisa_tests::Server;
use lisa_tests::relay::ms;

const MINUTE: u64 = 60_000;
const LATER: u64 = 86_000_000;

/// A manager with the topic `t`, whose jobs run only when asked, at times that the test sets.
struct Stage {
    running: Running,
    /// The minute, since 1970, at which the test begins.
    begin: u64,
}

impl Stage {
    async fn start(server: &Server, namespace: &str, more: &[(&str, &str)]) -> Self {
        let jobs = ["reclaim", "clean", "statistics", "sweep", "doctor"];
        let jobs = jobs.map(|job| format!("manager.jobs.{job}"));
        let mut keys = vec![("topics.t.shards", "1"), ("manager.doctor", "off")];
        keys.extend(jobs.iter().map(|job| (job.as_str(), "0 0 0 1 1 *")));
        keys.extend(more);
        let running = Running::start(&config(server, namespace, &keys)).await;
        running.holds(1).await;
        // Before now, so that no script takes the times for those of a clock that is ahead.
        let now = running.broker().now().get() / MINUTE;
        Self {
            running,
            begin: now - 60,
        }
    }

    /// Counts the topic at so many seconds after a minute since the beginning.
    async fn count(&self, minute: u64, seconds: u64) {
        let now = (self.begin + minute) * MINUTE + seconds * 1000;
        self.running.broker().set_virtual_now(UnixMs::new(now));
        self.running.job("statistics").await;
    }

    async fn send(&self) {
        let topic = self.running.topic("t").await;
        send(self.running.broker(), &topic, after(ms(LATER))).await;
    }

    /// Returns the minutes since the beginning that have a sample, each with the number of messages sent.
    async fn samples(&self, resolution: Resolution) -> Vec<(u64, u64)> {
        let topic = self.running.topic("t").await;
        let samples = self
            .running
            .broker()
            .samples(&topic, resolution, UnixMs::default());
        let samples = samples.await.expect("samples").into_iter();
        samples
            .map(|(time, sample)| (time.get() / MINUTE - self.begin, sample.sent))
            .collect()
    }
}

#[tokio::test]
async fn each_minute_in_which_something_happens_has_a_sample_and_a_quiet_topic_has_none() {
    let server = Server::start();
    let stage = Stage::start(&server, "history", &[]).await;
    for minute in 0..3 {
        stage.count(minute, 2).await;
    }
    assert_eq!(stage.samples(Resolution::Minute).await, []);
    stage.send().await;
    stage.count(2, 40).await;
    // The quiet minute before it, so that the rate is known.
    assert_eq!(stage.samples(Resolution::Minute).await, [(2, 0)]);
    for (minute, seconds) in [(3, 1), (3, 6), (4, 1), (5, 1), (20, 1)] {
        stage.count(minute, seconds).await;
    }
    assert_eq!(stage.samples(Resolution::Minute).await, [(2, 0), (3, 1)]);
    stage.send().await;
    stage.count(21, 1).await;
    // A minute that nobody counted in time.
    stage.send().await;
    stage.count(22, 45).await;
    stage.count(23, 1).await;
    let expected = [(2, 0), (3, 1), (20, 1), (21, 2), (23, 3)];
    assert_eq!(stage.samples(Resolution::Minute).await, expected);
}

#[tokio::test]
async fn a_history_that_is_off_is_not_written_and_a_short_one_is_bounded() {
    let server = Server::start();
    let off = Stage::start(&server, "off", &[("manager.history.enabled", "false")]).await;
    let short = [("manager.history.minutes", "60")];
    let short = Stage::start(&server, "short", &short).await;
    for stage in [&off, &short] {
        for minute in 0..=60 {
            stage.running.broker().set_virtual_now(UnixMs::default());
            stage.send().await;
            stage.count(minute, 1).await;
        }
    }
    assert_eq!(off.samples(Resolution::Minute).await, []);
    let kept = short.samples(Resolution::Minute).await;
    assert_eq!((kept.len(), kept[0].0), (60, 1), "{kept:?}");
    // At most a quarter hour apart, wherever the hour began.
    assert!(short.samples(Resolution::Quarter).await.len() >= 4);
}

impl Stage {
    /// Returns the minutes since the beginning that have a sample of all topics, each with its sums.
    async fn totals(&self, resolution: Resolution) -> Vec<(u64, Sample)> {
        let broker = self.running.broker();
        let samples = broker.total_samples(resolution, UnixMs::default()).await;
        let samples = samples.expect("samples").into_iter();
        samples
            .map(|(time, sample)| (time.get() / MINUTE - self.begin, sample))
            .collect()
    }
}

#[tokio::test]
async fn the_sums_of_all_topics_are_written_once_a_minute_and_say_which_are_missing() {
    let server = Server::start();
    let stage = Stage::start(&server, "total", &[("topics.u.shards", "2")]).await;
    stage.running.holds(3).await;
    let other = stage.running.topic("u").await;
    stage.send().await;
    for _ in 0..2 {
        send(stage.running.broker(), &other, after(ms(LATER))).await;
    }
    stage.count(0, 1).await;
    // In the same minute, and too late for the next one.
    stage.send().await;
    stage.count(0, 20).await;
    stage.count(1, 40).await;
    stage.count(2, 1).await;
    let sums = |totals: Vec<(u64, Sample)>| -> Vec<_> {
        let sum = |(minute, of): (u64, Sample)| (minute, of.topics, of.sent, of.waiting);
        totals.into_iter().map(sum).collect()
    };
    let totals = stage.totals(Resolution::Minute).await;
    assert!(totals.iter().all(|(_, of)| of.missing == 0), "{totals:?}");
    assert_eq!(sums(totals), [(0, 2, 3, 3), (2, 2, 4, 4)]);
    let text = stage.running.runtime.metrics.encode();
    assert!(text.contains("\nlisa_snapshot_age_seconds{} 0"), "{text}");
    // A topic that cannot be counted is not in the sums.
    let key = format!("{}:v1:{{u:0}}:waiting", stage.running.broker().namespace());
    let connection = &mut server.connection().await;
    let _: u64 = redis::cmd("DEL")
        .arg(&key)
        .query_async(connection)
        .await
        .unwrap();
    let _: () = redis::cmd("SET")
        .arg(&[&key, "torn"])
        .query_async(connection)
        .await
        .unwrap();
    stage.send().await;
    let now = (stage.begin + 3) * MINUTE + 1000;
    stage.running.broker().set_virtual_now(UnixMs::new(now));
    let run = stage.running.manager.schedule().run_now("statistics").await;
    assert!(run.expect("the job").error.is_some());
    let totals = stage.totals(Resolution::Minute).await;
    let (_, last) = &totals[2];
    assert!(last.missing > 0, "{last:?}");
    assert_eq!((last.topics, last.sent), (1, 3));
}

#[tokio::test]
async fn a_topic_whose_history_cannot_be_written_is_named_and_the_others_are_written() {
    /// More than are written at a time.
    const TOPICS: usize = CONCURRENT_READS + 6;
    let server = Server::start();
    let names: Vec<_> = (0..TOPICS).map(|n| format!("topics.t{n}.shards")).collect();
    let topics: Vec<_> = names.iter().map(|name| (name.as_str(), "1")).collect();
    let stage = Stage::start(&server, "many", &topics).await;
    let running = &stage.running;
    running.holds(TOPICS + 1).await;
    let mut damage = redis::cmd("SET");
    damage.arg(&["many:v1:{t3:0}:series", "x"]);
    let connection = &mut server.connection().await;
    let _: () = damage.query_async(connection).await.unwrap();
    for n in 0..TOPICS {
        let topic = running.topic(&format!("t{n}")).await;
        send(running.broker(), &topic, after(ms(LATER))).await;
    }
    let now = UnixMs::new(stage.begin * MINUTE);
    running.broker().set_virtual_now(now);
    let run = running.manager.schedule().run_now("statistics").await;
    let error = run.expect("a job").error.expect("a failure");
    assert!(error.contains("t3"), "{error}");
    for n in 0..TOPICS {
        let topic = running.topic(&format!("t{n}")).await;
        for resolution in [Resolution::Minute, Resolution::Quarter] {
            let samples = running
                .broker()
                .samples(&topic, resolution, UnixMs::default());
            let is_written = samples
                .await
                .is_ok_and(|samples| samples.contains_key(&now));
            let is_due = (n, resolution) != (3, Resolution::Minute)
                && now.get().is_multiple_of(resolution.step_ms());
            assert_eq!(is_written, is_due, "t{n} {resolution:?}");
        }
    }
}
