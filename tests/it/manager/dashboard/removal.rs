//! Removing a topic on its page.

use super::*;

#[tokio::test(flavor = "multi_thread")]
async fn a_topic_is_removed_once_its_name_is_typed() {
    let site = Site::start("groups = [\"default\"]\n").await;
    let body = json!({ "groups": ["default"] });
    site.api
        .call(Method::PUT, "/v1/topics/new", &body)
        .await
        .expect(201);
    site.api
        .send("new", "x", &[("lisa-delay", "1h")])
        .await
        .expect(202);
    let (_, page) = site.get("/topics/new", "").await;
    // What a call created is changed by a call.
    assert!(page.contains("topics change new max_attempts="), "{page}");
    for path in ["/topics/new/drain", "/topics/new/force"] {
        assert!(page.contains(&format!("href=\"{path}\"")), "{page}");
        let (status, asked) = site.get(path, "").await;
        assert_eq!(status, 200);
        assert!(asked.contains("<strong>1 message</strong>"), "{asked}");
        assert_eq!(site.post(path, "", "typed=old").await, 422);
    }
    // What the file declares has no such buttons.
    let (_, page) = site.get("/topics/t", "").await;
    assert!(!page.contains("/topics/t/drain"), "{page}");
    assert!(!page.contains("topics change t"), "{page}");
    assert!(
        page.contains("<code>topics.t</code> in the configuration of the managers"),
        "{page}"
    );
    assert_eq!(site.post("/topics/t/force", "", "typed=t").await, 409);

    assert_eq!(site.post("/topics/new/drain", "", "typed=new").await, 303);
    let (_, page) = site.get("/topics/new", "").await;
    assert!(page.contains("This topic is draining"), "{page}");
    assert_eq!(site.post("/topics/new/force", "", "typed=new").await, 303);
    eventually(SOON, async || match site.get("/topics/new", "").await {
        (404, _) => Ok(()),
        (_, page) => Err(page),
    })
    .await;
    let (_, page) = site.get("/", "").await;
    assert!(!page.contains("topic-new"), "{page}");
}
