//! The history of all topics together, on the overview and over HTTP.

use super::*;

const MINUTE: u64 = 60_000;

#[tokio::test(flavor = "multi_thread")]
async fn the_overview_draws_the_sums_of_all_topics_and_leaves_gaps() {
    // The job of the manager writes nothing meanwhile.
    let site = Site::start("[manager.jobs]\nstatistics = \"0 0 0 1 1 *\"\n").await;
    let now = std::time::SystemTime::UNIX_EPOCH.elapsed().unwrap();
    let now = u64::try_from(now.as_millis()).unwrap() / MINUTE * MINUTE;
    // A topic comes back after the third sample; the fifth is missing.
    let samples = [
        (9, "2 1 7 10 4"),
        (8, "2 1 7 15 4"),
        (7, "2 2 0 99 8"),
        (6, "2 2 0 101 9"),
        (4, "2 2 0 103 9"),
    ];
    for (back, counts) in samples {
        let mut add = redis::cmd("XADD");
        add.arg("lisa:v1:{registry}:series")
            .arg(format!("{}-0", now - back * MINUTE))
            .arg(&["s", &format!("{counts} 0 0 0 0 0 0 0 0 0 0 3")]);
        let connection = &mut site.server.connection().await;
        let _: String = add.query_async(connection).await.unwrap();
    }
    let view = site.api.get_json("/v1/history?for=9m").await;
    assert!(view.get("topic").is_none(), "{view}");
    let steps = view["steps"].as_array().unwrap();
    let sent = |back: u64| {
        let from = lisa_core::time::UnixMs::new(now - back * MINUTE).to_string();
        let step = steps.iter().find(|step| step["from"] == json!(from));
        step.map(|step| step["sent"].clone())
    };
    // The minute may have changed since.
    for (back, expected) in [
        (8, json!(null)),
        (7, json!(2)),
        (6, json!(null)),
        (5, json!(null)),
        (4, json!(null)),
    ] {
        assert_eq!(sent(back), Some(expected), "{back} minutes ago: {view}");
    }
    for path in ["/", "/?history=3600"] {
        let (status, page) = site.get(path, "").await;
        assert_eq!(status, 200);
        for text in [
            "Messages in and out",
            "is-running",
            "history=604800",
            "area is-garbage",
        ] {
            assert!(page.contains(text), "{path} {text}: {page}");
        }
    }
    let (status, page) = site.get("/?history=5", "").await;
    assert!(status == 422 && page.contains("604800"), "{page}");
    let refused = site.api.get("/v1/history?for=5s").await.expect(422);
    assert!(refused.body.contains("must be 1m to 7d"), "{refused:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn without_a_history_there_are_no_charts() {
    let site = Site::start("[manager.history]\nenabled = false\n").await;
    let (_, page) = site.get("/", "").await;
    assert!(!page.contains("id=\"history\""), "{page}");
    let refused = site.api.get("/v1/history").await.expect(422);
    assert!(refused.body.contains("manager.history.enabled"));
}

#[tokio::test(flavor = "multi_thread")]
async fn each_period_of_a_new_relay_has_what_the_shortest_one_has() {
    // The job of the manager writes nothing meanwhile.
    let site = Site::start("[manager.jobs]\nstatistics = \"0 0 0 1 1 *\"\n").await;
    let now = std::time::SystemTime::UNIX_EPOCH.elapsed().unwrap();
    let now = u64::try_from(now.as_millis()).unwrap() / MINUTE * MINUTE;
    let connection = &mut site.server.connection().await;
    for (back, sent) in [(3, 0), (2, 40), (1, 50_743)] {
        let counts = format!("2 1 0 {sent} {sent} 0 0 0 0 0 0 0 0 0 {sent}");
        let mut add = redis::cmd("XADD");
        add.arg("lisa:v1:{registry}:series")
            .arg(format!("{}-0", now - back * MINUTE))
            .arg(&["s", &counts]);
        let _: String = add.query_async(connection).await.unwrap();
    }
    for period in ["1h", "6h", "6h&steps=90", "24h", "7d", "7d&steps=84"] {
        let path = format!("/v1/history?for={period}");
        let view = site.api.get_json(&path).await;
        let steps = view["steps"].as_array().unwrap();
        for rate in ["sent", "acked"] {
            let sum: u64 = steps.iter().filter_map(|step| step[rate].as_u64()).sum();
            assert_eq!(sum, 50_743, "{period} {rate}: {view}");
        }
        let late = steps
            .iter()
            .filter(|step| !step["lateness_p99_ms"].is_null());
        assert!(late.count() > 0, "{period}: {view}");
    }
    for seconds in [3_600, 6 * 3_600, 24 * 3_600, 7 * 24 * 3_600] {
        let (_, page) = site.get(&format!("/?history={seconds}"), "").await;
        assert!(page.contains("id=\"history-table\""), "{seconds}: {page}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn pages_show_rates_once_two_counts_are_known() {
    let site = Site::start("").await;
    let rate = |page: &str, label: &str| {
        let (_, tile) = page.split_once(&format!("<dt>{label}</dt>"))?;
        let (_, value) = tile.split_once("class=\"value\">")?;
        let (value, _) = value.split_once("</dd>")?;
        let number: String = value.chars().skip_while(|c| !c.is_ascii_digit()).collect();
        (!value.contains('–')).then_some(number)
    };
    let (_, page) = site.get("/", "").await;
    assert_eq!(rate(&page, "Sent/s"), None, "{page}");
    for path in ["/", "/topics/t"] {
        eventually(SOON, async || {
            site.api.send("t", "x", &[]).await.expect(202);
            let (_, page) = site.get(path, "").await;
            match rate(&page, "Sent/s") {
                Some(number) if !number.starts_with('0') || number.starts_with("0.") => Ok(()),
                _ => Err(page),
            }
        })
        .await;
    }
    // Each column names its unit.
    let (_, page) = site.get("/", "").await;
    for column in ["Sent/s", "Acked/s", "Consumers"] {
        assert!(page.contains(&format!("data-label=\"{column}\"")), "{page}");
    }
}
