//! Callbacks of a consumer process that is killed: none is lost, and none is delivered twice.

use super::deployment::TOPIC;
use super::targets::send;
use super::{Deployment, SOON};
use lisa_tests::webhook::Recorded;
use lisa_tests::{Answer, Binary, Site, Topology, Webhook, eventually};
use std::collections::BTreeSet;
use std::time::Duration;

const MESSAGES: usize = 400;
const DONE: &str = "done";

async fn at_least(hook: &Webhook, count: usize) {
    eventually(SOON, async || match hook.count() {
        seen if seen >= count => Ok(()),
        seen => Err(format!("{seen} of {count} requests")),
    })
    .await;
}

#[tokio::test]
async fn each_success_has_one_callback_however_often_its_consumer_is_killed() {
    let reason = "the users lack the right to send; topologies::users has its own test";
    if Site::lacks(|topology| topology != Topology::Users, reason) {
        return;
    }
    let here = Deployment::start("lease = \"1s\"").await;
    let here = here.with(&format!("[topics.{DONE}]"));
    let relay = here.combined().await;
    let works = Webhook::answering(|_| Answer::status(200).after(Duration::from_millis(10))).await;
    let reporting = format!(
        "concurrency = 20\nsuccess_topic = \"{DONE}\"\n\
         sink = {{ type = \"http\", url = \"{}\", allow_private = true }}",
        works.url()
    );
    let mut consumer = here.consumer(&reporting).await;
    send(&relay, MESSAGES).await;
    for kill in 1..=3 {
        at_least(&works, kill * MESSAGES / 5).await;
        consumer.process.kill9();
        consumer = here.consumer(&reporting).await;
    }
    let stats = here.drained().await;
    assert_eq!(Deployment::counter(&stats, "acked"), MESSAGES as i64);
    let (_, stats) = here.json(Binary::Manager, &["stats"]).await;
    let topics = stats["topics"].as_array().expect("a list of topics");
    let done = topics.iter().find(|topic| topic["topic"] == DONE);
    let done = done.expect("the topic of the callbacks");
    assert_eq!(
        Deployment::counter(done, "accepted"),
        MESSAGES as i64,
        "{done:#}"
    );
    consumer.stop().await;

    let reports = Webhook::answering(|_| Answer::status(200)).await;
    let mut consumer = here
        .consumer(&format!(
            "sink = {{ type = \"stdout\" }}\n\
             [[consumer.subscriptions]]\ntopic = \"{DONE}\"\ngroup = \"default\"\n\
             sink = {{ type = \"http\", url = \"{}\", allow_private = true }}",
            reports.url()
        ))
        .await;
    at_least(&reports, MESSAGES).await;
    let requests = reports.requests();
    let ids = |requests: &[Recorded], header: &str| {
        let ids = requests
            .iter()
            .map(|request| request.header(header).to_owned());
        ids.collect::<BTreeSet<_>>()
    };
    let reported = ids(&requests, "lisa-callback-id");
    assert_eq!(requests.len(), MESSAGES);
    assert_eq!(reported, ids(&works.requests(), "webhook-id"));
    let topics = ids(&requests, "lisa-callback-topic");
    assert_eq!(topics, BTreeSet::from([TOPIC.to_owned()]));
    consumer.stop().await;
    here.conserved().await;
}
