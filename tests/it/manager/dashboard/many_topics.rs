//! Pages of a relay with many topics: their calls of Redis, and a search.

use std::ops::RangeBounds;

use super::*;

/// Returns the configuration of more topics, `t0` and so on, and of jobs that never run by themselves.
fn quiet(topics: usize) -> String {
    let jobs = ["reclaim", "clean", "statistics", "sweep", "doctor"];
    let jobs = jobs.map(|job| format!("{job} = \"0 0 0 1 1 *\"\n"));
    let topics: String = (0..topics).map(|n| format!("[topics.t{n}]\n")).collect();
    format!("{topics}[manager.jobs]\n{}", jobs.concat())
}

impl Site {
    /// Reads a page until it shows `texts` and has taken an allowed number of calls to Redis: those that read hashes and streams,
    /// and those that run scripts. On a busy machine, some topics may not be read in time, and the manager makes other calls
    /// meanwhile.
    async fn calls(&self, path: &str, texts: &[&str], allowed: impl RangeBounds<u64>) -> String {
        let calls = async || {
            let mut sum = 0;
            for command in ["hgetall", "evalsha", "xrange", "xrevrange"] {
                sum += self.server.calls(command).await;
            }
            sum
        };
        eventually(SOON, async || {
            let before = calls().await;
            let (status, page) = self.get(path, "").await;
            assert_eq!(status, 200);
            let taken = calls().await - before;
            match texts.iter().all(|text| page.contains(text)) && allowed.contains(&taken) {
                true => Ok(page),
                false => Err(format!("{taken} calls: {page}")),
            }
        })
        .await
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn the_overview_of_many_topics_takes_as_many_calls_as_that_of_a_few() {
    // Whatever the manager does meanwhile by itself.
    const OTHERS: u64 = 12;
    for topics in [5_usize, 50] {
        let site = Site::start(&quiet(topics)).await;
        let many = topics as u64;
        site.api
            .send("t0", "x", &[("Lisa-Delay", "1h")])
            .await
            .expect(202);
        let run = site
            .api
            .call(Method::POST, "/v1/jobs/statistics/run", &json!({}))
            .await;
        assert!(run.expect(200).json()["ok"].as_bool().unwrap());
        let counted = [
            "Counted within the last",
            "/topics/t0/messages?state=waiting",
        ];
        site.calls("/", &counted, ..=OTHERS).await;
        // A topic that could not be counted is named, but old counts are not used.
        let now = std::time::SystemTime::UNIX_EPOCH
            .elapsed()
            .unwrap()
            .as_millis();
        let mut torn = redis::cmd("HSET");
        torn.arg("lisa:v1:{registry}:snapshot");
        torn.arg(&["t2", "1 [\"gone\",\"old\"]"]);
        torn.arg(&["t3", &format!("{now} [\"other\",\"torn\"]")]);
        let connection = &mut site.server.connection().await;
        let _: u64 = torn.query_async(connection).await.unwrap();
        // An action is seen at once, although the snapshot does not have it yet.
        assert_eq!(site.post("/topics/t1/pause", "", "").await, 303);
        let named = ["paused, nothing becomes ready", "cannot be read: torn"];
        let page = site.calls("/", &named, ..=OTHERS).await;
        assert!(!page.contains("cannot be read: old"), "{page}");
        // What the snapshot lacks is counted.
        let mut gone = redis::cmd("DEL");
        gone.arg("lisa:v1:{registry}:snapshot");
        let connection = &mut site.server.connection().await;
        let _: u64 = gone.query_async(connection).await.unwrap();
        assert_eq!(site.post("/topics/t1/resume", "", "").await, 303);
        let all = format!("Topics <span class=\"badge\">{}<", topics + 1);
        site.calls("/", &[&all], many..).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_page_of_a_hundred_topics_is_small_over_the_wire() {
    // A page has at most a hundred topics, so that of a thousand is not larger.
    let site = Site::start(&quiet(110)).await;
    let packed = async |path: &str| {
        let request = site.client.get(format!("{}{path}", site.url));
        let response = request.header("Accept-Encoding", "gzip").send();
        response.await.unwrap().bytes().await.unwrap().len()
    };
    let page = site.calls("/", &["Page 1 of 2"], ..).await;
    let next = packed("/").await;
    let mut first = next;
    let files = links(&page).into_iter().chain(sources(&page));
    for file in files.filter(|link| link.contains("/assets/")) {
        first += packed(&file).await;
    }
    println!("first visit {first} B, next {next} B");
    assert!(first <= 150_000 && next <= 60_000, "{first} {next}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_message_is_found_by_its_id_in_any_of_many_topics() {
    let site = Site::start(&quiet(20)).await;
    let headers = [("Lisa-Id", "needle"), ("Lisa-Delay", "1h")];
    site.api.send("t17", "x", &headers).await.expect(202);
    let found = site.ask(Method::GET, "/find?q=needle", "", "").await;
    assert_eq!(found.status(), 303);
    assert_eq!(found.headers()[LOCATION], "/topics/t17/messages/needle");
    let (_, page) = site.get("/find?q=nowhere", "").await;
    assert!(page.contains("and the messages of 21 of them"), "{page}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_cut_list_of_what_needs_attention_links_to_the_rest() {
    let site = Site::start(&quiet(14)).await;
    for n in 0..14 {
        let path = format!("/topics/t{n}/pause");
        assert_eq!(site.post(&path, "", "").await, 303);
    }
    let (_, page) = site.get("/?filter=t1", "").await;
    assert_eq!(page.matches("aria-label=\"Open: t").count(), 12, "{page}");
    let all = links(&page)
        .into_iter()
        .find(|link| link.contains("attention=all"));
    let (_, page) = site.get(&all.expect("a link to the rest"), "").await;
    assert_eq!(page.matches("aria-label=\"Open: t").count(), 14, "{page}");
    assert!(!page.contains("attention=all#"), "{page}");
    assert!(page.contains("value=\"t1\""), "the filter stays: {page}");
}
