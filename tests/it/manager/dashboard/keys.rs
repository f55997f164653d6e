//! Ordering keys: what holds one, and how the messages of one are found.

use super::*;

/// The configuration of a consumer whose deliveries of the topic `t` fail.
fn failing(site: &Site) -> String {
    format!(
        "redis.url = \"{}\"\nconsumer.listen = \"127.0.0.1:{}\"\n[[consumer.subscriptions]]\ntopic = \"t\"\ngroup = \"default\"\nsink = {{ type = \"command\", command = [\"false\"] }}\n",
        site.server.socket_url(),
        lisa_tests::free_port()
    )
}

/// Sends messages of the ordering key `cust-7`, in this order.
async fn send_of_key(site: &Site, ids: &[&str]) {
    for id in ids {
        let headers = [("Lisa-Id", *id), ("Lisa-Key", "cust-7")];
        site.api.send("t", "x", &headers).await.expect(202);
    }
}

async fn shows(site: &Site, path: &str, texts: &[&str]) {
    eventually(SOON, async || {
        let (status, page) = site.get(path, "").await;
        match status == 200 && texts.iter().all(|text| page.contains(text)) {
            true => Ok(()),
            false => Err(format!("{path}: {status} {page}")),
        }
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_parked_message_leads_to_the_holder_of_its_key_and_keys_say_when_that_is_retried() {
    let site = Site::start("retry = { kind = \"fixed\", delay = \"1h\" }\n").await;
    let _consumer = Binary::Consumer
        .with(["run"])
        .config(&failing(&site))
        .start();
    send_of_key(&site, &["first", "second"]).await;
    let link = "<a href=\"/topics/t/messages/first\">first</a>";
    shows(&site, "/topics/t/messages/second", &["parked", link]).await;
    shows(&site, "/topics/t/keys", &["next attempt <time"]).await;
    // Its failed attempt is in the list of those of the topic.
    let failed = [
        "href=\"/topics/t/messages/first\"",
        "1, failed",
        "retry <time",
    ];
    shows(&site, "/topics/t/failures", &failed).await;
    shows(&site, "/topics/t/failures?group=default", &failed).await;
    let (status, _) = site.get("/topics/t/failures?group=none", "").await;
    assert_eq!(status, 404);
    shows(&site, "/topics/t", &["href=\"/topics/t/failures\""]).await;
    let message = site.api.get_json("/v1/topics/t/messages/second").await;
    assert_eq!(message["groups"][0]["holder"], "first", "{message:#}");
    let message = site.api.get_json("/v1/topics/t/messages/first").await;
    assert!(message["groups"][0]["holder"].is_null(), "{message:#}");
    // The topic has no index of keys, so no link leads to a list that cannot be shown.
    for path in ["/topics/t/messages/second", "/topics/t/keys"] {
        let (_, page) = site.get(path, "").await;
        let listed = links(&page).into_iter().find(|link| link.contains("?key="));
        assert_eq!(listed, None, "{path}");
    }
    let (status, page) = site.get("/topics/t/messages?key=cust-7", "").await;
    assert!(status == 200 && page.contains("key_index = true"), "{page}");
    assert!(!page.contains("End of the list"), "{page}");
    let (status, page) = site.get("/find?q=cust-7", "").await;
    assert!(status == 200 && page.contains("key_index"), "{page}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_search_finds_the_messages_of_an_ordering_key_in_a_topic_with_an_index() {
    let site = Site::start("key_index = true\n").await;
    send_of_key(&site, &["first"]).await;
    let found = site.ask(Method::GET, "/find?q=cust-7", "", "").await;
    assert_eq!(found.status(), 303);
    let list = found.headers()[LOCATION].to_str().unwrap();
    assert_eq!(list, "/topics/t/messages?key=cust-7");
    let (_, page) = site.get(list, "").await;
    assert!(page.contains("/topics/t/messages/first"), "{page}");
    let (status, page) = site.get("/find?q=cust-8", "").await;
    assert!(status == 200 && page.contains("Nothing found"), "{page}");
    let (_, page) = site.get("/topics/t/messages?key=cust-8", "").await;
    assert!(page.contains("No messages with this key"), "{page}");
    // A command has no characters that change the order of the text around them, shown or copied; the field holds the key as it is.
    let (_, page) = site.get("/topics/t/messages?key=a%E2%80%AEb", "").await;
    assert!(page.contains("value=\"a\u{202e}b\""), "{page}");
    assert!(page.contains(r"--key $'a\342\200\256b'"), "{page}");
    assert_eq!(page.matches('\u{202e}').count(), 1, "{page}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_search_lists_all_that_matches_and_says_what_it_did_not_search() {
    let more = "max_attempts = 1\n[topics.indexed]\nkey_index = true\n[topics.other]\n";
    let site = Site::start(more).await;
    let _consumer = Binary::Consumer
        .with(["run"])
        .config(&failing(&site))
        .start();
    send_of_key(&site, &["failed"]).await;
    for (topic, id) in [("indexed", "one"), ("indexed", "twin"), ("other", "twin")] {
        let headers = [
            ("Lisa-Id", id),
            ("Lisa-Key", "cust-7"),
            ("Lisa-Delay", "1h"),
        ];
        site.api.send(topic, "x", &headers).await.expect(202);
    }
    // One topic has an index and matches. Another one has failed messages of the same key.
    let expected = [
        "<a href=\"/topics/indexed/messages?key=cust-7\">",
        "Not searched for this ordering key (no <code>key_index</code>): 2 topics",
        "<a href=\"/topics/other\">",
        "<a href=\"/topics/t/garbage?group=default&amp;key=cust-7\">",
    ];
    shows(&site, "/find?q=cust-7", &expected).await;
    let (_, page) = site
        .get("/topics/t/garbage?group=default&key=cust-7", "")
        .await;
    assert!(page.contains("/topics/t/messages/failed"), "{page}");
    // An id in two topics, and one in a single topic.
    let both = [
        "/topics/indexed/messages/twin",
        "/topics/other/messages/twin",
    ];
    shows(&site, "/find?q=twin", &both).await;
    let found = site.ask(Method::GET, "/find?q=one", "", "").await;
    assert_eq!(found.status(), 303);
    assert_eq!(found.headers()[LOCATION], "/topics/indexed/messages/one");
}

#[tokio::test(flavor = "multi_thread")]
async fn commands_for_a_message_in_garbage_do_what_can_be_done_there() {
    let site = Site::start("max_attempts = 1\n").await;
    let mut consumer = Binary::Consumer
        .with(["run"])
        .config(&failing(&site))
        .start();
    send_of_key(&site, &["failed"]).await;
    let page = "/topics/t/messages/failed";
    shows(&site, page, &["Garbage (dead letter)"]).await;
    consumer.kill9();
    let (_, text) = site.get(page, "").await;
    for no in ["deliver-now", "reschedule", " cancel ", "-X DELETE"] {
        assert!(!text.contains(no), "{no}: {text}");
    }
    let garbage = format!("{}/v1/topics/t/groups/default/garbage", site.url);
    for verb in ["purge", "requeue"] {
        assert!(text.contains(&format!("{garbage}/{verb}")), "{text}");
        let words = format!("garbage {verb} t --group default -- failed");
        let copied = format!("data-copy=\"lisa-manager --url {} {words}\"", site.url);
        assert!(text.contains(&copied), "{copied}: {text}");
    }
    let words = ["--url", &site.url, "garbage", "requeue", "t"];
    let words = [&words[..], &["--group", "default", "--", "failed"]].concat();
    let said = Binary::Manager.with(words).run(SOON).await;
    assert_eq!(said.code, Some(0), "{said:?}");
    let message = site.api.get_json("/v1/topics/t/messages/failed").await;
    assert_eq!(message["groups"][0]["state"], "ready", "{message:#}");
}
