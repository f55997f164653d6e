//! Groups of topics that were created at run time: their settings follow what operators remove and keep.

use std::time::Instant;

use super::SOON;
use super::operators::lisa_manager;
use super::served::Served;
use lisa_core::broker::Declare;
use lisa_core::topic::Topic;
use lisa_tests::process::Finished;
use lisa_tests::{Server, eventually};
use serde_json::{Value, json};

/// The configuration of the managers, which declares `orders` only.
const FILE: &str = "topics.orders.groups = [\"a\", \"b\"]\n";

/// A manager whose jobs run only when a test asks for it.
async fn served(server: &Server) -> Served {
    let keys = [
        ("topics.orders.groups", "a,b"),
        ("manager.jobs.clean", "0 0 0 1 1 *"),
    ];
    Served::with(server, "cli", &keys, true).await
}

/// Returns the groups in the settings of a topic, and those that exist.
async fn groups(served: &Served, topic: &str) -> (Value, Value) {
    let topic = served.broker.newest(&topic.parse().unwrap()).await;
    let topic = topic.expect("a topic");
    (json!(topic.settings().groups), json!(topic.groups()))
}

/// Runs a command that must succeed, through the manager or over Redis with the configuration of the managers.
async fn run(server: &Server, url: Option<&str>, arguments: &[&str]) -> Finished {
    let url_option = url.iter().flat_map(|url| ["--url", url]);
    let arguments: Vec<_> = arguments.iter().copied().chain(url_option).collect();
    let launch = lisa_manager(server, &arguments);
    let done = match url {
        Some(_) => launch.run(SOON).await,
        None => launch.config(FILE).run(SOON).await,
    };
    assert_eq!(done.code, Some(0), "{done:?}");
    done
}

#[tokio::test]
async fn a_dropped_group_of_a_topic_created_at_run_time_does_not_come_back() {
    let server = Server::start();
    let served = served(&server).await;
    for url in [None, Some(&*served.url)] {
        let topic = if url.is_some() { "remote" } else { "local" };
        run(&server, url, &["topics", "create", topic, "groups=a,b"]).await;
        served.api.send(topic, "x", &[]).await.expect(202);
        eventually(SOON, async || {
            let stats = served.api.get_json(&format!("/v1/topics/{topic}")).await;
            let ready = stats["stats"]["groups"][1]["ready"].clone();
            (ready == 1).then_some(()).ok_or(ready)
        })
        .await;
        let began = Instant::now();
        let dropped = run(&server, url, &["groups", "drop", topic, "b", "--yes"]).await;
        assert_eq!(
            dropped.stdout,
            format!("{topic}/b is removed, dropped 1 message\n")
        );
        // Neither advice about a file that does not name it, nor a report of progress; and no wait for a job.
        assert_eq!(dropped.stderr, "", "after {:?}", began.elapsed());
        run(&server, url, &["topics", "change", topic, "lease=1m"]).await;
        assert_eq!(groups(&served, topic).await, (json!(["a"]), json!(["a"])));
    }
    served.end().await;
}

#[tokio::test]
async fn a_kept_group_of_a_topic_created_at_run_time_is_in_its_settings_again() {
    let server = Server::start();
    let served = served(&server).await;
    let run = async |arguments: &[&str]| run(&server, Some(&served.url), arguments).await;
    run(&["topics", "create", "t", "groups=a,b"]).await;
    let drained = run(&["groups", "drain", "t", "a"]).await;
    assert_eq!(drained.stderr, "");
    assert_eq!(
        groups(&served, "t").await,
        (json!(["b"]), json!(["a", "b"]))
    );
    for kept in ["t/a is kept\n", "t/a is already kept\n"] {
        assert_eq!(run(&["groups", "keep", "t", "a"]).await.stdout, kept);
        assert_eq!(
            groups(&served, "t").await,
            (json!(["b", "a"]), json!(["a", "b"]))
        );
    }
    served.end().await;
}

#[tokio::test]
async fn the_settings_of_a_topic_stay_as_its_file_has_them() {
    let server = Server::start();
    let served = served(&server).await;
    let drop = ["groups", "drop", "orders", "b", "--yes"];
    let dropped = run(&server, Some(&served.url), &drop).await;
    let advice = "orders/b is still in the topic's settings: remove it from the managers' configuration, or their next start \
        creates it again\n";
    assert_eq!(dropped.stderr, advice);
    assert_eq!(
        groups(&served, "orders").await,
        (json!(["a", "b"]), json!(["a"]))
    );
    // A command line without the file does not know what it declares.
    let create = ["topics", "create", "t", "groups=a,b"];
    run(&server, Some(&served.url), &create).await;
    let alone = ["groups", "drop", "t", "b", "--yes"];
    let dropped = lisa_manager(&server, &alone).run(SOON).await;
    assert_eq!(dropped.stdout, "t/b is removed, dropped 0 messages\n");
    let advice = "if the configuration does not declare t, use `topics change t groups=...`";
    assert!(dropped.stderr.contains(advice), "{dropped:?}");
    assert_eq!(
        groups(&served, "t").await,
        (json!(["a", "b"]), json!(["a"]))
    );
    // A change for another group does not bring it back.
    run(&server, Some(&served.url), &["groups", "drain", "t", "a"]).await;
    let (named, there) = groups(&served, "t").await;
    assert_eq!(named, json!([]));
    assert!(!there.to_string().contains('b'), "{there}");
    served.end().await;
}

#[tokio::test]
async fn a_group_that_another_process_has_just_added_can_be_paused() {
    let server = Server::start();
    let served = served(&server).await;
    let orders: Topic = "orders".parse().unwrap();
    let mut settings = served
        .broker
        .newest(&orders)
        .await
        .unwrap()
        .settings()
        .clone();
    for name in ["c", "d", "e"] {
        settings.groups.push(name.parse().unwrap());
        let declared = served.broker.declare(&orders, &settings, Declare::Update);
        declared.await.unwrap();
        let path = format!("topics/orders/groups/{name}/pause");
        let paused = served.post(&path, json!({})).await.expect(200).json();
        assert_eq!(paused["changed"], true);
    }
    served.end().await;
}
