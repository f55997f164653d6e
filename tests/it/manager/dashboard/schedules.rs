//! The pages of schedules: the list, one schedule, and the form that creates and edits one.

use super::*;

const YEARLY: &str = "0 0 0 1 1 *";
const FILED: &str =
    "[schedules.filed]\ntopic = \"t\"\ncron = \"0 0 0 1 1 *\"\npayload = \"of the file\"\n";

impl Site {
    /// Creates a schedule at run time, with these further fields.
    async fn schedule(&self, name: &str, more: serde_json::Value) {
        let mut body = json!({ "topic": "t", "cron": YEARLY });
        let fields = body.as_object_mut().unwrap();
        fields.extend(more.as_object().unwrap().clone());
        let path = format!("/v1/schedules/{name}");
        self.api.call(Method::PUT, &path, &body).await.expect(201);
    }

    /// Returns a schedule over HTTP.
    async fn of_call(&self, name: &str) -> serde_json::Value {
        self.api.get_json(&format!("/v1/schedules/{name}")).await
    }
}

/// Returns the line about an action that a response carries to the next page.
fn line(response: &Response) -> String {
    let cookies = response.headers().get_all(SET_COOKIE).iter();
    let mut cookies = cookies.filter_map(|cookie| cookie.to_str().ok());
    let line = cookies.find(|cookie| cookie.starts_with("lisa-line="));
    let line = line.and_then(|line| line.split([';', '=']).nth(1));
    line.unwrap_or_default()
        .replace("%20", " ")
        .replace("%2B", "+")
}

#[tokio::test(flavor = "multi_thread")]
async fn schedules_are_listed_in_pages_with_their_state_and_those_that_cannot_be_read() {
    let site = Site::start(FILED).await;
    let text = json!({ "payload": HOSTILE, "time_zone": "Europe/Berlin" });
    site.schedule("plain", text).await;
    site.schedule("held", json!({})).await;
    assert_eq!(site.post("/schedules/held/pause", "", "").await, 303);
    let key = "lisa:v1:{registry}:schedule_definitions";
    site.redis(&["HSET", key, "broken", "{}"]).await;
    let names = "lisa:v1:{registry}:schedule_names";
    site.redis(&["ZADD", names, "0", "broken"]).await;
    let (status, page) = site.get("/schedules", "").await;
    assert_eq!(status, 200);
    for text in [
        "href=\"/schedules/plain\"",
        "href=\"/schedules/filed\"",
        "<span class=\"tag is-warn\">paused</span>",
        "broken</strong>",
        "cannot be read: ",
        "href=\"/schedules/broken/remove\"",
        "Europe/Berlin",
        "data-live=\"2\"",
    ] {
        assert!(page.contains(text), "{text}: {page}");
    }
    // The error of the last send, and what was missed. The manager may write its own once.
    let faults = format!("3 1764547200000 1764547201000 topic full {HOSTILE}");
    let set = [
        "HSET",
        "lisa:v1:{registry}:schedule_faults",
        "filed",
        &faults,
    ];
    let texts = [
        "<span class=\"tag is-bad\">failing</span>",
        "3 missed, the newest ",
        "topic full &lt;img src=x",
    ];
    eventually(SOON, async || {
        site.redis(&set).await;
        let (_, page) = site.get("/schedules", "").await;
        let (_, one) = site.get("/schedules/filed", "").await;
        let backfill = "schedules backfill filed --from 2025-12-01T00:00:00.000Z --to 2025-12-01T00:00:01.000Z";
        let is_shown = texts.iter().all(|text| page.contains(text));
        match is_shown && one.contains("The last send failed") && one.contains(backfill) {
            true => Ok(()),
            false => Err(format!("{page} {one}")),
        }
    })
    .await;
    // What cannot be read can still be removed.
    let (status, page) = site.get("/schedules/broken", "").await;
    assert!(status == 500 && page.contains("cannot be read"), "{page}");
    let (status, page) = site.get("/schedules/broken/remove", "").await;
    assert_eq!(status, 200, "{page}");
    assert_eq!(site.post("/schedules/broken/remove", "", "").await, 303);
    let (_, page) = site.get("/schedules?prefix=p", "").await;
    assert!(page.contains("/schedules/plain"), "{page}");
    assert!(!page.contains("/schedules/held"), "{page}");
    assert!(page.contains("schedules list --prefix p"), "{page}");
    let (_, page) = site.get("/schedules?prefix=none", "").await;
    assert!(page.contains("No schedules match"), "{page}");
    assert_eq!(site.get("/schedules?prefix=Bad+name", "").await.0, 422);
    // Fifty on each page, of those with the prefix.
    for number in 0..51 {
        site.schedule(&format!("many-{number:02}"), json!({})).await;
    }
    let (_, page) = site.get("/schedules?prefix=many", "").await;
    assert!(page.contains("/schedules/many-49") && !page.contains("/schedules/many-50"));
    let next = links(&page)
        .into_iter()
        .find(|link| link.contains("cursor="));
    let next = next.expect("a second page");
    assert_eq!(next, "/schedules?prefix=many&cursor=many-49");
    let (_, page) = site.get(&next, "").await;
    assert!(page.contains("/schedules/many-50") && !page.contains("/schedules/many-49"));
    assert!(page.contains("data-live=\"0\""), "{page}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_schedule_is_paused_resumed_run_and_removed_on_its_page() {
    let site = Site::start(FILED).await;
    let definition = json!({
        "cron": "0 30 2 31 * *", "time_zone": "Europe/Berlin", "payload": HOSTILE, "headers": { "x-note": "<b>" }, "key": HOSTILE,
        "retry": { "kind": "fixed", "delay": "5s" },
    });
    site.schedule("s", definition).await;
    let (status, page) = site.get("/schedules/s", "").await;
    assert_eq!(status, 200);
    let shown = without_copies(&page);
    assert!(!shown.contains("<img src=x") && !shown.contains('\u{202e}'));
    for text in [
        "0 30 2 31 * *",
        "retry.delay",
        "x-note",
        "&lt;b&gt;",
        "day 31 does not exist in February",
        "schedules pause s",
        "/schedules/s/remove",
        "at run time",
    ] {
        assert!(page.contains(text), "{text}: {page}");
    }
    assert_eq!(page.matches("data-show=\"exact\"").count(), 6, "{page}");

    let act = async |verb: &str| {
        let path = format!("/schedules/s/{verb}");
        let response = site.ask(Method::POST, &path, "", "").await;
        assert_eq!(response.status(), 303, "{verb}");
        assert_eq!(response.headers()[LOCATION], "/schedules/s");
        line(&response)
    };
    assert_eq!(act("pause").await, "+Schedule s is paused.");
    assert_eq!(act("pause").await, "-Schedule s was already paused.");
    let (_, page) = site.get("/schedules/s", "").await;
    assert!(page.contains("This schedule was paused"), "{page}");
    assert!(page.contains("action=\"/schedules/s/resume\""), "{page}");
    let sent = act("run").await;
    assert!(sent.starts_with("+Message s%3A"), "{sent}");
    assert_eq!(
        site.api.get_json("/v1/topics/t").await["stats"]["stored"],
        1
    );
    assert_eq!(act("resume").await, "+Schedule s is running.");
    assert_eq!(site.of_call("s").await.get("paused_since"), None);
    assert_eq!(site.post("/schedules/s/explode", "", "").await, 404);

    let (_, page) = site.get("/schedules/s/remove", "").await;
    for text in ["its next time would be", "-X DELETE", "schedules remove s"] {
        assert!(page.contains(text), "{text}: {page}");
    }
    // One that was changed after the question is not removed.
    assert_eq!(site.post("/schedules/s/remove", "", "version=5").await, 412);
    let version = site.of_call("s").await["version"].to_string();
    let form = format!("version={version}");
    assert!(page.contains(&format!("value=\"{version}\"")), "{page}");
    let response = site
        .ask(Method::POST, "/schedules/s/remove", "", &form)
        .await;
    assert_eq!(response.headers()[LOCATION], "/schedules");
    for path in ["/schedules/s", "/schedules/s/remove"] {
        let (status, page) = site.get(path, "").await;
        assert!(
            status == 404 && page.contains("there is no schedule s"),
            "{page}"
        );
    }
    assert_eq!(site.post("/schedules/s/run", "", "").await, 404);
    let (status, page) = site.get("/schedules/Bad%20name", "").await;
    assert!(status == 422 && page.contains("schedule: "), "{page}");

    // What the file declares is paused and run here, and removed there.
    let (_, page) = site.get("/schedules/filed", "").await;
    assert!(page.contains("in the managers' configuration"), "{page}");
    assert!(!page.contains("/schedules/filed/remove"), "{page}");
    assert_eq!(site.get("/schedules/filed/remove", "").await.0, 409);
    assert_eq!(site.post("/schedules/filed/remove", "", "").await, 409);
    assert_eq!(site.post("/schedules/filed/pause", "", "").await, 303);

    let audit = site.api.get_json("/v1/audit").await;
    let entries = audit["entries"].as_array().unwrap().iter();
    let entries = entries.filter(|entry| entry["via"] == "dashboard");
    let actions: BTreeSet<_> = entries
        .map(|entry| entry["action"].as_str().unwrap())
        .collect();
    for action in [
        "pause_schedule",
        "resume_schedule",
        "run_schedule",
        "remove_schedule",
    ] {
        assert!(actions.contains(action), "{actions:?}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_schedule_is_changed_only_with_the_scope_and_from_the_same_site() {
    let site = Site::start(&format!("{FILED}{TOKENS}")).await;
    let (_, anna) = site.log_in("abc").await;
    let (_, reader) = site.log_in("def").await;
    let (_, page) = site.get("/schedules/filed", &reader).await;
    assert!(page.contains("requires operate"), "{page}");
    // The content is that of a message.
    assert!(
        !page.contains("of the file") && page.contains("require the scope payload"),
        "{page}"
    );
    let (_, page) = site.get("/schedules/filed", &anna).await;
    assert!(page.contains("of the file"), "{page}");
    for verb in ["pause", "resume", "run", "remove"] {
        let path = format!("/schedules/filed/{verb}");
        assert_eq!(site.post(&path, &reader, "").await, 403, "{verb}");
        let request = site.client.post(format!("{}{path}", site.url));
        let request = request.header("Cookie", &anna);
        let request = request.header("Origin", "http://evil.example");
        assert_eq!(request.send().await.unwrap().status(), 403, "{verb}");
    }
    assert_eq!(site.get("/schedules/filed/remove", &reader).await.0, 403);
    let api = site.api.clone().token("abc");
    let shown = api.get_json("/v1/schedules/filed").await;
    assert_eq!(shown.get("paused_since"), None);
    assert_eq!(api.get_json("/v1/topics/t").await["stats"]["stored"], 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_schedule_is_created_and_edited_in_a_form_that_keeps_what_was_typed() {
    let site = Site::start(&format!("{FILED}[topics.small]\nmax_payload = 3\n")).await;
    let (_, page) = site.get("/schedules", "").await;
    assert!(page.contains("href=\"/new-schedule\""), "{page}");
    let (status, page) = site.get("/new-schedule", "").await;
    assert_eq!(status, 200);
    for field in [
        "schedule",
        "topic",
        "cron",
        "time_zone",
        "catch_up",
        "payload",
        "headers",
        "key",
        "merge_key",
        "priority",
        "ttl",
        "max_attempts",
        "retry",
    ] {
        let control = format!("id=\"schedule-{field}\" name=\"{field}\"");
        assert!(page.contains(&control), "{control}: {page}");
    }
    // Each mistake is at its field, and everything typed is still there.
    let create = async |form: &str| {
        let response = site.ask(Method::POST, "/new-schedule", "", form).await;
        let status = response.status().as_u16();
        (status, response.text().await.unwrap())
    };
    for (form, status, texts) in [
        (
            "schedule=Bad&cron=soon&payload=%3Cb%3Etyped&headers=x%3Ay&time_zone=Mars&retry=%7B%22kind%22%3A%22x%22%7D",
            422,
            &[
                "id=\"schedule-schedule-mistake\"",
                "id=\"schedule-topic-mistake\"",
                "id=\"schedule-cron-mistake\"",
                "id=\"schedule-time_zone-mistake\"",
                "id=\"schedule-retry-mistake\"",
                "value=\"soon\"",
                "value=\"Bad\"",
                "&lt;b&gt;typed",
                "x:y",
            ][..],
        ),
        (
            "schedule=s&topic=none&cron=0+0+3+*+*+*",
            404,
            &["id=\"schedule-topic-mistake\"", "value=\"none\""],
        ),
        (
            "schedule=s&topic=small&cron=0+0+3+*+*+*&payload=long",
            422,
            &["id=\"schedule-payload-mistake\""],
        ),
        (
            "schedule=filed&topic=t&cron=0+0+3+*+*+*",
            409,
            &["id=\"schedule-schedule-mistake\""],
        ),
    ] {
        let (got, page) = create(form).await;
        assert_eq!(got, status, "{form}: {page}");
        for text in texts {
            assert!(page.contains(text), "{text}: {page}");
        }
    }
    let form = "schedule=s&topic=t&cron=0+30+2+31+*+*&time_zone=Europe%2FBerlin&catch_up=6h&payload=+a%0D%0Ab&key=5\
        &headers=content-type%3A+text%2Fplain%0D%0Ax-note%3A+hi&priority=-3&retry=%7B%22kind%22%3A%22fixed%22%2C%22delay%22%3A%225s%22%7D";
    let response = site.ask(Method::POST, "/new-schedule", "", form).await;
    assert_eq!(response.status(), 303);
    assert_eq!(response.headers()[LOCATION], "/schedules/s");
    assert_eq!(line(&response), "+Schedule s is created.");
    let (_, page) = site.get("/schedules/s", "").await;
    assert!(page.contains("day 31 does not exist in February"), "{page}");
    let stored = site.of_call("s").await;
    let definition = json!({
        "topic": "t", "cron": "0 30 2 31 * *", "time_zone": "Europe/Berlin", "catch_up": "6h", "payload": " a\nb", "key": "5",
        "headers": { "content-type": "text/plain", "x-note": "hi" }, "priority": -3,
        "retry": { "kind": "fixed", "delay": "5s", "jitter": 0.2 },
    });
    assert_eq!(stored["definition"], definition);
    // The same request again, as after a reload, changes nothing; another one is refused.
    assert_eq!(site.post("/new-schedule", "", form).await, 303);
    assert_eq!(site.of_call("s").await["version"], stored["version"]);
    let (status, page) = create("schedule=s&topic=t&cron=0+0+3+*+*+*").await;
    assert!(
        status == 412 && page.contains("id=\"schedule-schedule-mistake\""),
        "{page}"
    );

    // An edit begins with the definition, and ends with another version.
    let (_, page) = site.get("/schedules/s/edit", "").await;
    let version = stored["version"].to_string();
    for text in [
        "value=\"0 30 2 31 * *\"",
        "content-type: text/plain\nx-note: hi",
        &format!("value=\"{version}\""),
    ] {
        assert!(page.contains(text), "{text}: {page}");
    }
    assert!(
        !page.contains("name=\"schedule\""),
        "the name stays: {page}"
    );
    let edit = format!("topic=t&cron=0+0+4+*+*+*&payload=new&version={version}");
    let path = "/schedules/s/edit";
    assert_eq!(site.post(path, "", "topic=t&cron=0+0+4+*+*+*").await, 422);
    let response = site.ask(Method::POST, path, "", &edit).await;
    assert_eq!(line(&response), "+Schedule s is changed.");
    let changed = site.of_call("s").await;
    assert_eq!(changed["definition"]["payload"], "new");
    assert_eq!(changed["definition"].get("key"), None);
    let stale = format!("topic=t&cron=0+0+5+*+*+*&version={version}");
    let response = site.ask(Method::POST, path, "", &stale).await;
    assert_eq!(response.status(), 412);
    let page = response.text().await.unwrap();
    assert!(
        page.contains("value=\"0 0 5 * * *\"") && page.contains("has changed"),
        "{page}"
    );
    assert_eq!(site.get("/schedules/filed/edit", "").await.0, 409);
    assert_eq!(site.get("/schedules/none/edit", "").await.0, 404);
    let audit = site.api.get_json("/v1/audit").await;
    assert_eq!(audit["entries"][0]["action"], "change_schedule");
    assert_eq!(audit["entries"][0]["via"], "dashboard");
}

#[tokio::test(flavor = "multi_thread")]
async fn an_edit_without_the_scope_payload_keeps_payload_and_headers() {
    let operator = "[[auth.tokens]]\nname = \"operator\"\nscopes = [\"read\", \"operate\"]\n\
        sha256 = \"50ae61e841fac4e8f9e40baf2ad36ec868922ea48368c18f9535e47db56dd7fb\"\n";
    let site = Site::start(&format!("{TOKENS}{operator}")).await;
    let (_, anna) = site.log_in("abc").await;
    let (_, operator) = site.log_in("ghi").await;
    let (_, reader) = site.log_in("def").await;
    let form = "schedule=s&topic=t&cron=0+0+3+*+*+*&payload=secret&headers=x-note%3A+cloaked";
    assert_eq!(site.get("/new-schedule", &reader).await.0, 403);
    assert_eq!(site.post("/new-schedule", &reader, form).await, 403);
    assert_eq!(site.post("/new-schedule", &anna, form).await, 303);
    let read = async || {
        let api = site.api.clone().token("abc");
        api.get_json("/v1/schedules/s").await
    };
    let stored = read().await;
    for path in ["/schedules/s", "/schedules/s/edit"] {
        let (status, page) = site.get(path, &operator).await;
        assert_eq!(status, 200);
        assert!(
            !page.contains("secret") && !page.contains("cloaked"),
            "{path}: {page}"
        );
        assert!(page.contains("require the scope payload"), "{path}: {page}");
    }
    assert_eq!(site.get("/schedules/s/edit", &reader).await.0, 403);
    let edit = format!(
        "topic=t&cron=0+0+4+*+*+*&payload=typed&version={}",
        stored["version"]
    );
    assert_eq!(site.post("/schedules/s/edit", &reader, &edit).await, 403);
    assert_eq!(site.post("/schedules/s/edit", &operator, &edit).await, 303);
    let changed = read().await;
    assert_eq!(changed["cron"], "0 0 4 * * *");
    assert_eq!(changed["definition"]["payload"], "secret");
    assert_eq!(
        changed["definition"]["headers"],
        json!({ "x-note": "cloaked" })
    );
}
