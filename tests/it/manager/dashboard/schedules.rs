//! The pages of schedules: the list, one schedule, and the form that creates and edits one.

use super::*;

const YEARLY: &str = "0 0 0 1 1 *";
const FILED: &str =
    "[schedules.filed]\ntopic = \"t\"\ncron = \"0 0 0 1 1 *\"\npayload = \"of the file\"\n";

impl Site {
    /// Creates a schedule by call, with these further fields.
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
        "by call",
    ] {
        assert!(page.contains(text), "{text}: {page}");
    }
    assert_eq!(page.matches("data-show=\"exact\"").count(), 5, "{page}");

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
    assert!(page.contains("This schedule is paused since"), "{page}");
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
