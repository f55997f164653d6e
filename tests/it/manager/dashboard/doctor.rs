//! Damage by hand: the overview names the topic, and its page examines and repairs it. A search goes on without it.

use super::*;

impl Site {
    pub(super) async fn redis(&self, words: &[&str]) {
        let mut command = redis::cmd(words[0]);
        command.arg(&words[1..]);
        let connection = &mut self.server.connection().await;
        let _: redis::Value = command.query_async(connection).await.unwrap();
    }

    pub(super) async fn shows(&self, path: &str, cookie: &str, texts: &[&str]) {
        eventually(SOON, async || {
            let (_, page) = self.get(path, cookie).await;
            match texts.iter().all(|text| page.contains(text)) {
                true => Ok(()),
                false => Err(page),
            }
        })
        .await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_lost_payload_is_seen_on_the_overview_and_repaired_on_the_page_of_the_doctor() {
    let site = Site::start(TOKENS).await;
    let (_, anna) = site.log_in("abc").await;
    let (_, reader) = site.log_in("def").await;
    let api = site.api.clone().token("abc");
    let headers = [("Lisa-Id", "m"), ("Lisa-Delay", "1h")];
    api.send("t", "x", &headers).await.expect(202);
    site.shows("/", &anna, &["All messages accounted for"])
        .await;
    site.redis(&["HDEL", "lisa:v1:{t:0}:payload", "m"]).await;
    let red = [
        "1 message unaccounted for",
        "1 message without a record",
        "/topics/t/doctor",
        "Examine: t",
    ];
    site.shows("/", &anna, &red).await;
    let doctor = "/topics/t/doctor";
    let (_, page) = site.get(doctor, &anna).await;
    assert!(page.contains("has not examined the topic"), "{page}");
    for verb in ["examine", "repair"] {
        let path = format!("{doctor}/{verb}");
        assert_eq!(site.post(&path, &reader, "").await, 403, "{verb}");
    }
    assert_eq!(site.post(&format!("{doctor}/heal"), &anna, "").await, 404);
    let examine = format!("{doctor}/examine");
    assert_eq!(site.post(&examine, &anna, "").await, 303);
    for path in [doctor, "/system"] {
        let (_, page) = site.get(path, &reader).await;
        assert!(page.contains("Faults left: 1, repaired: 0"), "{page}");
    }
    let repair = format!("{doctor}/repair");
    // A repair is asked for on a page of its own.
    for path in [doctor, "/system"] {
        let (_, page) = site.get(path, &anna).await;
        assert!(page.contains(&format!("href=\"{repair}\"")), "{page}");
        assert!(!page.contains(&format!("action=\"{repair}\"")), "{page}");
    }
    let (status, page) = site.get(&repair, &anna).await;
    assert!(status == 200 && page.contains("Repair t?"), "{page}");
    assert!(page.contains(&format!("action=\"{repair}\"")), "{page}");
    assert_eq!(site.get(&repair, &reader).await.0, 403);
    assert_eq!(site.get(&format!("{doctor}/heal"), &anna).await.0, 404);
    assert_eq!(site.post(&repair, &anna, "").await, 303);
    let (_, page) = site.get(doctor, &anna).await;
    assert!(page.contains("Faults left: 0, repaired: 1"), "{page}");
    site.shows("/", &anna, &["All messages accounted for"])
        .await;
    let audit = api.get_json("/v1/audit").await.to_string();
    assert!(audit.contains("1 fault repaired, 0 left"), "{audit}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_search_names_the_topic_that_cannot_be_read_and_finds_what_is_in_others() {
    let site = Site::start("[topics.u]\n").await;
    let headers = [("Lisa-Id", "needle"), ("Lisa-Delay", "1h")];
    site.api.send("u", "x", &headers).await.expect(202);
    site.redis(&["SET", "lisa:v1:{t:0}:meta", "torn"]).await;
    site.redis(&["SET", "lisa:v1:{t:0}:payload", "torn"]).await;
    // It is not opened at once: the other topic may have it, too.
    let (status, page) = site.get("/find?q=needle", "").await;
    assert_eq!(status, 200, "{page}");
    for text in ["/topics/u/messages/needle", "could not be searched"] {
        assert!(page.contains(text), "{text}: {page}");
    }
    let (status, page) = site.get("/find?q=nowhere", "").await;
    assert_eq!(status, 200);
    for text in ["could not be searched", "/topics/t/doctor", "WRONGTYPE"] {
        assert!(page.contains(text), "{text}: {page}");
    }
    assert!(!page.contains("/topics/u/doctor"), "{page}");
}
