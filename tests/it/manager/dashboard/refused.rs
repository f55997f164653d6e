//! Pages about something that is refused, missing or hostile, and about messages that are lost or paused.

use super::*;

impl Site {
    /// Posts a form that is refused. Returns the page that the error page leads back to.
    async fn way_back(&self, path: &str, referer: &str, form: &str) -> String {
        let request = self.client.post(format!("{}{path}", self.url));
        let request = request
            .header("Content-Type", "application/x-www-form-urlencoded")
            .header("Referer", referer)
            .body(form.to_owned());
        let response = request.send().await.unwrap();
        let status = response.status();
        let page = response.text().await.unwrap();
        assert!(status.is_client_error(), "{path}: {status} {page}");
        let (before, _) = page
            .split_once("\">Back</a>")
            .unwrap_or_else(|| panic!("{page}"));
        let (_, link) = before.rsplit_once("href=\"").unwrap();
        link.replace("&amp;", "&")
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_refused_form_leads_back_to_its_page_and_never_to_another_site() {
    let site = Site::start("groups = [\"default\"]\n").await;
    let foreign = "https://evil.example/x?y=z";
    let purge = "/topics/t/groups/default/garbage/purge";
    let asked = format!("{purge}?reason=rejected&error=a+b");
    let own = format!("{}{asked}", site.url);
    assert_eq!(site.way_back(purge, &own, "typed=other").await, asked);
    let drop = "/topics/t/groups/default/drop";
    let reschedule = "/topics/t/messages/m/reschedule";
    for (path, back) in [
        (purge, "/topics/t/garbage?group=default"),
        (drop, "/topics/t"),
        (reschedule, "/topics/t/messages/m"),
        ("/topics/t/doctor/heal", "/topics/t/doctor"),
        ("/system/jobs/nothing", "/system"),
    ] {
        let form = "typed=other&delay=soon";
        assert_eq!(site.way_back(path, foreign, form).await, back, "{path}");
    }
    // A page that was only asked for has no form to go back to.
    let (status, page) = site.get("/topics/nosuch", "").await;
    assert!(status == 404 && !page.contains(">Back</a>"), "{page}");
}

#[tokio::test(flavor = "multi_thread")]
async fn the_examination_of_an_unknown_topic_is_not_found_and_that_of_a_damaged_one_is() {
    let site = Site::start("").await;
    let (status, page) = site.get("/topics/nosuch/doctor", "").await;
    assert_eq!(status, 404, "{page}");
    assert!(page.contains("No such topic"), "{page}");
    assert_eq!(site.get("/topics/t/doctor", "").await.0, 200);
    // A topic without settings, which no page can read.
    let registry = "lisa:v1:{registry}:topics";
    site.redis(&["HSET", registry, "torn", "1 7"]).await;
    site.redis(&["HINCRBY", registry, ":version", "1"]).await;
    site.shows("/", "", &["/topics/torn/doctor"]).await;
    let (status, page) = site.get("/topics/torn/doctor", "").await;
    assert!(
        status == 200 && page.contains("Examine and repair"),
        "{page}"
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn a_hostile_name_is_spelled_out_in_every_part_of_a_page() {
    let site = Site::start("").await;
    let registry = "lisa:v1:{registry}:topics";
    let name = "bad\u{202e}\u{9b}<b>\"name";
    site.redis(&["HSET", registry, name, "1 7"]).await;
    site.redis(&["HINCRBY", registry, ":version", "1"]).await;
    let label = "aria-label=\"Examine: badU+202EU+009B&lt;b&gt;&quot;name\"";
    site.shows("/", "", &[label]).await;
    for path in ["/", "/forecast", "/garbage", "/workers"] {
        let (_, page) = site.get(path, "").await;
        assert!(page.contains("name"), "{path}: {page}");
        assert!(!page.contains(['\u{202e}', '\u{9b}']), "{path}: {page}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_session_survives_another_cookie_of_the_same_name() {
    let site = Site::start(TOKENS).await;
    let (_, anna) = site.log_in("abc").await;
    let (name, _) = anna.split_once('=').unwrap();
    for cookies in [
        format!("{name}=forged; {anna}"),
        format!("{anna}; {name}=forged"),
        format!("__Host-lisa=forged; {name}=; {anna}"),
    ] {
        assert_eq!(site.get("/system", &cookies).await.0, 200, "{cookies}");
    }
    let forged = format!("{name}=forged; {name}=too");
    assert_eq!(site.get("/system", &forged).await.0, 303);
}

#[tokio::test(flavor = "multi_thread")]
async fn messages_that_a_repair_counted_as_lost_are_named_although_the_sums_hold() {
    // One message that is lost in both of its groups.
    let site = Site::start("groups = [\"a\", \"b\"]\n").await;
    let headers = [("Lisa-Id", "m"), ("Lisa-Delay", "1h")];
    site.api.send("t", "x", &headers).await.expect(202);
    site.shows("/", "", &["All messages accounted for<"]).await;
    let (_, page) = site.get("/topics/t", "").await;
    assert!(!page.contains("accounted for"), "{page}");
    site.redis(&["HDEL", "lisa:v1:{t:0}:payload", "m"]).await;
    assert_eq!(site.post("/topics/t/doctor/repair", "", "").await, 303);
    let lost = "All messages accounted for, 1 lost message<";
    for path in ["/", "/topics/t"] {
        site.shows(path, "", &[lost, "aria-label=\"Note\""]).await;
    }
    let url = site.server.url();
    let check = ["check", "--redis-url", &url, "--output"];
    let said = async |output: &str| {
        let words = [&check[..], &[output]].concat();
        Binary::Manager.with(words).run(SOON).await
    };
    let table = said("table").await;
    let line = "LISA OK: no problems; 1 message counted as lost earlier\n";
    assert_eq!((table.code, &*table.stdout), (Some(0), line), "{table:?}");
    let json: serde_json::Value = serde_json::from_str(&said("json").await.stdout).unwrap();
    assert_eq!((&json["status"], &json["lost"]), (&json!("ok"), &json!(1)));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_forecast_says_what_of_it_is_paused_and_which_topics_it_lacks() {
    let site = Site::start("[topics.u]\n").await;
    let headers = [("Lisa-Delay", "1h")];
    for topic in ["t", "u", "u"] {
        site.api.send(topic, "x", &headers).await.expect(202);
    }
    assert_eq!(site.post("/topics/u/pause", "", "").await, 303);
    let included = "Includes 2 messages of 1 paused topic, which are not delivered until resumed";
    for path in ["/forecast", "/forecast?for=21600&topic=u"] {
        site.shows(path, "", &[included]).await;
    }
    let (_, page) = site.get("/forecast?for=21600&topic=t", "").await;
    assert!(!page.contains("paused"), "{page}");
    let all = site.api.get_json("/v1/forecast").await;
    let topics = all["topics"].as_array().unwrap().iter();
    let paused: Vec<_> = topics
        .map(|topic| (&topic["topic"], &topic["is_paused"]))
        .collect();
    assert!(paused.contains(&(&json!("u"), &json!(true))), "{all:#}");
    assert!(paused.contains(&(&json!("t"), &json!(null))), "{all:#}");

    // A topic whose settings cannot be read, and that this process has never known.
    let registry = "lisa:v1:{registry}:topics";
    site.redis(&["HSET", registry, "torn", "1 7"]).await;
    site.redis(&["HINCRBY", registry, ":version", "1"]).await;
    let missing = ["/topics/torn", "cannot be counted: "];
    site.shows("/forecast", "", &missing).await;
    let all = site.api.get_json("/v1/forecast").await;
    assert_eq!(all["damaged"][0]["topic"], "torn", "{all:#}");
    let url = site.server.url();
    let words = ["forecast", "--redis-url", &url];
    let said = Binary::Manager.with(words).run(SOON).await;
    assert_eq!(said.code, Some(1), "{said:?}");
    assert!(said.stderr.contains("topic torn: "), "{said:?}");
    let included = "included: 2 messages of 1 paused topic, not delivered until resumed";
    assert!(said.stdout.contains(included), "{said:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn each_change_of_a_waiting_message_can_be_copied_as_curl_and_as_a_command() {
    let site = Site::start("").await;
    let headers = [("Lisa-Id", "m"), ("Lisa-Delay", "1h")];
    site.api.send("t", "x", &headers).await.expect(202);
    let (_, page) = site.get("/topics/t/messages/m", "").await;
    let at = format!("{}/v1/topics/t/messages/m", site.url);
    let address = format!("{}?db=0", site.server.socket_url());
    let redis = format!("--redis-url '{address}'");
    let json = "-H 'Content-Type: application/json' -d '{&quot;delay&quot;:&quot;15m&quot;}'";
    for command in [
        format!("curl -sS -X DELETE {at}"),
        format!("lisa-producer {redis} cancel t -- m"),
        format!("curl -sS -X POST {at}/deliver-now"),
        format!("lisa-producer {redis} deliver-now t -- m"),
        format!("curl -sS -X PATCH {json} {at}"),
        format!("lisa-producer {redis} reschedule t --delay 15m -- m"),
    ] {
        let copied = format!("data-copy=\"{command}\"");
        assert!(page.contains(&copied), "{command}: {page}");
    }
    let (_, page) = site.get("/topics/t/messages/m/reschedule", "").await;
    assert!(page.contains("curl -sS -X PATCH"), "{page}");
    // They work as they are.
    for (method, path, body) in [
        (
            Method::PATCH,
            "/v1/topics/t/messages/m",
            r#"{"delay":"15m"}"#,
        ),
        (Method::POST, "/v1/topics/t/messages/m/deliver-now", ""),
    ] {
        let request = site.client.request(method, format!("{}{path}", site.url));
        let request = request.header("Content-Type", "application/json");
        let response = request.body(body).send().await.unwrap();
        assert_eq!(response.status(), 200, "{path}");
    }
    let words = ["--redis-url", &address, "cancel", "t", "--", "m"];
    let cancelled = Binary::Producer.with(words).run(SOON).await;
    // It may be ready by now.
    assert!(matches!(cancelled.code, Some(0 | 1)), "{cancelled:?}");
}
