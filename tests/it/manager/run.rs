//! The start and the end of a manager.

use super::SOON;
use super::operators::lisa_manager;
use lisa_tests::{Api, Server, eventually, free_port};

#[tokio::test]
async fn run_refuses_a_wrong_password_and_an_evicting_server() {
    let port = free_port().to_string();
    let listen = format!("127.0.0.1:{port}");
    let run = ["run", "--listen", &listen];
    let locked = Server::builder().password("sesame").start();
    let url = format!("redis://:wrong@127.0.0.1:{}", locked.port());
    let refused = lisa_manager(&locked, &run)
        .env("LISA_REDIS__URL", &url)
        .run(SOON)
        .await;
    assert_eq!(refused.code, Some(78), "{refused:?}");
    let evicting = Server::builder()
        .config("maxmemory-policy", "allkeys-lru")
        .start();
    let refused = lisa_manager(&evicting, &run).run(SOON).await;
    assert_eq!(refused.code, Some(78), "{refused:?}");
    assert!(
        refused.stderr.contains("maxmemory-policy is allkeys-lru"),
        "{refused:?}"
    );
}

#[tokio::test]
async fn run_waits_for_redis_and_ends_well_at_sigterm() {
    let mut server = Server::start();
    server.stop();
    let port = free_port();
    let listen = format!("127.0.0.1:{port}");
    let launch = lisa_manager(&server, &["run", "--listen", &listen]);
    let mut process = launch.env("LISA_TOPICS__T__SHARDS", "1").start();
    let api = Api::new(port);
    let ready = async |wanted: u16| {
        eventually(SOON, async || match api.try_get("/readyz").await {
            Some(reply) if reply.status == wanted => Ok(()),
            other => Err(format!("{other:?}")),
        })
        .await;
    };
    ready(503).await;
    server.restart();
    ready(200).await;
    process.sigterm();
    assert_eq!(process.wait_exit(SOON).await.code(), Some(0));
    server.stop();
    let mut process = lisa_manager(&server, &["run", "--listen", &listen]).start();
    ready(503).await;
    process.sigterm();
    assert_eq!(process.wait_exit(SOON).await.code(), Some(0));
}
