//! An axum application that sends a reminder half an hour after each order.
//!
//! Run `cargo run -p lisa-producer --example axum_app`, then `curl -X POST http://127.0.0.1:8080/orders/7`. Set
//! `REDIS_URL` to use a Redis other than `redis://127.0.0.1:6379`, and `LISTEN` to use another address.

use std::time::Duration;

use axum::extract::{Path, State};
use axum::http::StatusCode;
use axum::routing::post;
use lisa_producer::{Producer, TopicSettings};

async fn order(State(producer): State<Producer>, Path(id): Path<u64>) -> (StatusCode, String) {
    let reminder = producer
        .send("reminders", &id)
        .delay(Duration::from_secs(30 * 60))
        .id(format!("order-{id}-reminder"));
    match reminder.await {
        Ok(receipt) => (StatusCode::CREATED, format!("{}\n", receipt.id)),
        Err(error) if error.is_retryable() => (StatusCode::SERVICE_UNAVAILABLE, error.to_string()),
        Err(error) => (StatusCode::INTERNAL_SERVER_ERROR, error.to_string()),
    }
}

#[tokio::main]
async fn main() -> anyhow::Result<()> {
    let url = std::env::var("REDIS_URL").unwrap_or("redis://127.0.0.1:6379".to_owned());
    let listen = std::env::var("LISTEN").unwrap_or("127.0.0.1:8080".to_owned());
    // A producer is cheap to clone. All clones share one connection, and combine their sends into batches.
    let producer = Producer::connect(&url).await?;
    producer
        .declare("reminders", &TopicSettings::default())
        .await?;
    let app = axum::Router::new()
        .route("/orders/{id}", post(order))
        .with_state(producer);
    let listener = tokio::net::TcpListener::bind(&listen).await?;
    println!("listening on {}", listener.local_addr()?);
    axum::serve(listener, app).await?;
    Ok(())
}
