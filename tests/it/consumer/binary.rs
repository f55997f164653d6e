//! The binary: what it prints, hands back and refuses.

use super::*;

/// Runs the binary on a relay's topic with five handlers at once; `sink` and `more` are TOML.
fn binary(relay: &Relay, server: &Server, sink: &str, more: &str) -> Process {
    let config = format!(
        r#"
        namespace = "{}"
        redis.url = "{}"
        consumer.listen = "127.0.0.1:{}"
        consumer.subscriptions = [{{ topic = "t", group = "default", concurrency = 5, sink = {sink} }}]
        {more}
        "#,
        relay.broker().namespace(),
        server.socket_url(),
        lisa_tests::free_port(),
    );
    Binary::Consumer.with(["run"]).config(&config).start()
}

#[tokio::test(flavor = "multi_thread")]
async fn the_binary_prints_messages_and_ends_with_0_when_it_is_told_to() {
    let relay = relay("binary").await;
    let mut process = binary(&relay, Server::shared(), r#"{ type = "stdout" }"#, "");
    relay.send(&[message("a", When::NOW)]).await;
    let line = process.next_line(PATIENCE).await;
    assert!(
        line.contains(r#""id":"a""#) && line.contains(r#""payload":"payload of a""#),
        "{line}"
    );
    process.sigterm();
    assert_eq!(process.wait_exit(PATIENCE).await.code(), Some(0));
    assert_eq!(process.lines_to_end(PATIENCE).await, Vec::<String>::new());
    relay.assert_drained().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn the_binary_hands_back_what_hangs_at_the_end_of_the_grace() {
    let relay = relay("binary-hangs").await;
    let sink = r#"{ type = "command", command = ["/bin/sleep", "1000"] }"#;
    let mut process = binary(
        &relay,
        Server::shared(),
        sink,
        r#"shutdown.grace = "100ms""#,
    );
    relay.send(&numbered(8)).await;
    let five = async || match relay.stats().await.groups.remove(0) {
        group if group.in_flight == 5 => Ok(()),
        group => Err(format!("{group:?}")),
    };
    eventually(PATIENCE, five).await;
    process.sigterm();
    assert_eq!(process.wait_exit(PATIENCE).await.code(), Some(0));
    let group = relay.stats().await.groups.remove(0);
    assert_eq!((group.ready, group.in_flight, group.retry), (3, 0, 5));
    assert!(relay.hash("attempts:default").await.is_empty());
    relay.assert_conserved().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn the_binary_refuses_to_run_without_subscriptions() {
    let finished = Binary::Consumer.with(["run"]).run(PATIENCE).await;
    assert_eq!(finished.code, Some(78), "{}", finished.stderr);
    assert!(
        finished.stderr.contains("consumer.subscriptions"),
        "{}",
        finished.stderr
    );
    assert_eq!(finished.stdout, "");
}
