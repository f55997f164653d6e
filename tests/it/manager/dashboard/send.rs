//! The form that sends a message.

use super::*;

#[tokio::test(flavor = "multi_thread")]
async fn the_send_form_sends_every_option_keeps_what_was_typed_and_sends_nothing_twice() {
    let site = Site::start(TOKENS).await;
    let (_, anna) = site.log_in("abc").await;
    let (_, reader) = site.log_in("def").await;
    let send = "/topics/t/send";
    // A viewer without the scope sees the reason.
    let (status, page) = site.get(send, &reader).await;
    assert!(status == 200 && page.contains("requires send"), "{page}");
    assert_eq!(site.post(send, &reader, "payload=x").await, 403);
    // A mistake is next to its field, and everything typed is still there.
    let hostile = "payload=%3Cb%3Etyped&delay=soon&priority=9999999999&headers=x%3Ay&once=once-1";
    let response = site.ask(Method::POST, send, &anna, hostile).await;
    assert_eq!(response.status(), 422);
    let page = response.text().await.unwrap();
    for text in [
        "id=\"send-delay-mistake\"",
        "id=\"send-priority-mistake\"",
        "value=\"soon\"",
        "&lt;b&gt;typed",
        "x:y",
        "value=\"once-1\"",
    ] {
        assert!(page.contains(text), "{text}: {page}");
    }
    let api = site.api.clone().token("abc");
    assert_eq!(api.get_json("/v1/topics/t").await["stats"]["stored"], 0);
    // Each option arrives.
    let form = "payload=a%0D%0Ab&headers=content-type%3A+text%2Fplain%0D%0Ax-note%3A+hi&delay=1h&key=k&merge_key=m&priority=-3\
        &max_attempts=7&ttl=2d&retry=%7B%22kind%22%3A%22fixed%22%2C%22delay%22%3A%225s%22%7D&even_if_cancelled=true\
        &durability=memory&once=once-2";
    let response = site.ask(Method::POST, send, &anna, form).await;
    assert_eq!(response.status(), 200);
    let page = response.text().await.unwrap();
    assert!(page.contains("/topics/t/messages/once-2"), "{page}");
    for line in [
        "Lisa-Priority: -3",
        "--priority=-3",
        "--even-if-cancelled",
        "--data-raw",
        "content-type=text/plain",
    ] {
        assert!(page.contains(line), "{line}: {page}");
    }
    assert!(
        !page.contains("value=\"once-2\""),
        "the next form has an id of its own"
    );
    let stored = api.get_json("/v1/topics/t/messages/once-2").await;
    let message = &stored["message"];
    let message = if message.is_object() {
        message
    } else {
        &stored
    };
    assert_eq!(message["payload"], "a\nb");
    assert_eq!(message["key"], "k");
    assert_eq!(message["merge_key"], "m");
    assert_eq!(message["priority"], -3);
    assert_eq!(message["max_attempts"], 7);
    assert_eq!(
        message["headers"],
        json!({ "content-type": "text/plain", "x-note": "hi" })
    );
    // The same request again, as after a reload, sends nothing.
    let response = site.ask(Method::POST, send, &anna, form).await;
    assert!(response.text().await.unwrap().contains("duplicate"));
    assert_eq!(api.get_json("/v1/topics/t").await["stats"]["stored"], 1);
    let audit = api.get_json("/v1/audit").await;
    assert_eq!(audit["entries"][0]["action"], "send");
    assert_eq!(audit["entries"][0]["who"], "anna");
    let request = site
        .client
        .post(format!("{}{send}", site.url))
        .header("Cookie", &anna);
    let response = request
        .header("Origin", "http://evil.example")
        .body("payload=x")
        .send()
        .await;
    assert_eq!(response.unwrap().status(), 403);
    // The limits of the topic apply.
    let form = format!("payload={}&once=big", "x".repeat(1024 * 1024 + 1));
    let response = site.ask(Method::POST, send, &anna, &form).await;
    assert_eq!(response.status(), 413);
    assert!(
        response
            .text()
            .await
            .unwrap()
            .contains("id=\"send-payload-mistake\"")
    );
}
