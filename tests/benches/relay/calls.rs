//! A client without coalescing: one script call per message, however many callers wait at once.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use lisa_core::message::MessageId;
use redis::{Script, cmd};

use crate::ceiling::record;
use crate::lab::{Lab, Sample};
use crate::lisa::{HOUR, at_once};

/// The minimum of a send: the record and its due time, on Redis's clock.
const SEND: &str = r"
local time = redis.call('TIME')
local due = time[1] * 1000 + math.floor(time[2] / 1000) + ARGV[2]
redis.call('HSET', KEYS[1], ARGV[1], ARGV[3])
redis.call('ZADD', KEYS[2], due, ARGV[1])
return due
";

/// Times `n` sends from this many callers on one connection.
pub(crate) async fn send_single(lab: &Lab, callers: u64, n: u64, size: usize) -> Sample {
    let (script, record) = (Arc::new(Script::new(SEND)), Arc::new(record(size)));
    let next = Arc::new(AtomicU64::new(0));
    let connection = lab.server().connection().await;
    let caller = |_| {
        let (script, record, next) = (script.clone(), record.clone(), next.clone());
        let mut connection = connection.clone();
        async move {
            while next.fetch_add(1, Ordering::Relaxed) < n {
                let delay = fastrand::u64(0..HOUR.as_millis() as u64);
                let mut call = script.key("bench:payload");
                call.key("bench:waiting");
                call.arg(MessageId::generate().as_str()).arg(delay);
                call.arg(record.as_slice());
                let sent = call.invoke_async::<u64>(&mut connection).await;
                sent.expect("sent");
            }
        }
    };
    let sample = lab.timed(n, at_once((0..callers).map(caller))).await;
    let stored: u64 = lab.ask(cmd("HLEN").arg("bench:payload")).await;
    assert_eq!(stored, n, "each send stores a message");
    sample
}
