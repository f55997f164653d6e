//! Pages while Redis does not answer, and beside a damaged topic.

use super::*;
use lisa_tests::Stopwatch;

/// The pages that show their last figures, each with some text that only figures have.
const WITH_FIGURES: [(&str, &str); 5] = [
    ("/", "/topics/t/messages?state=waiting"),
    ("/topics/t", "Waiting"),
    ("/topics/t?history=3600", "Waiting"),
    ("/forecast", "Messages by due time"),
    ("/workers", "serves this page"),
];
/// The other pages that read Redis.
const OTHERS: [&str; 5] = [
    "/system",
    "/topics/t/garbage",
    "/topics/t/messages",
    "/topics/t/messages/m",
    "/topics/t/keys",
];

impl Site {
    /// Returns the pages with figures that are not `live`, or lack their figures.
    async fn wrong(&self, live: bool) -> Result<(), String> {
        for (path, figures) in WITH_FIGURES {
            let (status, page) = self.get(path, "").await;
            let is_live = !page.contains("class=\"stale\"");
            let has_age = page.contains("These figures are <strong>");
            let has_figures = page.contains(figures);
            // A page that is open refreshes this line, too.
            let has_place = page.contains("<div id=\"stale\" data-live>");
            if status != 200 || is_live != live || has_age == live || !has_figures || !has_place {
                return Err(format!("{path}: {status} {page}"));
            }
        }
        Ok(())
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn while_redis_is_frozen_each_page_answers_in_time_with_its_last_figures() {
    let mut site = Site::start("").await;
    let headers = [("Lisa-Id", "m"), ("Lisa-Delay", "1h")];
    site.api.send("t", "x", &headers).await.expect(202);
    eventually(SOON, async || site.wrong(true).await).await;
    site.server.pause();
    eventually(SOON, async || site.wrong(false).await).await;
    // A page that waits for readings waits for all of them together.
    let timer = Duration::from_secs(2);
    let paths = { WITH_FIGURES.into_iter().map(|(path, _)| path) }.chain(OTHERS);
    for path in paths {
        let watch = Stopwatch::start();
        let (status, page) = site.get(path, "").await;
        watch.assert_within(timer, Duration::from_millis(200));
        assert!(matches!(status, 200 | 503), "{path}: {status} {page}");
    }
    site.server.resume();
    let watch = Stopwatch::start();
    eventually(SOON, async || site.wrong(true).await).await;
    watch.assert_within(Duration::from_secs(5), Duration::from_secs(1));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_damaged_topic_is_named_on_each_page_and_the_others_stand() {
    let site = Site::start("[topics.broken]\n").await;
    for topic in ["t", "broken"] {
        let headers = [("Lisa-Id", "m"), ("Lisa-Delay", "1h")];
        site.api.send(topic, "x", &headers).await.expect(202);
    }
    let connection = &mut site.server.connection().await;
    let mut damage = redis::cmd("SET");
    damage.arg(&["lisa:v1:{broken:0}:waiting", "x"]);
    let _: () = damage.query_async(connection).await.unwrap();
    let shown = async |path: &str, texts: &[&str]| {
        eventually(SOON, async || {
            let (status, page) = site.get(path, "").await;
            match status == 200 && texts.iter().all(|text| page.contains(text)) {
                true => Ok(()),
                false => Err(format!("{path}: {status} {page}")),
            }
        })
        .await;
    };
    let whole = "/topics/t/messages?state=waiting";
    shown("/", &["cannot be read: ", "WRONGTYPE", whole]).await;
    shown("/forecast", &["broken", "cannot be counted: ", "WRONGTYPE"]).await;
    shown("/topics/broken", &["There are no figures", "WRONGTYPE"]).await;
    shown("/garbage", &["broken", "cannot be read: ", "WRONGTYPE"]).await;
    shown("/topics/t", &["Waiting"]).await;
    for path in ["/workers", "/system", "/schedules", "/topics/t/messages"] {
        shown(path, &[]).await;
    }
    // A topic without settings, which no page can read.
    let registry = "lisa:v1:{registry}:topics";
    for damage in [
        &["HSET", registry, "torn", "1 7"][..],
        &["HINCRBY", registry, ":version", "1"],
    ] {
        let mut command = redis::cmd(damage[0]);
        command.arg(&damage[1..]);
        let _: u32 = command.query_async(connection).await.unwrap();
    }
    for path in ["/", "/garbage", "/workers"] {
        shown(path, &["/topics/torn/doctor", "cannot be read: "]).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn while_redis_is_frozen_the_garbage_jobs_are_unknown() {
    let mut site = Site::start("").await;
    let unknown = "it is unknown whether garbage jobs are running";
    let (status, page) = site.get("/system", "").await;
    assert!(status == 200 && !page.contains(unknown), "{page}");
    site.server.pause();
    let (status, page) = site.get("/system", "").await;
    assert!(status == 200 && page.contains(unknown), "{status} {page}");
    site.server.resume();
}
