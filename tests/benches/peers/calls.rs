//! One caller of the HTTP interface that sends, pulls and acknowledges one message at a time.

use std::time::Instant;

use lisa_tests::Api;
use reqwest::Method;
use serde_json::{Value, json};

use crate::lisa::TOPIC;
use crate::measure::Scale;
use crate::store::Store;

/// The measured calls, in the order of a message's life.
pub(crate) const CALLS: [&str; 3] = ["send", "pull", "acknowledge"];
const MESSAGES: usize = 3_000;

/// The time of each call, sorted, in ms.
pub(crate) type Calls = [Vec<f64>; CALLS.len()];

/// Times each call of `MESSAGES` messages, after a tenth as many that warm up.
pub(crate) fn measure(scale: Scale) -> Result<Calls, String> {
    let store = Store::lisa()?;
    let ports = store.ports().ok_or("no ports of Lisa's programs")?;
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .map_err(|error| error.to_string())?;
    let mut calls = Calls::default();
    runtime.block_on(async {
        let [producer, gateway] = ports.map(Api::new);
        let n = MESSAGES / scale.divisor;
        for message in 0..n + n / 10 {
            let mut times = [0.0; CALLS.len()];
            let payload = vec![b'x'; crate::protocol::SIZE];
            let start = Instant::now();
            producer.send(TOPIC, payload, &[]).await.expect(202);
            times[0] = ms(start);
            let start = Instant::now();
            let path = format!("/v1/topics/{TOPIC}/groups/default/pull");
            let pulled = gateway
                .call(Method::POST, &path, &json!({"wait": "5s"}))
                .await;
            times[1] = ms(start);
            let pulled = pulled.expect(200).json();
            let token = pulled["deliveries"][0]["token"].as_str();
            let token = token.ok_or_else(|| format!("no delivery in {pulled}"))?;
            let start = Instant::now();
            let path = format!("/v1/deliveries/{token}/ack");
            let acked = gateway.call(Method::POST, &path, &Value::Null).await;
            times[2] = ms(start);
            acked.expect(200);
            if message >= n / 10 {
                for (call, time) in calls.iter_mut().zip(times) {
                    call.push(time);
                }
            }
        }
        Ok::<(), String>(())
    })?;
    for call in &mut calls {
        call.sort_by(f64::total_cmp);
    }
    Ok(calls)
}

fn ms(start: Instant) -> f64 {
    start.elapsed().as_secs_f64() * 1e3
}
