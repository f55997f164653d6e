//! Secrets stay out of the logs, even at the most verbose level.

use super::SOON;
use super::tokens::TOKENS;
use lisa_tests::{Answer, Binary, Server, Webhook, eventually, free_port};
use reqwest::Method;

/// A secret of each kind; none is part of another word.
const REDIS: &str = "r3dis-passw0rd";
const SIGNING: &str = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw";
const OF_URL: &str = "url-t0ken";
const OF_PATH: &str = "p4th-t0ken";

#[tokio::test]
async fn no_secret_is_in_a_log_that_tells_everything() {
    let server = Server::builder().password(REDIS).start();
    let hook = Webhook::start(vec![Answer::status(500), Answer::cut()]).await;
    let (url, hook_url) = (server.url(), hook.url());
    let config = |port: u16| {
        format!(
            r#"
            namespace = "logs"
            redis = {{ url = "{url}", password = "{REDIS}" }}
            producer.listen = "127.0.0.1:{port}"
            manager.listen = "127.0.0.1:{port}"
            consumer.listen = "127.0.0.1:{port}"
            [[consumer.subscriptions]]
            topic = "t"
            group = "g"
            sink = {{ type = "http", url = "{hook_url}/{OF_PATH}?token={OF_URL}", secret = "{SIGNING}", allow_private = true }}
            [topics.t]
            groups = ["g"]
            retry = {{ kind = "fixed", delay = "50ms" }}
            {TOKENS}
            "#
        )
    };
    let (port, other) = (free_port(), free_port());
    let relay = Binary::Manager
        .with(["run", "--with-producer"])
        .config(&config(port));
    let relay = relay.env("LISA_LOG", "trace").start();
    let consumer = Binary::Consumer
        .with(["run"])
        .config(&config(other))
        .env("LISA_LOG", "trace")
        .start();
    let api = lisa_tests::Api::new(port);
    eventually(SOON, async || match api.try_get("/readyz").await {
        Some(reply) if reply.status == 200 => Ok(()),
        found => Err(format!("{found:?}")),
    })
    .await;
    let payload = "payl0ad-of-a-customer";
    api.clone()
        .token("send-token")
        .send("t", payload, &[("Lisa-Header-Tenant", "ten4nt")])
        .await
        .expect(202);
    api.clone()
        .token("read-token")
        .get("/v1/stats")
        .await
        .expect(200);
    api.clone()
        .token("wr0ng-token")
        .get("/v1/stats?token=qu3ry-token")
        .await
        .expect(401);
    let odd = api
        .request(Method::GET, "/v1/stats")
        .header("Authorization", "Basic b4sic-token");
    assert_eq!(odd.send().await.expect("an answer").status(), 401);
    eventually(SOON, async || match hook.count() {
        3.. => Ok(()),
        seen => Err(format!("{seen} requests\n{}", consumer.stderr())),
    })
    .await;
    for (what, log) in [("manager", relay.stderr()), ("consumer", consumer.stderr())] {
        assert!(log.contains("DEBUG"), "{what} says too little: {log}");
        for secret in [
            REDIS,
            SIGNING,
            &SIGNING["whsec_".len()..],
            OF_URL,
            OF_PATH,
            "send-token",
            "read-token",
            "wr0ng-token",
            "qu3ry-token",
            "b4sic-token",
            payload,
            "ten4nt",
        ] {
            let line = log.lines().find(|line| line.contains(secret));
            assert_eq!(line, None, "{what} tells {secret:?}");
        }
    }
}
